"""jobside.pyz runs on any Python from 3.6 on, and jobs work without it if there is none."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpcrun.assets import build_archive, shipped_folder
from hpcrun.render.files import FIXED
from tests.jobside.old_pythons import pythons
from tests.source import PACKAGE

# `__init__` is not included.
MODULES = [path for path in (PACKAGE / "jobside").glob("*.py") if path.name != "__init__.py"]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "jobside.pyz"
    path.write_bytes(build_archive())
    return path


@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.rpartition("/")[2])
def test_archive_runs_on_the_oldest_python(python: str, archive: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpöints"
    for step in (9, 10):
        (folder / f"step_{step}").mkdir(parents=True)
        (folder / f"step_{step}" / "model.bin").write_bytes(b"weights")
    argv = [python, "-I", "-S", str(archive), "newest_checkpoint", str(folder), "1"]
    done = subprocess.run(argv, capture_output=True, env={"LC_ALL": "C"}, check=True)
    assert done.stdout.decode() == f"{folder}/step_10\n" and done.stderr == b""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_jobside_modules_have_python_3_6_syntax(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_jobside_modules_import_only_the_standard_library(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            root = name.partition(".")[0]
            if (path.name, root) == ("sampler.py", "optuna"):
                continue  # it runs with the Python that has optuna
            assert name.startswith("hpcrun.jobside") or root in sys.stdlib_module_names, name


def test_archive_is_reproducible(archive: Path) -> None:
    build_archive.cache_clear()
    assert build_archive() == archive.read_bytes()
    with zipfile.ZipFile(archive) as opened:
        assert opened.read("hpcrun/__init__.py") == b""


def test_files_shipped_to_a_run_are_small() -> None:
    scripts = [(shipped_folder("templates") / name).stat().st_size for name in FIXED]
    assert sum(scripts) + len(build_archive(frozenset())) < 180_000


def find_python(folder: Path, archive: Path, job_python: str) -> str:
    """Call find_python of jobside.sh in a PATH with no Python but those in a folder."""
    call = f'. "{shipped_folder("templates") / "jobside.sh"}" && find_python'
    environ = {"PATH": str(folder), "HPCRUN_RUN_DIR": str(archive.parent)}
    environ["HPCRUN_JOB_PYTHON"] = job_python
    return subprocess.run(
        [shutil.which("bash") or "bash", "-c", call], env=environ, capture_output=True, text=True
    ).stdout.strip()


def test_working_python_of_the_job_is_preferred(archive: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("python3", "timeout"):
        (folder / name).symlink_to(shutil.which(name) or name)
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert find_python(folder, archive, sys.executable) == sys.executable
    assert find_python(folder, archive, str(broken)) == str(folder / "python3")
    assert find_python(folder, archive, "/image/bin/python") == str(folder / "python3")
    archive.write_bytes(b"damaged")
    assert find_python(folder, archive, sys.executable) == ""
