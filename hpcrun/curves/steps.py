"""Steps: which steps the rows of a log belong to.

Many lines say what was measured but not at which step: the dictionaries of the HF Trainer, between
the drawings of a progress bar; ``validation loss: 2.9`` between the lines of the steps. The rows
that *count* are those of the training with steps of their own, or the drawings of the training bar:
those that distinguish more of the losses without a step.

Many bars may be drawn: of loading, of tokenizing, of each evaluation. A bar on which a training
loss stands is the training's. Else the *training bar* is the one that moves along with the rows of
the training: of the bars drawn between two such rows the one that is drawn between most of them,
of two such the one that counts on.

A row without a step is placed

- by what it says of its place, where that leads to whole steps near those that are counted
  (``Scale``): the share of the epoch that it prints. So are rows that come in lumps, as a process
  prints that buffers its output;
- BEFORE: at the last step that was counted before it, above the first one at the log's beginning;
- AFTER: at the next one, where each stands above the line with its step, or where that lies at
  regular steps: an evaluation every 250 steps that stands between 249 and 250 belongs to 250;
- by epoch: if there is one for each whole epoch, printed or marked, where no counter counts through
  all epochs;
- by its order alone, where they print none.
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

from hpcrun.curves.curve import rises
from hpcrun.curves.names import LOSS
from hpcrun.curves.own_steps import (
    DRAWN,
    LEVEL_OF_LOSS,
    OWN,
    PLACED,
    Bar,
    Rows,
    join,
    join_epochs,
    join_steps,
    read_rows,
    without_summary,
)
from hpcrun.curves.passes import Bools, Counted, Floats, Ints, changes, starts_with_each_epoch
from hpcrun.curves.store import Log

# How a metric without steps is placed, if not beside rows that count.
BY_EPOCH, IN_ORDER = "epoch", "order"
# This share of a metric's rows must have steps of their own for these to be believed.
_ENOUGH = 0.9
# Steps of each form that are looked at for how regular they are.
_LOOKED_AT = 4096
# An epoch beyond this is none.
_LARGEST = 1 << 53
_EVALUATED = ("eval", "val", "test")
# A bar takes over from one that stands still only if it has this share of its votes.
_TAKES_OVER = 0.1
# Fewer rows show no scale. A bar may be drawn this many steps late. Epochs that are rounded to more
# than this part of a step do not show which it is.
_FEWEST = 4
_DRAWN_LATE = 2
_EXACT = 0.25
_WHOLE = 0.01
# Beyond this a bar counts bytes or tokens, and the distances to be tried are without end.
_MOST_STEPS = 10_000_000


class Steps(Struct, eq=False):
    """The rows of a log with all the steps that they may have.

    ``by_step``: rows with steps, those without one either BEFORE or AFTER. ``by_epoch``: those that
    have no step but a whole epoch, as their step; ``loose``: the ones without a step, bars aside.
    ``training`` is the bar that counts the training. ``is_late``:
    the losses came in lumps, and their steps follow from their epochs.
    """

    log: Log
    by_step: list[Rows]
    by_epoch: list[Rows]
    loose: list[Rows]
    training: Bar | None
    through_epochs: bool
    is_late: bool


def find_steps(log: Log) -> Steps:
    """Find the steps of the rows of a log.

    >>> from hpcrun.curves.row import Frame, Layout
    >>> from hpcrun.curves.store import Store
    >>> bar = Frame(Layout("tqdm", "train", None, "", ()), [0, 20], [1, 2], None, None, (), 9)
    >>> layout = Layout("dict", "train", None, None, ("loss",))
    >>> losses = Frame(layout, [10, 30], None, None, None, ([3.0, 2.5],))
    >>> store = Store()
    >>> store.begin(0)
    >>> store.add([bar, losses])
    >>> steps = find_steps(store.logs[0])
    >>> [(rows.side, rows.steps.tolist()) for rows in steps.by_step if rows.names]
    [('placed', [1, 2])]
    """
    rows = read_rows(log)
    own = [each for each in rows if each.steps is not None and each.bar is None]
    loose = [
        without_summary(each)
        for each in rows
        if each.steps is None or (each.bar is not None and not each.level)
    ]
    lines = [each for each in loose if each.names and each.bar is None]
    drawn = [each for each in loose if each.names and each.bar is not None]
    bars = [x for x in rows if x.steps is not None and x.bar is not None and x.level]
    shown = [each for each in (*own, *loose) if each.has_losses]
    shown = shown or [each for each in loose if not each.level]
    found = training_bars(bars, np.sort(join(each.offsets for each in shown)))
    training = found[-1][0] if found else None
    counting = {bar for bar, _ in found}
    by_step = [*own, *_fresh([each for each in bars if each.has_losses and each.bar in counting])]
    for each in bars:
        if each.has_losses and each.bar in counting:
            continue
        if each.names and each.bar and (each.has_losses or each.bar.may_train):
            by_step.append(replace(each, side=each.bar.side, level=0))
    is_through = any(each.length for each in (*own, *bars))
    scale, losses = None, [each for each in lines if each.has_losses]
    by_lines, by_bars = [x for x in own if x.level], [x for x in bars if x.bar in counting]
    known = (Counts(join_steps(each)) for each in (by_lines, by_bars) if each)
    counts = max(known, key=lambda each: each.apart(losses), default=None)
    if counts is None:
        # Lines that name no epoch stand beside those of the training that do; but one more behind
        # the last of these, of what they name, is the result.
        named = [at for each in lines if each.level for at in _at_epochs(each)]
        names = {name for at in named for name in at.names}
        end = max((at.offsets[-1] for at in named), default=0)
        unnamed = [
            each
            for each in lines
            if each.epochs is None
            and not (len(each) == 1 and each.offsets[0] > end and names.intersection(each.names))
        ]
        for kind in _kinds(unnamed) if named else ():
            placed = Counts(join_steps(named)).choose(kind, through_epochs=False)
            for each, at in zip(kind, placed, strict=True):
                each.epochs, each.offsets = np.asarray(at.steps, float), at.offsets
    else:
        scale = find_scale(lines, counts, training.total if training else None)
        others = []
        for each in lines:
            if scale is not None and (steps := scale.steps_of(each)) is not None:
                each = counts.place(each, counts.before(each.offsets))
                by_step.append(replace(each, steps=steps, places=len(steps)))
            else:
                others.append(each)
        for kind in _kinds(others):
            by_step += counts.choose(kind, through_epochs=is_through)
        for each in drawn:
            each = each.only(each.offsets >= counts.offsets[0])
            if len(each):
                each = counts.place(each, counts.before(each.offsets))
                by_step.append(replace(each, side=DRAWN, level=0))
    return Steps(
        log,
        by_step,
        [*chain.from_iterable(map(_at_epochs, lines))],
        lines,
        training,
        is_through,
        scale is not None and scale.in_lumps,
    )


def _kinds(lines: Iterable[Rows]) -> list[list[Rows]]:
    """Part lines by what they measure first, and by who prints them."""
    kinds: dict[object, list[Rows]] = {}
    for each in lines:
        kinds.setdefault((each.names[0], each.rank), []).append(each)
    return [*kinds.values()]


def _drawings(bars: Iterable[Rows]) -> list[tuple[Bar, Counted]]:
    """Join the drawings of each bar that may be the training's; the last one comes last."""
    of_bar: dict[Bar, list[Rows]] = {}
    for rows in bars:
        if rows.bar is not None and (rows.has_losses or rows.bar.may_train):
            of_bar.setdefault(rows.bar, []).append(rows)
    drawn = [(bar, join_steps(known)) for bar, known in of_bar.items()]
    return sorted(drawn, key=lambda each: each[1].offsets[-1])


