"""The curve of a run: metrics with one value per step. Long series are thinned."""

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
    """Statistics of a metric; ``min`` and ``max`` ignore nan, and are None if only nan remains."""

    count: int
    first: Point
    last: Point
    min: Point | None
    max: Point | None


class Series(Struct, frozen=True):
    """The values of one metric, one per step, in the order of the run.

    For very long logs ``steps``, ``values`` and ``times`` contain a limited number of points, which
    include the extremes.

    Attributes:
        steps: Step of each value; all None if the log has no steps.
        values: The values.
        times: Timestamps of the log in seconds since 1970; None if the log has none.
        summary: Statistics of all points, including those not kept.
        sample: Evenly spaced values of a thinned series, for statistics that the extremes would
            bias; otherwise None.
        sample_steps: The steps of ``sample``.
    """

    steps: list[int | None]
    values: list[float]
    times: list[float] | None
    summary: Summary
    sample: list[float] | None = None
    sample_steps: list[int | None] | None = None

    @property
    def thinned(self) -> bool:
        """Whether points were dropped."""
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
    """Compute the statistics of a metric from its steps and values."""

    def point(index: int) -> Point:
        return Point(places.item(index), column.item(index))

    def first(value: float) -> Point | None:
        return None if math.isnan(value) else point(int((column == value).argmax()))

    low, high = np.fmin.reduce(column), np.fmax.reduce(column)  # nan if all values are nan
    return Summary(len(column), point(0), point(-1), first(low), first(high))


class Restart(Struct, frozen=True):
    """A further attempt of a run, or a resumption within one log.

    Attributes:
        attempt: Index of the attempt.
        lost_at: Last step that was logged before the restart.
        resumed_at: First step that was logged afterwards; None if this attempt logged no training
            loss with a step.
        replayed: Number of steps that were repeated; 0 if the log has no steps.
        cause: Why the previous attempt ended, as text.
    """

    attempt: int
    lost_at: int | None
    resumed_at: int | None
    replayed: int
    cause: str = ""


class Curve(Struct, frozen=True):
    """The metrics of a run by name, and its restarts.

    Attributes:
        metrics: Series by name.
        restarts: Further attempts and resumptions, in order.
        total_steps: Planned number of steps, or None if the log does not show it.
        notes: How ambiguities of the log were resolved, for the user.
        axis: What the steps of the loss count: "step", "epoch", or "point" without either.
        seconds: How long the run took, or None if the log does not show it.
        seconds_from: Where the log shows how long the run took.
        is_over: Whether the log shows that the training has ended.
        peak_memory: The most memory in bytes that a line of the training states, or None.
        trainings: Number of trainings in the log, of which the curve is one.
    """

    metrics: dict[str, Series]
    restarts: tuple[Restart, ...]
    total_steps: int | None = None
    notes: tuple[str, ...] = ()
    axis: str = "step"
    seconds: float | None = None
    seconds_from: str = ""
    is_over: bool = False
    peak_memory: float | None = None
    trainings: int = 1

    def arrays(self, name: str) -> tuple[Floats, Floats, Floats]:
        """Return steps (nan if unknown), values and times of a metric.

        The arrays are empty if the log lacks the metric; the times are empty if it has none.
        """
        times = self.metrics[name].times if name in self.metrics else None
        columns = self.steps(name), self.values(name), times or []
        steps, values, moments = (np.array(column, dtype=float) for column in columns)
        return steps, values, moments

    def steps(self, name: str) -> list[int | None]:
        """Return the steps of a metric; empty if the log lacks it."""
        return self.metrics[name].steps if name in self.metrics else []

    def values(self, name: str) -> list[float]:
        """Return the values of a metric; empty if the log lacks it."""
        return self.metrics[name].values if name in self.metrics else []

    def summary(self, name: str) -> Summary | None:
        """Return the statistics of a metric, or None if the log lacks it."""
        return self.metrics[name].summary if name in self.metrics else None


def is_increasing(steps: Sequence[int | None] | NDArray[Any]) -> bool:
    """Return True if all steps are known and strictly increasing.

    >>> is_increasing([1, 2, 5]), is_increasing([1, 1]), is_increasing([None, 1])
    (True, False, False)
    """
    return bool((np.diff(np.array(steps, dtype=float), prepend=-np.inf) > 0).all())
