"""scontrol: where a job writes its output, its number, and how it is started anew."""

from __future__ import annotations

import re
from collections.abc import Sequence


def show_job_argv(job_id: str) -> list[str]:
    """Ask slurmctld for one job, on one line."""
    return ["scontrol", "--oneliner", "show", "job", job_id]


def value_of(record: str, key: str) -> str:
    r"""Find what a key of ``scontrol --oneliner show`` says; "" for nothing, and for no such key.

    Values may hold blanks and newlines, so a value ends where the next key begins.

    >>> value_of("JobId=7 StdErr= StdIn=/dev/null StdOut=/a b.out\nJobId=8", "StdOut")
    '/a b.out'
    >>> value_of("JobId=7 StdErr= StdIn=/dev/null StdOut=/a b.out\nJobId=8", "StdErr")
    ''
    """
    found = re.search(rf"(?:^|\s){key}=(.*?)(?=\s+[A-Z][A-Za-z/:]*=|\s*\Z)", record, re.DOTALL)
    return found[1] if found else ""


def parse_output_paths(text: str) -> list[str]:
    """Find the files of a job's output and, unless it is the same one, of its errors.

    >>> parse_output_paths("JobId=7 StdErr=/a b.err StdIn=/dev/null StdOut=/a b.out Power= X=1")
    ['/a b.out', '/a b.err']
    >>> parse_output_paths("JobId=7 StdErr= StdIn=/dev/null StdOut=/a b.out")
    ['/a b.out']
    """
    paths = (value_of(text, "StdOut"), value_of(text, "StdErr"))
    return list(dict.fromkeys(path for path in paths if path))


def parse_job_number(text: str) -> str | None:
    """Find the number by which srun knows a job, of an array's task too.

    >>> parse_job_number("JobId=19 ArrayJobId=17 ArrayTaskId=1 JobName=x")
    '19'
    """
    match = re.match(r"\s*JobId=([0-9]+)", text)
    return match.group(1) if match else None


def requeue_argv(job_ids: Sequence[str], *, hold: bool = False) -> list[str]:
    """Start jobs or tasks anew, running or over; with ``hold`` they wait until they are released.

    Slurm answers for each by itself.
    """
    return ["scontrol", "requeuehold" if hold else "requeue", ",".join(job_ids)]


def may_requeue_argv(job_ids: Sequence[str], *, may: bool) -> list[str]:
    """Let Slurm start jobs anew, or forbid it, as sbatch's --requeue and --no-requeue do."""
    return ["scontrol", "update", f"JobId={','.join(job_ids)}", f"Requeue={int(may)}"]


def parse_refusals(stderr: str) -> dict[str, str]:
    """Read what scontrol says of single jobs that it did not change: id -> Slurm's words.

    >>> parse_refusals("Job has already finished for job 7\\n8_1: Invalid job id specified\\n"
    ...                "8_2: No error\\n")
    {'7': 'Job has already finished', '8_1': 'Invalid job id specified'}
    """
    found: dict[str, str] = {}
    for line in stderr.splitlines():
        match = re.fullmatch(
            r"(?P<said>.+) for job (?P<id>[0-9_]+)\s*", line.strip()
        ) or re.fullmatch(r"(?:.*\s)?(?P<id>[0-9]+(?:_[0-9]+)?): (?P<said>.+)", line.strip())
        if match is not None and match["said"] != "No error":
            found[match["id"]] = match["said"].strip()
    return found
