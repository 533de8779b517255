"""Nodes, ranks, CPUs and memory: what the job asks of Slurm.

Pure.
"""

from __future__ import annotations

from msgspec import Struct

from hpcrun.errors import InputError
from hpcrun.spec.cluster import Cluster, GpuType, Partition
from hpcrun.spec.job import JobSpec

# Without a word from the profile: Slurm's own default is one CPU for a whole node's task, which
# starves the data loaders; four for each GPU fits nearly every GPU node that is sold.
DEFAULT_CPUS_PER_GPU = 4


class Topology(Struct, frozen=True, kw_only=True):
    """How the processes lie on the nodes; ``memory`` None leaves memory to the cluster."""

    nodes: int
    gpus_per_node: int
    ranks_per_node: int
    cpus_per_rank: int
    memory: str | None
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


def _gpu_type(spec: JobSpec, cluster: Cluster) -> GpuType:
    wanted = spec.resources.gpu_type
    if wanted is None:
        return GpuType()
    if not cluster.gpu_types:
        return GpuType(gres=wanted)
    found = cluster.gpu_types.get(wanted) or cluster.gpu_types.get("*")
    if found is None:
        raise InputError(
            f"resources.gpu_type: {wanted}: cluster {cluster.name} has "
            + ", ".join(sorted(cluster.gpu_types)),
            fix="name one of these, or leave gpu_type out to take any",
        )
    return found


def _partition_facts(name: str | None, cluster: Cluster) -> Partition:
    if name is not None:
        return cluster.partitions.get(name, Partition())
    if len(cluster.partitions) == 1:
        return next(iter(cluster.partitions.values()))
    return Partition()


def build_topology(spec: JobSpec, cluster: Cluster) -> Topology:
    """Lay the job out on nodes.

    CPUs and memory are the GPUs' share of a node when the profile knows the nodes. Raises
    InputError for what the profile knows to be impossible.
    """
    resources, notes = spec.resources, []
    gpus = resources.gpus_per_node
    gpu_type = _gpu_type(spec, cluster)
    partition = resources.partition or gpu_type.partition or cluster.partition
    facts = _partition_facts(partition, cluster)
    if facts.gpus_per_node is not None and gpus > facts.gpus_per_node:
        raise InputError(
            f"resources.gpus_per_node: {gpus}: the nodes of "
            f"{partition or cluster.name} have {facts.gpus_per_node}",
            fix=f"--gpus-per-node {facts.gpus_per_node} with more --nodes",
        )
    cpus_per_gpu = resources.cpus_per_gpu
    if cpus_per_gpu is None and facts.cpus_per_node and facts.gpus_per_node:
        cpus_per_gpu = max(1, facts.cpus_per_node // facts.gpus_per_node)
    if cpus_per_gpu is None:
        cpus_per_gpu = DEFAULT_CPUS_PER_GPU
        notes.append(
            f"{cpus_per_gpu} CPUs per GPU by default: the cluster profile does not know its nodes"
        )
    memory = resources.memory_per_node
    if memory is None and facts.memory_per_node and facts.gpus_per_node and gpus:
        memory = f"{parse_memory_mb(facts.memory_per_node) * gpus // facts.gpus_per_node}M"
    ranks = max(1, gpus)  # a job without GPUs has one rank a node
    return Topology(
        nodes=resources.nodes,
        gpus_per_node=gpus,
        ranks_per_node=ranks,
        cpus_per_rank=cpus_per_gpu,
        memory=memory,
        partition=partition,
        account=resources.account or cluster.account,
        gres=(f"gpu:{gpu_type.gres}:{gpus}" if gpu_type.gres else f"gpu:{gpus}") if gpus else None,
        constraint=gpu_type.constraint,
        notes=notes,
    )
