"""The wheel is whole: built, installed elsewhere, and every preset rendered from there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpcrun.assets import shipped_folder
from hpcrun.version import __version__
from tests.source import ROOT

PRESETS = sorted(file.stem for file in shipped_folder("jobs").glob("*.yaml"))
pytestmark = pytest.mark.slow


def run(argv: list[str], cwd: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(argv, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: the checkout stays as it is."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for entry in ("hpcrun", "templates", "jobs"):
        ignored = shutil.ignore_patterns("__pycache__", ".mypy_cache")
        shutil.copytree(ROOT / entry, source / entry, ignore=ignored)
    for pattern in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE*"):
        for file in ROOT.glob(pattern):
            shutil.copy2(file, source)
    # No network: setuptools and wheel are those of this environment.
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    build = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder), "."]
    run(build, source, dict(os.environ))
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """A folder with what pip makes of the wheel; what it needs is there already."""
    target = wheel.parent / "installed"
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(target)]
    run(
        [sys.executable, "-m", "pip", "install", *options, str(wheel)],
        wheel.parent,
        dict(os.environ),
    )
    return target


def test_the_wheel_holds_every_file_and_no_other(wheel: Path) -> None:
    wanted = set()
    for folder, inside in (
        ("hpcrun", "hpcrun"),
        ("templates", "hpcrun/templates"),
        ("jobs", "hpcrun/jobs"),
    ):
        for path in (ROOT / folder).rglob("*"):
            hidden = {"__pycache__", ".mypy_cache"} & set(path.parts)
            if path.is_file() and not hidden:
                wanted.add(f"{inside}/{path.relative_to(ROOT / folder)}")
    with zipfile.ZipFile(wheel) as file:
        held = {name for name in file.namelist() if ".dist-info/" not in name}
    assert held == wanted


def test_the_wheels_name_and_command(wheel: Path) -> None:
    assert wheel.name == f"hpcrun_slurm-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as file:
        info = f"hpcrun_slurm-{__version__}.dist-info"
        assert "hpcrun = hpcrun.cli.start:main" in file.read(f"{info}/entry_points.txt").decode()
        metadata = file.read(f"{info}/METADATA").decode()
        assert file.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert "Requires-Python: >=3.10" in metadata and "License: Apache-2.0" in metadata
    assert wheel.stat().st_size < 2_000_000


def test_every_preset_renders_from_there(
    installed: Path, tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    (tmp_path / "hpcrun.yaml").write_text("python: python3\nruns_dir: runs\n")
    environ = clean_environ | {"PYTHONPATH": str(installed)}
    python = [sys.executable, "-m", "hpcrun"]
    where = run([sys.executable, "-c", "import hpcrun; print(hpcrun.__file__)"], tmp_path, environ)
    assert Path(where.strip()).is_relative_to(installed)
    jobs = json.loads(run([*python, "jobs", "--json"], tmp_path, environ))["jobs"]
    assert [job["name"] for job in jobs] == PRESETS
    assert all(Path(job["file"]).is_relative_to(installed) for job in jobs)
    for preset in PRESETS:
        files = json.loads(
            run([*python, "submit", preset, "--dry-run", "--json"], tmp_path, environ)
        )
        files = files["runs"][0]["files"] if "runs" in files else files
        harness = (ROOT / "templates" / "harness.sh").read_text()
        assert files["harness.sh"] == harness
        assert files["job.sbatch"].startswith("#!/bin/bash\n")
