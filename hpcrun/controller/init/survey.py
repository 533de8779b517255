"""Asks a cluster's Slurm for its partitions, nodes, limits and the user's accounts."""

from __future__ import annotations

import contextlib
import grp
import os

from hpcrun.assets import name_of_user
from hpcrun.errors import OutOfReach
from hpcrun.plan.site import Answers, first_host
from hpcrun.scheduler import tell
from hpcrun.slurm.cluster import (
    Association,
    NodeLimits,
    NodeRow,
    PartitionRow,
    Qos,
    SlurmConfig,
    associations_argv,
    parse_associations,
    parse_config,
    parse_nodes,
    parse_partitions,
    parse_qos,
    parse_sinfo,
    qos_argv,
    show_config_argv,
    show_nodes_argv,
    show_partitions_argv,
    sinfo_argv,
)
from hpcrun.transport import Transport

# Kinds of nodes that are looked at one by one: few clusters have more than ten.
_MOST_KINDS = 64


def survey(transport: Transport) -> Answers:
    """Ask Slurm for everything that a profile has.

    Raises OutOfReach where slurmctld does not answer, or answers what Slurm never says.
    """
    config = _config(transport)
    partitions = _partitions(transport)
    nodes = _nodes(transport)
    associations, qos = _accounting(transport, config)
    return Answers(
        config=config,
        nodes=nodes,
        partitions=partitions,
        limits=_limits(transport, nodes),
        associations=associations,
        qos=qos,
        groups=_groups(),
        is_root=os.geteuid() == 0,
    )


def _config(transport: Transport) -> SlurmConfig:
    argv = show_config_argv()
    try:
        text = _answer(transport, argv)
    except OutOfReach as error:
        if "onfiguration source" in error.message or "onfiguration file" in error.message:
            raise OutOfReach(
                f"Slurm's commands are here, and know no cluster: {error.message}",
                fix="call it on a login node, or set SLURM_CONF; without a cluster: "
                "hpcrun sandbox up",
            ) from error
        raise
    config = parse_config(text)
    if not config.version and not config.cluster:
        raise _odd(argv, text)
    return config


def _partitions(transport: Transport) -> list[PartitionRow]:
    argv = show_partitions_argv()
    text = _answer(transport, argv)
    rows = parse_partitions(text)
    # "No partitions in the system" is an answer too.
    if not rows and text.strip() and not text.startswith("No partition"):
        raise _odd(argv, text)
    return rows


def _nodes(transport: Transport) -> list[NodeRow]:
    argv = sinfo_argv()
    text = _answer(transport, argv)
    rows = parse_sinfo(text)
    if not rows and text.strip():
        raise _odd(argv, text)
    return rows


def _limits(transport: Transport, nodes: list[NodeRow]) -> dict[str, NodeLimits]:
    """Ask what Slurm keeps back on one node of each kind; what is not told counts as nothing."""
    hosts: dict[tuple[int, int, str], str] = {}
    for row in nodes:
        if row.nodes:
            hosts.setdefault((row.cpus, row.memory, row.gres), first_host(row.node_list))
    names = [name for name in hosts.values() if name][:_MOST_KINDS]
    if not names:
        return {}
    text = tell(transport, show_nodes_argv(names))
    found = {limits.name: limits for limits in parse_nodes(_clean(text or ""))}
    # What holds for one node of a kind holds for all of them.
    by_kind = {kind: found[name] for kind, name in hosts.items() if name in found}
    return {
        first_host(row.node_list): by_kind[row.cpus, row.memory, row.gres]
        for row in nodes
        if (row.cpus, row.memory, row.gres) in by_kind
    }


def _accounting(
    transport: Transport, config: SlurmConfig
) -> tuple[list[Association] | None, list[Qos] | None]:
    """Ask slurmdbd; None where there is none or it does not answer: limits are then not known."""
    if not config.has_accounting:
        return None, None
    with contextlib.suppress(OutOfReach):
        listed = tell(transport, associations_argv(name_of_user(os.geteuid()), config.cluster))
        qos = tell(transport, qos_argv())
        return (
            None if listed is None else parse_associations(_clean(listed), config.cluster),
            None if qos is None else parse_qos(_clean(qos)),
        )
    return None, None


def _groups() -> list[str]:
    names = []
    for number in {os.getegid(), *os.getgroups()}:
        with contextlib.suppress(KeyError):
            names.append(grp.getgrgid(number).gr_name)
    return sorted(names)


def _answer(transport: Transport, argv: list[str]) -> str:
    text = tell(transport, argv)
    if text is None:
        raise OutOfReach(
            f"{' '.join(argv)}: Slurm does not say", fix="does the command work in your shell?"
        )
    return _clean(text)


def _clean(text: str) -> str:
    """Make what is no text of an answer visible: names end up on terminals and in files."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def _odd(argv: list[str], text: str) -> OutOfReach:
    first = text.strip().splitlines()[0][:60] if text.strip() else ""
    return OutOfReach(
        f"{' '.join(argv)}: the answer is not Slurm's: {first!r}",
        fix="does something else answer by that name? Try the command in your shell",
    )
