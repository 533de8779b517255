"""How long a job trains, by earlier runs of the same job on the same or other numbers of GPUs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from typing import Literal, NoReturn

from msgspec import Struct, structs

from hpcrun.actions.measurements import list_measurements
from hpcrun.actions.parse import CurveLog
from hpcrun.actions.prepare import Prepared
from hpcrun.context import Context
from hpcrun.curves import seconds_per_step
from hpcrun.errors import HpcrunError, InputError
from hpcrun.files import read_plain
from hpcrun.monitor import Source, list_names, run_name
from hpcrun.plan import Plan
from hpcrun.runs import RUN_ID, TASK_ID, RunFolder, read_plan
from hpcrun.spec import Batch, JobSpec, Resources, load_job

# A first step compiles and allocates, so that a log of few steps says nothing about the rest.
_MIN_STEPS = 10
# A time is not predicted for more or fewer GPUs than this factor away from a measured number.
_MAX_FACTOR = 4.0
# Records of the newest runs with the job's name that are compared with it, and logs that are read.
_MAX_RECORDS = 100
_MAX_LOGS = 8
_TAIL_BYTES = 1 << 22

Basis = Literal["measured", "interpolated", "extrapolated", "linear"]


class TrainingTime(Struct, frozen=True):
    """The time that all steps of a run take, without its start, by the pace of its log.

    Attributes:
        size: The number of GPUs of its training, or of nodes for a job without GPUs.
        unit: "GPU" or "node".
        seconds: The planned number of steps times the seconds per step.
        effective_batch: Samples per step; None if unknown.
        batch: The job's keys for the batch.
        partition: The requested partition; None for the default.
        measured_steps: The steps of ``hpcrun fit --measure`` that the time follows from; None for
            an ordinary run.
    """

    run_id: str
    size: int
    unit: str
    seconds: float
    effective_batch: int | None
    batch: Batch
    partition: str | None
    measured_steps: int | None = None


class PredictedTime(Struct, frozen=True):
    """A training time that follows from runs, and how."""

    seconds: float
    basis: Basis
    runs: list[TrainingTime]


def count_devices(plan: Plan) -> tuple[int, str]:
    """Return the number and the unit of GPUs of a training, or else of nodes, without spares."""
    gpus = plan.nodes * plan.gpus_per_node
    return (gpus, "GPU") if gpus else (plan.nodes, "node")


def measure_earlier_runs(context: Context, made: Prepared) -> list[TrainingTime]:
    """Measure the newest runs of the same job on each number of GPUs, the smallest number first.

    Resources and the batch may differ from those of the job; other settings may not. Measurements
    of a few steps (hpcrun fit --measure) count where there is no run.
    """
    wanted = _without_resources(made.spec)
    found: dict[tuple[object, ...], TrainingTime] = {}
    name, names, logs = run_name(made.plan.run_id), list_names(context.runs_dir), 0
    same = (each for each in names if RUN_ID.fullmatch(each) and not TASK_ID.fullmatch(each))
    same = (each for each in same if run_name(each) == name)
    for run_id, _ in zip(same, range(_MAX_RECORDS), strict=False):
        run = RunFolder(context.runs_dir / run_id)
        with contextlib.suppress(HpcrunError, OSError, UnicodeDecodeError):
            plan = read_plan(run)
            if plan is None or plan.roles or plan.node_range:
                continue
            text = read_plain(run.path / "spec.yaml").decode()
            spec = load_job(text, source=run_id, resolve=_refuse_extends)
            partition = dict(plan.directives).get("partition")
            key = (count_devices(plan), partition, plan.effective_batch, repr(spec.batch))
            if key in found or _without_resources(spec) != wanted:
                continue
            logs += 1
            if (seconds := _measure_run(context, run)) is not None:
                found[key] = TrainingTime(
                    *(run_id, *count_devices(plan), seconds, plan.effective_batch),
                    batch=spec.batch,
                    partition=partition,
                )
            if logs == _MAX_LOGS:
                break
    for each in list_measurements(context.cache_dir):
        if each.seconds_per_step is None or each.total_steps is None:
            continue
        with contextlib.suppress(HpcrunError):
            spec = load_job(each.spec, source=each.run_id, resolve=_refuse_extends)
            key = ((each.size, each.unit), each.partition, each.effective_batch, repr(spec.batch))
            if key not in found and _without_resources(spec) == wanted:
                found[key] = TrainingTime(
                    *(each.run_id, each.size, each.unit),
                    seconds=each.total_steps * each.seconds_per_step,
                    effective_batch=each.effective_batch,
                    batch=spec.batch,
                    partition=each.partition,
                    measured_steps=each.steps,
                )
    return sorted(found.values(), key=lambda each: each.size)


def _without_resources(spec: JobSpec) -> JobSpec:
    """Return a job without what may differ between runs on several sizes, and without names."""
    resources = Resources(gpu_type=spec.resources.gpu_type)
    return structs.replace(
        spec, name=None, description="", group=None, resources=resources, batch=Batch()
    )


def _refuse_extends(name: str) -> NoReturn:
    raise InputError(f"{name}: the record of a run is complete in itself")


def _measure_run(context: Context, run: RunFolder) -> float | None:
    """Return the seconds that all steps of a run take; None if its log does not show it."""
    log = CurveLog(context, Source(run.run_id, run=run), tail=_TAIL_BYTES)
    log.read()
    curve = log.curve(all_trainings=False)
    steps = [step for series in curve.metrics.values() for step in series.steps if step is not None]
    pace = seconds_per_step(curve)
    if not steps or max(steps) - min(steps) < _MIN_STEPS or not pace or not curve.total_steps:
        return None
    return curve.total_steps * pace


def select_times(times: Iterable[TrainingTime], spec: JobSpec, plan: Plan) -> list[TrainingTime]:
    """Select the runs in a job's partition whose batch is that of the job."""
    partition, batch = dict(plan.directives).get("partition"), plan.effective_batch
    unit = count_devices(plan)[1]
    return [
        each
        for each in times
        if (each.partition, each.unit) == (partition, unit)
        and (each.batch == spec.batch or (batch is not None and each.effective_batch == batch))
    ]


