"""Runs of hpcrun that are followed: their own files tell when Slurm is worth a question.

Never changes or cancels anything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import structs

from hpcrun.controller.context import Context
from hpcrun.controller.state.status import RunStatus, status_of
from hpcrun.controller.watch.pace import APART
from hpcrun.controller.watch.watched import Watched
from hpcrun.logs.files import LogFile, log_files
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import End, History
from hpcrun.runs.store import read_history, read_plan, read_task, refresh
from hpcrun.runs.verdict import LOST, Verdict
from hpcrun.slurm.states import UNKNOWN

# After an end Slurm is asked in quick succession: it has cleaned up after most jobs in a second,
# and a site's epilog takes longer. In seconds.
AFTER_END = (0.3, 0.7, 1.5, 3.0, 6.0, 12.0)
# How often the folders of the runs are looked at, in seconds: soon after news and new lines, more
# seldom while nothing happens; and no more runs a second, each is a request to the file server.
FILES_EVERY = (0.2, 1.0)
SLOWER = 1.3
RUNS_A_SECOND = 100
# Slurm may call a run over before its last files arrive from the nodes; a job that was killed
# outright has none, so the wait is short.
FILES_LATE = 5.0
LATE_EVERY = 0.2


class WatchedRuns(Watched):
    """Runs of hpcrun: one, those of a sweep, or any number of them."""

    def __init__(
        self,
        context: Context,
        runs: Sequence[RunFolder],
        *,
        alive: Callable[[], bool] | None = None,
        deadline: float | None = None,
    ) -> None:
        """Take the runs; ``alive`` tells of one of this machine whether its script is there."""
        super().__init__(context, AFTER_END, deadline)
        self.runs = list(dict.fromkeys(runs))
        self._alive = alive
        self._by_name = {str(run.path): run for run in self.runs}
        self._signs: dict[str, _Signs] = {}
        self._nodes: dict[Path, int] = {}
        # Of ends that are not given yet: when they were seen, and when their files are read again.
        self._over_since: dict[str, float] = {}
        self._read_again: dict[str, float] = {}
        self._files_every = FILES_EVERY[0]
        self._next_files = 0.0

    @property
    def is_over(self) -> bool:
        return not self.runs or super().is_over

    def files(self) -> list[LogFile]:
        found = []
        for run in self.runs:
            task = str(getattr(read_task(run), "index", "")) if len(self.runs) > 1 else ""
            for file in log_files(run):
                node = file.node if file.rank is None else file.rank // self._ranks_per_node(run)
                found.append(structs.replace(file, node=node, job_id=run.run_id, task=task))
        return found

    def heard(self, file: LogFile, data: bytes | None) -> None:
        self._files_every = FILES_EVERY[0]
        self._next_files = min(self._next_files, time.monotonic() + self._files_every)

    def attempt_line(self, file: LogFile) -> str:
        run = next(run for run in self.runs if run.run_id == file.job_id)
        return attempt_words(read_history(run), file.attempt or 0)

    def _next_look(self, now: float) -> float:
        if any(not self._is_told(name) for name in self._over_since):
            return now + LATE_EVERY
        return min(self._pace.next, self._next_files)

    def _ask(self, context: Context) -> Iterator[tuple[str, RunStatus]]:
        left = [run for name, run in self._by_name.items() if not self._is_final(name)]
        was_unknown = any(each.verdict.state == UNKNOWN for each in self._known.values())
        statuses = status_of(context, left)
        is_first = not self._known
        now = time.monotonic()
        for status in statuses:
            if status.verdict.final:
                self._over_since[str(status.run.path)] = now
            yield str(status.run.path), status
        live = [status for status in statuses if not status.verdict.final]
        is_back = was_unknown and not any(each.verdict.state == UNKNOWN for each in statuses)
        odd = any(each.verdict.state not in ("PENDING", "RUNNING") for each in live)
        if is_back or (is_first and odd):
            self._pace.hurry()  # Slurm has to learn what it has missed; or it is at the end now

    def _look_around(self, now: float) -> None:
        if self._alive is not None and not self._alive():
            self._end_of_process()
            return
        if now < self._next_files:
            return
        begun = ended = False
        live = sum(not self._is_final(name) for name in self._by_name)
        for name, run in self._by_name.items():
            if self._is_final(name):
                continue
            signs, before = _signs(run), self._signs.get(name)
            if signs != before:
                self._signs[name] = signs
                begun = begun or before is not None
                ended = ended or signs[1] or (before is not None and signs[2])
        if begun or ended:
            self._files_every = FILES_EVERY[0]
            # That one of many runs has begun is no news of which an answer is awaited.
            self._pace.news(now, quick=ended, apart=0.0 if ended else min(APART, live / 10))
        self._next_files = now + max(self._files_every, live / RUNS_A_SECOND)
        self._files_every = min(self._files_every * SLOWER, FILES_EVERY[1])

    def _is_final(self, name: str) -> bool:
        status = self._known.get(name)
        return status is not None and status.verdict.final

    def _is_settled(self, name: str, now: float) -> bool:
        """Take in what a run has recorded meanwhile; its end record may come late, or never."""
        if now < self._read_again.get(name, 0.0):
            return False
        self._read_again[name] = now + LATE_EVERY
        run, status = self._by_name[name], self._known[name]
        assert isinstance(status, RunStatus)
        refresh(run)
        history = read_history(run)
        end = history.last.end if history.last else None
        if end is not None and status.verdict.exit_code is None:
            verdict = structs.replace(status.verdict, exit_code=end.exit_code)
            self._known[name] = structs.replace(status, history=history, verdict=verdict)
        is_late = now >= self._over_since.get(name, now) + FILES_LATE
        return (
            end is not None or history.last is None or status.verdict.source == "record" or is_late
        )

    def _end_of_process(self) -> None:
        """A run of this machine whose batch script is gone: without an end record it is lost."""
        if self._is_known_over():
            return
        for status in status_of(self._context, self.runs):
            self._known[str(status.run.path)] = _without_process(status)

    def _ranks_per_node(self, run: RunFolder) -> int:
        if run.path not in self._nodes:
            plan = read_plan(run)
            self._nodes[run.path] = max(1, plan.ranks_per_node) if plan is not None else 1 << 30
        return self._nodes[run.path]


_Signs = tuple[int, bool, bool]


def _signs(run: RunFolder) -> _Signs:
    """How many attempts a run's folder shows, whether the last one has ended, and is cancelled."""
    try:
        names = [entry.name for entry in os.scandir(run.attempts)]
    except OSError:
        names = []
    attempts = [int(name) for name in names if name.isdigit()]
    end = f"{run.attempts}/{max(attempts, default=0)}/end.json"
    return len(attempts), os.access(end, os.F_OK), os.access(run.cancelled, os.F_OK)


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


def _without_process(status: RunStatus) -> RunStatus:
    if status.verdict.final:
        return status
    verdict = Verdict(state=LOST, final=True, source="record", reason="its batch script was killed")
    return structs.replace(status, verdict=verdict)
