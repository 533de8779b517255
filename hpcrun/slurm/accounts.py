"""Slurm's accounting of a finished job: who cancelled it, and its resource usage."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct, structs

from hpcrun.slurm.states import is_final, parse_duration, parse_state
from hpcrun.text import is_whole_number

_FIELD = "\x1f"
# These fields exist in Slurm 20.11 to 26.05.
_FIELDS = (
    "JobID",
    "State",
    "UID",
    "User",
    "DerivedExitCode",
    "TotalCPU",
    "CPUTimeRAW",
    "NCPUS",
    "NNodes",
    "ReqMem",
    "AllocTRES",
    "NTasks",
    "MaxRSS",
    "TRESUsageInTot",
)
# Fields of a report; all exist in Slurm 20.11 to 26.05, whether or not it measures energy.
_REPORT_FIELDS = (*_FIELDS, "ConsumedEnergyRaw", "Submit", "Start")
# Larger numbers are Slurm's marks of missing values, near 2^64.
_MAX_JOULES = 1e15
_UNITS = {unit: 1024**power for power, unit in enumerate(("", "K", "M", "G", "T", "P"))}


class JobAccounting(Struct, frozen=True, kw_only=True):
    """The accounting record of a job; "" and None mean that Slurm has no value.

    Attributes:
        cancelled_by: A uid.
        user: The name for ``cancelled_by`` if that is the job's own user.
        node_reason: Why ``node``, one of the job's nodes, is unavailable.
        step_code: The worst exit code of its steps, whatever its script returned.
        memory_asked: Requested memory of all nodes together, in bytes.
        memory_used: Peak memory of the largest step on all nodes, as far as Slurm sampled it, in
            bytes.
        held_seconds: Allocated CPU time, that is run time times ``cpus``.
        cpu_seconds: The part of ``held_seconds`` in which the CPUs were busy.
        energy_joules: Energy of its nodes, if Slurm measures it.
        submitted: When it was submitted, in Slurm's format, as ``started``.
    """

    cancelled_by: str = ""
    user: str = ""
    node: str = ""
    node_reason: str = ""
    step_code: int | None = None
    cpus: int | None = None
    cpu_seconds: float | None = None
    held_seconds: float | None = None
    memory_asked: int | None = None
    memory_used: int | None = None
    energy_joules: float | None = None
    submitted: str = ""
    started: str = ""


def accounting_argv(job_id: str) -> list[str]:
    """Return the query for a finished job and its steps; only steps have memory usage."""
    argv = ["sacct", "--noheader", "--parsable2", f"--delimiter={_FIELD}"]
    return [*argv, f"--format={','.join(_FIELDS)}", f"--jobs={job_id}"]


def parse_accounting(stdout: str, job_id: str) -> JobAccounting | None:
    r"""Parse the output of accounting_argv(); None if the job is missing or not finished yet.

    >>> text = ("7|CANCELLED by 1000|1000|me|3:0|00:19.5|40|2|1|1000M|cpu=2,mem=1000M,node=1|||\n"
    ...         "7.0|COMPLETED||||00:19.5|40|2|1|||2|310000K|cpu=00:00:19,mem=620M\n")
    >>> found = parse_accounting(text.replace("|", "\x1f"), "7")
    >>> found.cancelled_by, found.user, found.step_code, found.cpu_seconds, found.held_seconds
    ('1000', 'me', 3, 19.5, 40.0)
    >>> found.memory_asked >> 20, found.memory_used >> 20
    (1000, 620)
    """
    return _build_accounting(_read_rows(stdout, _FIELDS), job_id)


def report_argv(job_ids: Sequence[str]) -> list[str]:
    """Return the query for the usage, the energy and the times of several jobs and their steps."""
    argv = ["sacct", "--noheader", "--parsable2", f"--delimiter={_FIELD}"]
    return [*argv, f"--format={','.join(_REPORT_FIELDS)}", f"--jobs={','.join(job_ids)}"]


def parse_report(stdout: str) -> dict[str, JobAccounting]:
    r"""Parse the output of report_argv() to the records of finished jobs, by their ids.

    >>> text = ("7|COMPLETED|1|me|0:0|19|40|2|1|1000M|mem=1000M||||7200000|"
    ...         "2026-11-20T08:00:00|2026-11-20T08:01:00\n"
    ...         "7.0|COMPLETED||||19|40|2|1|||2|310000K|mem=620M|7200000||\n"
    ...         "8|RUNNING|1|me|0:0|0|40|2|1|1000M||||||2026-11-20T08:00:00|Unknown\n")
    >>> found = parse_report(text.replace("|", "\x1f"))
    >>> [*found], found["7"].energy_joules, found["7"].started, found["7"].memory_used >> 20
    (['7'], 7200000.0, '2026-11-20T08:01:00', 620)
    """
    jobs: dict[str, list[dict[str, str]]] = {}
    for row in _read_rows(stdout, _REPORT_FIELDS):
        jobs.setdefault(row["JobID"].partition(".")[0], []).append(row)
    found = {job_id: _build_accounting(rows, job_id) for job_id, rows in jobs.items()}
    return {
        job_id: structs.replace(
            each,
            energy_joules=_read_energy(jobs[job_id]),
            submitted=jobs[job_id][0]["Submit"],
            started=jobs[job_id][0]["Start"],
        )
        for job_id, each in found.items()
        if each is not None
    }


def _read_rows(stdout: str, fields: Sequence[str]) -> list[dict[str, str]]:
    rows = [line.split(_FIELD) for line in stdout.splitlines()]
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def _read_energy(rows: Sequence[dict[str, str]]) -> float | None:
    """Return the energy of a job: its own value, or else the sum of its steps'."""
    joules = [float(_parse_integer(row["ConsumedEnergyRaw"]) or 0) for row in rows]
    known = [each if each < _MAX_JOULES else 0.0 for each in joules]
    return known[0] or sum(known[1:]) or None


