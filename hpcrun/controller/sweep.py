"""Prepares and submits sweeps: one array of Slurm's, and a run for each task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcrun.assets import Templates
from hpcrun.controller.checks.submission import Checks
from hpcrun.controller.context import Context, check_slurm_conf
from hpcrun.controller.prepare import (
    Prepared,
    all_at_once,
    new_run_id,
    prepare,
    project_templates,
    with_words,
)
from hpcrun.controller.submit import (
    begun_from,
    check_secrets,
    fill_run,
    hand_over,
    submit,
    take_away,
    whole_or_nothing,
    write_code,
)
from hpcrun.errors import InputError, SpecError
from hpcrun.plan.environment import placeholder_names
from hpcrun.plan.sweep import SweepRun, build_array, build_runs, check_placeholders
from hpcrun.plan.types import Dependency, Plan
from hpcrun.render.files import RenderedFile, render_array
from hpcrun.runs.layout import SweepFolder, sweep_folder, task_run_id
from hpcrun.runs.records import Sweep, Task
from hpcrun.runs.store import create_run_folder, write_file
from hpcrun.spec.dump import dump_job
from hpcrun.spec.job import JobSpec
from hpcrun.spec.load import Origin


class PreparedSweep(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep that could be submitted; ``plan`` and ``files`` are the array's own."""

    spec: JobSpec
    plan: Plan
    files: list[RenderedFile]
    runs: list[Prepared]
    values: list[dict[str, str]]

    @property
    def folder(self) -> SweepFolder:
        return sweep_folder(Path(self.plan.run_dir).parent, self.plan.run_id)


def prepare_job(
    context: Context,
    spec: JobSpec,
    *,
    extra_args: Sequence[str],
    after: Dependency | None,
    origin: Origin,
    checks: Checks,
) -> Prepared | PreparedSweep:
    """Plan and render a run, or a sweep where the job is one. Raises as prepare() does."""
    make = prepare_sweep if spec.sweep else prepare
    return make(context, spec, extra_args=extra_args, after=after, origin=origin, checks=checks)


def runs_in(made: Prepared | PreparedSweep) -> list[Prepared]:
    """Return the runs of a sweep, or the one run."""
    return made.runs if isinstance(made, PreparedSweep) else [made]


def submit_job(context: Context, made: Prepared | PreparedSweep) -> str:
    """Submit a run or a sweep; return the job id. Raises as submit() does."""
    if isinstance(made, PreparedSweep):
        return submit_sweep(context, made)
    return submit(context, made)


def prepare_sweep(
    context: Context,
    spec: JobSpec,
    *,
    extra_args: Sequence[str] = (),
    after: Dependency | None = None,
    origin: Origin | None = None,
    checks: Checks | None = None,
    made: Sequence[SweepRun] | None = None,
) -> PreparedSweep:
    """Plan and render all runs of a sweep and its array; nothing is changed.

    ``checks`` say whether problems that the user may know better about are errors; ``made`` are the
    runs, where they are not all combinations of the sweep's values. Raises InputError, or SpecError
    with all that is wrong in any of the runs.
    """
    origin = origin or Origin(spec.name or "job")
    sweep_id = new_run_id(spec)
    code = sweep_folder(context.runs_dir, sweep_id).code
    templates = project_templates(context)
    checks = checks or Checks()
    runs: list[Prepared] = []
    errors: dict[str, InputError] = {}
    try:
        made = build_runs(spec, extra_args) if made is None else made
        array = checks.look_at_array(context, len(made))
        if array.problems:
            raise SpecError(array.problems, fix=array.fix)
        for one in made:
            try:
                run = _prepare_run(context, one, sweep_id, code, templates, after, origin, checks)
                runs.append(run)
            except InputError as error:
                errors.setdefault(str(error), error)
        if errors:
            raise all_at_once(_distinct(list(errors.values())), origin)
        known = placeholder_names(runs[0].plan.environment)
        check_placeholders(spec, known)
        plan = build_array([run.plan for run in runs], spec, sweep_id)
    except SpecError as error:
        raise all_at_once([error], origin) from error
    plan = msgspec.structs.replace(plan, notes=[*plan.notes, *array.notes, *checks.compare_runs()])
    record = Sweep(name=plan.name, tasks=len(runs), limit=spec.sweep_limit)
    files = [
        render_array(plan, templates),
        _json("sweep.json", record),
        RenderedFile(
            "spec.yaml", dump_job(with_words(spec, known | spec.sweep.keys(), extra_args))
        ),
    ]
    values = [one.values for one in made]
    return PreparedSweep(spec=spec, plan=plan, files=files, runs=runs, values=values)


def _prepare_run(
    context: Context,
    one: SweepRun,
    sweep_id: str,
    code: Path,
    templates: Templates,
    after: Dependency | None,
    origin: Origin,
    checks: Checks,
) -> Prepared:
    prepared = prepare(
        context,
        one.spec,
        extra_args=one.words,
        after=after,
        origin=origin,
        run_id=task_run_id(sweep_id, one.index),
        shared_code=code,
        templates=templates,
        checks=checks,
        checkpoint_dir=one.checkpoint_dir,
    )
    task = Task(sweep_id=sweep_id, index=one.index, values=one.values)
    return msgspec.structs.replace(prepared, files=[*prepared.files, _json("task.json", task)])


def _distinct(errors: Sequence[InputError]) -> list[InputError]:
    """Take the problems out that an error before has told already."""
    told: set[str] = set()
    left: list[InputError] = []
    for error in errors:
        if not isinstance(error, SpecError):
            left.append(error)
            continue
        problems = [problem for problem in error.problems if str(problem) not in told]
        told |= {str(problem) for problem in problems}
        if problems:
            left.append(SpecError(problems, fix=error.fix, notes=error.notes))
    return left


def _json(name: str, record: msgspec.Struct) -> RenderedFile:
    return RenderedFile(name, json.dumps(msgspec.to_builtins(record)) + "\n")


def submit_sweep(context: Context, sweep: PreparedSweep) -> str:
    """Write the array and its runs, hand them to Slurm with one sbatch; return the array's id.

    Raises as submit() does; whatever goes wrong before Slurm has it, all folders are taken away.
    """
    check_slurm_conf(context)
    check_secrets(context, sweep.plan)
    folder = sweep.folder
    written = [folder.path, *(run.folder.path for run in sweep.runs)]
    plans = [run.plan for run in sweep.runs]
    with whole_or_nothing(folder.path, written), begun_from(context, plans):
        _make(folder)
        try:
            _write(context, sweep, folder)
        except BaseException:
            take_away(written)
            raise
        return hand_over(context, sweep.plan, written)


def _make(folder: SweepFolder) -> None:
    """Make the array's folder, by which the names of its runs' folders are taken too."""
    try:
        folder.path.mkdir(parents=True)
    except OSError as error:
        raise InputError(
            f"{error.filename}: cannot make the sweep's folder: {error.strerror}",
            fix="set runs_dir in hpcrun.yaml to a folder that you can write and the nodes can see",
        ) from error


def _write(context: Context, sweep: PreparedSweep, folder: SweepFolder) -> None:
    for file in sweep.files:
        write_file(folder.path / file.name, file.text.encode("utf-8", "surrogateescape"))
    write_code(context, sweep.plan, folder.code)
    for prepared in sweep.runs:
        run = create_run_folder(Path(prepared.plan.run_dir))
        fill_run(context, prepared, run, folder.code)
