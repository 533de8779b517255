"""scontrol show partition: what the partitions allow, and whom."""

from __future__ import annotations

import re

from msgspec import Struct

_UNLIMITED = frozenset({"UNLIMITED", "INFINITE", "NONE", "N/A", "(null)", "", "NO_VAL"})
_TIME = re.compile(r"[0-9]+(-[0-9]+)?(:[0-9]{1,2}){0,2}")


class PartitionRow(Struct, frozen=True, kw_only=True):
    """A partition's rules. None is no limit; an empty list of names is all; memory is in MB."""

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


def show_partitions_argv() -> list[str]:
    """Ask for all partitions, hidden ones and those of other groups too, one in each line."""
    return ["scontrol", "--all", "--oneliner", "show", "partition"]


def parse_partitions(stdout: str) -> list[PartitionRow]:
    r"""Read ``scontrol --oneliner show partition``; keys that are not known do no harm.

    >>> row, = parse_partitions("PartitionName=gpu AllowAccounts=ml,bio Default=YES MaxNodes=8 "
    ...                         "MaxTime=2-00:00:00 OverSubscribe=EXCLUSIVE State=UP\n")
    >>> row.name, row.is_default, row.max_nodes, row.max_time, row.exclusive, row.allow_accounts
    ('gpu', True, 8, '2-00:00:00', True, ['ml', 'bio'])
    """
    rows = []
    for line in stdout.splitlines():
        said = dict(re.findall(r"(?:^|\s)([A-Za-z][A-Za-z0-9]*)=(\S*)", line))
        if line.startswith("PartitionName=") and said["PartitionName"]:
            rows.append(_row(said))
    return rows


def _row(said: dict[str, str]) -> PartitionRow:
    share = said.get("OverSubscribe", said.get("Shared", ""))
    return PartitionRow(
        name=said["PartitionName"],
        is_default=said.get("Default") == "YES",
        is_hidden=said.get("Hidden") == "YES",
        state=said.get("State", ""),
        qos=_text(said.get("QoS", "")),
        max_time=_time(said.get("MaxTime", "")),
        default_time=_time(said.get("DefaultTime", "")),
        min_nodes=_number(said.get("MinNodes", "")) or 0,
        max_nodes=_number(said.get("MaxNodes", "")),
        max_cpus_per_node=_number(said.get("MaxCPUsPerNode", "")),
        max_memory_per_node=_number(said.get("MaxMemPerNode", "")),
        max_memory_per_cpu=_number(said.get("MaxMemPerCPU", "")),
        # 26.05 writes Exclusive=NO|USER|TOPO beside it, which do not give whole nodes.
        exclusive=share.startswith("EXCLUSIVE") or said.get("Exclusive") in ("YES", "NODE"),
        root_only=said.get("RootOnly") == "YES",
        needs_reservation=said.get("ReqResv") == "YES",
        allow_accounts=_names(said.get("AllowAccounts", "")),
        deny_accounts=_names(said.get("DenyAccounts", "")),
        allow_groups=_names(said.get("AllowGroups", "")),
        allow_qos=_names(said.get("AllowQos", said.get("AllowQOS", ""))),
        deny_qos=_names(said.get("DenyQos", said.get("DenyQOS", ""))),
    )


def _text(value: str) -> str:
    return "" if value in _UNLIMITED else value


def _time(value: str) -> str | None:
    return value if _TIME.fullmatch(value) else None


def _number(value: str) -> int | None:
    return int(value) if re.fullmatch(r"[0-9]{1,12}", value) else None


def _names(value: str) -> list[str]:
    if value == "ALL" or value in _UNLIMITED:
        return []
    return [name for name in value.split(",") if name]
