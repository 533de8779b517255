"""Derive: the curve of a run, of all that its logs say.

What the logs say is stored (``store``); the curve is a view of it. What is decided, in this order:

1. *Which steps rows belong to*: those on their line (``own_steps``); else those of the rows around
   them, of which the lines with steps count or the drawings of the training bar, or those that
   follow from their epochs (``steps``).
2. *Passes and restarts* (``passes``): the losses that show the progress best guide through the log.
   Where their counter falls, another epoch or run begins, or the run does steps again. A later
   attempt, or a resumption, replaces what it does again: what was logged at its first step and
   after is gone, as the weights that it belonged to are.
3. *How the rows without steps are placed*: before, after, by epoch, in their order (``steps``).
   Where some rows of a metric have a step, those without are left out (a closing summary), unless
   a few have one and many have none.
4. *Whose values count.* Of several files or ranks the first file, and the lowest rank in it,
   unless another has more than twice as many points. What a bar shows beside its counter counts
   only if no lines do, or if it has more than twice as many points (a bar drawn at each step, and a
   line at the end of the epoch) and these are no means so far of what the lines name.
5. *One value per step*: the last one in the log. Where the counter counts within the epoch and the
   log has one training loss for each epoch, the epoch is the step.
6. *What people should know*: restarts, how many steps there will be, and notes.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain, groupby, pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from hpcrun.curves.curve import Curve, Restart, Series, build_series
from hpcrun.curves.names import EPOCH, LOSS, LOSSES, like_a_loss
from hpcrun.curves.own_steps import (
    DRAWN,
    LEVEL_OF_LOSS,
    OWN,
    PLACED,
    Rows,
    filled,
    join,
    join_epochs,
    join_steps,
)
from hpcrun.curves.passes import (
    Counted,
    Counter,
    Floats,
    Ints,
    Turn,
    changes,
    follow,
    starts_with_each_epoch,
)
from hpcrun.curves.steps import BY_EPOCH, IN_ORDER, Steps, choose_way, find_steps
from hpcrun.curves.store import Store, called_loss

# A fall of an epoch is looked at in such parts, as a counter of steps.
_PARTS = 10_000
_MOST_EPOCHS = 1e9
# Losses that a note names.
_NAMED = 6
# Trainings are of one kind if the lengths of their epochs differ by no more.
_ALIKE = 1.5
# So few losses with a step, and such a share of all, do not decide what the others mean.
_FEW, _SHARE = 10, 0.1
# So many lines show that a bar's means lead to them, to the digits that it prints.
_FEWEST, _PRINTED = 3, 2e-3
# The number of a pass, and a step.
_Place = tuple[int, int]
# The points of all metrics that the same rows have, as a _Column has them.
_Points = tuple[list[Rows], Ints, Ints, Floats, list[int]]
_ANOTHER = "taken as another run in the same file, not as a requeue"
_NEXT_EPOCH = "taken as the next epoch, or another run in the same file, not as a requeue"
_UNKNOWN = "at which steps is not known, their order counts"
_DONE_AGAIN = "the run was resumed, and its lines show no steps: what was repeated is drawn twice"


def derive_curve(store: Store, build: Callable[..., Series] = build_series) -> Curve:
    """Derive the curve; ``build`` makes a series of steps, values and times, and may thin it.

    >>> from hpcrun.curves.row import Frame, Layout
    >>> def losses(steps, values):
    ...     layout = Layout("json", "train", None, None, ("loss",))
    ...     return [Frame(layout, [*range(len(steps))], steps, None, None, (values,))]
    >>> store = Store()
    >>> store.begin(0)
    >>> store.add(losses([1, 2, 3], [9.0, 8.0, 7.0]))
    >>> store.begin(1)
    >>> store.add(losses([2], [6.0]))
    >>> derive_curve(store).steps("loss"), derive_curve(store).values("loss")
    ([1, 2], [9.0, 6.0])
    >>> derive_curve(store).restarts
    (Restart(attempt=1, lost_at=3, resumed_at=2, replayed=2, cause=''),)
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
            metrics[name] = build(*column.places(by_epoch=by_epoch))
    counted = [axis for axis in (view.by_step, view.by_epoch) if axis.level]
    axis = losses.axis if losses is not None else [*counted, view.in_order][0]
    total = None
    if axis is view.by_step and not view.within_epoch:
        total = axis.total
        if total is None and training is not None and not any(x.through_epochs for x in view.logs):
            total = training.total
    is_late = axis is view.by_step and any(log.is_late for log in view.logs)
    is_unknown = axis is view.in_order and training is not None
    notes = [*axis.notes(losses)]
    if is_late or is_unknown:
        notes.append(
            "losses are bunched between updates of the progress bar, as where a program buffers "
            "its output: " + ("their steps follow from their epochs" if is_late else _UNKNOWN)
        )
    others = [name for name in metrics if like_a_loss(name) and metrics[name].summary.count > 1]
    others = [name for name in others if name not in (LOSS, stand_in)]
    draws = f"--metric draws another ({', '.join(others[: _NAMED - 1])})" if others else ""
    if stand_in:
        notes.append(f"nothing is called loss: {stand_in} is taken" + (draws and f"; {draws}"))
    return Curve(metrics, tuple(axis.restarts()), total, (*notes, *store.notes()))


