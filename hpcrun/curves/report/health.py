"""Detect problems in a curve and report each as one sentence, most severe first.

docs/warnings.md describes the conditions of each rule and its measured precision. False alarms
count as errors, so anything that may be intended by the run is not reported. Levels and scatter are
estimated by medians, which are robust against outliers. Values missing from a log are nan, so that
every comparison with them is false.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from hpcrun.curves.curve import Curve, Floats, is_increasing
from hpcrun.curves.names import (
    EPOCH,
    EVAL_LOSS,
    GRAD_NORM,
    LOSS,
    LR,
    SAMPLES_PER_SECOND,
    STEP_SECONDS,
    TOKENS_PER_SECOND,
)
from hpcrun.curves.report.thin import quantile

Mask = NDArray[np.bool_]

# With fewer points than FEWEST, rules require stronger evidence; below FEWEST_AT_ALL they report
# nothing.
FEWEST = 20
FEWEST_AT_ALL = 8
# Points ignored after a start or restart, because running means are noisy and first steps slow.
SETTLED = 5
_FEWEST_AFTER_RESTART = 2
ROOT_2 = math.sqrt(2)


@np.errstate(all="ignore")  # logs may contain arbitrary numbers
def find_warnings(curve: Curve) -> tuple[str, ...]:
    """Return warnings about a curve, most severe first; empty for a healthy curve.

    >>> from hpcrun.curves.curve import build_series
    >>> losses = build_series([1, 2, 3], [2.5, 2.4, float("nan")])
    >>> find_warnings(Curve({"loss": losses}, ()))
    ('loss is nan at step 3',)
    """
    is_judged = not is_contest(curve)
    losses = last_losses(curve) if is_judged else None
    found = [
        *_find_non_finite(curve),
        *(_find_jumps_at_restarts(curve) if is_judged else ()),
        losses and (_find_divergence(losses) or _find_plateau(losses)),
        *_find_scale_collapse(curve),
        losses and _find_spike(losses),
        _find_stall(curve),
        _find_throughput_drop(curve) if is_judged else None,
    ]
    return tuple(sentence for sentence in found if sentence)


# Words in metric names that indicate competing losses or losses that depend on the model's own
# output: reinforcement learning, adversarial training, annealed divergences. In such runs a loss
# may rise permanently.
_CONTEST = re.compile(
    r"rew|reward|returns?|advantages?|ep|episode|rollout|policy|critic|cri|actor|act|vf|pg|ppo|grpo"
    r"|kld?|disc|discriminator|generator|gan|adv|adversarial|fake|td|qf?"
)
_CONTEST_LOSSES = {"d", "g", "gen", "value"}


def is_contest(curve: Curve) -> bool:
    """Return True if metric names indicate a kind of training whose loss may rise by design.

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


# --- nan, inf; the loss scale


def _find_non_finite(curve: Curve) -> Iterator[str]:
    """Report non-finite losses, and gradient norms that remain non-finite to the end.

    Occasional infinite gradient norms are normal, because fp16 loss scaling increases the scale
    until gradients overflow.
    """
    losses = [name for name in curve.metrics if name in (LOSS, EVAL_LOSS)]
    losses = losses or [name for name in curve.metrics if name.lower().endswith("loss")]
    for name in [*losses, GRAD_NORM]:
        steps, values, _ = curve.arrays(name)
        broken = np.flatnonzero(~np.isfinite(values))
        if name == GRAD_NORM:
            broken = broken[broken >= _find_trailing_start(~np.isfinite(values))]
        if len(broken) < (20 if name == GRAD_NORM else 1):
            continue
        what, where = f"{name} is {values[broken[0]]}", _name_point(steps, broken[0])
        share = f"{len(broken)} of {len(values)} points"
        if len(broken) == 1:
            yield f"{what} at {where}"
        elif len(broken) == len(values) - broken[0]:
            yield f"{what} from {where} to the end ({share})"
        else:
            yield f"{what} first at {where}; {share} are not finite"


