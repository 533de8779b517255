"""The current state of the user's jobs: states, curves, and the use of their nodes."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

from msgspec import structs

from hpcrun.actions.cluster_host import find_user_name
from hpcrun.actions.parse import CurveLog
from hpcrun.actions.usage import UsageStep, close_all
from hpcrun.context import Context, is_slurm_conf_missing, job_environment, slurm_transport
from hpcrun.curves import (
    EVAL_LOSS,
    LOSS,
    SAMPLES_PER_SECOND,
    TOKENS_PER_SECOND,
    Curve,
    quantile,
    seconds_per_step,
    steps_left,
)
from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.monitor import (
    FILE_CHECK_INTERVAL_S,
    Monitor,
    QueryPace,
    Source,
    WatchedJobs,
    copied_run_error,
    fetch_records,
    find_run_or_sweep,
    find_slurm_conf,
    is_job_id,
    record_gpu_usage,
    start_thread,
    unknown_run_error,
)
from hpcrun.ownership import foreign_owner, name_of_user
from hpcrun.plan import format_label
from hpcrun.remote import Transport
from hpcrun.runs import (
    RUN_ID,
    History,
    JobStatus,
    Progress,
    RunFolder,
    SweepFolder,
    Verdict,
    parse_sweep_id,
    read_history,
    read_task,
    runs_of,
    sweep_folder,
)
from hpcrun.slurm import SlurmJob, array_job_id, client, is_final, select_first_components
from hpcrun.text import is_whole_number

# The number of jobs with a usage step: each needs an srun process on this login node.
MAX_USAGE_STEPS = 8
# The maximum number of jobs in one query for output paths.
MAX_OUTPUT_QUERIES = 100
# Seconds between reads of a run's records.
_RECORDS_EVERY = 2.0
# Seconds between recorded samples of the GPU use.
_KEEP_EVERY = 30.0
# The number of bytes at the end of a log that are read first.
TAIL_BYTES = 2 << 20
# The number of last values that are drawn.
MAX_RECENT_VALUES = 200
# The median of several last values of a rate is shown: a single one may include a checkpoint.
_RATES = 5
# The maximum and minimum seconds over which a rate is measured if the log has none.
_WINDOW, _LEAST = 120.0, 5.0


class Top(WatchedJobs):
    """The waiting and running jobs in Slurm's queue, and everything known about them.

    Slurm is queried in a thread, because a response may take a minute; the output of runs is copied
    in another thread between these queries.

    Attributes:
        out_of_reach: The reason why states are outdated; "" while Slurm responds.
    """

    is_open = True

    def __init__(
        self, context: Context, words: Sequence[str] = (), *, count: int = 20, usage: bool = True
    ) -> None:
        """Watch all jobs of the user, or those that words name. Raises InputError, OutOfReach."""
        self._job_ids, context = _find_job_ids(context, words)
        self._context = context
        self._count = count
        self._usage = usage
        # Nodes get little of the user's environment, but srun is found in the user's PATH.
        self._env = job_environment(context, "clean")
        self._env["PATH"] = context.environ.get("PATH") or self._env["PATH"]
        self._me = {str(os.getuid()), context.environ.get("USER", ""), name_of_user(os.getuid())}
        if context.cluster.host is not None:
            self._me = {find_user_name(context)}
        self.out_of_reach = ""
        self._answered_at: float | None = None
        self._has_news = False
        self._asking: threading.Thread | None = None
        self._trip: threading.Thread | None = None
        self._answer: list[JobStatus] | HpcrunError | None = None
        # The output files of jobs that hpcrun did not submit.
        self._outputs: dict[str, dict[str, Path]] = {}
        self.next_check = 0.0
        self._monitor = Monitor(context, [self])
        self._shown: dict[str, _TopJob] = {}

    @property
    def is_known(self) -> bool:
        return self._answered_at is not None

    @cached_property
    def _version(self) -> tuple[int, int] | None:
        return client.query_version(slurm_transport(self._context))

    @property
    def left_out(self) -> int:
        return max(0, len(self._monitor.statuses) - self._count)

    def poll(self) -> bool:
        """Run everything that is due, without blocking; return True if there is news."""
        statuses = self._monitor.poll().statuses
        now = time.monotonic()
        news, self._has_news = self._has_news, False
        if news:
            self._sort(statuses)
        for shown in self._shown.values():
            if shown.step is not None and shown.step.poll(now):
                news = True
                shown.keep(now)
        due = min(self._shown.values(), key=lambda each: each.next_check, default=None)
        if due is not None and due.next_check <= now:
            news |= due.look_at_files(now)
        return news

    def jobs(self) -> list[JobStatus]:
        """List the known jobs: running ones, then waiting ones, the newest first."""
        seconds = time.monotonic() - (self._answered_at or 0.0)
        return [each.status(seconds) for each in self._shown.values()]

    def has_all(self) -> bool:
        """Return True if each log was read, and each node has reported its use or will not."""
        return self.is_known and all(each.has_all() for each in self._shown.values())

    def close(self) -> None:
        close_all([each.step for each in self._shown.values() if each.step is not None])

    # ---- queries to Slurm

    def query(self, context: Context, pace: QueryPace) -> None:
        """Start a query; check_files() returns its result."""
        if not _is_alive(self._asking):
            self._asking = start_thread(self._find, slurm_transport(context), self._trip)

    def check_files(self, context: Context, pace: QueryPace) -> list[JobStatus] | None:
        """Return the result of a query, if any; between queries, copy the output of runs."""
        now = time.monotonic()
        is_far = context.cluster.host is not None
        is_busy = _is_alive(self._asking) or _is_alive(self._trip) or pace.is_due(now)
        if now >= self.next_check and not is_busy:
            self.next_check = now + FILE_CHECK_INTERVAL_S
            runs = [each.known.run for each in self._shown.values() if each.known.run is not None]
            known = (self._outputs.get(job_id, {}) for job_id in self._shown)
            outputs = [path for paths in known for path in paths] if is_far else []
            some = runs or outputs
            self._trip = start_thread(self._fetch, context, pace, runs, outputs) if some else None
        answer, self._answer = self._answer, None
        if answer is None:  # the previous result remains valid
            return None
        self._has_news = True
        if isinstance(answer, HpcrunError):
            self.out_of_reach = answer.message
            return None
        self._answered_at, self.out_of_reach = time.monotonic(), ""
        return answer

    def _fetch(
        self, context: Context, pace: QueryPace, runs: Sequence[RunFolder], outputs: Sequence[str]
    ) -> None:
        try:
            if outputs and time.monotonic() >= pace.next_fetch:
                context.transport().copy_outputs(outputs, whole=False)
            pace.refresh(context, runs)
        except HpcrunError as error:
            self._answer = error

    def _find(self, transport: Transport, trip: threading.Thread | None) -> None:
        """Query the jobs, and the output paths of jobs for which they are unknown.

        The records of runs are copied after the last ``trip`` has ended.
        """
        try:
            jobs = client.query_queue(transport, self._job_ids)
        except HpcrunError as error:
            self._answer = error
            return
        ours = select_first_components(job for job in jobs if RUN_ID.fullmatch(job.folder))
        others = [job for job in jobs if not RUN_ID.fullmatch(job.folder)]
        live = [job for job in (*ours, *others) if not is_final(job.state)]
        unknown = [
            job.job_id
            for job in live
            if job.state == "RUNNING"
            and not (RUN_ID.fullmatch(job.folder) or parse_sweep_id(job.folder))
            and job.job_id not in self._outputs
        ][:MAX_OUTPUT_QUERIES]
        if unknown:
            found = {job.job_id: job.outputs for job in client.show_each_job(transport, unknown)}
            for job_id in unknown:
                paths = found.get(job_id, [])
                with suppress(OutOfReach):  # the result of the queue is still valid
                    places, _ = transport.copy_outputs(paths, whole=False)
                    self._outputs[job_id] = dict(zip(paths, places, strict=True))
        statuses = [_build_status(self._context, job) for job in live]
        if trip is not None:
            trip.join()
        fetch_records(self._context, [status.run for status in statuses])
        self._answer = statuses

    def _sort(self, statuses: Sequence[JobStatus]) -> None:
        before, self._shown = self._shown, {}
        steps = 0
        for status in sorted(statuses, key=_sort_key)[: self._count]:
            job = _job_of(status)
            shown = before.get(job.job_id)
            if shown is None or _job_of(shown.known).number != job.number:
                shown = _TopJob(status)
            else:
                del before[job.job_id]
            shown.known = status
            shown.add_log(self._context, [*self._outputs.get(job.job_id, {}).values()])
            self._shown[job.job_id] = shown
            if self._usage and job.state == "RUNNING":
                steps += 1
                self._add_step(shown, job, steps)
        close_all([each.step for each in before.values() if each.step is not None])

    def _add_step(self, shown: _TopJob, job: SlurmJob, order: int) -> None:
        if shown.step is not None:
            return
        if order > MAX_USAGE_STEPS:
            shown.why_no_use = (
                f"utilization is shown for at most {MAX_USAGE_STEPS} jobs; name the job"
            )
        elif job.user not in self._me:
            shown.why_no_use = f"the job belongs to {job.user}"
        elif is_whole_number(job.nodes):
            shown.why_no_use = ""
            wrap = partial(slurm_transport(self._context).wrap_command, env=self._env)
            shown.step = UsageStep(job.number, int(job.nodes), wrap, self._version)


def _is_alive(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.is_alive()


def _find_run(context: Context, job: SlurmJob) -> RunFolder | None:
    """Return the run of a job: one of the known runs, or a run directory in which the job works."""
    is_here = context.cluster.host is None
    for path in (context.runs_dir / job.folder, *([Path(job.work_dir)] if is_here else ())):
        if (sweep_id := parse_sweep_id(path.name)) is not None:
            number = int(job.task) if is_whole_number(job.task) else 0
            path = sweep_folder(path.parent, sweep_id).run(number).path
        if RUN_ID.fullmatch(path.name) and path.is_dir() and not foreign_owner(path):
            return RunFolder(path)
    return None


def _build_status(context: Context, job: SlurmJob) -> JobStatus:
    run = _find_run(context, job)
    task = read_task(run) if run is not None else None
    return JobStatus(
        verdict=Verdict(state=job.state, source=job.source, reason=job.reason),
        # The history of a run is read later by _TopJob.look_at_files; other jobs have none.
        history=History(run_id=run.run_id if run is not None else job.job_id),
        job_id=job.job_id,
        run=run,
        job=job,
        name=job.name if task is None else f"{job.name} {format_label(task.values)}",
        elapsed=job.elapsed_seconds,
        limit=job.limit_seconds,
    )


class _TopJob:
    """A job with its log, which may be large, and its usage step."""

    def __init__(self, known: JobStatus) -> None:
        self.known = known
        self.step: UsageStep | None = None
        self.why_no_use = ""
        self.next_check = 0.0
        self._log: CurveLog | None = None
        self._has_log = False
        self._progress = Progress()
        self._history = known.history
        self._records_at = self._kept_at = 0.0
        # When the log showed each step.
        self._seen: deque[tuple[float, int]] = deque(maxlen=500)

    def add_log(self, context: Context, outputs: Sequence[Path]) -> None:
        """Add the log once its path is known: its end is read first, then what is appended."""
        if not self._has_log and (self.known.run is not None or outputs):
            files = tuple(outputs)
            with suppress(InputError):  # a pattern of the run that this version cannot compile
                source = Source(self.known.job_id or "", files, self.known.run)
                self._log = CurveLog(context, source, tail=TAIL_BYTES)
            self._has_log = True
            self.next_check = 0.0

    def look_at_files(self, now: float) -> bool:
        """Read new content of the log and the records; return True if there is news."""
        news = False
        try:
            if self._log is not None and self._log.read_new():
                self._progress, news = (
                    self._current_progress(self._log.curve(all_trainings=False), now),
                    True,
                )
        except InputError:  # the log cannot be read
            self._log, self._progress, news = None, Progress(), True
        if self.known.run is not None and now >= self._records_at:
            self._records_at = now + _RECORDS_EVERY
            before, self._history = self._history, read_history(self.known.run)
            last, was = self._history.last, before.last
            news |= before.end != self._history.end
            news |= (last and last.stall) != (was and was.stall)
        self.next_check = time.monotonic() + (0.5 if news else 1.0)
        return news

    def keep(self, now: float) -> None:
        """Record samples of the GPU use from time to time, for the report after the run's end."""
        if self.known.run is not None and now - self._kept_at >= _KEEP_EVERY:
            self._kept_at = now
            record_gpu_usage(self.known.run, [] if self.step is None else self.step.uses())

    def has_all(self) -> bool:
        """Return True if the log was read, and the use is known or will not be."""
        if self._has_log and not self.next_check:
            return False
        if self.step is None or self.step.has_failed:
            return True  # a step that failed once is not waited for
        # The CPU use is a difference between two samples.
        uses, nodes = self.step.uses(), _job_of(self.known).nodes
        is_whole = len(uses) >= (int(nodes) if is_whole_number(nodes) else 0)
        return is_whole and all(use.cpus_busy is not None for use in uses)

    def status(self, seconds_since: float) -> JobStatus:
        elapsed = self.known.elapsed
        if elapsed is not None and self.known.state == "RUNNING" and self._history.end is None:
            elapsed += seconds_since
        return structs.replace(
            self.known,
            history=self._history,
            elapsed=elapsed,
            progress=self._progress,
            uses=[] if self.step is None else self.step.uses(),
            why_no_use=self.why_no_use or ("" if self.step is None else self.step.trouble),
        )

    def _current_progress(self, curve: Curve, now: float) -> Progress:
        metric = next((name for name in (LOSS, EVAL_LOSS) if name in curve.metrics), None)
        lasts = {name: series.summary.last for name, series in curve.metrics.items()}
        last = lasts[metric] if metric is not None else None
        step = max((each.step for each in lasts.values() if each.step is not None), default=None)
        if last is not None and last.step is not None:
            step = last.step
        observed = self._measure_step_time(now, step)
        pace = seconds_per_step(curve) or observed
        rate, unit = (None, None) if not pace else (1 / pace, "steps_per_second")
        for name in (SAMPLES_PER_SECOND, TOKENS_PER_SECOND):
            if (shown := quantile(curve.values(name)[-_RATES:], 0.5)) is not None:
                rate, unit = shown, name
        left = steps_left(curve)
        return Progress(
            step=step,
            total_steps=curve.total_steps,
            metric=metric,
            value=last.value if last is not None else None,
            recent=curve.values(metric)[-MAX_RECENT_VALUES:] if metric else [],
            steps=curve.steps(metric)[-MAX_RECENT_VALUES:] if metric else [],
            rate=rate,
            unit=unit,
            seconds_left=None if left is None or pace is None else left * pace,
        )

    def _measure_step_time(self, now: float, step: int | None) -> float | None:
        """Add an observation of a step; return the measured seconds per step."""
        if step is None or (self._seen and step < self._seen[-1][1]):
            self._seen.clear()
        if step is not None:
            self._seen.append((now, step))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW:
            self._seen.popleft()
        if len(self._seen) < 3:
            return None
        # The first observation is excluded, because its step was already in the log.
        (begun, first), (ended, last) = self._seen[1], self._seen[-1]
        return (ended - begun) / (last - first) if ended - begun > _LEAST and last > first else None


