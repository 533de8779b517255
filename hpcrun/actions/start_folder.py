"""The folder in which a program starts, and the files that its arguments name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcrun.context import Context


def find_start_folder(context: Context, workdir: str | None, project_dir: str) -> Path | None:
    """Return the folder of this machine in which a program starts, for its relative paths.

    A remote cluster has a copy of the project, so the project's folder corresponds to it.

    Args:
        workdir: The key of the job, or the planned folder; None: the project's.
        project_dir: The project's folder where the job runs.

    Returns:
        None if the folder does not exist before the run, or is only on the cluster.
    """
    text = (workdir or "").replace("{project_dir}", project_dir)
    if "{" in text:
        return None
    start = Path(os.path.normpath(Path(project_dir, text)))
    is_inside = start.is_relative_to(project_dir)
    if context.cluster.host is not None:
        return context.project / start.relative_to(project_dir) if is_inside else None
    # {run_dir} and {code_dir} are below this folder; the project may be, too.
    runs = context.runs_dir
    is_new = start.is_relative_to(runs) and not (
        is_inside and Path(project_dir).is_relative_to(runs)
    )
    return None if is_new else start


def resolve_argument(folder: Path | None, name: str) -> Path | None:
    """Return the path that an argument of a program names; None if that is unknown here.

    Args:
        folder: As find_start_folder() returns it.
    """
    if folder is None and not name.startswith("/"):
        return None
    return Path(folder or "/", name)
