"""The type of a rule and the registry of all rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct

from hpcrun.lint.script import Script

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


class Edit(Struct, frozen=True):
    """A replacement of bytes of the script that is safe: it changes nothing else."""

    start: int
    end: int
    text: str


class Found(Struct, frozen=True):
    """A match of a rule.

    Attributes:
        start: The first byte of the place.
        message: What is wrong there, in one sentence.
        edit: A safe fix.
        severity: Replaces the rule's severity.
    """

    start: int
    message: str
    edit: Edit | None = None
    severity: Severity | None = None


Check = Callable[[Script], Iterator[Found]]


class LintRule(Struct, frozen=True):
    """A rule of hpcrun lint.

    Attributes:
        section: The heading in docs/lint.md.
        title: What the rule finds, as a clause.
        source: Where that is documented, or how it was measured.
        fix: What to do.
        bad: A script in which the rule finds something.
        good: A similar script in which it finds nothing.
    """

    id: str
    severity: Severity
    section: str
    title: str
    source: str
    fix: str
    bad: str
    good: str
    check: Check


RULES: dict[str, LintRule] = {}


def rule(
    id: str,
    severity: Severity,
    title: str,
    *,
    section: str,
    source: str,
    fix: str,
    bad: str,
    good: str,
) -> Callable[[Check], Check]:
    """Register a function as the check of a rule."""

    def register(check: Check) -> Check:
        assert id not in RULES, id
        RULES[id] = LintRule(
            id, severity, section, title, source, fix, bad.lstrip("\n"), good.lstrip("\n"), check
        )
        return check

    return register
