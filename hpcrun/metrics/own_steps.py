"""Own steps: what the forms of a log say, and the steps that their lines name.

A line may name the epoch, the step within it and its length: then its step is that through all
epochs. Programs that print steps in thousands show by the first ones how far apart they are.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain, islice, pairwise, repeat, takewhile
from operator import ge, itemgetter
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hpcrun.metrics.bars import Bar
from hpcrun.metrics.names import EPOCH, LOSS, LR, STEP_SECONDS
from hpcrun.metrics.store import Form, Log

T = TypeVar("T")
# How rows have found their steps: they have their own, stand before or after a row that counts, or
# are drawn on a bar.
OWN, BEFORE, AFTER, DRAWN = "", "before", "after", "drawn"
LATE, BY_EPOCH, IN_ORDER = "late", "epoch", "order"
# How well rows tell the training's progress: any of the training, losses by the steps of other
# rows, losses drawn on a bar, losses with steps of their own.
LEVEL_OF_TRAINING, LEVEL_OF_LOSS, LEVEL_OF_DRAWN_LOSS, LEVEL_OF_OWN_LOSS = 1, 2, 3, 4
_THOUSAND = 1000
# What names more is no epoch.
_MOST_EPOCHS = 1e6
# A step beyond this is none.
_LARGEST = 1 << 62
_TRAIN = "train"


class Rows(Struct, eq=False):
    """Rows of one form, in the order of the log.

    ``side`` is how they found their steps; ``level`` how well these tell the training's progress,
    0 not at all. ``epochs``: nan where unknown; ``says_epochs``: they are not those of other rows.
    ``moved``: whether rows that were given steps stand at another one than the row before,
    ``places``: the bytes at which their own lines begin.
    ``total``: how many steps there will be, where they tell; ``length``: how many an epoch has.
    ``is_mean``: their losses say that they are means.
    """

    names: tuple[str, ...]
    columns: Sequence[Sequence[float]]
    offsets: Sequence[int]
    steps: Sequence[int]
    epochs: Sequence[float] | None
    times: Sequence[float] | None
    side: str
    level: int
    rank: int | None
    format: str
    bar: Bar | None
    total: int | None
    length: int | None = None
    says_epochs: bool = True
    moved: Sequence[bool] = ()
    places: Sequence[int] = ()
    is_mean: bool = False

    def only(self, indices: Sequence[int]) -> Rows:
        """Return the rows at some indices, which rise."""
        if len(indices) == len(self.offsets):
            return self
        return replace(
            self,
            columns=[pick(column, indices) for column in self.columns],
            offsets=pick(self.offsets, indices),
            steps=pick(self.steps, indices) if self.steps else self.steps,
            epochs=None if self.epochs is None else pick(self.epochs, indices),
            times=None if self.times is None else pick(self.times, indices),
        )

    def of(self, names: Sequence[str]) -> Rows:
        """Return the rows with some of their columns."""
        if len(names) == len(self.names):
            return self
        columns = [self.columns[self.names.index(name)] for name in names]
        return replace(self, names=tuple(names), columns=columns)


class Counted(NamedTuple):
    """The steps that a log counts, the bytes at which their lines begin, and their epochs."""

    offsets: Sequence[int]
    steps: Sequence[int]
    epochs: Sequence[float] | None


def side_of(bar: Bar) -> str:
    """Name the side of what a bar tells of its own."""
    return f"bar {bar.description} {bar.total}"


class Headings(NamedTuple):
    """The bytes at which the headings of epochs begin, and the epochs that they name."""

    offsets: Sequence[int]
    epochs: Sequence[float]


def headings_of(log: Log) -> Headings:
    """Return where the epochs of a log begin, as its marks say."""
    marks = [(each.offset, each.mark.epoch) for each in log.marks if each.mark.epoch is not None]
    return Headings([offset for offset, _ in marks], [epoch for _, epoch in marks])


def rows_of(form: Form, headings: Headings) -> Rows:
    """Return the rows of a form; the epochs may stand on the headings above them."""
    layout, names = form.layout, form.layout.names
    columns: tuple[Sequence[float], ...] = form.columns
    bar = None if layout.bar is None else Bar(layout.bar, form.total)
    level, side = LEVEL_OF_TRAINING, OWN
    if layout.split != _TRAIN:
        level = 0
    elif LOSS in names:
        level, side = (LEVEL_OF_DRAWN_LOSS, DRAWN) if bar else (LEVEL_OF_OWN_LOSS, OWN)
    epochs: Sequence[float] | None = form.epochs
    if epochs is None:
        epochs = _marked_epochs(form.offsets, headings)
    elif level and bar is None and EPOCH not in names:
        names, columns = (*names, EPOCH), (*columns, epochs)
    return Rows(
        names,
        columns,
        form.offsets,
        (unrounded(form.steps or ()) if layout.is_rounded else form.steps) or (),
        epochs,
        form.times,
        side,
        level,
        layout.rank,
        layout.format,
        bar,
        form.total,
        is_mean=layout.is_mean,
    )


def unrounded(printed: Sequence[int]) -> Sequence[int]:
    """Return the steps that were rounded to thousands, as the stride of the first ones tells.

    Those below a thousand are exact. Nothing where the stride does not lead to what was printed.

    >>> [*unrounded([400, 800, 1000, 2000, 2000])], unrounded([400, 800, 3000]), unrounded([1000])
    ([400, 800, 1200, 1600, 2000], (), [])
    """
    exact = [*takewhile(_THOUSAND.__gt__, printed)]
    if not exact or len(exact) == len(printed):
        return exact
    stride = exact[-1] - exact[-2] if len(exact) > 1 else exact[0]
    steps = range(exact[0], exact[0] + stride * len(printed), stride or 1)
    for step, known in zip(steps, printed, strict=False):
        unit = 1 if known < _THOUSAND else _THOUSAND if known < _THOUSAND**2 else _THOUSAND**2
        if abs(step - known) * 2 > unit - (unit == 1):
            return ()
    return steps if len(steps) == len(printed) else ()


def names_epochs(own: Sequence[Rows]) -> bool:
    """Whether lines of the training have an epoch, or stand below the heading of one."""
    return any(each.level and each.epochs is not None for each in own)


def with_closing_epochs(own: Sequence[Rows], rows: Sequence[Rows]) -> list[Rows]:
    """Give lines the epoch of the line that closes it: its mean loss, and the epoch's number."""
    closing = sorted(
        (offset, epoch)
        for each in rows
        if each.level and not each.steps and each.bar is None and each.epochs is not None
        for offset, epoch in zip(each.offsets, each.epochs, strict=True)
    )
    if not closing or any(b[1] <= a[1] for a, b in pairwise(closing)):
        return [*own]
    offsets = [offset for offset, _ in closing]
    epochs = [*(epoch for _, epoch in closing), closing[-1][1] + 1]
    return [
        replace(each, epochs=[epochs[at] for at in map(bisect_left, repeat(offsets), each.offsets)])
        if each.level
        else each
        for each in own
    ]


