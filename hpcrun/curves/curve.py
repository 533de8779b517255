"""Curve: what the logs of a run say, one value per step; long series are thinned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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
    ``values`` and ``times`` hold a limited number, lows and highs among them, and ``sample`` evenly
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
    steps: Sequence[int | None] | NDArray[Any],
    values: Sequence[float] | Floats,
    times: Sequence[float] | Floats | None = None,
) -> Series:
    """Build a series of all its points, at least one.

    >>> build_series([1, 2], [3.0, 2.5]).summary.min
    Point(step=2, value=2.5)
    """
    places, column = np.asarray(steps), np.asarray(values, dtype=float)
    moments = None if times is None else np.asarray(times).tolist()
    return Series(places.tolist(), column.tolist(), moments, summarize(places, column))


def summarize(places: NDArray[Any], column: Floats) -> Summary:
    """Put a metric in numbers; ``places``: its steps."""

    def point(index: int) -> Point:
        return Point(places.item(index), column.item(index))

    def first(value: float) -> Point | None:
        return None if math.isnan(value) else point(int((column == value).argmax()))

    low, high = np.fmin.reduce(column), np.fmax.reduce(column)  # nan if there is nothing else
    return Summary(len(column), point(0), point(-1), first(low), first(high))


class Restart(Struct, frozen=True):
    """A further attempt of a run, or a resumption within one log.

    ``lost_at``: the last step that was logged before; ``resumed_at``: the first one after, None
    if this attempt logged no training loss, or none with a step; ``replayed``: how many steps were
    done again (0 where the log has no steps). ``cause``: what ended the attempt before, in words.
    """

    attempt: int
    lost_at: int | None
    resumed_at: int | None
    replayed: int
    cause: str = ""


class Curve(Struct, frozen=True):
    """The metrics of a run by name, and its restarts.

    ``total_steps``: how many steps the run will have, where the log shows it. ``notes``: what was
    decided where the log could be read in two ways, for people.
    """

    metrics: dict[str, Series]
    restarts: tuple[Restart, ...]
    total_steps: int | None = None
    notes: tuple[str, ...] = ()

    def arrays(self, name: str) -> tuple[Floats, Floats, Floats]:
        """Return a metric's steps, nan where they are not known, its values and its times.

        Empty ones, if the log has no such metric, or no times.
        """
        times = self.metrics[name].times if name in self.metrics else None
        columns = self.steps(name), self.values(name), times or []
        steps, values, moments = (np.array(column, dtype=float) for column in columns)
        return steps, values, moments

    def steps(self, name: str) -> list[int | None]:
        """Return a metric's steps; none if the log has no such metric."""
        return self.metrics[name].steps if name in self.metrics else []

    def values(self, name: str) -> list[float]:
        """Return a metric's values; none if the log has no such metric."""
        return self.metrics[name].values if name in self.metrics else []

    def summary(self, name: str) -> Summary | None:
        """Return a metric in numbers, None if the log has no such metric."""
        return self.metrics[name].summary if name in self.metrics else None


def is_increasing(steps: Sequence[int | None] | NDArray[Any]) -> bool:
    """Return whether all steps are known and each is higher than the one before it.

    >>> is_increasing([1, 2, 5]), is_increasing([1, 1]), is_increasing([None, 1])
    (True, False, False)
    """
    return bool((np.diff(np.array(steps, dtype=float), prepend=-np.inf) > 0).all())