class _Column(NamedTuple):
    """The points of one metric: one per step, in the order of the run.

    On which axis and side they were found; ``which`` of the values that rows have, one form behind
    the other, they are. ``times``: nan where unknown; ``epochs`` are those of the passes.
    """

    axis: _Axis
    side: str
    values: Floats
    rows: Sequence[Rows]
    which: Ints
    steps: Ints
    times: Floats
    epochs: list[int]

    def places(self, *, by_epoch: bool) -> tuple[Ints, Floats, Floats | None]:
        """Return steps, values and times; ``by_epoch``: for steps the epochs of their passes."""
        numbers = np.full(len(self.values), None) if self.axis.in_order else self.steps
        few = 2 * np.isnan(self.times).sum() >= len(self.times)  # lines have one
        steps = np.asarray(self.epochs) if by_epoch else numbers
        return steps, self.values, None if few else self.times

    @property
    def in_log(self) -> tuple[Ints, Floats]:
        """Where the points stand in the log, in its order, and their values."""
        offsets = join(each.offsets for each in self.rows)[self.which]
        order = np.argsort(offsets, kind="stable")
        return offsets[order], self.values[order]

    @property
    def work(self) -> float:
        """Sum of the values, were they alike at all steps up to the last: seconds of a bar."""
        return float(self.steps[-1] * self.values.mean())


class _Track(Struct, eq=False):
    """A log on one axis: the rows that show the progress, and where their counter turns.

    ``counter``: what it has shown at its end; ``begins``: the run and the epoch at its beginning.
    """

    log: Steps
    rows: list[Rows]
    counted: Counted | None
    of_name: dict[str, list[Rows]] = {}
    counter: Counter = field(default_factory=Counter)
    begins: tuple[int, int] = (0, 0)
    turns: list[Turn] = []

    def __post_init__(self) -> None:
        for each in self.rows:
            for name in dict.fromkeys(each.names):
                self.of_name.setdefault(name, []).append(each)

    def by_rank(self, name: str, side: str | None) -> list[list[Rows]]:
        """Part the rows of a metric and side by the ranks that print them, lowest first."""
        of_rank: dict[int, list[Rows]] = {}
        for each in self.of_name.get(name, ()):
            if side in (None, each.side):
                of_rank.setdefault(-1 if each.rank is None else each.rank, []).append(each)
        return [of_rank[rank] for rank in sorted(of_rank)]


