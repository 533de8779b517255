"""Compare curves over a common window, and estimate whether they differ by more than their noise.

docs/compare.md describes the method. The confidence interval of the mean difference between blocks
follows from Student's t distribution, and is widened if consecutive blocks are correlated (Law,
Simulation Modeling and Analysis, chapter 9, batch means). A trend that the curves have in common
cancels out of the differences.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from decimal import ROUND_CEILING, Context
from itertools import pairwise

import numpy as np
from msgspec import Struct

from hpcrun.curves.curve import Series, is_increasing

FEWEST = 5
_SHARE = 0.1
_MOST_SHARE = 0.5
_MOST_BLOCKS = 10
_LARGEST = 1e100  # its square is finite
# Two-sided 95% quantiles of Student's t by degrees of freedom. Fewer than four blocks give no error
# estimate.
_T = {3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


class Track(Struct, frozen=True):
    """A curve of at least one point: non-decreasing ``x``, finite ``y``."""

    x: Sequence[float]
    y: Sequence[float]


class Window(Struct, frozen=True):
    """A closed interval of an axis, divided into ``blocks`` parts of equal width."""

    begin: float
    end: float
    blocks: int


class Difference(Struct, frozen=True):
    """The mean difference between two curves.

    Attributes:
        value: How much higher the first curve is.
        error: Half width of the 95% confidence interval; None if there are too few points.
    """

    value: float
    error: float | None

    @property
    def is_clear(self) -> bool:
        return self.error is not None and abs(self.value) > self.error


def build_track(x: Sequence[float], y: Sequence[float]) -> Track | None:
    """Build a track without non-finite values and values beyond 1e100; None if no point is left."""
    points = np.array([x, y], dtype=float)
    points = points[:, (np.abs(points) < _LARGEST).all(axis=0)]
    return Track(*points.tolist()) if points.size else None


def even_points(series: Series) -> tuple[list[float], list[float]] | None:
    """Return fractional indices into a series, and the values at these positions.

    For a thinned series the points are evenly spaced samples, because the extremes that thinning
    keeps would bias every mean towards the longer tail of the noise.

    Returns:
        Indices and values, or None for a thinned series whose steps are not increasing.

    >>> from hpcrun.curves.curve import build_series
    >>> even_points(build_series([1, 2], [3.0, 2.5]))
    ([0.0, 1.0], [3.0, 2.5])
    """
    indices = [float(index) for index in range(len(series.values))]
    if not series.thinned:
        return indices, series.values
    at = np.array(series.sample_steps, dtype=float)
    if not series.sample or np.isnan(at).any() or not is_increasing(series.steps):
        return None
    places = np.interp(at, np.array(series.steps), indices).tolist()
    return [*places, indices[-1]], [*series.sample, series.values[-1]]


def read_at(values: Sequence[float], index: float) -> float:
    """Interpolate values at a fractional index."""
    return float(np.interp(index, range(len(values)), values))


def common_window(tracks: Sequence[Track]) -> Window | None:
    """Choose a window that ends with the shortest curve; None if the curves do not overlap."""
    first = max(track.x[0] for track in tracks)
    end = min(track.x[-1] for track in tracks)
    if end <= first:
        return None
    common = [track.x[: bisect_right(track.x, end)] for track in tracks]
    begin = min(end - _SHARE * (end - first), *(x[-FEWEST:][0] for x in common))
    begin = max(begin, end - _MOST_SHARE * (end - first))
    fewest = min(len(x) - bisect_left(x, begin) for x in common)
    return Window(float(begin), float(end), max(1, min(_MOST_BLOCKS, fewest)))


def block_means(track: Track, window: Window) -> list[float]:
    """Return the mean of the points in each block; an empty block is interpolated linearly."""
    x, y = np.array([track.x, track.y])
    extent = (window.end - window.begin) / window.blocks
    is_inside = (window.begin <= x) & (x <= window.end)
    block = np.minimum((x[is_inside] - window.begin) / extent, window.blocks - 1).astype(int)
    points, sums = (np.bincount(block, each, window.blocks) for each in (None, y[is_inside]))
    between = np.interp(window.begin + (np.arange(window.blocks) + 0.5) * extent, x, y)
    return [*np.where(points > 0, sums / np.maximum(points, 1), between).tolist()]


def compare_blocks(blocks: Sequence[float], other: Sequence[float]) -> Difference:
    """Estimate how much higher the first curve is than the other, from their block means."""
    gaps = np.subtract(blocks, other)
    count, mean = gaps.size, float(gaps.mean())
    if count - 1 not in _T:
        return Difference(mean, None)
    variance = gaps.var(ddof=1)
    if variance > 0:
        lagged = ((gaps[1:] - mean) * (gaps[:-1] - mean)).sum()
        # The autocorrelation of a short series is underestimated by about 1/count (Marriott and
        # Pope, Biometrika 41, 1954).
        likeness = min(0.9, max(0.0, lagged / (count - 1) / variance + 1 / count))
        variance *= (1 + likeness) / (1 - likeness)
    return Difference(mean, _T[count - 1] * math.sqrt(variance / count))


def lowest_level(y: Sequence[float]) -> float:
    """Return the lowest level of a noisy curve: the minimum over the means of its twentieths."""
    parts = min(20, len(y))
    cuts = [round(part * len(y) / parts) for part in range(parts + 1)]
    return min(sum(y[a:b]) / (b - a) for a, b in pairwise(cuts))


def first_at(y: Sequence[float], level: float) -> float | None:
    """Return the fractional index at which a curve first falls to a level, or None."""
    index = next((index for index, value in enumerate(y) if value <= level), None)
    if not index:
        return index if index is None else 0.0
    return index - (level - y[index]) / (y[index - 1] - y[index])


def round_up(value: float) -> float:
    """Round a positive or negative number up to three significant digits.

    >>> round_up(2.3401), round_up(-0.98765), round_up(-99.983), round_up(0.0)
    (2.35, -0.987, -99.9, 0.0)
    """
    rounding = Context(prec=3, rounding=ROUND_CEILING)
    return float(rounding.create_decimal(repr(value)))
