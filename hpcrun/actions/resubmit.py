"""Create a new run from an earlier one: its job, its original code, its checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import Any, Literal

from msgspec import Struct, structs

from hpcrun.actions.checks.submission import Checks
from hpcrun.actions.cluster_host import ClusterHost, find_local_path
from hpcrun.actions.evaluations import keep_evaluations, restore_evaluation_secrets
from hpcrun.actions.fetch import fetch_code
from hpcrun.actions.prepare import (
    Prepared,
    prepare_job,
    prepare_spec,
    query_host,
    read_spec,
    read_spec_of_cluster,
    record_file,
)
from hpcrun.actions.script import BatchScript, prepare_script
from hpcrun.actions.search import fill_trial_values, read_drawn_values
from hpcrun.actions.submit import (
    Submission,
    find_predecessor_folder,
    link_checkpoints,
    submit_job,
    verify_submitted_records,
)
from hpcrun.context import Context, is_in_mirror, load_context, read_text
from hpcrun.errors import InputError, OutOfReach
from hpcrun.monitor import copied_run_error, status_of
from hpcrun.plan import Dependency, Plan, SweepRun, after_checkpoint_dir, suggest_resume
from hpcrun.remote import PathProbe
from hpcrun.runs import (
    PIPELINE,
    JobStatus,
    PipelineRecord,
    Resubmitted,
    RunFolder,
    SearchRecord,
    SweepFolder,
    find_owner_run,
    list_successors,
    read_record,
    runs_of,
    sweep_folder,
)
from hpcrun.spec import JobSpec, Origin, set_variables

Code = Literal["then", "now"]


class Again(Struct, frozen=True, kw_only=True):
    """A new run, or a sweep, that is ready for submission; nothing has been changed yet.

    Attributes:
        context: The earlier run's project and cluster.
        earlier: The runs from which it is made.
        checkpoint_dirs: The directories to resume from; None for a fresh start.
        changed: Files of the original code that differ from the project's current code.
    """

    context: Context
    prepared: Prepared
    earlier: list[JobStatus]
    checkpoint_dirs: list[str | None]
    notes: list[str]
    changed: list[str] = []


def prepare_again(
    context: Context,
    found: RunFolder | SweepFolder,
    *,
    overrides: Sequence[str] = (),
    extra_args: Sequence[str] = (),
    code: Code = "then",
    fresh: bool = False,
    failed: bool = False,
    named_cluster: bool = False,
    after: Dependency | None = None,
    checks: Checks | None = None,
) -> Again:
    """Plan the job of an earlier run again; nothing is changed.

    The new run keeps the earlier run's project directory, cluster and checkpoint directory, so that
    a script that can resume continues the training.

    Args:
        extra_args: Appended to the arguments of the earlier run.
        code: Use the original code ("then") or the current code ("now").
        fresh: Use a new checkpoint directory.
        failed: Of a sweep, only the runs that ended without success.
        named_cluster: Use the cluster of ``context``.
        after: The run before it in its pipeline, which is resubmitted, too.

    Raises:
        InputError: The job cannot be submitted again.
        SpecError: The job has problems; all of them are reported.
    """
    for override in overrides:
        if override.startswith(("sweep.", "sweep=")):
            message = f"--set: {override}: a run keeps the values that it had in its sweep"
            raise InputError(message, fix="hpcrun submit makes another sweep of the job")
    statuses = status_of(context, runs_of(found))
    if failed:
        statuses = _select_failed(found, statuses)
    for status in statuses:
        _check_over(status, fresh=fresh)
    plan = _plan_of(statuses[0])
    changed: list[str] = []
    if isinstance(found, SweepFolder) and (found.path / "script.json").is_file():
        raise InputError(
            f"{found.sweep_id} is an array of an sbatch script, which is submitted as a whole",
            fix="hpcrun submit SCRIPT",
        )
    if isinstance(found, RunFolder) and found.batch_script.is_file():
        where = context
        if plan.snapshot or context.cluster.host is not None:
            where = _find_context(context, statuses[0], plan, named_cluster=named_cluster)
        if code == "then" and plan.snapshot:
            where, changed = _use_original_code(context, where, statuses[0], plan)
        return _script_again(
            *(where, statuses[0]),
            overrides=overrides,
            extra_args=extra_args,
            code=code,
            changed=changed,
        )
    where = _find_context(context, statuses[0], plan, named_cluster=named_cluster)
    notes: list[str] = []
    if code == "then" and (plan.snapshot or plan.reference_trainer):
        where, changed = _use_original_code(context, where, statuses[0], plan)
        notes += _describe_changed(changed)
    elif code == "then":
        notes.append("using the current code: the earlier run used it in place")
    spec = _spec_of(where, found, overrides)
    probes = [PathProbe(str(Path(_plan_of(status).checkpoint_dir))) for status in statuses]
    host = query_host(where, spec, extra_args, also=probes)
    folders = [None if fresh else _checkpoints(context, host, status) for status in statuses]
    is_first = after is None
    after = after or _earlier_dependency(where, [_plan_of(status) for status in statuses])
    origin = Origin(str(found.path / "spec.yaml"), tuple(overrides))
    make: partial[Prepared] = partial(prepare_spec, checkpoint_dir=folders[0])
    if isinstance(found, SweepFolder):
        tasks = [
            _repeat_trial(
                SweepRun(
                    index=index,
                    values=status.history.task.values if status.history.task is not None else {},
                    spec=structs.replace(
                        _read_spec(where, status.folder, overrides),
                        name=f"{spec.name or 'job'}.{index}",
                    ),
                    extra_args=list(extra_args),
                    checkpoint_dir=folder,
                    earlier=_plan_of(status).run_dir,
                ),
                status.folder,
                spec,
            )
            for index, (status, folder) in enumerate(zip(statuses, folders, strict=True))
        ]
        is_same = not overrides and not extra_args and where.code is not None
        make = partial(prepare_job, made=tasks, learns_from=tasks[0].earlier if is_same else "")
    how: dict[str, Any] = {"host": host, "extra_args": extra_args, "after": after, "origin": origin}
    made = make(where, spec, **how, checks=checks)
    if any(folders) and not any(run.plan.resumes for run in made.each()):
        # The program would start at step 0 in the earlier run's directory and overwrite its
        # checkpoints.
        notes.append(_no_resume(made, folders, statuses))
        folders = [None] * len(folders)
        make = partial(make, **_drop_checkpoints(make))
        made = make(where, spec, **how, checks=checks)
    _check_own_folder(context, host, made, statuses, folders)
    for run, status, folder in zip(made.each(), statuses, folders, strict=True):
        record = Resubmitted(
            run_id=status.run_id,
            run_dir=str(status.folder.path),
            job_id=status.job_id,
            code="now" if where.code is None else "then",
            checkpoint_dir=folder,
        )
        run.files.append(record_file("resubmitted.json", record))
    if is_first:
        _check_began_from(host, after, [run.plan for run in made.each()])
    if (pipeline := read_record(found.pipeline, PipelineRecord)) is not None:
        made.files.append(record_file(PIPELINE, pipeline))
        if isinstance(found, RunFolder):
            made = keep_evaluations(found, made)
    texts = [*made.spec.args, *set_variables(made.spec.env).values(), *(made.spec.command or [])]
    if any(folders) and any("{run_dir}" in text for text in texts):
        notes.append("{run_dir} is a new folder for the new run; {checkpoint_dir} stays")
    return Again(
        context=where,
        prepared=made,
        earlier=statuses,
        checkpoint_dirs=folders,
        notes=notes,
        changed=changed,
    )


def _use_original_code(
    context: Context, where: Context, status: JobStatus, plan: Plan
) -> tuple[Context, list[str]]:
    """Return ``where`` with the run's copy of the code, and the files that have changed since.

    Raises InputError, OutOfReach.
    """
    task, first = status.history.task, status.folder
    whole = sweep_folder(first.path.parent, task.sweep_id) if task is not None else first
    copy = whole.code
    if not copy.is_dir() and is_in_mirror(copy, context.environ):
        fetch_code(context, whole.path)
    if not copy.is_dir():
        raise InputError(f"{copy}: the run's copy of the code is gone", fix="--code now")
    changed = _changed_files(where.project, copy) if plan.snapshot else []
    return structs.replace(where, code=copy), changed


def _describe_changed(changed: Sequence[str]) -> list[str]:
    if not changed:
        return []
    return [
        f"{_format_list(changed)} changed since: the run takes the original code; --code now "
        "uses the current one"
    ]


def _script_again(
    context: Context,
    status: JobStatus,
    *,
    overrides: Sequence[str],
    extra_args: Sequence[str],
    code: Code,
    changed: Sequence[str],
) -> Again:
    """Prepare the sbatch script of an earlier run for another submission. Raises InputError."""
    record = read_record(status.folder.batch_script, BatchScript)
    if record is None:
        raise InputError(
            f"{status.folder.batch_script}: corrupt, or written by another version of hpcrun",
            fix="hpcrun submit SCRIPT",
        )
    if overrides:
        raise InputError(
            f"--set {overrides[0]}: the run is that of an sbatch script, and of no job",
            fix=f"change {record.path}, and hpcrun submit it",
        )
    path = Path(record.path)
    # A script of another machine may have the path of a different file here.
    is_ours = verify_submitted_records(context, status.folder.path)
    if code == "now" and not is_ours:
        raise InputError(
            f"{status.run_id} was submitted from another machine, on which its script is",
            fix="hpcrun submit SCRIPT; without --code now, the original script and code are used",
        )
    is_changed = is_ours and (not path.is_file() or read_text(path) != record.text)
    if code == "now" and path.is_file():
        record = structs.replace(record, text=read_text(path))
        is_changed = False
    others = [name for name in changed if Path(context.project, name) != path]
    notes = _describe_changed(others)
    if is_changed:
        notes.insert(0, f"{path.name} has changed since: the run uses the original script")
    record = structs.replace(record, arguments=[*record.arguments, *extra_args])
    group = _plan_of(status).group
    made = prepare_script(context, record, options=record.options, group=group)
    earlier = _plan_of(status)
    if context.cluster.host is not None and not earlier.snapshot:
        _check_same_folder(context, earlier.project_dir, made.plan)
    made.files.append(
        record_file(
            "resubmitted.json",
            Resubmitted(
                run_id=status.run_id,
                run_dir=str(status.folder.path),
                job_id=status.job_id,
                code=code,
                checkpoint_dir=None,
            ),
        )
    )
    return Again(
        context=context,
        prepared=made,
        earlier=[status],
        checkpoint_dirs=[None],
        notes=notes,
        changed=others,
    )


def _check_same_folder(context: Context, folder: str, plan: Plan) -> None:
    """Refuse to run a script in another folder of the cluster than before. Raises InputError."""
    if plan.project_dir == folder:
        return
    now = "a copy of the project" if plan.snapshot else plan.project_dir
    source = context.cluster_source
    raise InputError(
        f"{source}: project_dir: the earlier run worked in {folder}, the new one would in {now}",
        fix="correct the key, or hpcrun submit SCRIPT",
    )


def _drop_checkpoints(make: partial[Prepared]) -> dict[str, Any]:
    """Return the arguments of a partial without the checkpoints of earlier runs."""
    if "made" not in make.keywords:
        return {"checkpoint_dir": None}
    return {"made": [structs.replace(run, checkpoint_dir=None) for run in make.keywords["made"]]}


def _no_resume(made: Prepared, folders: Sequence[str | None], earlier: Sequence[JobStatus]) -> str:
    kept = next(folder for folder in folders if folder is not None)
    more = f" and {len(earlier) - 1} more" if len(earlier) > 1 else ""
    return (
        "it starts at step 0: found nothing that makes the program resume; the "
        f"checkpoints in {kept}{more} are kept. To resume: {suggest_resume(made.spec, None)}"
    )


def _check_own_folder(
    context: Context,
    host: ClusterHost,
    made: Prepared,
    earlier: Sequence[JobStatus],
    folders: Sequence[str | None],
) -> None:
    """Refuse a run that would overwrite checkpoints without resuming from them."""
    for run, status, folder in zip(made.each(), earlier, folders, strict=True):
        before, now = _plan_of(status).checkpoint_dir, run.plan.checkpoint_dir
        if folder is None and before == now and _checkpoints(context, host, status) is not None:
            raise InputError(
                f"{now}: the run would overwrite the checkpoints of {status.run_id}, and not "
                "resume from them: checkpoint.dir is the same absolute path",
                fix=f"--set checkpoint.dir={now}-2, or {suggest_resume(run.spec, None)}",
            )


def submit_again(again: Again) -> Submission:
    """Submit the run, and record it in the directory whose checkpoints it uses.

    Raises the same errors as submit_job().
    """
    for status in again.earlier[:1]:
        restore_evaluation_secrets(again.context, status.folder)
    with link_checkpoints(again.context, again.prepared.each(), again.checkpoint_dirs):
        return submit_job(again.context, again.prepared)


# Suffixes of files that may contain code or settings, and limits for the comparison.
_CODE = (".py", ".yaml", ".yml", ".json", ".toml", ".sh", ".cfg", ".ini", ".j2")
_MOST_BYTES, _MOST_FILES = 1 << 20, 5000


def _changed_files(project: Path, copy: Path) -> list[str]:
    """List the files in a copy of the code that differ from the project's current files."""
    files = (path for path in copy.rglob("*") if path.suffix in _CODE)
    changed = []
    for path in islice(files, _MOST_FILES):
        today = project / path.relative_to(copy)
        with contextlib.suppress(OSError):
            was, size = path.lstat(), today.stat().st_size if today.is_file() else -1
            if not S_ISREG(was.st_mode) or was.st_size > _MOST_BYTES:
                continue
            if size != was.st_size or today.read_bytes() != path.read_bytes():
                changed.append(str(path.relative_to(copy)))
    return sorted(changed)


