"""Waits until runs and other Slurm jobs are over: the first of them, or all.

Never changes or cancels anything.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

from hpcrun.controller.context import Context
from hpcrun.controller.monitor import Monitor, poll_all
from hpcrun.controller.targets import Targets
from hpcrun.errors import InputError
from hpcrun.runs.status import JobStatus

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """Read a time as timeout(1) has it: 90, 90s, 15m, 2.5h, 1d, 1h30m. Raises InputError.

    >>> seconds("90"), seconds("1h30m"), seconds("0.5m")
    (90.0, 5400.0, 30.0)
    """
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InputError(f"{text}: no time", fix="seconds, or as in 15m, 2h, 1h30m, 1d")
    if len(parts) > 1 and any(not unit for _, unit in parts):
        raise InputError(f"{text}: which unit?", fix="as in 15m, 2h, 1h30m, 1d")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def wait_for(
    context: Context,
    targets: Targets,
    *,
    timeout: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[JobStatus]:
    """Yield the status of each job when its state changes, until all are over or time is up.

    ``timeout`` is in seconds; a question to Slurm is cut off with it. A requeue is no end; silence
    of Slurm is UNKNOWN, and waited through. Raises InputError for a job that Slurm does not know.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    monitor = Monitor(context, targets.all_runs(), targets.jobs, deadline=deadline)
    return poll_all([monitor], deadline=deadline, sleep=sleep)
