"""Health: what should worry in a curve, one sentence each, gravest first.

What each rule requires, what its thresholds were measured on, and how often it was right, is in
docs/warnings.md. A warning on a healthy log is an error: what can be the run's design (a learning
rate that rises, an evaluation, losses that fight each other) is none.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from heapq import nlargest
from itertools import pairwise, takewhile
from statistics import median
from typing import NamedTuple

from msgspec import Struct

from hpcrun.metrics.curve import Curve, Series, quantile
from hpcrun.metrics.names import (
    EPOCH,
    EVAL_LOSS,
    GRAD_NORM,
    LOSS,
    LR,
    SAMPLES_PER_SECOND,
    STEP_SECONDS,
    TOKENS_PER_SECOND,
)
from hpcrun.metrics.robust import blocks, grain, jitter, line, logarithms, outstanding, scatter

# Of fewer points than FEWEST a rule requires plainer evidence; of still fewer it reports nothing.
FEWEST = 20
FEWEST_AT_ALL = 8
# Points after a beginning that are not judged: means over an epoch are noisy, steps slow at first.
SETTLED = 5


def find_warnings(curve: Curve) -> tuple[str, ...]:
    """Return what should worry in a curve, gravest first; nothing for a healthy one.

    >>> from hpcrun.metrics.curve import build_series
    >>> losses = build_series([1, 2, 3], [2.5, 2.4, float("nan")])
    >>> find_warnings(Curve({"loss": losses}, ()))
    ('loss is nan at step 3',)
    """
    is_judged = not is_contest(curve)
    losses = last_losses(curve) if is_judged else None
    found = [
        *_not_finite(curve),
        _lost_gradients(curve),
        losses and (_divergence(losses) or _plateau(losses)),
        *_loss_scales(curve),
        losses and _spike(losses),
        _stall(curve),
        _drop(curve) if is_judged else None,
    ]
    return tuple(sentence for sentence in found if sentence)


# Words in the names of metrics of a run whose losses fight each other or follow what the model
# does: reinforcement learning, adversaries, annealed divergences. There a loss may rise for good.
_CONTEST = re.compile(
    r"rew|reward|returns?|advantages?|ep|episode|rollout|policy|critic|cri|actor|act|vf|pg|ppo|grpo"
    r"|kld?|disc|discriminator|generator|gan|adv|adversarial|fake|td|qf?"
)
_CONTEST_LOSSES = {"d", "g", "gen", "value"}


def is_contest(curve: Curve) -> bool:
    """Tell by the metrics' names whether a loss that rises may be this run's design.

    >>> is_contest(Curve({"loss": None, "reward/mean": None}, ()))
    True
    >>> is_contest(Curve({"loss": None, "eval_loss": None, "rewards/chosen": None}, ()))
    False
    """
    named = [set(re.findall("[a-z]+", name.lower())) for name in curve.metrics]
    return any(
        any(map(_CONTEST.fullmatch, words)) or ("loss" in words and words & _CONTEST_LOSSES)
        for words in named
    )


def _at(steps: Sequence[int | None], index: int) -> str:
    """Name a point for people."""
    return f"point {index + 1}" if steps[index] is None else f"step {steps[index]}"


def _lasting(values: Sequence[float], is_such: Callable[[float], bool]) -> int:
    """Return the index from which on all values are such."""
    return len(values) - sum(1 for _ in takewhile(is_such, reversed(values)))


# --- nan, inf; the loss scale


def _not_finite(curve: Curve) -> Iterator[str]:
    names = [name for name in curve.metrics if name in (LOSS, EVAL_LOSS)]
    for name in names or [name for name in curve.metrics if name.lower().endswith("loss")]:
        values, steps = curve.values(name), curve.steps(name)
        broken = [index for index, value in enumerate(values) if not math.isfinite(value)]
        if not broken:
            continue
        what, where = f"{name} is {values[broken[0]]}", _at(steps, broken[0])
        share = f"{len(broken)} of {len(values)} points"
        if len(broken) == 1:
            yield f"{what} at {where}"
        elif len(broken) == len(values) - broken[0]:
            yield f"{what} from {where} to the end ({share})"
        else:
            yield f"{what} first at {where}; {share} are not finite"


def _lost_gradients(curve: Curve) -> str | None:
    """fp16 scales gradients until they overflow: their norm may be inf, but not to the end."""
    values, steps = curve.values(GRAD_NORM), curve.steps(GRAD_NORM)
    first = _lasting(values, lambda value: not math.isfinite(value))
    if len(values) - first < 20:
        return None
    share = f"{len(values) - first} of {len(values)} points"
    return f"{GRAD_NORM} is {values[first]} from {_at(steps, first)} to the end ({share})"


def _loss_scales(curve: Curve) -> Iterator[str]:
    for name, series in curve.metrics.items():
        values, steps = series.values, series.steps
        if not re.search(r"(loss|grad|amp).?scale|^scaler?$", name.lower()):
            continue
        top = bottom = 0  # of the last fall
        for index, value in enumerate(values):
            if value > values[bottom] or value == values[top]:
                top = bottom = index
            elif value < values[bottom]:
                bottom = index
            least, fall = values[bottom], values[top] / max(values[bottom], 1e-9)
            # The first points search for the scale. A scale that was of use and ends at 1 leaves
            # fp16 gradients nothing between overflow and zero.
            is_collapse = (top >= 10 and fall >= 2**8) or (least <= 1 and fall >= 32)
            is_last = index + 1 == len(values) or values[index + 1] > least
            if is_collapse and is_last:
                yield (
                    f"{name} falls to {least:.6g} at {_at(steps, bottom)}, from {values[top]:.6g} "
                    f"at {_at(steps, top)}: the gradients keep overflowing"
                )
                break


# --- the losses of the last run in a log


class Losses(Struct, frozen=True):
    """The finite training losses of a run in their order, at least one.

    ``places``: where the points stand, their steps or else their order. ``begins``: indices at
    which an attempt, an epoch or a pass of the step counter begins. ``lr``: the learning rate at
    each point, nan where unknown.
    """

    steps: list[int | None]
    places: Sequence[int]
    values: list[float]
    begins: frozenset[int]
    lr: list[float]


def last_losses(curve: Curve) -> Losses | None:
    """Return the training losses of the last run in a log; None if none is finite."""
    kept = [index for index, value in enumerate(curve.values(LOSS)) if math.isfinite(value)]
    if not kept:
        return None
    steps = [curve.steps(LOSS)[index] for index in kept]
    values = [curve.values(LOSS)[index] for index in kept]
    epochs = _beside(steps, curve.metrics.get(EPOCH))
    resumed = {restart.resumed_at for restart in curve.restarts} - {None}
    first, begins = 0, {0}
    for index in range(1, len(steps)):
        a, b = steps[index - 1 : index + 1]
        was, now = epochs[index - 1 : index + 1]
        if (a is not None and b is not None and b <= a) or now < was:
            begins.add(index)
            if not now > was and _goes_elsewhere(values[first:index], values[index : index + 5]):
                first = index
        elif b in resumed or (now > was and now // 1 > was // 1):
            begins.add(index)
    steps, lr = steps[first:], _beside(steps, curve.metrics.get(LR))[first:]
    places = _rising(steps) or range(len(steps))
    begins = {index - first for index in begins if index >= first}
    return Losses(steps, places, values[first:], frozenset(begins), lr)


def _goes_elsewhere(before: Sequence[float], after: Sequence[float]) -> bool:
    """Tell whether the loss goes on elsewhere than it ended, as that of another run does."""
    begun, ended, now = median(before[:5]), median(before[-5:]), median(after)
    return abs(now - ended) > max(0.2 * abs(ended), 0.3 * abs(begun - ended))


def _beside(steps: Sequence[int | None], series: Series | None) -> list[float]:
    """Return the latest value of another metric at each step; nan where it has none."""
    if series is not None and series.steps == steps:
        return series.values
    known = _rising(series.steps) if series is not None else None
    if series is None or known is None:
        return [math.nan] * len(steps)
    places = [0 if step is None else bisect_right(known, step) for step in steps]
    return [series.values[place - 1] if place else math.nan for place in places]


def _rising(steps: Sequence[int | None]) -> list[int] | None:
    """Return steps if all are known and each is higher than the one before it."""
    known = [step for step in steps if step is not None]
    is_rising = len(known) == len(steps) and all(a < b for a, b in pairwise(known))
    return known if is_rising else None


def _divergence(losses: Losses) -> str | None:
    """Report a loss that ends well above its best and is not coming down again."""
    values, count = losses.values, len(losses.values)
    if count < FEWEST_AT_ALL or min(values) <= 0:
        return None
    number = max(4, min(40, count // 4))
    parts = blocks(losses.places, number)
    if len(parts) < 4:  # most of the points stand together
        parts = blocks(range(count), number)
    levels = [median(values[part]) for part in parts]
    best = min(range(len(levels) - 1), key=levels.__getitem__)
    at, low = parts[best].start, levels[best]
    begun = max(median(values[:3]), *levels[: max(1, len(levels) // 10)])
    end = max(levels[-1], median(values[-3 if count < FEWEST else -5 :]))
    x = logarithms(values)
    noise = max(median([scatter(x[part]) for part in parts]), jitter(x))
    # Noise that hangs together: by the differences between the steps from level to level, which
    # are small where a loss falls or rises steadily.
    drift = jitter([b - a for a, b in pairwise(logarithms(levels))], 0.0)
    rise, factor, gained = end - low, math.log(end) - math.log(low), begun - low
    # It has given back half of what was gained since the start; or all, and that was plain to see.
    is_far = (end >= 1.5 * low and rise >= 0.5 * gained and begun >= 1.2 * low) or (
        end >= 1.2 * low
        and rise >= gained
        and factor >= 6 * noise
        and math.log(begun) - math.log(low) >= max(0.1, 4 * noise)
    )
    if count < FEWEST:
        is_far = end >= 2 * max(begun, values[0])
    diverged = (
        is_far
        and factor >= max(4 * noise, 8 * drift)
        and rise >= 0.8 * (max([*levels[best:-1], end]) - low)  # it is not coming down again
        and at >= max(4, count // 20)
        and not losses.lr[-1] > 1.2 * losses.lr[at]  # a rate that rises explains it
    )
    where = _at(losses.steps, count - 1), _at(losses.steps, at)
    sentence = f"loss diverges: {end:.4g} at the end ({where[0]}), after a best of {low:.4g} "
    return f"{sentence}around {where[1]}" if diverged else None


def _plateau(losses: Losses) -> str | None:
    """Report a loss that has stood still since the first steps, or is frozen.

    A converged run is level at its end and healthy; so a plateau is only a loss that never left
    where it began, or that does not change in a single digit.
    """
    steps, since = losses.steps, _frozen_since(losses.values)
    level = _standing_level(losses) if since is None else losses.values[-1]
    if level is None:
        return None
    end = _at(steps, len(steps) - 1)
    return f"loss stands still at {level:.4g} from {_at(steps, since or 0)} to the end ({end})"


def _standing_level(losses: Losses) -> float | None:
    """Return the level that a loss has never left; None if it has, or the log does not show it."""
    values, places, lr = losses.values, losses.places, losses.lr
    if len(values) < 40 or len(losses.begins) > len(values) // 10:
        return None
    if places[0] > 10 * max(1, places[1] - places[0]):
        return None  # the log begins in the midst of a run, where a loss may be level
    if lr[-1] > 2 * lr[0] and lr[-1] >= max(lr):
        return None  # it still warms up
    levels = [median(values[part]) for part in blocks(places, 10)]
    level = median(levels)
    # The cross-entropy of a uniform guess is a level to which noise may belong.
    guesses = [math.log(classes) for classes in (2, 10, 100, 1000)]
    is_a_guess = any(abs(level - guess) <= 0.003 * level for guess in guesses)
    still = (0.01 if is_a_guess else 0.001) * level
    if len(levels) < 10 or level <= 0 or max(levels) - min(levels) > still:
        return None
    # Coarse numbers (bf16, two digits) have the same median for long: then no point may be far off.
    is_fine = grain(values) <= still or max(values) - min(values) <= 2 * still
    return level if is_fine else None


def _frozen_since(values: Sequence[float]) -> int | None:
    """Return where a loss froze far from zero, or fell to exactly zero at once; None if it did not.

    A number of three digits may stand for long: it takes four. A zero is what is left of a loss
    whose gradients were lost, if there was no descent to it.
    """
    first, last, begun = _lasting(values, values[-1].__eq__), values[-1], median(values[:3])
    if len(values) - first < max(20, len(values) // 2):
        return None
    if last:
        is_frozen = float(f"{last:.3g}") != last and abs(last) > 0.1 * abs(begun)
    else:
        is_frozen = first > 0 and median(values[max(0, first - 5) : first]) > 0.2 * begun
    return first if is_frozen else None


# --- spikes: a loss is compared with the scatter that it has itself, in logarithms where it is
# positive: batches differ by factors. Noise with long tails has many high points, of all heights;
# a spike stands out from all the others.


class _Peak(NamedTuple):
    """The highest of a group of high points; ``height`` in sigmas above ``level``."""

    height: float
    at: int
    level: float


def _spike(losses: Losses) -> str | None:
    """Report the highest loss far above what stood before it, that came down again."""
    values = losses.values
    spikes = _spikes_of_few(values) if len(values) < FEWEST else _spikes(losses)
    if not spikes:
        return None
    at, level = spikes[0]
    others = f" ({len(spikes)} spikes in all)" if len(spikes) > 1 else ""
    what = f"loss spikes to {values[at]:.4g} at {_at(losses.steps, at)}"
    return f"{what}, from about {level:.4g} before it{others}"


def _spikes_of_few(values: Sequence[float]) -> list[tuple[int, float]]:
    """Find a point that towers over all others, the first ones too."""
    if len(values) < FEWEST_AT_ALL or min(values) <= 0:
        return []
    at = max(range(len(values)), key=values.__getitem__)
    others = [*values[:at], *values[at + 1 :]]
    is_spike = 3 <= at < len(values) - 1 and values[at] >= 5 * max(others)
    return [(at, median(values[:at]))] if is_spike else []


def _spikes(losses: Losses) -> list[tuple[int, float]]:
    """Return the indices of the spikes, highest first, and the level that each rose from."""
    values, count = losses.values, len(losses.values)
    is_positive = min(values) >= 0
    x = logarithms(values) if is_positive else values
    size = median([abs(value) for value in values]) or 1.0
    peaks, depth = _peaks(x, max(0.01 * size, grain(values)) / (size if is_positive else 1.0))
    # Of few points the scatter is hardly known. Deep points show noise with long tails.
    least = max(10 * (1 + 30 / count), 2 * depth)
    heights = [peak.height for peak in peaks]
    number = outstanding(heights, [least] * len(peaks), max(2, count // 100), 2.5)
    found = []
    for peak in peaks[:number]:
        level = math.exp(peak.level) if is_positive else peak.level
        lift, gained = values[peak.at] - level, median(values[:SETTLED]) - level
        if is_positive:
            is_plain = lift >= 0.3 * level and lift >= 0.1 * gained
        else:  # it has no ratio: it must give back half of a plain descent
            is_plain = gained >= 10 * jitter(values) and lift >= 0.5 * gained
        after = x[peak.at + 1 : peak.at + 1 + max(3, count // 50)]
        comes_down = min(after, default=math.inf) <= (peak.level + x[peak.at]) / 2
        if is_plain and comes_down and not _is_by_design(losses, peak.at):
            found.append((peak.at, level))
    return found


def _peaks(x: Sequence[float], least_sigma: float) -> tuple[list[_Peak], float]:
    """Return the peaks above 4 sigmas, highest first, and how deep points go, in sigmas.

    Level and scatter are those of the one or two blocks before, the scatter around a line through
    them and at least the usual one. Where they rise, a point is compared with the line.
    """
    size = min(32, max(8, len(x) // 8))
    cuts = [*range(0, len(x), size), len(x)]
    usual = max(least_sigma, median([scatter(x[a:b]) for a, b in pairwise(cuts) if b - a == size]))
    peaks: list[_Peak] = []
    depth, last = 0.0, -10
    for a, b in pairwise(cuts[1:]):
        before = x[max(0, a - 2 * size) : a]
        (after, slope), level = line(before), median(before)
        lowest, top = min(x[a:b]), max(level, after, after + slope * (b - a))
        if max(x[a:b]) < top + 4 * usual and lowest > level - 4 * usual:
            continue
        around = max(usual, scatter(before))
        if a > len(x) // 5:  # before, a loss may fall steeply
            depth = max(depth, (min(level, after) - lowest) / around)
        for index in range(a, b):
            height = (x[index] - max(level, after + slope * (index - a))) / around
            if height >= 4:
                peak = _Peak(height, index, median(before[-8:]))
                if index - last > 3:
                    peaks.append(peak)
                elif height > peaks[-1].height:
                    peaks[-1] = peak
                last = index
    return sorted(peaks, reverse=True), depth


def _is_by_design(losses: Losses, index: int) -> bool:
    """Tell whether something begins here, or the learning rate has just risen by half."""
    count, lr = len(losses.values), losses.lr
    settled = max(SETTLED, count // 30)
    since = max(0, index - max(16, count // 50))
    begins = any(begin <= index < begin + settled for begin in losses.begins)
    return begins or lr[index] > 1.5 * lr[since]


# --- pace: a pause is no stall if it is the run's own: an evaluation, a checkpoint, the end of an
# epoch, the first steps, which compile. Those come again and again, or at round steps.


# The index of a point, the seconds that passed up to it since the one before, and those usual.
_Pause = tuple[int, float, float]


def _stall(curve: Curve) -> str | None:
    """Report the longest stall, by the durations of steps or else by the log's time stamps."""
    durations, losses = curve.metrics.get(STEP_SECONDS), curve.metrics.get(LOSS)
    timed = losses or next((series for series in curve.metrics.values() if series.times), None)
    by_steps = "{at} took {time}, where a step usually takes {usual}"
    by_stamps = "no progress for {time} after {before}, where {usual} are usual"
    return _longest_stall(curve, durations, _step_pauses, by_steps) or _longest_stall(
        curve, timed, _log_pauses, by_stamps
    )


