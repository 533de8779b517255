"""Compare the speeds of runs: speedup and scaling efficiency.

docs/compare.md defines work and the duration of a step. If all runs use the same global batch, the
result is the speedup t(1) / t(N) of strong scaling (Amdahl, AFIPS 1967). If they use the same batch
per GPU, the result is the scaled speedup of weak scaling (Gustafson, Communications of the ACM 31,
1988).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from msgspec import Struct

from hpcrun.curves.curve import Curve, Floats
from hpcrun.curves.names import SAMPLES_PER_SECOND, STEP_SECONDS, TOKENS_PER_SECOND, fold, words
from hpcrun.curves.report.axes import TOKEN_COUNTERS
from hpcrun.curves.report.parsed import ParsedRun
from hpcrun.curves.report.thin import quantile, quantile_of

Kind = Literal["strong", "weak", "mixed"]

SAMPLE_COUNTERS = words(
    "consumed_samples consumed_train_samples samples_consumed samples_seen num_samples "
    "num_samples_seen total_samples n_samples samples_processed"
)
BATCH_SIZES = words(
    "global_batch_size effective_batch effective_batch_size total_batch_size train_batch_size"
)
_ALIKE = 0.02
_PARTS = 20
# A speedup below this with twice the GPUs suggests that the logged rate is per GPU.
_HARDLY = 1.25


class Speed(Struct, frozen=True):
    """The speed of a run; values are None if unknown.

    Attributes:
        gpus: Number of GPUs (or ranks, see ``Scaling.counted``).
        batch: Samples per step over all GPUs.
        step_seconds: Duration of a step in seconds.
        work: Tokens, samples or steps per second.
        speedup: ``work`` relative to the baseline.
        efficiency: Speedup per GPU relative to the baseline; 1 for ideal scaling.
    """

    gpus: int | None = None
    batch: float | None = None
    step_seconds: float | None = None
    work: float | None = None
    speedup: float | None = None
    efficiency: float | None = None

    @property
    def steps_per_second(self) -> float | None:
        return 1 / self.step_seconds if self.step_seconds else None

    @property
    def samples_per_second(self) -> float | None:
        steps = self.steps_per_second
        return steps * self.batch if steps and self.batch else None


class Scaling(Struct, frozen=True):
    """The speeds of several runs.

    Attributes:
        speeds: One speed per run.
        unit: Unit of the work, such as "samples/s"; None if the runs have no measure in common.
        counted: "GPUs", or "ranks" if all runs train on CPUs.
        baseline: Index of the baseline run.
        kind: Kind of scaling; None if batches are unknown or all runs use the same number of GPUs.
        notes: How the speeds were measured, and their limitations.
    """

    speeds: tuple[Speed, ...]
    unit: str | None = None
    counted: str = "GPUs"
    baseline: int | None = None
    kind: Kind | None = None
    notes: tuple[str, ...] = ()


class _Measured(Struct, frozen=True):
    """The results of one method of measurement for all runs.

    Attributes:
        unit: Unit of the values.
        how: Description of the method.
        values: One value per run; nan if unknown.
        is_rate: Whether the values were printed as rates by the logs.
    """

    unit: str
    how: str
    values: Floats
    is_rate: bool = False


def build_scaling(runs: Sequence[ParsedRun], *, per_gpu: bool = False) -> Scaling:
    """Measure the speeds of runs.

    Args:
        runs: The runs.
        per_gpu: Whether the rates in the logs are per GPU.
    """
    counts, counted = _count_gpus(runs)
    gpus, batches = _to_column(counts), _to_column(map(_samples_per_step, runs))
    seconds, by = _measure_step_seconds(runs)
    work = _choose_work(runs, gpus, batches / seconds, seconds, by, per_gpu=per_gpu)
    values = speedup = efficiency = np.full(len(runs), math.nan)
    baseline, kind, notes = None, None, []
    if work is not None:
        values, measured = work.values, np.flatnonzero(np.isfinite(work.values))
        are_known = bool(np.isfinite(gpus).all())
        baseline = int(measured[gpus[measured].argmin() if are_known else 0])
        speedup = values / values[baseline]
        how = ", ".join(part for part in (work.how, "" if work.is_rate else by) if part)
        notes = [f"{work.unit} {how}", *_note_limits(runs, work)]
        if are_known and len(set(counts)) > 1:
            efficiency = speedup * gpus[baseline] / gpus
            kind = _classify_scaling(work, gpus, batches, seconds)
            types = {run.facts.get("resources.gpu_type") for run in runs} - {None}
            if len(types) > 1:
                names = ", ".join(sorted(map(str, types)))
                notes.append(f"the runs use different types of GPUs ({names})")
            hardly = (gpus >= 2 * gpus.min()) & (speedup < _HARDLY)
            if work.is_rate and not per_gpu and hardly.any():
                notes.append(
                    f"{work.unit} hardly grow with the GPUs; "
                    "if the logs print them per GPU, use --per-gpu"
                )
    rows = np.transpose([batches, seconds, values, speedup, efficiency]).tolist()
    speeds = [
        Speed(count, *(None if math.isnan(value) else value for value in row))
        for count, row in zip(counts, rows, strict=True)
    ]
    unit = None if work is None else work.unit
    return Scaling(tuple(speeds), unit, counted, baseline, kind, tuple(notes))


def _to_column(values: Iterable[float | None]) -> Floats:
    """Convert values to an array; missing, non-positive and implausible values become nan."""
    column = np.array([*values], float)
    return np.where((column > 1e-50) & (column < 1e50), column, math.nan)


def _count(column: Floats) -> int:
    return int(np.isfinite(column).sum())


def _count_gpus(runs: Sequence[ParsedRun]) -> tuple[list[int | None], str]:
    """Return the GPUs of each run, or the ranks if no run has GPUs and all ranks are known."""
    gpus = [run.gpus for run in runs]
    worlds = [run.facts.get("world_size", "") for run in runs]
    if not any(gpus) and all(world.isdecimal() for world in worlds):
        return [int(world) for world in worlds], "ranks"
    return gpus, "GPUs"


def _measure_step_seconds(runs: Sequence[ParsedRun]) -> tuple[Floats, str]:
    """Measure the duration of a step in seconds by the method available for the most runs.

    Returns:
        One duration per run (nan if unknown), and a description of the method.
    """
    ways: tuple[tuple[str, Callable[[ParsedRun], float | None]], ...] = (
        ("by the median step time", lambda run: quantile_of(run.curve, STEP_SECONDS, 0.5)),
        ("by the log's time stamps", lambda run: seconds_by_stamps(run.curve)),
        ("by the time between first and last batch, with evaluations", _seconds_by_batches),
    )
    found = [(how, _to_column(map(way, runs))) for how, way in ways]
    how, seconds = max(found, key=lambda each: _count(each[1]))
    return (seconds, how) if _count(seconds) > 1 else (np.full(len(runs), math.nan), "")


def _seconds_by_batches(run: ParsedRun) -> float | None:
    """Return the duration of a step by the recorded time of the loop, for a run in one piece."""
    lasts = [series.summary.last.step for series in run.curve.metrics.values()]
    steps = max((step for step in lasts if step is not None), default=0)
    if run.usage.loop_seconds is None or run.curve.restarts or steps < 2:
        return None
    return run.usage.loop_seconds / steps


def seconds_by_stamps(curve: Curve) -> float | None:
    """Return the duration of a step in seconds from timestamps: the median over run twentieths.

    >>> from hpcrun.curves.curve import build_series
    >>> series = build_series([0, 10, 20, 30], [3.0, 2.0, 2.0, 1.0], [0.0, 5.0, 10.0, 900.0])
    >>> seconds_by_stamps(Curve({"loss": series}, ()))
    0.5
    """
    timed = [series for series in curve.metrics.values() if series.times]
    series = max(timed, key=lambda each: len(each.values), default=None)
    if series is None or series.times is None:
        return None
    steps, times = np.array(series.steps, float), np.array(series.times)
    steps, times = steps[known := ~np.isnan(steps)], times[known]
    if len(steps) < 2:
        return None
    cuts = np.linspace(0, len(steps) - 1, min(_PARTS, len(steps) - 1) + 1).round().astype(int)
    passed, took = np.diff(steps[cuts]), np.diff(times[cuts])
    counts = (passed > 0) & (took > 0)
    return quantile(took[counts] / passed[counts], 0.5)


def _choose_work(
    runs: Sequence[ParsedRun],
    gpus: Floats,
    samples: Floats,
    seconds: Floats,
    by: str,
    *,
    per_gpu: bool,
) -> _Measured | None:
    """Choose the measure of work that is available for the most runs, at least two."""
    tokens = _to_column(_increase_per_step(run.curve, TOKEN_COUNTERS) for run in runs) / seconds
    counted = [
        _Measured("tokens/s", "by the log's token counters", _to_column(tokens)),
        _Measured("samples/s", _source_of_batches(runs), _to_column(samples)),
    ]
    how = "as the logs print them" + (", times the GPUs" if per_gpu else "")
    printed = []
    for unit, name in (("samples/s", SAMPLES_PER_SECOND), ("tokens/s", TOKENS_PER_SECOND)):
        rates = _to_column(quantile_of(run.curve, name, 0.5) for run in runs)
        printed.append(_Measured(unit, how, rates * gpus if per_gpu else rates, is_rate=True))
    best = max([*counted, *printed], key=lambda each: _count(each.values))
    steps = _Measured("steps/s", "", 1 / seconds)
    return next((choice for choice in (best, steps) if _count(choice.values) > 1), None)


def _samples_per_step(run: ParsedRun) -> float | None:
    """Return the samples per step according to the log, or the planned batch size."""
    counted = _batch_of_log(run.curve)
    planned = run.facts.get("effective_batch", "")
    return counted or (float(planned) if planned.isdecimal() else None)


def _batch_of_log(curve: Curve) -> float | None:
    for name in curve.metrics:
        if fold(name.rpartition("/")[2]) in BATCH_SIZES:
            return quantile_of(curve, name, 0.5)
    return _increase_per_step(curve, SAMPLE_COUNTERS)


def _source_of_batches(runs: Sequence[ParsedRun]) -> str:
    counted = [_batch_of_log(run.curve) is not None for run in runs]
    if all(counted):
        return "by the batches that the logs count"
    return "by the planned batches" if not any(counted) else "by batches, counted or planned"


def _increase_per_step(curve: Curve, counters: frozenset[str]) -> float | None:
    """Return the average increase of a counter per step."""
    for name, series in curve.metrics.items():
        first, last = series.summary.first, series.summary.last
        if (
            fold(name.rpartition("/")[2]) in counters
            and None not in (first.step, last.step)
            and (steps := (last.step or 0) - (first.step or 0)) > 0
            and not any(b < a for a, b in pairwise(series.values))
            and last.value > first.value
        ):
            return (last.value - first.value) / steps
    return None


def _classify_scaling(
    work: _Measured, gpus: Floats, batches: Floats, seconds: Floats
) -> Kind | None:
    """Return the kind of scaling: constant global batch (strong), or batch per GPU (weak)."""
    if work.unit == "steps/s":
        return None
    if not work.is_rate or _count(batches) < len(batches):
        batches = work.values * seconds
    if _count(batches) < len(batches):
        return None
    if _are_alike(batches):
        return "strong"
    return "weak" if _are_alike(batches / gpus) else "mixed"


def _are_alike(column: Floats) -> bool:
    return bool(np.ptp(column) <= _ALIKE * column.max())


def _note_limits(runs: Sequence[ParsedRun], work: _Measured) -> list[str]:
    notes = []
    if work.unit == "steps/s":
        notes.append("every step counts as the same work: the batch sizes are not known")
    left = [run.source for run, value in zip(runs, work.values, strict=True) if math.isnan(value)]
    if left:
        notes.append(f"no {work.unit} known for {', '.join(left)}")
    return notes
