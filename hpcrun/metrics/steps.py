"""Steps: which steps the rows of a log belong to.

Many lines say what was measured but not at which step: the dictionaries of the HF Trainer, between
the drawings of a progress bar; ``validation loss: 2.9`` between the lines of the steps. The rows
that *count* are those of the training with steps of their own, or the drawings of the training bar:
those that distinguish more of the losses without a step.

Many bars may be drawn: of loading, of tokenizing, of each evaluation. A bar on which a training
loss stands is the training's. Else the *training bar* is the one that moves along with the rows of
the training: of the bars drawn between two such rows the one that is drawn between most of them.

A row without a step is placed

- by what it says of its place, where that leads to whole steps near those that are counted
  (``Scale``): the share of the epoch that it prints, or its number, if there are as many rows as
  steps. So are rows that come in lumps, as a process prints that buffers its output;
- BEFORE: at the last step that was counted before it;
- AFTER: at the next one, where that lies at regular steps: an evaluation every 250 steps that
  stands between 249 and 250 belongs to 250. A row before the first step, or after the last one, has
  one neighbour;
- by epoch: if there is one for each whole epoch, printed or marked, where no counter counts through
  all epochs;
- by its order alone, where they print none.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, compress, islice, pairwise, repeat
from operator import add, gt, lt, mul, ne, sub, truediv
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from hpcrun.metrics.names import LOSS
from hpcrun.metrics.own_steps import (
    BY_EPOCH,
    DRAWN,
    IN_ORDER,
    LEVEL_OF_LOSS,
    OWN,
    PLACED,
    Bar,
    Counted,
    Rows,
    epochs_above,
    join_steps,
    merged,
    merged_order,
    pick,
    read_rows,
    without_summary,
)
from hpcrun.metrics.passes import Guide, rises, starts_with_each_epoch
from hpcrun.metrics.store import Log

# This share of a metric's rows must have steps of their own for these to be believed.
_ENOUGH = 0.9
# Steps of each form that are looked at for how regular they are.
_LOOKED_AT = 4096
# An epoch beyond this is none.
_LARGEST = 1 << 53
_EVALUATED = ("eval", "val", "test")
# A bar takes over from one that stands still only if it has this share of its votes.
_TAKES_OVER = 0.1
# Fewer rows show no scale. This many numbers of epochs are tried; such a share of the rows may be
# lost. A bar may be drawn this many steps late. Epochs that are rounded to more than this part of a
# step do not show which it is.
_FEWEST = 4
_TRIED = 2
_LOST = 0.1
_DRAWN_LATE = 2
_EXACT = 0.25
_WHOLE = 0.01
# Beyond this a bar counts bytes or tokens, and the distances to be tried are without end.
_MOST_STEPS = 10_000_000


class Steps(Struct, eq=False):
    """The rows of a log with all the steps that they may have.

    ``by_step``: rows with steps, those without one both BEFORE and AFTER. ``by_epoch``: those that
    have no step but a whole epoch, as their step; ``loose``: the ones without a step, bars aside.
    ``training`` is the bar that counts the training; ``resumed`` where it was resumed. ``is_late``:
    the losses came in lumps, and their steps follow from their epochs.
    """

    log: Log
    by_step: list[Rows]
    by_epoch: list[Rows]
    loose: list[Rows]
    training: Bar | None
    resumed: list[int]
    through_epochs: bool
    is_late: bool

    def by_name(self) -> dict[str, Steps]:
        """Part the rows by the metrics that they have: one of thousands is found at once."""
        parts: dict[str, Steps] = {}
        for kind in ("by_step", "by_epoch", "loose"):
            for rows in getattr(self, kind):
                for name in {*rows.names}:
                    if name not in parts:
                        parts[name] = replace(self, by_step=[], by_epoch=[], loose=[])
                    getattr(parts[name], kind).append(rows)
        return parts


class Drawings(NamedTuple):
    """All drawings of one bar in a log."""

    bar: Bar
    counted: Counted


def find_steps(log: Log) -> Steps:
    """Find the steps of the rows of a log.

    >>> from hpcrun.metrics.row import Frame, Layout
    >>> from hpcrun.metrics.store import Store
    >>> bar = Frame(Layout("tqdm", "train", None, "", ()), [0, 20], [1, 2], None, None, (), 9)
    >>> layout = Layout("dict", "train", None, None, ("loss",))
    >>> losses = Frame(layout, [10, 30], None, None, None, ([3.0, 2.5],))
    >>> store = Store()
    >>> store.begin(0)
    >>> store.add([bar, losses])
    >>> [(rows.side, [*rows.steps]) for rows in find_steps(store.logs[0]).by_step if rows.names]
    [('placed', [1, 2])]
    """
    rows = read_rows(log)
    own = [each for each in rows if each.steps and each.bar is None]
    loose = [
        without_summary(each) for each in rows if not each.steps or (each.bar and not each.level)
    ]
    lines = [each for each in loose if each.names and each.bar is None]
    bars = _through_bars([each for each in rows if each.steps and each.bar and each.level])
    trained = [each.offsets for each in (*own, *loose) if each.has_losses]
    evaluated = sorted(each.offsets[0] for each in loose if not each.level)
    found = training_bars(bars, merged(merged_order(trained), trained), evaluated)
    training = found[-1].bar if found else None
    counting = {each.bar for each in found}
    by_step = [*own, *_fresh([each for each in bars if each.has_losses and each.bar in counting])]
    for each in bars:
        if each.has_losses and each.bar in counting:
            continue
        if each.names and each.bar and (each.has_losses or each.bar.may_train):
            by_step.append(replace(each, side=each.bar.side, level=0))
    through_epochs = any(each.length for each in own)
    by_lines = join_steps([each for each in own if each.level])
    by_bars = join_steps([each.counted for each in found])
    counts = _choose_counts([by_lines, by_bars], [each for each in lines if each.has_losses])
    scale = None
    drawn = [each for each in loose if each.names and each.bar]
    if counts is None:
        lines = _with_epochs_above(lines)
    else:
        near = [counts.neighbours(each) for each in lines]
        scale = find_scale(lines, near, counts, training.total if training else None)
        kinds: dict[object, list[tuple[Rows, Rows]]] = {}
        for each, pair in zip(lines, near, strict=True):
            if scale is not None and (steps := scale.steps_of(each)) is not None:
                by_step.append(replace(pair[0], steps=steps, places=steps))
            else:
                kinds.setdefault((each.names[0], each.rank), []).append(pair)
        for pairs in kinds.values():
            by_step += counts.choose(pairs, through_epochs=through_epochs)
        for each in drawn:
            since = bisect_left(each.offsets, counts.offsets[0])
            if since < len(each.offsets):
                each = each.only(range(since, len(each.offsets)))
                by_step.append(replace(counts.neighbours(each)[0], side=DRAWN, level=0))
    return Steps(
        log,
        by_step,
        [*chain.from_iterable(map(_at_epochs, (*lines, *drawn)))],
        lines,
        training,
        sorted(chain.from_iterable(map(_resumptions, found))),
        through_epochs,
        scale is not None and scale.in_lumps,
    )


def _drawings(bars: Iterable[Rows]) -> list[Drawings]:
    """Join the drawings of each bar that may be the training's; the last one comes last."""
    of_bar: dict[Bar, list[Rows]] = {}
    for rows in bars:
        if rows.bar is not None and (rows.has_losses or rows.bar.may_train):
            of_bar.setdefault(rows.bar, []).append(rows)
    drawn = [Drawings(bar, join_steps(known)) for bar, known in of_bar.items()]
    return sorted(drawn, key=lambda each: each.counted.offsets[-1])


