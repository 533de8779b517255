"""The states of jobs that somebody watches, and the one policy of asking Slurm for them."""

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

# While nothing happens Slurm is asked twice a minute at most (squeue(1), PERFORMANCE); a watcher
# for whom a late answer does no harm has the pauses grow, by SLOWER each, to CALMEST. In seconds.
QUERY_PAUSE_S, MAX_QUERY_PAUSE_S, PAUSE_GROWTH = 30.0, 120.0, 1.5
# In a sweep of short runs each end is news: the first FREE questions in WINDOW seconds are asked as
# soon as there is a reason, further ones APART seconds from each other. That is 4 a minute.
MAX_QUERY_BURST, BURST_WINDOW_S = 8, 120.0
MIN_QUERY_GAP_S = 15.0
# After the end of a run Slurm is asked in quick succession: it has cleaned up after most jobs in a
# second, and a site's epilog takes longer. Other jobs have no files that would show their end, so
# the pauses after a change are longer. In seconds.
PAUSES_AFTER_END_S = (0.3, 0.7, 1.5, 3.0, 6.0, 12.0)
PAUSES_AFTER_CHANGE_S = (2.0, 4.0, 8.0, 15.0)
# How often the folders of the runs are looked at, in seconds; and no more runs a second, each is a
# request to the file server.
FILE_CHECK_INTERVAL_S = 0.5
MAX_RUNS_PER_SECOND = 100
# What runs have written on a cluster that is another machine comes by itself; of many runs it is
# fetched as often as they are looked at, but such trips take a share of the time: the pause is
# TRIP_PAUSE times as long as the trip.
FETCH_PAUSE_FACTOR = 20
# Slurm may call a run over before its last files arrive from the nodes; a job that was killed
# outright has none, so the wait is short. In seconds.
MAX_FILE_DELAY_S, LATE_FILE_INTERVAL_S = 5.0, 0.2
# A question that a caller's deadline cuts off after fewer seconds says nothing about Slurm: then
# what was known before holds.
MIN_QUERY_TIMEOUT_S = 5.0
_FORGOTTEN = Verdict(
    state=LOST,
    final=True,
    source="squeue",
    reason="Slurm has forgotten the job: how it ended is not known",
)
_KILLED = Verdict(state=LOST, final=True, source="record", reason="its batch script was killed")


class QueryPace:
    """The time of the next question; times are those of time.monotonic(), passed in."""

    def __init__(self, calmest: float = QUERY_PAUSE_S) -> None:
        """The first question is due at once; the pauses grow to ``calmest`` without news."""
        self.next = 0.0
        self.next_fetch = 0.0
        self.fetch_error = ""  # why what runs write does not come, while that is so
        self._calm, self._calmest = QUERY_PAUSE_S, calmest
        self._pauses: Iterator[float] = iter(())
        self._asked: deque[float] = deque(maxlen=MAX_QUERY_BURST)

    def is_due(self, now: float) -> bool:
        return now >= self.next

    def request_query(self, now: float, *, then: Sequence[float] = (), apart: float = 0.0) -> None:
        """Ask at once, as far as the bounds allow, and ``then`` again after these pauses.

        News that are worth less keep ``apart`` seconds from the last question.
        """
        self._calm = QUERY_PAUSE_S
        if then:
            self._pauses = iter(then)
        last = self._asked[-1] if self._asked else now - apart
        self.next = min(self.next, max(self._earliest(now), last + apart))

    def use_pauses(self, pauses: Sequence[float]) -> None:
        self._pauses = iter(pauses)

    def record_query(self, now: float) -> None:
        """Take note of a question, and set the time of the next one."""
        self._asked.append(now)
        pause = next(self._pauses, self._calm * random.uniform(1.0, 1.2))
        self._calm = min(self._calm * PAUSE_GROWTH, self._calmest)
        self.next = max(now + pause, self._earliest(now))

    @property
    def last(self) -> float:
        return self._asked[-1] if self._asked else 0.0

    def refresh(self, context: Context, runs: Sequence[RunFolder]) -> None:
        """Bring what runs have written, if it is time. Raises OutOfReach where that is final."""
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
    """What is known at one moment: all statuses, and those that are not as they were reported last.

    ``is_over``: all have ended, and every end was reported.
    """

    statuses: list[JobStatus]
    changed: list[JobStatus]
    is_over: bool


class WatchedJobs(ABC):
    """Some jobs that are watched: how Slurm is asked, and what shows that it is worth it."""

    # More jobs may come when all that are known are over.
    is_open = False
    # When look() has something to look at, by time.monotonic().
    next_check = math.inf

    @abstractmethod
    def query(self, context: Context, pace: QueryPace) -> Sequence[JobStatus] | None:
        """Ask Slurm; return all jobs, those too that were over before. None: nothing is new."""

    def check_files(self, context: Context, pace: QueryPace) -> Sequence[JobStatus] | None:
        """Look at what is here, without a question to Slurm; return as ask() does."""
        return None

    def finish(self, status: JobStatus, since: float) -> JobStatus | None:
        """Complete the status of a job that has been over ``since`` then; None: more is to come."""
        return status


