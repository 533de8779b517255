"""The limits that no job of a user can pass in a partition, whichever account and QOS it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from hpcrun.plan.topology import parse_seconds
from hpcrun.slurm.config import SlurmConfig
from hpcrun.slurm.partitions import PartitionRow
from hpcrun.slurm.sacctmgr import Association, Qos


class Limits(Struct, frozen=True, kw_only=True):
    """A time limit in Slurm's words, and a number of GPUs; None: no limit that is sure."""

    max_time: str | None = None
    max_gpus: int | None = None


def tightest_for_sure(
    row: PartitionRow,
    config: SlurmConfig,
    associations: Sequence[Association] | None,
    qos: Sequence[Qos] | None,
) -> Limits:
    """Find the limits that hold for every choice that the user has.

    A limit of the partition's QOS counts before one of the job's QOS, and that before one of the
    association; a QOS with OverPartQOS comes first (resource_limits.html, Hierarchy). The
    partition's own MaxTime holds unless a QOS lifts it (PartitionTimeLimit). Of all choices the
    loosest is sure; limits that are not enforced are none.
    """
    if associations is None or "limits" not in config.enforced:
        return Limits(max_time=row.max_time)
    by_name = {one.name: one for one in qos or []}
    choices = list(_choices(row, associations, by_name, config))
    if not choices:
        return Limits(max_time=row.max_time)
    times = [time for time, _ in choices]
    gpus = [limit for _, limit in choices]
    loosest = max(times, key=_seconds)
    return Limits(
        max_time=loosest,
        max_gpus=None if None in gpus else max(limit for limit in gpus if limit is not None),
    )


def _choices(
    row: PartitionRow,
    associations: Sequence[Association],
    qos: dict[str, Qos],
    config: SlurmConfig,
) -> Iterator[tuple[str | None, int | None]]:
    """Give time limit and GPUs of each account with each of its QOS."""
    of_partition = qos.get(row.qos)
    for one in associations:
        if one.partition not in ("", row.name):
            continue
        allowed = [name for name in one.qos if not row.allow_qos or name in row.allow_qos]
        names: list[str | None] = [name for name in allowed if name not in row.deny_qos]
        if "qos" not in config.enforced:
            names = [None]
        for name in names or [None]:
            of_job = qos.get(name) if name is not None else None
            order = [of_partition, of_job]
            if of_job is not None and "overpartqos" in of_job.flags:
                order.reverse()
            times = [each.max_time for each in (*order, one) if each is not None]
            gpus = [each.max_gpus for each in (*order, one) if each is not None]
            time = next((time for time in times if time is not None), None)
            lifts = of_job is not None and "partitiontimelimit" in of_job.flags
            own = None if lifts else row.max_time
            yield (
                min(time, own, key=_seconds),
                next((limit for limit in gpus if limit is not None), None),
            )


def _seconds(time: str | None) -> float:
    return float("inf") if time is None else parse_seconds(time)
