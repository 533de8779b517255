"""The efficiency of runs: what they held, and how much of it trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field, structs

from hpcrun.plan import parse_seconds
from hpcrun.runs.records import Attempt
from hpcrun.runs.status import (
    JobStatus,
    ResourceUsage,
    compute_cost,
    compute_startup,
    count_nodes,
)
from hpcrun.runs.usage import NodeSeries
from hpcrun.slurm import WAITING, JobAccounting
from hpcrun.spec import CostFactors

# Less use of a GPU, in percent of the time, is no work: contexts and monitoring cause that much.
IDLE_PERCENT = 1.0
# Advice needs samples, or a run, of at least ten minutes.
MIN_SAMPLED_S = 600.0
# Totals and peaks by samples count as those of the whole run from this share of its time on.
MIN_TOTAL_SHARE = 0.9
# The nodes write a line a minute, so a shorter idle time at the end is not measured.
_MIN_TAIL_S = 120.0
_JOULES_PER_KWH = 3.6e6


class GpuEfficiency(Struct, frozen=True, kw_only=True):
    """A GPU over all attempts with samples; None means unknown.

    Attributes:
        name: The UUID of NVIDIA's driver, or the number of AMD's.
        utilization: The mean percentage of the time in which a kernel ran.
        memory_peak: In bytes, like ``memory_total``.
        seconds: The time between the first and the last sample.
    """

    node: str
    name: str
    utilization: float | None
    memory_peak: int | None = field(name="memory_peak_bytes")
    memory_total: int | None = field(name="memory_total_bytes")
    power_watts: float | None
    seconds: float


class LostHours(Struct, frozen=True, kw_only=True):
    """Hours that did not train, in the unit of ``RunEfficiency.hours``; None means unknown.

    Attributes:
        startup: Before the first step of the first attempt.
        restart: Before the first step of the other attempts.
        checkpoint: Saving checkpoints, if the log shows how long that took.
        replayed: Steps that were repeated after a restart.
        stalled: Without a step at the end of an attempt that stalled.
        idle_tail: All GPUs were idle at the end of the last attempt.
    """

    startup: float | None = None
    restart: float | None = None
    checkpoint: float | None = None
    replayed: float | None = None
    stalled: float | None = None
    idle_tail: float | None = None

    @property
    def total(self) -> float:
        """The sum of the known parts."""
        return sum(getattr(self, name) or 0.0 for name in self.__struct_fields__)


class RunEfficiency(Struct, frozen=True, kw_only=True):
    """The efficiency of a run, a task or another Slurm job; None means unknown.

    Attributes:
        word: The name of the run on the command line.
        group: The sweep or array that the run belongs to, else its own id.
        hours: GPU hours of all attempts or, without GPUs, node hours.
        unit: The unit of ``hours``.
        goodput: The fraction of the hours that trained: without those in ``lost``.
        queue_seconds: From the submission to the first start.
        waited_seconds: Between attempts.
        longest_seconds: The duration of the longest attempt.
        sampled_seconds: The time in which the nodes' use was sampled.
        sampled_share: The fraction of the time of all nodes in which their use was sampled.
        sampled_gpus: The number of GPUs with samples in the attempt with the longest samples.
        gpu_use: The mean utilization of the GPUs with samples, weighted by their time, in percent.
        node_memory_peak: The peak of the job's host memory on one node, by samples of nearly the
            whole time of all nodes.
        is_memory_partial: The run may have used more host memory than ``used`` shows, because
            records and samples of a part of it are missing.
        mfu: The fraction of the peak speed of the GPUs that the model's operations used.
        energy_kwh: The energy of the nodes as Slurm measured it, or of the GPUs by their samples.
    """

    run_id: str | None
    job_id: str | None
    word: str
    name: str
    group: str
    state: str
    final: bool
    project: str | None = None
    nodes: int | None = None
    gpus: int | None = None
    elapsed_seconds: float | None = None
    longest_seconds: float | None = None
    limit_seconds: float | None = None
    attempts: int = 0
    hours: float | None = None
    unit: Literal["gpu", "node"] = "gpu"
    goodput: float | None = None
    lost: LostHours = LostHours()
    queue_seconds: float | None = None
    waited_seconds: float | None = None
    sampled_seconds: float = 0.0
    sampled_share: float | None = None
    sampled_gpus: int | None = None
    gpu_use: float | None = None
    gpu_samples: list[GpuEfficiency] = []
    node_memory_peak: int | None = field(default=None, name="node_memory_peak_bytes")
    is_memory_partial: bool = field(default=False, name="memory_is_partial")
    used: ResourceUsage = ResourceUsage()
    mfu: float | None = None
    energy_kwh: float | None = None
    energy_of: Literal["nodes", "gpus"] | None = None
    cost: float | None = None
    co2_kg: float | None = None
    # The shape that advice would change.
    gpus_per_node: int | None = None
    spare_nodes: int = 0
    is_fixed_shape: bool = False
    is_exclusive: bool = False
    # The evidence for advice: the number of GPUs that the attempt with the longest samples trained
    # on, the GPUs of each attempt of ten minutes that was sampled on all of them, the duration of
    # these attempts, whether Slurm's records of all jobs are known, and whether an attempt may have
    # ended for lack of host memory.
    training_gpus: int = 0
    judged_attempts: list[list[GpuEfficiency]] = []
    judged_seconds: float = 0.0
    has_all_records: bool = False
    may_lack_memory: bool = False


class _AttemptUse(Struct, frozen=True, kw_only=True):
    """The samples of an attempt; ``nodes`` and ``gpus`` are the numbers that it trained on."""

    seconds: float
    nodes: int
    gpus: int
    usage: list[NodeSeries]

    @property
    def sampled_seconds(self) -> float:
        """The time with samples on the node with the fewest."""
        return min((node.seconds for node in self.usage), default=0.0)

    @property
    def sampled_gpus(self) -> int:
        return sum(len(node.gpus) for node in self.usage)

    @property
    def memory_sum(self) -> int | None:
        """The sum of the nodes' peaks; None unless the job's own memory is known on all nodes."""
        peaks = [node.memory_peak for node in self.usage if node.memory_of == "job"]
        known = [peak for peak in peaks if peak is not None]
        return sum(known) if len(known) == len(self.usage) >= self.nodes else None


def measure_run(
    status: JobStatus,
    *,
    usage: Sequence[NodeSeries] = (),
    used: ResourceUsage | None = None,
    accounts: Sequence[JobAccounting] = (),
    queue_seconds: float | None = None,
    saving_seconds: Mapping[int, float] | None = None,
    mfu: float | None = None,
    factors: CostFactors | None = None,
    now: float,
) -> RunEfficiency:
    """Measure a run.

    Args:
        status: With the first and last step of each attempt, if there are several.
        usage: The use of the nodes in all attempts.
        used: The host memory and CPU time that the last job of the run used.
        accounts: Slurm's records of all jobs of the run; empty if one is missing.
        queue_seconds: Slurm's time from the submission to the start, for jobs without records.
        saving_seconds: The time in which each attempt saved checkpoints, by its number; an attempt
            is missing if its log does not show that.
        now: Seconds since the epoch.
    """
    attempts, plan, job = status.history.attempts, status.plan, status.job
    spare = plan.survive.spare_nodes if plan is not None else 0
    gpus_per_node, nodes = status.gpus_per_node, status.node_count
    gpus = (gpus_per_node or 0) * (nodes or 1)
    seconds: list[float | None] = [each.seconds() for each in attempts]
    if status.run is None and job is not None:
        gpus, nodes = job.gpus or 0, int(job.nodes) if job.nodes.isdecimal() else None
        seconds = [job.elapsed_seconds] if job.state not in WAITING else []
    elif seconds:
        seconds[-1] = status.elapsed if status.elapsed is not None else seconds[-1]
    known = [each for each in seconds if each is not None]
    hours, lost, waited = None, LostHours(), None
    if attempts:
        hours, lost, waited = _measure_attempts(status, usage, saving_seconds or {}, spare, now)
    elif known and (gpus or nodes):
        hours = known[-1] * (gpus or nodes or 1) / 3600
    uses = _split_usage(status, usage, seconds)
    sampled = [use for use in uses if use.usage]
    judged = [
        use
        for use in sampled
        if use.sampled_seconds >= MIN_SAMPLED_S
        and len(use.usage) == use.nodes
        and use.sampled_gpus == use.gpus
    ]
    longest = max(sampled, key=lambda use: use.sampled_seconds, default=None)
    share = _compute_share(uses, of_gpus=False)
    # The control group of a job that several runs share has the memory and CPU time of all of them.
    is_alone = not status.history.shares_job
    is_sampled = (share or 0.0) >= MIN_TOTAL_SHARE and all(
        len(use.usage) >= use.nodes for use in sampled
    )
    energy, energy_of = _measure_energy(accounts, uses if is_sampled else [])
    gpu_samples = _measure_gpus(usage)
    used, is_memory_partial = _measure_host(
        used or ResourceUsage(), accounts, sampled if is_alone else [], is_sampled
    )
    factors = factors or CostFactors()
    per_hour = factors.per_gpu_hour if gpus else factors.per_node_hour
    limit = status.limit
    if limit is None and plan is not None:
        limit = _parse_limit(dict(plan.directives).get("time"))
    if limit is None and job is not None:
        limit = job.limit_seconds
    return RunEfficiency(
        run_id=status.run_id if status.run is not None else None,
        job_id=status.job_id,
        word=status.word,
        name=status.name,
        group=_find_group(status),
        state=status.state,
        final=status.final,
        project=status.project,
        nodes=nodes,
        gpus=gpus or None,
        elapsed_seconds=sum(known) if known else None,
        longest_seconds=max(known, default=None),
        limit_seconds=limit,
        attempts=len(attempts) or (1 if known else 0),
        hours=hours,
        unit="gpu" if gpus else "node",
        goodput=_compute_goodput(hours, lost),
        lost=lost,
        queue_seconds=_measure_queue(status, queue_seconds, now),
        waited_seconds=waited,
        sampled_seconds=sum(use.sampled_seconds for use in uses),
        sampled_share=share,
        sampled_gpus=longest.sampled_gpus if longest is not None else None,
        gpu_use=_mean_use(gpu_samples),
        gpu_samples=gpu_samples,
        node_memory_peak=_peak_of_node(usage) if is_sampled and is_alone else None,
        is_memory_partial=is_memory_partial,
        used=used,
        mfu=mfu,
        energy_kwh=energy,
        energy_of=energy_of,
        cost=None if per_hour is None or hours is None else per_hour * hours,
        co2_kg=None
        if factors.kg_co2_per_kwh is None or energy is None
        else energy * factors.kg_co2_per_kwh,
        gpus_per_node=gpus_per_node,
        spare_nodes=spare,
        is_fixed_shape=plan is not None and bool(plan.roles),
        is_exclusive=plan is not None and "exclusive" in dict(plan.directives),
        training_gpus=longest.gpus if longest is not None else 0,
        judged_attempts=[_measure_gpus(use.usage) for use in judged],
        judged_seconds=sum(use.sampled_seconds for use in judged),
        has_all_records=bool(accounts),
        may_lack_memory=_may_lack_memory(status),
    )


def count_steps(attempts: Sequence[Attempt], status: JobStatus) -> tuple[int, float]:
    """Return the steps that attempts logged, and the seconds of these attempts after their first.

    Attempts whose first step was not noticed are omitted. Repeated steps count: they were computed.
    """
    steps, total = 0, 0.0
    for attempt in attempts:
        first, last = attempt.first_step, attempt.last_step
        if attempt.moved is None or first is None or last is None or last <= first:
            continue
        seconds = attempt.seconds() or 0.0
        if attempt.index == attempts[-1].index and status.elapsed is not None:
            seconds = status.elapsed
        steps += last - first
        total += max(0.0, seconds - compute_startup(attempt, seconds))
    return steps, total


def _find_group(status: JobStatus) -> str:
    task = status.history.task
    if task is not None:
        return task.sweep_id
    return status.job.array if status.run is None and status.job is not None else status.run_id


def _parse_limit(text: str | None) -> float | None:
    try:
        return parse_seconds(text) or None if text else None  # 0 is no limit (sbatch.1, --time)
    except ValueError:
        return None


def _measure_attempts(
    status: JobStatus,
    usage: Sequence[NodeSeries],
    saving_seconds: Mapping[int, float],
    spare: int,
    now: float,
) -> tuple[float, LostHours, float]:
    """Return the hours of all attempts, the lost ones, and the seconds between attempts."""
    attempts = status.history.attempts
    per_node = status.gpus_per_node or 0
    cost = compute_cost(attempts, per_node, None if status.final else now, spare, status.elapsed)
    last_factor = _hours_per_second(attempts[-1], per_node, spare)
    # The first step of no attempt was noticed: where the time went is unknown.
    is_seen = any(attempt.moved is not None for attempt in attempts)
    startup = None
    if is_seen:
        seconds = attempts[0].seconds(now) or 0.0
        if len(attempts) == 1 and status.elapsed is not None:
            seconds = status.elapsed
        factor = _hours_per_second(attempts[0], per_node, spare)
        startup = compute_startup(attempts[0], seconds) * factor
    # A GPU without samples may have been busy.
    last_gpus = sum(len(node.gpus) for node in usage if node.attempt == attempts[-1].index)
    is_sampled = last_gpus >= per_node * count_nodes(attempts[-1])
    tail = _measure_tail(usage, attempts[-1].index) if status.final and is_sampled else None
    if tail is not None:
        tail = max(0.0, tail - status.stalled_for)
    last_hours = (status.elapsed or attempts[-1].seconds() or 0.0) * last_factor
    saving = sum(
        saving_seconds.get(each.index, 0.0) * _hours_per_second(each, per_node, spare)
        for each in attempts
    )
    lost = LostHours(
        startup=startup,
        restart=cost.restarting if is_seen else None,
        checkpoint=min(saving, cost.hours) if saving_seconds else None,
        replayed=0.0 if len(attempts) == 1 else cost.replayed,
        stalled=cost.stalled,
        idle_tail=None if tail is None else min(tail * last_factor, last_hours),
    )
    return cost.hours, lost, cost.waited


def _hours_per_second(attempt: Attempt, gpus_per_node: int, spare: int) -> float:
    return count_nodes(attempt, spare) * (gpus_per_node or 1) / 3600


def _compute_goodput(hours: float | None, lost: LostHours) -> float | None:
    """Return the fraction of the hours that trained; None if the main losses are unknown."""
    if not hours or lost.startup is None or lost.replayed is None:
        return None
    return max(0.0, 1 - lost.total / hours)


def _measure_queue(status: JobStatus, by_slurm: float | None, now: float) -> float | None:
    """Return the seconds from the submission to the first start, or until now."""
    attempts, submitted_at = status.history.attempts, status.submitted_at
    begin = attempts[0].begin if attempts else None
    if submitted_at is not None and begin is not None:
        return max(0.0, begin.begun_at - submitted_at)
    if submitted_at is not None and status.state in WAITING and not attempts:
        return max(0.0, now - submitted_at)
    return by_slurm


def _measure_gpus(usage: Sequence[NodeSeries]) -> list[GpuEfficiency]:
    """Combine the attempts of each GPU, weighted by their time."""
    found: dict[tuple[str, str], GpuEfficiency] = {}
    for node in usage:
        for gpu in node.gpus:
            old = found.get((node.node, gpu.name))
            new = GpuEfficiency(
                node=node.node,
                name=gpu.name,
                utilization=gpu.utilization,
                memory_peak=gpu.memory_peak,
                memory_total=gpu.memory_total,
                power_watts=gpu.power_watts,
                seconds=node.seconds,
            )
            found[node.node, gpu.name] = new if old is None else _merge_gpus(old, new)
    return list(found.values())


def _merge_gpus(old: GpuEfficiency, new: GpuEfficiency) -> GpuEfficiency:
    def mean(a: float | None, b: float | None) -> float | None:
        if a is None or b is None:
            return b if a is None else a
        total = old.seconds + new.seconds
        return (a * old.seconds + b * new.seconds) / total if total else (a + b) / 2

    return GpuEfficiency(
        node=new.node,
        name=new.name,
        utilization=mean(old.utilization, new.utilization),
        memory_peak=max(filter(None, (old.memory_peak, new.memory_peak)), default=None),
        memory_total=new.memory_total or old.memory_total,
        power_watts=mean(old.power_watts, new.power_watts),
        seconds=old.seconds + new.seconds,
    )


def _mean_use(gpus: Sequence[GpuEfficiency]) -> float | None:
    known = [(gpu.utilization, gpu.seconds) for gpu in gpus if gpu.utilization is not None]
    total = sum(seconds for _, seconds in known)
    if not total:
        return sum(use for use, _ in known) / len(known) if known else None
    return sum(use * seconds for use, seconds in known) / total


def _split_usage(
    status: JobStatus, usage: Sequence[NodeSeries], seconds: Sequence[float | None]
) -> list[_AttemptUse]:
    found = []
    for attempt, length in zip(status.history.attempts, seconds, strict=False):
        own = [node for node in usage if node.attempt == attempt.index]
        nodes = count_nodes(attempt)
        gpus = nodes * (status.gpus_per_node or 0)
        # The records may lack the end of an attempt that its samples show.
        longest = max((node.seconds for node in own), default=0.0)
        length = max(length or 0.0, longest)
        found.append(_AttemptUse(seconds=length, nodes=nodes, gpus=gpus, usage=own))
    return found


def _compute_share(uses: Sequence[_AttemptUse], *, of_gpus: bool) -> float | None:
    """Return the fraction of the time of all nodes, or of all GPUs, that has samples."""
    held = sum(use.seconds * (use.gpus if of_gpus else use.nodes) for use in uses)
    sampled = sum(
        node.seconds * (len(node.gpus) if of_gpus else 1) for use in uses for node in use.usage
    )
    return min(1.0, sampled / held) if held else None


def _measure_host(
    used: ResourceUsage,
    accounts: Sequence[JobAccounting],
    uses: Sequence[_AttemptUse],
    is_sampled: bool,
) -> tuple[ResourceUsage, bool]:
    """Return the use of the host in all attempts, and whether its memory is that of a part only.

    Args:
        is_sampled: The samples cover nearly all of the run.
    """
    by_slurm = [each.memory_used for each in accounts]
    sums = [use.memory_sum for use in uses]
    memory = max(filter(None, (used.memory_used, *by_slurm, *sums)), default=None)
    is_known = (bool(by_slurm) and all(by_slurm)) or (is_sampled and None not in sums)
    busy = [each.cpu_seconds for each in accounts]
    held = [each.held_seconds for each in accounts]
    nodes = [node for use in uses for node in use.usage if node.cpu_of == "job"]
    cpu_times = [
        (node.cpus_busy * node.seconds, node.cpus * node.seconds)
        for node in nodes
        if node.cpus_busy is not None and node.cpus
    ]
    cpu_share = None
    if busy and all(busy) and all(held):
        cpu_share = min(1.0, sum(filter(None, busy)) / sum(filter(None, held)))
    elif is_sampled and cpu_times and len(cpu_times) == sum(len(use.usage) for use in uses):
        cpu_share = min(1.0, sum(each for each, _ in cpu_times) / sum(of for _, of in cpu_times))
    # The last attempt may have ended before its first sample.
    by_attempt = [sum(node.cpus or 0 for node in use.usage if node.cpu_of == "job") for use in uses]
    cpus = used.cpus or max(by_attempt, default=0) or None
    found = structs.replace(used, memory_used=memory, cpus=cpus, cpu_share=cpu_share)
    return found, memory is not None and not is_known


def _may_lack_memory(status: JobStatus) -> bool:
    """Return True if an attempt ended out of host memory, or without a record of why."""
    ends = [attempt.end for attempt in status.history.attempts]
    return status.state == "OUT_OF_MEMORY" or any(
        end is None
        or end.why == "out_of_memory"
        # The kernel may have killed this process for lack of memory.
        or (end.first_failure is not None and end.first_failure.signal == 9)
        for end in ends
    )


def _peak_of_node(usage: Sequence[NodeSeries]) -> int | None:
    """Return the highest peak of the job's memory on one node; None if one of them is unknown."""
    peaks = [node.memory_peak if node.memory_of == "job" else None for node in usage]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known and len(known) == len(peaks) else None


