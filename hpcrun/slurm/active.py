"""squeue, for jobs to which a step is added: beside each row the job's own number."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hpcrun.slurm.squeue import QueueRow, is_garbled, parse_squeue, squeue_argv

_FIELD, _ROW = "\x1f", "\x1e"


class ActiveJob(Struct, frozen=True):
    """A job as squeue shows it. ``number`` is its JobId: of an array's task 7_3 a number like 9,
    by which srun knows it in every version."""

    row: QueueRow
    number: str


def active_argv(job_ids: Sequence[str] = ()) -> list[str]:
    """Ask for all my jobs, or for some jobs."""
    argv = squeue_argv(job_ids)
    return [word.replace("--format=", f"--format=%A{_FIELD}", 1) for word in argv]


def parse_active(stdout: str) -> list[ActiveJob]:
    r"""Read the rows.

    >>> row = "9|7_3|RUNNING|None|0:05|1:00|2|n[1-2]|N/A|gpu|me|/w|a b".replace("|", "\x1f")
    >>> [(job.number, job.row.job_id) for job in parse_active(row + "\x1e\n")]
    [('9', '7_3')]
    """
    jobs = []
    for record in stdout.split(_ROW):
        number, _, rest = record.lstrip("\n").partition(_FIELD)
        jobs += [ActiveJob(row, number) for row in parse_squeue(rest + _ROW)]
    return jobs


def is_active_garbled(stdout: str) -> bool:
    r"""Tell whether an answer holds anything but whole rows.

    >>> is_active_garbled("<html>"), is_active_garbled(""), is_active_garbled("9\x1f7\x1e\n")
    (True, False, True)
    """
    *records, rest = stdout.split(_ROW)
    numbers, rows = [], []
    for record in records:
        number, _, row = record.lstrip("\n").partition(_FIELD)
        numbers.append(number)
        rows.append(row + _ROW)
    return not all(map(str.isdigit, numbers)) or is_garbled("".join(rows) + rest)
