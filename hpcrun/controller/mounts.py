"""The mounted file systems of this machine, and which one a path is on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

# /proc/mounts writes blanks in paths as octal numbers (proc(5)).
_OCTAL = re.compile(r"\\([0-7]{3})")
LOCAL_TYPES = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay"}
    | {"bcachefs", "jfs", "reiserfs", "ntfs", "ntfs3"}
)
MEMORY_TYPES = frozenset({"tmpfs", "ramfs"})


class Mount(Struct, frozen=True):
    """A mounted file system: what is mounted (a device, SERVER:/export), where, its type."""

    source: str
    folder: str
    type: str
    options: str = ""


def read_mounts() -> list[Mount]:
    """List the file systems of this machine; none where /proc does not tell."""
    try:
        return parse_mounts(Path("/proc/self/mounts").read_text(errors="surrogateescape"))
    except OSError:
        return []


def parse_mounts(text: str) -> list[Mount]:
    """Read /proc/self/mounts.

    >>> parse_mounts("nas:/home /my\\\\040home nfs4 rw 0 0")[0].folder
    '/my home'
    """
    mounts = []
    for line in text.splitlines():
        words = [_OCTAL.sub(lambda match: chr(int(match[1], 8)), word) for word in line.split(" ")]
        if len(words) >= 4:
            mounts.append(Mount(*words[:4]))
    return mounts


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """Find the file system of a path without links: the innermost, of these the last mounted.

    What autofs mounts has a line of its own.
    """
    found = None
    for mount in mounts:
        inside = path == mount.folder or path.startswith(mount.folder.rstrip("/") + "/")
        is_outer = found is not None and len(mount.folder) < len(found.folder)
        if inside and not is_outer and mount.type != "autofs":
            found = mount
    return found