class _Axis:
    """One way to place the rows of a run: by step, by epoch, or by their order alone (loose)."""

    def __init__(self, kind: str, logs: Sequence[Steps]) -> None:
        self.kind, self.in_order = kind, kind == "loose"
        # The rows and points of the metric before: many metrics stand on the same rows.
        self._rows: list[Rows] = []
        self._points: _Points | None = None
        # Which rows show the progress, and the log of each attempt that counts it best.
        rows = chain.from_iterable(getattr(log, kind) for log in logs)
        self.level = 0 if self.in_order else max((each.level for each in rows), default=0)
        self.attempts = [
            [_Track(log, rows := getattr(log, kind), self._count(rows)) for log in each]
            for _, each in groupby(logs, key=lambda log: log.log.attempt)
        ]
        leads = [next((track for track in each if track.counted), None) for each in self.attempts]
        self.leads = [lead or each[0] for lead, each in zip(leads, self.attempts, strict=True)]
        self.counted = [lead.counted for lead in self.leads if lead.counted]
        self.within_epochs = starts_with_each_epoch(self.counted)
        self.counter = Counter()
        for number, attempt in enumerate(self.attempts):
            highest = self.counter.highest
            for track in attempt:
                track.begins = (self.counter.run, highest.epoch if highest else 0)
                track.counter = replace(self.counter, ends={**self.counter.ends})
                if track.counted is None:
                    continue
                marks = [-1] if number else []
                if not self.in_order:
                    marks += [each.offset for each in track.log.log.marks if each.restart]
                within = self.within_epochs
                track.turns = follow(track.counted, marks, track.counter, within_epochs=within)
            self.counter = self.leads[number].counter
        # The runs and their epochs, numbered: a step stands in each at most once.
        tracks = [*chain.from_iterable(self.attempts)]
        begun = {(turn.run, turn.at.epoch) for track in tracks for turn in track.turns}
        begun.update(track.begins for track in tracks)
        self.passes = {each: number for number, each in enumerate(sorted(begun))}
        # Of each attempt the first place that later ones do again.
        self.cuts: list[_Place] = [(len(begun), 0)]
        for lead in reversed(self.leads[1:]):
            self.cuts.insert(0, self._cuts(lead.turns, self.cuts[0])[0])
        # Other trainings in the same file: their lengths, how many losses they have, their runs.
        self.length, self.others, self.left_out = self._find_trainings()

    def _count(self, rows: Sequence[Rows]) -> Counted | None:
        """Join the rows that show the progress, of the first who prints them.

        In order these are the epochs of the training losses, taken for the steps of a counter: the
        dictionaries of the HF Trainer say how far the epoch is, and no step. Where that falls the
        job was resumed, or another run begins; which points were done again is not known, so all
        are kept in their order.
        """
        if self.in_order:
            rows = [each for each in rows if each.has_losses and EPOCH in each.names]
            _, epochs = join_epochs([replace(each, epochs=each.column(EPOCH)) for each in rows])
            epochs = epochs[(epochs >= 0) & (epochs < _MOST_EPOCHS)]
            parts = np.rint(epochs * _PARTS).astype(np.int64)
            return Counted(parts, parts) if parts.size else None
        rows = [each for each in rows if each.level == self.level and each.steps is not None]
        if not self.level:  # nothing of the training: evaluations show the runs
            rows = [each for each in rows if LOSSES.intersection(each.names)]
        if not rows:
            return None
        first = min(rows, key=lambda each: each.offsets[0])
        return join_steps(
            [
                each
                for each in rows
                if each.rank == first.rank
                and (each.level >= LEVEL_OF_LOSS or each.names == first.names)
            ]
        )

    def rows_of(self, name: str) -> list[Rows]:
        """Return all rows that have a metric."""
        tracks = chain.from_iterable(self.attempts)
        return [rows for track in tracks for rows in track.of_name.get(name, ())]

    def _find_trainings(self) -> tuple[int, list[tuple[int, int]], set[int]]:
        """Find the longest of several trainings in one file, by the lengths of their epochs."""
        length_of: dict[int, int] = {}
        rows: Tally[int] = Tally()
        for lead in self.leads:
            counted = lead.counted
            if counted is None or counted.lengths is None or not lead.log.through_epochs:
                continue
            starts = np.searchsorted(counted.offsets, [turn.offset for turn in lead.turns])
            bounds = [0, *starts.tolist(), len(counted.offsets)]
            runs = [lead.begins[0], *(turn.run for turn in lead.turns)]
            for run, (start, end) in zip(runs, pairwise(bounds), strict=True):
                if start < end:
                    length_of[run] = max(0, int(counted.lengths[end - 1]))
                    rows[length_of[run]] += end - start
        (length, _), *others = rows.most_common() or [(0, 0)]
        others = [each for each in others if not length / _ALIKE <= each[0] <= length * _ALIKE]
        return length, others, {run for run, each in length_of.items() if each in dict(others)}

    @property
    def total(self) -> int | None:
        """How many steps there will be, as the rows that count them say."""
        epochs = join(each.epochs for each in self.counted if each.epochs is not None)
        epochs = epochs[np.isfinite(epochs)]
        # Beside whole epochs it may be that of each, until the counter is seen to count on.
        is_whole = epochs.size > 0 and epochs[-1] % 1 == 0
        if is_whole and (self.within_epochs or (np.floor(epochs) == epochs[-1]).all()):
            return None
        totals = (each.total for each in reversed(self.counted))
        return next((total for total in totals if total is not None), None)

    def restarts(self) -> list[Restart]:
        """Return all restarts, those between attempts included."""
        found = []
        reached: int | None = None
        for number, lead in enumerate(self.leads):
            index, counted = lead.log.log.attempt, lead.counted
            again = [turn for turn in lead.turns if turn.is_again]
            for turn in again:
                lost_at = turn.reached.step if turn.reached else None
                found.append(Restart(index, lost_at, turn.at.step, turn.replayed or 0))
            if number and not again:
                at = int(counted.steps[0]) if counted else None
                found.append(Restart(index, reached, at, 0))
            reached = lead.counter.highest.step if lead.counter.highest else None
        return [Restart(each.attempt, None, None, 0) for each in found] if self.in_order else found

    def notes(self, losses: _Column | None) -> Iterator[str]:
        """Yield what was decided where the counter fell, who prints it, and what is not shown."""
        falls: dict[tuple[str, str], list[str]] = {}
        leads = [(lead, lead.counted) for lead in self.leads if lead.counted]
        for turn, counted in ((turn, counted) for lead, counted in leads for turn in lead.turns):
            if turn.reached is not None and self.in_order:
                meaning = _DONE_AGAIN if turn.is_again else _ANOTHER
                where = f"{turn.reached.step / _PARTS:g} to {turn.at.step / _PARTS:g}"
                falls.setdefault(("the epoch falls from", meaning), []).append(where)
            elif turn.reached is not None and not turn.is_again:
                meaning = _NEXT_EPOCH if turn.reached.step == counted.total else _ANOTHER
                what = "the step counter begins again after"
                falls.setdefault((what, meaning), []).append(f"step {turn.reached.step}")
        for (what, meaning), places in falls.items():
            others = sum(place != places[0] for place in places)
            more = f" and at {others} other place{'s' if others > 1 else ''}" if others else ""
            yield f"{what} {places[0]}{more}: {meaning}"
        for length, count in self.others:
            yield (
                f"a training of another length ({length} steps, or to an epoch, not {self.length}) "
                f"is in the same file: its {count} losses are left out"
            )
        processes = max((round(self._processes(lead.rows)) for lead, _ in leads), default=1)
        rows = sum(len(counted.steps) for _, counted in leads)
        behind = sum(lead.counter.behind for lead, _ in leads)
        shown = 0 if losses is None else len(losses.values)
        if processes > 1:
            yield (
                f"each step is in the log {processes} times, with different values and "
                "no rank: several processes print it; the last value of each step counts"
            )
        elif losses is not None and behind > _SHARE * rows and shown < (1 - _SHARE) * rows:
            yield (
                f"{shown:,} of {rows:,} losses are shown: the counter falls {behind:,} times "
                "to steps that it had passed, and the last value of each step counts"
            )
        count = sum(len(x) for lead, _ in leads for x in lead.log.loose if x.has_losses)
        if losses is not None and self.kind == "by_step" and losses.side == OWN and count > rows:
            yield f"{count:,} losses that have no step are not shown"

    def _processes(self, rows: Sequence[Rows]) -> float:
        """Return how many processes print the same steps, as far as the rows that count show.

        What is drawn again all through an epoch, whose number is the step, is one process's.
        """
        count = repeats = 0
        for each in rows:
            steps, is_own = each.steps, each.side == OWN and each.rank is None
            if steps is None or not is_own or each.level != self.level:
                continue
            is_epoch = each.epochs is not None and np.array_equal(steps, each.epochs)
            if each.names and not is_epoch:
                values = each.column(LOSS) if LOSS in each.names else each.columns[0]
                count += len(each)
                again = ~changes(steps) & changes(values)
                again &= True if each.epochs is None else ~changes(each.epochs)
                repeats += int(again.sum())
        return count / (count - repeats) if count else 1

    def column(self, name: str, side: str = OWN) -> _Column | None:
        """Return the points of a metric that found their steps in one way, None without any."""
        any_side = None if self.in_order else side
        candidates = [
            [(track, rows) for track in attempt for rows in track.by_rank(name, any_side)]
            for attempt in self.attempts
        ]
        rows = [each for _, known in chain.from_iterable(candidates) for each in known]
        if rows != self._rows:
            self._rows, self._points = rows, self._place(candidates)
        if self._points is None:
            return None
        rows, which, *_ = self._points
        values = join(each.column(name) for each in rows)[which]
        return _Column(self, side, values, *self._points)

    def _place(self, candidates: Sequence[Sequence[tuple[_Track, list[Rows]]]]) -> _Points | None:
        """Choose for each attempt the log and rank that counts, and of each step the last point.

        The first log counts, and the lowest rank in it, unless another has more than twice as many
        points: the first may print a single line of its own.
        """
        rows: list[Rows] = []
        chosen = []
        for attempt, cut in zip(candidates, self.cuts, strict=True):
            places = [self._places(*each, cut) for each in attempt]
            most = max((len(numbers) for numbers, *_ in places), default=0)
            for (_, known), (numbers, passes, steps) in zip(attempt, places, strict=True):
                if 2 * len(numbers) >= most:
                    if rows:
                        numbers = numbers + sum(map(len, rows))
                    chosen.append((numbers, passes, steps))
                    rows += known
                    break
        if not chosen:
            return None
        numbers, passes, steps = map(join, zip(*chosen, strict=True))
        if self.in_order:
            steps = np.arange(len(numbers))  # each point counts
        last = _last_of_each(passes, steps)
        others = [number for (run, _), number in self.passes.items() if run in self.left_out]
        is_shown = ~np.isin(passes[last], others)
        if is_shown.any():
            last = last[is_shown]
        numbers = numbers[last]
        times = join(filled(each.times, len(each)) for each in rows)[numbers]
        begun, passes = [*self.passes], passes[last]
        epochs = [begun[number][1] for number in passes[changes(passes)]]
        return (rows, numbers, steps[last], times, epochs) if numbers.size else None

    def _places(self, track: _Track, rows: Sequence[Rows], cut: _Place) -> tuple[Ints, Ints, Ints]:
        """Return which points of rows count, and the number of the pass and the step of each.

        What is done again later is left out. ``cut``: from which place on later attempts do so.
        """
        offsets = join(each.offsets for each in rows)
        order = np.argsort(offsets, kind="stable")
        if self.in_order:
            return order, np.full(len(order), self.passes[track.begins]), order
        steps = join(each.steps for each in rows if each.steps is not None)[order]
        turns = np.searchsorted([turn.offset for turn in track.turns], offsets[order], "right")
        begins = [track.begins, *((turn.run, turn.at.epoch) for turn in track.turns)]
        passes = np.array([self.passes[each] for each in begins], np.int32)[turns]
        cuts = self._cuts(track.turns, cut)
        if cuts[0] < (len(self.passes), 0):
            last, end = np.array(cuts)[turns].T
            is_kept = (passes < last) | ((passes == last) & (steps < end))
            order, passes, steps = order[is_kept], passes[is_kept], steps[is_kept]
        del offsets, turns  # of a long log each column counts
        last = _last_of_each(passes, steps)
        return order[last], passes[last], steps[last]

    def _cuts(self, turns: Sequence[Turn], cut: _Place) -> list[_Place]:
        """Return from which place on the run is done again later: at first, after each turn."""
        cuts = [cut]
        for turn in reversed(turns):
            place = (self.passes[turn.run, turn.at.epoch], turn.at.step)
            cuts.append(min(cuts[-1], place) if turn.is_again else cuts[-1])
        return cuts[::-1]


