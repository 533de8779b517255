"""Follows a run to its end: its log as it grows, its state as it changes.

Effects: reads files, few Slurm commands. Never changes or cancels anything.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, structs

from hpcrun.controller.context import Context, slurm_transport
from hpcrun.controller.status import RunStatus, status_of
from hpcrun.logs.files import LogFile, log_files
from hpcrun.logs.tail import Tail
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import History
from hpcrun.runs.store import read_history, refresh
from hpcrun.runs.verdict import LOST, Verdict
from hpcrun.slurm.states import UNKNOWN

# Files of the run cost nothing to look at; Slurm is asked twice a minute at most while nothing
# happens (squeue(1), PERFORMANCE), and in quick succession only around the end.
FILES_EVERY = (0.1, 1.0)
# Each look at a file is a request to the file server: hundreds of ranks take turns.
FILES_A_TURN = 64
SLURM_SOON = 5.0
SLURM_EVERY = 30.0
AFTER_END = (0.3, 0.7, 1.5, 3.0, 6.0, 12.0)


class State:
    """The run's state changed (also at the start and at the end)."""

    def __init__(self, status: RunStatus) -> None:
        self.status = status


class Lines:
    """New lines of a log."""

    def __init__(self, file: LogFile, data: bytes) -> None:
        self.file = file
        self.data = data


def follow(
    context: Context,
    run: RunFolder,
    *,
    logs: bool = True,
    alive: Callable[[], bool] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[State | Lines]:
    """Follow a run until it is over; the last event is its final State.

    While Slurm is out of reach the state is UNKNOWN and the run goes on being followed. ``alive``
    tells, for a run of this machine, whether its batch script is still there.
    """
    tail = Tail(slurm_transport(context))
    watch = _Watch(context, run)
    pause, turn = FILES_EVERY[0], 0
    while True:
        gone = alive is not None and not alive()
        changed = watch.look(gone=gone)
        news = False
        if logs:
            turn += 1
            for file, data in tail.poll(_due(log_files(run), turn)):
                news = True
                yield Lines(file, data)
        if watch.status.verdict.final:
            watch.await_files(sleep)
            if logs:
                for file, data in tail.finish(log_files(run)):
                    yield Lines(file, data)
            yield State(watch.status)
            return
        if changed:
            yield State(watch.status)
        pause = FILES_EVERY[0] if news else min(pause * 1.3, FILES_EVERY[1])
        sleep(pause)


def _due(files: Sequence[LogFile], turn: int) -> list[LogFile]:
    """The files to look at in this turn: rank 0's and the batch script's, and some of the rest."""
    if len(files) <= FILES_A_TURN:
        return list(files)
    share = -(-len(files) // FILES_A_TURN)
    return [
        file
        for number, file in enumerate(files)
        if file.rank == 0 or file.attempt is None or number % share == turn % share
    ]


class _Watch:
    """Knows when it is time to ask Slurm again."""

    def __init__(self, context: Context, run: RunFolder) -> None:
        self.context = context
        self.run = run
        self.status = status_of(context, [run])[0]
        self.shown: tuple[str, str] | None = None
        self.last = _signs(self.status.history)
        self.next = time.monotonic() + (AFTER_END[0] if self.last.ended else SLURM_SOON)
        self.asked_since_end = 0

    def look(self, *, gone: bool = False) -> bool:
        """Ask if it is time; tell whether the state is another than before."""
        if gone:
            self.status = _without_process(status_of(self.context, [self.run])[0])
        signs = _signs(read_history(self.run))
        if signs != self.last:
            # Slurm will know in a moment.
            self.last, self.asked_since_end, self.next = signs, 0, time.monotonic()
        if time.monotonic() >= self.next and not self.status.verdict.final:
            was_unknown = self.status.verdict.state == UNKNOWN
            self.status = status_of(self.context, [self.run])[0]
            if was_unknown and self.status.verdict.state != UNKNOWN:
                self.asked_since_end = 0  # Slurm is back, and learns now what it has missed
            wait = SLURM_EVERY * random.uniform(0.9, 1.1)
            if signs.ended and self.asked_since_end < len(AFTER_END):
                wait = AFTER_END[self.asked_since_end]
                self.asked_since_end += 1
            self.next = time.monotonic() + wait
        verdict = self.status.verdict
        now = (verdict.state, verdict.reason)
        changed = now != self.shown
        self.shown = now
        return changed

    def await_files(self, sleep: Callable[[float], None]) -> None:
        """Slurm says that the run is over: let its last files arrive from the nodes.

        A job that was killed outright leaves no end record, so the wait is short.
        """
        for _ in range(10):
            refresh(self.run)
            history = read_history(self.run)
            end = history.last.end if history.last else None
            if end is not None and self.status.verdict.exit_code is None:
                verdict = structs.replace(self.status.verdict, exit_code=end.exit_code)
                self.status = structs.replace(self.status, history=history, verdict=verdict)
            if end is not None or history.last is None or self.status.verdict.source == "record":
                return
            sleep(0.5)


class _Signs(Struct, frozen=True):
    """What the run folder says by itself, and costs nothing to read."""

    attempts: int
    ended: bool
    cancelled: bool


def _signs(history: History) -> _Signs:
    last = history.last
    ended = last is not None and last.end is not None
    return _Signs(len(history.attempts), ended, history.cancelled is not None)


def _without_process(status: RunStatus) -> RunStatus:
    """A run of this machine whose batch script is gone: without an end record it is lost."""
    if status.verdict.final:
        return status
    verdict = Verdict(state=LOST, final=True, source="record", reason="its batch script was killed")
    return structs.replace(status, verdict=verdict)
