"""Starts runs and jobs anew under their own id: the next attempt of the same run.

Effects: scontrol, files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from msgspec import Struct, structs

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.controller.state.foreign import ForeignStatus, ask_foreign, unknown_job
from hpcrun.controller.state.status import RunStatus, status_of
from hpcrun.controller.submit import check_secrets, write_secrets
from hpcrun.controller.targets import Targets, owner_of, user_name
from hpcrun.errors import HpcrunError, InputError, OutOfReach, SchedulerRefused
from hpcrun.runs.layout import sweep_folder
from hpcrun.runs.store import runs_of
from hpcrun.slurm.states import UNKNOWN, WAITING
from hpcrun.transport import Transport

# Jobs in one command; Slurm answers for each of them by itself.
_AT_ONCE = 100


class Requeue(Struct, frozen=True, kw_only=True):
    """What was done about one job: ``state`` is the one before.

    ``left`` says why it was left alone; ``error`` why it could not be started anew.
    """

    run_id: str | None
    job_id: str | None
    state: str
    requeued: bool = False
    left: str = ""
    error: HpcrunError | None = None


def requeue_all(
    context: Context, targets: Targets, *, failed: bool = False, hold: bool = False
) -> list[Requeue]:
    """Have Slurm start all that is named anew: what runs, and what is over while Slurm knows it.

    Of a sweep those runs that run now. ``failed``: only what is over and did not end well.
    ``hold``: it waits until it is released. One that is refused does not keep the others from it:
    its ``error`` says why.
    """
    runs = targets.all_runs()
    statuses = status_of(context, runs) if runs else []
    inside = {run.path for sweep in targets.sweeps for run in runs_of(sweep)}
    told: list[Requeue] = []
    wanted: dict[str | None, list[tuple[int, RunStatus | None]]] = {}
    for status in statuses:
        in_sweep = status.run.path in inside
        first = _look_at(context, status, failed=failed, in_sweep=in_sweep)
        if not first.left and first.error is None:
            submitted = status.history.submitted
            conf = submitted.slurm_conf if submitted else None
            wanted.setdefault(conf, []).append((len(told), status))
        told.append(first)
    for job_id, known in ask_foreign(context, targets.foreign).items():
        if not known:
            error = unknown_job(job_id)
            told.append(Requeue(run_id=None, job_id=job_id, state=UNKNOWN, error=error))
        for foreign in known:
            first = _look_at_foreign(foreign, failed=failed)
            if not first.left and first.error is None:
                wanted.setdefault(None, []).append((len(told), None))
            told.append(first)
    for conf, places in wanted.items():
        for start in range(0, len(places), _AT_ONCE):
            some = places[start : start + _AT_ONCE]
            answers = _ask(context, conf, [told[place] for place, _ in some], hold=hold)
            for (place, one), answer in zip(some, answers, strict=True):
                told[place] = answer
                if one is not None and answer.requeued:
                    _prepare_files(context, one)
    return told


def _look_at(context: Context, status: RunStatus, *, failed: bool, in_sweep: bool) -> Requeue:
    """Say what keeps a run from being started anew; nothing: it goes to Slurm."""
    run, verdict, submitted = status.run, status.verdict, status.history.submitted
    name = f"job {status.job_id}" if status.job_id else run.run_id
    again = f"hpcrun resubmit {status.job_id or run.run_id} makes a new run of it"
    owner = owner_of(run.path)
    left = ""
    error: HpcrunError | None = None
    if verdict.ok or not verdict.final if failed else in_sweep and verdict.final:
        left = f"it is {verdict.state}"
    elif owner and owner != user_name():
        error = InputError(f"{name} is {owner}'s", fix=again)
    elif submitted is not None and submitted.job_id is None:
        error = InputError(f"{name} is no Slurm job: hpcrun run ran it on {submitted.host}")
    elif status.out_of_reach:
        later = f"try again later; or {again}" if verdict.final else "try again later"
        error = OutOfReach(f"{name}: {status.out_of_reach}", fix=later)
    elif verdict.state == UNKNOWN or status.job_id is None:
        error = InputError(f"{name}: its state is not known: {verdict.reason or 'no Slurm job'}")
    elif verdict.state in WAITING:
        left = _waits(verdict.reason, status.job_id)
    elif verdict.final and verdict.source != "squeue":
        error = InputError(f"{name}: Slurm has forgotten it", fix=again)
    else:
        error = _secrets_error(context, status, name)
    return Requeue(
        run_id=run.run_id, job_id=status.job_id, state=verdict.state, left=left, error=error
    )


def _waits(reason: str, job_id: str) -> str:
    if "Held" in reason or "held" in reason:
        return f"it waits already, and is held: scontrol release {job_id}"
    return "it waits already"


def _secrets_error(context: Context, status: RunStatus, name: str) -> InputError | None:
    """A run that is over has no secrets any more, and one that may not be requeued loses them."""
    plan = status.plan
    if plan is None or not plan.secrets:
        return None
    if not status.verdict.final and "no-requeue" in dict(plan.directives):
        return InputError(
            f"{name} has secrets, which a job without slurm: {{requeue: true}} removes as it stops",
            fix=f"hpcrun cancel {status.job_id}, then hpcrun resubmit {status.job_id}",
        )
    if status.verdict.final:
        try:
            check_secrets(context, plan)
        except InputError as error:
            return InputError(f"{name}: {error.message}", fix="export them and try again")
    return None


def _look_at_foreign(status: ForeignStatus, *, failed: bool) -> Requeue:
    row = status.queue or status.account
    owner, verdict, left, error = row.user if row else "", status.verdict, "", None
    if failed and (verdict.ok or not verdict.final):
        left = f"it is {verdict.state}"
    elif owner and owner != user_name():
        error = InputError(f"job {status.job_id} is {owner}'s")
    elif verdict.state in WAITING:
        left = _waits(verdict.reason, status.job_id)
    elif verdict.final and verdict.source != "squeue":
        error = InputError(f"job {status.job_id}: Slurm has forgotten it")
    return Requeue(run_id=None, job_id=status.job_id, state=verdict.state, left=left, error=error)


def _ask(
    context: Context, conf: str | None, jobs: Sequence[Requeue], *, hold: bool
) -> list[Requeue]:
    """Have one Slurm start jobs anew. What --no-requeue forbids is allowed for this one time."""
    transport = slurm_transport(context, conf)
    job_ids = [job.job_id or "" for job in jobs]
    try:
        refused = scheduler.requeue(transport, job_ids, hold=hold)
        forbidden = [job_id for job_id, said in refused.items() if "disabled" in said]
        if forbidden:
            refused |= _allow_once(transport, forbidden, refused, hold=hold)
    except OutOfReach as silence:
        return [structs.replace(job, error=silence) for job in jobs]
    found = []
    for job in jobs:
        said = refused.get(job.job_id or "", "")
        if not said:
            found.append(structs.replace(job, requeued=True))
            continue
        found.append(structs.replace(job, error=_refusal(job, said)))
    return found


def _allow_once(
    transport: Transport,
    job_ids: Sequence[str],
    refused: dict[str, str],
    *,
    hold: bool,
) -> dict[str, str]:
    """Lift --no-requeue, start anew, and put it back: nobody asked for restarts unasked."""
    answers = scheduler.let_requeue(transport, job_ids, may=True)
    allowed = [job_id for job_id in job_ids if job_id not in answers]
    if allowed:
        again = scheduler.requeue(transport, allowed, hold=hold)
        answers |= {job_id: again.get(job_id, "") for job_id in allowed}
        with contextlib.suppress(OutOfReach):
            scheduler.let_requeue(transport, allowed, may=False)
    return answers


def _refusal(job: Requeue, said: str) -> HpcrunError:
    again = f"hpcrun resubmit {job.job_id} makes a new run of it" if job.run_id else ""
    if "already finished" in said:
        return SchedulerRefused(
            f"job {job.job_id} is over, and was submitted with --no-requeue, as hpcrun does unless "
            "the job says slurm: {requeue: true}",
            fix=again,
        )
    return SchedulerRefused(f"scontrol requeue {job.job_id}: {said}", fix=again)


def _prepare_files(context: Context, status: RunStatus) -> None:
    """Give the next attempt its secrets again, and forget the end that was seen of the last one."""
    run = status.run
    task = status.history.task
    seen = [] if task is None else [sweep_folder(run.path.parent, task.sweep_id).seen]
    for path in (run.seen, run.cancelled, *seen):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    if status.verdict.final and status.plan is not None:
        write_secrets(context, status.plan, run)
