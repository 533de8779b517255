"""Submit the user's own sbatch script: it runs as with sbatch, and hpcrun records the run."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct, structs

from hpcrun.actions.checks.submission import first_queries
from hpcrun.actions.cluster_host import ClusterHost, open_host
from hpcrun.actions.group import check_group_name
from hpcrun.actions.interpreter import existence_queries, may_exist
from hpcrun.actions.notify_settings import plan_notify
from hpcrun.actions.prepare import Prepared, new_run_id, project_templates, record_file
from hpcrun.actions.provenance import find_provenance
from hpcrun.assets import list_jobs
from hpcrun.context import Context, find_project, refuse_clusters_option, refuse_other_clusters
from hpcrun.errors import InputError
from hpcrun.files import read_plain
from hpcrun.lint import COMPONENT, parse_directives
from hpcrun.plan import Dependency, Plan, PlanInputs, build_plan, parse_seconds
from hpcrun.render import RenderedFile, insert_recorder, quote_comment, render_recorder
from hpcrun.runs import Sweep, Task, sweep_folder, task_run_id
from hpcrun.slurm import SCRIPT, parse_task_numbers, sbatch_argv
from hpcrun.spec import Cluster, JobSpec, Notify, Resources, dump_job
from hpcrun.text import is_whole_number

# The value by which the tasks of an array differ.
_INDEX = "SLURM_ARRAY_TASK_ID"
_MOST_TASKS = 1000  # each is a folder
_LARGEST = 4 << 20  # sbatch refuses a script of more than 4 MiB
_SHELL = re.compile(r"#!\s*(\S*/)?(env\s+(-\S+\s+)*)?(\S*/)?(ba|da|k|z)?sh(\s|$)")


class BatchScript(Struct, frozen=True, kw_only=True):
    """The record of a submitted sbatch script, from which it can be submitted again.

    Attributes:
        path: The file, as an absolute path.
        arguments: The arguments of the script.
        options: Options of sbatch from the command line of hpcrun.
        folder: The directory in which the script was submitted; if the run has a copy of the
            project, below the project.
    """

    path: str
    text: str
    arguments: list[str]
    options: list[str]
    folder: str


def is_batch_script(context: Context, name: str) -> bool:
    """Return True if a word names the file of a script; a job of that name comes first."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml", ".py") or not path.is_file():
        return False
    if name in list_jobs(context.project, context.environ):
        return False
    try:
        return read_plain(path, _LARGEST).startswith(b"#!")
    except (OSError, InputError):
        return False


def read_batch_script(context: Context, name: str, arguments: Sequence[str]) -> BatchScript:
    """Read an sbatch script. Raises InputError."""
    path = Path(name)
    data = read_plain(path, _LARGEST)
    return BatchScript(
        path=str(path.absolute()),
        text=data.decode("utf-8", "surrogateescape"),
        arguments=list(arguments),
        options=[],
        folder=os.path.relpath(context.cwd, context.project)
        if _is_far(context)
        else str(context.cwd),
    )


def _is_far(context: Context) -> bool:
    return context.cluster.host is not None


