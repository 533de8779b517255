"""Builds the rows of a listing, with few file accesses and one query to Slurm."""

from __future__ import annotations

import calendar
import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs

from hpcrun.context import Context
from hpcrun.errors import HpcrunError
from hpcrun.files import read_plain
from hpcrun.monitor.status import (
    ACCOUNTING_DELAY_S,
    SlurmAnswers,
    SlurmCache,
    add_details,
    cache_final_state,
    determine_status,
    find_cached_row,
    find_slurm_conf,
    find_successor_job,
    query_slurm,
    remove_secrets,
    start_thread,
)
from hpcrun.monitor.targets import fetch_records, fetch_run_names, list_names, run_name
from hpcrun.runs import (
    ARRAY,
    LOST,
    NOT_SUBMITTED,
    OK_STATES,
    RUN_ID,
    TASK_ID,
    CachedState,
    CachedSweep,
    History,
    JobStatus,
    Progress,
    RunFolder,
    RunRecords,
    Submitted,
    Sweep,
    SweepFolder,
    Task,
    TaskEnd,
    Verdict,
    cache_record,
    derive_task_record,
    detach_copied_record,
    is_final_state,
    parse_sweep_id,
    read_history_summary,
    read_mtime_ns,
    read_optional_record,
    read_record,
    sweep_folder_name,
)
from hpcrun.slurm import ACTIVE as RUNNING_STATES
from hpcrun.slurm import FINAL, UNKNOWN, WAITING, is_final
from hpcrun.text import json_number

# A job that ended this long ago cannot be requeued: squeue has forgotten it (MinJobAge).
REQUEUE_WINDOW_S = 86400.0
# The runs of a sweep whose logs a listing reads; a larger sweep has no step and loss in its row.
_MAX_LOGS_PER_SWEEP = 64