def training_bars(bars: Sequence[Rows], trained: Ints) -> list[tuple[Bar, Counted]]:
    """Find the bars of the training; the one that counts last comes last.

    ``trained``: the bytes at which rows of the training begin. A second training in the same log
    may have a bar of its own.
    """
    showing = {each.bar for each in bars if each.has_losses}
    drawn = _drawings(each for each in bars if not showing or each.bar in showing)
    votes = []
    for number, (_, counted) in enumerate(drawn):
        offsets = counted.offsets
        # The gaps between rows of the training in which it is drawn.
        gaps = np.searchsorted(trained, offsets)
        gaps = gaps[gaps < len(trained)]
        count = max(changes(gaps[gaps > 0]).sum(), min(1, len(gaps)))
        counts_on = bool((counted.steps[1:] >= counted.steps[:-1]).all())
        count = len(offsets) if showing else count
        votes.append((count, counts_on, number, offsets[0], offsets[-1]))
    found: list[tuple[int, bool, int, int, int]] = []
    for vote in sorted(votes, reverse=True):
        count, *_, first, last = vote
        least = max(1, _TAKES_OVER * max(votes)[0]) if found and not showing else 0
        if count > least and all(last < other[3] or other[4] < first for other in found):
            found.append(vote)
    return [drawn[number] for number in sorted(vote[2] for vote in found)]


