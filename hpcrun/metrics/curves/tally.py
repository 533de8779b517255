"""Tally: which way of placing rows without a step is to be believed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, compress, islice, pairwise
from operator import ne

from hpcrun.metrics.curves.placed import AFTER, BEFORE, Kind

BY_EPOCH, IN_ORDER = "epoch", "order"
# This share of a metric's rows must have steps of their own for these to be believed.
_ENOUGH = 0.9
# Steps lie in proportion to the epochs if they are less than this away from it on average. Epochs
# that are rounded too much do not tell.
_STRAYS = 0.25
_TELLING = 4
# Steps that are looked at for whether they are regular; kinds of rows that are told apart.
_LOOKED_AT = 512
_MOST_KINDS = 256


class _Count:
    """What the rows of one kind have shown."""

    def __init__(self) -> None:
        self.rows = 0
        # Way of placing -> how often the step was another than the row before had.
        self.moves = dict.fromkeys((BEFORE, AFTER, BY_EPOCH), 0)
        self.last: dict[str, int] = {}
        self.steps: dict[str, list[int]] = {BEFORE: [], AFTER: []}
        # The epochs that these rows print, as many as steps where all of them do.
        self.epochs: dict[str, list[float]] = {BEFORE: [], AFTER: []}


class Tally:
    """Counts how well the rows of each kind could be placed.

    >>> tally = Tally()
    >>> kind = Kind(("eval_loss",))
    >>> tally.count(kind, 3)
    >>> tally.place(kind, BEFORE, [249, 499, 749])
    >>> tally.place(kind, AFTER, [250, 500, 750])
    >>> tally.choose("eval_loss", counts_all=True)
    'after'
    """

    def __init__(self) -> None:
        """Begin without rows."""
        self._counts: dict[Kind, _Count] = {}

    def count(self, kind: Kind, rows: int) -> None:
        """Count rows without a step."""
        self._of(kind).rows += rows

    def place(
        self, kind: Kind, way: str, steps: Sequence[int], epochs: Sequence[float] = ()
    ) -> None:
        """Count the steps that one way of placing gives such rows; they print these epochs."""
        if not steps:
            return
        count = self._of(kind)
        moves = list(map(ne, steps, chain([count.last.get(way)], steps)))
        count.moves[way] += sum(moves)
        count.last[way] = steps[-1]
        seen = count.steps.get(way)
        if seen is not None and len(seen) < _LOOKED_AT:
            room = _LOOKED_AT - len(seen)
            seen.extend(islice(compress(steps, moves), room))
            count.epochs[way].extend(islice(compress(epochs, moves), room))

    def excuse(self, kind: Kind, way: str) -> None:
        """Count a row as well placed though its step is that of the one before: the last row."""
        self._of(kind).moves[way] += 1

    def choose(self, name: str, *, counts_all: bool) -> str:
        """Choose how to place a metric: BEFORE, AFTER, BY_EPOCH or IN_ORDER.

        ``counts_all``: the counter of steps does not start again within the run.
        """
        counts = [count for kind, count in self._counts.items() if name in kind.names]
        needed = max(1.0, _ENOUGH * sum(count.rows for count in counts))
        good = {
            way
            for way in (BEFORE, AFTER, BY_EPOCH)
            if sum(count.moves[way] for count in counts) >= needed
        }
        if BY_EPOCH in good and not counts_all:
            return BY_EPOCH
        if {BEFORE, AFTER} <= good:
            strays = {way: _strays(counts, way) for way in (BEFORE, AFTER)}
            better, worse = sorted(strays, key=lambda way: strays[way])
            if strays[better] < _STRAYS and strays[better] + 0.1 < strays[worse]:
                return better
            regular = {way: _regularity(counts, way) for way in (BEFORE, AFTER)}
            return AFTER if regular[AFTER] > regular[BEFORE] + 0.25 else BEFORE
        return next((way for way in (BEFORE, AFTER, BY_EPOCH) if way in good), IN_ORDER)

    def _of(self, kind: Kind) -> _Count:
        if len(self._counts) < _MOST_KINDS:
            return self._counts.setdefault(kind, _Count())
        return self._counts.get(kind) or _Count()


def _strays(counts: Iterable[_Count], way: str) -> float:
    """Return how far steps lie from where the printed epochs have them on average, in steps.

    >>> count = _Count()
    >>> count.steps[BEFORE], count.steps[AFTER] = [0, 1, 2, 3], [1, 2, 3, 4]
    >>> count.epochs[BEFORE] = count.epochs[AFTER] = [0.125, 0.25, 0.375, 0.5]
    >>> _strays([count], BEFORE), _strays([count], AFTER)
    (0.375, 0.0)
    """
    told = [
        (epoch, step)
        for count in counts
        if len(count.steps[way]) == len(count.epochs[way])
        for epoch, step in zip(count.epochs[way], count.steps[way], strict=True)
    ]
    if len(told) < _TELLING or max(told)[0] <= 0:
        return math.inf
    last_epoch, last = max(told)
    return sum(abs(step - last * epoch / last_epoch) for epoch, step in told) / len(told)


def _regularity(counts: Iterable[_Count], way: str) -> float:
    """Return the share of steps that are multiples of their usual distance.

    >>> count = _Count()
    >>> count.steps[BEFORE] = [249, 499, 749]
    >>> count.steps[AFTER] = [250, 500, 760]
    >>> _regularity([count], BEFORE), round(_regularity([count], AFTER), 2)
    (0.0, 0.67)
    """
    steps = [step for count in counts for step in count.steps[way]]
    gaps = Counter(high - low for low, high in pairwise(steps) if high > low)
    if not gaps:
        return 0.0
    usual = gaps.most_common(1)[0][0]
    return sum(step % usual == 0 for step in steps) / len(steps)
