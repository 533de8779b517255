"""sacctmgr: a user's accounts and QOS, and their limits."""

from __future__ import annotations

import re

from msgspec import Struct

from hpcrun.slurm.gres import tres_gpus

_QOS_FIELDS = "Name,Flags,MaxWall,MaxTRESPerJob,MaxTRESPerUser,GrpTRES"
_ASSOCIATION_FIELDS = (
    "Cluster,Account,Partition,DefaultAccount,QOS,DefaultQOS,MaxWall,MaxTRESPerJob,GrpTRES"
)


class Association(Struct, frozen=True, kw_only=True):
    """One account that a user may charge; ``partition`` "" is all of them.

    ``max_gpus`` are the GPUs of one job, or of all at once; None: no limit that is known.
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


def associations_argv(user: str, cluster: str) -> list[str]:
    """Ask for a user's associations, limits of the accounts above them included."""
    return [
        *("sacctmgr", "--noheader", "--parsable2", "--readonly"),
        *("show", "user", f"name={user}", "withassoc"),
        *([f"cluster={cluster}"] if cluster else []),
        f"format={_ASSOCIATION_FIELDS}",
    ]


def qos_argv() -> list[str]:
    """Ask for all QOS and their limits."""
    return [
        *("sacctmgr", "--noheader", "--parsable2", "--readonly"),
        *("show", "qos", f"format={_QOS_FIELDS}"),
    ]


def parse_associations(stdout: str, cluster: str = "") -> list[Association]:
    r"""Read the associations with this cluster (all of them where it is not known).

    >>> text = "hot|ml||ml|normal,long|normal|2-00:00:00||cpu=64,gres/gpu=8\ncold|x||x|||||\n"
    >>> only, = parse_associations(text, "hot")
    >>> only.account, only.qos, only.max_time, only.max_gpus
    ('ml', ['normal', 'long'], '2-00:00:00', 8)
    """
    found = []
    for line in stdout.splitlines():
        parts = line.split("|")
        if len(parts) != 9 or not parts[1] or (cluster and parts[0] != cluster):
            continue
        found.append(
            Association(
                cluster=parts[0],
                account=parts[1],
                partition=parts[2],
                default_account=parts[3],
                qos=_names(parts[4]),
                default_qos=parts[5],
                max_time=_time(parts[6]),
                max_gpus=_least(parts[7], parts[8]),
            )
        )
    return found


def parse_qos(stdout: str) -> list[Qos]:
    r"""Read the QOS.

    >>> text = "long|DenyOnLimit,PartitionTimeLimit|7-00:00:00||gres/gpu=16|\n"
    >>> only, = parse_qos(text)
    >>> only.name, sorted(only.flags), only.max_time, only.max_gpus
    ('long', ['denyonlimit', 'partitiontimelimit'], '7-00:00:00', 16)
    """
    found = []
    for line in stdout.splitlines():
        parts = line.split("|")
        if len(parts) == 6 and parts[0]:
            flags = frozenset(flag.lower() for flag in _names(parts[1]))
            limit = _least(*parts[3:6])
            found.append(Qos(name=parts[0], flags=flags, max_time=_time(parts[2]), max_gpus=limit))
    return found


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _time(text: str) -> str | None:
    return text if re.fullmatch(r"[0-9]+(-[0-9]+)?(:[0-9]{1,2}){0,2}", text) else None


def _least(*texts: str) -> int | None:
    """The least number of GPUs, of any type, that one of these limits allows."""
    limits = [gpus[""] for gpus in map(tres_gpus, texts) if "" in gpus]
    return min(limits, default=None)
