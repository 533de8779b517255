"""Follows runs and logs as curves: reads on as they grow, to the runs' end.

Effects: reads files, few Slurm commands. Never changes or cancels anything.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Struct

from hpcrun.controller.context import Context, slurm_transport
from hpcrun.controller.curves.growing import GrowingLog
from hpcrun.controller.curves.parse import own_formats
from hpcrun.controller.curves.sources import STDIN, Source, find_sources
from hpcrun.controller.state.foreign import ForeignStatus, foreign_status
from hpcrun.controller.state.status import RunStatus, status_of
from hpcrun.controller.watch.pace import CALM
from hpcrun.controller.watch.watched_runs import AFTER_END
from hpcrun.errors import InputError, OutOfReach
from hpcrun.metrics.parse import ParsedRun
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.store import find, is_job_id, read_history, refresh

# How often the files are looked at, in seconds: often after news, seldom in silence.
FILES_EVERY = (0.1, 1.0)
# So often it is looked whether the caller wants to draw for another reason.
_SLICE = 0.1
# What comes late from the nodes: so many looks, half a second apart.
_LATE_LOOKS = 6
# After the first answer Slurm is asked again so soon, in seconds.
_SOON = 5.0

Status = RunStatus | ForeignStatus


class Followed(Struct, frozen=True):
    """What is known now. ``statuses`` are the jobs', None for a log file that nobody runs."""

    runs: list[ParsedRun]
    statuses: list[Status | None]
    is_over: bool

    @property
    def ok(self) -> bool:
        """Whether no job ended badly."""
        return all(each is None or each.verdict.ok for each in self.statuses)


