"""docs/traps.md lists every trap with existing tests and guards."""

from __future__ import annotations

import ast
import re

from tests.traps.mutants import ROOT
from tests.traps.mutations import MUTATIONS

ROWS = dict(
    re.findall(
        r"^\*\*(\d+)\. (.*?)(?=^\*\*\d+\. |^## |\Z)",
        (ROOT / "docs" / "traps.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
)
ALL = [str(number) for number in range(1, 60)]


def named_tests(text: str) -> list[str]:
    """Return the pytest ids of the tests that a row names."""
    return [f"tests/{found}" for found in re.findall(r"`([\w/]+\.py::\w+)`", text)]


def test_page_lists_every_trap_in_order() -> None:
    assert list(ROWS) == ALL


def test_every_named_test_exists() -> None:
    functions: dict[str, set[str]] = {}
    for test in (test for text in ROWS.values() for test in named_tests(text)):
        file, _, function = test.partition("::")
        if file not in functions:
            tree = ast.parse((ROOT / file).read_text())
            functions[file] = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
        assert function in functions[file], test


def test_every_trap_has_a_guard_or_cannot_arise() -> None:
    guarded = {str(trap) for mutation in MUTATIONS for trap in mutation.traps}
    cannot = {number for number, text in ROWS.items() if "Cannot arise" in text}
    assert guarded | cannot == set(ALL)
    assert not guarded & cannot


def test_failing_tests_of_a_guard_are_named_on_the_page() -> None:
    missing = [
        f"trap {trap}: {test}"
        for mutation in MUTATIONS
        for trap in mutation.traps
        for test in mutation.tests
        if test.partition("[")[0] not in named_tests(ROWS[str(trap)])
    ]
    assert missing == []
