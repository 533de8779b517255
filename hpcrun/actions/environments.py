"""Find the Python environments that a project and its user have: venv, conda, uv, pixi, poetry."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from hpcrun.assets import home_dir

# Folders of a project that virtual environments usually have.
_FOLDERS = (".venv", "venv", "env", ".env")
# Default directories of conda's installers, below the home and below /opt.
CONDA_FOLDERS = ("miniforge3", "mambaforge", "miniconda3", "anaconda3", "conda", "micromamba")
# Every environment is started once to find out whether it has torch.
_MOST_CONDA_ENVIRONMENTS = 16


class EnvironmentCandidate(Struct, frozen=True):
    """A Python environment: a key of ``setup`` with its value, and its interpreter.

    Attributes:
        of_project: It belongs to the project, by its place or by a file of the project.
    """

    key: str
    value: str
    python: str
    of_project: bool = False


def list_environments(project: Path, environ: Mapping[str, str]) -> Iterator[EnvironmentCandidate]:
    """Yield the environments on this machine: the project's, then active ones, then conda's."""
    for name in _FOLDERS:
        if (project / name / "pyvenv.cfg").is_file():
            yield EnvironmentCandidate("venv", name, str(project / name / "bin/python"), True)
    pixi = sorted((project / ".pixi" / "envs").glob("*/conda-meta"))
    for folder in sorted((one.parent for one in pixi), key=lambda one: one.name != "default"):
        value = str(folder.relative_to(project))
        yield EnvironmentCandidate("conda", value, str(folder / "bin/python"), True)
    for name in (*_FOLDERS, ".conda", "envs"):
        if (project / name / "conda-meta").is_dir():
            yield EnvironmentCandidate("conda", name, str(project / name / "bin/python"), True)
    has_lock = (project / "uv.lock").is_file() and not (project / ".venv").exists()
    if has_lock and shutil.which("uv", path=environ.get("PATH")):
        # The job's setup creates this environment.
        yield EnvironmentCandidate("uv", ".venv", str(project / ".venv/bin/python"), True)
    for folder in _list_central_environments(project, environ):
        yield EnvironmentCandidate("venv", str(folder), str(folder / "bin/python"), True)
    conda = list(_list_conda_environments(environ))
    named = _conda_name(project)
    for folder in conda:
        if folder.name == named:
            yield EnvironmentCandidate("conda", named, str(folder / "bin/python"), True)
    yield from list_active_environments(environ)
    for folder in conda[:_MOST_CONDA_ENVIRONMENTS]:
        is_base = folder.parent.name != "envs"
        value = str(folder) if is_base else folder.name
        yield EnvironmentCandidate("conda", value, str(folder / "bin/python"))


def list_active_environments(environ: Mapping[str, str]) -> Iterator[EnvironmentCandidate]:
    """Yield the environments that the shell has activated."""
    if environ.get("VIRTUAL_ENV"):
        folder = environ["VIRTUAL_ENV"]
        yield EnvironmentCandidate("venv", folder, f"{folder}/bin/python")
    if environ.get("CONDA_PREFIX"):
        folder = environ["CONDA_PREFIX"]
        name = environ.get("CONDA_DEFAULT_ENV") or folder
        yield EnvironmentCandidate("conda", name, f"{folder}/bin/python")


def find_environment_with_torch(
    project: Path, environ: Mapping[str, str]
) -> EnvironmentCandidate | None:
    """Return the active environment or the project's own, if it has torch.

    No Python is started: the folder of installed packages is searched.
    """
    own = (one for one in list_environments(project, environ) if one.of_project)
    for one in (*list_active_environments(environ), *own):
        is_ours = os.path.realpath(Path(one.python).parent) == os.path.realpath(
            Path(sys.executable).parent
        )
        if not is_ours and has_package(one.python, "torch"):
            return one
    return None


def has_package(python: str, name: str) -> bool:
    """Return True if an environment has installed a package."""
    folders = Path(python).parent.parent.glob("lib/python3*/site-packages")
    return os.access(python, os.X_OK) and any((one / name).is_dir() for one in folders)


def describe_missing_environment(project: Path) -> str:
    """Return the command that creates the environment which a file of the project describes."""
    makers = (
        ("uv.lock", "uv sync"),
        ("pixi.lock", "pixi install"),
        ("poetry.lock", "poetry install"),
        ("Pipfile.lock", "pipenv sync"),
        ("environment.yml", "conda env create -f environment.yml"),
        ("environment.yaml", "conda env create -f environment.yaml"),
        (
            "requirements.txt",
            "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt",
        ),
    )
    for name, command in makers:
        if (project / name).is_file():
            return f"{command} (the project has a {name})"
    return "python3 -m venv .venv && .venv/bin/pip install torch"


def _conda_name(project: Path) -> str:
    """Return the name of the environment that the project's environment.yml describes."""
    for name in ("environment.yml", "environment.yaml", "conda.yml", "conda.yaml"):
        with contextlib.suppress(OSError):
            text = (project / name).read_bytes()[:100_000].decode("utf-8", "replace")
            found = re.search(r"(?m)^name:[ \t]*['\"]?([\w.-]+)", text)
            if found:
                return found[1]
    return ""


def _list_conda_environments(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders of the user's conda environments: those of conda's register come first."""
    home = Path(home_dir(environ))
    folders: list[Path] = []
    with contextlib.suppress(OSError):
        text = (home / ".conda" / "environments.txt").read_bytes()[:100_000]
        folders += [Path(line) for line in text.decode("utf-8", "replace").splitlines() if line]
    bases = [home / ".conda"]
    if environ.get("CONDA_EXE"):
        bases.append(Path(environ["CONDA_EXE"]).parent.parent)
    if environ.get("MAMBA_ROOT_PREFIX"):
        bases.append(Path(environ["MAMBA_ROOT_PREFIX"]))
    bases += [top / name for top in (home, Path("/opt")) for name in CONDA_FOLDERS]
    for base in bases:
        with contextlib.suppress(OSError):
            folders += sorted((base / "envs").iterdir())
    for folder in dict.fromkeys(folders):
        with contextlib.suppress(OSError):
            if (folder / "conda-meta").is_dir() and (folder / "bin/python").exists():
                yield folder


def _list_central_environments(project: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the virtual environments of the project that poetry and pipenv keep in the home."""
    home = Path(home_dir(environ))
    if (project / "poetry.lock").is_file():
        cache = environ.get("POETRY_CACHE_DIR") or (
            environ.get("XDG_CACHE_HOME", f"{home}/.cache") + "/pypoetry"
        )
        top = Path(environ.get("POETRY_VIRTUALENVS_PATH") or f"{cache}/virtualenvs")
        # Poetry appends this digest of the project's path to the name (EnvManager.
        # generate_env_name) and the Python version.
        digest = hashlib.sha256(os.path.realpath(project).encode()).digest()
        mark = base64.urlsafe_b64encode(digest).decode()[:8]
        yield from sorted(top.glob(f"*-{mark}-py*"))
    if (project / "Pipfile").is_file():
        top = Path(environ.get("WORKON_HOME") or f"{home}/.local/share/virtualenvs")
        for note in sorted(top.glob("*/.project")):
            with contextlib.suppress(OSError):
                if note.read_text(errors="replace").strip() == str(project):
                    yield note.parent
