"""Passes and restarts: what it means that a step counter falls.

A log's training counter mostly rises. Where it falls:

- the epoch has grown meanwhile: the counter counts within the epoch, and a new *pass* begins;
- a mark says that the job was requeued or resumed: from this step on the run is done *again*;
- by no more than two logged steps: *jitter* (ranks that print across each other, a line printed
  late): the value goes to its step;
- further, to a step after its beginning: the run was resumed and goes on from there, *if* the
  counter then climbs again as it did before (``_ENOUGH`` steps, or up to where it was), or the log
  ends there below all that a program prints as it starts. Another single line of an earlier step (a
  closing summary, the best checkpoint) is no resumption, nor are processes that print across each
  other with a distance;
- to its beginning, or to the first step of another distance: another run in the same file, or
  another epoch of a log that names none: a new pass. It has more than two logged steps, unless the
  counter never falls but to its very first step: then each such row begins a run, however short.
  A bar that was full begins its next pass at once, and so does a training of another length.

So what cannot be known: a job that was requeued from scratch into the same file, with no word of
it, looks like another run; one that was resumed at most two logged steps back shows no restart (its
values are the later ones all the same).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import compress, islice, pairwise
from operator import le, lt
from typing import NamedTuple

from msgspec import Struct

# So many steps, one after the other, show that a counter climbs again.
_ENOUGH = 5
_FEWEST = 3
# A program that starts prints this many times as much as stands between two rows, at least.
_START = 5
# Steps after a fall that neither climb nor come back: then the fall means nothing.
_PATIENCE = 64


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


class Guide(NamedTuple):
    """The rows of a log that tell the training's progress: columns of one length.

    ``epochs``: nan where unknown, () without any. ``total``: the largest that they name.
    ``lengths``: how many steps each training has, or an epoch of it, if several stand one behind
    the other. ``is_bar``: they are drawn on one.
    """

    offsets: Sequence[int]
    steps: Sequence[int]
    epochs: Sequence[float] = ()
    total: int | None = None
    lengths: Sequence[int | None] = ()
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


def rises(steps: Sequence[int]) -> bool:
    """Whether each step is greater than the one before.

    >>> rises([1, 2, 5]), rises([1, 1]), rises([])
    (True, False, True)
    """
    return all(map(lt, steps, islice(steps, 1, None)))


def starts_with_each_epoch(guides: Sequence[Guide]) -> bool:
    """Whether the counter of a run's logs starts again with each epoch.

    So it is if it falls where the epoch grows, at half of these places; or if it stays where whole
    epochs do: one row an epoch.

    >>> starts_with_each_epoch([Guide(range(4), [1, 2, 1, 2], [0.0, 0.0, 1.0, 1.0])])
    True
    >>> starts_with_each_epoch([Guide(range(4), [1, 2, 3, 4], [0.0, 0.5, 1.0, 1.5])])
    False
    """
    grows = again = 0
    last: tuple[float, int] | None = None
    for guide in guides:
        for epoch, step in zip(guide.epochs, guide.steps, strict=False):
            if not math.isfinite(epoch):
                continue
            if last is not None and epoch > last[0] and math.floor(epoch) > math.floor(last[0]):
                grows += 1
                whole = epoch.is_integer() and last[0].is_integer()
                again += step < last[1] or (step == last[1] and whole)
            last = epoch, step
    return 0 < grows <= 2 * again


def follow(
    guide: Guide, marks: Sequence[int], counter: Counter, *, within_epochs: bool
) -> list[Turn]:
    """Follow a counter through a log, on from what earlier attempts have shown; return its turns.

    ``marks``: the bytes at which the run is resumed, as the log says, or since an attempt begins.
    ``within_epochs``: the counter starts again with each epoch.

    >>> steps = [*range(10, 60, 10), *range(10, 50, 10)]
    >>> follow(Guide(range(9), steps), [], Counter(), within_epochs=False)
    [Turn(offset=5, run=1, at=At(epoch=0, step=10), reached=At(epoch=0, step=50), replayed=None)]
    """
    steps, offsets = guide.steps, guide.offsets
    before = counter.highest
    epoch = before.epoch if within_epochs and before is not None else 0
    epochs = array("q", _floors(guide.epochs) if within_epochs else ())

    def place(index: int) -> At:
        return At(epochs[index] if epochs else epoch, steps[index])

    marked = {bisect_left(offsets, mark) for mark in marks}
    begins: set[int] = set()
    if before is None and not guide.is_bar and not epochs:
        begins = _beginnings(steps)
    ends = sorted({*marked, *begins, len(steps)})
    falls = array("q", compress(range(1, len(steps)), map(lt, islice(steps, 1, None), steps)))
    falls.append(len(steps))
    turns: list[Turn] = []
    index = 0
    while index < len(steps):
        at, offset, highest, begun = place(index), offsets[index], counter.highest, counter.begun
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
        elif at > highest and epochs:
            counter.climb(at)
        elif at > highest:
            stop = min(each[bisect_left(each, index)] for each in (ends, falls))
            for step in sorted({*steps[max(index - 1, stop - _PATIENCE) : stop]})[-3:]:
                counter.climb(At(epoch, step))
            index = stop
        elif at < highest and (at.epoch < highest.epoch or at.step < counter.recent[0]):
            if _is_another(guide, index - 1, highest, begun):
                turns.append(counter.another_run(at, offset))
                continue
            fell, end = index - 1, ends[bisect_left(ends, index)]
            climb, index = _climb(place, fell, end, highest, counter.recent)
            if not climb and index == len(steps) and _is_start(offsets[: fell + 1]):
                climb, index = [at], fell + 1
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


def _floors(epochs: Sequence[float]) -> Iterator[int]:
    """Yield whole epochs, those that are unknown as the one before; nothing if all are."""
    last = next(filter(math.isfinite, epochs), None)
    if last is not None:
        for epoch in epochs:
            last = epoch if math.isfinite(epoch) else last
            yield math.floor(last)


def _beginnings(steps: Sequence[int]) -> set[int]:
    """Find the rows at which runs begin, where the counter falls nowhere but to its first step.

    That is decided by the rows up to there and the next ones. Where most runs have two rows of that
    step it is printed twice; where the counter goes on from the highest after it, or nothing
    follows, it is a summary.
    """
    first = steps[0]
    second = next(filter(first.__lt__, steps), first)
    back: list[int] = []
    falls, end = [0], len(steps)
    for index in compress(range(1, end), map(le, islice(steps, 1, None), steps)):
        after = steps[index + 1 : index + 2]
        if steps[index] != first or (after and after[0] not in (first, second)):
            end = index
            break
        back.append(index)
        falls.append(falls[-1] + (steps[index - 1] > first))
    begins = set()
    for index in back if back != [len(steps) - 1] else ():
        seen = bisect_left(back, index + _PATIENCE)
        if (end == len(steps) or index + _PATIENCE <= end) and seen <= 2 * falls[seen]:
            begins.add(index)
    return begins


def _is_another(guide: Guide, index: int, highest: At, begun: At) -> bool:
    """Whether another training begins at a row: one of another length, or after a full bar."""
    if guide.lengths and guide.lengths[index] != guide.lengths[index - 1]:
        return True
    total = guide.lengths[index] if guide.lengths else guide.total
    return guide.is_bar and highest.step == total and guide.steps[index] <= begun.step + 1


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


def _is_start(offsets: Sequence[int]) -> bool:
    """Whether a program has started before the last row: far more text stands above it."""
    *gaps, last = [0, *_gaps(offsets)]
    return len(gaps) > _FEWEST and last > _START * max(gaps)


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
