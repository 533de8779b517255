"""What is said when Slurm takes long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hpcrun.cli.output import note

# A Slurm that takes longer than this to answer is mentioned.
SECONDS = 3.0


class Patience:
    """Says that Slurm is waited for, when it takes long; of many answers that are late once."""

    def __init__(self) -> None:
        self._is_told = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for one answer, or for several."""
        timer = threading.Timer(SECONDS, self._tell)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:  # no more threads allowed here: then it is silent
            yield
            return
        try:
            yield
        finally:
            timer.cancel()

    def _tell(self) -> None:
        if not self._is_told:
            self._is_told = True
            note("Slurm takes its time to answer; waiting for it ...")
