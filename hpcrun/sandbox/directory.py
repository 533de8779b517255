"""The directory of a sandbox: where it is, that it is ours, and one user of it at a time."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from hpcrun.errors import HpcrunError, InputError
from hpcrun.sandbox.config import Layout, check_directory
from hpcrun.sandbox.shape import Shape
from hpcrun.structs import decodable


def sandbox_dir(environ: Mapping[str, str], uid: int) -> Path:
    """Return the directory of this user's sandbox: HPCRUN_SANDBOX_DIR, or one in /tmp.

    Raise InputError when Slurm could not work there.

    >>> sandbox_dir({}, 1000)
    PosixPath('/tmp/hpcrun-sandbox-1000')
    >>> sandbox_dir({"HPCRUN_SANDBOX_DIR": "/tmp/mine"}, 1000)
    PosixPath('/tmp/mine')
    """
    # Not tempfile.gettempdir(): a batch job's TMPDIR is long, and another one in each job.
    named = environ.get("HPCRUN_SANDBOX_DIR") or f"/tmp/hpcrun-sandbox-{uid}"
    directory = canonical(Path(named))
    check_directory(directory)
    return directory


def canonical(directory: Path) -> Path:
    """Make absolute and resolve the folders above; ``directory`` itself may not be a link."""
    return directory.parent.resolve() / directory.name


def check_owned(directory: Path) -> bool:
    """Say whether ``directory`` exists; raise InputError when it cannot be this user's sandbox."""
    fix = "set HPCRUN_SANDBOX_DIR to a path that does not exist yet"
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InputError(f"{directory}: {error.strerror}", fix=fix) from error
    if stat.S_ISLNK(found.st_mode):
        raise InputError(f"{directory} is a symbolic link; it is not followed", fix=fix)
    if not stat.S_ISDIR(found.st_mode):
        raise InputError(f"{directory} is not a directory", fix=fix)
    if found.st_uid != os.geteuid():
        raise InputError(f"{directory} belongs to uid {found.st_uid}, not to you", fix=fix)
    if any(directory.iterdir()) and not Layout(directory).shape.exists():
        raise InputError(f"{directory} has files in it and is not a sandbox", fix=fix)
    return True


def read_shape(directory: Path) -> Shape | None:
    """Return the shape that was asked of the sandbox; None when that is not on record."""
    try:
        return msgspec.json.decode(Layout(directory).shape.read_bytes(), type=decodable(Shape))
    except (OSError, msgspec.DecodeError):
        return None


def create(directory: Path) -> None:
    """Make the directory, closed to others; raise InputError when it cannot be made or used."""
    if check_owned(directory):
        directory.chmod(0o700)
        return
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        check_owned(directory)
    except OSError as error:
        raise InputError(
            f"{directory}: {error.strerror}", fix="set HPCRUN_SANDBOX_DIR to a path you can write"
        ) from error


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the existing ``directory`` against another up or down; wait for it as long as needed.

    Raise FileNotFoundError when it is removed meanwhile.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    while True:
        handle = os.open(directory, flags)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(handle), directory.lstat()):
                yield
                return
        finally:
            os.close(handle)


def empty(directory: Path) -> None:
    """Remove what is in ``directory``; raise HpcrunError when something stays.

    The record that says "this is a sandbox" goes last: what is left of a removal that was
    interrupted is still known as one.
    """
    record = Layout(directory).shape
    try:
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                import shutil  # here: it takes long to import

                shutil.rmtree(entry)
            elif entry != record:
                entry.unlink()
        record.unlink(missing_ok=True)
    except OSError as error:
        raise HpcrunError(f"{error.filename}: cannot be removed: {error.strerror}") from error
