"""The JSON report is valid JSON with the structure described by its schema."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from hpcrun.curves.curve import build_series
from hpcrun.curves.report.data import json_text, runs_json
from tests.curves.parsing import parse_chunks
from tests.curves.report import runs
from tests.json_schemas import closed, load_schema
from tests.source import ROOT

SCHEMA = load_schema("parse")
VALIDATOR = jsonschema.Draft202012Validator(closed(SCHEMA))


def reject(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def load(text: str) -> Any:
    assert text.isascii()
    shown = json.loads(text, parse_constant=reject)
    VALIDATOR.validate(shown)
    return shown


def test_json_has_the_documented_structure() -> None:
    metrics = {
        "loss": build_series([1, 2, 3], [2.5, 3.0, 2.0]),
        "lr": build_series([1], [0.1]),
    }
    shown = runs_json([runs.built("a.log", metrics)])
    assert shown == {
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
                "notes": [],
                "total_steps": None,
                "axis": "step",
                "resumed": [],
                "files": 1,
                "bytes": 52_000,
                "gpus": None,
                "seconds": None,
                "time": {"seconds": None, "from": ""},
                "peak_memory_bytes": None,
                "facts": {},
            }
        ]
    }


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
def test_schema_describes_every_key(full: bool) -> None:
    every = [*runs.several(), *runs.running(), *runs.without_steps(), *runs.rewards()]
    shown = load(json_text(every, full=full))
    assert len(shown["runs"]) == len(every)
    shown["runs"][0]["loss"] = 3
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(shown)


@pytest.mark.slow
def test_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    (run,) = load(json_text(runs.running(), full=True))["runs"]
    assert set(SCHEMA["$defs"]["run"]["properties"]) == set(run)
    assert set(SCHEMA["$defs"]["metric"]["properties"]) == set(run["metrics"]["loss"])
    assert set(SCHEMA["$defs"]["restart"]["properties"]) == set(run["resumed"][0])


@pytest.mark.parametrize(
    "wrong",
    [
        {"points": -1},
        {"points": 2.5},
        {"restarts": []},
        {"metrics": {"loss": {"count": 0}}},
        {"warnings": "none"},
        {"total_steps": "many"},
        {"facts": {"nodes": 2}},
    ],
)
def test_schema_refuses_invalid_values(wrong: dict[str, Any]) -> None:
    shown = runs_json(runs.running())
    shown["runs"][0] |= wrong
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(shown)


def test_documented_example_is_valid() -> None:
    text = (ROOT / "docs" / "parse.md").read_text()
    (example,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    VALIDATOR.validate(json.loads(example))


def test_non_finite_numbers_are_strings() -> None:
    values = [float("nan"), float("-inf"), float("inf")]
    run = runs.built("a.log", {"loss": build_series([1, 2, 3], values)})
    loss = load(json_text([run], full=True))["runs"][0]["metrics"]["loss"]
    assert loss["values"] == ["NaN", "-Infinity", "Infinity"]
    assert [float(value) for value in loss["values"]][1:] == [float("-inf"), float("inf")]
    assert (loss["min"]["value"], loss["max"]["value"]) == ("-Infinity", "Infinity")


def test_summary_of_only_nan_is_null() -> None:
    run = runs.built("a.log", {"loss": build_series([1], [float("nan")])})
    loss = load(json_text([run]))["runs"][0]["metrics"]["loss"]
    assert (loss["min"], loss["max"]) == (None, None)


def test_step_is_null_without_steps() -> None:
    run = runs.built("a.log", {"loss": build_series([None] * 3, [3.5, 2.5, 3.0])})
    shown = load(json_text([run], full=True))["runs"][0]
    assert shown["metrics"]["loss"]["first"] == {"step": None, "value": 3.5}
    assert shown["metrics"]["loss"]["steps"] == [None, None, None]
    assert shown["points"] == 3


@pytest.mark.slow
def test_columns_are_included_only_with_full() -> None:
    for full in (False, True):
        for shown in load(json_text(runs.several(), full=full))["runs"]:
            for metric in shown["metrics"].values():
                assert ("steps" in metric) == ("values" in metric) == ("times" in metric) == full
                if full:
                    assert len(metric["steps"]) == len(metric["values"]) == metric["count"]


def test_log_without_loss_has_zero_points() -> None:
    metrics = {name: build_series([1], [2.0]) for name in ("eval_loss", "tokens_per_second")}
    shown = runs_json([runs.built("a.log", metrics)])["runs"][0]
    assert shown["points"] == 0
    assert set(shown["metrics"]) == {"eval_loss", "tokens_per_second"}


def test_restarts_are_counted_and_reported() -> None:
    shown = runs_json(runs.running())["runs"][0]
    assert shown["restarts"] == 1
    restart = {"attempt": 1, "lost_at": 540, "resumed_at": 501, "replayed": 40, "cause": ""}
    assert shown["resumed"] == [restart]


@pytest.mark.slow
@given(
    st.text(),
    st.dictionaries(st.text(), st.lists(st.floats(), min_size=1, max_size=5), max_size=4),
    st.lists(st.text(), max_size=3),
    st.booleans(),
)
@settings(max_examples=100)
def test_any_log_is_valid_json(
    source: str, logged: dict[str, list[float]], warnings: list[str], full: bool
) -> None:
    metrics = {name: build_series([None] * len(v), v) for name, v in logged.items()}
    run = structs.replace(runs.built(source, metrics), warnings=tuple(warnings))
    shown = load(json_text([run], full=full))
    assert shown == runs_json([run], full=full)


def test_missing_time_of_a_line_is_null() -> None:
    stamped = b"2026-11-20 08:04:0%d step=%d loss=2.5\n"
    data = stamped % (1, 1) + b"step=2 loss=2.5\n" + stamped % (3, 3)
    data += b"step: 4, loss: 2.5\n" + stamped % (5, 5)
    shown = load(json_text([parse_chunks("a.log", [(0, [data])])], full=True))
    times = [1795161841.0, None, 1795161843.0, None, 1795161845.0]
    assert shown["runs"][0]["metrics"]["loss"]["times"] == times
