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
from hpcrun.controller.outcome import (
    Known,
    Outcome,
    begin,
    conf_of,
    find_known,
    interrupted,
    not_mine,
)
from hpcrun.controller.state.status import RunStatus, is_local
from hpcrun.controller.state.words import job_of_another
from hpcrun.controller.targets import Targets, user_name
from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import Begin, Cancelled
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
    told: list[Outcome] = []
    wanted: dict[str | None, list[int]] = {}
    for _, one in known:
        first = _look_at(one, pending=pending)
        if not (first.over or first.left or first.error):
            if isinstance(one, RunStatus) and is_local(one.history):
                first = _recorded(one, first, _end_here(one))
            else:
                wanted.setdefault(conf_of(one), []).append(len(told))
        told.append(first)
    try:
        for conf, places in wanted.items():
            with signals_wait():
                error = _cancel(context, conf, [known[place] for place in places], whole, pending)
                begun = _begun_meanwhile(context, targets) if pending and error is None else {}
                for place in places:
                    state = begun.get(told[place].job_id)
                    if state is None:
                        told[place] = _recorded(known[place][1], told[place], error)
                    else:
                        told[place] = structs.replace(
                            told[place], left=f"it is {state}, not PENDING"
                        )
    except KeyboardInterrupt as pressed:
        raise interrupted(told, "cancelled") from pressed
    return told + unknown


def _look_at(known: Known, *, pending: bool) -> Outcome:
    """What is to be done about a job: nothing decided yet means that it is to be cancelled."""
    first = begin(known)
    error: HpcrunError | None = None
    if isinstance(known, RunStatus):
        error = job_of_another(known.history, "cancel")
    if error is not None:
        return structs.replace(first, over=False, error=error)
    if first.over:
        return first
    error = not_mine(known, "ask OWNER to cancel it")
    if error is None and pending and isinstance(known, RunStatus) and known.out_of_reach:
        error = OutOfReach(f"{first.name}: {known.out_of_reach}", fix="try again later")
    if error is None and pending and first.state != "PENDING":
        return structs.replace(first, left=f"it is {first.state}, not PENDING")
    is_here = isinstance(known, RunStatus) and is_local(known.history)
    if error is None and first.job_id is None and not is_here:
        error = InputError(
            f"{first.name}: no Slurm job of it is known", fix="hpcrun status tells when it is"
        )
    return structs.replace(first, error=error)


def _cancel(
    context: Context,
    conf: str | None,
    known: Sequence[tuple[str, Known]],
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


def _word(word: str, known: Known, whole: set[str]) -> str:
    """Name arrays that go as a whole by their own ids: Slurm takes one word for 1000 tasks."""
    is_whole = isinstance(known, RunStatus) and known.run.run_id in whole
    return word.partition("_")[0] if is_whole else word


def _begun_meanwhile(context: Context, targets: Targets) -> dict[str | None, str]:
    """Ask for the states of those that began before scancel came: it spared them."""
    try:
        known, _ = find_known(context, targets)
    except OutOfReach:
        return {}
    states = {one.job_id: one.verdict.state for _, one in known}
    return {job: state for job, state in states.items() if state in ACTIVE | {"CONFIGURING"}}


def _recorded(known: Known, told: Outcome, error: HpcrunError | None) -> Outcome:
    """Record what is being cancelled; where the disk is full the job ends all the same."""
    if error is None and isinstance(known, RunStatus):
        try:
            record = Cancelled(cancelled_at=time.time(), user=user_name())
            write_record(known.run.cancelled, record)
        except HpcrunError as failure:
            error = HpcrunError(f"it is being cancelled, but: {failure.message}", fix=failure.fix)
        return structs.replace(told, done=True, error=error)
    return structs.replace(told, done=error is None, error=error)


def _end_here(status: RunStatus) -> InputError | None:
    """End a run of ``hpcrun run``: its harness, which ends the rest. Say why it cannot be."""
    run, last, submitted = status.run, status.history.last, status.history.submitted
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
    """Tell whether a run's harness is a process of this machine; numbers come again."""
    try:
        line = os.fsdecode(Path(f"/proc/{begun.pid}/cmdline").read_bytes())
    except OSError:
        return False
    # By the folder's name: the path to it may be spelled through other links.
    return run.run_id in line.replace("\0", "/").split("/")