def _through_bars(bars: Sequence[Rows]) -> list[Rows]:
    """Count the steps of a bar of batches through the epochs that a bar around it counts."""
    drawn = _drawings(each for each in bars if each.has_losses)
    if len(drawn) != 2:
        return [*bars]
    outer, inner = sorted(drawn, key=lambda each: len(each.counted.steps))
    epochs, length = [0, *outer.counted.steps], inner.bar.total or 0

    def through(offsets: Sequence[int], steps: Sequence[int]) -> array[int]:
        done = pick(epochs, outer.counted.above(offsets))
        return array("q", map(add, steps, map(length.__mul__, done)))

    if rises(inner.counted.steps) or length * max(epochs) > _LARGEST:
        return [*bars]
    counted = through(inner.counted.offsets, inner.counted.steps)
    if any(map(gt, counted, counted[1:])):
        return [*bars]
    found = []
    for each in bars:
        if each.bar == inner.bar:
            total = length * (outer.bar.total or 0) or None
            bar = Bar(inner.bar.description, total)
            each = replace(each, steps=through(each.offsets, each.steps), bar=bar, total=total)
        found.append(each)
    return found


def training_bars(
    bars: Sequence[Rows], trained: Sequence[int], evaluated: Sequence[int]
) -> list[Drawings]:
    """Find the bars of the training; the one that counts last comes last.

    ``trained`` and ``evaluated``: the bytes at which rows of the training, and of evaluations,
    begin. A second training in the same log may have a bar of its own. Without rows of the training
    it is the bar that is not at its end when an evaluation is first logged.
    """
    showing = {each.bar for each in bars if each.has_losses}
    drawn = _drawings(each for each in bars if not showing or each.bar in showing)
    for place in evaluated if not (trained or showing) else ():
        going = {}
        for each in drawn:
            at = bisect_left(each.counted.offsets, place) - 1
            if at >= 0 and each.counted.steps[at] < (each.bar.total or 0):
                going[each.counted.offsets[at]] = each
        if going:
            return [going[max(going)]]
    votes = []
    for number, (_, (offsets, _, _)) in enumerate(drawn):
        # The gaps between rows of the training in which it is drawn.
        gaps = {*map(bisect_left, repeat(trained), () if showing else offsets)} - {len(trained)}
        votes.append((len(offsets if showing else gaps), number, offsets[0], offsets[-1]))
    found: list[tuple[int, int, int, int]] = []
    for vote in sorted(votes, reverse=True):
        count, _, first, last = vote
        least = max(1, _TAKES_OVER * max(votes)[0]) if found and not showing else 0
        if count > least and all(last < other[2] or other[3] < first for other in found):
            found.append(vote)
    return [drawn[number] for number in sorted(vote[1] for vote in found)]


