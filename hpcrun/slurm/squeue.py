"""squeue: the command line and the rows that it prints."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hpcrun.slurm.states import parse_state

# Names and folders may hold any printable character and, a folder, even a newline: fields are
# parted by the unit separator and rows end with the record separator.
_FIELD, _ROW = "\x1f", "\x1e"
_FORMAT = _FIELD.join(["%i", "%T", "%r", "%M", "%l", "%D", "%N", "%S", "%P", "%u", "%Z", "%j"])


class QueueRow(Struct, frozen=True):
    """One job as squeue shows it; times in Slurm's own text form."""

    job_id: str
    state: str
    reason: str
    elapsed: str
    limit: str
    nodes: str
    node_list: str
    start: str
    partition: str
    user: str
    work_dir: str
    name: str


def squeue_argv(job_ids: Sequence[str] = ()) -> list[str]:
    """Ask for all my jobs, or for some jobs, finished ones that Slurm still knows included.

    A task is asked for as 7_3, all tasks of its array as 7. One call serves any number of jobs:
    squeue in a loop burdens the whole cluster (squeue(1), PERFORMANCE).
    """
    # --array: a row for each task of an array; else one stands for all that wait, as 7_[3-9%4].
    argv = ["squeue", "--noheader", "--states=all", "--array", f"--format={_FORMAT}{_ROW}"]
    # --jobs shows those of hidden partitions by itself, --me does not.
    return [*argv, "--jobs=" + ",".join(job_ids)] if job_ids else [*argv, "--all", "--me"]


def headed_argv() -> list[str]:
    """Ask for my jobs with a line of column names, which is there though no job is."""
    return ["squeue", "--me", "--format=%i"]


def parse_squeue(stdout: str) -> list[QueueRow]:
    r"""Read squeue's rows.

    >>> row = "7|RUNNING|None|0:05|1:00|2|n[1-2]|N/A|gpu|me|/w|a b".replace("|", "\x1f")
    >>> parse_squeue(row + "\x1e\n")[0].node_list
    'n[1-2]'
    """
    rows = []
    for record in stdout.split(_ROW):
        fields = record.lstrip("\n").split(_FIELD)
        if len(fields) == len(QueueRow.__struct_fields__):
            fields[1] = parse_state(fields[1])
            rows.append(QueueRow(*fields))
    return rows


def is_garbled(stdout: str) -> bool:
    r"""Tell whether an answer holds anything but whole rows: to know less is not to know "none".

    >>> is_garbled("<html>"), is_garbled(""), is_garbled("7\x1fRUNNING\x1e\n")
    (True, False, True)
    """
    *records, rest = stdout.split(_ROW)
    return bool(rest.strip()) or not all(map(_is_row, records))


def _is_row(record: str) -> bool:
    """Tell whether a record begins with a job's id and has all fields.

    What a site's wrapper says first would else become part of the first job's id.
    """
    job_id, *fields = record.lstrip("\n").split(_FIELD)
    return (
        job_id[:1].isdigit()
        and "\n" not in job_id
        and len(fields) + 1 == len(QueueRow.__struct_fields__)
    )


class PendingRow(Struct, frozen=True):
    """What is asked of jobs that wait alone: what for, and by whose limits.

    ``priority`` is Slurm's own number; ``gres`` what the job asks for on each node.
    """

    job_id: str
    dependency: str
    qos: str
    account: str
    user: str
    uid: str
    partition: str
    priority: str
    gres: str


_PENDING_FORMAT = _FIELD.join(["%i", "%E", "%q", "%a", "%u", "%U", "%P", "%Q", "%b"])


def pending_argv(job_ids: Sequence[str] = (), partition: str = "") -> list[str]:
    """Ask what jobs wait for: those named, or, by its name, all that wait in a partition."""
    argv = ["squeue", "--noheader", "--array", f"--format={_PENDING_FORMAT}{_ROW}"]
    if partition:
        return [*argv, "--states=PENDING", f"--partition={partition}"]
    return [*argv, "--states=all", "--jobs=" + ",".join(job_ids)]


def parse_pending(stdout: str) -> list[PendingRow]:
    """Read the rows of ``pending_argv``; what is no row is passed over."""
    records = (record.lstrip("\n").split(_FIELD) for record in stdout.split(_ROW))
    wanted = len(PendingRow.__struct_fields__)
    return [PendingRow(*fields) for fields in records if len(fields) == wanted]
