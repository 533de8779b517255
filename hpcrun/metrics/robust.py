"""Robust: levels and scatter by medians, which a few wild values do not move."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

# Of a normal distribution the median absolute deviation is 1/1.4826 of the standard deviation
# (Rousseeuw and Croux, Journal of the American Statistical Association 88, 1993).
_SIGMA_OF_MAD = 1.4826


def line(values: Sequence[float]) -> tuple[float, float]:
    """Fit a line through the medians of the two halves: its value after the last one, its slope.

    >>> line([1.0, 2.0, 3.0, 4.0]), line([5.0])
    ((5.0, 1.0), (5.0, 0.0))
    """
    half = len(values) // 2
    if not half:
        return values[0], 0.0
    begun, ended = median(values[:half]), median(values[-half:])
    slope = (ended - begun) / (len(values) - half)
    return ended + slope * (half + 1) / 2, slope


def sigma(values: Sequence[float], center: float | None = None) -> float:
    """Estimate the standard deviation from the median absolute deviation around ``center``.

    >>> round(sigma([1.0, 2.0, 3.0, 4.0, 1e9]), 4)
    1.4826
    """
    center = median(values) if center is None else center
    return _SIGMA_OF_MAD * median([abs(value - center) for value in values])


def scatter(values: Sequence[float]) -> float:
    """Estimate the standard deviation around that line.

    >>> scatter([1.0, 2.0, 3.0, 4.0])
    0.0
    """
    end, slope = line(values)
    return sigma([value - end - slope * at for at, value in enumerate(values, -len(values))])


def jitter(values: Sequence[float], jump: float | None = None) -> float:
    """Estimate the standard deviation from point to point, beside a steady ``jump``.

    >>> jitter([1.0, 2.0, 3.0])
    0.0
    """
    return sigma([b - a for a, b in pairwise(values)], jump) / math.sqrt(2)


def logarithms(values: Sequence[float]) -> list[float]:
    """Return logarithms to e; what is not positive counts as the least positive value.

    >>> logarithms([1.0, 0.0, math.e])
    [0.0, 0.0, 1.0]
    """
    least = min((value for value in values if value > 0), default=1.0)
    return [math.log(max(value, least)) for value in values]


def grain(values: Sequence[float]) -> float:
    """Return the least difference of two values, 0 if there is none: how finely they are printed.

    >>> grain([0.5, 0.25, 1.0, 0.5]), grain([1.0])
    (0.25, 0.0)
    """
    return min((b - a for a, b in pairwise(sorted(set(values)))), default=0.0)


def outstanding(sizes: Sequence[float], least: Sequence[float], most: int, gap: float) -> int:
    """Return how many sizes, largest first, stand apart: ``gap`` times the next, above ``least``.

    No more than ``most``: where more are as large, none.

    >>> outstanding([9, 8, 2], [5, 5, 5], 2, 3.0), outstanding([9, 8, 7], [5, 5, 5], 2, 3.0)
    (2, 0)
    """
    ranks = zip(sizes[:most], [*sizes[1:], 0.0], least, strict=False)
    stand = [a > limit and a >= gap * below for a, below, limit in ranks]
    return max((rank for rank, stands in enumerate(stand, 1) if stands), default=0)


def blocks(places: Sequence[float], count: int) -> list[slice]:
    """Cut rising places into ``count`` blocks of equal extent and leave out the empty ones.

    >>> blocks([0, 1, 2, 90, 100], 2), blocks([7], 2)
    ([slice(0, 3, None), slice(3, 5, None)], [slice(0, 1, None)])
    """
    extent = places[-1] - places[0]
    edges = [places[0] + extent * index / count for index in range(count)]
    cuts = [*(bisect_left(places, edge) for edge in edges), len(places)]
    return [slice(a, b) for a, b in pairwise(cuts) if b > a]
