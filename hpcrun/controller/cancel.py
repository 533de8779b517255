"""Cancels runs, whole sweeps, and jobs that hpcrun did not submit."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.controller.outcomes import Outcome, act_on, not_mine, states_of, user_name
from hpcrun.controller.targets import Targets, job_of_another
from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import Begin, Cancelled
from hpcrun.runs.status import JobStatus
from hpcrun.runs.store import runs_of, write_record
from hpcrun.slurm.jobs import array_id
from hpcrun.slurm.states import ACTIVE


def cancel_all(context: Context, targets: Targets, *, pending: bool = False) -> list[Outcome]:
    """Ask for the end of all that is named, with as few calls of Slurm as there are clusters.

    With ``pending`` only of what has not begun. One that cannot be cancelled does not keep the
    others from it: its ``error`` says why. Raises OutOfReach where nothing at all could be done.
    """

    def look(job: Outcome) -> None:
        """Look whether a job is to be cancelled, or why not."""
        status = job.status
        job.error = job_of_another(status.history, "cancel")
        job.over = job.error is None and status.final
        if job.over or job.error is not None:
            return
        job.error = not_mine(status, "ask OWNER to cancel it")
        if job.error is None and pending and status.out_of_reach:
            job.error = OutOfReach(f"{status.label}: {status.out_of_reach}", fix="try again later")
        if job.error is None and pending and status.state != "PENDING":
            job.left = f"it is {status.state}, not PENDING"
        elif job.error is None and status.job_id is None and not status.is_local:
            job.error = InputError(
                f"{status.label}: no Slurm job of it is known", fix="hpcrun status shows when it is"
            )

    whole = {run.run_id for sweep in targets.sweeps for run in runs_of(sweep)}

    def cancel(conf: str | None, jobs: Sequence[Outcome]) -> None:
        asked = [job for job in jobs if not job.status.is_local]
        error: HpcrunError | None = None
        if asked:
            # Arrays that go as a whole by their own ids: Slurm takes one word for 1000 tasks.
            words = [array_id(job.word) if job.run_id in whole else job.word for job in asked]
            try:
                transport = slurm_transport(context, conf)
                scheduler.cancel_all(transport, list(dict.fromkeys(words)), pending=pending)
            except HpcrunError as failure:
                error = failure
        # Those that began before scancel came: it spared them.
        states = states_of(context, targets) if pending and asked and error is None else {}
        for job in jobs:
            state = states.get(job.status.job_id)
            if job.status.is_local:
                _record(job, _end_here(job.status))
            elif state in ACTIVE | {"CONFIGURING"}:
                job.left = f"it is {state}, not PENDING"
            else:
                _record(job, error)
        runs = [job.status.run for job in asked if job.done]
        if records := [run.cancelled for run in runs if run is not None]:
            with contextlib.suppress(OutOfReach):
                transport.send(records)

    return act_on(context, targets, look, cancel, done="cancelled", at_once=sys.maxsize)


def _record(job: Outcome, error: HpcrunError | None) -> None:
    """Record what is being cancelled; where the disk is full the job ends all the same."""
    done = error is None
    if done and job.status.run is not None:
        try:
            record = Cancelled(cancelled_at=time.time(), user=user_name())
            write_record(job.status.run.cancelled, record)
        except HpcrunError as failure:
            error = HpcrunError(f"it is being cancelled, but: {failure.message}", fix=failure.fix)
    job.done, job.error = done, error


def _end_here(status: JobStatus) -> InputError | None:
    """End a run of ``hpcrun run``: its harness, which ends the rest. Say why it cannot be."""
    run, last, submitted = status.run, status.last, status.history.submitted
    assert run is not None
    begun = last.begin if last else None
    if submitted is not None and submitted.host != socket.gethostname():
        where = submitted.host
        return InputError(f"{run.run_id}: it runs on {where}", fix=f"hpcrun cancel there: {where}")
    if begun is None:
        return InputError(f"{run.run_id}: it has not begun yet", fix="try again in a moment")
    if not is_alive_here(run, begun):
        return InputError(f"{run.run_id}: its process {begun.pid} is gone")
    try:
        os.kill(begun.pid, signal.SIGTERM)
    except OSError as failure:
        reason = failure.strerror or str(failure)
        return InputError(f"{run.run_id}: process {begun.pid}: {reason}")
    return None


def is_alive_here(run: RunFolder, begun: Begin) -> bool:
    """Return whether a run's harness is a process of this machine; process ids are reused."""
    try:
        line = os.fsdecode(Path(f"/proc/{begun.pid}/cmdline").read_bytes())
    except OSError:
        return False
    # By the folder's name: the path to it may be spelled through other links.
    return run.run_id in line.replace("\0", "/").split("/")
