"""Own steps: what the forms of a log say, and the steps that their lines name.

- Programs that print steps in thousands show by the first ones how far apart they are.
- A line may name the epoch, the step within it and its length: its step is that through all epochs.
- The batches of an evaluation may be printed as those of the training, below a heading or not. Then
  the counter runs to one end, begins again and runs to another, and so forth in turns: what ends
  first is the training. Of an evaluation the last row counts, its mean over all batches.
- A line that closes an epoch may name its mean loss. Where the batches have named theirs it is none
  of the curve; nor is the mean over all steps that closes a training, beside how long it ran.
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, chain, cycle, islice, pairwise, repeat, takewhile
from operator import add, itemgetter, lt, ne
from typing import Any, NamedTuple, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from hpcrun.metrics.names import EPOCH, EVAL_LOSS, LOSS, LR, OF_THE_RUN, STEP_SECONDS, name_in
from hpcrun.metrics.passes import Guide, rises, starts_with_each_epoch
from hpcrun.metrics.store import Form, Log

T = TypeVar("T")
# How rows have found their steps: they have their own, stand beside a row that counts, or are drawn
# on a bar.
OWN, PLACED, DRAWN = "", "placed", "drawn"
# How a metric without steps is placed else.
BY_EPOCH, IN_ORDER = "epoch", "order"
# How well rows tell the training's progress: any of the training, losses by the steps of other
# rows, losses drawn on a bar, losses with steps of their own.
LEVEL_OF_TRAINING, LEVEL_OF_LOSS, LEVEL_OF_DRAWN_LOSS, LEVEL_OF_OWN_LOSS = 1, 2, 3, 4
_TRAIN = "train"
_THOUSAND = 1000
# What names more is no epoch; a step beyond this is none.
_MOST_EPOCHS = 1e6
_LARGEST = 1 << 62
# Training and validation take turns, or a test comes third.
_TURNS = (2, 3)
# There are at least this many losses of batches to each mean of an epoch.
_BATCHES = 2
# What bars count that are not the training's, by the words of their descriptions.
_OTHER_WORK = re.compile(
    r"load|map|filter|token|pack|truncat|fetch|shard|cach|scan|generat|sav|writ|split|sampl"
    r"|eval|valid|test|predict|infer|add|appl|extract|prepar|process|pull|push|format|convert",
    re.IGNORECASE,
)
# Columns are merged in parts of this length: their numbers, boxed, take far more than is stored.
_PART = 1 << 13


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

    @property
    def side(self) -> str:
        """The side of what it shows of its own."""
        return f"bar {self.description} {self.total}"


class Rows(Struct, eq=False):
    """Rows of one form, in the order of the log.

    ``side`` is how they found their steps; ``level`` how well these tell the training's progress,
    0 not at all. ``epochs``: nan where unknown. ``total``: how many steps there will be, where they
    tell; ``length``: how many an epoch has. ``is_mean``: their losses say that they are means.
    ``places``: the steps of the different places that rows without own steps were given.
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
    bar: Bar | None
    total: int | None
    is_mean: bool = False
    length: int | None = None
    places: Sequence[int] = ()

    @property
    def has_losses(self) -> bool:
        """Whether they are losses of the training."""
        return self.level > 0 and LOSS in self.names

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
    """Numbers that a log counts, the bytes at which their lines begin, and the steps' epochs."""

    offsets: Sequence[Any]
    steps: Sequence[Any]
    epochs: Sequence[float] | None = None

    def above(self, offsets: Sequence[int]) -> Sequence[int]:
        """Return how many of them stand above each place in the log.

        >>> Counted([10, 20, 30], [1, 2, 3]).above([5, 15, 35])
        array('q', [0, 1, 3])
        """
        found = array("q")
        for start in range(0, len(offsets), _PART):
            part = offsets[start : start + _PART]
            first, last = (bisect_right(self.offsets, place) for place in (part[0], part[-1]))
            between = [*self.offsets[first:last]]
            found.extend(map(first.__add__, map(bisect_right, repeat(between), part)))
        return found


