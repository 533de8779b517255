"""Whose a file is: what is believed, or run, only where it is the user's own or root's.

Root's count, and those of the account ``slurm``, which starts everybody's jobs. What else the user
believes stands in the environment: HPCRUN_TRUST has folders, separated by colons.
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
    """Find a user's name as Slurm knows it; the number where nobody has a name for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def is_own(info: os.stat_result) -> bool:
    """Return whether a file or folder, as (f)stat shows it, is the user's own or root's, and
    nobody else can write to it."""
    return not other_owner(info) and not _allows_others_to_write(info)


def describe_insecure_path(path: Path) -> str:
    """Say who else than the user and root can change what a path leads to; "" if nobody can.

    Each folder on the way counts, and each link. In a sticky folder, such as /tmp, others cannot
    take the place of what is the user's. Raises OSError for a path that leads nowhere.
    """
    path.stat()  # no circle of links
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
    """Return whether others, not trusted, can replace what is in a folder. Raises OSError."""
    info = folder.stat()
    return (
        not is_trusted(folder) and _allows_others_to_write(info) and not info.st_mode & stat.S_ISVTX
    )


def refuse_foreign_file(path: Path, what: str) -> None:
    """Refuse a file of a project, or a link to one, that is another user's.

    ``what`` it does, for the message. Raises InputError; nothing where there is no file.
    """
    if who := foreign_owner(path):
        raise InputError(
            f"{path} belongs to {who}: {what}",
            fix=f"if you trust what lies there: export HPCRUN_TRUST={path.resolve().parent}",
        )


def foreign_owner(path: Path) -> str:
    """Name the other user whom a path, or a link there, belongs to; "" where that is trusted."""
    with contextlib.suppress(OSError):
        who = other_owner(path.lstat()) or other_owner(path.stat())
        return who if who and not is_trusted(path) else ""
    return ""


def is_trusted(path: Path) -> bool:
    """Return whether a path is in a folder that the user trusts (HPCRUN_TRUST)."""
    folders = [Path(name) for name in os.environ.get("HPCRUN_TRUST", "").split(":") if name]
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in folders)


def other_owner(info: os.stat_result) -> str:
    """Return the owner's name; "" for the user, root and Slurm."""
    if info.st_uid in (os.geteuid(), 0) or (name := name_of_user(info.st_uid)) == "slurm":
        return ""
    return name


def _allows_others_to_write(info: os.stat_result) -> bool:
    """Whether the mode lets others write: a group counts, but for root's and the owner's own.

    Many systems give each user a group of the same name, and let it write what the user makes.
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
