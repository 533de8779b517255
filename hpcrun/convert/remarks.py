"""Remarks on single lines of a converted script."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from hpcrun.lint import Script
from hpcrun.secrets import Masker

Effect = Literal["missing", "assumed", "changed", "replaced"]


class Remark(Struct, frozen=True, order=True):
    """A remark on a line of the script.

    Attributes:
        text: The statement or directive.
        effect: ``missing``: the job lacks it, so the conversion is incomplete; ``assumed``: the
            job does what the script does in the usual case; ``changed``: the job does it in
            another way; ``replaced``: hpcrun does it, or it is not needed.
        reason: Why, and what to do.
    """

    line: int
    text: str
    effect: Effect
    reason: str


class Remarks:
    """Collects remarks on a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.found: list[Remark] = []

    def add(self, start: int, text: str, effect: Effect, reason: str) -> None:
        """Add a remark on the statement that begins at a byte of the script."""
        # Remarks are printed, and those on missing lines are written to the job file.
        shown = Masker().text(" ".join(text.split()))
        shown = shown if len(shown) <= 100 else f"{shown[:97]}..."
        one = Remark(self.script.line_of(start), shown, effect, reason)
        if one not in self.found:
            self.found.append(one)

    def drop(self, start: int, reason: str) -> None:
        """Remove a remark on the line of a statement that the job has after all."""
        line = self.script.line_of(start)
        self.found = [one for one in self.found if (one.line, one.reason) != (line, reason)]

    def missing(self, start: int, text: str, reason: str) -> None:
        """Report a statement that the job lacks."""
        self.add(start, text, "missing", reason)

    def assumed(self, start: int, text: str, reason: str) -> None:
        """Report a statement whose effect in the job is one of those that it may have."""
        self.add(start, text, "assumed", reason)

    def changed(self, start: int, text: str, reason: str) -> None:
        """Report a statement that the job carries out in another way."""
        self.add(start, text, "changed", reason)

    def replaced(self, start: int, text: str, reason: str) -> None:
        """Report a statement that the job does not need."""
        self.add(start, text, "replaced", reason)