def _fresh(drawn: Sequence[Rows]) -> list[Rows]:
    """Leave out what a bar of the training still shows from before.

    That is all that it shows at 0 with the loss of the epoch before. What then changes once an
    epoch counts at the end of each; other results of an evaluation count where they change.
    """
    if not drawn:
        return []
    is_new, order = _changes(drawn, LOSS)
    kept = np.empty(len(order), np.bool_)
    kept[order] = is_new
    parts = np.split(kept, np.cumsum([*map(len, drawn)])[:-1])
    drawn = [rows.only((rows.steps != 0) | new) for rows, new in zip(drawn, parts, strict=True)]
    drawn = [rows for rows in drawn if len(rows)]
    counted = join_steps(drawn)
    is_next = counted.steps[1:] < counted.steps[:-1]
    if counted.epochs is not None:
        is_next |= counted.epochs[1:] > counted.epochs[:-1]
    begins = counted.offsets[1:][is_next]
    found, left = [], set()
    for name in dict.fromkeys(name for rows in drawn for name in rows.names):
        showing = [rows.of([name]) for rows in drawn if name in rows.names]
        is_new, order = _changes(showing, name)
        offsets = join(rows.offsets for rows in showing)[order]
        epochs = np.searchsorted(begins, offsets, "right")
        is_end = changes(epochs[::-1])[::-1].copy()
        count, new = int(is_end.sum()), int(is_new.sum())
        if 4 * count <= len(order) and 1 < count <= 2 * new <= 3 * count:
            is_end[-1] = is_new[epochs == epochs[-1]].any()  # it may be cut off
        elif name.startswith(_EVALUATED):
            is_end = is_new
        else:
            left.add(name)
            continue
        for rows in showing:
            rows.level = rows.level if name == LOSS else 0
            found.append(rows.only(np.isin(rows.offsets, offsets[is_end])))
    found += [rows.of([name for name in rows.names if name in left]) for rows in drawn]
    return [rows for rows in found if len(rows) and rows.names]


def _changes(drawn: Sequence[Rows], name: str) -> tuple[Bools, Ints]:
    """Find where a metric is another than in the drawing before, in the order of the log."""
    order = np.argsort(join(rows.offsets for rows in drawn), kind="stable")
    return changes(join(rows.column(name) for rows in drawn)[order]), order