def _resumptions(drawn: Drawings) -> Iterator[int]:
    """Find where a bar breaks off, begins again and jumps ahead: the training was resumed there.

    >>> def drawings(*steps):
    ...     return Drawings(Bar("", 99), Counted(range(len(steps)), steps))
    >>> [*_resumptions(drawings(1, 2, 0, 2))], [*_resumptions(drawings(1, 0, 50))]
    ([], [2])
    """
    (_, total), (offsets, steps, _) = drawn
    if total is None or not any(map(lt, islice(steps, 1, None), steps)):
        return
    stride, begins_again = 0, False
    for offset, (last, step) in zip(islice(offsets, 1, None), pairwise(steps), strict=True):
        if step < last:
            begins_again = step == 0 and last < total
        elif step > last:
            if begins_again and step > 2 * stride:
                yield offset
            else:
                stride = max(stride, step - last)
            begins_again = False


def _choose_counts(candidates: Sequence[Counted], losses: Sequence[Rows]) -> Counts | None:
    """Choose the steps that count: those that distinguish more losses without a step."""

    def apart(counts: Counted) -> int:
        return sum(len({*map(bisect_right, repeat(counts.offsets), x.offsets)}) for x in losses)

    candidates = [counts for counts in candidates if counts.steps]
    best = max(candidates, key=apart) if len(candidates) > 1 else next(iter(candidates), None)
    return None if best is None else Counts(best)


def _with_epochs_above(lines: Sequence[Rows]) -> list[Rows]:
    """Give lines that name no epoch that of the last loss above them."""
    named = [each for each in lines if each.has_losses and each.epochs is not None]
    offsets, epochs, _ = join_steps([replace(each, steps=each.epochs) for each in named])
    above = Counted(offsets, [math.nan, *epochs])
    return [
        replace(each, epochs=epochs_above(each.offsets, above)) if each.epochs is None else each
        for each in lines
    ]


def _fresh(drawn: Sequence[Rows]) -> list[Rows]:
    """Leave out what a bar of the training still shows from before.

    That is the results of an evaluation, until the next one; and all that it shows at 0 with the
    loss of the epoch before.
    """
    found = []
    evaluated = {name for rows in drawn for name in rows.names if name.startswith(_EVALUATED)}
    for name in sorted(evaluated):
        for rows, new in _changes([rows.of([name]) for rows in drawn if name in rows.names], name):
            found.append(replace(rows.only(new), level=0))
    begins = any(0 in rows.steps for rows in drawn)
    for rows, new in _changes(drawn, LOSS) if begins else zip(drawn, repeat(())):
        kept = rows.of([name for name in rows.names if name not in evaluated])
        if 0 in rows.steps:
            known = {*new}
            kept = kept.only([at for at, step in enumerate(rows.steps) if step or at in known])
        found.append(kept)
    return [rows for rows in found if rows.steps]


