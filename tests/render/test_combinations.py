"""Every preset with every launcher and fabric is rendered as valid, clean bash."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from hpcrun.assets import find_job, shipped_folder
from hpcrun.plan.build import build_plan
from hpcrun.plan.sweep import build_runs
from hpcrun.plan.types import Plan
from hpcrun.render.environment import open_templates
from hpcrun.render.files import render_files
from hpcrun.spec.job import Fabric, LauncherName
from hpcrun.spec.load import load_job
from tests.needs import require_command
from tests.pairs import pairs_of, pairwise
from tests.plan.making import PLACE, cluster

PRESETS = sorted(file.stem for file in shipped_folder("jobs").glob("*.yaml"))
LAUNCHER_NAMES = list(get_args(LauncherName))
FABRICS = list(get_args(Fabric))


def plan_of(preset: str, launcher: str, fabric: str, nodes: str) -> Plan:
    """Plan a preset, or a sweep's first run, with a launcher, network and number of nodes."""

    def resolve(name: str) -> tuple[str, str]:
        path = find_job(name, Path("/nonexistent"), {"HOME": "/nonexistent"})
        return path.read_text(), str(path)

    overrides = [f"launcher={launcher}", f"nccl.fabric={fabric}", f"resources.nodes={nodes}"]
    spec = load_job(resolve(preset)[0], source=preset, resolve=resolve, overrides=overrides)
    if spec.sweep:
        spec = build_runs(spec, [])[0].spec
    return build_plan(spec, cluster(), PLACE)


@cache
def scripts(preset: str, launcher: str, fabric: str, nodes: str) -> dict[str, str]:
    """Render job.sbatch and node.sh."""
    files = render_files(plan_of(preset, launcher, fabric, nodes), open_templates(None))
    return {file.name: file.text for file in files if file.name in ("job.sbatch", "node.sh")}


@pytest.mark.slow
@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("launcher", LAUNCHER_NAMES)
def test_every_combination_is_rendered_as_valid_bash(launcher: str, fabric: str) -> None:
    for preset in PRESETS:
        made = scripts(preset, launcher, fabric, "2")
        assert f"export HPCRUN_FABRIC={fabric}" in made["job.sbatch"], preset
        assert f"export HPCRUN_LAUNCHER={launcher}" in made["job.sbatch"], preset
        assert "NCCL_NET" in made["job.sbatch"], preset


@pytest.mark.slow
def test_selected_combinations_pass_shellcheck(tmp_path: Path) -> None:
    """The selection covers every pair of choices; equal texts are checked only once."""
    require_command("shellcheck")
    choices = {"preset": PRESETS, "launcher": LAUNCHER_NAMES, "fabric": FABRICS, "nodes": "12"}
    texts = {text for row in pairwise(choices) for text in scripts(**row).values()}
    paths = [tmp_path / f"{number}.sh" for number in range(len(texts))]
    for path, text in zip(paths, sorted(texts), strict=True):
        path.write_text(text)
    done = subprocess.run(
        ["shellcheck", *map(str, paths)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("", 0)


def test_selection_covers_every_pair() -> None:
    factors = {"a": ["1", "2", "3"], "b": ["x", "y"], "c": ["p", "q"], "d": ["s", "t"]}
    rows = list(pairwise(factors))
    found = {pair for row in rows for pair in pairs_of(row)}
    assert len(found) == 3 * 2 * 3 + 3 * 4 and len(rows) < 24 / 2
    assert all(row.keys() == factors.keys() for row in rows)
