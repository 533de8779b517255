"""Cancels a run.

Effects: scancel or a signal, files.
"""

from __future__ import annotations

import getpass
import os
import signal
import socket
import time
from pathlib import Path

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.controller.status import RunStatus, status_of
from hpcrun.errors import InputError
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import Cancelled
from hpcrun.runs.store import write_record


def cancel(context: Context, run: RunFolder) -> RunStatus:
    """Ask for a run's end and return the state that it had before.

    Nothing is done to a run that is over. Raises InputError, SchedulerRefused, OutOfReach.
    """
    status = status_of(context, [run])[0]
    if status.verdict.final:
        return status
    record = Cancelled(cancelled_at=time.time(), user=getpass.getuser())
    submitted, last = status.history.submitted, status.history.last
    if submitted is not None and submitted.job_id is None:
        begin = last.begin if last else None
        if begin is None or submitted.host != socket.gethostname():
            raise InputError(f"{run.run_id}: it runs on {submitted.host}", fix="cancel it there")
        if str(run.path) not in _command_line(begin.pid):
            raise InputError(f"{run.run_id}: its process {begin.pid} is gone")
        write_record(run.cancelled, record)
        os.kill(begin.pid, signal.SIGTERM)
        return status
    if status.job_id is None:
        raise InputError(
            f"{run.run_id}: no Slurm job of it is known", fix="hpcrun status tells when it is"
        )
    conf = submitted.slurm_conf if submitted else None
    scheduler.cancel(slurm_transport(context, conf), status.job_id)
    write_record(run.cancelled, record)
    return status


def _command_line(pid: int) -> str:
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return ""