def _last_of_each(passes: Ints, steps: Ints) -> Ints:
    """Return which points are the last ones of their step in a pass, in the order of these."""
    if (passes == passes[:1]).all() and (steps[1:] >= steps[:-1]).all():
        return np.flatnonzero(np.append(steps[1:] != steps[:-1], True)[: len(steps)])
    order = np.lexsort((steps, passes))
    differs = changes(passes[order])[1:] | changes(steps[order])[1:]
    return np.append(order[:-1][differs], order[-1:])


def _are_means_of(drawn: _Column, lines: _Column) -> bool:
    """Whether a bar shows the mean so far of what lines then name: it ends there, and settles.

    The mean of an epoch moves less and less; the loss of each batch does not.
    """
    offsets, means = lines.in_log
    places, values = drawn.in_log
    ends = np.searchsorted(places, offsets)
    if len(means) < _FEWEST or not ends.all():
        return False
    if len({*join_epochs(drawn.rows)[1].tolist()}) > len(means):
        return False  # each drawing is of an epoch
    meets = np.isclose(values[ends - 1], means, rtol=_PRINTED, equal_nan=True)
    parts = [np.abs(np.diff(part)) for part in np.split(values, ends)[:-1]]
    early = sum(float(part[: len(part) // 2].sum()) for part in parts)
    late = sum(float(part[len(part) // 2 :].sum()) for part in parts)
    return bool(meets.mean() > 1 - _SHARE and 2 * late < early)


class _View:
    """Chooses for each metric which of its columns to show."""

    def __init__(self, logs: Sequence[Steps]) -> None:
        self.logs = logs
        self.by_step, self.by_epoch, self.in_order = (
            _Axis(kind, logs) for kind in ("by_step", "by_epoch", "loose")
        )
        self.training = next((log.training for log in reversed(logs) if log.training), None)
        # A bar that is called an epoch begins again with each.
        is_through = any(log.through_epochs for log in logs)
        description = self.training.description if self.training and not is_through else ""
        self.within_epoch = self.by_step.within_epochs or "epoch" in description.lower()

    def names(self) -> list[str]:
        """List the metrics."""
        axes = (self.by_step, self.by_epoch, self.in_order)
        tracks = (track for axis in axes for attempt in axis.attempts for track in attempt)
        return [*dict.fromkeys(name for track in tracks for name in track.of_name)]

    def find(self, name: str) -> _Column | None:
        """Find the column of a metric: of its lines, else of what a bar shows."""
        sides = [*dict.fromkeys(each.side for each in self.by_step.rows_of(name))]
        lines = self._of_lines(name, sides)
        drawn = self.by_step.column(name, DRAWN) if DRAWN in sides else None
        if lines is not None and (
            drawn is None
            or 2 * len(lines.values) >= len(drawn.values)
            or _are_means_of(drawn, lines)
        ):
            return lines
        if drawn is not None:
            return drawn
        # The bar of the training counts, or that of most work.
        training = self.training.side if self.training else None
        bars = [self.by_step.column(name, side) for side in sides if side.startswith("bar ")]
        found = [column for column in bars if column is not None]
        return max(found, key=lambda bar: (bar.side == training, bar.work), default=None)

    def _of_lines(self, name: str, sides: Sequence[str]) -> _Column | None:
        loose = self.in_order.rows_of(name)
        own = self.by_step.column(name) if OWN in sides else None
        at_epochs = self.by_epoch.rows_of(name)
        if own is not None:
            least = min(_FEW, _SHARE * sum(map(len, loose)))
            if len(own.values) >= max(least, sum(each.places for each in at_epochs) / 2):
                return own
        if not loose:
            return own
        placed = [each for each in self.by_step.rows_of(name) if each.side == PLACED]
        way = choose_way(loose, placed, at_epochs, counts_all=not self.within_epoch)
        if way == BY_EPOCH and name != LOSS and self._has_losses_in_order:
            way = IN_ORDER
        found = None
        if way in sides:
            found = self.by_step.column(name, way)
            if found is not None and 2 * len(found.values) < sum(map(len, loose)):
                found = None  # the bar beside them counts something that begins again and again
        elif way == BY_EPOCH:
            found = self.by_epoch.column(name)
        return found or self.in_order.column(name)

    @cached_property
    def _has_losses_in_order(self) -> bool:
        losses = self.find(LOSS)
        return losses is not None and losses.axis is self.in_order

    def is_one_an_epoch(self, column: _Column | None) -> bool:
        """Whether the step of its one point in each epoch shows nothing."""
        if column is None or not self.within_epoch or column.axis is not self.by_step:
            return False
        return len(column.values) == len(column.epochs) > 1
