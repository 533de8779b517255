"""What hpcrun remembers between two calls, in the user's own cache folder.

It spares time and nothing else: without it, or with a damaged one, all works a little slower.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from hpcrun.assets import home_dir
from hpcrun.errors import HpcrunError
from hpcrun.structs import decodable

T = TypeVar("T")


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Find the user's own cache folder, ``~/.cache/hpcrun`` unless XDG_CACHE_HOME says another."""
    base = environ.get("XDG_CACHE_HOME") or str(Path(home_dir(environ)) / ".cache")
    return Path(base) / "hpcrun"


def read_kept(file: Path, type_: type[T]) -> T | None:
    """Read what was kept; None where it is not there, damaged, or others could have written it."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    with open(descriptor, "rb") as opened:  # noqa: PTH123 - it is open already
        try:
            info = os.fstat(descriptor)
            # A profile's commands run in jobs: what others could have written does not count.
            shared = info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if shared or not stat.S_ISREG(info.st_mode):
                return None
            return msgspec.json.decode(opened.read(), type=decodable(type_))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None


def keep(file: Path, value: msgspec.Struct) -> None:
    """Write it for the next time, if it can be written and reads back as it is."""
    from hpcrun.runs.store import write_file

    with contextlib.suppress(OSError, HpcrunError, ValueError, TypeError, msgspec.MsgspecError):
        data = msgspec.json.encode(value)
        if msgspec.json.decode(data, type=decodable(type(value))) == value:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(file, data, mode=0o600)
