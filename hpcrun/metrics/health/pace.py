"""Pace: where a run stalls, and where it becomes slower for good.

What was measured is in docs/warnings.md.

A pause is no stall if it is the run's own: an evaluation, a checkpoint, the end of an epoch, the
first steps, which compile and warm up. Those come again and again, or at round steps.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from hpcrun.metrics.curve import Curve, Series, quantile
from hpcrun.metrics.health.robust import median
from hpcrun.metrics.names import EPOCH, LOSS, SAMPLES_PER_SECOND, STEP_SECONDS, TOKENS_PER_SECOND

# A stall: so many times what its steps usually take, and so many seconds more.
STALL_FACTOR = 10.0
STALL_SECONDS = 60.0
# At a round step a checkpoint may be written, at the end of an epoch much may happen.
CHECKPOINT_SECONDS = 600.0
EPOCH_SECONDS = 3600.0
# Pauses that come more often are the run's own; a stall outlasts them by this factor.
_MOST_STALLS = 2
_OUTLASTS = 5.0
_WARM_UP = 5
_FEWEST = 20


class Pause(Struct, frozen=True):
    """From point ``index`` - 1 to point ``index`` passed ``seconds``, usually ``usual``."""

    index: int
    seconds: float
    usual: float


def stall_warnings(curve: Curve) -> Iterator[str]:
    """Yield the longest stall, by the durations of steps or else by the log's time stamps."""
    timed = curve.metrics.get(LOSS) or next(
        (series for series in curve.metrics.values() if series.times), None
    )
    steps = curve.metrics.get(STEP_SECONDS)
    if steps and (stalls := find_stalls(curve, steps, step_pauses(steps))):
        worst = stalls[0]
        yield (
            f"{_where(steps, worst.index)} took {_duration(worst.seconds)}, where a step usually "
            f"takes {_duration(worst.usual)}{_more(stalls)}"
        )
    elif timed and timed.times and (stalls := find_stalls(curve, timed, log_pauses(timed))):
        worst = stalls[0]
        yield (
            f"no progress for {_duration(worst.seconds)} after {_where(timed, worst.index - 1)}, "
            f"where {_duration(worst.usual)} are usual{_more(stalls)}"
        )


def _more(stalls: Sequence[Pause]) -> str:
    return f" ({len(stalls)} stalls in all)" if len(stalls) > 1 else ""


def _where(series: Series, index: int) -> str:
    step = series.steps[index]
    return f"point {index + 1}" if step is None else f"step {step}"


def _duration(seconds: float) -> str:
    """Name a time as people do.

    >>> _duration(0.25), _duration(90), _duration(5400), _duration(200000)
    ('0.25 s', '90 s', '90 min', '55.6 h')
    """
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"


def step_pauses(series: Series) -> list[Pause]:
    """Return the duration of each step beside the usual one; nothing if all are short."""
    known = [value for value in series.values if math.isfinite(value)]
    if max(known, default=0.0) <= STALL_SECONDS:
        return []
    usual = median(known)
    return [Pause(index, value, usual) for index, value in enumerate(series.values)]


def log_pauses(series: Series) -> list[Pause]:
    """Return the time from point to point beside the usual one; nothing if all are short."""
    times = series.times or []
    gaps = [b - a for a, b in pairwise(times)]
    if max(gaps, default=0.0) <= STALL_SECONDS:
        return []
    known = [1 if a is None or b is None else b - a for a, b in pairwise(series.steps)]
    rates = [gap / run for gap, run in zip(gaps, known, strict=True) if run > 0 and gap >= 0]
    rate = median(rates) if rates else 0.0
    # A clock without seconds tells times only to the minute.
    coarse = 60.0 if all(time % 60 == 0 for time in times) else 1.0
    return [
        Pause(index + 1, gap, max(rate * run, coarse / STALL_FACTOR))
        for index, (gap, run) in enumerate(zip(gaps, known, strict=True))
        if run > 0
    ]


def find_stalls(curve: Curve, series: Series, pauses: Sequence[Pause]) -> list[Pause]:
    """Find pauses that outlast all that are the run's own, longest first."""
    if len(pauses) < _FEWEST:
        return []
    resumed = {restart.resumed_at for restart in curve.restarts}
    ordered = sorted(
        (
            pause
            for pause in pauses
            if math.isfinite(pause.seconds)
            and pause.index > _WARM_UP
            and series.steps[pause.index] not in resumed - {None}
        ),
        key=lambda pause: pause.usual - pause.seconds,
    )
    found = 0
    for rank, pause in enumerate(ordered[:_MOST_STALLS]):
        excess = pause.seconds - pause.usual
        below = ordered[rank + 1] if rank + 1 < len(ordered) else None
        if (
            excess > STALL_SECONDS
            and pause.seconds > STALL_FACTOR * pause.usual
            and (below is None or excess >= _OUTLASTS * (below.seconds - below.usual))
        ):
            found = rank + 1
    return [
        pause for pause in ordered[:found] if pause.seconds > _allowed(curve, series, pause.index)
    ]


