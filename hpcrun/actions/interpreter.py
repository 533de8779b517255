"""Which Python trains: resolved and checked at submission, where it can be seen from here."""

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

from msgspec import Struct

from hpcrun.actions.checks.places import answer_of
from hpcrun.actions.there import ask, look, path_there, there
from hpcrun.assets import home_dir
from hpcrun.context import Context
from hpcrun.errors import HpcrunError, InputError, SpecError
from hpcrun.plan import check_setup, choose_setup, is_image_file
from hpcrun.runs import write_file
from hpcrun.spec import JobSpec

# Where conda's installers put it by default: below the home and below /opt.
_CONDA_NAMES = ("miniforge3", "mambaforge", "miniconda3", "anaconda3", "conda", "micromamba")


class Interpreter(Struct, frozen=True, kw_only=True):
    """The ``python`` that trains ("" for a bare command without one), and what to activate before.

    ``conda`` is a folder where it could be found from here, else the name; ``inside``: the python
    is a container's. ``note``: what the user should know of the choice.
    """

    python: str
    venv: str | None = None
    node_venv: str | None = None
    conda: str | None = None
    inside: bool = False
    note: str = ""


def find_interpreter(context: Context, spec: JobSpec) -> Interpreter:
    """Decide which Python trains. Raises InputError; SpecError for two environments at once."""
    where, setup = choose_setup(spec, context.cluster, context.cluster_source)
    problems = check_setup(where, setup)
    if problems:
        raise SpecError(problems)
    if setup.container is not None:
        image, key = setup.container.image, f"{where}container.image"
        # A file must be there, unless it lies where only the nodes look.
        if is_image_file(image) and not seen(context, image, key):
            raise InputError(f"{key}: {path_there(context, image, key)}: no such image")
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
        python = python or f"{venv}/bin/python"  # made on the node, perhaps for the first time
    elif setup.venv and is_of_nodes(context, setup.venv):
        return Interpreter(python=python or "python", node_venv=setup.venv)
    elif setup.venv:
        venv = str(path_there(context, setup.venv, f"{where}venv")).rstrip("/")
        found = _interpreter(
            context, f"{venv}/bin/python", f"{where}venv", f"python3 -m venv {shlex.quote(venv)}"
        )
        python = python or found
    elif setup.conda:
        conda = find_conda(context, setup.conda, f"{where}conda")
        inside = (
            _interpreter(context, f"{conda}/bin/python", f"{where}conda")
            if "/" in conda
            else "python"
        )
        python = python or inside
    if setup.python and "/" in setup.python:
        path = str(path_there(context, setup.python, f"{where}python"))
        python = _interpreter(context, path, f"{where}python")
    if python or spec.command is not None:
        return Interpreter(python=python, venv=venv, conda=conda)
    is_here = context.cluster.host is None
    if not is_here or importlib.util.find_spec("torch") is None:
        reason = "The one that runs hpcrun has no torch" if is_here else "None is named"
        raise InputError(
            f"which Python trains? {reason}",
            fix="setup: {venv: .venv} or {conda: NAME} in the job, or python: /path/to/python in "
            "hpcrun.yaml",
        )
    modules = bool(spec.setup.modules or context.cluster.setup.modules)
    note = f"modules are loaded, but hpcrun's own Python trains, {sys.executable}: " + (
        "setup: {python: python} takes the modules'"
    )
    return Interpreter(python=sys.executable, note=note if modules else "")


def is_of_nodes(context: Context, text: str) -> bool:
    """Return whether a path begins in a variable that only jobs have, as $SLURM_TMPDIR."""
    variable = re.match(r"\$\{?((?:SLURM|PBS)_\w+|TMPDIR|JOBSCRATCH|LOCAL_SCRATCH)\b", text)
    return variable is not None and not context.environ.get(variable[1])


def _interpreter(context: Context, path: str, where: str, fix: str = "") -> str:
    found = look(context, path)
    if "f" not in found:
        raise InputError(f"{where}: {path}: no such interpreter", fix=fix)
    if "x" not in found:
        raise InputError(f"{where}: {path}: cannot be executed", fix=f"chmod +x {path}")
    return path


