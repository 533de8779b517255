"""Compare: curves at equal places, whether they differ by more than their noise, who is sooner.

The value of a noisy curve at a place is the mean over the window that ends there: the last tenth of
what the curves have in common, or as much more as holds ``FEWEST`` points of each, up to half. To
tell a difference from noise the window is cut into up to ten blocks of equal extent, and each curve
gives the mean of its points in each block. The mean of the blocks' differences has the error that
Student's t gives, widened where a block is like the one before it (Law, Simulation Modeling and
Analysis, chapter 9, batch means). What the curves have in common, a trend or the same batches of
data in the same order, drops out of the differences.

This noise is that within a run. Another seed may change more, and one run of each cannot tell. A
loss that is logged as a running mean over more than the window wanders more slowly than this sees.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from decimal import ROUND_CEILING, Context
from itertools import pairwise

from msgspec import Struct

from hpcrun.metrics.curve import Series

FEWEST = 5
_SHARE = 0.1
_MOST_SHARE = 0.5
_MOST_BLOCKS = 10
_LARGEST = 1e100  # its square is finite
# Student's t by degrees of freedom, for 95% between -t and t; fewer blocks tell nothing.
_T = {3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


class Track(Struct, frozen=True):
    """A curve: places that never fall, and finite values at them; at least one."""

    x: Sequence[float]
    y: Sequence[float]


class Window(Struct, frozen=True):
    """A piece of an axis, both ends included, cut into ``blocks`` parts of equal extent."""

    begin: float
    end: float
    blocks: int


class Difference(Struct, frozen=True):
    """How much higher a curve is than another: the value lies within ± ``error`` by 95%.

    ``error`` is None where there are too few points to tell.
    """

    value: float
    error: float | None

    @property
    def is_clear(self) -> bool:
        """Whether it is more than noise."""
        return self.error is not None and abs(self.value) > self.error


def build_track(x: Sequence[float], y: Sequence[float]) -> Track | None:
    """Leave out what is not finite, or beyond 1e100 and as good as; None if nothing is left.

    >>> build_track([1.0, 2.0, 3.0], [5.0, float("nan"), 4.0])
    Track(x=[1.0, 3.0], y=[5.0, 4.0])
    """
    kept = [
        (a, b)
        for a, b in zip(x, y, strict=True)
        if -_LARGEST < a < _LARGEST and -_LARGEST < b < _LARGEST
    ]
    return Track([a for a, _ in kept], [b for _, b in kept]) if kept else None


def even_points(series: Series) -> tuple[list[float], list[float]] | None:
    """Return where points stand, as broken indices of a series' own, and their values.

    All of them; of a series that was thinned evenly spaced ones: lows and highs are kept on
    purpose, and would pull every mean towards the longer tail of the noise. None for a thinned
    series whose steps do not rise.

    >>> from hpcrun.metrics.curve import build_series
    >>> even_points(build_series([1, 2], [3.0, 2.5]))
    ([0.0, 1.0], [3.0, 2.5])
    """
    if not series.thinned:
        return [float(index) for index in range(len(series.values))], series.values
    steps = [float(step) for step in series.steps if step is not None]
    at = [float(step) for step in series.sample_steps or () if step is not None]
    if not series.sample or len(at) < len(series.sample) or any(b <= a for a, b in pairwise(steps)):
        return None
    indices = [float(index) for index in range(len(steps))]
    return (
        [*(interpolate(steps, indices, step) for step in at), indices[-1]],
        [*series.sample, series.values[-1]],
    )


def read_at(values: Sequence[float], index: float) -> float:
    """Read values at a broken index.

    >>> read_at([10.0, 20.0], 0.5), read_at([10.0, 20.0], 1.0)
    (15.0, 20.0)
    """
    below = min(int(index), len(values) - 1)
    above = min(below + 1, len(values) - 1)
    return values[below] + (index - below) * (values[above] - values[below])


def common_window(tracks: Sequence[Track]) -> Window | None:
    """Choose the window that ends where the first of the curves ends; None without overlap.

    >>> common_window([Track(range(0, 1001), range(1001)), Track(range(0, 501), range(501))])
    Window(begin=450.0, end=500.0, blocks=10)
    """
    first = max(track.x[0] for track in tracks)
    end = min(track.x[-1] for track in tracks)
    if end <= first:
        return None
    begin = end - _SHARE * (end - first)
    for track in tracks:
        last = bisect_right(track.x, end)
        begin = min(begin, track.x[max(0, last - FEWEST)])
    begin = max(begin, end - _MOST_SHARE * (end - first))
    fewest = min(bisect_right(track.x, end) - bisect_left(track.x, begin) for track in tracks)
    return Window(float(begin), float(end), max(1, min(_MOST_BLOCKS, fewest)))


def block_means(track: Track, window: Window) -> list[float]:
    """Return the mean of the points in each block; where there is none, the line between two.

    >>> block_means(Track([0.0, 1.0, 3.0, 4.0], [8.0, 6.0, 4.0, 2.0]), Window(0.0, 4.0, 2))
    [7.0, 3.0]
    """
    extent = (window.end - window.begin) / window.blocks
    found: list[list[float]] = [[] for _ in range(window.blocks)]
    for index in range(bisect_left(track.x, window.begin), bisect_right(track.x, window.end)):
        block = min(window.blocks - 1, int((track.x[index] - window.begin) / extent))
        found[block].append(track.y[index])
    return [
        sum(values) / len(values)
        if values
        else interpolate(track.x, track.y, window.begin + (block + 0.5) * extent)
        for block, values in enumerate(found)
    ]


def compare_blocks(blocks: Sequence[float], other: Sequence[float]) -> Difference:
    """Tell how much higher the first curve is.

    >>> compare_blocks([2.0, 2.2, 1.8, 2.0], [1.0, 1.2, 0.8, 1.0]).value
    1.0
    >>> compare_blocks([2.0, 1.0, 2.0, 1.0], [1.0, 2.0, 1.0, 2.1]).is_clear
    False
    """
    gaps = [a - b for a, b in zip(blocks, other, strict=True)]
    count = len(gaps)
    mean = math.fsum(gaps) / count
    variance = math.fsum((gap - mean) ** 2 for gap in gaps)
    if count - 1 not in _T:
        return Difference(mean, None)
    variance /= count - 1
    if variance > 0:
        lagged = math.fsum((a - mean) * (b - mean) for a, b in pairwise(gaps))
        # The bias of a short series' estimate is -1/count (Marriott and Pope, Biometrika 41, 1954).
        likeness = min(0.9, max(0.0, lagged / (count - 1) / variance + 1 / count))
        variance *= (1 + likeness) / (1 - likeness)
    return Difference(mean, _T[count - 1] * math.sqrt(variance / count))


def interpolate(x: Sequence[float], y: Sequence[float], place: float) -> float:
    """Read a curve between its points in a straight line; before and after, its end counts.

    >>> [interpolate([1.0, 3.0], [10.0, 20.0], place) for place in (0.0, 2.0, 9.0)]
    [10.0, 15.0, 20.0]
    """
    above = bisect_left(x, place)
    if above == 0:
        return y[0]
    if above == len(x):
        return y[-1]
    share = (place - x[above - 1]) / (x[above] - x[above - 1])
    return y[above - 1] + share * (y[above] - y[above - 1])


def lowest_level(y: Sequence[float]) -> float:
    """Return how low a noisy curve of finite values came: the least mean of a twentieth of it.

    >>> lowest_level([4.0, 3.0, 2.0]), lowest_level([5.0] * 20 + [1.0, 3.0] * 10)
    (2.0, 2.0)
    """
    parts = min(20, len(y))
    cuts = [round(part * len(y) / parts) for part in range(parts + 1)]
    return min(sum(y[a:b]) / (b - a) for a, b in pairwise(cuts))


def first_at(y: Sequence[float], level: float) -> float | None:
    """Tell where a curve first comes down to a level, as a broken index; None if it never does.

    >>> first_at([4.0, 3.0, 1.0], 2.0), first_at([1.0], 2.0), first_at([3.0, 2.5], 2.0)
    (1.5, 0.0, None)
    """
    for index, value in enumerate(y):
        if value <= level:
            before = y[index - 1] if index else value
            return index - (level - value) / (before - value) if before > level else float(index)
    return None


def round_up(value: float, digits: int = 3) -> float:
    """Round a positive or negative number up to a number of significant digits.

    >>> round_up(2.3401), round_up(-0.98765), round_up(-99.983), round_up(0.0)
    (2.35, -0.987, -99.9, 0.0)
    """
    rounding = Context(prec=digits, rounding=ROUND_CEILING)
    return float(rounding.create_decimal(repr(value)))
