"""A cluster's configuration, partitions, nodes, accounts and QOS, as Slurm shows them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from hpcrun.slurm.jobs import parse_gpu_limits

_UNLIMITED = frozenset({"UNLIMITED", "INFINITE", "NONE", "N/A", "(null)", "", "NO_VAL"})
# slurmctld's configuration; and all partitions, including hidden ones and those of other groups.
SHOW_CONFIG = ("scontrol", "show", "config")
SHOW_PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partition")
# All nodes of all partitions. Without --exact nodes of different sizes share a row, and sizes are
# minima ("8+"); --all includes hidden partitions and those of other groups. %R partition, %D nodes,
# %c CPUs, %m memory in MB, %T state, %N node list, %G gres, %f features. Features and gres are free
# text, so they come last. (sinfo.1, 20.11 to 26.05)
SINFO = ("sinfo", "--noheader", "--all", "--exact", "--format=%R|%D|%c|%m|%T|%N|%G|%f")
# Prefixes of states of nodes that run no new job until someone repairs them, as in DOWN*.
_AWAY = ("down", "drain", "fail", "error", "future", "perfctrs", "inval")
_SACCTMGR = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show")
# All QOS and their limits.
SHOW_CLUSTERS = (*_SACCTMGR, "cluster", "format=Cluster")
SHOW_QOS = (*_SACCTMGR, "qos", "format=Name,Flags,MaxWall,MaxTRESPerJob,MaxTRESPerUser,GrpTRES")
_ASSOCIATION = (
    "Cluster,Account,Partition,DefaultAccount,QOS,DefaultQOS,MaxWall,MaxTRESPerJob,GrpTRES"
)


class SlurmConfig(Struct, frozen=True, kw_only=True):
    """Settings of slurm.conf that submissions depend on; "" and None if they are unknown."""

    cluster: str = ""
    version: str = ""
    max_array_size: int | None = None
    whole_nodes: bool = False
    has_accounting: bool = False
    enforced: frozenset[str] = frozenset()
    tmp: str = ""


class PartitionRow(Struct, frozen=True, kw_only=True):
    """A partition's rules. None is no limit, an empty list of names allows all; memory is in MB."""

    name: str
    is_default: bool = False
    is_hidden: bool = False
    state: str = ""
    qos: str = ""
    max_time: str | None = None
    default_time: str | None = None
    min_nodes: int = 0
    max_nodes: int | None = None
    max_cpus_per_node: int | None = None
    max_memory_per_node: int | None = None
    max_memory_per_cpu: int | None = None
    exclusive: bool = False
    root_only: bool = False
    needs_reservation: bool = False
    allow_accounts: list[str] = []
    deny_accounts: list[str] = []
    allow_groups: list[str] = []
    allow_qos: list[str] = []
    deny_qos: list[str] = []


class NodeRow(Struct, frozen=True):
    """Identical nodes of one partition in one state. ``memory`` is in MB."""

    partition: str
    nodes: int
    cpus: int
    memory: int
    state: str
    node_list: str
    gres: str
    features: list[str]

    @property
    def is_away(self) -> bool:
        """Whether the nodes accept no new jobs: down, drained or failed."""
        return self.state.lower().startswith(_AWAY)


class NodeLimits(Struct, frozen=True, kw_only=True):
    """CPUs and memory (MB) of a node that jobs can use, without Slurm's reserved share.

    ``threads`` is the number of these CPUs per core.
    """

    name: str
    cpus: int
    memory: int
    threads: int = 1
    address: str = ""


class Association(Struct, frozen=True, kw_only=True):
    """An account that a user may charge; ``partition`` "" stands for all partitions.

    ``max_gpus`` is the limit for one job or for all at once; None if no limit is known.
    """

    cluster: str
    account: str
    partition: str = ""
    default_account: str = ""
    qos: list[str] = []
    default_qos: str = ""
    max_time: str | None = None
    max_gpus: int | None = None


class Qos(Struct, frozen=True, kw_only=True):
    """A quality of service; limits as in Association. ``flags`` are lower case."""

    name: str
    flags: frozenset[str] = frozenset()
    max_time: str | None = None
    max_gpus: int | None = None


