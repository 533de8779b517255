"""Losses: the training losses of the last run in a log, and where something begins among them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from hpcrun.metrics.curve import Curve, Series
from hpcrun.metrics.health.robust import median
from hpcrun.metrics.names import EPOCH, LOSS, LR


class Losses(Struct, frozen=True):
    """The finite training losses of a run in their order, at least one.

    ``begins``: indices at which an attempt, an epoch or a pass of the step counter begins. ``lr``:
    the learning rate at each point, nan where unknown.
    """

    steps: list[int | None]
    values: list[float]
    begins: frozenset[int]
    lr: list[float]

    @property
    def places(self) -> Sequence[float]:
        """Where the points stand: their steps; their order, where some have none."""
        steps = [step for step in self.steps if step is not None]
        return steps if len(steps) == len(self.steps) else range(len(self.steps))

    def where(self, index: int) -> str:
        """Name a point for people."""
        step = self.steps[index]
        return f"point {index + 1}" if step is None else f"step {step}"

    def lr_rises(self, since: int, until: int, factor: float) -> bool:
        """Tell whether the learning rate has grown by a factor; False where it is unknown."""
        return self.lr[until] > factor * self.lr[since]


def last_losses(curve: Curve) -> Losses | None:
    """Return the training losses of the last run in a log; None if none is finite."""
    series = curve.metrics.get(LOSS)
    if series is None:
        return None
    kept = [index for index, value in enumerate(series.values) if math.isfinite(value)]
    if not kept:
        return None
    steps = [series.steps[index] for index in kept]
    values = [series.values[index] for index in kept]
    epochs = _beside(steps, curve.metrics.get(EPOCH))
    falls = [
        index
        for index, (a, b) in enumerate(pairwise(steps), 1)
        if (a is not None and b is not None and b <= a) or epochs[index] < epochs[index - 1]
    ]
    first = 0
    for fall in falls:
        of_an_epoch = epochs[fall] > epochs[fall - 1]
        if not of_an_epoch and _go_elsewhere(values[first:fall], values[fall : fall + 5]):
            first = fall
    resumed = {restart.resumed_at for restart in curve.restarts} - {None}
    begins = {0, *falls}
    begins |= {i for i, (a, b) in enumerate(pairwise(epochs), 1) if b > a and b // 1 > a // 1}
    begins |= {index for index, step in enumerate(steps) if step in resumed}
    return Losses(
        steps[first:],
        values[first:],
        frozenset(index - first for index in begins if index >= first),
        _beside(steps, curve.metrics.get(LR))[first:],
    )


def _go_elsewhere(before: Sequence[float], after: Sequence[float]) -> bool:
    """Tell whether the loss goes on elsewhere than it ended, as that of another run does."""
    begun, ended, now = median(before[:5]), median(before[-5:]), median(after)
    return abs(now - ended) > max(0.2 * abs(ended), 0.3 * abs(begun - ended))


def _beside(steps: Sequence[int | None], series: Series | None) -> list[float]:
    """Return the latest value of another metric at each step; nan where it has none."""
    unknown = [math.nan] * len(steps)
    if series is None or series.steps == steps:
        return unknown if series is None else series.values
    known = [step for step in series.steps if step is not None]
    if len(known) < len(series.steps) or any(b <= a for a, b in pairwise(known)):
        return unknown
    places = [0 if step is None else bisect_right(known, step) for step in steps]
    return [series.values[place - 1] if place else math.nan for place in places]
