"""Submit the stages of a pipeline that run once for each checkpoint of a training.

The job of the training submits them (``hpcrun/jobside/evaluations.py``); commands that watch the
pipeline run the same code on the cluster's host, in case the site lets no job submit others.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct, structs

from hpcrun.actions.cluster_host import find_local_path
from hpcrun.actions.prepare import Prepared, record_file
from hpcrun.actions.submit import (
    VARIABLES_OF_THIS_LOGIN,
    check_secrets,
    sbatch_environment,
    write_secrets,
)
from hpcrun.context import Context, slurm_transport, trusted_slurm_conf
from hpcrun.errors import HpcrunError, OutOfReach, SchedulerRefused
from hpcrun.monitor import Pipeline, Targets, build_submitted_record, find_pipeline
from hpcrun.ownership import foreign_owner, name_of_user
from hpcrun.remote import RunCommand
from hpcrun.render import ARCHIVE, replace_archive
from hpcrun.runs import (
    EVALUATIONS,
    PIPELINE,
    Cancelled,
    EvaluationsRecord,
    EvaluationStage,
    JobStatus,
    PipelineRecord,
    RunFolder,
    Submitted,
    read_plan,
    read_record,
    write_record,
)
from hpcrun.spec import Stage

# How often the checkpoints of watched pipelines are listed, as in a job.
CHECK_EVERY_S = 60.0
# How long a command that waits for all evaluations lets another process submit some.
EVALUATION_PATIENCE_S = 120.0
_TIMEOUT_S = 300.0
# Finds a Python on the cluster's host as a job does.
_SUBMIT = (
    '. "$HPCRUN_RUN_DIR/jobside.sh" && if HPCRUN_JOBSIDE_PYTHON=$(find_python);'
    ' then jobside "$@"; else echo "no Python 3.6 or newer on $HOSTNAME" >&2; exit 1; fi'
)


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


def make_checkpoint_token() -> str:
    """Return a word that stands for the path of a checkpoint in the files of a template.

    Every writer of these files quotes it as it quotes paths.
    """
    return f"<checkpoint-{os.urandom(4).hex()}>"


def attach_evaluations(
    context: Context,
    training: Prepared,
    evaluations: Mapping[str, tuple[str, Prepared]],
    record: PipelineRecord,
) -> Prepared:
    """Return a training that has the jobs of its evaluations as templates, for its own job.

    Args:
        evaluations: The token of the checkpoint and the job, by stage.
        record: The record of the pipeline.
    """
    if not evaluations:
        return training
    stages: dict[str, EvaluationStage] = {}
    for name, (token, made) in evaluations.items():
        is_clean = made.plan.environment_kind == "clean"
        stages[name] = EvaluationStage(
            parallel=record.stages[name].parallel,
            run_id=made.plan.run_id,
            token=token,
            submitted=build_submitted_record(context, made.plan),
            environment=sbatch_environment(context, made) if is_clean else None,
            without=_list_dropped_variables(made),
            options=made.options,
            secrets=bool(made.plan.secrets),
            uses_code=_shares_code(training, made),
        )
    folder = f"{training.plan.run_dir}/{RunFolder(training.path).evaluations.name}"
    index = EvaluationsRecord(folder=folder, stages=stages)
    templates = {}
    for name, (token, made) in evaluations.items():
        own = structs.replace(record, stage=name, checkpoint=token)
        index_of_run = structs.replace(index, stage=name)
        files = [record_file(PIPELINE, own), record_file(EVALUATIONS, index_of_run)]
        templates[name] = structs.replace(
            made,
            runs_dir=RunFolder(training.path).evaluations / name,
            files=[*replace_archive(made.files, made.plan, {"evaluations"}), *files],
        )
    files = replace_archive(training.files, training.plan, {"evaluations"})
    files.append(record_file(EVALUATIONS, index))
    return structs.replace(training, files=files, evaluations=templates)


def keep_evaluations(found: RunFolder, made: Prepared) -> Prepared:
    """Return a resubmitted training whose job submits the evaluations of the earlier one's."""
    record = _read_stages(found)
    if record is None:
        return made
    files = replace_archive(made.files, made.plan, {"evaluations"})
    return structs.replace(made, files=[*files, record_file(EVALUATIONS, record)])


def _shares_code(training: Prepared, made: Prepared) -> bool:
    """Return True if an evaluation uses the training's copy of the project."""
    plans = (training.plan, made.plan)
    return all(plan.snapshot and not plan.reference_trainer for plan in plans)


def _list_dropped_variables(made: Prepared) -> list[str]:
    """List the variables that sbatch must not inherit, as for a job that hpcrun submits."""
    options = ("account", "partition", "qos", "constraint", "reservation")
    directives = dict(made.plan.directives)
    own = (f"SBATCH_{option.upper()}" for option in options if option in directives)
    return [*made.plan.secrets, *VARIABLES_OF_THIS_LOGIN, *own]


class EvaluationCheck(Struct, frozen=True, kw_only=True):
    """The result of a check for checkpoints without an evaluation.

    Attributes:
        waiting: True if a later check submits evaluations.
        problems: Why checkpoints are not evaluated, although the others are.
    """

    waiting: bool = False
    problems: list[str] = []


