"""Own steps: what the forms of a log say, and the steps that their lines name.

- Programs that print steps in thousands show by the first ones how far apart they are.
- A line may name the epoch, the step within it and its length: its step is that through all epochs.
  The epoch may stand on the heading above, the length on the line that closes the epoch.
- Of an evaluation that prints its batches the last row counts, its mean over all of them.
- What several lines say counts once: of print and logging, of processes, of a table at the end.
- A line that closes an epoch may name its mean loss. Where the batches have named theirs it is none
  of the curve; nor is the mean over all steps that closes a training, beside how long it ran.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from hpcrun.curves.curve import rises
from hpcrun.curves.names import EPOCH, EVAL_LOSS, LOSS, LOSSES, LR, STEP_SECONDS, name_in
from hpcrun.curves.passes import Bools, Counted, Floats, Ints, changes, starts_with_each_epoch
from hpcrun.curves.store import Form, Log

# How rows have found their steps: they have their own, stand beside a row that counts, or are drawn
# on a bar.
OWN, PLACED, DRAWN = "", "placed", "drawn"
# How well rows show the training's progress: any of the training, losses by the steps of other
# rows, losses drawn on a bar, losses with steps of their own.
LEVEL_OF_TRAINING, LEVEL_OF_LOSS, LEVEL_OF_DRAWN_LOSS, LEVEL_OF_OWN_LOSS = 1, 2, 3, 4
_TRAIN = "train"
_THOUSAND = 1000
# What names more is no epoch; a step beyond this is none.
_MOST_EPOCHS = 1e6
_LARGEST = 1 << 62
# No processes print more rows at one step. Fewer do not show that their steps rise and fall.
_STUCK, _FEWEST = 64, 8
# Two values are the same if they differ by less than this share.
_CLOSE = 1e-3
# Two forms say the same if so many of their rows do. A form is compared with the longest ones.
_MOST, _COMPARED = 0.9, 16
# Rows are printed by several, if so many of them come equally often.
_TWICE = 0.8
# There are at least this many losses of batches to each mean of an epoch.
_BATCHES = 2
# An evaluation has no more batches than the training, or hardly.
_ALIKE = 1.1
# What bars count that are not the training's, by the words of their descriptions.
_OTHER_WORK = re.compile(
    r"load|read|map|filter|token|pack|truncat|fetch|shard|cach|scan|generat|sav|writ|split|sampl"
    r"|eval|valid|test|predict|infer|add|appl|extract|prepar|process|pull|push|format|convert",
    re.IGNORECASE,
)


class Bar(NamedTuple):
    """A progress bar: its description without numbers, and how far it will go."""

    description: str
    total: int | None

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
    """Rows of one form, in the order of the log: columns of one length.

    ``steps``, ``epochs`` and ``times``: None where the rows have none; nan is an epoch or a time
    that one of them lacks. ``side`` is how they found their steps; ``level`` how well these show
    the training's progress, 0 not at all. ``total``: how many steps there will be, if known;
    ``length``: how many an epoch has. ``is_mean``: their losses say that they are means.
    ``places``: how many different places rows without own steps were given.
    """

    names: tuple[str, ...]
    columns: Sequence[Floats]
    offsets: Ints
    steps: Ints | None
    epochs: Floats | None
    times: Floats | None
    side: str
    level: int
    rank: int | None
    bar: Bar | None
    total: int | None
    is_mean: bool = False
    length: int | None = None
    places: int = 0

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.offsets)

    @property
    def has_losses(self) -> bool:
        """Whether they are losses of the training."""
        return self.level > 0 and LOSS in self.names

    @property
    def has_own_steps(self) -> bool:
        """Whether they are lines of the training with steps of their own."""
        return self.level > 0 and self.steps is not None and self.bar is None

    @property
    def highest(self) -> int:
        """The highest step, 0 without any."""
        return 0 if self.steps is None else int(self.steps.max())

    def column(self, name: str) -> Floats:
        """Return the values of a metric."""
        return self.columns[self.names.index(name)]

    def only(self, which: NDArray[Any]) -> Rows:
        """Return some of the rows, by their numbers or as a mask says."""
        return replace(
            self,
            columns=[column[which] for column in self.columns],
            offsets=self.offsets[which],
            steps=None if self.steps is None else self.steps[which],
            epochs=None if self.epochs is None else self.epochs[which],
            times=None if self.times is None else self.times[which],
        )

    def of(self, names: Sequence[str]) -> Rows:
        """Return the rows with some of their columns."""
        return replace(self, names=tuple(names), columns=[self.column(name) for name in names])


def read_rows(log: Log) -> list[Rows]:
    """Return the rows of a log: of the training, with the steps through all epochs; and others."""
    marks = [each for each in log.marks if each.epoch is not None]
    if len(marks) == 1 and (marks[0].epoch or 0.0) > 1:
        marks = []  # "epoch = 100" is a setting
    headings = np.array([each.offset for each in marks], dtype=np.int64)
    epochs = np.array([each.epoch for each in marks], dtype=np.float64)
    rows = [_rows_of(form, headings, epochs) for form in log.forms.values()]
    rows = _evaluations_in_turn(_without_redrawn(log, rows, headings))
    splits = [each.split for each in marks]
    if 0 < 2 * sum(map(bool, splits)) <= len(splits):  # the training has headings, too
        rows = [part for each in rows for part in _by_split(each, headings, splits)]
    rows = _without_means(_without_repeats(_without_batches(rows, headings)))
    return _through_epochs(rows)


def _rows_of(form: Form, headings: Ints, epochs_of: Floats) -> Rows:
    """Return the rows of a form; the epochs may stand on the headings above them."""
    layout, names, columns = form.layout, form.layout.names, [*map(np.asarray, form.columns)]
    bar = None if layout.bar is None else Bar(layout.bar, form.total)
    level, side = LEVEL_OF_TRAINING, OWN
    if layout.split != _TRAIN:
        level = 0
    elif LOSS in names:
        level, side = (LEVEL_OF_DRAWN_LOSS, DRAWN) if bar else (LEVEL_OF_OWN_LOSS, OWN)
    offsets = np.asarray(form.offsets)
    steps, epochs, times = (
        None if column is None else np.asarray(column)
        for column in (form.steps, form.epochs, form.times)
    )
    if epochs is None:
        epochs = epochs_above(
            offsets, headings, epochs_of, 1 if level and form.steps is None else 0
        )
    elif level and bar is None and EPOCH not in names:
        names, columns = (*names, EPOCH), [*columns, epochs]
    if steps is not None and layout.is_rounded:
        steps = unrounded(steps)
    may_end = bar and side == DRAWN and epochs is None and len(offsets) > 2
    if may_end and steps is not None and int(steps.min()) == form.total:  # only its ends are drawn
        bar, steps, level, side = None, None, LEVEL_OF_OWN_LOSS, OWN
    places = (offsets, steps, epochs, times)
    own = layout.rank, bar, form.total, layout.is_mean
    return _without_twins(Rows(names, columns, *places, side, level, *own))


def _without_redrawn(log: Log, rows: Sequence[Rows], headings: Ints) -> list[Rows]:
    """Leave out the drawings of Keras's bar before the last one of each epoch.

    Each shows the mean of the epoch so far.
    """
    drawn = [
        np.asarray(form.offsets) for form in log.forms.values() if form.layout.format == "keras"
    ]
    offsets = np.sort(join(drawn))
    above = np.searchsorted(headings, offsets, "right")
    redrawn = offsets[:-1][above[1:] == above[:-1]]
    kept = [each.only(~np.isin(each.offsets, redrawn)) for each in rows] if headings.size else rows
    return [each for each in kept if len(each)]


def _evaluations_in_turn(rows: Sequence[Rows]) -> list[Rows]:
    """Take for an evaluation's what stands in the training's form and takes turns with it.

    It counts to another end, no further one, and to its end each time, as no bar of epochs around
    one of batches does; what it shows there is the mean. The training begins.
    """
    found = [*rows]
    counted = [each for each in rows if each.has_losses and each.total and each.steps is not None]
    kinds: dict[tuple[object, ...], list[Rows]] = {}
    for x in sorted(counted, key=lambda x: x.offsets[0]):
        kinds.setdefault((x.bar.description if x.bar else None, x.rank, x.names), []).append(x)
    for kind, same in kinds.items():
        totals = [*dict.fromkeys(each.total for each in same)]
        if len(totals) != 2 or (totals[1] or 0) > _ALIKE * (totals[0] or 0):
            continue
        others = [each for each in same if each.total == totals[1]]
        known = [{*_epochs_of([x for x in same if x.total == end]).tolist()} for end in totals]
        if len(known[0] ^ known[1]) > 1 or not (known[0] or kind[0] is not None):
            continue  # each epoch is trained and evaluated
        drawn = join_steps(others)
        trained = np.sort(join(each.offsets for each in same if each.total == totals[0]))
        turns = np.searchsorted(trained, drawn.offsets)
        is_end = np.append(turns[1:] != turns[:-1], True)
        ends = drawn.steps[is_end]
        if len(ends) < 2 or (ends[:-1] != totals[1]).any():
            continue
        found = [each for each in found if each not in others]
        for each in others:
            shown = each.only(np.isin(each.offsets, drawn.offsets[is_end]))
            shown = shown.of([name for name in each.names if name != STEP_SECONDS])
            names = tuple(name_in("eval", name) for name in shown.names)
            found.append(replace(shown, names=names, level=0, steps=None, bar=None, side=OWN))
    return [each for each in found if len(each)]


def _without_twins(rows: Rows) -> Rows:
    """Leave out what is printed twice, by print and by logging, or by each of several processes."""
    epochs = rows.epochs
    if rows.steps is not None or epochs is None or (np.floor(epochs) != epochs).any():
        return rows
    first = np.flatnonzero(np.any([changes(each) for each in (*rows.columns, epochs)], axis=0))
    counts = np.diff(np.append(first, len(rows)))
    often = (counts > 1) & (counts == counts[0])
    return rows.only(first) if often.mean() >= _TWICE else rows


def _by_split(rows: Rows, headings: Ints, splits: Sequence[str]) -> list[Rows]:
    """Part rows without steps into those of the training and those below "Eval epoch: 3"."""
    if not rows.level or rows.bar is not None or rows.steps is not None:
        return [rows]
    above = np.array(["", *splits])[np.searchsorted(headings, rows.offsets, "right")]
    parts = []
    for split in dict.fromkeys(above.tolist()):
        part = rows.only(above == split)
        names = tuple(name_in(split, name) for name in rows.names)
        parts.append(replace(part, names=names, level=0) if split else part)
    return parts


def unrounded(printed: Ints) -> Ints | None:
    """Return the steps that were rounded to thousands, as the stride of the first ones shows.

    Those below a thousand are exact. Where they fall the run was resumed, at the first step that
    leads to what was printed. None where the stride does not lead to it.

    >>> unrounded(np.array([400, 800, 1000, 2000, 2000, 1000, 2000])).tolist()
    [400, 800, 1200, 1600, 2000, 1200, 1600]
    >>> unrounded(np.array([400, 800, 3000])), unrounded(np.array([1000]))
    (None, None)
    """
    exact = [*takewhile(_THOUSAND.__gt__, printed.tolist())]
    if not exact:
        return None
    stride = (exact[-1] - exact[-2] if len(exact) > 1 else exact[0]) or 1
    steps = []
    for part in np.split(printed, np.flatnonzero(printed[1:] < printed[:-1]) + 1):
        # Where the run may have begun, as each of its steps shows.
        counted = np.arange(len(part)) * stride
        unit = np.select([part >= _THOUSAND**2, part >= _THOUSAND], [_THOUSAND**2, _THOUSAND], 0)
        low = max(0, int((np.maximum(part - unit // 2, unit) - counted).max()))
        high = min(_LARGEST, int((part + unit // 2 - counted).min()))
        first = low if low == high else low + (exact[0] - low) % stride
        if not low <= first <= high:
            return None
        steps.append(first + counted)
    return np.concatenate(steps)


def epochs_above(offsets: Ints, headings: Ints, epochs: Floats, least: int) -> Floats | None:
    """Return the epoch of the last heading above each row; None below none.

    Above all it is the one before, if that is not below the ``least`` there is.
    """
    if not headings.size or offsets[-1] < headings[0]:
        return None
    first = epochs[0] - 1 if epochs[0] > least else math.nan
    found: Floats = np.append(first, epochs)[np.searchsorted(headings, offsets, "right")]
    return found


def _without_batches(rows: Sequence[Rows], headings: Ints) -> list[Rows]:
    """Keep the last row of an evaluation that counts its batches: it shows the mean of all.

    Nothing is kept of what a line without a counter then names.
    """
    trained = np.sort(join([headings, *(each.offsets for each in rows if each.level)]))
    evaluations = [each for each in rows if not each.level and each.bar is None]
    closing = [each for each in evaluations if not each.total and each.steps is None]
    closed = {name for each in closing for name in each.names}
    found = []
    for each in rows:
        if each.total and each in evaluations:
            gaps = np.searchsorted(trained, each.offsets)
            is_last = np.append(gaps[1:] != gaps[:-1], True)
            if _starts_behind(each, is_last):
                each = each.only(is_last).of([name for name in each.names if name not in closed])
                each.steps = None
        found.append(each)
    return found


def _starts_behind(rows: Rows, is_last: Bools) -> bool:
    """Whether the steps start again behind the last row of each evaluation, and nowhere else."""
    if rows.steps is None:
        return True
    falls = rows.steps[1:] < rows.steps[:-1]
    return bool(falls.any() and (falls == is_last[:-1]).all())


def _without_repeats(rows: Sequence[Rows]) -> list[Rows]:
    """Leave out losses that another line names, too, beside the step or epoch that they lack.

    And those that an earlier line named in the same order: a table behind the training.
    """
    compared = {*LOSSES, EPOCH}
    longest: dict[object, list[Rows]] = {}
    lines = [each for each in rows if each.bar is None and compared.intersection(each.names)]
    for each in sorted(lines, key=len, reverse=True):
        for name in compared.intersection(each.names):
            others = longest.setdefault((name, each.rank), [])
            others += [each] if len(others) < _COMPARED else []
    found = {}
    for each in lines:
        repeated = {
            name
            for name in compared.intersection(each.names)
            if any(_repeats(each, other, name) for other in longest[name, each.rank])
        }
        kept = [name for name in each.names if name not in repeated]
        if repeated:
            found[each] = replace(each.of(kept), level=min(each.level, LEVEL_OF_TRAINING))
    return [found.get(each, each) for each in rows]


def _repeats(rows: Rows, other: Rows, name: str) -> bool:
    """Whether nearly all rows have the values of others that count more."""
    values, known = rows.column(name), other.column(name)
    less, more = ((x.steps is not None, x.epochs is not None) for x in (rows, other))
    if rows.steps is None and more > less:
        # The row of the other before them, or behind.
        beside = np.append(math.nan, np.append(known, math.nan))
        behind = np.searchsorted(other.offsets, rows.offsets)
        near = np.isclose([beside[behind], beside[behind + 1]], values, rtol=_CLOSE).any(axis=0)
    elif rows.steps is None and more == less and len(values) == len(known) > _BATCHES:
        near = np.isclose(values, known, rtol=_CLOSE) & (other.offsets < rows.offsets)
    else:
        return False
    return bool(near.mean() >= _MOST)


def _without_means(rows: Sequence[Rows]) -> list[Rows]:
    """Leave out the mean losses of epochs where batches name theirs, and count by their lengths."""
    none = [each for each in rows if _counts_nothing(each)]
    named = [each for each in none if each.epochs is not None]
    if len({each.highest for each in named}) == 1 and len(named) < len(rows):
        own = [x for x in rows if x.has_own_steps and x.epochs is not None and not x.total]
        counted = join_steps([each for each in own if each not in named])
        falls = (counted.steps[1:] <= counted.steps[:-1]).sum()
        if counted.steps.max(initial=0) <= named[0].highest and 2 * falls >= sum(map(len, named)):
            none = [each for each in none if each not in named]
            for each in own:
                each.total = named[0].highest
    rows = [replace(each, steps=None) if each in none else each for each in rows]
    own = [each for each in rows if each.has_losses and each.has_own_steps]
    most = max(own, key=len, default=None)
    fewer = [each for each in own if most and _stands_behind(each, most)]
    rows = [
        each.of([n for n in each.names if n != LOSS]) if each in fewer else each for each in rows
    ]
    lost = [each for each in rows if each.has_losses and each.bar is None]
    means = [each for each in lost if each.is_mean or EVAL_LOSS in each.names]
    batches = [each for each in lost if each not in means]
    count, of_means = sum(map(len, batches)), sum(map(len, means))
    has_steps = any(each.steps is not None for each in lost)
    if not means or has_steps or count < _BATCHES * of_means:
        return rows
    shown, closed = _epochs_of(batches), _epochs_of(means)
    if shown.size and not np.isin(closed, shown).all():
        return rows  # a table may have both losses in some rows: those are of epochs of their own
    return [
        each.of([name for name in each.names if name != LOSS]) if each in means else each
        for each in rows
    ]


def _stands_behind(rows: Rows, most: Rows) -> bool:
    """Whether nearly all rows are means up to one of many more: at its step, or of its epoch."""
    if most.steps is None or rows.rank != most.rank or _BATCHES * len(rows) > len(most):
        return False
    before = np.searchsorted(most.offsets, rows.offsets) - 1
    is_mean = most.steps[before] == rows.steps
    if rows.epochs is not None and most.epochs is not None and len(rows) > _BATCHES:
        ends = np.append(most.epochs, math.inf)
        is_end = (most.epochs[before] == rows.epochs) & (ends[before + 1] != rows.epochs)
        is_mean |= is_end if changes(rows.epochs).all() else False
    return bool(((before >= 0) & is_mean).mean() >= _MOST)


def _epochs_of(rows: Sequence[Rows]) -> Floats:
    """Return all epochs that rows name."""
    epochs = join_epochs(rows)[1]
    return epochs[np.isfinite(epochs)]


def _counts_nothing(rows: Rows) -> bool:
    """Whether the steps are all one ("Epoch: 5, Steps: 540"), or rise and fall by turns."""
    steps, epochs = rows.steps, rows.epochs
    if steps is None or not rows.has_own_steps or rows.total:
        return False
    if (steps != steps[0]).any():
        falls = (steps[:-1] - steps[1:])[steps[1:] < steps[:-1]]
        if epochs is not None or not _FEWEST < len(steps) <= 4 * len(falls):
            return False
        gaps = np.sort(np.diff(np.sort(steps)))  # even ones are of rows in another order
        uneven = 2 * (gaps > 0).sum() + 2 > len(steps) and changes(gaps).sum() > 2
        return bool(uneven and 4 * falls.mean() >= steps.max() - steps.min())
    return len(steps) > _STUCK if epochs is None else len(steps) > 1 and bool(changes(epochs).all())


def _through_epochs(rows: Sequence[Rows]) -> list[Rows]:
    """Count steps through all epochs where lines name the epoch, the step in it, and its length.

    So do lines of the training, those of evaluations among them, and each of its bars.
    """
    named = [x for x in rows if x.steps is not None and x.epochs is not None and not _counts_on(x)]
    trained = [each for each in named if each.has_own_steps or (each.has_losses and each.bar)]
    ends = {each.total for each in trained if each.total}
    named = [x for x in named if x in trained or (x.bar is None and x.total in ends)]
    through: dict[Rows, Rows] = {}
    for bar in dict.fromkeys(each.bar for each in named):
        own = [each for each in named if each.bar == bar]
        through |= zip(own, _counted_through(own), strict=True)
    found = [through.get(each, each) for each in rows]
    return [each for each in found if len(each)]


def _counts_on(rows: Rows) -> bool:
    """Whether the steps rise through the epochs: "Epoch 3 | step 700/9000"."""
    several = rows.epochs is not None and (rows.epochs != rows.epochs[0]).any()
    return bool(several and len(rows) > _BATCHES and rows.steps is not None and rises(rows.steps))


def _counted_through(own: Sequence[Rows]) -> Sequence[Rows]:
    """Count the steps of rows through all epochs, where they start again as the epoch grows.

    That is epoch x length + step. Epochs count from 0 or from 1, as the first one shows.
    """
    lengths = [each for each in own if each.total and each.highest <= each.total]
    if not lengths:
        return own
    usual = max(lengths, key=len).total or 0
    longest = max(each.total or 0 for each in lengths)
    most = np.abs(_epochs_of(own)).max(initial=0)
    counted = join_steps([each for each in lengths if each.total == usual])
    epochs = _epochs_of(lengths)
    is_one_an_epoch = bool((epochs[1:] != epochs[:-1]).all())
    if (
        most > _MOST_EPOCHS
        or most * longest > _LARGEST
        or is_one_an_epoch
        or (epochs % 1).any()
        or not (counted.steps[1:] < counted.steps[:-1]).any()
        or not starts_with_each_epoch([counted])
    ):
        return own
    base = 0 if float(_epochs_of(own).min()) < 1 else 1
    found = []
    for each in own:
        length = (each.total or 0) if each in lengths else usual
        steps = each.steps
        if steps is None or each.highest > length:
            found.append(each)
            continue
        if (steps == 0).any() and (steps == length).any() and each.bar is None:
            length += 1  # both ends are printed
        epochs = filled(each.epochs, len(each))
        done = np.where(np.isfinite(epochs), np.trunc(epochs) - base, 0).astype(np.int64)
        through = replace(each, steps=done * length + steps, total=None, length=length)
        # A bar shows at 0 what it did at the end of the epoch before.
        found.append(through.only((steps > 0) | (done == 0)) if each.bar else through)
    return found


def without_summary(rows: Rows) -> Rows:
    """Leave out what is no measurement at a step.

    That is the mean loss that closes a training, beside how long it ran, and how long the steps of
    a bar take that is not the training's. With a learning rate beside it the loss is that of a
    step: a Trainer that counts tokens shows how long it has run at each.
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


