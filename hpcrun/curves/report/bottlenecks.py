"""Find what slows a training down, from the numbers in its log and of its ranks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from hpcrun.curves.curve import Curve
from hpcrun.curves.names import STEP_SECONDS, fold, words
from hpcrun.curves.report.parsed import ParsedRun
from hpcrun.curves.report.scaling import Scaling
from hpcrun.curves.report.thin import quantile_of
from hpcrun.text import format_bytes

# Below this efficiency the scaling of a run is explained.
POOR_EFFICIENCY = 0.7
# Shares of the time of a step, or of the GPU's memory, from which they are mentioned.
_MUCH_WAITING = 0.2
_MUCH_COMMUNICATION = 0.2
_LITTLE_MEMORY = 0.5
# The slowest twentieth of the steps takes at least this many times the median.
_IRREGULAR = 2.0
_MIN_STEPS = 20

# Times of loading data that training loops print beside the time of a step.
_DATA_TIMES = words(
    "data_time data_loading_time dataloader_time data_load_time dataload_time load_time "
    "data_wait_time time_data time_load data_wait"
)
# Times of a step without a known unit, which is that of the data's time in the same log.
_STEP_TIMES = ("step_time", "iter_time", "iteration_time", "batch_time", "train_step_time")
# DeepSpeed's wall_clock_breakdown: the parts of a step, and the communication within them.
_STEP_PARTS = ("fwd", "bwd", "step_ms")
_COMMUNICATION = "bwd_allreduce"


def find_bottlenecks(run: ParsedRun) -> list[str]:
    """List what takes time in a training although no GPU computes meanwhile, the largest first.

    Each entry names the number that shows it, and what to change.
    """
    found: list[tuple[float, str]] = []
    for finding in (_waits_for_data(run), _straggler(run), _communicates(run.curve)):
        found += [finding] if finding is not None else []
    texts = [text for _, text in sorted(found, key=lambda each: -each[0])]
    return [*texts, *_irregular_steps(run.curve), *_settings(run)]


def explain_scaling(runs: Sequence[ParsedRun], scaling: Scaling) -> list[str]:
    """Explain for each run that scales badly what its numbers show."""
    notes = []
    base = scaling.speeds[scaling.baseline] if scaling.baseline is not None else None
    for run, speed in zip(runs, scaling.speeds, strict=True):
        if base is None or speed.efficiency is None or speed.efficiency >= POOR_EFFICIENCY:
            continue
        found = find_bottlenecks(run)
        if speed.batch and base.batch and speed.gpus and base.gpus:
            per_gpu, before = speed.batch / speed.gpus, base.batch / base.gpus
            slower = (speed.step_seconds or 0) / (base.step_seconds or math.inf)
            if per_gpu < 0.75 * before:
                found.append(
                    f"the batch per GPU is {per_gpu:.4g} instead of {before:.4g}, so that "
                    "communication weighs more: scale the batch with the GPUs, if the training "
                    "allows it"
                )
            elif math.isclose(per_gpu, before, rel_tol=0.1) and slower > 1.2:
                found.append(
                    f"with the same batch per GPU, a step takes {slower:.2g} times as long: "
                    f"{1 - 1 / slower:.0%} of it is communication, or waiting for other ranks"
                )
        if not found:
            found = [
                "its numbers do not show why: log the time for loading data, or set "
                "deepspeed.config: {wall_clock_breakdown: true}"
            ]
        notes.append(
            f"{run.source} has an efficiency of {speed.efficiency:.0%}: {'; '.join(found)}"
        )
    return notes


def _waits_for_data(run: ParsedRun) -> tuple[float, str] | None:
    shares = run.usage.data_shares
    # The lower median: of two ranks, one that waits longer is a straggler.
    share = statistics.median_low(shares.values()) if shares else 0.0
    if not shares:
        times = _median_times(run.curve)
        data = next((times[name] for name in times if name in _DATA_TIMES), 0.0)
        steps = [quantile_of(run.curve, STEP_SECONDS, 0.5), *map(times.get, _STEP_TIMES)]
        # A time in other units than the first step time is no part of it.
        share = next((data / each for each in steps if each and data <= each), 0.0)
    if not _MUCH_WAITING <= share <= 1:
        return None
    return share, (
        f"{share:.0%} of the time the ranks wait for data: more workers of the data loader, "
        "faster storage (stage: copies data to each node), or less work per sample"
    )


def _median_times(curve: Curve) -> dict[str, float]:
    """Return the median of each metric, by the last part of its name."""
    medians = ((name, quantile_of(curve, name, 0.5)) for name in curve.metrics)
    return {fold(name.rpartition("/")[2]): value for name, value in medians if value is not None}


def _straggler(run: ParsedRun) -> tuple[float, str] | None:
    """Describe a rank that waits longer for its data than the others, which wait for it."""
    shares = run.usage.data_shares
    if len(shares) < 2:
        return None
    rank = max(shares, key=lambda each: shares[each])
    others = float(np.median([share for each, share in shares.items() if each != rank]))
    if shares[rank] - others < _MUCH_WAITING:
        return None
    return shares[rank] - others, (
        f"rank {rank} waits for data {shares[rank]:.0%} of the time, the others {others:.0%}, and "
        "they wait for it: look at its node's storage and CPUs, and at the lengths of its samples"
    )


def _communicates(curve: Curve) -> tuple[float, str] | None:
    times = _median_times(curve)
    whole = sum(times.get(name, 0.0) for name in _STEP_PARTS)
    share = times.get(_COMMUNICATION, 0.0) / whole if whole else 0.0
    if not _MUCH_COMMUNICATION <= share <= 1:
        return None
    return share, (
        f"{share:.0%} of a step is the reduction of gradients ({_COMMUNICATION}): more accumulated "
        "steps, a larger batch per GPU, or a faster network between the nodes"
    )


def _irregular_steps(curve: Curve) -> list[str]:
    series = curve.metrics.get(STEP_SECONDS)
    half, most = (quantile_of(curve, STEP_SECONDS, share) for share in (0.5, 0.95))
    if series is None or series.summary.count < _MIN_STEPS or not half or not most:
        return []
    if most < _IRREGULAR * half:
        return []
    return [
        f"one step in twenty takes at least {most / half:.2g} times the median: checkpoints, "
        "evaluations, data that runs out, or samples of different length"
    ]


def _settings(run: ParsedRun) -> list[str]:
    """List settings that cost speed, and memory that is free."""
    found = []
    facts, usage = run.facts, run.usage
    parts = [
        f"{part} on {device}"
        for part in ("optimizer", "param")
        if (device := facts.get(f"deepspeed.offload.{part}", "none")) != "none"
    ]
    has_room = usage.peak_memory and usage.gpu_memory
    is_room = has_room and (usage.peak_memory or 0) < _LITTLE_MEMORY * (usage.gpu_memory or 0)
    if parts:
        found.append(
            f"DeepSpeed offloads ({', '.join(parts)}), and moves data between host and GPU in "
            "each step"
        )
    if is_room and usage.peak_memory and usage.gpu_memory:
        use = "offload less, or take" if parts else "take"
        found.append(
            f"the peak memory is {format_bytes(usage.peak_memory)} of "
            f"{format_bytes(usage.gpu_memory)}: {use} a larger batch per GPU"
        )
        if facts.get("deepspeed.zero_stage") == "3" and not parts:
            found.append("ZeRO-3 gathers all parameters in each step: stage 2 communicates less")
    is_wide = facts.get("resources.nodes", "1") not in ("", "1")
    if is_wide and facts.get("nccl.fabric") == "ethernet":
        found.append("the nodes communicate over Ethernet (nccl.fabric)")
    return found