def through_epochs(own: Sequence[Rows]) -> list[Rows]:
    """Count steps through all epochs where lines name the epoch, the step in it, and its length.

    That is epoch x length + step where the step starts again as the epoch grows. Epochs count from
    0 or from 1, as the first one shows.
    """
    lengths = [
        each
        for each in own
        if each.level and each.total and each.epochs is not None and max(each.steps) <= each.total
    ]
    epochs = chain.from_iterable(each.epochs or () for each in own)
    most = max(map(abs, filter(math.isfinite, epochs)), default=0.0)
    longest = max((each.total or 0 for each in lengths), default=0)
    if most > _MOST_EPOCHS or most * longest > _LARGEST or not _starts_again(lengths):
        return [*own]
    first = min(min(filter(math.isfinite, each.epochs or ()), default=0.0) for each in lengths)
    base = 0 if first < 1 else 1
    usual = max(lengths, key=lambda each: len(each.steps)).total
    counted = []
    for each in own:
        length = each.total if each in lengths else usual
        if not each.level or each.epochs is None or not length or max(each.steps) > length:
            counted.append(each)
            continue
        if 0 in each.steps and length in each.steps:
            length += 1  # both ends are printed
        pairs = zip(each.epochs, each.steps, strict=True)
        steps = (
            (int(epoch) - base) * length + step if math.isfinite(epoch) else step
            for epoch, step in pairs
        )
        counted.append(replace(each, steps=array("q", steps), total=None, length=length))
    return counted