class CurveFollower:
    """Follows what the words name, as ``hpcrun parse`` reads them; several at a time.

    A run is over when Slurm or its own record says so, a pipe at its end, a log file never.
    """

    def __init__(
        self,
        context: Context,
        words: Sequence[str],
        *,
        patterns: Sequence[str] = (),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Find the logs. Raises InputError when there is no such thing."""
        self._context = context
        self._own = own_formats(patterns, "--pattern")
        sources = find_sources(context, words, is_awaited=True)
        self.has_pipe = any(STDIN in source.files for source in sources)
        self._logs = [self._growing(source) for source in sources]
        self._states = _States(context, sources, _foreign_jobs(context, words))
        self._sleep = sleep
        self._has_news = True
        self._pause = FILES_EVERY[0]

    def wait(self, every: float | None, wake: Callable[[], bool] = lambda: False) -> Followed:
        """Wait until there is something new, for ``every`` seconds at least, or until the end.

        None waits for the end, and reads nothing but a pipe. ``wake`` may cut the waiting short.
        """
        begun = time.monotonic()
        while True:
            due = [log for log in self._logs if every is not None or log.is_pipe]
            grew = sum(log.look() for log in due)
            changed = self._states.look()
            if changed:
                self._find_outputs()
            self._has_news |= bool(grew) or changed
            is_over = self._is_over()
            if is_over:
                self._await_ends()
            waited = every is not None and time.monotonic() - begun >= every
            if is_over or wake() or (waited and self._has_news):
                self._has_news = False
                return self.now(is_over=is_over)
            self._pause = FILES_EVERY[0] if grew else min(self._pause * 1.3, FILES_EVERY[1])
            self._doze(self._pause, wake)

    def now(self, *, is_over: bool = False) -> Followed:
        """Return what is known now, without a look."""
        return Followed([log.run() for log in self._logs], self._states.statuses, is_over)

    def has_all(self) -> bool:
        """Tell whether there is something to read of each; a job's output may never come."""
        return not any(log.is_missing() for log in self._logs)

    def _growing(self, source: Source) -> GrowingLog:
        return GrowingLog(slurm_transport(self._context), source, self._own)

    def _find_outputs(self) -> None:
        """Ask anew for the output of jobs that have none: %N in its name is known when they run."""
        for index, (log, job_id) in enumerate(zip(self._logs, self._states.foreign, strict=True)):
            if job_id is not None and log.is_missing():
                with suppress(InputError):
                    (source,) = find_sources(self._context, [job_id], is_awaited=True)
                    if source != log.source:
                        self._logs[index] = self._growing(source)

    def _doze(self, seconds: float, wake: Callable[[], bool]) -> None:
        while seconds > 0 and not wake():
            self._sleep(min(_SLICE, seconds))
            seconds -= _SLICE

    def _is_over(self) -> bool:
        return all(
            log.is_over or (status is not None and status.verdict.final)
            for log, status in zip(self._logs, self._states.statuses, strict=True)
        )

    def _await_ends(self) -> None:
        """Slurm says that all is over: let the last files arrive from the nodes."""
        for _ in range(_LATE_LOOKS):
            for run in self._states.runs:
                refresh(run)
            if self._states.has_ends():
                break
            self._sleep(0.5)


def _foreign_jobs(context: Context, words: Sequence[str]) -> dict[str, str]:
    """Find the words that name jobs which hpcrun did not submit: name of the log -> job id."""
    return {
        source.name: word
        for word in words
        if is_job_id(word)
        and not (context.cwd / word).exists()
        and find(context.runs_dir, word) is None
        for source in find_sources(context, [word], is_awaited=True)
    }


class _States:
    """Knows the jobs' states, and when it is time to ask Slurm again: once for all runs."""

    def __init__(
        self, context: Context, sources: Sequence[Source], foreign: dict[str, str]
    ) -> None:
        self.context = context
        self.sources = sources
        self.runs = [source.run for source in sources if source.run is not None]
        self.foreign = [None if each.run else foreign.get(each.name) for each in sources]
        self.statuses: list[Status | None] = [None] * len(sources)
        self.ended = self._count_ended()
        self.asked_since_end = 0
        self.next = 0.0

    def look(self) -> bool:
        """Ask if it is time; tell whether a state is another than before."""
        if not self.runs and not any(self.foreign):
            return False
        if (ended := self._count_ended()) != self.ended:
            # Slurm will know in a moment.
            self.ended, self.asked_since_end, self.next = ended, 0, 0.0
        if time.monotonic() < self.next:
            return False
        before = [_word(status) for status in self.statuses]
        self._ask()
        wait = CALM * random.uniform(0.9, 1.1)
        known = sum(_is_final(each) for each in self.statuses if isinstance(each, RunStatus))
        if ended > known and self.asked_since_end < len(AFTER_END):
            wait = AFTER_END[self.asked_since_end]
            self.asked_since_end += 1
        elif not any(before):
            wait = _SOON
        self.next = time.monotonic() + wait
        return [_word(status) for status in self.statuses] != before

    def has_ends(self) -> bool:
        """Tell whether every run has written its end; one that was killed outright never does."""
        return self._count_ended() == len(self.runs)

    def _ask(self) -> None:
        of_runs: dict[RunFolder, Status] = {}
        if self.runs:
            found = status_of(self.context, self.runs)
            of_runs = dict(zip(self.runs, found, strict=True))
        for index, source in enumerate(self.sources):
            job_id = self.foreign[index]
            if source.run is not None:
                self.statuses[index] = of_runs[source.run]
            elif job_id is not None and not _is_final(self.statuses[index]):
                self._ask_foreign(index, job_id)

    def _ask_foreign(self, index: int, job_id: str) -> None:
        try:
            found = foreign_status(self.context, job_id)
        except OutOfReach:
            return  # unknown is not over
        except InputError:
            self.foreign[index] = None  # Slurm has forgotten the job: a log file like any other
            return
        live = [status for status in found if not status.verdict.final]
        self.statuses[index] = (live or found)[0]

    def _count_ended(self) -> int:
        last = [read_history(run).last for run in self.runs]
        return sum(attempt is not None and attempt.end is not None for attempt in last)


def _word(status: Status | None) -> str:
    return "" if status is None else f"{status.verdict.state} {status.verdict.reason}"


def _is_final(status: Status | None) -> bool:
    return status is not None and status.verdict.final
