"""Which partitions a user can use, as far as Slurm's answers are sure."""

from __future__ import annotations

import re

from msgspec import Struct

from hpcrun.slurm.config import SlurmConfig
from hpcrun.slurm.partitions import PartitionRow
from hpcrun.slurm.sacctmgr import Association


class Access(Struct, frozen=True, kw_only=True):
    """Who asks: the user's associations (None: not known) and Unix groups."""

    config: SlurmConfig
    associations: list[Association] | None
    groups: list[str]
    is_root: bool = False


def why_not(row: PartitionRow, access: Access) -> str:
    """Say why the user cannot use a partition; "" where that is possible.

    What is not sure counts as possible: a partition too many costs a refusal, one too few is not
    seen at all.
    """
    if row.is_hidden and not access.is_root:
        return "the site hides it"
    if row.root_only and not access.is_root:
        return "it is for root only"
    if row.allow_groups and not access.is_root and not set(row.allow_groups) & set(access.groups):
        return f"it is for the Unix groups {_some(row.allow_groups)}"
    # An empty list is no proof: sacctmgr may show a user less than there is (PrivateData).
    if not access.associations or "associations" not in access.config.enforced:
        return ""
    mine = [one for one in access.associations if one.partition in ("", row.name)]
    if not mine:
        return "none of your accounts is for it"
    accounts = {one.account for one in mine}
    if row.allow_accounts and not accounts & set(row.allow_accounts) and _is_flat(access.config):
        return f"it is for the accounts {_some(row.allow_accounts)}"
    if accounts and accounts <= set(row.deny_accounts):
        return f"it is closed to your accounts {_some(sorted(accounts))}"
    qos = {name for one in mine for name in one.qos}
    if qos and "qos" in access.config.enforced:
        if row.allow_qos and not qos & set(row.allow_qos):
            return f"it is for the QOS {_some(row.allow_qos)}"
        if qos <= set(row.deny_qos):
            return f"it is closed to your QOS {_some(sorted(qos))}"
    return ""


def _is_flat(config: SlurmConfig) -> bool:
    """Whether AllowAccounts means the named accounts alone: newer Slurms count those below too."""
    match = re.match(r"([0-9]+)\.([0-9]+)", config.version)
    return match is not None and (int(match[1]), int(match[2])) < (23, 11)


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
