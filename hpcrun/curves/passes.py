"""Follow a step counter through a log, and interpret each decrease of the counter.

The step of a training mostly rises. If it falls:

- The epoch has grown: the counter counts within the epoch, and a new *pass* begins.
- A mark says that the job was requeued or resumed: steps from this one on are *repeated*.
- It falls by no more than two logged steps: *jitter*, such as ranks that print at the same time.
  The value belongs to its step.
- It falls further, to a step after its start: the run was resumed, *if* the counter then climbs as
  it did before (``_MIN_CLIMB_STEPS`` steps, or up to where it was). A single line of an earlier
  step (a closing summary, the best checkpoint) is no resumption, and neither are several processes
  that print with a delay.
- It falls to its start, or to the first step of another distance: another run in the same file, or
  another epoch of a log without epochs. This requires more than two logged steps, unless the
  counter falls only to its very first step; then each such row begins a run. A progress bar that
  was full begins its next pass at once, and so does a training of another length.

Two cases cannot be distinguished. A job that was requeued from scratch into the same file without a
message is treated as another run. A job that was resumed at most two logged steps back shows no
restart, but its later values are used nevertheless.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.signedinteger[Any]]
# A counter climbs again after this many rising steps, or after three that pass the highest one.
_MIN_CLIMB_STEPS = 5
_MIN_STEPS = 3
# A bar that is removed at its end is last drawn a moment before.
FULL_BAR_SHARE = 0.95
# A fall that is followed by this many steps without a climb means nothing.
_MAX_STEPS_WITHOUT_CLIMB = 64
# Epochs are clipped to what a float holds exactly.
_MAX_EPOCH = 1 << 53


class Position(NamedTuple):
    """A step, and its epoch if the counter restarts with each epoch, otherwise 0."""

    epoch: int
    step: int


class CounterTurn(NamedTuple):
    """An offset in a log from which on rows belong to another run, epoch, or resumption.

    Attributes:
        offset: Byte offset in the log.
        run: Index of the run in the file.
        at: Position at which the counter continues.
        reached: Highest position before; None if only the next epoch begins.
        replayed: Number of repeated steps; None if another run begins.
    """

    offset: int
    run: int
    at: Position
    reached: Position | None = None
    replayed: int | None = None

    @property
    def is_resumption(self) -> bool:
        """True if the run is resumed, with or without repeated steps."""
        return self.replayed is not None


class CountedSteps(NamedTuple):
    """The steps on the lines of a log, as columns.

    Attributes:
        offsets: Byte offsets of the lines.
        steps: Step of each line.
        epochs: Epoch of each line, nan if unknown; None if no line has an epoch.
        total: Largest total number of steps.
        lengths: Number of steps of the training (or of its epochs) that each line belongs to, -1 if
            unknown; None unless the log contains several trainings.
        is_bar: Whether the lines are drawings of a progress bar.
    """

    offsets: Ints
    steps: Ints
    epochs: Floats | None = None
    total: int | None = None
    lengths: Ints | None = None
    is_bar: bool = False


class StepCounter(Struct):
    """The state of a step counter.

    Attributes:
        run: Index of the run in the file.
        begun: First position of the run; None before the first step.
        highest: Highest position of the run; None before the first step.
        recent: The last three highest steps.
        ends: Last step by epoch.
        behind: Number of ignored rows at earlier steps.
    """

    run: int = 0
    begun: Position | None = None
    highest: Position | None = None
    recent: tuple[int, ...] = ()
    ends: dict[int, int] = {}
    behind: int = 0

    def start(self, at: Position) -> None:
        """Continue counting from a position."""
        if self.highest is not None:
            self.ends[self.highest.epoch] = self.highest.step
        self.begun = self.begun or at
        self.highest, self.recent = at, (at.step,) * 3

    def climb(self, at: Position) -> None:
        """Count a higher step of the same epoch."""
        self.highest, self.recent = at, (*self.recent[1:], at.step)

    def begin_run(self, at: Position, offset: int) -> CounterTurn:
        """Begin another run in the same file."""
        reached, self.begun = self.highest, at
        self.start(at)
        self.run += 1
        return CounterTurn(offset, self.run, at, reached)

    def resume(self, at: Position, offset: int, *, is_attempt: bool = False) -> CounterTurn:
        """Continue the run from an earlier or repeated position."""
        reached = self.highest
        assert reached is not None and self.begun is not None
        if at < self.begun or is_attempt:
            self.begun = at
        self.start(at)
        replayed = 0
        if reached >= at:
            # Repeated steps include those of whole epochs.
            first = 0 if self.begun.step == 0 else 1
            between = (end for epoch, end in self.ends.items() if at.epoch <= epoch < reached.epoch)
            replayed = sum(end + 1 - first for end in between) + reached.step - at.step + 1
        return CounterTurn(offset, self.run, at, reached, replayed)


def find_changes(column: NDArray[Any]) -> Bools:
    """Return a mask: True where a column differs from the row before.

    >>> find_changes(np.array([1, 1, 2])).tolist()
    [True, False, True]
    """
    return np.append(True, column[1:] != column[:-1])[: len(column)]


def restarts_each_epoch(counted: Sequence[CountedSteps]) -> bool:
    """Return True if the counter of a run restarts with each epoch.

    It does if it falls at half of the places where the epoch grows, or stays the same while whole
    epochs do, as with one row per epoch.

    >>> columns = np.arange(4), np.array([1, 2, 1, 2]), np.array([0.0, 0.0, 1.0, 1.0])
    >>> restarts_each_epoch([CountedSteps(*columns)])
    True
    >>> columns = np.arange(4), np.array([1, 2, 3, 4]), np.array([0.0, 0.5, 1.0, 1.5])
    >>> restarts_each_epoch([CountedSteps(*columns)])
    False
    """
    known = [(each.steps, each.epochs) for each in counted if each.epochs is not None]
    if not known:
        return False
    steps, epochs = (np.concatenate(columns) for columns in zip(*known, strict=True))
    is_known = np.isfinite(epochs)
    steps, epochs = steps[is_known], epochs[is_known]
    floors = np.floor(epochs)
    is_whole = floors == epochs
    grows = floors[1:] > floors[:-1]
    stays = (steps[1:] == steps[:-1]) & is_whole[1:] & is_whole[:-1]
    again = grows & ((steps[1:] < steps[:-1]) | stays)
    return bool(0 < grows.sum() <= 2 * again.sum())


def follow_counter(
    counted: CountedSteps, marks: Sequence[int], counter: StepCounter, *, within_epochs: bool
) -> list[CounterTurn]:
    """Follow a counter through a log and return its turns.

    Args:
        counted: the steps of the log.
        marks: offsets at which the log says that the run is resumed; -1 if an attempt begins.
        counter: state after earlier attempts; it is updated.
        within_epochs: the counter restarts with each epoch.

    >>> counted = CountedSteps(np.arange(9), np.array([10, 20, 30, 40, 50, 10, 20, 30, 40]))
    >>> follow_counter(counted, [], StepCounter(), within_epochs=False)  # doctest: +ELLIPSIS
    [CounterTurn(offset=5, run=1, at=Position(epoch=0, step=10), reached=..., replayed=None)]
    """
    offsets, steps = counted.offsets, counted.steps
    before = counter.highest
    epochs = _whole_epochs(counted.epochs) if within_epochs and counted.epochs is not None else None
    begins: set[int] = set()
    places = steps
    if epochs is None:
        epochs = np.full(len(steps), before.epoch if within_epochs and before else 0)
    else:
        places = np.unique(np.stack([epochs, steps]), axis=1, return_inverse=True)[1].ravel()
    if before is None and not counted.is_bar:
        begins = {*_find_run_starts(places).tolist()}

    def place(index: int) -> Position:
        return Position(int(epochs[index]), int(steps[index]))

    marked = {*np.searchsorted(offsets, marks).tolist()}
    ends = sorted({*marked, *begins, len(steps)})
    falls = np.flatnonzero((steps[1:] < steps[:-1]) | (epochs[1:] != epochs[:-1])) + 1
    turning = [*falls.tolist(), len(steps)]
    # The rows whose position differs from that of the row before.
    moves = np.flatnonzero((steps[1:] != steps[:-1]) | (epochs[1:] != epochs[:-1])) + 1
    turns: list[CounterTurn] = []
    index = 0
    while index < len(steps):
        at, offset = place(index), int(offsets[index])
        highest, begun = counter.highest, counter.begun
        index += 1
        if highest is None or begun is None:
            counter.start(at)
            if at.epoch:
                turns.append(CounterTurn(0, counter.run, at))
        elif index - 1 in marked:
            turns.append(counter.resume(at, offset, is_attempt=index == 1))
        elif index - 1 in begins:
            turns.append(counter.begin_run(at, offset))
        elif at > highest and at.epoch > highest.epoch:
            counter.start(at)
            turns.append(CounterTurn(offset, counter.run, at))
        elif at > highest:
            stop = min(each[bisect_left(each, index)] for each in (ends, turning))
            first, last = np.searchsorted(moves, [index, stop]).tolist()
            for row in [index - 1, *moves[max(first, last - 3) : last].tolist()][-3:]:
                counter.climb(Position(at.epoch, int(steps[row])))
            index = stop
        elif at < highest and (at.epoch < highest.epoch or at.step < counter.recent[0]):
            if _is_other_training(counted, index - 1, highest, begun):
                turns.append(counter.begin_run(at, offset))
                continue
            fell, end = index - 1, ends[bisect_left(ends, index)]
            first = int(np.searchsorted(moves, index))
            below = moves[first : first + _MAX_STEPS_WITHOUT_CLIMB + 1].tolist()
            rows = [fell, *(row for row in below if row < end)]
            climb, index = _follow_climb(place, rows, end, highest, counter.recent)
            if climb:
                is_first = _is_run_start(climb, begun, counter.recent)
                turn = counter.begin_run if is_first else counter.resume
                turns.append(turn(climb[0], offset))
                for at in climb[1:]:
                    counter.climb(at)
            else:
                counter.behind += index - fell
        elif at < highest:
            counter.behind += 1
    return turns


def _whole_epochs(epochs: Floats) -> Floats | None:
    """Return whole epochs; unknown ones equal the one before. None if all are unknown."""
    known = np.flatnonzero(np.isfinite(epochs))
    if not known.size:
        return None
    last = np.searchsorted(known, np.arange(len(epochs)), "right") - 1
    return np.floor(epochs[known[np.maximum(last, 0)]]).clip(-_MAX_EPOCH, _MAX_EPOCH)


def _find_run_starts(steps: Ints) -> Ints:
    """Return the rows at which runs begin, if the counter falls only to its first step.

    The rows before and the next ones decide. If most runs have two rows at the first step, it is
    printed twice; if the counter then continues above its highest step, the row is a summary.
    """
    first, end = steps[0], len(steps)
    higher = steps[steps > first]
    second = higher[0] if higher.size else first
    back = np.flatnonzero(steps[1:] <= steps[:-1]) + 1
    after = np.append(steps, second)[back + 1]
    elsewhere = np.flatnonzero((steps[back] != first) | ((after != first) & (after != second)))
    if elsewhere.size:
        end = back[elsewhere[0]]
        back = back[: elsewhere[0]]
    falls = np.append(0, np.cumsum(steps[back - 1] > first))
    seen = np.searchsorted(back, back + _MAX_STEPS_WITHOUT_CLIMB)
    is_seen = (end == len(steps)) | (back + _MAX_STEPS_WITHOUT_CLIMB <= end)
    return back[is_seen & (seen <= 2 * falls[seen])]


def _is_other_training(
    counted: CountedSteps, index: int, highest: Position, begun: Position
) -> bool:
    """Return True if a row begins a training of another length, or follows a full bar."""
    total = counted.total
    if counted.lengths is not None:
        before, total = counted.lengths[index - 1 : index + 1].tolist()
        if total != before:
            return True
    is_full = total is not None and highest.step >= FULL_BAR_SHARE * total
    return counted.is_bar and is_full and bool(counted.steps[index] <= begun.step + 1)


def _follow_climb(
    place: Callable[[int], Position],
    rows: Sequence[int],
    end: int,
    highest: Position,
    recent: Sequence[int],
) -> tuple[list[Position], int]:
    """Examine the rows after a fall; return the positions that climb, and where to continue.

    Without positions, the fall means nothing.

    Args:
        place: returns the position of a row.
        rows: the row of the fall, and those below it whose position differs from the row before.
        end: the row that ends what may be examined.
        highest: the highest position before the fall.
        recent: the last three highest steps.
    """
    climb = [place(rows[0])]
    for after in rows[1 : _MAX_STEPS_WITHOUT_CLIMB + 1]:
        at = place(after)
        if at < climb[0] or at.epoch > climb[0].epoch:
            climb = [at]
        elif at > climb[-1]:
            climb.append(at)
        enough = at >= highest or len(climb) >= _MIN_CLIMB_STEPS
        if enough and len(climb) >= _MIN_STEPS and _is_regular(climb, recent):
            return climb, after + 1
        if at > highest:
            return [], after
    if len(rows) <= _MAX_STEPS_WITHOUT_CLIMB + 1:
        is_climb = len(climb) >= _MIN_STEPS and _is_regular(climb, recent)
        return (climb, end) if is_climb else ([], end)
    return [], rows[_MAX_STEPS_WITHOUT_CLIMB + 1]


def _gaps(steps: Sequence[int]) -> list[int]:
    return [high - low for low, high in pairwise(steps)]


def _is_regular(climb: Sequence[Position], recent: Sequence[int]) -> bool:
    """Return True if the distances between steps are as regular as those of a counter."""
    gaps = _gaps([at.step for at in climb])
    return max(gaps) <= 1.5 * max([min(gaps), *_gaps(recent)])


def _is_run_start(climb: Sequence[Position], begun: Position, recent: Sequence[int]) -> bool:
    """Return True if a run begins: at its old start, or at the first step of another distance."""
    stride = min(_gaps([at.step for at in climb]), default=0)
    is_other = stride not in _gaps(recent) and climb[0].step <= stride
    return climb[0] <= begun or (is_other and climb[0].epoch <= begun.epoch)
