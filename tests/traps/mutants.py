"""Apply a mutation to a copy of this repository, and run the tests that must detect it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[2]
COPIED = ("hpcrun", "templates", "jobs", "hostfiles", "tests", "setup.cfg", "pyproject.toml")


@dataclass(frozen=True)
class Mutation:
    """Removal of a guard against ``traps``: ``old``, which occurs once in a file, becomes ``new``.

    Each of ``tests`` must then fail. ``cluster``: they need a real Slurm.
    """

    traps: tuple[int, ...]
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    cluster: bool = False


def guard(
    traps: int | tuple[int, ...],
    file: str,
    old: str,
    new: str,
    *tests: str,
    cluster: bool = False,
) -> Mutation:
    """Create a row of the table of guards.

    >>> guard(7, "templates/harness.sh", "good", "bad", "tests/test_a.py::test_b").traps
    (7,)
    """
    numbers = (traps,) if isinstance(traps, int) else traps
    return Mutation(numbers, file, old, new, tests, cluster)


def mutated(text: str, mutation: Mutation) -> str:
    """Apply a mutation. Raises ValueError if its text does not occur exactly once.

    >>> mutated("a\\nb\\n", Mutation((1,), "f", "b\\n", "c\\n", ()))
    'a\\nc\\n'
    """
    count = text.count(mutation.old)
    if count != 1:
        raise ValueError(f"{mutation.file} has this {count} times, not once:\n{mutation.old}")
    return text.replace(mutation.old, mutation.new)


class Laboratory:
    """A copy of the repository, and a worker that runs tests in it."""

    def __init__(self, folder: Path, *, rig: bool = False) -> None:
        self.copy = folder / "copy"
        self.log = folder / "log"
        self.copy.mkdir(parents=True)
        for name in COPIED:
            if (ROOT / name).is_dir():
                # Include bytecode files, which are invalidated by the time of a mutated file.
                shutil.copytree(ROOT / name, self.copy / name, symlinks=True)
            else:
                shutil.copy2(ROOT / name, self.copy / name)
        argv = [sys.executable, "-m", "tests.traps.worker", *(["--rig"] if rig else [])]
        pipe = subprocess.PIPE
        self.worker = subprocess.Popen(argv, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> Laboratory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.worker.communicate()

    def run(self, tests: tuple[str, ...]) -> dict[str, Any]:
        """Run tests in the copy; return pytest's exit code and the outcome of each test."""
        wanted = {"folder": str(self.copy), "tests": tests, "log": str(self.log)}
        assert self.worker.stdin and self.worker.stdout
        self.worker.stdin.write(json.dumps(wanted) + "\n")
        self.worker.stdin.flush()
        return dict(json.loads(self.worker.stdout.readline()))

    def problem(self, mutation: Mutation | None, tests: tuple[str, ...]) -> str:
        """Return problems: undetected mutations, and tests that fail without a mutation."""
        path, original = self.copy, ""
        if mutation:
            path = self.copy / mutation.file
            original = path.read_text()
            try:
                path.write_text(mutated(original, mutation))
            except ValueError as error:
                return str(error)
        try:
            answer = self.run(tests)
        finally:
            if mutation:
                path.write_text(original)
        wanted = "failed" if mutation else "passed"
        wrong = [
            f"{test}: {outcomes or 'did not run'}, not {wanted}"
            for test in tests
            if not _as_wanted(outcomes := _outcomes_of(test, answer["outcomes"]), wanted)
        ]
        if answer["code"] != (1 if mutation else 0):
            wrong.append(f"pytest's exit code is {answer['code']}")
        return "\n".join([*wrong, self.log.read_text(errors="replace")[-6000:]]) if wrong else ""


def _outcomes_of(test: str, outcomes: dict[str, str]) -> list[str]:
    return [
        found for name, found in outcomes.items() if name == test or name.startswith(f"{test}[")
    ]


def _as_wanted(outcomes: list[str], wanted: str) -> bool:
    """At least one parametrization must detect the mutation; without it all must pass."""
    if wanted == "failed":
        return "failed" in outcomes
    return bool(outcomes) and set(outcomes) == {"passed"}
