"""Derive: the curve of a run, of all that its logs say.

What the logs say is stored (``store``); the curve is a view of it. What is decided, in this order:

1. *Which steps rows belong to*: those on their line (``own_steps``); else those of the rows around
   them, of which the lines with steps count or the drawings of the training bar, or those that
   follow from their epochs (``steps``).
2. *Passes and restarts* (``passes``): the losses that tell the progress best guide through the log.
   Where their counter falls, another epoch or run begins, or the run does steps again. A later
   attempt, or a resumption, replaces what it does again: what was logged at its first step and
   after is gone, as the weights that it belonged to are.
3. *How the rows without steps are placed*: before, after, by epoch, in their order (``steps``).
   Where some rows of a metric have a step, those without are left out (a closing summary), unless
   a few have one and many have none.
4. *Who speaks for a metric.* Of several files or ranks the first file, and the lowest rank in it,
   unless another has more than twice as many points. What a bar shows beside its counter speaks
   only if no lines do, or if it has more than twice as many points (a bar drawn at each step, and a
   line at the end of the epoch).
5. *One value per step*: the last one in the log. Where the counter counts within the epoch and the
   log has one training loss for each epoch, the epoch is the step.
6. *What people should know*: restarts, how many steps there will be, and notes.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, groupby, islice, pairwise, repeat
from operator import eq, ne
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from hpcrun.metrics.curve import Curve, Restart, Series, build_series
from hpcrun.metrics.names import EPOCH, EVAL_LOSS, LOSS, like_a_loss
from hpcrun.metrics.own_steps import (
    BY_EPOCH,
    DRAWN,
    IN_ORDER,
    LEVEL_OF_LOSS,
    OWN,
    Rows,
    by_rank,
    join_steps,
    merged,
    merged_order,
    pick,
)
from hpcrun.metrics.passes import Counter, Guide, Turn, follow, rises, starts_with_each_epoch
from hpcrun.metrics.steps import Steps, choose_way, find_steps
from hpcrun.metrics.store import Store, called_loss

# A fall of an epoch is looked at in such parts, as a counter of steps.
_PARTS = 10_000
# Losses that a note names.
_NAMED = 6
# Trainings are of one kind if the lengths of their epochs differ by no more.
_ALIKE = 1.5
# So few losses with a step, and such a share of all, do not decide what the others mean.
_FEW, _SHARE = 10, 0.1
_ANOTHER = "taken as another run in the same file, not as a requeue"
_NEXT_EPOCH = "taken as the next epoch, or another run in the same file, not as a requeue"
_UNKNOWN = "at which steps is not known, their order counts"
_DONE_AGAIN = "the run was resumed; without steps, what it did again stands there twice"


def derive(store: Store, limit: int | None = None) -> Curve:
    """Derive the curve; of a long metric keep ``limit`` points, None for all.

    >>> from hpcrun.metrics.row import Frame, Layout
    >>> def losses(steps, values):
    ...     layout = Layout("json", "train", None, None, ("loss",))
    ...     return [Frame(layout, [*range(len(steps))], steps, None, None, (values,))]
    >>> store = Store()
    >>> store.begin(0)
    >>> store.add(losses([1, 2, 3], [9.0, 8.0, 7.0]))
    >>> store.begin(1)
    >>> store.add(losses([2], [6.0]))
    >>> derive(store).steps("loss"), derive(store).values("loss")
    ([1, 2], [9.0, 6.0])
    >>> derive(store).restarts
    (Restart(attempt=1, lost_at=3, resumed_at=2, replayed=2),)
    """
    logs, stand_in = called_loss(store.proven())
    view = _View([find_steps(log) for log in logs])
    training, losses = view.training, view.find(LOSS)
    metrics = {}
    for name in view.names():
        # One after the other: the columns of all at once would take far more than what is stored.
        column = losses if name == LOSS else view.find(name)
        if column is not None:
            by_epoch = view.is_one_an_epoch(losses) and view.is_one_an_epoch(column)
            metrics[name] = column.series(limit, by_epoch=by_epoch)
    counted = [axis for axis in (view.by_step, view.by_epoch) if axis.level]
    axis = losses.axis if losses is not None else [*counted, view.in_order][0]
    total = None
    if axis is view.by_step and not view.within_epoch:
        total = training.total if axis.total is None and training is not None else axis.total
    is_late = axis is view.by_step and any(log.is_late for log in view.logs)
    is_unknown = axis is view.in_order and training is not None
    notes = [*axis.notes(losses)]
    if is_late or is_unknown:
        notes.append(
            "losses stand in lumps between the drawings of the progress bar, as a program prints "
            "that buffers its output: "
            + ("their steps follow from their epochs" if is_late else _UNKNOWN)
        )
    others = [name for name in metrics if like_a_loss(name) and metrics[name].summary.count > 1]
    others.sort(key=lambda name: name != LOSS)
    draws = f"--metric draws another ({', '.join(others[1:_NAMED])})" if others[1:] else ""
    if stand_in:
        notes.append(f"nothing is called loss: {stand_in} is taken" + (draws and f"; {draws}"))
    elif LOSS not in metrics and EVAL_LOSS not in metrics and draws:
        notes.append(
            f"several losses, and none is the training's by its name: {others[0]} is taken, the "
            f"first; {draws}"
        )
    return Curve(metrics, tuple(axis.restarts()), total, (*notes, *store.notes()))


class _Points(NamedTuple):
    """Values, their steps and their times, in the order of the log; () where there are none."""

    steps: Sequence[Any]
    values: Sequence[Any]
    times: Sequence[Any]

    def at(self, indices: Sequence[int]) -> _Points:
        """Return the points at some indices."""
        return _Points(*(pick(column, indices) if column else column for column in self))


def _joined(parts: Sequence[_Points]) -> _Points:
    """Join points one behind the other."""
    if len(parts) == 1:
        return parts[0]
    steps, values, times = array("q"), array("d"), array("d")
    for points in parts:
        steps.extend(points.steps)
        values.extend(points.values)
        times.extend(points.times or repeat(math.nan, len(points.values)))
    return _Points(steps, values, times)


def _settled(parts: Sequence[_Points]) -> _Points:
    """Leave one value per step, the last one, in the order of the steps."""
    points = _joined(parts)
    if rises(points.steps):
        return points
    last = dict(zip(points.steps, range(len(points.steps)), strict=True))
    return points.at([*last.values()] if rises([*last]) else [last[each] for each in sorted(last)])


class _Column(Struct, eq=False):
    """One metric, one value per step; ``epochs`` are those of the passes."""

    axis: _Axis
    side: str
    points: _Points
    epochs: list[int]

    def __len__(self) -> int:
        return len(self.points.values)

    def series(self, limit: int | None, *, by_epoch: bool) -> Series:
        """Return the points, at most ``limit``; ``by_epoch``: by that of their pass."""
        steps, values, times = self.points
        steps = self.epochs if by_epoch else steps or [None] * len(self)
        few = 2 * sum(map(math.isnan, times)) >= len(times)  # lines have one
        return build_series(steps, values, None if few else times, limit)

    @property
    def work(self) -> float:
        """Sum of the values, were they alike at all steps up to the last: seconds of a bar."""
        return float(self.points.steps[-1] * sum(self.points.values) / len(self))


class _Track(Struct, eq=False):
    """A log on one axis: the rows that tell the progress, and where their counter turns.

    ``counter``: what it has shown at its end; ``begins``: the run and the epoch at its beginning.
    """

    log: Steps
    of_name: dict[str, Steps]
    guide: Guide | None
    counter: Counter = field(default_factory=Counter)
    begins: tuple[int, int] = (0, 0)
    turns: list[Turn] = []


class _Axis:
    """One way to place the rows of a run: by step, by epoch, or by their order alone (loose)."""

    def __init__(self, kind: str, attempts: Sequence[Sequence[tuple[Steps, dict[str, Steps]]]]):
        self.kind, self.in_order = kind, kind == "loose"
        # The order of the rows that were joined last: many metrics stand on the same ones.
        self._order: tuple[tuple[int, ...], Sequence[int]] = ((), ())
        rows = chain.from_iterable(getattr(log, kind) for each in attempts for log, _ in each)
        # Which rows tell the progress, and the log of each attempt that counts it best.
        self.level = 0 if self.in_order else max((each.level for each in rows), default=0)
        self.attempts = [
            [_Track(*each, self._guide(each[0])) for each in logs] for logs in attempts
        ]
        leads = [next((track for track in each if track.guide), None) for each in self.attempts]
        self.leads = [lead or each[0] for lead, each in zip(leads, self.attempts, strict=True)]
        self.within_epochs = starts_with_each_epoch(
            [each.guide for each in self.leads if each.guide]
        )
        self.counter = Counter()
        for number, attempt in enumerate(self.attempts):
            highest = self.counter.highest
            for track in attempt:
                track.begins = (self.counter.run, highest.epoch if highest else 0)
                track.counter = replace(self.counter, ends={**self.counter.ends})
                if track.guide is None:
                    continue
                marks = [-1] if number else []
                if not self.in_order:
                    marks += [each.offset for each in track.log.log.marks if each.mark.restart]
                    marks += track.log.resumed
                within = self.within_epochs
                track.turns = follow(track.guide, marks, track.counter, within_epochs=within)
            self.counter = self.leads[number].counter
        # Of each attempt the first pass and step that later ones do again.
        self.cuts: list[tuple[float, ...]] = [(math.inf,)]
        for lead in reversed(self.leads[1:]):
            again = [(turn.run, *turn.at) for turn in lead.turns if turn.is_again]
            self.cuts.insert(0, min([self.cuts[0], *again]))
        # Other trainings in the same file: their lengths, how many losses they have, their runs.
        self.length, self.others, self.left_out = self._find_trainings()

    def _guide(self, log: Steps) -> Guide | None:
        rows: list[Rows] = getattr(log, self.kind)
        if self.in_order:
            return _guide_of_epochs(rows)
        return _guide([each for each in rows if each.level == self.level > 0 and each.steps])

    def _find_trainings(self) -> tuple[int, list[tuple[int, int]], set[int]]:
        """Find the longest of several trainings in one file, by the lengths of their epochs."""
        length_of: dict[int, int] = {}
        rows: Tally[int] = Tally()
        for lead in self.leads:
            if lead.guide is None or not lead.guide.lengths or not lead.log.through_epochs:
                continue
            offsets, lengths = lead.guide.offsets, lead.guide.lengths
            starts = [0, *(bisect_left(offsets, turn.offset) for turn in lead.turns), len(offsets)]
            runs = [lead.begins[0], *(turn.run for turn in lead.turns)]
            for run, (start, end) in zip(runs, pairwise(starts), strict=True):
                if start < end:
                    length_of[run] = lengths[end - 1] or 0
                    rows[length_of[run]] += end - start
        (length, _), *others = rows.most_common() or [(0, 0)]
        others = [each for each in others if not length / _ALIKE <= each[0] <= length * _ALIKE]
        return length, others, {run for run, each in length_of.items() if each in dict(others)}

    @property
    def total(self) -> int | None:
        """How many steps there will be, as the rows that count them say."""
        guides = [lead.guide for lead in self.leads if lead.guide]
        epochs = [guide.epochs for guide in guides]
        # Beside whole epochs it may be that of each, until the counter is seen to count on.
        last = next(filter(math.isfinite, chain(*map(reversed, reversed(epochs)))), 0.5)
        floors = {*map(math.floor, filter(math.isfinite, chain(*epochs)))}
        if last.is_integer() and (self.within_epochs or len(floors) < 2):
            return None
        totals = (guide.total for guide in reversed(guides))
        return next((total for total in totals if total is not None), None)

    def restarts(self) -> list[Restart]:
        """Return all restarts, those between attempts included."""
        found = []
        reached: int | None = None
        for number, lead in enumerate(self.leads):
            index, guide = lead.log.log.attempt, lead.guide
            again = [turn for turn in lead.turns if turn.is_again]
            for turn in again:
                lost_at = turn.reached.step if turn.reached else None
                found.append(Restart(index, lost_at, turn.at.step, turn.replayed or 0))
            if number and not again:
                found.append(Restart(index, reached, guide.steps[0] if guide else None, 0))
            reached = lead.counter.highest.step if lead.counter.highest else None
        return [Restart(each.attempt, None, None, 0) for each in found] if self.in_order else found

    def notes(self, losses: _Column | None) -> Iterator[str]:
        """Yield what was decided where the counter fell, who prints it, and what is not shown."""
        falls: dict[tuple[str, str], list[str]] = {}
        guides = [(lead, lead.guide) for lead in self.leads if lead.guide]
        for turn, guide in ((turn, guide) for lead, guide in guides for turn in lead.turns):
            if turn.reached is not None and self.in_order:
                meaning = _DONE_AGAIN if turn.is_again else _ANOTHER
                where = f"{turn.reached.step / _PARTS:g} to {turn.at.step / _PARTS:g}"
                falls.setdefault(("the epoch falls from", meaning), []).append(where)
            elif turn.reached is not None and not turn.is_again:
                meaning = _NEXT_EPOCH if turn.reached.step == guide.total else _ANOTHER
                what = "the step counter begins again after"
                falls.setdefault((what, meaning), []).append(f"step {turn.reached.step}")
        for (what, meaning), places in falls.items():
            others = sum(place != places[0] for place in places)
            more = f" and at {others} other place{'s' if others > 1 else ''}" if others else ""
            yield f"{what} {places[0]}{more}: {meaning}"
        for length, count in self.others:
            yield (
                f"a training of another length ({length} steps, or to an epoch, not {self.length}) "
                f"stands in the same file: its {count} losses are left out"
            )
        processes = max((round(self._processes(lead.log)) for lead, _ in guides), default=1)
        rows = sum(len(guide.steps) for _, guide in guides)
        behind = sum(lead.counter.behind for lead, _ in guides)
        if processes > 1:
            yield (
                f"each step stands {processes} times in the log, with different values and "
                "no rank: several processes print it; the last value of each step counts"
            )
        elif losses is not None and behind > _SHARE * rows and len(losses) < (1 - _SHARE) * rows:
            yield (
                f"{len(losses):,} of {rows:,} losses are shown: the counter falls {behind:,} times "
                "to steps that it had passed, and the last value of each step counts"
            )
        loose = [each for lead, _ in guides for each in lead.log.loose if each.has_losses]
        count = sum(len(each.offsets) for each in loose)
        if losses is not None and self.kind == "by_step" and losses.side == OWN and count > rows:
            yield f"{count:,} losses that have no step are not shown"

    def _processes(self, log: Steps) -> float:
        """Return how many processes print the same steps, as far as the rows of the guide tell.

        What is drawn again all through an epoch, whose number is the step, is one process's.
        """
        rows = repeats = 0
        for each in getattr(log, self.kind):
            if each.level != self.level or each.side != OWN or each.rank is not None:
                continue
            is_one = each.epochs is not None and all(map(eq, each.epochs, each.steps))
            if each.names and not is_one:
                values = each.columns[each.names.index(LOSS) if LOSS in each.names else 0]
                rows += len(each.steps)
                same = map(eq, each.steps, islice(each.steps, 1, None))
                repeats += sum(map(min, same, map(ne, values, islice(values, 1, None))))
        return rows / (rows - repeats) if rows else 1

    def column(self, name: str, side: str = OWN) -> _Column | None:
        """Return the points of a metric that found their steps in one way, None without any."""
        passes: dict[tuple[int, int], list[_Points]] = {}
        for attempt, cut in zip(self.attempts, self.cuts, strict=True):
            speakers = [
                self._parts(track, rows, name, cut)
                for track in attempt
                if name in track.of_name
                for rows in by_rank(
                    getattr(track.of_name[name], self.kind), None if self.in_order else side
                )
            ]
            for key, points in _speaking(speakers):
                passes.setdefault(key, []).append(points)
        found = [(key, _settled(passes[key])) for key in sorted(passes)]
        found = [(key, points) for key, points in found if points.values]
        shown = [each for each in found if each[0][0] not in self.left_out] or found
        if not shown:
            return None
        epochs = [epoch for (_, epoch), _ in shown]
        return _Column(self, side, _joined([points for _, points in shown]), epochs)

    def _parts(
        self, track: _Track, rows: Sequence[Rows], name: str, cut: tuple[float, ...]
    ) -> list[_Part]:
        """Part a metric's points of a log by passes; leave out what is done again later.

        ``cut``: the first pass and step that later attempts have replaced.
        """
        forms = tuple(id(each.offsets) for each in rows)
        if forms != self._order[0]:
            self._order = (forms, merged_order([each.offsets for each in rows]))
        order = self._order[1]
        times: Sequence[float] = ()
        if any(each.times for each in rows):
            known = [each.times or array("d", [math.nan]) * len(each.offsets) for each in rows]
            times = merged(order, known)
        points = _Points(
            () if self.in_order else merged(order, [each.steps for each in rows]),
            merged(order, [each.columns[each.names.index(name)] for each in rows]),
            times,
        )
        if self.in_order or (not track.turns and cut == (math.inf,)):
            return [(track.begins, points)]
        offsets = merged(order, [each.offsets for each in rows])
        parts: list[_Part] = []
        end = len(offsets)
        for turn in (*reversed(track.turns), None):
            start = bisect_left(offsets, turn.offset, 0, end) if turn else 0
            place = (turn.run, turn.at.epoch) if turn else track.begins
            if start < end and place <= cut[:2]:
                part = _Points(*(column[start:end] for column in points))
                if place == cut[:2]:
                    part = part.at([at for at, step in enumerate(part.steps) if step < cut[2]])
                parts.append((place, part))
            if turn is not None and turn.is_again:
                cut = min(cut, (turn.run, *turn.at))
            end = start
        return parts[::-1]


_Part = tuple[tuple[int, int], _Points]


def _speaking(speakers: Sequence[list[_Part]]) -> list[_Part]:
    """Choose the log and rank that speaks for a metric.

    It is the first log, and the lowest rank in it, unless another has more than twice as many
    points: the first may print a single line of its own.
    """
    if len(speakers) < 2:
        return speakers[0] if speakers else []
    counts = [
        sum(len({*points.steps}) if points.steps else len(points.values) for _, points in parts)
        for parts in speakers
    ]
    return next(
        parts for parts, count in zip(speakers, counts, strict=True) if 2 * count >= max(counts)
    )


def _guide(rows: Sequence[Rows]) -> Guide | None:
    """Join the rows that tell the progress, of the first who prints them."""
    if not rows:
        return None
    first = min(rows, key=lambda each: each.offsets[0])
    rows = [
        each
        for each in rows
        if each.rank == first.rank and (each.level >= LEVEL_OF_LOSS or each.names == first.names)
    ]
    offsets, steps, epochs = join_steps(rows)
    ends = {each.length or each.total for each in rows}
    lengths: Sequence[int | None] = ()
    if len(ends) > 1:
        named = [[each.length or each.total] * len(each.steps) for each in rows]
        lengths = merged(merged_order([each.offsets for each in rows]), named)
        if sum(map(ne, lengths, islice(lengths, 1, None))) != len(ends) - 1:
            lengths = ()
    total = max((each.total for each in rows if each.total is not None), default=None)
    is_bar = any(each.bar is not None for each in rows)
    return Guide(offsets, steps, epochs or (), total, lengths, is_bar)


def _guide_of_epochs(rows: Sequence[Rows]) -> Guide | None:
    """Take the epochs of the training losses that have no steps for the steps of a counter.

    The dictionaries of the HF Trainer say how far the epoch is, and no step. Where that falls the
    job was resumed, or another run begins; which points were done again nobody can tell, so all are
    kept in their order.
    """
    epochs = join_steps(
        [
            replace(each, steps=each.columns[each.names.index(EPOCH)])
            for each in rows
            if each.has_losses and EPOCH in each.names
        ]
    ).steps
    parts = [round(epoch * _PARTS) for epoch in epochs if 0 <= epoch < 1e9]
    return Guide(parts, parts) if parts else None


class _View:
    """Chooses for each metric which of its columns to show."""

    def __init__(self, logs: Sequence[Steps]) -> None:
        self.logs, named = logs, [(log, log.by_name()) for log in logs]
        self._of_name = [of_name for _, of_name in named]
        attempts = [[*each] for _, each in groupby(named, key=lambda pair: pair[0].log.attempt)]
        self.by_step, self.by_epoch = _Axis("by_step", attempts), _Axis("by_epoch", attempts)
        self.in_order = _Axis("loose", attempts)
        self.training = next((log.training for log in reversed(logs) if log.training), None)
        self.within_epoch = self.by_step.within_epochs or (
            self.training is not None and self.training.counts_within_epoch
        )

    def names(self) -> list[str]:
        """List the metrics."""
        kinds = ("by_step", "by_epoch", "loose")
        rows = [each for kind in kinds for log in self.logs for each in getattr(log, kind)]
        return [*dict.fromkeys(name for each in rows for name in each.names)]

    def sides(self, name: str) -> list[str]:
        """List how rows of a metric found their steps."""
        rows = (
            each for of_name in self._of_name if name in of_name for each in of_name[name].by_step
        )
        return [*dict.fromkeys(each.side for each in rows)]

    def find(self, name: str) -> _Column | None:
        """Find the column of a metric: of its lines, else of what a bar shows."""
        sides = self.sides(name)
        lines, drawn = self._of_lines(name, sides), None
        if self.within_epoch:
            drawn = self.by_epoch.column(name, DRAWN)
        if drawn is None and DRAWN in sides:
            drawn = self.by_step.column(name, DRAWN)
        if lines is not None and (drawn is None or 2 * len(lines) >= len(drawn)):
            return lines
        if drawn is not None:
            return drawn
        # The bar of the training speaks, or that of most work.
        training = self.training.side if self.training else None
        bars = [self.by_step.column(name, side) for side in sides if side.startswith("bar ")]
        found = [column for column in bars if column is not None]
        return max(found, key=lambda bar: (bar.side == training, bar.work), default=None)

    def _of_lines(self, name: str, sides: Sequence[str]) -> _Column | None:
        logs = [of_name[name] for of_name in self._of_name if name in of_name]
        loose = sum(len(rows.offsets) for log in logs for rows in log.loose)
        own = self.by_step.column(name) if OWN in sides else None
        if own is not None and (len(own) >= min(_FEW, _SHARE * loose)):
            return own
        if not loose:
            return own
        way = choose_way(name, logs, counts_all=not self.within_epoch)
        if way == BY_EPOCH and name != LOSS and self._has_losses_in_order:
            way = IN_ORDER
        found = None
        if way in sides:
            found = self.by_step.column(name, way)
        elif way == BY_EPOCH:
            found = self.by_epoch.column(name)
        return found or self.in_order.column(name)

    @cached_property
    def _has_losses_in_order(self) -> bool:
        losses = self.find(LOSS)
        return losses is not None and losses.axis is self.in_order

    def is_one_an_epoch(self, column: _Column | None) -> bool:
        """Whether the step of its one point in each epoch tells nothing."""
        if column is None or not self.within_epoch or column.axis is not self.by_step:
            return False
        return len(column) == len(column.epochs) > 1
