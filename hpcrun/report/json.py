"""The report of one or several runs as JSON, stable for programs to read.

Pure.

    {"runs": [{"source": "train.log", "formats": ["json lines"], "points": 200, "restarts": 0,
               "metrics": {"loss": {"count": 200, "first": {"step": 1, "value": 5.57},
                                    "last": ..., "min": ..., "max": ...}, ...},
               "warnings": []}]}

``points`` counts the points of the training loss, 0 where the log has none. ``step`` is null
where the log has no step numbers; then the order counts. JSON has no nan and no infinities: such
a value is one of the strings "NaN", "Infinity", "-Infinity", so that it is neither lost nor
mistaken for an absent one. ``min`` and ``max`` pass over nan, and are null where there is nothing
else. With ``full`` each metric has its columns too: "steps" and "values", equally long.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from hpcrun.metrics.curve import Curve, Point
from hpcrun.metrics.parse import ParsedRun


def number(value: float) -> float | str:
    """Return a value that JSON can hold.

    >>> number(2.5), number(float("nan")), number(float("-inf"))
    (2.5, 'NaN', '-Infinity')
    """
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def report(runs: Sequence[ParsedRun], *, full: bool = False) -> dict[str, Any]:
    """Return the report as plain dicts, lists, strings and numbers."""
    return {
        "runs": [
            {
                "source": run.source,
                "formats": list(run.formats),
                "points": run.points,
                "restarts": len(run.curve.restarts),
                "metrics": {
                    name: _metric(run.curve, name, full) for name in sorted(run.curve.metrics)
                },
                "warnings": list(run.warnings),
            }
            for run in runs
        ]
    }


def report_text(runs: Sequence[ParsedRun], *, full: bool = False) -> str:
    """Return the report as JSON text, with a line feed at its end."""
    return json.dumps(report(runs, full=full), indent=2, allow_nan=False) + "\n"


def _metric(curve: Curve, name: str, full: bool) -> dict[str, Any]:
    summary = curve.summary(name)
    if summary is None:
        raise KeyError(name)
    told: dict[str, Any] = {
        "count": summary.count,
        "first": _point(summary.first),
        "last": _point(summary.last),
        "min": _point(summary.min),
        "max": _point(summary.max),
    }
    if full:
        steps, values = curve.series(name)
        told |= {"steps": steps, "values": [number(value) for value in values]}
    return told


def _point(point: Point | None) -> dict[str, Any] | None:
    return None if point is None else {"step": point.step, "value": number(point.value)}
