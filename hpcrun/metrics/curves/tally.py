"""Tally: which way of placing rows without a step is to be believed.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, compress, islice, pairwise
from operator import ne

from hpcrun.metrics.curves.placed import AFTER, BEFORE, Kind

BY_EPOCH, IN_ORDER = "epoch", "order"
# This share of a metric's rows must have steps of their own for these to be believed.
_ENOUGH = 0.9
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

    def place(self, kind: Kind, way: str, steps: Sequence[int]) -> None:
        """Count the steps that one way of placing gives such rows."""
        if not steps:
            return
        count = self._of(kind)
        moves = list(map(ne, steps, chain([count.last.get(way)], steps)))
        count.moves[way] += sum(moves)
        count.last[way] = steps[-1]
        seen = count.steps.get(way)
        if seen is not None and len(seen) < _LOOKED_AT:
            seen.extend(islice(compress(steps, moves), _LOOKED_AT - len(seen)))

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
            regular = {way: _regularity(counts, way) for way in (BEFORE, AFTER)}
            return AFTER if regular[AFTER] > regular[BEFORE] + 0.25 else BEFORE
        return next((way for way in (BEFORE, AFTER, BY_EPOCH) if way in good), IN_ORDER)

    def _of(self, kind: Kind) -> _Count:
        if len(self._counts) < _MOST_KINDS:
            return self._counts.setdefault(kind, _Count())
        return self._counts.get(kind) or _Count()


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
