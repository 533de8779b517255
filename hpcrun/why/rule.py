"""The types of failure rules, causes and diagnoses."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

FailureClass = Literal[
    "oom_gpu",
    "oom_host",
    "time_limit",
    "preempted",
    "node_fail",
    "nccl",
    "rendezvous",
    "import",
    "missing_file",
    "code_error",
    "disk",
    "shm",
    "driver",
    "auth_network",
    "port",
    "cancelled",
    "numerics",
    "other",
]
# What to do: fix the job (it would fail again), submit it again, submit it again without the node,
# or investigate.
Recommendation = Literal["fix", "requeue", "exclude_node", "ask"]

# How much a line explains. ROOT names the cause; ERROR is an exception without a better rule; WEAK
# is the cause if there is no better one (a timeout, a cancel); SYMPTOM reports that something
# failed; HINT explains nothing (a warning).
ROOT, ERROR, WEAK, SYMPTOM, HINT = 4, 3, 2, 1, 0

# The recommendations of classes other than "fix".
_VERDICTS: dict[str, Recommendation] = {
    "time_limit": "requeue",
    "preempted": "requeue",
    "node_fail": "exclude_node",
    "nccl": "ask",
    "rendezvous": "ask",
    "port": "requeue",
    "cancelled": "ask",
    "other": "ask",
}


class FailureRule(Struct, frozen=True, kw_only=True):
    """A kind of line that tells why a program failed.

    Attributes:
        patterns: Regular expressions, of which one must match in the line. They are tried on lines
            that contain one of ``needles``, after launcher prefixes and colours were removed. The
            groups ``rank``, ``host``, ``signal`` and ``code`` describe the failed process; other
            groups can be used in ``title`` as {name}. A name may occur once only in all patterns:
            append a digit for the next one (path, path2).
        title: One sentence for the user.
        frames: If given, one of the innermost frames of the traceback must match.
        fixes: What to do, the most likely fix first.
        message: What a person would search the FAQ for, alternatives separated by " / ". Rules
            without a message are not listed in the FAQ.
        example: A line that matches.
        unlike: A similar line that does not match.
        source: Where the message comes from.
    """

    id: str
    cls: FailureClass
    kind: int = ROOT
    title: str
    patterns: tuple[str, ...]
    needles: tuple[str, ...]
    frames: str = ""
    fixes: tuple[str, ...] = ()
    verdict: Recommendation | None = None
    message: str = ""
    example: str
    unlike: str
    source: str

    @property
    def pattern(self) -> str:
        """All patterns as one regular expression."""
        return "|".join(self.patterns)

    @property
    def advice(self) -> Recommendation:
        """The recommendation of the rule, or that of its class."""
        return self.verdict or _VERDICTS.get(self.cls, "fix")


class Cause(Struct, frozen=True, kw_only=True):
    """Why a job failed.

    Attributes:
        title: One sentence for the user.
        file: The log that shows the cause, None for Slurm's or the job's own records.
        line: Its number in the log, from 1.
        text: The line, or the record.
        rank: The rank that failed, if known.
        host: The host of that rank, if known.
    """

    id: str
    cls: FailureClass
    title: str
    file: str | None = None
    line: int | None = None
    text: str = ""
    rank: int | None = None
    host: str | None = None

    @property
    def whose(self) -> str:
        """Rank and host of the failed process, as far as known.

        >>> Cause(id="x", cls="other", title="", rank=3, host="n1").whose
        'rank 3 on n1'
        """
        parts = [f"rank {self.rank}"] if self.rank is not None else []
        return " on ".join([*parts, self.host] if self.host else parts)

    @property
    def without_log(self) -> str:
        """Why the cause is based on records alone; "" if a log or a rule explains it."""
        words = {
            "silent": "its log does not say why",
            "no_logs": "its log is missing",
            "forgotten": "Slurm no longer knows its output file",
        }
        return words.get(self.id, "")


class Diagnosis(Struct, frozen=True, kw_only=True):
    """Why a job failed, what else went wrong, and what to do.

    All fields are empty if no failure was found. A ``verdict`` without a cause: the job failed, but
    neither logs nor records explain it.
    """

    verdict: Recommendation | None = None
    cause: Cause | None = None
    also: list[Cause] = []
    fixes: list[str] = []


class CachedDiagnosis(Struct, frozen=True, kw_only=True):
    """The diagnosis of a finished run, as stored in its directory.

    ``stamp``: version, state, attempt and sizes of the logs that it was made from.
    """

    stamp: list[str]
    diagnosis: Diagnosis
