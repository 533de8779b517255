"""The Slurm dependency of a job that is submitted with --after or --after-each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from hpcrun.actions.prepare import Prepared
from hpcrun.actions.search import read_drawn_values
from hpcrun.context import Context
from hpcrun.errors import InputError
from hpcrun.monitor import find_successor_job, find_targets_by_word, status_of, status_of_job
from hpcrun.plan import Dependency
from hpcrun.runs import JobStatus, SearchRecord, SweepFolder, Task, read_record, runs_of
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
        _refuse_never_starting(status, f"--after {word}")
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


def _refuse_never_starting(status: JobStatus, where: str) -> None:
    if status.reason == "DependencyNeverSatisfied":
        raise InputError(
            f"{where}: job {status.job_id} will never start, because a job that it waits for did "
            "not succeed",
            fix=f"hpcrun cancel {status.job_id}, and name a job that can start",
        )


# ---- each run of a sweep after one of another ----------------------------------------------------


class RunBefore(Struct, frozen=True, kw_only=True):
    """A run of a sweep before another sweep, of which each run starts after one of them.

    Attributes:
        values: Its parameters.
        drawn_later: The parameters whose values its job has not drawn yet.
    """

    values: Mapping[str, str]
    drawn_later: frozenset[str] = frozenset()
    checkpoint_dir: str | None
    runs_per_job: int


class SweepBefore(NamedTuple):
    """The sweep that another one follows run by run."""

    name: str
    dependency: Dependency
    runs: dict[int, RunBefore]


def build_each_dependency(context: Context, word: str) -> SweepBefore:
    """Return the sweep after whose runs those of another one start, each after one of them.

    Raises:
        InputError: It is no sweep, or one of its runs has failed.
    """
    target = find_targets_by_word(context, [word])[word]
    if target is None:
        raise InputError(f"--after-each {word}: no such run", fix="hpcrun status lists the runs")
    if not isinstance(target, SweepFolder):
        raise InputError(f"--after-each {word}: not a sweep", fix=f"--after {word}")
    statuses = status_of(context, runs_of(target))
    runs = list_submitted_runs(statuses)
    waiting = [status for status in statuses if not status.ok]
    for status in waiting:
        if status.final or status.job_id is None:
            which = f" {status.job_id}" if status.job_id else ""
            raise InputError(
                f"--after-each {word}: its run{which} is {status.state}",
                fix=f"hpcrun wait {word}, then hpcrun resubmit {word} without --failed, and name "
                "the new sweep",
            )
        _refuse_never_starting(status, f"--after-each {word}")
        if status.history.chained or find_successor_job(status.history):
            raise InputError(
                f"--after-each {word}: a run continues as another job, which Slurm cannot combine "
                "with the other runs of its array",
                fix=f"hpcrun wait {word}, then submit",
            )
    folders = {index: run.checkpoint_dir for index, run in runs.items() if run.checkpoint_dir}
    job_id = array_job_id(waiting[0].job_id or "") if waiting else None
    return SweepBefore(word, Dependency(job_id, None, folders, "aftercorr"), runs)


def list_submitted_runs(statuses: Iterable[JobStatus]) -> dict[int, RunBefore]:
    """List the runs of a submitted sweep by index; none of a single run."""
    found = {}
    for status in statuses:
        history = status.history
        if history.task is not None and history.submitted is not None:
            values, drawn_later = _read_values(status, history.task)
            found[history.task.index] = RunBefore(
                values=values,
                drawn_later=drawn_later,
                checkpoint_dir=status.plan.checkpoint_dir if status.plan is not None else None,
                runs_per_job=history.submitted.runs_per_job,
            )
    return found


def _read_values(status: JobStatus, task: Task) -> tuple[Mapping[str, str], frozenset[str]]:
    """Return the parameters of a run, and those that its job has not drawn yet."""
    search = read_record(status.run.search, SearchRecord) if status.run is not None else None
    if status.run is None or search is None or search.method != "tpe":
        return task.values, frozenset()
    drawn = read_drawn_values(status.run, search)
    return {**task.values, **(drawn or {})}, frozenset(() if drawn else search.space)


def list_prepared_runs(made: Prepared) -> dict[int, RunBefore]:
    """List the runs of a prepared sweep by index; none of a single run."""
    return {
        index: RunBefore(
            values=run.values,
            drawn_later=frozenset(run.plan.trial),
            checkpoint_dir=run.plan.checkpoint_dir,
            runs_per_job=made.spec.sweep_per_node,
        )
        for index, run in enumerate(made.runs)
    }


def check_pairs(
    before: tuple[str, Mapping[int, RunBefore]], after: tuple[str, Prepared], *, fix: str
) -> None:
    """Raise InputError unless each run of a sweep belongs to one run of the sweep before it.

    Args:
        before: The name and the runs of the sweep before it.
        after: The name of the sweep, and its job.
        fix: What to do if one of them is no sweep.
    """
    (one, first), (other, second) = before, (after[0], list_prepared_runs(after[1]))
    where = f"{other}: each run starts after that of {one} with the same number"
    for name, runs in ((one, first), (other, second)):
        if not runs:
            raise InputError(f"{where}, but {name} is not a sweep", fix=fix)
    if first.keys() != second.keys():
        raise InputError(f"{where}, but they have {len(first)} and {len(second)} runs")
    for index, run in second.items():
        if run.runs_per_job != first[index].runs_per_job:
            raise InputError(f"{where}, so that sweep_per_node must be the same in both")
        own = run.drawn_later | run.values.keys()
        for key in sorted(own & (first[index].drawn_later | first[index].values.keys())):
            for name, each in ((one, first[index]), (other, run)):
                if key in each.drawn_later:
                    raise InputError(
                        f"{where}, but the value of {key} is drawn when run {index} of {name} "
                        "starts",
                        fix=f"let only one of the sweeps set {key}",
                    )
            values = first[index].values[key], run.values[key]
            if values[0] != values[1]:
                raise InputError(
                    f"{where}, but run {index} has {key} {values[0]} in {one} and {values[1]} "
                    f"in {other}",
                    fix="give both sweeps the same values in the same order",
                )
