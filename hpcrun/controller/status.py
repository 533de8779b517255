"""Finds out the state of runs: one squeue and at most one sacct for any number of them.

Effects: Slurm commands, reads files.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from msgspec import Struct

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.plan.types import Plan
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import History, Seen
from hpcrun.runs.store import find_run, list_runs, read_history, read_plan, write_record
from hpcrun.runs.verdict import Evidence, Verdict, decide
from hpcrun.slurm.sacct import AccountRow
from hpcrun.slurm.squeue import QueueRow
from hpcrun.transport import Transport


class RunStatus(Struct, frozen=True, kw_only=True):
    """A run with all that was found out about it."""

    run: RunFolder
    history: History
    plan: Plan | None
    verdict: Verdict
    queue: QueueRow | None
    account: AccountRow | None
    job_id: str | None
    out_of_reach: str = ""


class ForeignStatus(Struct, frozen=True, kw_only=True):
    """A Slurm job that hpcrun did not submit."""

    job_id: str
    verdict: Verdict
    queue: QueueRow | None
    account: AccountRow | None


def resolve(context: Context, word: str | None) -> RunFolder:
    """Find the run that a word names; none means the newest. Raises InputError."""
    run = find_run(context.runs_dir, word)
    if run is None:
        if word is None:
            raise InputError(
                f"no runs yet in {context.runs_dir}",
                fix="hpcrun submit JOB; hpcrun jobs lists them",
            )
        raise InputError(
            f"{word}: no such run in {context.runs_dir}", fix="hpcrun status lists the runs"
        )
    return run


def newest(context: Context, count: int) -> list[RunFolder]:
    """The newest runs, newest first."""
    return list(islice(list_runs(context.runs_dir), count))


def status_of(context: Context, runs: Sequence[RunFolder]) -> list[RunStatus]:
    """Find out the state of some runs; silence of Slurm is told, never raised."""
    histories = {run.path: read_history(run) for run in runs}
    by_conf: dict[str | None, list[RunFolder]] = {}
    for run in runs:
        submitted = histories[run.path].submitted
        conf = submitted.slurm_conf if submitted else slurm_transport(context).env.get("SLURM_CONF")
        by_conf.setdefault(conf, []).append(run)
    found: dict[Path, RunStatus] = {}
    for conf, group in by_conf.items():
        found.update(_ask(context, conf, group, histories))
    return [found[run.path] for run in runs]


def _ask(
    context: Context,
    conf: str | None,
    runs: Sequence[RunFolder],
    histories: dict[Path, History],
) -> dict[Path, RunStatus]:
    """Ask one Slurm about the runs that were submitted to it."""
    transport = slurm_transport(context, conf)
    job_ids = {run.path: _job_id(histories[run.path]) for run in runs}
    # Runs of this machine alone need no Slurm.
    asked = [run for run in runs if not _is_local(histories[run.path])]
    conf_is_gone = conf is not None and not Path(conf).exists()
    silence, rows, accounts = "", list[QueueRow](), dict[str, AccountRow]()
    if asked and not conf_is_gone:
        try:
            rows = _rows(transport, [job_ids[run.path] for run in asked])
        except OutOfReach as error:
            silence = error.message
    queued = {run.path: _row_of(run, histories[run.path], rows) for run in runs}
    missing = [job_id for path, job_id in job_ids.items() if job_id and queued[path] is None]
    if missing and asked and not conf_is_gone:
        accounts = {row.job_id: row for row in scheduler.accounting(transport, missing) or []}
    found = {}
    for run in runs:
        row = queued[run.path]
        job_id = job_ids[run.path] or (row.job_id if row else None)
        account = accounts.get(job_id or "")
        # A cluster that counts anew may have given the number to another job.
        if account is not None and Path(account.work_dir or run.run_id).name != run.run_id:
            account = None
        # Read again: the job may have ended while Slurm was asked.
        history = read_history(run)
        quiet = silence
        if conf_is_gone and not _is_local(history) and not _was_here(history):
            quiet = f"{conf}, by which the job was submitted, is not on this machine"
        verdict = decide(
            Evidence(
                history=history, now=time.time(), in_reach=not quiet, queue=row, account=account
            )
        )
        if verdict.final and verdict.source in ("squeue", "sacct"):
            with contextlib.suppress(OSError):
                run.secrets.unlink(missing_ok=True)  # the job could not do so itself any more
            remember(run, history, verdict)
        found[run.path] = RunStatus(
            run=run,
            history=history,
            plan=read_plan(run),
            verdict=verdict,
            queue=row,
            account=account,
            job_id=job_id,
            out_of_reach=quiet if not _is_local(history) else "",
        )
    return found


def remember(run: RunFolder, history: History, verdict: Verdict) -> None:
    """Keep a final state that Slurm will forget; a run of somebody else's stays as it is."""
    seen = Seen(state=verdict.state, reason=verdict.reason, attempts=len(history.attempts))
    if seen != history.seen:
        with contextlib.suppress(OSError, HpcrunError):
            run.seen.parent.mkdir(exist_ok=True)
            write_record(run.seen, seen)