# The words of hpcrun status --state, in upper case.
LISTED_STATES = WAITING | RUNNING_STATES | FINAL | {UNKNOWN, LOST, NOT_SUBMITTED, "ACTIVE"}


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs a listing shows.

    Attributes:
        name: A pattern of fnmatch that the run's name matches; "" matches all.
        since: The earliest submission, in seconds since the epoch.
        states: Names of states in upper case; of a sweep, one run in such a state suffices. ACTIVE
            means every state that is not final, FAILED every end but COMPLETED and CANCELLED.
        project: The absolute path of the project, or its last component; "" matches all.
    """

    name: str = ""
    since: float | None = None
    states: frozenset[str] = frozenset()
    project: str = ""

    def matches_id(self, run_id: str) -> bool:
        """Whether name and time of submission match; both are part of the id."""
        if self.since is not None and _submission_time(run_id) < self.since:
            return False
        task = TASK_ID.fullmatch(run_id)
        return not self.name or fnmatchcase(
            run_name(task[1] + task[3] if task else run_id), self.name
        )

    @property
    def reads_rows(self) -> bool:
        """True if a match is known only when the row of a run is built."""
        return bool(self.states or self.project)

    def matches_row(self, row: JobStatus) -> bool:
        """Whether project and state match."""
        project = row.project or ""
        if self.project and self.project not in (project, project.rpartition("/")[2]):
            return False
        return self.matches_state(row)

    def matches_state(self, row: JobStatus) -> bool:
        """Whether the state of the run, or of one run of the sweep, is among the states."""
        if not self.states:
            return True
        of_sweep = row.states or {}
        found = {state for state, count in of_sweep.items() if count} or {row.state}
        failed = (one for one in found if one not in (*OK_STATES, "CANCELLED"))
        if any(map(is_final_state, failed)):
            found.add("FAILED")
        if not row.final:
            found.add("ACTIVE")
        return bool(self.states & found)


def _submission_time(run_id: str) -> float:
    """Return the time of submission in a run id, in seconds since the epoch; inf if unreadable."""
    try:
        return calendar.timegm(time.strptime(run_id[:15], "%Y%m%d-%H%M%S"))
    except ValueError:
        return math.inf


SortKey = Literal["loss", "step", "time", "gpu-hours", "name"]


def sort_key(row: JobStatus, by: SortKey) -> tuple[bool, float | str]:
    """Return the key by which rows are sorted: the best first, and unknown values last."""
    value: float | None
    if by == "name":
        return False, row.name
    if by == "loss":
        value = row.loss if row.loss is not None and math.isfinite(row.loss) else None
        return value is None, value or 0.0
    value = {"step": row.step, "time": row.elapsed, "gpu-hours": row.gpu_hours}[by]
    return value is None, -(value or 0.0)


def list_rows(
    context: Context,
    count: int | None,
    *,
    each_task: bool = False,
    only: RunFilter | None = None,
    sort: SortKey | None = None,
    cache: SlurmCache,
) -> tuple[list[JobStatus], int, str]:
    """Determine the states of the ``count`` newest runs, None for all; a sweep counts as one.

    ``each_task`` gives the runs of sweeps rows of their own, and ``only`` selects runs. With
    ``sort``, the first ``count`` rows in this order are returned instead of the newest. A Slurm
    whose answer ``cache`` has is not queried again; its silence is no error. Returns the rows,
    newest first, how many runs are older, and why newer ones may be missing, else "".
    """
    only = only or RunFilter()
    reads_all = only.reads_rows or sort is not None
    read_count = None if reads_all else count

    def newest() -> tuple[list[Path], int]:
        chosen = _select_names(list_names(context.runs_dir), each_task=each_task)
        chosen = [name for name in chosen if only.matches_id(name.removesuffix(ARRAY))]
        is_run = (name for name in chosen if RUN_ID.fullmatch(name.removesuffix(ARRAY)))
        return [context.runs_dir / name for name in islice(is_run, read_count)], len(chosen)

    if cache.fetch_error is None:
        is_far = context.cluster.host is not None
        cache.fetch_error = _fetch_and_prefetch(context, newest()[0], cache) if is_far else ""
    shown, all_of_them = newest()
    rows = _add_short_ids(_find_rows(context, shown, cache))
    rows = [structs.replace(row, cluster=context.cluster.name) for row in rows]
    if reads_all:
        rows = [row for row in rows if only.matches_row(row)]
    rows = _add_changed_arguments(rows)
    if reads_all:
        if sort is not None:
            rows.sort(key=lambda row: sort_key(row, sort))
        return rows[:count], max(0, len(rows) - (count or len(rows))), cache.fetch_error
    return rows, all_of_them - len(shown), cache.fetch_error


def _add_changed_arguments(rows: Sequence[JobStatus]) -> list[JobStatus]:
    """Add the arguments that differ between the rows of the same name and project."""
    jobs: dict[tuple[str | None, str], list[dict[str, str]]] = {}
    for row in rows:
        submitted = row.history.submitted
        if submitted is not None and submitted.arguments is not None:
            jobs.setdefault((row.project, row.name), []).append(submitted.arguments)
    differing: dict[tuple[str | None, str], list[str]] = {}
    for job, arguments in jobs.items():
        names = dict.fromkeys(name for each in arguments for name in each)
        differing[job] = [n for n in names if len({each.get(n) for each in arguments}) > 1]
    changed = []
    for row in rows:
        submitted = row.history.submitted
        if submitted is not None and submitted.arguments is not None:
            varied = differing[row.project, row.name]
            own = {name: submitted.arguments.get(name) for name in varied}
            row = structs.replace(row, changed=own)
        changed.append(row)
    return changed


def _fetch_and_prefetch(context: Context, folders: Sequence[Path], cache: SlurmCache) -> str:
    """Fetch the names of all runs and the new records of live ones; return why that failed, or "".

    Slurm is queried in parallel about the runs known locally, which saves a round trip.
    """
    live: list[RunFolder] = []
    known = _read_rows(context, folders, {}, live.extend)
    threads: list[threading.Thread | None] = []

    def prefetch() -> None:
        with contextlib.suppress(OSError, HpcrunError):
            cache.prefetched = {
                conf: query_slurm(context, conf, *question)
                for conf, question in _collect_queries(context, known).items()
            }

    silence = fetch_run_names(context, live, lambda: threads.append(start_thread(prefetch)))
    for thread in filter(None, threads):
        thread.join()
    return silence


def _read_rows(
    context: Context,
    folders: Sequence[Path],
    broken: dict[Path, str],
    fetch_live: Callable[[list[RunFolder]], object],
) -> dict[Path, _RunRow | _SweepRow]:
    """Read the cached rows of runs and sweeps; ``fetch_live`` fetches the runs that may be live."""
    found: dict[Path, _RunRow | _SweepRow] = {}
    for folder in folders:
        with _collect_errors(broken, folder):
            is_sweep = parse_sweep_id(folder.name) is not None
            found[folder] = _SweepRow(context, folder) if is_sweep else _RunRow(context, folder)
    unread = [one for one in found.values() if isinstance(one, _RunRow) and one.kept is None]
    fetch_live([run.run for run in unread])
    for run in unread:
        with _collect_errors(broken, run.run.path):
            run.read()
    return {folder: one for folder, one in found.items() if folder not in broken}


def _collect_queries(
    context: Context, rows: Mapping[Path, _RunRow | _SweepRow]
) -> dict[str | None, tuple[list[tuple[RunFolder, History]], list[str]]]:
    """Collect the queries for each Slurm, by its slurm.conf."""
    found: dict[str | None, tuple[list[tuple[RunFolder, History]], list[str]]] = {}
    for one in rows.values():
        judged, job_ids = one.collect_queries()
        if judged or job_ids:
            runs, also = found.setdefault(find_slurm_conf(context, one.history), ([], []))
            runs += judged
            also += job_ids
    return found


def _find_rows(context: Context, folders: Sequence[Path], cache: SlurmCache) -> list[JobStatus]:
    """Query each Slurm once about all runs and sweeps; an unreadable run does not hide others."""
    broken: dict[Path, str] = {}

    def fetch_live(live: list[RunFolder]) -> None:
        if not cache.is_refreshed:
            fetch_records(context, live)
            cache.is_refreshed = True

    found = _read_rows(context, folders, broken, fetch_live)
    questions = _collect_queries(context, found)
    news = [conf for conf in questions if conf not in cache.answers]
    for conf in news:
        ahead = cache.prefetched.get(conf)
        cache.answers[conf] = query_slurm(context, conf, *questions[conf], ahead)
    rows: dict[Path, JobStatus] = {}
    for folder, one in found.items():
        with _collect_errors(broken, folder):
            conf = find_slurm_conf(context, one.history)
            rows[folder] = one.build_row(cache.answers.get(conf), is_news=conf in news)
    return [rows.get(folder) or _build_broken_row(folder, broken[folder]) for folder in folders]


@contextlib.contextmanager
def _collect_errors(broken: dict[Path, str], folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, HpcrunError) as error:
        broken[folder] = str(error)


def _select_names(names: Sequence[str], *, each_task: bool) -> list[str]:
    """Select the folders that get rows: for sweeps either the array's or those of its runs."""
    sweeps = {name for name in names if "." in name and name.endswith(ARRAY)}

    def has_row(name: str) -> bool:
        if name in sweeps:
            return not each_task
        return each_task or sweep_folder_name(name) not in sweeps

    # There may be thousands: run ids are first recognised by their form alone. Only the names of
    # sweeps and their tasks contain a dot, apart from job names that contain one.
    return [name for name in names if name[:8].isdecimal() and ("." not in name or has_row(name))]


