"""Rows of one layout of a log as columns, with what is known about their position.

Rows are built from the stored columns (``own_steps``), are given the scope of their context
(``scope``) and steps (``steps``), and become the points of a curve (``derive``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from hpcrun.curves.names import LOSS
from hpcrun.curves.passes import CountedSteps, Floats, Ints, find_changes

# Sources of the steps of rows: their own lines, neighbouring rows, or a progress bar.
OWN_STEP, FROM_NEIGHBOUR, FROM_BAR = "", "placed", "drawn"
# How well rows show the progress of the training: any of its rows, losses with the steps of other
# rows, losses on a bar, losses with steps of their own. 0: not rows of the training.
PRIORITY_TRAINING, PRIORITY_PLACED_LOSS, PRIORITY_DRAWN_LOSS, PRIORITY_OWN_LOSS = 1, 2, 3, 4
# Descriptions of progress bars that do not belong to the training loop.
_OTHER_WORK = re.compile(
    r"load|read|map|filter|token|pack|truncat|fetch|shard|cach|scan|generat|sav|writ|split|sampl"
    r"|eval|valid|test|predict|infer|add|appl|extract|prepar|process|pull|push|format|convert",
    re.IGNORECASE,
)


class ProgressBar(NamedTuple):
    """A progress bar: its description without numbers, and its total."""

    description: str
    total: int | None

    @property
    def may_train(self) -> bool:
        """True unless its description names other work than training.

        >>> ProgressBar("", 500).may_train, ProgressBar("Loading checkpoint shards", 2).may_train
        (True, False)
        """
        return not _OTHER_WORK.search(self.description)

    @property
    def source(self) -> str:
        """The source of the steps of metrics that only this bar shows."""
        return f"bar {self.description} {self.total}"


class Rows(Struct, eq=False):
    """Rows of one layout, in the order of the log, as columns of one length.

    Attributes:
        names: metrics, one for each of ``columns``.
        offsets: bytes at which the lines begin.
        steps, epochs, times: None if no row has one; nan where a row lacks an epoch or a time.
        source: where the steps come from.
        priority: how well the rows show the progress of the training, 0 if not at all.
        total: total number of steps, if known.
        span: what the values cover (``row.Scope``).
        length: number of steps of an epoch, if known.
        distinct_steps: how many distinct steps were assigned to rows that had none.
        is_result: the lines state scores without a position, which count only below the training.
        is_scoped: the lines name their split.
    """

    names: tuple[str, ...]
    columns: Sequence[Floats]
    offsets: Ints
    steps: Ints | None
    epochs: Floats | None
    times: Floats | None
    source: str
    priority: int
    rank: int | None
    bar: ProgressBar | None
    total: int | None
    span: str = "step"
    length: int | None = None
    distinct_steps: int = 0
    is_result: bool = False
    is_scoped: bool = False

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.offsets)

    @property
    def has_losses(self) -> bool:
        """True for losses of the training."""
        return self.priority > 0 and LOSS in self.names

    @property
    def has_own_steps(self) -> bool:
        """True for lines of the training with steps of their own."""
        return self.priority > 0 and self.steps is not None and self.bar is None

    @property
    def highest(self) -> int:
        """The highest step, or 0."""
        return 0 if self.steps is None else int(self.steps.max())

    def column(self, name: str) -> Floats:
        """Return the values of a metric."""
        return self.columns[self.names.index(name)]

    def select(self, which: NDArray[Any]) -> Rows:
        """Return some of the rows, by indices or a mask."""
        return replace(
            self,
            columns=[column[which] for column in self.columns],
            offsets=self.offsets[which],
            steps=None if self.steps is None else self.steps[which],
            epochs=None if self.epochs is None else self.epochs[which],
            times=None if self.times is None else self.times[which],
        )

    def select_columns(self, names: Sequence[str]) -> Rows:
        """Return the rows with only these metrics."""
        return replace(self, names=tuple(names), columns=[self.column(name) for name in names])


def join_columns(columns: Iterable[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate columns; without any, return an empty one. A single column is not copied."""
    first, *others = [*columns] or [np.empty(0, np.int64)]
    return np.concatenate([first, *others]) if others else first


def fill_missing(column: Floats | None, count: int) -> Floats:
    """Return a column, or a column of nan if it is None."""
    return np.full(count, math.nan) if column is None else column


def join_epochs(rows: Sequence[Rows]) -> tuple[Ints, Floats]:
    """Join the epochs of rows in the order of the log; return their offsets and the epochs."""
    known = [(each.offsets, each.epochs) for each in rows if each.epochs is not None]
    offsets, epochs = (
        join_columns(each for each, _ in known),
        join_columns(each for _, each in known),
    )
    order = np.argsort(offsets, kind="stable")
    return offsets[order], epochs[order]


def known_epochs(rows: Sequence[Rows]) -> Floats:
    """Return all known epochs of rows."""
    epochs = join_epochs(rows)[1]
    return epochs[np.isfinite(epochs)]


def join_steps(rows: Sequence[Rows]) -> CountedSteps:
    """Join the steps of rows in the order of the log."""
    offsets = join_columns(each.offsets for each in rows)
    order = np.argsort(offsets, kind="stable")
    steps = join_columns(each.steps for each in rows if each.steps is not None)[order]
    epochs = lengths = None
    if any(each.epochs is not None for each in rows):
        epochs = join_columns(fill_missing(each.epochs, len(each)) for each in rows)[order]
    ends = [each.length or each.total for each in rows]
    if len({*ends}) > 1:
        numbers = [-1 if end is None else end for end in ends]
        lengths = np.repeat(numbers, [*map(len, rows)])[order]
        if find_changes(lengths).sum() != len({*ends}):
            lengths = None
    total = max((each.total for each in rows if each.total is not None), default=None)
    is_bar = any(each.bar is not None for each in rows)
    return CountedSteps(offsets[order], steps, epochs, total, lengths, is_bar)
