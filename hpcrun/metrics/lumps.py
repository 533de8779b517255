"""Lumps: the steps of rows that were printed late, many at a time, follow from their epochs.

A program whose output is buffered prints its dictionaries long after their steps, while the bar is
drawn at once. Each dictionary says how far the epoch is, the bar how many steps there are in all:
so a step is epoch x total / epochs. How many epochs there are is not said; no row may lie ahead of
the bar, and the steps must lie at equal distances, so that few numbers are possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hpcrun.metrics.passes import rises

# Fewer rows show no distance. So many numbers of epochs are tried; such a share of the rows may be
# lost.
_FEWEST = 4
_TRIED = 2
_LOST = 0.1
# Beyond this a bar counts bytes or tokens, and the distances to be tried are without end.
_MOST_STEPS = 10_000_000


class Scale(NamedTuple):
    """How many steps an epoch has, and how many lie between two logged losses.

    ``error``: how many steps the rounding of the printed epochs makes at most; ``total``: where the
    steps end.
    """

    steps: float
    distance: int
    error: float
    total: int

    def step_of(self, epoch: float) -> int:
        """Return the step at which rows of an epoch were logged.

        >>> Scale(705.0, 10, 3.5, 2115).step_of(0.14)
        100
        """
        return min(self.total, self.distance * max(1, round(epoch * self.steps / self.distance)))

    def steps_of(self, epochs: Sequence[float]) -> list[int]:
        """Return the steps of losses: one distance after the other, where epochs are too coarse."""
        if 2 * self.error < self.distance:
            return [self.step_of(epoch) for epoch in epochs]
        first = self.step_of(epochs[0])
        return [first + self.distance * number for number in range(len(epochs))]

    def strays(self, epochs: Sequence[float]) -> float:
        """Return how far steps lie from their epochs on average; infinity if they do not fit."""
        steps = self.steps_of(epochs)
        strays = [abs(step - epoch * self.steps) for step, epoch in zip(steps, epochs, strict=True)]
        fits = max(strays) <= self.error + 1 and rises(steps)
        return math.fsum(strays) / len(strays) if fits else math.inf


def find_scale(epochs: Sequence[float], ahead: Sequence[int], total: int) -> Scale | None:
    """Find how steps follow from the epochs of the losses; None if they do not.

    ``ahead``: the step that the bar counts next after each row; ``total``: where it ends.

    >>> find_scale([0.01, 0.03, 0.04, 0.06, 0.07, 0.09], [65] * 6, 2115)
    Scale(steps=705.0, distance=10, error=3.525, total=2115)
    >>> find_scale([0.5, 0.1, 0.7, 0.9], [100] * 4, 100) is None
    True
    """
    if len(epochs) < _FEWEST or total > _MOST_STEPS or not all(map(math.isfinite, epochs)):
        return None
    if any(b < a for a, b in pairwise(epochs)):
        return None
    coarse = 0.005 if all(round(epoch, 2) == epoch for epoch in epochs) else 0.0005
    places = zip(epochs, ahead, strict=True)
    least = max((epoch - coarse) * total / max(step, 1) for epoch, step in places)
    first = max(1, math.ceil(least))
    for steps in (total / number for number in range(first, first + _TRIED)):
        span = steps * (epochs[-1] - epochs[0]) / (len(epochs) - 1)
        spread = 2 * coarse * steps / (len(epochs) - 1)
        whole = range(max(1, math.floor(span - spread)), math.ceil(span + spread) + 1)
        lossy = range(max(1, math.floor((1 - _LOST) * span)), whole.start)
        for distances in (whole, lossy):
            scales = [Scale(steps, each, coarse * steps, total) for each in distances]
            fitting = [(each.strays(epochs), each) for each in scales]
            if min(fitting, default=(math.inf,))[0] < math.inf:
                return min(fitting)[1]
    return None
