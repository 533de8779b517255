"""Cancel and requeue jobs: runs, whole sweeps, and jobs that hpcrun did not submit."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from hpcrun.actions.cluster_host import find_user_name
from hpcrun.context import Context, slurm_transport
from hpcrun.errors import HpcrunError, InputError, OutOfReach, SchedulerRefused
from hpcrun.monitor import (
    Targets,
    copied_run_error,
    find_successor_job,
    status_of,
    status_of_jobs,
    unknown_job_error,
)
from hpcrun.ownership import name_of_user
from hpcrun.remote import Transport
from hpcrun.runs import (
    Begin,
    Cancelled,
    JobStatus,
    RunFolder,
    Verdict,
    runs_of,
    sweep_folder,
    write_file,
    write_record,
)
from hpcrun.signals import defer_signals
from hpcrun.slurm import (
    ACTIVE,
    UNKNOWN,
    WAITING,
    array_job_id,
    client,
    explain_reason,
    matches_answer,
)

# The number of jobs in one requeue; Slurm responds to each separately.
_AT_ONCE = 100


class ActionResult(Struct, kw_only=True):
    """The outcome of an action on a job.

    Attributes:
        word: The word that named the job.
        status: The status before the action.
        over: The job was skipped because it had already ended.
        left: The reason why the job was skipped.
        error: The error of the action.
        unrecorded: The error of recording the action.
    """

    word: str
    status: JobStatus
    over: bool = False
    done: bool = False
    left: str = ""
    error: HpcrunError | None = None
    unrecorded: str = ""

    @property
    def run_id(self) -> str | None:
        """The run's id; None for a job that hpcrun did not submit."""
        return self.status.run.run_id if self.status.run is not None else None


def _apply_to_jobs(
    context: Context,
    targets: Targets,
    check_target: Callable[[ActionResult], None],
    act: Callable[[str | None, Sequence[ActionResult]], None],
    *,
    done: str,
    at_once: int,
) -> list[ActionResult]:
    """Query all targets, then act on those that are not skipped, grouped by Slurm installation.

    Args:
        check_target: Sets the reason to skip a job.
        act: Takes a slurm.conf and at most ``at_once`` jobs, and sets their outcomes. Ctrl-C is
            deferred while it runs.
        done: The word for the action in the message after Ctrl-C.

    Raises:
        OutOfReach: Nothing at all could be done.
    """
    jobs = _find_statuses(context, targets)
    wanted: dict[str | None, list[ActionResult]] = {}
    for job in jobs:
        if job.error is None:
            check_target(job)
        if not (job.over or job.left or job.error):
            wanted.setdefault(job.status.slurm_conf, []).append(job)
    try:
        for conf, due in wanted.items():
            for start in range(0, len(due), at_once):
                with defer_signals():
                    act(conf, due[start : start + at_once])
    except KeyboardInterrupt as pressed:
        names = [job.status.label for job in jobs if job.done]
        if not names:
            raise
        rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise KeyboardInterrupt(
            f"Slurm had already received the request: {', '.join(names[:5])}{rest}: {done} anyway"
        ) from pressed
    return jobs


def _find_statuses(context: Context, targets: Targets) -> list[ActionResult]:
    """Query the statuses of all targets; unknown jobs come last. Raises OutOfReach."""
    runs = targets.all_runs()
    statuses = status_of(context, runs) if runs else []
    known = [ActionResult(word=status.job_id or "", status=status) for status in statuses]
    unknown: list[ActionResult] = []
    for word, found in status_of_jobs(context, targets.jobs).items():
        known += [ActionResult(word=word, status=status) for status in found]
        if not found:
            status = JobStatus.of_job(word, Verdict(state=UNKNOWN))
            unknown.append(ActionResult(word=word, status=status, error=unknown_job_error(word)))
    return known + unknown


def _refuse_foreign_job(context: Context, status: JobStatus, fix: str) -> InputError | None:
    """Return an error if the job belongs to another user; OWNER in ``fix`` becomes their name."""
    owner = status.job.user if status.job else ""
    me = {name_of_user(os.getuid())}
    if owner and status.run is None and context.cluster.host is not None:
        # The user may have a different name on the cluster.
        me = {find_user_name(context) or owner}
    if status.run is not None:
        try:
            owner = name_of_user(status.run.path.stat().st_uid)
        except OSError:  # the directory no longer exists
            owner = ""
    if not owner or owner in me:
        return None
    return InputError(f"{status.label} is {owner}'s", fix=fix.replace("OWNER", owner))