def _job_of(status: JobStatus) -> SlurmJob:
    assert status.job is not None  # all jobs come from the queue
    return status.job


def _find_job_ids(context: Context, words: Sequence[str]) -> tuple[list[str], Context]:
    """Find the Slurm ids of words, and the context of the Slurm installation that has them."""
    default = find_slurm_conf(context, History(run_id=""))
    confs: dict[str, str | None] = {}
    for word in words:
        found = find_run_or_sweep(context.runs_dir, word)
        if found is None and not is_job_id(word):
            raise unknown_run_error(context, word)
        if found is None:
            confs[word] = default
            continue
        history = read_history(runs_of(found)[0])
        if (error := copied_run_error(history, "top")) is not None:
            raise error
        if history.job_id is None:
            raise InputError(
                f"{word}: not a Slurm job: it runs on this machine",
                fix=f"hpcrun logs -f {word}",
            )
        is_sweep = isinstance(found, SweepFolder)
        job_id = array_job_id(history.job_id) if is_sweep else history.job_id
        confs[job_id] = find_slurm_conf(context, history) or default
    if len(set(confs.values())) > 1:
        raise InputError(
            f"{', '.join(words)}: jobs of several clusters: "
            f"{', '.join(sorted(set(map(str, confs.values()))))}",
            fix="run hpcrun top for each",
        )
    conf = next(iter(confs.values()), None)
    if conf and conf != default:
        if is_slurm_conf_missing(context, conf):
            raise OutOfReach(f"{conf}, with which the job was submitted, is not on this machine")
        cluster = structs.replace(context.cluster, slurm_conf=conf)
        context = structs.replace(context, cluster=cluster)
    return list(confs), context


def _sort_key(status: JobStatus) -> tuple[bool, int]:
    number = _job_of(status).number
    at = int(number) if is_whole_number(number) else 0
    return status.state == "PENDING", at if status.state == "PENDING" else -at
