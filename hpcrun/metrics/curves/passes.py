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
  full begins its next pass at once.

So what cannot be known: a job that was requeued from scratch into the same file, with no word of
it, looks like another run; one that was resumed at most two logged steps back shows no restart (its
values are the later ones all the same).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from enum import Enum, auto
from itertools import islice, pairwise
from operator import le, lt
from typing import NamedTuple

from msgspec import Struct

# So many of the last steps are near enough for a fall to be jitter.
_NEAR = 3
# So many steps, one after the other, show that a counter climbs again.
_ENOUGH = 5
_FEWEST = 3
# Steps after a fall that neither climb nor come back: then the fall means nothing.
_PATIENCE = 64


class Pass(Struct, eq=False):
    """One run of a step counter from its beginning: ``run`` of several in one log, its ``epoch``.

    The epoch is 0 unless the counter starts again with each.
    """

    run: int = 0
    epoch: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """What passes are ordered by."""
        return self.run, self.epoch


def rises(steps: Sequence[int]) -> bool:
    """Whether each step is greater than the one before.

    >>> rises([1, 2, 5]), rises([1, 1]), rises([])
    (True, False, True)
    """
    return all(map(lt, steps, islice(steps, 1, None)))


def never_falls(steps: Sequence[int]) -> bool:
    """Whether no step is less than the one before.

    >>> never_falls([1, 1, 2]), never_falls([2, 1])
    (True, False)
    """
    return all(map(le, steps, islice(steps, 1, None)))


class Verdict(Enum):
    """What a row of the training counter tells."""

    ON = auto()
    NEXT_EPOCH = auto()
    AGAIN = auto()
    ANOTHER_RUN = auto()
    SUSPECT = auto()
    CLEARED = auto()


class At(NamedTuple):
    """A step and the epoch that it is counted in: 0 unless the counter starts with each."""

    epoch: int
    step: int