def parse_config(stdout: str) -> SlurmConfig:
    r"""Parse ``scontrol show config``; missing keys keep their defaults.

    >>> config = parse_config("ClusterName             = hot\nSLURM_VERSION           = 24.11.5\n"
    ...                       "AccountingStorageEnforce = associations,limits\n")
    >>> config.cluster, config.version, sorted(config.enforced)
    ('hot', '24.11.5', ['associations', 'limits'])
    """
    values = dict(re.findall(r"^(\w+)(?:\[\d+\])?[ \t]*=[ \t]*(.*?)[ \t]*$", stdout, re.MULTILINE))
    size = _number(values.get("MaxArraySize", ""))
    version = re.search(r"[0-9]+\.[0-9]+(\.[0-9a-z.-]+)?", values.get("SLURM_VERSION", ""))
    items = _names(values.get("AccountingStorageEnforce", "").lower())
    enforced = {item for item in items if item not in ("none", "(null)")}
    # Each value implies the ones before it (slurm.conf.5, AccountingStorageEnforce).
    if enforced & {"all", "safe", "limits", "qos", "wckeys"}:
        enforced |= {"associations"}
    if enforced & {"all", "safe"}:
        enforced |= {"limits"}
    if "all" in enforced:
        enforced |= {"qos"}
    return SlurmConfig(
        cluster=_text(values.get("ClusterName", "")),
        version=version[0] if version else "",
        max_array_size=size or None,
        whole_nodes=values.get("SelectType", "") in ("select/linear", "linear"),
        has_accounting="slurmdbd" in values.get("AccountingStorageType", ""),
        enforced=frozenset(enforced),
        tmp=_text(values.get("TmpFS", "")),
    )


def parse_partitions(stdout: str) -> list[PartitionRow]:
    r"""Parse ``scontrol --oneliner show partition``; unknown keys are ignored.

    >>> row, = parse_partitions("PartitionName=gpu AllowAccounts=ml,bio Default=YES MaxNodes=8 "
    ...                         "MaxTime=2-00:00:00 OverSubscribe=EXCLUSIVE State=UP\n")
    >>> row.name, row.is_default, row.max_nodes, row.max_time, row.exclusive, row.allow_accounts
    ('gpu', True, 8, '2-00:00:00', True, ['ml', 'bio'])
    """
    found = []
    for line in stdout.splitlines():
        values = dict(re.findall(r"(?:^|\s)([A-Za-z][A-Za-z0-9]*)=(\S*)", line))
        if line.startswith("PartitionName=") and values["PartitionName"]:
            found.append(_partition(values))
    return found


def _partition(values: dict[str, str]) -> PartitionRow:
    def value(*keys: str) -> str:
        return next((values[key] for key in keys if key in values), "")

    return PartitionRow(
        name=value("PartitionName"),
        is_default=value("Default") == "YES",
        is_hidden=value("Hidden") == "YES",
        state=value("State"),
        qos=_text(value("QoS")),
        max_time=_time(value("MaxTime")),
        default_time=_time(value("DefaultTime")),
        min_nodes=_number(value("MinNodes")) or 0,
        max_nodes=_number(value("MaxNodes")),
        max_cpus_per_node=_number(value("MaxCPUsPerNode")),
        max_memory_per_node=_number(value("MaxMemPerNode")),
        max_memory_per_cpu=_number(value("MaxMemPerCPU")),
        # 26.05 also prints Exclusive=NO|USER|TOPO, which do not allocate whole nodes.
        exclusive=value("OverSubscribe", "Shared").startswith("EXCLUSIVE")
        or value("Exclusive") in ("YES", "NODE"),
        root_only=value("RootOnly") == "YES",
        needs_reservation=value("ReqResv") == "YES",
        allow_accounts=_names(value("AllowAccounts")),
        deny_accounts=_names(value("DenyAccounts")),
        allow_groups=_names(value("AllowGroups")),
        allow_qos=_names(value("AllowQos", "AllowQOS")),
        deny_qos=_names(value("DenyQos", "DenyQOS")),
    )


def parse_sinfo(stdout: str) -> list[NodeRow]:
    r"""Parse sinfo's rows; malformed rows are ignored.

    >>> row, = parse_sinfo("gpu|2|64|512000|mixed-|n[1-2]|gpu:a100:4(S:0-1)|ib,a100\n")
    >>> row.partition, row.nodes, row.memory, row.features, row.is_away
    ('gpu', 2, 512000, ['ib', 'a100'], False)
    >>> parse_sinfo("gpu|0|0|0|n/a||(null)|(null)\nnonsense\n")[0].nodes
    0
    """
    rows = []
    for line in stdout.splitlines():
        parts = [part.strip() for part in line.split("|", 7)]
        numbers = [_number(part.removesuffix("+")) for part in parts[1:4]]
        if len(parts) != 8 or not parts[0] or None in numbers:
            continue
        features = [name for name in re.split(r"[,&|\s]+", parts[7]) if name not in ("", "(null)")]
        nodes, cpus, memory = (number or 0 for number in numbers)
        state, node_list, gres = parts[4:7]
        rows.append(NodeRow(parts[0], nodes, cpus, memory, state, node_list, gres, features))
    return rows


def show_nodes_argv(names: Sequence[str]) -> list[str]:
    """Return the query for nodes, one per line, including those of hidden partitions."""
    return ["scontrol", "--all", "--oneliner", "show", "node", ",".join(names)]


