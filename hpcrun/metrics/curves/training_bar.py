"""Bars: which of a log's progress bars counts the steps of the training.

Many bars may be drawn: of loading, of tokenizing, of each evaluation. The *training bar* is the one
that moves along with the rows of the training: it was drawn last before such a row, and is drawn
again before the next. Bars are told apart by their description, its numbers aside, and their total.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from operator import itemgetter, sub
from typing import NamedTuple

from hpcrun.metrics.curves.passes import never_falls
from hpcrun.metrics.curves.placed import LEVEL_OF_DRAWN_LOSS, Rows, Steps, merge_steps

_MOST_BARS = 64
_NUMBER = re.compile(r"\d[\d.]*")
_EPOCH = re.compile(r"\bepochs?\b[\s:#\[(]*(\d{1,9})", re.IGNORECASE)
# What bars count that are not the training's, by the words of their descriptions.
_OTHER_WORK = re.compile(
    r"load|map|filter|token|pack|truncat|fetch|shard|cach|scan|generat|sav|writ|split|sampl"
    r"|eval|valid|test|predict|infer|add|appl|extract|prepar|process|pull|push|format|convert",
    re.IGNORECASE,
)


class Bar(NamedTuple):
    """A progress bar: its description without numbers, and how far it will go."""

    description: str
    total: int | None

    @property
    def counts_within_epoch(self) -> bool:
        """Whether it begins again with each epoch, as its description says."""
        return "epoch" in self.description.lower()


@lru_cache(maxsize=1024)
def bar_of(description: str, total: int | None) -> Bar:
    """Tell bars apart.

    >>> bar_of("Epoch 3/20", 935) == bar_of("Epoch 4/20", 935) != bar_of("", 935)
    True
    """
    return Bar(_NUMBER.sub("#", description), total)


@lru_cache(maxsize=1024)
def epoch_of(description: str) -> float | None:
    """Return the epoch that a bar's description names.

    >>> epoch_of("Epoch 3/20"), epoch_of("Training")
    (3.0, None)
    """
    found = _EPOCH.search(description)
    return float(found[1]) if found else None


def may_train(bar: Bar) -> bool:
    """Whether a bar's description leaves open that it counts the training.

    >>> may_train(Bar("", 500)), may_train(Bar("Loading checkpoint shards", 2))
    (True, False)
    """
    return not _OTHER_WORK.search(bar.description)


class Bars:
    """The bars of one log."""

    def __init__(self) -> None:
        """Begin without any."""
        self.training: Bar | None = None
        self._last: dict[Bar, int] = {}
        # Drawn since the last row of the training, in this order.
        self._drawn: dict[Bar, None] = {}
        self._unfinished: Bar | None = None
        # How far the training bar goes at most from one drawing to the next, and whether it was
        # begun anew before its end.
        self._stride = 0
        self._begins_anew = False

    def follow(
        self, drawn: Sequence[tuple[Bar, Rows]], trained: Iterable[Rows], evaluated: Iterable[Rows]
    ) -> tuple[Steps, list[int]]:
        """Take what stands next in the log; return the steps of the training bar, and restarts.

        ``drawn`` are the drawings of bars; ``trained`` and ``evaluated`` the other rows, of the
        training and of evaluations. A bar that shows a loss of the training is its bar. Where it
        breaks off, begins anew and jumps ahead, the run was resumed: these offsets are returned.
        """
        drawn = [
            (bar, rows) for bar, rows in drawn if _trains(rows) or (rows.level and may_train(bar))
        ]
        trained = list(trained)
        if not drawn and not self._drawn and (self.training or not self._unfinished):
            return Steps([], [], []), []
        if len(drawn) == 1 and self._only_moves_on(*drawn[0], trained):
            return merge_steps([drawn[0][1]]), []
        told: list[tuple[int, int, float | None, Bar | None, bool]] = [
            (offset, step, epoch, bar, _trains(rows))
            for bar, rows in drawn
            for offset, step, epoch in zip(
                rows.offsets, rows.steps, rows.epochs or repeat(None), strict=False
            )
        ]
        told += [(offset, -1, None, None, True) for rows in trained for offset in rows.offsets]
        if self.training is None:
            told += [(each, -1, None, None, False) for rows in evaluated for each in rows.offsets]
        told.sort(key=itemgetter(0))
        found: list[tuple[int, int, float | None]] = []
        restarts = []
        for offset, step, epoch, bar, trains in told:
            if bar is None:
                if self._choose(trains=trains) and self.training is not None:
                    found.append((offset, self._last[self.training], None))
                continue
            if self._draw(bar, step, trains=trains):
                restarts.append(offset)
            if bar == self.training:
                found.append((offset, step, epoch))
        offsets, steps, epochs = zip(*found, strict=True) if found else ((), (), ())
        return Steps(offsets, steps, epochs), restarts

    def _only_moves_on(self, bar: Bar, rows: Rows, trained: Sequence[Rows]) -> bool:
        """Take drawings of the training bar all at once, if nothing else can be learned of them."""
        if bar != self.training or self._begins_anew or not never_falls(rows.steps):
            return False
        ends = [offset for each in trained for offset in (each.offsets[0], each.offsets[-1])]
        if rows.steps[0] < self._last[bar] or (self._drawn and bar not in self._drawn):
            return False
        steps = [self._last[bar], *rows.steps]
        self._stride = max(self._stride, max(map(sub, rows.steps, steps)))
        self._last[bar] = rows.steps[-1]
        self._drawn = {} if max(ends, default=-1) > rows.offsets[-1] else {bar: None}
        if bar.total is not None and rows.steps[0] < bar.total:
            self._unfinished = bar
        return True

    def _draw(self, bar: Bar, step: int, *, trains: bool) -> bool:
        """Take a drawing; return whether the training was resumed before it."""
        last = self._last.get(bar)
        if last is None and len(self._last) >= _MOST_BARS:
            return False
        if trains:
            self.training = bar
        self._last[bar] = step
        self._drawn.pop(bar, None)
        self._drawn[bar] = None
        if bar.total is not None and step < bar.total:
            self._unfinished = bar
        return bar == self.training and last is not None and self._resumes(bar, last, step)

    def _resumes(self, bar: Bar, last: int, step: int) -> bool:
        if step < last:
            self._begins_anew = step == 0 and bar.total is not None and last < bar.total
        elif step > last:
            resumes = self._begins_anew and step > 2 * self._stride
            self._begins_anew = False
            if resumes:
                return True
            self._stride = max(self._stride, step - last)
        return False

    def _choose(self, *, trains: bool) -> bool:
        """Learn from a row of the training, or of an evaluation, which bar it belongs to.

        Return whether it is another than before.
        """
        before = self.training
        if not trains:
            self.training = before or self._unfinished
        else:
            if self._drawn and before not in self._drawn:
                self.training = next(reversed(self._drawn))
            self._drawn = {}
        return self.training != before


def _trains(rows: Rows) -> bool:
    return rows.level == LEVEL_OF_DRAWN_LOSS
