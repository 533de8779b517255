"""The job of a bare command is the one that a file without GPUs makes."""

from __future__ import annotations

import pytest

from hpcrun.errors import SpecError
from hpcrun.spec.load import command_job
from tests.spec.reading import read


@pytest.mark.parametrize(
    "overrides", [[], ["resources.nodes=2"], ["resources={nodes: 2}"], ["name=x", "snapshot=false"]]
)
def test_it_is_what_yaml_makes_of_it(overrides: list[str]) -> None:
    assert command_job(overrides) == read("resources: {gpus_per_node: 0}", *overrides)


def test_what_is_wrong_is_reported() -> None:
    with pytest.raises(SpecError, match=r"--set: resources.nods: unknown key"):
        command_job(["resources.nods=2"])
