"""Determines the states of jobs with one squeue and at most one sacct for any number of jobs.

For runs, ``query_slurm`` runs the commands, ``determine_status`` combines their output with a run's
records, ``add_details`` reads the run's other files, and ``cache_final_state`` stores a final state
that Slurm will forget.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct, field, structs

from hpcrun.context import (
    Context,
    current_slurm_conf,
    is_slurm_conf_missing,
    slurm_transport,
    trusted_slurm_conf,
)
from hpcrun.errors import OutOfReach
from hpcrun.monitor.disk import describe_full_disk
from hpcrun.monitor.submitted import record_recovered_job
from hpcrun.monitor.targets import fetch_records, unknown_job_error
from hpcrun.plan import Plan, parse_seconds
from hpcrun.runs import (
    LOST,
    LOST_REPLY_WINDOW_S,
    NOT_SUBMITTED,
    CachedRow,
    CachedState,
    History,
    JobEvidence,
    JobStatus,
    Progress,
    RunFolder,
    RunRecords,
    Submitted,
    Verdict,
    WhyWaiting,
    cache_record,
    compute_cost,
    compute_elapsed,
    count_nodes,
    decide_state,
    read_ended_nodes,
    read_history,
    read_mtime_ns,
    read_plan,
    read_record,
    read_warnings,
    remove_secret_files,
)
from hpcrun.slurm import (
    UNKNOWN,
    WAITING,
    SlurmJob,
    array_job_id,
    client,
    is_final,
    is_task_id,
    is_valid_job_id,
    select_first_components,
    split_job_id,
)
from hpcrun.text import json_number
from hpcrun.views import format_cause
from hpcrun.why import CachedDiagnosis

# Slurm's accounting may lag; a run's own records are final only this many seconds after its end.
ACCOUNTING_DELAY_S = 3600.0
# Job ids in one command: its argument list has a size limit.
_MAX_JOBS_PER_QUERY = 1000

# How much to read about a run: its state, from Slurm and the records alone; also the columns of a
# listing, such as the last step and loss of its log; also details such as a full disk.
Level = Literal["state", "row", "detail"]


class SlurmAnswers(Struct, kw_only=True):
    """The answers of one Slurm about some runs.

    Attributes:
        silence: Why squeue gave no answer, else "".
        rows: Jobs that squeue printed, by the last part of their WorkDir and by job id.
        accounts: Jobs that sacct printed, by job id.
        about: The runs that the query was about.
        asked: The ids of jobs and arrays that were queried.
        secrets: The mtime_ns of each run's secrets file that existed before the query.
        gone: The slurm.conf, if it is no longer on this machine.
    """

    gone: str = ""
    about: frozenset[Path] = frozenset()
    asked: frozenset[str] = frozenset()
    secrets: dict[Path, int] = {}
    silence: str = ""
    rows: dict[str, dict[str, SlurmJob]] = {}
    accounts: dict[str, SlurmJob] = {}


class SlurmCache(Struct, kw_only=True):
    """Slurm's answers and fetched records that several listings of a watcher share.

    A watcher reads the runs' own files often and clears the cache when it queries Slurm again.

    Attributes:
        answers: What Slurm answered, by its slurm.conf.
        prefetched: Answers that were queried while the records of runs were being fetched.
        fetch_error: Why the names of runs could not be fetched, "" if they were; None: not tried.
        is_refreshed: Whether the records of live runs were fetched.
        waits: Why jobs are pending, by their ids; None: not queried.
    """

    answers: dict[str | None, SlurmAnswers] = field(default_factory=dict)
    prefetched: dict[str | None, SlurmAnswers] = field(default_factory=dict)
    fetch_error: str | None = None
    is_refreshed: bool = False
    waits: dict[str, WhyWaiting] | None = None

    def clear(self) -> None:
        """Forget everything, so that the next listing queries Slurm."""
        self.answers, self.prefetched = {}, {}
        self.fetch_error, self.is_refreshed, self.waits = None, False, None


def status_of(
    context: Context,
    runs: Sequence[RunFolder],
    cache: SlurmCache | None = None,
    *,
    level: Level = "state",
) -> list[JobStatus]:
    """Determine the states of some runs, with their plans. An unreachable Slurm is no error.

    A Slurm whose answer ``cache`` has is not queried again.
    """
    cache = SlurmCache() if cache is None else cache
    by_conf: dict[str | None, list[tuple[RunFolder, History]]] = {}
    for run in runs:
        history = read_history(run)
        by_conf.setdefault(find_slurm_conf(context, history), []).append((run, history))
    found: dict[Path, JobStatus] = {}
    for conf, group in by_conf.items():
        is_news = conf not in cache.answers
        if is_news:
            fetch_records(context, [run for run, _ in group])
            cache.answers[conf] = query_slurm(context, conf, group)
        for run, _ in group:
            # Read the records again: the job may have ended during the query.
            status = determine_status(cache.answers[conf], run, read_history(run))
            if is_news:
                cache_final_state(status)
            found[run.path] = add_details(structs.replace(status, plan=read_plan(run)), level)
    return [found[run.path] for run in runs]


def find_slurm_conf(context: Context, history: History) -> str | None:
    """Return the slurm.conf that a run was submitted with, which selects the Slurm to query."""
    if history.submitted is not None:
        return trusted_slurm_conf(context, history.submitted.slurm_conf)
    return current_slurm_conf(context)


def find_successor_job(history: History) -> str | None:
    """Return the job that takes over if the last attempt's job ends without a record."""
    known = history.known
    begin = known.begin if known is not None and known.end is None else None
    return begin.successor if begin is not None and history.copy_of is None else None