def _at_epochs(rows: Rows) -> list[Rows]:
    """Return the rows with their epochs as steps, if all that have any have whole ones."""
    if rows.epochs is None:
        return []
    epochs = rows.epochs[~np.isnan(rows.epochs)]
    if not epochs.size or not (np.abs(epochs) <= _LARGEST).all() or (epochs % 1).any():
        return []
    if len(epochs) < len(rows):
        rows = rows.only(~np.isnan(rows.epochs))
    steps = epochs.astype(np.int64)
    return [replace(rows, steps=steps, side=OWN, places=int(changes(steps).sum()))]


class Counts:
    """The lines whose steps count, and the neighbours of other rows among them.

    Behind the last one stands another with its step. Evaluations above the first one stand at the
    number -1, as far before it as the next one is after it, but not below zero.
    """

    def __init__(self, counted: Counted) -> None:
        self.offsets, self.epochs = counted.offsets, counted.epochs
        first, second = counted.steps[0], counted.steps[:2][-1]
        begin = max(0, 2 * first - second) if second > first else first
        steps = np.append(counted.steps, [counted.steps[-1], begin])
        # Many rows are given steps: in half the memory where that holds them.
        self.steps = steps.astype(np.int32) if steps.max() < 1 << 31 else steps
        # As long as the step is the same it is one place; of a later lap it is another.
        places = np.cumsum(np.append(changes(counted.steps), True), dtype=np.int32)
        self._places = np.append(places, np.int32(0))

    def above(self, offsets: Ints) -> Ints:
        """Return how many lines stand above each place in the log, which is the one after it."""
        return np.searchsorted(self.offsets, offsets, "right")

    def before(self, offsets: Ints, first: int = 0) -> Ints:
        """Return which line stands before each place in the log, at least the ``first``."""
        return np.maximum(self.above(offsets) - 1, first)

    def apart(self, losses: Sequence[Rows]) -> int:
        """Return how many losses stand between different lines."""
        return sum(int(changes(self.above(each.offsets)).sum()) for each in losses)

    def different(self, lines: Ints) -> Ints:
        """Return the steps of the different places at which some lines stand."""
        return self.steps[lines[changes(self._places[lines])]]

    def place(self, rows: Rows, lines: Ints) -> Rows:
        """Give rows the steps of lines, BEFORE or AFTER; and epochs, those of the lines before."""
        offsets, epochs = np.append(self.offsets, [0, 0])[lines], rows.epochs
        if epochs is None and self.epochs is not None:
            epochs = self.epochs[self.before(rows.offsets)]
        is_later = (offsets > rows.offsets).any()
        return replace(
            rows,
            offsets=np.maximum(rows.offsets, offsets) if is_later else rows.offsets,
            steps=self.steps[lines],
            epochs=epochs,
            side=PLACED,
            level=LEVEL_OF_LOSS if rows.has_losses else 0,
            places=len(self.different(lines)),
        )

    def choose(self, rows: Sequence[Rows], *, through_epochs: bool) -> list[Rows]:
        """Choose for rows of one kind the steps before them or after them."""
        before = [self.before(each.offsets, 0 if each.level else -1) for each in rows]
        after = [self.above(each.offsets) for each in rows]
        first, second = (join(map(self.different, lines)) for lines in (before, after))
        enough = _ENOUGH * sum(map(len, rows))
        # Each stands above the line with its step, the first and the last one too.
        stand_above = (
            len(second) >= enough
            and min(each.offsets[0] for each in rows) <= self.offsets[0]
            and max(each.offsets[-1] for each in rows) <= self.offsets[-1]
            and _ENOUGH <= sum(map(len, rows)) / self._places[:-2].max() <= 1 / _ENOUGH
        )
        lines = before
        if stand_above or len(first) < enough <= len(second):
            lines = after
        # What stands between two epochs is of the one that ends.
        elif len(second) >= enough and not through_epochs and max(first) > first[0]:
            lines = after if _regularity(second) > _regularity(first) + 0.25 else before
        return [*map(self.place, rows, lines)]


