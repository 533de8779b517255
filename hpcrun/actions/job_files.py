"""Read job files by name: the text for load_job(), and descriptions for listings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hpcrun.assets import find_job
from hpcrun.context import read_text
from hpcrun.errors import InputError
from hpcrun.spec import load_job, load_pipeline


def resolve_job_name(
    name: str, *, project: Path, environ: Mapping[str, str], cwd: Path | None = None
) -> tuple[str, str]:
    """Return the text and the path of the job with a name, as load_job() needs for ``extends``."""
    found = find_job(name, project, environ, cwd=cwd)
    return read_text(found), str(found)


def describe_job(project: Path, environ: Mapping[str, str], path: Path) -> dict[str, str | None]:
    """Return a job file's description, or its first error."""
    resolve = partial(resolve_job_name, project=project, environ=environ)
    try:
        spec = load_job(read_text(path), source=str(path), resolve=resolve)
    except InputError as error:
        return {"description": None, "error": error.message.splitlines()[0]}
    return {"description": spec.description, "error": None}


def describe_pipeline(path: Path) -> dict[str, Any]:
    """Return the stages of a pipeline, or the first error of its file."""
    try:
        return {"stages": [*load_pipeline(read_text(path), source=str(path))], "error": None}
    except InputError as error:
        return {"stages": [], "error": error.message.splitlines()[0]}
