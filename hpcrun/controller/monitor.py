"""The states of jobs that somebody watches, and the one policy of asking Slurm for them.

Never changes or cancels anything.
"""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct, structs

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.controller.status import status_of, status_of_jobs
from hpcrun.controller.targets import unknown_job
from hpcrun.errors import OutOfReach
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import History
from hpcrun.runs.status import JobStatus
from hpcrun.runs.store import read_history, refresh
from hpcrun.runs.verdict import LOST, Verdict
from hpcrun.slurm.jobs import SlurmJob
from hpcrun.slurm.states import UNKNOWN, is_final, parse_exit_code

# While nothing happens Slurm is asked twice a minute at most (squeue(1), PERFORMANCE); a watcher
# for whom a late answer does no harm has the pauses grow, by SLOWER each, to CALMEST. In seconds.
CALM, CALMEST, SLOWER = 30.0, 120.0, 1.5
# In a sweep of short runs each end is news: the first FREE questions in WINDOW seconds are asked as
# soon as there is a reason, further ones APART seconds from each other. That is 4 a minute.
FREE, WINDOW = 8, 120.0
APART = 15.0
# After the end of a run Slurm is asked in quick succession: it has cleaned up after most jobs in a
# second, and a site's epilog takes longer. Other jobs have no files that would show their end, so
# the pauses after a change are longer. In seconds.
AFTER_END = (0.3, 0.7, 1.5, 3.0, 6.0, 12.0)
AFTER_CHANGE = (2.0, 4.0, 8.0, 15.0)
# How often the folders of the runs are looked at, in seconds: soon after news and new lines, more
# seldom while nothing happens; and no more runs a second, each is a request to the file server.
FILES_EVERY = (0.2, 1.0)
FILES_SLOWER = 1.3
RUNS_A_SECOND = 100
# How often everything that is shown is read again, in seconds, where a watcher wants that.
REREAD_EVERY = 2.0
# Slurm may call a run over before its last files arrive from the nodes; a job that was killed
# outright has none, so the wait is short. Of other jobs the last lines may come late. In seconds.
FILES_LATE, LATE_EVERY = 5.0, 0.2
LINES_LATE = 0.5
# A question that a caller's deadline cuts off after fewer seconds says nothing about Slurm: then
# what was known before holds.
FAIR = 5.0
# A job that hpcrun did not submit may have ended where it has been silent for longer than ever
# before, and for SILENT_AFTER seconds at least; it is asked about so often a minute at most. After
# lines that a job ends with it is asked about SOON seconds after the last question.
SILENT_AFTER, SILENT_FACTOR, ASKED_A_MINUTE = 3.0, 3.0, 4
SOON = 5.0
_LAST_LINES = (b"slurmstepd: error: ***", b"srun: Job step aborted", b"Terminated")
_FORGOTTEN = Verdict(
    state=LOST,
    final=True,
    source="squeue",
    reason="Slurm has forgotten the job: how it ended is not known",
)


class Pace:
    """The time of the next question; times are those of time.monotonic(), passed in."""

    def __init__(self, calmest: float = CALM) -> None:
        """The first question is due at once; the pauses grow to ``calmest`` without news."""
        self.next = 0.0
        self._calm, self._calmest = CALM, calmest
        self._pauses: Iterator[float] = iter(())
        self._asked: deque[float] = deque(maxlen=FREE)

    def is_due(self, now: float) -> bool:
        """Return whether it is time to ask."""
        return now >= self.next

    def news(self, now: float, *, then: Sequence[float] = (), apart: float = 0.0) -> None:
        """Ask at once, as far as the bounds allow, and ``then`` again after these pauses.

        News that are worth less keep ``apart`` seconds from the last question.
        """
        self._calm = CALM
        if then:
            self._pauses = iter(then)
        last = self._asked[-1] if self._asked else now - apart
        self.next = min(self.next, max(self._earliest(now), last + apart))

    def hurry(self, pauses: Sequence[float]) -> None:
        """Ask again after these pauses."""
        self._pauses = iter(pauses)

    def asked(self, now: float) -> None:
        """Take note of a question, and set the time of the next one."""
        self._asked.append(now)
        pause = next(self._pauses, self._calm * random.uniform(1.0, 1.2))
        self._calm = min(self._calm * SLOWER, self._calmest)
        self.next = max(now + pause, self._earliest(now))

    def asked_lately(self, now: float) -> int:
        """Count the questions of the last minute; FREE means as many or more."""
        return sum(now - at < 60 for at in self._asked)

    def _earliest(self, now: float) -> float:
        if len(self._asked) < FREE or now - self._asked[0] >= WINDOW:
            return now
        return max(now, self._asked[-1] + APART)


