"""The efficiency of runs: what they held, how much of it trained, and what to request instead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

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
# Advice needs samples, or a run, of at least ten minutes, and samples of most of the time.
MIN_SAMPLED_S, MIN_COVERAGE = 600.0, 0.5
# The nodes write a line a minute, so a shorter idle time at the end is not measured.
_MIN_TAIL_S = 120.0
# Advice is given if it saves at least so much; what it suggests has this margin.
_MIN_UNUSED_MEMORY, _MIN_UNUSED_BYTES = 0.5, 4 << 30
_MIN_LIMIT_RATIO, _MIN_LIMIT_SAVED_S, _LIMIT_UNIT_S = 2.0, 1800.0, 900
_MARGIN = 1.25
_MIN_LOST_SHARE, _LOW_USE = 0.1, 50.0
_JOULES_PER_KWH = 3.6e6

AdviceKind = Literal[
    "idle_gpus", "idle_tail", "low_use", "memory", "time_limit", "startup", "replayed", "checkpoint"
]


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
        gpu_use: The mean utilization of all GPUs, in percent.
        node_memory_peak: The peak of the job's host memory on one node, by samples of all nodes.
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
    gpu_use: float | None = None
    gpu_samples: list[GpuEfficiency] = []
    node_memory_peak: int | None = field(default=None, name="node_memory_peak_bytes")
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


class Advice(Struct, frozen=True, kw_only=True):
    """A suggestion with the numbers it is based on.

    Attributes:
        words: The runs it is about, by their names on the command line.
        option: The option that follows the suggestion; None if there is no single one.
    """

    kind: AdviceKind
    words: list[str]
    text: str
    option: str | None = None


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
        used: The host memory and CPU time that the run used.
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
    energy, energy_of = _measure_energy(accounts, usage)
    gpu_samples = _measure_gpus(usage)
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
        sampled_seconds=_sampled_seconds(usage),
        gpu_use=_mean_use(gpu_samples),
        gpu_samples=gpu_samples,
        node_memory_peak=_peak_of_node(usage),
        used=used or ResourceUsage(),
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
    tail = _measure_tail(usage, attempts[-1].index) if status.final else None
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
    known = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    return sum(known) / len(known) if known else None


def _sampled_seconds(usage: Sequence[NodeSeries]) -> float:
    """Return the time with samples: of each attempt that of the node with the fewest."""
    by_attempt: dict[int, float] = {}
    for node in usage:
        by_attempt[node.attempt] = min(by_attempt.get(node.attempt, math.inf), node.seconds)
    return sum(by_attempt.values())


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
    accounts: Sequence[JobAccounting], usage: Sequence[NodeSeries]
) -> tuple[float | None, Literal["nodes", "gpus"] | None]:
    """Return the energy of all jobs by Slurm, or else that of the GPUs by their samples."""
    joules = [each.energy_joules for each in accounts]
    known = [each for each in joules if each]
    if known and len(known) == len(joules):
        return sum(known) / _JOULES_PER_KWH, "nodes"
    watts = [(gpu.power_watts, node.seconds) for node in usage for gpu in node.gpus]
    measured = [watt * seconds for watt, seconds in watts if watt is not None]
    if measured and len(measured) == len(watts):
        return sum(measured) / _JOULES_PER_KWH, "gpus"
    return None, None


# ---- advice


def advise(runs: Sequence[RunEfficiency]) -> tuple[list[Advice], list[str]]:
    """Return suggestions, and notes on what the runs have too few samples for.

    Runs of a sweep, and tasks of an array, have one request, so they get one suggestion: for the
    task that needs the most.
    """
    groups: dict[str, list[RunEfficiency]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    found: list[Advice] = []
    few: list[RunEfficiency] = []
    for group in groups.values():
        started = [run for run in group if run.elapsed_seconds]
        if not started:
            continue
        if all(_has_samples(run) for run in started):
            found += _advise_on_gpus(started)
        else:
            few += [run for run in started if not _has_samples(run)]
        found += [*_advise_on_memory(started), *_advise_on_limit(group)]
        found += _advise_on_losses(started)
    return found, _note_few_samples(few)


def _has_samples(run: RunEfficiency) -> bool:
    elapsed = run.elapsed_seconds or 0.0
    return run.sampled_seconds >= max(MIN_SAMPLED_S, MIN_COVERAGE * elapsed)


def _note_few_samples(runs: Sequence[RunEfficiency]) -> list[str]:
    without = [run for run in runs if not run.sampled_seconds]
    notes = []
    for group, what in (
        ([run for run in runs if run.sampled_seconds], "too few samples of the nodes' use"),
        (without, "no samples of the nodes' use"),
    ):
        if len(group) > 1:
            notes.append(f"{len(group)} of the runs have {what} for advice on GPUs")
        for run in group if len(group) == 1 else ():
            length = f" ({_minutes(run.sampled_seconds)} of {_minutes(run.elapsed_seconds or 0)})"
            needs = f"; advice on GPUs needs {MIN_SAMPLED_S / 60:.0f} min, and half of the run"
            notes.append(f"{run.word}: {what}{length if run.sampled_seconds else ''}{needs}")
    return notes


def _advise_on_gpus(runs: Sequence[RunEfficiency]) -> list[Advice]:
    gpus = [gpu for run in runs for gpu in run.gpu_samples]
    words = [run.word for run in runs]
    uses = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    if not uses or len(uses) != len(gpus):
        return []
    idle = sum(use < IDLE_PERCENT for use in uses)
    sampled = _minutes(min(run.sampled_seconds for run in runs))
    if idle:
        each = f"{idle} of {len(uses)} GPUs idle (under {IDLE_PERCENT:.0f} % of {sampled})"
        return [
            Advice(kind="idle_gpus", words=words, text=each, option=_suggest_shape(runs))
            if idle < len(uses)
            else Advice(
                kind="idle_gpus",
                words=words,
                text=f"{each}: does the program find its GPUs? If it needs none, request none",
                option=None if any(run.is_fixed_shape for run in runs) else "--gpus-per-node 0",
            )
        ]
    mean = sum(uses) / len(uses)
    if mean < _LOW_USE and len(runs) == 1:
        text = f"the GPUs were busy for {mean:.0f} % of {sampled}"
        return [
            Advice(
                kind="low_use",
                words=words,
                text=f"{text}; hpcrun why {words[0]} lists what slows the run down",
            )
        ]
    return []


def _suggest_shape(runs: Sequence[RunEfficiency]) -> str | None:
    """Return the options that request only the GPUs that some run used."""
    per_node, nodes = 0, 0
    for run in runs:
        busy: dict[str, int] = {}
        for gpu in run.gpu_samples:
            busy[gpu.node] = busy.get(gpu.node, 0) + ((gpu.utilization or 0.0) >= IDLE_PERCENT)
        per_node = max([per_node, *busy.values()])
        # An attempt may have run on other nodes, so nodes are counted by the size of the run.
        used = sum(count > 0 for count in busy.values())
        nodes = max(nodes, used if len(busy) == run.nodes else run.nodes or 0)
    first = runs[0]
    if any(run.is_fixed_shape or not run.gpus_per_node for run in runs):
        return None
    options = []
    if first.gpus_per_node and per_node < first.gpus_per_node:
        options.append(f"--gpus-per-node {per_node}")
    if first.nodes and nodes < first.nodes - first.spare_nodes:
        options.append(f"--nodes {nodes}")
    return " ".join(options) or None


def _advise_on_memory(runs: Sequence[RunEfficiency]) -> list[Advice]:
    """Suggest less host memory if all runs used less than half of what they requested."""
    known = [
        (run, run.used.memory_asked, run.used.memory_used)
        for run in runs
        if run.used.memory_asked and run.used.memory_used
    ]
    # A run that is short, or still runs, may not have reached its peak.
    is_sure = all(run.final and (run.elapsed_seconds or 0) >= MIN_SAMPLED_S for run in runs)
    if not known or len(known) != len(runs) or not is_sure or any(r.is_exclusive for r in runs):
        return []
    run, asked, used = max(known, key=lambda each: each[2] / each[1])
    unused = 1 - used / asked
    if unused < _MIN_UNUSED_MEMORY or asked - used < _MIN_UNUSED_BYTES:
        return []
    peaks = [
        each.node_memory_peak or (each.used.memory_used if each.nodes == 1 else None)
        for each in runs
    ]
    option = None
    if all(peaks):
        # Slurm's value and the samples may differ: the larger one is safe.
        most = max(
            max(peak or 0, math.ceil((each.used.memory_used or 0) / (each.nodes or 1)))
            for peak, each in zip(peaks, runs, strict=True)
        )
        gib = max(1, math.ceil(_MARGIN * most / (1 << 30)))
        option = f"--set resources.memory_per_node={gib}G" if run.run_id else f"--mem={gib}G"
        option = None if run.is_fixed_shape or gib * (run.nodes or 1) << 30 >= asked else option
    at_most = f"{used / (1 << 30):.1f} of {asked / (1 << 30):.1f} GiB at most"
    text = f"{100 * unused:.0f} % of the requested host memory unused ({at_most})"
    return [Advice(kind="memory", words=[each.word for each in runs], text=text, option=option)]


def _advise_on_limit(runs: Sequence[RunEfficiency]) -> list[Advice]:
    """Suggest a shorter time limit if all runs completed in less than half of it."""
    longest = max((run.longest_seconds or 0.0 for run in runs), default=0.0)
    limits = [run.limit_seconds for run in runs if run.limit_seconds]
    is_sure = len(limits) == len(runs) and all(run.state == "COMPLETED" for run in runs)
    if not is_sure or longest < MIN_SAMPLED_S:
        return []
    limit = min(limits)
    enough = _LIMIT_UNIT_S * math.ceil(_MARGIN * longest / _LIMIT_UNIT_S)
    if limit / longest < _MIN_LIMIT_RATIO or limit - enough < _MIN_LIMIT_SAVED_S:
        return []
    text = f"time limit {limit / longest:.1f} times longer than needed"
    text += f" ({_clock(limit)}, and {_clock(longest)} were used); shorter jobs start earlier"
    option = f"--time {_clock(enough)}"
    return [Advice(kind="time_limit", words=[r.word for r in runs], text=text, option=option)]


def _advise_on_losses(runs: Sequence[RunEfficiency]) -> list[Advice]:
    """Suggest what avoids the largest losses of a sweep or a run."""
    hours = sum(run.hours or 0.0 for run in runs)
    seconds = sum(run.elapsed_seconds or 0.0 for run in runs)
    # Without a goodput it is unknown which part of the time a loss is.
    if seconds < MIN_SAMPLED_S or not hours or any(run.goodput is None for run in runs):
        return []
    unit = "GPU hours" if runs[0].unit == "gpu" else "node hours"
    words = [run.word for run in runs]
    texts: tuple[tuple[AdviceKind, tuple[str, ...], str], ...] = (
        ("startup", ("startup", "restart"), "before the first step: stage data, cache builds"),
        ("replayed", ("replayed", "stalled"), "repeated or stalled: save checkpoints more often"),
        ("checkpoint", ("checkpoint",), "for checkpoints: save fewer, or asynchronously"),
        ("idle_tail", ("idle_tail",), "with idle GPUs after the last step: end the job earlier"),
    )
    found = []
    for kind, names, text in texts:
        lost = sum(getattr(run.lost, name) or 0.0 for run in runs for name in names)
        if lost / hours >= _MIN_LOST_SHARE:
            amount = f"{100 * lost / hours:.0f} % of the time ({lost:.2f} of {hours:.2f} {unit})"
            found.append(Advice(kind=kind, words=words, text=f"{amount} {text}"))
    return found


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
