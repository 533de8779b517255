"""Several runs beside each other as JSON, stable for programs to read.

docs/compare.md describes it, docs/json/compare.schema.json is its JSON Schema. Numbers that are not
finite are strings, as in the JSON of parse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcrun.metrics.compare import Difference
from hpcrun.metrics.curve import Point
from hpcrun.metrics.parse import ParsedRun
from hpcrun.report.comparison import Comparison, Equal, Reached
from hpcrun.report.facts import gpu_hours, seconds_by_times
from hpcrun.report.scaling import Speed
from hpcrun.views.numbers import number


def comparison_json(runs: Sequence[ParsedRun], told: Comparison) -> dict[str, Any]:
    """Return the comparison as plain dicts, lists, strings and numbers."""
    scaling, target = told.scaling, told.target
    return {
        "metric": told.metric,
        "falls": told.falls,
        "runs": [
            _run(run, told.metric, speed) for run, speed in zip(runs, scaling.speeds, strict=True)
        ],
        "equal": [_equal(equal) for equal in told.equal],
        "target": None
        if target is None
        else {"level": target.level, "reached": [_reached(each) for each in target.reached]},
        "scaling": {
            "unit": scaling.unit or None,
            "counted": scaling.counted,
            "baseline": scaling.baseline,
            "kind": scaling.kind,
            "notes": list(scaling.notes),
        },
        "settings": {key: list(values) for key, values in told.settings.items()},
        "notes": list(told.notes),
    }


def _run(run: ParsedRun, metric: str | None, speed: Speed) -> dict[str, Any]:
    summary = run.curve.summary(metric) if metric else None
    return {
        "source": run.source,
        "count": summary.count if summary else 0,
        "first": _point(summary.first) if summary else None,
        "last": _point(summary.last) if summary else None,
        "min": _point(summary.min) if summary else None,
        "max": _point(summary.max) if summary else None,
        "gpus": speed.gpus,
        "batch": speed.batch,
        "step_seconds": speed.step_seconds,
        "work": speed.work,
        "speedup": speed.speedup,
        "efficiency": speed.efficiency,
        "seconds": run.seconds if run.seconds is not None else seconds_by_times(run.curve),
        "gpu_hours": gpu_hours(run),
        "warnings": list(run.warnings),
    }


def _equal(equal: Equal) -> dict[str, Any]:
    return {
        "by": equal.by,
        "from": equal.window.begin,
        "to": equal.window.end,
        "levels": list(equal.levels),
        "best": equal.best,
        "behind": [None if gap is None else _gap(gap) for gap in equal.behind],
    }


def _gap(gap: Difference) -> dict[str, Any]:
    return {"value": gap.value, "error": gap.error, "clear": gap.is_clear}


def _reached(reached: Reached | None) -> dict[str, Any] | None:
    if reached is None:
        return None
    return {
        "step": reached.step,
        "tokens": reached.tokens,
        "samples": reached.samples,
        "seconds": reached.time,
    }


def _point(point: Point | None) -> dict[str, Any] | None:
    return None if point is None else {"step": point.step, "value": number(point.value)}
