"""Series: the points of one metric, one value per step; which of a long one are drawn.

A long series is thinned: its points stand in buckets of as many each, a power of two. A bucket
keeps its lowest, its highest and its last point, and its first nan; the first point of all is kept
too: so a spike of one step stays.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import repeat
from operator import itemgetter
from typing import TypeVar

from msgspec import Struct

from hpcrun.metrics.curve import Point, Series, Summary
from hpcrun.metrics.passes import rises

T = TypeVar("T")


class Points(Struct, eq=False):
    """Values and their steps, in the order of the log."""

    steps: Sequence[int]
    values: Sequence[float]
    times: Sequence[float] | None

    def cut(self, start: int, end: int) -> Points:
        """Return the points from one index to another."""
        times = None if self.times is None else self.times[start:end]
        return Points(self.steps[start:end], self.values[start:end], times)

    def before(self, step: float) -> Points:
        """Leave out what stands at a step or after it."""
        kept = [index for index, each in enumerate(self.steps) if each < step]
        if len(kept) == len(self.steps):
            return self
        return Points(
            [self.steps[index] for index in kept],
            [self.values[index] for index in kept],
            None if self.times is None else [self.times[index] for index in kept],
        )


def joined(parts: Sequence[Points]) -> Points:
    """Join points one behind the other."""
    if len(parts) == 1:
        return parts[0]
    steps, values = array("q"), array("d")
    times = array("d") if any(points.times is not None for points in parts) else None
    for points in parts:
        steps.extend(points.steps)
        values.extend(points.values)
        if times is not None:
            times.extend(points.times or repeat(math.nan, len(points.values)))
    return Points(steps, values, times)


def settled(parts: Sequence[Points]) -> Points:
    """Leave one value per step, the last one, in the order of the steps."""
    points = joined(parts)
    if rises(points.steps):
        return points
    values = dict(zip(points.steps, points.values, strict=True))
    steps = [*values] if rises([*values]) else sorted(values)
    times = None
    if points.times is not None:
        time_at = dict(zip(points.steps, points.times, strict=True))
        times = array("d", map(time_at.__getitem__, steps))
    return Points(array("q", steps), array("d", map(values.__getitem__, steps)), times)


class Column(Struct, eq=False):
    """One metric, one value per step. ``passes``: index of the first point of each, its epoch."""

    points: Points
    passes: list[tuple[int, int]]
    in_order: bool = False

    @property
    def count(self) -> int:
        """How many points there are."""
        return len(self.points.values)

    @property
    def is_one_a_pass(self) -> bool:
        """Whether there are several passes, each of one point."""
        return self.count == len(self.passes) > 1

    @property
    def work(self) -> float:
        """Sum of the values, were they alike at all steps up to the last: seconds of a bar."""
        return self.points.steps[-1] * sum(self.points.values) / self.count

    def series(self, limit: int | None, *, by_epoch: bool = False) -> Series:
        """Return the points, at most ``limit``; ``by_epoch``: by that of their pass."""
        values, times = self.points.values, self.points.times
        steps: Sequence[int | None] = self.points.steps
        if self.in_order:
            steps = [None] * self.count
        elif by_epoch:
            steps = [epoch for _, epoch in self.passes]
        if times is not None and 2 * sum(map(math.isnan, times)) >= self.count:
            times = None  # few lines have one
        known = [value for value in values if not math.isnan(value)] if has_nan(values) else values
        low = values.index(min(known)) if known else None
        high = values.index(max(known)) if known else None

        def point(index: int | None) -> Point | None:
            return None if index is None else Point(steps[index], values[index])

        first, last = Point(steps[0], values[0]), Point(steps[-1], values[-1])
        summary = Summary(self.count, first, last, point(low), point(high))
        if limit is None or self.count <= limit:
            return Series([*steps], [*values], None if times is None else [*times], summary)
        kept = thin(values, limit)
        pick = itemgetter(*kept)
        moments = None if times is None else [*pick(times)]
        sample, sample_steps = evenly(values, limit), evenly(steps, limit)
        return Series([*pick(steps)], [*pick(values)], moments, summary, sample, sample_steps)


def thin(values: Sequence[float], limit: int) -> list[int]:
    """Choose at most ``limit`` points (at least 16).

    >>> thin([5.0, 6.0, 7.0], 16)
    [0, 1, 2]
    >>> thin([0.0] * 999 + [1.0] + [0.0] * 9000, 100)[5:8]
    [767, 768, 999]
    """
    limit, stride = max(limit, 16), 1
    if len(values) <= limit:
        return [*range(len(values))]
    while 2 * len(values) > stride * limit:
        stride *= 2
    while len(picked := pick(values, stride)) > limit:
        stride *= 2
    return picked


def pick(values: Sequence[float], stride: int) -> list[int]:
    """Choose the points that buckets of ``stride`` points keep.

    >>> pick([5.0, 4.0, 9.0, 6.0, 1.0, 2.0], stride=4)
    [0, 1, 2, 3, 4, 5]
    >>> pick([5.0, 6.0, 7.0, 8.0, 9.0, 1.0, 4.0, 3.0], stride=8)
    [0, 4, 5, 7]
    """
    picked = {0}
    holds_nan = has_nan(values)
    for begin in range(0, len(values), stride):
        bucket = values[begin : begin + stride]
        known = bucket
        if holds_nan and has_nan(bucket):
            picked.add(begin + next(i for i, value in enumerate(bucket) if math.isnan(value)))
            known = [value for value in bucket if not math.isnan(value)] or bucket[:1]
        picked.add(begin + len(bucket) - 1)
        if not math.isnan(known[0]):
            picked.update((begin + bucket.index(min(known)), begin + bucket.index(max(known))))
    return sorted(picked)


def evenly(values: Sequence[T], limit: int) -> list[T]:
    """Return every Nth value, N a power of two, at most ``limit`` of them.

    >>> evenly([1.0, 2.0, 3.0, 4.0, 5.0], 3)
    [1.0, 3.0, 5.0]
    """
    stride = 1
    while len(values) > stride * limit:
        stride *= 2
    return [*values[::stride]]


def has_nan(values: Sequence[float]) -> bool:
    """Whether a nan is among the values.

    >>> has_nan([1.0, math.nan]), has_nan([math.inf, -math.inf])
    (True, False)
    """
    # The sum shows several times faster that there is none.
    return math.isnan(sum(values)) and any(map(math.isnan, values))
