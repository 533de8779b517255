"""How long a run took, as its logs state or show it.

In this order: a total that a program states (``train_runtime``, "Training time 0:15:19"), the
elapsed time of the training's progress bar, the first and last time stamp of any lines, and the sum
of the times of epochs or steps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, pairwise

import numpy as np

from hpcrun.curves.curve import Series, is_increasing
from hpcrun.curves.lines.times import (
    DAY_OR_MONTH_FIRST,
    ELAPSED,
    TIME_OF_DAY,
    swap_day_and_month,
)
from hpcrun.curves.names import ELAPSED_SECONDS, EPOCH_SECONDS, STEP_SECONDS, fold, words
from hpcrun.curves.passes import Floats
from hpcrun.curves.store import MAX_LAPS, StoredLog, StoredRows

# Metrics that state how long a whole training took, in seconds.
_TOTALS = words("train_runtime total_train_time total_training_time training_runtime total_runtime")
# Metrics without a unit that may be the time of an epoch, or since the start.
_TIMES = words("time train_time training_time epoch_time duration")
_DAY = 86400.0
# A time of day that falls by more than this has passed midnight.
_MIDNIGHT_FALL = 43200.0
# A counter of elapsed time rises at least by this factor from its start to its end; durations whose
# level rises as much may be such a counter.
_CUMULATIVE_RISE = 1.8
_MIN_CUMULATIVE = 3
_MIN_LAPS = 3
# A counter rises at least this often for each time that it starts again.
_MIN_RISES_PER_RESET = 4
# A counter that starts again falls below this share of its value.
_MAX_RESET_SHARE = 0.25
# Durations fall at least this often for each time that they rise.
_MIN_FALLS_PER_RISE = 0.5
# The correlation of each value's rank with the next one's, from which on values have a trend.
_TREND_CORRELATION = 0.9


def times_by_form(log: StoredLog) -> dict[int, Floats]:
    """Return the times of the rows of a log by the id of their form, all of one clock.

    The clock is the one whose times cover most of the log. Of dates such as 12/09/24, the order of
    day and month is the one with which the log took less time.
    """
    timed = [form for form in log.forms.values() if form.times and form.clock != ELAPSED]
    clock = _main_clock(log, timed)
    times = {id(form): np.asarray(form.times) for form in timed if form.clock == clock}
    if clock == DAY_OR_MONTH_FIRST and _are_swapped(log):
        return {form: np.array([*map(swap_day_and_month, x)]) for form, x in times.items()}
    return times


def _main_clock(log: StoredLog, timed: Sequence[StoredRows]) -> str:
    spans: dict[str, list[int]] = {}
    for form in timed:
        spans.setdefault(form.clock, []).extend((form.offsets[0], form.offsets[-1]))
    for stamp in log.stamps:
        spans.setdefault(stamp.clock, []).append(stamp.offset)
    return max(spans, key=lambda clock: max(spans[clock]) - min(spans[clock]), default="")


def _stamps(log: StoredLog, clock: str) -> Floats:
    """Return the times of all time stamps of one clock, in the order of the log."""
    marks = [each for each in log.stamps if each.clock == clock and each.time is not None]
    forms = [form for form in log.forms.values() if form.times and form.clock == clock]
    offsets = [np.array([each.offset for each in marks], np.int64)]
    times = [np.array([each.time for each in marks], float)]
    offsets += [np.asarray(form.offsets) for form in forms]
    times += [np.asarray(form.times) for form in forms]
    if len(forms) == 1 and not marks:
        return times[-1]
    found: Floats = np.concatenate(times)[np.argsort(np.concatenate(offsets), kind="stable")]
    return found


def _are_swapped(log: StoredLog) -> bool:
    days = (np.unique(_stamps(log, DAY_OR_MONTH_FIRST) // _DAY) * _DAY).tolist()
    swapped = [*map(swap_day_and_month, days)]
    return bool(max(swapped) - min(swapped) < max(days) - min(days))


def _spans_training(log: StoredLog, clock: str) -> bool:
    """Return True if most rows of the training stand between time stamps of a clock."""
    trained = [form.offsets for form in log.forms.values() if form.layout.scope.split == "train"]
    stamped = [each.offset for each in log.stamps if each.clock == clock]
    for form in log.forms.values():
        if form.clock == clock and form.times:
            stamped += (form.offsets[0], form.offsets[-1])
    low, high = min(stamped, default=0), max(stamped, default=0)
    inside = sum(bisect_right(each, high) - bisect_left(each, low) for each in trained)
    return 2 * inside >= sum(map(len, trained))


def time_between_stamps(log: StoredLog) -> float | None:
    """Return the seconds between the first and the last time stamp of a log, of any lines."""
    timed = [form for form in log.forms.values() if form.times and form.clock != ELAPSED]
    clock = _main_clock(log, timed)
    if not _spans_training(log, clock):
        return None
    times = _stamps(log, clock)
    if clock == DAY_OR_MONTH_FIRST and _are_swapped(log):
        times = np.array([*map(swap_day_and_month, times.tolist())])
    if len(times) < 2:
        return None
    if clock == TIME_OF_DAY:
        nights = int((times[:-1] - times[1:] > _MIDNIGHT_FALL).sum())
        return float(times[-1] - times[0]) + nights * _DAY or None
    return float(times.max() - times.min()) or None


def stated_time(log: StoredLog) -> float | None:
    """Return the seconds that a log states as the time of its training."""
    found: list[tuple[int, float]] = []
    for form in log.forms.values():
        for name, column in zip(form.layout.names, form.columns, strict=True):
            if fold(name) in _TOTALS:
                found += zip(form.offsets, column, strict=True)
    if not found:
        found = [(m.offset, m.seconds) for m in log.marks if m.ends and m.seconds is not None]
    if not found:
        return None
    # Totals without rows of the training between them were printed by several ranks.
    found.sort()
    places = [offset for offset, _ in found]
    above = np.zeros(len(found), np.int64)
    for form in log.forms.values():
        states_total = any(fold(name) in _TOTALS for name in form.layout.names)
        if form.layout.scope.split == "train" and form.layout.bar is None and not states_total:
            above += np.searchsorted(np.asarray(form.offsets), places)
    groups = groupby(zip(above.tolist(), found, strict=True), key=lambda each: each[0])
    return _add_up([max(seconds for _, (_, seconds) in group) for _, group in groups])


def _add_up(seconds: Sequence[float]) -> float | None:
    """Add up the totals of several trainings, or return the last one if they are cumulative."""
    values = np.array([value for value in seconds if 0 < value < np.inf])
    return _add_up_counter(values) or float(values.sum()) or None


def _add_up_counter(values: Floats) -> float | None:
    """Add up the ends of a counter of elapsed time, which may start again in a new attempt.

    Returns:
        None if the values are not certainly those of such a counter.

    >>> _add_up_counter(np.array([1.0, 2, 2, 3, 1, 2, 3]))
    6.0
    >>> _add_up_counter(np.array([2.0, 1.9, 2.1, 2.0]))
    """
    values = values[np.isfinite(values) & (values >= 0)]
    changes = np.diff(values)
    resets = np.flatnonzero(changes < 0) + 1
    rises = int((changes > 0).sum())
    if len(values) < _MIN_CUMULATIVE or not rises or rises < _MIN_RISES_PER_RESET * len(resets):
        return None
    segments = np.split(values, resets)
    for before, after in pairwise(segments):
        # A counter that continues from a checkpoint includes the time before it.
        if after[0] > max(2 * values[0], _MAX_RESET_SHARE * before[-1]):
            return None
    if any(x[-1] <= _CUMULATIVE_RISE * x[0] for x in segments if len(x) >= _MIN_CUMULATIVE):
        return None
    return float(sum(segment[-1] for segment in segments))


def _add_up_durations(values: Floats) -> float | None:
    """Add up durations that fluctuate without rising.

    Returns:
        None if the values may be those of a counter of elapsed time.

    >>> _add_up_durations(np.array([2.5, 2.0, 2.25, 2.0]))
    8.75
    >>> _add_up_durations(np.array([10.0, 10.1, 20.0, 19.9, 30.0, 30.1]))
    """
    values = values[np.isfinite(values) & (values > 0)]
    if not len(values):
        return None
    ordered, outliers = np.sort(values), len(values) // 10
    if ordered[-1 - outliers] >= _CUMULATIVE_RISE * ordered[outliers]:
        changes = np.diff(values)
        rises, falls = int((changes > 0).sum()), int((changes < 0).sum())
        middle = (len(values) + 1) // 2
        first, second = values[:middle], values[middle:]
        if (
            falls < _MIN_FALLS_PER_RISE * rises
            or _median(second) >= _CUMULATIVE_RISE * _median(first)
            or (rises >= _MIN_FALLS_PER_RISE * falls and _has_trend(values))
        ):
            return None
    return float(values.sum()) or None


def _median(values: Floats) -> float:
    """Return the middle value; np.median would import numpy.ma."""
    return float(np.sort(values)[len(values) // 2])


def _has_trend(values: Floats) -> bool:
    """Return True if most values are close to the one before, compared with all of them."""
    ranks = np.searchsorted(np.sort(values), values).astype(float)
    before, after = ranks[:-1], ranks[1:]
    if len(ranks) < _MIN_CUMULATIVE or not before.std() or not after.std():
        return False
    return bool(np.corrcoef(before, after)[0, 1] > _TREND_CORRELATION)


def bar_time(
    log: StoredLog, description: str | None, total: int | None
) -> tuple[float | None, int]:
    """Return the elapsed time of a progress bar, and how often it was begun.

    Without a description, it is that of lines without a bar.
    """
    forms = [
        form
        for form in log.forms.values()
        if form.layout.bar == description
        and form.total == total
        and form.clock == ELAPSED
        and form.times
    ]
    if not forms:
        return None, 0
    order = np.argsort(np.concatenate([np.asarray(form.offsets) for form in forms]), kind="stable")
    times = np.concatenate([np.asarray(form.times) for form in forms])[order]
    ends = times[np.append(times[1:] < times[:-1], True)]
    return float(ends.sum()) or None, len(ends)


def elapsed_time(log: StoredLog) -> float | None:
    """Return the elapsed time that lines of the training state."""
    times = [
        bar_time(log, None, total)[0]
        for total in {form.total for form in log.forms.values() if form.layout.bar is None}
    ]
    times += [
        _add_up_counter(np.asarray(column))
        for form in log.forms.values()
        for name, column in zip(form.layout.names, form.columns, strict=True)
        if name == ELAPSED_SECONDS
    ]
    return max((seconds for seconds in times if seconds), default=None)


def line_time(log: StoredLog) -> float | None:
    """Return the sum of the times that lines of the training state since the line before."""
    found = (
        _add_up_durations(np.asarray(column))
        for form in log.forms.values()
        for name, column in zip(form.layout.names, form.columns, strict=True)
        if name == ELAPSED_SECONDS and (form.layout.rank or 0) == 0
    )
    return max((seconds for seconds in found if seconds), default=None)


def epoch_time(log: StoredLog) -> float | None:
    """Return the sum of the times of epochs that a log states."""
    marks = [mark for mark in (*log.marks, *log.laps) if not mark.ends and mark.seconds]
    if len(log.laps) == MAX_LAPS:
        marks = []  # the log may have more, which are not kept
    laps = [mark.seconds for mark in marks if mark.is_lap]
    marked = [mark.seconds for mark in marks if not mark.is_lap]
    columns = (
        column
        for form in log.forms.values()
        for name, column in zip(form.layout.names, form.columns, strict=True)
        if (name == EPOCH_SECONDS or (form.steps is None and fold(name) in _TIMES))
        and (form.layout.rank or 0) == 0
    )
    # Fewer laps may be the times of anything.
    laps = laps if len(laps) >= _MIN_LAPS else []
    times = [np.asarray(each, float) for each in (marked, laps, *columns)]
    sums = [_add_up_counter(each) or _add_up_durations(each) for each in times]
    if len(laps) and sums[1] is not None:
        sums[1] /= _processes(log)
    return max((each for each in sums if each is not None), default=None)


def _processes(log: StoredLog) -> int:
    """Return how many processes printed each line of the training without a label.

    Such lines repeat step and epoch.
    """
    found = [1]
    for form in log.forms.values():
        if form.layout.scope.split == "train" and form.steps is not None:
            epochs = np.zeros(len(form)) if form.epochs is None else np.asarray(form.epochs)
            places = {*zip(epochs.tolist(), form.steps, strict=True)}
            found.append(round(len(form) / len(places)))
    return max(found)


def step_time(metrics: Mapping[str, Series], *, counts_epochs: bool) -> float | None:
    """Return the number of steps times their mean duration, by the metrics of a run."""
    series = metrics.get(STEP_SECONDS)
    if series is None or counts_epochs or not is_increasing(series.steps):
        return None
    values = np.asarray(series.values if series.sample is None else series.sample)
    values = values[np.isfinite(values) & (values >= 0)]
    steps = np.asarray(series.steps, float)
    if series.sample is not None or len(values) < len(steps):
        stride = float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0
        count = min(steps[-1] - steps[0] + stride, steps[-1] + 1)
        return float(values.mean() * count) if values.size else None
    # A value holds for the steps since the one before it; the first one for as many as the second.
    first = min(steps[1] - steps[0] if len(steps) > 1 else 1.0, max(steps[0], 1.0))
    return float(values @ np.diff(steps, prepend=steps[0] - first)) or None


def add_attempts(
    logs: Iterable[StoredLog], seconds_of: Callable[[StoredLog], float | None]
) -> float | None:
    """Add up the times of the attempts of a run; of several logs of one attempt, the longest."""
    found: dict[int, float] = {}
    for log in logs:
        if (seconds := seconds_of(log)) is not None:
            found[log.attempt] = max(seconds, found.get(log.attempt, 0.0))
    return sum(found.values()) or None
