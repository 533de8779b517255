"""What file systems' quota commands answer: what is left of a user's quota."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from hpcrun.controller.mounts import LOCAL_TYPES, Mount


class Left(Struct, frozen=True):
    """What a quota leaves: bytes and files; None: no limit."""

    bytes: int | None
    files: int | None


def quota_argv(mount: Mount, user: int) -> list[str] | None:
    """Give the command that knows a user's quota there; None where none is known.

    ``user`` is the number of the user. Options: quota(1) -w -p, lfs-quota(1) -q, mmlsquota -Y
    (IBM Storage Scale), beegfs-ctl --getquota --csv.
    """
    if mount.type == "lustre":
        return ["lfs", "quota", "-q", "-u", str(user), mount.folder]
    if mount.type == "gpfs":
        return ["mmlsquota", "-Y", "-u", str(user), mount.source.removeprefix("/dev/")]
    if mount.type == "beegfs":
        return [
            "beegfs-ctl", "--getquota", "--csv", f"--mount={mount.folder}", "--uid", str(user),
        ]  # fmt: skip
    limited = re.search(r"(^|,)(usrquota|uquota|quota|usrjquota=[^,]+)(,|$)", mount.options)
    if mount.type in ("nfs", "nfs4") or (mount.type in LOCAL_TYPES and limited):
        return ["quota", "-w", "-p"]
    return None


def parse_quota(mount: Mount, user: int, text: str) -> Left | None:
    """Read the answer of quota_argv()'s command; None where it does not speak of this user here.

    The limit is the hard one, or the soft one where there is no other.
    """
    if mount.type == "lustre":
        rows = list(_lustre(mount, text))
    elif mount.type == "gpfs":
        rows = list(_gpfs(mount, text))
    elif mount.type == "beegfs":
        rows = list(_beegfs(user, text))
    else:
        rows = list(_linux(mount, text))
    # Several rows are of filesets or storage pools: which of them counts is not known.
    return rows[0] if len(rows) == 1 else None


def _linux(mount: Mount, text: str) -> Iterator[Left]:
    """quota -w -p: source, blocks of 1 KiB, quota, limit, grace, files, quota, limit, grace."""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 9 and words[0] == mount.source:
            yield _left(words[1:4], words[5:8], 1024)


def _lustre(mount: Mount, text: str) -> Iterator[Left]:
    """lfs quota -q: the same columns; a long name of the file system has a line of its own."""
    words = text.split()
    if len(words) == 9 and words[0].rstrip("/") == mount.folder.rstrip("/"):
        yield _left(words[1:4], words[5:8], 1024)


def _gpfs(mount: Mount, text: str) -> Iterator[Left]:
    """mmlsquota -Y: fields by the names in its header; blocks are KiB."""
    header: list[str] = []
    for line in text.splitlines():
        fields = line.split(":")
        if "HEADER" in fields:
            header = [name.lower() for name in fields]
            continue
        row = dict(zip(header, fields, strict=False))
        device = mount.source.rpartition("/")[2]
        if row.get("quotatype") == "USR" and row.get("filesystemname") == device:
            blocks = [row.get(f"block{name}", "") for name in ("usage", "quota", "limit")]
            files = [row.get(f"files{name}", "") for name in ("usage", "quota", "limit")]
            yield _left(blocks, files, 1024)


def _beegfs(user: int, text: str) -> Iterator[Left]:
    """beegfs-ctl --csv: name, id, bytes, limit, files, limit."""
    for line in text.splitlines():
        fields = [part.strip() for part in line.split(",")]
        if len(fields) == 6 and fields[1] == str(user):
            yield _left([fields[2], "", fields[3]], [fields[4], "", fields[5]], 1)


def _left(blocks: list[str], files: list[str], unit: int) -> Left:
    space, number = _rest(blocks), _rest(files)
    return Left(None if space is None else space * unit, number)


def _rest(words: list[str]) -> int | None:
    """What usage, soft and hard limit leave; 0 and words are no limit, * marks one that is over."""
    used, soft, hard = (_number(word) for word in words)
    limit = hard or soft
    return None if used is None or not limit else max(0, limit - used)


def _number(word: str) -> int | None:
    digits = word.strip("[]*")
    return int(digits) if re.fullmatch("[0-9]{1,30}", digits, re.ASCII) else None