def prepare_script(
    context: Context,
    script: BatchScript,
    *,
    options: Sequence[str] = (),
    after: Dependency | None = None,
    group: str | None = None,
) -> Prepared:
    """Plan the submission of an sbatch script; nothing is changed.

    The job's WorkDir is the folder of the run, as for all jobs of hpcrun. The script itself runs in
    the directory of submission, in which its relative output files are, too. On a remote cluster
    that is a directory of the run's copy of the project, or of the profile's ``project_dir``.

    Args:
        options: Options of sbatch that replace those of the script.
        group: A name for several runs.

    Raises:
        InputError: hpcrun cannot submit the script.
    """
    if not _is_far(context):
        refuse_other_clusters(context.cluster, context.environ)
    name = Path(script.path).name
    if not _SHELL.match(script.text):
        first = script.text.split("\n", 1)[0]
        raise InputError(
            f"{name}: not a shell script ({first}): hpcrun records only scripts for sh and bash",
            fix=f"sbatch {name}; hpcrun status, logs, why and parse accept the job id",
        )
    if "\r\n" in script.text:
        raise InputError(
            f"{name}: sbatch refuses scripts with DOS line ends", fix=f"dos2unix {name}"
        )
    # Options of the command line, and the script itself, belong to the first component.
    data = script.text.encode("utf-8", "surrogateescape")
    parts = [parse_directives(part)[0] for part in COMPONENT.split(data)]
    directives = parts[0]
    given = {one.option: one.value for one in directives}
    given |= _parse_options(options)
    refuse_clusters_option(context.cluster, context.environ, given.get("clusters", ""))
    indices, limit = _list_tasks(given, name)
    if group is not None:
        check_group_name(context, group)
    host = open_host(context, first_queries(context, []))
    spec = structs.replace(_describe_spec(given, name, script), group=group)
    if len(parts) > 1:
        others = [
            _describe_spec({x.option: x.value for x in one}, name, script) for one in parts[1:]
        ]
        sizes = [one.resources for one in (spec, *others)]
        resources = structs.replace(
            spec.resources,
            nodes=sum(int(one.nodes) for one in sizes),
            gpus_per_node=max(one.gpus_per_node for one in sizes),
        )
        spec = structs.replace(spec, resources=resources)
    run_id = new_run_id(spec, host)
    templates = project_templates(context)
    runs_dir = host.login.runs_dir
    there = _find_project_there(context, host)
    is_copied = _is_far(context) and there is None
    if _is_far(context):
        _check_inside(script)
    if there is not None:
        start = os.path.normpath(there / script.folder)
    elif _is_far(context):
        whole = sweep_folder(runs_dir, run_id).path if indices else runs_dir / run_id
        start = os.path.normpath(whole / "code" / script.folder)
    else:
        start = script.folder
    folder = str(Path(start, given.get("chdir", "")))
    record = record_file("script.json", structs.replace(script, options=list(options)))
    shown = [(one.option, one.value or None) for one in directives if one.known]

    # Commands look for the runs of a project, and the script may be in a folder of it.
    project = context.project if _is_far(context) else find_project(Path(script.folder))
    provenance = find_provenance(context, project=str(project))
    notify, notes = plan_notify(context, Notify())

    def plan_run(run_id: str) -> Plan:
        place = PlanInputs(
            run_id=run_id,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            run_dir=str(runs_dir / run_id),
            project_dir=start,
            cache_dir=str(host.login.cache_dir),
            python="python3",
            inherited=host.login.environ,
            provenance=provenance,
        )
        # A neutral profile: the script has all settings itself.
        neutral = Cluster(name=context.cluster.name, runs_dir=context.cluster.runs_dir)
        return structs.replace(
            build_plan(spec, neutral, place),
            directives=shown,
            step=[],
            environment=[],
            snapshot=is_copied,
            notes=notes,
            description=f"sbatch script {script.path}",
            program=[script.path, *script.arguments],
            log_patterns=[],
            effective_batch=None,
            notify=notify,
        )

    def prepare(
        plan: Plan, files: list[RenderedFile], of: JobSpec, run_dir: str, **more: Any
    ) -> Prepared:
        placing = _placing_options(script, given, run_dir, folder)
        return Prepared(
            spec=of,
            plan=plan,
            files=[*files, RenderedFile("spec.yaml", dump_job(of)), record],
            runs_dir=context.runs_dir,
            environ=host.login.environ,
            options=[*options, *placing, *_after_options(given, after)],
            arguments=script.arguments,
            is_own_script=True,
            code_folders=code_folders,
            **more,
        )

    signal = _own_signal(given)
    code_folders = _list_output_folders(context, script, given) if is_copied else []
    plan = plan_run(run_id)
    if not indices:
        text = insert_recorder(script.text, plan.run_dir, (start, folder), signal)
        files = [RenderedFile(SCRIPT, text), *render_recorder(plan, templates)]
        return prepare(plan, files, spec, plan.run_dir)
    # Each task is a run of its own, as in a sweep.
    runs = []
    for index in indices:
        one = structs.replace(plan_run(task_run_id(run_id, index)), name=f"{plan.name}.{index}")
        values = {_INDEX: str(index)}
        task = record_file("task.json", Task(sweep_id=run_id, index=index, values=values))
        files = [*render_recorder(one, templates), task]
        runs.append(prepare(one, files, spec, one.run_dir, values=values))
    head, _, tail = run_id.rpartition("-")
    before, after_index = f"{runs_dir}/{head}.", f"-{tail}"
    text = insert_recorder(script.text, before, (start, folder), signal, after_index=after_index)
    from_zero = indices == list(range(len(indices)))
    own = [] if from_zero else indices
    sweep = Sweep(name=plan.name, tasks=len(indices), limit=limit, indices=own)
    files = [RenderedFile(SCRIPT, text), record_file("sweep.json", sweep)]
    array_dir = str(sweep_folder(runs_dir, run_id).path)
    of_array = structs.replace(spec, sweep={_INDEX: indices}, sweep_limit=limit)
    return prepare(plan, files, of_array, array_dir, runs=runs)


def _find_project_there(context: Context, host: ClusterHost) -> Path | None:
    """Return the folder of the project on a remote cluster; None if a run gets a copy of it.

    Raises:
        InputError: There is no such folder.
    """
    key = context.cluster.project_dir
    if key is None or not _is_far(context) or context.code is not None:
        return None
    where = f"{context.cluster_source}: project_dir"
    host.run_queries(existence_queries(host, [key], where))
    if not may_exist(host, key, where):
        raise InputError(
            f"{where}: {key} does not exist on {context.cluster.host}",
            fix="correct it, or remove the key: each run then gets a copy of the project",
        )
    return host.login.resolve(key, where)


