"""The status of a job: Slurm's response, the records of its run, and the verdict on both."""

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
    """The progress of a job, according to its log; None means unknown.

    Attributes:
        metric: The metric of ``value`` and ``recent``: "loss" if the log contains it.
        steps: The steps of ``recent``.
        log: The log file that was read.
        rate: The speed in ``unit``: tokens_per_second, samples_per_second or steps_per_second.
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
    """The use of a GPU, as reported by its driver; None if not reported.

    Attributes:
        utilization: The percentage of the last sampling period in which a kernel ran.
        memory_used: In bytes, like ``memory_total``.
    """

    index: int
    utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None


class NodeUse(Struct, frozen=True, kw_only=True):
    """The use of a node; None means unknown so far.

    Memory is in bytes, without the page cache.

    Attributes:
        cpus_busy: The number of ``cpus`` that were busy since the last sample.
        cpu_of: Whether the CPU use is that of the job or of the whole node.
        memory_of: Whether the memory use is that of the job or of the whole node.
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
    """The reason why a job waits.

    Attributes:
        start: Slurm's estimate of the start, as Slurm writes it, or None.
        ahead: The number of jobs of its partition with a higher priority, if queried.
        expected: The estimate in the format for people.
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
    """The cost of the attempts of a run in GPU hours, or in node hours without GPUs.

    None means unknown.

    Attributes:
        hours: The total of all attempts.
        replayed: The hours spent on steps that were repeated after a restart.
        replayed_steps: The number of repeated steps.
        restarting: The hours before the first step of each attempt except the first.
        stalled: The hours without a step at the end of an attempt.
        waited: Seconds between attempts.
    """

    hours: float
    replayed: float | None = field(default=None, name="replayed_hours")
    replayed_steps: int | None = None
    stalled: float = field(default=0.0, name="stalled_hours")
    restarting: float = field(default=0.0, name="restart_hours")
    waited: float = field(default=0.0, name="waited_seconds")

    @property
    def goodput(self) -> float | None:
        """The fraction (0 to 1) of the hours in which the run made progress, or None."""
        if not self.hours or self.replayed is None:
            return None
        return max(0.0, 1 - (self.replayed + self.stalled + self.restarting) / self.hours)


def count_nodes(attempt: Attempt, spare: int = 0) -> int:
    """Count the nodes of an attempt, which may differ between attempts for a range of nodes."""
    known = expand_known_hosts(attempt.begin.nodes) if attempt.begin is not None else []
    return (len(known) or 1) + spare


def compute_startup(attempt: Attempt, seconds: float) -> float:
    """Return how many of an attempt's ``seconds`` passed before its first step was noticed."""
    if attempt.moved is None or attempt.begin is None:
        return seconds
    return min(max(0.0, attempt.moved - attempt.begin.begun_at), seconds)


def _compute_stall(attempt: Attempt) -> float:
    """Return the seconds without progress at the end of an attempt, by its first node's clock."""
    stall, end = attempt.stall, attempt.end
    # A successful attempt made progress to its end, even if it ended before that was noticed.
    if stall is None or (end is not None and end.exit_code == 0):
        return 0.0
    until = end.ended_at if end is not None else attempt.beat or 0.0
    return max(stall.silent_seconds, until - stall.since)


def _slurm_elapsed(history: History, job: SlurmJob | None = None) -> float | None:
    """Return Slurm's seconds of the last attempt, including the time after its end record.

    Return None if they are unknown or include other attempts.
    """
    attempts, seen = history.attempts, history.seen
    before = attempts[-2].end if len(attempts) > 1 else None
    if history.shares_job or (before is not None and before.next == "relaunch"):
        return None
    if job is not None:
        return None if job.state in WAITING else job.elapsed_seconds
    return seen.elapsed if seen is not None and seen.attempts == len(attempts) else None


def compute_elapsed(history: History, job: SlurmJob | None = None) -> float | None:
    """Return the seconds of the last attempt of a finished run, or None if unknown."""
    own = history.last.seconds() if history.last is not None else None
    return max(filter(None, (own, _slurm_elapsed(history, job))), default=own)


