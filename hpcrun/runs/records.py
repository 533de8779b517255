"""The records of a run and its attempts, as they stand in their files."""

# Annotations are not postponed: msgspec would evaluate the text of each, at every call of hpcrun.
from msgspec import Struct, field

from hpcrun.runs.layout import ARRAY, created_at


class Submitted(Struct, frozen=True, kw_only=True):
    """What the run was submitted as: a Slurm job, or ``hpcrun run`` here (``job_id`` None).

    What a listing needs of the plan stands here too, so that it opens one file less; None in the
    records of older versions, and where the runs of a sweep may differ. ``run_id`` is what was
    submitted, a run or a sweep; a copy of its folder has another name, and no job of its own.
    """

    job_id: str | None
    run_id: str | None = None
    cluster: str
    slurm_conf: str | None
    submitted_at: float
    host: str
    user: str
    name: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    log_patterns: list[str] = []


class Task(Struct, frozen=True, kw_only=True):
    """The run is one task of a sweep's array; ``values`` are its own, by the sweep's names."""

    sweep_id: str
    index: int
    values: dict[str, str]


class Sweep(Struct, frozen=True, kw_only=True):
    """An array of ``tasks`` runs, at most ``limit`` of them at the same time."""

    name: str
    tasks: int
    limit: int


class Cancelled(Struct, frozen=True, kw_only=True):
    """hpcrun asked Slurm to cancel the run."""

    cancelled_at: float
    user: str


class Resubmitted(Struct, frozen=True, kw_only=True):
    """The run was made of an earlier one; ``checkpoint_dir`` is the earlier one's, or None where
    the run keeps its own. ``code``: which code it has, then (the earlier run's) or now.
    """

    run_id: str
    run_dir: str
    job_id: str | None
    code: str
    checkpoint_dir: str | None


class Successor(Struct, frozen=True, kw_only=True):
    """A later run uses the checkpoints in this run's folder; ``reads``: and writes its own."""

    run_dir: str
    reads: bool = False


class SeenRow(Struct, frozen=True, kw_only=True):
    """What a listing shows of a run that is over; ``stamp`` is its attempts' folder's mtime_ns.

    ``run_id``: whose row it is, which another folder may have a copy of.

    Times are in seconds: ``ended_at`` since the epoch, ``elapsed`` of the last attempt.
    ``gpu_seconds`` are of all attempts. None: not known.
    """

    stamp: int
    job_id: str | None
    slurm_conf: str | None
    name: str | None
    nodes: int | None
    gpus_per_node: int | None
    submitted_at: float | None
    ended_at: float | None
    elapsed: float | None
    gpu_seconds: float | None
    exit_code: int | None
    remark: str
    step: int | None
    loss: float | None
    sweep_id: str | None = None
    values: dict[str, str] = {}
    run_id: str | None = None
    log: str | None = None


class Seen(Struct, frozen=True, kw_only=True):
    """A final state that Slurm reported for a run with this many attempts: Slurm forgets jobs.

    ``by_record``: it is from the run's own records, long after the end, and not from Slurm.
    """

    state: str
    reason: str
    attempts: int
    by_record: bool = False
    row: SeenRow | None = None


class TaskEnd(Struct, frozen=True, kw_only=True):
    """How a run of a sweep ended; ``stamp`` is its attempts' folder's mtime_ns then.

    ``by_record``: it is from the run's own records; Slurm may still report another.
    """

    state: str
    stamp: int
    by_record: bool = False


class SweepSeen(Struct, frozen=True, kw_only=True):
    """The runs of a sweep that are over, by the numbers of their tasks.

    ``ended_at`` is when all were first seen to be over, in seconds since the epoch; None: not yet.
    """

    ends: dict[str, TaskEnd]
    ended_at: float | None = None


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
    """One start of the run, as far as its records show; ``beat`` in epoch seconds."""

    index: int
    begin: Begin | None = None
    beat: float | None = None
    end: End | None = None

    def seconds(self, now: float | None = None) -> float | None:
        """How long it ran: to its end, until ``now``, or to its last sign of life."""
        if self.end is not None:
            return max(0.0, self.end.ended_at - self.end.begun_at)
        until = self.beat if now is None else now
        if self.begin is None or until is None:
            return None
        return max(0.0, until - self.begin.begun_at)


class History(Struct, frozen=True, kw_only=True):
    """All records of a run in its folder."""

    run_id: str
    task: Task | None = None
    submitted: Submitted | None = None
    cancelled: Cancelled | None = None
    seen: Seen | None = None
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def copy_of(self) -> str | None:
        """The run whose folder this one was copied from; None for all others."""
        made_as = self.submitted.run_id if self.submitted is not None else None
        return made_as if made_as != self.run_id else None

    @property
    def job_id(self) -> str | None:
        """The Slurm id: as sbatch printed it, else as the job itself recorded it."""
        if self.submitted is not None:
            return self.submitted.job_id
        begin = self.last.begin if self.last is not None else None
        return (begin.job_id or None) if begin is not None else None

    @property
    def is_local(self) -> bool:
        """Whether it is a run of this machine, without Slurm."""
        return self.submitted is not None and self.submitted.job_id is None

    @property
    def tag(self) -> str:
        """The last part of the job's WorkDir: the run's folder, or that of its sweep."""
        return self.run_id if self.task is None else f"{self.task.sweep_id}{ARRAY}"

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def end(self) -> End | None:
        """The end of the last attempt, if it has one."""
        return self.last.end if self.last is not None else None

    @property
    def last_sign(self) -> float:
        """When the run last gave a sign: its beat, begin or submission, or its folder's id."""
        last = self.last
        if last is not None and last.beat is not None:
            return last.beat
        if last is not None and last.begin is not None:
            return last.begin.begun_at
        if self.submitted is not None:
            return self.submitted.submitted_at
        try:
            return created_at(self.run_id)
        except ValueError:  # a folder that is only named like a run's
            return 0.0