def submit_evaluations(
    context: Context, pipeline: Pipeline, *, patience: float = 0.0
) -> EvaluationCheck:
    """Submit evaluations of complete checkpoints that have none, as many as may run in parallel.

    Args:
        patience: How many seconds to wait for another process that submits evaluations.

    Raises:
        SchedulerRefused: Slurm rejected a job; it is tried again later.
        OutOfReach: Slurm or the cluster did not answer.
    """
    outcomes: list[dict[str, str]] = []
    for run in _list_trainings(pipeline):
        is_cancelled = run.cancelled.exists() or run.evaluations_cancelled.exists()
        if not is_cancelled and not foreign_owner(run.path):
            outcomes += _submit_for_training(context, run, patience)
    for one in outcomes:
        message = f"stage {one['stage']}: no evaluation was submitted: {one['text']}"
        if one["kind"] == "refused":
            raise SchedulerRefused(message)
        if one["kind"] == "silent":
            raise OutOfReach(message)
    return EvaluationCheck(
        waiting=any(one["kind"] in ("busy", "waiting") for one in outcomes),
        problems=[f"stage {o['stage']}: {o['text']}" for o in outcomes if o["kind"] == "error"],
    )


def cancel_evaluations(context: Context, targets: Targets) -> bool:
    """Let nobody submit further evaluations of the targets that are trainings; True if some are.

    This precedes their cancellation: jobs that end by it would submit evaluations. A full disk does
    not prevent the cancellation. The secrets of the evaluations are removed.
    """
    marks, secrets = [], list[Path]()
    for run in targets.runs:
        if not foreign_owner(run.path) and (record := _read_stages(run)) is not None:
            marks.append(run.evaluations_cancelled)
            secrets += [template.secrets for template in _list_templates(context, record)]
    with contextlib.suppress(HpcrunError, OSError):
        for mark in marks:
            write_record(mark, Cancelled(cancelled_at=time.time(), user=name_of_user(os.getuid())))
        for path in secrets:
            path.unlink(missing_ok=True)
        if marks:
            context.transport().upload_files([*marks, *secrets])
    return bool(marks)


def restore_evaluation_secrets(context: Context, training: RunFolder) -> None:
    """Write the secrets of a training's evaluations again, before the training is repeated.

    Raises:
        InputError: A secret has no value.
        OutOfReach: The cluster did not answer.
    """
    record = _read_stages(training)
    written: list[Path] = []
    for template in _list_templates(context, record) if record is not None else ():
        plan = read_plan(template)
        if plan is not None and not template.secrets.exists():
            check_secrets(context, plan)
            written += write_secrets(context, plan, template)
    if written:
        context.transport().upload_files(written)
        if context.cluster.host is not None:  # the cluster has them now
            for path in written:
                path.unlink(missing_ok=True)


def _read_stages(run: RunFolder) -> EvaluationsRecord | None:
    """Return the stages that evaluate a run's checkpoints; None if it is no such training."""
    record = None
    with contextlib.suppress(HpcrunError):
        record = read_record(run.path / EVALUATIONS, EvaluationsRecord)
    return record if record is not None and record.stage is None else None


def _list_templates(context: Context, record: EvaluationsRecord) -> list[RunFolder]:
    """List the templates that have secrets, if they were not deleted with the first training."""
    folder = find_local_path(context, Path(record.folder))
    if folder is None:
        return []
    stages = record.stages.items()
    paths = [folder / name / stage.run_id for name, stage in stages if stage.secrets]
    return [RunFolder(path) for path in paths if path.is_dir()]


def _list_trainings(pipeline: Pipeline) -> list[RunFolder]:
    """List the newest runs of the trainings whose checkpoints are evaluated."""
    names = [stage.for_each_checkpoint_of for stage in pipeline.record.stages.values()]
    runs = [pipeline.members[one][-1] for one in dict.fromkeys(names) if one in pipeline.members]
    return [
        run for run in runs if isinstance(run, RunFolder) and (run.path / EVALUATIONS).is_file()
    ]


def _submit_for_training(
    context: Context, training: RunFolder, patience: float
) -> list[dict[str, str]]:
    plan = read_plan(training)
    if plan is None:
        return []
    submitted = read_record(training.submitted, Submitted)
    conf = trusted_slurm_conf(context, submitted.slurm_conf) if submitted is not None else None
    # The training's archive, so that its job and this command follow the same rules.
    program = ["bash", "-c", _SUBMIT, "bash"]
    if context.cluster.host is None:
        program = [sys.executable, "-I", "-S", str(training.path / ARCHIVE)]
    words = [plan.checkpoint_dir, str(plan.world_size), plan.survive.marker or ""]
    query = RunCommand(
        (*program, "submit_evaluations", f"{patience:g}", *words),
        timeout=_TIMEOUT_S,
        env=(("HPCRUN_RUN_DIR", plan.run_dir),),
    )
    answer = slurm_transport(context, conf).run_queries([query])[query]
    try:
        outcomes: list[dict[str, str]] = json.loads(answer.stdout)
    except ValueError as error:
        message = answer.stderr.strip() or f"exit code {answer.exit_code}"
        raise OutOfReach(f"evaluations of {training.path.name}: {message}") from error
    return outcomes


def fill_token(stage: Stage, token: str) -> list[str]:
    """Return the arguments of a stage, with the token of the checkpoint."""
    return [word.replace("{checkpoint}", token) for word in stage.args]
