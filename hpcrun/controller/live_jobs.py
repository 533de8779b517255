"""Which runs that were seen to be over have a job again: any scontrol requeue revives one."""

from __future__ import annotations

import os
from pathlib import Path

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.errors import OutOfReach
from hpcrun.runs.layout import RunFolder, array_of
from hpcrun.runs.store import read_submitted, read_task
from hpcrun.slurm.states import is_final


class LiveJobs:
    """My jobs that are not over, by the folder that they work in; asked once, when it is needed."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._states: dict[str | None, dict[str, str] | str] = {}

    def reason(self, run: RunFolder) -> tuple[str, bool]:
        """Say why a run may not be over after all, else ""; and whether that is Slurm's silence."""
        submitted = read_submitted(run, read_task(run))
        if submitted is None or submitted.job_id is None:
            return "", False
        conf = submitted.slurm_conf
        if conf is not None and not Path(conf).exists():
            # That Slurm is gone, as a sandbox's; or the run was submitted on another machine.
            is_here = submitted.host == os.uname().nodename
            away = f"{conf}, by which it was submitted, is not on this machine"
            return "" if is_here else away, False
        known = self._of(conf)
        if isinstance(known, str):
            return f"Slurm may run it again, and does not answer: {known}", True
        state = known.get(folder_of_job(run))
        return f"it is {state}" if state else "", False

    def _of(self, conf: str | None) -> dict[str, str] | str:
        if conf not in self._states:
            try:
                rows = scheduler.queue(slurm_transport(self._context, conf), strict=True)
                self._states[conf] = {
                    row.work_dir.rstrip("/").rpartition("/")[2]: row.state
                    for row in rows
                    if not is_final(row.state)
                }
            except OutOfReach as silence:
                self._states[conf] = silence.message
        return self._states[conf]


def folder_of_job(run: RunFolder) -> str:
    """The last part of the job's WorkDir: the run's folder, or that of its sweep."""
    array = array_of(run.run_id)
    return array if array and (run.path.parent / array).is_dir() else run.run_id
