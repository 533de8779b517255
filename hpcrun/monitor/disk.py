"""Measures free disk space."""

from __future__ import annotations

from pathlib import Path

from hpcrun.files import free_space

# Some file systems are full a little before their last byte.
ALMOST_FULL_BYTES = 10**6


def describe_full_disk(folder: Path) -> str:
    """Describe a full file system; "" if it is not full, or unknown."""
    space, files = free_space(folder)
    what = ""
    if files == 0:
        what = "no inodes are left"
    if space is not None and space < ALMOST_FULL_BYTES:
        what = f"{space // 1000} KB are left" if space else "no space is left"
    return f"disk: the file system of {folder} is full: {what}; make room there" if what else ""
