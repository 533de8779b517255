"""Watches the states of jobs; the single polling policy towards Slurm."""

from __future__ import annotations

import math
import os
import random
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, structs

from hpcrun.context import Context
from hpcrun.errors import OutOfReach
from hpcrun.monitor.status import status_of, status_of_jobs
from hpcrun.monitor.targets import fetch_records, unknown_job_error
from hpcrun.runs import LOST, JobStatus, RunFolder, Verdict, expire_nfs_caches, read_history
from hpcrun.slurm import UNKNOWN

# Without news Slurm is queried at most twice a minute (squeue(1), PERFORMANCE). A watcher that can
# tolerate late answers lets the pause grow by PAUSE_GROWTH each time, up to MAX_QUERY_PAUSE_S.
QUERY_PAUSE_S, MAX_QUERY_PAUSE_S, PAUSE_GROWTH = 30.0, 120.0, 1.5
# In a sweep of short runs each end is news. The first MAX_QUERY_BURST queries within BURST_WINDOW_S
# are sent at once, further ones MIN_QUERY_GAP_S apart, which is four a minute.
MAX_QUERY_BURST, BURST_WINDOW_S = 8, 120.0
MIN_QUERY_GAP_S = 15.0
# After the end of a run Slurm is queried in quick succession: it cleans up most jobs within a
# second, while a site's epilog takes longer. Jobs of other tools have no files that show their end,
# so the pauses after a change are longer.
PAUSES_AFTER_END_S = (0.3, 0.7, 1.5, 3.0, 6.0, 12.0)
PAUSES_AFTER_CHANGE_S = (2.0, 4.0, 8.0, 15.0)
# Interval between checks of the run folders, and how many may be checked per second: each check is
# a request to the file server.
FILE_CHECK_INTERVAL_S = 0.5
MAX_RUNS_PER_SECOND = 100
# A remote cluster streams the records of a few runs. For many runs they are fetched at each check,
# followed by a pause of FETCH_PAUSE_FACTOR times the duration of the fetch.
FETCH_PAUSE_FACTOR = 20
# Slurm may report the end of a run before its last files arrive from the nodes. A killed job has no
# such files, so the wait is short.
MAX_FILE_DELAY_S, LATE_FILE_INTERVAL_S = 5.0, 0.2
# A query that a caller's deadline cuts off earlier than this says nothing about Slurm; the previous
# state is kept.
MIN_QUERY_TIMEOUT_S = 5.0
_FORGOTTEN = Verdict(
    state=LOST,
    final=True,
    source="squeue",
    reason="Slurm no longer knows the job, so its outcome is unknown",
)
_KILLED = Verdict(state=LOST, final=True, source="record", reason="its batch script was killed")


class QueryPace:
    """Schedules queries. Times are those of time.monotonic(), passed in by the caller."""

    def __init__(self, calmest: float = QUERY_PAUSE_S) -> None:
        """Make the first query due at once; pauses grow to ``calmest`` seconds without news."""
        self.next = 0.0
        self.next_fetch = 0.0
        self.fetch_error = ""  # why records cannot be fetched, "" if they can
        self._calm, self._calmest = QUERY_PAUSE_S, calmest
        self._pauses: Iterator[float] = iter(())
        self._asked: deque[float] = deque(maxlen=MAX_QUERY_BURST)

    def is_due(self, now: float) -> bool:
        return now >= self.next

    def request_query(self, now: float, *, then: Sequence[float] = (), apart: float = 0.0) -> None:
        """Query as soon as the limits allow, and again after each pause of ``then``.

        Less important news wait until ``apart`` seconds after the last query.
        """
        self._calm = QUERY_PAUSE_S
        if then:
            self._pauses = iter(then)
        last = self._asked[-1] if self._asked else now - apart
        self.next = min(self.next, max(self._earliest(now), last + apart))

    def use_pauses(self, pauses: Sequence[float]) -> None:
        self._pauses = iter(pauses)

    def record_query(self, now: float) -> None:
        """Record a query, and schedule the next one."""
        self._asked.append(now)
        pause = next(self._pauses, self._calm * random.uniform(1.0, 1.2))
        self._calm = min(self._calm * PAUSE_GROWTH, self._calmest)
        self.next = max(now + pause, self._earliest(now))

    @property
    def last(self) -> float:
        return self._asked[-1] if self._asked else 0.0

    def refresh(self, context: Context, runs: Sequence[RunFolder]) -> None:
        """Fetch the records of runs if that is due. Raises OutOfReach if retrying is useless."""
        begun = time.monotonic()
        if begun >= self.next_fetch:
            try:
                fetch_records(context, runs, follow=True)
                self.fetch_error = ""
            except OutOfReach as error:
                self.fetch_error = error.message
                if error.is_final:
                    raise
            now = time.monotonic()
            self.next_fetch = now + FETCH_PAUSE_FACTOR * (now - begun)

    def _earliest(self, now: float) -> float:
        if len(self._asked) < MAX_QUERY_BURST or now - self._asked[0] >= BURST_WINDOW_S:
            return now
        return max(now, self._asked[-1] + MIN_QUERY_GAP_S)


