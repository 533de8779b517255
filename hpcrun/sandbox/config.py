"""The shape of a sandbox, and its configuration files: those of Slurm and the cluster profile."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from hpcrun.errors import InputError
from hpcrun.sandbox.directory import MAX_NODES, SandboxFiles

PARTITION = "sandbox"
MAX_GPUS_PER_NODE = 16
MEMORY_MB = 4 * 1024 * 1024
# Slurm's default MaxJobId is 67043328; the remaining ids are left for the jobs.
LAST_FIRST_JOB_ID = 60_000_000


class NodeKind(Struct, frozen=True, kw_only=True):
    """A group of identical nodes and their configured resources.

    Attributes:
        gpu_type: The type of the gpu gres; "" for none.
        feature: The feature for --constraint; "" for none.
    """

    partition: str = PARTITION
    nodes: int
    cpus: int
    memory_mb: int = MEMORY_MB
    gpus: int = 0
    gpu_type: str = ""
    feature: str = ""


class SandboxPartition(Struct, frozen=True, kw_only=True):
    """A partition's name and limits, in the format of slurm.conf."""

    name: str = PARTITION
    options: tuple[str, ...] = ("MaxTime=UNLIMITED",)
    is_default: bool = True


class SandboxShape(Struct, frozen=True, kw_only=True):
    """The requested configuration of a sandbox.

    A partition without nodes of its own contains the nodes of all partitions.

    Attributes:
        profile: YAML for its cluster profile, in addition to the location of Slurm.
        like: The profile on which it is modelled, "" for none. Memory is a consumable resource
            then, as on clusters.
        settings: Additional lines for slurm.conf.
    """

    kinds: tuple[NodeKind, ...]
    queues: tuple[SandboxPartition, ...] = (SandboxPartition(),)
    profile: str = ""
    like: str = ""
    settings: tuple[str, ...] = ()

    @property
    def nodes(self) -> int:
        return sum(kind.nodes for kind in self.kinds)

    @property
    def gpus_per_node(self) -> int:
        return max(kind.gpus for kind in self.kinds)

    def each(self) -> Iterator[tuple[NodeKind, str]]:
        kinds = [kind for kind in self.kinds for _ in range(kind.nodes)]
        yield from zip(kinds, node_names(self.nodes), strict=True)

    def about(self) -> str:
        return describe_size(self.nodes, self.gpus_per_node, self.like)


def describe_size(nodes: int, gpus_per_node: int, like: str) -> str:
    """Describe a shape in short.

    >>> describe_size(2, 4, ""), describe_size(1, 0, ""), describe_size(8, 4, "hpcrun.yaml")
    ('2 nodes with 4 GPUs each', '1 node without GPUs', '8 nodes like hpcrun.yaml')
    """
    counted = f"{nodes} node{'s' * (nodes != 1)}"
    if like:
        return f"{counted} like {like}"
    if not gpus_per_node:
        return f"{counted} without GPUs"
    gpus = f"{gpus_per_node} GPU{'s' * (gpus_per_node != 1)}"
    return f"{counted} with {gpus}{' each' * (nodes != 1)}"


def plain_shape(nodes: int, gpus_per_node: int) -> SandboxShape:
    """Return a shape with one partition of identical nodes.

    Raises:
        InputError: The shape is too large.

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
    return SandboxShape(
        kinds=(NodeKind(nodes=nodes, cpus=cpus, gpus=gpus_per_node),), profile=profile
    )


def node_names(nodes: int) -> list[str]:
    """Return the names of the nodes.

    >>> node_names(2)
    ['node1', 'node2']
    """
    return [f"node{number}" for number in range(1, nodes + 1)]


def cpus_per_node(gpus_per_node: int) -> int:
    """Return the configured CPUs of a node, which do not depend on the machine.

    >>> cpus_per_node(0), cpus_per_node(4)
    (8, 16)
    """
    return max(8, 4 * gpus_per_node)


def first_job_id(unix_time: float, root: Path) -> int:
    """Return the first job id of a sandbox in ``root`` that starts at a time in seconds.

    Ids advance by one per second. As long as a sandbox has fewer jobs than seconds, the next one
    does not reuse its ids, and an id still identifies one run after ``down`` and ``up``. The ids
    repeat after 694 days. Sandboxes in different directories start far apart even in the same
    second, because they share this machine's ports and a job derives its port from its id.

    >>> here, there = Path("/tmp/s"), Path("/tmp/t")
    >>> first_job_id(1_800_000_001, here) - first_job_id(1_800_000_000, here)
    1
    >>> first_job_id(1_800_000_000, here) != first_job_id(1_800_000_000, there)
    True
    >>> 1 <= first_job_id(9e9, here) <= LAST_FIRST_JOB_ID
    True
    """
    return (int(unix_time) + zlib.crc32(bytes(root))) % LAST_FIRST_JOB_ID + 1


def slurm_conf(
    layout: SandboxFiles,
    *,
    hostname: str,
    resolves: bool = True,
    user: str,
    shape: SandboxShape,
    ports: Sequence[int],
    first_job: int,
) -> str:
    """Return slurm.conf.

    Args:
        resolves: The host name resolves, so that Slurm can bind its daemons to its address.
        ports: The port of slurmctld, followed by one port for each node.
    """
    nodes: list[str] = []
    of_queue: dict[str, list[str]] = {queue.name: [] for queue in shape.queues}
    for (kind, name), port in zip(shape.each(), ports[1:], strict=True):
        where = f"NodeHostname={hostname} NodeAddr=127.0.0.1 Port={port}"
        nodes.append(_node_line(kind, name, where))
        of_queue[kind.partition].append(name)
    node_lines = "\n".join(nodes)
    everywhere = node_names(shape.nodes)
    queue_lines = "\n".join(
        _queue_line(queue, of_queue[queue.name] or everywhere) for queue in shape.queues
    )
    # Without these the daemons and srun listen on all interfaces.
    binding = "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny\n" if resolves else ""
    settings = "".join(f"{line}\n" for line in shape.settings)
    # Jobs that a cluster would never start are rejected at submission, as on most clusters.
    strict = ("CR_Core_Memory", "ALL") if shape.like else ("CR_Core", "NO")
    return f"""\