# ---- querying


def query_slurm(
    context: Context,
    conf: str | None,
    runs: Sequence[tuple[RunFolder, History]],
    also: Sequence[str] = (),
    ahead: SlurmAnswers | None = None,
) -> SlurmAnswers:
    """Query one Slurm about the runs that were submitted to it.

    Args:
        runs: Queried with one squeue, and with sacct if squeue does not show them.
        also: Other job ids, queried with squeue only.
        ahead: Answers that were prefetched; used if they cover all runs and jobs.
    """
    transport = slurm_transport(context, conf)
    # Runs of this machine alone need no Slurm.
    job_ids = [history.job_id for _, history in runs if not history.is_local] + [*also]
    job_ids += [job_id for _, history in runs if (job_id := find_successor_job(history))]
    asked = _collapse_arrays(job_ids)
    about = frozenset(run.path for run, _ in runs)
    if ahead is not None and about <= ahead.about and ahead.asked.issuperset(asked):
        return ahead
    answers = SlurmAnswers(
        about=about,
        gone=conf or "" if is_slurm_conf_missing(context, conf) else "",
        asked=frozenset(asked),
        secrets={run.path: stamp for run, _ in runs if (stamp := read_mtime_ns(run.secrets))},
    )
    if answers.gone or not job_ids:
        return answers
    # Job ids also find colleagues' jobs. If one is unknown because sbatch's reply was lost, all
    # jobs of the user are listed. A command-line argument is limited to 128 KiB.
    by_ids = None not in job_ids and len(asked) <= _MAX_JOBS_PER_QUERY
    # A run whose end no other record has is lost if Slurm does not know it.
    is_strict = any(
        history.end is None and history.seen is None and not history.is_local for _, history in runs
    )
    try:
        found = client.query_queue(transport, asked if by_ids else (), strict=is_strict)
    except OutOfReach as error:
        # If squeue timed out, sacct would time out too.
        answers.silence, found = error.message, []
        if error.maybe_done:
            return answers
    # Indexed, because there may be thousands of rows and each run looks up its own.
    for row in select_first_components(found):
        answers.rows.setdefault(row.folder, {})[row.job_id] = row
    for run, history in runs:
        if history.submitted is None:
            _record_recovered_job(context, run, history, answers.rows)
    missing = _collapse_arrays(
        [history.job_id for _, history in runs if _find_row(history, answers.rows) is None]
    )
    for start in range(0, len(missing), _MAX_JOBS_PER_QUERY):
        answer = None
        with contextlib.suppress(OutOfReach):
            answer = client.query_accounting(
                transport, missing[start : start + _MAX_JOBS_PER_QUERY]
            )
        if answer is None:
            break
        answers.accounts |= {row.job_id: row for row in select_first_components(answer)}
    return answers


def _record_recovered_job(
    context: Context, run: RunFolder, history: History, rows: Mapping[str, Mapping[str, SlurmJob]]
) -> None:
    """Record the job id of a run, or of its sweep, whose submission was interrupted before that."""
    folder = run.path.with_name(history.tag) if history.task is not None else run.path
    known = (row.array for row in rows.get(folder.name, {}).values() if row.is_taken)
    if job_id := next(known, array_job_id(history.job_id or "")):
        record_recovered_job(context, folder, job_id)


