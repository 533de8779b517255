"""What a sandbox is asked to be: nodes of one or several kinds, in partitions with limits."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from hpcrun.errors import InputError

PARTITION = "sandbox"
MAX_NODES = 64
MAX_GPUS_PER_NODE = 16
MEMORY_MB = 4 * 1024 * 1024


class NodeKind(Struct, frozen=True, kw_only=True):
    """Nodes that are alike: how many, what each claims to have, whatever the machine has.

    ``gpu_type`` is the type of its gres, ``feature`` what --constraint names; "" for none.
    """

    partition: str = PARTITION
    nodes: int
    cpus: int
    memory_mb: int = MEMORY_MB
    gpus: int = 0
    gpu_type: str = ""
    feature: str = ""


class Queue(Struct, frozen=True, kw_only=True):
    """A partition's name and limits, as slurm.conf spells them."""

    name: str = PARTITION
    options: tuple[str, ...] = ("MaxTime=UNLIMITED",)
    is_default: bool = True


class Shape(Struct, frozen=True, kw_only=True):
    """All that is asked of a sandbox.

    ``profile``: what its cluster profile says beyond where Slurm is (YAML). ``like``: the profile
    that it takes after, "" for none; memory is counted then, as clusters do.
    """

    kinds: tuple[NodeKind, ...]
    queues: tuple[Queue, ...] = (Queue(),)
    profile: str = ""
    like: str = ""

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return sum(kind.nodes for kind in self.kinds)

    @property
    def gpus_per_node(self) -> int:
        """The GPUs of the node that has most."""
        return max(kind.gpus for kind in self.kinds)

    def each(self) -> Iterator[tuple[NodeKind, str]]:
        """Yield each node: its kind and its name."""
        kinds = [kind for kind in self.kinds for _ in range(kind.nodes)]
        yield from zip(kinds, node_names(self.nodes), strict=True)

    def about(self) -> str:
        """Say it in few words."""
        return about(self.nodes, self.gpus_per_node, self.like)


def about(nodes: int, gpus_per_node: int, like: str) -> str:
    """Say a shape in few words.

    >>> about(2, 4, ""), about(1, 0, ""), about(8, 4, "hpcrun.yaml")
    ('2 nodes with 4 GPUs each', '1 node without GPUs', '8 nodes like hpcrun.yaml')
    """
    counted = f"{nodes} node{'s' * (nodes != 1)}"
    if like:
        return f"{counted} like {like}"
    if not gpus_per_node:
        return f"{counted} without GPUs"
    gpus = f"{gpus_per_node} GPU{'s' * (gpus_per_node != 1)}"
    return f"{counted} with {gpus}{' each' * (nodes != 1)}"


def plain_shape(nodes: int, gpus_per_node: int) -> Shape:
    """Return one partition of nodes that are all alike. Raises InputError when it is too large.

    >>> plain_shape(2, 4).nodes, plain_shape(2, 4).gpus_per_node
    (2, 4)
    """
    if not 1 <= nodes <= MAX_NODES:
        raise InputError(f"--nodes {nodes}: a sandbox has 1 to {MAX_NODES} nodes")
    if not 0 <= gpus_per_node <= MAX_GPUS_PER_NODE:
        raise InputError(
            f"--gpus-per-node {gpus_per_node}: a sandbox node has 0 to {MAX_GPUS_PER_NODE} GPUs"
        )
    cpus = cpus_per_node(gpus_per_node)
    gpus = f"gpus_per_node: {gpus_per_node}, " if gpus_per_node else ""
    profile = f"""\
partition: {PARTITION}
partitions:
  {PARTITION}: {{{gpus}cpus_per_node: {cpus}}}
# Any GPU type that a job asks for is a plain GPU here.
gpu_types:
  "*": {{}}
"""
    return Shape(kinds=(NodeKind(nodes=nodes, cpus=cpus, gpus=gpus_per_node),), profile=profile)


def node_names(nodes: int) -> list[str]:
    """Name the nodes.

    >>> node_names(2)
    ['node1', 'node2']
    """
    return [f"node{number}" for number in range(1, nodes + 1)]


def cpus_per_node(gpus_per_node: int) -> int:
    """Return the CPUs that a node claims to have, whatever the machine has.

    >>> cpus_per_node(0), cpus_per_node(4)
    (8, 16)
    """
    return max(8, 4 * gpus_per_node)
