"""Locate jobs and templates: the project's own, then the user's, then those shipped with hpcrun."""

from __future__ import annotations

import functools
import io
import os
import pwd
import sys
from collections.abc import Mapping
from pathlib import Path

from hpcrun.errors import InputError
from hpcrun.files import add_notice
from hpcrun.ownership import name_of_user, refuse_foreign_file

_PACKAGE = Path(__file__).parent
# Interpreters by the suffix of a script.
_SCRIPTS = {".py": "python", ".sh": "bash", ".bash": "bash", ".sbatch": "bash", ".slurm": "bash"}


def shipped_folder(kind: str) -> Path:
    """Return the shipped ``jobs`` or ``templates``, of an installation or a checkout."""
    inside = _PACKAGE / kind
    return inside if inside.is_dir() else _PACKAGE.parent / kind


def own_command() -> list[str]:
    """Return the command by which another program calls this hpcrun."""
    program = Path(sys.argv[0]).absolute()  # links are kept
    is_script = program.name == "hpcrun" and program.is_file()
    return [str(program)] if is_script else [sys.executable, "-m", "hpcrun"]


def home_dir(environ: Mapping[str, str]) -> str:
    """Return the user's home: HOME, or the account's home directory (cron sets no HOME)."""
    if environ.get("HOME"):
        return environ["HOME"]
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/"


def user_name(environ: Mapping[str, str]) -> str:
    """Return the user's name like getpass.getuser(), or the uid if it has no name."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        if environ.get(name):
            return environ[name]
    return name_of_user(os.getuid())


def config_dir(environ: Mapping[str, str]) -> Path:
    """Return the user's configuration directory: ``~/.config/hpcrun``, or in XDG_CONFIG_HOME."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path(home_dir(environ)) / ".config")
    return Path(base) / "hpcrun"


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Return the user's cache directory: ``~/.cache/hpcrun``, or in XDG_CACHE_HOME."""
    base = environ.get("XDG_CACHE_HOME") or str(Path(home_dir(environ)) / ".cache")
    return Path(base) / "hpcrun"


def state_dir(environ: Mapping[str, str]) -> Path:
    """Return the user's state directory: ``~/.local/state/hpcrun``, or in XDG_STATE_HOME."""
    base = environ.get("XDG_STATE_HOME") or str(Path(home_dir(environ)) / ".local" / "state")
    return Path(base) / "hpcrun"


def list_jobs(project: Path, environ: Mapping[str, str]) -> dict[str, tuple[str, Path]]:
    """Map the names of all jobs to their origin and file; the first directory with a name wins."""
    jobs: dict[str, tuple[str, Path]] = {}
    for whose, folder in (
        ("project", project / "jobs"),
        ("user", config_dir(environ) / "jobs"),
        ("built-in", shipped_folder("jobs")),
    ):
        if folder.is_dir():
            for file in sorted(folder.glob("*.yaml")):
                if not file.is_file():
                    add_notice(f"{file}: not a regular file: ignored")
                    continue
                jobs.setdefault(file.stem, (whose, file))
    return jobs


