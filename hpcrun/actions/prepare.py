"""Turn a job's name into the plan and files of a run or a sweep, without side effects."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import msgspec

from hpcrun.actions.checks.deepspeed import inspect_accelerate, inspect_deepspeed
from hpcrun.actions.checks.places import file_system_queries
from hpcrun.actions.checks.submission import (
    Checks,
    first_queries,
    may_have_workdir,
    workdir_queries,
)
from hpcrun.actions.cluster_host import ClusterHost, open_host
from hpcrun.actions.interpreter import (
    Interpreter,
    existence_queries,
    find_interpreter,
    interpreter_queries,
    may_exist,
    setup_queries,
)
from hpcrun.actions.job_files import resolve_job_name
from hpcrun.actions.notify_settings import plan_notify
from hpcrun.actions.provenance import find_provenance
from hpcrun.actions.search import plan_search
from hpcrun.actions.start_folder import find_start_folder
from hpcrun.assets import find_job
from hpcrun.context import Context, is_in_mirror, read_text, refuse_other_clusters
from hpcrun.errors import InputError, Problem, SpecError
from hpcrun.plan import (
    ROLES_DIR,
    DeepSpeedInput,
    Dependency,
    Findings,
    Plan,
    PlanInputs,
    RolePlan,
    SetupPlan,
    build_array,
    build_plan,
    build_runs,
    check_placeholders,
    complete_roles,
    escape_placeholders,
    place_roles,
    placeholder_names,
    select_component_options,
    zero_stage_of,
)
from hpcrun.remote import ClockOffset, Query
from hpcrun.render import RenderedFile, open_templates, quote_comment, render_array, render_files
from hpcrun.runs import Sweep, Task, TrialRecord, make_run_id, sweep_folder, task_run_id
from hpcrun.spec import (
    Accelerate,
    Batch,
    DeepSpeed,
    JobSpec,
    Origin,
    Role,
    command_job,
    dump_job,
    load_job,
)

if TYPE_CHECKING:
    from hpcrun.plan import SweepRun


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A run, or a sweep with its runs, that is ready for submission; nothing has been written yet.

    Attributes:
        spec: The requested job.
        plan: The decisions; of a sweep, those of the array.
        files: The files of the run directory; of a sweep, those of the array.
        environ: The environment of a login, which the job inherits.
        runs: The runs of a sweep.
        values: The values of the sweep's parameters for a run of a sweep.
        is_strict: Problems found by checks are errors.
        options: Options of sbatch besides the directives.
        arguments: The arguments of the user's own sbatch script.
        is_own_script: The job is the user's own sbatch script.
        code_folders: Directories that the copy of the code needs even if they are empty.
        evaluations: Templates of the runs that evaluate its checkpoints, by stage of a pipeline.
    """

    spec: JobSpec
    plan: Plan
    files: list[RenderedFile]
    runs_dir: Path
    environ: Mapping[str, str]
    runs: list[Prepared] = []
    values: dict[str, str] = {}
    is_strict: bool = True
    options: list[str] = []
    arguments: list[str] = []
    is_own_script: bool = False
    code_folders: list[str] = []
    evaluations: dict[str, Prepared] = {}

    @property
    def is_sweep(self) -> bool:
        return bool(self.runs)

    @property
    def path(self) -> Path:
        """The directory that will be created."""
        if self.is_sweep:
            return sweep_folder(self.runs_dir, self.plan.run_id).path
        return self.runs_dir / self.plan.run_id

    @property
    def folder(self) -> str:
        """The path of that directory on the cluster."""
        first = Path(self.each()[0].plan.run_dir)
        return str(first.parent / self.path.name)

    @property
    def dependency(self) -> str | None:
        """The value of sbatch's --dependency."""
        option = "--dependency="
        own = [each.removeprefix(option) for each in self.options if each.startswith(option)]
        return own[-1] if own else dict(self.plan.directives).get("dependency")

    def each(self) -> list[Prepared]:
        return self.runs or [self]


# ---- the job -----------------------------------------------------------------------------------


def find_job_file(context: Context, job: str) -> Path:
    """Find a job's file by its name or path. Raises InputError."""
    return find_job(job, context.project, context.environ, cwd=_other_base(context))


