"""The source that a message names for problems found after the job was read."""

from __future__ import annotations

import pytest

from hpcrun.errors import Problem
from hpcrun.spec.load import Origin

AGREE = "trains in fp16, but the job's precision is bf16: set precision: fp16"


@pytest.mark.parametrize(
    ("overrides", "problem", "text"),
    [
        (["precision=bf16"], Problem("precision", "no"), "--set: precision: no"),
        ([" a.b = 1"], Problem("a.b.c", "no"), "--set: a.b.c: no"),
        (["args=[x]"], Problem("args[0]", "no"), "--set: args[0]: no"),
        (["a.b=1"], Problem("a.bc", "no"), "j.yaml: a.bc: no"),
        (["a.b=1"], Problem("a", "no"), "j.yaml: a: no"),
        ([], Problem("precision", "no"), "j.yaml: precision: no"),
        # The key is in a file, but it contradicts an override.
        (
            ["precision=bf16"],
            Problem("fp16", AGREE, "ds.json", 1),
            f"ds.json:1: fp16: {AGREE} (--set precision)",
        ),
        (["precision=fp32"], Problem("fp16", AGREE, "ds.json", 1), f"ds.json:1: fp16: {AGREE}"),
        (
            ["resources.nodes=2"],
            Problem("x", "of resources.nodes"),
            "j.yaml: x: of resources.nodes (--set resources.nodes)",
        ),
        (["name=x"], Problem("x", "name a folder"), "j.yaml: x: name a folder"),
    ],
)
def test_problem_names_the_override_or_file_that_caused_it(
    overrides: list[str], problem: Problem, text: str
) -> None:
    origin = Origin("j.yaml", tuple(overrides))
    origin.add_source(problem)
    origin.add_source(problem)  # as a sweep does for the problems of its runs
    assert str(problem) == text
