"""The Python that runs the training, resolved and checked at submission as far as possible."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpcrun.actions.cluster_host import ClusterHost, HostEnvironment
from hpcrun.actions.environments import (
    CONDA_FOLDERS,
    EnvironmentCandidate,
    describe_missing_environment,
    find_environment_with_torch,
)
from hpcrun.assets import home_dir
from hpcrun.context import Context
from hpcrun.errors import HpcrunError, InputError, SpecError
from hpcrun.plan import check_setup, choose_setup, is_image_file
from hpcrun.remote import Answers, PathProbe, Query, ReadFile, RunCommand, explain_no_answer
from hpcrun.runs import write_file
from hpcrun.spec import JobSpec

# conda's list of the environments that it has created.
_CONDA_REGISTER = ReadFile("~/.conda/environments.txt", expands=True)


class Interpreter(Struct, frozen=True, kw_only=True):
    """The Python that runs the training, and the environment to activate before.

    Attributes:
        python: "" for a bare command.
        conda: The directory of a conda environment if it was found, else its name.
        inside: The Python belongs to a container.
        note: A remark for the user about the choice.
    """

    python: str
    venv: str | None = None
    node_venv: str | None = None
    conda: str | None = None
    inside: bool = False
    note: str = ""


def setup_queries(context: Context, spec: JobSpec) -> list[Query[Any]]:
    """Return the queries whose results interpreter_queries() needs."""
    _, setup = choose_setup(spec, context.cluster, context.cluster_source)
    return [_CONDA_REGISTER] if setup.conda and not _is_path(setup.conda) else []


def interpreter_queries(context: Context, spec: JobSpec, host: ClusterHost) -> list[PathProbe]:
    """Return the queries whose results find_interpreter() needs.

    Paths that cannot be resolved are omitted here; find_interpreter() reports them.
    """
    where, setup = choose_setup(spec, context.cluster, context.cluster_source)
    paths: list[str] = []

    def add(text: str, inner: str = "") -> None:
        with contextlib.suppress(InputError):
            paths.append(f"{_resolve(host.login, text, where)}{inner}")

    if setup.container is not None:
        if is_image_file(setup.container.image):
            add(setup.container.image)
        return [PathProbe(path) for path in paths]
    if setup.venv and not is_node_path(context, setup.venv):
        add(setup.venv, "/bin/python")
    if setup.conda and _is_path(setup.conda):
        add(setup.conda)
        add(setup.conda, "/bin/python")
    elif setup.conda:
        folders = _list_conda_folders(host, setup.conda)
        paths += [str(folder / "bin" / "python") for folder in folders]
    if setup.python and "/" in setup.python:
        add(setup.python)
    return [PathProbe(path) for path in paths]


def find_interpreter(context: Context, spec: JobSpec, host: ClusterHost) -> Interpreter:
    """Choose the Python that runs the training; ``host`` has run interpreter_queries().

    Raises:
        InputError: The Python or its environment does not exist.
        SpecError: Two environments are set at once.
    """
    login, answers = host.login, host.answers
    where, setup = choose_setup(spec, context.cluster, context.cluster_source)
    problems = check_setup(where, setup)
    if problems:
        raise SpecError(problems)
    if setup.container is not None:
        image, key = setup.container.image, f"{where}container.image"
        # An image file must exist, unless it is on a file system that only the nodes mount.
        if is_image_file(image) and not may_exist(host, image, key):
            raise InputError(f"{key}: {login.resolve(image, key)}: no such image")
        python = setup.python or ("" if spec.command is not None else "python3")
        return Interpreter(python=python, inside=True)
    venv = conda = None
    python = setup.python or ""
    if setup.uv and context.cluster.host is not None:
        raise InputError(
            f"{where}uv: not on a cluster behind ssh",
            fix="make a venv there, and name it: setup: {venv: /path/there}",
        )
    if setup.uv:
        venv = str(context.project / context.environ.get("UV_PROJECT_ENVIRONMENT", ".venv"))
        lock = context.project / "uv.lock"
        if not lock.is_file():
            raise InputError(f"{where}uv: {lock}: no such file", fix="uv lock")
        python = python or f"{venv}/bin/python"  # created on the node, possibly by the job itself
    elif setup.venv and is_node_path(context, setup.venv):
        return Interpreter(python=python or "python", node_venv=setup.venv)
    elif setup.venv:
        venv = _resolve(login, setup.venv, f"{where}venv")
        found = _check_interpreter(
            answers, f"{venv}/bin/python", f"{where}venv", f"python3 -m venv {shlex.quote(venv)}"
        )
        python = python or found
    elif setup.conda:
        conda = find_conda(host, setup.conda, f"{where}conda")
        inside = (
            _check_interpreter(answers, f"{conda}/bin/python", f"{where}conda")
            if "/" in conda
            else "python"
        )
        python = python or inside
    if setup.python and "/" in setup.python:
        path = _resolve(login, setup.python, f"{where}python")
        python = _check_interpreter(answers, path, f"{where}python")
    if python or spec.command is not None:
        return Interpreter(python=python, venv=venv, conda=conda)
    is_here = context.cluster.host is None
    if is_here and importlib.util.find_spec("torch") is None:
        own = find_environment_with_torch(context.project, context.environ)
        if own is not None:
            return _use_environment(own)
    if not is_here or importlib.util.find_spec("torch") is None:
        reason = "the Python that runs hpcrun has no torch" if is_here else "the profile names none"
        makes = f"; to create one: {describe_missing_environment(context.project)}"
        raise InputError(
            f"no Python for the training: {reason}",
            fix="name its environment in hpcrun.yaml or in the job, setup: {venv: .venv} or "
            "{conda: NAME}, or for one submission: --set setup.venv=FOLDER"
            + (makes if is_here else ""),
        )
    modules = bool(spec.setup.modules or context.cluster.setup.modules)
    note = (
        f"modules are loaded, but the training runs with hpcrun's own Python, {sys.executable}: "
        + ("setup: {python: python} uses that of the modules")
    )
    return Interpreter(python=sys.executable, note=note if modules else "")


def _use_environment(own: EnvironmentCandidate) -> Interpreter:
    """Train with the active environment, or with the project's own, and say so."""
    note = f"no Python is named: training with {own.python}; setup: {{{own.key}: {own.value}}} "
    note += "in hpcrun.yaml or in the job makes it permanent"
    folder = str(Path(own.python).parent.parent)
    if own.key == "conda":
        return Interpreter(python=own.python, conda=folder, note=note)
    return Interpreter(python=own.python, venv=folder, note=note)