class Snapshot(Struct, frozen=True, kw_only=True):
    """All statuses at one moment, and those that changed since they were last reported.

    ``is_over``: all jobs have ended, and every end was reported.
    """

    statuses: list[JobStatus]
    changed: list[JobStatus]
    is_over: bool


class WatchedJobs(ABC):
    """A group of watched jobs: how to query Slurm, and which files show when to do so."""

    # More jobs may appear after all known ones have ended.
    is_open = False
    # When check_files() is due, by time.monotonic().
    next_check = math.inf

    @abstractmethod
    def query(self, context: Context, pace: QueryPace) -> Sequence[JobStatus] | None:
        """Query Slurm; return all jobs including finished ones, or None if nothing is new."""

    def check_files(self, context: Context, pace: QueryPace) -> Sequence[JobStatus] | None:
        """Check files without querying Slurm; return as query() does."""
        return None

    def finish(self, status: JobStatus, since: float) -> JobStatus | None:
        """Complete the status of a job that ended at ``since``; None if files may still arrive."""
        return status


class Monitor:
    """Watches jobs and reports changes.

    Slurm is not queried before the first poll(). ``deadline`` (by time.monotonic) also limits each
    query, except that the first one gets at least MIN_QUERY_TIMEOUT_S. Without news the pauses grow
    to ``calmest`` seconds.
    """

    def __init__(
        self,
        context: Context,
        watched: Sequence[WatchedJobs],
        *,
        deadline: float | None = None,
        calmest: float = QUERY_PAUSE_S,
    ) -> None:
        self.context = structs.replace(context, deadline=deadline)
        self._watched = watched
        self._pace = QueryPace(calmest)
        self._deadline = deadline
        self._first_deadline = (
            None if deadline is None else max(deadline, time.monotonic() + MIN_QUERY_TIMEOUT_S)
        )
        self._is_asked = False
        # Keys are those of watch_key().
        self._known: dict[str, JobStatus] = {}
        self._owner: dict[str, WatchedJobs] = {}
        self._over_since: dict[str, float] = {}
        self._reported: dict[str, tuple[str, str]] = {}

    @property
    def statuses(self) -> list[JobStatus]:
        return list(self._known.values())

    @property
    def is_over(self) -> bool:
        """Whether all jobs have ended and every end was reported."""
        return self._is_known_over() and all(map(self._is_reported, self._known))

    @property
    def fetch_error(self) -> str:
        """Why records of runs cannot be fetched, "" if they can."""
        return self._pace.fetch_error

    @property
    def seconds_until_query(self) -> float:
        """Seconds until the next query if there is no news."""
        return max(0.0, self._pace.next - time.monotonic())

    @property
    def pause(self) -> float:
        """Seconds until poll() has anything to do."""
        if any(not self._is_reported(name) for name in self._over_since if name in self._known):
            return LATE_FILE_INTERVAL_S
        due = min([self._pace.next, *(each.next_check for each in self._watched)])
        return max(0.01, due - time.monotonic())

    def poll(self, *, last: bool = False) -> Snapshot:
        """Check files, query Slurm if that is due, and report changes.

        An end is reported once, when its records have arrived or are overdue; with ``last`` at
        once. Raises what the queries raise.
        """
        for each in self._watched:
            self._update_known(each, each.check_files(self.context, self._pace))
        if self._pace.is_due(time.monotonic()) and not last and not self._is_known_over():
            self.query()
        changed = []
        for name in [name for name in self._known if not self._is_reported(name)]:
            status: JobStatus | None = self._known[name]
            if self._known[name].final and not last:
                status = self._owner[name].finish(self._known[name], self._over_since[name])
            if status is not None:
                self._known[name] = status
                self._reported[name] = (status.state, status.reason)
                changed.append(status)
        return Snapshot(statuses=self.statuses, changed=changed, is_over=self.is_over)

    def query(self) -> None:
        """Query Slurm now, even if it is not due, and report nothing. Raises as poll() does."""
        limit = self._deadline if self._known else self._first_deadline
        is_short = limit is not None and limit - time.monotonic() < MIN_QUERY_TIMEOUT_S
        context = structs.replace(self.context, deadline=limit)
        for each in self._watched:
            self._update_known(each, each.query(context, self._pace), is_short=is_short)
        self._pace.record_query(time.monotonic())
        self._is_asked = True

    def _update_known(
        self, owner: WatchedJobs, found: Sequence[JobStatus] | None, *, is_short: bool = False
    ) -> None:
        if found is None:
            return
        names = [name for name in self._known if self._owner[name] is owner]
        before = {name: self._known.pop(name) for name in names}
        for status in found:
            name = watch_key(status)
            if is_short and name in before and status.state == UNKNOWN:
                status = before[name]
            self._known[name], self._owner[name] = status, owner
            if status.final:
                self._over_since.setdefault(name, time.monotonic())
            else:
                self._over_since.pop(name, None)

    def _is_known_over(self) -> bool:
        is_open = any(each.is_open for each in self._watched)
        all_over = all(status.final for status in self._known.values())
        return self._is_asked and not is_open and all_over

    def _is_reported(self, name: str) -> bool:
        status = self._known[name]
        return self._reported.get(name) == (status.state, status.reason)