class Snapshot(Struct, frozen=True, kw_only=True):
    """What is known at one moment: all statuses, and those that are not as they were reported last.

    ``is_over``: all have ended, and every end was reported.
    """

    statuses: list[JobStatus]
    changed: list[JobStatus]
    is_over: bool


class Monitor:
    """Some jobs whose states are watched: what changed, what is over, when Slurm is asked again.

    Slurm is not asked before the first poll(). The runs' own files show when a question is worth
    it. ``deadline`` (by time.monotonic) cuts questions off: a Slurm that hangs keeps nobody longer,
    but the first question lasts FAIR seconds where it must.
    """

    def __init__(
        self,
        context: Context,
        runs: Sequence[RunFolder] = (),
        jobs: Sequence[str] = (),
        *,
        deadline: float | None = None,
        alive: Callable[[], bool] | None = None,
        with_outputs: bool = False,
    ) -> None:
        """Take runs, and ids of other Slurm jobs and arrays.

        ``alive`` returns of a run of this machine whether its script is there. ``with_outputs``:
        find out where the output of the other jobs goes. poll() raises InputError for a job that
        Slurm does not know at first.
        """
        self.context = context
        self.runs = list(dict.fromkeys(runs))
        self.outputs: list[SlurmJob] = []
        self._with_outputs = with_outputs
        self._alive = alive
        self._deadline = deadline
        self._first_deadline = None if deadline is None else max(deadline, time.monotonic() + FAIR)
        self._pace = Pace()
        self._known: dict[str, JobStatus] = {}
        self._reported: dict[str, tuple[str, str]] = {}
        # Of runs, by the paths of their folders.
        self._by_name = {str(run.path): run for run in self.runs}
        self._signs: dict[str, tuple[int, bool, bool]] = {}
        self._over_since: dict[str, float] = {}
        self._read_again: dict[str, float] = {}
        self._files_every = FILES_EVERY[0]
        self._next_files = 0.0
        # Of other jobs, by the ids that name them.
        self._jobs: dict[str, list[JobStatus]] = {job_id: [] for job_id in jobs}
        self._is_first = True
        self._longest_silence = 0.0
        self._output_at = self._asked_at = time.monotonic()

    @property
    def statuses(self) -> list[JobStatus]:
        """What is known now."""
        return list(self._known.values())

    @property
    def is_over(self) -> bool:
        """Whether all is over, and every end was reported."""
        if not self.runs and not self._jobs:
            return True
        return bool(self._reported) and all(
            status.final and name in self._reported and self._is_reported(name)
            for name, status in self._known.items()
        )

    @property
    def pause(self) -> float:
        """For how many seconds nothing is to be looked at."""
        now = time.monotonic()
        if any(not self._is_reported(name) for name in self._over_since if name in self._known):
            return LATE_EVERY
        due = min(self._pace.next, self._next_files) if self.runs else self._pace.next
        return max(0.01, due - now)

    def poll(self, *, last: bool = False) -> Snapshot:
        """Look at the files, ask Slurm if it is time, and report what has changed.

        An end is reported once, when what the nodes write of it is there, or late; with ``last`` at
        once.
        """
        now = time.monotonic()
        self._look_at_files(now)
        self._look_for_silence(now)
        if self._pace.is_due(now) and not last and not self._is_known_over():
            self.ask()
        changed = []
        for name in list(self._known):
            if self._is_reported(name):
                continue
            if self._known[name].final and not self._is_settled(name, now) and not last:
                continue
            status = self._known[name]
            self._reported[name] = (status.state, status.reason)
            changed.append(status)
        return Snapshot(statuses=self.statuses, changed=changed, is_over=self.is_over)

    def note_output(self, data: bytes | None) -> None:
        """Take notice of new lines of a log; None: a file was begun again."""
        now = time.monotonic()
        self._files_every = FILES_EVERY[0]
        self._next_files = min(self._next_files, now + self._files_every)
        if self._with_outputs:
            self._longest_silence = max(self._longest_silence, now - self._output_at)
            self._output_at = now
            if data is None or any(line in data for line in _LAST_LINES):
                self._pace.news(max(now, self._asked_at + SOON))

    # ---- asking Slurm

    def ask(self) -> None:
        """Ask Slurm now, whether it is time or not. Raises as poll() does, and reports nothing."""
        limit = self._deadline if self._known else self._first_deadline
        is_short = limit is not None and limit - time.monotonic() < FAIR
        context = structs.replace(self.context, deadline=limit)
        for name, status in [*self._ask_about_runs(context), *self._ask_about_jobs(context)]:
            if not (is_short and name in self._known and status.state == UNKNOWN):
                self._known[name] = status
        self._pace.asked(time.monotonic())

    def _is_known_over(self) -> bool:
        return bool(self._known) and all(status.final for status in self._known.values())

    def _is_reported(self, name: str) -> bool:
        status = self._known[name]
        return self._reported.get(name) == (status.state, status.reason)

    def _is_final(self, name: str) -> bool:
        status = self._known.get(name)
        return status is not None and status.final

    def _is_settled(self, name: str, now: float) -> bool:
        """Return whether an end may be reported: nothing is on its way from the nodes any more."""
        since = self._over_since.setdefault(name, now)
        if name not in self._by_name:
            return not self._with_outputs or now >= since + LINES_LATE
        if now < self._read_again.get(name, 0.0):
            return False
        self._read_again[name] = now + LATE_EVERY
        run, status = self._by_name[name], self._known[name]
        refresh(run)
        history = read_history(run)
        end = history.last.end if history.last else None
        if end is not None and status.exit_code is None:
            verdict = structs.replace(status.verdict, exit_code=end.exit_code)
            self._known[name] = structs.replace(status, history=history, verdict=verdict)
        is_late = now >= since + FILES_LATE
        return end is not None or history.last is None or status.source == "record" or is_late

    # ---- runs

    def _ask_about_runs(self, context: Context) -> Iterable[tuple[str, JobStatus]]:
        left = [run for name, run in self._by_name.items() if not self._is_final(name)]
        if not left:
            return
        known = [self._known[name] for name in self._by_name if name in self._known]
        statuses = status_of(context, left)
        for status in statuses:
            if status.final:
                self._over_since[str(status.folder.path)] = time.monotonic()
            yield str(status.folder.path), status
        live = [status for status in statuses if not status.final]
        was_unknown = any(status.state == UNKNOWN for status in known)
        is_back = was_unknown and not any(each.state == UNKNOWN for each in statuses)
        odd = any(each.state not in ("PENDING", "RUNNING") for each in live)
        if is_back or (not known and odd):
            self._pace.hurry(AFTER_END)  # Slurm has to learn what it has missed; or this is the end

    def _look_at_files(self, now: float) -> None:
        if self._alive is not None and not self._alive():
            self._end_of_process()
            return
        if now < self._next_files or not self.runs:
            return
        begun = ended = False
        live = [(name, run) for name, run in self._by_name.items() if not self._is_final(name)]
        for name, run in live:
            signs, before = _signs(run), self._signs.get(name)
            if signs != before:
                self._signs[name] = signs
                begun = begun or before is not None
                ended = ended or signs[1] or (before is not None and signs[2])
        if begun or ended:
            self._files_every = FILES_EVERY[0]
            # That one of many runs has begun is no news whose answer somebody waits for.
            apart = 0.0 if ended else min(APART, len(live) / 10)
            self._pace.news(now, then=AFTER_END if ended else (), apart=apart)
        self._next_files = now + max(self._files_every, len(live) / RUNS_A_SECOND)
        self._files_every = min(self._files_every * FILES_SLOWER, FILES_EVERY[1])

    def _end_of_process(self) -> None:
        """A run of this machine whose batch script is gone: without an end record it is lost."""
        if self._is_known_over():
            return
        lost = Verdict(
            state=LOST, final=True, source="record", reason="its batch script was killed"
        )
        for status in status_of(self.context, self.runs):
            if not status.final:
                status = structs.replace(status, verdict=lost)
            self._known[str(status.folder.path)] = status

    # ---- jobs that hpcrun did not submit

    def _ask_about_jobs(self, context: Context) -> Iterable[tuple[str, JobStatus]]:
        live = [job_id for job_id, known in self._jobs.items() if _live(known) or not known]
        if not live:
            return
        self._asked_at = time.monotonic()
        try:
            answer = self._states_of(context, live, ended=self._is_first)
            gone = any(_vanished(self._jobs[each], answer[each]) for each in live)
            if not self._is_first and gone and not self._with_outputs:
                answer = self._states_of(context, live, ended=True)
        except OutOfReach as silence:
            if self._is_first and self._with_outputs:
                raise
            unknown = Verdict(state=UNKNOWN, final=False, source="squeue", reason=silence.message)
            for job_id in live:
                for status in _live(self._jobs[job_id]) or [_nothing_of(job_id)]:
                    yield status.job_id or "", structs.replace(status, verdict=unknown)
            return
        for job_id in live:
            if self._is_first and not answer[job_id]:
                raise unknown_job(job_id)
        self._is_first = False
        for job_id in live:
            yield from self._take(job_id, answer[job_id])

    def _states_of(
        self, context: Context, job_ids: Sequence[str], *, ended: bool
    ) -> dict[str, list[JobStatus]]:
        """Ask Slurm; of a job that it does not know an empty list. Raises OutOfReach."""
        if not self._with_outputs:
            return status_of_jobs(context, job_ids, ended=ended)
        (job_id,) = job_ids
        jobs = scheduler.show_jobs(slurm_transport(context), job_id)
        if jobs:
            self.outputs = jobs
            return {job_id: [_as_shown(job) for job in jobs]}
        statuses = status_of_jobs(context, job_ids, ended=True)
        known = {job.job_id for job in self.outputs}
        guessed = [_guess_output(status) for status in statuses[job_id]]
        self.outputs += [job for job in guessed if job is not None and job.job_id not in known]
        return statuses

    def _take(self, job_id: str, found: Sequence[JobStatus]) -> Iterator[tuple[str, JobStatus]]:
        """Take an answer about one job; what Slurm shows no more keeps its end, or is lost."""
        known = self._jobs[job_id]
        names = {status.job_id for status in found}
        gone = _vanished(known, found) if found or known else [_nothing_of(job_id)]
        over = [each for each in known if each.final and each.job_id not in names]
        lost = [structs.replace(status, verdict=_FORGOTTEN) for status in gone]
        self._jobs[job_id] = [*over, *found, *lost]
        # Tasks that wait share a row, under a name that goes as they begin; until Slurm's first
        # answer there is but the word that names the job.
        waiting = [each.job_id for each in known if each.job_id and "[" in each.job_id]
        for name in {job_id, *waiting} - {each.job_id for each in self._jobs[job_id]}:
            self._known.pop(name, None)
        if _states(known) != _states(self._jobs[job_id]):
            self._pace.hurry(AFTER_CHANGE)
        for status in self._jobs[job_id]:
            yield status.job_id or "", status

    def _look_for_silence(self, now: float) -> None:
        """Another job may be over where it has written nothing for long, since Slurm was asked."""
        if not self._with_outputs:
            return
        silence = now - self._output_at
        long = max(SILENT_AFTER, SILENT_FACTOR * self._longest_silence)
        may_ask = self._pace.asked_lately(now) < ASKED_A_MINUTE
        if may_ask and self._output_at > self._asked_at and silence > long:
            self._pace.news(now)


