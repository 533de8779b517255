"""The Slurm dependency of a job that is submitted with --after."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpcrun.context import Context
from hpcrun.errors import InputError
from hpcrun.monitor import find_successor_job, find_targets_by_word, status_of, status_of_job
from hpcrun.plan import Dependency
from hpcrun.runs import runs_of
from hpcrun.slurm import array_job_id

# Matches commas except those in the brackets of an array's tasks, as in 7_[1,3].
_COMMA = re.compile(r",(?![^\[]*\])")


def build_dependency(context: Context, words: Sequence[str]) -> Dependency | None:
    """Return the dependency of a job that starts after the named runs; None if none is named.

    A word may contain several names, separated by commas. Raises InputError.
    """
    names = [name.strip() for word in words for name in _COMMA.split(word)]
    if any(not name for name in names):
        raise InputError("--after: expected a run or a job id", fix="give a run or a Slurm job id")
    found = {name: _dependency_on_one(context, name) for name in names}
    if len(found) <= 1:
        return next(iter(found.values()), None)
    job_ids: list[str] = []
    for name, one in found.items():
        if one.job_id is None:
            continue
        if "?" in one.job_id:
            # Slurm does not accept a mixture of "all of" and "any of" in one dependency.
            raise InputError(
                f"--after {name}: the run may continue as another job, and Slurm cannot combine "
                "an alternative of two jobs with other dependencies",
                fix=f"hpcrun wait {name}, then submit with the others",
            )
        job_ids += [job_id for job_id in one.job_id.split(":") if job_id not in job_ids]
    return Dependency(":".join(job_ids) or None)


def _dependency_on_one(context: Context, word: str) -> Dependency:
    target = find_targets_by_word(context, [word])[word]
    if target is None:
        raise InputError(f"--after {word}: no such run", fix="hpcrun status lists the runs")
    if isinstance(target, str):
        # Slurm treats an unknown job as one that has succeeded, so the job is looked up first.
        statuses = status_of_job(context, target)
    else:
        statuses = status_of(context, runs_of(target))
    plan = statuses[0].plan if len(statuses) == 1 else None
    folder = plan.checkpoint_dir if plan is not None else None
    waiting = [status for status in statuses if not status.ok]
    if not waiting:
        return Dependency(None, folder)
    for status in waiting:
        if status.final or status.job_id is None:
            which = f" {status.job_id}" if len(statuses) > 1 and status.job_id else ""
            raise InputError(f"--after {word}: that run{which} is {status.state}")
        if status.reason == "DependencyNeverSatisfied":
            raise InputError(
                f"--after {word}: job {status.job_id} will never start, because a job that it "
                "waits for did not succeed",
                fix=f"hpcrun cancel {status.job_id}, and name a job that can start",
            )
    job_ids = [status.job_id or "" for status in waiting]
    # afterok of an array waits for all its tasks, that of a heterogeneous job for its leader. For
    # Slurm, a task that continues as another job has failed.
    if len(statuses) > 1 and not any(status.history.chained for status in statuses):
        job_ids = [array_job_id(job_ids[0])]
    after = ":".join(job_ids)
    # Slurm's "?" means "any of": if the run's node dies, nothing reports the job that continues it.
    if len(statuses) == 1 and (successor := find_successor_job(statuses[0].history)):
        after += f"?afterok:{successor}"
    return Dependency(after, folder)
