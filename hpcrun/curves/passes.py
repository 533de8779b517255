"""Passes and restarts: what it means that a step counter falls.

A log's training counter mostly rises. Where it falls:

- the epoch has grown meanwhile: the counter counts within the epoch, and a new *pass* begins;
- a mark says that the job was requeued or resumed: from this step on the run is done *again*;
- by no more than two logged steps: *jitter* (ranks that print across each other, a line printed
  late): the value goes to its step;
- further, to a step after its beginning: the run was resumed and resumes from there, *if* the
  counter then climbs again as it did before (``_ENOUGH`` steps, or up to where it was). Another
  single line of an earlier step (a closing summary, the best checkpoint) is no resumption, nor are
  processes that print across each other with a distance;
- to its beginning, or to the first step of another distance: another run in the same file, or
  another epoch of a log that names none: a new pass. It has more than two logged steps, unless the
  counter never falls but to its very first place: then each such row begins a run, however short.
  A bar that was full begins its next pass at once, and so does a training of another length.

So what cannot be known: a job that was requeued from scratch into the same file, with no word of
it, looks like another run; one that was resumed at most two logged steps back shows no restart (its
values are the later ones all the same).
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
# This many steps, one after the other, show that a counter climbs again.
_ENOUGH = 5
_FEWEST = 3
# Steps after a fall that neither climb nor come back: then the fall means nothing.
_PATIENCE = 64
# An epoch beyond this is taken for it: a whole number of 64 bits.
_LARGEST = 1 << 53


class At(NamedTuple):
    """A step and the epoch that it is counted in: 0 unless the counter starts with each."""

    epoch: int
    step: int


class Turn(NamedTuple):
    """From this byte of a log on rows belong to a run (of several in one log) and an epoch of it.

    ``at``: the epoch, and the step at which the counter goes on. ``reached``: how far it had come
    where it fell, None where only the next epoch begins. ``replayed``: how many steps are done
    again; None where nothing is: then another run begins.
    """

    offset: int
    run: int
    at: At
    reached: At | None = None
    replayed: int | None = None

    @property
    def is_again(self) -> bool:
        """Whether the run does steps again, or is resumed."""
        return self.replayed is not None


class Counted(NamedTuple):
    """What a log counts, line by line: columns of one length.

    ``offsets``: the bytes at which the lines begin. ``epochs``: nan where unknown, None without
    any. ``total``: the largest that they name. ``lengths``: how many steps each training has, or an
    epoch of it, -1 where that is unknown, if several stand one behind the other. ``is_bar``: they
    are drawn on one.
    """

    offsets: Ints
    steps: Ints
    epochs: Floats | None = None
    total: int | None = None
    lengths: Ints | None = None
    is_bar: bool = False


class Counter(Struct):
    """What a training counter has shown.

    ``begun`` and ``highest``: where its run began and how far it has come, None before the first
    step. ``recent``: the last three steps that were highest. ``ends``: epoch -> its last step.
    ``behind``: how many rows stood at steps that it had passed, and meant nothing.
    """

    run: int = 0
    begun: At | None = None
    highest: At | None = None
    recent: tuple[int, ...] = ()
    ends: dict[int, int] = {}
    behind: int = 0

    def start(self, at: At) -> None:
        """Let the counter go on from here."""
        if self.highest is not None:
            self.ends[self.highest.epoch] = self.highest.step
        self.begun = self.begun or at
        self.highest, self.recent = at, (at.step,) * 3

    def climb(self, at: At) -> None:
        """Count a step further on in the epoch."""
        self.highest, self.recent = at, (*self.recent[1:], at.step)

    def another_run(self, at: At, offset: int) -> Turn:
        """Begin another run in the same file."""
        reached, self.begun = self.highest, at
        self.start(at)
        self.run += 1
        return Turn(offset, self.run, at, reached)

    def do_again(self, at: At, offset: int, *, is_attempt: bool = False) -> Turn:
        """Go back to a step."""
        reached = self.highest
        assert reached is not None and self.begun is not None
        if at < self.begun or is_attempt:
            self.begun = at
        self.start(at)
        replayed = 0
        if reached >= at:
            # Those of whole epochs count too.
            first = 0 if self.begun.step == 0 else 1
            between = (end for epoch, end in self.ends.items() if at.epoch <= epoch < reached.epoch)
            replayed = sum(end + 1 - first for end in between) + reached.step - at.step + 1
        return Turn(offset, self.run, at, reached, replayed)


def changes(column: NDArray[Any]) -> Bools:
    """Return where a column has another number than in the row before.

    >>> changes(np.array([1, 1, 2])).tolist()
    [True, False, True]
    """
    return np.append(True, column[1:] != column[:-1])[: len(column)]


def starts_with_each_epoch(counted: Sequence[Counted]) -> bool:
    """Whether the counter of a run's logs starts again with each epoch.

    So it is if it falls where the epoch grows, at half of these places; or if it stays where whole
    epochs do: one row an epoch.

    >>> columns = np.arange(4), np.array([1, 2, 1, 2]), np.array([0.0, 0.0, 1.0, 1.0])
    >>> starts_with_each_epoch([Counted(*columns)])
    True
    >>> columns = np.arange(4), np.array([1, 2, 3, 4]), np.array([0.0, 0.5, 1.0, 1.5])
    >>> starts_with_each_epoch([Counted(*columns)])
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


