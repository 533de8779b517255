"""What a job that is submitted with --after waits for."""

from __future__ import annotations

from hpcrun.context import Context
from hpcrun.errors import InputError
from hpcrun.monitor import find_each, status_of, status_of_job, successor_of
from hpcrun.plan import Dependency
from hpcrun.runs import runs_of
from hpcrun.slurm import array_id


def dependency_on(context: Context, word: str) -> Dependency:
    """Find out what a job that comes after this one waits for. Raises InputError."""
    if not word.strip():
        raise InputError("--after: no run is named", fix="name a run or a Slurm job id")
    target = find_each(context, [word])[word]
    if target is None:
        raise InputError(f"--after {word}: no such run", fix="hpcrun status lists the runs")
    if isinstance(target, str):
        # Slurm takes a job that it does not know for one that has ended well.
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
                f"--after {word}: job {status.job_id} will itself never start, since a job "
                "that it waits for did not succeed",
                fix=f"hpcrun cancel {status.job_id}, and name a job that can start",
            )
    job_ids = [status.job_id or "" for status in waiting]
    # afterok of an array waits for all its tasks, of a heterogeneous job for its leader. To Slurm
    # a task that goes on as another job has not ended well.
    if len(statuses) > 1 and not any(status.history.chained for status in statuses):
        job_ids = [array_id(job_ids[0])]
    after = ":".join(job_ids)
    # Slurm's or: where the run's node dies nobody is left to name the job that goes on.
    if len(statuses) == 1 and (successor := successor_of(statuses[0].history)):
        after += f"?afterok:{successor}"
    return Dependency(after, folder)
