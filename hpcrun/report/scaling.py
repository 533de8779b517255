"""How fast runs work beside each other: speed-up and scaling efficiency.

The speed-up of a run is its work per second over that of the baseline, the run on the fewest GPUs
(the first of them; the first run of all where GPUs are not known). That is the ratio of the times
that both take for the same number of samples: with the same batch on all runs it is the speed-up
t(1) / t(N) of strong scaling (Amdahl, AFIPS 1967), with the same batch on each GPU the scaled
speed-up of weak scaling (Gustafson, Communications of the ACM 31, 1988). The efficiency is the
speed-up over the ratio of the GPUs, 1 for perfect scaling.

Work is what all runs can be measured by, the first of: tokens by a counter in the log; samples, by
a counter or a batch size in the log or the effective batch of a run's plan; samples or tokens per
second as the log prints them; steps, which stand for work only if all runs have the same batch.
Rates that are printed come first where a step is timed by the whole run alone. ``per_gpu``: such
rates are one GPU's, as torchtitan's and torchtune's are.

The time of a step is the median of the step times in the log, which evaluations and checkpoints are
no part of; else by time stamps, the median of twentieths of the run; else the run's seconds over
its steps, with start and end. All runs are measured in the same way, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from hpcrun.metrics.curve import Curve, quantile
from hpcrun.metrics.names import SAMPLES_PER_SECOND, STEP_SECONDS, TOKENS_PER_SECOND, fold
from hpcrun.metrics.parse import ParsedRun
from hpcrun.report.axes import TOKEN_COUNTERS

Kind = Literal["strong", "weak", "mixed"]

SAMPLE_COUNTERS = frozenset(
    {
        *("consumed_samples", "consumed_train_samples", "samples_consumed", "samples_seen"),
        *("num_samples", "num_samples_seen", "total_samples", "n_samples", "samples_processed"),
    }
)
BATCH_SIZES = frozenset(
    {
        *("global_batch_size", "effective_batch", "effective_batch_size", "total_batch_size"),
        "train_batch_size",
    }
)
_ALIKE = 0.02
_PARTS = 20
# Twice the GPUs and hardly faster: perhaps the rate is one GPU's.
_HARDLY = 1.25
_BY_WHOLE_RUN = "by the whole run's time"


class Speed(Struct, frozen=True):
    """How fast a run works; None where that is not known.

    ``batch``: samples in one step, of all GPUs. ``work``: tokens, samples or steps per second.
    ``efficiency``: 1 where N times the GPUs do N times the work.
    """

    gpus: int | None = None
    batch: float | None = None
    step_seconds: float | None = None
    work: float | None = None
    speedup: float | None = None
    efficiency: float | None = None


class Scaling(Struct, frozen=True):
    """The speeds of runs. ``unit``: of the work, as "samples/s"; None: there is none in common.

    ``counted``: "GPUs", or "ranks" where all train on CPUs. ``baseline``: the index of its run.
    ``kind`` is None where the batches are not known, or the GPUs do not differ.
    """

    speeds: tuple[Speed, ...]
    unit: str | None = None
    counted: str = "GPUs"
    baseline: int | None = None
    kind: Kind | None = None
    notes: tuple[str, ...] = ()


class _Measured(Struct, frozen=True):
    """One way to measure all runs: its values, and how they were measured, as text."""

    unit: str
    how: str
    values: list[float | None]
    is_rate: bool = False


def build_scaling(runs: Sequence[ParsedRun], *, per_gpu: bool = False) -> Scaling:
    """Measure the speeds of runs. ``per_gpu``: rates in the logs are one GPU's."""
    gpus, counted = _gpus(runs)
    seconds, by = _step_seconds(runs)
    work = _work(runs, gpus, seconds, by, per_gpu=per_gpu)
    if work is None:
        speeds = [Speed(n, _batch(run), s) for run, n, s in zip(runs, gpus, seconds, strict=True)]
        return Scaling(tuple(speeds), counted=counted)
    how = ", ".join(part for part in (work.how, "" if work.is_rate else by) if part)
    several = None not in gpus and len(set(gpus)) > 1
    measured = [index for index, value in enumerate(work.values) if value is not None]
    baseline = measured[0] if None in gpus else min(measured, key=lambda index: gpus[index] or 0)
    speeds = []
    for run, n, each, done in zip(runs, gpus, seconds, work.values, strict=True):
        speedup = efficiency = None
        if done is not None:
            speedup = done / (work.values[baseline] or 1.0)
            if several and n:
                efficiency = speedup * (gpus[baseline] or 0) / n
        speeds.append(Speed(n, _batch(run), each, done, speedup, efficiency))
    kind = _kind(work, speeds) if several else None
    notes = [f"{work.unit} {how}", *_doubts(runs, work, speeds, several=several, per_gpu=per_gpu)]
    return Scaling(tuple(speeds), work.unit, counted, baseline, kind, tuple(notes))