def load_spec(context: Context, job: str, overrides: Sequence[str] = ()) -> JobSpec:
    """Load a job by name or file, with --set overrides. Raises SpecError, InputError."""
    path = find_job_file(context, job)
    if is_in_mirror(path, context.environ):
        spec = read_spec_of_cluster(context, path, overrides)
    else:
        spec = read_spec(context, read_text(path), str(path), overrides)
    name = os.fsencode(path.stem).decode("utf-8", "replace")
    return spec if spec.name else msgspec.structs.replace(spec, name=name)


def read_spec(context: Context, text: str, source: str, overrides: Sequence[str] = ()) -> JobSpec:
    """Parse a job's text and the jobs that it extends. Raises SpecError, InputError."""
    resolve = partial(
        resolve_job_name, project=context.project, environ=context.environ, cwd=_other_base(context)
    )
    return load_job(text, source=source, resolve=resolve, overrides=overrides)


def read_spec_of_cluster(context: Context, path: Path, overrides: Sequence[str] = ()) -> JobSpec:
    """Read a job file from a cluster that was not submitted from this machine.

    Nothing of this machine is sent to the cluster unless the user's own ``overrides`` name it.
    Raises SpecError, InputError.
    """

    def refuse(name: str) -> tuple[str, str]:
        raise InputError(
            f"{path}: extends: {name}: the job of a run must not extend another", fix=_NOT_FROM_HERE
        )

    spec = load_job(read_text(path), source=str(path), resolve=refuse, overrides=overrides)
    named = {override.partition("=")[0] for override in overrides}
    sections = {"deepspeed": spec.deepspeed, "accelerate": spec.accelerate}
    files = {
        f"{key}.config_file": section.config_file
        for key, section in sections.items()
        if section is not None and section.config_file is not None
    }
    asked = {"secrets": ", ".join(spec.secrets), **files}
    for key, value in asked.items():
        if value and key not in named:
            raise InputError(
                f"{path}: {key}: {value}: this machine would upload these files for a run that "
                "was not submitted from here",
                fix=f"{_NOT_FROM_HERE}; or --set {key}=... names what may be sent",
            )
    return spec


_NOT_FROM_HERE = "hpcrun submit JOB with your own job file"


def _other_base(context: Context) -> Path | None:
    """Return the base of relative paths, or None if it is the current directory."""
    with contextlib.suppress(FileNotFoundError):  # the current directory no longer exists
        if context.cwd == Path.cwd():
            return None
    return context.cwd


def draft_command_job(command: Sequence[str], overrides: Sequence[str] = ()) -> JobSpec:
    """Create a job for a bare command; it gets GPUs only on request.

    Only the job's name comes from ``command``: pass its words to prepare_spec() as ``extra_args``.
    """
    spec = command_job(overrides)
    return msgspec.structs.replace(
        spec, command=[], name=spec.name or quote_comment(Path(command[0]).name) or "command"
    )


