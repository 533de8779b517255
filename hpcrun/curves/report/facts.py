"""Summarize a run as named facts (name and formatted text) for tables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct

from hpcrun.curves.curve import Curve, Point, Series, Summary
from hpcrun.curves.names import (
    ELAPSED_SECONDS,
    EPOCH,
    EVAL_LOSS,
    GRAD_NORM,
    LOSS,
    LR,
    MEMORY_BYTES,
    SAMPLES_PER_SECOND,
    STEP_SECONDS,
    TOKENS_PER_SECOND,
    is_loss_name,
)
from hpcrun.curves.report.parsed import ParsedRun, peak_memory
from hpcrun.curves.report.thin import quantile, quantile_of
from hpcrun.patterns import pattern_of
from hpcrun.text import (
    LARGEST,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_seconds,
    format_value,
)

Fact = tuple[str, str]

# Metrics of the schedule, speed and memory of a run, not of what it learns.
_SETTINGS = {LR, EPOCH, GRAD_NORM, TOKENS_PER_SECOND, SAMPLES_PER_SECOND, STEP_SECONDS}
_SETTINGS |= {ELAPSED_SECONDS, MEMORY_BYTES}
# Metrics with a dedicated row in the tables.
_IN_TABLE = {LOSS, EVAL_LOSS, *_SETTINGS}
# Parts of metric names that indicate learning progress, best first; used for runs without a loss.
_LEARNING_NAMES = (
    ("loss",),
    ("reward", "return", "score"),
    ("ppl", "perplexity", "acc", "map", "f1", "iou", "bleu", "rouge", "auc", "psnr", "error"),
)


_EPISODE_REWARD = pattern_of(r"(?:\A|/)ep(?:isode)?_?rew(?:ard)?_?mean\Z", re.IGNORECASE)


def main_metric(runs: Sequence[ParsedRun]) -> str | None:
    """Choose the metric to draw: the training loss, the evaluation loss, or the most useful one."""
    counts: dict[str, int] = {}
    for run in runs:
        for name, series in run.curve.metrics.items():
            counts[name] = max(counts.get(name, 0), series.summary.count)
    # The loss of reinforcement learning says little about its progress.
    rewards = (name for name in counts if counts[name] > 1 and _EPISODE_REWARD.search(name))
    if (reward := next(rewards, None)) is not None:
        return reward
    for name in (LOSS, EVAL_LOSS):
        if name in counts:
            return name
    return min(counts, key=lambda name: (*_telling(name), counts[name] < 2), default=None)


def _telling(name: str) -> tuple[bool, int]:
    lower, rank = name.lower(), len(_LEARNING_NAMES)
    if is_loss_name(name):
        rank = -1
    elif "scale" not in lower:  # loss_scale is the gradient scale of fp16, not a loss
        ranks = (
            n for n, parts in enumerate(_LEARNING_NAMES) if any(part in lower for part in parts)
        )
        rank = next(ranks, rank)
    return name in _SETTINGS, rank


def further_metrics(run: ParsedRun, main: str | None) -> list[tuple[str, Series]]:
    """List the metrics without a row in the table, the most useful first.

    Counters (consumed samples, remaining time) and constant metrics come last.
    """

    def order(item: tuple[str, Series]) -> tuple[Any, ...]:
        name, series = item
        lowest, highest = series.summary.min, series.summary.max
        is_constant = lowest is None or highest is None or lowest.value == highest.value
        return is_constant, _is_counter(series.values), _telling(name)

    further = (item for item in run.curve.metrics.items() if item[0] not in (*_IN_TABLE, main))
    return sorted(further, key=order)


def has_curve(runs: Sequence[ParsedRun], name: str) -> bool:
    """Return True if any run has more than one value of a metric, so that it can be drawn."""
    return any(
        run.curve.metrics[name].summary.count > 1 for run in runs if name in run.curve.metrics
    )


def single_values(run: ParsedRun, main: str | None) -> Iterator[Fact]:
    """Yield the further metrics that were logged only once, such as the total run time."""
    for name, series in further_metrics(run, main):
        if series.summary.count == 1:
            yield name, point_text(series.summary.last)


def _is_counter(values: Sequence[float]) -> bool:
    """Return True if values lie on a straight line, within 1% of its range.

    >>> _is_counter([10.0, 20.0, 30.0, 40.0]), _is_counter([10.0, 20.0, 25.0, 40.0])
    (True, False)
    """
    if len(values) < 4 or not all(abs(value) < LARGEST for value in values):
        return False
    line = np.linspace(values[0], values[-1], len(values))
    return bool(np.all(abs(line - values) <= 0.01 * abs(values[-1] - values[0])))


def learning_facts(run: ParsedRun, main: str) -> Iterator[Fact]:
    """Yield facts about progress and learning; values missing from the log are omitted."""
    curve = run.curve
    series = curve.metrics.get(main)
    if series is None:
        yield main, "none in the log"
    else:
        yield "steps", steps_text(curve, series)
        summary, of = series.summary, "loss " if main == LOSS else ""
        if summary.count == 1 and main == "train_loss" and "train_runtime" in curve.metrics:
            yield "final train_loss", f"{format_value(summary.last.value)} (mean over the run)"
        elif summary.count == 1:
            yield main, point_text(summary.last)
        else:
            yield f"{of}first", point_text(summary.first)
            yield f"{of}last", point_text(summary.last)
            for name, point in _label_extremes(main, summary):
                yield of + name, point_text(point)
            if trend := trend_text(series):
                yield "smoothed", trend
    if main != LOSS and not run.points:
        yield "training loss", "none in the log"
    if main != EVAL_LOSS and (evaluated := curve.summary(EVAL_LOSS)):
        yield "eval last", point_text(evaluated.last)
        if evaluated.count > 1:
            yield "eval best", point_text(evaluated.min)
    if run.stated:
        yield "stated", ", ".join(f"{number} {what}" for what, number in run.stated.items())


def _label_extremes(main: str, summary: Summary) -> list[tuple[str, Point | None]]:
    """Label the extremes of a metric; only for a loss is it known which one is best."""
    if "loss" in main.lower():
        return [("best", summary.min)]
    return [("lowest", summary.min), ("highest", summary.max)]


def running_facts(run: ParsedRun) -> Iterator[Fact]:
    """Yield facts about speed and cost; values missing from the log are omitted."""
    return ((name, text) for name, text, _ in _facts_with_columns(run))


def _facts_with_columns(run: ParsedRun) -> Iterator[tuple[str, str, list[Fact]]]:
    """Yield (name, text, columns): a fact for a single run, and its columns in a table of runs."""
    curve = run.curve
    if lr := curve.summary(LR):
        last = format_value(lr.last.value)
        yield "lr", f"{last} (last)", [("lr", last)]
    if norm := curve.summary(GRAD_NORM):
        yield "grad norm", f"{format_value(norm.last.value)} (last)", []
    for label, name in (("tokens/s", TOKENS_PER_SECOND), ("samples/s", SAMPLES_PER_SECOND)):
        if (middle := quantile_of(curve, name, 0.5)) is not None:
            rate = format_rate(middle)
            yield label, f"{rate} (median)", [(label, rate)]
    times = [quantile_of(curve, STEP_SECONDS, share) for share in (0.5, 0.95)]
    if None not in times:
        half, most = (format_seconds(each or 0.0) for each in times)
        yield "step time", f"{half} p50, {most} p95", [("step p50", half), ("step p95", most)]
    elif run.usage.step_seconds is not None:
        mean = format_seconds(run.usage.step_seconds)
        yield "step time", f"{mean} mean, by when steps appeared in the log", [("step mean", mean)]
    if (memory := peak_memory(run)) is not None:
        most = format_bytes(memory)
        of = f" of {format_bytes(run.usage.gpu_memory)}" if run.usage.gpu_memory else ""
        estimated = run.usage.estimated_memory
        about = f", {format_bytes(estimated)} estimated" if estimated else ""
        yield "peak memory", most + of + about, [("memory", most)]
    if left := steps_left(curve):
        per_step = seconds_per_step(curve) or run.usage.step_seconds
        steps = format_count(left, "step")
        time = format_duration(left * per_step) if per_step else ""
        yield "to go", ", ".join(filter(None, (steps, time))), [("to go", time or steps)]
    seconds = seconds_of(run)
    if seconds and seconds >= 1:
        where = f" ({curve.seconds_from})" if run.seconds is None else ""
        yield "time", format_duration(seconds) + where, []
    if (hours := gpu_hours(run)) is not None:
        spent = format_value(hours)
        gpus = format_count((run.gpus or 0) + run.spare_gpus, "GPU")
        yield "GPU hours", f"{spent} ({gpus})", [("GPU hours", spent)]
    if curve.restarts:
        text, columns = f"{len(curve.restarts)}", [("restarts", f"{len(curve.restarts)}")]
        known = [each.replayed for each in curve.restarts if each.resumed_at is not None]
        if known:
            text += f", {format_count(sum(known), 'step')} lost"
            columns.append(("steps lost", f"{sum(known)}"))
        causes = dict.fromkeys(each.cause for each in curve.restarts if each.cause)
        text += f", after {', '.join(causes)}" if causes else ""
        yield "restarts", text, columns


def steps_text(curve: Curve, series: Series) -> str:
    """Format the range of a metric's steps, the total number of steps, and the last epoch."""
    steps = [step for step in series.steps if step is not None]
    count = series.summary.count
    if not steps:
        text = f"{format_count(count, 'point')}, no step numbers"
    elif any(b < a for a, b in pairwise(steps)):
        text = f"{format_count(count, 'point')}, the counter starts again"
    else:
        text = f"{steps[0]} to {steps[-1]}" if count > 1 else f"{steps[0]}"
        if curve.total_steps and curve.total_steps >= steps[-1]:
            text += f" of {curve.total_steps}"
        if count != steps[-1] - steps[0] + 1:
            text += f", {format_count(count, 'point')}"
    epoch = curve.summary(EPOCH)
    return f"{text}, epoch {epoch.last.value:.4g}" if epoch else text


