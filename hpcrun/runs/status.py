"""A job as hpcrun knows it: Slurm's answer, the records of its run, and the verdict on both."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

from hpcrun.plan import Plan
from hpcrun.runs.ends import Stall
from hpcrun.runs.layout import RunFolder, SweepFolder
from hpcrun.runs.records import Attempt, End, History
from hpcrun.runs.verdict import Verdict
from hpcrun.slurm import WAITING, JobAccounting, SlurmJob, expand_known_hosts

if TYPE_CHECKING:
    from hpcrun.why import Diagnosis

Scope = Literal["job", "node"]


class Progress(Struct, frozen=True, kw_only=True):
    """How far a job has come, by its log; None: not known.

    ``metric`` is the one that ``value`` and ``recent`` are of: "loss", where there is one.
    ``steps`` are those of ``recent``. ``log`` is the file that was read. ``rate`` is in ``unit``:
    tokens_per_second, samples_per_second or steps_per_second.
    """

    step: int | None = None
    metric: str | None = None
    value: float | None = None
    log: Path | None = None
    total_steps: int | None = None
    recent: list[float] = []
    steps: list[int | None] = []
    rate: float | None = None
    unit: str | None = None
    seconds_left: float | None = None


class GpuUse(Struct, frozen=True, kw_only=True):
    """A GPU as its driver reports it; None: the driver does not.

    ``utilization``: percent of the last moment in which a kernel ran; memory in bytes.
    """

    index: int
    utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None


class NodeUse(Struct, frozen=True, kw_only=True):
    """How busy a node is; None: not known (yet).

    ``cpus_busy`` of ``cpus`` were at work since the last look. ``cpu_of``, ``memory_of``: whether
    this is the job's own use or that of all that runs on the node. Memory in bytes, without what
    is only kept of files.
    """

    node: str
    cpus: int | None = None
    cpus_busy: float | None = None
    cpu_of: Scope | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    memory_of: Scope | None = None
    gpus: tuple[GpuUse, ...] = ()


class WhyWaiting(Struct, frozen=True):
    """Why a job waits. ``start`` is when Slurm expects it to start, as it writes it, or None.

    ``ahead`` counts the jobs of its partition that go first, where that was asked; ``expected`` is
    the start as people write it.
    """

    text: str
    fix: str = ""
    start: str | None = None
    ahead: int | None = None
    expected: str = ""

    def line(self, *, with_fix: bool = True) -> str:
        parts = [self.text] + ([self.expected] if self.expected else [])
        return "; ".join(parts) + (f" ({self.fix})" if self.fix and with_fix else "")


class Cost(Struct, frozen=True, kw_only=True):
    """What the attempts of a run have cost, in GPU hours; in node hours without GPUs.

    ``hours`` are of all attempts; of these ``replayed`` went into steps that were done again,
    ``replayed_steps`` of them, ``restarting`` into starting again, to the first step of each
    attempt but the first, and ``stalled`` passed without a step at the end of an attempt.
    ``waited`` seconds passed between them. None: not known.
    """

    hours: float
    replayed: float | None = field(default=None, name="replayed_hours")
    replayed_steps: int | None = None
    stalled: float = field(default=0.0, name="stalled_hours")
    restarting: float = field(default=0.0, name="restart_hours")
    waited: float = field(default=0.0, name="waited_seconds")

    @property
    def goodput(self) -> float | None:
        """The share (0 to 1) of the hours in which the run moved on; None: not known."""
        if not self.hours or self.replayed is None:
            return None
        return max(0.0, 1 - (self.replayed + self.stalled + self.restarting) / self.hours)


def count_nodes(attempt: Attempt, spare: int = 0) -> int:
    """Count the nodes of an attempt: with a range of them each may have another number."""
    known = expand_known_hosts(attempt.begin.nodes) if attempt.begin is not None else []
    return (len(known) or 1) + spare


def _compute_startup(attempt: Attempt, seconds: float) -> float:
    """How many of the ``seconds`` that an attempt ran went by before its first step was seen."""
    if attempt.moved is None or attempt.begin is None:
        return seconds
    return min(max(0.0, attempt.moved - attempt.begin.begun_at), seconds)


def _compute_stall(attempt: Attempt) -> float:
    """How many seconds an attempt has not moved on at its end, by the clock of its first node."""
    stall, end = attempt.stall, attempt.end
    # One that moved on and ended well before that was noticed has not.
    if stall is None or (end is not None and end.exit_code == 0):
        return 0.0
    until = end.ended_at if end is not None else attempt.beat or 0.0
    return max(stall.silent_seconds, until - stall.since)


def _slurm_elapsed(history: History, job: SlurmJob | None = None) -> float | None:
    """The seconds that Slurm counts of the last attempt, with what came after the end of its
    record; None: not known, or they are not those of this attempt alone."""
    attempts, seen = history.attempts, history.seen
    before = attempts[-2].end if len(attempts) > 1 else None
    if history.shares_job or (before is not None and before.next == "relaunch"):
        return None
    if job is not None:
        return None if job.state in WAITING else job.elapsed_seconds
    return seen.elapsed if seen is not None and seen.attempts == len(attempts) else None


def compute_elapsed(history: History, job: SlurmJob | None = None) -> float | None:
    """The seconds of the last attempt of a run that is over; None: not known."""
    own = history.last.seconds() if history.last is not None else None
    return max(filter(None, (own, _slurm_elapsed(history, job))), default=own)


def compute_cost(
    attempts: Sequence[Attempt],
    gpus_per_node: int,
    now: float | None,
    spare: int = 0,
    elapsed: float | None = None,
) -> Cost:
    """Add up what attempts have cost in GPU hours (0 GPUs: in those of nodes).

    ``now`` is None after the end. The ``spare`` nodes are billed, too. ``elapsed`` are the seconds
    of the last attempt, where more is known of them than its records have.

    An attempt's steps are taken to have lasted equally long. One that shows no step has only
    started, where another shows some: there are logs without numbers of steps. So has one whose
    first step the job did not see any more, where it saw that of another.
    """
    held = restarting = replayed = stalled = waited = 0.0
    again, reached = 0, None
    is_known = any(attempt.first_step is not None for attempt in attempts)
    is_seen = any(attempt.moved is not None for attempt in attempts)
    for attempt in attempts:
        is_last = attempt is attempts[-1]
        seconds = attempt.seconds(now if is_last else None) or 0.0
        seconds = elapsed if is_last and elapsed is not None else seconds
        hours = count_nodes(attempt, spare) * (gpus_per_node or 1) / 3600
        held += seconds * hours
        first, last = attempt.first_step, attempt.last_step
        starting = 0.0 if first is not None and not is_seen else _compute_startup(attempt, seconds)
        is_known = is_known and not (first is None and attempt.moved is not None)
        restarting += starting * hours if attempt is not attempts[0] else 0.0
        still = min(_compute_stall(attempt), seconds - starting)
        stalled += still * hours
        if first is None or last is None:
            continue
        if reached is not None and first <= reached:
            steps = min(last, reached) - first + 1
            again += steps
            replayed += (seconds - starting - still) * hours * steps / (last - first + 1)
        reached = max(last, -1 if reached is None else reached)
    for before, after in pairwise(attempts):
        if before.end is not None and after.begin is not None:
            waited += max(0.0, after.begin.begun_at - before.end.ended_at)
    end = attempts[-1].end
    if end is not None and end.next is not None and now is not None:
        waited += max(0.0, now - end.ended_at)
    return Cost(
        hours=held,
        replayed=replayed if is_known else None,
        replayed_steps=again if is_known else None,
        stalled=stalled,
        restarting=restarting,
        waited=waited,
    )


class ResourceUsage(Struct, frozen=True, kw_only=True):
    """What a job that is over has used; None: not known.

    Memory in bytes: the host's of all nodes together (``memory_used``: the peak that Slurm's
    samples show), the GPU's of the one that had most, by the log or by one of ``top``'s ``looks``.
    Shares are 0 to 1: of the CPUs' time, of the GPUs' as ``top`` saw it, and of the time of all
    attempts that went into steps which lasted.
    """

    memory_asked: int | None = field(default=None, name="memory_asked_bytes")
    memory_used: int | None = field(default=None, name="memory_used_bytes")
    cpus: int | None = None
    cpu_share: float | None = None
    gpu_memory: int | None = field(default=None, name="gpu_memory_bytes")
    gpu_memory_total: int | None = field(default=None, name="gpu_memory_total_bytes")
    gpu_share: float | None = None
    looks: int = field(default=0, name="gpu_looks")
    trained_share: float | None = None


class JobStatus(Struct, frozen=True, kw_only=True):
    """A run or another Slurm job at one moment; a listing has one for a whole sweep, too.

    ``state`` is Slurm's (PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT, OUT_OF_MEMORY
    ...), LOST (it died without a trace), NOT_SUBMITTED (Slurm never took it) or UNKNOWN (ask again
    later: Slurm does not answer). ``final``: it will not change any more.

    ``run`` is None for a job that hpcrun did not submit, ``job`` where Slurm shows it no more.
    Times are in seconds: ``submitted_at`` since the epoch, ``elapsed`` of the last attempt,
    ``limit`` the job's; ``gpu_hours`` are of all attempts, ``cost`` is that of several. ``values``
    are those of a run of a sweep, ``states`` counts the runs of a whole sweep by their states.
    ``uses`` are those of the nodes, while somebody watches them; ``why_no_use``: why they are not
    known. ``out_of_reach``: why Slurm gave no answer; "" where it gave one. None: not known, or
    there is none.
    """

    verdict: Verdict
    history: History
    job_id: str | None = None
    run: RunFolder | None = None
    sweep: SweepFolder | None = None
    job: SlurmJob | None = None
    plan: Plan | None = None
    out_of_reach: str = ""
    slurm_conf: str | None = None
    values: dict[str, str] = field(default_factory=dict)
    # What a listing shows: of a run by ``controller.status.complete``, of other jobs by Slurm.
    name: str = ""
    submitted_at: float | None = None
    elapsed: float | None = None
    limit: float | None = None
    node_count: int | None = None
    gpus_per_node: int | None = None
    gpu_hours: float | None = None
    cost: Cost | None = None
    progress: Progress = Progress()
    remark: str = ""
    # Of a listing; of what waits; of top.
    short_id: str = ""
    cluster: str = ""
    states: dict[str, int] | None = None
    why: WhyWaiting | None = None
    # Of one that is over, where that was asked: why it failed, and what it used.
    diagnosis: Diagnosis | None = None
    account: JobAccounting | None = None
    used: ResourceUsage | None = None
    uses: list[NodeUse] = []
    why_no_use: str = ""

    @classmethod
    def of_job(cls, job_id: str, verdict: Verdict, job: SlurmJob | None = None) -> JobStatus:
        """Make the status of a job that hpcrun did not submit; ``job`` is what Slurm shows."""
        name = job.name if job is not None else ""
        return cls(
            job_id=job_id, history=History(run_id=job_id), verdict=verdict, job=job, name=name
        )

    @property
    def id(self) -> str:
        """The shortest word that names it on the command line."""
        return self.short_id or self.word

    @property
    def word(self) -> str:
        """What names it, as Slurm does where that is no other run's too."""
        shares = self.run is not None and self.history.shares_job
        return self.run_id if shares or not self.job_id else self.job_id

    @property
    def run_id(self) -> str:
        """The id of the run or of the sweep; of another job Slurm's."""
        return self.history.run_id

    @property
    def label(self) -> str:
        """What it is called in a sentence: the name that its user typed or saw last."""
        return f"job {self.job_id}" if self.job_id == self.word else self.word

    @property
    def folder(self) -> RunFolder:
        """The folder of a run; only for what hpcrun submitted."""
        assert self.run is not None
        return self.run

    @property
    def state(self) -> str:
        """Slurm's state, or LOST, NOT_SUBMITTED, UNKNOWN."""
        return self.verdict.state

    @property
    def final(self) -> bool:
        """Whether the state will not change any more."""
        return self.verdict.final

    @property
    def ok(self) -> bool:
        """Whether completed successfully: it is final, and the exit code was 0."""
        return self.verdict.ok

    @property
    def reason(self) -> str:
        """Why it waits, or how it ended; "" where nothing is to be reported."""
        if self.verdict.reason or not self.final or self.ok:
            return self.verdict.reason
        code = f"exit code {self.exit_code}" if self.exit_code else ""
        return self.remark or self.failure or code

    @property
    def culprit(self) -> str:
        """The process that failed first; "" where none is on record."""
        failure = self.end.first_failure if self.end else None
        if failure is None:
            return ""
        if failure.rank is not None:
            return f"rank {failure.rank} on {failure.host}"
        what = "command" if self.plan is not None and self.plan.launcher == "none" else "launcher"
        return f"the {what} on {failure.host}"

    @property
    def failure(self) -> str:
        """Which process failed first, and how; "" where none is on record."""
        failure = self.end.first_failure if self.end and not self.ended_between else None
        if failure is None:
            return ""
        if failure.why is not None:
            return f"{failure.host} is not fit for it: {failure.why}"
        how = f"signal {failure.signal}" if failure.signal else f"exit code {failure.exit_code}"
        return f"{self.culprit} failed first: {how}"

    @property
    def exit_code(self) -> int | None:
        """The training's own; None until the job's record of it is there."""
        return self.verdict.exit_code

    @property
    def source(self) -> str:
        """Where the state comes from: squeue, sacct, scontrol, seen (earlier), record."""
        return self.verdict.source

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the sources disagree."""
        return tuple(self.verdict.notes)

    @property
    def attempts(self) -> int:
        """How many times it was started: more than 1 after a requeue."""
        return len(self.history.attempts)

    @property
    def last(self) -> Attempt | None:
        """The last attempt."""
        return self.history.last

    @property
    def end(self) -> End | None:
        """The job's own record of the end of its last attempt."""
        return self.history.end

    @property
    def stall(self) -> Stall | None:
        """Since when the last attempt does not move on, and who holds it up; None: it does."""
        return self.last.stall if self.last is not None and _compute_stall(self.last) else None

    @property
    def stalled_for(self) -> float:
        """How many seconds it has not moved on, by the clock of its first node."""
        return _compute_stall(self.last) if self.last is not None else 0.0

    @property
    def elapsed_by_slurm(self) -> float | None:
        """The seconds that Slurm counts of the last attempt; None: not known."""
        return _slurm_elapsed(self.history, self.job)

    @property
    def nodes(self) -> str:
        """The node list of the last attempt; "" before the first."""
        if self.run is None:
            return self.job.node_list if self.job is not None else ""
        return self.last.begin.nodes if self.last and self.last.begin else ""

    @property
    def step(self) -> int | None:
        """The last step that the log shows."""
        return self.progress.step

    @property
    def loss(self) -> float | None:
        """The last training loss that the log shows."""
        return self.progress.value if self.progress.metric == "loss" else None

    @property
    def is_local(self) -> bool:
        """Whether it is a run of this machine, without Slurm."""
        return self.history.is_local

    @property
    def is_between(self) -> bool:
        """Whether an attempt has ended, and the next one has not begun."""
        return not self.final and self.end is not None and self.end.next is not None

    @property
    def ended_between(self) -> bool:
        """Whether it ended after an attempt, while it waited for the next one."""
        has_next = self.end is not None and self.end.next is not None
        return self.final and has_next and self.exit_code is None

    @property
    def ended_at(self) -> float | None:
        """When it ended, in seconds since the epoch; None: it did not, or that is not known."""
        if not self.ended_between:
            return self.end.ended_at if self.final and self.end is not None else None
        cancelled = self.history.cancelled
        return cancelled.cancelled_at if cancelled is not None else None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits, and Slurm has a reason for it."""
        has_reason = bool(self.reason) or self.run is None
        return self.state in WAITING and has_reason and self.job_id is not None

    @property
    def trains(self) -> bool:
        """Whether it is a training, and not a bare command."""
        return self.plan is not None and self.plan.launcher != "none"


def compute_trained_share(status: JobStatus) -> float | None:
    """Return the share of a run's time that went into steps which lasted; None: not known.

    What came before each attempt's first step does not count, nor do steps that were done again,
    nor a standstill at an attempt's end. The first step is noticed up to half a minute late.
    """
    total = lost = 0.0
    is_known = False
    for attempt in status.history.attempts:
        seconds = attempt.seconds() or 0.0
        if attempt is status.last and status.elapsed is not None:
            seconds = status.elapsed
        is_known |= attempt.moved is not None
        total += seconds
        lost += min(seconds, _compute_startup(attempt, seconds) + _compute_stall(attempt))
    if status.cost is not None and status.cost.hours:
        lost += (status.cost.replayed or 0.0) / status.cost.hours * total
    return max(0.0, 1 - lost / total) if total and is_known else None
