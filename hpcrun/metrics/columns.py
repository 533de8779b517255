"""A curve as a table: a row per step, a column per metric.

Metrics are joined by step. Where a log has no steps, or its counter starts again, only metrics
logged at the same places share rows; the others have rows of their own, since nothing tells which
belong together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from hpcrun.metrics.curve import Curve, Series
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
    stepped = {name: s for name, s in curve.metrics.items() if _tells_places_apart(s)}
    by_step: dict[int, Row] = {}
    for name, series in stepped.items():
        for index, (step, value) in enumerate(zip(series.steps, series.values, strict=True)):
            if step is None:
                raise ValueError(step)
            row = by_step.setdefault(step, {"step": step})
            row[column_name(name)] = value
            if series.times is not None and math.isfinite(series.times[index]):
                row.setdefault("time", series.times[index])
    yield from (by_step[step] for step in sorted(by_step))

    blocks: list[dict[str, Series]] = []
    for name, series in curve.metrics.items():
        if name in stepped:
            continue
        for block in blocks:
            other = next(iter(block.values()))
            if (other.steps, other.times) == (series.steps, series.times):
                block[name] = series
                break
        else:
            blocks.append({name: series})
    for block in blocks:
        yield from _block_rows(block)


def _tells_places_apart(series: Series) -> bool:
    steps = [step for step in series.steps if step is not None]
    return len(steps) == len(series.steps) and all(a < b for a, b in pairwise(steps))


def _block_rows(block: dict[str, Series]) -> Iterable[Row]:
    """Yield the rows of metrics that were logged at the same places."""
    first = next(iter(block.values()))
    for index, step in enumerate(first.steps):
        row: Row = {"step": step}
        if first.times is not None and math.isfinite(first.times[index]):
            row["time"] = first.times[index]
        for name, series in block.items():
            row[column_name(name)] = series.values[index]
        yield row
