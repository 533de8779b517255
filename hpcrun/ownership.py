"""File ownership checks: only files of the user or of root are trusted or executed.

Files of the account ``slurm``, which starts every user's jobs, are trusted like those of root.
HPCRUN_TRUST lists further trusted directories, separated by colons.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from functools import lru_cache
from pathlib import Path

from hpcrun.errors import InputError


@lru_cache
def name_of_user(uid: int) -> str:
    """Return a user's name as Slurm knows it, or the uid if it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def is_own(info: os.stat_result) -> bool:
    """Return True if only the user or root owns and can write to a file, given its (f)stat."""
    return not other_owner(info) and not _allows_others_to_write(info)


def describe_insecure_path(path: Path) -> str:
    """Name the other users who can change the target of a path; return "" if nobody can.

    Every directory and link along the path is checked. In a sticky directory, such as /tmp, other
    users cannot replace the user's files. Raises OSError if the target does not exist.
    """
    path.stat()  # fails for a cycle of links
    if is_trusted(path):
        return ""
    path = path.absolute()
    for part in (*reversed(path.parents), path):
        info = part.lstat()
        if who := other_owner(info):
            return f"{part} belongs to {who}"
        if stat.S_ISLNK(info.st_mode):
            return describe_insecure_path(part.parent / part.readlink() / path.relative_to(part))
        is_sticky = stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX and part != path
        if _allows_others_to_write(info) and not is_sticky:
            return f"others can write to {part}"
    return ""


def is_writable_by_others(folder: Path) -> bool:
    """Return True if untrusted users can replace the contents of a directory. Raises OSError."""
    info = folder.stat()
    return (
        not is_trusted(folder) and _allows_others_to_write(info) and not info.st_mode & stat.S_ISVTX
    )


def refuse_foreign_file(path: Path, what: str) -> None:
    """Refuse a file of a project, or a link to one, that belongs to another user.

    A missing file is accepted.

    Args:
        what: What the file does, for the message.

    Raises:
        InputError: The file belongs to another user.
    """
    if who := foreign_owner(path):
        raise InputError(
            f"{path} belongs to {who}: {what}",
            fix=f"if you trust its content: export HPCRUN_TRUST={path.resolve().parent}",
        )


def foreign_owner(path: Path) -> str:
    """Return the untrusted owner of a path or of a link along it, or "" if there is none."""
    with contextlib.suppress(OSError):
        who = other_owner(path.lstat()) or other_owner(path.stat())
        return who if who and not is_trusted(path) else ""
    return ""


def is_trusted(path: Path) -> bool:
    """Return True if a path is in a directory that the user trusts (HPCRUN_TRUST)."""
    folders = [Path(name) for name in os.environ.get("HPCRUN_TRUST", "").split(":") if name]
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in folders)


def other_owner(info: os.stat_result) -> str:
    """Return the owner's name; "" for the user, root and Slurm."""
    if info.st_uid in (os.geteuid(), 0) or (name := name_of_user(info.st_uid)) == "slurm":
        return ""
    return name


def _allows_others_to_write(info: os.stat_result) -> bool:
    """Return True if the mode grants write access to others or to a shared group.

    Many systems give each user a group of the same name with write access to new files. Root's
    group is trusted too.
    """
    if info.st_mode & stat.S_IWOTH:
        return True
    return bool(info.st_mode & stat.S_IWGRP) and not _is_private_group(info.st_gid, info.st_uid)


@lru_cache
def _is_private_group(gid: int, uid: int) -> bool:
    try:
        group, owner = grp.getgrgid(gid), name_of_user(uid)
    except KeyError:
        return False
    return gid == 0 or (group.gr_name == owner and {owner} >= set(group.gr_mem))
