"""Passes and restarts: what it means that a step counter falls.

A log's training counter mostly rises. Where it falls:

- the epoch has grown meanwhile: the counter counts within the epoch, and a new *pass* begins;
- a mark says that the job was requeued or resumed: from this step on the run is done *again*;
- by no more than two logged steps: *jitter* (ranks that print across each other, a line printed
  late): the value goes to its step;
- further, to a step after its beginning: the run was resumed and goes on from there, *if* the
  counter then climbs again as it did before (``_ENOUGH`` steps, or up to where it was). A single
  line of an earlier step (a closing summary, the best checkpoint) is no resumption, nor are
  processes that print across each other with a distance;
- to its beginning: another run in the same file, or another epoch of a log that names none: a new
  pass. A pass has more than two logged steps; of shorter ones the last one stays. A bar that was
  full begins its next pass at once, and so does a training of another length.

So what cannot be known: a job that was requeued from scratch into the same file, with no word of
it, looks like another run; one that was resumed at most two logged steps back shows no restart (its
values are the later ones all the same).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice, pairwise, repeat
from operator import lt
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

# So many steps, one after the other, show that a counter climbs again.
_ENOUGH = 5
_FEWEST = 3
# Steps after a fall that neither climb nor come back: then the fall means nothing.
_PATIENCE = 64


class At(NamedTuple):
    """A step and the epoch that it is counted in: 0 unless the counter starts with each."""

    epoch: int
    step: int


class Bound(NamedTuple):
    """From this byte of a log on rows belong to a run (of several in one log) and its epoch.

    ``again``: where the run is done again from, None where nothing is.
    """

    offset: int
    run: int
    epoch: int
    again: At | None = None


class Resumed(NamedTuple):
    """A restart: from where to where the counter fell, how many steps are done again."""

    reached: At
    resumed: At
    replayed: int


class Counter(Struct):
    """What a training counter has shown.

    ``begun`` and ``highest``: where its run began and how far it has come, None before the first
    step. ``recent``: the last three steps that were highest. ``ends``: epoch -> its last step.
    ``spans_epochs``: the epoch, as printed (``epoch``), has grown while the steps went on.
    """

    run: int = 0
    begun: At | None = None
    highest: At | None = None
    recent: tuple[int, ...] = ()
    ends: dict[int, int] = {}
    epoch: float | None = None
    spans_epochs: bool = False


class Guide(NamedTuple):
    """The rows of a log that tell the training's progress: columns of one length.

    ``epochs``: None or nan where unknown. ``total``: the largest that they name; ``totals``: of
    the bars on which they are drawn. ``lengths``: how many steps each training has, or an epoch of
    it, if several trainings stand one behind the other.
    """

    offsets: Sequence[int]
    steps: Sequence[int]
    epochs: Sequence[float] | None
    totals: Sequence[int | None] | None
    total: int | None
    lengths: Sequence[int | None] | None = None


class Course(Struct):
    """What a log's counter does: where its passes begin, in the order of the log, and restarts.

    ``others``: where other runs began: from and to where the counter fell. ``first``: the first
    step that it counts; ``counter``: where it ends.
    """

    bounds: list[Bound]
    resumed: list[Resumed]
    others: list[tuple[At, At]]
    first: int
    counter: Counter


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

    >>> def guide(steps, epochs):
    ...     return Guide(steps, steps, epochs, None, None)
    >>> starts_with_each_epoch([guide([1, 2, 1, 2], [0.0, 0.0, 1.0, 1.0])])
    True
    >>> starts_with_each_epoch([guide([1, 2, 3, 4], [0.0, 0.5, 1.0, 1.5])])
    False
    """
    grows = again = 0
    last: tuple[float, int] | None = None
    for guide in guides:
        if guide.epochs is None:
            continue
        for epoch, step in zip(guide.epochs, guide.steps, strict=True):
            if not math.isfinite(epoch):
                continue
            if last is not None and epoch > last[0] and math.floor(epoch) > math.floor(last[0]):
                grows += 1
                whole = epoch.is_integer() and last[0].is_integer()
                again += step < last[1] or (step == last[1] and whole)
            last = epoch, step
    return 0 < grows <= 2 * again


def follow(
    guide: Guide,
    marks: Sequence[int],
    before: Counter,
    *,
    within_epochs: bool,
    is_attempt: bool = False,
) -> Course:
    """Follow a counter through a log; ``before`` is what earlier attempts have shown.

    ``marks``: the bytes at which the log says that the run is resumed; a further attempt
    (``is_attempt``) is one. ``within_epochs``: the counter starts again with each epoch.

    >>> def steps(*numbers):
    ...     return Guide(numbers, numbers, None, None, None)
    >>> course = follow(steps(*range(10, 60, 10), *range(10, 50, 10)), [], Counter(),
    ...                 within_epochs=False)
    >>> course.bounds, course.others
    ([Bound(offset=10, run=1, epoch=0, again=None)], [(At(epoch=0, step=50), At(epoch=0, step=10))])
    """
    steps, known = guide.steps, _filled(guide.epochs)
    floors: Sequence[int] = [0] * len(steps)
    if within_epochs and known is not None:
        floors = [*map(math.floor, known)]
    elif within_epochs and before.highest is not None:
        floors = [before.highest.epoch] * len(steps)
    counter = replace(before, ends=before.ends.copy())
    if known is not None:
        grown = any(b > a for a, b in pairwise(map(math.floor, known)))
        counter.spans_epochs |= not within_epochs and grown
        counter.epoch = known[-1]
    course = Course([], [], [], steps[0], counter)
    if before.highest is None and not within_epochs and not marks and rises(steps):
        first, last = At(0, steps[0]), At(0, steps[-1])
        counter.begun, counter.highest, counter.recent = first, last, tuple(steps[-3:])
        return course
    _follow(guide, [*map(At, floors, steps)], marks, course, is_attempt=is_attempt)
    return course


