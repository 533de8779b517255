"""Curve: what the samples of a run say, one value per step.

Pure.

Samples are what the log says; this module derives the view. Its rules:

- A later attempt replaces what it replays: from its first training loss on, what earlier attempts
  logged at that step and after is gone, as the weights that it belonged to are.
- Within an attempt the last value of a step counts.
- A counter that starts again with each epoch is no restart: its steps are told apart by epoch.
- Where some samples of a metric have a step, those without are left out (a closing summary).
  Where none has, their order counts and the steps are None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from hpcrun.metrics.names import LOSS
from hpcrun.metrics.sample import Sample


class Series(NamedTuple):
    """One metric: the steps in the order of the run (all None where the log has none), values."""

    steps: list[int | None]
    values: list[float]


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


class Restart(Struct, frozen=True):
    """A further attempt of a run.

    ``lost_at``: the last step that was logged before; ``resumed_at``: the first one after, None
    if this attempt logged no training loss; ``replayed``: how many steps were done again (0 where
    the log has no steps).
    """

    attempt: int
    lost_at: int | None
    resumed_at: int | None
    replayed: int


class Curve(Struct, frozen=True):
    """The metrics of a run by name, and its restarts."""

    metrics: dict[str, Series]
    restarts: tuple[Restart, ...]

    def series(self, name: str) -> Series:
        """Return a metric's steps and values; both empty if the log has no such metric."""
        return self.metrics.get(name, Series([], []))

    def summary(self, name: str) -> Summary | None:
        """Return a metric in numbers, None if the log has no such metric."""
        points = [Point(*pair) for pair in zip(*self.series(name), strict=True)]
        if not points:
            return None
        known = [point for point in points if not math.isnan(point.value)]
        return Summary(
            count=len(points),
            first=points[0],
            last=points[-1],
            min=min(known, key=lambda point: point.value, default=None),
            max=max(known, key=lambda point: point.value, default=None),
        )

    def quantile(self, name: str, share: float) -> float | None:
        """Return the value below which ``share`` (0 to 1) of a metric lies, None without values."""
        return quantile(self.series(name).values, share)


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


class _Place(NamedTuple):
    """Where a sample stands in the run; the pass is 0 unless the counter starts again."""

    pass_number: int
    step: int


# How far a counter must have come before its return to the start is taken for a new epoch, where
# the log names no epoch: ranks that print across each other fall back by a step or two.
_FEWEST_STEPS_OF_A_PASS = 3


def _counts_within_epochs(samples: Iterable[Sample]) -> bool:
    """Tell whether the step counter falls where the epoch grows, which no replay does."""
    step, epoch = -1, -1
    for sample in samples:
        if sample.name == LOSS and sample.step is not None and sample.epoch is not None:
            if sample.step < step and math.floor(sample.epoch) > epoch:
                return True
            step, epoch = sample.step, math.floor(sample.epoch)
    return False


def _passes_by_epoch(samples: Sequence[Sample]) -> list[int]:
    """Number the passes of a step counter as the log numbers its epochs."""
    passes: list[int] = []
    current = 0
    for sample in samples:
        if sample.epoch is not None:
            current = math.floor(sample.epoch)
        passes.append(current)
    return passes


def _passes_by_fall(samples: Sequence[Sample], current: int) -> list[int]:
    """Number the passes of a counter that falls back to where it began, without an epoch."""
    passes: list[int] = []
    begun = highest = None
    steps = 0
    for sample in samples:
        if sample.name == LOSS and sample.step is not None and sample.epoch is None:
            if begun is None or highest is None:
                begun, highest, steps = sample.step, sample.step, 1
            elif sample.step <= begun and steps >= _FEWEST_STEPS_OF_A_PASS:
                current += 1
                begun, highest, steps = sample.step, sample.step, 1
            elif sample.step > highest:
                highest, steps = sample.step, steps + 1
        passes.append(current)
    return passes


def build_curve(samples: Iterable[Sample], attempts: Iterable[int] = ()) -> Curve:
    """Derive the curve of a run from its samples, given in the order of each attempt's log.

    ``attempts`` names all attempts that were read, so that one that logged nothing counts too.

    >>> def at(attempt, step, value):
    ...     return Sample(attempt, 0, None, step, "train", "loss", value)
    >>> replayed = build_curve([at(0, 1, 9.0), at(0, 2, 8.0), at(0, 3, 7.0), at(1, 2, 6.0)])
    >>> replayed.series("loss")
    Series(steps=[1, 2], values=[9.0, 6.0])
    >>> replayed.restarts
    (Restart(attempt=1, lost_at=3, resumed_at=2, replayed=2),)
    """
    by_attempt: dict[int, list[Sample]] = {attempt: [] for attempt in attempts}
    for sample in samples:
        by_attempt.setdefault(sample.attempt, []).append(sample)

    stepped: dict[str, dict[_Place, float]] = {}
    unstepped: dict[str, list[float]] = {}
    restarts: list[Restart] = []
    reached: _Place | None = None
    ordered_attempts = sorted(by_attempt)
    by_epoch = _counts_within_epochs(
        sample for attempt in ordered_attempts for sample in by_attempt[attempt]
    )
    passes: list[int] = []
    for number, attempt in enumerate(ordered_attempts):
        logged = by_attempt[attempt]
        if by_epoch:
            passes = _passes_by_epoch(logged)
        else:
            passes = _passes_by_fall(logged, passes[-1] if passes else 0)
        places = [
            None if sample.step is None else _Place(turn, sample.step)
            for sample, turn in zip(logged, passes, strict=True)
        ]
        losses = (
            place
            for sample, place in zip(logged, places, strict=True)
            if sample.name == LOSS and place is not None
        )
        begun = next(losses, None)
        if number:
            restarts.append(_restart(attempt, reached, begun))
        if begun is not None:
            for values_at in stepped.values():
                for replaced in [place for place in values_at if place >= begun]:
                    del values_at[replaced]
            reached = max([begun, *losses])
        for sample, place in zip(logged, places, strict=True):
            if place is None:
                unstepped.setdefault(sample.name, []).append(sample.value)
            else:
                stepped.setdefault(sample.name, {})[place] = sample.value

    metrics: dict[str, Series] = {}
    for name in dict.fromkeys([*stepped, *unstepped]):
        if by_place := sorted(stepped.get(name, {}).items()):
            metrics[name] = Series([at.step for at, _ in by_place], [v for _, v in by_place])
        elif values := unstepped.get(name):
            metrics[name] = Series([None] * len(values), values)
    return Curve(metrics, tuple(restarts))


def _restart(attempt: int, reached: _Place | None, begun: _Place | None) -> Restart:
    lost_at = None if reached is None else reached.step
    resumed_at = None if begun is None else begun.step
    replayed = 0
    if reached is not None and begun is not None and reached.pass_number == begun.pass_number:
        replayed = max(0, reached.step - begun.step + 1)
    return Restart(attempt, lost_at, resumed_at, replayed)
