"""Files of folders that others may write to: opened with care, and written whole.

Under the name of a record or a log may stand anything: a FIFO, a device, a link of somebody else's,
a file without end. Only plain files of a bounded size are read, and none is waited for. A file is
written beside its place, under a name that nobody can foresee, and takes its place by rename.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hpcrun.errors import InputError
from hpcrun.ownership import other_owner

# Bytes: more than the largest record of the largest sweep.
MAX_FILE_BYTES = 64 << 20

# What the user should know of files that were left out, and of whose they are; once each. The
# command line prints it before its next line, and at its end.
notices: dict[str, bool] = {}


class UnsafeFile(OSError):
    """No plain file, or one that no hpcrun wrote; it counts as not there."""


def add_notice(text: str) -> None:
    """Note once what the user should know of a file."""
    notices.setdefault(text, False)


def take_new_notices() -> list[str]:
    """Return the remarks that were not returned before."""
    new = [text for text, is_said in notices.items() if not is_said]
    notices.update(dict.fromkeys(new, True))
    return new


# ---- reading


def open_plain(path: str | Path) -> BinaryIO:
    """Open a plain file to read; what it is else is not waited for.

    A link is followed where it is the user's own. Raises OSError, and of it Unfit for what is no
    plain file, or a link of somebody else's.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise UnsafeFile(error.errno, "not a plain file", path) from error
        if error.errno != errno.ELOOP:
            raise
        if whose := other_owner(os.lstat(path)):
            raise UnsafeFile(error.errno, f"a link that belongs to {whose}", path) from error
        handle = os.open(path, flags)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise UnsafeFile(errno.EINVAL, "not a plain file", path)
    return os.fdopen(handle, "rb")


def read_plain(path: str | Path, longest: int | None = None) -> bytes:
    """Read a plain file. Raises OSError, and of it Unfit also for one that is too long."""
    with open_plain(path) as file:
        return read_bounded(file, path, longest)


def read_bounded(file: BinaryIO, path: str | Path, longest: int | None = None) -> bytes:
    """Read an open file to its end. Raises Unfit for one of more bytes than ``longest``."""
    longest = MAX_FILE_BYTES if longest is None else longest
    size = os.fstat(file.fileno()).st_size
    # Not longest + 1: as much memory would be taken for the smallest file.
    data = file.read(size + 1) if size <= longest else b""
    while size < len(data) <= longest and (more := file.read(1 << 16)):  # it has grown
        data += more
    if size > longest or len(data) > longest:
        raise UnsafeFile(errno.EFBIG, f"larger than {longest >> 20} MB", str(path))
    return data


# ---- writing


@contextmanager
def replace_atomically(target: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Give a file to write to, which takes the place of ``target`` when all is written.

    What stood there before is untouched else, and nothing is left beside it. Raises OSError.
    """
    # Not named after the target: TensorBoard would read it as soon as it is there.
    part = target.with_name(f".hpcrun-{os.urandom(8).hex()}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        part.replace(target)
    except BaseException:
        with suppress(OSError):  # read-only, say: what failed first is what is wrong
            part.unlink(missing_ok=True)
        raise


@contextmanager
def write_atomically(path: Path, *, follows: bool = False) -> Iterator[BinaryIO]:
    """Give a file to write to, which takes its place under ``path`` when all is written.

    An existing file is replaced, its mode kept. A link of the user's own is followed if it leads to
    a file in its own folder or below: every link of a repository that was cloned is the user's own.
    ``follows``: wherever it leads, as in the user's configuration. What is no plain file (a pipe,
    /dev/stdout) is written to directly; whose reader has gone raises BrokenPipeError, as printing
    does. Raises InputError naming the place where it cannot be written; what stood there before is
    then untouched, and nothing is left beside it.
    """
    try:
        if path.exists() and (path.is_relative_to("/dev") or not (path.is_file() or path.is_dir())):
            with path.open("ab") as file:
                yield file
            return
        target = path
        while target.is_symlink():
            if whose := other_owner(target.lstat()):
                raise InputError(
                    f"{target}: a link that belongs to {whose}", fix="name another file"
                )
            with suppress(FileNotFoundError):
                target.stat()  # raises OSError for a circle of links
            target = Path(os.path.abspath(target.parent / target.readlink()))  # noqa: PTH100
        folder = os.path.realpath(path.parent)
        if not (follows or Path(os.path.realpath(target)).is_relative_to(folder)):
            raise InputError(
                f"{path}: a link to {target}, which is outside of its folder",
                fix="name the file itself, or remove the link",
            )
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with replace_atomically(target) as file:
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        raise write_error(path, error) from error


def full_disk_hint(error: OSError) -> str:
    """Return a question about the disk for an error that a full one causes; "" for others."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "is the file system full, or your quota?" if is_full else ""


def write_error(path: Path, error: OSError) -> InputError:
    """Return the error for a file that cannot be written: why, and what to do."""
    if error.errno == errno.ENOENT:
        return InputError(f"{path}: no such folder", fix=f"mkdir -p {path.parent}")
    fix = full_disk_hint(error) or "name a place where you may write"
    if error.errno == errno.EISDIR:
        fix = "name a file in it"
    return InputError(f"{path}: {error.strerror or error}", fix=fix)


def free_space(folder: Path) -> tuple[int | None, int | None]:
    """Return the bytes and files that a folder's file system has left; None: it does not say.

    With project quotas it is often the quota's rest.
    """
    try:
        info = os.statvfs(folder)
    except OSError:
        return None, None
    # Some network file systems report nothing, which is no sign of a full disk.
    space = info.f_bavail * info.f_frsize if info.f_blocks else None
    return space, info.f_favail if info.f_files else None
