"""The report of one or several runs as JSON, stable for programs to read.

docs/parse.md describes it, docs/json/parse.schema.json is its JSON Schema. JSON has no nan and no
infinities: such a value is one of the strings "NaN", "Infinity", "-Infinity", so that it is neither
lost nor mistaken for an absent one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from hpcrun.metrics.curve import Point, Restart, Series
from hpcrun.metrics.parse import ParsedRun
from hpcrun.views.numbers import number


def numbers(values: Sequence[float]) -> list[float | str]:
    """Return a column that JSON can hold; most have nothing that it lacks."""
    if all(map(math.isfinite, values)):
        return [*values]
    return [number(value) for value in values]


def report(runs: Sequence[ParsedRun], *, full: bool = False) -> dict[str, Any]:
    """Return the report as plain dicts, lists, strings and numbers; ``full`` adds the columns."""
    return {"runs": [_run(run, full) for run in runs]}


def report_text(runs: Sequence[ParsedRun], *, full: bool = False) -> str:
    """Return the report as JSON text of ASCII alone, with a line feed at its end.

    A column is one line, however long: so the fast encoder does it.
    """
    return _encode(report(runs, full=full)) + "\n"


def _run(run: ParsedRun, full: bool) -> dict[str, Any]:
    curve = run.curve
    return {
        "source": run.source,
        "formats": list(run.formats),
        "points": run.points,
        "restarts": len(curve.restarts),
        "metrics": {name: _metric(curve.metrics[name], full) for name in sorted(curve.metrics)},
        "warnings": list(run.warnings),
        "notes": list(curve.notes),
        "total_steps": curve.total_steps,
        "resumed": [_restart(restart) for restart in curve.restarts],
        "files": run.files,
        "bytes": run.bytes,
        "gpus": run.gpus,
        "seconds": run.seconds,
        "facts": dict(run.facts),
    }


def _metric(series: Series, full: bool) -> dict[str, Any]:
    summary = series.summary
    told: dict[str, Any] = {
        "count": summary.count,
        "first": _point(summary.first),
        "last": _point(summary.last),
        "min": _point(summary.min),
        "max": _point(summary.max),
    }
    if full:
        told |= {
            "steps": list(series.steps),
            "values": numbers(series.values),
            "times": None if series.times is None else list(map(_known, series.times)),
        }
    return told


def _known(time: float) -> float | None:
    """Return a time; null for a line that has none among lines that have."""
    return time if math.isfinite(time) else None


def _point(point: Point | None) -> dict[str, Any] | None:
    return None if point is None else {"step": point.step, "value": number(point.value)}


def _restart(restart: Restart) -> dict[str, int | None]:
    return {
        "attempt": restart.attempt,
        "lost_at": restart.lost_at,
        "resumed_at": restart.resumed_at,
        "replayed": restart.replayed,
    }


def _encode(value: Any, indent: str = "") -> str:
    """Encode a value; what holds dicts or lists, or many keys, takes several lines."""
    inner = indent + "  "
    if isinstance(value, dict) and (len(value) > 4 or any(map(_is_nested, value.values()))):
        parts = [f"{json.dumps(key)}: {_encode(each, inner)}" for key, each in value.items()]
    elif isinstance(value, list) and any(map(_is_nested, value)):
        parts = [_encode(each, inner) for each in value]
    else:
        return json.dumps(value, allow_nan=False)
    brackets = "{}" if isinstance(value, dict) else "[]"
    return f"{brackets[0]}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{brackets[1]}"


def _is_nested(value: Any) -> bool:
    return isinstance(value, (dict, list))