def _collapse_arrays(job_ids: Sequence[str | None]) -> list[str]:
    """Replace tasks by their arrays: a shorter list, and sacct does not know pending tasks."""
    return list(dict.fromkeys(array_job_id(job_id) for job_id in job_ids if job_id))


# ---- determining states


def determine_status(answers: SlurmAnswers, run: RunFolder, history: History) -> JobStatus:
    """Determine a run's state from Slurm's answers and its own records, without its plan."""
    row = _find_row(history, answers.rows)
    heir = answers.rows.get(run.run_id, {}).get(find_successor_job(history) or "")
    is_over = row is None or is_final(row.state)
    if heir is not None and not is_final(heir.state) and is_over and not history.cancelled:
        # The node failed before it could write a record.
        history = structs.replace(history, gone_on_as=heir.job_id)
        row = heir
    job_id = history.job_id or (row.job_id if row else None)
    account = _check_same_run(answers.accounts.get(job_id or ""), history.tag)
    silence = "" if history.is_local else answers.silence
    # A run submitted here may belong to a removed sandbox. os.uname() avoids importing socket.
    is_ours = history.submitted is not None and history.submitted.host == os.uname().nodename
    if answers.gone and not history.is_local and not is_ours:
        silence = f"{answers.gone}, with which the job was submitted, is not on this machine"
    missing_from_array = (
        history.task is not None
        and account is None
        and row is None
        and _was_removed_from_array(job_id, history.tag, answers)
    )
    verdict = decide_state(
        JobEvidence(
            history=history,
            now=time.time(),
            in_reach=not silence,
            queue=row,
            account=account,
            limit=_read_time_limit(run, history),
            missing_from_array=missing_from_array,
        )
    )
    if verdict.state == LOST and job_id and array_job_id(job_id) not in answers.asked:
        # The job was submitted after the query.
        verdict = Verdict(state=UNKNOWN, reason="submitted a moment ago")
    # Until Slurm reports the end, another attempt may follow.
    if verdict.final and not silence and (account is None or is_final(account.state)):
        # A submission in progress has the folder but no job yet.
        is_young = verdict.state == NOT_SUBMITTED and history.copy_of is None
        remove_secrets(answers, run, least_age=LOST_REPLY_WINDOW_S if is_young else 0.0)
    return JobStatus(
        run=run,
        history=history,
        verdict=verdict,
        job=row or account,
        job_id=job_id,
        slurm_conf=history.submitted.slurm_conf if history.submitted else None,
        values=history.task.values if history.task else {},
        out_of_reach=silence,
    )


def remove_secrets(answers: SlurmAnswers, run: RunFolder, *, least_age: float = 0.0) -> None:
    """Remove the secrets of a finished run whose job could not remove them itself.

    Secrets written during or after the query belong to the next attempt and are kept, as are those
    younger than ``least_age`` seconds.
    """
    stamp = answers.secrets.get(run.path)
    if stamp and stamp == read_mtime_ns(run.secrets) and time.time() - stamp / 1e9 >= least_age:
        remove_secret_files(run)


def _find_row(history: History, rows: Mapping[str, Mapping[str, SlurmJob]]) -> SlurmJob | None:
    """Find the run's row by its WorkDir: a cluster may reuse job ids."""
    task, submitted = history.task, history.submitted
    own = rows.get(history.tag, {})
    if submitted is not None:
        return own.get(history.job_id or "")
    end = f"_{task.index // history.runs_per_job}" if task is not None else ""
    return next((row for row in own.values() if row.is_taken and row.job_id.endswith(end)), None)


def _check_same_run(job: SlurmJob | None, tag: str) -> SlurmJob | None:
    """Return the job if its WorkDir is the run's, else None: a cluster may reuse job ids."""
    return job if job is not None and (job.folder or tag) == tag else None


def _was_removed_from_array(job_id: str | None, tag: str, answers: SlurmAnswers) -> bool:
    """Return True if Slurm shows the array of a task, but not the task itself.

    A row of squeue without a task number, such as 7, is what remains of an array after its last
    pending tasks were cancelled.
    """
    array = array_job_id(job_id or "")
    left = answers.rows.get(tag, {}).get(array)
    return (left is not None and is_final(left.state)) or any(
        row.array == array and _check_same_run(row, tag) is not None
        for row in answers.accounts.values()
    )


