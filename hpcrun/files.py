"""Safe reading and atomic writing of files in directories that other users may write to.

The path of a record or a log may lead to anything: a FIFO, a device, another user's link, an
endless file. Only regular files of a bounded size are read, without blocking. A file is written
under an unpredictable name in the same directory and renamed when it is complete.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from hpcrun.errors import InputError
from hpcrun.ownership import other_owner

if TYPE_CHECKING:
    import tarfile

# The limit exceeds the largest record of the largest sweep.
MAX_FILE_BYTES = 64 << 20
_PROBE_BYTES = 1 << 16

# Notices about ignored files and their owners, each shown once. The command line prints new ones
# before its next line and when it exits.
notices: dict[str, bool] = {}


class UnsafeFile(OSError):
    """The file is not a regular file or not written by hpcrun, and is treated as missing."""


def add_notice(text: str) -> None:
    """Add a notice about a file for the user; a repeated notice is shown once."""
    notices.setdefault(text, False)


def take_new_notices() -> list[str]:
    """Return the notices that were not returned before."""
    new = [text for text, is_said in notices.items() if not is_said]
    notices.update(dict.fromkeys(new, True))
    return new


# ---- reading


def open_plain(path: str | Path) -> BinaryIO:
    """Open a regular file for reading without blocking on other kinds of files.

    Links of the user's own are followed.

    Raises:
        OSError: The file cannot be opened.
        UnsafeFile: The path leads to something other than a regular file, or through another user's
            link.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise UnsafeFile(error.errno, "not a regular file", path) from error
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
        raise UnsafeFile(errno.EINVAL, "not a regular file", path)
    return os.fdopen(handle, "rb")


def read_plain(path: str | Path, longest: int | None = None) -> bytes:
    """Read a regular file.

    Raises:
        OSError: The file cannot be read.
        UnsafeFile: It is not a regular file, or exceeds ``longest`` bytes.
    """
    with open_plain(path) as file:
        return read_bounded(file, path, longest)


def read_bounded(file: BinaryIO, path: str | Path, longest: int | None = None) -> bytes:
    """Read an open file to its end.

    Raises:
        UnsafeFile: The file exceeds ``longest`` bytes.
    """
    longest = MAX_FILE_BYTES if longest is None else longest
    size = os.fstat(file.fileno()).st_size
    # A read of longest + 1 bytes would allocate that much memory for the smallest file.
    data = file.read(size + 1) if size <= longest else b""
    while size < len(data) <= longest and (more := file.read(1 << 16)):  # the file has grown
        data += more
    if size > longest or len(data) > longest:
        raise UnsafeFile(errno.EFBIG, f"larger than {longest >> 20} MB", str(path))
    return data


def can_write(folder: Path) -> bool:
    """Return False if the file system of a folder is full or read-only, or the quota is used up.

    A file without a name is written, which vanishes when it is closed. File systems without such
    files count as writable.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    flags = getattr(os, "O_TMPFILE", None)
    if flags is None:
        return True
    try:
        handle = os.open(folder, flags | os.O_WRONLY, 0o600)
    except OSError as error:
        return error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    try:
        os.write(handle, bytes(_PROBE_BYTES))
    except OSError as error:
        return error.errno not in (errno.ENOSPC, errno.EDQUOT)
    finally:
        os.close(handle)
    return True


class _BoundedFile:
    """A seekable file whose reads never request more bytes than there are."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._end = file.seek(0, os.SEEK_END)
        self.seek, self.tell = file.seek, file.tell
        file.seek(0)

    def read(self, size: int) -> bytes:
        return self._file.read(max(0, min(size, self._end - self._file.tell())))


def open_received_tar(file: IO[bytes]) -> tarfile.TarFile:
    """Open an uncompressed tar that another host sent; its headers are not trusted.

    A compressed one could expand without limit, and Python allocates memory for the size that a
    header claims before it reads. Raises tarfile.ReadError.
    """
    import tarfile  # deferred: most commands receive none

    return tarfile.open(fileobj=cast("IO[bytes]", _BoundedFile(file)), mode="r:")


# ---- writing


@contextmanager
def replace_atomically(target: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a file that replaces ``target`` once it is completely written.

    On failure, ``target`` is unchanged and no temporary file remains. Raises OSError.
    """
    # The name is not derived from the target's: TensorBoard would read the file as soon as it
    # exists.
    part = target.with_name(f".hpcrun-{os.urandom(8).hex()}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        part.replace(target)
    except BaseException:
        with suppress(OSError):  # e.g. read-only: report the first error instead
            part.unlink(missing_ok=True)
        raise


@contextmanager
def write_atomically(path: Path, *, follows: bool = False) -> Iterator[BinaryIO]:
    """Yield a file that is renamed to ``path`` once it is completely written.

    An existing file is replaced and its mode kept. A link of the user's own is followed if it leads
    into its own directory or below, because every link in a cloned repository is the user's own.
    Anything other than a regular file (a pipe, /dev/stdout) is written to directly; if its reader
    has exited, BrokenPipeError is raised, as by print. On failure, an existing file is unchanged
    and no temporary file remains.

    Args:
        follows: Follow links to any place, as for the user's configuration.

    Raises:
        InputError: The file cannot be written.
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
                target.stat()  # raises OSError for a cycle of links
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
    """Return a hint about free disk space if a full disk causes this error, else ""."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "is the file system full, or your quota?" if is_full else ""


def write_error(path: Path, error: OSError) -> InputError:
    """Return the error for a file that cannot be written, with the reason and a fix."""
    if error.errno == errno.ENOENT:
        return InputError(f"{path}: no such folder", fix=f"mkdir -p {path.parent}")
    fix = full_disk_hint(error) or "choose a folder that you can write to"
    if error.errno == errno.EISDIR:
        fix = "name a file in it"
    return InputError(f"{path}: {error.strerror or error}", fix=fix)


def free_space(folder: Path) -> tuple[int | None, int | None]:
    """Return the free bytes and inodes of a directory's file system; None if not reported.

    With project quotas, this is often the remainder of the quota.
    """
    try:
        info = os.statvfs(folder)
    except OSError:
        return None, None
    # Some network file systems report zero blocks, which does not mean that the disk is full.
    space = info.f_bavail * info.f_frsize if info.f_blocks else None
    return space, info.f_favail if info.f_files else None
