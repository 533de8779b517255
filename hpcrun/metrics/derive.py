"""Derive: the curve of a run, of all that its logs say.

What the logs say is stored (``store``); the curve is a view of it. What is decided, in this order:

1. *Which steps rows belong to*: those on their line (``own_steps``); else those of the rows around
   them (``steps``), of which the lines with steps count or the drawings of the training bar
   (``bars``); of rows that a buffer held back those that follow from their epochs (``lumps``).
2. *Passes and restarts* (``passes``): the losses that tell the progress best guide through the log.
   Where their counter falls, another epoch or run begins, or the run does steps again. A later
   attempt, or a resumption, replaces what it does again: what was logged at its first step and
   after is gone, as the weights that it belonged to are.
3. *How the rows without steps are placed*: before, after, by epoch, in their order (``steps``).
   Where some rows of a metric have a step, those without are left out (a closing summary).
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
from bisect import bisect_left, bisect_right
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from operator import eq, ne

from msgspec import Struct

from hpcrun.metrics.bars import Bar
from hpcrun.metrics.curve import Curve, Restart, Series
from hpcrun.metrics.names import EPOCH, EVAL_LOSS, LOSS, like_a_loss
from hpcrun.metrics.own_steps import (
    AFTER,
    BEFORE,
    BY_EPOCH,
    DRAWN,
    IN_ORDER,
    LATE,
    LEVEL_OF_LOSS,
    OWN,
    Rows,
    by_rank,
    merged,
    merged_order,
    side_of,
)
from hpcrun.metrics.passes import (
    Bound,
    Counter,
    Course,
    Guide,
    follow,
    rises,
    starts_with_each_epoch,
)
from hpcrun.metrics.series import Column, Points, joined, settled
from hpcrun.metrics.steps import Steps, choose_way, find_steps
from hpcrun.metrics.store import MOST_METRICS, Store

# A fall of an epoch is looked at in such parts, as a counter of steps.
_PARTS = 10_000
# Losses that a note names.
_NAMED = 6
_ANOTHER = "another run in the same file"


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
    attempts: dict[int, list[Steps]] = {}
    for log in store.proven():
        attempts.setdefault(log.attempt, []).append(find_steps(log))
    logs = [log for each in attempts.values() for log in each]
    training = next((log.training for log in reversed(logs) if log.training), None)
    by_step = _Axis([[_Track(log, log.by_step) for log in each] for each in attempts.values()])
    by_epoch = _Axis([[_Track(log, log.by_epoch) for log in each] for each in attempts.values()])
    in_order = _Axis([[_Track(log, log.loose) for log in each] for each in attempts.values()], True)
    within_epoch = by_step.within_epochs or (training is not None and training.counts_within_epoch)
    view = _View(by_step, by_epoch, in_order, logs, training, within_epoch)
    losses = view.find(LOSS)
    in_epochs = losses is not None and view.is_one_an_epoch(*losses)
    metrics = {}
    for name in view.names():
        # One after the other: the columns of all at once would take far more than what is stored.
        if (found := losses if name == LOSS else view.find(name)) is not None:
            is_one = in_epochs and view.is_one_an_epoch(*found)
            metrics[name] = found[1].series(limit, by_epoch=is_one)
    if losses is not None:
        axis = losses[0]
    else:
        axis = next((axis for axis in (by_step, by_epoch) if axis.level), in_order)
    total = None
    if axis is by_step and not within_epoch:
        total = axis.total
        if total is None and training is not None:
            total = training.total
    notes = axis.notes()
    is_late = axis is by_step and view.is_late(LOSS)
    if is_late or (axis is in_order and training is not None):
        what = "their steps follow from their epochs"
        if not is_late:
            what = "at which steps is not known, their order counts"
        notes.append(
            "losses stand in lumps between the drawings of the progress bar, as a program "
            f"prints that buffers its output: {what}"
        )
    notes += [*_note_on_losses(metrics), *_notes_of(store)]
    return Curve(metrics, tuple(axis.restarts()), total, tuple(notes))


def _note_on_losses(metrics: dict[str, Series]) -> Iterator[str]:
    losses = [name for name in metrics if like_a_loss(name) and metrics[name].summary.count > 1]
    if LOSS not in metrics and EVAL_LOSS not in metrics and len(losses) > 1:
        yield (
            f"several losses, and none is the training's by its name: {losses[0]} is taken, the "
            f"first; --metric draws another ({', '.join(losses[1:_NAMED])})"
        )


def _notes_of(store: Store) -> Iterator[str]:
    if store.leaves_out_metrics:
        yield (
            f"{MOST_METRICS:,} metrics and more: of those that came later only the losses, the "
            "gradient norm, rates and memory are kept"
        )
    if store.every > store.asked_every:
        yield (
            f"the log is too long to keep all of it in memory: of its rows every {store.every}th "
            "of a form counts"
        )


class _Track(Struct, eq=False):
    """The rows of one log on one axis, and the course of the counter that they show."""

    log: Steps
    rows: list[Rows]
    guide: Guide | None = None
    course: Course | None = None
    # The pass at hand where the log begins.
    begins: Bound = Bound(0, 0, 0)
    of_name: dict[str, list[Rows]] = {}

    def __post_init__(self) -> None:
        """Part the rows by their metrics: one of thousands is found at once."""
        for rows in self.rows:
            for name in {*rows.names}:
                self.of_name.setdefault(name, []).append(rows)

    def processes(self, level: int) -> float:
        """Return how many processes print the same steps, as far as the rows of a level tell.

        What is drawn again all through an epoch, whose number is the step, is one process's.
        """
        rows = repeats = 0
        for each in self.rows:
            if each.level != level or each.side != OWN or each.rank is not None:
                continue
            is_one = each.epochs is not None and all(map(eq, each.epochs, each.steps))
            if each.names and not is_one:
                values = each.columns[each.names.index(LOSS) if LOSS in each.names else 0]
                rows += len(each.steps)
                if not rises(each.steps):
                    same = map(eq, each.steps, islice(each.steps, 1, None))
                    changed = map(ne, values, islice(values, 1, None))
                    repeats += sum(map(min, same, changed))
        return rows / (rows - repeats) if rows > repeats else 1


class _Axis:
    """One way to place the rows of a run: by step, by epoch, or by their order alone."""

    def __init__(self, attempts: Sequence[Sequence[_Track]], in_order: bool = False) -> None:
        self.attempts = attempts
        self.in_order = in_order
        self.within_epochs = False
        # Which rows tell the progress, and the log of each attempt that counts it best.
        self.level = 0
        self._leads: list[_Track | None] = [None] * len(attempts)
        # Other trainings in the same file: their lengths, how many losses they have, their runs.
        self.others: list[tuple[int, int]] = []
        self.length = 0
        self._left_out: set[int] = set()
        # For each attempt what later ones do again from: the first pass and step that is gone.
        self._cuts: list[tuple[float, ...]] = []
        if not in_order:
            self._find_courses()
            self._find_trainings()

    def _find_courses(self) -> None:
        tracks = [track for attempt in self.attempts for track in attempt]
        self.level = max((rows.level for track in tracks for rows in track.rows), default=0)
        for track in tracks:
            track.guide = _guide([rows for rows in track.rows if rows.level == self.level > 0])
        for number, attempt in enumerate(self.attempts):
            self._leads[number] = next((track for track in attempt if track.guide), None)
        guides = [lead.guide for lead in self._leads if lead and lead.guide]
        self.within_epochs = starts_with_each_epoch(guides)
        before, place = Counter(), Bound(0, 0, 0)
        for number, (lead, attempt) in enumerate(zip(self._leads, self.attempts, strict=True)):
            for track in attempt:
                track.begins = place
                if track.guide is not None:
                    marks = [each.offset for each in track.log.log.marks if each.mark.restart]
                    track.course = follow(
                        track.guide,
                        [*marks, *track.log.resumed],
                        before,
                        within_epochs=self.within_epochs,
                        is_attempt=number > 0,
                    )
            if lead and lead.course:
                before = lead.course.counter
                place = lead.course.bounds[-1] if lead.course.bounds else place
        cut: tuple[float, ...] = (math.inf,)
        for lead in reversed(self._leads):
            self._cuts.insert(0, cut)
            if lead and lead.course:
                cut = min([cut, *_cuts(lead.course)])

    def _find_trainings(self) -> None:
        """Find the longest of several trainings in one file, by what their lines count up to."""
        rows: dict[int, Tally[int]] = {}
        for lead in self._leads:
            if lead is None or lead.guide is None or lead.course is None:
                continue
            if lead.guide.lengths is None:
                continue
            starts = [bound.offset for bound in lead.course.bounds]
            for offset, length in zip(lead.guide.offsets, lead.guide.lengths, strict=True):
                at = bisect_right(starts, offset)
                run = lead.course.bounds[at - 1].run if at else lead.begins.run
                rows.setdefault(run, Tally())[length or 0] += 1
        lengths = {run: tally.most_common(1)[0][0] for run, tally in rows.items()}
        whole: Tally[int] = Tally()
        for run, tally in rows.items():
            whole[lengths[run]] += tally.total()
        if len(whole) < 2:
            return
        (self.length, _), *others = whole.most_common()
        near = range(int(0.9 * self.length), int(1.1 * self.length) + 1)
        self.others = [(length, count) for length, count in others if length not in near]
        self._left_out = {run for run in rows if lengths[run] in dict(self.others)}

    @property
    def counter(self) -> Counter:
        """What the counter has shown in all attempts."""
        courses = [lead.course for lead in self._leads if lead and lead.course]
        return courses[-1].counter if courses else Counter()

    @property
    def total(self) -> int | None:
        """How many steps there will be, as the rows that count them say."""
        totals = [lead.guide.total for lead in self._leads if lead and lead.guide]
        total = next((each for each in reversed(totals) if each is not None), None)
        if self.others and total is not None:
            total = self.length
        counter = self.counter
        # Beside whole epochs it may be that of each, until the counter is seen to count on.
        if counter.epoch is not None and counter.epoch == int(counter.epoch):
            return total if counter.spans_epochs else None
        return total

    def restarts(self) -> list[Restart]:
        """Return all restarts, those between attempts included."""
        found = []
        reached: int | None = None
        for number, (lead, attempt) in enumerate(zip(self._leads, self.attempts, strict=True)):
            index = attempt[0].log.log.attempt
            course = lead.course if lead else None
            resumed = course.resumed if course else []
            found += [
                Restart(index, each.reached.step, each.resumed.step, each.replayed)
                for each in resumed
            ]
            if number and not resumed:
                found.append(Restart(index, reached, course.first if course else None, 0))
            if self.in_order:
                again = (course.resumed for course in map(_falling_epochs, attempt) if course)
                found += [Restart(index, None, None, 0) for each in again for _ in each]
            if course and course.counter.highest:
                reached = course.counter.highest.step
        return found

    def notes(self) -> list[str]:
        """Return what was decided where the counter fell, and who prints it."""
        falls: dict[tuple[str, str], list[str]] = {}
        for track in (track for attempt in self.attempts for track in attempt if self.in_order):
            course = _falling_epochs(track)
            for reached, begun in course.others if course else ():
                falls.setdefault(("the epoch falls from", _ANOTHER_RUN), []).append(
                    f"{reached.step / _PARTS:g} to {begun.step / _PARTS:g}"
                )
            for each in course.resumed if course else ():
                falls.setdefault(("the epoch falls from", _DONE_AGAIN), []).append(
                    f"{each.reached.step / _PARTS:g} to {each.resumed.step / _PARTS:g}"
                )
        leads = [lead for lead in self._leads if lead and lead.course and lead.guide]
        for lead in leads:
            for reached, _ in lead.course.others if lead.course else ():
                full = lead.guide is not None and reached.step == lead.guide.total
                meaning = _NEXT_EPOCH if full else _ANOTHER_RUN
                where = f"step {reached.step}"
                falls.setdefault(("the step counter begins again after", meaning), []).append(where)
        notes = [
            f"{what} {places[0]}{_more(places)}: {meaning}"
            for (what, meaning), places in falls.items()
        ]
        for length, count in self.others:
            notes.append(
                f"a training of another length ({length} steps, or to an epoch, not {self.length}) "
                f"stands in the same file: its {count} losses are left out"
            )
        processes = max((round(lead.processes(self.level)) for lead in leads), default=1)
        if processes > 1:
            notes.append(
                f"each step stands {processes} times in the log, with different values and "
                "no rank: several processes print it; the last value of each step counts"
            )
        return notes

    def column(self, name: str, side: str = OWN) -> Column | None:
        """Return the points of a metric, None if there are none."""
        if self.in_order:
            return self._column_in_order(name)
        passes: dict[tuple[int, int], list[Points]] = {}
        for attempt, cut in zip(self.attempts, self._cuts, strict=True):
            voices = [
                _parts(track, rows, name, cut)
                for track in attempt
                for rows in by_rank(track.of_name.get(name, ()), side)
            ]
            for key, points in _speaking(voices):
                passes.setdefault(key, []).append(points)
        found = [(key, settled(passes[key])) for key in sorted(passes)]
        found = [(key, points) for key, points in found if points.steps]
        if any(key[0] not in self._left_out for key, _ in found):
            found = [(key, points) for key, points in found if key[0] not in self._left_out]
        if not found:
            return None
        starts, count = [], 0
        for (_, epoch), points in found:
            starts.append((count, epoch))
            count += len(points.steps)
        return Column(joined([points for _, points in found]), starts)

    def _column_in_order(self, name: str) -> Column | None:
        spoken: list[Points] = []
        for attempt in self.attempts:
            voices = [
                [((0, 0), _points(rows, name))]
                for track in attempt
                for rows in by_rank(track.of_name.get(name, ()), None)
            ]
            spoken += [points for _, points in _speaking(voices)]
        if not spoken:
            return None
        return Column(joined(spoken), [(0, 0)], in_order=True)


_ANOTHER_RUN = f"taken as {_ANOTHER}, not as a requeue"
_NEXT_EPOCH = f"taken as the next epoch, or {_ANOTHER}, not as a requeue"
_DONE_AGAIN = "the run was resumed; without steps, what it did again stands there twice"


def _more(places: Sequence[str]) -> str:
    others = sum(place != places[0] for place in places)
    if not others:
        return ""
    return f" and at {others} other place{'s' if others > 1 else ''}"


def _guide(rows: Sequence[Rows]) -> Guide | None:
    """Join the rows that tell the progress, of the first who prints them."""
    rows = [each for each in rows if each.steps]
    if not rows:
        return None
    first = min(rows, key=lambda each: each.offsets[0])
    rows = [
        each
        for each in rows
        if each.rank == first.rank and (each.level >= LEVEL_OF_LOSS or each.names == first.names)
    ]
    order = merged_order([each.offsets for each in rows])
    epochs = totals = None
    if any(each.epochs is not None for each in rows):
        unknown = (each.epochs or [math.nan] * len(each.steps) for each in rows)
        epochs = merged(order, [*unknown])
    if any(each.bar is not None for each in rows):
        of_bars = ([each.total if each.bar else None] * len(each.steps) for each in rows)
        totals = merged(order, [*of_bars])
    lengths = merged(order, [[each.length or each.total] * len(each.steps) for each in rows])
    changes = sum(map(ne, lengths, islice(lengths, 1, None)))
    return Guide(
        merged(order, [each.offsets for each in rows]),
        merged(order, [each.steps for each in rows]),
        epochs,
        totals,
        max((each.total for each in rows if each.total is not None), default=None),
        lengths if 0 < changes == len({*lengths}) - 1 else None,
    )


def _falling_epochs(track: _Track) -> Course | None:
    """Follow the epochs of the training losses that have no steps.

    The dictionaries of the HF Trainer say how far the epoch is, and no step. Where that falls the
    job was resumed, or another run begins; which points were done again nobody can tell, so all are
    kept in their order.
    """
    rows = [
        each for each in track.rows if each.level and LOSS in each.names and EPOCH in each.names
    ]
    if not rows:
        return None
    order = merged_order([each.offsets for each in rows])
    epochs = merged(order, [each.columns[each.names.index(EPOCH)] for each in rows])
    parts = [round(epoch * _PARTS) for epoch in epochs if 0 <= epoch < 1e9]
    if not parts:
        return None
    return follow(Guide(parts, parts, None, None, None), [], Counter(), within_epochs=False)


def _cuts(course: Course) -> list[tuple[float, ...]]:
    """List what is done again: the first pass and step that is gone each time."""
    return [
        (bound.run, bound.again.epoch, bound.again.step)
        for bound in course.bounds
        if bound.again is not None
    ]


_Parts = list[tuple[tuple[int, int], Points]]


def _points(rows: Sequence[Rows], name: str) -> Points:
    """Join a metric's values of several rows, in the order of the log."""
    order = merged_order([each.offsets for each in rows])
    times = None
    if any(each.times is not None for each in rows):
        unknown = (each.times or [math.nan] * len(each.offsets) for each in rows)
        times = merged(order, [*unknown])
    return Points(
        merged(order, [each.steps for each in rows]) if rows[0].steps else (),
        merged(order, [each.columns[each.names.index(name)] for each in rows]),
        times,
    )


