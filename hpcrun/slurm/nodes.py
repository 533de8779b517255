"""scontrol show node: what a node keeps back for the system."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct


class NodeLimits(Struct, frozen=True, kw_only=True):
    """What jobs can have of a node: CPUs, and memory in MB, without what Slurm keeps back."""

    name: str
    cpus: int
    memory: int
    address: str = ""


def show_nodes_argv(names: Sequence[str]) -> list[str]:
    """Ask for these nodes, one in each line, those of hidden partitions too."""
    return ["scontrol", "--all", "--oneliner", "show", "node", ",".join(names)]


def parse_nodes(stdout: str) -> list[NodeLimits]:
    r"""Read ``scontrol --oneliner show node``; a line without the numbers is left out.

    CPUEfctv (22.05 and later) is CPUTot less the cores that are reserved (CoreSpecCount,
    CpuSpecList); MemSpecLimit is memory that no job gets (slurm.conf.5).

    >>> text = "NodeName=n1 CPUTot=64 CPUEfctv=60 RealMemory=512000 MemSpecLimit=12000 Sockets=2"
    >>> parse_nodes(text)[0].cpus, parse_nodes(text)[0].memory
    (60, 500000)
    >>> parse_nodes("NodeName=n1 CoreSpecCount=2 CPUTot=64 RealMemory=9 ThreadsPerCore=2")[0].cpus
    60
    """
    found = []
    for line in stdout.splitlines():
        name = re.match(r"NodeName=(\S+)", line)
        total, memory = _number("CPUTot", line), _number("RealMemory", line)
        if not name or total is None or memory is None:
            continue
        reserved = (_number("CoreSpecCount", line) or 0) * (_number("ThreadsPerCore", line) or 1)
        effective = _number("CPUEfctv", line)
        cpus = total - reserved if effective is None else effective
        left = memory - (_number("MemSpecLimit", line) or 0)
        address = re.search(r"\sNodeAddr=(\S+)", line)
        found.append(
            NodeLimits(
                name=name[1],
                cpus=max(cpus, 1),
                memory=max(left, 1),
                address=address[1] if address else "",
            )
        )
    return found


def _number(key: str, line: str) -> int | None:
    match = re.search(rf"\s{key}=([0-9]{{1,12}})(?=\s|$)", line)
    return int(match[1]) if match else None
