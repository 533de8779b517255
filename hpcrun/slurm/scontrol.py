"""scontrol: how jobs are started again."""

from __future__ import annotations

import re
from collections.abc import Sequence


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
