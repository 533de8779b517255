"""Whether git ignores the program: then it would not be in the run's copy of the code."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from hpcrun.assets import home_dir
from hpcrun.controller.checks.question import Question

# seconds
PATIENCE = 2.0


def ask_git(project: Path, path: Path, environ: Mapping[str, str]) -> Question | None:
    """Ask git about a file of the project, where a pattern may fit it; None: it is not ignored.

    Most files are fitted by no pattern at all, which is seen without git: starting it takes longer
    than all other checks together.
    """
    path = Path(os.path.normpath(path))
    if not path.is_relative_to(project):
        return None
    top = next((folder for folder in path.parents if (folder / ".git").exists()), None)
    if top is None or not _may_be_ignored(path, top, environ):
        return None
    argv = ["git", "-C", str(path.parent), "check-ignore", "-q", "--", path.name]
    return Question(argv, environ)


def is_ignored(asked: Question | None) -> bool:
    """Hear what git said; no answer is no."""
    answer = asked.answer(PATIENCE) if asked is not None else None
    return answer is not None and answer[0] == 0


def _may_be_ignored(path: Path, top: Path, environ: Mapping[str, str]) -> bool:
    """Tell whether the last part of any pattern fits a part of the path (gitignore(5))."""
    home = Path(home_dir(environ))
    settings = [top / ".git" / "config", home / ".gitconfig", home / ".config" / "git" / "config"]
    if (top / ".git").is_file() or any("excludesfile" in _text(file).lower() for file in settings):
        return True  # a submodule's or a worktree's, or patterns in some other file
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [config / "git" / "ignore", top / ".git" / "info" / "exclude"]
    parts = path.relative_to(top).parts
    files += [top.joinpath(*parts[:count]) / ".gitignore" for count in range(len(parts))]
    for file in files:
        for line in _text(file).splitlines():
            pattern = line.strip().rstrip("/").rpartition("/")[2]
            if not pattern or line.startswith("#"):
                continue
            if re.search(r"[\\\[]", line) or any(fnmatchcase(part, pattern) for part in parts):
                return True
    return False


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        if file.is_file():
            return file.read_text(errors="replace")
    return ""
