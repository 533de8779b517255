"""What a verb did about each of the jobs that were named: cancelled, started again, or left."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from msgspec import Struct

from hpcrun.assets import name_of_user
from hpcrun.controller.context import Context
from hpcrun.controller.status import status_of, status_of_jobs
from hpcrun.controller.targets import Targets, unknown_job
from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.runs.status import JobStatus
from hpcrun.runs.verdict import Verdict
from hpcrun.signals import signals_wait
from hpcrun.slurm.states import UNKNOWN


class Outcome(Struct, kw_only=True):
    """What was done about a job that is named by ``word``; ``status`` is the one before.

    ``left`` is why it was left alone, ``over``: since it is over already; ``error`` is what went
    wrong.
    """

    word: str
    status: JobStatus
    over: bool = False
    done: bool = False
    left: str = ""
    error: HpcrunError | None = None

    @property
    def run_id(self) -> str | None:
        """The run's id; None for a job that hpcrun did not submit."""
        return self.status.run.run_id if self.status.run is not None else None


def act_on(
    context: Context,
    targets: Targets,
    look: Callable[[Outcome], None],
    act: Callable[[str | None, Sequence[Outcome]], None],
    *,
    done: str,
    at_once: int,
) -> list[Outcome]:
    """Look at all that is named; act on what is left of it, with the jobs of one Slurm together.

    ``look`` sets why a job is not to be acted on. ``act`` takes a slurm.conf and ``at_once`` jobs
    at most, sets what became of them, and is not interrupted by Ctrl-C, which then says what is
    ``done``. Raises OutOfReach where nothing at all could be done.
    """
    jobs = _find_all(context, targets)
    wanted: dict[str | None, list[Outcome]] = {}
    for job in jobs:
        if job.error is None:
            look(job)
        if not (job.over or job.left or job.error):
            wanted.setdefault(job.status.slurm_conf, []).append(job)
    try:
        for conf, due in wanted.items():
            for start in range(0, len(due), at_once):
                with signals_wait():
                    act(conf, due[start : start + at_once])
    except KeyboardInterrupt as pressed:
        names = [job.status.label for job in jobs if job.done]
        if not names:
            raise
        rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise KeyboardInterrupt(
            f"Slurm had the order already: {', '.join(names[:5])}{rest}: {done} anyway"
        ) from pressed
    return jobs


def states_of(context: Context, targets: Targets) -> dict[str | None, str]:
    """Ask again for the states of all that is named, by job id; none where Slurm is silent."""
    try:
        return {job.status.job_id: job.status.state for job in _find_all(context, targets)}
    except OutOfReach:
        return {}


def _find_all(context: Context, targets: Targets) -> list[Outcome]:
    """Ask about all that is named: runs by their ids, other jobs by the words that name them.

    Those that nobody knows come last. Raises OutOfReach.
    """
    runs = targets.all_runs()
    statuses = status_of(context, runs) if runs else []
    known = [Outcome(word=status.job_id or "", status=status) for status in statuses]
    unknown: list[Outcome] = []
    for word, found in status_of_jobs(context, targets.jobs).items():
        known += [Outcome(word=word, status=status) for status in found]
        if not found:
            status = JobStatus.of_job(word, Verdict(state=UNKNOWN))
            unknown.append(Outcome(word=word, status=status, error=unknown_job(word)))
    return known + unknown


def not_mine(status: JobStatus, fix: str) -> InputError | None:
    """Say whose job it is, if not the caller's; the word OWNER in ``fix`` becomes the name."""
    owner = status.job.user if status.job else ""
    if status.run is not None:
        try:
            owner = name_of_user(status.run.path.stat().st_uid)
        except OSError:  # the folder is gone
            owner = ""
    if owner in ("", user_name()):
        return None
    return InputError(f"{status.label} is {owner}'s", fix=fix.replace("OWNER", owner))


def user_name() -> str:
    """The name of this process's user."""
    return name_of_user(os.getuid())
