"""Divergence and plateau: a loss that ends well above its best, and one that stands still.

What the thresholds were measured on is in docs/warnings.md.

Both look at the medians of parts of the run. A converged run is level at its end and healthy; so a
plateau is only a loss that never left where it began, or that does not change in a single digit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from hpcrun.metrics.health.losses import Losses
from hpcrun.metrics.health.robust import blocks, grain, logarithms, median, scatter, sigma

# Diverged: the end is so many times the best and has given back this share of what was gained.
LEAST_RATIO = 1.5
LEAST_SHARE = 0.5
# Or all that was gained is given back, and that was plain to see.
UNDONE_RATIO = 1.2
UNDONE_SIGMAS = 6.0
# In any case the rise is so many sigmas of the points, and so many usual steps from part to part.
LEAST_SIGMAS = 4.0
LEAST_DRIFTS = 8.0
# It is not coming down again: this share of the highest rise since the best is still there.
STILL_UP = 0.8
# A learning rate that has risen by this factor since the best explains a rise.
LR_RISE = 1.2
# Among fewer points than FEWEST, the end is so many times where the loss began.
FEWEST = 20
FEWEST_AT_ALL = 8
RATIO_OF_FEW = 2.0


class Divergence(Struct, frozen=True):
    """A loss that ends well above its best: the level and place of the best, the level now."""

    best_index: int
    best: float
    end: float


def find_divergence(losses: Losses) -> Divergence | None:
    """Find out whether the loss ends well above its best and is not coming down again."""
    values, count = losses.values, len(losses.values)
    if count < FEWEST_AT_ALL or min(values) <= 0:
        return None
    number = max(4, min(40, count // 4))
    parts = blocks(losses.places, number)
    if len(parts) < 4:  # most of the points stand together
        parts = blocks(range(count), number)
    levels = [median(values[part]) for part in parts]
    best = min(range(len(levels) - 1), key=levels.__getitem__)
    begun = max(median(values[:3]), *levels[: max(1, len(levels) // 10)])
    low, end = levels[best], max(levels[-1], median(values[-3 if count < FEWEST else -5 :]))
    noise = _noise(values, parts)
    if count < FEWEST:
        is_far = end >= RATIO_OF_FEW * max(begun, values[0])
    else:
        is_far = _is_far(begun, low, end, noise)
    least = max(LEAST_SIGMAS * noise, LEAST_DRIFTS * _drift(levels))
    diverged = (
        is_far
        and math.log(end) - math.log(low) >= least
        and end - low >= STILL_UP * (max([*levels[best:-1], end]) - low)
        and parts[best].start >= max(FEWEST_AT_ALL // 2, count // 20)
        and not losses.lr_rises(parts[best].start, count - 1, LR_RISE)
    )
    return Divergence(parts[best].start, low, end) if diverged else None


def _is_far(begun: float, low: float, end: float, noise: float) -> bool:
    rise, gained = end - low, begun - low
    if end >= LEAST_RATIO * low and rise >= LEAST_SHARE * gained and begun >= 1.2 * low:
        return True
    return (
        end >= UNDONE_RATIO * low
        and rise >= gained
        and math.log(end) - math.log(low) >= UNDONE_SIGMAS * noise
        and math.log(begun) - math.log(low) >= max(0.1, LEAST_SIGMAS * noise)
    )


def _noise(values: Sequence[float], parts: Sequence[slice]) -> float:
    """Estimate the sigma of a loss's logarithm: within the parts, and from point to point."""
    x = logarithms(values)
    jumps = [b - a for a, b in pairwise(x)]
    return max(median([scatter(x[part]) for part in parts]), sigma(jumps) / math.sqrt(2))


def _drift(levels: Sequence[float]) -> float:
    """Estimate the sigma of the steps from level to level: noise that hangs together.

    By the differences between steps, which are small where a loss falls or rises steadily.
    """
    steps = [math.log(b) - math.log(a) for a, b in pairwise(levels)]
    return sigma([b - a for a, b in pairwise(steps)], 0.0) / math.sqrt(2)


class Plateau(Struct, frozen=True):
    """A loss that stands still: since which point, and on what level."""

    index: int
    level: float


# Never left where it began: the medians of ten parts differ by no more than this share of them;
# by somewhat more at the cross-entropy of a uniform guess among so many classes, ln(classes).
STILL = 0.001
STILL_AT_A_GUESS = 0.01
CLASSES_GUESSED = (2, 10, 100, 1000)
AT_A_GUESS = 0.003
FEWEST_OF_A_PLATEAU = 40
_PARTS = 10
# Frozen: so many points at least, half of the run, are the same number to the last digit.
FEWEST_FROZEN = 20


def find_plateau(losses: Losses) -> Plateau | None:
    """Find out whether the loss has stood still since the first steps, or is frozen."""
    values, places = losses.values, losses.places
    if (since := _frozen_since(values)) is not None:
        return Plateau(since, values[-1])
    count = len(values)
    if count < FEWEST_OF_A_PLATEAU or _resumed(places) or len(losses.begins) > count // 10:
        return None
    if losses.lr[-1] > 2 * losses.lr[0] and losses.lr[-1] >= max(losses.lr):
        return None  # it still warms up
    parts = blocks(places, _PARTS)
    levels = [median(values[part]) for part in parts]
    level = median(levels)
    still = STILL * level
    if any(abs(level - math.log(classes)) <= AT_A_GUESS * level for classes in CLASSES_GUESSED):
        still = STILL_AT_A_GUESS * level
    if len(parts) < _PARTS or level <= 0 or max(levels) - min(levels) > still:
        return None
    # Coarse numbers (bf16, two digits) have the same median for long: then no point may be far off.
    plain = grain(values) <= still or max(values) - min(values) <= 2 * still
    return Plateau(0, level) if plain else None


def _resumed(places: Sequence[float]) -> bool:
    """Tell whether a log begins in the midst of a run, where a loss may be level."""
    return places[0] > 10 * max(1, places[1] - places[0])


def _frozen_since(values: Sequence[float]) -> int | None:
    """Return where a loss froze far from zero, or fell to exactly zero at once; None if it did not.

    A number of three digits may stand for long: it takes four. A zero is what is left of a loss
    whose gradients were lost, if there was no descent to it.
    """
    first = len(values)
    while first and values[first - 1] == values[-1]:
        first -= 1
    if len(values) - first < max(FEWEST_FROZEN, len(values) // 2):
        return None
    last, begun = values[-1], median(values[:3])
    if last == 0:
        return first if first and median(values[max(0, first - 5) : first]) > 0.2 * begun else None
    is_fine = float(f"{last:.3g}") != last
    return first if is_fine and abs(last) > 0.1 * abs(begun) else None
