"""sinfo: the nodes of each partition, those that are alike in one row."""

from __future__ import annotations

import re

from msgspec import Struct

# %R partition, %D nodes, %c CPUs, %m memory in MB, %T state, %N node list, %G gres, %f features.
# Features and gres come last: they are the site's own words. (sinfo.1, 20.11 to 26.05)
_FORMAT = "%R|%D|%c|%m|%T|%N|%G|%f"
# States of nodes that run no new job until someone repairs them; more may follow, as in DOWN*.
_AWAY = ("down", "drain", "fail", "error", "future", "perfctrs", "inval")


class NodeRow(Struct, frozen=True, kw_only=True):
    """Nodes of one partition that are alike, and in one state. ``memory`` is in MB."""

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
        """Whether the nodes take no new jobs: down, drained or failed."""
        return self.state.lower().startswith(_AWAY)


def sinfo_argv() -> list[str]:
    """Ask for all nodes of all partitions.

    ``--exact``: without it nodes of different sizes share a row, and the sizes are minima ("8+").
    ``--all``: hidden partitions too, and those of other groups.
    """
    return ["sinfo", "--noheader", "--all", "--exact", f"--format={_FORMAT}"]


def parse_sinfo(stdout: str) -> list[NodeRow]:
    r"""Read sinfo's rows; what is no row is left out.

    >>> row, = parse_sinfo("gpu|2|64|512000|mixed-|n[1-2]|gpu:a100:4(S:0-1)|ib,a100\n")
    >>> row.partition, row.nodes, row.memory, row.features, row.is_away
    ('gpu', 2, 512000, ['ib', 'a100'], False)
    >>> parse_sinfo("gpu|0|0|0|n/a||(null)|(null)\nnonsense\n")[0].nodes
    0
    """
    rows = []
    for line in stdout.splitlines():
        parts = line.split("|", 7)
        numbers = [re.match(r"([0-9]{1,9})\+?$", part.strip()) for part in parts[1:4]]
        if len(parts) != 8 or not parts[0].strip() or not all(numbers):
            continue
        nodes, cpus, memory = (int(number[1]) for number in numbers if number)
        features = [word for word in re.split(r"[,&|\s]+", parts[7]) if word]
        rows.append(
            NodeRow(
                partition=parts[0].strip(),
                nodes=nodes,
                cpus=cpus,
                memory=memory,
                state=parts[4].strip(),
                node_list=parts[5].strip(),
                gres=parts[6].strip(),
                features=[] if features == ["(null)"] else features,
            )
        )
    return rows
