"""When Slurm would start a job in several shapes and partitions; nothing is submitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct, structs

from hpcrun.actions.checks.submission import Checks
from hpcrun.actions.prepare import load_spec, prepare_job
from hpcrun.actions.submit import estimate_start
from hpcrun.context import Context
from hpcrun.errors import InputError, SchedulerRefused
from hpcrun.monitor import is_expected, parse_time
from hpcrun.plan import parse_seconds


class StartEstimate(Struct, frozen=True, kw_only=True):
    """When one shape of a job would start, according to Slurm.

    Attributes:
        nodes: Number of nodes.
        partition: The partition that Slurm chose; None for a refusal.
        start: A local time in ISO format; None if Slurm estimates none.
        latest_end: The start and the time limit; None without either.
        limit_seconds: The time limit; None without one.
        gpu_hours: GPU-hours if the job runs to its time limit.
        refused: Why Slurm or hpcrun refuses this shape; "" if it would be accepted.
    """

    nodes: int
    partition: str | None = None
    start: str | None = None
    latest_end: str | None = None
    limit_seconds: float | None = None
    gpu_hours: float | None = None
    refused: str = ""


def estimate_starts(
    context: Context,
    job: str,
    overrides: Sequence[str],
    nodes: Sequence[int],
    partitions: Sequence[str],
    now: datetime,
) -> list[StartEstimate]:
    """Ask Slurm when a job would start on each number of nodes and partition, earliest end first.

    Args:
        nodes: The numbers of nodes; empty: that of the job.
        partitions: The partitions; empty: that of the job.

    Raises:
        InputError: The job cannot be loaded, or is a sweep.
        OutOfReach: Slurm does not answer.
    """
    if load_spec(context, job, overrides).sweep_keys:
        raise InputError(f"{job}: a sweep has no single start", fix="hpcrun submit --test-only")
    found = []
    for count in nodes or [0]:
        for partition in partitions or [""]:
            shape = [f"resources.nodes={count}"] if count else []
            shape += [f"resources.partition={partition}"] if partition else []
            one = _estimate(context, job, [*overrides, *shape], now)
            found.append(structs.replace(one, partition=one.partition or partition or None))
    far = datetime.max.isoformat()
    return sorted(found, key=lambda one: (bool(one.refused), one.latest_end or one.start or far))


def _estimate(context: Context, job: str, overrides: Sequence[str], now: datetime) -> StartEstimate:
    spec = load_spec(context, job, overrides)
    count = spec.resources.most_nodes
    try:
        made = prepare_job(context, spec, checks=Checks())
        plan = made.plan
        answer = estimate_start(context, made)
    except (InputError, SchedulerRefused) as error:
        return StartEstimate(nodes=count, refused=error.message.splitlines()[0])
    limit = parse_seconds(dict(plan.directives).get("time") or "")
    is_limited = math.isfinite(limit) and limit > 0
    start = parse_time(answer.start)
    if start is not None and not is_expected(start, now):
        start = None
    end = start + timedelta(seconds=limit) if start is not None and is_limited else None
    gpus = plan.all_nodes * plan.all_gpus_per_node
    return StartEstimate(
        nodes=plan.all_nodes,
        partition=answer.partition,
        start=None if start is None else start.isoformat(),
        latest_end=None if end is None else end.isoformat(),
        limit_seconds=limit if is_limited else None,
        gpu_hours=gpus * limit / 3600 if is_limited else None,
    )
