"""What is followed: runs of hpcrun (watched_job.py: other jobs), their states and log files.

Effects: reads files, few Slurm commands. Never changes or cancels anything.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct, structs

from hpcrun.controller.context import Context, slurm_transport
from hpcrun.controller.state.foreign import ForeignStatus
from hpcrun.controller.state.status import RunStatus, status_of
from hpcrun.logs.files import LogFile, log_files
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import End, History
from hpcrun.runs.store import read_history, read_plan, read_task, refresh
from hpcrun.runs.verdict import LOST, Verdict
from hpcrun.slurm.states import UNKNOWN
from hpcrun.transport import Transport

# Slurm is asked twice a minute at most while nothing happens (squeue(1), PERFORMANCE), and in
# quick succession only around the end.
SLURM_SOON = 5.0
SLURM_EVERY = 30.0
AFTER_END = (0.3, 0.7, 1.5, 3.0, 6.0, 12.0)
# Files of a run cost little to look at; many runs take their time. In seconds.
SIGNS_EVERY = 0.2
SIGNS_EACH = 0.005
Status = RunStatus | ForeignStatus


class Watched(Protocol):
    """Something that is followed."""

    transport: Transport

    @property
    def statuses(self) -> Sequence[Status]:
        """What is known now."""

    def files(self) -> list[LogFile]:
        """List the log files that are there, in the order in which they are shown."""

    def look(self) -> list[Status]:
        """Ask where it is time to; return the statuses that are others than before."""

    def heard(self, file: LogFile, data: bytes | None) -> None:
        """Take notice of new lines; None: the file was begun anew."""

    def settle(self, sleep: Callable[[float], None]) -> None:
        """All is over: wait a moment for what comes late from the nodes."""

    def attempt_line(self, file: LogFile) -> str:
        """Say which attempt a file belongs to, where that runs and why the last one ended."""


class WatchedRuns:
    """Runs of hpcrun: one, or those of a sweep. Slurm is not asked before the first look()."""

    def __init__(
        self,
        context: Context,
        runs: Sequence[RunFolder],
        *,
        alive: Callable[[], bool] | None = None,
    ) -> None:
        """Take the runs; ``alive`` tells of one of this machine whether its script is there."""
        self.transport: Transport = slurm_transport(context)
        self.runs = list(runs)
        self._context = context
        self._alive = alive
        self._shown: dict[Path, tuple[str, str]] = {}
        self._statuses: dict[Path, RunStatus] = {}
        self._signs: dict[Path, _Signs] = {}
        self._nodes: dict[Path, int] = {}
        self._next = self._next_signs = 0.0
        self._asked_since_end = 0

    @property
    def statuses(self) -> list[RunStatus]:
        return [self._statuses[run.path] for run in self.runs if run.path in self._statuses]

    def files(self) -> list[LogFile]:
        found = []
        for run in self.runs:
            task = str(getattr(read_task(run), "index", "")) if len(self.runs) > 1 else ""
            for file in log_files(run):
                node = file.node if file.rank is None else file.rank // self._ranks_per_node(run)
                found.append(structs.replace(file, node=node, job_id=run.run_id, task=task))
        return found

    def look(self) -> list[Status]:
        now = time.monotonic()
        if now >= self._next_signs:
            self._next_signs = now + max(SIGNS_EVERY, SIGNS_EACH * len(self.runs))
            self._look_for_signs(now)
        if self._alive is not None and not self._alive():
            self._ask()
            self._statuses = {path: _without_process(s) for path, s in self._statuses.items()}
        elif now >= self._next and not self._is_over():
            was_unknown = any(each.verdict.state == UNKNOWN for each in self.statuses)
            self._ask()
            if was_unknown and all(each.verdict.state != UNKNOWN for each in self.statuses):
                self._asked_since_end = 0  # Slurm is back, and learns now what it has missed
            self._next = time.monotonic() + self._wait()
        return self._changed()

    def heard(self, file: LogFile, data: bytes | None) -> None:
        pass  # the runs' own records tell all

    def settle(self, sleep: Callable[[float], None]) -> None:
        """A job that was killed outright leaves no end record, so the wait is short."""
        for _ in range(10):
            late = [self._settle_one(run) for run in self.runs]
            if not any(late):
                return
            sleep(0.5)

    def attempt_line(self, file: LogFile) -> str:
        run = next(run for run in self.runs if run.run_id == file.job_id)
        return attempt_words(read_history(run), file.attempt or 0)

    def _ask(self) -> None:
        left = [
            run
            for run in self.runs
            if run.path not in self._statuses or not self._statuses[run.path].verdict.final
        ]
        for status in status_of(self._context, left):
            self._statuses[status.run.path] = status
            self._signs.setdefault(status.run.path, _signs_of(status.history))

    def _look_for_signs(self, now: float) -> None:
        for path, before in self._signs.items():
            if self._statuses[path].verdict.final:
                continue
            signs = _signs_of(read_history(RunFolder(path)))
            if signs != before:
                # Slurm will know in a moment.
                self._signs[path], self._asked_since_end, self._next = signs, 0, now

    def _wait(self) -> float:
        """How long until Slurm is asked again, in seconds."""
        ended = [
            path
            for path, signs in self._signs.items()
            if signs.ended and not self._statuses[path].verdict.final
        ]
        if ended and self._asked_since_end < len(AFTER_END):
            self._asked_since_end += 1
            return AFTER_END[self._asked_since_end - 1]
        if not self._shown and any(
            each.verdict.state not in ("PENDING", "RUNNING") for each in self.statuses
        ):
            return SLURM_SOON
        return SLURM_EVERY * random.uniform(0.9, 1.1)

    def _is_over(self) -> bool:
        return len(self._statuses) == len(self.runs) and all(
            each.verdict.final for each in self.statuses
        )

    def _changed(self) -> list[Status]:
        found: list[Status] = []
        for status in self.statuses:
            now = (status.verdict.state, status.verdict.reason)
            if self._shown.get(status.run.path) != now:
                self._shown[status.run.path] = now
                found.append(status)
        return found

    def _settle_one(self, run: RunFolder) -> bool:
        """Take in what a run has recorded meanwhile; tell whether its end is still missing."""
        status = self._statuses[run.path]
        refresh(run)
        history = read_history(run)
        end = history.last.end if history.last else None
        if end is not None and status.verdict.exit_code is None:
            verdict = structs.replace(status.verdict, exit_code=end.exit_code)
            self._statuses[run.path] = structs.replace(status, history=history, verdict=verdict)
        return end is None and history.last is not None and status.verdict.source != "record"

    def _ranks_per_node(self, run: RunFolder) -> int:
        if run.path not in self._nodes:
            plan = read_plan(run)
            self._nodes[run.path] = max(1, plan.ranks_per_node) if plan is not None else 1 << 30
        return self._nodes[run.path]


def attempt_words(history: History, index: int) -> str:
    """Say which attempt it is, where, and why the one before has ended."""
    attempts = {attempt.index: attempt for attempt in history.attempts}
    this = attempts.get(index)
    where = f" on {this.begin.nodes}" if this is not None and this.begin is not None else ""
    before = [each for each in history.attempts if each.index < index]
    if not before:
        return f"attempt {index}{where}"
    return f"attempt {index}{where}; attempt {before[-1].index} {_end_words(before[-1].end)}"


def _end_words(end: End | None) -> str:
    if end is None:
        return "left no record of its end: its node died, or it was killed"
    if end.stopped_by is not None:
        return f"was stopped by SIG{end.stopped_by}"
    failure = end.first_failure
    if failure is None:
        return f"ended with exit code {end.exit_code}"
    who = f"rank {failure.rank}" if failure.rank is not None else "the launcher"
    return f"ended with exit code {end.exit_code}: {who} on {failure.host} failed first"


class _Signs(Struct, frozen=True):
    """What the run folder says by itself, and costs nothing to read."""

    attempts: int
    ended: bool
    cancelled: bool


def _signs_of(history: History) -> _Signs:
    last = history.last
    ended = last is not None and last.end is not None
    return _Signs(len(history.attempts), ended, history.cancelled is not None)


def _without_process(status: RunStatus) -> RunStatus:
    """A run of this machine whose batch script is gone: without an end record it is lost."""
    if status.verdict.final:
        return status
    verdict = Verdict(state=LOST, final=True, source="record", reason="its batch script was killed")
    return structs.replace(status, verdict=verdict)