def poll_all(
    monitors: Sequence[Monitor],
    *,
    deadline: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[JobStatus]:
    """Yield each status when it changes, until all are over or ``deadline`` (by time.monotonic).

    While Slurm is silent states are UNKNOWN, and the waiting goes on. An end is yielded once.
    """
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


def _signs(run: RunFolder) -> tuple[int, bool, bool]:
    """How many attempts a run's folder shows, whether the last one has ended, and is cancelled."""
    try:
        names = [entry.name for entry in os.scandir(run.attempts)]
    except OSError:
        names = []
    attempts = [int(name) for name in names if name.isdigit()]
    end = f"{run.attempts}/{max(attempts, default=0)}/end.json"
    return len(attempts), os.access(end, os.F_OK), os.access(run.cancelled, os.F_OK)


def _live(known: Iterable[JobStatus]) -> list[JobStatus]:
    return [status for status in known if not status.final]


def _vanished(known: Sequence[JobStatus], found: Sequence[JobStatus]) -> list[JobStatus]:
    """What was live a while ago and is shown no more; of an array not the row of what waits."""
    names = {status.job_id for status in found}
    return [
        each
        for each in _live(known)
        if each.job_id not in names and ("[" not in (each.job_id or "") or not found)
    ]


def _states(known: Sequence[JobStatus]) -> list[tuple[str | None, str]]:
    return [(status.job_id, status.state) for status in known]


def _nothing_of(job_id: str) -> JobStatus:
    """A job of which nothing is known yet."""
    return JobStatus(job_id=job_id, history=History(run_id=job_id), verdict=_FORGOTTEN)


def _as_shown(job: SlurmJob) -> JobStatus:
    """The status of a job by scontrol's answer alone."""
    final = is_final(job.state)
    reason = "" if job.reason in ("None", "NonZeroExitCode") else job.reason.split(" ")[0]
    verdict = Verdict(
        state=job.state,
        final=final,
        source="scontrol",
        reason=reason,
        exit_code=parse_exit_code(job.exit_code) if final else None,
    )
    return JobStatus(
        job_id=job.job_id,
        history=History(run_id=job.job_id),
        verdict=verdict,
        job=job,
        name=job.name,
    )


def _guess_output(status: JobStatus) -> SlurmJob | None:
    """Slurm has forgotten where the output went: look where sbatch puts it by default."""
    if status.job is None or not status.job.work_dir:
        return None
    path = Path(status.job.work_dir) / f"slurm-{status.job_id}.out"
    if not path.is_file():
        return None
    return structs.replace(status.job, stdout=str(path), stderr=str(path), node_list="")
