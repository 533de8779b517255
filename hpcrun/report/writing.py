"""Files appear whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hpcrun.errors import InputError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write to, which takes its place under ``path`` when all is written.

    An existing file is replaced, its mode kept; a link is followed. What is no plain file (a pipe,
    /dev/stdout) is written to directly; whose reader has gone raises BrokenPipeError, as printing
    does. Raises InputError naming the place where it cannot be written; what stood there before is
    then untouched, and nothing is left beside it.
    """
    try:
        if path.exists() and (path.is_relative_to("/dev") or not (path.is_file() or path.is_dir())):
            with path.open("ab") as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        # Not named after the target: TensorBoard would read it as soon as it is there.
        part = target.with_name(f".hpcrun-{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                yield file
            if target.exists():
                part.chmod(target.stat().st_mode & 0o777)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> InputError:
    """Say why a file cannot be written, and what to do."""
    if error.errno == errno.ENOENT:
        return InputError(f"{path}: no such folder", fix=f"mkdir -p {path.parent}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = "is the file system full, or your quota?"
    elif error.errno == errno.EISDIR:
        fix = "name a file in it"
    else:
        fix = "name a place where you may write"
    return InputError(f"{path}: {error.strerror or error}", fix=fix)
