"""Copies the project's code into the run, so that edits do not affect a waiting job."""

from __future__ import annotations

import contextlib
import filecmp
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from stat import S_IMODE, S_ISLNK, S_ISREG

from hpcrun.errors import HpcrunError, InputError

# A larger file is treated as data, not code: on the same machine it is linked instead of copied.
LINK_ABOVE = 20 * 1024 * 1024
# How often the copy of a file that changes meanwhile is retried.
_MAX_COPY_TRIES = 3
# The number of earlier code copies that are searched for identical large files.
_MAX_EARLIER_COPIES = 3
# A project with more files is probably a data or home directory, which would take minutes to copy.
MAX_FILES = 20_000
MAX_BYTES = 500 * 1024 * 1024
# Disable programs that a checkout's configuration would start when git reads it: a file system
# monitor, hooks, and the fetch of missing objects of a partial clone.
_GIT = ("git", "-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null")
_GIT_ENVIRON = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
_IN_PLACE = "snapshot: false in the job runs the code where it is"
_SKIP = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache"}
    | {".ruff_cache", ".pytest_cache", ".ipynb_checkpoints", ".tox", "wandb"}
)
# The first line of the .gitignore in a directory created by `hpcrun fetch`.
RESULTS_MARK = "# Results that hpcrun fetch has brought."
# The directory that hpcrun writes for editors.
_OURS = ".hpcrun"


def git_command(folder: Path, *words: str) -> list[str]:
    """Return a git command that starts no program configured by the checkout."""
    own = [f"{name}={value}" for name, value in _GIT_ENVIRON.items()]
    return ["env", *own, *_GIT, "-C", str(folder), *words]


def take_snapshot(
    project: Path,
    code: Path,
    *,
    leave_out: Path,
    show: Callable[[int, int], None],
    is_sent: bool = False,
) -> list[str]:
    """Copy the project to ``code``; return its links that lead out of the project.

    In a git checkout, tracked and untracked files are copied, except ignored ones; elsewhere
    everything except caches and environments.

    Args:
        leave_out: The directory of the runs, which is excluded.
        show: Called with the number of copied files and the number of all files.
        is_sent: The copy is sent to another machine, so it must include the content of large files;
            links out of the project remain links.

    Raises:
        InputError: The project is too large to copy; detected before much is written.
    """
    if leave_out == project:
        raise InputError(
            f"{project}: the code's own folder is that of the runs",
            fix="name another one as runs_dir, such as runs",
        )
    code.mkdir(parents=True, exist_ok=True)
    size, is_above = 0, project.is_relative_to(leave_out)
    # git also lists deleted files, and files excluded by a sparse checkout.
    wanted = (
        name
        for name in _project_files(project)
        if not name.startswith(f"{_OURS}/")
        and (is_above or not (project / name).is_relative_to(leave_out))
        and os.path.lexists(project / name)
    )
    names = list(islice(wanted, MAX_FILES + 1))
    earlier = _earlier_copies(leave_out, code) if is_sent else []
    out = []
    for number, name in enumerate(names):
        # deleted since git listed it
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            out += [name] * _is_external_link(project / name, project)
            size += _copy(project / name, code / name, project, is_sent=is_sent)
            _hard_link_duplicate(code / name, [copy / name for copy in earlier])
        show(number + 1, len(names))
        if len(names) > MAX_FILES or size > MAX_BYTES:
            raise InputError(
                f"{project}: too large to copy into the run (over {MAX_FILES} files or "
                f"{MAX_BYTES // 2**20} MiB of files)",
                fix="run hpcrun in the folder of your code, put data into .gitignore, "
                "or set snapshot: false to run the code in place",
            )
    return out


def remove_group_write(code: Path) -> None:
    """Remove the write permission of the group and others, which was copied from the project."""
    for where, _, names in os.walk(code):
        for path in (Path(where), *(Path(where, name) for name in names)):
            mode = path.lstat().st_mode
            if mode & 0o022 and not S_ISLNK(mode):
                path.chmod(S_IMODE(mode) & ~0o022)


def _is_external_link(path: Path, project: Path) -> bool:
    """Return True if a path is a link to a place outside of the project."""
    # resolve() raises an error for a cycle of links.
    is_link = path.is_symlink()
    return is_link and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(project))