def _format_list(names: Sequence[str], most: int = 3) -> str:
    """Format the first few names with the matching verb form.

    >>> _format_list(["a.py"]), _format_list(["a.py", "b.py"])
    ('a.py has', 'a.py, b.py have')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more} {'has' if len(names) == 1 else 'have'}"


def _select_failed(
    found: RunFolder | SweepFolder, statuses: Sequence[JobStatus]
) -> list[JobStatus]:
    left = [status for status in statuses if status.final and not status.ok]
    if not left:
        out_of_reach = next((status.out_of_reach for status in statuses if not status.final), "")
        if out_of_reach:
            raise OutOfReach(
                f"--failed: it is unknown what failed: {out_of_reach}", fix="try again later"
            )
        name = found.sweep_id if isinstance(found, SweepFolder) else found.run_id
        states = ", ".join(dict.fromkeys(status.state for status in statuses))
        raise InputError(f"--failed: {name} has no run that failed: {states}")
    return left


def _check_over(status: JobStatus, *, fresh: bool) -> None:
    """Refuse to let two runs write the same checkpoints. Raises InputError, OutOfReach."""
    verdict, name = status.verdict, status.label
    error = copied_run_error(status.history, "resubmit")
    if error is not None:  # the original may still write the same checkpoints
        raise error
    if not (verdict.final or fresh):
        if status.out_of_reach:
            raise OutOfReach(
                f"{name}: it is unknown whether it has ended: {status.out_of_reach}",
                fix="try again later, or --fresh to start without checkpoints",
            )
        first = "wait" if verdict.state == "COMPLETING" else "cancel"
        raise InputError(
            f"{name} is {verdict.state}: two runs would write the same checkpoints",
            fix=f"hpcrun {first} {status.job_id or status.run_id} first, or --fresh for "
            "checkpoints of its own",
        )
    submitted = status.history.submitted
    hosts = status.plan.hosts if status.plan is not None else []
    if hosts or (submitted is not None and submitted.job_id is None):
        raise InputError(
            f"{name} was run by hpcrun run, not submitted",
            fix=f"hpcrun submit {status.folder.path}/spec.yaml, or hpcrun run with it",
        )


def _plan_of(status: JobStatus) -> Plan:
    if status.plan is None:
        raise InputError(
            f"{status.folder.path}/plan.json: missing, or written by an incompatible version of "
            "hpcrun",
            fix=f"hpcrun submit {status.folder.path}/spec.yaml",
        )
    return status.plan


def _find_context(
    context: Context, status: JobStatus, plan: Plan, *, named_cluster: bool
) -> Context:
    """Return a context with the earlier run's project and the current profile of its cluster.

    The profile of the current directory may belong to another project, with another account,
    partition, environment and Python. Raises InputError.
    """
    project = Path(plan.project_dir)
    if context.cluster.host is not None:
        # On a remote host the run worked in its copy of the code; only the record on this machine
        # is trusted.
        recorded = read_record(status.folder.submitted_from, str)
        project = context.project if recorded is None else Path(recorded)
    if not project.is_dir():
        raise InputError(
            f"{project}: the project's folder, in which the run worked, is gone",
            fix=f"hpcrun submit {status.folder.path}/spec.yaml in another one",
        )
    submitted = status.history.submitted
    cluster = submitted.cluster if submitted else context.cluster.name
    is_here = project == context.project and cluster == context.cluster.name
    if named_cluster or is_here:
        return structs.replace(context, project=project)
    where = load_cluster_context(context, project, cluster, status.run_id)
    return structs.replace(
        where, debug=context.debug, waiting=context.waiting, connect=context.connect
    )


def load_cluster_context(context: Context, project: Path, name: str, run_id: str) -> Context:
    """Load the current profile of a run's cluster, from its project or the user's profiles.

    Raises:
        InputError: There is no such profile any more.
    """
    environ = {k: value for k, value in context.environ.items() if k != "HPCRUN_CLUSTER"}
    for asked in (name, None):  # a cluster without any profile also has a name
        try:
            found = load_context(environ, project, asked)
        except InputError as error:
            fault = error.message
            continue
        if found.cluster.name == name:
            return structs.replace(found, environ=context.environ)
        fault = f"the profile of {project} is now that of {found.cluster.name}"
    raise InputError(
        f"{run_id} ran on {name}: {fault}",
        fix="--cluster NAME submits it to another cluster",
    )


def _repeat_trial(run: SweepRun, folder: RunFolder, spec: JobSpec) -> SweepRun:
    """Return a run of a sweep with the values that its earlier job has drawn, if jobs draw them.

    Raises InputError.
    """
    if spec.search.method != "tpe":
        return run
    search = read_record(folder.search, SearchRecord)
    drawn = read_drawn_values(folder, search) if search is not None else run.values
    # Without values, the job of the new run draws some; these are examples for checks.
    trial = drawn or spec.search.draw(run.index)
    return structs.replace(run, trial=trial, is_drawn=bool(drawn))


def _spec_of(context: Context, found: RunFolder | SweepFolder, overrides: Sequence[str]) -> JobSpec:
    spec = _read_spec(context, found, overrides)
    return fill_trial_values(spec, found) if isinstance(found, RunFolder) else spec


def _read_spec(
    context: Context, found: RunFolder | SweepFolder, overrides: Sequence[str]
) -> JobSpec:
    file = found.path / "spec.yaml"
    if verify_submitted_records(context, found.path):
        return read_spec(context, read_text(file), str(file), overrides)
    return read_spec_of_cluster(context, file, overrides)


def _checkpoints(context: Context, host: ClusterHost, status: JobStatus) -> str | None:
    """Return the directory to resume from, or None without checkpoints. Raises InputError."""
    folder = Path(_plan_of(status).checkpoint_dir)
    state = host.answers[PathProbe(str(folder))]
    if not state.is_filled:
        return None
    if not (state.is_writable and state.is_executable):
        raise InputError(
            f"{folder}: you cannot write there, but the new run must",
            fix="--fresh to start without checkpoints",
        )
    owner = find_owner_run(find_local_path(context, folder))
    is_mirror = context.cluster.host is not None
    users = [] if owner is None else list_successors(owner, is_mirror=is_mirror)
    later = [RunFolder(path) for path in users]
    for other in status_of(context, later):
        if not other.final:
            raise InputError(
                f"{folder}: {other.run_id}, a later run, is {other.state} and uses it",
                fix="hpcrun cancel that one first, or --fresh to start without checkpoints",
            )
    return str(folder)


def _earlier_dependency(context: Context, plans: Sequence[Plan]) -> Dependency | None:
    """Return the dependency of the earlier runs, which applies to the new ones, too.

    Raises:
        InputError: The runs start after different runs, some of which have not ended.
    """
    folders = {
        index: folder
        for index, plan in enumerate(plans)
        if (folder := after_checkpoint_dir(plan.environment)) is not None
    }
    if not folders:
        return None
    if len({*folders.values()}) > 1 or len(folders) < len(plans):
        for folder in folders.values():
            if (job_id := _find_active_owner(context, folder)) is not None:
                raise InputError(
                    f"job {job_id}, after which the run started, has not ended: {folder}",
                    fix=f"hpcrun wait {job_id}, then resubmit",
                )
        return Dependency(None, None, folders)
    return Dependency(_find_active_owner(context, folders[0]), folders[0])


def _find_active_owner(context: Context, folder: str) -> str | None:
    """Return the job whose checkpoints are in a folder; None if it has ended, or is unknown."""
    owner = find_owner_run(find_local_path(context, Path(folder)))
    job_id = None
    for before in status_of(context, [owner] if owner is not None and owner.path.is_dir() else []):
        submitted, verdict = before.history.submitted, before.verdict
        is_here = submitted is not None and submitted.cluster == context.cluster.name
        can_end = verdict.state != "UNKNOWN" and verdict.reason != "DependencyNeverSatisfied"
        if is_here and can_end and not verdict.final:
            job_id = before.job_id
    return job_id


def _check_began_from(host: ClusterHost, after: Dependency | None, plans: Sequence[Plan]) -> None:
    """Raise InputError if checkpoints that the job names neither exist nor are expected."""
    folder = next(filter(None, map(find_predecessor_folder, plans)), None)
    is_coming = after is not None and after.job_id is not None
    if folder is None or is_coming:
        return
    probe = PathProbe(folder)
    if not host.run_queries([probe])[probe].is_folder:
        raise InputError(
            f"{folder}: the checkpoints that the run begins from (--after) are not there",
            fix="hpcrun submit it with --after and a run that has some",
        )