# ---- cancelling ----------------------------------------------------------------------------------


def cancel_jobs(context: Context, targets: Targets, *, pending: bool = False) -> list[ActionResult]:
    """Cancel all targets with one scancel call per Slurm installation."""

    def check_target(job: ActionResult) -> None:
        status = job.status
        job.error = copied_run_error(status.history, "cancel")
        job.over = job.error is None and status.final
        if not job.over:
            job.error = job.error or _refuse_foreign_job(context, status, "ask OWNER to cancel it")
        if job.over or job.error is not None:
            return
        if pending and status.out_of_reach:
            job.error = OutOfReach(f"{status.label}: {status.out_of_reach}", fix="try again later")
        elif pending and status.state != "PENDING":
            job.left = f"it is {status.state}, not PENDING"
        elif status.job_id is None and not status.is_local:
            job.error = InputError(
                f"{status.label}: no Slurm job of it is known", fix="hpcrun status shows when it is"
            )

    whole = {run.run_id for sweep in targets.sweeps for run in runs_of(sweep)}

    def cancel(conf: str | None, jobs: Sequence[ActionResult]) -> None:
        asked = [job for job in jobs if not job.status.is_local]
        error: HpcrunError | None = None
        if asked:
            # Whole arrays are cancelled by their own ids: Slurm accepts one word for 1000 tasks.
            words = [
                array_job_id(job.word) if job.run_id in whole else job.word
                for job in asked
                # A run that shares its job is ended by its harness, which detects the record
                # written below.
                if job.run_id in whole or not job.status.history.shares_job
            ]
            words += [
                successor for job in asked if (successor := find_successor_job(job.status.history))
            ]
            try:
                transport = slurm_transport(context, conf)
                if words:
                    client.cancel_jobs(transport, list(dict.fromkeys(words)), pending=pending)
            except HpcrunError as failure:
                error = failure
        # scancel --state=PENDING skipped jobs that started meanwhile; they are found by a query.
        states: dict[str | None, str] = {}
        if pending and asked and error is None:
            with contextlib.suppress(OutOfReach):
                known = _find_statuses(context, targets)
                states = {job.status.job_id: job.status.state for job in known}
        for job in jobs:
            state = states.get(job.status.job_id)
            if job.status.is_local:
                _record_cancel(job, _terminate_local_run(job.status))
            elif state in ACTIVE | {"CONFIGURING"}:
                job.left = f"it is {state}, not PENDING"
            else:
                _record_cancel(job, error)
        runs = [job.status.run for job in asked if job.done]
        if records := [run.cancelled for run in runs if run is not None]:
            with contextlib.suppress(OutOfReach):
                transport.upload_files(records)

    return _apply_to_jobs(
        context, targets, check_target, cancel, done="cancelled", at_once=sys.maxsize
    )


def _record_cancel(job: ActionResult, error: HpcrunError | None) -> None:
    """Record the cancellation; a full disk does not prevent the job's end."""
    job.done, job.error = error is None, error
    if job.done and job.status.run is not None:
        try:
            record = Cancelled(cancelled_at=time.time(), user=name_of_user(os.getuid()))
            write_record(job.status.run.cancelled, record)
        except HpcrunError as failure:
            job.unrecorded = failure.message


def _terminate_local_run(status: JobStatus) -> InputError | None:
    """Terminate a run of ``hpcrun run`` through its harness; return the error if impossible."""
    run, last, submitted = status.run, status.last, status.history.submitted
    assert run is not None
    begun = last.begin if last else None
    if submitted is not None and submitted.host != socket.gethostname():
        where = submitted.host
        return InputError(f"{run.run_id}: it runs on {where}", fix=f"hpcrun cancel there: {where}")
    if begun is None:
        return InputError(f"{run.run_id}: it has not begun yet", fix="try again in a moment")
    if not is_process_alive(run, begun):
        return InputError(f"{run.run_id}: its process {begun.pid} is gone")
    try:
        os.kill(begun.pid, signal.SIGTERM)
    except OSError as failure:
        reason = failure.strerror or str(failure)
        return InputError(f"{run.run_id}: process {begun.pid}: {reason}")
    return None


def is_process_alive(run: RunFolder, begun: Begin) -> bool:
    """Return True if a run's harness is running here, although process ids are reused."""
    try:
        line = os.fsdecode(Path(f"/proc/{begun.pid}/cmdline").read_bytes())
    except OSError:
        return False
    # The directory's name is compared, because its path may be spelled through different links.
    return run.run_id in line.replace("\0", "/").split("/")


