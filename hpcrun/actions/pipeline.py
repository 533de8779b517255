"""Submit the stages of a pipeline: a group of jobs that depend on each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, structs

from hpcrun.actions.checks.submission import Checks
from hpcrun.actions.cluster_host import ClusterHost
from hpcrun.actions.dependency import (
    RunBefore,
    check_pairs,
    list_prepared_runs,
    list_submitted_runs,
)
from hpcrun.actions.evaluations import attach_evaluations, fill_token, make_checkpoint_token
from hpcrun.actions.group import check_group_name, check_together, make_group_name
from hpcrun.actions.prepare import (
    Prepared,
    all_at_once,
    find_job_file,
    load_spec,
    prepare_job,
    query_host,
    record_file,
)
from hpcrun.actions.resubmit import Again, Code, prepare_again, submit_again
from hpcrun.actions.submit import Submission, submit_job
from hpcrun.context import Context, read_text
from hpcrun.errors import HpcrunError, InputError, OutOfReach, Problem, SpecError
from hpcrun.monitor import (
    GROUP_NAME,
    Pipeline,
    StageStatus,
    describe_stages,
    fetch_run_names,
    find_group,
    find_obstacle,
    find_successor_job,
    list_pipelines,
    list_unsubmitted,
    status_of,
)
from hpcrun.plan import Dependency, split_sweep
from hpcrun.runs import (
    NOT_SUBMITTED,
    PIPELINE,
    JobStatus,
    PipelineRecord,
    RunFolder,
    write_record,
)
from hpcrun.slurm import UNKNOWN, array_job_id
from hpcrun.spec import JobSpec, Origin, Stage, list_followers, load_pipeline

# The kind of Slurm's dependency for the `when` of a stage.
_KINDS = {
    "success": "afterok",
    "failure": "afternotok",
    "always": "afterany",
    "each": "aftercorr",
}


class PipelineRequest(Struct, frozen=True, kw_only=True):
    """A pipeline that the user named.

    Attributes:
        file: Its file.
        group: Its id, if the user chose one.
        overrides: The --set of the submission, as STAGE.KEY=VALUE.
        strict: Problems found by checks are errors.
    """

    file: Path
    group: str | None = None
    overrides: list[str] = []
    strict: bool = True


class PreparedPipeline(Struct, frozen=True, kw_only=True):
    """A pipeline that is ready for submission; nothing has been written yet.

    Attributes:
        jobs: The jobs to submit, by stage, in order.
        earlier: The stages that an interrupted submission has already submitted.
        skipped: Why stages are not submitted, by name: they cannot start any more.
        evaluations: The jobs that will be submitted for each checkpoint, by stage.
    """

    id: str
    name: str
    stages: dict[str, Stage]
    jobs: dict[str, Prepared]
    earlier: dict[str, StageStatus]
    skipped: dict[str, str] = {}
    evaluations: dict[str, Prepared] = {}


def prepare_pipeline(context: Context, request: PipelineRequest) -> PreparedPipeline:
    """Prepare all stages, or those that an interrupted submission of the same has left out.

    Raises:
        InputError: A stage cannot be prepared, or the pipeline is already active.
        OutOfReach: It is unknown whether a stage was submitted.
    """
    file, name = request.file, request.file.stem
    if request.group is not None and not GROUP_NAME.fullmatch(request.group):
        raise InputError(
            "--as: expected a name that begins with a letter, of letters, digits and . _ + -, at "
            f"most 40; got {request.group}"
        )
    stages = load_pipeline(read_text(file), source=str(file))
    overrides = _split_overrides(request.overrides, stages)
    found = _find_unfinished(context, request, stages)
    if found is not None:
        pipeline_id, earlier = found
    else:
        pipeline_id, earlier = request.group or _new_id(context, name), {}
    skipped: dict[str, str] = {}
    states = dict(earlier)
    for stage_name, stage in stages.items():
        if stage_name not in earlier and (obstacle := find_obstacle(stage, states)):
            skipped[stage_name] = obstacle
            empty = StageStatus(name=stage_name, stage=stage, statuses=[], skipped=obstacle)
            states[stage_name] = empty
    # Evaluations were submitted with their training.
    there = earlier.keys() | skipped.keys()
    due = {
        name: stage
        for name, stage in stages.items()
        if name not in there and stage.for_each_checkpoint_of not in there
    }
    specs = _load_specs(context, file, due, overrides, pipeline_id)
    jobs: dict[str, Prepared] = {}
    evaluations: dict[str, tuple[str, Prepared]] = {}
    errors: list[InputError] = []
    host: ClusterHost | None = None
    record = PipelineRecord(
        id=pipeline_id,
        name=name,
        stage="",
        stages=stages,
        overrides=request.overrides,
        project=str(context.project),
    )
    for stage_name, stage in due.items():
        spec, origin = specs[stage_name]
        token, args = "", stage.args
        if (training := stage.for_each_checkpoint_of) is not None:
            errors += _check_evaluation(stage_name, spec, training, specs)
            token = make_checkpoint_token()
            args = fill_token(stage, token)
        host = query_host(context, spec, args, host)
        try:
            made = prepare_job(
                context,
                spec,
                host=host,
                extra_args=args,
                after=Dependency(
                    None,
                    _checkpoint_dir_before(stage, jobs, earlier),
                    _list_checkpoint_dirs_before(stage, jobs, earlier),
                ),
                origin=origin,
                checks=Checks(strict=request.strict),
            )
            _check_pairs(stage_name, stage, made, jobs, earlier)
        except InputError as error:
            errors.append(error)
            continue
        if stage.after and "dependency" in dict(made.plan.directives):
            message = f"the job has its own dependency, and the stage is after {stage.after[0]}"
            errors.append(SpecError([Problem("slurm.dependency", message, str(origin.name))]))
        if token:
            evaluations[stage_name] = (token, made)
            continue
        made.files.append(record_file(PIPELINE, structs.replace(record, stage=stage_name)))
        jobs[stage_name] = made
    if errors:
        raise all_at_once(errors, Origin(str(file)))
    for stage_name, made in jobs.items():
        own = {n: x for n, x in evaluations.items() if stages[n].waits_for == [stage_name]}
        jobs[stage_name] = attach_evaluations(context, made, own, record)
    if jobs and host is not None:
        at = {name: position for position, name in enumerate(jobs)}
        # A stage for failures starts as soon as one of several stages has failed.
        waits_for = [
            [at[earlier] for earlier in stage.after if earlier in at]
            if stage.when != "failure" or len(stage.after) == 1
            else []
            for stage in (due[name] for name in jobs)
        ]
        counted = check_together(
            *(context, host, [*jobs.values()], Origin(str(file))),
            waits_for=waits_for,
            strict=request.strict,
        )
        jobs = dict(zip(jobs, counted, strict=True))
    return PreparedPipeline(
        id=pipeline_id,
        name=name,
        stages=stages,
        jobs=jobs,
        earlier=earlier,
        skipped=skipped,
        evaluations={name: made for name, (_, made) in evaluations.items()},
    )


def _check_evaluation(
    name: str, spec: JobSpec, training: str, specs: Mapping[str, tuple[JobSpec, Origin]]
) -> list[InputError]:
    """Return the problems of a stage that runs for each checkpoint of a training."""
    problems = []
    if spec.sweep_keys:
        message = f"{name} runs for each checkpoint, which a sweep cannot"
        problems.append(Problem("sweep", message, specs[name][1].name))
    if training in specs and specs[training][0].sweep_keys:
        message = f"{name} runs for each checkpoint of one run, and {training} is a sweep"
        problems.append(Problem("sweep", message, specs[training][1].name))
    if training in specs and specs[training][0].checkpoint.keep is not None:
        message = (
            f"the job may remove checkpoints before stage {name} has evaluated them: remove it"
        )
        problems.append(Problem("checkpoint.keep", message, specs[training][1].name))
    return [SpecError(problems)] if problems else []


def _split_overrides(overrides: Sequence[str], stages: Mapping[str, Stage]) -> dict[str, list[str]]:
    """Return the --set of each stage without its name. Raises InputError."""
    found: dict[str, list[str]] = {}
    for override in overrides:
        name, dot, rest = override.partition(".")
        if not dot or name not in stages:
            raise InputError(
                f"--set {override}: expected STAGE.KEY=VALUE; the stages are {', '.join(stages)}",
                fix=f"--set {next(iter(stages))}.{override}",
            )
        found.setdefault(name, []).append(rest)
    return found


def _new_id(context: Context, name: str) -> str:
    made = make_group_name(JobSpec(name=name), "pipeline")
    check_group_name(context, made)
    return made


def _load_specs(
    context: Context,
    file: Path,
    stages: Mapping[str, Stage],
    overrides: Mapping[str, list[str]],
    group: str,
) -> dict[str, tuple[JobSpec, Origin]]:
    """Load the jobs of stages. Raises InputError, which names the stage."""
    found: dict[str, tuple[JobSpec, Origin]] = {}
    errors: list[InputError] = []
    for name, stage in stages.items():
        own = overrides.get(name, [])
        try:
            spec = structs.replace(load_spec(context, stage.job, own), group=group)
            if len(split_sweep(spec, stage.args)) > 1:
                raise InputError(
                    f"{stage.job} is a sweep over resources, whose runs are several jobs",
                    fix="sweep over other keys, or write a stage for each value",
                )
            found[name] = (spec, Origin(str(find_job_file(context, stage.job)), tuple(own)))
        except SpecError as error:
            errors.append(error)
        except InputError as error:
            errors.append(InputError(f"{file}: {name}.job: {error.message}", fix=error.fix))
    if errors:
        raise all_at_once(errors, Origin(str(file)))
    return found


def _checkpoint_dir_before(
    stage: Stage, jobs: Mapping[str, Prepared], earlier: Mapping[str, StageStatus]
) -> str | None:
    """Return the checkpoint directory of the one run before a stage; None if it is not one run."""
    if len(stage.after) != 1:
        return None
    (name,) = stage.after
    if name in jobs:
        return None if jobs[name].is_sweep else jobs[name].plan.checkpoint_dir
    plans = [status.plan for status in earlier[name].statuses] if name in earlier else []
    return plans[0].checkpoint_dir if len(plans) == 1 and plans[0] is not None else None


def _list_runs_before(
    name: str, jobs: Mapping[str, Prepared], earlier: Mapping[str, StageStatus]
) -> dict[int, RunBefore]:
    """List the runs of a sweep by index; none of a single run."""
    if name in jobs:
        return list_prepared_runs(jobs[name])
    return list_submitted_runs(earlier[name].statuses if name in earlier else [])


def _list_checkpoint_dirs_before(
    stage: Stage, jobs: Mapping[str, Prepared], earlier: Mapping[str, StageStatus]
) -> dict[int, str]:
    """Return the checkpoint directory of each run before a stage that starts after each."""
    if stage.when != "each":
        return {}
    runs = _list_runs_before(stage.after[0], jobs, earlier)
    return {index: run.checkpoint_dir for index, run in runs.items() if run.checkpoint_dir}


def _check_pairs(
    name: str,
    stage: Stage,
    made: Prepared,
    jobs: Mapping[str, Prepared],
    earlier: Mapping[str, StageStatus],
) -> None:
    """Raise InputError unless each run of a stage belongs to one run of the stage before it."""
    if stage.when != "each":
        return
    (before,) = stage.after
    check_pairs(
        (before, _list_runs_before(before, jobs, earlier)),
        (name, made),
        fix=f"when: success, in {name}",
    )


# ---- an interrupted submission -------------------------------------------------------------------


def _find_unfinished(
    context: Context, request: PipelineRequest, stages: Mapping[str, Stage]
) -> tuple[str, dict[str, StageStatus]] | None:
    """Find the pipeline whose submission was interrupted; None if a new one should be submitted.

    Returns:
        Its id, and the stages that Slurm has, by name.

    Raises:
        InputError: The same pipeline is active, or has changed since; or the id is in use.
        OutOfReach: It is unknown which stages Slurm has.
    """
    fetch_run_names(context)
    if request.group is not None:
        check_group_name(context, request.group)
    known = list_pipelines(context, request.file.stem)
    last = next((p for p in known if request.group in (None, p.record.id)), None)
    if last is None:
        if request.group is not None and find_group(context, request.group):
            raise InputError(
                f"--as {request.group}: other runs have this name", fix="choose another name"
            )
        return None
    pipeline_id = last.record.id
    statuses = status_of(context, last.runs())
    unsure = (one for one in statuses if one.out_of_reach or not one.job_id)
    unknown = next((one for one in unsure if one.state == UNKNOWN), None)
    if unknown is not None:
        raise OutOfReach(
            f"{pipeline_id}: it is unknown whether Slurm has {unknown.label}: "
            f"{unknown.out_of_reach or unknown.reason}",
            fix=f"hpcrun status {pipeline_id}; submit again later",
        )
    found = {one.name: one for one in describe_stages(last, statuses)}
    submitted = {
        name: one for name, one in found.items() if one.statuses and one.state != NOT_SUBMITTED
    }
    is_live = any(not one.final for one in submitted.values())
    # Evaluations are no part of the submission.
    there = {
        name: one for name, one in submitted.items() if one.stage.for_each_checkpoint_of is None
    }
    has_failed = any(one.final and not one.ok and not one.skipped for one in there.values())
    missing = list_unsubmitted(last, [*found.values()])
    if missing and there and (is_live or not has_failed):
        if (last.record.stages, last.record.overrides) != (dict(stages), request.overrides):
            fix = "--as NAME submits another one"
            if is_live and request.group is None:
                fix = f"hpcrun cancel {pipeline_id}, then submit again; or {fix}"
            raise InputError(
                f"{pipeline_id} was submitted only in part ({', '.join(there)}), and "
                f"{request.file} or --set has changed since",
                fix=fix,
            )
        return pipeline_id, there
    if is_live:
        raise InputError(
            f"{pipeline_id}, the same pipeline, has not ended: {_list_states(submitted)}",
            fix=f"hpcrun status {pipeline_id}; --as NAME submits another one",
        )
    if request.group is not None and submitted:
        raise InputError(
            f"--as {request.group}: this pipeline has ended: {_list_states(submitted)}",
            fix="choose another name",
        )
    return None


def _list_states(stages: Mapping[str, StageStatus]) -> str:
    return ", ".join(f"{name} {one.state}" for name, one in stages.items())


# ---- submission ----------------------------------------------------------------------------------


class SubmittedStage(Struct, frozen=True, kw_only=True):
    """A stage that Slurm has accepted.

    Attributes:
        dependency: Its dependency, as sbatch takes it; "" for none.
    """

    name: str
    made: Prepared
    job_id: str
    dependency: str


def submit_stages(context: Context, pipeline: PreparedPipeline) -> Iterator[SubmittedStage]:
    """Submit the stages one after the other; each is yielded once Slurm has it.

    Raises the same errors as submit_job().
    """

    def submit(_: str, made: Prepared) -> Submission:
        return submit_job(context, made)

    yield from _submit_in_order(pipeline.jobs, pipeline.stages, pipeline.earlier, submit)
    _mark_whole(context, pipeline)


def _submit_in_order(
    jobs: Mapping[str, Prepared],
    stages: Mapping[str, Stage],
    earlier: Mapping[str, StageStatus],
    submit: Callable[[str, Prepared], Submission],
) -> Iterator[SubmittedStage]:
    """Submit the job of each stage with the dependencies that it has by then."""
    job_ids: dict[str, str] = {}
    for name, made in jobs.items():
        dependency = build_stage_dependency(stages[name], job_ids, earlier)
        made = add_dependency(made, dependency)
        submission = submit(name, made)
        job_ids[name] = submission.job_id
        yield SubmittedStage(
            name=name,
            made=add_notes(made, submission),
            job_id=submission.job_id,
            dependency=dependency,
        )


def _mark_whole(context: Context, pipeline: PreparedPipeline) -> None:
    """Record in the first new run that all stages were submitted; a failure is ignored."""
    if pipeline.jobs:
        path = RunFolder(next(iter(pipeline.jobs.values())).path).pipeline_whole
        with contextlib.suppress(HpcrunError):
            write_record(path, pipeline.id)
            context.transport().upload_files([path])


def add_notes(made: Prepared, submission: Submission) -> Prepared:
    """Return a job with the notes about its submission."""
    plan = structs.replace(made.plan, notes=[*made.plan.notes, *submission.notes])
    return structs.replace(made, plan=plan)


def add_dependency(made: Prepared, dependency: str) -> Prepared:
    """Return a job that Slurm starts only after others, and cancels if it cannot start."""
    if not dependency:
        return made
    options = [*made.options, f"--dependency={dependency}", "--kill-on-invalid-dep=yes"]
    return structs.replace(made, options=options)


class StagesAgain(Struct, frozen=True, kw_only=True):
    """Stages of an earlier pipeline that are ready for another submission.

    Attributes:
        jobs: The stages to submit, in order.
        others: The other stages.
    """

    pipeline: Pipeline
    jobs: dict[str, Again]
    others: dict[str, StageStatus]


def prepare_stages_again(
    context: Context,
    pipeline: Pipeline,
    first: str,
    *,
    overrides: Sequence[str] = (),
    code: Code = "then",
    fresh: bool = False,
    strict: bool = True,
) -> StagesAgain:
    """Prepare a stage of an earlier pipeline, and all that wait for it, for another submission.

    Args:
        first: The name of the stage.
        overrides: The changes of --set, as STAGE.KEY=VALUE.
        fresh: The first stage uses a new checkpoint directory.

    Raises:
        InputError: There is no such stage, or a stage cannot be submitted again.
    """
    record, newest = pipeline.record, pipeline.newest()
    if first not in record.stages:
        raise InputError(
            f"--from {first}: {record.id} has no such stage",
            fix=f"its stages are {', '.join(record.stages)}",
        )
    names = list_followers(record.stages, [first])
    changes = _split_overrides(overrides, {name: record.stages[name] for name in names})
    if record.stages[first].for_each_checkpoint_of is not None:
        raise InputError(
            f"--from {first}: it runs for each checkpoint", fix="hpcrun resubmit one of its runs"
        )
    missing = [name for name in names if name not in newest]
    if missing:
        raise InputError(
            f"{record.id}: {', '.join(missing)} was not submitted yet",
            fix=f"hpcrun submit {record.name} submits the rest",
        )
    found = {
        one.name: one for one in describe_stages(pipeline, status_of(context, pipeline.runs()))
    }
    others = {name: one for name, one in found.items() if name not in names}
    jobs: dict[str, Again] = {}
    errors: list[InputError] = []
    for name in names:
        stage = record.stages[name]
        if obstacle := find_obstacle(stage, others):
            raise InputError(f"{name} cannot start: {obstacle}", fix="--from an earlier stage")
        before = [jobs[one].prepared for one in stage.after if one in jobs]
        after = None
        again = {one: jobs[one].prepared for one in stage.after if one in jobs}
        if stage.when == "each":
            after = Dependency(None, None, _list_checkpoint_dirs_before(stage, again, others))
        elif before and len(stage.after) == 1:
            folder = None if before[0].is_sweep else before[0].plan.checkpoint_dir
            after = Dependency(None, folder)
        try:
            jobs[name] = prepare_again(
                context,
                newest[name],
                overrides=changes.get(name, ()),
                code=code,
                fresh=fresh and name == first,
                after=after,
                checks=Checks(strict=strict),
            )
            _check_pairs(name, stage, jobs[name].prepared, again, others)
        except InputError as error:
            errors.append(error)
    if errors:
        raise all_at_once(errors, Origin(record.id))
    return StagesAgain(pipeline=pipeline, jobs=jobs, others=others)


def submit_stages_again(stages: StagesAgain) -> Iterator[SubmittedStage]:
    """Submit the stages one after the other; each is yielded once Slurm has it."""

    def submit(name: str, made: Prepared) -> Submission:
        return submit_again(structs.replace(stages.jobs[name], prepared=made))

    jobs = {name: again.prepared for name, again in stages.jobs.items()}
    yield from _submit_in_order(jobs, stages.pipeline.record.stages, stages.others, submit)


def build_stage_dependency(
    stage: Stage, job_ids: Mapping[str, str], earlier: Mapping[str, StageStatus]
) -> str:
    """Return the dependency of a stage as sbatch takes it; "" if it can start at once.

    Args:
        job_ids: The jobs of the stages before it that were just submitted.
        earlier: The other stages before it.

    Raises:
        InputError: Slurm cannot express it.
    """
    if stage.when == "each":
        return _build_task_dependency(stage.after[0], job_ids, earlier)
    kind = _KINDS[stage.when]
    terms: list[str] = []
    heirs: list[str] = []
    for name in stage.after:
        one = earlier.get(name)
        if name in job_ids:
            terms.append(f"{kind}:{job_ids[name]}")
        elif one is not None and stage.when == "failure" and one.final and not one.ok:
            return ""  # one failure is enough
        elif one is not None:
            for status in _list_active(one.statuses):
                terms.append(f"{kind}:{status.job_id}")
                if heir := find_successor_job(status.history):
                    heirs.append(f"{kind}:{heir}")
    if not heirs:
        return ("?" if stage.when == "failure" else ",").join(dict.fromkeys(terms))
    if len(terms) > 1:
        raise InputError(
            f"{', '.join(stage.after)}: a run may continue as another job, which Slurm cannot "
            "combine with other dependencies",
            fix="hpcrun wait for it, then submit again",
        )
    # The run succeeds if one of its two jobs does, and ends when both have.
    return ("?" if stage.when == "success" else ",").join([*terms, *heirs])


def _build_task_dependency(
    name: str, job_ids: Mapping[str, str], earlier: Mapping[str, StageStatus]
) -> str:
    """Return the dependency of each task of an array on the same task of a stage before it."""
    if name in job_ids:
        return f"{_KINDS['each']}:{job_ids[name]}"
    active = [one for one in earlier[name].statuses if not one.final] if name in earlier else []
    if not active:
        return ""
    if any(one.history.chained or find_successor_job(one.history) for one in active):
        raise InputError(
            f"{name}: a run continues as another job, which Slurm cannot combine with the other "
            "runs of its array",
            fix=f"hpcrun wait for {name}, then submit again",
        )
    return f"{_KINDS['each']}:{array_job_id(active[0].job_id or '')}"


def _list_active(statuses: Sequence[JobStatus]) -> list[JobStatus]:
    """Return the runs of a stage that have not ended; a whole array has a job id of its own."""
    active = [status for status in statuses if not status.final]
    is_array = len(statuses) > 1 and not any(one.history.chained for one in statuses)
    if active and is_array:
        return [structs.replace(active[0], job_id=array_job_id(active[0].job_id or ""))]
    return active