def _starts_again(rows: Sequence[Rows]) -> bool:
    """Whether steps fall where whole epochs grow, at half of the places at least."""
    order = merged_order([each.offsets for each in rows])
    epochs = merged(order, [each.epochs or () for each in rows])
    steps = merged(order, [each.steps for each in rows])
    if not all(map(float.is_integer, filter(math.isfinite, epochs))):
        return False
    falls = [
        after < before
        for (epoch, before), (later, after) in pairwise(zip(epochs, steps, strict=True))
        if later > epoch
    ]
    return 2 * sum(falls) >= len(falls) > 0


def _marked_epochs(offsets: Sequence[int], headings: Headings) -> Sequence[float] | None:
    """Return the epoch of the last heading before each row, nan before the first."""
    first, last = (bisect_right(headings.offsets, offset) for offset in (offsets[0], offsets[-1]))
    if not last:
        return None
    # Only those between the rows are looked at: a log may have many headings, and many forms.
    before = headings.epochs[first - 1] if first else math.nan
    epochs = array("d")
    for at in range(first, last):
        count = bisect_left(offsets, headings.offsets[at], len(epochs))
        epochs.extend(repeat(before, count - len(epochs)))
        before = headings.epochs[at]
    epochs.extend(repeat(before, len(offsets) - len(epochs)))
    return epochs


def without_summary(rows: Rows) -> Rows:
    """Leave out what is no measurement at a step.

    That is the mean loss that closes a training, beside how long it ran, and how long the steps of
    a bar take that is not the training's. With a learning rate beside it the loss is that of a
    step: a Trainer that counts tokens tells how long it has run at each.
    """
    sums_up = any(name.endswith("runtime") for name in rows.names) and LR not in rows.names
    return rows.of(
        [
            name
            for name in rows.names
            if not (sums_up and name == LOSS)
            and not (rows.bar is not None and name.endswith(STEP_SECONDS))
        ]
    )


def by_rank(rows: Iterable[Rows], side: str | None) -> list[list[Rows]]:
    """Part the rows of a side by the ranks that print them, lowest first."""
    of_rank: dict[int, list[Rows]] = {}
    for each in rows:
        if side in (None, each.side):
            of_rank.setdefault(-1 if each.rank is None else each.rank, []).append(each)
    return [of_rank[rank] for rank in sorted(of_rank)]


def join_steps(parts: Sequence[Counted]) -> Counted:
    """Join steps in the order of the log."""
    if len(parts) == 1:
        return parts[0]
    order = merged_order([each.offsets for each in parts])
    epochs = None
    if any(each.epochs is not None for each in parts):
        unknown = (each.epochs or [math.nan] * len(each.steps) for each in parts)
        epochs = merged(order, [*unknown])
    return Counted(
        merged(order, [each.offsets for each in parts]),
        merged(order, [each.steps for each in parts]),
        epochs,
    )


def merged_order(offsets: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return in which order the rows of several forms stand in the log, counted through."""
    joined = [*chain.from_iterable(offsets)]
    if all(map(ge, islice(joined, 1, None), joined)):
        return range(len(joined))
    return sorted(range(len(joined)), key=joined.__getitem__)


def merged(order: Sequence[int], columns: Sequence[Sequence[T]]) -> Sequence[T]:
    """Join columns in an order that ``merged_order`` found."""
    if len(columns) == 1:
        return columns[0]
    return pick([*chain.from_iterable(columns)], order)


def pick(column: Sequence[T], indices: Sequence[int]) -> Sequence[T]:
    """Return the values at some indices, in the kind of column that they stand in."""
    if isinstance(indices, range):
        return column[indices.start : indices.stop : indices.step]
    values: Any = itemgetter(*indices)(column) if len(indices) > 1 else [column[i] for i in indices]
    return array(column.typecode, values) if isinstance(column, array) else list(values)