def _read_time_limit(run: RunFolder, history: History) -> float | None:
    """Return the time limit in seconds if it may explain the job's end, else None."""
    is_open = history.end is not None and history.end.stopped_by and history.cancelled is None
    if not is_open or history.is_local:
        return None
    plan = read_plan(run)
    limit = dict(plan.directives).get("time") if plan is not None else None
    if not limit:
        return None

    try:
        return parse_seconds(limit) or None  # 0 is no limit (sbatch.1, --time)
    except ValueError:
        return None


# ---- details


def add_details(status: JobStatus, level: Level) -> JobStatus:
    """Add the details that ``level`` requires, from the end of the log and, if needed, the plan."""
    run, submitted = status.run, status.history.submitted
    if level == "state" or run is None:
        return status
    failed, failure = status, status.end.first_failure if status.end else None
    if failure is not None and failure.rank is None and status.plan is None:
        # Only the plan distinguishes a launcher from a bare command.
        failed = structs.replace(status, plan=read_plan(run))
    if submitted is not None and submitted.nodes is not None:
        shape: Submitted | Plan | None = submitted
        nodes: int | None = submitted.nodes
    else:
        shape = status.plan or read_plan(run)
        nodes = shape.all_nodes if shape is not None else None
    gpus = shape.gpus_per_node if shape is not None else None
    is_range = isinstance(shape, Plan) and bool(shape.node_range)
    kept = find_cached_row(run, status.history.seen) if status.final else None
    elapsed = _compute_elapsed(status)
    if elapsed is None and kept is not None:
        elapsed = kept.elapsed
    held = None  # seconds that the run has held its nodes for, times their number
    attempts = status.history.attempts
    if is_range and len(attempts) > 1:
        attempts = read_history(run).attempts  # when each began, too
    if gpus and attempts:
        ran = [*(attempt.seconds() for attempt in attempts[:-1]), elapsed]
        had = [count_nodes(each) if is_range and each.begin else nodes or 1 for each in attempts]
        held = sum((s or 0.0) * count for s, count in zip(ran, had, strict=True))
    if level == "detail":
        status = _add_cost(_add_warnings(_add_notes(status, run), run), gpus or 0, elapsed)
    return structs.replace(
        status,
        name=(shape.name if shape is not None else None) or run.run_id,
        submitted_at=submitted.submitted_at if submitted else None,
        elapsed=elapsed,
        limit=status.job.limit_seconds if status.job else None,
        node_count=nodes,
        gpus_per_node=gpus,
        progress=_read_progress(status, run, kept),
        gpu_hours=None if held is None or gpus is None else held * gpus / 3600,
        remark=(_read_known_cause(status, run) if level == "row" else "") or failed.failure,
    )


def _read_known_cause(status: JobStatus, run: RunFolder) -> str:
    """Return why a run failed if that is cached: a listing does not read logs to find out."""
    if not status.final or status.ok or status.last is None or not run.why.exists():
        return ""

    kept = read_record(run.why, CachedDiagnosis)
    if kept is None or kept.stamp[1:3] != [status.state, str(status.last.index)]:
        return ""
    cause = kept.diagnosis.cause
    return format_cause(cause) if cause is not None and not cause.without_log else ""


def _read_progress(status: JobStatus, run: RunFolder, kept: CachedRow | None) -> Progress:
    """Read the last step and loss from the log, or from the cache of a finished run."""
    if kept is not None:
        metric, loss = (None, None) if kept.loss is None else ("loss", float(kept.loss))
        log = Path(kept.log) if kept.log else None
        return Progress(step=kept.step, value=loss, metric=metric, log=log)
    if not status.history.attempts:
        return Progress()
    from hpcrun.monitor.progress import last_point  # deferred: the log reader takes long to import

    source = status.plan or status.history.submitted
    return last_point(run, source.log_patterns if source else ())


def _compute_elapsed(status: JobStatus) -> float | None:
    """Return the seconds of the last attempt, from its record and, once it ended, from Slurm."""
    last = status.last
    own = last.seconds(time.time()) if last is not None and not status.final else None
    return own if own is not None else compute_elapsed(status.history, status.job)


def _add_cost(status: JobStatus, gpus_per_node: int, elapsed: float | None) -> JobStatus:
    """Add the cost of several attempts, and the first and last step of each from its log."""
    run, history = status.run, status.history
    if run is None or len(history.attempts) < 2:
        return status
    from hpcrun.monitor.progress import with_steps  # deferred: the log reader takes long to import

    plan = status.plan
    attempts = with_steps(run, history.attempts, plan.log_patterns if plan is not None else ())
    spare = plan.survive.spare_nodes if plan is not None else 0
    now = None if status.final else time.time()
    return structs.replace(
        status,
        history=structs.replace(history, attempts=attempts),
        cost=compute_cost(attempts, gpus_per_node, now, spare, elapsed),
    )


