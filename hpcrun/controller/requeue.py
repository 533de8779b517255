"""Starts runs and jobs again under their own id: the next attempt of the same run."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
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

    def start_again(conf: str | None, jobs: Sequence[Outcome]) -> None:
        _start_again(context, slurm_transport(context, conf), jobs, hold=hold)

    return act_on(context, targets, look, start_again, done="started again", at_once=_AT_ONCE)


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
    return _secrets_error(context, known, name)


def _again(known: JobStatus) -> str:
    if known.run is None:
        return ""
    return f"hpcrun resubmit {known.job_id or known.run_id} makes a new run of it"


def _secrets_error(context: Context, status: JobStatus, name: str) -> HpcrunError | None:
    """A run that is over has no secrets any more, and one that may not be requeued loses them."""
    plan = status.plan
    if plan is None or not plan.secrets:
        return None
    stays_over = "no-requeue" in dict(plan.directives)
    if not status.verdict.final and stays_over:
        return InputError(
            f"{name} has secrets, which a job without slurm: {{requeue: true}} removes as it stops",
            fix=f"hpcrun cancel {status.job_id}, then hpcrun resubmit {status.job_id}",
        )
    if status.verdict.final:
        try:
            check_secrets(context, plan)
        except InputError as error:
            if stays_over:  # secrets would not help
                return _over_for_good(status.job_id or "", _again(status))
            return InputError(f"{name}: {error.message}", fix="export them and try again")
    return None


def _start_again(
    context: Context, transport: Transport, jobs: Sequence[Outcome], *, hold: bool
) -> None:
    """Have one Slurm start jobs again.

    The next attempt finds its secrets whenever it begins: they are there before Slurm is asked.
    """
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
        error = errors.get(job.status.job_id or "")
        job.done, job.error = error is None, error
        if job.status.run is not None:
            gone += _tidy(job.status, error)
            # Who asked Slurm just before that may have taken them away.
            if error is None and not job.status.run.secrets.exists():
                with contextlib.suppress(HpcrunError):
                    gone += _give_secrets(context, job.status)
    with contextlib.suppress(OutOfReach):
        transport.send(gone)


def _give_secrets(context: Context, known: JobStatus) -> list[Path]:
    """Write the secrets of a run that is over; return the files, if any. Raises InputError."""
    if known.run is not None and known.final and known.plan is not None:
        return write_secrets(context, known.plan, known.run)
    return []


def _tidy(status: JobStatus, error: HpcrunError | None) -> list[Path]:
    """Forget the end that was seen of the last attempt; or take the secrets of no next one away.

    Where Slurm was silent it may have started it all the same: then they stay. Returns the files
    that are gone.
    """
    run, task = status.run, status.history.task
    assert run is not None
    gone = []
    if error is None:
        gone = [run.seen, run.cancelled]
        gone += [] if task is None else [sweep_folder(run.path.parent, task.sweep_id).seen]
    elif status.verdict.final and not isinstance(error, OutOfReach):
        gone = [run.secrets]
    for path in gone:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    return gone


def _ask(transport: Transport, again: dict[str, str], *, hold: bool) -> dict[str, HpcrunError]:
    """Have Slurm start jobs again; what keeps it from some of them, by id.

    ``again`` has for each job what else its user can do.
    """
    try:
        refused = scheduler.requeue(transport, list(again), hold=hold)
    except OutOfReach as silence:
        return dict.fromkeys(again, silence)
    forbidden = [job_id for job_id, message in refused.items() if "disabled" in message]
    silent: dict[str, HpcrunError] = {}
    if forbidden:
        try:
            answers = _allow_once(transport, forbidden, hold=hold)
            refused |= {job_id: answers.get(job_id, "") for job_id in forbidden}
        except OutOfReach as silence:
            silent = dict.fromkeys(forbidden, silence)
    return {
        job: _refusal(job, message, again[job]) for job, message in refused.items() if message
    } | silent


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


def _refusal(job_id: str, message: str, again: str) -> SchedulerRefused:
    if "already finished" in message:
        return _over_for_good(job_id, again)
    return SchedulerRefused(f"scontrol requeue {job_id}: {message}", fix=again)


def _over_for_good(job_id: str, again: str) -> SchedulerRefused:
    return SchedulerRefused(
        f"job {job_id} is over, and was submitted with --no-requeue, hpcrun's default; "
        "a job may have slurm: {requeue: true}",
        fix=again,
    )
