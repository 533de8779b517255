"""Nodes, ranks, CPUs and memory: what the job asks of Slurm."""

from __future__ import annotations

import re

from msgspec import Struct

from hpcrun.errors import Problem
from hpcrun.plan.gpus import check_type_name, gpu_notes, is_slice
from hpcrun.spec.cluster import Cluster, GpuType, Partition
from hpcrun.spec.job import JobSpec

# Without a word from the profile: Slurm's own default is one CPU for a whole node's task, which
# starves the data loaders; four for each GPU fits nearly every GPU node that is sold.
DEFAULT_CPUS_PER_GPU = 4


class Topology(Struct, frozen=True, kw_only=True):
    """How the processes lie on the nodes; ``memory`` None leaves memory to the cluster.

    ``asks_cpus``: the number of CPUs is known, and asked for. ``exclusive``: --exclusive is said.
    """

    nodes: int
    gpus_per_node: int
    ranks_per_node: int
    cpus_per_rank: int
    asks_cpus: bool
    memory: str | None
    exclusive: bool
    partition: str | None
    account: str | None
    gres: str | None
    constraint: str | None
    notes: list[str]


def parse_memory_mb(text: str) -> int:
    """Turn Slurm's memory text into MB; a bare number is MB.

    >>> parse_memory_mb("200G"), parse_memory_mb("1000"), parse_memory_mb("2T")
    (204800, 1000, 2097152)
    """
    digits = text.rstrip("BKMGT")
    unit = text[len(digits) :].removesuffix("B") or "M"
    kib = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}[unit]
    return int(digits) * kib // 1024


def parse_seconds(text: str) -> float:
    """Turn Slurm's time text into seconds; UNLIMITED is infinite (sbatch.1, --time).

    >>> parse_seconds("90"), parse_seconds("1:30"), parse_seconds("24:00:00"), parse_seconds("2-12")
    (5400, 90, 86400, 216000)
    >>> parse_seconds("UNLIMITED")
    inf
    """
    if not re.match("[0-9]", text):
        return float("inf")
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = [*parts, 0, 0][:3]
        return int(days) * 86400 + hours * 3600 + minutes * 60 + seconds
    if len(parts) == 1:
        return parts[0] * 60
    total = 0
    for part in parts:
        total = total * 60 + part
    return total


def _gpu_type(spec: JobSpec, cluster: Cluster, problems: list[Problem]) -> GpuType:
    wanted = spec.resources.gpu_type
    if wanted is None:
        return GpuType()
    if not cluster.gpu_types:
        message = check_type_name(wanted)
        if message:
            problems.append(Problem("", None, "resources.gpu_type", message))
        return GpuType(gres=wanted)
    found = cluster.gpu_types.get(wanted) or cluster.gpu_types.get("*")
    if found is None:
        message = f"{wanted}: cluster {cluster.name} has " + ", ".join(sorted(cluster.gpu_types))
        message += "; name one of these, or leave it out to take any"
        problems.append(Problem("", None, "resources.gpu_type", message))
    return found or GpuType()


def _partition_facts(name: str | None, cluster: Cluster) -> Partition:
    if name is not None:
        return cluster.partitions.get(name, Partition())
    if len(cluster.partitions) == 1:
        return next(iter(cluster.partitions.values()))
    return Partition()


def build_topology(spec: JobSpec, cluster: Cluster, problems: list[Problem]) -> Topology:
    """Lay the job out on nodes.

    CPUs and memory are the GPUs' share of a node where the profile knows the nodes, and all of it
    where nodes are given or asked for whole. A GPU type that cannot be had is added to
    ``problems``; what no node has is plan.limits' business.
    """
    resources = spec.resources
    gpus = resources.gpus_per_node
    ranks = max(1, gpus)  # a job without GPUs has one rank a node
    gpu_type = _gpu_type(spec, cluster, problems)
    partition = resources.partition or gpu_type.partition or cluster.partition
    facts = _partition_facts(partition, cluster)
    exclusive = resources.exclusive or {**cluster.slurm, **spec.slurm}.get("exclusive") is True
    whole = exclusive or facts.exclusive
    cpus, notes = _cpus_per_rank(spec, facts, ranks, whole=whole)
    memory = resources.memory_per_node
    if memory is None and whole:
        memory = "0"  # sbatch.1, --mem: all of the node's
    elif memory is None and gpus and facts.memory_per_gpu:
        memory = f"{parse_memory_mb(facts.memory_per_gpu) * gpus}M"
    elif memory is None and facts.memory_per_node and facts.gpus_per_node and gpus:
        memory = f"{parse_memory_mb(facts.memory_per_node) * gpus // facts.gpus_per_node}M"
    made = Topology(
        nodes=resources.nodes,
        gpus_per_node=gpus,
        ranks_per_node=ranks,
        cpus_per_rank=cpus or DEFAULT_CPUS_PER_GPU,
        asks_cpus=cpus is not None,
        memory=memory,
        exclusive=exclusive,
        partition=partition,
        account=resources.account or cluster.account,
        gres=(f"gpu:{gpu_type.gres}:{gpus}" if gpu_type.gres else f"gpu:{gpus}") if gpus else None,
        constraint=gpu_type.constraint,
        notes=[*notes, *gpu_notes(spec, cluster)],
    )
    _check_gpu_type(spec, gpu_type, made, problems)
    return made


def _cpus_per_rank(
    spec: JobSpec, facts: Partition, ranks: int, *, whole: bool
) -> tuple[int | None, list[str]]:
    """The CPUs of a rank, and what to tell; None for all of a node that nobody knows."""
    resources = spec.resources
    if resources.cpus_per_gpu is not None:
        return resources.cpus_per_gpu, []
    if facts.cpus_per_gpu and resources.gpus_per_node:
        return facts.cpus_per_gpu, []
    if facts.cpus_per_node and whole:
        return max(1, facts.cpus_per_node // ranks), []
    if facts.cpus_per_node and facts.gpus_per_node and resources.gpus_per_node:
        return max(1, facts.cpus_per_node // facts.gpus_per_node), []
    if whole:
        return None, [
            f"the ranks share all CPUs of a node, with {DEFAULT_CPUS_PER_GPU} OpenMP threads each: "
            "the cluster profile does not know how many CPUs there are"
        ]
    if not resources.gpus_per_node:
        note = f"{DEFAULT_CPUS_PER_GPU} CPUs on each node by default: resources.cpus_per_gpu"
        return DEFAULT_CPUS_PER_GPU, [f"{note} says another number"]
    note = f"{DEFAULT_CPUS_PER_GPU} CPUs per GPU by default"
    return DEFAULT_CPUS_PER_GPU, [f"{note}: the cluster profile does not know its nodes"]


def _check_gpu_type(
    spec: JobSpec, gpu_type: GpuType, made: Topology, problems: list[Problem]
) -> None:
    wanted = spec.resources.gpu_type or ""
    ranks = made.nodes * made.gpus_per_node
    names = [name for name in (wanted, gpu_type.gres) if name]
    if ranks > 1 and is_slice(names, gpu_type):
        # NCCL's user guide, Using MIG instances: there is no way between them but the network.
        message = f"{ranks} ranks on slices of GPUs ({wanted}): NCCL cannot join MIG slices; "
        message += "take one slice, or whole GPUs"
        problems.append(Problem("", None, "resources.gpu_type", message))
    only_place = gpu_type.partition if not (gpu_type.gres or gpu_type.constraint) else None
    if only_place not in (None, made.partition):
        message = f"{wanted}: it is told by its partition, {only_place}; leave partition out"
        problems.append(Problem("", None, "resources.partition", message))