def compute_cost(
    attempts: Sequence[Attempt],
    gpus_per_node: int,
    now: float | None,
    spare: int = 0,
    elapsed: float | None = None,
) -> Cost:
    """Compute the cost of attempts in GPU hours, or in node hours for 0 GPUs.

    All steps of an attempt are assumed to take equally long. If other attempts show steps, an
    attempt without a step counts as startup only; some logs have no step numbers at all. The same
    applies to an attempt whose first step was not noticed, if that of another attempt was.

    Args:
        now: None after the end of the run.
        spare: The number of spare nodes, which are billed, too.
        elapsed: The seconds of the last attempt, if known more precisely than from its records.
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
        starting = 0.0 if first is not None and not is_seen else compute_startup(attempt, seconds)
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
    """The resources that a finished job used; None means unknown.

    Memory is in bytes: that of the host summed over all nodes, that of the GPU with the highest
    use. Shares are fractions from 0 to 1.

    Attributes:
        memory_used: The peak of Slurm's samples, or else of the job's own.
        cpu_share: The share of the CPU time that was used.
        gpu_share: The mean utilization of the GPUs in the last attempt, by the job's own samples,
            or else by those of ``top``.
        gpus: The number of GPUs that this attempt trained on, if the job sampled any.
        sampled_gpus: The number of GPUs that the job sampled: with one GPU per task, only those
            of the first task on each node.
        looks: The number of samples of ``top``, if the utilization is from these.
        trained_share: The share of the time of all attempts spent on steps that were not repeated.
    """

    memory_asked: int | None = field(default=None, name="memory_asked_bytes")
    memory_used: int | None = field(default=None, name="memory_used_bytes")
    cpus: int | None = None
    cpu_share: float | None = None
    gpu_memory: int | None = field(default=None, name="gpu_memory_bytes")
    gpu_memory_total: int | None = field(default=None, name="gpu_memory_total_bytes")
    gpu_share: float | None = None
    gpus: int | None = None
    sampled_gpus: int | None = None
    looks: int = field(default=0, name="gpu_looks")
    trained_share: float | None = None


class JobStatus(Struct, frozen=True, kw_only=True):
    """The status of a run or another Slurm job at one moment, or of a whole sweep in a listing.

    None means unknown or not applicable. Times are in seconds.

    Attributes:
        state: A state of Slurm (PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT,
            OUT_OF_MEMORY ...), LOST (it died without a record), NOT_SUBMITTED (Slurm never accepted
            it), PRUNED (a trial of a search, which was ended early) or UNKNOWN (Slurm does not
            respond; retry later).
        final: The state will not change any more.
        run: None for a job that hpcrun did not submit.
        job: None if Slurm no longer shows the job.
        submitted_at: Seconds since the epoch.
        elapsed: The duration of the last attempt.
        limit: The time limit of the job.
        gpu_hours: The total of all attempts.
        cost: The cost of several attempts.
        values: The parameters of a run of a sweep.
        changed: Arguments of the program that differ between the listed runs of a job; None for
            one that this run does not have.
        states: The number of runs of a whole sweep by state.
        sweep_project: The project of a whole sweep.
        uses: The use of the nodes, while it is monitored.
        why_no_use: The reason why the use is unknown.
        out_of_reach: The reason why Slurm did not respond; "" if it did.
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
    changed: dict[str, str | None] = field(default_factory=dict)
    # Shown in a listing: set for runs from their records, for other jobs from Slurm.
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
    # Set only for listings, for waiting jobs, and by top.
    short_id: str = ""
    cluster: str = ""
    states: dict[str, int] | None = None
    sweep_project: str | None = None
    why: WhyWaiting | None = None
    # Set only for finished jobs on request: the cause of the failure, and the resource usage.
    diagnosis: Diagnosis | None = None
    account: JobAccounting | None = None
    used: ResourceUsage | None = None
    uses: list[NodeUse] = []
    why_no_use: str = ""

    @classmethod
    def of_job(cls, job_id: str, verdict: Verdict, job: SlurmJob | None = None) -> JobStatus:
        """Create the status of a job that hpcrun did not submit; ``job`` is Slurm's record."""
        name = job.name if job is not None else ""
        return cls(
            job_id=job_id, history=History(run_id=job_id), verdict=verdict, job=job, name=name
        )

    @property
    def id(self) -> str:
        """The shortest unambiguous name of the job on the command line."""
        return self.short_id or self.word

    @property
    def word(self) -> str:
        """Slurm's id of the job, or the run id if other runs share the job."""
        shares = self.run is not None and self.history.shares_job
        return self.run_id if shares or not self.job_id else self.job_id

    @property
    def run_id(self) -> str:
        """The id of the run or sweep; Slurm's id for other jobs."""
        return self.history.run_id

    @property
    def project(self) -> str | None:
        """The project's directory on the machine of the submission; None if it is not recorded."""
        submitted = self.history.submitted
        return submitted.project if submitted is not None else self.sweep_project

    @property
    def label(self) -> str:
        """The name of the job in sentences: the one that the user typed or saw last."""
        return f"job {self.job_id}" if self.job_id == self.word else self.word

    @property
    def folder(self) -> RunFolder:
        """The directory of a run; only for jobs that hpcrun submitted."""
        assert self.run is not None
        return self.run

    @property
    def state(self) -> str:
        """Slurm's state, or LOST, NOT_SUBMITTED, UNKNOWN."""
        return self.verdict.state

    @property
    def final(self) -> bool:
        """True if the state will not change any more."""
        return self.verdict.final

    @property
    def ok(self) -> bool:
        """True if the job completed successfully: its state is final and its exit code is 0."""
        return self.verdict.ok

    @property
    def reason(self) -> str:
        """Why the job waits, or how it ended; "" if there is nothing to report."""
        if self.verdict.reason or not self.final or self.ok:
            return self.verdict.reason
        code = f"exit code {self.exit_code}" if self.exit_code else ""
        return self.remark or self.failure or code

    @property
    def culprit(self) -> str:
        """The process that failed first; "" if none is recorded."""
        failure = self.end.first_failure if self.end else None
        if failure is None:
            return ""
        if self.plan is not None and self.plan.roles:
            what = f"role {failure.role or self.plan.role}"
            rank = "" if failure.rank is None else f", rank {failure.rank}"
            return f"{what}{rank} on {failure.host}"
        if failure.rank is not None:
            return f"rank {failure.rank} on {failure.host}"
        what = "command" if self.plan is not None and self.plan.launcher == "none" else "launcher"
        return f"the {what} on {failure.host}"

    @property
    def failure(self) -> str:
        """The process that failed first, and how; "" if none is recorded."""
        failure = self.end.first_failure if self.end and not self.ended_between else None
        if failure is None:
            return ""
        if failure.why is not None:
            return f"{failure.host} failed the node check: {failure.why}"
        how = f"signal {failure.signal}" if failure.signal else f"exit code {failure.exit_code}"
        return f"{self.culprit} failed first: {how}"

    @property
    def exit_code(self) -> int | None:
        """The exit code of the training; None until the job has recorded it."""
        return self.verdict.exit_code

    @property
    def source(self) -> str:
        """The source of the state: squeue, sacct, scontrol, seen (an earlier response), record."""
        return self.verdict.source

    @property
    def notes(self) -> tuple[str, ...]:
        """Contradictions between the sources."""
        return tuple(self.verdict.notes)

    @property
    def attempts(self) -> int:
        """The number of starts, which is more than 1 after a requeue."""
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
        """The stall of the last attempt and its suspect; None if the attempt makes progress."""
        return self.last.stall if self.last is not None and _compute_stall(self.last) else None

    @property
    def stalled_for(self) -> float:
        """The seconds without progress, by the clock of the first node."""
        return _compute_stall(self.last) if self.last is not None else 0.0

    @property
    def elapsed_by_slurm(self) -> float | None:
        """Slurm's seconds of the last attempt; None if unknown."""
        return _slurm_elapsed(self.history, self.job)

    @property
    def nodes(self) -> str:
        """The node list of the last attempt; "" before the first."""
        if self.run is None:
            return self.job.node_list if self.job is not None else ""
        return self.last.begin.nodes if self.last and self.last.begin else ""

    @property
    def step(self) -> int | None:
        """The last step in the log."""
        return self.progress.step

    @property
    def loss(self) -> float | None:
        """The last training loss in the log."""
        return self.progress.value if self.progress.metric == "loss" else None

    @property
    def is_local(self) -> bool:
        """True for a run on this machine without Slurm."""
        return self.history.is_local

    @property
    def is_between(self) -> bool:
        """True if an attempt has ended and the next one has not started."""
        return not self.final and self.end is not None and self.end.next is not None

    @property
    def ended_between(self) -> bool:
        """True if the job ended after an attempt, while it waited for the next one."""
        has_next = self.end is not None and self.end.next is not None
        return self.final and has_next and self.exit_code is None

    @property
    def ended_at(self) -> float | None:
        """When the job ended, in seconds since the epoch, or None."""
        if not self.ended_between:
            return self.end.ended_at if self.final and self.end is not None else None
        cancelled = self.history.cancelled
        return cancelled.cancelled_at if cancelled is not None else None

    @property
    def is_waiting(self) -> bool:
        """True if the job waits for a reason that Slurm reports."""
        has_reason = bool(self.reason) or self.run is None
        return self.state in WAITING and has_reason and self.job_id is not None

    @property
    def is_training(self) -> bool:
        """True for a training, as opposed to a bare command."""
        return self.plan is not None and self.plan.launcher != "none"


def compute_trained_share(status: JobStatus) -> float | None:
    """Return the share of a run's time spent on steps that were not repeated, or None.

    The time before each attempt's first step, repeated steps, and a stall at the end of an attempt
    are excluded. The first step is noticed up to half a minute late.
    """
    total = lost = 0.0
    is_known = False
    for attempt in status.history.attempts:
        seconds = attempt.seconds() or 0.0
        if attempt is status.last and status.elapsed is not None:
            seconds = status.elapsed
        is_known |= attempt.moved is not None
        total += seconds
        lost += min(seconds, compute_startup(attempt, seconds) + _compute_stall(attempt))
    if status.cost is not None and status.cost.hours:
        lost += (status.cost.replayed or 0.0) / status.cost.hours * total
    return max(0.0, 1 - lost / total) if total and is_known else None