def read_rows(log: Log) -> list[Rows]:
    """Return the rows of a log: of the training, with the steps through all epochs; and others."""
    marks = [each for each in log.marks if each.mark.epoch is not None]
    epochs = [each.mark.epoch for each in marks]
    headings = Counted([each.offset for each in marks], [math.nan, *epochs])
    rows = [_rows_of(form, headings) for form in log.forms.values()]
    splits = [each.mark.split for each in marks]
    if 0 < 2 * sum(map(bool, splits)) <= len(splits):  # the training has headings, too
        rows = [part for each in rows for part in _by_split(each, headings, splits)]
    rows = _without_evaluations(_without_means(rows))
    if not any(_has_steps(each) and each.epochs is not None for each in rows):
        rows = _with_closing_epochs(rows)
    return _through_epochs(rows)


def _has_steps(rows: Rows) -> bool:
    """Whether they are lines of the training with steps of their own."""
    return rows.level > 0 and len(rows.steps) > 0 and rows.bar is None


def _rows_of(form: Form, headings: Counted) -> Rows:
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
        epochs = epochs_above(form.offsets, headings)
    elif level and bar is None and EPOCH not in names:
        names, columns = (*names, EPOCH), (*columns, epochs)
    steps: Sequence[int] = form.steps or ()
    if layout.is_rounded:
        steps = unrounded(steps)
    places = (form.offsets, steps, epochs, form.times)
    return Rows(names, columns, *places, side, level, layout.rank, bar, form.total, layout.is_mean)


def _by_split(rows: Rows, headings: Counted, splits: Sequence[str]) -> list[Rows]:
    """Part rows without steps into those of the training and those below "Eval epoch: 3"."""
    if not rows.level or rows.bar is not None or len(rows.steps):
        return [rows]
    above = [("", *splits)[count] for count in headings.above(rows.offsets)]
    parts = []
    for split in dict.fromkeys(above):
        part = rows.only([index for index, each in enumerate(above) if each == split])
        names = tuple(name_in(split, name) for name in rows.names)
        parts.append(replace(part, names=names, level=0) if split else part)
    return parts


