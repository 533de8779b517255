"""Follows runs and logs as curves: reads on as they grow, to the runs' end.

Never changes or cancels anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from hpcrun.actions.parse import CurveLog, own_formats
from hpcrun.context import Context
from hpcrun.curves import ParsedRun
from hpcrun.errors import InputError, OutOfReach
from hpcrun.monitor import (
    STDIN,
    TRIP_EVERY,
    TRIP_PAUSE,
    Monitor,
    WatchedRuns,
    WatchedSlurmJobs,
    find_sources,
)
from hpcrun.runs import JobStatus

# How often the files are looked at, in seconds: often after news, seldom in silence.
FILES_EVERY = (0.1, 1.0)
# So often it is looked whether the caller wants to draw for another reason.
_SLICE = 0.1


class Followed(Struct, frozen=True):
    """What is known now. ``statuses`` are the jobs', None for a log file that nobody runs."""

    runs: list[ParsedRun]
    statuses: list[JobStatus | None]

    @property
    def ok(self) -> bool:
        """Whether no job ended badly."""
        return all(each is None or each.ok for each in self.statuses)


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
        every: int = 1,
    ) -> None:
        """Find the logs, as ``parse`` does. Raises InputError when there is no such thing."""
        self._context = context
        self._log = partial(CurveLog, context, own=own_formats(patterns, "--pattern"), every=every)
        sources = find_sources(context, words, is_awaited=True)
        self.has_pipe = any(STDIN in source.files for source in sources)
        self._logs = [self._log(source) for source in sources]
        runs = [each.run for each in sources if each.run is not None]
        # What Slurm has forgotten is a log file like any other.
        self._jobs = WatchedSlurmJobs(
            [each.job for each in sources if each.job is not None], strict=False
        )
        self._monitor = Monitor(context, [WatchedRuns(runs), self._jobs])
        self._has_news = True
        self._pause = FILES_EVERY[0]
        self._next_trip = 0.0

    def wait(self, every: float | None, wake: Callable[[], bool] = lambda: False) -> bool:
        """Wait until there is something new, for ``every`` seconds at least; return if it is over.

        None waits for the end, and reads nothing unless there is a pipe, which cannot be read
        again. ``wake`` may cut the waiting short.
        """
        begun = time.monotonic()
        logs = self._logs if every is not None or self.has_pipe else []
        while True:
            self._bring()
            grew = sum(log.look() for log in logs)
            changed = bool(self._monitor.poll().changed)
            if changed:
                self._find_outputs()
            self._has_news |= bool(grew) or changed
            is_over = self._is_over()
            waited = every is not None and time.monotonic() - begun >= every
            if is_over:
                self._bring(is_last=True)
                for log in logs:
                    log.look()
                    log.finish()
            if is_over or wake() or (waited and self._has_news):
                self._has_news = False
                return is_over
            self._pause = FILES_EVERY[0] if grew else min(self._pause * 1.3, FILES_EVERY[1])
            left = self._pause
            while left > 0 and not wake():
                time.sleep(min(_SLICE, left))
                left -= _SLICE

    def _bring(self, *, is_last: bool = False) -> None:
        """Bring the output of jobs from a cluster that is another machine, if it is time."""
        begun = time.monotonic()
        paths = [path for log in self._logs for path in log.source.paths]
        is_far = self._context.cluster.host is not None
        if is_far and paths and (is_last or begun >= self._next_trip):
            with suppress(OutOfReach):  # the jobs' states say so
                self._context.transport().copy_outputs(paths)
            took = time.monotonic() - begun
            self._next_trip = begun + took + max(TRIP_EVERY, TRIP_PAUSE * took)

    def now(self) -> Followed:
        """Return what is known now, without a look."""
        return Followed([log.run() for log in self._logs], self._statuses())

    def has_all(self) -> bool:
        """Return whether there is something to read of each; a job's output may never come."""
        return not any(log.is_missing() for log in self._logs)

    def _find_outputs(self) -> None:
        """Ask again for output that was not there: %N in its name is known when the job runs."""
        for index, log in enumerate(self._logs):
            if log.source.job is not None and log.is_missing():
                with suppress(InputError):
                    (source,) = find_sources(self._context, [log.source.job], is_awaited=True)
                    if source != log.source:
                        self._logs[index] = self._log(source)

    def _is_over(self) -> bool:
        are_over = self._monitor.is_over
        known = zip(self._logs, self._statuses(), strict=True)
        return all(log.is_over or (status is not None and are_over) for log, status in known)

    def _statuses(self) -> list[JobStatus | None]:
        """What is known of each log's job; of an array one of its tasks, if any is not over."""
        of_runs = {each.run: [each] for each in self._monitor.statuses if each.run is not None}
        known = (
            of_runs.get(log.source.run, [])
            if log.source.run is not None
            else self._jobs.known.get(log.source.job or "", [])
            for log in self._logs
        )
        return [min(each, key=lambda status: status.final, default=None) for each in known]
