"""What the HTML report draws, as plain data for its script.

    {"runs": [{"name": ..., "restarts": [{"at": 101, "text": ...}],
               "axes": [{"step": [...] | null, "tokens": ..., "time": ..., "count": 200}],
               "metrics": {"loss": {"axis": 0, "values": [...]}}}],
     "panels": [{"title": ..., "unit": ..., "metrics": ["loss", "eval_loss"], "labels": [...],
                 "log": false, "range": [low, high] | null, "beyond": 0, "smooth": true,
                 "shown": true}],
     "axes": ["step", "time"], "smoothing": 0.9}

Metrics that were logged at the same places share an axis. A value that is not finite is the string
"NaN", "Infinity" or "-Infinity". Memory is in GiB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpcrun.metrics.curve import Curve
from hpcrun.metrics.names import (
    EVAL_LOSS,
    GRAD_NORM,
    LOSS,
    LR,
    MEMORY_BYTES,
    SAMPLES_PER_SECOND,
    STEP_SECONDS,
    TOKENS_PER_SECOND,
)
from hpcrun.metrics.parse import ParsedRun
from hpcrun.report.axes import Axis
from hpcrun.report.facts import EPOCH, further_metrics, main_metric
from hpcrun.report.panel import is_visibly_noisy, panel_axis
from hpcrun.report.xaxis import By, x_axis
from hpcrun.views.numbers import GIB, count_of, number
from hpcrun.views.table import printable

TITLES = {
    LOSS: ("Training loss", ""),
    EVAL_LOSS: ("Evaluation loss", ""),
    LR: ("Learning rate", ""),
    GRAD_NORM: ("Gradient norm", ""),
    TOKENS_PER_SECOND: ("Throughput", "tokens/s"),
    SAMPLES_PER_SECOND: ("Throughput", "samples/s"),
    STEP_SECONDS: ("Step time", "s"),
    MEMORY_BYTES: ("Memory", "GiB"),
    EPOCH: ("Epoch", ""),
}
# Panels that are open at first: those of the first six that the runs have.
_FIRST = (EVAL_LOSS, LR, GRAD_NORM, TOKENS_PER_SECOND, SAMPLES_PER_SECOND, STEP_SECONDS)
_LAST = (MEMORY_BYTES, EPOCH)
_OPEN = 6
# A schedule has no noise; smoothing would only bring it out of place.
_SCHEDULES = (LR, EPOCH)
_AXES: tuple[By, ...] = ("step", "tokens", "time")


def page_data(runs: Sequence[ParsedRun]) -> dict[str, Any]:
    """Return the data of the page."""
    panels = _panels(runs)
    curves = [run.curve for run in runs]
    axes = [
        by
        for by in _AXES
        if any(x_axis(curve, name, by) for curve in curves for name in curve.metrics)
    ]
    return {
        "runs": [_run(run) for run in runs],
        "panels": panels,
        "axes": axes,
        "smoothing": _smoothing(runs, panels[0]["metrics"][0]) if panels else 0.0,
    }


def _run(run: ParsedRun) -> dict[str, Any]:
    axes: list[dict[str, Any]] = []
    places: dict[int, tuple[list[int | None], list[float] | None]] = {}
    metrics: dict[str, Any] = {}
    for name, series in run.curve.metrics.items():
        place = (series.steps, series.times)
        index = next((i for i, known in places.items() if known == place), len(axes))
        if index == len(axes):
            places[index] = place
            axes.append(_axis(run.curve, name))
        values = [number(value / _factor(name)) for value in series.values]
        metrics[name] = {"axis": index, "values": values}
    restarts = [
        {
            "at": restart.resumed_at,
            "text": f"attempt {restart.attempt} from step {restart.resumed_at}"
            + (f", {count_of(restart.replayed, 'step')} done again" if restart.replayed else ""),
        }
        for restart in run.curve.restarts
        if restart.resumed_at is not None
    ]
    return {
        "name": printable(run.source),
        "axes": axes,
        "metrics": metrics,
        "restarts": restarts,
    }


def _axis(curve: Curve, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"count": curve.metrics[name].summary.count}
    for by in _AXES:
        x = x_axis(curve, name, by)
        digits = 2 if by == "time" else 0
        found[by] = None if x is None else [_short(value, digits) for value in x]
    return found


def _short(value: float, digits: int) -> float | int:
    """Return a place on an axis without digits that nobody sees.

    >>> _short(12.0, 0), _short(12.3456, 2)
    (12, 12.35)
    """
    rounded = round(value, digits)
    return int(rounded) if rounded == int(rounded) else rounded


def _panels(runs: Sequence[ParsedRun]) -> list[dict[str, Any]]:
    """List the panels, those that matter most first; the first ones are open."""
    there = dict.fromkeys(name for run in runs for name in run.curve.metrics)
    main = main_metric(runs)
    further = [name for run in runs for name, _ in further_metrics(run, main)]
    rest = (name for name in (*further, *there) if name not in _LAST)
    order = [main, *_FIRST, *rest, *_LAST]
    names = [name for name in dict.fromkeys(order) if name is not None and name in there]
    beside: list[str] = []
    # A run's evaluations stand beside its losses where their places are known to be the same.
    if len(runs) == 1 and all(
        name in there and x_axis(runs[0].curve, name) for name in (LOSS, EVAL_LOSS)
    ):
        beside = [EVAL_LOSS]
        names.remove(EVAL_LOSS)
    return [
        _panel(runs, [name, *(beside if name == LOSS else [])], shown=place < _OPEN)
        for place, name in enumerate(names)
    ]


def _panel(runs: Sequence[ParsedRun], names: list[str], *, shown: bool) -> dict[str, Any]:
    title, unit = TITLES.get(names[0], (printable(names[0]), ""))
    scale, beyond = _scale(runs, names)
    ends = (scale.low, scale.high)
    # plotly.js shows a level line of 3e-5 between -1 and 1.
    is_level = len({v for run in runs for name in names for v in run.curve.values(name)}) == 1
    return {
        "title": title if len(names) == 1 else "Loss",
        "unit": unit,
        "metrics": names,
        "labels": [TITLES.get(name, (printable(name), ""))[0] for name in names],
        "log": scale.is_log,
        "range": [end / _factor(names[0]) for end in ends] if beyond or is_level else None,
        "beyond": beyond,
        "smooth": names[0] not in _SCHEDULES,
        "shown": shown,
    }


def _scale(runs: Sequence[ParsedRun], names: Sequence[str]) -> tuple[Axis, int]:
    """Choose the axis of some metrics, and count the values that lie beyond it."""
    values = (value for run in runs for name in names for value in run.curve.values(name))
    finite = [value for value in values if math.isfinite(value)]
    scale = panel_axis(names[0], finite)
    return scale, sum(not scale.holds(value) for value in finite)


def _factor(name: str) -> float:
    """Return what a metric's values are divided by to be read."""
    return GIB if name == MEMORY_BYTES else 1.0


def _smoothing(runs: Sequence[ParsedRun], name: str) -> float:
    """Choose the weight that the page opens with: none unless the metric is noisy in a run."""
    scale, _ = _scale(runs, [name])
    noisy = [
        len(x)
        for run in runs
        if (x := x_axis(run.curve, name, "order"))
        and is_visibly_noisy(x, run.curve.values(name), scale)
    ]
    return (0.9 if max(noisy) >= 500 else 0.6) if noisy else 0.0
