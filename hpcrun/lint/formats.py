"""Findings as text, as annotations of GitHub Actions, and as SARIF."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from hpcrun.lint.check import Finding
from hpcrun.lint.rule import SEVERITIES
from hpcrun.lint.rules import all_rules
from hpcrun.text import format_count
from hpcrun.version import __version__

_DOCS = "docs/lint.md"
_SARIF_LEVELS = {"error": "error", "warning": "warning", "note": "note"}


def format_text(findings: Sequence[Finding], scripts: int) -> Iterator[str]:
    """Yield the lines for a terminal, with a summary."""
    for one in findings:
        place = f"{one.file}:{one.line}:{one.column}"
        yield f"{place}: {one.severity}: {one.message} [{one.rule}]"
        yield f"    why: {one.source}"
        yield f"    fix: {one.fix}"
    yield format_summary(findings, scripts)


def format_summary(findings: Sequence[Finding], scripts: int) -> str:
    """Return the number of findings of each severity.

    >>> format_summary([], 2)
    'no findings in 2 scripts'
    """
    numbers = Counter(one.severity for one in findings)
    parts = [format_count(numbers[each], each) for each in SEVERITIES if numbers[each]]
    fixable = sum(one.fixable for one in findings)
    text = f"{', '.join(parts) or 'no findings'} in {format_count(scripts, 'script')}"
    return text + (f"; --fix changes {fixable}" if fixable else "")


def format_github(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the workflow commands of GitHub Actions that annotate the lines of a pull request."""
    kinds = {"error": "error", "warning": "warning", "note": "notice"}
    for one in findings:
        text = _escape(f"{one.message}. Fix: {one.fix}")
        place = f"file={_escape(one.file, ':,')},line={one.line},col={one.column}"
        yield f"::{kinds[one.severity]} {place},title={one.rule}::{text}"


def _escape(text: str, also: str = "") -> str:
    """Escape a value of a workflow command.

    >>> _escape("100%\\n", ":"), _escape("a:b", ":")
    ('100%25%0A', 'a%3Ab')
    """
    for char in f"%\r\n{also}":
        text = text.replace(char, f"%{ord(char):02X}")
    return text


def format_sarif(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings in the Static Analysis Results Interchange Format 2.1.0."""
    rules = [
        {
            "id": one.id,
            "shortDescription": {"text": one.title},
            "help": {"text": f"{one.fix} ({one.source})"},
            "defaultConfiguration": {"level": _SARIF_LEVELS[one.severity]},
        }
        for one in all_rules()
    ]
    results = [
        {
            "ruleId": one.rule,
            "level": _SARIF_LEVELS[one.severity],
            "message": {"text": f"{one.message}. Fix: {one.fix}"},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": one.file},
                        "region": {"startLine": one.line, "startColumn": one.column},
                    }
                }
            ],
        }
        for one in findings
    ]
    driver = {"name": "hpcrun lint", "version": __version__, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
