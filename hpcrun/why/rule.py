"""What a rule is: a kind of line in a log, what it means, what to do; and what comes of rules."""

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
# says that something failed; a HINT says nothing: a warning, or what was taken back.
ROOT, ERROR, WEAK, SYMPTOM, HINT = 4, 3, 2, 1, 0

# Of the classes whose verdict is not to change something.
_VERDICTS: dict[str, Verdict] = {
    "time_limit": "requeue", "preempted": "requeue", "node_fail": "exclude_node", "nccl": "ask",
    "rendezvous": "ask", "port": "requeue", "cancelled": "ask", "other": "ask",
}  # fmt: skip


class Rule(Struct, frozen=True, kw_only=True):
    """A kind of line.

    Attributes:
        patterns: Regular expressions, of which one must match in the line. They are tried on lines
            that contain one of ``needles``, after launcher prefixes and colours were removed. The
            groups ``rank``, ``host``, ``signal`` and ``code`` describe the failed process; other
            groups can be used in ``title`` as {name}. A name may occur once only in all patterns:
            append a digit for the next one (path, path2).
        title: One sentence for the user.
        fixes: What to do, the most likely fix first.
        message: What a person would search the FAQ for, alternatives separated by " / ". Rules
            without a message are not listed in the FAQ.
        example: A line that matches.
        unlike: A similar line that does not match.
        source: Where the message comes from.
    """

    id: str
    cls: Class
    kind: int = ROOT
    title: str
    patterns: tuple[str, ...]
    needles: tuple[str, ...]
    fixes: tuple[str, ...] = ()
    verdict: Verdict | None = None
    message: str = ""
    example: str
    unlike: str
    source: str

    @property
    def pattern(self) -> str:
        """All patterns as one regular expression."""
        return "|".join(self.patterns)

    @property
    def advice(self) -> Verdict:
        """The rule's own verdict, or that of its class."""
        return self.verdict or _VERDICTS.get(self.cls, "fix")


class Cause(Struct, frozen=True, kw_only=True):
    """Why a job failed. ``title`` is the sentence; ``file``, ``line`` and ``text`` what shows it.

    ``rank`` and ``host`` are None where they are not known, ``file`` and ``line`` where it is a
    record that shows it.
    """

    id: str
    cls: Class
    title: str
    file: str | None = None
    line: int | None = None
    text: str = ""
    rank: int | None = None
    host: str | None = None

    @property
    def whose(self) -> str:
        """Whose failure it is.

        >>> Cause(id="x", cls="other", title="", rank=3, host="n1").whose
        'rank 3 on n1'
        """
        parts = [f"rank {self.rank}"] if self.rank is not None else []
        return " on ".join([*parts, self.host] if self.host else parts)

    @property
    def without_log(self) -> str:
        """Why it is no more than the records say; "" where a log says more, or a rule."""
        words = {
            "silent": "its log does not say why",
            "no_logs": "its log is not there",
            "forgotten": "Slurm no longer says where its output is",
        }
        return words.get(self.id, "")


class Diagnosis(Struct, frozen=True, kw_only=True):
    """Why a job failed, what else went wrong, and what to do.

    Without a failure all is empty; ``verdict`` "ask" and no cause: it failed, and nothing says why.
    """

    verdict: Verdict | None = None
    cause: Cause | None = None
    also: list[Cause] = []
    fixes: list[str] = []


class Kept(Struct, frozen=True, kw_only=True):
    """The answer that is kept of a run that is over.

    ``stamp``: of which version, state, attempt and logs it is.
    """

    stamp: list[str]
    diagnosis: Diagnosis
