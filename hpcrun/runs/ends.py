"""What a job notes of itself: why it ended, stalls, odd nodes (preflight.sh)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from msgspec import Struct

from hpcrun.files import open_plain

# The state that a verdict has for an end that Slurm shows as COMPLETED or FAILED.
END_STATES: dict[str, str] = {
    "preempted": "PREEMPTED",
    "time_limit": "TIMEOUT",
    "node_fail": "NODE_FAIL",
    "cancelled": "CANCELLED",
    "out_of_memory": "OUT_OF_MEMORY",
}
# What ended an attempt, for people; an end that is in none of these is told by its exit code.
END_NAMES: dict[str, str] = {
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
SURVIVABLE_ENDS = ("preempted", "time_limit", "node_fail", "stalled")

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
