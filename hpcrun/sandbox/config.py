"""The texts of a sandbox: its file layout, Slurm's configuration and the cluster profile."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from hpcrun.errors import HpcrunError, InputError
from hpcrun.sandbox.shape import MAX_NODES, NodeKind, Queue, Shape, node_names

# sun_path in <sys/un.h> holds 108 bytes, the final NUL included.
MAX_SOCKET_PATH = 107
# The longest socket of a sandbox is slurmstepd's: SPOOL/NODE_JOBID.STEPID.
LONGEST_SOCKET = f"/spool/node{MAX_NODES}/node{MAX_NODES}_67043328.4294967294"
MAX_DIRECTORY = MAX_SOCKET_PATH - len(LONGEST_SOCKET)

# Slurm's default MaxJobId is 67043328; the room above is left for the jobs.
LAST_FIRST_JOB_ID = 60_000_000


class Layout(Struct, frozen=True):
    """Where every file of the sandbox in ``root`` lies."""

    root: Path

    @property
    def shape(self) -> Path:
        return self.root / "sandbox.json"

    @property
    def profile(self) -> Path:
        return self.root / "cluster.yaml"

    @property
    def slurm_conf(self) -> Path:
        return self.root / "slurm.conf"

    @property
    def gres_conf(self) -> Path:
        return self.root / "gres.conf"

    @property
    def cgroup_conf(self) -> Path:
        return self.root / "cgroup.conf"

    @property
    def munge_key(self) -> Path:
        return self.root / "munge" / "key"

    @property
    def munge_socket(self) -> Path:
        return self.root / "munge" / "socket"

    @property
    def munge_seed(self) -> Path:
        return self.root / "munge" / "seed"

    @property
    def folders(self) -> tuple[Path, ...]:
        return tuple(self.root / name for name in ("munge", "state", "spool", "log", "run", "gpu"))

    def gpu(self, index: int) -> Path:
        return self.root / "gpu" / f"gpu{index}"

    def pid(self, daemon: str) -> Path:
        return self.root / "run" / f"{daemon}.pid"

    def log(self, daemon: str) -> Path:
        return self.root / "log" / f"{daemon}.log"

    def output(self, daemon: str) -> Path:
        """What the daemon printed before it had opened its log."""
        return self.root / "log" / f"{daemon}.out"


def daemon_names(nodes: int) -> list[str]:
    """Name the daemons of a sandbox in the order of their start.

    >>> daemon_names(2)
    ['keeper', 'munged', 'slurmctld', 'node1', 'node2']
    """
    return ["keeper", "munged", "slurmctld", *node_names(nodes)]


def check_directory(directory: Path) -> None:
    """Raise InputError when Slurm could not work in this absolute path.

    slurm.conf has no quoting for blanks, ``#`` starts a comment, ``%`` and brackets are expanded.

    >>> check_directory(Path("/tmp/hpcrun-sandbox-0"))
    """
    fix = "set HPCRUN_SANDBOX_DIR to a short plain path, for example /tmp/my-sandbox"
    text = str(directory)
    odd = sorted(set(re.findall(r"[^A-Za-z0-9._/+@~-]", text)))
    if odd:
        shown = ", ".join("a blank" if char == " " else repr(char) for char in odd)
        raise InputError(f"{text}: Slurm's configuration cannot carry {shown} in a path", fix=fix)
    if len(text) > MAX_DIRECTORY:
        raise InputError(
            f"{text}: {len(text)} bytes; {MAX_DIRECTORY} is the most, because the sandbox's"
            f" sockets lie below it and the kernel allows {MAX_SOCKET_PATH} bytes for a socket",
            fix=fix,
        )


def parse_version(text: str) -> tuple[int, int]:
    """Read the release from the answer of ``slurmctld -V``.

    Raise HpcrunError when there is none.

    >>> parse_version("slurm-wlm 22.05.8"), parse_version("slurm 26.05.0-0rc1\\n")
    ((22, 5), (26, 5))
    """
    found = re.search(r"\b(\d\d)\.(\d\d)\b", text)
    if not found:
        raise HpcrunError(f"slurmctld -V answered {text.strip()!r}: no Slurm version in it")
    return int(found[1]), int(found[2])


def first_job_id(unix_time: float, root: Path) -> int:
    """Return the id of the first job of a sandbox in ``root`` that starts at that time (seconds).

    One id per second: a later sandbox does not give the ids of an earlier one again, which had
    fewer jobs than seconds, so that an id still names one run after ``down`` and ``up``. The ids
    come round again after 694 days. Sandboxes in two places begin far apart, though they start in
    one second: they share this machine's ports, and a job takes its port from its id.

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
    layout: Layout,
    *,
    hostname: str,
    user: str,
    shape: Shape,
    ports: Sequence[int],
    first_job: int,
) -> str:
    """Write slurm.conf; ``ports`` are slurmctld's and then one for each node."""
    nodes: list[str] = []
    of_queue: dict[str, list[str]] = {queue.name: [] for queue in shape.queues}
    for (kind, name), port in zip(shape.each(), ports[1:], strict=True):
        where = f"NodeHostname={hostname} NodeAddr=127.0.0.1 Port={port}"
        nodes.append(_node_line(kind, name, where))
        of_queue[kind.partition].append(name)
    node_lines = "\n".join(nodes)
    queue_lines = "\n".join(_queue_line(queue, of_queue[queue.name]) for queue in shape.queues)
    # A job that a cluster would never start is refused, as most clusters do.
    strict = ("CR_Core_Memory", "ALL") if shape.like else ("CR_Core", "NO")
    return f"""\
# A Slurm of one user on one machine. Written by `hpcrun sandbox up`.
ClusterName=sandbox
SlurmctldHost={hostname}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A requeued job waits for cred_expire seconds before it may start again; 120 unless said.
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

{node_lines}
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


def _queue_line(queue: Queue, nodes: Sequence[str]) -> str:
    default = " Default=YES" if queue.is_default else ""
    options = "".join(f" {option}" for option in queue.options)
    return f"PartitionName={queue.name} Nodes={','.join(nodes)}{default}{options} State=UP"


def gres_conf(layout: Layout, shape: Shape) -> str:
    """Write gres.conf: device files that exist, for GPUs that do not.

    >>> kind = NodeKind(nodes=2, cpus=16, gpus=4, gpu_type="a100")
    >>> print(gres_conf(Layout(Path("/tmp/s")), Shape(kinds=(kind,))), end="")
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
    """Write cgroup.conf: from 24.11 on Slurm can be told to leave cgroups alone.

    Older releases refuse the word and want an empty file.

    >>> cgroup_conf((22, 5)), cgroup_conf((24, 11))
    ('', 'CgroupPlugin=disabled\\n')
    """
    return "CgroupPlugin=disabled\n" if version >= (24, 11) else ""


def cluster_profile(layout: Layout, shape: Shape) -> str:
    """Write the cluster profile (YAML) that makes hpcrun use this sandbox."""
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
