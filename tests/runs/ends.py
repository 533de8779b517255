"""Why an attempt ended, and whether its run goes on: the rules of templates/survive.sh, in Python.

The simulation goes by them; test_ends.py holds them against the job's own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from hpcrun.runs.ends import IDLE_ATTEMPTS_NOTE, MAX_IDLE_ATTEMPTS

Why = Literal[
    "done", "preempted", "time_limit", "node_fail", "stalled",
    "cancelled", "requeued", "out_of_memory", "stopped", "setup", "error",
]  # fmt: skip

# What Slurm's own state says, whatever the records do.
_BY_STATE: dict[str, Why] = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node_fail",
    "BOOT_FAIL": "node_fail",
    "OUT_OF_MEMORY": "out_of_memory",
    "REQUEUED": "requeued",
}
# Seconds of the first pause before another attempt, after one that was over so soon.
PAUSE, QUICK = 60, 120


def why_ended(
    state: str,
    *,
    preempted: bool = False,
    told: Literal["", "asked", "limit"] = "",
    mark: Literal["", "stalled", "node", "memory"] = "",
    exit_code: int,
    phase: Literal["setup", "ranks"] = "ranks",
) -> Why:
    """Decide why an attempt ended.

    ``state`` is the job's by Slurm at that moment; ``preempted``: Slurm has begun to preempt it.
    ``told``: the processes were asked to end, ``limit`` since the time limit is near. ``mark`` is
    what the run itself found: it stands still, a node of it is bad or gone, or a process was killed
    for the host's memory. ``phase``: how far it came.
    """
    if state in _BY_STATE:
        return _BY_STATE[state]
    if mark == "stalled":
        return "stalled"
    if preempted and (told or exit_code == 143):
        return "preempted"
    if told == "limit":
        return "time_limit"
    if mark == "node":
        return "node_fail"
    if told:
        return "stopped"
    if exit_code == 0:
        return "done"
    if mark == "memory":
        return "out_of_memory"
    return "setup" if phase == "setup" else "error"


def goes_on(
    why: Why,
    when: Collection[str],
    *,
    attempt: int,
    max_attempts: int,
    idle: int,
    failed_in_setup: bool = False,
) -> str:
    """Return "yes", or why a run does not go on after an end that it wants to survive, else "".

    ``attempt`` counts from 0; ``idle`` attempts in a row, this one included, gained nothing.
    What is out of order around the program may be better at the second try.
    """
    if why == "requeued":  # somebody has asked for it
        return "yes"
    if why not in when and not (when and why == "setup" and not failed_in_setup):
        return ""
    if attempt + 1 >= max_attempts:
        return f"it has had its {max_attempts} attempts (survive.max_attempts)"
    if idle >= MAX_IDLE_ATTEMPTS:
        return IDLE_ATTEMPTS_NOTE
    return "yes"


def pause_before(idle: int, seconds: float) -> int:
    """Return the seconds to wait before the next attempt, after one that lasted ``seconds``.

    >>> pause_before(0, 30), pause_before(1, 30), pause_before(3, 30), pause_before(3, 600)
    (0, 60, 240, 0)
    """
    return PAUSE << (idle - 1) if idle and seconds < QUICK else 0
