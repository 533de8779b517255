"""Smoothing: what lies behind a noisy curve, and where it is heading.

A smoothed value is that of the straight line fitted by least squares to the points around it
(Savitzky and Golay, Analytical Chemistry 36, 1964; order 1): unlike a moving average it does not
lag behind a curve that falls, nor at its end. Training falls fastest at its start, so the window
grows with the distance from there: half of it, up to a twentieth of the points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from msgspec import Struct

from hpcrun.views.numbers import LARGEST

FEWEST = 20
SMALLEST_WINDOW = 3
# Of the height of a drawing: below this scatter a curve is as good as its smoothed one.
NOISE = 0.015
_FEWEST_OF_TREND = 30


def smooth(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """Smooth a curve over its growing ``x``; values that are not finite stay as they are.

    >>> smooth([0.0, 1.0, 2.0, 3.0], [1.0, 3.0, 5.0, 7.0])
    [1.0, 3.0, 5.0, 7.0]
    """
    known = [index for index, value in enumerate(y) if math.isfinite(value)]
    if len(known) < SMALLEST_WINDOW:
        return list(y)
    xs, ys = [x[index] for index in known], [y[index] for index in known]
    smoothed = list(y)
    for place, (index, sums) in enumerate(zip(known, _window_sums(xs, ys), strict=True)):
        value = sums.line_at(xs[place])
        smoothed[index] = min(sums.high, max(sums.low, value))
    return smoothed


class _Sums(NamedTuple):
    """What a straight line through some points is made of; ``x`` is counted from ``origin``."""

    origin: float
    size: int
    x: float
    y: float
    xx: float
    xy: float
    low: float
    high: float

    def line_at(self, place: float) -> float:
        """Return the line's value; the mean where the points stand at one place."""
        spread = self.xx - self.x * self.x / self.size
        slope = (self.xy - self.x * self.y / self.size) / spread if spread > 1e-12 * self.xx else 0
        return self.y / self.size + slope * (place - self.origin - self.x / self.size)


def _joined(a: _Sums, b: _Sums) -> _Sums:
    """Return the sums over the points of both, which have one origin."""
    low, high = min(a.low, b.low), max(a.high, b.high)
    return _Sums(
        a.origin, a.size + b.size, a.x + b.x, a.y + b.y, a.xx + b.xx, a.xy + b.xy, low, high
    )


def _window_sums(xs: Sequence[float], ys: Sequence[float]) -> Iterator[_Sums]:
    """Yield the sums over the window of each point, in time that grows with the points alone.

    A window is the end of one stretch of points and the beginning of the next: the sums from each
    point to its stretch's end are made once, those from there on grow. Nothing is subtracted, so
    that a wild value leaves no trace once the window has passed it.
    """
    end = border = 0
    to_border: list[_Sums] = []  # of the points before the border, the last first
    beyond: _Sums | None = None

    def one(place: int, origin: float) -> _Sums:
        dx, y = xs[place] - origin, ys[place]
        return _Sums(origin, 1, dx, y, dx * dx, dx * y, y, y)

    for place in range(len(xs)):
        before, (begin, end) = end, _window(place, len(xs))
        if not border - len(to_border) <= begin < border:
            border, beyond = end, None
            points = (one(each, xs[end - 1]) for each in range(end - 1, begin - 1, -1))
            to_border = list(accumulate(points, _joined))
        else:
            for each in range(before, end):
                new = one(each, xs[border - 1])
                beyond = new if beyond is None else _joined(beyond, new)
        inside = to_border[border - begin - 1]
        yield inside if beyond is None else _joined(inside, beyond)


def _window(place: int, count: int) -> tuple[int, int]:
    """Return the first point around one of ``count`` that counts for its line, and the end."""
    half = max(SMALLEST_WINDOW, min(max(5, count // 20), place // 2)) // 2
    begin = min(max(0, place - half), count - 2 * half - 1)
    return begin, begin + 2 * half + 1


def is_noisy(y: Sequence[float], smoothed: Sequence[float]) -> bool:
    """Return whether values between 0 and 1 (of a drawing's height) scatter visibly.

    >>> is_noisy([0.4, 0.6] * 20, [0.5] * 40), is_noisy([0.5, 0.501] * 20, [0.5] * 40)
    (True, False)
    """
    squares = [(a - b) ** 2 for a, b in zip(y, smoothed, strict=True) if math.isfinite(a)]
    return len(squares) >= FEWEST and math.sqrt(sum(squares) / len(squares)) > NOISE


class Trend(Struct, frozen=True):
    """The straight line through the end of a curve.

    ``points``: how many it is fitted to; ``begin`` and ``end``: its value at the first and the last
    of them; ``is_level``: the difference is within the scatter (two standard errors).
    """

    points: int
    begin: float
    end: float
    is_level: bool

    @property
    def now(self) -> float:
        """Return where the curve stands at its end."""
        return (self.begin + self.end) / 2 if self.is_level else self.end


def fit_trend(y: Sequence[float]) -> Trend | None:
    """Fit a line to the last fifth of the points, at least 10; None of fewer than 30 points.

    A line through more than a third of a curve that falls steeply would end far below it. As in
    ``smooth``, no end lies beyond the points.

    >>> fit_trend([float(100 - i) for i in range(100)])
    Trend(points=20, begin=20.0, end=1.0, is_level=False)
    >>> fit_trend([1.0, 2.0, 1.0, 2.0] * 10).is_level
    True
    """
    finite = [value for value in y if abs(value) < LARGEST]
    size = max(10, len(finite) // 5)
    if len(finite) < _FEWEST_OF_TREND:
        return None
    last = finite[-size:]
    mean_x, mean_y = (size - 1) / 2, sum(last) / size
    spread = sum((x - mean_x) ** 2 for x in range(size))
    slope = sum((x - mean_x) * (value - mean_y) for x, value in enumerate(last)) / spread
    rest = sum((value - mean_y - slope * (x - mean_x)) ** 2 for x, value in enumerate(last))
    error = math.sqrt(rest / (size - 2) / spread)
    low, high = min(last), max(last)
    begin, end = (min(high, max(low, mean_y + slope * x)) for x in (-mean_x, mean_x))
    return Trend(size, begin, end, is_level=abs(slope) <= 2 * error)