# ---- the run -----------------------------------------------------------------------------------


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has besides its job and the arguments of the command line.

    The runs of a sweep share all attributes up to ``checks``.

    Attributes:
        origin: The source of the job, for messages.
        host: The host of the cluster, whose answers are reused; by default a new one.
        after: The jobs for which the run waits.
        shared_code: The copy of the code, if the run has none of its own.
        templates: Where the files are rendered from; by default the project's.
        checks: They also determine whether problems that the user may overrule are errors.
        run_id: The id of the run; by default a new one.
        checkpoint_dir: The directory of its checkpoints; by default the job's.
        runs_per_job: The number of runs that share a job of Slurm.
        node_range: The job's range of nodes, if the request is for one number of nodes.
        role: The role of ``whole_job`` that the request is for.
        whole_job: The job with all roles.
        roles: All roles of that job.
        components: The options of sbatch for further components of a heterogeneous job.
        is_trial: The job records or draws values for a search.
        trial: The parameters whose values are drawn when the run starts, with an example of each.
    """

    origin: Origin
    host: ClusterHost | None = None
    after: Dependency | None = None
    shared_code: Path | None = None
    templates: jinja2.Environment | None = None
    checks: Checks
    run_id: str = ""
    checkpoint_dir: str | None = None
    runs_per_job: int = 1
    node_range: str = ""
    role: str = ""
    whole_job: JobSpec | None = None
    roles: Sequence[RolePlan] = ()
    components: Sequence[list[tuple[str, str | None]]] = ()
    is_trial: bool = False
    trial: Mapping[str, str] = {}


def prepare_spec(
    context: Context,
    spec: JobSpec,
    *,
    host: ClusterHost | None = None,
    extra_args: Sequence[str] = (),
    after: Dependency | None = None,
    origin: Origin | None = None,
    checks: Checks | None = None,
    checkpoint_dir: str | None = None,
) -> Prepared:
    """Plan and render a run; nothing is changed.

    Args:
        origin: The source of the job, for messages.
        checks: They also determine whether problems that the user may overrule are errors.
        checkpoint_dir: The directory of its checkpoints; by default the job's.

    Raises:
        InputError: The run cannot be prepared.
        SpecError: The job has problems; all of them are reported.
    """
    request = RunRequest(
        origin=origin or Origin(spec.name or "job"),
        host=host,
        after=after,
        checks=checks or Checks(),
        checkpoint_dir=checkpoint_dir,
    )
    if spec.sweep_keys:
        spec, extra_args = _only_run(spec, extra_args, request.origin)
    return _prepare_run(context, spec, extra_args, request)


def _prepare_run(
    context: Context, spec: JobSpec, extra_args: Sequence[str], request: RunRequest
) -> Prepared:
    """Prepare a run, in parts if it has roles or a range of nodes. Raises as prepare_spec()."""
    if request.checks.in_queue:
        refuse_other_clusters(context.cluster, context.environ)
    host = query_host(context, spec, extra_args, request.host)
    run_id = request.run_id or new_run_id(spec, host)
    request = msgspec.structs.replace(request, host=host, run_id=run_id)
    if spec.roles:
        return _for_each_role(context, spec, extra_args, request)
    if isinstance(spec.resources.nodes, str):
        return _for_each_count(context, spec, extra_args, request)
    return _prepare_one(context, host, spec, extra_args, request)


def _prepare_one(
    context: Context,
    host: ClusterHost,
    spec: JobSpec,
    extra_args: Sequence[str],
    request: RunRequest,
) -> Prepared:
    """Prepare a run of one program on a known number of nodes. Raises as prepare_spec()."""
    # The project's files are read from the copy of the code that the run uses.
    in_code = msgspec.structs.replace(context, project=context.code or context.project)
    errors: list[InputError] = []
    found, plan, given = Interpreter(python=""), None, DeepSpeedInput()
    with _collect_error(errors):
        found = find_interpreter(context, spec, host)
    place = _plan_inputs(context, host, spec, found, request)
    host.run_queries(workdir_queries(host, spec))
    place = msgspec.structs.replace(place, mounts_workdir=may_have_workdir(host, spec))

    def having(section: DeepSpeed | Accelerate | None) -> Context:
        name = section.config_file if section is not None else None
        is_copied = name is not None and (in_code.project / name).is_file()
        return in_code if is_copied else context

    job, of_file = spec, list[str]()
    with _collect_error(errors):
        job, of_file = inspect_accelerate(having(spec.accelerate), spec)
    with _collect_error(errors):
        python = "" if found.inside else found.python
        start = find_start_folder(in_code, spec.workdir, place.project_dir)
        given = inspect_deepspeed(having(job.deepspeed), job, python, extra_args, start=start)
    with _collect_error(errors):
        plan = build_plan(
            *(job, context.cluster, place),
            extra_args=extra_args,
            after=request.after,
            deepspeed_input=given,
            job_spec=request.whole_job,
        )
        _check_setup(host, plan.setup)
        if context.cluster.host is not None:
            ignored = [] if spec.snapshot else ["snapshot: false: the code is copied nevertheless"]
            plan = msgspec.structs.replace(
                plan, snapshot=not plan.reference_trainer, notes=[*plan.notes, *ignored]
            )
    checks = request.checks
    plan, findings = checks.check_job(in_code, host, job, found, plan, extra_args, given.elsewhere)
    if context.code is not None:
        # Notes about missing files are wrong here: a copy of the code never contains files that git
        # ignores.
        findings.notes.clear()
    if findings.problems:
        errors.append(SpecError(findings.problems, fix=findings.fix, notes=findings.notes))
    if errors or plan is None:
        raise all_at_once(errors, request.origin)
    notify, unresolved = plan_notify(context, spec.notify)
    findings.notes += unresolved
    plan = msgspec.structs.replace(plan, notify=notify)
    notes = [*plan.notes, *of_file, *([found.note] if found.note else []), *findings.notes]
    plan = msgspec.structs.replace(plan, notes=list(dict.fromkeys(notes)))
    files = render_files(plan, request.templates or project_templates(context))
    _check_templates(context, files)
    known = placeholder_names(plan.environment)
    if request.node_range:
        resources = msgspec.structs.replace(spec.resources, nodes=request.node_range)
        spec = msgspec.structs.replace(spec, resources=resources)
    files.append(RenderedFile("spec.yaml", dump_job(with_args(spec, known, extra_args))))
    return Prepared(
        spec=spec,
        plan=plan,
        files=files,
        runs_dir=context.runs_dir,
        environ=host.login.environ,
        is_strict=checks.is_strict,
    )


def _plan_inputs(
    context: Context, host: ClusterHost, spec: JobSpec, found: Interpreter, request: RunRequest
) -> PlanInputs:
    """Return the places of the run, and where its plan comes from."""
    login, role = host.login, request.role
    shared_code, checkpoint_dir = request.shared_code, request.checkpoint_dir
    run_dir = login.runs_dir / request.run_id
    if not all(one.is_main for one in request.roles if one.name == role):
        shared_code = shared_code or run_dir / "code"
        job_dir = (request.whole_job or spec).checkpoint.dir or "checkpoints"
        checkpoint_dir = checkpoint_dir or os.path.normpath(run_dir / job_dir)
        run_dir = run_dir / ROLES_DIR / role
    # A remote host has no project, only the run's copy of it.
    project = context.project if context.cluster.host is None else shared_code or run_dir / "code"
    return PlanInputs(
        run_id=request.run_id,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        run_dir=str(run_dir),
        project_dir=str(project),
        cache_dir=str(login.cache_dir),
        python=found.python,
        venv=found.venv,
        node_venv=found.node_venv,
        conda=found.conda,
        shared_code=None if shared_code is None else str(shared_code),
        hosts=context.hosts,
        debug=context.debug,
        checkpoint_dir=checkpoint_dir,
        inherited=login.environ,
        runs_per_job=request.runs_per_job,
        node_range=request.node_range,
        provenance=find_provenance(context, spec.secrets),
        role=role,
        roles=list(request.roles),
        components=list(request.components),
        search=request.is_trial,
        trial=dict(request.trial),
    )


def _for_each_role(
    context: Context, spec: JobSpec, extra_args: Sequence[str], request: RunRequest
) -> Prepared:
    """Prepare each role of a job as a run of its own, in a directory of the run.

    The result is the run of the main role, with the files of the others. Raises as prepare_spec().
    """
    origin = request.origin
    if not (request.checks.in_queue and not context.hosts):
        raise InputError(
            f"{origin.name}: roles run only in a job of Slurm", fix="hpcrun submit starts them"
        )
    main, found = spec.main_role, Findings()
    specs = {name: spec.for_role(name) for name in spec.roles}
    roles = complete_roles(place_roles(spec), spec, specs, found)
    errors: list[InputError] = []
    if found.problems:
        errors.append(SpecError(found.problems))
    made: dict[str, Prepared] = {}
    components: dict[int, list[tuple[str, str | None]]] = {}
    # The batch script is that of the main role, and requests the nodes of all roles.
    for role_plan in sorted(roles, key=lambda one: one.is_main):
        name, group = role_plan.name, role_plan.group
        one, words = specs[name], extra_args if role_plan.is_main else ()
        own = msgspec.structs.replace(
            request,
            role=name,
            roles=roles,
            whole_job=spec,
            components=[components[n] for n in sorted(components)] if role_plan.is_main else [],
        )
        try:
            made[name] = _prepare_run(context, one, words, own)
            if group:
                components[group] = select_component_options(made[name].plan.directives)
        except InputError as error:
            for problem in error.problems if isinstance(error, SpecError) else ():
                if problem.path.split(".")[0].split("[")[0] in Role.__struct_fields__:
                    problem.path = f"roles.{name}.{problem.path}"
            errors.append(error)
    if errors:
        raise all_at_once(errors, origin)
    files = [file for file in made[main].files if file.name != "spec.yaml"]
    notes = [note for name in [main, *made] for note in made[name].plan.notes]
    for name, prepared in made.items():
        if name != main:
            files += [
                RenderedFile(f"{ROLES_DIR}/{name}/{file.name}", file.text)
                for file in prepared.files
                if file.name != "spec.yaml"
            ]
    role = spec.roles[main]
    known = placeholder_names(made[main].plan.environment) | {"host", "port"}
    known |= {f"{name}.{part}" for name in specs for part in ("host", "port")}
    args = [*role.args, *(escape_placeholders(word, known) for word in extra_args)]
    of_all = {**spec.roles, main: msgspec.structs.replace(role, args=args)}
    spec = msgspec.structs.replace(spec, roles=of_all)
    files.append(RenderedFile("spec.yaml", dump_job(spec)))
    # One copy of the code is for all roles.
    is_copied = any(each.plan.snapshot for each in made.values())
    plan = msgspec.structs.replace(
        made[main].plan, notes=list(dict.fromkeys(notes)), snapshot=is_copied
    )
    return msgspec.structs.replace(made[main], spec=spec, plan=plan, files=files)


def query_host(
    context: Context,
    spec: JobSpec,
    extra_args: Sequence[str],
    host: ClusterHost | None = None,
    also: Iterable[Query[Any]] = (),
) -> ClusterHost:
    """Query everything that a plan and its checks need from the host, and ``also`` further queries.

    At most two round trips are needed; results that ``host`` has cached are not queried again.
    """
    parts = [spec.for_role(name) for name in spec.roles] or [spec]
    words = [word for one in parts for word in (*(one.command or []), *one.args)]
    words += extra_args
    queries = [*first_queries(context, words), *setup_queries(context, spec), *also]
    if host is None:
        host = open_host(context, queries)
    else:
        host.run_queries(queries)
    # The login's environment is known now, so paths and file systems can be resolved.
    nodes = 1 if isinstance(spec.resources.nodes, str) else spec.resources.nodes
    again = [*interpreter_queries(context, spec, host), *file_system_queries(context, host, nodes)]
    host.run_queries(again)
    return host


def _for_each_count(
    context: Context, spec: JobSpec, extra_args: Sequence[str], request: RunRequest
) -> Prepared:
    """Prepare a run for each number of nodes that Slurm may allocate.

    The result is the run on the most nodes. Files that differ on fewer nodes are stored in
    subdirectories such as ``nodes-2``, one of which the job uses when it starts. Raises as
    prepare_spec().
    """
    asked, counts = str(spec.resources.nodes), spec.resources.counts
    origin, own = request.origin, msgspec.structs.replace(request, node_range=asked)
    made: list[Prepared] = []
    errors: list[InputError] = []
    of_most: set[str] = set()
    for count in reversed(counts):
        try:
            made.append(_prepare_run(context, spec.with_nodes(count), extra_args, own))
        except InputError as error:
            problems = error.problems if isinstance(error, SpecError) else []
            if count == counts[-1]:
                of_most = {str(problem) for problem in problems}
            for problem in problems:
                if count < counts[-1] and str(problem) not in of_most:
                    problem.message += f" (on {count} {'node' if count == 1 else 'nodes'})"
            errors.append(error)
    if errors:
        raise all_at_once(errors, origin)
    most = made[0]
    batches = {one.plan.nodes: one.plan.effective_batch for one in reversed(made)}
    batch, is_seen = most.plan.effective_batch, all(map(_has_jobs_batch, made))
    odd = [str(nodes) for nodes, of_its in batches.items() if of_its != batch]
    if odd and is_seen:
        problem = Problem(
            "resources.nodes",
            f"{asked}: on {' or '.join(odd)} nodes no whole number of accumulated steps gives "
            f"the effective batch of {batch} of {most.plan.nodes} nodes; "
            f"batch.gradient_accumulation_steps: {spec.even_steps} works with all of them",
        )
        raise all_at_once([SpecError([problem])], origin)
    same = set.intersection(*({(file.name, file.text) for file in one.files} for one in made))
    differ = {file.name for file in most.files if (file.name, file.text) not in same}
    files = [
        RenderedFile(f"nodes-{one.plan.nodes}/{file.name}", file.text)
        for one in made
        for file in one.files
        if file.name in differ - {"spec.yaml"}
    ]
    steps_of = {one.plan.nodes: one.plan.gradient_accumulation_steps for one in reversed(made)}
    shown = ", ".join(f"{steps} on {nodes}" for nodes, steps in steps_of.items())
    note = f"nodes {asked}: Slurm decides as the job starts"
    if spec.batch == Batch():
        note += "; the job sets no batch, so the effective one grows with the nodes (" + (
            "batch: {effective: N} keeps it, where the program accumulates "
            "{gradient_accumulation_steps})"
        )
    elif is_seen:
        note += f"; the effective batch stays {batch}, by accumulated steps ({shown} nodes)"
    else:
        note += (
            "; found nothing that passes the job's batch to the program on all of them: unless "
            "it accumulates {gradient_accumulation_steps}, its effective batch grows with "
            "the nodes"
        )
    notes = [note, *most.plan.notes]
    if most.plan.survive.when and zero_stage_of(most.plan.deepspeed_config or {}):
        notes.append(
            f"nodes {asked}: ZeRO's checkpoints load on as many ranks as wrote them: an attempt on "
            "another number of nodes resumes only where your script loads universal ones "
            "(checkpoint.load_universal)"
        )
    plan = msgspec.structs.replace(most.plan, notes=notes)
    return msgspec.structs.replace(most, plan=plan, files=[*most.files, *files])


def _has_jobs_batch(made: Prepared) -> bool:
    """Return True if the program uses the batch size of the job, as far as that is known."""
    batch, plan = made.spec.batch, made.plan
    if batch.effective is not None or plan.effective_batch is None:
        return plan.effective_batch is not None and plan.effective_batch == batch.effective
    return plan.gradient_accumulation_steps == batch.gradient_accumulation_steps


def project_templates(context: Context) -> jinja2.Environment:
    """Return the templates of the project, or of the run's copy of it."""
    code = context.code
    has_own = code is not None and (code / "templates").is_dir()
    is_far = context.cluster.host is not None
    return open_templates(code if has_own else context.project, context.environ, is_sent=is_far)


