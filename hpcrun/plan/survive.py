"""Automatic restarts: their causes, and how the script is asked to save and to resume."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence

from hpcrun.plan.job import Job
from hpcrun.plan.times import duration_seconds, parse_seconds
from hpcrun.plan.types import SurvivePlan
from hpcrun.spec import EndCause

# The warning of the time limit for the batch script, if the ranks get none. Slurm sends it up to a
# minute early and never late (sbatch.1, --signal); the harness waits for the end itself.
WARNING_S = 60


def build_survive(job: Job) -> SurvivePlan:
    """Decide what the harness does when an attempt ends."""
    asked = job.spec.survive
    when: list[EndCause] = list(dict.fromkeys(asked.when))
    if not when and {**job.cluster.slurm, **job.spec.slurm}.get("requeue") is True:
        when = ["preempted", "node_fail"]  # causes after which Slurm itself requeues a job
    before = duration_seconds(asked.save_before_end) if asked.save_before_end else None
    warned = before
    if "time_limit" in when:
        warned = max(before or 0, WARNING_S)
    _check_time(job, before)
    _check_dir(job)
    stalled_after = duration_seconds(asked.stalled_after) if asked.stalled_after else None
    if stalled_after == 0:
        message = f"{asked.stalled_after}: shorter than any step: remove it, or set a longer time"
        job.found.refuse("survive.stalled_after", message)
    if asked.spare_nodes:
        _check_spare(job, asked.spare_nodes, when)
    return SurvivePlan(
        when=when,
        max_attempts=asked.max_attempts if when else 1,
        warned=warned,
        saves=before is not None,
        signal=asked.signal,
        stalled_after=stalled_after,
        resume=_build_resume_arguments(job),
        resumes=job.spec.checkpoint.dir is not None or bool(job.spec.checkpoint.resume),
        keep=job.spec.checkpoint.keep,
        marker=job.spec.checkpoint.marker,
        spare_nodes=asked.spare_nodes,
    )


def _check_time(job: Job, before: int | None) -> None:
    """Refuse a warning time that covers the whole limit: each attempt would end after one step."""
    field, asked = "survive.save_before_end", job.spec.survive.save_before_end
    time = job.spec.resources.time
    limit = parse_seconds(time) if time else 0.0
    left = limit - (before or 0)
    if before == 0:
        job.found.refuse(field, f"{asked} leaves no time to save: remove it, or set a longer time")
    elif before and before > 0xFFFF:
        job.found.refuse(
            field, f"{asked}: Slurm can signal at most 18h before the end (sbatch --signal)"
        )
    elif before and limit and left <= 0:
        message = f"{asked}, and the time limit is {time} (resources.time): set a shorter one"
        job.found.refuse(field, message)
    elif before and limit and left < 2 * WARNING_S:
        job.found.notes.append(
            f"{field}: {asked} before the time limit of {time} (resources.time), and Slurm may ask "
            "up to a minute early: an attempt trains for "
            f"{max(0, left - WARNING_S):.0f} to {left:.0f}"
            " s, its start included"
        )


def _check_dir(job: Job) -> None:
    """Refuse a checkpoint directory that is probably not the intended one."""
    folder = job.spec.checkpoint.dir
    if folder is None or job.place.checkpoint_dir is not None:
        return  # of a run that has them there
    if folder.startswith("~") or "$" in folder:
        message = f"{folder}: ~ and variables are not expanded here: write an absolute path"
        job.found.refuse("checkpoint.dir", message)
    elif posixpath.normpath(folder).split("/")[0] == "..":
        message = f"{folder} is outside the run's folder, among other runs: write an absolute path"
        job.found.refuse("checkpoint.dir", message)
    elif posixpath.normpath(folder) == ".":
        message = f"{folder!r} is the run's own folder, with its logs: name a subfolder"
        job.found.refuse("checkpoint.dir", message)


def _check_spare(job: Job, spare: int, when: Sequence[EndCause]) -> None:
    """Refuse spare nodes without a use, and note their cost."""
    field, nodes = "survive.spare_nodes", job.spec.resources.most_nodes
    if "node_fail" not in when:
        job.found.refuse(field, "nothing uses them: survive.when needs node_fail")
    if job.place.node_range:
        message = f"{job.place.node_range}: spare nodes (survive.spare_nodes) require "
        job.found.refuse("resources.nodes", message + "a fixed number of nodes")
    if job.place.hosts:
        job.found.refuse(field, "the hosts of a hostfile are not a Slurm job: remove it")
    job.found.notes.append(
        f"{field}: Slurm allocates, and charges for, {nodes + spare} nodes for {nodes}: "
        f"{100 * spare / nodes:.0f} % more GPU hours"
    )


def _build_resume_arguments(job: Job) -> list[str]:
    """Return the arguments that make the program resume; a bare switch finds the checkpoint."""
    text = job.spec.checkpoint.resume
    try:
        words = shlex.split(text)
    except ValueError as error:
        job.found.refuse("checkpoint.resume", f"{text!r}: {error}")
        return []
    known = len(job.found.problems)
    filled = [job.fill(word, "checkpoint.resume") for word in words]
    # Report a misspelt name once.
    are_switches = all(re.fullmatch("--?[A-Za-z][^=]*", word) for word in words)
    is_named = "{resume}" in text or are_switches
    if words and not is_named and len(job.found.problems) == known:
        message = (
            f"{text!r}: {{resume}} is missing, the checkpoint to resume from, "
            'as in "--resume {resume}"'
        )
        job.found.refuse("checkpoint.resume", message)
    return filled
