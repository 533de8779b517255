"""Find unfinished runs that write to the checkpoint directory of another run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice

from hpcrun.context import Context
from hpcrun.errors import InputError
from hpcrun.monitor import fetch_run_names, list_names, status_of
from hpcrun.plan import Plan
from hpcrun.runs import RUN_ID, TASK_ID, JobStatus, RunFolder, Submitted, read_plan, read_record

# The number of newest runs that are checked; older ones are hardly ever unfinished.
_LOOKED_AT = 2000


def find_writer(
    context: Context, plan: Plan, folders: Sequence[tuple[RunFolder, str]]
) -> JobStatus | None:
    """Find an unfinished run that writes to the same directory, except a predecessor of the run.

    Args:
        folders: The result of shared_folders().
    """
    is_here = context.cluster.host is None
    found = [run for run, folder in folders if _is_same(folder, plan, is_here=is_here)]
    waits_for = set(re.findall(r"[0-9]+", dict(plan.directives).get("dependency") or ""))
    for status in status_of(context, [run for run in found if run.run_id != plan.run_id]):
        comes_first = (status.job_id or "").partition("_")[0] in waits_for
        if not status.final and not comes_first:
            return status
    return None


def shared_folders(context: Context) -> list[tuple[RunFolder, str]]:
    """List the last runs that write to shared checkpoint directories, with these directories."""
    fetch_run_names(context)
    return list(_folders(context))


def _folders(context: Context) -> Iterator[tuple[RunFolder, str]]:
    for name in islice(filter(RUN_ID.fullmatch, list_names(context.runs_dir)), _LOOKED_AT):
        run = RunFolder(context.runs_dir / name)
        record = read_record(run.submitted, Submitted)
        # A run that another hpcrun is about to submit has only its plan.
        is_new = record is None and not TASK_ID.fullmatch(name) and run.plan.exists()
        plan = read_plan(run) if is_new else None
        if record is not None and record.checkpoint_dir is not None:
            yield run, record.checkpoint_dir
        elif plan is not None and plan.shares_checkpoint_dir:
            yield run, plan.checkpoint_dir


def _is_same(folder: str, plan: Plan, *, is_here: bool) -> bool:
    if folder == plan.checkpoint_dir:
        return True
    return is_here and os.path.realpath(folder) == os.path.realpath(plan.checkpoint_dir)


def explain_writer(plan: Plan, other: JobStatus) -> str:
    """Explain that another run writes to a run's checkpoint directory, and suggest a fix."""
    return (
        f"{plan.checkpoint_dir}: {other.run_id} is {other.state} and saves there too: each would "
        f"overwrite the other's checkpoints; hpcrun cancel {other.word}, or --after {other.word}, "
        "or another checkpoint.dir"
    )


def refuse_writers(context: Context, plans: Sequence[Plan]) -> None:
    """Raise InputError if another hpcrun has begun to submit such a run at the same moment."""
    sharing = [plan for plan in plans if plan.shares_checkpoint_dir]
    folders = shared_folders(context) if sharing else []
    for plan in sharing:
        if other := find_writer(context, plan, folders):
            raise InputError(
                explain_writer(plan, other),
                fix="--no-check if each run has a subfolder of its own",
            )
