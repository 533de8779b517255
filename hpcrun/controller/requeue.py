"""Starts runs and jobs again under their own id: the next attempt of the same run."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.controller.outcomes import Outcome, act_on, not_mine
from hpcrun.controller.submit import check_secrets, write_secrets
from hpcrun.controller.targets import Targets, job_of_another
from hpcrun.errors import HpcrunError, InputError, OutOfReach, SchedulerRefused
from hpcrun.runs.layout import sweep_folder
from hpcrun.runs.status import JobStatus
from hpcrun.runs.store import runs_of
from hpcrun.slurm.reasons import explain
from hpcrun.slurm.states import UNKNOWN, WAITING
from hpcrun.transport import Transport

# Jobs in one command; Slurm answers for each of them by itself.
_AT_ONCE = 100


def requeue_all(
    context: Context, targets: Targets, *, failed: bool = False, hold: bool = False
) -> list[Outcome]:
    """Have Slurm start again all that is named: what runs, and what is over while Slurm knows it.

    Of a sweep those runs that run now. ``failed``: only what is over and did not end well.
    ``hold``: it waits until it is released. One that is refused does not keep the others from it:
    its ``error`` says why. Ctrl-C waits until a job that Slurm has taken has all that it needs.
    """
    inside = {run.run_id for sweep in targets.sweeps for run in runs_of(sweep)}

    def look(job: Outcome) -> None:
        in_sweep = job.run_id in inside
        job.left = _left_alone(job.status, failed=failed, hold=hold, in_sweep=in_sweep)
        job.error = None if job.left else _obstacle(context, job.status)

    act = partial(_start_again, context, hold=hold)
    return act_on(context, targets, look, act, done="started again", at_once=_AT_ONCE)


def _left_alone(known: JobStatus, *, failed: bool, hold: bool, in_sweep: bool) -> str:
    """Say why nothing is to be done about a job; "" where something is."""
    verdict = known.verdict
    is_unknown = known.out_of_reach and not verdict.final
    if failed and not is_unknown and (verdict.ok or not verdict.final):
        return f"it is {verdict.state}"
    if in_sweep and not failed and verdict.final:
        return f"it is {verdict.state}"
    if verdict.state not in WAITING or not_mine(known, ""):
        return ""
    why = explain(verdict.reason, known.job_id or "")
    if " held" in why.words:
        return f"it waits already, and {why.words}: {why.fix}"
    return "" if hold else "it waits already"


def _obstacle(context: Context, known: JobStatus) -> HpcrunError | None:
    """Say what keeps a job from being started again; None: it goes to Slurm."""
    name, verdict = known.label, known.verdict
    again = _again(known)
    error = not_mine(known, again)
    if error is not None:
        return error
    if known.run is not None:
        submitted = known.history.submitted
        if (error := job_of_another(known.history, "requeue")) is not None:
            return error
        if submitted is not None and known.is_local:
            return InputError(f"{name} is not a Slurm job: hpcrun run ran it on {submitted.host}")
        if known.out_of_reach:
            later = f"try again later; or {again}" if verdict.final else "try again later"
            return OutOfReach(f"{name}: {known.out_of_reach}", fix=later)
    if verdict.state in WAITING:
        return InputError(
            f"{name} waits already: there is nothing to start again",
            fix=f"scontrol hold {known.job_id} keeps it waiting",
        )
    if verdict.state == UNKNOWN or known.job_id is None:
        return InputError(f"{name}: its state is not known: {verdict.reason or 'no Slurm job'}")
    if verdict.final and verdict.source != "squeue":
        return InputError(f"{name}: Slurm has forgotten it", fix=again)
    plan = known.plan
    if plan is None or not plan.secrets:
        return None
    # A run that is over has no secrets any more, and one that may not be requeued loses them.
    stays_over = "no-requeue" in dict(plan.directives)
    if not verdict.final and stays_over:
        return InputError(
            f"{name} has secrets, which a job without slurm: {{requeue: true}} removes as it stops",
            fix=f"hpcrun cancel {known.job_id}, then hpcrun resubmit {known.job_id}",
        )
    if verdict.final:
        try:
            check_secrets(context, plan)
        except InputError as missing:
            if stays_over:  # secrets would not help
                return _over_for_good(known.job_id, again)
            return InputError(f"{name}: {missing.message}", fix="export them and try again")
    return None


def _again(known: JobStatus) -> str:
    if known.run is None:
        return ""
    return f"hpcrun resubmit {known.job_id or known.run_id} makes a new run of it"


def _start_again(
    context: Context, conf: str | None, jobs: Sequence[Outcome], *, hold: bool
) -> None:
    """Have one Slurm start jobs again.

    The next attempt finds its secrets whenever it begins: they are there before Slurm is asked.
    """
    transport = slurm_transport(context, conf)
    errors: dict[str, HpcrunError] = {}
    again: dict[str, str] = {}
    written: list[Path] = []
    for job in jobs:
        job_id = job.status.job_id or ""
        try:
            written += _give_secrets(context, job.status)
            again[job_id] = _again(job.status)
        except HpcrunError as failure:
            errors[job_id] = failure
    try:
        transport.send(written)
        errors |= _ask(transport, again, hold=hold) if again else {}
    except OutOfReach as silence:
        errors |= dict.fromkeys(again, silence)
    gone: list[Path] = []
    for job in jobs:
        run, task = job.status.run, job.status.history.task
        error = job.error = errors.get(job.status.job_id or "")
        job.done = error is None
        old: list[Path] = []
        if run is not None and error is None:
            # The end that was seen of the last attempt is none any more.
            old = [run.seen, run.cancelled]
            old += [] if task is None else [sweep_folder(run.path.parent, task.sweep_id).seen]
        elif run is not None and job.status.final and not isinstance(error, OutOfReach):
            # There is no next attempt; where Slurm was silent it may have started one all the same.
            old = [run.secrets]
        for path in old:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        gone += old
        # Who asked Slurm just before that may have taken them away.
        if run is not None and error is None and not run.secrets.exists():
            with contextlib.suppress(HpcrunError):
                gone += _give_secrets(context, job.status)
    with contextlib.suppress(OutOfReach):
        transport.send(gone)


def _give_secrets(context: Context, known: JobStatus) -> list[Path]:
    """Write the secrets of a run that is over; return the files, if any. Raises InputError."""
    if known.run is not None and known.final and known.plan is not None:
        return write_secrets(context, known.plan, known.run)
    return []


def _ask(transport: Transport, again: dict[str, str], *, hold: bool) -> dict[str, HpcrunError]:
    """Have Slurm start jobs again; what keeps it from some of them, by id. Raises OutOfReach.

    ``again`` has for each job what else its user can do.
    """
    refused = scheduler.requeue(transport, list(again), hold=hold)
    forbidden = [job_id for job_id, message in refused.items() if "disabled" in message]
    errors: dict[str, HpcrunError] = {}
    if forbidden:
        try:
            answers = _allow_once(transport, forbidden, hold=hold)
            refused |= {job_id: answers.get(job_id, "") for job_id in forbidden}
        except OutOfReach as silence:
            errors = dict.fromkeys(forbidden, silence)
    for job_id, message in refused.items():
        if "already finished" in message:
            errors.setdefault(job_id, _over_for_good(job_id, again[job_id]))
        elif message:
            text = f"scontrol requeue {job_id}: {message}"
            errors.setdefault(job_id, SchedulerRefused(text, fix=again[job_id]))
    return errors


def _allow_once(transport: Transport, job_ids: Sequence[str], *, hold: bool) -> dict[str, str]:
    """Lift --no-requeue, start again, and put it back, whatever happens: nobody asked for restarts
    unasked. Returns refusals by id; raises OutOfReach."""
    try:
        answers = scheduler.let_requeue(transport, job_ids, may=True)
        allowed = [job_id for job_id in job_ids if job_id not in answers]
        return answers | (scheduler.requeue(transport, allowed, hold=hold) if allowed else {})
    finally:
        with contextlib.suppress(OutOfReach):
            scheduler.let_requeue(transport, job_ids, may=False)


def _over_for_good(job_id: str, again: str) -> SchedulerRefused:
    return SchedulerRefused(
        f"job {job_id} is over, and was submitted with --no-requeue, hpcrun's default; "
        "a job may have slurm: {requeue: true}",
        fix=again,
    )
