"""scontrol show job: where a job that hpcrun did not submit writes its output.

Pure.
"""

from __future__ import annotations

import re


def show_job_argv(job_id: str) -> list[str]:
    """Ask slurmctld for one job, on one line."""
    return ["scontrol", "--oneliner", "show", "job", job_id]


def parse_stdout_path(text: str) -> str | None:
    """Find the file that a job's output goes to.

    Values may hold blanks and newlines, so a value ends where the next key begins.

    >>> parse_stdout_path("JobId=7 StdIn=/dev/null StdOut=/a b/slurm-7.out Power= X=1")
    '/a b/slurm-7.out'
    """
    return _path(text, "StdOut")


def parse_stderr_path(text: str) -> str | None:
    """Find the file that a job's errors go to: the same one, unless the job asked for another.

    >>> parse_stderr_path("JobId=7 StdErr=/a/slurm-7.err StdIn=/dev/null StdOut=/a/slurm-7.out")
    '/a/slurm-7.err'
    """
    return _path(text, "StdErr")


def _path(text: str, key: str) -> str | None:
    match = re.search(rf" {key}=(.+?)(?: [A-Z][A-Za-z/:]*=|\s*$)", text, re.DOTALL)
    return match.group(1) if match else None
