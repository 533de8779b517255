"""Find unfinished runs that write to the checkpoint directory of another run."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from hpcrun.actions.cluster_host import find_local_path
from hpcrun.context import Context
from hpcrun.errors import InputError
from hpcrun.monitor import fetch_run_names, find_run_or_sweep, list_names, run_name, status_of
from hpcrun.plan import Plan
from hpcrun.runs import (
    RUN_ID,
    SUBMITTED,
    TASK_ID,
    RunFolder,
    Submitted,
    SweepFolder,
    find_owner_run,
    parse_sweep_id,
    read_plan,
    read_record,
    read_task,
    runs_of,
    sweep_folder_name,
)

# The number of newest runs and sweeps that are checked; older ones are hardly ever unfinished.
_CHECKED_COUNT = 2000
# Dependencies that are met only when the other job has ended; after:ID is met when it has begun.
_ENDED_BEFORE = ("afterok", "afterany", "afternotok")


def explain_shared_folder(
    context: Context, plans: Sequence[Plan], dependency: str | None = None
) -> str:
    """Explain that an unfinished run writes to the same directory as one of the plans; else "".

    Runs that end before these start are no problem.

    Args:
        plans: The plans of a run, or of all runs of a sweep.
        dependency: The value of sbatch's --dependency, if it is not among their directives.
    """
    ours: dict[str, Plan] = {}
    for plan in plans:
        if plan.shares_checkpoint_dir:
            other = ours.setdefault(_resolve(context, plan.checkpoint_dir), plan)
            if other.run_id != plan.run_id:
                return (
                    f"{plan.checkpoint_dir}: {other.name} and {plan.name} would both save there, "
                    "and overwrite each other's checkpoints"
                )
    if not ours:
        return ""
    own = {plan.run_id for plan in plans}
    found = [
        (run, ours[folder])
        for run, folder in [*_list_shared_folders(context), *_list_owners(context, ours)]
        if folder in ours and run.run_id not in own
    ]
    if not found:
        return ""
    dependency = dependency or dict(plans[0].directives).get("dependency") or ""
    before = _list_runs_before(context, dependency)
    statuses = status_of(context, [run for run, _ in found])
    for (run, plan), status in zip(found, statuses, strict=True):
        is_before = not before.isdisjoint(_list_folders(run.path))
        if not (status.final or is_before or _shares_singleton(plan, run, dependency)):
            word = status.word.partition("_")[0]  # of a sweep, all runs
            return (
                f"{plan.checkpoint_dir}: {status.run_id} is {status.state} and saves there too: "
                f"each would overwrite the other's checkpoints; hpcrun cancel {word}, or "
                f"--after {word}, or another checkpoint.dir"
            )
    return ""


def refuse_shared_folders(
    context: Context, plans: Sequence[Plan], dependency: str | None = None
) -> None:
    """Raise InputError if another hpcrun has begun to submit such a run at the same moment."""
    if message := explain_shared_folder(context, plans, dependency):
        raise InputError(message, fix="--no-check if each run has a subfolder of its own")


def explain_common_folder(
    jobs: Sequence[Sequence[Plan]], waits_for: Sequence[Sequence[int]] = ()
) -> str:
    """Explain that two jobs of one submission would save to one directory at once; else "".

    Args:
        jobs: The plans of the runs of each job, in the order of submission.
        waits_for: For each job, the positions of the earlier jobs that end before it starts.
    """
    before: list[set[int]] = []
    saves: dict[str, list[int]] = {}
    for position, plans in enumerate(jobs):
        direct = waits_for[position] if waits_for else ()
        before.append(set(direct).union(*(before[earlier] for earlier in direct)))
        for folder in {plan.checkpoint_dir for plan in plans if plan.shares_checkpoint_dir}:
            others = saves.setdefault(folder, [])
            for other in set(others) - before[position]:
                return (
                    f"{folder}: {jobs[other][0].name} and {plans[0].name} would both save there, "
                    "and overwrite each other's checkpoints"
                )
            others.append(position)
    return ""


def _list_shared_folders(context: Context) -> Iterator[tuple[RunFolder, str]]:
    """List the last runs that write to shared checkpoint directories, with these directories."""
    fetch_run_names(context)
    names = (name for name in list_names(context.runs_dir) if not TASK_ID.fullmatch(name))
    is_run = (name for name in names if RUN_ID.fullmatch(parse_sweep_id(name) or name))
    for name in islice(is_run, _CHECKED_COUNT):
        record = read_record(context.runs_dir / name / SUBMITTED, Submitted)
        folder = record.checkpoint_dir if record is not None else None
        if parse_sweep_id(name) is None:
            run = RunFolder(context.runs_dir / name)
            # A run that another hpcrun is about to submit has only its plan.
            plan = read_plan(run) if record is None and run.plan.exists() else None
            if plan is not None and plan.shares_checkpoint_dir:
                folder = plan.checkpoint_dir
            if folder is not None:
                yield run, _resolve(context, folder)
        elif record is None or folder is not None:
            with contextlib.suppress(InputError):  # the record of the sweep is missing
                for run in runs_of(SweepFolder(context.runs_dir / name)):
                    task = read_task(run)
                    if task is not None and task.checkpoint_dir is not None:
                        yield run, _resolve(context, task.checkpoint_dir)


def _list_owners(context: Context, folders: Iterable[str]) -> Iterator[tuple[RunFolder, str]]:
    """List the runs in whose own directories the checkpoint directories are."""
    for folder in folders:
        owner = find_owner_run(find_local_path(context, Path(folder)))
        if owner is not None and owner.path.parent == context.runs_dir and owner.plan.exists():
            yield owner, folder


def _resolve(context: Context, folder: str) -> str:
    """Resolve symbolic links; those of a cluster behind SSH are unknown here."""
    return os.path.realpath(folder) if context.cluster.host is None else os.path.normpath(folder)


def _list_folders(path: Path) -> list[Path]:
    """Return the directory of a run or sweep, and for a run of a sweep that of its sweep."""
    sweep = sweep_folder_name(path.name)
    return [path, *([path.parent / sweep] if sweep else [])]


def _list_runs_before(context: Context, dependency: str) -> set[Path]:
    """Return the directories of the runs and sweeps that have ended when a dependency is met.

    These are the runs of the dependency, and those of their own dependencies.
    """
    found: set[Path] = set()
    pending = [dependency]
    while pending:
        for condition in pending.pop().split(","):
            # Any of several jobs suffices, so they count only if they belong to the same run.
            parts = [part.partition(":") for part in condition.split("?")]
            if not all(kind in _ENDED_BEFORE for kind, _, _ in parts):
                continue
            of_parts = [
                {_find_folder(context, job_id) for job_id in job_ids.split(":")}
                for _, _, job_ids in parts
            ]
            for path in set.intersection(*of_parts):
                if path is not None and path not in found:
                    found.add(path)
                    record = read_record(_list_folders(path)[-1] / SUBMITTED, Submitted)
                    pending += [record.dependency] if record and record.dependency else []
    return found


def _find_folder(context: Context, job_id: str) -> Path | None:
    """Return the directory of a job's run or sweep, by the records on this machine."""
    with contextlib.suppress(InputError):
        found = find_run_or_sweep(context.runs_dir, job_id.removesuffix("_*"))
        return found.path if found is not None else None
    return None


def _shares_singleton(plan: Plan, run: RunFolder, dependency: str) -> bool:
    """Return True if Slurm starts the plan's job only after the earlier ones of its name."""
    return "singleton" in re.split("[,?]", dependency) and _job_name(plan.run_id) == _job_name(
        run.run_id
    )


def _job_name(run_id: str) -> str:
    task = TASK_ID.fullmatch(run_id)
    return run_name(task[1] + task[3] if task else run_id)