# ---- requeueing ----------------------------------------------------------------------------------


def requeue_jobs(
    context: Context, targets: Targets, *, failed: bool = False, hold: bool = False
) -> list[ActionResult]:
    """Requeue all running targets, and the finished ones that Slurm still knows.

    Of a sweep, only the running runs are requeued. Ctrl-C is deferred until a job that Slurm has
    accepted has everything that it needs.

    Args:
        failed: Only targets that ended without success.
        hold: Hold the jobs until they are released.
    """
    inside = {run.run_id for sweep in targets.sweeps for run in runs_of(sweep)}

    def check_target(job: ActionResult) -> None:
        in_sweep = job.run_id in inside
        job.left = _explain_skip(context, job.status, failed=failed, hold=hold, in_sweep=in_sweep)
        job.error = None if job.left else _find_obstacle(context, job.status)

    act = partial(_requeue_batch, context, hold=hold)
    return _apply_to_jobs(
        context, targets, check_target, act, done="started again", at_once=_AT_ONCE
    )


def _explain_skip(
    context: Context, known: JobStatus, *, failed: bool, hold: bool, in_sweep: bool
) -> str:
    """Return why a job is skipped; "" if it is not."""
    verdict = known.verdict
    is_unknown = known.out_of_reach and not verdict.final
    if failed and not is_unknown and (verdict.ok or not verdict.final):
        return f"it is {verdict.state}"
    if in_sweep and not failed and verdict.final:
        return f"it is {verdict.state}"
    if verdict.state not in WAITING or _refuse_foreign_job(context, known, ""):
        return ""
    why = explain_reason(verdict.reason, known.job_id or "")
    if " held" in why.words:
        return f"it is already pending, and {why.words}: {why.fix}"
    return "" if hold else "it is already pending"


def _find_obstacle(context: Context, known: JobStatus) -> HpcrunError | None:
    """Return the error that prevents a requeue; None if the job can be passed to Slurm."""
    name, verdict = known.label, known.verdict
    again = _suggest_resubmit(known)
    error = _refuse_foreign_job(context, known, again)
    if error is not None:
        return error
    if known.run is not None:
        submitted = known.history.submitted
        if (error := copied_run_error(known.history, "requeue")) is not None:
            return error
        if submitted is not None and known.is_local:
            return InputError(f"{name} is not a Slurm job: hpcrun run ran it on {submitted.host}")
        if known.history.shares_job:
            return InputError(f"{name} shares its job with other runs", fix=again)
        if known.out_of_reach:
            later = f"try again later; or {again}" if verdict.final else "try again later"
            return OutOfReach(f"{name}: {known.out_of_reach}", fix=later)
    if verdict.state in WAITING:
        return InputError(
            f"{name} is already pending: there is nothing to restart",
            fix=f"scontrol hold {known.job_id} holds it",
        )
    if verdict.state == UNKNOWN or known.job_id is None:
        return InputError(f"{name}: its state is not known: {verdict.reason or 'no Slurm job'}")
    if verdict.final and verdict.source != "squeue":
        return InputError(f"{name}: Slurm no longer knows it", fix=again)
    plan = known.plan
    if plan is None or not plan.secrets:
        return None
    # The secrets of a finished run were removed, and a job that may not be requeued removes its
    # own.
    stays_over = "no-requeue" in dict(plan.directives)
    if not verdict.final and stays_over:
        return InputError(
            f"{name} has secrets, which a job without slurm: {{requeue: true}} removes as it stops",
            fix=f"hpcrun cancel {known.job_id}, then hpcrun resubmit {known.job_id}",
        )
    if verdict.final:
        from hpcrun.actions.submit import check_secrets  # deferred: submit imports the planner

        try:
            check_secrets(context, plan)
        except InputError as missing:
            if stays_over:  # the requeue would fail even with secrets
                return _not_requeuable_error(known.job_id, again)
            return InputError(f"{name}: {missing.message}", fix="export them and try again")
    return None


def _suggest_resubmit(known: JobStatus) -> str:
    if known.run is None:
        return ""
    return f"hpcrun resubmit {known.job_id or known.run_id} makes a new run of it"