def _only_run(
    spec: JobSpec, extra_args: Sequence[str], origin: Origin
) -> tuple[JobSpec, list[str]]:
    """Return the only run of a sweep with one combination. Raises InputError if there are more."""

    try:
        runs = build_runs(spec, extra_args)
    except SpecError as error:
        raise all_at_once([error], origin) from error
    if len(runs) > 1:
        parts = [f"{key}: null" for key, value in spec.sweep.items() if isinstance(value, str)]
        parts += [f"{key}: [{value}]" for key, value in runs[0].values.items()]
        one = ", ".join(parts)
        raise InputError(
            f"{spec.name or 'job'} is a sweep of {len(runs)} runs",
            fix=f"hpcrun submit, or one of the runs here: --set 'sweep={{{one}}}'",
        )
    return msgspec.structs.replace(runs[0].spec, name=spec.name), runs[0].extra_args


def new_run_id(spec: JobSpec, host: ClusterHost | None = None) -> str:
    """Create a run id from the job's name, the time and a random number.

    Args:
        host: The host of the cluster, whose clock counts. Runs of several machines are ordered by
            their ids, so a fast clock of one would make its runs the newest for hours.
    """
    now = time.time()
    if host is not None and ClockOffset() in host.answers:
        now += host.answers[ClockOffset()]
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    chance = int.from_bytes(os.urandom(4), "big")
    return make_run_id(spec.name or "job", stamp, now % 1, chance)


