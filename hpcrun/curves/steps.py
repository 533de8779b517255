"""Assign steps to the rows of a log whose lines contain no step.

Many lines contain measurements but not their step: the dictionaries of the HF Trainer between the
updates of a progress bar, or ``validation loss: 2.9`` between lines that have steps. The *counting
rows* are the training's lines with steps of their own, or the drawings of its progress bar,
whichever separates more of the losses without a step.

A log may contain many bars: loading, tokenizing, each evaluation. A bar that shows a training loss
belongs to the training. Otherwise the *training bar* is the one that is drawn between most rows of
the training; of two such bars, the one whose counter keeps rising.

A row without a step is placed according to one of these:

- its fractional epoch, if epochs lead to whole steps near the counting rows (``EpochScale``). This
  also works if a program buffers its output and prints losses in groups;
- *before*: the last counted step above it; at the top of the log, the step before the first;
- *after*: the next counted step, if each row is printed above the line with its step, or if those
  steps are regular: an evaluation every 250 steps, printed between 249 and 250, belongs to 250;
- its epoch, if there is one row for each whole epoch and no counter continues through all epochs;
- its order otherwise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise, product
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from hpcrun.curves.curve import is_increasing
from hpcrun.curves.names import LOSS, LR, MEMORY_BYTES
from hpcrun.curves.own_steps import drop_summary, read_rows
from hpcrun.curves.passes import (
    Bools,
    CountedSteps,
    Floats,
    Ints,
    find_changes,
    restarts_each_epoch,
)
from hpcrun.curves.rows import (
    FROM_BAR,
    FROM_NEIGHBOUR,
    OWN_STEP,
    PRIORITY_PLACED_LOSS,
    ProgressBar,
    Rows,
    join_columns,
    join_epochs,
    join_steps,
)
from hpcrun.curves.store import StoredLog

# Placements of a metric without steps, other than by its neighbours.
BY_EPOCH, IN_ORDER = "epoch", "order"
# Minimum share of a metric's rows that must have a property (such as regular steps) to rely on it.
_MIN_SHARE = 0.9
# Number of rows of each metric that are examined for regularity.
_EXAMINED_ROWS = 4096
# Larger numbers are not epochs.
_MAX_EPOCH = 1 << 53
_EVALUATED = ("eval", "val", "test")
# A second training bar needs this share of the rows that the first one separates.
_MIN_SHARE_OF_SECOND_BAR = 0.1
# Fewer losses do not show how steps follow from epochs.
_MIN_LOSSES_FOR_SCALE = 4
# A bar may be drawn this many steps late.
_BAR_DELAY_STEPS = 2
# Printed epochs identify a step if they are rounded to less than this part of a step.
_EXACT_STEP_ERROR = 0.25
_WHOLE_STEP_ERROR = 0.01
# A bar with a higher total counts bytes or tokens, and there would be too many distances to try.
_MAX_TOTAL_STEPS = 10_000_000
# Fewer losses without an epoch, for each that has one, are not those of batches.
_MIN_BATCHES_PER_EPOCH = 10


class LogSteps(Struct, eq=False):
    """The rows of a log with all steps that could be assigned.

    Attributes:
        by_step: rows with steps, their own or assigned ones.
        by_epoch: rows that have no step but a whole epoch, which is used as their step.
        without_steps: rows of lines without steps; their order counts.
        training: the progress bar of the training.
        through_epochs: the steps count through all epochs.
        is_buffered: the losses come in groups, and their steps are computed from their epochs.
    """

    log: StoredLog
    by_step: list[Rows]
    by_epoch: list[Rows]
    without_steps: list[Rows]
    training: ProgressBar | None
    through_epochs: bool
    is_buffered: bool


def find_steps(log: StoredLog) -> LogSteps:
    """Assign steps to the rows of a log.

    >>> from hpcrun.curves.row import Frame, RowLayout, Scope
    >>> from hpcrun.curves.store import Store
    >>> bar = Frame(RowLayout("tqdm", Scope(), None, "", ()), [0, 20], [1, 2], None, None, (), 9)
    >>> layout = RowLayout("dict", Scope(), None, None, ("loss",))
    >>> losses = Frame(layout, [10, 30], None, None, None, ([3.0, 2.5],))
    >>> store = Store()
    >>> store.begin(0)
    >>> store.add([bar, losses])
    >>> steps = find_steps(store.logs[0])
    >>> [(rows.source, rows.steps.tolist()) for rows in steps.by_step if rows.names]
    [('placed', [1, 2])]
    """
    rows = _drop_start(read_rows(log))
    own = [each for each in rows if each.steps is not None and each.bar is None]
    logged = {
        name
        for each in rows
        for name in each.names
        if (LOSS in each.names or LR in each.names) and each.span != "run"
    }
    without_steps = [
        drop_summary(each, logged)
        for each in rows
        if each.steps is None or (each.bar is not None and not each.priority)
    ]
    lines = [each for each in without_steps if each.names and each.bar is None]
    drawn = [each for each in without_steps if each.names and each.bar is not None]
    bars = [x for x in rows if x.steps is not None and x.bar is not None and x.priority]
    shown = [each for each in (*own, *without_steps) if each.has_losses]
    shown = shown or [each for each in without_steps if not each.priority]
    found = find_training_bars(bars, np.sort(join_columns(each.offsets for each in shown)))
    training = found[-1][0] if found else None
    counting = {bar for bar, _ in found}
    by_step = [
        *own,
        *_drop_stale_values([each for each in bars if each.has_losses and each.bar in counting]),
    ]
    for each in bars:
        if each.has_losses and each.bar in counting:
            continue
        if each.names and each.bar and (each.has_losses or each.bar.may_train):
            by_step.append(replace(each, source=each.bar.source, priority=0))
    is_through = any(each.length for each in (*own, *bars))
    scale, losses = None, [each for each in lines if each.has_losses]
    by_lines, by_bars = [x for x in own if x.priority], [x for x in bars if x.bar in counting]
    known = (CountingRows(join_steps(each)) for each in (by_lines, by_bars) if each)
    counts = max(known, key=lambda each: each.count_separated(losses), default=None)
    if counts is None:
        # Lines without an epoch belong to the neighbouring lines of the training that have one. A
        # single line after the last of these, with the same metrics, is the final result.
        named = [at for each in lines if each.priority for at in _place_at_epochs(each)]
        lines = _drop_other_losses(lines, named)
        names = {name for at in named for name in at.names}
        end = max((at.offsets[-1] for at in named), default=0)
        unnamed = [
            each
            for each in lines
            if each.epochs is None
            and not (len(each) == 1 and each.offsets[0] > end and names.intersection(each.names))
        ]
        for kind in _group_by_metric(unnamed) if named else ():
            placed = CountingRows(join_steps(named)).choose_neighbours(kind, through_epochs=False)
            for each, at in zip(kind, placed, strict=True):
                each.epochs, each.offsets = np.asarray(at.steps, float), at.offsets
    else:
        scale = find_scale(lines, counts, training.total if training else None)
        others = []
        for each in lines:
            if scale is not None and (steps := scale.steps_of(each)) is not None:
                each = counts.assign_steps(each, counts.before(each.offsets))
                by_step.append(replace(each, steps=steps, distinct_steps=len(steps)))
            else:
                others.append(each)
        for kind in _group_by_metric(others):
            by_step += counts.choose_neighbours(kind, through_epochs=is_through)
        for each in drawn:
            each = each.select(each.offsets >= counts.offsets[0])
            if len(each):
                each = counts.assign_steps(each, counts.before(each.offsets))
                by_step.append(replace(each, source=FROM_BAR, priority=0))
    return LogSteps(
        log,
        by_step,
        [*chain.from_iterable(map(_place_at_epochs, lines))],
        lines,
        training,
        is_through,
        scale is not None and scale.in_groups,
    )


def _drop_start(rows: Sequence[Rows]) -> list[Rows]:
    """Drop lines without a step that state memory or scores above all lines of the training."""
    trained = [
        each.offsets[0]
        for each in rows
        if (each.has_losses or (each.priority and each.steps is not None))
        and (each.bar is None or each.bar.may_train)
    ]
    first, found = min(trained, default=0), []
    for each in rows:
        is_memory = each.names == (MEMORY_BYTES,) and each.steps is None
        # Scores that are stated only above the training may be settings.
        if is_memory or (each.is_result and each.offsets[-1] < first):
            each = each.select(each.offsets >= first)
        found += [each] if len(each) else []
    return found


def _drop_other_losses(lines: Sequence[Rows], named: Sequence[Rows]) -> list[Rows]:
    """Drop losses without an epoch if lines of the same rank have a loss with one.

    They are other losses (``ema loss: 4.5``), which would replace that of the training. Many losses
    in each epoch are those of its batches, and are kept.

    Args:
        lines: The lines without steps.
        named: Those that have a whole epoch.
    """
    counts = Counter[int | None]()
    for each in named:
        if each.has_losses:
            counts[each.rank] += len(each)
    others = [each for each in lines if each.has_losses and each.epochs is None]
    found = Counter[int | None]()
    for each in others:
        found[each.rank] += len(each)
    kept = []
    for each in lines:
        if each in others and found[each.rank] < _MIN_BATCHES_PER_EPOCH * counts[each.rank]:
            each = each.select_columns([name for name in each.names if name != LOSS])
        kept += [each] if each.names else []
    return kept


def _group_by_metric(lines: Iterable[Rows]) -> list[list[Rows]]:
    """Group lines by their first metric and their rank."""
    kinds: dict[object, list[Rows]] = {}
    for each in lines:
        kinds.setdefault((each.names[0], each.rank), []).append(each)
    return [*kinds.values()]


def _join_drawings(bars: Iterable[Rows]) -> list[tuple[ProgressBar, CountedSteps]]:
    """Join the drawings of each bar that may belong to the training, in the order of their ends."""
    of_bar: dict[ProgressBar, list[Rows]] = {}
    for rows in bars:
        if rows.bar is not None and (rows.has_losses or rows.bar.may_train):
            of_bar.setdefault(rows.bar, []).append(rows)
    drawn = [(bar, join_steps(known)) for bar, known in of_bar.items()]
    return sorted(drawn, key=lambda each: each[1].offsets[-1])


def find_training_bars(
    bars: Sequence[Rows], trained: Ints
) -> list[tuple[ProgressBar, CountedSteps]]:
    """Find the progress bars of the training, in the order of the log.

    A second training in the same log may have another bar.

    Args:
        bars: Drawings of all bars.
        trained: Byte offsets of the rows of the training.
    """
    showing = {each.bar for each in bars if each.has_losses}
    drawn = _join_drawings(each for each in bars if not showing or each.bar in showing)
    votes = []
    for number, (_, counted) in enumerate(drawn):
        offsets = counted.offsets
        # The gaps between rows of the training in which the bar is drawn.
        gaps = np.searchsorted(trained, offsets)
        gaps = gaps[gaps < len(trained)]
        count = max(find_changes(gaps[gaps > 0]).sum(), min(1, len(gaps)))
        counts_on = bool((counted.steps[1:] >= counted.steps[:-1]).all())
        count = len(offsets) if showing else count
        votes.append((count, counts_on, number, offsets[0], offsets[-1]))
    found: list[tuple[int, bool, int, int, int]] = []
    for vote in sorted(votes, reverse=True):
        count, *_, first, last = vote
        least = max(1, _MIN_SHARE_OF_SECOND_BAR * max(votes)[0]) if found and not showing else 0
        if count > least and all(last < other[3] or other[4] < first for other in found):
            found.append(vote)
    return [drawn[number] for number in sorted(vote[2] for vote in found)]


def _drop_stale_values(drawn: Sequence[Rows]) -> list[Rows]:
    """Drop values that a bar of the training still shows from earlier steps.

    These are the values at step 0 that are shown with the loss of the previous epoch. A metric that
    changes once per epoch is kept at the end of each epoch. Other results of an evaluation are kept
    where they change.
    """
    if not drawn:
        return []
    is_new, order = _find_changes(drawn, LOSS)
    kept = np.empty(len(order), np.bool_)
    kept[order] = is_new
    parts = np.split(kept, np.cumsum([*map(len, drawn)])[:-1])
    drawn = [rows.select((rows.steps != 0) | new) for rows, new in zip(drawn, parts, strict=True)]
    drawn = [rows for rows in drawn if len(rows)]
    counted = join_steps(drawn)
    is_next = counted.steps[1:] < counted.steps[:-1]
    if counted.epochs is not None:
        is_next |= counted.epochs[1:] > counted.epochs[:-1]
    begins = counted.offsets[1:][is_next]
    found, left = [], set()
    for name in dict.fromkeys(name for rows in drawn for name in rows.names):
        showing = [rows.select_columns([name]) for rows in drawn if name in rows.names]
        is_new, order = _find_changes(showing, name)
        offsets = join_columns(rows.offsets for rows in showing)[order]
        epochs = np.searchsorted(begins, offsets, "right")
        is_end = find_changes(epochs[::-1])[::-1].copy()
        count, new = int(is_end.sum()), int(is_new.sum())
        if 4 * count <= len(order) and 1 < count <= 2 * new <= 3 * count:
            is_end[-1] = is_new[epochs == epochs[-1]].any()  # the last epoch may be incomplete
        elif name.startswith(_EVALUATED):
            is_end = is_new
        else:
            left.add(name)
            continue
        for rows in showing:
            rows.priority = rows.priority if name == LOSS else 0
            found.append(rows.select(np.isin(rows.offsets, offsets[is_end])))
    found += [rows.select_columns([name for name in rows.names if name in left]) for rows in drawn]
    return [rows for rows in found if len(rows) and rows.names]


def _find_changes(drawn: Sequence[Rows], name: str) -> tuple[Bools, Ints]:
    """Return where a metric differs from the drawing before, and the order of the drawings."""
    order = np.argsort(join_columns(rows.offsets for rows in drawn), kind="stable")
    return find_changes(join_columns(rows.column(name) for rows in drawn)[order]), order


def _place_at_epochs(rows: Rows) -> list[Rows]:
    """Return the rows with their epochs as steps, if all known epochs are whole."""
    if rows.epochs is None:
        return []
    epochs = rows.epochs[~np.isnan(rows.epochs)]
    if not epochs.size or not (np.abs(epochs) <= _MAX_EPOCH).all() or (epochs % 1).any():
        return []
    if len(epochs) < len(rows):
        rows = rows.select(~np.isnan(rows.epochs))
    steps = epochs.astype(np.int64)
    return [
        replace(rows, steps=steps, source=OWN_STEP, distinct_steps=int(find_changes(steps).sum()))
    ]


class CountingRows:
    """The counting rows of a log, to find the neighbours of other rows among them.

    The steps have two more elements: the last step again, for rows after the last one; and at
    index -1 the step of evaluations above the first one, as far before it as the second is after
    it, but not below zero.
    """

    def __init__(self, counted: CountedSteps) -> None:
        self.offsets, self.epochs = counted.offsets, counted.epochs
        first, second = counted.steps[0], counted.steps[:2][-1]
        begin = max(0, 2 * first - second) if second > first else first
        steps = np.append(counted.steps, [counted.steps[-1], begin])
        # 32 bits, if they suffice, halve the memory of the many rows that get these steps.
        self.steps = steps.astype(np.int32) if steps.max() < 1 << 31 else steps
        # Consecutive rows with the same step count as one; the same step in a later epoch does not.
        places = np.cumsum(np.append(find_changes(counted.steps), True), dtype=np.int32)
        self._places = np.append(places, np.int32(0))

    def above(self, offsets: Ints) -> Ints:
        """Return the number of counting rows above each offset: the index of the next one."""
        return np.searchsorted(self.offsets, offsets, "right")

    def before(self, offsets: Ints, first: int = 0) -> Ints:
        """Return the index of the counting row before each offset, at least ``first``."""
        return np.maximum(self.above(offsets) - 1, first)

    def count_separated(self, losses: Sequence[Rows]) -> int:
        """Return how many losses are separated by counting rows."""
        return sum(int(find_changes(self.above(each.offsets)).sum()) for each in losses)

    def distinct_steps(self, lines: Ints) -> Ints:
        """Return the distinct steps of some counting rows."""
        return self.steps[lines[find_changes(self._places[lines])]]

    def assign_steps(self, rows: Rows, lines: Ints) -> Rows:
        """Give rows the steps of counting rows, and the epochs of those before them."""
        offsets, epochs = np.append(self.offsets, [0, 0])[lines], rows.epochs
        if epochs is None and self.epochs is not None:
            epochs = self.epochs[self.before(rows.offsets)]
        is_later = (offsets > rows.offsets).any()
        return replace(
            rows,
            offsets=np.maximum(rows.offsets, offsets) if is_later else rows.offsets,
            steps=self.steps[lines],
            epochs=epochs,
            source=FROM_NEIGHBOUR,
            priority=PRIORITY_PLACED_LOSS if rows.has_losses else 0,
            distinct_steps=len(self.distinct_steps(lines)),
        )

    def choose_neighbours(self, rows: Sequence[Rows], *, through_epochs: bool) -> list[Rows]:
        """Give rows of one metric the steps before them, or those after them."""
        before = [self.before(each.offsets, 0 if each.priority else -1) for each in rows]
        after = [self.above(each.offsets) for each in rows]
        first, second = (join_columns(map(self.distinct_steps, lines)) for lines in (before, after))
        enough = _MIN_SHARE * sum(map(len, rows))
        # Each row, including the first and the last, is printed above the line with its step.
        stand_above = (
            len(second) >= enough
            and min(each.offsets[0] for each in rows) <= self.offsets[0]
            and max(each.offsets[-1] for each in rows) <= self.offsets[-1]
            and _MIN_SHARE <= sum(map(len, rows)) / self._places[:-2].max() <= 1 / _MIN_SHARE
        )
        lines = before
        if stand_above or len(first) < enough <= len(second):
            lines = after
        # Rows between two epochs belong to the one that ends.
        elif len(second) >= enough and not through_epochs and max(first) > first[0]:
            lines = (
                after if _share_of_multiples(second) > _share_of_multiples(first) + 0.25 else before
            )
        return [*map(self.assign_steps, rows, lines)]


class EpochScale(NamedTuple):
    """The conversion of fractional epochs to steps.

    Attributes:
        per_epoch: Number of steps per epoch.
        distance: All steps are multiples of this number.
        total: Largest possible step.
        first: Step of the first loss, if epochs are printed too coarsely to convert each of them;
            the steps of the other losses then follow from their order. Otherwise None.
        losses: Byte offsets of the losses that are placed by order.
        in_groups: Whether losses are printed in groups, long after their steps.
    """

    per_epoch: float
    distance: int
    total: int
    first: int | None
    losses: Ints
    in_groups: bool

    def steps_of(self, rows: Rows) -> Ints | None:
        """Return the steps of rows; None if their epochs do not show them."""
        if self.first is not None and rows.has_losses:
            return self.first + self.distance * np.searchsorted(self.losses, rows.offsets)
        if rows.epochs is None:
            return None
        most = float(np.abs(rows.epochs).max()) * self.per_epoch
        if not most < _MAX_EPOCH:  # also for nan
            return None
        # The end of an epoch, where evaluations are, need not be a multiple of the distance.
        ends = (rows.epochs % 1 == 0) & (not rows.has_losses)
        return np.where(ends, self._replace(distance=1).at(rows.epochs), self.at(rows.epochs))

    def at(self, epochs: Floats) -> Ints:
        """Return the steps of epochs.

        >>> EpochScale(705.0, 1, 2115, None, np.arange(0), False).at(np.array([0.14])).tolist()
        [99]
        >>> scale = EpochScale(705.0, 10, 2115, None, np.arange(0), True)
        >>> scale.at(np.array([0.001, 0.14, 3.0])).tolist()
        [10, 100, 2115]
        """
        shares = epochs * (self.per_epoch / self.distance)
        steps: Ints = np.rint(shares).astype(np.int64)
        if self.distance > 1:
            steps = np.minimum(self.total, self.distance * np.maximum(1, steps))
        return steps


def find_scale(lines: Sequence[Rows], counts: CountingRows, total: int | None) -> EpochScale | None:
    """Find how steps follow from the epochs of the losses; return None if they do not.

    A program whose output is buffered prints its dictionaries in groups, long after their steps,
    while the bar is drawn at once. Each dictionary has a fractional epoch, and the bar the total
    number of steps, so step = epoch * total / epochs. The number of epochs is not printed, but no
    row can be ahead of the bar, which leaves few candidates. Without buffering, rows are near their
    steps.
    """
    losses = [each for each in lines if each.has_losses]
    losses = losses or [each for each in lines if each.epochs is not None]
    offsets = np.sort(join_columns(each.offsets for each in losses))
    if len(offsets) < _MIN_LOSSES_FOR_SCALE or (total or 0) > _MAX_TOTAL_STEPS:
        return None
    moves = [
        sum(len(counts.distinct_steps(lines_of(each.offsets))) for each in losses)
        for lines_of in (counts.before, counts.above)
    ]
    in_groups = max(moves) < _MIN_SHARE * len(offsets)
    _, epochs = join_epochs(losses)
    if len(epochs) < len(offsets) or not (np.abs(epochs) < _MAX_EPOCH).all() or epochs[-1] <= 0:
        return None
    before, after = counts.steps[counts.before(offsets)], counts.steps[counts.above(offsets)]
    shown = epochs[:_EXAMINED_ROWS].tolist()
    # Epochs are rounded to decimals or, since version 5 of the HF Trainer, to significant digits.
    most = math.floor(math.log10(max(shown)))
    decimals = next((n for n in (2, 3, 4, 6) if all(round(x, n) == x for x in shown)), 15)
    digits = next((n for n in (3, 4, 6) if all(float(f"{x:.{n}g}") == x for x in shown)), 15)
    coarse, coarser = 0.5 * 10.0**-decimals, 0.5 * 10.0 ** (most + 1 - digits)
    if in_groups:
        if total is None or not (epochs % 1).any():
            return None
        ahead = (epochs - coarse) / np.maximum(after, 1)
        lengths = [total / max(1, math.ceil(total * ahead.max() - _WHOLE_STEP_ERROR))]
    elif find_changes(np.sort(before)).sum() < _MIN_SHARE * len(before):
        return None
    else:
        last = before[-1].item()
        ends = {*range(last, last + _BAR_DELAY_STEPS + 1), after[-1].item()} - {0}
        lengths = [end / epochs[-1].item() for end in sorted(ends)]
    for length, error in product(lengths, (coarse, coarser)):
        scale = EpochScale(length, 1, total or _MAX_EPOCH, None, offsets, in_groups)
        if found := _fit_distance(scale, epochs, error, before, after):
            return found
    return None


def _fit_distance(
    scale: EpochScale, epochs: Floats, coarse: float, before: Ints, after: Ints
) -> EpochScale | None:
    """Find the distance in steps between losses that explains their epochs, or return None.

    Args:
        scale: The conversion to complete.
        epochs: Epoch of each loss.
        coarse: Rounding error of the printed epochs.
        before: Counted step before each loss.
        after: Counted step after each loss.

    >>> epochs, none = np.array([0.01, 0.03, 0.04, 0.06, 0.07, 0.09]), np.arange(0)
    >>> scale = EpochScale(705.0, 1, 2115, None, none, True)
    >>> _fit_distance(scale, epochs, 0.005, none, none).distance
    10
    """
    length = scale.per_epoch
    if float(np.abs(epochs).max()) * length > _MAX_EPOCH:
        return None
    error, gaps = coarse * length, len(epochs) - 1
    span, spread = length * (epochs[-1] - epochs[0]) / gaps, 2 * error / gaps
    is_exact, fitting = error <= _EXACT_STEP_ERROR, []
    whole = range(max(1, math.floor(span - spread)), math.ceil(span + spread) + 1)
    for distance in [1] if is_exact else whole if scale.in_groups else ():
        found = scale._replace(distance=distance)
        steps = found.at(epochs)
        if 2 * error >= distance:
            counted = np.arange(len(steps))
            first = distance * max(1, round(np.mean(epochs * length / distance - counted)))
            found = found._replace(first=first)
            steps = first + distance * counted
        strays = np.abs(steps - epochs * length)
        fits = is_increasing(steps) if scale.in_groups else _are_near(steps, before, after)
        if strays.max() <= error + (_WHOLE_STEP_ERROR if is_exact else 1) and fits:
            fitting.append((strays.sum(), distance, found))
    return min(fitting)[-1] if fitting else None


def _are_near(steps: Ints, before: Ints, after: Ints) -> bool:
    """Return True if nearly all steps lie between the counted steps before and after them."""
    early, late = steps + _BAR_DELAY_STEPS < before, steps - _BAR_DELAY_STEPS > after
    return bool(early.sum() + late.sum() <= (1 - _MIN_SHARE) * len(steps))


def choose_placement(
    without_steps: Sequence[Rows],
    placed: Sequence[Rows],
    at_epochs: Sequence[Rows],
    *,
    counts_all: bool,
) -> str:
    """Choose how to place the rows of a metric: FROM_NEIGHBOUR, BY_EPOCH or IN_ORDER.

    Args:
        without_steps: the rows to place.
        placed: the rows with the steps of their neighbours.
        at_epochs: the rows that have whole epochs.
        counts_all: whether the step counter never restarts within the run.
    """
    count = sum(map(len, without_steps))
    enough = max(1, _MIN_SHARE * count - (count >= _MIN_LOSSES_FOR_SCALE))
    fit, fit_epochs = (
        sum(each.distinct_steps for each in rows) >= enough for rows in (placed, at_epochs)
    )
    if fit_epochs:
        counted = [join_steps([each]) for each in placed]
        if not (fit and counts_all and not restarts_each_epoch(counted)):
            return BY_EPOCH
    return FROM_NEIGHBOUR if fit else IN_ORDER


def _share_of_multiples(counted: Ints) -> float:
    """Return the share of steps that are multiples of their most frequent distance.

    It is 1 if all steps are equal, such as the last one of each epoch.

    >>> [_share_of_multiples(np.array(steps)) for steps in ([250, 500], [249, 499], [390, 390])]
    [1.0, 0.0, 1.0]
    """
    steps: list[int] = counted[:_EXAMINED_ROWS].tolist()
    gaps = Counter(high - low for low, high in pairwise(steps) if high > low)
    if not gaps:
        return float(len({*steps}) == 1)
    usual = gaps.most_common(1)[0][0]
    return sum(step % usual == 0 for step in steps) / len(steps)
