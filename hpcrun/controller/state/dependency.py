"""Finds the Slurm job that another one is to wait for.

Effects: Slurm commands, reads files.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcrun.controller.context import Context
from hpcrun.controller.state.foreign import ForeignStatus, foreign_status
from hpcrun.controller.state.status import RunStatus, status_of
from hpcrun.errors import InputError
from hpcrun.runs.layout import SweepFolder
from hpcrun.runs.store import find, is_job_id, runs_of


def dependency_on(context: Context, word: str) -> str | None:
    """The Slurm id of the job that must end well first; None when it has done so already.

    Raises InputError for a run that will never end well.
    """
    if not word:
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
    waiting = [status for status in statuses if not status.verdict.ok]
    if not waiting:
        return None
    for status in waiting:
        if status.verdict.final or status.job_id is None:
            which = f" {status.job_id}" if len(statuses) > 1 and status.job_id else ""
            raise InputError(f"--after {word}: that run{which} is {status.verdict.state}")
    job_id = waiting[0].job_id or ""
    # afterok of an array waits for all its tasks, of a heterogeneous job for its leader.
    return job_id.replace("+", "_").partition("_")[0] if len(statuses) > 1 else job_id
