"""Robust: medians, scatter and blocks, which a few wild values do not move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

# Of a normal distribution the median absolute deviation is 1/1.4826 of the standard deviation
# (Rousseeuw and Croux, Journal of the American Statistical Association 88, 1993).
SIGMA_OF_MAD = 1.4826


def median(values: Sequence[float]) -> float:
    """Return the middle of at least one value, none of them nan.

    >>> median([3.0, 1.0, 2.0]), median([1.0, 2.0])
    (2.0, 1.5)
    """
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


def sigma(values: Sequence[float], center: float | None = None) -> float:
    """Estimate the standard deviation from the median absolute deviation around ``center``.

    >>> round(sigma([1.0, 2.0, 3.0, 4.0, 1e9]), 4)
    1.4826
    """
    around = median(values) if center is None else center
    return SIGMA_OF_MAD * median([abs(value - around) for value in values])


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


def scatter(values: Sequence[float]) -> float:
    """Estimate the standard deviation around that line.

    >>> scatter([1.0, 2.0, 3.0, 4.0])
    0.0
    """
    end, slope = line(values)
    count = len(values)
    return sigma([value - end + slope * (count - i) for i, value in enumerate(values)])


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
    known = sorted(set(values))
    return min((b - a for a, b in pairwise(known)), default=0.0)


def blocks(places: Sequence[float], count: int) -> list[slice]:
    """Cut rising places into ``count`` blocks of equal extent and leave out the empty ones.

    Where places do not rise, the blocks have equally many points.

    >>> blocks([0, 1, 2, 90, 100], 2)
    [slice(0, 3, None), slice(3, 5, None)]
    >>> blocks([1, 2, 1, 2], 2)
    [slice(0, 2, None), slice(2, 4, None)]
    """
    size = len(places)
    if any(b <= a for a, b in pairwise(places)):
        cuts = [round(index * size / count) for index in range(count + 1)]
    else:
        extent = (places[-1] - places[0]) or 1.0
        cuts = [0]
        for index, place in enumerate(places):
            while len(cuts) < count and place >= places[0] + extent * len(cuts) / count:
                cuts.append(index)
        cuts += [size] * (count + 1 - len(cuts))
    return [slice(a, b) for a, b in pairwise(cuts) if b > a]
