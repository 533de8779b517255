"""sacct: the command line and the rows that it prints."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from hpcrun.slurm.states import parse_state

_FIELD = "\x1f"
# All of these exist from Slurm 20.11 to 26.05; an unknown one would be a hard error.
_FIELDS = (
    "JobID,State,ExitCode,Elapsed,Timelimit,Start,End,"
    "NNodes,NodeList,Partition,User,JobName,WorkDir"
)


class AccountRow(Struct, frozen=True):
    """One job as the accounting has it; ``exit_code`` is Slurm's ``code:signal``.

    Before 25.11 sacct takes 128 off codes of 128 and more, so a run's own record goes first.
    """

    job_id: str
    state: str
    exit_code: str
    elapsed: str
    limit: str
    start: str
    end: str
    nodes: str
    node_list: str
    partition: str
    user: str
    name: str
    work_dir: str


def sacct_argv(job_ids: Sequence[str]) -> list[str]:
    """Ask for the last start of each job, without its steps.

    Tasks of an array that never began have no rows of their own, but share one, as 7_[3-9%4]:
    it shows where 7 is asked for. With --jobs the default window is all time (sacct(1), DEFAULT
    TIME WINDOW).
    """
    return [
        "sacct",
        "--allocations",
        "--noheader",
        "--parsable2",
        f"--delimiter={_FIELD}",
        f"--format={_FIELDS}",
        "--jobs=" + ",".join(job_ids),
    ]


def parse_sacct(stdout: str) -> list[AccountRow]:
    r"""Read sacct's rows; a newline in a name or a folder goes on with the row above.

    >>> row = "7|CANCELLED by 0|0:15|1|2|s|e|1|n1|gpu|me|job|/w".replace("|", "\x1f")
    >>> [(row.state, row.work_dir) for row in parse_sacct(f"{row}\nb\n{row}\n")]
    [('CANCELLED', '/w\nb'), ('CANCELLED', '/w')]
    """
    rows = []
    for fields in _records(stdout):
        if len(fields) == len(AccountRow.__struct_fields__):
            fields[1] = parse_state(fields[1])
            rows.append(AccountRow(*fields))
    return rows


def is_garbled(stdout: str) -> bool:
    """Tell whether an answer holds anything but whole rows.

    >>> is_garbled("<html>"), is_garbled("")
    (True, False)
    """
    wanted = len(AccountRow.__struct_fields__)
    return any(len(fields) != wanted and fields != [""] for fields in _records(stdout))


def _records(stdout: str) -> list[list[str]]:
    begin = rf"(?:^|\n)(?=[0-9][^\n{_FIELD}]*{_FIELD})"
    return [text.split(_FIELD) for text in re.split(begin, stdout.removesuffix("\n"))]