def _add_warnings(status: JobStatus, run: RunFolder) -> JobStatus:
    """Add the warnings of the node checks before each attempt."""
    attempts = [
        structs.replace(each, warnings=read_warnings(run.attempts / str(each.index)))
        for each in status.history.attempts
    ]
    return structs.replace(status, history=structs.replace(status.history, attempts=attempts))


def _add_notes(status: JobStatus, run: RunFolder) -> JobStatus:
    """Add notes about a full disk, which a run without room for its output cannot report, and about
    nodes on which the job's command has ended.
    """
    verdict = status.verdict
    if verdict.ok or verdict.state in WAITING:
        return status
    texts = [describe_full_disk(status.folder.path)]
    if not verdict.final and status.last is not None and status.plan is not None:
        ended = read_ended_nodes(run.attempts / str(status.last.index))
        texts.append(_describe_ended_nodes(ended, status.plan))
    notes = [*verdict.notes, *filter(None, texts)]
    return structs.replace(status, verdict=structs.replace(verdict, notes=notes))


def _describe_ended_nodes(ended: Sequence[int], plan: Plan) -> str:
    """Describe the nodes on which the command of a running job has ended; "" if on none."""
    nodes = plan.nodes
    if not ended or plan.launcher != "none" or plan.node_range or len(ended) >= nodes:
        return ""
    which = "node 0" if ended == [0] else f"{len(ended)} of {nodes} nodes"
    text = f"the command has ended on {which} and still runs on {nodes - len(ended)} of {nodes}"
    if 0 in ended and plan.ends_with != "first_node":
        text += "; with ends_with: first_node, the job ends when it has succeeded on node 0"
    return text


# ---- cache of final states


def cache_final_state(status: JobStatus, *, with_row: bool = False) -> None:
    """Cache a final state that Slurm will forget; ``with_row``: also the columns of a listing.

    A cached state that a requeue invalidated is removed. Runs of other users are not changed.
    """
    run, history, verdict = status.run, status.history, status.verdict
    if run is None or history.copy_of is not None:  # the records are those of the original run
        return
    if verdict.source == "squeue" and not verdict.final and history.seen is not None:
        with contextlib.suppress(OSError):
            run.seen.unlink(missing_ok=True)
    by_slurm = verdict.source in ("squeue", "sacct")
    # A job that was just found by its folder has no record yet.
    with_row = with_row and not status.out_of_reach and history.submitted is not None
    # If the run's own end record is incomplete, the accounting may still add to it.
    end = status.end
    is_whole = end is not None and (
        not status.notes or time.time() - end.ended_at > ACCOUNTING_DELAY_S
    )
    is_sure = verdict.source != "record" or is_whole
    if not verdict.final or not (by_slurm or (with_row and is_sure)):
        return
    seen = CachedState(
        state=verdict.state,
        reason=verdict.reason,
        attempts=len(history.attempts),
        by_record=verdict.source == "record",
        elapsed=status.elapsed_by_slurm,
        kept=_build_cached_row(status, run) if with_row else None,
    )
    old = history.seen
    if old is not None and not with_row:
        old = structs.replace(old, kept=None)  # do not drop the cached columns
    if seen != old:
        cache_record(run.seen, seen)


def _build_cached_row(status: JobStatus, run: RunFolder) -> CachedRow:
    ended_at = status.end.ended_at if status.end else None
    if ended_at is None and status.source == "squeue":
        ended_at = time.time()
    return CachedRow(
        **{name: getattr(status.history, name) for name in RunRecords.__struct_fields__},
        run_id=run.run_id,
        stamp=read_mtime_ns(run.attempts),
        ended_at=ended_at,
        elapsed=status.elapsed,
        step=status.step,
        loss=None if status.loss is None else json_number(status.loss),
        log=str(status.progress.log) if status.progress.log else None,
    )


def find_cached_row(run: RunFolder, seen: CachedState | None) -> CachedRow | None:
    """Return the cached columns of a run; None if it has had an attempt since."""
    kept = seen.kept if seen is not None else None
    if kept is None or kept.run_id != run.run_id or kept.stamp != read_mtime_ns(run.attempts):
        return None
    return kept


# ---- jobs that hpcrun did not submit


