"""Asks Slurm for waiting and running jobs, seldom and on a thread: it may take a minute."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path

from hpcrun import scheduler
from hpcrun.errors import HpcrunError
from hpcrun.runs.layout import RUN_ID, sweep_id_of
from hpcrun.slurm.jobs import SlurmJob
from hpcrun.slurm.states import is_final
from hpcrun.transport import Transport

# Seconds between two questions, of whatever kind.
EVERY = 30.0


class Queue:
    """The jobs, as Slurm said last, and where the output goes of those that are not hpcrun's.

    ``asked_at``: when Slurm answered last, by the monotonic clock; None: it has not.
    """

    def __init__(self, transport: Transport, job_ids: Sequence[str]) -> None:
        """Ask for some jobs, or for all of the user's."""
        self.jobs: list[SlurmJob] = []
        self.outputs: dict[str, tuple[Path, ...]] = {}
        self.asked_at: float | None = None
        self.out_of_reach = ""
        self._transport = transport
        self._job_ids = list(job_ids)
        self._next = 0.0
        self._thread: threading.Thread | None = None
        self._answer: list[SlurmJob] | HpcrunError | None = None
        self._was_for_output = True

    def look(self, now: float) -> bool:
        """Ask if it is time; tell whether there is news."""
        if self._thread is not None:
            if self._thread.is_alive():
                return False
            self._thread = None
            return self._take(now)
        if now >= self._next:
            self._next = now + EVERY * random.uniform(1.0, 1.1)
            unknown = self._unknown()
            self._was_for_output = bool(unknown) and not self._was_for_output
            self._begin(unknown if self._was_for_output else None)
        return False

    def _unknown(self) -> str | None:
        """A job of which it is not known where its output goes."""
        for job in self.jobs:
            is_ours = RUN_ID.fullmatch(job.folder) or sweep_id_of(job.folder)
            if job.state == "RUNNING" and not is_ours and job.job_id not in self.outputs:
                return job.job_id
        return None

    def _begin(self, output_of: str | None) -> None:
        """Ask; where this machine gives no more threads, wait for the answer."""
        target = self._ask if output_of is None else lambda: self._ask_output(output_of)
        thread = threading.Thread(target=target, daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:
            target()

    def _ask(self) -> None:
        try:
            jobs = scheduler.queue(self._transport, self._job_ids)
            self._answer = [job for job in jobs if not is_final(job.state)]
        except HpcrunError as error:
            self._answer = error

    def _ask_output(self, job_id: str) -> None:
        try:
            jobs = scheduler.show_jobs(self._transport, job_id)
        except HpcrunError:
            jobs = []
        self.outputs[job_id] = tuple(map(Path, jobs[0].outputs)) if jobs else ()

    def _take(self, now: float) -> bool:
        answer, self._answer = self._answer, None
        if isinstance(answer, HpcrunError):
            self.out_of_reach = answer.message
        elif answer is not None:
            is_first = self.asked_at is None
            self.jobs, self.asked_at, self.out_of_reach = answer, now, ""
            if is_first and self._unknown() is not None:
                self._next = 0.0  # what the user waits for; all further questions take their turn
        return True
