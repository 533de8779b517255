"""Each guard against a trap is removed in turn, and its tests must fail.

A row of tests/traps/guards_of_*.py removes one guard: ``old`` occurs once in the file, and becomes
``new``. A row whose text no longer occurs is an error, which keeps the tables up to date. Without a
mutation the same tests pass; those on a real Slurm are slow and run only in their own modules.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.rig import why_not
from tests.needs import require
from tests.traps.mutants import ROOT, Laboratory, Mutation, mutated
from tests.traps.mutations import MUTATIONS

pytestmark = pytest.mark.timeout(600)
QUICK = [one for one in MUTATIONS if not one.cluster]
ON_SLURM = [one for one in MUTATIONS if one.cluster]


def label(mutation: Mutation) -> str:
    """Return the test id of a mutation: its traps and its position in the table."""
    same = [one for one in MUTATIONS if one.traps == mutation.traps]
    traps = "+".join(map(str, mutation.traps))
    return f"trap-{traps}" + (f"-{same.index(mutation) + 1}" if len(same) > 1 else "")


def watchers_of(mutations: list[Mutation]) -> tuple[str, ...]:
    """Return the tests of some guards, without duplicates."""
    return tuple(dict.fromkeys(test for one in mutations for test in one.tests))


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    """A copy of the repository for running tests."""
    with Laboratory(tmp_path_factory.mktemp("laboratory")) as made:
        yield made


@pytest.fixture(scope="module")
def laboratory_on_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    """A copy whose tests use a real Slurm."""
    reason = why_not()
    require(not reason, f"a Slurm rig: {reason}")
    with Laboratory(tmp_path_factory.mktemp("slurm"), rig=True) as made:
        yield made


@pytest.mark.slow
@pytest.mark.thorough  # the test suite runs them in their own modules
def test_guard_tests_pass_without_a_mutation(laboratory: Laboratory) -> None:
    assert laboratory.problem(None, watchers_of(QUICK)) == ""


# CI runs every third, because the guards change rarely.
@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(one, id=label(one), marks=pytest.mark.thorough if number % 3 else ())
        for number, one in enumerate(QUICK)
    ],
)
def test_missing_guard_fails_its_tests(mutation: Mutation, laboratory: Laboratory) -> None:
    assert laboratory.problem(mutation, mutation.tests) == ""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.cluster
@pytest.mark.parametrize("mutation", ON_SLURM, ids=label)
def test_missing_guard_fails_its_tests_on_slurm(
    mutation: Mutation, laboratory_on_slurm: Laboratory
) -> None:
    assert laboratory_on_slurm.problem(mutation, mutation.tests) == ""


def test_mutations_modify_shipped_files() -> None:
    gone = []
    for mutation in MUTATIONS:
        assert mutation.old != mutation.new
        assert mutation.file.split("/")[0] in ("hpcrun", "templates"), mutation.file
        try:
            mutated((ROOT / mutation.file).read_text(), mutation)
        except (OSError, ValueError) as error:
            gone.append(f"{label(mutation)}: {error}")
        watchers = [ROOT / test.partition("::")[0] for test in mutation.tests]
        gone += [f"{label(mutation)}: no {path}" for path in watchers if not path.is_file()]
    assert not gone, "\n".join(gone)
