"""Axes: which range is shown, on which scale, with which ticks.

The rule for a logarithmic axis: every value is positive, and the highest is at least ``DECADES``
times one that only a hundredth of the values are below. So a loss that falls from 11 to 2 is drawn
on a linear axis, and one that falls from 3 to 0.01, or jumps to 1000 once, on a logarithmic one.

A linear axis passes over outliers where they would leave the curve no room: if the whole range is
``CROWDED`` times that of the middle 96% of at least 50 values, the axis shows this middle with a
margin, and whoever draws says how many values lie beyond.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from hpcrun.views.numbers import format_value

DECADES = 100.0
CROWDED = 20.0
# The width of a larger range may be no number, nor the logarithm of a smaller value.
_LARGEST, _SMALLEST = 1e290, 1e-300


class Axis(Struct, frozen=True):
    """The range of an axis, ``low`` < ``high``; both positive where it is logarithmic."""

    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return where a value stands, from 0 to 1; nan if it is not finite.

        >>> Axis(2.0, 4.0).place(3.0), Axis(1.0, 100.0, True).place(10.0), Axis(0.0, 1.0).place(9.0)
        (0.5, 0.5, 1.0)
        """
        if not math.isfinite(value):
            return math.nan
        value = min(self.high, max(self.low, value))
        if self.is_log:
            low = math.log(self.low)
            return (math.log(value) - low) / (math.log(self.high) - low)
        return (value - self.low) / (self.high - self.low)

    def holds(self, value: float) -> bool:
        """Tell whether a value lies within."""
        return self.low <= value <= self.high

    def ticks(self, most: int, *, whole: bool = False) -> list[float]:
        """Return at most ``most`` round numbers within, evenly spread on this scale."""
        if self.is_log:
            return log_ticks(self.low, self.high, most)
        return ticks(self.low, self.high, most, whole=whole)


def value_axis(values: Sequence[float]) -> Axis:
    """Choose the axis for some values, of which at least one is finite.

    >>> value_axis([3.0, 0.3, 0.01]).is_log, value_axis([11.0, 2.0]).is_log
    (True, False)
    >>> value_axis([-1.0, 1.0] * 50 + [-1e6]).low > -3
    True
    """
    ordered = sorted(_capped(value) for value in values if math.isfinite(value))
    low, high = ordered[0], ordered[-1]
    if low > _SMALLEST and high >= DECADES * _at(ordered, 0.01):
        margin = math.exp(0.02 * (math.log(high) - math.log(low)))
        return Axis(low / margin, high * margin, is_log=True)
    if len(ordered) >= 50:
        inner_low, inner_high = _at(ordered, 0.02), _at(ordered, 0.98)
        inner = inner_high - inner_low
        if 0 < inner * CROWDED < high - low:
            low, high = max(low, inner_low - 0.1 * inner), min(high, inner_high + 0.1 * inner)
    return Axis(*_widen(low, high, 0.02))


def step_axis(steps: Sequence[float]) -> Axis:
    """Choose the axis for steps: all of them, without a margin.

    >>> step_axis([1.0, 200.0])
    Axis(low=1.0, high=200.0, is_log=False)
    """
    return Axis(*_widen(_capped(min(steps)), _capped(max(steps)), 0.0))


def _capped(value: float) -> float:
    return min(_LARGEST, max(-_LARGEST, value))


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[round(share * (len(ordered) - 1))]


def _widen(low: float, high: float, share: float) -> tuple[float, float]:
    """Return a range that is never empty, and narrow enough for its width to be a number."""
    margin = (high - low) * share
    if high - low <= max(1e-9 * max(abs(low), abs(high)), 1e-300):
        margin = abs(high) * 0.05 if abs(high) > 1e-290 else 1.0
    return low - margin, high + margin


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Return at most ``most`` round numbers, evenly spread, within ``low`` and ``high``.

    >>> ticks(0.93, 4.1, 5), ticks(1, 200, 4, whole=True), ticks(1, 3, 9, whole=True)
    ([1.0, 2.0, 3.0, 4.0], [50.0, 100.0, 150.0, 200.0], [1.0, 2.0, 3.0])
    """
    exponent = math.floor(math.log10((high - low) / max(1, most))) if high > low else 0
    for power in range(exponent, exponent + 3):
        for digit in (1.0, 2.0, 2.5, 5.0):
            step = digit * 10.0**power
            if whole and step != int(step):
                continue
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
            if last - first < most:
                return [number * step for number in range(first, last + 1)]
    return []


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most ``most`` ticks of a logarithmic axis: decades, or also parts of them.

    >>> log_ticks(0.5, 20, 9), log_ticks(0.5, 200, 3), log_ticks(1e-9, 1e9, 4)
    ([0.5, 1.0, 2.0, 5.0, 10.0, 20.0], [1.0, 10.0, 100.0], [1e-05, 1.0, 100000.0])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for digits in ((1, 2, 5), (1, 3), (1,)):
        found = [
            tick
            for power in range(first, last + 1)
            for digit in digits
            if low <= (tick := float(f"{digit}e{power}")) <= high
        ]
        if len(found) <= most:
            return found
    for stride in range(2, last - first + 2):
        powers = [power for power in range(first, last + 1) if power % stride == 0]
        found = [tick for power in powers if low <= (tick := float(f"1e{power}")) <= high]
        if len(found) <= most:
            return found
    return []


def tick_labels(at: Sequence[float], *, is_log: bool = False) -> list[str]:
    """Print ticks with as many decimals as tell one from the next.

    >>> tick_labels([0.0, 0.5, 1.0]), tick_labels([2e-05, 4e-05]), tick_labels([500.0, 10000.0])
    (['0.0', '0.5', '1.0'], ['2e-05', '4e-05'], ['500', '10000'])
    >>> tick_labels([0.01, 0.1, 1.0, 10.0], is_log=True)
    ['0.01', '0.1', '1', '10']
    """
    gap = min((b - a for a, b in pairwise(at)), default=0.0)
    if is_log or gap < 1e-4 or max(map(abs, at)) >= 1e6:
        return [_shortest(value) for value in at]
    decimals = next(
        (d for d in range(6) if abs(gap * 10**d - round(gap * 10**d)) < 1e-6 * gap * 10**d), 6
    )
    return [f"{value:.{decimals}f}" for value in at]


def _shortest(value: float) -> str:
    return f"{value:g}" if 1e-3 <= abs(value) < 1e6 else format_value(value) if value else "0"