def find_job(name: str, project: Path, environ: Mapping[str, str], cwd: Path | None = None) -> Path:
    """Find a job by its name, or by a path relative to ``cwd``.

    Raises:
        InputError: There is no such job.
    """
    if not name.strip():
        raise InputError("empty job name", fix="hpcrun jobs lists the available jobs")
    path = Path(name) if cwd is None else cwd / name
    is_script = path.suffix in _SCRIPTS and path.is_file()
    if not is_script and (name.endswith((".yaml", ".yml")) or "/" in name):
        if not path.is_file():
            raise InputError(
                f"{name}: no such job file", fix="hpcrun jobs lists the available jobs"
            )
        return path
    jobs = list_jobs(project, environ)
    if name not in jobs:
        if is_script:
            raise InputError(
                f"{name} is a script, not a job", fix=_suggest_script_commands(path, name)
            )
        import difflib

        close = difflib.get_close_matches(name, jobs, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise InputError(f"{name}: no such job", fix=f"{hint}hpcrun jobs lists the available jobs")
    whose, path = jobs[name]
    if whose == "project":
        refuse_foreign_file(path, "a job runs commands")
    return path


def list_pipelines(project: Path) -> dict[str, Path]:
    """Map the names of the project's pipelines to their files."""
    folder = project / "pipelines"
    return {file.stem: file for file in sorted(folder.glob("*.yaml")) if file.is_file()}


def find_pipeline_file(
    name: str, project: Path, environ: Mapping[str, str], cwd: Path | None = None
) -> Path | None:
    """Find a pipeline by its name, or by its path in a folder named pipelines; None if it is none.

    Raises:
        InputError: The name is also that of a job, or the file belongs to another user.
    """
    path = Path(name) if cwd is None else cwd / name
    if name.endswith((".yaml", ".yml")) or "/" in name:
        if path.is_file() and path.absolute().parent.name == "pipelines":
            return path
        return None
    file = list_pipelines(project).get(name)
    if file is None:
        return None
    if name in (jobs := list_jobs(project, environ)):
        raise InputError(
            f"{name}: both a pipeline, {file}, and a job, {jobs[name][1]}",
            fix="name the file",
        )
    refuse_foreign_file(file, "its jobs run commands")
    return file


def _suggest_script_commands(path: Path, name: str) -> str:
    """Return the commands that run a script, for a user who passed it as a job."""
    import shlex

    word, program = shlex.quote(name), _SCRIPTS[path.suffix]
    fix = f"hpcrun submit -- {program} {word} runs it as it is, once per node"
    if program == "bash":
        return f"hpcrun submit {word} runs it as sbatch would, once its first line is #!/bin/bash"
    if program == "python":
        fix = f"hpcrun init {word} drafts a job for it; {fix}"
    return fix


# The modules of hpcrun.jobside that run in each rank, from an archive of their own, by their names
# there.
_HOOK_MODULES = {"sitecustomize.py": "rank_start.py", "rank_hook.py": "rank_hook.py"}
# Modules of hpcrun.jobside that only some jobs need, by feature.
JOB_FEATURES = {
    "evaluations": ("evaluations.py",),
    "notify": ("channels.py", "delivery.py", "events.py", "notifier.py"),
    "hosts": ("hosts.py",),
    "nodes": ("nodes.py",),
    "ray": ("ray_node.py",),
    "roles": ("roles.py",),
    "search": ("sampler.py", "search.py"),
}


@functools.cache
def build_archive(features: frozenset[str] = frozenset(JOB_FEATURES)) -> bytes:
    """Pack the modules of hpcrun.jobside into an archive that ``python3 -I -S`` runs.

    The bytes are reproducible. Its ``hpcrun/__init__.py`` is empty because that of the package
    imports modules that the archive does not contain.

    Args:
        features: The keys of JOB_FEATURES that the job uses; the modules of the others are left
            out, because every run keeps a copy of the archive.
    """
    package = "hpcrun/jobside"
    unused = {name for key, names in JOB_FEATURES.items() if key not in features for name in names}
    modules = [
        path
        for path in (_PACKAGE / "jobside").glob("*.py")
        if path.name not in unused and path.name not in _HOOK_MODULES.values()
    ]
    texts = {f"{package}/{path.name}": path.read_bytes() for path in modules}
    texts |= {"hpcrun/__init__.py": b"", f"{package}/__init__.py": b""}
    texts["__main__.py"] = b"from hpcrun.jobside.__main__ import main\n\nmain()\n"
    return _pack(texts)


@functools.cache
def build_hook() -> bytes:
    """Pack the sitecustomize module of ranks; in a directory, Python would write bytecode files."""
    folder = _PACKAGE / "jobside"
    return _pack({name: (folder / path).read_bytes() for name, path in _HOOK_MODULES.items()})


def _pack(texts: Mapping[str, bytes]) -> bytes:
    import zipfile  # deferred: only submission packs files

    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(texts):
            archive.writestr(zipfile.ZipInfo(name), texts[name], zipfile.ZIP_DEFLATED, 9)
    return data.getvalue()