def _even_values(series: Series) -> Sequence[float]:
    """Return evenly sampled values, which are not biased by the extremes that thinning keeps."""
    return series.values if series.sample is None else series.sample


class Trend(Struct, frozen=True):
    """A straight line fitted to the end of a curve.

    Attributes:
        points: Number of fitted points.
        begin: Value of the line at the first of these points.
        end: Value of the line at the last point.
        is_level: Whether the slope is within two standard errors of zero.
    """

    points: int
    begin: float
    end: float
    is_level: bool

    @property
    def now(self) -> float:
        return (self.begin + self.end) / 2 if self.is_level else self.end


def fit_trend(y: Sequence[float]) -> Trend | None:
    """Fit a line to the last fifth of the points (at least 10); None for fewer than 30 points.

    A line fitted to more than a third of a steep curve would end far below the curve.

    >>> fit_trend([float(100 - i) for i in range(100)])
    Trend(points=20, begin=20.0, end=1.0, is_level=False)
    >>> fit_trend([1.0, 2.0, 1.0, 2.0] * 10).is_level
    True
    """
    finite = [value for value in y if abs(value) < LARGEST]
    size = max(10, len(finite) // 5)
    if len(finite) < 30:
        return None
    last, x = np.array(finite[-size:]), np.arange(size) - (size - 1) / 2
    mean, spread = last.mean(), x @ x
    slope = x @ (last - mean) / spread
    rest = last - mean - slope * x
    error = math.sqrt(rest @ rest / (size - 2) / spread)
    begin, end = np.clip(mean + slope * x[[0, -1]], last.min(), last.max()).tolist()
    return Trend(size, begin, end, is_level=bool(abs(slope) <= 2 * error))


def trend_text(series: Series) -> str:
    """Describe the trend of a curve over its last fifth; "" if the curve is too short."""
    values = _even_values(series)
    trend = fit_trend(values)
    if trend is None:
        return ""
    first = -max(1, round(trend.points / len(values) * len(series.steps)))
    begun, ended = series.steps[first], series.steps[-1]
    passed = 0 if begun is None or ended is None else ended - begun
    span = format_count(passed, "step") if passed > 0 else format_count(trend.points, "point")
    if trend.is_level:
        return f"{format_value(trend.now)}, level over {span}"
    sign = "-" if trend.end < trend.begin else "+"
    moved = format_value(abs(trend.end - trend.begin))
    return f"{format_value(trend.now)}, {sign}{moved} in {span}"


def steps_left(curve: Curve) -> int | None:
    """Return the number of remaining steps.

    None if there are none, the training has ended, or the log lacks the total.
    """
    lasts = [series.summary.last.step for series in curve.metrics.values()]
    reached = max((step for step in lasts if step is not None), default=None)
    if curve.total_steps is None or reached is None or curve.is_over:
        return None
    return max(0, curve.total_steps - reached) or None


def seconds_per_step(curve: Curve) -> float | None:
    """Return the current duration of a step in seconds, or None if unknown.

    Uses the timestamps of the last quarter of the log, or the median of the last logged step times
    if the log has no timestamps.
    """
    resumed = curve.restarts[-1].resumed_at if curve.restarts else None
    for name in sorted(curve.metrics, key=lambda name: -curve.metrics[name].summary.count):
        steps, _, times = curve.arrays(name)
        known = steps[: len(times)] >= (resumed or 0)  # unknown steps are nan, which compares false
        recent = np.flatnonzero(known)[-max(2, known.sum() // 4) :]
        if len(recent) > 1:
            passed, took = (column[recent[-1]] - column[recent[0]] for column in (steps, times))
            if passed > 0 and took > 0:
                return float(took / passed)
    values = curve.values(STEP_SECONDS)
    return quantile(values[-max(5, len(values) // 4) :], 0.5)


def seconds_of(run: ParsedRun) -> float | None:
    """Return the running time of a run in seconds, or None if unknown.

    Without a recorded running time, it is what the log states or shows (``Curve.seconds``).
    """
    return run.curve.seconds if run.seconds is None else run.seconds


def gpu_hours(run: ParsedRun) -> float | None:
    """Return the GPU hours, including spare nodes; None if the GPUs or the time are unknown."""
    if not run.gpus or run.seconds is None:
        return None
    return (run.gpus + run.spare_gpus) * run.seconds / 3600


def point_text(point: Point | None, form: Callable[[float], str] = format_value) -> str:
    """Format a value and its step; a missing point (no finite value) becomes "nan".

    >>> point_text(Point(3, 2.5)), point_text(Point(None, 2.5)), point_text(None)
    ('2.500 at step 3', '2.500', 'nan')
    """
    if point is None:
        return "nan"
    return form(point.value) + ("" if point.step is None else f" at step {point.step}")


def columns_of(run: ParsedRun, main: str) -> dict[str, str]:
    """Return the row of one run in a table of several, as short texts by column heading."""
    row: dict[str, str] = {}
    series = run.curve.metrics.get(main)
    if series is not None:
        summary = series.summary
        last = summary.last.step
        row["steps"] = f"{last}" if last is not None else format_count(summary.count, "point")
        row["first"] = format_value(summary.first.value)
        row["last"] = format_value(summary.last.value)
        if trend := fit_trend(_even_values(series)):
            row["smoothed"] = format_value(trend.now)
        for heading, point in _label_extremes(main, summary):
            row[heading] = point_text(point).replace(" at step ", " @")
    if main != EVAL_LOSS and (evaluated := run.curve.summary(EVAL_LOSS)):
        row["eval last"] = format_value(evaluated.last.value)
        row["eval best"] = format_value(evaluated.min.value) if evaluated.min else "nan"
    running = dict(fact for _, _, columns in _facts_with_columns(run) for fact in columns)
    if main == LR:
        running.pop("lr", None)
    return row | running