def _rows(transport: Transport, job_ids: Sequence[str | None]) -> list[QueueRow]:
    """Ask squeue once: by job ids, which finds colleagues' jobs too, or, where one is not known
    (a lost reply of sbatch), for all of the user's jobs."""
    known = [job_id for job_id in job_ids if job_id is not None]
    return scheduler.queue(transport, known if len(known) == len(job_ids) else ())


def _job_id(history: History) -> str | None:
    """The run's Slurm id: as sbatch told it, else as the job itself did."""
    if history.submitted is not None:
        return history.submitted.job_id
    begin = history.last.begin if history.last else None
    return (begin.job_id or None) if begin else None


def _was_here(history: History) -> bool:
    """Tell whether the run was submitted from this machine, as to a sandbox that is gone."""
    return history.submitted is not None and history.submitted.host == socket.gethostname()


def _row_of(run: RunFolder, history: History, rows: Sequence[QueueRow]) -> QueueRow | None:
    """The run's row: its WorkDir tells, since a cluster that counts anew gives ids out again."""
    own = [row for row in rows if row.work_dir.rstrip("/").rpartition("/")[2] == run.run_id]
    submitted = history.submitted
    if submitted is not None:
        return next((row for row in own if row.job_id == submitted.job_id), None)
    # A job that sbatch refused for its constraints shows in the queue all the same.
    return next((row for row in own if row.reason != "BadConstraints"), None)


def _is_local(history: History) -> bool:
    return history.submitted is not None and history.submitted.job_id is None


def foreign_status(context: Context, job_id: str) -> ForeignStatus:
    """Ask Slurm about a job that hpcrun did not submit. Raises InputError, OutOfReach."""
    transport = slurm_transport(context)
    rows = scheduler.queue(transport, [job_id])
    queue = rows[0] if rows else None
    accounts = None if queue else scheduler.accounting(transport, [job_id])
    account = accounts[0] if accounts else None
    if queue is None and account is None:
        raise InputError(
            f"{job_id}: neither a run of hpcrun nor a job that Slurm knows",
            fix="hpcrun status lists the runs",
        )
    verdict = decide(
        Evidence(history=History(run_id=job_id), now=time.time(), queue=queue, account=account)
    )
    return ForeignStatus(job_id=job_id, verdict=verdict, queue=queue, account=account)


def dependency_on(context: Context, word: str) -> str | None:
    """The Slurm id of the job that must end well first; None when it has done so already.

    Raises InputError for a run that will never end well.
    """
    if not word:
        raise InputError("--after: no run is named", fix="name a run or a Slurm job id")
    run = find_run(context.runs_dir, word)
    if run is None and not word.isdigit():
        raise InputError(f"--after {word}: no such run", fix="hpcrun status lists the runs")
    # Slurm takes a job that it does not know for one that has ended well.
    status = foreign_status(context, word) if run is None else status_of(context, [run])[0]
    if status.verdict.ok:
        return None
    if status.verdict.final or status.job_id is None:
        raise InputError(f"--after {word}: that run is {status.verdict.state}")
    return status.job_id
