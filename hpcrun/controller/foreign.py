"""Finds out the state of Slurm jobs that hpcrun did not submit.

Effects: Slurm commands.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import Struct, structs

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.errors import InputError
from hpcrun.runs.records import History
from hpcrun.runs.verdict import Evidence, Verdict, decide
from hpcrun.slurm.job_facts import JobFacts, parse_job_facts
from hpcrun.slurm.sacct import AccountRow
from hpcrun.slurm.scontrol import show_job_argv
from hpcrun.slurm.squeue import QueueRow


class ForeignStatus(Struct, frozen=True, kw_only=True):
    """A Slurm job that hpcrun did not submit."""

    job_id: str
    verdict: Verdict
    queue: QueueRow | None
    account: AccountRow | None
    facts: JobFacts | None = None


def foreign_status(context: Context, job_id: str) -> list[ForeignStatus]:
    """Ask Slurm about a job that hpcrun did not submit, or about all tasks of an array.

    Raises InputError, OutOfReach.
    """
    transport = slurm_transport(context)
    queue = {_shown_id(row, job_id): row for row in scheduler.queue(transport, [job_id])}
    # Tasks of an array that have ended may be in the accounting alone.
    asked = not queue or any(_is_part(known) for known in queue)
    told = (scheduler.accounting(transport, [job_id]) or []) if asked else []
    accounts = {_shown_id(row, job_id): row for row in told if not queue or "[" not in row.job_id}
    if not queue and not accounts:
        raise InputError(
            f"{job_id}: neither a run of hpcrun nor a job that Slurm knows",
            fix="hpcrun status lists the runs",
        )
    found = []
    for known in sorted({*queue, *accounts}, key=_task_order):
        row, account = queue.get(known), accounts.get(known)
        evidence = Evidence(
            history=History(run_id=known), now=time.time(), queue=row, account=account
        )
        found.append(
            ForeignStatus(job_id=known, verdict=decide(evidence), queue=row, account=account)
        )
    return found


def _shown_id(row: QueueRow | AccountRow, job_id: str) -> str:
    """The own id of a task, or of a part of a heterogeneous job; else the one asked for."""
    return row.job_id if _is_part(row.job_id) else job_id


def _is_part(job_id: str) -> bool:
    return "_" in job_id or "+" in job_id


def _task_order(job_id: str) -> tuple[int, str]:
    task = job_id.replace("+", "_").partition("_")[2]
    return (int(task), "") if task.isdigit() else (-1, job_id)


def with_facts(
    context: Context, job_id: str, statuses: Sequence[ForeignStatus]
) -> list[ForeignStatus]:
    """Add what scontrol tells of jobs; as they are where Slurm has forgotten them or is silent."""
    text = scheduler.show(slurm_transport(context), show_job_argv(job_id))
    told = {facts.job_id: facts for facts in parse_job_facts(text)}
    only = next(iter(told.values())) if len(told) == 1 else None
    return [
        structs.replace(status, facts=told.get(status.job_id, only if len(statuses) == 1 else None))
        for status in statuses
    ]