def follow(
    counted: Counted, marks: Sequence[int], counter: Counter, *, within_epochs: bool
) -> list[Turn]:
    """Follow a counter through a log, on from what earlier attempts have shown; return its turns.

    ``marks``: the bytes at which the run is resumed, as the log says, or since an attempt begins.
    ``within_epochs``: the counter starts again with each epoch.

    >>> counted = Counted(np.arange(9), np.array([10, 20, 30, 40, 50, 10, 20, 30, 40]))
    >>> follow(counted, [], Counter(), within_epochs=False)
    [Turn(offset=5, run=1, at=At(epoch=0, step=10), reached=At(epoch=0, step=50), replayed=None)]
    """
    offsets, steps = counted.offsets, counted.steps
    before = counter.highest
    epochs = _floors(counted.epochs) if within_epochs and counted.epochs is not None else None
    begins: set[int] = set()
    places = steps
    if epochs is None:
        epochs = np.full(len(steps), before.epoch if within_epochs and before else 0)
    else:
        places = np.unique(np.stack([epochs, steps]), axis=1, return_inverse=True)[1].ravel()
    if before is None and not counted.is_bar:
        begins = {*_beginnings(places).tolist()}

    def place(index: int) -> At:
        return At(int(epochs[index]), int(steps[index]))

    marked = {*np.searchsorted(offsets, marks).tolist()}
    ends = sorted({*marked, *begins, len(steps)})
    falls = np.flatnonzero((steps[1:] < steps[:-1]) | (epochs[1:] != epochs[:-1])) + 1
    turning = [*falls.tolist(), len(steps)]
    turns: list[Turn] = []
    index = 0
    while index < len(steps):
        at, offset = place(index), int(offsets[index])
        highest, begun = counter.highest, counter.begun
        index += 1
        if highest is None or begun is None:
            counter.start(at)
            if at.epoch:
                turns.append(Turn(0, counter.run, at))
        elif index - 1 in marked:
            turns.append(counter.do_again(at, offset, is_attempt=index == 1))
        elif index - 1 in begins:
            turns.append(counter.another_run(at, offset))
        elif at > highest and at.epoch > highest.epoch:
            counter.start(at)
            turns.append(Turn(offset, counter.run, at))
        elif at > highest:
            stop = min(each[bisect_left(each, index)] for each in (ends, turning))
            passed = {*steps[max(index - 1, stop - _PATIENCE) : stop].tolist()}
            for step in sorted(passed)[-3:]:
                counter.climb(At(at.epoch, step))
            index = stop
        elif at < highest and (at.epoch < highest.epoch or at.step < counter.recent[0]):
            if _is_another(counted, index - 1, highest, begun):
                turns.append(counter.another_run(at, offset))
                continue
            fell, end = index - 1, ends[bisect_left(ends, index)]
            climb, index = _climb(place, fell, end, highest, counter.recent)
            if climb:
                is_first = _is_first(climb, begun, counter.recent)
                turn = counter.another_run if is_first else counter.do_again
                turns.append(turn(climb[0], offset))
                for at in climb[1:]:
                    counter.climb(at)
            else:
                counter.behind += index - fell
        elif at < highest:
            counter.behind += 1
    return turns


def _floors(epochs: Floats) -> Floats | None:
    """Return whole epochs, those that are unknown as the one before; None if all are."""
    known = np.flatnonzero(np.isfinite(epochs))
    if not known.size:
        return None
    last = np.searchsorted(known, np.arange(len(epochs)), "right") - 1
    return np.floor(epochs[known[np.maximum(last, 0)]]).clip(-_LARGEST, _LARGEST)


def _beginnings(steps: Ints) -> Ints:
    """Find the rows at which runs begin, where the counter falls nowhere but to its first place.

    That is decided by the rows up to there and the next ones. Where most runs have two rows of that
    step it is printed twice; where the counter resumes from the highest after it, it is a summary.
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
    seen = np.searchsorted(back, back + _PATIENCE)
    is_seen = (end == len(steps)) | (back + _PATIENCE <= end)
    return back[is_seen & (seen <= 2 * falls[seen])]


def _is_another(counted: Counted, index: int, highest: At, begun: At) -> bool:
    """Whether another training begins at a row: one of another length, or after a full bar."""
    total = counted.total
    if counted.lengths is not None:
        before, total = counted.lengths[index - 1 : index + 1].tolist()
        if total != before:
            return True
    return counted.is_bar and highest.step == total and counted.steps[index] <= begun.step + 1


def _climb(
    place: Callable[[int], At], index: int, end: int, highest: At, recent: Sequence[int]
) -> tuple[list[At], int]:
    """Look what follows a fall: return the steps that climb again, and where to go on.

    No steps: the fall means nothing.
    """
    climb = [place(index)]
    last = min(end, index + _PATIENCE + 1)
    for after in range(index + 1, last):
        at = place(after)
        if at < climb[0] or at.epoch > climb[0].epoch:
            climb = [at]
        elif at > climb[-1]:
            climb.append(at)
        enough = at >= highest or len(climb) >= _ENOUGH
        if enough and len(climb) >= _FEWEST and _is_even(climb, recent):
            return climb, after + 1
        if at > highest:
            return [], after
    if last == end and len(climb) >= _FEWEST and _is_even(climb, recent):
        return climb, end
    return [], last


def _gaps(steps: Sequence[int]) -> list[int]:
    return [high - low for low, high in pairwise(steps)]


def _is_even(climb: Sequence[At], recent: Sequence[int]) -> bool:
    """Whether steps follow each other as evenly as a counter's do."""
    gaps = _gaps([at.step for at in climb])
    return max(gaps) <= 1.5 * max([min(gaps), *_gaps(recent)])


def _is_first(climb: Sequence[At], begun: At, recent: Sequence[int]) -> bool:
    """Whether a counter begins: where it began before, or at the first step of another distance."""
    stride = min(_gaps([at.step for at in climb]), default=0)
    is_other = stride not in _gaps(recent) and climb[0].step <= stride
    return climb[0] <= begun or (is_other and climb[0].epoch <= begun.epoch)
