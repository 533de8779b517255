"""scancel: the command line."""

from __future__ import annotations


def scancel_argv(*job_ids: str, pending: bool = False) -> list[str]:
    """Cancel jobs by their ids, never by name: names are not unique.

    With ``pending`` Slurm itself spares those that have begun meanwhile.
    """
    return ["scancel", *(["--state=PENDING"] if pending else []), *job_ids]