def _add_short_ids(rows: Sequence[JobStatus]) -> list[JobStatus]:
    """Add the shortest unambiguous name: the Slurm id for its newest run, else a run id's end."""
    taken: set[str] = set()
    tails = Counter(row.run_id.rpartition("-")[2] for row in rows)
    named = []
    for row in rows:
        word = row.job_id if row.job_id not in taken and not row.history.shares_job else None
        if word is not None:
            taken.add(word)
        tail = row.run_id.rpartition("-")[2]
        # A tail of digits only would be read as a Slurm id.
        is_clear = tails[tail] == 1 and not tail.isdecimal() and row.sweep is None
        named.append(structs.replace(row, short_id=word or (tail if is_clear else row.run_id)))
    return named


# ---- the row of one run


class _RunRow:
    """The row of one run, from its records or the cache, and Slurm's answer."""

    def __init__(self, context: Context, folder: Path) -> None:
        self.context = context
        self.run = RunFolder(folder)
        self.seen = read_optional_record(self.run.seen, CachedState)
        self.kept = find_cached_row(self.run, self.seen)
        known = {
            name: getattr(self.kept, name) for name in RunRecords.__struct_fields__ if self.kept
        }
        self.history = History(run_id=self.run.run_id, seen=self.seen, **known)

    def read(self) -> None:
        self.history = read_history_summary(self.run, self.seen)

    def collect_queries(self) -> tuple[list[tuple[RunFolder, History]], list[str]]:
        """Return the unfinished runs to query, and the job ids that may have been requeued."""
        kept, job_id = self.kept, self.history.job_id
        age = time.time() - (kept.ended_at or 0.0 if kept is not None else 0.0)
        by_record = self.seen is not None and self.seen.by_record
        # Slurm may still know more about the end than the run's own records.
        if kept is None or (by_record and job_id is not None and age <= ACCOUNTING_DELAY_S):
            return [(self.run, self.history)], []
        return [], [job_id] if job_id is not None and age < REQUEUE_WINDOW_S else []

    def build_row(self, answers: SlurmAnswers | None, *, is_news: bool) -> JobStatus:
        """Build the row, and cache it if the run has ended. Raises OSError, HpcrunError."""
        if self.kept is not None and not self._has_changed(answers):
            return add_details(determine_status(SlurmAnswers(), self.run, self.history), "row")
        if self.kept is not None:
            if is_news:
                fetch_records(self.context, [self.run])
            self.read()
        assert answers is not None  # collect_queries() included the run
        status = add_details(determine_status(answers, self.run, self.history), "row")
        if is_news:
            cache_final_state(status, with_row=True)
        return status

    def _has_changed(self, answers: SlurmAnswers | None) -> bool:
        """Return True if Slurm restarted the run, or now knows its end, too."""
        if answers is None or self.seen is None:
            return False
        job_id = self.history.job_id or ""
        shown = answers.rows.get(self.history.tag, {}).get(job_id)
        late = answers.accounts.get(job_id)
        is_again = shown is not None and not is_final(shown.state)
        is_known = shown is not None or (late is not None and is_final(late.state))
        return is_again or (self.seen.by_record and is_known)