def _gpus(runs: Sequence[ParsedRun]) -> tuple[list[int | None], str]:
    """Return the GPUs of each run, or the ranks if no run has GPUs and all know their ranks."""
    gpus = [run.gpus for run in runs]
    worlds = [run.facts.get("world_size", "") for run in runs]
    if not any(gpus) and all(world.isdecimal() for world in worlds):
        return [int(world) for world in worlds], "ranks"
    return gpus, "GPUs"


def _step_seconds(runs: Sequence[ParsedRun]) -> tuple[list[float | None], str]:
    """Measure how long a step takes; return also how: by the way that the most runs allow."""
    ways: tuple[tuple[str, Callable[[ParsedRun], float | None]], ...] = (
        ("by the median step time", lambda run: run.curve.quantile(STEP_SECONDS, 0.5)),
        ("by the log's time stamps", lambda run: seconds_by_stamps(run.curve)),
        (_BY_WHOLE_RUN, _seconds_by_record),
    )
    found = [(how, [_sensible(way(run)) for run in runs]) for how, way in ways]
    how, seconds = max(found, key=lambda each: _count(each[1]))
    return (seconds, how) if _count(seconds) > 1 else ([None] * len(runs), "")


def seconds_by_stamps(curve: Curve) -> float | None:
    """Return how long a step takes by time stamps: the median of twentieths of the run.

    >>> from hpcrun.metrics.curve import build_series
    >>> series = build_series([0, 10, 20, 30], [3.0, 2.0, 2.0, 1.0], [0.0, 5.0, 10.0, 900.0])
    >>> seconds_by_stamps(Curve({"loss": series}, ()))
    0.5
    """
    timed = [series for series in curve.metrics.values() if series.times]
    series = max(timed, key=lambda each: len(each.values), default=None)
    if series is None or series.times is None:
        return None
    known = [
        (step, time)
        for step, time in zip(series.steps, series.times, strict=True)
        if step is not None
    ]
    parts = min(_PARTS, len(known) - 1)
    cuts = [round(part * (len(known) - 1) / parts) for part in range(parts + 1)] if parts else []
    paces = [
        (known[b][1] - known[a][1]) / (known[b][0] - known[a][0])
        for a, b in pairwise(cuts)
        if known[b][0] > known[a][0] and known[b][1] > known[a][1]
    ]
    return quantile(paces, 0.5)


def _seconds_by_record(run: ParsedRun) -> float | None:
    metrics = run.curve.metrics.values()
    steps = [step for series in metrics for step in series.steps if step is not None]
    passed = max(steps, default=0) - min(steps, default=0)
    return run.seconds / passed if run.seconds and passed else None


def _work(
    runs: Sequence[ParsedRun],
    gpus: Sequence[int | None],
    seconds: Sequence[float | None],
    by: str,
    *,
    per_gpu: bool,
) -> _Measured | None:
    """Find the work that at least two runs can be measured by, all of them if possible."""
    counted, printed = [], []
    tokens = [_per_step(run.curve, TOKEN_COUNTERS) for run in runs]
    for unit, how, per_step in (
        ("tokens/s", "by the log's token counters", tokens),
        ("samples/s", _source_of_batches(runs), [_batch(run) for run in runs]),
    ):
        pairs = zip(per_step, seconds, strict=True)
        values = [_sensible(amount / each) if amount and each else None for amount, each in pairs]
        counted.append(_Measured(unit, how, values))
    for unit, name in (("samples/s", SAMPLES_PER_SECOND), ("tokens/s", TOKENS_PER_SECOND)):
        rates = [
            _sensible((run.curve.quantile(name, 0.5) or 0) * ((n or 0) if per_gpu else 1))
            for run, n in zip(runs, gpus, strict=True)
        ]
        how = "as the logs print them" + (", times the GPUs" if per_gpu else "")
        printed.append(_Measured(unit, how, rates, is_rate=True))
    # The whole run's time has the start and every evaluation in it; a printed rate has not.
    found = [*printed, *counted] if by == _BY_WHOLE_RUN else [*counted, *printed]
    steps = _Measured("steps/s", "", [1 / s if s else None for s in seconds])
    for choice in (max(found, key=lambda each: _count(each.values)), steps):
        if _count(choice.values) > 1:
            return choice
    return None


