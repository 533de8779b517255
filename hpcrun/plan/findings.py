"""Problems of a job and notes for its user, collected during planning."""

from __future__ import annotations

from msgspec import Struct

from hpcrun.errors import Problem


class Findings(Struct):
    """Problems of a job and notes for its user.

    Attributes:
        fix: A fix that applies to all problems together.
    """

    problems: list[Problem] = []
    notes: list[str] = []
    fix: str = ""

    def refuse(self, path: str, message: str) -> None:
        """Add a problem with the value at a path of the job, unless it repeats the last one."""
        last = self.problems[-1] if self.problems else None
        if last is None or (last.path, last.message) != (path, message):
            self.problems.append(Problem(path, message))

    def add(self, more: Findings) -> None:
        """Append other problems and notes."""
        self.problems += more.problems
        self.notes += more.notes
