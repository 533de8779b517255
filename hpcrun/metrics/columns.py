"""A curve as a table: a row per step, a column per metric.

Metrics are joined by step. Where a log has no steps, or its counter starts again, only metrics
logged at the same places share rows; the others have rows of their own, since nothing tells which
belong together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from hpcrun.metrics.curve import Curve, rises
from hpcrun.metrics.names import EVAL_LOSS, GRAD_NORM, LOSS, LR

_FIRST = ("epoch", LOSS, EVAL_LOSS, LR, GRAD_NORM)

Row = dict[str, float | None]


def curve_columns(curve: Curve) -> dict[str, list[float | None]]:
    """Return the table as columns of one length; nan where a metric was not logged.

    "step" has None where the log has no steps; "time", if the log has any, is in seconds since
    1970.

    >>> from hpcrun.metrics.curve import build_series
    >>> metrics = {"loss": build_series([1, 2], [2.5, 2.25]), "lr": build_series([2], [0.1])}
    >>> curve_columns(Curve(metrics, ()))
    {'step': [1, 2], 'loss': [2.5, 2.25], 'lr': [nan, 0.1]}
    """
    rows = list(curve_rows(curve))
    names = column_names([curve])
    return {
        name: [row.get(name, None if name == "step" else math.nan) for row in rows]
        for name in names
    }


def column_names(curves: Sequence[Curve]) -> list[str]:
    """Return the columns of a table of curves, those that people look for first."""
    metrics = dict.fromkeys(name for curve in curves for name in curve.metrics)
    named = [name for name in _FIRST if name in metrics]
    named += [name for name in metrics if name not in _FIRST]
    timed = any(series.times for curve in curves for series in curve.metrics.values())
    return ["step", *(["time"] if timed else []), *map(column_name, named)]


def column_name(name: str) -> str:
    """Return the column of a metric; what has a column of its own gets another name.

    >>> column_name("loss"), column_name("time")
    ('loss', 'metric.time')
    """
    return f"metric.{name}" if name in ("source", "step", "time") else name


def curve_rows(curve: Curve) -> Iterator[Row]:
    """Yield a curve's rows: by step where steps tell places apart, else in blocks."""
    by_step: dict[Any, Row] = {}
    blocks: dict[object, list[Row]] = {}
    for name, series in curve.metrics.items():
        if rises(series.steps):
            rows = [by_step.setdefault(step, {"step": step}) for step in series.steps]
        else:
            places = (tuple(series.steps), tuple(series.times or ()))
            rows = blocks.setdefault(places, [{"step": step} for step in series.steps])
        for row, value in zip(rows, series.values, strict=True):
            row[column_name(name)] = value
        for row, moment in zip(rows, series.times or (), strict=False):
            if math.isfinite(moment):
                row.setdefault("time", moment)
    yield from (by_step[step] for step in sorted(by_step))
    yield from chain.from_iterable(blocks.values())