def _parts(track: _Track, rows: Sequence[Rows], name: str, cut: tuple[float, ...]) -> _Parts:
    """Part a metric's points of a log by passes; leave out what is done again later.

    ``cut``: the first pass and step that later attempts have replaced.
    """
    points = _points(rows, name)
    bounds = [] if track.course is None else track.course.bounds
    if not bounds and cut == (math.inf,):
        return [((track.begins.run, track.begins.epoch), points)]
    offsets = merged(merged_order([each.offsets for each in rows]), [each.offsets for each in rows])
    parts: _Parts = []
    end = len(offsets)
    for bound in (*reversed(bounds), track.begins):
        start = 0 if bound is track.begins else bisect_left(offsets, bound.offset, 0, end)
        place = (bound.run, bound.epoch)
        if start < end and place <= cut[:2]:
            part = points.cut(start, end)
            if place == cut[:2]:
                part = part.before(cut[2])
            parts.append((place, part))
        if bound.again is not None:
            cut = min(cut, (bound.run, *bound.again))
        end = start
    return parts[::-1]


def _speaking(voices: Sequence[_Parts]) -> _Parts:
    """Choose the log and rank that speaks for a metric.

    It is the first log, and the lowest rank in it, unless another has more than twice as many
    points: the first may print a single line of its own.
    """
    if len(voices) < 2:
        return voices[0] if voices else []
    counts = [
        sum(len({*points.steps}) if points.steps else len(points.values) for _, points in parts)
        for parts in voices
    ]
    return next(
        parts for parts, count in zip(voices, counts, strict=True) if 2 * count >= max(counts)
    )


