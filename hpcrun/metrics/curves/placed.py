"""Rows that have found their steps: what stands between the frames of a log and its columns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hpcrun.metrics.curves.column import NAN
from hpcrun.metrics.curves.passes import never_falls

T = TypeVar("T")
OWN, BEFORE, AFTER, DRAWN = "", "before", "after", "drawn"
# How well rows tell the training's progress: any of the training, losses by the steps of other
# rows, losses drawn on a bar, losses with steps of their own.
LEVEL_OF_TRAINING, LEVEL_OF_LOSS, LEVEL_OF_DRAWN_LOSS, LEVEL_OF_OWN_LOSS = 1, 2, 3, 4


class Steps(NamedTuple):
    """The steps that a log counts, the bytes at which their lines begin, and their epochs."""

    offsets: Sequence[int]
    steps: Sequence[int]
    epochs: Sequence[float | None]


class Kind(NamedTuple):
    """What rows have in common that stand in one order: all that makes frames differ."""

    names: tuple[str, ...]
    form: str = ""
    rank: int | None = None
    trains: bool = False
    has_epochs: bool = False
    has_times: bool = False


class Rows(Struct, gc=False):
    """Rows of a frame that have found their steps.

    ``side`` tells how: they had them themselves (OWN), or have those of the row BEFORE or AFTER
    them that counts steps, or were DRAWN on a bar. ``form`` is the format of the lines. ``level``
    says how well their steps tell the training's progress, 0 not at all. ``total`` is how many
    steps there will be, where they tell; ``on_bar``: whether they are drawings of a bar.
    """

    names: tuple[str, ...]
    side: str
    rank: int | None
    level: int
    offsets: Sequence[int]
    steps: Sequence[int]
    epochs: Sequence[float] | None
    times: Sequence[float] | None
    columns: Sequence[Sequence[float]]
    form: str = ""
    total: int | None = None
    on_bar: bool = False

    @property
    def kind(self) -> Kind:
        """Of what kind the rows are."""
        has_epochs, has_times = self.epochs is not None, self.times is not None
        return Kind(self.names, self.form, self.rank, self.level > 0, has_epochs, has_times)

    @property
    def may_be_of_several(self) -> bool:
        """Whether a step that comes again may be another process's, of which nothing is said.

        What is drawn anew all through an epoch, whose number is the step, is one process's.
        """
        drawn_anew = self.epochs is not None and list(self.epochs) == list(self.steps)
        return self.side == OWN and self.rank is None and not drawn_anew

    def cut(self, start: int, stop: int) -> Rows:
        """Return the rows from one index to another."""
        return Rows(
            self.names,
            self.side,
            self.rank,
            self.level,
            self.offsets[start:stop],
            self.steps[start:stop],
            None if self.epochs is None else self.epochs[start:stop],
            None if self.times is None else self.times[start:stop],
            [column[start:stop] for column in self.columns],
            self.form,
            self.total,
            self.on_bar,
        )

    def at(self, offsets: Sequence[int], steps: Sequence[int], side: str, level: int) -> Rows:
        """Return the rows with steps that they have found."""
        return replace(self, offsets=offsets, steps=steps, side=side, level=level)

    def in_epochs(self, epochs: Sequence[float | None]) -> Rows:
        """Return the rows with epochs that they have found, if all have."""
        known = [epoch for epoch in epochs if epoch is not None]
        return self if len(known) < len(epochs) else replace(self, epochs=known)

    def only(self, indices: Sequence[int]) -> Rows:
        """Return the rows at some indices."""
        return replace(
            self,
            offsets=[self.offsets[index] for index in indices],
            steps=[self.steps[index] for index in indices],
            epochs=None if self.epochs is None else [self.epochs[index] for index in indices],
            times=None if self.times is None else [self.times[index] for index in indices],
            columns=[[column[index] for index in indices] for column in self.columns],
        )

    def of(self, names: Sequence[str], columns: Sequence[Sequence[float]]) -> Rows:
        """Return the rows with other columns."""
        return replace(self, names=tuple(names), columns=columns)


def split(rows: Iterable[Rows], offset: int) -> tuple[list[Rows], list[Rows]]:
    """Part rows into those before a place in the log, and those from there on."""
    before, after = [], []
    for each in rows:
        at = bisect_left(each.offsets, offset)
        if at:
            before.append(each if at == len(each.offsets) else each.cut(0, at))
        if at < len(each.offsets):
            after.append(each.cut(at, len(each.offsets)) if at else each)
    return before, after


def in_turn(rows: Sequence[Rows]) -> bool:
    """Whether each of them ends before the next begins."""
    return all(one.offsets[-1] <= other.offsets[0] for one, other in pairwise(rows))


class Points(NamedTuple):
    """One metric's values by their steps; whether these rise, where it is known."""

    steps: Sequence[int]
    values: Sequence[float]
    times: Sequence[float] | None
    rising: bool | None = None


def merge(parted: Sequence[tuple[Rows, int]]) -> Points:
    """Join one metric's values of several rows, in the order of the log.

    Of rows that say the same step one after the other the last one is kept.
    """
    order = _order([each.offsets for each, _ in parted])
    steps = _join(order, [each.steps for each, _ in parted])
    values = _join(order, [each.columns[index] for each, index in parted])
    times = None
    if any(each.times is not None for each, _ in parted):
        times = _join(order, [each.times or [NAN] * len(each.offsets) for each, _ in parted])
    if not steps or not never_falls(steps):
        return Points(steps, values, times)
    last = dict(zip(steps, values, strict=True))
    moments = None if times is None else [*dict(zip(steps, times, strict=True)).values()]
    return Points([*last], [*last.values()], moments, True)


def merge_steps(rows: Sequence[Rows]) -> Steps:
    """Join the steps of several rows, in the order of the log."""
    if not rows:
        return Steps([], [], [])
    epochs: list[Sequence[float | None]] = [
        each.epochs or [None] * len(each.steps) for each in rows
    ]
    if len(rows) == 1:
        return Steps(rows[0].offsets, rows[0].steps, epochs[0])
    order = _order([each.offsets for each in rows])
    offsets = _join(order, [each.offsets for each in rows])
    return Steps(offsets, _join(order, [each.steps for each in rows]), _join(order, epochs))


def _order(offsets: Sequence[Sequence[int]]) -> list[int]:
    """Return in which order rows stand in the log, counted through."""
    joined = [*chain.from_iterable(offsets)]
    return sorted(range(len(joined)), key=joined.__getitem__)


def _join(order: Sequence[int], columns: Iterable[Sequence[T]]) -> list[T]:
    joined = [*chain.from_iterable(columns)]
    return [joined[at] for at in order] if joined else []
