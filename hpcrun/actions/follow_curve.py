"""Follow runs and logs as curves while they grow, until the runs are over.

Nothing is changed or cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from hpcrun.actions.parse import CurveLog, build_own_formats
from hpcrun.context import Context
from hpcrun.curves import Curve, ParsedRun
from hpcrun.errors import InputError, OutOfReach
from hpcrun.monitor import (
    STDIN,
    TRIP_EVERY,
    TRIP_PAUSE,
    Monitor,
    Source,
    WatchedRuns,
    WatchedSlurmJobs,
    find_sources,
)
from hpcrun.runs import JobStatus

# Pause between reads of the files: short after news, growing to the longer one in silence.
READ_INTERVAL_RANGE_S = (0.1, 1.0)
# ``wake`` is called this often.
_WAKE_INTERVAL_S = 0.1


class Followed(Struct, frozen=True):
    """The runs as read so far, and the states of their jobs; None for a log without a job."""

    runs: list[ParsedRun]
    statuses: list[JobStatus | None]

    @property
    def ok(self) -> bool:
        """True unless a job failed."""
        return all(each is None or each.ok for each in self.statuses)


class CurveFollower:
    """Follows several runs and logs, named as for ``hpcrun parse``.

    A run is over when Slurm or its own record says so; a pipe at its end; a log file never.
    """

    def __init__(
        self,
        context: Context,
        words: Sequence[str],
        *,
        patterns: Sequence[str] = (),
        every: int = 1,
    ) -> None:
        """Find the logs, as ``parse`` does. Raises InputError if a word names none."""
        self._context = context
        self._log = partial(
            CurveLog, context, own=build_own_formats(patterns, "--pattern"), every=every
        )
        sources = find_sources(context, words, is_awaited=True)
        self.has_pipe = any(STDIN in source.files for source in sources)
        self._logs = [self._log(source) for source in sources]
        runs = [each.run for each in sources if each.run is not None]
        # A job that Slurm has forgotten is treated like a log file.
        self._jobs = WatchedSlurmJobs(
            [each.job for each in sources if each.job is not None], strict=False
        )
        self._monitor = Monitor(context, [WatchedRuns(runs), self._jobs])
        self._has_news = True
        self._pause = READ_INTERVAL_RANGE_S[0]
        self._next_trip = 0.0

    def wait(self, every: float | None, wake: Callable[[], bool] = lambda: False) -> bool:
        """Wait until there is news; return True if everything is over.

        Args:
            every: wait at least this many seconds. None waits for the end and reads nothing before,
                unless there is a pipe, which cannot be read again.
            wake: ends the wait when it returns True.
        """
        begun = time.monotonic()
        logs = self._logs if every is not None or self.has_pipe else []
        while True:
            self._fetch_output()
            grew = sum(log.read_new() for log in logs)
            changed = bool(self._monitor.poll().changed)
            if changed:
                self._find_outputs()
            self._has_news |= bool(grew) or changed
            is_over = self._is_over()
            waited = every is not None and time.monotonic() - begun >= every
            if is_over:
                self._fetch_output(is_last=True)
                for log in logs:
                    log.read_new()
                    log.finish()
            if is_over or wake() or (waited and self._has_news):
                self._has_news = False
                return is_over
            shortest, longest = READ_INTERVAL_RANGE_S
            self._pause = shortest if grew else min(self._pause * 1.3, longest)
            left = self._pause
            while left > 0 and not wake():
                time.sleep(min(_WAKE_INTERVAL_S, left))
                left -= _WAKE_INTERVAL_S

    def _fetch_output(self, *, is_last: bool = False) -> None:
        """Bring the output of jobs from a cluster that is another machine, if it is time."""
        begun = time.monotonic()
        paths = [path for log in self._logs for path in log.source.paths]
        is_far = self._context.cluster.host is not None
        if is_far and paths and (is_last or begun >= self._next_trip):
            with suppress(OutOfReach):  # the jobs' states say so
                self._context.transport().copy_outputs(paths)
            took = time.monotonic() - begun
            self._next_trip = begun + took + max(TRIP_EVERY, TRIP_PAUSE * took)

    def snapshot(self) -> Followed:
        """Return what was read so far, without reading more."""
        return Followed([log.run() for log in self._logs], self._statuses())

    def read_curves(self) -> list[tuple[Source, Curve, JobStatus | None]]:
        """Return each curve with all points of all trainings, and the state of its job."""
        curves = [log.curve(all_trainings=True, full=True) for log in self._logs]
        sources = [log.source for log in self._logs]
        return list(zip(sources, curves, self._statuses(), strict=True))

    def has_all(self) -> bool:
        """Return True if every log exists; the output of a job may never appear."""
        return not any(log.is_missing() for log in self._logs)

    def _find_outputs(self) -> None:
        """Look for missing output again: %N in its name is known only once the job runs."""
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
        """Return the state of each log's job; for an array, that of an unfinished task if any."""
        of_runs = {each.run: [each] for each in self._monitor.statuses if each.run is not None}
        known = (
            of_runs.get(log.source.run, [])
            if log.source.run is not None
            else self._jobs.known.get(log.source.job or "", [])
            for log in self._logs
        )
        return [min(each, key=lambda status: status.final, default=None) for each in known]
