"""scontrol show config: the cluster's name, Slurm's version, what is enforced."""

from __future__ import annotations

import re

from msgspec import Struct


class SlurmConfig(Struct, frozen=True, kw_only=True):
    """What a submission must know of slurm.conf; "" and None where Slurm does not say.

    ``enforced`` are the words of AccountingStorageEnforce.
    """

    cluster: str = ""
    version: str = ""
    max_array_size: int | None = None
    whole_nodes: bool = False
    has_accounting: bool = False
    enforced: frozenset[str] = frozenset()
    tmp: str = ""
    controllers: tuple[str, ...] = ()


def show_config_argv() -> list[str]:
    """Ask slurmctld for its configuration."""
    return ["scontrol", "show", "config"]


def parse_config(stdout: str) -> SlurmConfig:
    r"""Read ``scontrol show config``; keys that are not there stay unknown.

    >>> config = parse_config("ClusterName             = hot\nSLURM_VERSION           = 24.11.5\n"
    ...                       "AccountingStorageEnforce = associations,limits\n")
    >>> config.cluster, config.version, sorted(config.enforced)
    ('hot', '24.11.5', ['associations', 'limits'])
    """
    said = dict(re.findall(r"^(\w+)(?:\[\d+\])?[ \t]*=[ \t]*(.*?)[ \t]*$", stdout, re.MULTILINE))
    size = said.get("MaxArraySize", "")
    storage = said.get("AccountingStorageType", "")
    version = re.search(r"[0-9]+\.[0-9]+(\.[0-9a-z.-]+)?", said.get("SLURM_VERSION", ""))
    words = {word.strip().lower() for word in said.get("AccountingStorageEnforce", "").split(",")}
    enforced = words - {"", "none", "(null)"}
    # Each implies those before it (slurm.conf.5, AccountingStorageEnforce).
    if enforced & {"all", "safe", "limits", "qos", "wckeys"}:
        enforced |= {"associations"}
    if enforced & {"all", "safe"}:
        enforced |= {"limits"}
    if "all" in enforced:
        enforced |= {"qos"}
    return SlurmConfig(
        cluster=_plain(said.get("ClusterName", "")),
        version=version[0] if version else "",
        max_array_size=int(size) if re.fullmatch(r"[0-9]{1,9}", size) and int(size) > 0 else None,
        whole_nodes=said.get("SelectType", "") in ("select/linear", "linear"),
        has_accounting="slurmdbd" in storage,
        enforced=frozenset(enforced),
        tmp=_plain(said.get("TmpFS", "")),
        controllers=tuple(re.findall(r"^SlurmctldHost\[\d+\]\s*=\s*([^\s(]+)", stdout, re.M)),
    )


def _plain(value: str) -> str:
    return "" if value in ("(null)", "N/A") else value