def _build_row(folder: Path, verdict: Verdict, **known: Any) -> JobStatus:
    """Build a row without reading the records of the run or sweep."""
    sweep_id = parse_sweep_id(folder.name)
    return JobStatus(
        history=History(run_id=sweep_id or folder.name),
        run=None if sweep_id else RunFolder(folder),
        sweep=SweepFolder(folder) if sweep_id else None,
        verdict=verdict,
        **known,
    )


def _build_broken_row(folder: Path, why: str) -> JobStatus:
    # Final, because another query would not help.
    verdict = Verdict(state=UNKNOWN, final=True, reason=f"unreadable: {why}")
    name = folder.name[16:].removesuffix(ARRAY).rpartition("-")[0]
    return _build_row(
        folder, verdict, name=name, states={} if folder.name.endswith(ARRAY) else None
    )


# ---- the row of a whole sweep


class _SweepRow:
    """The row of a sweep, from Slurm's answer and the cached ends of its runs.

    Only runs that neither covers are read from their own folders.
    """

    def __init__(self, context: Context, path: Path) -> None:
        """Read the sweep's own records. Raises OSError, HpcrunError."""
        self.context = context
        self.folder = SweepFolder(path)
        self.seen = read_optional_record(self.folder.seen, CachedSweep) or CachedSweep(ends={})
        submitted = read_record(self.folder.submitted, Submitted)
        self.submitted = detach_copied_record(submitted, self.folder.sweep_id)
        record = read_record(self.folder.record, Sweep)
        self.name = record.name if record else self.folder.sweep_id
        self.numbers: Sequence[int] = record.numbers if record else ()
        # Secrets that appear after this belong to the next attempt.
        tasks = (self.folder.run(i) for i in self.numbers if str(i) not in self.seen.ends)
        self.secrets = {run.path: at for run in tasks if (at := read_mtime_ns(run.secrets))}
        self.chained = self._find_chained()
        # The history of the array itself, in the form of a run's.
        self.history = History(
            run_id=self.folder.sweep_id,
            submitted=self.submitted,
            runs_per_job=record.runs_per_job if record else 1,
        )

    def _find_chained(self) -> dict[int, tuple[RunFolder, History]]:
        """Find runs that continue as jobs of their own, which need a query of their own."""
        found: dict[int, tuple[RunFolder, History]] = {}
        script = self.folder.run(next(iter(self.numbers), 0)).script
        if self.submitted is None or len(self.seen.ends) == len(self.numbers):
            return found
        with contextlib.suppress(OSError):
            if b"export HPCRUN_SURVIVE=" not in read_plain(script):
                return found  # without survive: none does, and there may be thousands of runs
        for index in self.numbers:
            run = self.folder.run(index)
            if str(index) in self.seen.ends or not read_mtime_ns(run.attempts):
                continue
            history = read_history_summary(run, None, self._task_record(index))
            if history.chained or find_successor_job(history):
                found[index] = run, history
        return found

    def _task_record(self, index: int) -> tuple[Task, Submitted | None]:
        task = Task(sweep_id=self.folder.sweep_id, index=index, values={})
        return task, self.submitted and derive_task_record(self.submitted, index)

    @property
    def is_settled(self) -> bool:
        """Whether all runs ended so long ago that none can be requeued."""
        ended_at = self.seen.ended_at
        return ended_at is not None and time.time() - ended_at > REQUEUE_WINDOW_S

    def collect_queries(self) -> tuple[list[tuple[RunFolder, History]], list[str]]:
        """Return the array, as a run, to query, or the job ids that may have been requeued."""
        job_id = self.history.job_id
        by_record = any(end.by_record for end in self.seen.ends.values())
        if self.is_settled:
            return [], []
        if self.seen.ended_at is not None and not by_record and job_id is not None:
            return [], [job_id]  # squeue shows a requeued array
        return [(RunFolder(self.folder.path), self.history), *self.chained.values()], []

    def build_row(self, answers: SlurmAnswers | None, *, is_news: bool) -> JobStatus:
        """Build the row; ``answers`` None: not queried. Raises OSError, HpcrunError."""
        submitted, silence = self.submitted, ""
        ends = self.seen.ends
        if self.is_settled:
            states = Counter(end.state for end in self.seen.ends.values())
        else:
            states, ends, silence = self._find_states(answers, is_news=is_news)
        return _build_row(
            self.folder.path,
            _summarize_states(states),
            job_id=self.history.job_id,
            slurm_conf=submitted.slurm_conf if submitted else None,
            name=self.name,
            submitted_at=submitted.submitted_at if submitted else None,
            node_count=submitted.nodes if submitted else None,
            gpus_per_node=submitted.gpus_per_node if submitted else None,
            states=dict(states),
            sweep_project=submitted.project if submitted else None,
            out_of_reach=silence,
            progress=self._find_best_progress(ends),
        )

    @property
    def reads_logs(self) -> bool:
        """Whether the row has a step and loss. Of remote logs, not all may be on this machine."""
        return self.context.cluster.host is None and len(self.numbers) <= _MAX_LOGS_PER_SWEEP

    def _read_end(self, index: int, end: TaskEnd) -> TaskEnd:
        """Add the last step and loss of a run that has ended."""
        known = self.seen.ends.get(str(index))
        if known is not None and known.is_read and known.stamp == end.stamp:
            return structs.replace(end, is_read=True, step=known.step, loss=known.loss)
        if not self.reads_logs:
            return end
        point = self._read_last_point(index)
        loss = None if point.value is None else json_number(point.value)
        return structs.replace(end, is_read=True, step=point.step, loss=loss)

    def _read_last_point(self, index: int) -> Progress:
        from hpcrun.monitor.progress import last_point  # deferred: the log reader imports slowly

        patterns = self.submitted.log_patterns if self.submitted is not None else ()
        return last_point(self.folder.run(index), patterns)

    def _find_best_progress(self, ends: Mapping[str, TaskEnd]) -> Progress:
        """Return the lowest last loss of the runs, and its step; empty if a log was not read."""
        if not self.reads_logs or not all(end.is_read for end in ends.values()):
            return Progress()
        running = [n for n in self.numbers if str(n) not in ends]
        running = [n for n in running if read_mtime_ns(self.folder.run(n).attempts)]
        points = [(float(each.loss), each.step) for each in ends.values() if each.loss is not None]
        for index in running:
            point = self._read_last_point(index)
            points += [] if point.value is None else [(point.value, point.step)]
        finite = [point for point in points if math.isfinite(point[0])]
        if not finite:
            return Progress()
        loss, step = min(finite, key=lambda point: point[0])
        return Progress(step=step, metric="loss", value=loss)

    def _find_states(
        self, answers: SlurmAnswers | None, *, is_news: bool
    ) -> tuple[Counter[str], dict[str, TaskEnd], str]:
        """Count the runs by state and cache ends; also return these, and why Slurm did not answer.

        The last is "" if it did.
        """
        shown = self._shown_states(answers) if answers else {}
        unknown = {index for index in self.numbers if index not in shown}
        unknown -= {int(index) for index in self.seen.ends}
        if unknown and is_news:
            fetch_records(self.context, [self.folder.run(index) for index in unknown])
        if answers is not None and is_news:
            answers.secrets |= self.secrets
        states, silence = Counter[str](), ""
        ends: dict[str, TaskEnd] = {}
        for index in self.numbers:
            run, key = self.folder.run(index), str(index)
            known = self.seen.ends.get(key)
            is_live = index in shown and not is_final(shown[index])
            stamp = 0 if is_live else read_mtime_ns(run.attempts)
            end: TaskEnd | None = None
            if index in shown:
                state = shown[index]
                end = TaskEnd(state=state, stamp=stamp) if is_final(state) else None
                if answers is not None and end is not None:
                    remove_secrets(answers, run)
            elif known is not None and known.stamp == stamp:
                state, end = known.state, known
            else:
                state, end, quiet = self._look_at(run, index, stamp, answers)
                silence = silence or quiet
            states[state] += 1
            if end is not None:
                ends[key] = self._read_end(index, end)
        ended_at = None
        if self.numbers and len(ends) == len(self.numbers):
            ended_at = self.seen.ended_at or time.time()
        seen = CachedSweep(ends=ends, ended_at=ended_at)
        if seen != self.seen:
            cache_record(self.folder.seen, seen)
        return states, ends, silence

    def _shown_states(self, answers: SlurmAnswers) -> dict[int, str]:
        """Return the states that Slurm shows by task number; squeue overrides sacct."""
        tag, array = self.folder.path.name, self.history.job_id
        if self.history.shares_job:
            return {}  # the state of a shared job is not that of its runs
        over = [job for job in answers.accounts.values() if is_final(job.state)]
        live = [job for job in answers.rows.get(tag, {}).values() if job.state != UNKNOWN]
        return {
            int(job.task): job.state
            for job in (*over, *live)
            # The id may be unknown, or a cluster may have reused it for another array.
            if (job.folder or tag) == tag and job.task.isdecimal() and array in (job.array, None)
            if int(job.task) not in self.chained
        }

    def _look_at(
        self, run: RunFolder, index: int, stamp: int, answers: SlurmAnswers | None
    ) -> tuple[str, TaskEnd | None, str]:
        """Determine state, end and Slurm's silence for a run that Slurm does not show."""
        if answers is None:
            return UNKNOWN, None, ""
        seen = read_optional_record(run.seen, CachedState)
        status = determine_status(
            answers, run, read_history_summary(run, seen, self._task_record(index))
        )
        # Records of a LOST run may still arrive, unless it never began.
        is_sure = status.state != LOST or not status.attempts
        if not status.final or status.out_of_reach or not is_sure:
            return status.state, None, status.out_of_reach
        end = TaskEnd(state=status.state, stamp=stamp, by_record=status.source == "record")
        return status.state, end, ""


def _summarize_states(states: Mapping[str, int]) -> Verdict:
    """Summarize the runs of a sweep: the most active state, else the most common failure."""
    order = ("RUNNING", "COMPLETING", UNKNOWN, "PENDING")
    live = next((state for state in order if states.get(state)), None)
    live = live or next((state for state in states if not is_final_state(state)), None)
    if live is not None or not states:
        return Verdict(state=live or UNKNOWN)
    bad = [state for state in states if state not in OK_STATES]
    good = next((state for state in OK_STATES if state in states), "COMPLETED")
    worst = max(bad, key=lambda state: states[state], default=good)
    return Verdict(state=worst, final=True)