def status_of_jobs(
    context: Context, job_ids: Sequence[str], *, ended: bool = False
) -> dict[str, list[JobStatus]]:
    """Query jobs that hpcrun did not submit, including all tasks of an array.

    A job unknown to Slurm has an empty list. ``ended``: also list tasks of a live array that only
    the accounting still knows. Raises OutOfReach.
    """
    # squeue rejects the whole list if one number is out of range.
    asked = [job_id for job_id in job_ids if is_valid_job_id(job_id)]
    if not asked:
        return {job_id: [] for job_id in job_ids}
    transport = slurm_transport(context)
    rows = client.query_queue(transport, asked, strict=True)
    queued = _group_by_job(rows, asked)
    # A task may be named by its own $SLURM_JOB_ID, but rows have ARRAY_TASK ids.
    odd = len(rows) > sum(map(len, queued.values()))
    for job_id in [job_id for job_id in asked if odd and not queued[job_id]]:
        some = rows if len(asked) == 1 else client.query_queue(transport, [job_id])
        queued[job_id] = {row.job_id: row for row in some if is_task_id(row.job_id)}
    missing = [
        job_id
        for job_id in asked
        if not queued[job_id]
        or (ended and not is_task_id(job_id) and any(map(is_task_id, queued[job_id])))
    ]
    accounts = None
    try:
        accounts = client.query_accounting(transport, missing)
    except OutOfReach:
        if any(not queued[job_id] for job_id in missing):
            raise
    accounted = _group_by_job(accounts or [], missing)
    found: dict[str, list[JobStatus]] = {}
    for job_id in job_ids:
        live, over = queued.get(job_id, {}), accounted.get(job_id, {})
        # Pending tasks share one row of sacct, but have rows of their own in squeue.
        known = {*live, *(name for name in over if not live or "[" not in name)}
        found[job_id] = []
        for name in sorted(known, key=_task_order):
            row, account, history = live.get(name), over.get(name), History(run_id=name)
            verdict = decide_state(
                JobEvidence(history=history, now=time.time(), queue=row, account=account)
            )
            found[job_id].append(JobStatus.of_job(name, verdict, row or account))
    return found


def start_thread(work: Callable[..., None], *args: object) -> threading.Thread | None:
    """Run ``work`` on a thread. Where no more threads are allowed, run it now and return None."""
    thread = threading.Thread(target=work, args=args, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        work(*args)
        return None
    return thread


def status_of_job(context: Context, job_id: str, *, in_detail: bool = False) -> list[JobStatus]:
    """Query a job that hpcrun did not submit, or all tasks of an array.

    ``in_detail``: add what only scontrol shows. It runs in parallel, because a busy cluster answers
    slowly. Raises InputError for an unknown job, OutOfReach.
    """
    shown: list[SlurmJob] = []
    transport = slurm_transport(context)

    def show() -> None:
        with contextlib.suppress(OutOfReach):
            shown.extend(client.show_jobs(transport, job_id))

    beside = start_thread(show) if in_detail else None
    statuses = status_of_jobs(context, [job_id], ended=True)[job_id]
    if beside is not None:
        beside.join()
    if not statuses:
        raise unknown_job_error(job_id)
    details = {job.job_id: job for job in shown}
    only = shown[0] if len(shown) == 1 and len(statuses) == 1 else None
    return [_merge_details(status, details.get(status.job_id or "", only)) for status in statuses]


def _merge_details(status: JobStatus, details: SlurmJob | None) -> JobStatus:
    """Fill fields that squeue and sacct left empty from scontrol."""
    job = status.job
    if details is None or job is None:
        return status
    names = [name for name in SlurmJob.__struct_fields__ if getattr(job, name) in ("", None, ())]
    added = {name: getattr(details, name) for name in (*names, "nodes", "cpus")}
    return structs.replace(status, job=structs.replace(job, **added))


def _group_by_job(
    rows: Sequence[SlurmJob], job_ids: Sequence[str]
) -> dict[str, dict[str, SlurmJob]]:
    """Group rows by the jobs that were queried, with their tasks and parts by id."""
    found: dict[str, dict[str, SlurmJob]] = {job_id: {} for job_id in job_ids}
    for row in rows:
        for job_id in {row.job_id, row.array}:
            if job_id in found:
                found[job_id][row.job_id] = row
    return found


def _task_order(job_id: str) -> tuple[int, str]:
    _, task = split_job_id(job_id)
    return (int(task), "") if task.isdecimal() else (-1, job_id)
