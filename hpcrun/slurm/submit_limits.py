"""Limits of a user's accounts and QOS: on jobs in the queue, and on the hours that jobs may use."""

from __future__ import annotations

import re

from msgspec import Struct

from hpcrun.text import is_whole_number

# The limits of all QOS. ``scontrol show assoc_mgr`` prints the limit for each user only of users
# who have jobs in the QOS.
SHOW_QOS_SUBMIT_LIMITS = (
    *("sacctmgr", "--noheader", "--parsable2", "--readonly", "show", "qos"),
    "format=Name,MaxSubmitPU,MaxSubmitPA,GrpSubmit,Flags",
)


class SubmitLimit(Struct, frozen=True):
    """A limit on pending and running jobs together, where each task of an array is a job.

    Attributes:
        name: The limit, as Slurm's documentation names it.
        owner: What has the limit, as in "account ml" and "QOS normal".
        used: Jobs that count towards the limit at present.
    """

    name: str
    owner: str
    allowed: int
    used: int


def show_submit_limits_argv(user: str) -> list[str]:
    """Return the query for the limits of a user's associations and of all QOS, with their usage."""
    return ["scontrol", "show", "assoc_mgr", "flags=assoc,qos", f"users={user}"]


def find_submit_limits(
    records: str,
    qos_table: str,
    *,
    user: str,
    account: str,
    qos: str,
    partition: str = "",
    partition_qos: str = "",
) -> list[SubmitLimit]:
    r"""Find the limits that apply to a job.

    Args:
        records: The output of show_submit_limits_argv().
        qos_table: The output of SHOW_QOS_SUBMIT_LIMITS.
        qos: The QOS of the job.
        partition_qos: The QOS of the job's partition. Its limits come before those of the job's
            QOS, unless that has the flag OverPartQOS.

    >>> records = ("ClusterName=c Account=ml UserName= Partition= ID=3\n"
    ...            "  ParentAccount=root(1)\n  GrpSubmitJobs=50(4) GrpWall=N(0.00)\n"
    ...            "ClusterName=c Account=ml UserName=me(7) Partition= ID=4\n"
    ...            "  ParentAccount= GrpSubmitJobs=N(2)\n  MaxJobs=3(0) MaxSubmitJobs=6(2)\n")
    >>> for qos in ("", "q"):
    ...     for each in find_submit_limits(
    ...         records, "q|8|||\n", user="me", account="ml", qos=qos
    ...     ):
    ...         print(each.name, each.owner, each.allowed, each.used)
    MaxSubmitJobs account ml 6 2
    GrpSubmitJobs account ml 50 4
    GrpSubmitJobs account ml 50 4
    MaxSubmitJobsPerUser QOS q 8 0
    """
    associations, _, qos_records = records.partition("\nQOS Records")
    rows = {row[0]: row for row in (line.split("|") for line in qos_table.splitlines())}
    overrides = "overpartqos" in rows.get(qos, [""])[-1].lower().split(",")
    of_qos: list[SubmitLimit] = []
    for name in (qos, partition_qos) if overrides else (partition_qos, qos):
        known = {each.name for each in of_qos}
        limits = _qos_limits(qos_records, rows.get(name, []), user, account, name)
        of_qos += [each for each in limits if each.name not in known]
    # A limit of the QOS applies instead of the association's (Slurm's resource_limits.html).
    replaced = {each.name[:3] for each in of_qos}
    of_accounts = _association_limits(associations, user, account, partition)
    return [*(each for each in of_accounts if each.name[:3] not in replaced), *of_qos]


class HoursLimit(Struct, frozen=True):
    """A limit on the resource hours of all jobs together (GrpTRESMins), past jobs included.

    Attributes:
        owner: What has the limit, as in "account ml".
        resource: The resource, as in "GPU", "a100 GPU", "CPU", "node" or "billing".
        used: Hours used at present, as Slurm counts them: usage may decay with time.
    """

    owner: str
    resource: str
    allowed: float
    used: float


