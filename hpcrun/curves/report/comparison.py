"""Compare runs at equal positions, at a common loss, and by speed and settings.

docs/compare.md describes the method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct, field

from hpcrun.curves.names import EVAL_LOSS, LOSS
from hpcrun.curves.report import windows
from hpcrun.curves.report.axes import By, is_token_counter, smooth, x_axis
from hpcrun.curves.report.bottlenecks import explain_scaling
from hpcrun.curves.report.facts import main_metric
from hpcrun.curves.report.parsed import ParsedRun
from hpcrun.curves.report.scaling import Scaling, build_scaling

Measure = Literal["step", "samples", "tokens", "time"]
MEASURES: tuple[Measure, ...] = ("step", "tokens", "samples", "time")
_SHORT = 0.1
_ALIKE = 0.002
# Parts of the names of metrics that decrease as training succeeds.
_FALLING = ("loss", "ppl", "perplexity", "error", "nll", "wer", "cer", "bpb", "rmse", "mae", "mse")


class Equal(Struct, frozen=True):
    """A comparison of runs at a common position on one axis.

    Attributes:
        by: The quantity on the axis.
        window: The interval over which values are averaged; its end is the common position.
        levels: Mean value of each run; None for a run that is excluded.
        best: Index of the leading run.
        behind: How much worse each other run is than the leading run: higher if ``falls``,
            otherwise lower; None for the leading run and for excluded runs.
    """

    by: Measure
    window: windows.Window
    levels: tuple[float | None, ...]
    best: int
    behind: tuple[windows.Difference | None, ...]


class Reached(Struct, frozen=True):
    """The position at which a run reached the common level, on each axis; None if unavailable."""

    step: float | None = None
    tokens: float | None = None
    samples: float | None = None
    time: float | None = field(default=None, name="seconds")


class Target(Struct, frozen=True):
    """A level, and the position at which the smoothed curve of each run first reached it.

    Attributes:
        level: The level.
        reached: One position per run; None if the run never reached the level.
    """

    level: float
    reached: tuple[Reached | None, ...]


class Comparison(Struct, frozen=True):
    """The results of comparing several runs.

    Attributes:
        metric: Name of the compared metric, or None.
        falls: Whether lower values of ``metric`` are better.
        equal: Comparisons at equal positions, one per axis.
        target: When each run reached a common level, or None.
        scaling: Speeds of the runs.
        slow: For each run that scales badly, what its numbers show.
        settings: Settings that differ, with one value per run (None if unset).
        notes: Limitations of the comparison, for the user.
    """

    metric: str | None
    falls: bool
    equal: tuple[Equal, ...]
    target: Target | None
    scaling: Scaling
    settings: dict[str, tuple[str | None, ...]]
    notes: tuple[str, ...]
    slow: tuple[str, ...] = ()


def compare_runs(
    runs: Sequence[ParsedRun],
    *,
    metric: str | None = None,
    falls: bool | None = None,
    target: float | None = None,
    per_gpu: bool = False,
) -> Comparison:
    """Compare at least two runs.

    Args:
        runs: The runs.
        metric: The metric to compare; chosen by ``choose_metric`` if None.
        falls: Whether lower values of the metric are better; None: judged by its name and course.
        target: The level that runs must reach; by default the best level that all runs reached.
        per_gpu: Whether the rates in the logs are per GPU.
    """
    name = metric or choose_metric(runs)
    scaling = build_scaling(runs, per_gpu=per_gpu)
    settings = differing([run.facts for run in runs])
    slow = tuple(explain_scaling(runs, scaling))
    if name is None:
        return Comparison(None, True, (), None, scaling, settings, (), slow)
    without = [run.source for run in runs if name not in run.curve.metrics]
    notes = [f"no {name} in {', '.join(without)}"] if without else []
    falls = _is_lower_better(runs, name) if falls is None else falls
    learned = [
        _build_run_curve(run, name, speed.batch, notes, falls=falls, per_gpu=per_gpu)
        for run, speed in zip(runs, scaling.speeds, strict=True)
    ]
    equal: list[Equal] = []
    for by in MEASURES:
        found = (
            None
            if _is_redundant(by, learned, equal)
            else _compare_at_equal(by, learned, falls=falls)
        )
        if found is not None:
            equal.append(found)
            notes += _note_excluded_runs(learned, found)
    notes += _note_time_limits(runs, name)
    reached = _find_target(learned, target, falls=falls)
    return Comparison(name, falls, tuple(equal), reached, scaling, settings, tuple(notes), slow)


def rank_runs(runs: Sequence[ParsedRun], compared: Comparison) -> list[tuple[int, float | None]]:
    """Rank runs by their best value of the compared metric.

    Returns:
        The index of each run, the best first, and the difference of its best value from that of the
        first one, at least 0; None for runs without a finite value, which come last.
    """
    best: list[float | None] = []
    for run in runs:
        summary = run.curve.summary(compared.metric) if compared.metric is not None else None
        point = summary and (summary.min if compared.falls else summary.max)
        best.append(point.value if point and math.isfinite(point.value) else None)
    sign = 1.0 if compared.falls else -1.0
    order = sorted(range(len(runs)), key=lambda n: (best[n] is None, sign * (best[n] or 0.0)))
    first = best[order[0]] if order else None
    return [
        (number, None if value is None or first is None else abs(value - first))
        for number in order
        for value in (best[number],)
    ]


def choose_metric(runs: Sequence[ParsedRun]) -> str | None:
    """Choose the metric to compare: a loss that at least two runs have, or the main metric."""
    for name in (LOSS, EVAL_LOSS):
        if sum(name in run.curve.metrics for run in runs) > 1:
            return name
    return main_metric(runs)


def differing(facts: Sequence[dict[str, str]]) -> dict[str, tuple[str | None, ...]]:
    """Return the settings that differ between runs; runs without known settings are ignored.

    >>> differing([{"lr": "1", "seed": "7"}, {"lr": "2", "seed": "7"}, {}])
    {'lr': ('1', '2', None)}
    """
    known = [each for each in facts if each]
    names = sorted({name for each in known for name in each})
    return {
        name: tuple(each.get(name) for each in facts)
        for name in names
        if len({each.get(name) for each in known}) > 1
    }


def axis_of(
    run: ParsedRun, name: str, by: By | Measure, batch: float | None, *, per_gpu: bool
) -> list[float] | None:
    """Return the x coordinate of each point of a metric, or None if the log lacks the quantity.

    Args:
        run: The run.
        name: The metric.
        by: The quantity on the axis; tokens and samples are totals over all GPUs.
        batch: Samples per step, or None if unknown.
        per_gpu: Whether the token rate in the log is per GPU.
    """
    if by == "samples":
        steps = x_axis(run.curve, name, "step")
        return [step * batch for step in steps] if steps and batch else None
    x = x_axis(run.curve, name, by)
    if by != "tokens" or x is None or not per_gpu or any(map(is_token_counter, run.curve.metrics)):
        return x
    return [place * run.gpus for place in x] if run.gpus else None


def _is_lower_better(runs: Sequence[ParsedRun], name: str) -> bool:
    """Return True if lower is better, judged by the metric's name or by most runs' direction."""
    if any(part in name.lower() for part in _FALLING):
        return True
    summaries = [summary for run in runs if (summary := run.curve.summary(name))]
    fallen = sum(summary.last.value < summary.first.value for summary in summaries)
    return 2 * fallen > len(summaries)


class _RunCurve(Struct):
    """The curve of one run.

    Attributes:
        source: Name of the run.
        y: Values, negated if higher is better; empty if the log lacks the metric.
        axes: x coordinates for each quantity that the log provides.
        tracks: The curve over each of these quantities, without non-finite points.
    """

    source: str
    y: list[float]
    axes: dict[Measure, list[float]]
    tracks: dict[Measure, windows.Track | None]


def _build_run_curve(
    run: ParsedRun, name: str, batch: float | None, notes: list[str], *, falls: bool, per_gpu: bool
) -> _RunCurve:
    series = run.curve.metrics.get(name)
    if series is None:
        return _RunCurve(run.source, [], {}, {})
    points = windows.even_points(series)
    if points is None:
        notes.append(f"of {run.source} only lows and highs are kept, and its means may be off")
        points = list(map(float, range(len(series.values)))), series.values
    y = [value if falls else -value for value in points[1]]
    found = {by: axis_of(run, name, by, batch, per_gpu=per_gpu) for by in MEASURES}
    axes = {by: np.interp(points[0], range(len(x)), x).tolist() for by, x in found.items() if x}
    return _RunCurve(run.source, y, axes, {by: windows.build_track(x, y) for by, x in axes.items()})


def _is_redundant(by: Measure, learned: Sequence[_RunCurve], equal: Sequence[Equal]) -> bool:
    """Return True if a comparison on this axis would only repeat a previous one."""
    if by in ("step", "time"):
        return False
    if by == "samples" and any(each.by == "tokens" for each in equal):
        return True
    # Tokens or samples may be proportional to steps, by the same factor for all runs.
    pairs = [(each.tracks.get("step"), each.tracks.get(by)) for each in learned]
    if any((step is None) != (other is None) for step, other in pairs):
        return False
    ratios = [a.x[-1] / b.x[-1] for b, a in pairs if a and b and b.x[-1] > 0]
    return bool(ratios) and max(ratios) - min(ratios) <= _ALIKE * max(ratios)


def _compare_at_equal(by: Measure, learned: Sequence[_RunCurve], *, falls: bool) -> Equal | None:
    """Compare the runs where the shortest ends; None if fewer than two can be compared.

    Runs that are much shorter than the longest are excluded if at least two others remain.
    """
    tracks = [each.tracks.get(by) for each in learned]
    longest = max((track.x[-1] for track in tracks if track), default=0.0)
    long = [track if track and track.x[-1] >= _SHORT * longest else None for track in tracks]
    kept = long if len(long) - long.count(None) > 1 else tracks
    known = [track for track in kept if track]
    window = windows.common_window(known) if len(known) > 1 else None
    if window is None:
        return None
    blocks = [windows.block_means(track, window) if track else [] for track in kept]
    levels = [sum(each) / len(each) if each else None for each in blocks]
    best = min((level, index) for index, level in enumerate(levels) if level is not None)[1]
    behind = [
        windows.compare_blocks(each, blocks[best]) if each and index != best else None
        for index, each in enumerate(blocks)
    ]
    shown = [level if falls or level is None else -level for level in levels]
    return Equal(by, window, tuple(shown), best, tuple(behind))


def _note_excluded_runs(learned: Sequence[_RunCurve], equal: Equal) -> list[str]:
    left = [each for each, level in zip(learned, equal.levels, strict=True) if level is None]
    short = ", ".join(each.source for each in left if each.tracks.get(equal.by))
    unknown = ", ".join(each.source for each in left if each.y and not each.tracks.get(equal.by))
    what = "steps" if equal.by == "step" else equal.by
    return [
        f"not compared at equal {what} ({why}): {sources}"
        for why, sources in (("too short", short), ("not in the log", unknown))
        if sources
    ]


def _find_target(
    learned: Sequence[_RunCurve], asked: float | None, *, falls: bool
) -> Target | None:
    """Find where each run reached the requested level, or the best level that all reached."""
    tracks = [windows.build_track([*map(float, range(len(each.y)))], each.y) for each in learned]
    lowest = [windows.lowest_level(track.y) for track in tracks if track]
    if len(lowest) < 2:
        return None
    sign = 1.0 if falls else -1.0
    level = windows.round_up(max(lowest)) if asked is None else sign * asked
    reached: list[Reached | None] = []
    for each, track in zip(learned, tracks, strict=True):
        at = windows.first_at(smooth(track.x, track.y), level) if track else None
        if track is None or at is None:
            reached.append(None)
        else:
            index = windows.read_at(track.x, at)  # index among all points
            reached.append(
                Reached(**{by: windows.read_at(x, index) for by, x in each.axes.items()})
            )
    return Target(sign * level, tuple(reached))


def _note_time_limits(runs: Sequence[ParsedRun], name: str) -> list[str]:
    notes = []
    timed = [run for run in runs if x_axis(run.curve, name, "time") is not None]
    stamped = [run for run in timed if run.curve.metrics[name].times is not None]
    if 0 < len(stamped) < len(timed):
        names = ", ".join(run.source for run in stamped)
        notes.append(f"time is by time stamps in {names}, else the sum of the step times")
    waited = [run.source for run in stamped if run.curve.restarts]
    if waited:
        notes.append(f"time includes what passed between the attempts of {', '.join(waited)}")
    return notes
