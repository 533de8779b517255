"""Bars: which of a log's progress bars counts the steps of the training.

Many bars may be drawn: of loading, of tokenizing, of each evaluation. A bar on which a training
loss stands is the training's. Else the *training bar* is the one that moves along with the rows of
the training: of the bars drawn between two such rows the one that is drawn between most of them.
Bars are told apart by their description, its numbers aside, and their total.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from msgspec import Struct

# What bars count that are not the training's, by the words of their descriptions.
_OTHER_WORK = re.compile(
    r"load|map|filter|token|pack|truncat|fetch|shard|cach|scan|generat|sav|writ|split|sampl"
    r"|eval|valid|test|predict|infer|add|appl|extract|prepar|process|pull|push|format|convert",
    re.IGNORECASE,
)
# A bar takes over from one that stands still only if it has this share of its votes.
_TAKES_OVER = 0.1


class Bar(NamedTuple):
    """A progress bar: its description without numbers, and how far it will go."""

    description: str
    total: int | None

    @property
    def counts_within_epoch(self) -> bool:
        """Whether it begins again with each epoch, as its description says."""
        return "epoch" in self.description.lower()

    @property
    def may_train(self) -> bool:
        """Whether its description leaves open that it counts the training.

        >>> Bar("", 500).may_train, Bar("Loading checkpoint shards", 2).may_train
        (True, False)
        """
        return not _OTHER_WORK.search(self.description)


class Drawings(Struct, eq=False):
    """All drawings of one bar in a log: where they stand, and what they count.

    ``shows_loss``: a training loss stands on it.
    """

    bar: Bar
    offsets: Sequence[int]
    steps: Sequence[int]
    shows_loss: bool


def training_bars(
    drawn: Sequence[Drawings], trained: Sequence[int], evaluated: Sequence[int]
) -> list[tuple[int, Sequence[int]]]:
    """Find the bars of the training; return which they are, and which of their drawings count.

    ``trained`` and ``evaluated``: the bytes at which rows of the training, and of evaluations,
    begin. The bar that counts last comes last. A second training in the same log may have a bar of
    its own: so only those drawings count that stand in the part where a bar is the training's.

    >>> steps = Drawings(Bar("", 9), [0, 20, 40], [1, 2, 3], False)
    >>> other = Drawings(Bar("", 2), [5, 6], [1, 2], False)
    >>> training_bars([steps, other], trained=[10, 30, 50], evaluated=[])
    [(0, range(0, 3))]
    """
    showing = [number for number, each in enumerate(drawn) if each.shows_loss]
    if not trained and not showing:
        unfinished = _unfinished(drawn, evaluated)
        return [] if unfinished is None else [(unfinished, range(len(drawn[unfinished].steps)))]
    # For each bar: gap between rows of the training -> its last drawing there.
    gaps = [dict(zip(_gaps(each, trained), each.offsets, strict=True)) for each in drawn]
    votes = [len(each.keys() - {len(trained)}) for each in gaps]
    for number in showing:
        votes[number] = len(trained) + len(drawn[number].steps)
    best: dict[int, tuple[int, int, int]] = {}
    for number, seen in enumerate(gaps):
        for gap, offset in seen.items():
            vote = (votes[number], offset, number)
            best[gap] = max(best.get(gap, vote), vote)
    in_gap: dict[int, int] = {}
    used: int | None = None
    for gap in sorted(best):
        number = best[gap][2]
        if gap == len(trained) and number not in in_gap.values() and number not in showing:
            continue
        if used is None or votes[number] >= _TAKES_OVER * votes[used]:
            in_gap[gap] = used = number
    found = []
    last_gap = {number: gap for gap, number in in_gap.items()}
    for number in sorted({*last_gap, *showing}, key=lambda each: last_gap.get(each, -1)):
        each = drawn[number]
        counts: Sequence[int] = range(len(each.steps))
        if number not in showing and len(last_gap) > 1:
            places = enumerate(_gaps(each, trained))
            counts = [index for index, gap in places if in_gap.get(gap) == number]
        found.append((number, counts))
    return found


def _gaps(each: Drawings, trained: Sequence[int]) -> Sequence[int]:
    """Number the gap between rows of the training in which each drawing stands."""
    return [*map(bisect_left, repeat(trained), each.offsets)]


def _unfinished(drawn: Sequence[Drawings], evaluated: Sequence[int]) -> int | None:
    """Find the bar that is not at its end when an evaluation is first logged."""
    going = [
        (offset, number)
        for number, each in enumerate(drawn)
        for offset, step in zip(each.offsets, each.steps, strict=True)
        if each.bar.total is not None and step < each.bar.total
    ]
    first = min(going, default=(0, 0))[0]
    at = next((offset for offset in evaluated if offset > first), None)
    before = [place for place in going if at is not None and place[0] <= at]
    return max(before)[1] if before else None


def resumptions(offsets: Sequence[int], steps: Sequence[int], total: int | None) -> list[int]:
    """Find where a bar breaks off, begins again and jumps ahead: the training was resumed there.

    >>> resumptions([0, 10, 20, 30], [1, 2, 0, 2], 9), resumptions([0, 10, 20], [1, 0, 50], 99)
    ([], [20])
    """
    found = []
    stride, last, begins_again = 0, None, False
    for offset, step in zip(offsets, steps, strict=True):
        if last is not None and step < last:
            begins_again = step == 0 and total is not None and last < total
        elif last is not None and step > last:
            if begins_again and step > 2 * stride:
                found.append(offset)
            else:
                stride = max(stride, step - last)
            begins_again = False
        last = step
    return found