def watch_key(status: JobStatus) -> str:
    """Return the key of a watched job: its run's folder, else its job id."""
    return str(status.run.path) if status.run is not None else status.run_id


def poll_all(
    monitors: Sequence[Monitor],
    *,
    deadline: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[JobStatus]:
    """Yield each status when it changes, until all are over or ``deadline`` (by time.monotonic)."""
    while True:
        for monitor in monitors:
            yield from monitor.poll().changed
        live = [monitor for monitor in monitors if not monitor.is_over]
        left = None if deadline is None else deadline - time.monotonic()
        if not live:
            return
        if left is not None and left <= 0:
            for monitor in live:
                yield from monitor.poll(last=True).changed
            return
        pause = min(monitor.pause for monitor in live)
        sleep(pause if left is None else min(pause, left))


# ---- runs: their own files show when to query Slurm


class WatchedRuns(WatchedJobs):
    """Runs of hpcrun. ``alive`` tells whether the script of a run on this machine still runs."""

    def __init__(
        self, runs: Sequence[RunFolder], *, alive: Callable[[], bool] | None = None
    ) -> None:
        self.runs = list(dict.fromkeys(runs))
        self.next_check = 0.0 if runs else math.inf
        self._alive = alive
        self._known: dict[RunFolder, JobStatus] = {}
        self._signs: dict[RunFolder, tuple[int, bool, bool]] = {}
        self._read_again: dict[RunFolder, float] = {}
        self._settled: set[RunFolder] = set()

    def query(self, context: Context, pace: QueryPace) -> list[JobStatus]:
        """Query unfinished runs; they are UNKNOWN if Slurm does not answer."""
        # A script that has exited has written its end record, or never will.
        is_gone = self._alive is not None and not self._alive()
        is_first = not self._known
        was_unknown = any(status.state == UNKNOWN for status in self._known.values())
        if live := self._unfinished_runs():
            statuses = status_of(context, live)
            if is_gone:
                statuses = [
                    each if each.final else structs.replace(each, verdict=_KILLED)
                    for each in statuses
                ]
            self._known |= {status.folder: status for status in statuses}
            if any(status.final for status in statuses):
                self.next_check = pace.next_fetch = 0.0  # for the record of the end
            states = {status.state for status in statuses if not status.final}
            is_back = was_unknown and UNKNOWN not in states
            if is_back or (is_first and states - {"PENDING", "RUNNING"}):
                # Slurm is catching up after an outage, or the run is ending.
                pace.use_pauses(PAUSES_AFTER_END_S)
        return [self._known[run] for run in self.runs]

    def check_files(self, context: Context, pace: QueryPace) -> None:
        """Check whether an attempt has begun or ended, in local or fetched records."""
        now = time.monotonic()
        if self._alive is not None and not self._alive():
            pace.next = min(pace.next, now)  # a local run needs no query to Slurm
        if now < self.next_check:
            return
        begun = ended = False
        live = self._unfinished_runs()
        if not (live and pace.is_due(now)):  # else the question refreshes
            pace.refresh(context, [run for run in self.runs if run not in self._settled])
        for run in live:
            signs, before = _read_progress_marks(run), self._signs.get(run)
            if signs != before:
                self._signs[run] = signs
                begun = begun or before is not None
                ended = ended or signs[1] or (before is not None and signs[2])
        if begun or ended:
            # The begin of one of many runs is not urgent.
            apart = 0.0 if ended else min(MIN_QUERY_GAP_S, len(live) / 10)
            pace.request_query(now, then=PAUSES_AFTER_END_S if ended else (), apart=apart)
        self.next_check = now + max(FILE_CHECK_INTERVAL_S, len(live) / MAX_RUNS_PER_SECOND)

    def finish(self, status: JobStatus, since: float) -> JobStatus | None:
        now, run = time.monotonic(), status.folder
        if now < self._read_again.get(run, 0.0):
            return None
        self._read_again[run] = now + LATE_FILE_INTERVAL_S
        expire_nfs_caches(run)
        history = read_history(run)
        end = history.end
        if end is not None and status.exit_code is None:
            verdict = structs.replace(status.verdict, exit_code=end.exit_code)
            self._known[run] = status = structs.replace(status, history=history, verdict=verdict)
        is_late = now >= since + MAX_FILE_DELAY_S
        is_all = end is not None or history.last is None or status.source == "record"
        if not (is_all or is_late):
            return None
        self._settled.add(run)
        return status

    def _unfinished_runs(self) -> list[RunFolder]:
        return [run for run in self.runs if run not in self._known or not self._known[run].final]


def _read_progress_marks(run: RunFolder) -> tuple[int, bool, bool]:
    """Return the number of attempts, whether the last one ended, and whether it was cancelled."""
    try:
        names = [entry.name for entry in os.scandir(run.attempts)]
    except OSError:
        names = []
    attempts = [int(name) for name in names if name.isdecimal()]
    end = f"{run.attempts}/{max(attempts, default=0)}/end.json"
    return len(attempts), os.access(end, os.F_OK), os.access(run.cancelled, os.F_OK)


# ---- jobs that hpcrun did not submit: only Slurm knows them


class WatchedSlurmJobs(WatchedJobs):
    """Other jobs by their ids, including all tasks of an array.

    A job that Slurm no longer shows keeps its final state, or is LOST. The first query() raises
    InputError for a job unknown to Slurm, or drops the job if not ``strict``.
    """

    def __init__(self, job_ids: Sequence[str], *, strict: bool = True) -> None:
        # Keys are the ids that the caller passed.
        self.known: dict[str, list[JobStatus]] = {job_id: [] for job_id in job_ids}
        self._strict = strict
        self._is_first = True

    def query(self, context: Context, pace: QueryPace) -> list[JobStatus]:
        """Query unfinished jobs; they are UNKNOWN if Slurm does not answer."""
        live = [
            job_id
            for job_id, known in self.known.items()
            if not known or any(not status.final for status in known)
        ]
        try:
            if live:
                self._update_jobs(context, live, pace)
        except OutOfReach as silence:
            self._note_silence(silence, live)
        return [status for known in self.known.values() for status in known]

    def _update_jobs(self, context: Context, job_ids: Sequence[str], pace: QueryPace) -> None:
        answer = self._query_jobs(context, job_ids)
        if not self._is_first and any(
            _find_missing(self.known[each], answer[each]) for each in job_ids
        ):
            answer = status_of_jobs(context, job_ids, ended=True)
        for job_id in job_ids:
            # Before the first answer only the job's id is known.
            known, found = [] if self._is_first else self.known[job_id], answer[job_id]
            if not known and not found:
                if self._strict:
                    raise unknown_job_error(job_id)
                del self.known[job_id]
                continue
            names = {status.job_id for status in found}
            over = [each for each in known if each.final and each.job_id not in names]
            lost = [
                structs.replace(each, verdict=_FORGOTTEN) for each in _find_missing(known, found)
            ]
            self.known[job_id] = [*over, *found, *lost]
            states = {each.job_id: each.state for each in known}
            if states != {each.job_id: each.state for each in self.known[job_id]}:
                pace.use_pauses(PAUSES_AFTER_CHANGE_S)
        self._is_first = False

    def _query_jobs(self, context: Context, job_ids: Sequence[str]) -> dict[str, list[JobStatus]]:
        """Query Slurm; an unknown job has an empty list. Raises OutOfReach."""
        return status_of_jobs(context, job_ids, ended=self._is_first)

    def _note_silence(self, silence: OutOfReach, job_ids: Sequence[str]) -> None:
        unknown = Verdict(state=UNKNOWN, source="squeue", reason=silence.message)
        for job_id in job_ids:
            nothing = JobStatus.of_job(job_id, unknown)
            self.known[job_id] = [
                each if each.final else structs.replace(each, verdict=unknown)
                for each in self.known[job_id] or [nothing]
            ]


def _find_missing(known: Sequence[JobStatus], found: Sequence[JobStatus]) -> list[JobStatus]:
    """Return live jobs that Slurm no longer shows, without an array's row of pending tasks."""
    names = {status.job_id for status in found}
    live = [each for each in known if not each.final and each.job_id not in names]
    return [each for each in live if "[" not in (each.job_id or "") or not found]
