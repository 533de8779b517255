"""Waits until runs and other Slurm jobs are over: the first of them, or all.

Effects: reads files, few Slurm commands. Never changes or cancels anything.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Sequence

from msgspec import structs

from hpcrun.controller.context import Context
from hpcrun.controller.state.foreign import ForeignStatus, ask_foreign, unknown_job
from hpcrun.controller.state.status import RunStatus
from hpcrun.controller.targets import Targets
from hpcrun.controller.watch.follow_runs import follow_runs, run_steps
from hpcrun.errors import InputError, OutOfReach
from hpcrun.runs.verdict import Verdict
from hpcrun.slurm.states import UNKNOWN

# Jobs that hpcrun did not submit have no files that would tell of their end: seconds between two
# questions, slower while nothing happens (squeue(1), PERFORMANCE).
FOREIGN_EVERY = (2.0, 4.0, 8.0, 15.0, 30.0)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

Status = RunStatus | ForeignStatus


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
) -> Iterator[Status]:
    """Give the status of each job when its state changes, until all are over or time is up.

    ``timeout`` is in seconds. A requeue is no end; silence of Slurm is UNKNOWN, and waited through.
    Raises InputError for a job that Slurm does not know.
    """
    runs = targets.all_runs()
    if not targets.foreign:
        yield from follow_runs(context, runs, timeout=timeout, sleep=sleep)
    elif not runs:
        yield from follow_foreign(context, targets.foreign, timeout=timeout, sleep=sleep)
    else:
        yield from _in_turns(
            sleep,
            run_steps(context, runs, timeout=timeout),
            foreign_steps(context, targets.foreign, timeout=timeout),
        )


def follow_foreign(
    context: Context,
    job_ids: Sequence[str],
    *,
    timeout: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[ForeignStatus]:
    """Give the status of jobs that hpcrun did not submit as it changes, until they are over.

    All are asked about with one squeue; an array's tasks are given one by one. Raises InputError
    for a job that Slurm does not know from the start.
    """
    for step in foreign_steps(context, job_ids, timeout=timeout):
        if isinstance(step, float):
            sleep(step)
        else:
            yield step


def foreign_steps(
    context: Context, job_ids: Sequence[str], *, timeout: float | None = None
) -> Iterator[ForeignStatus | float]:
    """Give what follow_foreign() gives, and the pauses between: seconds that the caller sleeps."""
    begin = time.monotonic()
    pauses = iter(FOREIGN_EVERY)
    live = list(job_ids)
    shown: dict[str, tuple[str, str]] = {}
    last: dict[str, ForeignStatus] = {}
    first = True
    while live:
        try:
            # Ends that come while we wait show in the queue for long enough.
            told = ask_foreign(context, live, ended=first)
        except OutOfReach as silence:
            told = {job_id: [_silent(last.get(job_id), job_id, silence)] for job_id in live}
        else:
            unknown = [job_id for job_id in live if not told[job_id]]
            if unknown and first:
                raise unknown_job(unknown[0])
            told |= {job_id: [_forgotten(job_id)] for job_id in unknown}
            first = False
        for job_id in list(live):
            for status in told[job_id]:
                last[job_id] = status
                now = (status.verdict.state, status.verdict.reason)
                if shown.get(status.job_id) != now:
                    shown[status.job_id] = now
                    pauses = iter(FOREIGN_EVERY)
                    yield status
            if all(status.verdict.final for status in told[job_id]):
                live.remove(job_id)
        left = None if timeout is None else begin + timeout - time.monotonic()
        if not live or (left is not None and left <= 0):
            return
        pause = next(pauses, FOREIGN_EVERY[-1]) * random.uniform(0.9, 1.1)
        yield pause if left is None else min(pause, left)


def _silent(last: ForeignStatus | None, job_id: str, silence: OutOfReach) -> ForeignStatus:
    verdict = Verdict(state=UNKNOWN, final=False, source="squeue", reason=silence.message)
    if last is not None:
        return structs.replace(last, verdict=verdict)
    return ForeignStatus(job_id=job_id, verdict=verdict, queue=None, account=None)


def _forgotten(job_id: str) -> ForeignStatus:
    """Slurm knew the job a while ago: without accounting nobody can tell any more how it ended."""
    verdict = Verdict(
        state="LOST",
        final=True,
        source="squeue",
        reason="Slurm has forgotten the job, and has no accounting of it",
    )
    return ForeignStatus(job_id=job_id, verdict=verdict, queue=None, account=None)


def _in_turns(
    sleep: Callable[[float], None], *followed: Iterator[Status | float]
) -> Iterator[Status]:
    """Give what several iterators give: while one pauses, the others have their turn."""
    due = dict.fromkeys(followed, 0.0)
    while due:
        one = min(due, key=lambda each: due[each])
        if (early := due[one] - time.monotonic()) > 0:
            sleep(early)
        step = next(one, None)
        if step is None:
            del due[one]
        elif isinstance(step, float):
            due[one] = time.monotonic() + step
        else:
            yield step