def predict_time(
    times: Sequence[TrainingTime], size: int, effective_batch: int | None
) -> PredictedTime | None:
    """Predict the training time on a number of GPUs; None if nothing suggests one.

    Between and beyond two measured sizes the time follows the power law through them, which is a
    constant efficiency per doubling. With one measured size, linear scaling is assumed, but only if
    the samples per step are known to be the same: otherwise the number of steps may depend on them.

    Args:
        effective_batch: Samples per step on ``size`` GPUs; None if unknown.

    >>> one = TrainingTime("a", 4, "GPU", 800.0, 64, Batch(), None)
    >>> predict_time([one], 8, 64).seconds, predict_time([one], 8, 128)
    (400.0, None)
    >>> two = TrainingTime("b", 8, "GPU", 500.0, 64, Batch(), None)
    >>> found = predict_time([one, two], 16, 64)
    >>> found.seconds, found.basis, predict_time([one, two], 64, 64)
    (312.5, 'extrapolated', None)
    """
    by_size = {each.size: each for each in reversed(times)}
    if size in by_size:
        return PredictedTime(by_size[size].seconds, "measured", [by_size[size]])
    known = sorted(by_size)
    nearest = min(known, key=lambda each: abs(math.log(each / size)), default=0)
    if not nearest or not 1 / _MAX_FACTOR <= size / nearest <= _MAX_FACTOR:
        return None
    if len(known) == 1:
        only = by_size[nearest]
        if effective_batch is None or only.effective_batch != effective_batch:
            return None
        return PredictedTime(only.seconds * only.size / size, "linear", [only])
    above = next((index for index, each in enumerate(known) if each > size), len(known))
    first = min(max(above - 1, 0), len(known) - 2)
    low, high = by_size[known[first]], by_size[known[first + 1]]
    slope = math.log(high.seconds / low.seconds) / math.log(high.size / low.size)
    # Superlinear speed-up, such as that of caches, does not continue.
    slope = slope if low.size < size < high.size else max(slope, -1.0)
    base = low if size < high.size else high
    basis: Basis = "interpolated" if low.size < size < high.size else "extrapolated"
    return PredictedTime(base.seconds * (size / base.size) ** slope, basis, [low, high])