_SCALE = re.compile(r"(loss|grad|amp).?scale|^scaler?$", re.IGNORECASE)


def _find_scale_collapse(curve: Curve) -> Iterator[str]:
    """Report the first monotonic decrease that reduces a loss scale to an unusable value."""
    for name in filter(_SCALE.search, curve.metrics):
        steps, values, _ = curve.arrays(name)
        known = np.flatnonzero(~np.isnan(values))
        falls = np.split(known, np.flatnonzero(np.diff(values[known]) > 0) + 1)
        for fall in falls if known.size else []:
            high, low = values[fall[0]], values[fall[-1]]
            top, bottom = fall[values[fall] == high][-1], fall[values[fall] == low][0]
            times = high / max(low, 1e-9)
            # Dynamic loss scaling decreases during the first points while it searches for the
            # scale. A scale that decreases to 1 later leaves fp16 gradients no range between
            # overflow and underflow.
            if (top >= 10 and times >= 2**8) or (low <= 1 and times >= 32):
                yield (
                    f"{name} falls to {low:.6g} at {_name_point(steps, bottom)}, from {high:.6g} "
                    f"at {_name_point(steps, top)}: the gradients keep overflowing"
                )
                break


# --- the losses of the last run in a log


class Losses(Struct, frozen=True):
    """The finite training losses of a run in log order; at least one.

    Attributes:
        steps: Step of each loss; nan if unknown.
        places: Increasing x coordinates: the steps, or the order if steps are not increasing.
        values: The losses.
        begins: Whether an attempt, an epoch or a pass of the step counter begins at the point.
        lr: Learning rate at the point; nan if unknown.
    """

    steps: Floats
    places: Floats
    values: Floats
    begins: Mask
    lr: Floats


def last_losses(curve: Curve) -> Losses | None:
    """Return the training losses of the last run in a log; None if none is finite."""
    steps, values, _ = curve.arrays(LOSS)
    steps, values = steps[np.isfinite(values)], values[np.isfinite(values)]
    if not values.size:
        return None
    epochs, lr = (_align_metric(curve, name, steps) for name in (EPOCH, LR))
    was, now = epochs[:-1], epochs[1:]
    falls = (steps[1:] <= steps[:-1]) | (now < was)
    begins = falls | _is_resumed(curve, steps[1:]) | (np.floor(now) > np.floor(was))
    first = 0
    for index in (np.flatnonzero(falls & ~(now > was)) + 1).tolist():
        # A discontinuity of the loss at a counter reset indicates that a different run begins.
        before = values[first:index]
        begun, ended = _median(before[:5]), _median(before[-5:])
        away = abs(_median(values[index : index + 5]) - ended)
        if away > max(0.2 * abs(ended), 0.3 * abs(begun - ended)):
            first = index
    steps, begins = steps[first:], np.append(True, begins)[first:]
    places = steps if is_increasing(steps) else np.arange(len(steps), dtype=float)
    return Losses(steps, places, values[first:], begins, lr[first:])


def _find_jumps_at_restarts(curve: Curve) -> Iterator[str]:
    """Report a loss that a restart raises to twice its level, and by half of what was gained.

    A checkpoint that was not loaded, or only in part, is the usual reason.
    """
    steps, values, _ = curve.arrays(LOSS)
    steps, values = steps[np.isfinite(values)], values[np.isfinite(values)]
    if not is_increasing(steps) or not (values > 0).all():
        return
    for restart in curve.restarts:
        if restart.resumed_at is None:
            continue
        at = int(np.searchsorted(steps, restart.resumed_at))
        before, after = values[:at][-SETTLED:], values[at:][:SETTLED]
        if len(before) < SETTLED or len(after) < _FEWEST_AFTER_RESTART:
            continue
        was, now, begun = _median(before), after.min(), _median(values[:3])
        if now >= max(2 * was, before.max(), was + 0.5 * (begun - was)):
            yield (
                f"loss jumps from {was:.4g} to {_median(after):.4g} after the restart at "
                f"{_name_point(steps, at)}: was the checkpoint loaded?"
            )