# A Slurm of one user on one machine. Written by `hpcrun sandbox up`.
ClusterName=sandbox
SlurmctldHost={hostname}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
{binding}AuthType=auth/munge
# A requeued job waits for cred_expire seconds before it may start again; the default is 120.
AuthInfo=socket={layout.munge_socket},cred_expire=10

StateSaveLocation={layout.root}/state
SlurmdSpoolDir={layout.root}/spool/%n
SlurmctldPidFile={layout.pid("slurmctld")}
SlurmdPidFile={layout.pid("%n")}
SlurmctldLogFile={layout.log("slurmctld")}
SlurmdLogFile={layout.log("%n")}

# The nodes are of the claimed size, whatever this machine has.
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters={strict[0]}
EnforcePartLimits={strict[1]}

# linuxproc follows parent links: it reaches workers that made a session of their own.
ProctrackType=proctrack/linuxproc
MpiDefault=none
KillWait=10
MailProg=/bin/true
FirstJobId={first_job}

# Look at the queue often: it is short.
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2

{settings}{node_lines}
{queue_lines}
"""


def _node_line(kind: NodeKind, name: str, where: str) -> str:
    typed = f"gpu:{kind.gpu_type}" if kind.gpu_type else "gpu"
    gpus = f" Gres={typed}:{kind.gpus}" if kind.gpus else ""
    feature = f" Feature={kind.feature}" if kind.feature else ""
    return (
        f"NodeName={name} {where}"
        f" CPUs={kind.cpus} Sockets=1 CoresPerSocket={kind.cpus} ThreadsPerCore=1"
        f" RealMemory={kind.memory_mb} TmpDisk={kind.memory_mb}{gpus}{feature}"
    )


def _queue_line(queue: SandboxPartition, nodes: Sequence[str]) -> str:
    default = " Default=YES" if queue.is_default else ""
    options = "".join(f" {option}" for option in queue.options)
    return f"PartitionName={queue.name} Nodes={','.join(nodes)}{default}{options} State=UP"


def gres_conf(layout: SandboxFiles, shape: SandboxShape) -> str:
    """Return gres.conf, which maps nonexistent GPUs to existing device files.

    >>> kind = NodeKind(nodes=2, cpus=16, gpus=4, gpu_type="a100")
    >>> print(gres_conf(SandboxFiles(Path("/tmp/s")), SandboxShape(kinds=(kind,))), end="")
    NodeName=node1 Name=gpu Type=a100 File=/tmp/s/gpu/gpu[0-3]
    NodeName=node2 Name=gpu Type=a100 File=/tmp/s/gpu/gpu[0-3]
    """
    return "".join(
        f"NodeName={name} Name=gpu{f' Type={kind.gpu_type}' if kind.gpu_type else ''}"
        f" File={layout.root}/gpu/gpu[0-{kind.gpus - 1}]\n"
        for kind, name in shape.each()
        if kind.gpus
    )


def cgroup_conf(version: tuple[int, int]) -> str:
    """Return cgroup.conf, which disables cgroups with an option of Slurm 24.11 and later.

    Older releases reject the key and need an empty file.

    >>> cgroup_conf((22, 5)), cgroup_conf((24, 11))
    ('', 'CgroupPlugin=disabled\\n')
    """
    return "CgroupPlugin=disabled\n" if version >= (24, 11) else ""


def cluster_profile(layout: SandboxFiles, shape: SandboxShape) -> str:
    """Return the cluster profile (YAML) that selects this sandbox."""
    about = f"Slurm on this machine: {shape.about()}, in name only"
    return f"""\
# Written by `hpcrun sandbox up`; `hpcrun sandbox down` removes it.
name: sandbox
description: {json.dumps(about)}
accelerator: cpu
slurm_conf: {json.dumps(str(layout.slurm_conf))}
{shape.profile}\
fabric: auto
env:
  # All ranks share this machine's cores.
  OMP_NUM_THREADS: "1"
"""
