"""The job of a bare command equals that of a file without GPUs."""

from __future__ import annotations

import pytest

from hpcrun.errors import SpecError
from hpcrun.spec.load import command_job
from tests.spec.reading import read


@pytest.mark.parametrize(
    "overrides", [[], ["resources.nodes=2"], ["resources={nodes: 2}"], ["name=x", "snapshot=false"]]
)
def test_command_job_equals_the_job_of_a_file(overrides: list[str]) -> None:
    assert command_job(overrides) == read("resources: {gpus_per_node: 0}", *overrides)


def test_command_job_reports_problems() -> None:
    with pytest.raises(SpecError, match=r"--set: resources.nods: unknown key"):
        command_job(["resources.nods=2"])