def _longest_stall(
    curve: Curve, series: Series | None, pauses_of: Callable[[Series], list[_Pause]], sentence: str
) -> str | None:
    """Report the longest of the pauses that outlast all that are the run's own."""
    pauses = pauses_of(series) if series else []
    if not series or len(pauses) < FEWEST:
        return None
    resumed = {restart.resumed_at for restart in curve.restarts} - {None}
    judged = (
        (seconds - usual, index, seconds, usual)
        for index, seconds, usual in pauses
        if math.isfinite(seconds) and index > SETTLED and series.steps[index] not in resumed
    )
    longest = nlargest(3, judged)
    least = [max(60.0, 9 * usual) for *_, usual in longest]
    number = outstanding([excess for excess, *_ in longest], least, 2, 5)
    stalls = [
        (index, seconds, usual)
        for _, index, seconds, usual in longest[:number]
        if seconds > max(10 * usual, _allowed(curve, series, index))
    ]
    if not stalls:
        return None
    index, seconds, usual = stalls[0]
    at, before = _at(series.steps, index), _at(series.steps, index - 1)
    found = sentence.format(at=at, before=before, time=_duration(seconds), usual=_duration(usual))
    return found + (f" ({len(stalls)} stalls in all)" if len(stalls) > 1 else "")


