"""The recipes of docs/survive.md: asked to stop at any moment, a run's curve is the whole one's."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.source import ROOT
from tests.workloads.recipe_parts import (
    FRAMEWORKS,
    SCRIPTS,
    STEPS,
    train,
)

PAGE = ROOT / "docs" / "survive.md"
# DeepSpeed may have to compile its operators first.
pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_recipe_loses_no_step(framework: str, tmp_path: Path) -> None:
    whole = train(framework, tmp_path / "whole")
    assert whole.weights and list(whole.curve) == list(range(1, STEPS + 1))
    curve: dict[int, float] = {}
    for _ in range(3 if os.environ.get("HPCRUN_TEST_ALL") == "1" else 1):
        part = train(framework, tmp_path / "stopped", stop=True)
        assert part.curve and part.weights is None
        assert not curve.keys() & part.curve.keys(), "no step is done twice"
        curve |= part.curve
    rest = train(framework, tmp_path / "stopped")
    assert (curve | rest.curve, rest.weights) == whole


def test_page_shows_the_tested_recipes() -> None:
    """Each Python block in docs/survive.md equals the marked part of the script."""
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == len(FRAMEWORKS)
    for framework, block in zip(FRAMEWORKS, blocks, strict=True):
        script = (SCRIPTS / f"survive_{framework}.py").read_text()
        marked = re.findall(rf"# doc: {framework}\n(.*?)\n *# end\n", script, re.DOTALL)
        wanted = " ".join(" ".join(marked).split())
        shown = " ".join(line for line in block.splitlines() if line.strip() != "...")
        assert " ".join(shown.split()) == wanted, framework