@contextlib.contextmanager
def _collect_error(errors: list[InputError]) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        errors.append(error)


def all_at_once(errors: Sequence[InputError], origin: Origin) -> InputError:
    """Combine errors into one without duplicate problems; a single error is returned as it is."""
    problems: list[Problem] = []
    reported: set[str] = set()
    fixes: list[str] = []
    notes: list[str] = []
    for error in errors:
        if isinstance(error, SpecError):
            found = error.problems
        elif len(errors) == 1:
            return error
        else:
            hint = f"; {error.fix}" if error.fix else ""
            found = [Problem("", f"{error.message}{hint}")]
        news = [problem for problem in found if str(problem) not in reported]
        if news:
            reported |= {str(problem) for problem in news}
            problems += news
        if news and isinstance(error, SpecError):
            fixes += [error.fix] if error.fix else []
            notes += error.notes
    for problem in problems:
        origin.add_source(problem)
    fix = "; ".join(dict.fromkeys(fixes))
    return SpecError(problems, fix=fix, notes=list(dict.fromkeys(notes)))


def _check_templates(context: Context, files: Sequence[RenderedFile]) -> None:
    """Check the output of the project's own templates with bash. Raises InputError."""
    if not (context.project / "templates").is_dir():
        return
    for file in files:
        fault = _syntax_fault(file.text) if file.name in ("job.sbatch", "node.sh") else ""
        if fault:
            raise InputError(
                f"{file.name}, as the project's templates make it: {fault}",
                fix=f"fix templates/{file.name}.j2",
            )