def _count(values: Sequence[float | None]) -> int:
    return len(values) - values.count(None)


def _sensible(value: float | None) -> float | None:
    """Drop a value that nothing real has: 0, nan, one that overflows when divided by."""
    return value if value is not None and 1e-50 < value < 1e50 else None


def _batch(run: ParsedRun) -> float | None:
    """Return how many samples a step takes: what the log counts, else what was planned."""
    counted = _batch_of_log(run.curve)
    planned = run.facts.get("effective_batch", "")
    return counted or (float(planned) if planned.isdecimal() else None)


def _batch_of_log(curve: Curve) -> float | None:
    for name in curve.metrics:
        if fold(name.rpartition("/")[2]) in BATCH_SIZES:
            return _sensible(curve.quantile(name, 0.5))
    return _per_step(curve, SAMPLE_COUNTERS)


def _source_of_batches(runs: Sequence[ParsedRun]) -> str:
    counted = [_batch_of_log(run.curve) is not None for run in runs]
    if all(counted):
        return "by the batches that the logs count"
    return "by the planned batches" if not any(counted) else "by batches, counted or planned"


def _per_step(curve: Curve, counters: frozenset[str]) -> float | None:
    """Return how much a counter grows in a step, from its first point to its last."""
    for name, series in curve.metrics.items():
        first, last = series.summary.first, series.summary.last
        if (
            fold(name.rpartition("/")[2]) in counters
            and None not in (first.step, last.step)
            and (steps := (last.step or 0) - (first.step or 0)) > 0
            and not any(b < a for a, b in pairwise(series.values))
            and (slope := _sensible((last.value - first.value) / steps))
        ):
            return slope
    return None


def _kind(work: _Measured, speeds: Sequence[Speed]) -> Kind | None:
    """Return what stays the same while the GPUs grow: the batch, or the batch of each."""
    if work.unit == "steps/s":
        return None
    batches = [speed.batch for speed in speeds]
    if not work.is_rate or None in batches:
        pairs = [(speed.work or 0, speed.step_seconds or 0) for speed in speeds]
        batches = [amount * seconds for amount, seconds in pairs]
    known = [(b, speed.gpus) for b, speed in zip(batches, speeds, strict=True) if b and speed.gpus]
    if len(known) < len(speeds):
        return None
    if _alike([batch for batch, _ in known]):
        return "strong"
    return "weak" if _alike([batch / gpus for batch, gpus in known]) else "mixed"


def _alike(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= _ALIKE * max(values)


def _doubts(
    runs: Sequence[ParsedRun],
    work: _Measured,
    speeds: Sequence[Speed],
    *,
    several: bool,
    per_gpu: bool,
) -> list[str]:
    """Return notes on what the numbers may not mean."""
    notes = []
    if work.unit == "steps/s":
        notes.append("every step counts as the same work: the batch sizes are not known")
    left = [run.source for run, speed in zip(runs, speeds, strict=True) if speed.work is None]
    if left:
        notes.append(f"no {work.unit} known for {', '.join(left)}")
    types = {run.facts.get("resources.gpu_type") for run in runs} - {None}
    if several and len(types) > 1:
        notes.append(f"the runs use different types of GPUs ({', '.join(sorted(map(str, types)))})")
    fewest = min((speed.gpus or 0 for speed in speeds), default=0)
    hardly = [
        speed
        for speed in speeds
        if speed.gpus and speed.speedup and speed.gpus >= 2 * fewest and speed.speedup < _HARDLY
    ]
    if several and work.is_rate and not per_gpu and hardly:
        notes.append(
            f"{work.unit} hardly grow with the GPUs; if the logs print them per GPU, use --per-gpu"
        )
    return notes
