"""Column: the points of one metric, one value per step, all of them or so many as are asked for.

Points come mostly with rising steps and are then appended. What comes late (a step below the last
one) waits beside them and is put in its place when the points are looked at. Steps rise within a
*pass*; a counter that starts again begins a new one.

With a limit only so many points are kept, however long the log. The newest ones, up to half of the
limit, are all there; the older ones are thinned (``thin``). Thus of a log whose steps rise
``count``, the first and the last point, minimum and maximum are exact. What becomes approximate: a
value that comes so late that its step lies among the older ones replaces a kept point or is left
out; where a restart cuts into the older ones, the count is estimated within one bucket (exact where
the steps are evenly spaced), and lows and highs of that bucket beyond the kept points are lost.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import repeat

from hpcrun.metrics.curve import Point, Series, Summary
from hpcrun.metrics.curves.passes import Pass, rises
from hpcrun.metrics.curves.thin import has_nan, pick

NAN = math.nan


class Column:
    """Points of one metric, in the order of the run.

    >>> column, first = Column(), Pass()
    >>> column.extend(first, [1, 2, 3], [9.0, 8.0, 7.0])
    >>> column.extend(first, [2, 4], [8.5, 6.0])
    >>> column.series().steps, column.series().values
    ([1, 2, 3, 4], [9.0, 8.5, 7.0, 6.0])
    """

    def __init__(self, limit: int | None = None) -> None:
        """Keep all points, or ``limit`` of them (at least 16)."""
        self.count = 0
        self._limit = limit if limit is None else max(limit, 16)
        self._steps: list[int] = []
        self._values: list[float] = []
        self._times: list[float] | None = None
        self._all_timed = True
        # Each pass with the ordinal of its first point: 0 for the first point of all.
        self._passes: list[tuple[Pass, int]] = []
        self._late: dict[int, tuple[float, float]] = {}
        self._in_order = False
        # Ordinals of the older points, those that stand in buckets; the others follow on.
        self._ordinals: list[int] = []
        self._stride = 1
        # Values at every so manyth ordinal: what quantiles of a thinned column are of.
        self._sample: list[float] = []
        self._sample_stride = 1
        # Where the extremes of the first so many points are.
        self._seen = 0
        self._lowest = self._highest = -1

    @property
    def is_one_a_pass(self) -> bool:
        """Whether there are several passes, each of one point."""
        self._settle()
        return self.count == len(self._passes) > 1

    @property
    def work(self) -> float:
        """Sum of the values, were they alike at all steps up to the last: seconds of a bar."""
        self._settle()
        return self._steps[-1] * sum(self._values) / len(self._values) if self._steps else 0.0

    def extend(
        self,
        place: Pass,
        steps: Sequence[int],
        values: Sequence[float],
        times: Sequence[float] | None = None,
        *,
        rising: bool | None = None,
    ) -> None:
        """Add points in the order of the log; the last value of a step counts.

        ``rising`` tells whether the steps rise, where that is known. ``place`` is the pass that
        the last points were in, or a later one.
        """
        if rising is None:
            rising = rises(steps)
        if not self._passes or self._passes[-1][0] is not place:
            self._settle()
            self._passes.append((place, self.count))
        begins = self._passes[-1][1] == self.count
        if rising and (begins or (steps and steps[0] > self._steps[-1])):
            self._append(steps, values, times)
        else:
            self._put(steps, values, times)

    def extend_in_order(self, values: Sequence[float], times: Sequence[float] | None) -> None:
        """Add points that have no steps."""
        self._in_order = True
        if not self._passes:
            self._passes.append((Pass(), 0))
        self._append(range(self.count, self.count + len(values)), values, times)

    def _append(
        self, steps: Sequence[int], values: Sequence[float], times: Sequence[float] | None
    ) -> None:
        if times is not None and self._times is None:
            self._times = [NAN] * len(self._values)
            self._all_timed = not self._values
        if self._times is not None:
            self._all_timed &= times is not None
            self._times.extend(repeat(NAN, len(values)) if times is None else times)
        self._steps.extend(steps)
        self._values.extend(values)
        if self._limit is not None:
            self._sample.extend(values[-self.count % self._sample_stride :: self._sample_stride])
            if len(self._sample) > self._limit:
                self._sample = self._sample[::2]
                self._sample_stride *= 2
        self.count += len(values)

    def _put(
        self, steps: Sequence[int], values: Sequence[float], times: Sequence[float] | None
    ) -> None:
        """Add points whose steps fall, come again, or lie before the last one."""
        value_at = dict(zip(steps, values, strict=True))
        time_at = {} if times is None else dict(zip(steps, times, strict=True))
        begins = self._passes[-1][1] == self.count
        last = -1 if begins else self._steps[-1]
        fresh = sorted(step for step in value_at if step > last)
        if last in value_at:
            self._replace(len(self._steps) - 1, value_at[last], time_at.get(last, NAN))
        if len(value_at) > len(fresh):
            late = [step for step in value_at if step < last]
            self._late.update((step, (value_at[step], time_at.get(step, NAN))) for step in late)
        if fresh:
            moments = None if times is None else [time_at[step] for step in fresh]
            self._append(fresh, [value_at[step] for step in fresh], moments)
        if 4 * len(self._late) > len(self._steps):
            self._settle()

    def _replace(self, index: int, value: float, time: float) -> None:
        self._values[index] = value
        if self._times is not None:
            self._times[index] = time
            self._all_timed &= not math.isnan(time)
        self._forget_extremes(index)

    def _forget_extremes(self, index: int) -> None:
        """Points from ``index`` on have changed, or gone."""
        if index < self._seen:
            unharmed = self._lowest < index and self._highest < index
            self._seen = index if unharmed else 0

    def _settle(self) -> None:
        """Put what came late in its place."""
        if not self._late:
            return
        begin, body = self._index(self._passes[-1][1]), len(self._ordinals)
        for step in [step for step in self._late if begin < body and step <= self._steps[body - 1]]:
            index, point = bisect_left(self._steps, step, begin, body), self._late.pop(step)
            if self._steps[index] == step:
                self._replace(index, *point)
        if not self._late:
            return
        start = bisect_left(self._steps, min(self._late), max(begin, body))
        timed = repeat(NAN) if self._times is None else self._times[start:]
        points = dict(
            zip(self._steps[start:], zip(self._values[start:], timed, strict=False), strict=False)
        )
        points.update(self._late)
        self._late = {}
        self.count += len(points) - (len(self._steps) - start)
        self._steps[start:] = sorted(points)
        self._values[start:] = [points[step][0] for step in self._steps[start:]]
        if self._times is not None:
            self._times[start:] = [points[step][1] for step in self._steps[start:]]
            self._all_timed &= not has_nan(self._times[start:])
        self._forget_extremes(start)

    def _index(self, ordinal: int) -> int:
        """Where the first kept point from an ordinal on is."""
        newer = len(self._steps) - (self.count - ordinal)
        body = len(self._ordinals)
        return newer if newer >= body else bisect_left(self._ordinals, ordinal)

    def truncate(self, place: Pass, step: int) -> None:
        """Leave out all points at a step of a pass and after."""
        self._settle()
        end = len(self._steps)
        while self._passes and self._passes[-1][0].key > place.key:
            end = self._index(self._passes.pop()[1])
        if self._passes and self._passes[-1][0].key == place.key:
            begin = self._index(self._passes[-1][1])
            end = bisect_left(self._steps, step, begin, end)
            if end == begin:
                self._passes.pop()
        self._cut(end, step)

    def _cut(self, end: int, step: int) -> None:
        if end == len(self._steps):
            return
        body = len(self._ordinals)
        if end >= body:
            self.count -= len(self._steps) - end
        else:
            self.count = self._count_before(end, step)
            del self._ordinals[end:]
        del self._steps[end:], self._values[end:]
        if self._times is not None:
            del self._times[end:]
        del self._sample[-(-self.count // self._sample_stride) :]
        self._forget_extremes(end)

    def _count_before(self, index: int, step: int) -> int:
        """Estimate how many points lie before a step, the first kept one from it on known."""
        if not index:
            return 0
        (before, after), low = self._ordinals[index - 1 : index + 1], self._steps[index - 1]
        span = self._steps[index] - low
        if span <= 0 or not low < step <= self._steps[index]:
            return after
        return max(before + 1, before + math.ceil((after - before) * (step - low) / span))

    def compact(self) -> None:
        """Keep no more points than the limit; to be called once points were added."""
        if self._limit is None or len(self._steps) - len(self._ordinals) <= self._limit // 2:
            return
        self._settle()
        body = len(self._ordinals)
        count = len(self._steps) - body - self._limit // 4
        ordinal = self.count - (len(self._steps) - body)
        while 3 * (ordinal + count) > self._stride * (self._limit // 2):
            self._stride *= 2
        self._ordinals.extend(range(ordinal, ordinal + count))
        self._keep(body, self._pick(body, body + count))
        self._shrink()

    def _shrink(self) -> None:
        """Widen the buckets until the older points are few enough."""
        if self._limit is None or len(self._ordinals) <= self._limit // 2:
            return
        self._keep(0, self._pick(0, len(self._ordinals)))
        while len(self._ordinals) > self._limit // 4:
            self._stride *= 2
            self._keep(0, self._pick(0, len(self._ordinals)))

    def _pick(self, start: int, stop: int) -> list[int]:
        return pick(self._values, self._ordinals, self._stride, start, stop)

    def _keep(self, start: int, indices: Sequence[int]) -> None:
        """Leave out the older points from an index on that are not named."""
        body = len(self._ordinals)
        self._steps[start:body] = [self._steps[index] for index in indices]
        self._values[start:body] = [self._values[index] for index in indices]
        if self._times is not None:
            self._times[start:body] = [self._times[index] for index in indices]
        self._ordinals[start:] = [self._ordinals[index] for index in indices]
        self._seen = 0

    def copy(self) -> Column:
        """Copy the points, for a look at what may come."""
        other = Column(self._limit)
        other.__dict__.update(self.__dict__)
        for name in ("_steps", "_values", "_times", "_passes", "_late", "_ordinals", "_sample"):
            value = getattr(self, name)
            setattr(other, name, None if value is None else value.copy())
        return other

    def absorb(self, other: Column) -> None:
        """Add the points of a later attempt, in whatever passes they are."""
        self._settle()
        other._settle()
        if not other.count:
            return
        if self._in_order and not other._ordinals:
            self.extend_in_order(other._values, other._times)
            self.compact()
            return
        first, step = other._passes[0][0], other._steps[0]
        last = self._passes[-1][0].key if self._passes else (-1, -1)
        if self._ordinals or other._ordinals:
            if not self._in_order:
                self.truncate(first, step)
            self._join(other)
        elif first.key < last:
            self._merge(other)
        else:
            for place, begin, end in other._ranges():
                times = None if other._times is None else other._times[begin:end]
                values = other._values[begin:end]
                self.extend(place, other._steps[begin:end], values, times, rising=True)
        self.compact()

    def _ranges(self) -> Iterator[tuple[Pass, int, int]]:
        """Yield each pass with the indices of its points."""
        ends = [self._index(ordinal) for _, ordinal in self._passes[1:]] + [len(self._steps)]
        for (place, ordinal), end in zip(self._passes, ends, strict=True):
            yield place, self._index(ordinal), end

    def _join(self, other: Column) -> None:
        """Append the kept points of another column, all of them as older points."""
        shift = self.count
        self._ordinals.extend(range(shift - (len(self._steps) - len(self._ordinals)), shift))
        newer = other.count - (len(other._steps) - len(other._ordinals))
        self._ordinals += [shift + ordinal for ordinal in other._ordinals]
        self._ordinals.extend(range(shift + newer, shift + other.count))
        if (self._times is None) != (other._times is None):
            self._times = self._times or [NAN] * len(self._values)
        self._all_timed &= other._all_timed
        if self._times is not None:
            self._times += other._times or [NAN] * len(other._values)
            self._all_timed = not has_nan(self._times)
        self._steps += other._steps
        self._values += other._values
        known = self._passes[-1][0] if self._passes else None
        for place, ordinal in other._passes:
            if place is not known:
                self._passes.append((place, shift + ordinal))
        stride = max(self._sample_stride, other._sample_stride)
        self._sample = self._sample[:: stride // self._sample_stride]
        self._sample += other._sample[:: stride // other._sample_stride]
        self._sample_stride = stride
        self._stride = max(self._stride, other._stride)
        self.count += other.count
        self._shrink()

    def _merge(self, other: Column) -> None:
        """Add points of which some belong into earlier passes."""
        points: dict[tuple[tuple[int, int], int], tuple[Pass, float, float]] = {}
        for column in (self, other):
            for place, begin, end in column._ranges():
                times = column._times or [NAN] * len(column._values)
                for index in range(begin, end):
                    at = (place.key, column._steps[index])
                    points[at] = (place, column._values[index], times[index])
        merged = Column(self._limit)
        timed = self._times is not None or other._times is not None
        for (_, step), (place, value, time) in sorted(points.items(), key=lambda item: item[0]):
            merged.extend(place, [step], [value], [time] if timed else None)
        self.__dict__.update(merged.__dict__)

    def series(self, *, by_epoch: bool = False) -> Series:
        """Return the points, which must be one at least; ``by_epoch``: by that of their pass."""
        self._settle()
        self._find_extremes()
        steps: list[int | None] = [*self._steps]
        if self._in_order:
            steps = [None] * len(steps)
        elif by_epoch:
            for place, begin, end in self._ranges():
                steps[begin:end] = [place.epoch] * (end - begin)

        def point(index: int) -> Point:
            return Point(steps[index], self._values[index])

        summary = Summary(
            count=self.count,
            first=point(0),
            last=point(-1),
            min=None if self._lowest < 0 else point(self._lowest),
            max=None if self._highest < 0 else point(self._highest),
        )
        times = self._times.copy() if self._times is not None and self._all_timed else None
        sample = self._sample.copy() if self.count > len(self._steps) else None
        return Series(steps, self._values.copy(), times, summary, sample)

    def _find_extremes(self) -> None:
        if not self._seen:
            self._lowest = self._highest = -1
        fresh = self._values[self._seen :]
        if has_nan(fresh):
            fresh = [value for value in fresh if not math.isnan(value)]
        if fresh:
            low, high = min(fresh), max(fresh)
            if self._lowest < 0 or low < self._values[self._lowest]:
                self._lowest = self._values.index(low, self._seen)
            if self._highest < 0 or high > self._values[self._highest]:
                self._highest = self._values.index(high, self._seen)
        self._seen = len(self._values)
