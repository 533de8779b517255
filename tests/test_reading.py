"""bench.reading counts each thing that a person reads in a log, and notices each error."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from bench.reading import ROWS, TRUTH, count, find_words, score
from bench.unseen import options, read_truth

ENTRIES = read_truth(TRUTH)
ENTRY: dict[str, Any] = {
    "end": "failed",
    "loss": [{"name": "loss", "first": 4.0, "last": 2.0, "best": 1.5}],
    "evals": [{"name": "Val Acc", "first": 0.1, "last": [0.6, 0.61], "best": 0.7}],
    "seconds": [600, 700],
    "axis": "step",
    "class": ["oom_gpu", "oom_host"],
    "line": [70, 80],
    "rank": 3,
    "host": "node2",
}
CAUSE: dict[str, Any] = {
    "class": "oom_gpu",
    "line": 80,
    "rank": 3,
    "host": "node2",
    "text": "torch.OutOfMemoryError",
}


def metric(first: float, last: float, low: float, high: float) -> dict[str, Any]:
    points = {"first": first, "last": last, "min": low, "max": high}
    return {"count": 10, **{name: {"step": 1, "value": value} for name, value in points.items()}}


RUN: dict[str, Any] = {
    "metrics": {"loss": metric(4, 2, 1.5, 4), "eval_acc": metric(0.1, 0.61, 0.1, 0.7)},
    "time": {"seconds": 610.0},
}


def errors(
    run: dict[str, Any] = RUN, axis: str = "step", cause: dict[str, Any] = CAUSE
) -> list[str]:
    scored = score(ENTRY, run, axis, cause, "")
    return [row for row, wrong in scored if wrong]


def test_right_answer_counts_in_every_row() -> None:
    scored = list(score(ENTRY, RUN, "step", CAUSE, ""))
    table = count({"log": scored})
    assert not any(wrong for _, wrong in scored)
    counted = {row for row, each in table.items() if each["right"] == 1}
    assert counted == set(ROWS) - {"no invented metric", "no false alarm"}


@pytest.mark.parametrize(
    ("name", "place", "row"),
    [
        ("loss", "first", "training loss"),
        ("loss", "last", "training loss"),
        ("loss", "min", "training loss"),
        ("eval_acc", "first", "evaluation metrics"),
        ("eval_acc", "last", "evaluation metrics"),
        ("eval_acc", "max", "evaluation metrics"),
    ],
)
def test_wrong_value_of_a_metric_is_an_error(name: str, place: str, row: str) -> None:
    run = copy.deepcopy(RUN)
    run["metrics"][name][place]["value"] += 0.01
    assert errors(run) == [row]


def test_missing_metric_is_an_error() -> None:
    assert errors({"metrics": {}, "time": RUN["time"]}) == ["training loss", "evaluation metrics"]


def test_evaluation_metric_does_not_count_as_another_one_or_as_the_training_loss() -> None:
    metrics = {"loss": RUN["metrics"]["loss"], "eval_f1": RUN["metrics"]["eval_acc"]}
    assert errors(RUN | {"metrics": metrics}) == ["evaluation metrics"]
    only_eval = {"loss": None, "evals": [{"name": "loss", "first": 4, "last": 2, "best": 1.5}]}
    as_loss = {"metrics": {"loss": RUN["metrics"]["loss"]}}
    scored = list(score(only_eval, as_loss, "step", None, ""))
    assert [row for row, wrong in scored if wrong] == ["training loss", "evaluation metrics"]
    as_eval = {"metrics": {"eval_loss": RUN["metrics"]["loss"]}}
    assert not any(wrong for _, wrong in score(only_eval, as_eval, "step", None, ""))


def test_time_beyond_five_percent_and_missing_time_are_errors() -> None:
    assert errors(RUN | {"time": {"seconds": 631.0}}) == ["time"]
    assert errors(RUN | {"time": {"seconds": None}}) == ["time"]
    assert not errors(RUN | {"time": {"seconds": 629.0}})


def test_wrong_axis_is_an_error() -> None:
    assert errors(axis="epoch") == ["axis"]


def test_wrong_cause_is_an_error_in_its_rows() -> None:
    assert errors(cause=CAUSE | {"class": "code_error"}) == ["class", "line"]
    assert errors(cause=CAUSE | {"class": "time_limit"}) == ["end", "class", "line"]
    assert errors(cause=CAUSE | {"line": 81}) == ["line"]
    assert errors(cause=CAUSE | {"rank": 0}) == ["rank"]
    assert errors(cause=CAUSE | {"host": "node3"}) == ["host"]
    nothing = [row for row, wrong in score(ENTRY, RUN, "step", None, "") if wrong]
    assert nothing == ["end", "class", "line"]


def test_metrics_and_causes_found_where_there_are_none_are_errors() -> None:
    entry = {"nothing": True, "end": "completed"}
    scored = score(entry, {"metrics": {"acc": metric(0, 1, 0, 1)}}, "", CAUSE, "")
    assert [row for row, wrong in scored if wrong] == [
        "no invented metric",
        "end",
        "no false alarm",
    ]
    assert not any(wrong for _, wrong in score(entry, {"metrics": {}}, "", None, ""))
    unread = score(entry, {"metrics": {}}, "", None, "no answer, exit code 2")
    assert [row for row, wrong in unread if wrong] == ["end", "no false alarm"]


def test_names_are_compared_without_their_scope() -> None:
    assert find_words("val/Accuracy") == find_words("eval_acc") == {"acc"}
    assert find_words("Val") == find_words("eval_loss") == {"loss"}


def test_entries_are_well_formed() -> None:
    assert len({entry["id"] for entry in ENTRIES}) == len(ENTRIES)
    assert len({entry["sha256"] for entry in ENTRIES}) == len(ENTRIES)
    parts = {entry.get("source", entry["repo"]): entry["part"] for entry in ENTRIES}
    for entry in ENTRIES:
        assert parts[entry.get("source", entry["repo"])] == entry["part"], entry["id"]
        assert re.fullmatch(r"[0-9a-f]{40}", entry["commit"]), entry["id"]
        assert re.fullmatch(r"[0-9a-f]{64}", entry["sha256"]), entry["id"]
        assert entry["path"], entry["id"]
        assert len(entry.get("evals", ())) <= 3, entry["id"]
        ends = options(entry.get("end", "failed"))
        assert {"completed", "failed", "interrupted", "running"}.issuperset(ends), entry["id"]
        assert ("class" in entry) == ("cause" in entry) == ("line" in entry), entry["id"]