def _find_divergence(losses: Losses) -> str | None:
    """Report a loss that ends well above its minimum and is not decreasing again."""
    values, count = losses.values, len(losses.values)
    if count < FEWEST_AT_ALL or values.min() <= 0:
        return None
    number = max(4, min(40, count // 4))
    parts = _split_into_blocks(losses.places, number)
    if len(parts) < 4:  # most points are clustered on the axis
        parts = _split_into_blocks(np.arange(float(count)), number)
    levels = np.array([_median(values[part]) for part in parts])
    best = int(levels[:-1].argmin())
    at, low = parts[best].start, levels[best]
    begun = max(_median(values[:3]), levels[: max(1, len(levels) // 10)].max())
    end = max(levels[-1], _median(values[-3 if count < FEWEST else -5 :]))
    x = np.log(values)
    scatters = np.array([_fit_lines(x[part])[2] for part in parts])
    noise = max(_median(scatters), _estimate_sigma(np.diff(x)) / ROOT_2)
    # Correlated noise is estimated from second differences of the levels, which are small if a loss
    # changes steadily.
    drift = _estimate_sigma(np.diff(np.log(levels), 2), 0.0) / ROOT_2
    rise, factor, gained = end - low, np.log(end) - np.log(low), begun - low
    # The loss has lost half of its improvement by a large factor, or all of an improvement that
    # clearly exceeded the noise.
    is_far = (end >= 1.5 * low and rise >= 0.5 * gained and begun >= 1.2 * low) or (
        end >= 1.2 * low
        and rise >= gained
        and factor >= 6 * noise
        and np.log(begun) - np.log(low) >= max(0.1, 4 * noise)
    )
    if count < FEWEST:
        is_far = end >= 2 * max(begun, values[0])
    diverged = (
        is_far
        and factor >= max(4 * noise, 8 * drift)
        and rise >= 0.8 * (max(levels[best:-1].max(), end) - low)  # not decreasing again
        and at >= max(4, count // 20)
        and not losses.lr[-1] > 1.2 * losses.lr[at]  # a rising learning rate explains it
    )
    where = _name_point(losses.steps, count - 1), _name_point(losses.steps, at)
    sentence = f"loss diverges: {end:.4g} at the end ({where[0]}), after a best of {low:.4g} "
    return f"{sentence}around {where[1]}" if diverged else None


def _find_plateau(losses: Losses) -> str | None:
    """Report a loss that has been constant since the first steps, or that is frozen.

    A loss that is constant only at the end belongs to a converged, healthy run.
    """
    since = _find_freeze(losses.values)
    level = _find_constant_level(losses) if since is None else losses.values[-1]
    if level is None:
        return None
    begin, end = (_name_point(losses.steps, index) for index in (since or 0, len(losses.steps) - 1))
    return f"loss stays at {level:.4g} from {begin} to the end ({end})"


def _find_constant_level(losses: Losses) -> float | None:
    """Return the level at which a loss has stayed since the start; None if changed or unknown."""
    values, places, lr = losses.values, losses.places, losses.lr
    if len(values) < 40 or losses.begins.sum() > len(values) // 10:
        return None
    if places[0] > 10 * max(1, places[1] - places[0]):
        return None  # the log begins mid-run, where a constant loss is normal
    if lr[-1] > 2 * lr[0] and lr[-1] >= np.nanmax(lr):
        return None  # the learning rate is still warming up
    levels = np.array([_median(values[part]) for part in _split_into_blocks(places, 10)])
    level = _median(levels)
    # At the cross-entropy of uniform guessing, more noise is tolerated.
    guesses = np.log([2, 10, 100, 1000])
    is_a_guess = (abs(level - guesses) <= 0.003 * level).any()
    still = (0.01 if is_a_guess else 0.001) * level
    if len(levels) < 10 or level <= 0 or np.ptp(levels) > still:
        return None
    # Coarsely printed numbers (bf16, two digits) give constant medians even while the loss changes,
    # so all points must then be close to the level.
    is_fine = _printed_precision(values) <= still or np.ptp(values) <= 2 * still
    return float(level) if is_fine else None


def _find_freeze(values: Floats) -> int | None:
    """Return the index since which a loss is frozen, or None.

    A frozen loss is constant and far from zero, or dropped to exactly zero without a descent, which
    happens if gradients were lost. A constant value must have at least four significant digits,
    since a value rounded to three may repeat in a healthy run.
    """
    first, last, begun = _find_trailing_start(values == values[-1]), values[-1], _median(values[:3])
    if len(values) - first < max(20, len(values) // 2):
        return None
    if last:
        is_frozen = float(f"{last:.3g}") != last and abs(last) > 0.1 * abs(begun)
    else:
        is_frozen = first > 0 and _median(values[max(0, first - 5) : first]) > 0.2 * begun
    return first if is_frozen else None


# --- spikes: a loss is compared with its own scatter, on a logarithmic scale if it is positive,
# because batches differ by factors. Long-tailed noise produces high points of many heights, whereas
# a spike exceeds all of them.


def _find_spike(losses: Losses) -> str | None:
    """Report the highest spike: a loss far above the preceding level that decreases again."""
    values = losses.values
    spikes = _find_spikes_of_few(values) if len(values) < FEWEST else _find_spikes(losses)
    if not spikes:
        return None
    at, level = spikes[0]
    others = f" ({len(spikes)} spikes in all)" if len(spikes) > 1 else ""
    what = f"loss spikes to {values[at]:.4g} at {_name_point(losses.steps, at)}"
    return f"{what}, from about {level:.4g} before it{others}"


def _find_spikes_of_few(values: Floats) -> list[tuple[int, float]]:
    """Find a spike in a short curve: a point at least five times as high as all others."""
    at, count = int(values.argmax()), len(values)
    is_judged = count >= FEWEST_AT_ALL and values.min() > 0 and 3 <= at < count - 1
    is_spike = is_judged and values[at] >= 5 * np.delete(values, at).max()
    return [(at, _median(values[:at]))] if is_spike else []


def _find_spikes(losses: Losses) -> list[tuple[int, float]]:
    """Return the index of each spike and the level before it, highest first."""
    values, lr, count = losses.values, losses.lr, len(losses.values)
    is_positive = values.min() >= 0 < values.max()
    x = np.log(np.maximum(values, values[values > 0].min())) if is_positive else values
    size = _median(np.abs(values)) or 1.0
    peaks, depth = _find_peaks(
        x, max(0.01 * size, _printed_precision(values)) / (size if is_positive else 1.0)
    )
    # The scatter of few points is uncertain, and deep minima indicate long-tailed noise. Both raise
    # the threshold.
    least = max(10 * (1 + 30 / count), 2 * depth)
    number = _count_outliers([height for height, *_ in peaks], least, max(2, count // 100), 2.5)
    found = []
    for _, at, before in peaks[:number]:
        level = math.exp(before) if is_positive else before
        lift, gained = values[at] - level, _median(values[:SETTLED]) - level
        if is_positive:
            is_plain = lift >= 0.3 * level and lift >= 0.1 * gained
        else:  # no ratio exists: require half of a clear descent
            is_plain = (
                gained >= 10 * _estimate_sigma(np.diff(values)) / ROOT_2 and lift >= 0.5 * gained
            )
        after = x[at + 1 : at + 1 + max(3, count // 50)]
        comes_down = after.min(initial=np.inf) <= (before + x[at]) / 2
        # An attempt or epoch begins there, or the learning rate has just risen by half.
        begins = losses.begins[max(0, at + 1 - max(SETTLED, count // 30)) : at + 1].any()
        is_by_design = begins or lr[at] > 1.5 * lr[max(0, at - max(16, count // 50))]
        if is_plain and comes_down and not is_by_design:
            found.append((at, level))
    return found


def _find_peaks(x: Floats, least_sigma: float) -> tuple[list[tuple[float, int, float]], float]:
    """Find the peaks above 4 sigma and the deepest minimum.

    Each block of points is compared with the one or two blocks before it: with their median, or
    with a line through them if it rises. The scatter around that line is at least the typical
    scatter of the curve. Adjacent high points form one peak.

    Returns:
        The peaks as (height in sigma, index, level before the peak), highest first; and the depth
        of the deepest minimum in sigma.
    """
    size = min(32, max(8, len(x) // 8))
    rows = np.pad(x, (0, -len(x) % size), constant_values=np.nan).reshape(-1, size)
    before = rows[:1], np.hstack([rows[:-2], rows[1:-1]])
    fits = [(*_fit_lines(each), _median(each), _median(each[:, -8:])) for each in before]
    end, slope, around, level, last = map(np.concatenate, zip(*fits, strict=True))
    around = np.maximum(around, max(least_sigma, _median(_fit_lines(rows[: len(x) // size])[2])))
    expected = np.maximum(level[:, None], end[:, None] + slope[:, None] * np.arange(size))
    heights = ((rows[1:] - expected) / around[:, None]).ravel()
    depths = (np.minimum(level, end) - np.fmin.reduce(rows[1:], axis=1)) / around
    high = np.flatnonzero(heights >= 4)
    groups = np.split(high, np.flatnonzero(np.diff(high) > 3) + 1) if high.size else []
    tops = [int(group[heights[group].argmax()]) for group in groups]
    peaks = sorted([(heights[top], top + size, last[top // size]) for top in tops], reverse=True)
    return peaks, depths[len(x) // 5 // size :].max(initial=0.0)  # skip the steep start


# --- pace: evaluations, checkpoints, ends of epochs and first steps (compilation) are not stalls.
# Such pauses recur regularly or occur at round steps.


def _find_stall(curve: Curve) -> str | None:
    """Report the longest stall, based on step durations or on the timestamps of the log."""
    steps, seconds, _ = curve.arrays(STEP_SECONDS)
    usual = np.full(len(seconds), quantile(seconds, 0.5) or 0.0)
    timed = (name for name, series in curve.metrics.items() if series.times)
    stamped = curve.arrays(LOSS if LOSS in curve.metrics else next(timed, LOSS))
    clocks = (
        (steps, seconds, usual, "{at} took {time}, where a step usually takes {usual}"),
        (
            *_measure_gaps(*stamped),
            "no progress for {time} after {before}, where {usual} are usual",
        ),
    )
    for steps, seconds, usual, sentence in clocks:
        if np.count_nonzero(~np.isnan(usual)) < FEWEST:
            continue
        excess = np.where(np.isfinite(seconds), seconds - usual, np.nan)
        excess[: SETTLED + 1] = np.nan
        excess[_is_resumed(curve, steps)] = np.nan
        longest = np.argsort(np.nan_to_num(excess, nan=-np.inf), kind="stable")[:-4:-1]
        number = _count_outliers(excess[longest], np.maximum(60.0, 9 * usual[longest]), 2, 5)
        stalls = [
            index
            for index in longest[:number].tolist()
            if seconds[index] > max(10 * usual[index], _longest_normal_pause(curve, steps, index))
        ]
        if stalls:
            found = sentence.format(
                at=_name_point(steps, stalls[0]),
                before=_name_point(steps, stalls[0] - 1),
                time=_format_seconds(seconds[stalls[0]]),
                usual=_format_seconds(usual[stalls[0]]),
            )
            return found + (f" ({len(stalls)} stalls in all)" if len(stalls) > 1 else "")
    return None


def _measure_gaps(steps: Floats, _: Floats, times: Floats) -> tuple[Floats, Floats, Floats]:
    """Return steps, the time since the previous point, and its expected value; nan if unknown."""
    if not times.size:
        return steps, times, times
    gaps, runs = np.diff(times, prepend=np.nan), np.diff(steps, prepend=np.nan)
    runs[np.isnan(runs)] = 1
    rates = (gaps / runs)[(runs > 0) & (gaps >= 0)]
    rate = _median(rates) if rates.size else 0.0
    # The expected time is at least a tenth of the clock's resolution (one minute or one second).
    least = 6.0 if (times % 60 == 0).all() else 0.1
    usual = np.where(runs > 0, np.maximum(rate * runs, least), np.nan)
    usual[0] = np.nan
    return steps, gaps, usual


def _longest_normal_pause(curve: Curve, steps: Floats, index: int) -> float:
    """Return the longest pause, in seconds, that the run may cause by design at a point."""
    of_a_checkpoint, of_an_epoch = 600.0, 3600.0
    before, after = steps[index - 1 : index + 1]
    if np.isnan(after - before):
        return of_an_epoch
    if after <= before:
        return math.inf
    # Metrics logged at most a third as often as others indicate evaluations.
    most = max(len(series.steps) for series in curve.metrics.values())
    for name, series in curve.metrics.items():
        if len(series.steps) <= most / 3 or name.startswith("eval_"):
            known = curve.arrays(name)[0]
            known = known[~np.isnan(known)]
            if is_increasing(known) and ((before - 1 <= known) & (known <= after + 1)).any():
                return math.inf
    epochs = np.floor(_align_metric(curve, EPOCH, steps))
    if epochs[index] > epochs[index - 1]:
        return of_an_epoch
    every = max(50, 10 * (after - before))
    is_round = any(step % every in (0, every - 1) for step in (before, after))
    return of_a_checkpoint if is_round else 0.0


def _format_seconds(seconds: float) -> str:
    """Format a duration with a suitable unit.

    >>> _format_seconds(0.25), _format_seconds(90), _format_seconds(5400), _format_seconds(200000)
    ('0.25 s', '90 s', '90 min', '55.6 h')
    """
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


# Metrics that indicate the amount of work per step.
_WORK = re.compile(r"seq|length|batch|img.?size|resolution|num_tokens", re.IGNORECASE)


def _find_throughput_drop(curve: Curve) -> str | None:
    """Report a permanent drop of throughput, unless the work per step changes at the same point.

    For at least the last fifth of the run, 90% of the points must be below 90% of the earlier ones.
    """
    names = (name for name in (TOKENS_PER_SECOND, SAMPLES_PER_SECOND) if name in curve.metrics)
    name = next(names, "")
    steps, values, _ = curve.arrays(name)
    count, drops = len(values), []
    if count < 40 or not np.isfinite(values).all():
        return None
    for cut in (count * part // 20 for part in range(5, 17)):
        before, after = np.sort(values[max(SETTLED, count // 20) : cut]), np.sort(values[cut:])
        was, now = before[len(before) // 2], after[len(after) // 2]
        slow, fast = before[len(before) // 10], after[len(after) * 9 // 10]
        if now < 0.7 * was and fast < slow:
            drops.append((now / was, cut, was, now))
    if not drops:
        return None
    _, index, was, now = min(drops)
    while index > 1 and values[index - 1] < (was + now) / 2:
        index -= 1
    while index < count - 1 and values[index] >= (was + now) / 2:
        index += 1
    for work in filter(_WORK.search, curve.metrics):
        sizes = _align_metric(curve, work, steps)
        size, then = (quantile(part, 0.5) for part in (sizes[:index], sizes[index:]))
        if size is not None and then is not None and abs(then - size) > 0.1 * abs(size):
            return None
    where = _name_point(steps, index)
    return f"{name} drops to {now:.4g} at {where}, from {was:.4g} before it, and stays there"


# --- functions shared by the rules


def _name_point(steps: Floats, index: int) -> str:
    return f"point {index + 1}" if np.isnan(steps[index]) else f"step {steps[index]:.0f}"


def _find_trailing_start(is_such: Mask) -> int:
    """Return the index since which the mask is true for all points."""
    return int(np.flatnonzero(~is_such).max(initial=-1)) + 1


def _is_resumed(curve: Curve, steps: Floats) -> Mask:
    resumed = [each.resumed_at for each in curve.restarts if each.resumed_at is not None]
    return np.isin(steps, resumed)


def _align_metric(curve: Curve, name: str, steps: Floats) -> Floats:
    """Return the latest value of another metric at each step; nan if there is none yet."""
    known, values, _ = curve.arrays(name)
    if np.array_equal(known, steps, equal_nan=True):
        return values
    if not is_increasing(known):
        return np.full(len(steps), np.nan)
    places = np.where(np.isnan(steps), 0, np.searchsorted(known, steps, side="right"))
    return np.append(np.nan, values)[places]


def _split_into_blocks(places: Floats, count: int) -> list[slice]:
    """Divide increasing positions into ``count`` blocks of equal width, omitting empty blocks.

    >>> _split_into_blocks(np.array([0, 1, 2, 90, 100]), 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    edges = places[0] + (places[-1] - places[0]) * np.arange(count) / count
    cuts = [*np.searchsorted(places, edges).tolist(), len(places)]
    return [slice(a, b) for a, b in pairwise(cuts) if b > a]


def _fit_lines(windows: Floats) -> tuple[Any, Any, Any]:
    """Fit a line through the medians of the two halves of each window.

    Returns:
        The value of the line just after the window, its slope, and the scatter around it.

    >>> [float(each) for each in _fit_lines(np.array([1.0, 2.0, 3.0, 4.0]))]
    [5.0, 1.0, 0.0]
    """
    count = windows.shape[-1]
    half = max(1, count // 2)
    begun = _median(windows[..., :half])
    ended = _median(windows[..., -half:])
    slope = (ended - begun) / max(1, count - half)
    end = ended + slope * (half + 1) / 2
    return (
        end,
        slope,
        _estimate_sigma(windows - end[..., None] - slope[..., None] * np.arange(-count, 0)),
    )


def _estimate_sigma(values: Floats, center: float | None = None) -> Any:
    """Estimate the standard deviation around ``center``, by default around the median.

    Scales the median absolute deviation by 1.4826, which is exact for a normal distribution
    (Rousseeuw and Croux, Journal of the American Statistical Association 88, 1993).
    """
    middle = _median(values)[..., None] if center is None else center
    return 1.4826 * _median(np.abs(values - middle))


def _median(values: Floats) -> Any:
    """Return the median of each window, several times faster than np.median for short windows."""
    ordered, half = np.sort(values), values.shape[-1] // 2
    return (ordered[..., half] + ordered[..., -half - 1]) / 2


def _printed_precision(values: Floats) -> float:
    """Return the smallest difference between two values, an estimate of the printed precision."""
    steps = np.diff(np.sort(values))  # np.unique would import numpy.ma, which is slow
    return float(steps.min(initial=np.inf, where=steps > 0))


def _count_outliers(sizes: Sequence[float] | Floats, least: Any, most: int, gap: float) -> int:
    """Return how many of the sizes, sorted in descending order, are outliers.

    Outliers exceed ``least``, and the smallest of them is at least ``gap`` times the next size. If
    more than ``most`` sizes are comparably large, none of them is an outlier.

    >>> _count_outliers([9, 8, 2], 5, 2, 3.0), _count_outliers([9, 8, 7], 5, 2, 3.0)
    (2, 0)
    """
    below = np.append(sizes[1:], 0.0)
    stands = np.greater(sizes, least) & (sizes >= gap * below[: len(sizes)])
    return int(np.flatnonzero(stands[:most]).max(initial=-1)) + 1
