"""Waiting for what comes: as long as it may take on a machine that does much else.

How soon something comes is measured by records of their own, or not at all. What has no deadline
here (a process to its end) has pytest's, which shows where it waited.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 600.0  # seconds; what takes longer hangs


def until(condition: Callable[[], T | None], what: str | Callable[[], str] = "it") -> T:
    """Wait until a condition holds, and give what it gave; ``what``: for whom it did not."""
    begun = time.monotonic()
    while not (answer := condition()):
        waited = time.monotonic() - begun
        if waited > PATIENCE:
            raise AssertionError(f"waited in vain for {what if isinstance(what, str) else what()}")
        # Many a condition is a question to Slurm.
        time.sleep(min(max(0.02, waited / 20), 1))
    return answer
