"""Tracks: the columns of one log, and what its training counter makes of them.

An *axis* is one way to place rows: by step, by epoch, or by their order alone. Each log of an
attempt has a *track* on it: its columns, and the counter that tells passes and restarts. Once an
attempt is over its columns become the axis's own; a later attempt cuts off what it does again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter

from hpcrun.metrics.curve import Restart
from hpcrun.metrics.curves.column import Column
from hpcrun.metrics.curves.falls import Falls
from hpcrun.metrics.curves.passes import Counter, Pass, Verdict, never_falls, rises
from hpcrun.metrics.curves.placed import (
    LEVEL_OF_LOSS,
    Points,
    Rows,
    in_turn,
    merge,
    merge_steps,
    split,
)
from hpcrun.metrics.curves.repeats import Repeats
from hpcrun.metrics.names import MEASURED

# Metric, how its rows found their steps; and the rank that printed them.
Key = tuple[str, str]
Voice = tuple[str, str, "int | None"]
_MOST_RANKS = 16
# Columns of one log: a log whose lines name a metric of their own each must not fill the memory.
MOST_COLUMNS = 10_000


class Axis:
    """One way to place the rows of a run."""

    def __init__(self, limit: int | None, counts_steps: bool = False) -> None:
        self.limit = limit
        self.counts_steps = counts_steps
        # How many steps there will be, as far as earlier attempts told.
        self._total: int | None = None
        self._processes = 1
        self.columns: dict[Key, Column] = {}
        self.restarts: list[Restart] = []
        self.falls = Falls()
        self.place = Pass()
        self.counter = Counter()
        self.level = 0
        self.tracks: list[Track] = []
        self._passes: dict[tuple[int, int], Pass] = {(0, 0): self.place}

    def open(self, attempt: int) -> Track:
        """Begin a log of an attempt; the attempts before it are closed."""
        track = Track(self, attempt)
        self.tracks.append(track)
        return track

    def close(self, attempt: int, is_first: bool) -> None:
        """End an attempt: choose who speaks for each metric, and keep their columns."""
        for track in self.tracks:
            track.decide()
        for key, column in self.spoken().items():
            if key in self.columns:
                self.columns[key].absorb(column)
            else:
                self.columns[key] = column
        self.restarts += self.fresh_restarts(attempt, is_first)
        if lead := self.lead:
            self._total, self._processes = self.total, self.processes
            self.place, self.counter, self.level = lead.place, lead.counter, lead.level
            self.falls = self.falls.joined(lead.falls)
        self.tracks = []

    @property
    def lead(self) -> Track | None:
        """The log whose counter speaks for the attempt, None if none of them counts."""
        counting = [track for track in self.tracks if track.counts]
        return max(counting, key=lambda track: track.level, default=None)

    @property
    def total(self) -> int | None:
        """How many steps there will be, as the rows that count them say."""
        lead = self.lead
        total = self._total if lead is None or lead.total is None else lead.total
        counter = self.counter if lead is None else lead.counter
        # Beside whole epochs it may be that of each, until the counter is seen to count on.
        if counter.epoch is not None and counter.epoch == int(counter.epoch):
            return total if counter.spans_epochs else None
        return total

    @property
    def processes(self) -> int:
        """How many processes print the same steps."""
        lead = self.lead
        return self._processes if lead is None else max(self._processes, lead.processes)

    @property
    def counts_within_epoch(self) -> bool:
        """Whether the counter starts again with each epoch."""
        lead = self.lead
        return self.counter.by_epoch if lead is None else lead.counter.by_epoch

    def fresh_restarts(self, attempt: int, is_first: bool) -> list[Restart]:
        """Return the restarts of the attempt at hand."""
        lead = self.lead
        if is_first or (lead is not None and lead.restarts):
            return [] if lead is None else lead.restarts
        reached = None if self.counter.highest is None else self.counter.highest.step
        return [Restart(attempt, reached, None if lead is None else lead.first_step, 0)]

    def spoken(self) -> dict[Key, Column]:
        """Choose for each metric the log and rank that speaks for it.

        It is the first log, and the lowest rank in it, unless another has more than twice as many
        points: the first may print a single line of its own.
        """
        voices: dict[Key, list[tuple[int, int, Column]]] = {}
        for file, track in enumerate(self.tracks):
            for (name, side, rank), column in track.columns.items():
                if column.count:
                    voice = (file, -1 if rank is None else rank, column)
                    voices.setdefault((name, side), []).append(voice)
        chosen = {}
        for key, speaking in voices.items():
            most = max(column.count for _, _, column in speaking)
            full = [voice for voice in speaking if 2 * voice[2].count >= most]
            chosen[key] = min(full, key=itemgetter(0, 1))[2]
        return chosen

    def pass_at(self, run: int, epoch: int) -> Pass:
        """Return the one pass of a run and an epoch."""
        return self._passes.setdefault((run, epoch), Pass(run, epoch))

    def rename(self, place: Pass, epoch: int) -> None:
        """Give a pass the epoch that it turns out to be."""
        if (place.run, epoch) not in self._passes:
            del self._passes[place.key]
            place.epoch = epoch
            self._passes[place.key] = place

    def copy(self) -> Axis:
        """Copy the axis, for a look at what may come."""
        other = copy.copy(self)
        other.columns = {key: column.copy() for key, column in self.columns.items()}
        other.tracks = [track.copy(other) for track in self.tracks]
        return other


class Track:
    """The columns of one log on one axis."""

    def __init__(self, axis: Axis, attempt: int) -> None:
        self.axis = axis
        self.attempt = attempt
        self.columns: dict[Voice, Column] = {}
        self._ranks: dict[Key, list[int | None]] = {}
        self.place = axis.place
        self.counter = axis.counter.copy()
        self.counter.expect_restart(in_new_log=True)
        self.level = axis.level
        self.restarts: list[Restart] = []
        self.falls = Falls()
        # The first step that this log counts.
        self.first_step: int | None = None
        # How many steps there will be, by the rows that count.
        self.total: int | None = None
        # Who counts, among rows of the same level.
        self._voice: object = None
        # Layout of the rows that count -> how often one step stands there with several values.
        self._repeats: dict[object, Repeats] = {}
        # Rows since a fall of which it is not known what it means.
        self._held: list[Rows] | None = None

    @property
    def counts(self) -> bool:
        """Whether the log has rows that tell the training's progress."""
        return self.first_step is not None

    @property
    def is_undecided(self) -> bool:
        """Whether rows are held back until it is known what they mean."""
        return self._held is not None

    @property
    def processes(self) -> int:
        """How many processes print the same steps, as far as the rows that count tell."""
        rows = sum(each.rows for each in self._repeats.values())
        fresh = rows - sum(each.repeats for each in self._repeats.values())
        return round(rows / fresh) if fresh else 1

    def feed(self, rows: list[Rows]) -> None:
        """Take the rows that stand next in the log, in whatever columns."""
        best = max((each.level for each in rows), default=0)
        if best > self.level:
            first = min(each.offsets[0] for each in rows if each.level == best)
            before, rows = split(rows, first)
            if before:
                self.feed(before)
            self._rise_to(best)
        guides = self._guides(rows)
        if guides and not self._skip(guides):
            rows = self._follow(rows, guides)
        if rows:
            self._put(rows)

    def feed_in_order(self, rows: list[Rows]) -> None:
        """Take rows that have no steps."""
        for column, parts in self._sorted_out(rows):
            for points in parts:
                column.extend_in_order(points.values, points.times)
            column.compact()

    def decide(self) -> None:
        """Decide what a fall means of which no more will be known."""
        if self._held is not None:
            self._act(self.counter.settle(), [])

    def copy(self, axis: Axis) -> Track:
        """Copy the track onto a copy of its axis."""
        other = copy.copy(self)
        other.axis = axis
        other.columns = {key: column.copy() for key, column in self.columns.items()}
        other.counter = self.counter.copy()
        other._ranks = {key: ranks.copy() for key, ranks in self._ranks.items()}
        other._repeats = {form: copy.copy(repeats) for form, repeats in self._repeats.items()}
        other.restarts, other.falls = self.restarts.copy(), self.falls.joined(None)
        other._held = None if self._held is None else self._held.copy()
        return other

    def _rise_to(self, level: int) -> None:
        """Let better rows tell the training's progress from now on."""
        self.decide()
        if self.level:
            self.counter = Counter(self.counter.by_epoch)
            self.first_step = None
        self.level, self._voice, self.total = level, None, None

    def _guides(self, rows: list[Rows]) -> list[Rows]:
        """Find the rows that tell the training's progress."""
        if not self.level:
            return []
        guides = [each for each in rows if each.level == self.level]
        if guides and self._voice is None:
            first = min(guides, key=lambda each: each.offsets[0])
            self._voice = _voice(first)
        guides = [each for each in guides if _voice(each) == self._voice]
        for guide in guides:
            if guide.total is not None:
                self.total = max(guide.total, self.total or 0)
        return guides

    def _skip(self, guides: list[Rows]) -> bool:
        """Take the counter through all rows at once, if they only rise."""
        steps: Sequence[int] = guides[0].steps
        epochs = guides[0].epochs or (None,)
        if len(guides) > 1:
            if any(guide.epochs is not None for guide in guides):
                return False
            steps = merge_steps(guides).steps
            if not never_falls(steps):
                return False
            steps = list(dict.fromkeys(steps))
        elif not rises(steps):
            return False
        if not self.counter.skips(steps, epochs[0], epochs[-1]):
            return False
        self._count_from(steps[0])
        return True

    def _count_from(self, step: int) -> None:
        if self.first_step is None:
            self.first_step = step
            if self.counter.by_epoch and self.counter.highest is not None:
                self.place = self.axis.pass_at(self.place.run, self.counter.highest.epoch)

    def _follow(self, rows: list[Rows], guides: list[Rows]) -> list[Rows]:
        """Take the counter through its rows; return the rows after its last event."""
        told = [
            (offset, step, epoch, guide.total if guide.on_bar else None)
            for guide in guides
            for offset, step, epoch in zip(
                guide.offsets, guide.steps, guide.epochs or repeat(None), strict=False
            )
        ]
        if len(guides) > 1:
            told.sort(key=lambda row: row[0])
        counter = self.counter
        for offset, step, epoch, total in told:
            knew_epochs = counter.by_epoch
            verdict = counter.take(step, epoch, total)
            if counter.by_epoch and not knew_epochs and counter.first_epoch is not None:
                self.axis.rename(self.place, counter.first_epoch)
            if verdict is not Verdict.ON:
                before, rows = split(rows, offset)
                self._act(verdict, before)
            self._count_from(step)
        return rows

    def _act(self, verdict: Verdict, before: list[Rows]) -> None:
        """Do what the counter found, with the rows before that place still to be put."""
        self._put(before)
        if verdict is Verdict.SUSPECT:
            self._held = []
            return
        held, self._held = self._held, None
        run, counter = self.place.run, self.counter
        if verdict is Verdict.AGAIN:
            self._cut_off()
        elif verdict is Verdict.ANOTHER_RUN and counter.fallen_to is not None:
            self._note_another_run()
            self.place = self.axis.pass_at(run + 1, counter.fallen_to.epoch)
        if held:
            self._apply(held)
        if verdict is Verdict.NEXT_EPOCH and counter.highest is not None:
            self.place = self.axis.pass_at(run, counter.highest.epoch)

    def _cut_off(self) -> None:
        """Leave out what is done again."""
        reached, resumed = self.counter.fallen_from, self.counter.fallen_to
        if reached is None or resumed is None:
            return
        epoch = resumed.epoch if self.counter.by_epoch else self.place.epoch
        self.place = self.axis.pass_at(self.place.run, epoch)
        for column in (*self.axis.columns.values(), *self.columns.values()):
            column.truncate(self.place, resumed.step)
        replayed = self.counter.replayed
        self.restarts.append(Restart(self.attempt, reached.step, resumed.step, replayed))

    def _note_another_run(self) -> None:
        last = self.counter.fallen_from
        if last is None:
            return
        what = "another run in the same file"
        if last.step == self.total:
            what = "the next epoch, or another run in the same file"
        meaning = f"taken as {what}, not as a requeue"
        self.falls.add("the step counter begins again after", f"step {last.step}", meaning)

    def _put(self, rows: list[Rows]) -> None:
        if self._held is None:
            self._apply(rows)
        else:
            self._held += rows

    def _apply(self, rows: Iterable[Rows]) -> None:
        """Add rows to their columns, in the pass at hand."""
        rows = list(rows)
        for each in rows:
            if each.level == self.level and each.names and each.may_be_of_several:
                self._repeats.setdefault((each.form, each.names), Repeats()).take(each)
        for column, parts in self._sorted_out(rows):
            for steps, values, times, rising in parts:
                column.extend(self.place, steps, values, times, rising=rising)
            column.compact()

    def _sorted_out(self, rows: Sequence[Rows]) -> Iterator[tuple[Column, Sequence[Points]]]:
        """Yield each column with the points that it gets."""
        rising = [rises(each.steps) for each in rows]
        parts: dict[Voice, list[tuple[Rows, int, bool]]] = {}
        for each, rise in zip(rows, rising, strict=True):
            for index, name in enumerate(each.names):
                parts.setdefault((name, each.side, each.rank), []).append((each, index, rise))
        for voice, parted in parts.items():
            is_new = voice not in self.columns and voice[0] not in MEASURED
            if is_new and len(self.columns) >= MOST_COLUMNS:
                continue
            if len(parted) > 1 and not in_turn([each for each, *_ in parted]):
                yield self._column(voice), [merge([(each, index) for each, index, _ in parted])]
            else:
                points = [Points(r.steps, r.columns[i], r.times, rise) for r, i, rise in parted]
                yield self._column(voice), points

    def _column(self, key: Voice) -> Column:
        """Return the column of a metric by one rank; of very many ranks the fullest ones are kept.

        The first one that was seen is kept in any case.
        """
        column = self.columns.get(key)
        if column is None:
            name, side, _ = key
            ranks = self._ranks.setdefault((name, side), [])
            if len(ranks) >= _MOST_RANKS:
                fewest = min(ranks[1:], key=lambda rank: self.columns[name, side, rank].count)
                ranks.remove(fewest)
                del self.columns[name, side, fewest]
            ranks.append(key[2])
            column = self.columns[key] = Column(self.axis.limit)
        return column


def _voice(rows: Rows) -> object:
    """Who speaks: of the rows without a loss only one layout counts."""
    return (rows.rank, None if rows.level >= LEVEL_OF_LOSS else rows.names)
