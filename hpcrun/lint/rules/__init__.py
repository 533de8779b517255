"""All rules of hpcrun lint; importing a module of this package registers its rules."""

from __future__ import annotations

from hpcrun.lint.rule import RULES, LintRule
from hpcrun.lint.rules import (
    containers,
    environment,
    files,
    header,
    launching,
    resources,
    shell,
    signals,
)

_MODULES = (header, resources, launching, environment, containers, signals, shell, files)


def all_rules() -> list[LintRule]:
    """Return all rules."""
    assert _MODULES
    return list(RULES.values())
