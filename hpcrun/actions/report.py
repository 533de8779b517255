"""Measure the efficiency of runs and other jobs: hpcrun report."""

from __future__ import annotations

import contextlib
import csv
import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import structs

from hpcrun.actions.job_memory import count_step_flops
from hpcrun.actions.start_folder import find_start_folder
from hpcrun.context import Context, slurm_transport
from hpcrun.errors import HpcrunError, InputError
from hpcrun.files import write_atomically
from hpcrun.fit import find_peak_flops
from hpcrun.monitor import (
    RunFilter,
    SlurmCache,
    find_group,
    find_slurm_conf,
    find_target,
    find_targets_by_word,
    list_rows,
    measure_resources,
    parse_time,
    read_checkpoint_seconds,
    status_of,
    status_of_job,
    unknown_run_error,
    with_steps,
)
from hpcrun.runs import (
    History,
    JobStatus,
    NodeSeries,
    RunEfficiency,
    RunFolder,
    count_steps,
    measure_run,
    read_node_usage,
    read_usage,
    runs_of,
)
from hpcrun.slurm import JobAccounting, client

# The first step is noticed up to half a minute late, so the time after it must be much longer.
_MIN_MFU_S = 1200.0


def measure_runs(
    context: Context, words: Sequence[str], only: RunFilter | None = None
) -> tuple[list[RunEfficiency], str]:
    """Measure the named runs, or all that ``only`` selects, or the newest.

    Returns:
        The runs, the newest first if they were selected, and why Slurm did not answer, or "".

    Raises:
        InputError: A word names nothing.
        OutOfReach: Slurm did not answer about a job that hpcrun did not submit.
    """
    silence = ""
    if only is not None:
        rows, _, silence = list_rows(context, None, each_task=True, only=only, cache=SlurmCache())
        runs, job_ids = [row.run for row in rows if row.run is not None], list[str]()
    else:
        runs, job_ids = _find_runs(context, words)
    statuses = status_of(context, runs, level="detail")
    for job_id in job_ids:  # squeue does not show the GPUs of all nodes, but scontrol does
        statuses += status_of_job(context, job_id, in_detail=True)
    silent = next((status.out_of_reach for status in statuses if status.out_of_reach), "")
    records = {} if silence or silent else _query_records(context, statuses)
    measured = [_measure(context, status, records) for status in statuses]
    return measured, silence or silent


def _find_runs(context: Context, words: Sequence[str]) -> tuple[list[RunFolder], list[str]]:
    """Find the runs that words name, all runs of sweeps and groups, and the ids of other jobs."""
    if not words:
        newest = find_target(context, None)
        return ([], [newest]) if isinstance(newest, str) else (runs_of(newest), [])
    found = find_targets_by_word(context, words)
    runs: dict[RunFolder, None] = {}
    job_ids: dict[str, None] = {}
    for word in words:
        target = found[word]
        if isinstance(target, str):
            job_ids[target] = None
            continue
        group = [target] if target is not None else find_group(context, word)
        if not group:
            raise unknown_run_error(context, word)
        runs.update(dict.fromkeys(run for one in group for run in runs_of(one)))
    return list(runs), list(job_ids)


def _list_jobs(history: History) -> list[str]:
    """Return the Slurm jobs in which the attempts of a run ran, each once.

    A job that several runs share has no use or energy of a single run.
    """
    if history.shares_job:
        return []
    begun = [each.begin.job_id for each in history.attempts if each.begin and each.begin.job_id]
    return list(dict.fromkeys(begun))


def _query_records(
    context: Context, statuses: Sequence[JobStatus]
) -> dict[tuple[str | None, str], JobAccounting]:
    """Query Slurm's records of all jobs, by slurm.conf and job id; {} without accounting."""
    asked: dict[str | None, list[str]] = {}
    for status in statuses:
        jobs = _list_jobs(status.history)
        if status.run is None and status.job_id:
            jobs = [status.job_id]
        if jobs and not status.is_local:
            asked.setdefault(find_slurm_conf(context, status.history), []).extend(jobs)
    found: dict[tuple[str | None, str], JobAccounting] = {}
    for conf, job_ids in asked.items():
        with contextlib.suppress(HpcrunError):  # the runs' own records suffice for the rest
            answer = client.query_reports(slurm_transport(context, conf), job_ids)
            found |= {(conf, job_id): record for job_id, record in answer.items()}
    return found


