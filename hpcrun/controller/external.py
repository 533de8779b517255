"""The states of Slurm jobs that hpcrun did not submit: one squeue and at most one sacct."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from threading import Thread

from msgspec import structs

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.controller.targets import unknown_job
from hpcrun.errors import OutOfReach
from hpcrun.runs.records import History
from hpcrun.runs.status import JobStatus
from hpcrun.runs.verdict import Evidence, decide
from hpcrun.slurm.jobs import SlurmJob, is_part, is_possible


def status_of_jobs(
    context: Context, job_ids: Sequence[str], *, ended: bool = False
) -> dict[str, list[JobStatus]]:
    """Ask once about jobs that hpcrun did not submit; of an array named as a whole all tasks.

    What Slurm does not know has an empty list. ``ended``: those tasks of a live array too that are
    over so long that the accounting alone knows them. Raises OutOfReach.
    """
    # A number that no job can have would be an error for the whole question.
    asked = [job_id for job_id in job_ids if is_possible(job_id)]
    if not asked:
        return {job_id: [] for job_id in job_ids}
    transport = slurm_transport(context)
    rows = scheduler.queue(transport, asked, strict=True)
    queued = _by_job(rows, asked)
    # A task by its own number, as $SLURM_JOB_ID has it: the rows have the task's other name.
    odd = len(rows) > sum(map(len, queued.values()))
    for job_id in [job_id for job_id in asked if odd and not queued[job_id]]:
        some = rows if len(asked) == 1 else scheduler.queue(transport, [job_id])
        queued[job_id] = {row.job_id: row for row in some if is_part(row.job_id)}
    missing = [
        job_id
        for job_id in asked
        if not queued[job_id]
        or (ended and not is_part(job_id) and any(map(is_part, queued[job_id])))
    ]
    accounts = None
    try:
        accounts = scheduler.accounting(transport, missing)
    except OutOfReach:
        if any(not queued[job_id] for job_id in missing):
            raise
    accounted = _by_job(accounts or [], missing)
    found: dict[str, list[JobStatus]] = {}
    for job_id in job_ids:
        live, over = queued.get(job_id, {}), accounted.get(job_id, {})
        # The tasks that wait share a row of the accounting, and have their own in the queue.
        known = {*live, *(name for name in over if not live or "[" not in name)}
        found[job_id] = []
        for name in sorted(known, key=_task_order):
            row, account, history = live.get(name), over.get(name), History(run_id=name)
            verdict = decide(Evidence(history=history, now=time.time(), queue=row, account=account))
            found[job_id].append(JobStatus.of_job(name, verdict, row or account))
    return found


def status_of_job(context: Context, job_id: str, *, in_detail: bool = False) -> list[JobStatus]:
    """Ask Slurm about a job that hpcrun did not submit, or about all tasks of an array.

    ``in_detail``: with what scontrol alone knows, which is asked beside the others: on a busy
    cluster each answer takes long. Raises InputError for an unknown job, OutOfReach.
    """
    shown: list[SlurmJob] = []
    transport = slurm_transport(context)

    def show() -> None:
        with contextlib.suppress(OutOfReach):
            shown.extend(scheduler.show_jobs(transport, job_id))

    beside = Thread(target=show, daemon=True) if in_detail else None
    try:
        if beside is not None:
            beside.start()
    except RuntimeError:  # as many threads run as are allowed here
        beside = None
        show()
    statuses = status_of_jobs(context, [job_id], ended=True)[job_id]
    if beside is not None:
        beside.join()
    if not statuses:
        raise unknown_job(job_id)
    details = {job.job_id: job for job in shown}
    only = shown[0] if len(shown) == 1 and len(statuses) == 1 else None
    return [_with_details(status, details.get(status.job_id or "", only)) for status in statuses]


def _with_details(status: JobStatus, details: SlurmJob | None) -> JobStatus:
    """Add what scontrol alone knows to what squeue or sacct answered."""
    job = status.job
    if details is None or job is None:
        return status
    names = [name for name in SlurmJob.__struct_fields__ if getattr(job, name) in ("", None, ())]
    added = {name: getattr(details, name) for name in (*names, "nodes", "cpus")}
    return structs.replace(status, job=structs.replace(job, **added))


def _by_job(rows: Sequence[SlurmJob], job_ids: Sequence[str]) -> dict[str, dict[str, SlurmJob]]:
    """Sort rows by the jobs that were asked about, of each its tasks and parts by their ids."""
    found: dict[str, dict[str, SlurmJob]] = {job_id: {} for job_id in job_ids}
    for row in rows:
        for job_id in {row.job_id, row.array}:
            if job_id in found:
                found[job_id][row.job_id] = row
    return found


def _task_order(job_id: str) -> tuple[int, str]:
    task = job_id.replace("+", "_").partition("_")[2]
    return (int(task), "") if task.isdigit() else (-1, job_id)