def _build_accounting(jobs: Sequence[dict[str, str]], job_id: str) -> JobAccounting | None:
    own = [job for job in jobs if job["JobID"] == job_id]
    if not own or not all(is_final(parse_state(job["State"])) for job in jobs):
        return None
    job = own[-1]
    by = re.search(r"CANCELLED by ([0-9]{1,10})", job["State"])
    code = job["DerivedExitCode"].partition(":")[0]
    return JobAccounting(
        cancelled_by=by[1] if by else "",
        user=job["User"] if by and by[1] == job["UID"] else "",
        step_code=int(code) if is_whole_number(code) else None,
        cpus=_parse_integer(job["NCPUS"]),
        cpu_seconds=parse_cpu_time(job["TotalCPU"]) or None,  # may be 0 for a killed job
        held_seconds=float(held) if (held := _parse_integer(job["CPUTimeRAW"])) else None,
        memory_asked=_requested_memory_mib(job),
        memory_used=max(filter(None, map(_used_memory, jobs)), default=None),
    )


def parse_cpu_time(text: str) -> float | None:
    """Parse CPU time as sacct prints it; None for anything else.

    >>> parse_cpu_time("00:19.500"), parse_cpu_time("1-02:03:04"), parse_cpu_time("")
    (19.5, 93784.0, None)
    """
    whole, _, part = text.partition(".")
    seconds = parse_duration(whole)
    fraction = float(f"0.{part}") if is_whole_number(part) else 0.0
    return None if seconds is None else seconds + fraction


def parse_memory(text: str) -> int | None:
    """Parse an amount of memory as sacct prints it, in bytes.

    >>> parse_memory("620M"), parse_memory("1.50G"), parse_memory("2048"), parse_memory("?")
    (650117120, 1610612736, 2048, None)
    """
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]+)?)([KMGTP]?)", text)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def _requested_memory_mib(job: dict[str, str]) -> int | None:
    """Return a job's memory on all nodes; before 21.08 ReqMem is per node or CPU: 4Gn, 100Mc."""
    given = re.search(r"(?:^|,)mem=([^,]+)", job["AllocTRES"])
    if given:
        return parse_memory(given[1]) or None
    text = job["ReqMem"]
    count = (
        _parse_integer(job["NNodes" if text.endswith("n") else "NCPUS"]) if text[-1:] in "nc" else 1
    )
    memory = parse_memory(text.rstrip("nc"))
    return memory * count if memory and count else None


def _used_memory(job: dict[str, str]) -> int | None:
    """Return the sum of the peak memory of all tasks of a step."""
    found = re.search(r"(?:^|,)mem=([^,]+)", job["TRESUsageInTot"])
    if found and (memory := parse_memory(found[1])):
        return memory
    most, tasks = parse_memory(job["MaxRSS"]), _parse_integer(job["NTasks"])
    return most * tasks if most and tasks else None


def _parse_integer(text: str) -> int | None:
    return int(text) if is_whole_number(text) and len(text) < 19 else None


# ---- reasons of unavailable nodes


def show_node_argv(node: str) -> list[str]:
    """Return the query for one node."""
    return ["scontrol", "--oneliner", "show", "node", node]


def parse_node_reason(stdout: str) -> str:
    """Parse why a node is unavailable; "" if it is available.

    >>> parse_node_reason(
    ...     "NodeName=n1 State=DOWN Reason=DIMM 3 is broken [root@2026-11-20T13:51:15]")
    'DIMM 3 is broken'
    >>> parse_node_reason("NodeName=n1 State=IDLE OS=Linux")
    ''
    """
    found = re.search(r" Reason=(.*?)(?: \[[^\s\]]+@[^\s\]]+\]| Comment=|\s*$)", stdout)
    return found[1].strip() if found else ""
