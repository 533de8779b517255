"""Comparisons of runs as text and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrun.curves.curve import build_series
from hpcrun.curves.report.compare import comparison_json, format_comparison
from hpcrun.curves.report.comparison import compare_runs
from hpcrun.curves.report.parsed import ParsedRun
from hpcrun.text.table import UNLIMITED, Display, text_width
from tests.curves.report.compared import loss, run, timed
from tests.curves.report.runs import built
from tests.json_schemas import closed, load_schema

SCHEMA = load_schema("compare")
VALIDATOR = jsonschema.Draft202012Validator(closed(SCHEMA))


# ---- text


def text_of(runs: Sequence[ParsedRun], width: int = 100, **more: Any) -> str:
    look = Display(
        width, more.pop("height", 40), more.pop("colour", False), more.pop("ascii_only", False)
    )
    return format_comparison(runs, compare_runs(runs), look, **more)


def test_runs_with_unknown_settings_are_named() -> None:
    runs = [
        run("a", loss(10, 2.0), facts={"args.--lr": "1e-4"}),
        run("b", loss(10, 2.0), facts={"args.--lr": "3e-4"}),
        run("plain.log", loss(10, 2.0)),
    ]
    assert "settings are not known for plain.log" in text_of(runs)
    assert "settings" not in text_of(runs[2:] * 2)


def guides() -> list[ParsedRun]:
    """Return runs on 1, 2, 4 and 8 GPUs, as in the documentation."""
    runs = []
    for number, (gpus, seconds) in enumerate({1: 1.0, 2: 0.5556, 4: 0.3125, 8: 0.1887}.items()):
        series = timed(loss(400, 2.0, seed=number), seconds)
        time = build_series(series.steps, [seconds] * 400)
        facts = {"effective_batch": "64", "world_size": f"{gpus}"}
        metrics = {"loss": series, "step_seconds": time}
        runs.append(built(f"{gpus}gpu.log", metrics, gpus=gpus, seconds=400 * seconds, facts=facts))
    return runs


def test_scaling_table_shows_speedup_and_efficiency() -> None:
    text = text_of(guides(), 120)
    found = re.findall(r"(\d)gpu\.log +(\d) +64 .* ([\d.]+x) +(\d+%) ", text)
    assert found == [
        ("1", "1", "1.00x", "100%"),
        ("2", "2", "1.80x", "90%"),
        ("4", "4", "3.20x", "80%"),
        ("8", "8", "5.30x", "66%"),
    ]
    assert "strong scaling, the batch is the same" in text


def test_verdict_shows_the_noise() -> None:
    clear = text_of([run("a", loss(1000, 2.0)), run("b", loss(1000, 1.8, seed=1))])
    assert re.search(
        r"loss at step 1,000: b 1\.\d+ is lowest; higher: a by 0\.\d+ ± 0\.0\d+\n", clear
    )
    same = text_of([run("a", loss(1000, 2.0)), run("b", loss(1000, 2.0, seed=1))])
    assert "loss at step 1,000: no difference beyond noise: " in same
    few = text_of([run(n, build_series([1, 2, 3], [3.0, 2.0, v])) for n, v in (("a", 1), ("b", 2))])
    assert "with too few points to estimate the noise: b by " in few


@pytest.mark.parametrize("by", ["step", "tokens", "samples", "time"])
def test_x_axis_follows_by(by: Any) -> None:
    runs = guides()
    label = {"step": "step", "samples": "samples", "time": "minutes", "tokens": "step"}[by]
    assert text_of(runs, by=by).startswith(f"loss by {label}")


@pytest.mark.slow
@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("colour", [False, True])
def test_lines_fit_the_window(width: int, colour: bool) -> None:
    name = "runs/損失/a-very-long-name-of-a-run-that-nobody-would-type/train"
    facts = {f"args.--option-{n}": f"value {n}" for n in range(4)}
    runs = [
        run(
            f"{name}-{n}.log",
            loss(400, 2.0),
            warnings=("loss is nan " * 20,),
            facts=facts | {"n": f"{n}"},
        )
        for n in range(5)
    ]
    for some in (runs[:2], runs):
        for line in text_of(some, width, colour=colour).splitlines():
            assert text_width(re.sub(r"\x1b\[[\d;]*m", "", line)) <= width


def test_output_is_ascii_on_ascii_terminals() -> None:
    runs = [run("损失.log", loss(400, 2.0)), run("b", loss(400, 1.0), facts={"k": "é"})]
    assert text_of(runs, ascii_only=True).isascii()


def test_names_and_settings_contain_no_control_sequences() -> None:
    bad = "\x1b]0;x\x07\n"
    runs = [
        run(f"a{bad}{n}", loss(40, 2.0), facts={f"k{bad}": f"{n}{bad}"}, warnings=(bad,))
        for n in range(2)
    ]
    text = text_of(runs)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)


def test_warnings_are_single_lines_in_a_pipe() -> None:
    runs = [run("a", loss(40, 2.0), warnings=("word " * 60,)), run("b", loss(40, 2.0))]
    lines = text_of(runs, 60, height=UNLIMITED).splitlines()
    assert any(line.startswith("warning: a: word word") and len(line) > 290 for line in lines)


# ---- JSON


def checked(runs: Sequence[ParsedRun], **more: Any) -> Any:
    text = json.dumps(comparison_json(runs, compare_runs(runs, **more)), allow_nan=False)
    found = json.loads(text)
    VALIDATOR.validate(found)
    return found


def test_json_matches_the_expected_structure() -> None:
    shown = checked(guides())
    assert [each["speedup"] for each in shown["runs"]] == pytest.approx(
        [1, 1.8, 3.2, 5.3], abs=0.01
    )
    assert shown["scaling"]["kind"] == "strong" and shown["scaling"]["baseline"] == 0
    assert [each["by"] for each in shown["equal"]] == ["step", "time"]
    assert shown["settings"] == {"world_size": ["1", "2", "4", "8"]}
    assert shown["runs"][3]["gpu_hours"] == pytest.approx(8 * 400 * 0.1887 / 3600)
    assert all(each["seconds"] is not None for each in shown["target"]["reached"])
    assert checked([built("a", {}), built("b", {})])["target"] is None


numbers = st.one_of(st.floats(), st.just(2.0), st.floats(0, 10))
series = st.builds(
    lambda values, start, stepped, clocked: build_series(
        [start + n if stepped else None for n in range(len(values))],
        values,
        [1e9 + n for n in range(len(values))] if clocked else None,
    ),
    st.lists(numbers, min_size=1, max_size=30),
    st.integers(0, 10**12),
    st.booleans(),
    st.booleans(),
)
any_run = st.builds(
    lambda metrics, gpus, seconds, batch: built(
        "x", metrics, gpus=gpus, seconds=seconds, facts={"effective_batch": batch} if batch else {}
    ),
    st.dictionaries(
        st.sampled_from(
            ["loss", "step_seconds", "tokens_per_second", "num_tokens", "consumed_samples", "acc"]
        ),
        series,
        max_size=4,
    ),
    st.sampled_from([None, 1, 2, 8]),
    st.sampled_from([None, 0.0, 10.0]),
    st.sampled_from(["", "8", "x"]),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.lists(any_run, min_size=2, max_size=4), st.sampled_from(["step", "tokens", "time"]))
def test_any_logs_can_be_compared(runs: list[ParsedRun], by: Any) -> None:
    checked(runs)
    text_of(runs, 60, by=by)
