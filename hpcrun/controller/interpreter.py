"""Which Python trains: resolved and checked at submission, where it can be seen from here."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from hpcrun.assets import home_dir
from hpcrun.controller.context import Context, user_path
from hpcrun.errors import InputError, SpecError
from hpcrun.plan.setup import check_setup, choose_setup, is_image_file
from hpcrun.spec.job import JobSpec

# Where conda's installers put it by default: below the home and below /opt.
_CONDA_NAMES = ("miniforge3", "mambaforge", "miniconda3", "anaconda3", "conda", "micromamba")


class Interpreter(Struct, frozen=True, kw_only=True):
    """The ``python`` that trains ("" for a bare command without one), and what to activate before.

    ``conda`` is a folder where it could be found from here, else the name; ``inside``: the python
    is a container's. ``note``: what the user should know of the choice.
    """

    python: str
    venv: str | None = None
    conda: str | None = None
    inside: bool = False
    note: str = ""


def find_interpreter(context: Context, spec: JobSpec) -> Interpreter:
    """Decide which Python trains.

    The job's setup, else the profile's setup, else the profile's python, else the one that runs
    hpcrun if it has torch. A bare command needs none. Raises InputError when there is none or when
    it is not there, and SpecError for two environments at once.
    """
    where, setup = choose_setup(spec, context.cluster, context.cluster_source)
    problems = check_setup(where, setup)
    if problems:
        raise SpecError(problems)
    if setup.container is not None:
        image, key = setup.container.image, f"{where}container.image"
        # A file must be there, unless it lies where only the nodes look.
        if is_image_file(image) and not seen(context, image, key):
            raise InputError(f"{key}: {_path(context, image, key)}: no such image")
        python = setup.python or ("" if spec.command is not None else "python3")
        return Interpreter(python=python, inside=True)
    venv = conda = None
    python = setup.python or ""
    if setup.uv:
        venv = str(context.project / context.environ.get("UV_PROJECT_ENVIRONMENT", ".venv"))
        lock = context.project / "uv.lock"
        if not lock.is_file():
            raise InputError(f"{where}uv: {lock}: no such file", fix="uv lock")
        python = python or f"{venv}/bin/python"  # made on the node, perhaps for the first time
    elif setup.venv:
        venv = str(_path(context, setup.venv, f"{where}venv")).rstrip("/")
        found = _interpreter(
            f"{venv}/bin/python", f"{where}venv", f"python3 -m venv {shlex.quote(venv)}"
        )
        python = python or found
    elif setup.conda:
        conda = find_conda(context, setup.conda, f"{where}conda")
        inside = _interpreter(f"{conda}/bin/python", f"{where}conda") if "/" in conda else "python"
        python = python or inside
    if setup.python and "/" in setup.python:
        python = _interpreter(str(_path(context, setup.python, f"{where}python")), f"{where}python")
    if python or spec.command is not None:
        return Interpreter(python=python, venv=venv, conda=conda)
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            "which Python trains? The one that runs hpcrun has no torch",
            fix="setup: {venv: .venv} or {conda: NAME} in the job, or python: /path/to/python in "
            "hpcrun.yaml",
        )
    modules = bool(spec.setup.modules or context.cluster.setup.modules)
    note = f"modules are loaded, but hpcrun's own Python trains, {sys.executable}: " + (
        "setup: {python: python} takes the modules'"
    )
    return Interpreter(python=sys.executable, note=note if modules else "")


def _path(context: Context, text: str, where: str) -> Path:
    return user_path(text, context.environ, context.project, where)


def _interpreter(path: str, where: str, fix: str = "") -> str:
    if not Path(path).is_file():
        raise InputError(f"{where}: {path}: no such interpreter", fix=fix)
    if not os.access(path, os.X_OK):
        raise InputError(f"{where}: {path}: cannot be executed", fix=f"chmod +x {path}")
    return path


def seen(context: Context, text: str, where: str) -> bool:
    """Return whether a path exists, as far as this machine can know.

    One that names variables of the nodes, or lies below a top folder that is not here (a file
    system of the nodes alone), is given the benefit of the doubt.
    """
    try:
        path = _path(context, text, where)
    except InputError:
        return True
    return path.exists() or not Path(*path.parts[:2]).exists()


# ---- conda -------------------------------------------------------------------------------------


def find_conda(context: Context, name: str, where: str) -> str:
    """Find a conda environment's folder by its name or path; the name, if it is not seen here.

    conda itself is not asked: that takes a second, and it may be a module of the nodes. Raises
    InputError for a folder that is not there.
    """
    if "/" in name or name.startswith(("~", "$")):
        path = _path(context, name, where)
        if not path.is_dir():
            raise InputError(f"{where}: {path}: no such environment", fix="conda env list")
        return str(path)
    for folder in _conda_folders(context, name):
        if (folder / "bin" / "python").exists():
            return str(folder)
    return name


def _conda_folders(context: Context, name: str) -> Iterator[Path]:
    """Where an environment of that name may lie, conda's own order first."""
    environ, home = context.environ, Path(home_dir(context.environ))
    if environ.get("CONDA_DEFAULT_ENV") == name and environ.get("CONDA_PREFIX"):
        yield Path(environ["CONDA_PREFIX"])
    bases = [Path(environ[key]).parent.parent for key in ("CONDA_EXE",) if environ.get(key)]
    bases += [Path(environ["MAMBA_ROOT_PREFIX"])] if environ.get("MAMBA_ROOT_PREFIX") else []
    bases += [top / known for top in (home, Path("/opt")) for known in _CONDA_NAMES]
    if name == "base":
        yield from bases
        return
    listed = environ.get("CONDA_ENVS_PATH") or environ.get("CONDA_ENVS_DIRS") or ""
    yield from (Path(folder) / name for folder in listed.split(":") if folder)
    yield from (base / "envs" / name for base in bases)
    yield home / ".conda" / "envs" / name
    # conda writes down each environment that it makes.
    register = home / ".conda" / "environments.txt"
    if register.is_file():
        for line in register.read_text(errors="replace").splitlines():
            if Path(line).name == name:
                yield Path(line)