def is_node_path(context: Context, text: str) -> bool:
    """Return True if a path begins with a variable of jobs, such as $SLURM_TMPDIR."""
    variable = re.match(r"\$\{?((?:SLURM|PBS)_\w+|TMPDIR|JOBSCRATCH|LOCAL_SCRATCH)\b", text)
    return variable is not None and not context.environ.get(variable[1])


def _resolve(login: HostEnvironment, text: str, where: str) -> str:
    return str(login.resolve(text, where)).rstrip("/") or "/"


def _check_interpreter(answers: Answers, path: str, where: str, fix: str = "") -> str:
    state = answers[PathProbe(path)]
    if not state.is_file:
        raise InputError(f"{where}: {path}: no such interpreter", fix=fix)
    if not state.is_executable:
        raise InputError(f"{where}: {path}: cannot be executed", fix=f"chmod +x {path}")
    return path


def existence_queries(host: ClusterHost, texts: Sequence[str], where: str) -> list[PathProbe]:
    """Return the queries whose results may_exist() needs."""
    probes: list[PathProbe] = []
    for text in texts:
        with contextlib.suppress(InputError):
            probes.append(PathProbe(_resolve(host.login, text, where)))
    return probes


def may_exist(host: ClusterHost, text: str, where: str) -> bool:
    """Return False for a path that certainly does not exist where jobs run.

    A path that is only known on compute nodes may exist: one with a variable of jobs, or on a file
    system that is not mounted on the host.
    """
    try:
        state = host.answers[PathProbe(_resolve(host.login, text, where))]
    except InputError:
        return True
    return state.exists or not state.is_known


# ---- installed modules -------------------------------------------------------------------------

_MISSING = """
import glob, os, sys
from importlib.util import find_spec
sys.path[:0] = sys.argv[1].split(":")
def exists(name):
    top, *parts = name.split(".")
    spec = find_spec(top)
    if spec is None:
        return False
    places = spec.submodule_search_locations
    for part in parts:
        if places is None:
            return False
        if not all(map(os.path.isdir, places)):
            return True
        files = [file for place in places for file in glob.glob(os.path.join(place, part) + "*")]
        stems = [file for file in files if os.path.basename(file).split(".")[0] == part]
        places = [file for file in stems if os.path.isdir(file)] or None
        if not stems:
            return False
    return True
print(*["-", *(name for name in sys.argv[2:] if not exists(name))])
"""
_IMPORT_TIMEOUT_S = 20.0  # sufficient for an import from a slow network file system
_DAY_S = 86400.0


class ModuleCheck(Struct, frozen=True, kw_only=True):
    """A check whether a Python can import some modules.

    Attributes:
        kept: The file that records that all modules were found.
        path: The job's PYTHONPATH.
    """

    python: str
    names: list[str]
    path: str
    query: RunCommand
    kept: Path
    key: bytes


