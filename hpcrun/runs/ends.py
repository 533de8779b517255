"""Records that a job writes about itself: the reason of its end, stalls, and node warnings."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from msgspec import Struct

from hpcrun.files import open_plain

# The verdict's state by the recorded reason of an end, which Slurm reports as COMPLETED or FAILED.
END_STATES: dict[str, str] = {
    "preempted": "PREEMPTED",
    "time_limit": "TIMEOUT",
    "node_fail": "NODE_FAIL",
    "cancelled": "CANCELLED",
    "out_of_memory": "OUT_OF_MEMORY",
    "pruned": "PRUNED",
}
# Descriptions of the ends of attempts for people; any other end is described by its exit code.
END_NAMES: dict[str, str] = {
    "preempted": "preemption",
    "time_limit": "the time limit",
    "node_fail": "a failed node",
    "stalled": "a standstill",
    "cancelled": "a cancel",
    "requeued": "a requeue",
    "out_of_memory": "lack of memory",
    "stopped": "a request to stop",
    "pruned": "pruning",
    "setup": "an error in its setup",
}
# Ends after which a run may restart, as named by ``survive.when``.
SURVIVABLE_ENDS = ("preempted", "time_limit", "node_fail", "stalled")

# ---- warnings and stalls

_NODES, _BYTES = 1000, 4096  # limits: nodes of one attempt, and bytes of one node


def read_warnings(attempt: Path) -> list[str]:
    """Read the node warnings of an attempt, written by preflight.sh in a file per node."""
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


def read_ended_nodes(attempt: Path) -> list[int]:
    """Read on which nodes the command of a job without a launcher has succeeded."""
    try:
        names = os.listdir(attempt / "ended")  # noqa: PTH208 - most have none
    except OSError:
        return []
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"node-[0-9]{1,6}", name))


class Suspect(Struct, frozen=True, kw_only=True):
    """The rank for which the other ranks seem to wait.

    Attributes:
        why: The position of this rank and of the other ranks.
    """

    rank: int
    node: int | None = None
    host: str | None = None
    why: str


class Collective(Struct, frozen=True, kw_only=True):
    """The collective in which the other ranks wait.

    Attributes:
        seq: Its sequence number in its process group, if known.
    """

    name: str
    seq: int | None = None


class Stall(Struct, frozen=True, kw_only=True):
    """A period in which an attempt made no progress.

    Attributes:
        since: When the progress stopped.
        silent_seconds: The time from ``since`` until this record was written.
        threshold: The number of seconds after which a stall is detected.
        ranks: The ranks whose position differs from that of most ranks.
        suspect: The first of these ranks.
        stacks: Stack files, relative to the attempt's directory.
    """

    since: float
    silent_seconds: float
    threshold: float
    step: int | None = None
    ranks: list[int] = []
    suspect: Suspect | None = None
    collective: Collective | None = None
    stacks: list[str] = []
