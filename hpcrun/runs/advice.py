"""Advice from the efficiency of runs: what to request instead, with the numbers it is based on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from hpcrun.runs.efficiency import (
    IDLE_PERCENT,
    MIN_SAMPLED_S,
    MIN_TOTAL_SHARE,
    GpuEfficiency,
    RunEfficiency,
)

# Advice is given if it saves at least so much; what it suggests has this margin.
_MIN_UNUSED_MEMORY, _MIN_UNUSED_BYTES = 0.5, 4 << 30
_MIN_LIMIT_RATIO, _MIN_LIMIT_SAVED_S, _LIMIT_UNIT_S = 2.0, 1800.0, 900
_MARGIN = 1.25
_MIN_LOST_SHARE, _LOW_USE = 0.1, 50.0
# A suggestion about GPUs needs samples of so much of the run.
_MIN_COVERAGE = 0.5

AdviceKind = Literal[
    "idle_gpus", "idle_tail", "low_use", "memory", "time_limit", "startup", "replayed", "checkpoint"
]


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
            few += [run for run in started if run.gpus and not _has_samples(run)]
        found += [*_advise_on_memory(started), *_advise_on_limit(group)]
        found += _advise_on_losses(started)
    return found, [*_note_few_samples(few), *_note_partial_samples(runs)]


def _has_samples(run: RunEfficiency) -> bool:
    elapsed = run.elapsed_seconds or 0.0
    return run.judged_seconds >= max(MIN_SAMPLED_S, _MIN_COVERAGE * elapsed)


def _lacks_gpus(run: RunEfficiency) -> bool:
    return run.sampled_gpus is not None and run.sampled_gpus != run.training_gpus


def _note_few_samples(runs: Sequence[RunEfficiency]) -> list[str]:
    without = [run for run in runs if not run.sampled_seconds]
    partly = [run for run in runs if run.sampled_seconds and _lacks_gpus(run)]
    short = [run for run in runs if run.sampled_seconds and not _lacks_gpus(run)]
    notes = []
    for group, what in (
        (short, "too few samples of the nodes' use"),
        (without, "no samples of the nodes' use"),
        (partly, "no samples of exactly their GPUs"),
    ):
        if len(group) > 1:
            notes.append(f"{len(group)} of the runs have {what} for advice on GPUs")
        for run in group if len(group) == 1 else ():
            length = f" ({_minutes(run.sampled_seconds)} of {_minutes(run.elapsed_seconds or 0)})"
            text = f"{what}{length if run.sampled_seconds else ''}"
            needs = f"{MIN_SAMPLED_S / 60:.0f} min of an attempt, and half of the run"
            if group is partly:
                text = describe_sampled_gpus(run.sampled_gpus or 0, run.training_gpus)
                needs = "samples of all of the run's GPUs, and of no others"
            notes.append(f"{run.word}: {text}; advice on GPUs needs {needs}")
    return notes


def _note_partial_samples(runs: Sequence[RunEfficiency]) -> list[str]:
    """Note which of several runs have numbers of a part of them; one run is shown in detail."""
    shares = [(run.word, run.sampled_share or 0.0) for run in runs if run.sampled_seconds]
    partial = [(word, share) for word, share in shares if share < MIN_TOTAL_SHARE]
    if len(runs) == 1 or not partial:
        return []
    names = ", ".join(f"{word} ({100 * share:.0f} %)" for word, share in partial[:3])
    more = f" and {len(partial) - 3} more" if len(partial) > 3 else ""
    return [f"GPU use and memory by samples are of a part of the time of: {names}{more}"]


def describe_sampled_gpus(sampled: int, held: int) -> str:
    """Describe of how many GPUs there are samples, if not of exactly those of the run.

    >>> describe_sampled_gpus(1, 4), describe_sampled_gpus(8, 1), describe_sampled_gpus(4, 4)
    ('1 of 4 GPUs sampled', '8 GPUs sampled, and the run had 1', '')
    """
    if sampled > held:
        return f"{sampled} GPUs sampled, and the run had {held}"
    return f"{sampled} of {held} GPUs sampled" if sampled < held else ""


def _advise_on_gpus(runs: Sequence[RunEfficiency]) -> list[Advice]:
    """Suggest fewer GPUs if some were idle in each attempt, or to explain a low use."""
    if any(gpu.utilization is None for run in runs for gpu in run.gpu_samples):
        return []
    words = [run.word for run in runs]
    # Of each run the attempt that used the most GPUs: an attempt may fail before it uses any.
    gpus = [gpu for run in runs for gpu in min(run.judged_attempts, key=_count_idle)]
    idle = _count_idle(gpus)
    if idle:
        sampled = _minutes(min(gpu.seconds for gpu in gpus))
        each = f"{idle} of {len(gpus)} GPUs idle (under {IDLE_PERCENT:.0f} % of {sampled})"
        return [
            Advice(kind="idle_gpus", words=words, text=each, option=_suggest_shape(runs))
            if idle < len(gpus)
            else Advice(
                kind="idle_gpus",
                words=words,
                text=f"{each}: does the program find its GPUs? If it needs none, request none",
                option=None if any(run.is_fixed_shape for run in runs) else "--gpus-per-node 0",
            )
        ]
    first = runs[0]
    if len(runs) == 1 and first.gpu_use is not None and first.gpu_use < _LOW_USE:
        sampled = _minutes(first.sampled_seconds)
        text = f"the GPUs were busy for {first.gpu_use:.0f} % of {sampled}"
        return [
            Advice(
                kind="low_use",
                words=words,
                text=f"{text}; hpcrun why {words[0]} lists what slows the run down",
            )
        ]
    return []


def _count_idle(gpus: Sequence[GpuEfficiency]) -> int:
    return sum((gpu.utilization or 0.0) < IDLE_PERCENT for gpu in gpus)


def _suggest_shape(runs: Sequence[RunEfficiency]) -> str | None:
    """Return the options that request only the GPUs that some attempt used."""
    per_node, nodes = 0, 0
    for gpus in (gpus for run in runs for gpus in run.judged_attempts):
        busy: dict[str, int] = {}
        for gpu in gpus:
            busy[gpu.node] = busy.get(gpu.node, 0) + ((gpu.utilization or 0.0) >= IDLE_PERCENT)
        per_node = max([per_node, *busy.values()])
        nodes = max(nodes, sum(count > 0 for count in busy.values()))
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
    # A run that is short, or still runs, may not have reached its peak; nor is the peak known if
    # an attempt or a job lacks a record. After an attempt without enough memory, none is unused.
    is_sure = all(
        run.final
        and (run.elapsed_seconds or 0) >= MIN_SAMPLED_S
        and run.has_all_records
        and not (run.is_memory_partial or run.may_lack_memory or run.is_exclusive)
        for run in runs
    )
    # The request is per node, so the node with the highest peak decides. Slurm's value and the
    # samples may differ: the larger one is safe.
    known = [
        (
            run,
            run.used.memory_asked,
            max(run.used.memory_used, (run.node_memory_peak or 0) * (run.nodes or 1)),
        )
        for run in runs
        if run.used.memory_asked and run.used.memory_used
    ]
    if not known or len(known) != len(runs) or not is_sure:
        return []
    run, asked, used = max(known, key=lambda each: each[2] / each[1])
    unused = 1 - used / asked
    if unused < _MIN_UNUSED_MEMORY or asked - used < _MIN_UNUSED_BYTES:
        return []
    option = None
    if all(each.node_memory_peak or each.nodes == 1 for each in runs):
        most = max(math.ceil(peak / (each.nodes or 1)) for each, _, peak in known)
        gib = max(1, math.ceil(_MARGIN * most / (1 << 30)))
        option = f"--set resources.memory_per_node={gib}G" if run.run_id else f"--mem={gib}G"
        option = None if run.is_fixed_shape or gib * (run.nodes or 1) << 30 >= asked else option
    at_most = f"{used / (1 << 30):.1f} of {asked / (1 << 30):.1f} GiB at most"
    text = f"{100 * unused:.0f} % of the requested host memory unused ({at_most})"
    return [Advice(kind="memory", words=[each.word for each in runs], text=text, option=option)]


def _advise_on_limit(runs: Sequence[RunEfficiency]) -> list[Advice]:
    """Suggest a shorter time limit if all runs completed in less than half of it.

    A run with several attempts gets no suggestion: it needs its time without the interruptions.
    """
    longest = max((run.longest_seconds or 0.0 for run in runs), default=0.0)
    limits = [run.limit_seconds for run in runs if run.limit_seconds]
    is_sure = all(run.state == "COMPLETED" and run.attempts == 1 for run in runs)
    if not is_sure or len(limits) != len(runs) or longest < MIN_SAMPLED_S:
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
