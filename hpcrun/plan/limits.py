"""Requests that the profile knows to be impossible, found before the job is queued."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from hpcrun.errors import Problem
from hpcrun.plan.directives import as_cores, parse_memory_mb
from hpcrun.plan.gpus import with_gpu_type
from hpcrun.plan.times import parse_seconds
from hpcrun.plan.types import Plan
from hpcrun.spec import Cluster, JobSpec, Partition

# How many partitions a message names if the job fits none.
NAMED = 3
# The fix names other partitions of the profile that fit.
_OR_OTHER, _OTHER = ", or another partition", re.compile("another partition|a partition with GPUs")


class Limit(NamedTuple):
    """A request beyond a partition: the job's key and value, the limit, the profile's key."""

    field: str
    asked: str
    there: str
    key: str
    fix: str


def find_limits(
    spec: JobSpec, plan: Plan, cluster: Cluster, source: str, *, default: str | None = None
) -> list[Problem]:
    """Find requests beyond the job's partition, by the profile's dated facts.

    ``default`` is the partition of a job that names none (SBATCH_PARTITION). Of several partitions,
    one that fits is enough. QOS and reservations may lift a partition's limits, so the user can
    override these problems.
    """
    spec = with_gpu_type(spec, cluster)
    named = dict(plan.directives).get("partition") or default
    names = [name for name in (named or "").split(",") if name] or list(cluster.partitions)
    dated = _format_date(cluster)
    fits_none: list[tuple[str, list[Limit]]] = []
    for name in names:
        facts = cluster.partitions.get(name)
        facts = facts and as_cores(facts, dict(plan.directives))
        found = [] if facts is None else list(_limits(spec, plan, name, facts))
        if not found:
            return []
        fits_none.append((name, found))
    if len(fits_none) == 1:
        name, found = fits_none[0]
        others = list(_find_alternatives(spec, plan, cluster))
        place = f"partition {' or '.join(others[:NAMED])}"
        return [
            Problem(
                limit.field,
                f"{limit.asked}: {limit.there} "
                f"({source}: partitions.{name}.{limit.key}, {dated}); "
                + (_OTHER.sub(place, limit.fix) if others else limit.fix.removesuffix(_OR_OTHER)),
            )
            for limit in found
        ]
    return (
        [_explain_no_partition(named, fits_none, f"{source}: partitions, {dated}")]
        if fits_none
        else []
    )


def _find_alternatives(spec: JobSpec, plan: Plan, cluster: Cluster) -> Iterator[str]:
    """Yield partitions that satisfy the request, with CPUs and memory derived from their nodes."""
    resources, kinds = spec.resources, set(spec.resources.gpu_types)
    ours = {"resources.cpus_per_gpu"} if resources.cpus_per_gpu is None else set()
    if resources.memory_per_node is None:
        ours |= {"slurm.mem", "slurm.mem-per-cpu", "slurm.mem-per-gpu"}
    for name, facts in cluster.partitions.items():
        found = _limits(spec, plan, name, as_cores(facts, dict(plan.directives)))
        if (not kinds or kinds & facts.gpu_types.keys()) and {one.field for one in found} <= ours:
            yield name


def _explain_no_partition(
    named: str | None, found: list[tuple[str, list[Limit]]], where: str
) -> Problem:
    """Explain why none of several partitions fits, the closest ones first."""
    nearest = sorted(found, key=lambda pair: len(pair[1]))
    reasons = [f"{limits[0].there}, not {limits[0].asked}" for _, limits in nearest[:NAMED]]
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    asked = f"{named}: " if named else ""
    return Problem(
        "resources.partition" if named else "resources",
        f"{asked}the job fits none of the partitions: {'; '.join(reasons)}{more} ({where})",
    )


def find_unlisted_partitions(plan: Plan, cluster: Cluster, source: str) -> dict[str, str]:
    """Return partitions that the profile does not list, each with the listed alternatives."""
    named = dict(plan.directives).get("partition")
    if not named or not cluster.read_on or not cluster.partitions:
        return {}
    found = {}
    for name in named.split(","):
        if name not in cluster.partitions:
            close = difflib.get_close_matches(name, cluster.partitions, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            listed = ", ".join(sorted(cluster.partitions))
            found[name] = f"not among those of {source} ({_format_date(cluster)}): {listed}{hint}"
    return found


def check_array_size(
    runs: int, known: Cluster | int, source: str = "", *, submit: str = ""
) -> list[Problem]:
    """Refuse a sweep with more runs than Slurm's arrays have tasks (slurm.conf, MaxArraySize).

    Args:
        known: MaxArraySize itself, or the profile that may contain it.
        source: The profile's file.
        submit: The arguments of `hpcrun submit` for the whole sweep, if parts of it can be
            submitted.
    """
    if isinstance(known, int):
        most, where = known, "MaxArraySize"
    elif known.max_array_size is not None:
        most, where = known.max_array_size, f"{source}: max_array_size, {_format_date(known)}"
    else:
        return []
    if runs <= most:
        return []
    message = f"{runs} runs: an array has {most} tasks at most ({where}); "
    if not submit:
        return [Problem("sweep", f"{message}submit fewer")]
    count = -(-runs // most)
    way_out = f"submit it in {count} parts: {command_for_parts(submit, count)}"
    return [Problem("sweep", f"{message}{way_out}")]


def command_for_parts(submit: str, count: int, *, waits: bool = False) -> str:
    """Format the shell command that submits a sweep in parts.

    Args:
        submit: The arguments of `hpcrun submit` for the whole sweep.
        waits: Submit each part when the one before has ended.

    >>> command_for_parts("sweep --as lr", 2)
    'for part in 1 2; do hpcrun submit --set sweep_part=$part/2 sweep --as lr; done'
    """
    parts = " ".join(map(str, range(1, count + 1))) if count <= 9 else f"$(seq {count})"
    wait = " --wait" if waits else ""
    return (
        f"for part in {parts}; do hpcrun submit --set sweep_part=$part/{count}{wait} {submit}; done"
    )


def _format_date(cluster: Cluster) -> str:
    return f"read on {cluster.read_on}" if cluster.read_on else "no date"


def _limits(spec: JobSpec, plan: Plan, name: str, facts: Partition) -> Iterator[Limit]:
    too_many = list(_gpu_limits(spec, plan, name, facts))
    yield from too_many
    yield from _node_limits(plan, name, facts)
    # Requests that hpcrun derives from the GPUs are too large only because the GPUs are too many.
    if not too_many or spec.resources.cpus_per_gpu is not None:
        yield from _cpu_limits(spec, plan, name, facts)
    if not too_many or spec.resources.memory_per_node is not None:
        yield from _memory_limits(spec, plan, name, facts)
    yield from _time_limits(plan, name, facts)


def _gpu_limits(spec: JobSpec, plan: Plan, name: str, facts: Partition) -> Iterator[Limit]:
    wanted, field = plan.requested_gpus_per_node * plan.runs_per_job, "resources.gpus_per_node"
    if plan.runs_per_job > 1:
        field = "sweep_per_node"
    if not wanted:
        return
    has, kinds, key = facts.gpus_per_node, spec.resources.gpu_types, "gpus_per_node"
    what, kind = "GPUs", " or ".join(kinds)
    if kinds and facts.gpu_types:
        what, key = f"{kind} GPUs", "gpu_types"
        has = max(facts.gpu_types.get(one, 0) for one in kinds)
    if has == 0:
        fix = "name a partition with GPUs"
        if key == "gpu_types":
            field = "resources.gpu_type"
            fix = f"name another partition; here are {', '.join(sorted(facts.gpu_types))}"
        asked = kind if kind and key == "gpu_types" else str(wanted)
        yield Limit(field, asked, f"partition {name} has no {what}", key, fix)
    elif has is not None and wanted > has:
        total = wanted * plan.nodes
        nodes = -(-total // has)
        fix = f"--gpus-per-node {has} --nodes {nodes}"
        fix += f" for {total} GPUs in all" if nodes * has == total else ""
        fix += _OR_OTHER
        if plan.runs_per_job > 1:
            fix = f"{has // plan.gpus_per_node} runs at most" if plan.gpus_per_node <= has else fix
        yield Limit(field, str(wanted), f"partition {name} has {has} {what} a node", key, fix)
    most, total = facts.max_gpus, wanted * plan.requested_nodes
    if most is not None and total > most:
        there = f"you can have {most} at once in partition {name}"
        asked = (
            f"{total} on {plan.requested_nodes} nodes" if plan.requested_nodes > 1 else str(wanted)
        )
        yield Limit(field, asked, there, "max_gpus", f"request at most {most}")


def _node_limits(plan: Plan, name: str, facts: Partition) -> Iterator[Limit]:
    wanted, field = plan.requested_nodes, "resources.nodes"
    caps = [
        (facts.max_nodes, "max_nodes", f"gives a job {facts.max_nodes} at most"),
        (facts.nodes, "nodes", f"has {facts.nodes}"),
    ]
    known = [(most, key, there) for most, key, there in caps if most is not None and wanted > most]
    if known:
        most, key, there = min(known)
        fix = f"--nodes {most}{_OR_OTHER}"
        yield Limit(field, str(wanted), f"partition {name} {there}", key, fix)
    least = facts.min_nodes
    if least is not None and wanted < least:
        there = f"partition {name} does not accept jobs with fewer than {least}"
        yield Limit(field, str(wanted), there, "min_nodes", "name another partition")


def _cpu_limits(spec: JobSpec, plan: Plan, name: str, facts: Partition) -> Iterator[Limit]:
    has, ranks = facts.cpus_per_node, plan.ranks_per_node * plan.runs_per_job
    wanted = plan.cpus_per_rank * ranks
    asks = {"cpus-per-task", "cpus-per-gpu"} & dict(plan.directives).keys()
    if has is None or not asks or wanted <= has:
        return
    share, each = has // ranks, "GPU" if plan.gpus_per_node else "node"
    asked = str(plan.cpus_per_rank)
    if spec.resources.cpus_per_gpu is None:
        asked += " (hpcrun's default)"
    if ranks > 1:
        asked += f" for each of {ranks} GPUs are {wanted}"
    yield Limit(
        "resources.cpus_per_gpu",
        asked,
        f"partition {name} has {has} CPUs a node",
        "cpus_per_node",
        f"{share} for each {each} at most" if share else "request fewer GPUs on more nodes",
    )


def _memory_limits(spec: JobSpec, plan: Plan, name: str, facts: Partition) -> Iterator[Limit]:
    if facts.memory_per_node is None:
        return
    gpus = plan.gpus_per_node * plan.runs_per_job
    cpus = plan.cpus_per_rank * plan.ranks_per_node * plan.runs_per_job
    most = parse_memory_mb(facts.memory_per_node)
    for option, times in (("mem", 1), ("mem-per-cpu", cpus), ("mem-per-gpu", gpus)):
        text = dict(plan.directives).get(option) or ""
        own = spec.resources.memory_per_node
        field = "resources.memory_per_node" if own else f"slurm.{option}"
        if re.fullmatch("[0-9]+[KMGT]?B?", text) and parse_memory_mb(text) * times > most:
            asked = own or (text if times == 1 else f"{text} for each of {times}")
            there = f"partition {name} has {facts.memory_per_node} a node"
            yield Limit(field, asked, there, "memory_per_node", "0 takes all of a node's")


def _time_limits(plan: Plan, name: str, facts: Partition) -> Iterator[Limit]:
    # With --time-min Slurm shortens the job as needed (sbatch.1).
    options = dict(plan.directives)
    least = options.get("time-min")
    asked = least or options.get("time")
    if facts.max_time is None or not asked:
        return
    try:  # 0 means no limit (sbatch.1, --time); Slurm itself reports malformed times
        limit, wanted = (parse_seconds(text) or math.inf for text in (facts.max_time, asked))
    except ValueError:
        return
    if wanted <= limit:
        return
    field = "slurm.time-min" if least else "resources.time"
    there = f"partition {name} gives a job {facts.max_time} at most"
    yield Limit(field, asked, there, "max_time", f"--time {facts.max_time}{_OR_OTHER}")
