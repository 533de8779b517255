"""When Slurm would start a job in several shapes and partitions, and end; nothing is submitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from hpcrun.actions.checks.submission import Checks
from hpcrun.actions.cluster_host import ClusterHost, open_host
from hpcrun.actions.earlier_runs import (
    Basis,
    PredictedTime,
    TrainingTime,
    count_devices,
    measure_earlier_runs,
    predict_time,
    select_times,
)
from hpcrun.actions.prepare import Prepared, load_spec, prepare_job
from hpcrun.actions.submit import build_start_query
from hpcrun.context import Context, slurm_transport
from hpcrun.errors import HpcrunError, InputError, SchedulerRefused
from hpcrun.monitor import is_expected, parse_time
from hpcrun.plan import Plan, parse_seconds
from hpcrun.remote import Answers, RunCommand
from hpcrun.slurm import (
    Estimate,
    HoursLimit,
    associations_argv,
    client,
    find_hours_limits,
    parse_associations,
    show_submit_limits_argv,
)

_USER = RunCommand(("id", "-un"), timeout=10.0)
# The name is filled in on the cluster's host, so that no other trip is needed for it.
_AS_USER = ("bash", "-c", 'exec "${@//@USER@/$(id -un)}"', "bash")
_RECORDS = RunCommand((*_AS_USER, *show_submit_limits_argv("@USER@")), timeout=20.0)
_ASSOCIATIONS = RunCommand((*_AS_USER, *associations_argv("@USER@", "")), timeout=20.0)


class StartEstimate(Struct, frozen=True, kw_only=True):
    """When one shape of a job would start, according to Slurm, and end, by earlier runs.

    Attributes:
        nodes: Number of nodes.
        partition: The partition that Slurm chose; None for a refusal.
        start: A local time in ISO format; None if Slurm estimates none.
        latest_end: The start and the time limit; None without either.
        limit_seconds: The time limit; None without one.
        gpu_hours: GPU-hours if the job runs to its time limit.
        expected_seconds: The training time, by earlier runs; None if unknown.
        expected_end: The start and the training time, or the latest end if that is earlier.
        expected_gpu_hours: GPU-hours until ``expected_end``.
        basis: How the training time follows from earlier runs; None if unknown.
        refused: Why Slurm or hpcrun refuses this shape; "" if it would be accepted.
    """

    nodes: int
    partition: str | None = None
    start: str | None = None
    latest_end: str | None = None
    limit_seconds: float | None = None
    gpu_hours: float | None = None
    expected_seconds: float | None = None
    expected_end: str | None = None
    expected_gpu_hours: float | None = None
    basis: Basis | None = None
    refused: str = ""


class StartComparison(Struct, frozen=True):
    """When a job would start in several shapes, the earliest end first.

    Shapes whose training needs more than the time limit follow those that finish.

    Attributes:
        earlier_runs: The runs from which training times follow.
        limits: The limits on hours that apply to the job's account.
    """

    shapes: list[StartEstimate]
    earlier_runs: list[TrainingTime]
    limits: list[HoursLimit]


def estimate_starts(
    context: Context,
    job: str,
    overrides: Sequence[str],
    nodes: Sequence[int],
    partitions: Sequence[str],
    now: datetime,
) -> StartComparison:
    """Ask Slurm when a job would start on each number of nodes and partition, in one trip.

    Args:
        nodes: The numbers of nodes; empty: that of the job.
        partitions: The partitions; empty: that of the job.

    Raises:
        InputError: The job cannot be loaded, or is a sweep.
        OutOfReach: Slurm does not answer.
    """
    if load_spec(context, job, overrides).sweep_keys:
        raise InputError(f"{job}: a sweep has no single start", fix="hpcrun submit --test-only")
    host = open_host(context)
    refused: list[StartEstimate] = []
    prepared: list[tuple[str, Prepared]] = []
    for count in dict.fromkeys(nodes or [0]):
        for partition in dict.fromkeys(partitions or [""]):
            shape = [f"resources.nodes={count}"] if count else []
            shape += [f"resources.partition={partition}"] if partition else []
            spec = load_spec(context, job, [*overrides, *shape])
            try:
                made = prepare_job(context, spec, host=host, checks=Checks())
                if made.plan.components:
                    raise InputError("a heterogeneous job has no single partition")
                prepared.append((partition, made))
            except InputError as error:
                refused.append(_refuse(spec.resources.most_nodes, partition, error))
    if not prepared:
        return StartComparison(refused, [], [])

    queries = [build_start_query(context, made) for _, made in prepared]
    answers = slurm_transport(context).run_queries([*queries, _USER, _RECORDS, _ASSOCIATIONS])

    times = measure_earlier_runs(context, prepared[0][1])
    found = []
    used: dict[str, TrainingTime] = {}
    for (partition, made), query in zip(prepared, queries, strict=True):
        try:
            answer = client.parse_expected_start(answers[query])
        except SchedulerRefused as error:
            found.append(_refuse(made.plan.all_nodes, partition, error))
            continue
        chosen = select_times(times, made.spec, made.plan)
        expected = predict_time(chosen, count_devices(made.plan)[0], made.plan.effective_batch)
        used |= {each.run_id: each for each in (expected.runs if expected else ())}
        found.append(_build_estimate(made.plan, answer, expected, now))

    return StartComparison(
        sorted([*found, *refused], key=rank_estimate),
        sorted(used.values(), key=lambda each: each.size),
        _find_limits(host, prepared[0][1].plan, answers),
    )


def rank_estimate(one: StartEstimate) -> tuple[bool, bool, str]:
    """Return the sort key of a shape: the earliest end first, then those that end unfinished."""
    takes, limit = one.expected_seconds, one.limit_seconds
    is_cut = takes is not None and limit is not None and takes > limit
    end = one.expected_end or one.latest_end or one.start or datetime.max.isoformat()
    return bool(one.refused), is_cut, end


def _refuse(nodes: int, partition: str, error: HpcrunError) -> StartEstimate:
    reason = error.message.splitlines()[0]
    return StartEstimate(nodes=nodes, partition=partition or None, refused=reason)


def _find_limits(host: ClusterHost, plan: Plan, answers: Answers) -> list[HoursLimit]:
    """Find the limits on hours that apply to the job; empty if Slurm does not show them."""
    directives = dict(plan.directives)
    account = directives.get("account") or host.login.environ.get("SBATCH_ACCOUNT") or ""
    if not account:
        known = parse_associations(answers[_ASSOCIATIONS].stdout)
        account = next((each.default_account for each in known), "")
    return find_hours_limits(
        answers[_RECORDS].stdout,
        user=answers[_USER].stdout.strip(),
        account=account,
        partition=directives.get("partition") or "",
    )


def _build_estimate(
    plan: Plan, answer: Estimate, expected: PredictedTime | None, now: datetime
) -> StartEstimate:
    limit = parse_seconds(dict(plan.directives).get("time") or "")
    is_limited = math.isfinite(limit) and limit > 0
    start = parse_time(answer.start)
    if start is not None and not is_expected(start, now):
        start = None
    gpus = plan.all_nodes * plan.all_gpus_per_node
    takes = None if expected is None else expected.seconds
    if takes is not None and is_limited:
        takes = min(takes, limit)

    def end_after(seconds: float | None) -> str | None:
        if start is None or seconds is None:
            return None
        return (start + timedelta(seconds=round(seconds))).isoformat()

    return StartEstimate(
        nodes=plan.all_nodes,
        partition=answer.partition or dict(plan.directives).get("partition"),
        start=None if start is None else start.isoformat(),
        latest_end=end_after(limit if is_limited else None),
        limit_seconds=limit if is_limited else None,
        gpu_hours=gpus * limit / 3600 if is_limited else None,
        expected_seconds=None if expected is None else expected.seconds,
        expected_end=end_after(takes),
        expected_gpu_hours=None if takes is None else gpus * takes / 3600,
        basis=None if expected is None else expected.basis,
    )