def _duration(seconds: float) -> str:
    """Name a time as people do.

    >>> _duration(0.25), _duration(90), _duration(5400), _duration(200000)
    ('0.25 s', '90 s', '90 min', '55.6 h')
    """
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _step_pauses(series: Series) -> list[_Pause]:
    usual = quantile(series.values, 0.5) or 0.0
    return [(index, seconds, usual) for index, seconds in enumerate(series.values)]


def _log_pauses(series: Series) -> list[_Pause]:
    """Return the times from point to point; usual ones are for as many steps."""
    times = series.times or []
    gaps = [
        (index, times[index] - times[index - 1], 1 if a is None or b is None else b - a)
        for index, (a, b) in enumerate(pairwise(series.steps if times else []), 1)
    ]
    rates = [gap / run for _, gap, run in gaps if run > 0 and gap >= 0]
    rate = median(rates) if rates else 0.0
    # A tenth of what the clock shows: one without seconds shows times only to the minute.
    least = 6.0 if all(time % 60 == 0 for time in times) else 0.1
    return [(index, gap, max(rate * run, least)) for index, gap, run in gaps if run > 0]


def _allowed(curve: Curve, series: Series, index: int) -> float:
    """Return how long a pause at a point may be by the run's design, seconds."""
    of_a_checkpoint, of_an_epoch = 600.0, 3600.0
    before, after = series.steps[index - 1], series.steps[index]
    if before is None or after is None:
        return of_an_epoch
    if after <= before or _measures_between(curve, before, after):
        return math.inf
    was, now = _beside(series.steps, curve.metrics.get(EPOCH))[index - 1 : index + 1]
    if now // 1 > was // 1:
        return of_an_epoch
    every = max(50, 10 * (after - before))
    is_round = any(step % every in (0, every - 1) for step in (before, after))
    return of_a_checkpoint if is_round else 0.0


