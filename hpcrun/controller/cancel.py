"""Cancels runs, whole sweeps, and jobs that hpcrun did not submit.

Effects: scancel or a signal, files.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, structs

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.controller.state.foreign import ForeignStatus, ask_foreign, unknown_job
from hpcrun.controller.state.status import RunStatus, status_of
from hpcrun.controller.targets import Targets, owner_of, user_name
from hpcrun.errors import HpcrunError, InputError
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import Begin, Cancelled
from hpcrun.runs.store import runs_of, write_record
from hpcrun.slurm.states import UNKNOWN


class Cancellation(Struct, frozen=True, kw_only=True):
    """What was done about one job: ``state`` is the one before.

    ``left`` says why a job that is not over was left alone; ``error`` what went wrong.
    """

    run_id: str | None
    job_id: str | None
    state: str
    cancelled: bool = False
    over: bool = False
    left: str = ""
    error: HpcrunError | None = None


def cancel(context: Context, run: RunFolder) -> RunStatus:
    """Ask for a run's end and return the state that it had before.

    Nothing is done to a run that is over. Raises InputError, SchedulerRefused, OutOfReach.
    """
    status = status_of(context, [run])[0]
    told = _cancel_runs(context, [status], whole=[], pending=False)[run.path]
    if told.error is not None:
        raise told.error
    return status


def cancel_all(context: Context, targets: Targets, *, pending: bool = False) -> list[Cancellation]:
    """Ask for the end of all that is named, with as few calls of Slurm as there are clusters.

    With ``pending`` only of what has not begun. One that cannot be cancelled does not keep the
    others from it: its ``error`` says why. Raises OutOfReach where nothing at all could be done.
    """
    runs = targets.all_runs()
    statuses = status_of(context, runs) if runs else []
    known = ask_foreign(context, targets.foreign)
    whole = [{run.path for run in runs_of(sweep)} for sweep in targets.sweeps]
    told = _cancel_runs(context, statuses, whole=whole, pending=pending)
    found = [told[run.path] for run in runs]
    return found + _cancel_foreign(context, known, pending=pending)


def _cancel_runs(
    context: Context,
    statuses: Sequence[RunStatus],
    *,
    whole: Sequence[set[Path]],
    pending: bool,
) -> dict[Path, Cancellation]:
    """Cancel runs by one scancel for each Slurm; ``whole`` are the runs of sweeps, all of each."""
    told: dict[Path, Cancellation] = {}
    by_conf: dict[str | None, list[RunStatus]] = {}
    for status in statuses:
        told[status.run.path] = first = _look_at(status, pending=pending)
        if first.over or first.left or first.error is not None:
            continue
        submitted = status.history.submitted
        if submitted is not None and submitted.job_id is None:
            told[status.run.path] = _end_here(status, first)
            continue
        conf = submitted.slurm_conf if submitted else None
        by_conf.setdefault(conf, []).append(status)
    for conf, live in by_conf.items():
        error: HpcrunError | None = None
        try:
            job_ids = _short_ids(live, whole)
            scheduler.cancel_all(slurm_transport(context, conf), job_ids, pending=pending)
        except HpcrunError as failure:
            error = failure
        for status in live:
            told[status.run.path] = _recorded(status, told[status.run.path], error)
    return told


def _look_at(status: RunStatus, *, pending: bool) -> Cancellation:
    """What is to be done about a run: nothing decided yet means that it is to be cancelled."""
    state, run = status.verdict.state, status.run
    submitted = status.history.submitted
    owner = owner_of(run.path)
    left, error = "", None
    if not status.verdict.final:
        if owner and owner != user_name():
            error = InputError(f"{run.run_id}: it is {owner}'s", fix=f"ask {owner} to cancel it")
        elif pending and state != "PENDING":
            left = f"it is {state}, not PENDING"
        elif status.job_id is None and (submitted is None or submitted.job_id is not None):
            error = InputError(
                f"{run.run_id}: no Slurm job of it is known", fix="hpcrun status tells when it is"
            )
    return Cancellation(
        run_id=run.run_id,
        job_id=status.job_id,
        state=state,
        over=status.verdict.final,
        left=left,
        error=error,
    )


def _short_ids(live: Sequence[RunStatus], whole: Sequence[set[Path]]) -> list[str]:
    """Name arrays that go as a whole by their own ids: Slurm takes one word for 1000 tasks."""
    paths = {path for sweep in whole for path in sweep}
    short = (
        (status.job_id or "").partition("_")[0] if status.run.path in paths else status.job_id or ""
        for status in live
    )
    return list(dict.fromkeys(short))


def _recorded(status: RunStatus, told: Cancellation, error: HpcrunError | None) -> Cancellation:
    """Record what Slurm took; where the disk is full the job ends all the same."""
    if error is None:
        try:
            write_record(status.run.cancelled, _record())
        except HpcrunError as failure:
            error = HpcrunError(f"it is being cancelled, but: {failure.message}", fix=failure.fix)
        return structs.replace(told, cancelled=True, error=error)
    return structs.replace(told, error=error)


def _record() -> Cancelled:
    return Cancelled(cancelled_at=time.time(), user=user_name())


def _end_here(status: RunStatus, told: Cancellation) -> Cancellation:
    """End a run of ``hpcrun run``: its harness, which ends the rest."""
    run, last, submitted = status.run, status.history.last, status.history.submitted
    begin = last.begin if last else None
    if submitted is not None and submitted.host != socket.gethostname():
        where = submitted.host
        error = InputError(f"{run.run_id}: it runs on {where}", fix=f"hpcrun cancel there: {where}")
        return structs.replace(told, error=error)
    if begin is None:
        error = InputError(f"{run.run_id}: it has not begun yet", fix="try again in a moment")
        return structs.replace(told, error=error)
    if not is_alive_here(run, begin):
        return structs.replace(
            told, error=InputError(f"{run.run_id}: its process {begin.pid} is gone")
        )
    write_record(run.cancelled, _record())
    try:
        os.kill(begin.pid, signal.SIGTERM)
    except OSError as failure:
        run.cancelled.unlink(missing_ok=True)
        reason = failure.strerror or str(failure)
        return structs.replace(
            told, error=InputError(f"{run.run_id}: process {begin.pid}: {reason}")
        )
    return structs.replace(told, cancelled=True)


def is_alive_here(run: RunFolder, begin: Begin) -> bool:
    """Tell whether a run's harness is a process of this machine; numbers come again."""
    try:
        line = os.fsdecode(Path(f"/proc/{begin.pid}/cmdline").read_bytes())
    except OSError:
        return False
    return str(run.path) in line