def _copy(source: Path, target: Path, project: Path, *, is_sent: bool) -> int:
    info = source.lstat()
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        link, inside = source.readlink(), not _is_external_link(source, project)
        if not (is_sent and inside and link.is_absolute() and source.is_file()):
            real = Path(os.path.realpath(source))
            target.symlink_to(link if inside and not link.is_absolute() else real)
            return 0
        info = source.stat()
    if not source.is_file():
        return 0
    if info.st_size > LINK_ABOVE and not is_sent:
        target.symlink_to(source)
        return 0
    for _ in range(_MAX_COPY_TRIES):
        shutil.copy2(source, target)
        now = source.stat()
        if (now.st_size, now.st_mtime_ns) == (info.st_size, info.st_mtime_ns):
            break
        info = now  # the file was written meanwhile
    return info.st_size


def _earlier_copies(runs_dir: Path, code: Path) -> list[Path]:
    """List the code copies of the most recent runs."""
    runs = sorted((path for path in runs_dir.glob("[0-9]*-*") if path.is_dir()), reverse=True)
    return [run / "code" for run in runs if run != code.parent][:_MAX_EARLIER_COPIES]


def _hard_link_duplicate(path: Path, earlier: Sequence[Path]) -> None:
    """Replace a large file with a hard link if an earlier copy has the same content."""
    with contextlib.suppress(OSError):
        info = path.lstat()
        if not S_ISREG(info.st_mode) or info.st_size <= LINK_ABOVE:
            return
        for old in earlier:
            known = old.lstat() if os.path.lexists(old) else None
            if known is None or (known.st_mode, known.st_size) != (info.st_mode, info.st_size):
                continue
            if filecmp.cmp(path, old, shallow=False):
                aside = path.with_name(f".hpcrun-{os.urandom(8).hex()}")
                aside.hardlink_to(old)
                aside.replace(path)
                return


def _project_files(project: Path) -> Iterator[str]:
    """List the project's files, using git if it is a checkout."""
    listed = _git_files(project)
    if listed is None:
        yield from _walk_files(project)
        return
    folders = set()
    for name in listed:
        path = project / name
        if path.is_dir() and not path.is_symlink():
            # git lists only the directory of a submodule, or of a checkout within the checkout.
            for inner in _project_files(path):
                yield f"{name.rstrip('/')}/{inner}"
        else:
            folders.add(path.parent)
            yield name
    # git ignores extension modules compiled in place, but the code imports them.
    known = set(listed)
    for folder in sorted(folders):
        for library in sorted(folder.glob("*.so")):
            name = str(library.relative_to(project))
            if name not in known:
                yield name


def _git_files(project: Path) -> list[str] | None:
    """List tracked files and untracked files that are not ignored; None without a checkout or git.

    Raises:
        InputError: git failed. Copying everything would include ignored files, such as data.
    """
    if shutil.which("git") is None:
        return None
    try:
        listed = subprocess.run(
            git_command(project, "ls-files", "-coz", "--exclude-standard"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise HpcrunError(f"git cannot be started here: {error.strerror}", fix=_IN_PLACE) from error
    if listed.returncode == 0:
        return [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    stderr = os.fsdecode(listed.stderr).strip()
    if "not a git repository" in stderr:
        return None
    own = re.search(r"^\s+(git config .*)", stderr, re.MULTILINE)  # another user's checkout
    reason = stderr.partition("\n")[0] or "it gives no reason"
    raise InputError(
        f"git does not list the code of {project}: {reason}",
        fix=f"{own[1]}; or {_IN_PLACE}" if own else _IN_PLACE,
    )


def _is_fetched(folder: Path) -> bool:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (folder / ".gitignore").read_text().startswith(RESULTS_MARK)
    return False


def _walk_files(project: Path) -> Iterator[str]:
    """List everything except caches and environments."""
    for where, folders, names in os.walk(str(project)):
        folder = Path(where)
        # os.walk lists a link to a directory as a directory; it is kept as a link.
        links = [name for name in folders if (folder / name).is_symlink()]
        folders[:] = [
            name
            for name in folders
            if name not in _SKIP
            and name not in links
            and not (folder / name / "pyvenv.cfg").exists()
            and not _is_fetched(folder / name)
        ]
        for entry in names + links:
            yield str((folder / entry).relative_to(project))