def parse_nodes(stdout: str) -> list[NodeLimits]:
    r"""Parse ``scontrol --oneliner show node``; lines without the numbers are ignored.

    CPUEfctv (22.05 and later) is CPUTot without reserved cores (CoreSpecCount, CpuSpecList);
    MemSpecLimit is memory that is reserved for the system (slurm.conf.5).

    >>> text = "NodeName=n1 CPUTot=64 CPUEfctv=60 RealMemory=512000 MemSpecLimit=12000 Sockets=2"
    >>> parse_nodes(text)[0].cpus, parse_nodes(text)[0].memory
    (60, 500000)
    >>> parse_nodes("NodeName=n1 CoreSpecCount=2 CPUTot=64 RealMemory=9 ThreadsPerCore=2")[0].cpus
    60
    >>> text = "NodeName=n1 CPUTot=64 RealMemory=9 Sockets=2 CoresPerSocket=32 ThreadsPerCore=2"
    >>> parse_nodes(text)[0].threads, parse_nodes(text.replace("=64", "=128"))[0].threads
    (1, 2)
    """
    found = []
    for line in stdout.splitlines():
        # the first occurrence counts
        values = dict(reversed(re.findall(r"(?:^|\s)([A-Za-z]+)=(\S*)", line)))
        numbers = {key: _number(value) for key, value in values.items()}
        total, memory = numbers.get("CPUTot"), numbers.get("RealMemory")
        if not values.get("NodeName") or total is None or memory is None:
            continue
        threads = numbers.get("ThreadsPerCore") or 1
        cores = (numbers.get("Sockets") or 0) * (numbers.get("CoresPerSocket") or 0)
        if 0 < total <= cores:
            threads = 1  # CPUs= in slurm.conf is the number of cores (slurm.conf.5, CPUs)
        reserved = (numbers.get("CoreSpecCount") or 0) * threads
        effective = numbers.get("CPUEfctv")
        cpus = max(total - reserved if effective is None else effective, 1)
        left = max(memory - (numbers.get("MemSpecLimit") or 0), 1)
        address = values.get("NodeAddr", "")
        name = values["NodeName"]
        found.append(
            NodeLimits(name=name, cpus=cpus, memory=left, threads=threads, address=address)
        )
    return found


def associations_argv(user: str, cluster: str) -> list[str]:
    """Return the query for a user's associations, with the limits of parent accounts."""
    where = [f"cluster={cluster}"] if cluster else []
    return [*_SACCTMGR, "user", f"name={user}", "withassoc", *where, f"format={_ASSOCIATION}"]


def parse_associations(stdout: str, cluster: str = "") -> list[Association]:
    r"""Parse associations, for one cluster or, if that is unknown, all of them.

    >>> text = "hot|ml||ml|normal,long|normal|2-00:00:00||cpu=64,gres/gpu=8\ncold|x||x|||||\n"
    >>> only, = parse_associations(text, "hot")
    >>> only.account, only.qos, only.max_time, only.max_gpus
    ('ml', ['normal', 'long'], '2-00:00:00', 8)
    """
    rows = (line.split("|") for line in stdout.splitlines())
    return [
        Association(
            cluster=row[0],
            account=row[1],
            partition=row[2],
            default_account=row[3],
            qos=_names(row[4]),
            default_qos=row[5],
            max_time=_time(row[6]),
            max_gpus=_least_gpus(row[7:]),
        )
        for row in rows
        if len(row) == 9 and row[1] and cluster in ("", row[0])
    ]


def parse_qos(stdout: str) -> list[Qos]:
    r"""Parse the list of QOS.

    >>> text = "long|DenyOnLimit,PartitionTimeLimit|7-00:00:00||gres/gpu=16|\n"
    >>> only, = parse_qos(text)
    >>> only.name, sorted(only.flags), only.max_time, only.max_gpus
    ('long', ['denyonlimit', 'partitiontimelimit'], '7-00:00:00', 16)
    """
    rows = (line.split("|") for line in stdout.splitlines())
    return [
        Qos(
            name=row[0],
            flags=frozenset(flag.lower() for flag in _names(row[1])),
            max_time=_time(row[2]),
            max_gpus=_least_gpus(row[3:]),
        )
        for row in rows
        if len(row) == 6 and row[0]
    ]


def _least_gpus(limits: Sequence[str]) -> int | None:
    """Return the smallest limit on GPUs of any type."""
    return min((gpus[""] for gpus in map(parse_gpu_limits, limits) if "" in gpus), default=None)


def _text(value: str) -> str:
    return "" if value in _UNLIMITED else value


def _time(value: str) -> str | None:
    return value if re.fullmatch(r"[0-9]+(-[0-9]+)?(:[0-9]{1,2}){0,2}", value) else None


def _number(value: str) -> int | None:
    return int(value) if re.fullmatch(r"[0-9]{1,12}", value) else None


def _names(value: str) -> list[str]:
    """Parse a comma-separated list of names; empty for "all" and "nothing"."""
    if value == "ALL" or value in _UNLIMITED:
        return []
    return [name.strip() for name in value.split(",") if name.strip()]