def find_hours_limits(
    records: str, *, user: str, account: str, partition: str = ""
) -> list[HoursLimit]:
    r"""Find the limits on hours of a user's association, the account and its parents.

    Args:
        records: The output of show_submit_limits_argv().

    >>> records = ("ClusterName=c Account=ml UserName= Partition= ID=3\n"
    ...            "  ParentAccount=root(1)\n  GrpTRESMins=cpu=N(5),gres/gpu=6000(1500)\n"
    ...            "ClusterName=c Account=ml UserName=me(7) Partition= ID=4\n"
    ...            "  ParentAccount= GrpTRESMins=cpu=N(5),gres/gpu=N(60),gres/gpu:a100=120(60)\n")
    >>> for each in find_hours_limits(records, user="me", account="ml"):
    ...     print(each.owner, each.resource, each.allowed, each.used)
    user me in account ml a100 GPU 2.0 1.0
    account ml GPU 100.0 25.0
    """
    found = []
    associations = records.partition("\nQOS Records")[0]
    for section, is_own, name in _applicable_sections(associations, user, account, partition):
        owner = f"user {user} in account {name}" if is_own else f"account {name}"
        for part in _read(section, "GrpTRESMins").split(","):
            match = re.fullmatch(
                r"(cpu|node|billing|gres/gpu(?::[^=()]+)?)=(\d{1,15})\((\d{1,15})(?:\.\d+)?\)", part
            )
            if match is not None:
                kind, _, model = match[1].partition(":")
                resource = {"cpu": "CPU", "gres/gpu": f"{model} GPU".strip()}.get(kind, kind)
                found.append(HoursLimit(owner, resource, int(match[2]) / 60, int(match[3]) / 60))
    return found


def _applicable_sections(
    text: str, user: str, account: str, partition: str
) -> list[tuple[str, bool, str]]:
    """List the user's own section and those of the account and its parents.

    Returns:
        Each section, whether it is the user's own, and the name of its account.
    """
    found = []
    sections = re.split(r"(?m)^(?=ClusterName=)", text)
    own = [each for each in sections if _has(each, account, rf"{re.escape(user)}\(\d+\)")]
    # An association for the partition has precedence over the one for all partitions.
    by_partition = {_read(each, "Partition"): each for each in own}
    chosen = by_partition.get(partition, by_partition.get(""))
    if chosen is not None:
        found.append((chosen, True, account))
    seen = set[str]()
    while account and account not in seen:
        seen.add(account)
        section = next((each for each in sections if _has(each, account, "")), "")
        found.append((section, False, account))
        account = _read(section, "ParentAccount").partition("(")[0]
    return found


def _association_limits(text: str, user: str, account: str, partition: str) -> list[SubmitLimit]:
    limits = []
    for section, is_own, name in _applicable_sections(text, user, account, partition):
        key = "MaxSubmitJobs" if is_own else "GrpSubmitJobs"
        limits += _read_limit(section, key, key, f"account {name}")
    return limits


def _qos_limits(
    records: str, row: list[str], user: str, account: str, qos: str
) -> list[SubmitLimit]:
    sections = re.split(r"(?m)^(?=QOS=)", records)
    section = next((each for each in sections if each.startswith(f"QOS={qos}(")), "")
    owner = f"QOS {qos}"
    of_accounts, _, of_users = section.partition("Account Limits")[2].partition("User Limits")
    row = row if len(row) == 5 else ["", "", "", "", ""]
    limits = []
    for name, key, text, configured in (
        ("MaxSubmitJobsPerUser", "MaxSubmitJobsPU", _part(of_users, user), row[1]),
        ("MaxSubmitJobsPerAccount", "MaxSubmitJobsPA", _part(of_accounts, account), row[2]),
        ("GrpSubmitJobs", "GrpSubmitJobs", section.partition("Account Limits")[0], row[3]),
    ):
        found = _read_limit(text, key, name, owner)
        if not found and key not in text and is_whole_number(configured):
            found = [SubmitLimit(name, owner, int(configured), 0)]  # no job counts yet
        limits += found
    return limits


def _part(text: str, name: str) -> str:
    """Return the lines below the name of a user or an account."""
    match = re.search(rf"(?m)^\s+{re.escape(name)}(?:\(\d+\))?\s*\n((?:\s+\w+=.*\n?)+)", text)
    return match[1] if match else ""


def _has(section: str, account: str, user: str) -> bool:
    head = section.partition("\n")[0]
    return re.search(rf" Account={re.escape(account)} UserName={user}(?: |$)", head) is not None


def _read(section: str, key: str) -> str:
    match = re.search(rf"(?:^|\s){key}=(\S*)", section)
    return match[1] if match else ""


def _read_limit(section: str, key: str, name: str, owner: str) -> list[SubmitLimit]:
    match = re.fullmatch(r"(\d{1,12})(?:\((\d{1,12})\))?", _read(section, key))
    return [SubmitLimit(name, owner, int(match[1]), int(match[2] or 0))] if match else []