def _check_setup(host: ClusterHost, setup: SetupPlan) -> None:
    """Refuse sources to copy that do not exist, and commands that bash cannot parse."""
    sources = [source for source, _ in setup.stage]
    host.run_queries(existence_queries(host, sources, "stage"))
    problems = [
        Problem(f"stage.{source}", "no such file or folder")
        for source in sources
        if not may_exist(host, source, "stage")
    ]
    for key, lines in (("commands", setup.commands), ("node_commands", setup.node_commands)):
        fault = _syntax_fault("\n".join(lines)) if lines else ""
        if fault:
            problems.append(Problem(f"setup.{key}", f"no bash: {fault}"))
    if problems:
        raise SpecError(problems)


def _syntax_fault(script: str) -> str:
    """Return bash's syntax error for a script, even with extglob enabled, or ""."""
    read = subprocess.run(
        ["bash", "-O", "extglob", "-n"],
        input=script.encode("utf-8", "surrogateescape"),
        capture_output=True,
        check=False,
    )
    message = read.stderr.decode("utf-8", "replace").strip().replace("bash: ", "")
    return message if read.returncode != 0 else ""


def with_args(spec: JobSpec, known: Collection[str], extra_args: Sequence[str]) -> JobSpec:
    """Add the command line's arguments to the job, in the format of a job file.

    Bytes that are not UTF-8 cannot be represented in YAML.

    Args:
        known: The names of placeholders.
    """
    text = [word.encode("utf-8", "replace").decode() for word in extra_args]
    typed = [escape_placeholders(word, known) for word in text]
    if spec.command == []:
        return msgspec.structs.replace(spec, command=typed)
    return msgspec.structs.replace(spec, args=[*spec.args, *typed])


