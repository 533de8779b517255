"""Finds the job that another one is to wait for, and the checkpoints that it leaves."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrun.controller.context import Context
from hpcrun.controller.state.foreign import ForeignStatus, foreign_status
from hpcrun.controller.state.status import RunStatus, status_of
from hpcrun.errors import InputError
from hpcrun.plan.types import Dependency
from hpcrun.runs.find import find, is_job_id
from hpcrun.runs.layout import SweepFolder
from hpcrun.runs.store import runs_of


def dependency_on(context: Context, word: str) -> Dependency:
    """Find out what a job that is to come after this run or job waits for.

    Raises InputError for a run that will never end well.
    """
    if not word.strip():
        raise InputError("--after: no run is named", fix="name a run or a Slurm job id")
    run = find(context.runs_dir, word)
    if run is None and not is_job_id(word):
        raise InputError(f"--after {word}: no such run", fix="hpcrun status lists the runs")
    statuses: Sequence[RunStatus | ForeignStatus]
    if run is None:
        # Slurm takes a job that it does not know for one that has ended well.
        statuses = foreign_status(context, word)
    else:
        statuses = status_of(context, runs_of(run) if isinstance(run, SweepFolder) else [run])
    folder = None
    if len(statuses) == 1 and isinstance(statuses[0], RunStatus) and statuses[0].plan is not None:
        folder = statuses[0].plan.checkpoint_dir
    waiting = [status for status in statuses if not status.verdict.ok]
    if not waiting:
        return Dependency(None, folder)
    for status in waiting:
        if status.verdict.final or status.job_id is None:
            which = f" {status.job_id}" if len(statuses) > 1 and status.job_id else ""
            raise InputError(f"--after {word}: that run{which} is {status.verdict.state}")
        if status.verdict.reason == "DependencyNeverSatisfied":
            raise InputError(
                f"--after {word}: job {status.job_id} will itself never start, since what it waits "
                "for did not end well",
                fix=f"hpcrun cancel {status.job_id}, and name a job that can start",
            )
    job_id = waiting[0].job_id or ""
    # afterok of an array waits for all its tasks, of a heterogeneous job for its leader.
    if len(statuses) > 1:
        job_id = job_id.replace("+", "_").partition("_")[0]
    return Dependency(job_id, folder)