def _changes(drawn: Sequence[Rows], name: str) -> Iterator[tuple[Rows, Sequence[int]]]:
    """Find where a metric is another than in the drawing before, in each of the rows."""
    order = merged_order([rows.offsets for rows in drawn])
    values = merged(order, [rows.columns[rows.names.index(name)] for rows in drawn])
    changed = bytearray(len(order))
    is_new = chain([True], map(ne, values, islice(values, 1, None)))
    for at, differs in zip(order, is_new, strict=False):
        changed[at] = differs
    flags = iter(changed)
    for rows in drawn:
        yield (
            rows,
            [at for at, differs in zip(range(len(rows.offsets)), flags, strict=False) if differs],
        )


def _at_epochs(rows: Rows) -> list[Rows]:
    """Return the rows with their epochs as steps, if all that have any have whole ones."""
    if rows.epochs is None:
        return []
    epochs = rows.epochs
    if math.isnan(sum(epochs)):
        known = [index for index, epoch in enumerate(epochs) if not math.isnan(epoch)]
        rows, epochs = rows.only(known), pick(epochs, known)
    if not epochs or not all(map(float.is_integer, epochs)) or max(map(abs, epochs)) > _LARGEST:
        return []
    side, level = (OWN, rows.level) if rows.bar is None else (DRAWN, 0)
    steps = array("q", map(int, epochs))
    places = [*compress(steps, chain([True], map(ne, steps, islice(steps, 1, None))))]
    return [replace(rows, steps=steps, side=side, level=level, places=places)]