class _View:
    """Chooses for each metric which of its columns to show."""

    def __init__(
        self,
        by_step: _Axis,
        by_epoch: _Axis,
        in_order: _Axis,
        logs: Sequence[Steps],
        training: Bar | None,
        within_epoch: bool,
    ) -> None:
        self._by_step, self._by_epoch, self._in_order = by_step, by_epoch, in_order
        self._logs, self._training, self._within_epoch = logs, training, within_epoch
        self._of_name = [log.by_name() for log in logs]
        self._sides: dict[str, dict[str, None]] = {}
        for log in logs:
            for rows in log.by_step:
                for name in rows.names:
                    self._sides.setdefault(name, {})[rows.side] = None

    def names(self) -> Iterable[str]:
        """List the metrics."""
        loose = (name for log in self._logs for rows in log.by_epoch for name in rows.names)
        others = (name for log in self._logs for rows in log.loose for name in rows.names)
        return dict.fromkeys([*self._sides, *loose, *others])

    def find(self, name: str) -> tuple[_Axis, Column] | None:
        """Find the column of a metric: of its lines, else of what a bar shows."""
        lines, drawn = self._of_lines(name), self._drawn(name)
        if lines is not None and (drawn is None or 2 * lines[1].count >= drawn[1].count):
            return lines
        return drawn if drawn is not None else self._of_bar(name)

    def is_late(self, name: str) -> bool:
        """Whether a metric's steps follow from the epochs of rows that a buffer held back."""
        sides = self._sides.get(name, {})
        return LATE in sides and OWN not in sides

    def is_one_an_epoch(self, axis: _Axis, column: Column) -> bool:
        """Whether the step of its one point in each epoch tells nothing."""
        return self._within_epoch and axis is self._by_step and column.is_one_a_pass

    def _of_lines(self, name: str) -> tuple[_Axis, Column] | None:
        if (found := self._at(self._by_step, name, OWN)) is not None:
            return found
        logs = [parts[name] for parts in self._of_name if name in parts]
        if not any(log.loose for log in logs):
            return None
        way = choose_way(name, logs, counts_all=not self._within_epoch)
        if way == BY_EPOCH and name != LOSS and self._has_losses_in_order:
            way = IN_ORDER
        if (
            way in (BEFORE, AFTER, LATE)
            and (found := self._at(self._by_step, name, way)) is not None
        ):
            return found
        if way == BY_EPOCH and (found := self._at(self._by_epoch, name, OWN)) is not None:
            return found
        return self._at(self._in_order, name, OWN)

    def _at(self, axis: _Axis, name: str, side: str) -> tuple[_Axis, Column] | None:
        if axis is self._by_step and side not in self._sides.get(name, ()):
            return None
        column = axis.column(name, side)
        return None if column is None else (axis, column)

    @cached_property
    def _has_losses_in_order(self) -> bool:
        found = self.find(LOSS)
        return found is not None and found[0] is self._in_order

    def _drawn(self, name: str) -> tuple[_Axis, Column] | None:
        if self._within_epoch and (found := self._at(self._by_epoch, name, DRAWN)) is not None:
            return found
        return self._at(self._by_step, name, DRAWN)

    def _of_bar(self, name: str) -> tuple[_Axis, Column] | None:
        """Choose the bar that speaks for a metric: that of the training, or that of most work."""
        training = () if self._training is None else (side_of(self._training),)
        for side in training:
            if (found := self._at(self._by_step, name, side)) is not None:
                return found
        known = (OWN, BEFORE, AFTER, LATE, DRAWN)
        sides = [side for side in self._sides.get(name, ()) if side not in known]
        bars = [found for side in sides if (found := self._at(self._by_step, name, side))]
        return max(bars, key=lambda found: found[1].work, default=None)
