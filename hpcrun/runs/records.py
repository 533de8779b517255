"""The records of a run and its attempts, as they stand in their files.

Pure.
"""

from __future__ import annotations

from msgspec import Struct, field


class Submitted(Struct, frozen=True, kw_only=True):
    """Who took the run: a Slurm job, or this machine (``job_id`` None, ``hpcrun run``)."""

    job_id: str | None
    cluster: str
    slurm_conf: str | None
    submitted_at: float
    host: str
    user: str


class Task(Struct, frozen=True, kw_only=True):
    """The run is one task of a sweep's array; ``values`` are its own, by the sweep's names."""

    sweep_id: str
    index: int
    values: dict[str, str]


class Sweep(Struct, frozen=True, kw_only=True):
    """An array of so many runs, at most ``limit`` of them at the same time."""

    name: str
    tasks: int
    limit: int


class Cancelled(Struct, frozen=True, kw_only=True):
    """hpcrun asked Slurm to cancel the run."""

    cancelled_at: float
    user: str


class Seen(Struct, frozen=True, kw_only=True):
    """A final state that Slurm told once, of a run with so many attempts: Slurm forgets."""

    state: str
    reason: str
    attempts: int


class Begin(Struct, frozen=True, kw_only=True):
    """An attempt began; times are seconds since the epoch on the node that wrote them."""

    attempt: int
    job_id: str
    host: str
    pid: int
    nodes: str
    begun_at: float


class Failure(Struct, frozen=True, kw_only=True):
    """The process that failed first; ``rank`` None: a launcher failed before any rank did."""

    rank: int | None
    local_rank: int | None = None
    node: int
    host: str
    exit_code: int
    signal: int | None
    at: float


class End(Struct, frozen=True, kw_only=True):
    """An attempt ended; ``stopped_by`` is the signal that asked it to (TERM, INT, HUP)."""

    attempt: int
    job_id: str
    exit_code: int
    signal: int | None
    stopped_by: str | None
    first_failure: Failure | None
    begun_at: float
    ended_at: float


class Attempt(Struct, frozen=True, kw_only=True):
    """One start of the run, as far as its records tell; ``beat`` in epoch seconds."""

    index: int
    begin: Begin | None = None
    beat: float | None = None
    end: End | None = None


class History(Struct, frozen=True, kw_only=True):
    """All that the run folder itself knows of a run."""

    run_id: str
    task: Task | None = None
    submitted: Submitted | None = None
    cancelled: Cancelled | None = None
    seen: Seen | None = None
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None