class Monitor:
    """Watches jobs: what changed, what is over, when Slurm is asked again.

    Slurm is not asked before the first poll(). ``deadline`` (by time.monotonic) cuts questions off:
    a Slurm that hangs keeps nobody longer, but the first question lasts FAIR seconds where it must.
    Without news the pauses grow to ``calmest`` seconds.
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
        # All by the names of the jobs.
        self._known: dict[str, JobStatus] = {}
        self._owner: dict[str, WatchedJobs] = {}
        self._over_since: dict[str, float] = {}
        self._reported: dict[str, tuple[str, str]] = {}

    @property
    def statuses(self) -> list[JobStatus]:
        return list(self._known.values())

    @property
    def is_over(self) -> bool:
        """Whether all is over, and every end was reported."""
        return self._is_known_over() and all(map(self._is_reported, self._known))

    @property
    def fetch_error(self) -> str:
        """Why what runs write does not come, while that is so."""
        return self._pace.fetch_error

    @property
    def seconds_until_query(self) -> float:
        """In how many seconds Slurm is asked again, if there is no news."""
        return max(0.0, self._pace.next - time.monotonic())

    @property
    def pause(self) -> float:
        """For how many seconds nothing is to be looked at."""
        if any(not self._is_reported(name) for name in self._over_since if name in self._known):
            return LATE_FILE_INTERVAL_S
        due = min([self._pace.next, *(each.next_check for each in self._watched)])
        return max(0.01, due - time.monotonic())

    def poll(self, *, last: bool = False) -> Snapshot:
        """Look at the files, ask Slurm if it is time, and report what has changed.

        An end is reported once, when what the nodes write of it is there, or late; with ``last`` at
        once. Raises what their questions raise.
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
        """Ask Slurm now, whether it is time or not; report nothing. Raises as poll() does."""
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
    """Return the name by which a watched job is known: its run's folder, else its id."""
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


# ---- runs: their own files show when a question is worth it


class WatchedRuns(WatchedJobs):
    """Runs of hpcrun's. ``alive`` returns of a run of this machine whether its script is there."""

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
        """Ask about those that are not over; Slurm's silence is UNKNOWN."""
        # A script that is gone now has left its record of the end, or never will.
        is_gone = self._alive is not None and not self._alive()
        is_first = not self._known
        was_unknown = any(status.state == UNKNOWN for status in self._known.values())
        if live := self._live():
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
                # Slurm has to learn what it has missed; or this is the end.
                pace.use_pauses(PAUSES_AFTER_END_S)
        return [self._known[run] for run in self.runs]

    def check_files(self, context: Context, pace: QueryPace) -> None:
        """Look whether an attempt has begun or ended, in what is here or can be fetched."""
        now = time.monotonic()
        if self._alive is not None and not self._alive():
            pace.next = min(pace.next, now)  # without Slurm a question costs nothing
        if now < self.next_check:
            return
        begun = ended = False
        live = self._live()
        if not (live and pace.is_due(now)):  # else the question refreshes
            pace.refresh(context, [run for run in self.runs if run not in self._settled])
        for run in live:
            signs, before = _read_progress_marks(run), self._signs.get(run)
            if signs != before:
                self._signs[run] = signs
                begun = begun or before is not None
                ended = ended or signs[1] or (before is not None and signs[2])
        if begun or ended:
            # That one of many runs has begun is no news whose answer somebody waits for.
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

    def _live(self) -> list[RunFolder]:
        return [run for run in self.runs if run not in self._known or not self._known[run].final]


def _read_progress_marks(run: RunFolder) -> tuple[int, bool, bool]:
    """How many attempts a run's folder shows, whether the last one has ended, and is cancelled."""
    try:
        names = [entry.name for entry in os.scandir(run.attempts)]
    except OSError:
        names = []
    attempts = [int(name) for name in names if name.isdecimal()]
    end = f"{run.attempts}/{max(attempts, default=0)}/end.json"
    return len(attempts), os.access(end, os.F_OK), os.access(run.cancelled, os.F_OK)


# ---- jobs that hpcrun did not submit: Slurm alone knows them


class WatchedSlurmJobs(WatchedJobs):
    """Other jobs by their ids, of an array named as a whole all tasks.

    What Slurm shows no more keeps its end, or is lost. ask() raises InputError for a job that Slurm
    does not know at first; not ``strict``: that one is left out.
    """

    def __init__(self, job_ids: Sequence[str], *, strict: bool = True) -> None:
        # By the ids that name them.
        self.known: dict[str, list[JobStatus]] = {job_id: [] for job_id in job_ids}
        self._strict = strict
        self._is_first = True

    def query(self, context: Context, pace: QueryPace) -> list[JobStatus]:
        """Ask about those that are not over; Slurm's silence is UNKNOWN."""
        live = [
            job_id
            for job_id, known in self.known.items()
            if not known or any(not status.final for status in known)
        ]
        try:
            if live:
                self._find(context, live, pace)
        except OutOfReach as silence:
            self._note_silence(silence, live)
        return [status for known in self.known.values() for status in known]

    def _find(self, context: Context, job_ids: Sequence[str], pace: QueryPace) -> None:
        answer = self._answer(context, job_ids)
        if not self._is_first and any(
            _find_missing(self.known[each], answer[each]) for each in job_ids
        ):
            answer = status_of_jobs(context, job_ids, ended=True)
        for job_id in job_ids:
            # Until Slurm's first answer there is but the word that names the job.
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

    def _answer(self, context: Context, job_ids: Sequence[str]) -> dict[str, list[JobStatus]]:
        """Ask Slurm; of a job that it does not know an empty list. Raises OutOfReach."""
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
    """What was live a while ago and is shown no more; of an array not the row of what waits."""
    names = {status.job_id for status in found}
    live = [each for each in known if not each.final and each.job_id not in names]
    return [each for each in live if "[" not in (each.job_id or "") or not found]