def _measure_tail(usage: Sequence[NodeSeries], attempt: int) -> float | None:
    """Return the seconds at the end of an attempt in which all GPUs were idle; None if unknown.

    GPUs that were never busy are ignored, because they also were idle before.
    """
    tails = []
    for node in usage:
        for gpu in node.gpus if node.attempt == attempt else ():
            if any(value is None for value in gpu.utilizations[1:]):
                return None
            busy = [n for n, value in enumerate(gpu.utilizations) if (value or 0) >= IDLE_PERCENT]
            if busy:
                tails.append(node.times[-1] - node.times[busy[-1]])
    if not tails:
        return None
    return min(tails) if min(tails) >= _MIN_TAIL_S else 0.0


def _measure_energy(
    accounts: Sequence[JobAccounting], uses: Sequence[_AttemptUse]
) -> tuple[float | None, Literal["nodes", "gpus"] | None]:
    """Return the energy of all jobs by Slurm, or else that of the GPUs by their samples.

    The energy by samples is unknown unless they cover nearly all of the time of all GPUs.

    Args:
        uses: Empty if the samples cover only a part of the run.
    """
    joules = [each.energy_joules for each in accounts]
    known = [each for each in joules if each]
    if known and len(known) == len(joules):
        return sum(known) / _JOULES_PER_KWH, "nodes"
    gpu_share = _compute_share(uses, of_gpus=True)
    # More GPUs than the run has are visible where Slurm does not confine jobs to theirs.
    has_others = any(use.sampled_gpus > use.gpus for use in uses)
    if (gpu_share or 0.0) < MIN_TOTAL_SHARE or has_others:
        return None, None
    watts = [
        (gpu.power_watts, node.seconds) for use in uses for node in use.usage for gpu in node.gpus
    ]
    measured = [watt * seconds for watt, seconds in watts if watt is not None]
    if measured and len(measured) == len(watts):
        return sum(measured) / _JOULES_PER_KWH, "gpus"
    return None, None
