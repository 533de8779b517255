"""Submit the stages of a pipeline that run once for each checkpoint of a training."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct, structs

from hpcrun.actions.checks.submission import Checks
from hpcrun.actions.prepare import Prepared, prepare_spec, read_spec, record_file
from hpcrun.actions.resubmit import load_cluster_context
from hpcrun.actions.submit import submit_job
from hpcrun.context import Context
from hpcrun.errors import HpcrunError, InputError
from hpcrun.jobside import list_whole_checkpoints
from hpcrun.monitor import Pipeline, find_pipeline, status_of
from hpcrun.ownership import foreign_owner
from hpcrun.plan import placeholder_names
from hpcrun.runs import (
    LOST_REPLY_WINDOW_S,
    NOT_SUBMITTED,
    PIPELINE,
    JobStatus,
    PipelineRecord,
    RunFolder,
    Submitted,
    read_plan,
    read_record,
    write_file,
)
from hpcrun.spec import Origin

# How often the checkpoints of watched pipelines are listed, as in a job.
CHECK_EVERY_S = 60.0
# How long a command that waits for all evaluations lets another one submit some.
EVALUATION_PATIENCE_S = 120.0
# A lock that is older belongs to a process that was killed.
_STALE_LOCK_S = 600.0


class SubmittedEvaluation(Struct, frozen=True):
    """A run that evaluates a checkpoint."""

    stage: str
    checkpoint: str
    job_id: str


class EvaluationSubmitter:
    """Submits evaluations of the pipelines that somebody watches, at most once a minute."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._due = 0.0

    def check_if_due(self, statuses: Iterable[JobStatus]) -> None:
        """Submit what is due. Never raises: the next check repeats it."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + CHECK_EVERY_S
        submitted = (status.history.submitted for status in statuses)
        for group in dict.fromkeys(one.group for one in submitted if one is not None):
            with contextlib.suppress(HpcrunError, OSError):
                if (pipeline := find_pipeline(self._context, group)) is not None:
                    submit_evaluations(self._context, pipeline)


def submit_evaluations(
    context: Context, pipeline: Pipeline, *, patience: float = 0.0
) -> list[SubmittedEvaluation]:
    """Submit evaluations of complete checkpoints that have none, as many as may run in parallel.

    Only for the user's pipelines of the context's project, on a cluster that is not behind SSH.

    Args:
        patience: How many seconds to wait for another process that submits evaluations.

    Raises:
        HpcrunError: The claims cannot be written.
        InputError: An evaluation cannot be prepared, or the training's cluster has no profile.
        SchedulerRefused: Slurm rejected it; it is tried again later.
    """
    try:
        return _submit_due(context, pipeline, patience)
    except OSError as error:
        raise HpcrunError(f"{error.filename}: {error.strerror}") from error


def _submit_due(context: Context, pipeline: Pipeline, patience: float) -> list[SubmittedEvaluation]:
    record, done = pipeline.record, list[SubmittedEvaluation]()
    if context.cluster.host is not None or str(context.project) != record.project:
        return done
    for name, stage in record.stages.items():
        training = pipeline.members.get(stage.for_each_checkpoint_of or "", [])
        if (
            not training
            or not isinstance(training[-1], RunFolder)
            or name not in record.evaluations
        ):
            continue
        newest = training[-1]
        plan = read_plan(newest)
        if plan is None or newest.cancelled.exists() or foreign_owner(newest.path):
            continue
        where = _find_training_context(context, newest)
        claims = training[0].path / "evaluations" / name
        with _lock(claims, patience) as is_ours:
            # Another process may have submitted evaluations meanwhile.
            pipeline = find_pipeline(context, record.id) or pipeline
            runs = [one for one in pipeline.members.get(name, []) if isinstance(one, RunFolder)]
            if not is_ours or any(run.cancelled.exists() for run in runs):
                continue
            states = {status.run_id: status for status in status_of(context, runs)}
            by_checkpoint = _group_by_checkpoint(runs, states)
            room = stage.parallel - sum(not status.final for status in states.values())
            found = list_whole_checkpoints(
                plan.checkpoint_dir, plan.world_size, plan.survive.marker or ""
            )
            for checkpoint in found if room > 0 else ():
                claim = _Claim(claims, checkpoint)
                earlier = by_checkpoint.get(checkpoint, [])
                if any(status.state != NOT_SUBMITTED for status in earlier):
                    continue
                if claim.is_taken(states, newest.path.parent):
                    continue
                made = _prepare_evaluation(where, record, name, checkpoint)
                job_id = _submit_claimed(where, made, claim)
                if job_id:
                    done.append(SubmittedEvaluation(name, checkpoint, job_id))
                    room -= 1
                if room <= 0:
                    break
    return done


def _find_training_context(context: Context, training: RunFolder) -> Context:
    """Return a context with the profile of the training's cluster and its copy of the code.

    Raises:
        InputError: There is no such profile, or its runs are in another folder.
    """
    submitted = read_record(training.submitted, Submitted)
    name = context.cluster.name if submitted is None else submitted.cluster
    if name != context.cluster.name:
        run_id = training.path.name
        try:
            found = load_cluster_context(context, context.project, name, run_id)
        except InputError as error:
            message = f"no evaluation was submitted: {error.message}"
            raise InputError(message, fix=f"restore the profile of {name}") from error
        if found.cluster.host is not None or found.runs_dir != context.runs_dir:
            raise InputError(
                f"no evaluation was submitted: {run_id} ran on {name}, whose runs are in "
                f"{found.cluster.runs_dir} now",
                fix=f"restore runs_dir in the profile of {name}",
            )
        context = structs.replace(found, debug=context.debug, waiting=context.waiting)
    return structs.replace(context, code=training.code if training.code.is_dir() else None)


def _group_by_checkpoint(
    runs: Iterable[RunFolder], states: Mapping[str, JobStatus]
) -> dict[str, list[JobStatus]]:
    """Return the states of the runs that evaluate each checkpoint, by its path."""
    found: dict[str, list[JobStatus]] = {}
    for run in runs:
        record = read_record(run.pipeline, PipelineRecord)
        if record is not None and record.checkpoint is not None and run.path.name in states:
            found.setdefault(record.checkpoint, []).append(states[run.path.name])
    return found


def _prepare_evaluation(
    context: Context, record: PipelineRecord, name: str, checkpoint: str
) -> Prepared:
    text = record.evaluations[name]
    spec = read_spec(context, text, f"{record.name}.{name}")
    args = [word.replace("{checkpoint}", checkpoint) for word in record.stages[name].args]
    made = prepare_spec(
        context, spec, extra_args=args, origin=Origin(name), checks=Checks(strict=False)
    )
    for known in placeholder_names(made.plan.environment):
        if f"{{{known}}}" in checkpoint:
            raise InputError(
                f"{name}: {checkpoint}: {{{known}}} in the path of a checkpoint would be replaced, "
                "as a placeholder",
                fix="choose a path without it for checkpoint.dir of the training",
            )
    own = structs.replace(record, stage=name, checkpoint=checkpoint)
    made.files.append(record_file(PIPELINE, own))
    return made


def _submit_claimed(context: Context, made: Prepared, claim: _Claim) -> str:
    """Submit an evaluation; return its job, or "" if another process has claimed it."""
    if not claim.acquire(made.plan.run_id):
        return ""
    try:
        job_id = submit_job(context, made).job_id
    except BaseException:
        if not made.path.exists():  # Slurm has no such job
            claim.release()
        raise
    claim.mark_submitted()
    return job_id


class _Claim:
    """The right to evaluate a checkpoint: a file per try, which only one process can create."""

    def __init__(self, folder: Path, checkpoint: str) -> None:
        self.folder = folder / quote(checkpoint, safe="")[-200:]
        self.tries = len([*self.folder.glob("[0-9]*")])

    @property
    def path(self) -> Path:
        """The file of the last try."""
        return self.folder / str(self.tries - 1)

    def is_taken(self, states: Mapping[str, JobStatus], runs_dir: Path) -> bool:
        """Return True unless there is no claim, or Slurm never got the job of the last one."""
        if not self.tries:
            return False
        if (self.folder / "submitted").exists():
            return True
        try:
            run_id, age = self.path.read_text(), time.time() - self.path.stat().st_mtime
        except OSError:
            return True
        if not run_id:  # its process was killed, or is about to write
            return age < LOST_REPLY_WINDOW_S
        if run_id in states:
            return states[run_id].state != NOT_SUBMITTED
        return (runs_dir / run_id).exists() or age < LOST_REPLY_WINDOW_S

    def acquire(self, run_id: str) -> bool:
        """Claim the checkpoint for a run; return False if another process has just done so."""
        self.tries += 1
        self.folder.mkdir(exist_ok=True)
        try:
            file = self.path.open("x")
        except FileExistsError:
            return False
        try:
            with file:
                file.write(run_id)
        except OSError:
            self.release()
            raise
        return True

    def mark_submitted(self) -> None:
        """Record that Slurm has the job, whose run may be deleted later."""
        write_file(self.folder / "submitted", b"")

    def release(self) -> None:
        """Withdraw the last claim, whose job was not submitted."""
        self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def _lock(folder: Path, patience: float) -> Iterator[bool]:
    """Let one process at a time count and submit evaluations; yield False to all others."""
    folder.mkdir(parents=True, exist_ok=True)
    lock, until = folder / "lock", time.monotonic() + patience
    while True:
        try:
            lock.mkdir()
            break
        except FileExistsError:
            with contextlib.suppress(OSError):
                if time.time() - lock.stat().st_mtime > _STALE_LOCK_S:
                    lock.rmdir()  # the next check takes it
            if time.monotonic() >= until:
                yield False
                return
            time.sleep(0.5)
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):
            lock.rmdir()