# ---- the sweep ---------------------------------------------------------------------------------


def prepare_job(
    context: Context,
    spec: JobSpec,
    *,
    host: ClusterHost | None = None,
    extra_args: Sequence[str] = (),
    after: Dependency | None = None,
    origin: Origin | None = None,
    checks: Checks | None = None,
    made: Sequence[SweepRun] | None = None,
    submit: str = "",
    learns_from: str = "",
) -> Prepared:
    """Plan and render a run as ``prepare_spec`` does, or all runs of a sweep and its array.

    Args:
        made: The runs, if they are not all combinations of the sweep's values.
        submit: The arguments of `hpcrun submit` for the whole sweep, with which messages suggest
            to submit it in parts; "" if the command line is unknown, or submits something else.
        learns_from: A trial of an earlier search on the cluster, whose results tpe also uses.

    Raises:
        InputError: A run cannot be prepared.
        SpecError: Some runs have problems; all of them are reported.
    """
    if not spec.sweep_keys and made is None:
        return prepare_spec(
            *(context, spec),
            host=host,
            extra_args=extra_args,
            after=after,
            origin=origin,
            checks=checks,
        )

    origin = origin or Origin(spec.name or "job")
    host = query_host(context, spec, extra_args, host)
    sweep_id = new_run_id(spec, host)
    code = sweep_folder(host.login.runs_dir, sweep_id).code
    templates = project_templates(context)
    checks = checks or Checks()
    request = RunRequest(
        origin=origin,
        host=host,
        after=after,
        shared_code=code,
        templates=templates,
        checks=checks,
        runs_per_job=spec.sweep_per_node,
    )
    runs: list[Prepared] = []
    errors: dict[str, InputError] = {}
    try:
        made = build_runs(spec, extra_args) if made is None else made
        search = plan_search(context, spec, host, sweep_id, made)
        tasks = -(-len(made) // spec.sweep_per_node)
        array = checks.check_array(context, host, tasks, submit)
        if array.problems:
            raise SpecError(array.problems, fix=array.fix)
        for one in made:
            own_after = after
            if after is not None and one.index in after.checkpoint_dirs:
                folder = after.checkpoint_dirs[one.index]
                own_after = msgspec.structs.replace(after, checkpoint_dir=folder)
            own = msgspec.structs.replace(
                request,
                after=own_after,
                run_id=task_run_id(sweep_id, one.index),
                checkpoint_dir=one.checkpoint_dir,
                is_trial=search is not None,
                trial=one.trial,
            )
            try:
                run = _prepare_run(context, one.spec, one.extra_args, own)
            except InputError as error:
                errors.setdefault(str(error), error)
                continue
            task = Task(
                sweep_id=sweep_id,
                index=one.index,
                values=one.values,
                checkpoint_dir=run.plan.checkpoint_dir if run.plan.shares_checkpoint_dir else None,
            )
            run.files.append(record_file("task.json", task))
            if search is not None:
                numbered = msgspec.structs.replace(
                    search,
                    number=one.index,
                    resumes=one.earlier if one.checkpoint_dir is not None else "",
                    earlier=learns_from,
                )
                run.files.append(record_file("search.json", numbered))
                if one.is_drawn:
                    run.files.append(record_file("trial.json", TrialRecord(values=one.trial)))
            runs.append(msgspec.structs.replace(run, values=one.values))
        if errors:
            raise all_at_once(list(errors.values()), origin)
        known = placeholder_names(runs[0].plan.environment)
        check_placeholders(spec, known)
        plan = build_array([run.plan for run in runs], spec, sweep_id)
        counted = checks.count_jobs(context, host, [(plan, tasks)], submit if tasks > 1 else "")
        saving = checks.check_checkpoint_dirs(context, [run.plan for run in runs])
        counted.add(saving)
        counted.fix = counted.fix or saving.fix
        if counted.problems:
            raise SpecError(counted.problems, fix=counted.fix)
    except SpecError as error:
        raise all_at_once([error], origin) from error
    notes = [*plan.notes, *array.notes, *counted.notes, *checks.compare_runs()]
    plan = msgspec.structs.replace(plan, notes=notes)
    record = Sweep(
        name=plan.name,
        tasks=len(runs),
        limit=spec.runs_at_once,
        runs_per_job=plan.runs_per_job,
    )
    files = [
        *render_array(plan, templates, len(runs)),
        record_file("sweep.json", record),
        RenderedFile(
            "spec.yaml", dump_job(with_args(spec, known.union(spec.sweep_keys), extra_args))
        ),
    ]
    return Prepared(
        spec=spec,
        plan=plan,
        files=files,
        runs=runs,
        runs_dir=context.runs_dir,
        environ=host.login.environ,
        is_strict=checks.is_strict,
    )


def record_file(name: str, record: msgspec.Struct) -> RenderedFile:
    """Render a record as a file of a run."""
    return RenderedFile(name, json.dumps(msgspec.to_builtins(record)) + "\n")