class Scale(NamedTuple):
    """How the steps of rows follow from the share of the epoch that they print.

    ``per_epoch``: the steps of an epoch; the steps are multiples of ``distance``, at most
    ``total``. ``first``: the step of the first loss, where epochs are printed too coarsely and the
    others follow from their number; they stand at ``losses`` in the log.
    """

    per_epoch: float
    distance: int
    total: int
    first: int | None
    losses: Ints
    in_lumps: bool

    def steps_of(self, rows: Rows) -> Ints | None:
        """Return the steps of rows, None where they do not show them."""
        if self.first is not None and rows.has_losses:
            return self.first + self.distance * np.searchsorted(self.losses, rows.offsets)
        if rows.epochs is None:
            return None
        most = float(np.abs(rows.epochs).max()) * self.per_epoch
        if not most < _LARGEST:  # nan is none
            return None
        # An evaluation at the end of an epoch is at no multiple.
        ends = (rows.epochs % 1 == 0) & (not rows.has_losses)
        return np.where(ends, self._replace(distance=1).at(rows.epochs), self.at(rows.epochs))

    def at(self, epochs: Floats) -> Ints:
        """Return the steps of epochs.

        >>> Scale(705.0, 1, 2115, None, np.arange(0), False).at(np.array([0.14])).tolist()
        [99]
        >>> scale = Scale(705.0, 10, 2115, None, np.arange(0), True)
        >>> scale.at(np.array([0.001, 0.14, 3.0])).tolist()
        [10, 100, 2115]
        """
        shares = epochs * (self.per_epoch / self.distance)
        steps: Ints = np.rint(shares).astype(np.int64)
        if self.distance > 1:
            steps = np.minimum(self.total, self.distance * np.maximum(1, steps))
        return steps


def find_scale(lines: Sequence[Rows], counts: Counts, total: int | None) -> Scale | None:
    """Find how steps follow from the epochs of the losses; None if they do not.

    A program whose output is buffered prints its dictionaries in lumps, long after their steps,
    while the bar is drawn at once. Each says how far the epoch is, the bar how many steps there are
    in all: so a step is epoch x total / epochs. How many epochs there are is not named; no row may
    lie ahead of the bar, so that few numbers are possible. Other rows lie beside their steps.
    """
    losses = [each for each in lines if each.has_losses]
    losses = losses or [each for each in lines if each.epochs is not None]
    offsets = np.sort(join(each.offsets for each in losses))
    if len(offsets) < _FEWEST or (total or 0) > _MOST_STEPS:
        return None
    moves = [
        sum(len(counts.different(lines_of(each.offsets))) for each in losses)
        for lines_of in (counts.before, counts.above)
    ]
    in_lumps = max(moves) < _ENOUGH * len(offsets)
    _, epochs = join_epochs(losses)
    if len(epochs) < len(offsets) or not (np.abs(epochs) < _LARGEST).all() or epochs[-1] <= 0:
        return None
    before, after = counts.steps[counts.before(offsets)], counts.steps[counts.above(offsets)]
    shown = epochs[:_LOOKED_AT].tolist()
    # As decimals or as digits in all, which the HF Trainer prints since version 5.
    most = math.floor(math.log10(max(shown)))
    decimals = next((n for n in (2, 3, 4, 6) if all(round(x, n) == x for x in shown)), 15)
    digits = next((n for n in (3, 4, 6) if all(float(f"{x:.{n}g}") == x for x in shown)), 15)
    coarse, coarser = 0.5 * 10.0**-decimals, 0.5 * 10.0 ** (most + 1 - digits)
    if in_lumps:
        if total is None or not (epochs % 1).any():
            return None
        ahead = (epochs - coarse) / np.maximum(after, 1)
        lengths = [total / max(1, math.ceil(total * ahead.max() - _WHOLE))]
    elif changes(np.sort(before)).sum() < _ENOUGH * len(before):
        return None
    else:
        last = before[-1].item()
        ends = {*range(last, last + _DRAWN_LATE + 1), after[-1].item()} - {0}
        lengths = [end / epochs[-1].item() for end in sorted(ends)]
    for length, error in product(lengths, (coarse, coarser)):
        scale = Scale(length, 1, total or _LARGEST, None, offsets, in_lumps)
        if found := _fit(scale, epochs, error, before, after):
            return found
    return None


