"""scancel: the command line.

Pure.
"""

from __future__ import annotations


def scancel_argv(job_id: str) -> list[str]:
    """Cancel one job by its id, never by name: names are not unique."""
    return ["scancel", job_id]
