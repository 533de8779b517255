"""Curve: what the logs of a run say, one value per step; long series are thinned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct


class Point(NamedTuple):
    """A value and the step at which it was logged."""

    step: int | None
    value: float


class Summary(Struct, frozen=True):
    """A metric in numbers; ``min`` and ``max`` pass over nan, and are None if there is only nan."""

    count: int
    first: Point
    last: Point
    min: Point | None
    max: Point | None


class Series(Struct, frozen=True):
    """One metric, one value per step, in the order of the run.

    ``steps``: all None where the log has none. ``times``: seconds since 1970 by the log's own time
    stamps, None where it has none. ``summary`` is of all points; of a very long log ``steps``,
    ``values`` and ``times`` hold only so many, lows and highs among them, and ``sample`` evenly
    spaced values, at ``sample_steps``, for what lows and highs would distort.
    """

    steps: list[int | None]
    values: list[float]
    times: list[float] | None
    summary: Summary
    sample: list[float] | None = None
    sample_steps: list[int | None] | None = None

    @property
    def thinned(self) -> bool:
        """Whether points were left out."""
        return len(self.values) < self.summary.count


def build_series(
    steps: Sequence[int | None],
    values: Sequence[float],
    times: Sequence[float] | None = None,
    limit: int | None = None,
) -> Series:
    """Build a series of all its points, at least one; of many keep ``limit`` (at least 16).

    The points are parted into buckets of as many each, a power of two. A bucket keeps its lowest,
    its highest and its last point, and its first nan; the first point of all is kept too: so a
    spike of one step stays.

    >>> build_series([1, 2], [3.0, 2.5]).summary.min
    Point(step=2, value=2.5)
    >>> build_series(range(10_000), [0.0] * 999 + [1.0] + [0.0] * 9000, limit=100).steps[5:8]
    [767, 768, 999]
    """
    has_nan = math.isnan(sum(values))  # or infinities of both signs
    known = [value for value in values if not math.isnan(value)] if has_nan else values
    low, high = (values.index(end(known)) if known else None for end in (min, max))

    def point(index: int) -> Point:
        return Point(steps[index], values[index])

    summary = Summary(
        count=len(values),
        first=point(0),
        last=point(-1),
        min=None if low is None else point(low),
        max=None if high is None else point(high),
    )
    if limit is None or len(values) <= max(limit, 16):
        return Series([*steps], [*values], None if times is None else [*times], summary)
    even = 1
    while len(values) > even * limit:
        even *= 2
    stride = 2 * even
    while len(kept := _extremes(values, stride, has_nan=has_nan)) > max(limit, 16):
        stride *= 2
    return Series(
        [steps[index] for index in kept],
        [values[index] for index in kept],
        None if times is None else [times[index] for index in kept],
        summary,
        [*values[::even]],
        [*steps[::even]],
    )


def _extremes(values: Sequence[float], stride: int, *, has_nan: bool) -> list[int]:
    """Choose the points that buckets of ``stride`` points keep."""
    kept = {0}
    for begin in range(0, len(values), stride):
        known = bucket = values[begin : begin + stride]
        kept.add(begin + len(bucket) - 1)
        if has_nan:
            known = [value for value in bucket if not math.isnan(value)]
            if len(known) < len(bucket):
                kept.add(begin + [*map(math.isnan, bucket)].index(True))
        if known:
            kept.update(begin + bucket.index(end(known)) for end in (min, max))
    return sorted(kept)


class Restart(Struct, frozen=True):
    """A further attempt of a run, or a resumption within one log.

    ``lost_at``: the last step that was logged before; ``resumed_at``: the first one after, None
    if this attempt logged no training loss, or none with a step; ``replayed``: how many steps were
    done again (0 where the log has no steps).
    """

    attempt: int
    lost_at: int | None
    resumed_at: int | None
    replayed: int


class Curve(Struct, frozen=True):
    """The metrics of a run by name, and its restarts.

    ``total_steps``: how many steps the run will have, where the log tells. ``notes``: what was
    decided where the log could be read in two ways, for people.
    """

    metrics: dict[str, Series]
    restarts: tuple[Restart, ...]
    total_steps: int | None = None
    notes: tuple[str, ...] = ()

    def steps(self, name: str) -> list[int | None]:
        """Return a metric's steps; none if the log has no such metric."""
        return self.metrics[name].steps if name in self.metrics else []

    def values(self, name: str) -> list[float]:
        """Return a metric's values; none if the log has no such metric."""
        return self.metrics[name].values if name in self.metrics else []

    def summary(self, name: str) -> Summary | None:
        """Return a metric in numbers, None if the log has no such metric."""
        return self.metrics[name].summary if name in self.metrics else None

    def quantile(self, name: str, share: float) -> float | None:
        """Return the value below which ``share`` (0 to 1) of a metric lies, None without values."""
        series = self.metrics.get(name)
        if series is None:
            return None
        return quantile(series.values if series.sample is None else series.sample, share)


def quantile(values: Iterable[float], share: float) -> float | None:
    """Interpolate a quantile linearly between the values; nan and infinities are passed over.

    >>> quantile([1.0, 2.0, 4.0], 0.5), quantile([1.0, 2.0], 0.95), quantile([], 0.5)
    (2.0, 1.95, None)
    """
    ordered = sorted(value for value in values if math.isfinite(value))
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
