"""The folder in which a program starts, and the files that its arguments name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from hpcrun.context import Context


class StartFolder(Struct, frozen=True, kw_only=True):
    """The folder in which a program starts, as this machine has it.

    Attributes:
        path: The folder; None if it does not exist before the run, or is only on the cluster.
        project: The project on this machine.
        project_dir: The project's folder where the job runs; of a remote cluster, the copy of it.
        is_remote: Other absolute paths are those of a remote cluster.
    """

    path: Path | None
    project: Path
    project_dir: str
    is_remote: bool = False

    @classmethod
    def local(cls, path: Path) -> StartFolder:
        """Return a folder of this machine."""
        return cls(path=path, project=path, project_dir=str(path))

    def resolve(self, name: str) -> Path | None:
        """Return the file of this machine that an argument of the program names.

        Return None if that is unknown here, and for files of a remote cluster, because a local
        file with the same path is a different file.

        >>> far = StartFolder(
        ...     path=Path("/me/lm/train"), project=Path("/me/lm"), project_dir="/r/code",
        ...     is_remote=True,
        ... )
        >>> [str(far.resolve(name)) for name in ("ds.json", "{code_dir}/a.yaml", "/r/code/b.yaml")]
        ['/me/lm/train/ds.json', '/me/lm/a.yaml', '/me/lm/b.yaml']
        >>> far.resolve("/models/llama") is None, far.resolve("~/llama") is None
        (True, True)
        """
        for word in ("{project_dir}", "{code_dir}"):
            if name.startswith(word):
                return Path(f"{self.project}{name.removeprefix(word)}")
        if self.is_remote and name.startswith(("/", "~")):
            path = Path(os.path.normpath(name))
            is_inside = path.is_relative_to(self.project_dir)
            return self.project / path.relative_to(self.project_dir) if is_inside else None
        if name.startswith("~/"):
            return Path(name).expanduser()
        return Path(name) if name.startswith("/") else self.path and self.path / name


def find_start_folder(context: Context, workdir: str | None, project_dir: str) -> StartFolder:
    """Return the folder in which a program starts.

    Args:
        workdir: The key of the job, or the planned folder; None: the project's.
        project_dir: The project's folder where the job runs.
    """
    return StartFolder(
        path=_find_path(context, workdir or "", project_dir),
        project=context.project,
        project_dir=project_dir,
        is_remote=context.cluster.host is not None,
    )


def _find_path(context: Context, workdir: str, project_dir: str) -> Path | None:
    text = workdir.replace("{project_dir}", project_dir)
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