def plan_module_check(
    context: Context, found: Interpreter, names: Sequence[str], path: str
) -> ModuleCheck | None:
    """Return the check of a Python for modules; None if it is unnecessary or the result is cached.

    The result that all modules exist is cached until something is installed. For a Python on
    another machine, where that cannot be detected, it is cached for a day.

    Args:
        path: The job's PYTHONPATH.
    """
    python, is_here = found.python, context.cluster.host is None
    if not names or found.inside or "/" not in python:
        return None
    places, state = [path], list[str]()
    if is_here:
        # find_spec() of a submodule would import its package.
        is_plain = not any("." in name for name in names)
        is_ours = python == sys.executable and is_plain
        is_ours = is_ours and all(map(importlib.util.find_spec, names))
        if is_ours or not Path(python).is_file():
            return None
        # Modules of the project also count, but PYTHONPATH must not contain the project, whose
        # sitecustomize would be executed.
        places = [str(context.project / place) for place in ("", *path.split(":"))]
        state = [*_list_install_times(Path(python)), context.environ.get("PYTHONPATH", "")]
    words = (":".join(places), *names)
    key = os.fsencode("\0".join((python, *state, *words)))
    kept = context.cache_dir / "python-modules" / f"{zlib.crc32(key):08x}"
    with contextlib.suppress(OSError):
        is_fresh = is_here or time.time() - kept.stat().st_mtime < _DAY_S
        if is_fresh and kept.read_bytes() == key:
            return None
    query = RunCommand(
        (python, "-c", _MISSING, *words),
        timeout=_IMPORT_TIMEOUT_S,
        env=(("LC_ALL", "C"), ("PYTHONDONTWRITEBYTECODE", "1")),
    )
    return ModuleCheck(python=python, names=[*names], path=path, query=query, kept=kept, key=key)


def find_missing_modules(check: ModuleCheck, answers: Answers) -> tuple[list[str], str]:
    """Return the missing modules, and a note if the check failed."""
    result = answers[check.query]
    dash, *missing = result.stdout.split() or [""]
    if result.exit_code != 0 or dash != "-":
        reason = explain_no_answer(result) or f"it ended with code {result.exit_code}"
        names = ", ".join(check.names)
        return [], f"{check.python} could not be checked for {names}: {reason}"
    if not missing:
        with contextlib.suppress(OSError, HpcrunError):  # the cache may be read-only
            check.kept.parent.mkdir(parents=True, exist_ok=True)
            write_file(check.kept, check.key)
    return missing, ""


def list_editable_folders(found: Interpreter, project: Path) -> list[str]:
    """List directories of a project that editable installs added to a Python's path."""
    folders = []
    for file in _site_packages(found.python):
        with contextlib.suppress(OSError, ValueError):
            for listed in sorted(file.glob("*.pth")):
                lines = listed.read_text(errors="replace").splitlines()
                inside = [Path(line) for line in lines if line.startswith(f"{project}/")]
                folders += [str(path.relative_to(project)) for path in inside]
    return folders


def _site_packages(python: str) -> list[Path]:
    found = Path(python).parent.parent.glob("lib/python3*/site-packages")
    return sorted(found) if "/" in python else []


def _list_install_times(python: Path) -> Iterator[str]:
    """Yield the modification times of an interpreter and its installed packages."""
    for path in (python, python.parent.parent / "pyvenv.cfg", *_site_packages(str(python))):
        with contextlib.suppress(OSError):
            yield f"{path}:{path.stat().st_mtime_ns}"


# ---- conda -------------------------------------------------------------------------------------


def _is_path(conda: str) -> bool:
    return "/" in conda or conda.startswith(("~", "$"))


def find_conda(host: ClusterHost, name: str, where: str) -> str:
    """Find the directory of a conda environment by its name or path; return the name if not found.

    conda itself is not called: it takes a second, and may only be available on the nodes. Raises
    InputError.
    """
    if _is_path(name):
        path = _resolve(host.login, name, where)
        if not host.answers[PathProbe(path)].is_folder:
            raise InputError(f"{where}: {path}: no such environment", fix="conda env list")
        return path
    for folder in _list_conda_folders(host, name):
        if host.answers[PathProbe(str(folder / "bin" / "python"))].exists:
            return str(folder)
    return name


def _list_conda_folders(host: ClusterHost, name: str) -> Iterator[Path]:
    """Yield possible directories of an environment with a name, in conda's own order."""
    environ = host.login.environ
    home = Path(home_dir(environ))
    if environ.get("CONDA_DEFAULT_ENV") == name and environ.get("CONDA_PREFIX"):
        yield Path(environ["CONDA_PREFIX"])
    bases = [Path(environ[key]).parent.parent for key in ("CONDA_EXE",) if environ.get(key)]
    bases += [Path(environ["MAMBA_ROOT_PREFIX"])] if environ.get("MAMBA_ROOT_PREFIX") else []
    bases += [top / known for top in (home, Path("/opt")) for known in CONDA_FOLDERS]
    if name == "base":
        yield from bases
        return
    listed = environ.get("CONDA_ENVS_PATH") or environ.get("CONDA_ENVS_DIRS") or ""
    yield from (Path(folder) / name for folder in listed.split(":") if folder)
    yield from (base / "envs" / name for base in bases)
    yield home / ".conda" / "envs" / name
    for line in host.answers[_CONDA_REGISTER].splitlines():
        if Path(line).name == name:
            yield Path(line)
