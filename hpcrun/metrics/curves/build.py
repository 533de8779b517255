"""Builder: the frames of a run's logs to its curve, in whatever pieces they come.

Samples are what the logs say; the curve is a view of them, by these rules:

- One value per step: the last one in the log. A form of line that says the same step again (the two
  lines of Megatron-DeepSpeed) adds no point.
- A later attempt replaces what it replays: from its first training loss on, what earlier attempts
  logged at that step and after is gone, as the weights that it belonged to are. What it means where
  a counter falls within one log: see ``passes``.
- Rows without a step find one, or are shown by epoch, or in their order: see ``join``. Where some
  rows of a metric have a step, those without are left out (a closing summary).
- What a bar shows beside its counter speaks for a metric only if no lines do, or if it has more
  than twice as many points (a bar drawn at each step, and a line at the end of the epoch).
- Of several files or ranks that say the same metric the first file speaks, and the lowest rank in
  it, unless another has more than twice as many points. Ranks that log different metrics each speak
  for theirs. Processes that print the same steps without a word of who they are make one series,
  and a note.
- Where the counter of steps counts within the epoch and the log has one training loss for each
  epoch, the epoch is the step.

A limit on the points bounds the memory: see ``column`` for what becomes approximate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpcrun.metrics.curve import Curve, Restart
from hpcrun.metrics.curves.column import Column
from hpcrun.metrics.curves.falling_epochs import FallingEpochs
from hpcrun.metrics.curves.join import Joiner, side_of
from hpcrun.metrics.curves.passes import Verdict
from hpcrun.metrics.curves.placed import AFTER, BEFORE, DRAWN, OWN, Rows, split
from hpcrun.metrics.curves.tally import BY_EPOCH, IN_ORDER, Tally
from hpcrun.metrics.curves.tracks import MOST_COLUMNS, Axis, Key
from hpcrun.metrics.curves.training_bar import Bar
from hpcrun.metrics.names import LOSS
from hpcrun.metrics.row import Frame, Placed
from hpcrun.metrics.sample import Samples


class CurveBuilder:
    """Derives the curve of a run from its logs.

    >>> from hpcrun.metrics.row import Layout
    >>> def losses(steps, values):
    ...     layout = Layout("json", "train", None, None, ("loss",))
    ...     return [Frame(layout, [*range(len(steps))], steps, None, None, (values,))]
    >>> builder = CurveBuilder()
    >>> builder.begin(0)
    >>> builder.add(losses([1, 2, 3], [9.0, 8.0, 7.0]))
    >>> builder.begin(1)
    >>> builder.add(losses([2], [6.0]))
    >>> builder.curve().steps("loss"), builder.curve().values("loss")
    ([1, 2], [9.0, 6.0])
    >>> builder.curve().restarts
    (Restart(attempt=1, lost_at=3, resumed_at=2, replayed=2),)
    """

    def __init__(self, limit: int | None = None, keep_samples: bool = False) -> None:
        """Keep ``limit`` points of each metric, None for all; the samples only if asked for."""
        self.samples = Samples()
        self._keeps_samples = keep_samples
        # Rows by the step, by the epoch, by their order; and which of these to believe.
        self._axes = _Axes(Axis(limit, counts_steps=True), Axis(limit), Axis(limit))
        self._tally = Tally()
        self._training: Bar | None = None
        self._attempt: int | None = None
        self._first_attempt: int | None = None
        self._logs: dict[int, _Log] = {}
        self._log: _Log | None = None

    def begin(self, attempt: int, file: int = 0) -> None:
        """Go on with a log file, or begin it; a further attempt is a requeue."""
        if attempt != self._attempt:
            if self._attempt is None:
                self._first_attempt = attempt
            else:
                for log in self._logs.values():
                    log.end()
                for axis in self._axes:
                    axis.close(self._attempt, self._attempt == self._first_attempt)
            self._attempt, self._logs = attempt, {}
        if file not in self._logs:
            self._logs[file] = _Log(attempt, self._axes, self._tally)
        self._log = self._logs[file]

    def add(self, pieces: Sequence[Frame | Placed]) -> None:
        """Take what stands next in the log."""
        if self._log is None or self._attempt is None:
            raise ValueError("begin() says first which log this is")
        if self._keeps_samples:
            self.samples.add(self._attempt, pieces)
        self._log.add(pieces)
        self._training = self._log.joiner.bars.training or self._training

    def end(self) -> None:
        """The file is over."""
        if self._log is not None:
            self._log.end()
        self._log = None

    def curve(self) -> Curve:
        """Return what the logs say so far."""
        axes = _Axes(*(_decided(axis) for axis in self._axes))
        training = self._training
        within_epoch = axes.by_step.counts_within_epoch
        within_epoch |= training is not None and training.counts_within_epoch
        view = _View(axes, self._tally, training, within_epoch)
        found = {name: found for name in view.names() if (found := view.find(name)) is not None}
        losses = found.get(LOSS)
        in_epochs = losses is not None and view.is_one_an_epoch(*losses)
        series = {
            name: column.series(by_epoch=in_epochs and view.is_one_an_epoch(axis, column))
            for name, (axis, column) in found.items()
        }
        counting = (axis for axis in axes if axis.level or axis.lead)
        axis = losses[0] if losses else next(counting, axes.in_order)
        return Curve(series, *self._course(axis, within_epoch))

    def _course(
        self, axis: Axis, within_epoch: bool
    ) -> tuple[tuple[Restart, ...], int | None, tuple[str, ...]]:
        """Return restarts, total of steps and notes."""
        if self._attempt is None:
            return (), None, ()
        restarts = axis.restarts + axis.fresh_restarts(
            self._attempt, self._attempt == self._first_attempt
        )
        notes = axis.falls.joined(axis.lead.falls if axis.lead else None).notes()
        if axis.processes > 1:
            notes.append(
                f"each step stands {axis.processes} times in the log, with different values and "
                "no rank: several processes print it; the last value of each step counts"
            )
        if axis is self._axes.in_order and self._training is not None:
            notes.append(
                "losses stand in lumps between the drawings of the progress bar, as a program "
                "prints that buffers its output: at which steps is not known, their order counts"
            )
        counts = [len(axis.columns), *(len(track.columns) for track in axis.tracks)]
        if max(counts) >= MOST_COLUMNS:
            notes.append(
                f"{MOST_COLUMNS:,} metrics and more: of those that came later only the losses, the "
                "gradient norm, rates and memory are kept"
            )
        total = None
        if axis.counts_steps and not within_epoch:
            total = axis.total
            if total is None and self._training is not None:
                total = self._training.total
        return tuple(restarts), total, tuple(notes)


def _decided(axis: Axis) -> Axis:
    """Return the axis with all falls of its counters decided, itself if they are."""
    if not any(track.is_undecided for track in axis.tracks):
        return axis
    axis = axis.copy()
    for track in axis.tracks:
        track.decide()
    return axis


def _combined(axis: Axis) -> dict[Key, Column]:
    """Join what earlier attempts logged with the attempt at hand."""
    spoken = axis.spoken()
    joined = {}
    for key in dict.fromkeys([*axis.columns, *spoken]):
        if key in axis.columns and key in spoken:
            joined[key] = axis.columns[key].copy()
            joined[key].absorb(spoken[key])
        else:
            joined[key] = axis.columns[key] if key in axis.columns else spoken[key]
    return {key: column for key, column in joined.items() if column.count}


class _Axes(NamedTuple):
    by_step: Axis
    by_epoch: Axis
    in_order: Axis


class _View:
    """Chooses for each metric which of its columns to show."""

    def __init__(self, axes: _Axes, tally: Tally, training: Bar | None, within_epoch: bool) -> None:
        self._axes, self._tally, self._training = axes, tally, training
        self._within_epoch = within_epoch
        self._by_step, self._by_epoch, self._in_order = map(_combined, axes)

    def names(self) -> Iterable[str]:
        """List the metrics."""
        columns = (self._by_step, self._by_epoch, self._in_order)
        return dict.fromkeys(name for each in columns for name, _ in each)

    def find(self, name: str) -> tuple[Axis, Column] | None:
        """Find the column of a metric: of its lines, else of what a bar shows."""
        lines, drawn = self._of_lines(name), self._drawn(name)
        if lines is not None and (drawn is None or 2 * lines[1].count >= drawn[1].count):
            return lines
        return drawn if drawn is not None else self._of_bar(name)

    def is_one_an_epoch(self, axis: Axis, column: Column) -> bool:
        """Whether the step of its one point in each epoch tells nothing."""
        return self._within_epoch and axis is self._axes.by_step and column.is_one_a_pass

    def _of_lines(self, name: str) -> tuple[Axis, Column] | None:
        if (name, OWN) in self._by_step:
            return self._axes.by_step, self._by_step[name, OWN]
        way = self._tally.choose(name, counts_all=not self._within_epoch)
        if way == BY_EPOCH and name != LOSS and self._has_losses_in_order():
            way = IN_ORDER
        if way in (BEFORE, AFTER) and (name, way) in self._by_step:
            return self._axes.by_step, self._by_step[name, way]
        if way == BY_EPOCH and (name, OWN) in self._by_epoch:
            return self._axes.by_epoch, self._by_epoch[name, OWN]
        if (name, OWN) in self._in_order:
            return self._axes.in_order, self._in_order[name, OWN]
        return None

    def _has_losses_in_order(self) -> bool:
        found = self.find(LOSS)
        return found is not None and found[0] is self._axes.in_order

    def _drawn(self, name: str) -> tuple[Axis, Column] | None:
        if self._within_epoch and (name, DRAWN) in self._by_epoch:
            return self._axes.by_epoch, self._by_epoch[name, DRAWN]
        column = self._by_step.get((name, DRAWN))
        return None if column is None else (self._axes.by_step, column)

    def _of_bar(self, name: str) -> tuple[Axis, Column] | None:
        """Choose the bar that speaks for a metric: that of the training, or that of most work."""
        sides = {side: column for (each, side), column in self._by_step.items() if each == name}
        bars = {side: sides[side] for side in sides if side not in (OWN, BEFORE, AFTER, DRAWN)}
        if self._training is not None and (column := bars.get(side_of(self._training))):
            return self._axes.by_step, column
        most = max(bars.values(), key=lambda column: column.work, default=None)
        return None if most is None else (self._axes.by_step, most)


class _Log:
    """One log file."""

    def __init__(self, attempt: int, axes: Sequence[Axis], tally: Tally) -> None:
        self.joiner = Joiner(tally)
        self._by_step, self._by_epoch, self._in_order = (axis.open(attempt) for axis in axes)
        self._falling = FallingEpochs()

    def add(self, pieces: Sequence[Frame | Placed]) -> None:
        frames: list[Frame] = []
        for piece in pieces:
            if isinstance(piece, Frame):
                frames.append(piece)
                continue
            if frames:
                self._take(frames)
            frames = []
            if piece.mark.epoch is not None:
                self.joiner.epoch = piece.mark.epoch
            if piece.mark.restart:
                self._by_step.counter.expect_restart()
                self._by_epoch.counter.expect_restart()
        if frames:
            self._take(frames)

    def end(self) -> None:
        if rows := self.joiner.finish():
            self._by_step.feed(rows)
        self._by_step.decide()
        self._by_epoch.decide()

    def _take(self, frames: list[Frame]) -> None:
        placing = self.joiner.place(frames)
        rows = placing.by_step
        for offset in placing.restarts:
            before, rows = split(rows, offset)
            if before:
                self._by_step.feed(before)
            self._by_step.counter.expect_restart()
        if rows:
            self._by_step.feed(rows)
        if placing.by_epoch:
            self._by_epoch.feed(placing.by_epoch)
        if placing.in_order:
            self._note_falls(placing.in_order)
            self._in_order.feed_in_order(placing.in_order)

    def _note_falls(self, rows: Sequence[Rows]) -> None:
        """Note where rows without steps go back to an earlier epoch."""
        axis = self._in_order.axis
        for verdict, end, begun in self._falling.take(rows):
            said = "taken as another run in the same file, not as a requeue"
            if verdict is Verdict.AGAIN:
                axis.restarts.append(Restart(self._in_order.attempt, None, None, 0))
                said = "the run was resumed; without steps, what it did again stands there twice"
            axis.falls.add("the epoch falls from", f"{end:g} to {begun:g}", said)
