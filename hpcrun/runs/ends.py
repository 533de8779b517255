"""Why an attempt ended, and whether its run goes on: tables that templates/survive.sh has, too.

Also what the job itself finds out: that it does not move on (watch.sh), odd nodes (preflight.sh).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from msgspec import Struct

from hpcrun.files import open_plain

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
# The state that a verdict has for an end that Slurm shows as COMPLETED or FAILED.
STATES: dict[str, str] = {
    "preempted": "PREEMPTED",
    "time_limit": "TIMEOUT",
    "node_fail": "NODE_FAIL",
    "cancelled": "CANCELLED",
    "out_of_memory": "OUT_OF_MEMORY",
}
# What ended an attempt, for people; an end that is in none of these is told by its exit code.
WORDS: dict[str, str] = {
    "preempted": "preemption",
    "time_limit": "the time limit",
    "node_fail": "a failed node",
    "stalled": "a standstill",
    "cancelled": "a cancel",
    "requeued": "a requeue",
    "out_of_memory": "lack of memory",
    "stopped": "a request to stop",
    "setup": "an error in its setup",
}
# Those that a run may go on after, as a job names them.
ENDURED = ("preempted", "time_limit", "node_fail", "stalled")
# Attempts in a row that save nothing new before a run is given up, and its first pause in seconds.
IDLE, PAUSE, QUICK = 3, 60, 120
IDLE_NOTE = "three attempts in a row saved nothing new: the next would not either"


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

    ``attempt`` counts from 0; ``idle`` attempts in a row, this one included, saved nothing newer
    than what was there. What is out of order around the program may be better at the second try.
    """
    if why == "requeued":  # somebody has asked for it
        return "yes"
    if why not in when and not (when and why == "setup" and not failed_in_setup):
        return ""
    if attempt + 1 >= max_attempts:
        return f"it has had its {max_attempts} attempts (survive.max_attempts)"
    if idle >= IDLE:
        return IDLE_NOTE
    return "yes"


def pause_before(idle: int, seconds: float) -> int:
    """Return the seconds to wait before the next attempt, after one that lasted ``seconds``.

    >>> pause_before(0, 30), pause_before(1, 30), pause_before(3, 30), pause_before(3, 600)
    (0, 60, 240, 0)
    """
    return PAUSE << (idle - 1) if idle and seconds < QUICK else 0


# ---- what the job itself finds out

_NODES, _BYTES = 1000, 4096  # that are read of one attempt, and of one node


def read_warnings(attempt: Path) -> list[str]:
    """Read what was odd about the nodes of an attempt: a file for each, a line for each warning."""
    found: dict[str, None] = {}
    try:
        names = sorted(os.listdir(attempt / "warnings"))  # noqa: PTH208 - most have none
    except OSError:
        return []
    for name in names[:_NODES]:
        with contextlib.suppress(OSError), open_plain(attempt / "warnings" / name) as file:
            lines = file.read(_BYTES).decode("utf-8", "replace").split("\n")
            found |= dict.fromkeys(f"{name}: {line}" for line in lines if line)
    return list(found)


class Suspect(Struct, frozen=True, kw_only=True):
    """The rank that the others seem to wait for; ``why``: where it is, and where they are."""

    rank: int
    node: int | None = None
    host: str | None = None
    why: str


class Collective(Struct, frozen=True, kw_only=True):
    """What the other ranks wait in; ``seq`` is its number in its process group, where known."""

    name: str
    seq: int | None = None


class Stall(Struct, frozen=True, kw_only=True):
    """An attempt has not moved on since ``since``; this was written ``silent_seconds`` later.

    ``threshold``: after how many seconds it is noticed. ``ranks`` are those that are elsewhere than
    the rest, ``suspect`` the first of them. ``stacks`` are files, below the attempt's folder.
    """

    since: float
    silent_seconds: float
    threshold: float
    step: int | None = None
    ranks: list[int] = []
    suspect: Suspect | None = None
    collective: Collective | None = None
    stacks: list[str] = []
