"""Smoothing: what lies behind a noisy curve, and where it is heading.

A smoothed value is that of the straight line fitted by least squares to the points around it
(Savitzky and Golay, Analytical Chemistry 36, 1964; order 1): unlike a moving average it does not
lag behind a curve that falls, nor at its end. Training falls fastest at its start, so the window
grows with the distance from there: half of it, up to a twentieth of the points, 1,000 at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from hpcrun.views.numbers import LARGEST

FEWEST = 20
SMALLEST_WINDOW = 3
_LARGEST_WINDOW = 1000
# Of the height of a drawing: below this scatter a curve is as good as its smoothed one.
NOISE = 0.015
_FEWEST_OF_TREND = 30


def smooth(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """Smooth a curve over its growing ``x``; values that are not finite stay as they are.

    >>> smooth([0.0, 1.0, 2.0, 3.0], [3.0, 3.0, 6.0, 3.0])
    [3.0, 4.0, 4.0, 4.0]
    """
    smoothed = np.array(y, float)
    known = np.flatnonzero(np.isfinite(smoothed))
    count = len(known)
    if count < SMALLEST_WINDOW:
        return list(y)
    xs, ys = np.array(x, float)[known] - x[known[0]], smoothed[known]
    place = np.arange(count)
    half = np.clip(place // 2, SMALLEST_WINDOW, min(max(5, count // 20), _LARGEST_WINDOW)) // 2
    size = 2 * half + 1
    begin = np.clip(place - half, 0, count - size)
    borders = np.column_stack([begin, begin + size]).ravel()

    def each_window(function: np.ufunc, values: Any) -> Any:
        # Each is summed on its own: a wild value leaves no trace in windows without it.
        return function.reduceat(np.append(values, 0.0), borders)[::2]

    with np.errstate(all="ignore"):  # products of the largest values are no numbers
        mean_x, mean_y, mean_xx, mean_xy = (
            each_window(np.add, values) / size for values in (xs, ys, xs * xs, xs * ys)
        )
        spread = mean_xx - mean_x * mean_x
        slope = (mean_xy - mean_x * mean_y) / spread
        slope[spread <= 1e-12 * mean_xx] = 0.0  # the points stand at one place: their mean
        line = mean_y + slope * (xs - mean_x)
    low, high = each_window(np.minimum, ys), each_window(np.maximum, ys)
    smoothed[known] = np.fmin(high, np.fmax(low, line))
    return list(smoothed.tolist())


def is_noisy(
    y: Sequence[float],
    smoothed: Sequence[float],
    *,
    fewest: int = FEWEST,
    noise: float = NOISE,
) -> bool:
    """Return whether values between 0 and 1 (of a drawing's height) scatter visibly.

    That is the root mean square, of at least ``fewest`` values; what is not finite is passed over.

    >>> is_noisy([0.4, 0.6] * 20, [0.5] * 40), is_noisy([0.5, 0.501] * 20, [0.5] * 40)
    (True, False)
    """
    squares = [(a - b) ** 2 for a, b in zip(y, smoothed, strict=True) if math.isfinite(a)]
    return len(squares) >= fewest and math.sqrt(sum(squares) / len(squares)) > noise


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
    last, x = np.array(finite[-size:]), np.arange(size) - (size - 1) / 2
    mean, spread = last.mean(), x @ x
    slope = x @ (last - mean) / spread
    rest = last - mean - slope * x
    error = math.sqrt(rest @ rest / (size - 2) / spread)
    begin, end = np.clip(mean + slope * x[[0, -1]], last.min(), last.max()).tolist()
    return Trend(size, begin, end, is_level=bool(abs(slope) <= 2 * error))