def _allowed(curve: Curve, series: Series, index: int) -> float:
    """Return how long a pause at a point may be by the run's design, seconds."""
    before, after = series.steps[index - 1], series.steps[index]
    if before is None or after is None:
        return EPOCH_SECONDS
    if after <= before or _measures_between(curve, before, after):
        return math.inf
    epochs = curve.metrics.get(EPOCH)
    if epochs and epochs.steps == series.steps:
        a, b = epochs.values[index - 1], epochs.values[index]
        if math.isfinite(a) and math.isfinite(b) and math.floor(b) > math.floor(a):
            return EPOCH_SECONDS
    every = max(50, 10 * (after - before))
    if any(step % every in (0, every - 1) for step in (before, after)):
        return CHECKPOINT_SECONDS
    return 0.0


def _measures_between(curve: Curve, before: int, after: int) -> bool:
    """Tell whether a metric that is measured now and then was so there: an evaluation."""
    most = max(len(series.steps) for series in curve.metrics.values())
    for name, series in curve.metrics.items():
        if len(series.steps) > most / 3 and not name.startswith("eval_"):
            continue
        known = [step for step in series.steps if step is not None]
        if any(b <= a for a, b in pairwise(known)):
            continue
        if bisect_left(known, before - 1) < bisect_right(known, after + 1):
            return True
    return False


# A lasting drop: below this share of what it was, for a fifth of the run at least, and so that
# nearly all points after it lie below nearly all before it.
DROP_SHARE = 0.7


def drop_warnings(curve: Curve) -> Iterator[str]:
    """Yield where throughput drops for good, unless the work of a step changes there too."""
    for name in (TOKENS_PER_SECOND, SAMPLES_PER_SECOND):
        series = curve.metrics.get(name)
        if series is None:
            continue
        drop = find_drop(series)
        if drop and not _work_changes(curve, series.steps[drop.index]):
            yield (
                f"{name} drops to {drop.after:.4g} at {_where(series, drop.index)}, from "
                f"{drop.before:.4g} before it, and stays there"
            )
        return


# Metrics that tell how much work a step is.
_WORK = re.compile(r"seq|length|batch|img.?size|resolution|num_tokens", re.IGNORECASE)


def _work_changes(curve: Curve, step: int | None) -> bool:
    """Tell whether sequences, batches or images have another size from a step on."""
    for name, series in curve.metrics.items():
        if not _WORK.search(name) or step is None or None in series.steps:
            continue
        pairs = list(zip(series.steps, series.values, strict=True))
        before = [value for at, value in pairs if at is not None and at < step]
        after = [value for at, value in pairs if at is not None and at >= step]
        was, now = quantile(before, 0.5), quantile(after, 0.5)
        if was is not None and now is not None and abs(now - was) > 0.1 * abs(was):
            return True
    return False


class Drop(Struct, frozen=True):
    """From point ``index`` on, the median is ``after``, which was ``before``."""

    index: int
    before: float
    after: float


def find_drop(series: Series) -> Drop | None:
    """Find where throughput drops for good; None in fewer than 40 points.

    Of the cuts at each twentieth of the run that one is taken whose medians differ most.
    """
    values = series.values
    warm_up = max(_WARM_UP, len(values) // 20)
    if len(values) < 2 * _FEWEST or not all(map(math.isfinite, values)):
        return None
    ordered = sorted(values)
    if ordered[len(values) // 20] > DROP_SHARE * ordered[len(values) * 19 // 20]:
        return None
    drops = []
    for part in range(5, 17):
        cut = len(values) * part // 20
        before, after = sorted(values[warm_up:cut]), sorted(values[cut:])
        was, now = before[len(before) // 2], after[len(after) // 2]
        slow, fast = before[len(before) // 10], after[len(after) * 9 // 10]
        if now < DROP_SHARE * was and fast < slow:
            drops.append(Drop(cut, was, now))
    if not drops:
        return None
    drop = min(drops, key=lambda drop: drop.after / drop.before)
    middle, index = (drop.before + drop.after) / 2, drop.index
    while index > 1 and values[index - 1] < middle:
        index -= 1
    while index < len(values) - 1 and values[index] >= middle:
        index += 1
    return Drop(index, drop.before, drop.after)
