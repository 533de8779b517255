"""Finds out the state of Slurm jobs that hpcrun did not submit."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

from msgspec import Struct, structs

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.errors import InputError, OutOfReach
from hpcrun.runs.find import find
from hpcrun.runs.layout import ARRAY, RunFolder, SweepFolder
from hpcrun.runs.records import History
from hpcrun.runs.verdict import Evidence, Verdict, decide
from hpcrun.slurm.jobs import SlurmJob, is_part


class ForeignStatus(Struct, frozen=True, kw_only=True):
    """A Slurm job that hpcrun did not submit."""

    job_id: str
    verdict: Verdict
    queue: SlurmJob | None
    account: SlurmJob | None
    facts: SlurmJob | None = None


def foreign_status(context: Context, job_id: str) -> list[ForeignStatus]:
    """Ask Slurm about a job that hpcrun did not submit, or about all tasks of an array.

    Raises InputError, OutOfReach.
    """
    found = ask_foreign(context, [job_id], ended=True)[job_id]
    if not found:
        raise unknown_job(job_id)
    return found


def find_any(context: Context, word: str | None) -> RunFolder | SweepFolder | None:
    """Find what a word names, as find() does, and a run's task by the number of the task itself.

    Raises InputError as find() does.
    """
    found = find(context.runs_dir, word)
    if found is None and word is not None and (own := own_names(context, [word])):
        found = find(context.runs_dir, own[word])
    return found


def own_names(context: Context, words: Sequence[str]) -> dict[str, str]:
    """The ids of runs' tasks, as 7_3, by the numbers that Slurm gave the tasks themselves.

    Other words are left out. Asks Slurm once, and only where there are sweeps; never raises.
    """
    asked = [word for word in words if word.isdigit() and _is_possible(word)]
    if not asked or not any(name.endswith(ARRAY) for name in _names(context.runs_dir)):
        return {}
    try:
        jobs = scheduler.queue(slurm_transport(context), asked)
    except OutOfReach:
        return {}
    return {
        job.number: job.job_id
        for job in jobs
        # What waits of an array has the array's own number.
        if job.number in asked
        and job.array != job.number
        and job.folder.endswith(ARRAY)
        and (context.runs_dir / job.folder).is_dir()
    }


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names alone are wanted
    except OSError:
        return []


def unknown_job(job_id: str) -> InputError:
    """Say that nobody knows a job."""
    return InputError(
        f"{job_id}: neither a run of hpcrun nor a job that Slurm knows",
        fix="hpcrun status lists the runs; squeue --me your jobs",
    )


def ask_foreign(
    context: Context, job_ids: Sequence[str], *, ended: bool = False
) -> dict[str, list[ForeignStatus]]:
    """Ask once about jobs that hpcrun did not submit; of an array named as a whole all tasks.

    What Slurm does not know has an empty list. ``ended``: those tasks of a live array too that are
    over so long that the accounting alone knows them. Raises OutOfReach.
    """
    # A number that no job can have would be an error for the whole question.
    asked = [job_id for job_id in job_ids if _is_possible(job_id)]
    if not asked:
        return {job_id: [] for job_id in job_ids}
    transport = slurm_transport(context)
    rows = scheduler.queue(transport, asked, strict=True)
    queued = _sorted_out(rows, asked)
    # A task by its own number, as $SLURM_JOB_ID has it: the rows have the task's other name.
    odd = len(rows) > sum(map(len, queued.values()))
    for job_id in [job_id for job_id in asked if odd and not queued[job_id]]:
        some = rows if len(asked) == 1 else scheduler.queue(transport, [job_id])
        queued[job_id] = {row.job_id: row for row in some if row.is_part}
    missing = [
        job_id
        for job_id in asked
        if not queued[job_id]
        or (ended and not is_part(job_id) and any(map(is_part, queued[job_id])))
    ]
    is_needed = any(not queued[job_id] for job_id in missing)
    accounts = scheduler.accounting(transport, missing, strict=is_needed)
    told = _sorted_out(accounts or [], missing)
    found: dict[str, list[ForeignStatus]] = {}
    for job_id in job_ids:
        live, over = queued.get(job_id, {}), told.get(job_id, {})
        # The tasks that wait share a row of the accounting, and have their own in the queue.
        known = {*live, *(name for name in over if not live or "[" not in name)}
        found[job_id] = [
            _status(name, live.get(name), over.get(name)) for name in sorted(known, key=_task_order)
        ]
    return found


def _sorted_out(jobs: Sequence[SlurmJob], job_ids: Sequence[str]) -> dict[str, dict[str, SlurmJob]]:
    """Sort jobs by the ids that were asked about: of each its tasks and its parts."""
    found: dict[str, dict[str, SlurmJob]] = {job_id: {} for job_id in job_ids}
    for job in jobs:
        for job_id in {job.job_id, job.array}:
            if job_id in found:
                found[job_id][job.job_id] = job
    return found


def _status(job_id: str, row: SlurmJob | None, account: SlurmJob | None) -> ForeignStatus:
    evidence = Evidence(history=History(run_id=job_id), now=time.time(), queue=row, account=account)
    return ForeignStatus(job_id=job_id, verdict=decide(evidence), queue=row, account=account)


def _is_possible(job_id: str) -> bool:
    """Tell whether Slurm can have such an id: 32 bits, and an array's tasks have a limit too.

    >>> [_is_possible(word) for word in ("4711_3", "4711+1", "553038940000")]
    [True, True, False]
    """
    number, _, task = job_id.replace("+", "_").partition("_")
    return 0 < int(number) < 0xFFFFFFFE and int(task or 0) < 0xFFFFFFFE


def _task_order(job_id: str) -> tuple[int, str]:
    task = job_id.replace("+", "_").partition("_")[2]
    return (int(task), "") if task.isdigit() else (-1, job_id)


def foreign_in_detail(context: Context, job_id: str) -> list[ForeignStatus]:
    """Return what foreign_status() returns, with what only scontrol shows, where it does.

    It is asked beside the others: on a busy cluster each answer takes long.
    """
    shown: list[SlurmJob] = []
    transport = slurm_transport(context)

    def ask() -> None:
        with suppress(OutOfReach):
            shown.extend(scheduler.show_jobs(transport, job_id))

    beside = Thread(target=ask, daemon=True)
    try:
        beside.start()
    except RuntimeError:  # as many threads run as are allowed here
        ask()
        return _with_facts(foreign_status(context, job_id), shown)
    statuses = foreign_status(context, job_id)
    beside.join()
    return _with_facts(statuses, shown)


def _with_facts(
    statuses: Sequence[ForeignStatus], shown: Sequence[SlurmJob]
) -> list[ForeignStatus]:
    facts = {job.job_id: job for job in shown}
    only = shown[0] if len(shown) == 1 and len(statuses) == 1 else None
    return [structs.replace(each, facts=facts.get(each.job_id, only)) for each in statuses]
