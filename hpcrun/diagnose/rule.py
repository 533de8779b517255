"""What a rule is: a kind of line in a log, what it means, and what to do about it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Class = Literal[
    "oom_gpu", "oom_host", "time_limit", "preempted", "node_fail", "nccl", "rendezvous", "import",
    "missing_file", "code_error", "disk", "shm", "driver", "auth_network", "port", "cancelled",
    "numerics", "other",
]  # fmt: skip
# What to do: change something (the same job fails again), start it again, start it again without
# the node, or look into it.
Verdict = Literal["fix", "requeue", "exclude_node", "ask"]

# How much a line explains. A ROOT names the cause; an ERROR is an exception that no rule knows
# better; a WEAK one is the cause where nothing better is there (a timeout, a cancel); a SYMPTOM
# says that something failed; a HINT alone says nothing.
ROOT, ERROR, WEAK, SYMPTOM, HINT = 4, 3, 2, 1, 0

# Words in a fix that stand for a command with the job's own numbers: diagnose/fixes.py.
_VERDICTS: dict[str, Verdict] = {
    "time_limit": "requeue", "preempted": "requeue", "node_fail": "exclude_node", "nccl": "ask",
    "rendezvous": "ask", "port": "requeue", "cancelled": "ask", "other": "ask",
}  # fmt: skip


class Rule(Struct, frozen=True, kw_only=True):
    """A kind of line.

    ``pattern`` is searched for in a line that has one of ``needles``, without the prefix that a
    launcher put before it and without colours. Its groups ``rank``, ``host``, ``signal`` and
    ``code`` say whose failure it is; others may stand in ``title``, as {name}. ``message`` is what
    a person would search the FAQ for; rules without one are not on that page. ``example`` is a line
    that matches, ``unlike`` one that looks like it and does not.
    """

    id: str
    cls: Class
    kind: int = ROOT
    pattern: str
    needles: tuple[str, ...]
    title: str
    fixes: tuple[str, ...] = ()
    verdict: Verdict | None = None
    message: str = ""
    example: str
    unlike: str
    source: str

    @property
    def advice(self) -> Verdict:
        """The rule's own verdict, or that of its class."""
        return self.verdict or _VERDICTS.get(self.cls, "fix")
