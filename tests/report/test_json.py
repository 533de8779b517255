"""The JSON report keeps its shape and is valid JSON."""

from __future__ import annotations

import json
from typing import Any

from hpcrun.metrics.parse import parse_chunks
from hpcrun.report.json import report, report_text
from tests.report import runs


def reject(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def load(text: str) -> Any:
    return json.loads(text, parse_constant=reject)


def test_shape() -> None:
    data = b"step=1 loss=2.5 lr=0.1\nstep=2 loss=3\nstep=3 loss=2\n"
    assert report([parse_chunks("a.log", [(0, [data])])]) == {
        "runs": [
            {
                "source": "a.log",
                "formats": ["key=value"],
                "points": 3,
                "restarts": 0,
                "metrics": {
                    "loss": {
                        "count": 3,
                        "first": {"step": 1, "value": 2.5},
                        "last": {"step": 3, "value": 2.0},
                        "min": {"step": 3, "value": 2.0},
                        "max": {"step": 2, "value": 3.0},
                    },
                    "lr": {
                        "count": 1,
                        "first": {"step": 1, "value": 0.1},
                        "last": {"step": 1, "value": 0.1},
                        "min": {"step": 1, "value": 0.1},
                        "max": {"step": 1, "value": 0.1},
                    },
                },
                "warnings": [],
            }
        ]
    }


def test_numbers_that_json_lacks() -> None:
    data = b"step=1 loss=nan\nstep=2 loss=-inf\nstep=3 loss=inf\n"
    text = report_text([parse_chunks("a.log", [(0, [data])])], full=True)
    loss = load(text)["runs"][0]["metrics"]["loss"]
    assert loss["values"] == ["NaN", "-Infinity", "Infinity"]
    assert [float(value) for value in loss["values"]][1:] == [float("-inf"), float("inf")]
    assert (loss["min"]["value"], loss["max"]["value"]) == ("-Infinity", "Infinity")
    assert text.endswith("}\n")


def test_only_nan() -> None:
    run = parse_chunks("a.log", [(0, [b"step=1 loss=nan\n"])])
    loss = load(report_text([run]))["runs"][0]["metrics"]["loss"]
    assert (loss["min"], loss["max"]) == (None, None)


def test_without_steps_the_step_is_null() -> None:
    told = load(report_text(runs.without_steps(), full=True))["runs"][0]
    assert told["metrics"]["loss"]["first"] == {"step": None, "value": 3.5}
    assert told["metrics"]["loss"]["steps"] == [None, None, None]
    assert told["points"] == 3


def test_columns_come_only_when_asked() -> None:
    for full in (False, True):
        for told in load(report_text(runs.several(), full=full))["runs"]:
            for metric in told["metrics"].values():
                assert ("steps" in metric) == ("values" in metric) == full
                if full:
                    assert len(metric["steps"]) == len(metric["values"]) == metric["count"]


def test_a_log_without_loss_has_no_points() -> None:
    run = parse_chunks("a.log", [(0, [b"step=1 eval_loss=2\nstep=1 tokens_per_second=5\n"])])
    told = report([run])["runs"][0]
    assert told["points"] == 0
    assert set(told["metrics"]) == {"eval_loss", "tokens_per_second"}


def test_restarts_are_counted() -> None:
    assert report([runs.restarted()])["runs"][0]["restarts"] == 1
