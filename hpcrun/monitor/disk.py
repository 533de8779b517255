"""How much room a file system has left."""

from __future__ import annotations

import os
from pathlib import Path

# Some file systems are full a little before their last byte.
ALMOST_FULL_BYTES = 10**6


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


def describe_full_disk(folder: Path) -> str:
    """Report a folder whose file system is full; "" where it is not, or nobody knows."""
    space, files = free_space(folder)
    what = ""
    if files == 0:
        what = "no more files fit"
    if space is not None and space < ALMOST_FULL_BYTES:
        what = f"{space // 1000} KB are left" if space else "no space is left"
    return f"disk: the file system of {folder} is full: {what}; make room there" if what else ""
