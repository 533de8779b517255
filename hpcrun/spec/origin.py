"""Where a job came from: what messages blame for a problem that is found after it was read."""

from __future__ import annotations

import re

from msgspec import Struct

from hpcrun.errors import Problem
from hpcrun.spec.overrides import SOURCE


class Origin(Struct, frozen=True):
    """What a job is called in messages, its file as a rule, and how --set changed it."""

    name: str = ""
    overrides: tuple[str, ...] = ()

    def blame(self, problem: Problem) -> None:
        """Say where a problem stands, and that it speaks of what --set said.

        >>> problem = Problem("", None, "precision", "no")
        >>> Origin("x.yaml", ("precision=bf16",)).blame(problem)
        >>> print(problem)
        --set: precision: no
        """
        for override in self.overrides:
            key, _, value = override.partition("=")
            key = key.strip()
            if not problem.source and re.match(rf"{re.escape(key)}(?![^.\[])", problem.path):
                problem.source = SOURCE
            elif problem.source != SOURCE and _speaks_of(problem.message, key, value.strip()):
                problem.message += f" ({SOURCE} {key})"
        problem.source = problem.source or self.name


def _speaks_of(message: str, key: str, value: str) -> bool:
    """Tell whether words are about a key; one without a dot may be a word like others."""
    words = [key] if "." in key else [key, value]
    named = all(re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.])", message) for word in words)
    return named and f"({SOURCE} {key})" not in message
