"""Cancels runs, whole sweeps, and jobs that hpcrun did not submit."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.controller.status import job_of_another
from hpcrun.controller.targets import (
    Outcome,
    Targets,
    find_known,
    interrupted,
    not_mine,
    outcome_of,
    user_name,
)
from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import Begin, Cancelled
from hpcrun.runs.status import JobStatus
from hpcrun.runs.store import runs_of, write_record
from hpcrun.signals import signals_wait
from hpcrun.slurm.states import ACTIVE


def cancel_all(context: Context, targets: Targets, *, pending: bool = False) -> list[Outcome]:
    """Ask for the end of all that is named, with as few calls of Slurm as there are clusters.

    With ``pending`` only of what has not begun. One that cannot be cancelled does not keep the
    others from it: its ``error`` says why. Raises OutOfReach where nothing at all could be done.
    """
    known, unknown = find_known(context, targets)
    whole = {run.run_id for sweep in targets.sweeps for run in runs_of(sweep)}
    outcomes: list[Outcome] = []
    wanted: dict[str | None, list[int]] = {}
    for _, one in known:
        first = _look_at(one, pending=pending)
        if not (first.over or first.left or first.error):
            if one.is_local:
                first = _recorded(one, first, _end_here(one))
            else:
                wanted.setdefault(one.slurm_conf, []).append(len(outcomes))
        outcomes.append(first)
    try:
        for conf, places in wanted.items():
            with signals_wait():
                error = _cancel(context, conf, [known[place] for place in places], whole, pending)
                begun = _begun_meanwhile(context, targets) if pending and error is None else {}
                for place in places:
                    state = begun.get(outcomes[place].job_id)
                    if state is None:
                        outcomes[place] = _recorded(known[place][1], outcomes[place], error)
                    else:
                        outcomes[place] = structs.replace(
                            outcomes[place], left=f"it is {state}, not PENDING"
                        )
    except KeyboardInterrupt as pressed:
        raise interrupted(outcomes, "cancelled") from pressed
    return outcomes + unknown


def _look_at(status: JobStatus, *, pending: bool) -> Outcome:
    """What is to be done about a job: nothing decided yet means that it is to be cancelled."""
    first = outcome_of(status)
    if (copied := job_of_another(status.history, "cancel")) is not None:
        return structs.replace(first, over=False, error=copied)
    if first.over:
        return first
    error: HpcrunError | None = not_mine(status, "ask OWNER to cancel it")
    if error is None and pending and status.out_of_reach:
        error = OutOfReach(f"{first.name}: {status.out_of_reach}", fix="try again later")
    if error is None and pending and first.state != "PENDING":
        return structs.replace(first, left=f"it is {first.state}, not PENDING")
    if error is None and first.job_id is None and not status.is_local:
        error = InputError(
            f"{first.name}: no Slurm job of it is known", fix="hpcrun status shows when it is"
        )
    return structs.replace(first, error=error)


def _cancel(
    context: Context,
    conf: str | None,
    known: Sequence[tuple[str, JobStatus]],
    whole: set[str],
    pending: bool,
) -> HpcrunError | None:
    """Have one Slurm cancel jobs; say what went wrong."""
    words = dict.fromkeys(_word(*one, whole) for one in known)
    try:
        scheduler.cancel_all(slurm_transport(context, conf), list(words), pending=pending)
    except HpcrunError as failure:
        return failure
    return None


def _word(word: str, known: JobStatus, whole: set[str]) -> str:
    """Name arrays that go as a whole by their own ids: Slurm takes one word for 1000 tasks."""
    is_whole = known.run is not None and known.run.run_id in whole
    return word.partition("_")[0] if is_whole else word


def _begun_meanwhile(context: Context, targets: Targets) -> dict[str | None, str]:
    """Ask for the states of those that began before scancel came: it spared them."""
    try:
        known, _ = find_known(context, targets)
    except OutOfReach:
        return {}
    states = {one.job_id: one.verdict.state for _, one in known}
    return {job: state for job, state in states.items() if state in ACTIVE | {"CONFIGURING"}}


def _recorded(known: JobStatus, outcome: Outcome, error: HpcrunError | None) -> Outcome:
    """Record what is being cancelled; where the disk is full the job ends all the same."""
    if error is None and known.run is not None:
        try:
            record = Cancelled(cancelled_at=time.time(), user=user_name())
            write_record(known.run.cancelled, record)
        except HpcrunError as failure:
            error = HpcrunError(f"it is being cancelled, but: {failure.message}", fix=failure.fix)
        return structs.replace(outcome, done=True, error=error)
    return structs.replace(outcome, done=error is None, error=error)


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