def _filled(epochs: Sequence[float] | None) -> list[float] | None:
    """Return epochs with those that are unknown as the one before; None without any."""
    if epochs is None:
        return None
    last = next(filter(math.isfinite, epochs), None)
    if last is None:
        return None
    filled = []
    for epoch in epochs:
        last = epoch if math.isfinite(epoch) else last
        filled.append(last)
    return filled


def _follow(
    guide: Guide, ats: Sequence[At], marks: Sequence[int], course: Course, *, is_attempt: bool
) -> None:
    counter, offsets = course.counter, guide.offsets
    marked = {bisect_left(offsets, mark) for mark in marks}
    if is_attempt:
        marked.add(0)
    ends = sorted({*marked, len(ats)})
    begun, highest = counter.begun, counter.highest
    recent = (*counter.recent[:1] * (3 - len(counter.recent)), *counter.recent)

    def start(at: At) -> None:
        """Let the counter go on from here."""
        nonlocal highest, recent
        if highest is not None:
            counter.ends[highest.epoch] = highest.step
        highest, recent = at, (at.step,) * 3

    def do_again(at: At, index: int) -> None:
        nonlocal begun
        reached = highest
        assert reached is not None and begun is not None
        if at < begun or (is_attempt and index == 0):
            begun = at
        start(at)
        replayed = _replayed(reached, at, begun, counter.ends)
        course.resumed.append(Resumed(reached, at, replayed))
        course.bounds.append(Bound(offsets[index], counter.run, at.epoch, at))

    def begin_another(at: At, index: int) -> None:
        nonlocal begun
        assert highest is not None
        course.others.append((highest, at))
        begun = at
        start(at)
        counter.run += 1
        course.bounds.append(Bound(offsets[index], counter.run, at.epoch))

    index = 0
    while index < len(ats):
        at = ats[index]
        if highest is None or begun is None:
            begun = at
            start(at)
            if at.epoch:
                course.bounds.append(Bound(0, counter.run, at.epoch))
        elif index in marked:
            do_again(at, index)
        elif at > highest:
            if at.epoch > highest.epoch:
                start(at)
                course.bounds.append(Bound(offsets[index], counter.run, at.epoch))
            else:
                highest, recent = at, (*recent[1:], at.step)
        elif at < highest and (at.epoch < highest.epoch or at.step < recent[0]):
            total = guide.totals[index] if guide.totals is not None else None
            is_full = total is not None and highest.step == total and at.step <= begun.step + 1
            if is_full or _is_another(guide, index):
                begin_another(at, index)
            else:
                end = ends[bisect_left(ends, index + 1)]
                climb, after = _climb(ats, index, end, highest, recent)
                if climb:
                    if climb[0] <= begun:
                        begin_another(climb[0], index)
                    else:
                        do_again(climb[0], index)
                    highest = climb[-1]
                    recent = (*repeat(climb[0].step, 2), *(each.step for each in climb))[-3:]
                index = after
                continue
        index += 1
    counter.begun, counter.highest, counter.recent = begun, highest, recent


def _is_another(guide: Guide, index: int) -> bool:
    """Whether another training begins at a row: one of another length."""
    lengths = guide.lengths
    return lengths is not None and lengths[index] != lengths[index - 1]


def _replayed(reached: At, resumed: At, begun: At, ends: dict[int, int]) -> int:
    """Count the steps that are done again, those of whole epochs included."""
    if reached < resumed:
        return 0
    first = 0 if begun.step == 0 else 1
    between = (end for epoch, end in ends.items() if resumed.epoch <= epoch < reached.epoch)
    return sum(end + 1 - first for end in between) + reached.step - resumed.step + 1


def _climb(
    ats: Sequence[At], index: int, end: int, highest: At, recent: Sequence[int]
) -> tuple[list[At], int]:
    """Look what follows a fall: return the steps that climb again, and where to go on.

    No steps: the fall means nothing.
    """
    climb = [ats[index]]
    last = min(end, index + _PATIENCE + 1)
    for place in range(index + 1, last):
        at = ats[place]
        if at < climb[0] or at.epoch > climb[0].epoch:
            climb = [at]
        elif at > climb[-1]:
            climb.append(at)
        enough = at >= highest or len(climb) >= _ENOUGH
        if enough and len(climb) >= _FEWEST and _is_even(climb, recent):
            return climb, place + 1
        if at > highest:
            return [], place
    if last == end and len(climb) >= _FEWEST and _is_even(climb, recent):
        return climb, end
    return [], last


def _is_even(climb: Sequence[At], recent: Sequence[int]) -> bool:
    """Whether steps follow each other as evenly as a counter's do."""
    gaps = [high.step - low.step for low, high in pairwise(climb)]
    before = [high - low for low, high in pairwise(recent)]
    return max(gaps) <= 1.5 * max([min(gaps), *before])
