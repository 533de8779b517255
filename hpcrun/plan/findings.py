"""What is wrong with a job, and what its user should know."""

from __future__ import annotations

from msgspec import Struct

from hpcrun.errors import Problem


class Findings(Struct):
    """What is wrong with a job, what its user should know, and a ``fix`` that no problem has."""

    problems: list[Problem] = []
    notes: list[str] = []
    fix: str = ""

    def refuse(self, path: str, message: str) -> None:
        """Add a problem with the value at a path of the job; the same one again adds nothing."""
        last = self.problems[-1] if self.problems else None
        if last is None or (last.path, last.message) != (path, message):
            self.problems.append(Problem(path, message))

    def add(self, more: Findings) -> None:
        self.problems += more.problems
        self.notes += more.notes