def join(columns: Iterable[NDArray[Any]]) -> NDArray[Any]:
    """Join columns one behind the other; there may be none. One column stays itself."""
    first, *others = [*columns] or [np.empty(0, np.int64)]
    return np.concatenate([first, *others]) if others else first


def filled(column: Floats | None, count: int) -> Floats:
    """Return a column; nan where rows have none."""
    return np.full(count, math.nan) if column is None else column


def join_epochs(rows: Sequence[Rows]) -> tuple[Ints, Floats]:
    """Join the epochs of rows in the order of the log; return where they stand, and the epochs."""
    known = [(each.offsets, each.epochs) for each in rows if each.epochs is not None]
    offsets, epochs = join(each for each, _ in known), join(each for _, each in known)
    order = np.argsort(offsets, kind="stable")
    return offsets[order], epochs[order]


def join_steps(rows: Sequence[Rows]) -> Counted:
    """Join the steps of rows in the order of the log."""
    offsets = join(each.offsets for each in rows)
    order = np.argsort(offsets, kind="stable")
    steps = join(each.steps for each in rows if each.steps is not None)[order]
    epochs = lengths = None
    if any(each.epochs is not None for each in rows):
        epochs = join(filled(each.epochs, len(each)) for each in rows)[order]
    ends = [each.length or each.total for each in rows]
    if len({*ends}) > 1:
        numbers = [-1 if end is None else end for end in ends]
        lengths = np.repeat(numbers, [*map(len, rows)])[order]
        if changes(lengths).sum() != len({*ends}):
            lengths = None
    total = max((each.total for each in rows if each.total is not None), default=None)
    is_bar = any(each.bar is not None for each in rows)
    return Counted(offsets[order], steps, epochs, total, lengths, is_bar)
