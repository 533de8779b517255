"""What is said when Slurm takes long.

Effects: a thread; standard error.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hpcrun.cli.output import note

# A Slurm that takes longer than this to answer is mentioned.
SECONDS = 3.0


@contextmanager
def patience() -> Iterator[None]:
    """Say that Slurm is waited for, when it takes long."""
    told = threading.Timer(SECONDS, note, ["Slurm takes its time to answer; waiting for it ..."])
    told.daemon = True
    try:
        told.start()
    except RuntimeError:  # no more threads allowed here: then it is silent
        yield
        return
    try:
        yield
    finally:
        told.cancel()