def _requeue_batch(
    context: Context, conf: str | None, jobs: Sequence[ActionResult], *, hold: bool
) -> None:
    """Requeue jobs of one Slurm installation, after their secrets were written."""
    transport = slurm_transport(context, conf)
    errors: dict[str, HpcrunError] = {}
    again: dict[str, str] = {}
    written: list[Path] = []
    for job in jobs:
        job_id = job.status.job_id or ""
        try:
            if job.status.final and job.status.run is not None:
                from hpcrun.actions.evaluations import (
                    restore_evaluation_secrets,  # deferred: it imports the planner
                )

                restore_evaluation_secrets(context, job.status.run)
            written += _restore_secrets(context, job.status) + _mark_for_next_attempt(job.status)
            again[job_id] = _suggest_resubmit(job.status)
        except HpcrunError as failure:
            errors[job_id] = failure
    try:
        transport.upload_files(written)
        errors |= _requeue_in_slurm(transport, again, hold=hold) if again else {}
    except OutOfReach as silence:
        errors |= dict.fromkeys(again, silence)
    gone: list[Path] = []
    for job in jobs:
        run, task = job.status.run, job.status.history.task
        error = job.error = errors.get(job.status.job_id or "")
        job.done = error is None
        old: list[Path] = []
        if run is not None and error is None:
            # The cached end of the last attempt is obsolete.
            old = [run.seen, run.cancelled, run.evaluations_cancelled]
            old += [] if task is None else [sweep_folder(run.path.parent, task.sweep_id).seen]
        elif run is not None and job.status.final and not isinstance(error, OutOfReach):
            # There is no next attempt. If Slurm did not respond, the job may still have been
            # requeued.
            old = [run.secrets]
        for path in old:
            try:
                path.unlink(missing_ok=True)
            except OSError as failure:
                if path.exists():
                    job.unrecorded = f"{path} was not deleted: {failure.strerror}"
        gone += old
        # A reader that queried Slurm just before may have removed the secrets of the ended run.
        if run is not None and error is None and not run.secrets.exists():
            with contextlib.suppress(HpcrunError):
                gone += _restore_secrets(context, job.status)
    with contextlib.suppress(OutOfReach):
        transport.upload_files(gone)


def _mark_for_next_attempt(known: JobStatus) -> list[Path]:
    """Tell the next attempt of a finished run that the recorded end was not the last."""
    if known.run is None or known.end is None or known.end.next is not None:
        return []
    again = known.run.attempts / str(known.end.attempt) / "again"
    write_file(again, b"")
    return [again]


def _restore_secrets(context: Context, known: JobStatus) -> list[Path]:
    """Write the secrets of a finished run; return the files, if any. Raises InputError."""
    if known.run is None or known.plan is None or not (known.final and known.plan.secrets):
        return []
    from hpcrun.actions.submit import write_secrets  # deferred: submit imports the planner

    return write_secrets(context, known.plan, known.run)


def _requeue_in_slurm(
    transport: Transport, again: dict[str, str], *, hold: bool
) -> dict[str, HpcrunError]:
    """Requeue jobs; return the errors of those that Slurm rejected. Raises OutOfReach."""
    refused = client.requeue_jobs(transport, list(again), hold=hold)
    forbidden = [
        job_id for job_id, message in refused.items() if matches_answer(message, "requeue disabled")
    ]
    errors: dict[str, HpcrunError] = {}
    if forbidden:
        try:
            answers = _requeue_forbidden(transport, forbidden, hold=hold)
            refused |= {job_id: answers.get(job_id, "") for job_id in forbidden}
        except OutOfReach as silence:
            errors = dict.fromkeys(forbidden, silence)
    for job_id, message in refused.items():
        if matches_answer(message, "finished"):
            errors.setdefault(job_id, _not_requeuable_error(job_id, again[job_id]))
        elif message:
            text = f"scontrol requeue {job_id}: {message}"
            errors.setdefault(job_id, SchedulerRefused(text, fix=again[job_id]))
    return errors


def _requeue_forbidden(
    transport: Transport, job_ids: Sequence[str], *, hold: bool
) -> dict[str, str]:
    """Lift --no-requeue, requeue, and restore --no-requeue to prevent later automatic restarts.

    Returns:
        Slurm's rejections by job id.

    Raises:
        OutOfReach: Slurm does not respond.
    """
    try:
        answers = client.set_requeue(transport, job_ids, may=True)
        allowed = [job_id for job_id in job_ids if job_id not in answers]
        return answers | (client.requeue_jobs(transport, allowed, hold=hold) if allowed else {})
    finally:
        with contextlib.suppress(OutOfReach):
            client.set_requeue(transport, job_ids, may=False)


def _not_requeuable_error(job_id: str, again: str) -> SchedulerRefused:
    return SchedulerRefused(
        f"job {job_id} is over, and was submitted with --no-requeue, hpcrun's default; "
        "a job may have slurm: {requeue: true}",
        fix=again,
    )
