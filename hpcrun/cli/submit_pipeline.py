"""hpcrun submit of a pipeline, and resubmission of its stages."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcrun.actions import PipelineRequest, PreparedPipeline, SubmittedStage
from hpcrun.cli.output import (
    emit_json,
    output_display,
    print_line,
    print_lines,
    print_note,
    print_table,
)
from hpcrun.cli.show_submission import (
    again_json,
    describe_run,
    files_json,
    show_files,
    show_origin,
    submission_json,
)
from hpcrun.context import Context
from hpcrun.errors import InputError
from hpcrun.runs import JobStatus, RunFolder
from hpcrun.spec import Stage
from hpcrun.text import format_next_steps

if TYPE_CHECKING:
    from hpcrun.actions import Code
    from hpcrun.monitor import Pipeline

# Options of submit that apply to one job.
_OF_ONE_JOB = ("name", "account", "partition", "time", "gpus_per_node", "nodes", "extra_args")

# How often checkpoints that cannot be submitted yet are checked, after all runs have ended.
_REMAINING_CHECK_S = 5.0


def submit_pipeline(
    context: Context,
    file: Path,
    options: Mapping[str, Any],
    other: Mapping[str, Any],
    *,
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> int:
    """Submit a pipeline, and wait for its end if requested.

    Args:
        options: The values of job_options().
        other: The values of further options, which do not apply to pipelines.

    Returns:
        0, or 1 if it was watched and did not succeed.
    """
    from hpcrun.actions import prepare_pipeline, submit_stages

    _refuse_options(file.name, {**{name: options[name] for name in _OF_ONE_JOB}, **other})
    request = PipelineRequest(
        file=file,
        group=options["as"],
        overrides=list(options["overrides"]),
        strict=not options["no_check"],
    )
    pipeline = prepare_pipeline(context, request)
    if dry_run:
        _show_dry_run(pipeline, as_json=as_json)
        return 0
    done = show_submitted_stages(
        pipeline.id,
        submit_stages(context, pipeline),
        pipeline.stages,
        again=f"hpcrun submit {file.stem}{f' --as {request.group}' if request.group else ''}",
        as_json=as_json,
    )
    if as_json:
        emit_json(_pipeline_json(pipeline, done))
    else:
        for name, one in pipeline.earlier.items():
            print_line(f"{name}: already submitted, {one.state}")
        for name, reason in pipeline.skipped.items():
            print_line(f"{name}: not submitted, because {reason}")
        for name in pipeline.evaluations:
            training = pipeline.stages[name].for_each_checkpoint_of
            print_line(f"{name}: for each checkpoint of {training}, submitted by its job")
        show_next_steps(pipeline.id)
    return wait_for_pipeline(context, pipeline.id, quiet=as_json) if wait else 0


def resubmit_stages(
    context: Context,
    pipeline: Pipeline | None,
    first: str | None,
    options: Mapping[str, Any],
    other: Mapping[str, Any],
    *,
    code: Code,
    fresh: bool,
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> int:
    """Resubmit a stage of a pipeline and all that wait for it; the arguments are as for submit."""
    from hpcrun.actions import prepare_stages_again, submit_stages_again

    if pipeline is None:
        raise InputError("--from needs the id of a pipeline", fix="hpcrun resubmit ID --from STAGE")
    record = pipeline.record
    if first is None:
        raise InputError(
            f"{record.id}: a pipeline: name the first stage to resubmit",
            fix=f"hpcrun resubmit {record.id} --from {next(iter(record.stages))}",
        )
    _refuse_options(record.id, {**{name: options[name] for name in _OF_ONE_JOB}, **other})
    stages = prepare_stages_again(
        context,
        pipeline,
        first,
        overrides=options["overrides"],
        code=code,
        fresh=fresh,
        strict=not options["no_check"],
    )
    answer: dict[str, Any] = {"group": record.id, "pipeline": record.name}
    if dry_run and as_json:
        answer["stages"] = [
            {"stage": name, "dependency": None, "submission": files_json(again.prepared)}
            for name, again in stages.jobs.items()
        ]
        emit_json(answer)
    elif dry_run:
        for name, again in stages.jobs.items():
            print_line(click.style(f"==> stage {name} <==", bold=True))
            show_origin(again)
            show_files(again.prepared, as_json=False)
    if dry_run:
        return 0
    for name, again in stages.jobs.items() if not as_json else ():
        print_note(click.style(f"stage {name}:", dim=True))
        show_origin(again)
    done = show_submitted_stages(
        record.id, submit_stages_again(stages), record.stages, again="", as_json=as_json
    )
    if as_json:
        answer["stages"] = [
            {
                "stage": one.name,
                "dependency": one.dependency or None,
                "submission": again_json(stages.jobs[one.name], one.job_id),
            }
            for one in done
        ]
        emit_json(answer)
    else:
        show_next_steps(record.id)
    return wait_for_pipeline(context, record.id, quiet=as_json) if wait else 0


def _refuse_options(pipeline: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value not in (None, False, (), []):
            option = "--" if name == "extra_args" else f"--{name.replace('_', '-')}"
            fix = "hpcrun status ID, hpcrun logs ID"
            if name in _OF_ONE_JOB:
                fix = "--set STAGE.KEY=VALUE changes the job of one stage"
                fix = "args: of a stage in the file" if name == "extra_args" else fix
            elif name != "follow":
                fix = "submit its jobs one by one"
            raise InputError(f"{option} does not apply to {pipeline}, a pipeline", fix=fix)


def describe_condition(stage: Stage) -> str:
    """Describe when a stage starts.

    >>> describe_condition(Stage(job="a", after=["b", "c"])), describe_condition(Stage(job="a"))
    ('when b, c succeeded', 'at once')
    """
    if stage.for_each_checkpoint_of is not None:
        return f"for each checkpoint of {stage.for_each_checkpoint_of}"
    if not stage.after:
        return "at once"
    names = ", ".join(stage.after)
    return {
        "success": f"when {names} succeeded",
        "failure": f"when {names.replace(', ', ' or ')} failed",
        "always": f"when {names} ended",
        "each": f"each run when that of {names} succeeded",
    }[stage.when]


def _show_dry_run(pipeline: PreparedPipeline, *, as_json: bool) -> None:
    if as_json:
        stages = [
            {"stage": name, "dependency": None, "submission": files_json(made)}
            for name, made in {**pipeline.jobs, **pipeline.evaluations}.items()
        ]
        emit_json({"group": pipeline.id, "pipeline": pipeline.name, "stages": stages})
        return
    rows = [(name, stage.job, describe_condition(stage)) for name, stage in pipeline.stages.items()]
    print_table(["STAGE", "JOB", "STARTS"], rows)
    for name, made in {**pipeline.jobs, **pipeline.evaluations}.items():
        print_line()
        print_line(click.style(f"==> stage {name} <==", bold=True))
        show_files(made, as_json=False)


def show_submitted_stages(
    pipeline_id: str,
    submitted: Iterable[SubmittedStage],
    stages: Mapping[str, Stage],
    *,
    again: str,
    as_json: bool,
) -> list[SubmittedStage]:
    """Submit stages, and print each one; return them.

    Args:
        again: The command that submits the others after an error, if there is one.
    """
    done: list[SubmittedStage] = []
    try:
        for one in submitted:
            done.append(one)
            if as_json:
                continue
            if len(done) == 1:
                print_line(f"Submitted {click.style(pipeline_id, bold=True)}")
            rows = describe_run(one.made)
            for name, text in rows:
                if name == "note":
                    print_note(click.style(f"note: {one.name}: {text}", dim=True))
            condition = f", {describe_condition(stages[one.name])}" if one.dependency else ""
            print_line(f"{one.name}: job {one.job_id}, {dict(rows)['shape']}{condition}")
    except BaseException:
        if done:
            ids = ", ".join(f"{one.name} ({one.job_id})" for one in done)
            rest = f"{again} submits the rest, " if again else ""
            cancels = f"hpcrun cancel {pipeline_id} cancels these"
            print_note(f"submitted before the error: {ids}; {rest}{cancels}")
        raise
    return done


def show_next_steps(pipeline_id: str) -> None:
    """Print useful next commands."""
    verbs = [
        (f"status {pipeline_id}", "the states of its stages"),
        (f"logs -f {pipeline_id}", "the output of the stage that runs"),
        (f"wait {pipeline_id}", "wait for all of them"),
        (f"cancel {pipeline_id}", "cancel all of them"),
    ]
    print_lines(format_next_steps(*verbs, display=output_display()))


def _pipeline_json(pipeline: PreparedPipeline, done: list[SubmittedStage]) -> dict[str, Any]:
    return {
        "group": pipeline.id,
        "pipeline": pipeline.name,
        "stages": [
            {
                "stage": one.name,
                "dependency": one.dependency or None,
                "submission": submission_json(one.made, one.job_id),
            }
            for one in done
        ],
        "earlier": [
            {"stage": name, "run_id": status.run_id, "job_id": status.job_id, "state": status.state}
            for name, one in pipeline.earlier.items()
            for status in one.statuses
        ],
        "skipped": pipeline.skipped,
    }


def wait_for_pipeline(context: Context, pipeline_id: str, *, quiet: bool) -> int:
    """Wait for the end of a pipeline; return 0 if all stages ran that had to, else 1."""
    from hpcrun.actions import EvaluationSubmitter
    from hpcrun.cli.show_logs import wait_for_runs
    from hpcrun.monitor import find_pipeline, status_of

    submitter, seen = EvaluationSubmitter(context), set[RunFolder]()
    remaining = RemainingEvaluations(context)
    while True:
        pipeline = find_pipeline(context, pipeline_id)
        if pipeline is None:
            raise InputError(f"{pipeline_id}: no such pipeline", fix="hpcrun status lists the runs")
        runs = [run for run in pipeline.runs() if run not in seen]
        if not runs:
            break
        check = submitter.check_if_due
        wait_for_runs(context, runs, name=pipeline_id, quiet=quiet, check=check)
        seen |= {*runs}
        remaining.submit([pipeline], seen)
    code = find_exit_code(pipeline, status_of(context, pipeline.runs()))
    return 1 if remaining.problems else code


class RemainingEvaluations:
    """Submits evaluations of pipelines whose runs have all ended.

    Attributes:
        waiting: True if checkpoints were left that a later check submits.
        problems: Why checkpoints are not evaluated; each was printed.
    """

    def __init__(self, context: Context, deadline: float | None = None) -> None:
        self._context, self._deadline = context, deadline
        self.waiting = False
        self.problems: set[str] = set()

    def submit(self, pipelines: Sequence[Pipeline], seen: Container[RunFolder]) -> list[Pipeline]:
        """Submit evaluations; wait until there are new runs, or no checkpoint is left.

        Args:
            seen: Runs that have ended.

        Returns:
            The pipelines with their new runs.
        """
        from hpcrun.actions import EVALUATION_PATIENCE_S, submit_evaluations
        from hpcrun.monitor import find_pipeline

        while True:
            self.waiting = False
            for one in pipelines:
                check = submit_evaluations(self._context, one, patience=EVALUATION_PATIENCE_S)
                self.waiting |= check.waiting
                for problem in check.problems:
                    if problem not in self.problems:
                        print_note(f"{one.record.id}: {problem}")
                    self.problems.add(problem)
            found = [find_pipeline(self._context, one.record.id) for one in pipelines]
            pipelines = [one for one in found if one is not None]
            has_new = any(run not in seen for one in pipelines for run in one.runs())
            seconds = _REMAINING_CHECK_S
            if self._deadline is not None:
                seconds = min(seconds, self._deadline - time.monotonic())
            if has_new or not self.waiting or seconds <= 0:
                return pipelines
            time.sleep(seconds)


def find_exit_code(pipeline: Pipeline, statuses: Sequence[JobStatus]) -> int:
    """Return 0 if all stages of a pipeline that has ended ran that had to, else 1.

    Prints the stages that were never submitted.
    """
    from hpcrun.monitor import describe_stages, has_failed, list_unsubmitted

    stages = describe_stages(pipeline, statuses)
    record = pipeline.record
    left = list_unsubmitted(pipeline, stages)
    if left:
        print_note(
            f"{record.id}: never submitted: {', '.join(left)}. "
            f"Try: hpcrun submit {record.name} submits the rest"
        )
    return 1 if left or has_failed(stages) else 0
