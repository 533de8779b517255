"""The text of the rig's Slurm configuration files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Configuration:
    """What the files say; ``nodes`` maps name to address, times are in seconds.

    ``root`` holds the folders etc, log, munge, state, gpus and hosts/NODE.
    """

    root: Path
    cluster: str
    head: str
    head_address: str
    nodes: Mapping[str, str]
    cpus: int
    memory_mb: int
    gpus_per_node: int
    accounting: bool
    min_job_age: int
    slurmd_timeout: int
    kill_wait: int
    message_timeout: int
    task_plugin: str

    def slurm_conf(self) -> str:
        """Lay out slurm.conf."""
        root = self.root
        gres = "GresTypes=gpu\n" if self.gpus_per_node else ""
        gpus = f" Gres=gpu:{self.gpus_per_node}" if self.gpus_per_node else ""
        nodes = "".join(
            f"NodeName={name} NodeAddr={address} CPUs={self.cpus} CoresPerSocket={self.cpus}"
            f" RealMemory={self.memory_mb}{gpus}\n"
            for name, address in self.nodes.items()
        )
        return f"""\
ClusterName={self.cluster}
SlurmctldHost={self.head}({self.head_address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
StateSaveLocation={root}/state
SlurmctldPidFile={root}/state/slurmctld.pid
SlurmdPidFile={root}/hosts/%n/slurmd.pid
SlurmdSpoolDir={root}/hosts/%n/spool
# Pretended CPUs, memory and GPUs; no cgroups needed.
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin={self.task_plugin}
JobAcctGatherType=jobacct_gather/linux
MpiDefault=none
# Times: a dead node and a silent slurmctld are noticed soon.
MessageTimeout={self.message_timeout}
SlurmdTimeout={self.slurmd_timeout}
KillWait={self.kill_wait}
MinJobAge={self.min_job_age}
BatchStartTimeout=10
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=5,bf_interval=3,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU={self.memory_mb // self.cpus}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{self._storage()}{gres}{nodes}\
PartitionName=debug Default=YES Nodes=ALL PriorityTier=1 MaxTime=7-00:00:00 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 MaxTime=1-00:00:00 State=UP
"""

    def _storage(self) -> str:
        if not self.accounting:
            return "AccountingStorageType=accounting_storage/none\n"
        return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={self.head_address}
# The socket again: slurmdbd's clients look for it here, not in AuthInfo.
AccountingStoragePass={self.root}/munge/socket
AccountingStorageTRES=gres/gpu
"""

    def slurmdbd_conf(self) -> str:
        """Lay out slurmdbd.conf; its file must be readable by the owner alone."""
        return f"""\
AuthType=auth/munge
AuthInfo=socket={self.root}/munge/socket
DbdHost={self.head}
DbdAddr={self.head_address}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
LogFile={self.root}/log/slurmdbd.log
PidFile={self.root}/state/slurmdbd.pid
MessageTimeout={self.message_timeout}
"""

    def gres_conf(self) -> str:
        """Lay out gres.conf.

        CUDA_VISIBLE_DEVICES in a job has the numbers at the end of the devices' names.
        """
        last = self.gpus_per_node - 1
        return f"Name=gpu File={self.root}/gpus/gpu[0-{last}]\n" if self.gpus_per_node else ""


def cgroup_conf(version: tuple[int, int]) -> str:
    """Lay out cgroup.conf for a Slurm (major, minor) that uses no cgroups.

    >>> cgroup_conf((22, 5))
    ''
    """
    return "CgroupPlugin=disabled\n" if version >= (24, 11) else ""
