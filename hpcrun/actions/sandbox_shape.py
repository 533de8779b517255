"""Shape a sandbox like a cluster's profile: its partitions, GPU types and limits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from hpcrun.errors import InputError
from hpcrun.plan import parse_memory_mb
from hpcrun.sandbox import (
    MAX_GPUS_PER_NODE,
    MAX_NODES,
    MEMORY_MB,
    NodeKind,
    SandboxPartition,
    SandboxShape,
    cpus_per_node,
)
from hpcrun.spec import Cluster, GpuType, Partition

# Keys of a profile that determine how a job requests nodes; the others only apply to the cluster.
_KEPT = (
    *("partition", "account", "gpu_type", "partitions", "gpu_types"),
    *("max_array_size", "slurm", "rename"),
)
# The default number of nodes of each kind: for a job on two nodes and another one beside it.
_NODES = 4
# Matches words that need no quoting, which slurm.conf lacks.
_WORD = re.compile(r"[A-Za-z0-9._@+-]+")


def build_cluster_shape(cluster: Cluster, source: str, nodes: int | None = None) -> SandboxShape:
    """Return a sandbox's shape with nodes for each partition of the profile.

    A partition with GPUs of several types gets nodes of each type.

    Args:
        source: The source of the profile, for messages.
        nodes: The number of nodes of each kind; None: that of the profile, 4 at most.

    Raises:
        InputError: The profile cannot be represented in a sandbox.
    """
    if not cluster.partitions:
        raise InputError(
            f"{source}: it lists no partitions, so the sandbox has nothing to copy",
            fix="hpcrun init, on the cluster, writes them",
        )
    kinds = [
        kind
        for name, partition in cluster.partitions.items()
        for kind in _list_node_kinds(name, partition, cluster, nodes)
    ]
    named = ((kind.partition, kind.gpu_type, *kind.feature.split(",")) for kind in kinds)
    names = {name for words in named for name in words}
    odd = sorted(name for name in names if name and not _WORD.fullmatch(name))
    if odd:
        raise InputError(f"{source}: {odd[0]!r} cannot be a name in slurm.conf")
    most = max(kind.gpus for kind in kinds)
    if most > MAX_GPUS_PER_NODE:
        raise InputError(f"{source}: {most} GPUs per node; a sandbox's have {MAX_GPUS_PER_NODE}")
    total = sum(kind.nodes for kind in kinds)
    if total > MAX_NODES:
        raise InputError(
            f"{source}: {total} nodes; a sandbox has {MAX_NODES} at most",
            fix=f"--nodes {MAX_NODES // len(kinds)}, of each of the {len(kinds)} kinds"
            if len(kinds) <= MAX_NODES
            else "name fewer partitions in a copy of the profile",
        )
    plain: dict[str, Any] = msgspec.to_builtins(cluster)
    kept = {key: plain[key] for key in _KEPT if plain[key]}
    for part in ("partitions", "gpu_types"):
        kept[part] = {name: _drop_defaults(each) for name, each in plain[part].items()}
    default = cluster.partition or next(iter(cluster.partitions))
    return SandboxShape(
        kinds=tuple(kinds),
        queues=tuple(
            SandboxPartition(
                name=name, options=tuple(_list_limits(partition)), is_default=name == default
            )
            for name, partition in cluster.partitions.items()
        ),
        profile=yaml.safe_dump(kept, sort_keys=False, allow_unicode=True),
        like=source,
    )


def _list_node_kinds(
    name: str, partition: Partition, cluster: Cluster, nodes: int | None
) -> Iterator[NodeKind]:
    """Yield a partition's kinds of nodes, one for each type of GPU.

    All nodes have the features that every job of the profile requests.
    """
    types = cluster.gpu_types
    asked = re.findall(r"[\w.-]+", str(cluster.slurm.get("constraint") or ""))
    gpus = partition.gpus_per_node
    if gpus is None:
        gpus = max(partition.gpu_types.values(), default=4)
    # A partition's GPU types are its own in the profile, or else those of all partitions.
    own = [each for each, kind in types.items() if kind.partition == name]
    plain = [each for each, kind in types.items() if kind.partition is None and each != "*"]
    counts = partition.gpu_types or dict.fromkeys(own or plain, gpus)
    cpus = partition.cpus_per_node or (partition.cpus_per_gpu or 0) * gpus or cpus_per_node(gpus)
    for type_name, count in (counts if gpus else {}).items() or [("", gpus)]:
        spelled = types.get(type_name, GpuType(gres=type_name or None))
        yield NodeKind(
            partition=name,
            nodes=nodes or min(partition.nodes or _NODES, _NODES),
            cpus=cpus,
            memory_mb=_find_memory_mb(partition, gpus),
            gpus=count,
            gpu_type=spelled.gres or "",
            feature=",".join(dict.fromkeys([*filter(None, [spelled.constraint]), *asked])),
        )


def _find_memory_mb(partition: Partition, gpus: int) -> int:
    if partition.memory_per_node is not None:
        return parse_memory_mb(partition.memory_per_node)
    if partition.memory_per_gpu is not None and gpus:
        return parse_memory_mb(partition.memory_per_gpu) * gpus
    return MEMORY_MB


def _list_limits(partition: Partition) -> Iterator[str]:
    yield f"MaxTime={partition.max_time or 'UNLIMITED'}"
    for name in ("default_time", "min_nodes", "max_nodes"):
        if (value := getattr(partition, name)) is not None:
            yield f"{name.title().replace('_', '')}={value}"
    if partition.exclusive:
        yield "OverSubscribe=EXCLUSIVE"


def _drop_defaults(each: dict[str, Any]) -> dict[str, Any]:
    """Omit keys that are not set or have their default; 0 GPUs are a setting."""
    kept = each.items()
    return {key: value for key, value in kept if value not in (None, {}) and value is not False}