def unrounded(printed: Sequence[int]) -> Sequence[int]:
    """Return the steps that were rounded to thousands, as the stride of the first ones tells.

    Those below a thousand are exact. Where they fall the run was resumed, at the first step that
    leads to what was printed. Nothing where the stride does not lead to it.

    >>> [*unrounded([400, 800, 1000, 2000, 2000])], unrounded([400, 800, 3000]), unrounded([1000])
    ([400, 800, 1200, 1600, 2000], (), ())
    >>> [*unrounded([400, 800, 1000, 2000, 1000, 2000])]
    [400, 800, 1200, 1600, 1200, 1600]
    """
    exact = [*takewhile(_THOUSAND.__gt__, printed)]
    if not exact:
        return ()
    stride = (exact[-1] - exact[-2] if len(exact) > 1 else exact[0]) or 1
    steps = array("q")
    falls = (at for at in range(1, len(printed)) if printed[at] < printed[at - 1])
    for begin, end in pairwise([0, *falls, len(printed)]):
        # Where the run may have begun, as each of its steps tells.
        low, high = 0, _LARGEST
        for place, step in enumerate(printed[begin:end]):
            unit = next((unit for unit in (_THOUSAND**2, _THOUSAND) if step >= unit), 0)
            low = max(low, max(step - unit // 2, unit) - stride * place)
            high = min(high, step + unit // 2 - stride * place)
        first = low if low == high else low + (exact[0] - low) % stride
        if not low <= first <= high:
            return ()
        steps.extend(range(first, first + stride * (end - begin), stride))
    return steps


def epochs_above(offsets: Sequence[int], headings: Counted) -> Sequence[float] | None:
    """Return the epoch of the last heading above each row; the first one is that above all, nan."""
    if not headings.offsets or offsets[-1] < headings.offsets[0]:
        return None
    return array("d", pick(headings.steps, headings.above(offsets)))


def _without_means(rows: Sequence[Rows]) -> list[Rows]:
    """Leave out the mean losses of epochs where no line has a step and batches name theirs."""
    rows = [replace(each, steps=()) if _counts_the_epoch(each) else each for each in rows]
    lost = [each for each in rows if each.has_losses and each.bar is None]
    means = [each for each in lost if each.is_mean or EVAL_LOSS in each.names]
    batches = [each for each in lost if each not in means]
    count, of_means = (sum(len(each.offsets) for each in rows) for rows in (batches, means))
    if not means or count < _BATCHES * of_means or any(each.steps for each in lost):
        return rows
    shown, closed = (
        {*filter(math.isfinite, chain.from_iterable(each.epochs or () for each in rows))}
        for rows in (batches, means)
    )
    if shown and closed - shown:
        return rows  # a table may have both losses in some rows: those are of epochs of their own
    return [
        each.of([name for name in each.names if name != LOSS]) if each in means else each
        for each in rows
    ]


def _counts_the_epoch(rows: Rows) -> bool:
    """Whether the steps are how many an epoch has: "Epoch: 5, Steps: 540"."""
    steps, epochs = rows.steps, rows.epochs
    if epochs is None or not _has_steps(rows) or rows.total:
        return False
    return 1 < len(steps) == steps.count(steps[0]) and all(map(lt, epochs, epochs[1:]))


def _without_evaluations(rows: Sequence[Rows]) -> list[Rows]:
    """Take the rows of evaluations for what they are.

    >>> steps = [1, 2, 3, 1, 1, 2, 3, 1]
    >>> losses = [9.0, 8.0, 7.0, 7.5, 6.0, 5.0, 4.0, 4.5]
    >>> rows = Rows((LOSS,), [losses], range(8), steps, None, None, OWN, 4, None, None, None)
    >>> [(each.names, *each.columns) for each in _without_evaluations([rows])]
    [(('loss',), [9.0, 8.0, 7.0, 6.0, 5.0, 4.0]), (('eval_loss',), [7.5, 4.5])]
    """
    counting = [each for each in rows if _has_steps(each) and each.has_losses]
    if len({each.rank for each in counting}) != 1:
        return [*rows]
    offsets, steps, _ = join_steps(counting)
    begins = [0, *(at for at in range(1, len(steps)) if steps[at] <= steps[at - 1])]
    ends = [at - 1 for at in (*begins[1:], len(steps))]
    turns = _turns([steps[at] for at in ends])
    if not turns:
        return [*rows]
    first, last = [offsets[at] for at in begins], {offsets[at] for at in ends}
    found = []
    for each in rows:
        if each not in counting:
            found.append(each)
            continue
        turn = [(bisect_right(first, offset) - 1) % turns for offset in each.offsets]
        found.append(each.only([at for at, number in enumerate(turn) if number == 0]))
        closing = [at for at, number in enumerate(turn) if number == 1 and each.offsets[at] in last]
        evaluated = each.of([name for name in each.names if name not in OF_THE_RUN]).only(closing)
        names = tuple(name_in("eval", name) for name in evaluated.names)
        found.append(replace(evaluated, names=names, level=0, steps=()))
    return [each for each in found if each.offsets]


def _turns(ends: Sequence[int]) -> int:
    """Return how many phases take turns, as where their counters end tells; 0 if none do.

    >>> _turns([600, 80, 600, 80, 350]), _turns([600, 600, 600, 20]), _turns([100, 90, 80, 70])
    (2, 0, 0)
    """
    for turns in _TURNS:
        *whole, last = islice(cycle(ends[:turns]), len(ends))
        take_turns = len(ends) >= 2 * turns and max(whole[1:turns]) < whole[0]
        if take_turns and whole == ends[:-1] and ends[-1] <= last:
            return turns
    return 0


def _with_closing_epochs(rows: Sequence[Rows]) -> list[Rows]:
    """Give lines the epoch of the line that closes it: its mean loss, and the epoch's number."""
    closes = [each for each in rows if each.level and not each.steps and each.bar is None]
    closing = join_steps([replace(each, steps=each.epochs) for each in closes if each.epochs])
    if not closing.steps or not rises(closing.steps):
        return [*rows]
    epochs = [*closing.steps, closing.steps[-1] + 1]
    return [
        replace(each, epochs=pick(epochs, closing.above(each.offsets)))
        if _has_steps(each)
        else each
        for each in rows
    ]


def _through_epochs(rows: Sequence[Rows]) -> list[Rows]:
    """Count steps through all epochs where lines name the epoch, the step in it, and its length.

    That is epoch x length + step where the step starts again as the epoch grows. Epochs count from
    0 or from 1, as the first one shows.
    """
    own = [each for each in rows if _has_steps(each) and each.epochs is not None]
    lengths = [each for each in own if each.total and max(each.steps) <= each.total]
    counted = join_steps(lengths)
    epochs = [*filter(math.isfinite, counted.epochs or ())]
    most = max(
        map(abs, filter(math.isfinite, chain(*(each.epochs or () for each in own)))), default=0
    )
    longest = max((each.total or 0 for each in lengths), default=0)
    if most > _MOST_EPOCHS or most * longest > _LARGEST or not all(map(float.is_integer, epochs)):
        return [*rows]
    is_one_an_epoch = all(map(ne, epochs, epochs[1:]))
    if is_one_an_epoch or not starts_with_each_epoch(
        [Guide(counted.offsets, counted.steps, counted.epochs or ())]
    ):
        return [*rows]
    base = 0 if min(epochs) < 1 else 1
    usual = max(lengths, key=lambda each: len(each.steps)).total or 0
    found = []
    for each in rows:
        length = (each.total or 0) if each in lengths else usual
        if each not in own or max(each.steps) > length:
            found.append(each)
            continue
        if 0 in each.steps and length in each.steps:
            length += 1  # both ends are printed
        steps = array("q")
        for epoch, step in zip(each.epochs or (), each.steps, strict=True):
            steps.append((int(epoch) - base) * length + step if math.isfinite(epoch) else step)
        found.append(replace(each, steps=steps, total=None, length=length))
    return found


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


def join_steps(rows: Sequence[Rows | Counted]) -> Counted:
    """Join steps and their epochs in the order of the log."""
    if not rows:
        return Counted((), ())
    order = merged_order([each.offsets for each in rows])
    epochs: Sequence[float] | None = None
    if any(each.epochs is not None for each in rows):
        unknown = (each.epochs or array("d", [math.nan]) * len(each.steps) for each in rows)
        epochs = merged(order, [*unknown])
    return Counted(
        merged(order, [each.offsets for each in rows]),
        merged(order, [each.steps for each in rows]),
        epochs,
    )


def merged_order(offsets: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return in which order the rows of several forms stand in the log, counted through."""
    offsets = [each for each in offsets if len(each)]
    joined = _joined(offsets)
    if all(last[-1] <= first[0] for last, first in pairwise(offsets)):
        return range(len(joined))
    order = array("q")
    starts = [*accumulate(map(len, offsets), initial=0)][:-1]
    begins = [0] * len(offsets)
    for end in (*max(offsets, key=len)[_PART::_PART], math.inf):
        ends = [*map(bisect_left, offsets, repeat(end), begins)]
        parts = map(range, map(add, starts, begins), map(add, starts, ends))
        order.extend(sorted(chain.from_iterable(parts), key=joined.__getitem__))
        begins = ends
    return order


def merged(order: Sequence[int], columns: Sequence[Sequence[T]]) -> Sequence[T]:
    """Join columns in an order that ``merged_order`` found."""
    return columns[0] if len(columns) == 1 else pick(_joined(columns), order)


def pick(column: Sequence[T], indices: Sequence[int]) -> Sequence[T]:
    """Return the values at some indices, in the kind of column that they stand in."""
    if isinstance(indices, range):
        return column[indices.start : indices.stop : indices.step]
    kind = _kind(column)
    found = kind(())
    for start in range(0, len(indices), _PART):
        part = indices[start : start + _PART]
        found += kind(itemgetter(*part)(column) if len(part) > 1 else (column[part[0]],))
    return cast("Sequence[T]", found)


def _joined(columns: Sequence[Sequence[T]]) -> Sequence[T]:
    found = _kind(columns[0] if columns else ())(())
    for each in columns:
        found.extend(each)
    return cast("Sequence[T]", found)


def _kind(column: Sequence[T]) -> Callable[[Iterable[T]], Any]:
    """Return what makes a column of the same kind: an array, or a list."""
    return partial(array, column.typecode) if isinstance(column, array) else list
