"""What is followed: the states of jobs as Slurm is asked for them, and the files of their logs.

Never changes or cancels anything.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from msgspec import structs

from hpcrun.controller.context import Context
from hpcrun.controller.state.foreign import ForeignStatus
from hpcrun.controller.state.status import RunStatus
from hpcrun.controller.watch.pace import Pace
from hpcrun.logs.files import LogFile
from hpcrun.slurm.states import UNKNOWN

Status = RunStatus | ForeignStatus
# Who waits for a limited time cuts questions off at its end. That one of so few seconds got no
# answer says nothing about Slurm: then what was known before holds.
FAIR = 5.0


class Watched(ABC):
    """Some jobs whose states are followed: what changed, what is over, when Slurm is asked again.

    Slurm is not asked before the first look(). ``deadline`` (by time.monotonic) cuts questions off:
    a Slurm that hangs keeps nobody longer, but the first look lasts FAIR seconds where it must.
    """

    def __init__(
        self, context: Context, succession: Sequence[float], deadline: float | None = None
    ) -> None:
        self._context = context
        self._deadline = deadline
        self._first_deadline = None if deadline is None else max(deadline, time.monotonic() + FAIR)
        self._pace = Pace(succession)
        self._known: dict[str, Status] = {}
        self._shown: dict[str, tuple[str, str]] = {}

    # ---- what each kind has of its own

    @abstractmethod
    def _ask(self, context: Context) -> Iterable[tuple[str, Status]]:
        """Ask Slurm for what is not over yet: statuses by a name of their own."""

    def files(self) -> list[LogFile]:
        """List the log files that are there, in the order in which they are shown."""
        return []

    def heard(self, file: LogFile, data: bytes | None) -> None:  # noqa: B027
        """Take notice of new lines; None: the file was begun anew."""

    def attempt_line(self, file: LogFile) -> str:
        """Say which attempt a file belongs to, where that runs and why the last one ended."""
        return f"attempt {file.attempt or 0}"

    def _look_around(self, now: float) -> None:  # noqa: B027
        """Look for signs of news that cost Slurm nothing."""

    def _is_settled(self, name: str, now: float) -> bool:
        """Tell whether an end may be given: nothing is on its way from the nodes any more."""
        return True

    def _next_look(self, now: float) -> float:
        """When a look is worth it, whether Slurm is asked or not."""
        return self._pace.next

    # ---- what all have

    @property
    def statuses(self) -> list[Status]:
        """What is known now."""
        return list(self._known.values())

    @property
    def is_over(self) -> bool:
        """Whether all is over, and every end was given."""
        return bool(self._shown) and all(
            status.verdict.final and name in self._shown and self._is_told(name)
            for name, status in self._known.items()
        )

    @property
    def pause(self) -> float:
        """For how many seconds nothing is to be looked at."""
        now = time.monotonic()
        return max(0.01, self._next_look(now) - now)

    def look(self, *, last: bool = False) -> list[Status]:
        """Ask where it is time to; return the statuses that are others than before.

        An end is given once, when what the nodes write of it is there, or late; with ``last`` at
        once.
        """
        now = time.monotonic()
        self._look_around(now)
        if self._pace.is_due(now) and not last and not self._is_known_over():
            self._question(now)
        found = []
        for name in list(self._known):
            if self._is_told(name):
                continue
            is_final = self._known[name].verdict.final
            if is_final and not self._is_settled(name, now) and not last:
                continue
            status = self._known[name]
            self._shown[name] = (status.verdict.state, status.verdict.reason)
            found.append(status)
        return found

    def _is_known_over(self) -> bool:
        return bool(self._known) and all(s.verdict.final for s in self._known.values())

    def _is_told(self, name: str) -> bool:
        verdict = self._known[name].verdict
        return self._shown.get(name) == (verdict.state, verdict.reason)

    def _question(self, now: float) -> None:
        limit = self._deadline if self._known else self._first_deadline
        is_short = limit is not None and limit - now < FAIR
        for name, status in self._ask(structs.replace(self._context, deadline=limit)):
            if not (is_short and name in self._known and status.verdict.state == UNKNOWN):
                self._known[name] = status
        self._pace.asked(time.monotonic())