def _measures_between(curve: Curve, before: int, after: int) -> bool:
    """Tell whether a metric that is measured now and then was so there: an evaluation."""
    most = max(len(series.steps) for series in curve.metrics.values())
    for name, series in curve.metrics.items():
        if len(series.steps) <= most / 3 or name.startswith("eval_"):
            steps = _rising([step for step in series.steps if step is not None]) or []
            if bisect_left(steps, before - 1) < bisect_right(steps, after + 1):
                return True
    return False


def _drop(curve: Curve) -> str | None:
    """Report where throughput drops for good, unless the work of a step changes there too."""
    names = (name for name in (TOKENS_PER_SECOND, SAMPLES_PER_SECOND) if name in curve.metrics)
    name = next(names, "")
    found = find_drop(curve.values(name))
    if found is None or _work_changes(curve, curve.steps(name), found[0]):
        return None
    at, was, now = found
    where = _at(curve.steps(name), at)
    return f"{name} drops to {now:.4g} at {where}, from {was:.4g} before it, and stays there"


# Names of metrics that show how much work a step is.
_WORK = re.compile(r"seq|length|batch|img.?size|resolution|num_tokens", re.IGNORECASE)


def _work_changes(curve: Curve, steps: Sequence[int | None], index: int) -> bool:
    """Tell whether sequences, batches or images have another size from a point on."""
    for sizes in (
        _beside(steps, curve.metrics[name]) for name in filter(_WORK.search, curve.metrics)
    ):
        was, now = quantile(sizes[:index], 0.5), quantile(sizes[index:], 0.5)
        if was is not None and now is not None and abs(now - was) > 0.1 * abs(was):
            return True
    return False


def find_drop(values: Sequence[float]) -> tuple[int, float, float] | None:
    """Find where throughput drops for good: the point, the median before and from there on.

    From there on, a fifth of the run at least, nearly all points lie below nearly all before. Of
    the cuts at each twentieth of the run that one is taken whose medians differ most.

    >>> find_drop([1.0] * 30 + [0.5] * 30)
    (30, 1.0, 0.5)
    """
    count, drops = len(values), []
    if count < 40 or not all(map(math.isfinite, values)):
        return None
    for part in range(5, 17):
        cut = count * part // 20
        before, after = sorted(values[max(SETTLED, count // 20) : cut]), sorted(values[cut:])
        was, now = before[len(before) // 2], after[len(after) // 2]
        slow, fast = before[len(before) // 10], after[len(after) * 9 // 10]
        if now < 0.7 * was and fast < slow:
            drops.append((now / was, cut, was, now))
    if not drops:
        return None
    _, index, was, now = min(drops)
    middle = (was + now) / 2
    while index > 1 and values[index - 1] < middle:
        index -= 1
    while index < count - 1 and values[index] >= middle:
        index += 1
    return index, was, now