def _list_tasks(given: dict[str, str], name: str) -> tuple[list[int], int]:
    """Return the indices of an array, and how many tasks run at once; no indices: no array."""
    value = given.get("array")
    if value is None:
        return [], 0
    numbers, _, limit = value.partition("%")
    indices = parse_task_numbers(numbers, _MOST_TASKS + 1)
    if not indices or len(indices) > _MOST_TASKS or (limit and not is_whole_number(limit)):
        raise InputError(
            f"{name}: --array={value}: hpcrun records arrays of at most {_MOST_TASKS} tasks, as in "
            "1-10, 0,5,7 or 1-9:2%4",
            fix=f"sbatch {name}; hpcrun status, logs, why and parse accept the job id",
        )
    indices = sorted(set(indices))
    return indices, min(int(limit or 0) or len(indices), len(indices))


def describe_change(script: BatchScript, made: Prepared) -> list[str]:
    """Return the call of sbatch, and the difference between the script and what Slurm gets."""
    after = next(file.text for file in made.files if file.name == SCRIPT)
    name = Path(script.path).name
    diff = difflib.unified_diff(
        script.text.splitlines(), after.splitlines(), name, SCRIPT, lineterm="", n=1
    )
    return [shlex.join(sbatch_argv(made.options, made.arguments)), *diff]


def _parse_options(options: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in options:
        name, _, value = word.removeprefix("--").partition("=")
        found[name] = value
    return found


def _check_inside(script: BatchScript) -> None:
    """Raise InputError if the record of a script names a directory outside the project."""
    path = PurePosixPath(script.folder)
    if path.is_absolute() or ".." in path.parts:
        raise InputError(
            f"{script.folder}: not a folder of the project", fix=f"hpcrun submit {script.path}"
        )


def _list_output_folders(context: Context, script: BatchScript, given: dict[str, str]) -> list[str]:
    """List the directories of output files that the copy of the project needs, too.

    Such a directory is often empty, or git ignores it. As with sbatch, one that the project lacks
    is not created.
    """
    found = []
    for option in ("output", "error"):
        folder = os.path.normpath(
            Path(script.folder, given.get("chdir", ""), given.get(option, "")).parent
        )
        is_inside = not folder.startswith(("/", ".."))
        if is_inside and (context.project / folder).is_dir():
            found.append(folder)
    return found


def _placing_options(
    script: BatchScript, given: dict[str, str], run_dir: str, folder: str
) -> list[str]:
    """Return the options that keep names and output files as sbatch would choose them.

    sbatch is called in the folder of the run, so that the job can be found by it.
    """
    options = []
    if "job-name" not in given:
        options.append(f"--job-name={Path(script.path).name}")
    if "chdir" in given:
        options.append(f"--chdir={run_dir}")
    base = folder.replace("%", "%%")
    output = given.get("output", "slurm-%A_%a.out" if "array" in given else "slurm-%j.out")
    for option, value in (
        ("output", output),
        ("error", given.get("error")),
        ("input", given.get("input")),
    ):
        if value is not None and value and not value.startswith("/") and value not in ("none",):
            options.append(f"--{option}={base}/{value}")
    return options


def _after_options(given: dict[str, str], after: Dependency | None) -> list[str]:
    if after is None or after.job_id is None:
        return []
    own = given.get("dependency", "")
    if "?" in own:
        raise InputError(
            f"--after: the script has --dependency={own}, which cannot be combined with it",
            fix="name all dependencies in the script",
        )
    both = f"{own},{after.terms}" if own else after.terms
    return [f"--dependency={both}", "--kill-on-invalid-dep=yes"]


def _own_signal(given: dict[str, str]) -> str:
    """Return TERM if Slurm sends that signal to the script only."""
    found = re.fullmatch(r"[RB]*B[RB]*:(?:SIG)?(TERM|15)(@\d+)?", given.get("signal", ""))
    return "TERM" if found else ""


def _describe_spec(given: dict[str, str], name: str, script: BatchScript) -> JobSpec:
    """Return a job with the resources of the script, for listings."""
    nodes = given.get("nodes", "1").split("-")[0]
    gres = given.get("gpus-per-node") or given.get("gres", "").removeprefix("gpu:")
    count = re.search(r"(?:^|:)(\d+)", gres)
    gpus = (
        count[1] if count and ("gpus-per-node" in given or "gpu" in given.get("gres", "")) else "0"
    )
    limit = parse_seconds(given["time"]) if given.get("time") else None
    time_limit = given.get("time") if limit not in (None, 0, float("inf")) else None
    resources = Resources(
        nodes=int(nodes) if is_whole_number(nodes) and int(nodes) > 0 else 1,
        gpus_per_node=int(gpus),
    )
    if time_limit:
        resources = structs.replace(resources, time=time_limit)
    label = quote_comment(given.get("job-name") or name) or "script"
    return JobSpec(
        name=label, command=[script.path, *script.arguments], resources=resources, snapshot=False
    )
