"""What a verb did about each of the jobs that were named: cancelled, started again, or left."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from msgspec import Struct

from hpcrun.assets import name_of_user
from hpcrun.controller.context import Context
from hpcrun.controller.external import status_of_jobs
from hpcrun.controller.status import status_of
from hpcrun.controller.targets import Targets, unknown_job
from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.runs.status import JobStatus
from hpcrun.signals import signals_wait
from hpcrun.slurm.states import UNKNOWN


class Outcome(Struct, frozen=True, kw_only=True):
    """What was done about one job: ``state`` is the one before.

    ``left`` is why it was left alone, ``over``: since it is over already; ``error`` is what went
    wrong.
    """

    run_id: str | None
    job_id: str | None
    state: str
    over: bool = False
    done: bool = False
    left: str = ""
    error: HpcrunError | None = None

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        return f"job {self.job_id}" if self.job_id else self.run_id or ""


class Job(Struct, kw_only=True):
    """A job that is named by ``word``, and what was done about it."""

    word: str
    status: JobStatus
    outcome: Outcome


def act_on(
    context: Context,
    targets: Targets,
    look: Callable[[JobStatus], Outcome],
    act: Callable[[str | None, Sequence[Job]], None],
    *,
    done: str,
    at_once: int,
) -> list[Outcome]:
    """Look at all that is named; act on what is left of it, with the jobs of one Slurm together.

    ``act`` takes a slurm.conf and ``at_once`` jobs at most, sets their outcomes, and is not
    interrupted by Ctrl-C, which then says what is ``done``. Raises OutOfReach where nothing at all
    could be done.
    """
    known, unknown = _find_known(context, targets)
    jobs = [Job(word=word, status=one, outcome=look(one)) for word, one in known]
    wanted: dict[str | None, list[Job]] = {}
    for job in jobs:
        first = job.outcome
        if not (first.over or first.left or first.error):
            wanted.setdefault(job.status.slurm_conf, []).append(job)
    try:
        for conf, due in wanted.items():
            for start in range(0, len(due), at_once):
                with signals_wait():
                    act(conf, due[start : start + at_once])
    except KeyboardInterrupt as pressed:
        names = [job.outcome.name for job in jobs if job.outcome.done]
        if not names:
            raise
        rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise KeyboardInterrupt(
            f"Slurm had the order already: {', '.join(names[:5])}{rest}: {done} anyway"
        ) from pressed
    return [job.outcome for job in jobs] + unknown


def states_of(context: Context, targets: Targets) -> dict[str | None, str]:
    """Ask again for the states of all that is named, by job id; none where Slurm is silent."""
    try:
        known, _ = _find_known(context, targets)
    except OutOfReach:
        return {}
    return {one.job_id: one.verdict.state for _, one in known}


def _find_known(
    context: Context, targets: Targets
) -> tuple[list[tuple[str, JobStatus]], list[Outcome]]:
    """Ask about all that is named: runs by their ids, other jobs by the words that name them.

    Returns also those that nobody knows. Raises OutOfReach.
    """
    runs = targets.all_runs()
    statuses = status_of(context, runs) if runs else []
    known = [(status.job_id or "", status) for status in statuses]
    unknown: list[Outcome] = []
    for word, found in status_of_jobs(context, targets.jobs).items():
        known += [(word, status) for status in found]
        if not found:
            error = unknown_job(word)
            unknown.append(Outcome(run_id=None, job_id=word, state=UNKNOWN, error=error))
    return known, unknown


def outcome_of(status: JobStatus) -> Outcome:
    """How a job stands before anything was done about it."""
    return Outcome(
        run_id=status.run.run_id if status.run is not None else None,
        job_id=status.job_id,
        state=status.state,
        over=status.final,
    )


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