def seen(context: Context, text: str, where: str) -> bool:
    """Return whether a path exists where jobs run, as far as it can be seen from there.

    One that only the nodes know is given the benefit of the doubt.
    """
    try:
        found = look(context, path_there(context, text, where))
    except InputError:
        return True
    return "e" in found or "?" in found


# ---- what it has -------------------------------------------------------------------------------

_MISSING = """
import sys
from importlib.util import find_spec
sys.path[:0] = sys.argv[1].split(":")
print(*["-", *(name for name in sys.argv[2:] if find_spec(name) is None)])
"""
_PATIENCE = 20  # seconds; a cold network file system
_DAY = 86400.0


def missing_modules(
    context: Context, found: Interpreter, names: Sequence[str], path: str
) -> tuple[list[str], str]:
    """Ask a Python which of some modules it lacks, without importing any; a note if it cannot be.

    That it has them all is kept, until something is installed; of one on a cluster's host for a
    day. To be called by settle().
    """
    python, is_here = found.python, context.cluster.host is None
    if not names or found.inside or "/" not in python:
        return [], ""
    environ = {**context.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    places, state = [path], list[str]()
    if is_here:
        is_ours = python == sys.executable and all(map(importlib.util.find_spec, names))
        if is_ours or not Path(python).is_file():
            return [], ""
        # Modules may be the project's own, which is not in PYTHONPATH: sitecustomize would be run.
        places = [str(context.project / place) for place in ("", *path.split(":"))]
        state = [*_installed(Path(python)), environ.get("PYTHONPATH", "")]
    words = (":".join(places), *names)
    key = os.fsencode("\0".join((python, *state, *words)))
    kept = context.cache_dir / "python-modules" / f"{zlib.crc32(key):08x}"
    with contextlib.suppress(OSError):
        is_fresh = is_here or time.time() - kept.stat().st_mtime < _DAY
        if is_fresh and kept.read_bytes() == key:
            return [], ""
    argv = [python, "-c", _MISSING, *words]
    if is_here:
        code, answer, fault = answer_of(argv, environ, _PATIENCE)
    else:
        (result,) = ask(context, [("run", *argv)])
        code, answer, fault = result.exit_code, result.stdout, ""
    dash, *missing = answer.split() or [""]
    if code != 0 or dash != "-":
        where, reason = " here" if is_here else "", fault or f"it ended with code {code}"
        return [], f"{python} could not be asked{where} whether it has {', '.join(names)}: {reason}"
    if not missing:
        with contextlib.suppress(OSError, HpcrunError):  # a cache that cannot be written is none
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_file(kept, key)
    return missing, ""


def editable_folders(found: Interpreter, project: Path) -> list[str]:
    """List folders below a project that an editable install has put on a Python's path."""
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


def _installed(python: Path) -> Iterator[str]:
    """Yield when an interpreter, and what is installed for it, was last changed."""
    for path in (python, python.parent.parent / "pyvenv.cfg", *_site_packages(str(python))):
        with contextlib.suppress(OSError):
            yield f"{path}:{path.stat().st_mtime_ns}"


# ---- conda -------------------------------------------------------------------------------------


def find_conda(context: Context, name: str, where: str) -> str:
    """Find a conda environment's folder by its name or path; the name, if it is not seen here.

    conda itself takes a second, and may be a module of the nodes. Raises InputError.
    """
    if "/" in name or name.startswith(("~", "$")):
        path = path_there(context, name, where)
        if "d" not in look(context, path):
            raise InputError(f"{where}: {path}: no such environment", fix="conda env list")
        return str(path)
    folders = list(dict.fromkeys(_conda_folders(context, name)))
    found = [look(context, folder / "bin" / "python") for folder in folders]
    return next(
        (str(folder) for folder, is_seen in zip(folders, found, strict=True) if "e" in is_seen),
        name,
    )


def _conda_folders(context: Context, name: str) -> Iterator[Path]:
    """Where an environment of that name may lie, conda's own order first."""
    environ = there(context).environ
    home = Path(home_dir(environ))
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
    if context.cluster.host is None and register.is_file():
        for line in register.read_text(errors="replace").splitlines():
            if Path(line).name == name:
                yield Path(line)