class Counter:
    """Follows one training counter, row by row or by whole columns of rising steps.

    >>> counter = Counter()
    >>> [counter.take(step, None) for step in (10, 20, 30, 40, 30, 50)][-1].name
    'ON'
    >>> [counter.take(step, None).name for step in (10, 20, 30, 40)]
    ['SUSPECT', 'ON', 'ON', 'ON']
    >>> counter.take(50, None).name, counter.fallen_to, counter.fallen_from
    ('ANOTHER_RUN', At(epoch=0, step=10), At(epoch=0, step=50))
    """

    def __init__(self, by_epoch: bool = False) -> None:
        """``by_epoch``: this counter is known to start again with each epoch."""
        self.by_epoch = by_epoch
        self.begun: At | None = None
        self.highest: At | None = None
        # The epoch of the highest step, as printed.
        self.epoch: float | None = None
        # Whether the epoch has grown while the steps went on.
        self.spans_epochs = False
        # The epoch after which the counter first started again.
        self.first_epoch: int | None = None
        # After a verdict: where the counter fell from and to.
        self.fallen_from: At | None = None
        self.fallen_to: At | None = None
        self._resumes = self._begins = False
        # Epoch -> the last step of it that was seen, where the counter starts with each.
        self._ends: dict[int, int] = {}
        # The last steps that were highest, and those since a fall that may mean something.
        self._recent: list[int] = []
        self._climb: list[At] = []
        self._waited = 0

    @property
    def is_suspicious(self) -> bool:
        """Whether what a fall means is not known yet."""
        return bool(self._climb)

    @property
    def replayed(self) -> int:
        """How many steps are done again after a fall, those of whole epochs included."""
        reached, resumed = self.fallen_from, self.fallen_to
        if reached is None or resumed is None or reached < resumed:
            return 0
        first = 0 if self.begun is not None and self.begun.step == 0 else 1
        ends = (self._ends.get(epoch, 0) for epoch in range(resumed.epoch, reached.epoch))
        return sum(end + 1 - first for end in ends) + reached.step - resumed.step + 1

    def expect_restart(self, *, in_new_log: bool = False) -> None:
        """Take note that the job was restarted here, as the log says, or a new log shows."""
        self._resumes = self.highest is not None
        self._begins |= in_new_log

    def copy(self) -> Counter:
        """Copy the counter."""
        other = copy.copy(self)
        other._recent, other._climb = self._recent.copy(), self._climb.copy()
        other._ends = self._ends.copy()
        return other

    def skips(self, steps: Sequence[int], first: float | None, last: float | None) -> bool:
        """Take rows whose steps rise, all at once; False if they need a closer look.

        ``first`` and ``last`` are the epochs of the first row and the last one.
        """
        if self._climb or self._resumes:
            return False
        if self.highest is not None:
            within = self.by_epoch and first is not None
            if within and not self.highest.epoch == math.floor(first or 0) == math.floor(last or 0):
                return False
            if steps[0] <= self.highest.step:
                return False
        elif self.by_epoch and first is not None and math.floor(first) != math.floor(last or 0):
            return False
        if self.highest is None:
            self._start(At(self._epoch_of(first), steps[0]))
        self._recent = sorted({*self._recent, *steps[:1], *steps[-_NEAR:]})[-_NEAR:]
        self.highest = At(self._epoch_of(first), steps[-1])
        self._note_epoch(first)
        self._note_epoch(last)
        return True

    def take(self, step: int, epoch: float | None, total: int | None = None) -> Verdict:
        """Take one row; ``total`` is that of the bar which it is drawn on, None without a bar."""
        if self.highest is None or self.begun is None:
            self._start(At(self._epoch_of(epoch), step))
            self.epoch = epoch
            return Verdict.ON
        if not self.by_epoch and self._is_next_epoch(step, epoch):
            self.by_epoch = True
            self.first_epoch = math.floor(self.epoch or 0)
            self.highest = At(self.first_epoch, self.highest.step)
            self.begun = At(self.first_epoch, self.begun.step)
            self._climb = []
        at = At(self._epoch_of(epoch), step)
        if self._resumes:
            self._fall_to(at)
            if self._begins:
                self.begun = at
            self._resumes = self._begins = False
            return self._go_on_from(at, epoch, Verdict.AGAIN)
        if self._climb:
            return self._watch(at, epoch)
        if at.epoch > self.highest.epoch:
            self._start_pass(at)
            self.epoch = epoch
            return Verdict.NEXT_EPOCH
        if at > self.highest:
            self._rise(at, epoch)
            return Verdict.ON
        if at == self.highest or (at.epoch == self.highest.epoch and step >= self._recent[0]):
            return Verdict.ON
        self._fall_to(at)
        if total is not None and self.highest.step == total and step <= self.begun.step + 1:
            return self._go_on_from(at, epoch, Verdict.ANOTHER_RUN)
        self._climb, self._waited = [at], 0
        return Verdict.SUSPECT

    def settle(self) -> Verdict:
        """Decide what is not known yet: nothing more will come.

        CLEARED if there is nothing to decide, or if the fall meant nothing.
        """
        climb, self._climb = self._climb, []
        if len(climb) < _FEWEST or not self._climbs(climb):
            return Verdict.CLEARED
        return self._confirm(climb, self.epoch)

    def _epoch_of(self, epoch: float | None) -> int:
        if not self.by_epoch:
            return 0
        if epoch is not None:
            return math.floor(epoch)
        return self.highest.epoch if self.highest is not None else 0

    def _is_next_epoch(self, step: int, epoch: float | None) -> bool:
        """Whether the step falls, or stays, while the epoch grows."""
        if epoch is None or self.epoch is None or math.floor(epoch) <= math.floor(self.epoch):
            return False
        highest = self.highest.step if self.highest is not None else -1
        whole = epoch == math.floor(epoch) and self.epoch == math.floor(self.epoch)
        return step < highest or (step == highest and whole)

    def _start(self, at: At) -> None:
        self.begun = at
        self._start_pass(at)

    def _start_pass(self, at: At) -> None:
        if self.highest is not None:
            self._ends[self.highest.epoch] = self.highest.step
        self.highest = at
        self._recent = [at.step]

    def _rise(self, at: At, epoch: float | None) -> None:
        self.highest = at
        self._note_epoch(epoch)
        self._recent = [*self._recent, at.step][-_NEAR:]

    def _note_epoch(self, epoch: float | None) -> None:
        if epoch is not None:
            if self.epoch is not None and math.floor(epoch) > math.floor(self.epoch):
                self.spans_epochs = True
            self.epoch = epoch

    def _fall_to(self, at: At) -> None:
        self.fallen_from, self.fallen_to = self.highest, at

    def _go_on_from(self, at: At, epoch: float | None, verdict: Verdict) -> Verdict:
        """Let the counter stand where it fell to."""
        self._climb = []
        if verdict is Verdict.ANOTHER_RUN or self.begun is None or at < self.begun:
            self.begun = at
        self._start_pass(at)
        self.epoch = epoch
        return verdict

    def _watch(self, at: At, epoch: float | None) -> Verdict:
        """Take a row after a fall of which it is not known what it means."""
        climb, self._waited = self._climb, self._waited + 1
        assert self.highest is not None
        if at < climb[0] or at.epoch > climb[0].epoch:
            self._climb = climb = [at]
        elif at > climb[-1]:
            climb.append(at)
        there = at >= self.highest
        if (there or len(climb) >= _ENOUGH) and len(climb) >= _FEWEST and self._climbs(climb):
            return self._confirm(climb, epoch)
        if at.epoch > self.highest.epoch:
            self._climb = []
            self._start_pass(at)
            self.epoch = epoch
            return Verdict.NEXT_EPOCH
        if at > self.highest:
            self._climb = []
            self._rise(at, epoch)
            return Verdict.CLEARED
        if self._waited >= _PATIENCE:
            self._climb = []
            return Verdict.CLEARED
        return Verdict.ON

    def _climbs(self, climb: Sequence[At]) -> bool:
        """Whether steps follow each other as evenly as a counter's do."""
        steps = [at.step for at in climb]
        gaps = [high - low for low, high in pairwise(steps)]
        before = [high - low for low, high in pairwise(self._recent)]
        return max(gaps) <= 1.5 * max([min(gaps), *before])

    def _confirm(self, climb: Sequence[At], epoch: float | None) -> Verdict:
        assert self.begun is not None
        another = climb[0] <= self.begun
        verdict = Verdict.ANOTHER_RUN if another else Verdict.AGAIN
        self.fallen_from, self.fallen_to = self.highest, climb[0]
        self._go_on_from(climb[0], epoch, verdict)
        for at in climb[1:]:
            self._rise(at, epoch)
        return verdict