def _fit(scale: Scale, epochs: Floats, coarse: float, before: Ints, after: Ints) -> Scale | None:
    """Find the distance of losses at which steps follow from their epochs.

    ``coarse``: how far the printed epochs are rounded.

    >>> epochs, none = np.array([0.01, 0.03, 0.04, 0.06, 0.07, 0.09]), np.arange(0)
    >>> _fit(Scale(705.0, 1, 2115, None, none, True), epochs, 0.005, none, none).distance
    10
    """
    length = scale.per_epoch
    if float(np.abs(epochs).max()) * length > _LARGEST:
        return None
    error, gaps = coarse * length, len(epochs) - 1
    span, spread = length * (epochs[-1] - epochs[0]) / gaps, 2 * error / gaps
    is_exact, fitting = error <= _EXACT, []
    whole = range(max(1, math.floor(span - spread)), math.ceil(span + spread) + 1)
    for distance in [1] if is_exact else whole if scale.in_lumps else ():
        found = scale._replace(distance=distance)
        steps = found.at(epochs)
        if 2 * error >= distance:
            counted = np.arange(len(steps))
            first = distance * max(1, round(np.mean(epochs * length / distance - counted)))
            found = found._replace(first=first)
            steps = first + distance * counted
        strays = np.abs(steps - epochs * length)
        fits = rises(steps) if scale.in_lumps else _lie_beside(steps, before, after)
        if strays.max() <= error + (_WHOLE if is_exact else 1) and fits:
            fitting.append((strays.sum(), distance, found))
    return min(fitting)[-1] if fitting else None


def _lie_beside(steps: Ints, before: Ints, after: Ints) -> bool:
    """Whether nearly all steps are those before them or after them, or between."""
    early, late = steps + _DRAWN_LATE < before, steps - _DRAWN_LATE > after
    return bool(early.sum() + late.sum() <= (1 - _ENOUGH) * len(steps))


def choose_way(
    loose: Sequence[Rows], placed: Sequence[Rows], at_epochs: Sequence[Rows], *, counts_all: bool
) -> str:
    """Choose how to place a metric's loose rows: PLACED, BY_EPOCH or IN_ORDER.

    ``placed`` and ``at_epochs``: the rows that found steps beside others, and those at whole
    epochs. ``counts_all``: the counter of steps does not start again within the run.
    """
    count = sum(map(len, loose))
    enough = max(1, _ENOUGH * count - (count >= _FEWEST))
    fit, fit_epochs = (sum(each.places for each in rows) >= enough for rows in (placed, at_epochs))
    if fit_epochs:
        counted = [join_steps([each]) for each in placed]
        if not (fit and counts_all and not starts_with_each_epoch(counted)):
            return BY_EPOCH
    return PLACED if fit else IN_ORDER


def _regularity(counted: Ints) -> float:
    """Return the share of steps that are multiples of their usual distance.

    All are if it is the same step each time: the last one of each epoch.

    >>> [_regularity(np.array(steps)) for steps in ([250, 500, 750], [249, 499, 749], [390, 390])]
    [1.0, 0.0, 1.0]
    """
    steps: list[int] = counted[:_LOOKED_AT].tolist()
    gaps = Counter(high - low for low, high in pairwise(steps) if high > low)
    if not gaps:
        return float(len({*steps}) == 1)
    usual = gaps.most_common(1)[0][0]
    return sum(step % usual == 0 for step in steps) / len(steps)
