"""scontrol show assoc_mgr: limits of a QOS or an association, and how much of each is used.

Users see their own there where the site has PrivateData; slurmctld answers without asking
the database.
"""

from __future__ import annotations

import re

from hpcrun.slurm.reasons import Limit, Numbers

# What a reason names by a word of its own, as the limits have it.
_TRES = {
    "Cpu": "cpu", "CPU": "cpu", "Mem": "mem", "Memory": "mem", "Node": "node", "GRES": "gres/",
    "License": "license/", "BB": "bb/", "Energy": "energy", "Billing": "billing",
}  # fmt: skip
_UNITS = {"cpu": "CPUs", "node": "nodes", "mem": "memory", "billing": "billing units"}
_PLAIN = {
    ("Grp", "Jobs"): "GrpJobs", ("Grp", "SubmitJobs"): "GrpSubmitJobs", ("Grp", "Wall"): "GrpWall",
    ("User", "Jobs"): "MaxJobsPU", ("User", "SubmitJob"): "MaxSubmitJobsPU",
    ("Account", "Jobs"): "MaxJobsPA", ("Account", "SubmitJobs"): "MaxSubmitJobsPA",
    ("", "Jobs"): "MaxJobs", ("", "SubmitJob"): "MaxSubmitJobs",
    ("Job", "WallDuration"): "MaxWallPJ",
}  # fmt: skip


def show_limits_argv(limit: Limit, qos: str, account: str) -> list[str]:
    """Ask for the limits of a job's QOS, or of its account and those above it."""
    if limit.whose == "qos":
        return ["scontrol", "show", "assoc_mgr", "flags=qos", f"qos={qos}"]
    return ["scontrol", "show", "assoc_mgr", "flags=assoc", f"accounts={account}"]


def find_numbers(text: str, limit: Limit, *, user: str, uid: str, account: str) -> Numbers | None:
    """Find what a limit allows and how much is used; None where the text does not tell.

    >>> text = "QOS=q(1)\\n  User Limits\\n    me(7)\\n      MaxTRESPU=cpu=N(1),gres/gpu=8(6)\\n"
    >>> limit = Limit("qos", "Max", "GRES", per="User")
    >>> find_numbers(text, limit, user="me", uid="7", account="a")
    Numbers(allowed='8', used='6', unit='GPUs')
    """
    key = _key(limit)
    if key is None:
        return None
    for section in _sections(text, limit, user, uid, account):
        values = re.search(rf"(?:^|\s){re.escape(key)}=(\S*)", section)
        found = _reached(values[1], limit) if values else None
        if found is not None:
            return found
    return None


def _key(limit: Limit) -> str | None:
    group = "Grp" if limit.amount == "Grp" else limit.per
    plain = _PLAIN.get((group, limit.resource))
    if plain is not None or limit.resource not in _TRES:
        return plain
    if limit.amount == "Grp":
        return "GrpTRES" + {"": "", "Minutes": "Mins", "RunMinutes": "RunMins"}[limit.minutes]
    if limit.amount == "Min":
        return "MinTRESPJ"
    if limit.minutes == "RunMinutes":
        return {"User": "MaxTRESRunMinsPU", "Account": "MaxTRESRunMinsPA"}.get(limit.per)
    ends = {"Job": "PJ", "Node": "PN", "User": "PU", "Account": "PA"}
    middle = "Mins" if limit.minutes else ""
    return f"MaxTRES{middle}{ends[limit.per]}" if limit.per in ends else None


def _sections(text: str, limit: Limit, user: str, uid: str, account: str) -> list[str]:
    """The part of the answer that is about this user or account."""
    if limit.whose == "assoc":
        records = re.split(r"(?m)^(?=ClusterName=)", text)
        own = [each for each in records if re.search(rf"UserName={re.escape(user)}\(", each)]
        return [*own, *(each for each in records if re.search(r"UserName= ", each))]
    if limit.per not in ("User", "Account") or limit.amount == "Grp":
        return [re.split(r"(?m)^\s+Account Limits", text)[0]]
    # Users stand there by their numbers, in some versions by their names as well.
    of_user = rf"(?:{re.escape(user)}(?:\({uid}\))?|{re.escape(uid)})"
    name = of_user if limit.per == "User" else re.escape(account)
    heading = "User Limits" if limit.per == "User" else "Account Limits"
    part = text.partition(heading)[2]
    match = re.search(rf"(?m)^\s+{name}\s*\n((?:\s+\w+=.*\n?)+)", part)
    return [match[1]] if match else []


def _reached(values: str, limit: Limit) -> Numbers | None:
    """Of the resources that a limit is on, the one that is nearest to it."""
    wanted = _TRES.get(limit.resource)
    best: tuple[float, Numbers] | None = None
    for part in values.split(","):
        name, _, value = part.rpartition("=")
        match = re.fullmatch(r"(\d+)(?:\.\d+)?(?:\((\d+)(?:\.\d+)?\))?", value)
        if match is None or (wanted is None) == bool(name):
            continue
        is_kind = wanted is not None and "/" in wanted and name.startswith(wanted)
        if wanted is not None and name != wanted and not is_kind:
            continue
        allowed, used = int(match[1]), int(match[2] or 0)
        share = used / allowed if allowed else 2.0
        if best is None or share > best[0]:
            best = share, Numbers(_amount(name, allowed), _amount(name, used), _unit(name, limit))
    return best[1] if best else None


def _unit(name: str, limit: Limit) -> str:
    if name.startswith("gres/gpu"):
        model = name.partition(":")[2]
        return f"{model} GPUs" if model else "GPUs"
    if limit.resource in ("Jobs", "SubmitJobs", "SubmitJob"):
        return "running jobs" if limit.resource == "Jobs" else "queued jobs"
    return _UNITS.get(name, name.partition("/")[2] or name)


def _amount(name: str, value: int) -> str:
    """Memory comes in MiB."""
    return f"{value / 1024:.0f} GiB" if name == "mem" else f"{value:,}"