def _measure(
    context: Context, status: JobStatus, records: dict[tuple[str | None, str], JobAccounting]
) -> RunEfficiency:
    run, conf = status.run, find_slurm_conf(context, status.history)
    jobs = _list_jobs(status.history) if run is not None else [status.job_id or ""]
    known = [records[conf, job] for job in jobs if (conf, job) in records]
    usage: list[NodeSeries] = []
    saving: dict[int, float] = {}
    for attempt in status.history.attempts if run is not None else ():
        assert run is not None
        usage += read_node_usage(run, attempt.index)
        # Of logs on a cluster behind ssh only the ends are on this machine.
        if context.cluster.host is None:
            seconds = read_checkpoint_seconds(run, attempt.index)
            if seconds is not None:
                saving[attempt.index] = seconds
    if known:
        status = structs.replace(status, account=known[-1])
    last = [node for node in usage if node.attempt == usage[-1].attempt]
    return measure_run(
        status,
        usage=usage,
        used=measure_resources(status, last),
        accounts=known if _has_all_records(status.history, known) else [],
        queue_seconds=_queue_seconds(known[0]) if known else None,
        saving_seconds=saving,
        mfu=_measure_mfu(context, status),
        factors=context.cluster.cost,
        now=time.time(),
    )


def _measure_mfu(context: Context, status: JobStatus) -> float | None:
    """Return the model FLOPs utilization after the first steps; None unless all of it is known."""
    run, plan = status.run, status.plan
    # Models and whole logs of a cluster behind ssh are not on this machine.
    if run is None or plan is None or context.cluster.host is not None or not plan.world_size:
        return None
    names = {rank.gpu for rank in read_usage(run).values()}
    peak = find_peak_flops(name) if len(names) == 1 and (name := names.pop()) else None
    if peak is None:
        return None
    folder = find_start_folder(context, plan.start_dir, plan.project_dir)
    per_step = count_step_flops(plan, context.environ, folder)
    if per_step is None:
        return None
    attempts = with_steps(run, status.history.attempts, plan.log_patterns)
    steps, seconds = count_steps(attempts, status)
    if seconds < _MIN_MFU_S:
        return None
    mfu = per_step * steps / (seconds * peak * plan.world_size)
    return mfu if mfu < 1 else None  # the steps are not what they seem


def _queue_seconds(record: JobAccounting) -> float | None:
    """Return the seconds from a job's submission to its start; None if it has not started."""
    submitted, started = parse_time(record.submitted), parse_time(record.started)
    if submitted is None or started is None:
        return None
    return max(0.0, (started - submitted).total_seconds())


def _has_all_records(history: History, known: Sequence[JobAccounting]) -> bool:
    """Return False if Slurm's records lack an attempt: of a requeued job only the last is shown."""
    ends = [each.end.next if each.end is not None else None for each in history.attempts[:-1]]
    jobs = [each.begin.job_id if each.begin is not None else None for each in history.attempts]
    pairs = zip(jobs, jobs[1:], ends, strict=False)
    is_requeued = any(a == b and after != "relaunch" for a, b, after in pairs)
    return not is_requeued and len(known) == len(set(jobs) or {None})


def check_report_files(context: Context, files: dict[str, str | None]) -> None:
    """Raise InputError if an output file cannot be written."""
    for name, file in files.items():
        path = context.cwd / file if file is not None else None
        if path is not None and path.is_dir():
            raise InputError(f"--{name} {file}: a folder", fix="name a file in it")
        if path is not None and not path.parent.is_dir():
            raise InputError(f"--{name} {file}: no such folder", fix=f"mkdir -p {path.parent}")


def write_report_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows as CSV, with their keys as the header. Raises InputError."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["run_id"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with write_atomically(path) as file:
        file.write(text.getvalue().encode("utf-8", "replace"))