def _cancel_foreign(
    context: Context, known: dict[str, list[ForeignStatus]], *, pending: bool
) -> list[Cancellation]:
    """Cancel jobs that hpcrun did not submit; an array by its own id."""
    told: list[Cancellation] = []
    wanted: dict[str, list[int]] = {}
    for job_id, statuses in known.items():
        if not statuses:
            error = unknown_job(job_id)
            told.append(Cancellation(run_id=None, job_id=job_id, state=UNKNOWN, error=error))
        for status in statuses:
            first = _look_at_foreign(status, pending=pending)
            if not (first.over or first.left or first.error):
                wanted.setdefault(job_id, []).append(len(told))
            told.append(first)
    if not wanted:
        return told
    failed: HpcrunError | None = None
    try:
        scheduler.cancel_all(slurm_transport(context), list(wanted), pending=pending)
    except HpcrunError as failure:
        failed = failure
    for places in wanted.values():
        for place in places:
            told[place] = structs.replace(told[place], cancelled=failed is None, error=failed)
    return told


def _look_at_foreign(status: ForeignStatus, *, pending: bool) -> Cancellation:
    row = status.queue or status.account
    owner, state, error, left = row.user if row else "", status.verdict.state, None, ""
    if not status.verdict.final:
        if owner and owner != user_name():
            error = InputError(f"job {status.job_id} is {owner}'s", fix=f"ask {owner} to cancel it")
        elif pending and state != "PENDING":
            left = f"it is {state}, not PENDING"
    return Cancellation(
        run_id=None,
        job_id=status.job_id,
        state=state,
        over=status.verdict.final,
        left=left,
        error=error,
    )