class Counts:
    """The steps that a log counts, and the neighbours of other rows among them."""

    def __init__(self, counted: Counted) -> None:
        self.offsets, self.steps, epochs = counted
        self._counted = counted
        # As long as the step is the same it is one place; of a later lap it is another.
        moves = map(ne, self.steps, islice(self.steps, 1, None))
        places = array("q", accumulate(moves, initial=0))
        self._places: int = places[-1] + 1
        falls = any(map(gt, self.steps, islice(self.steps, 1, None)))
        columns: list[Any] = [self.steps, places if falls else (), self.offsets, epochs or ()]
        # A row above the first step, or below the last, has one neighbour.
        self._before = [column[:1] + column for column in columns]
        self._after = [column + column[-1:] for column in columns]

    def neighbours(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return rows with the steps before them, and with those after them."""
        above = self._counted.above(rows.offsets)

        def placed(steps: Sequence[int], numbers: Sequence[int]) -> Rows:
            steps = pick(steps, above)
            numbers = pick(numbers, above) if numbers else steps
            moved = chain([True], map(ne, numbers, islice(numbers, 1, None)))
            places = array("q", compress(steps, moved))
            return replace(rows, steps=steps, side=PLACED, level=level, places=places)

        level = LEVEL_OF_LOSS if rows.has_losses else 0
        before, after = placed(*self._before[:2]), placed(*self._after[:2])
        after.offsets = pick(self._after[2], above)
        if not above[0]:
            before.offsets = array("q", map(max, repeat(self.offsets[0]), rows.offsets))
        if above[-1] == len(self.steps):
            # The last row has nothing after it: its step, that of the one before, shows nothing.
            after.places = [*after.places, after.steps[-1]]
        if rows.epochs is None and self._before[3]:
            before.epochs = after.epochs = pick(self._before[3], above)
        return before, after

    def _stand_below(self, rows: Sequence[Rows]) -> bool:
        """Whether each row stands above the line with its step, the first and the last one too."""
        first, last = min(x.offsets[0] for x in rows), max(x.offsets[-1] for x in rows)
        if first > self.offsets[0] or last > self.offsets[-1]:
            return False
        return _ENOUGH <= sum(len(each.offsets) for each in rows) / self._places <= 1 / _ENOUGH

    def choose(self, pairs: Sequence[tuple[Rows, Rows]], *, through_epochs: bool) -> list[Rows]:
        """Choose for rows of one kind the steps before them or after them."""
        before, after = ([*each] for each in zip(*pairs, strict=True))
        enough = _ENOUGH * sum(len(each.steps) for each in before)
        first, second = (
            [*chain.from_iterable(each.places for each in rows)] for rows in (before, after)
        )
        if len(second) < enough or (len(first) >= enough and through_epochs):
            return before  # what stands between two epochs is of the one that ends
        is_regular = max(first) > first[0] and _regularity(second) > _regularity(first) + 0.25
        return after if len(first) < enough or is_regular or self._stand_below(before) else before


class Scale(NamedTuple):
    """How the steps of rows follow from the share of the epoch that they print, or their number.

    ``per_epoch``: the steps of an epoch, None where these show nothing; the steps are multiples of
    ``distance``, at most ``total``. ``first``: the step of the first loss, where the others follow
    from their number; they stand at ``losses`` in the log.
    """

    per_epoch: float | None
    distance: int
    total: int
    first: int | None
    losses: Sequence[int]
    in_lumps: bool

    def steps_of(self, rows: Rows) -> Sequence[int] | None:
        """Return the steps of rows, None where they do not show them."""
        if self.first is not None and rows.has_losses:
            numbers = map(bisect_left, repeat(self.losses), rows.offsets)
            return array("q", (self.first + self.distance * number for number in numbers))
        if self.per_epoch is None or rows.epochs is None:
            return None
        most = max(map(abs, rows.epochs)) * self.per_epoch
        return (
            self.at(rows.epochs) if most < _LARGEST and not math.isnan(sum(rows.epochs)) else None
        )

    def at(self, epochs: Sequence[float]) -> Sequence[int]:
        """Return the steps of epochs.

        >>> Scale(705.0, 1, 2115, None, (), False).at([0.14])
        array('q', [99])
        >>> Scale(705.0, 10, 2115, None, (), True).at([0.001, 0.14, 3.0])
        array('q', [10, 100, 2115])
        """
        shares = map(mul, epochs, repeat((self.per_epoch or 0.0) / self.distance))
        if self.distance == 1:
            return array("q", map(round, shares))
        return array("q", (min(self.total, self.distance * max(1, round(x))) for x in shares))


def find_scale(
    lines: Sequence[Rows], near: Sequence[Sequence[Rows]], counts: Counts, total: int | None
) -> Scale | None:
    """Find how steps follow from the epochs of the losses or their number; None if they do not.

    A program whose output is buffered prints its dictionaries in lumps, long after their steps,
    while the bar is drawn at once. Each says how far the epoch is, the bar how many steps there are
    in all: so a step is epoch x total / epochs. How many epochs there are is not named; no row may
    lie ahead of the bar, so that few numbers are possible. Other rows lie beside their steps.
    """
    losses = [n for n, each in enumerate(lines) if each.has_losses]
    losses = losses or [n for n, each in enumerate(lines) if each.epochs is not None]
    order = merged_order([lines[n].offsets for n in losses])
    offsets = merged(order, [lines[n].offsets for n in losses])
    if len(order) < _FEWEST or (total or 0) > _MOST_STEPS:
        return None
    moves = (sum(len(near[n][side].places) for n in losses) for side in (0, 1))
    in_lumps = max(moves) < _ENOUGH * len(order)
    if in_lumps and len(counts.steps) >= _FEWEST:
        above = map(bisect_left, repeat(offsets), counts.offsets)
        ahead = map(sub, counts.steps, above)
        first = next(ahead)
        if all(map(first.__eq__, ahead)):
            return Scale(None, 1, _LARGEST, first + 1, offsets, False)
    columns = [each for n in losses if (each := lines[n].epochs) is not None]
    epochs = merged(order, columns) if len(columns) == len(losses) else [math.nan]
    if not all(map(math.isfinite, epochs)) or epochs[-1] <= 0:
        return None
    before, after = (merged(order, [near[n][side].steps for n in losses]) for side in (0, 1))
    shown = epochs[:_LOOKED_AT]
    digits = (n for n in (2, 3, 4, 6) if all(round(epoch, n) == epoch for epoch in shown))
    coarse = 0.5 * 10.0 ** -next(digits, 15)
    if in_lumps:
        if total is None or all(map(float.is_integer, epochs)):
            return None
        least = map(sub, epochs, repeat(coarse))
        ahead = map(truediv, least, map(max, after, repeat(1)))
        number = max(1, math.ceil(total * max(ahead)))
        lengths = [total / each for each in range(number, number + _TRIED)]
    elif len({*before}) < _ENOUGH * len(before):
        return None
    else:
        ends = {*range(before[-1], before[-1] + _DRAWN_LATE + 1), after[-1]} - {0}
        lengths = [end / epochs[-1] for end in sorted(ends)]
        lengths += [total / max(1, round(epochs[-1] * total / end)) for end in ends if total]
    for length in lengths:
        scale = Scale(length, 1, total or _LARGEST, None, offsets, in_lumps)
        if found := _fit(scale, epochs, coarse, before, after):
            return found
    return None


def _fit(
    scale: Scale,
    epochs: Sequence[float],
    coarse: float,
    before: Sequence[int],
    after: Sequence[int],
) -> Scale | None:
    """Find the distance of losses at which steps follow from their epochs.

    ``coarse``: how far the printed epochs are rounded.

    >>> epochs = [0.01, 0.03, 0.04, 0.06, 0.07, 0.09]
    >>> _fit(Scale(705.0, 1, 2115, None, (), True), epochs, 0.005, (), ()).distance
    10
    """
    length = scale.per_epoch or 0.0
    error, gaps = coarse * length, len(epochs) - 1
    span, spread = length * (epochs[-1] - epochs[0]) / gaps, 2 * error / gaps
    least, least_whole = (max(1, math.floor(x)) for x in ((1 - _LOST) * span, span - spread))
    whole = range(least_whole, math.ceil(span + spread) + 1)
    is_exact = error <= _EXACT
    if max(map(abs, epochs)) * length > _LARGEST:
        return None
    for distances in ([1],) if is_exact else (whole, range(least, least_whole)):
        fitting = []
        for distance in distances if is_exact or scale.in_lumps else ():
            found = scale._replace(distance=distance)
            steps = found.at(epochs)
            if 2 * error >= distance:
                found = found._replace(first=steps[0])
                steps = range(steps[0], steps[0] + distance * len(steps), distance)
            strays = [*map(abs, map(sub, steps, map(mul, epochs, repeat(length))))]
            fits = rises(steps) if scale.in_lumps else _lie_beside(steps, before, after)
            if max(strays) <= error + (_WHOLE if is_exact else 1) and fits:
                fitting.append((math.fsum(strays), found))
        if fitting:
            return min(fitting)[1]
    return None


def _lie_beside(steps: Sequence[int], before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether nearly all steps are those before them or after them, or between."""
    early: int = sum(map(lt, map(add, steps, repeat(_DRAWN_LATE)), before))
    late: int = sum(map(gt, map(sub, steps, repeat(_DRAWN_LATE)), after))
    return early + late <= (1 - _ENOUGH) * len(steps)


def choose_way(name: str, logs: Sequence[Steps], *, counts_all: bool) -> str:
    """Choose how to place a metric's rows without a step: PLACED, BY_EPOCH or IN_ORDER.

    ``counts_all``: the counter of steps does not start again within the run.
    """
    loose = [rows for log in logs for rows in log.loose if name in rows.names]
    placed = [x for log in logs for x in log.by_step if name in x.names and x.side == PLACED]
    at_epochs = [x for log in logs for x in log.by_epoch if name in x.names and x.bar is None]
    enough = max(1, _ENOUGH * sum(len(each.offsets) for each in loose))
    fit, fit_epochs = (sum(len(x.places) for x in rows) >= enough for rows in (placed, at_epochs))
    guides = [Guide(each.offsets, each.steps, each.epochs or ()) for each in placed]
    if fit_epochs and not (fit and counts_all and not starts_with_each_epoch(guides)):
        return BY_EPOCH
    return PLACED if fit else IN_ORDER


def _regularity(steps: Sequence[int]) -> float:
    """Return the share of steps that are multiples of their usual distance.

    All are if it is the same step each time: the last one of each epoch.

    >>> _regularity([250, 500, 750]), _regularity([249, 499, 749]), _regularity([390, 390])
    (1.0, 0.0, 1.0)
    """
    steps = steps[:_LOOKED_AT]
    gaps = Counter(high - low for low, high in pairwise(steps) if high > low)
    if not gaps:
        return float(len({*steps}) == 1)
    usual = gaps.most_common(1)[0][0]
    return sum(step % usual == 0 for step in steps) / len(steps)
