"""Check the directories that a run writes to: access, space, quota and visibility from nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpcrun.actions.cluster_host import ClusterHost, FolderKey, probe_of_folder
from hpcrun.context import Context
from hpcrun.plan import Findings
from hpcrun.remote import Answers, FolderState, Query, ReadFile, RunCommand, UserId

# Below these limits a note is shown: a run's own files are small, its checkpoints are not.
LITTLE_SPACE = 10**9  # bytes
FEW_FILES = 1000
# A slow quota server must not delay a submission.
QUOTA_TIMEOUT_S = 2.0
# These directories are local to each machine.
_OWN_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run")
# The location of the commands of IBM Storage Scale.
_WITH_GPFS_PATH = 'PATH=$PATH:/usr/lpp/mmfs/bin exec "$@"'
MOUNTS = ReadFile("/proc/self/mounts")
_EXPORTED = "cat /etc/exports /etc/exports.d/*.exports 2>/dev/null; [ -e /proc/fs/nfsd/exports ]"
EXPORTS = RunCommand(("bash", "-c", _EXPORTED))
# /proc/mounts encodes blanks in paths as octal numbers (proc(5)).
_OCTAL = re.compile(r"\\([0-7]{3})")
LOCAL_TYPES = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay"}
    | {"bcachefs", "jfs", "reiserfs", "ntfs", "ntfs3"}
)
MEMORY_TYPES = frozenset({"tmpfs", "ramfs"})


# ---- file systems -------------------------------------------------------------------------------


class Mount(Struct, frozen=True):
    """A mounted file system: its source (a device, SERVER:/export), mount point and type."""

    source: str
    folder: str
    type: str
    options: str = ""


def parse_mounts(text: str) -> list[Mount]:
    """Parse /proc/self/mounts.

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
    """Find the file system of a path without links: the innermost mount, and of these the last.

    File systems mounted by autofs have a line of their own.
    """
    found = None
    for mount in mounts:
        inside = path == mount.folder or path.startswith(mount.folder.rstrip("/") + "/")
        is_outer = found is not None and len(mount.folder) < len(found.folder)
        if inside and not is_outer and mount.type != "autofs":
            found = mount
    return found


# ---- quotas ------------------------------------------------------------------------------------


class Remainder(Struct, frozen=True):
    """The remainder of a quota in bytes and files; None means no limit."""

    bytes: int | None
    files: int | None


def quota_argv(mount: Mount, user: int) -> list[str] | None:
    """Return the command that prints a user's quota on a file system; None if there is none.

    Options: quota(1) -w -p, lfs-quota(1) -q, mmlsquota -Y (IBM Storage Scale), beegfs-ctl --csv.
    """
    if mount.type == "lustre":
        return ["lfs", "quota", "-q", "-u", str(user), mount.folder]
    if mount.type == "gpfs":
        return ["mmlsquota", "-Y", "-u", str(user), mount.source.removeprefix("/dev/")]
    if mount.type == "beegfs":
        return [
            "beegfs-ctl",
            "--getquota",
            "--csv",
            f"--mount={mount.folder}",
            "--uid",
            str(user),
        ]
    limited = re.search(r"(^|,)(usrquota|uquota|quota|usrjquota=[^,]+)(,|$)", mount.options)
    if mount.type in ("nfs", "nfs4") or (mount.type in LOCAL_TYPES and limited):
        return ["quota", "-w", "-p"]
    return None


def parse_quota(mount: Mount, user: int, text: str) -> Remainder | None:
    """Parse the output of quota_argv()'s command; None if it is about another user or mount."""
    # Several rows belong to filesets or storage pools, and it is unknown which of them applies.
    rows = list(_quota_rows(mount, user, text.splitlines()))
    if len(rows) != 1:
        return None
    ((space, files, unit),) = rows
    left = _remaining_quota(space)
    return Remainder(None if left is None else left * unit, _remaining_quota(files))


def _quota_rows(
    mount: Mount, user: int, lines: Sequence[str]
) -> Iterator[tuple[list[str], list[str], int]]:
    """Yield usage, soft and hard limit of space and of files, and the unit of space in bytes."""
    if mount.type == "gpfs":
        # The header names the fields; blocks are KiB.
        header: list[str] = []
        device = mount.source.rpartition("/")[2]
        for line in lines:
            fields = line.split(":")
            if "HEADER" in fields:
                header = [name.lower() for name in fields]
                continue
            row = dict(zip(header, fields, strict=False))
            if row.get("quotatype") == "USR" and row.get("filesystemname") == device:
                blocks = [row.get(f"block{name}", "") for name in ("usage", "quota", "limit")]
                files = [row.get(f"files{name}", "") for name in ("usage", "quota", "limit")]
                yield blocks, files, 1024
    elif mount.type == "beegfs":  # name, id, bytes, limit, files, limit
        for line in lines:
            parts = [part.strip() for part in line.split(",")]
            if len(parts) == 6 and parts[1] == str(user):
                yield [parts[2], "", parts[3]], [parts[4], "", parts[5]], 1
    else:
        # quota -w -p and lfs quota -q: name, KiB, quota, limit, grace, files, quota, limit, grace.
        # lfs prints a long name in a line of its own.
        is_lustre = mount.type == "lustre"
        name = (mount.folder if is_lustre else mount.source).rstrip("/")
        for line in [" ".join(lines)] if is_lustre else lines:
            words = line.split()
            if len(words) == 9 and words[0].rstrip("/") == name:
                yield words[1:4], words[5:8], 1024


def _remaining_quota(words: Sequence[str]) -> int | None:
    """Subtract the usage from the hard or soft limit; 0 and text mean no limit, * one exceeded."""
    digits = [word.strip("[]*") for word in words]
    used, soft, hard = (int(x) if re.fullmatch("[0-9]{1,30}", x) else None for x in digits)
    limit = hard or soft
    return None if used is None or not limit else max(0, limit - used)


# ---- folders -----------------------------------------------------------------------------------


class ProfileDirectory(Struct, frozen=True):
    """A directory of the profile, its ``key``, and its state on the cluster's host."""

    key: FolderKey
    path: Path
    state: FolderState


KEYS: tuple[FolderKey, ...] = ("runs_dir", "cache_dir")


def place_queries(context: Context) -> list[Query[Any]]:
    """Return the queries that check_places() needs for any cluster."""
    return [MOUNTS, UserId(), *(probe_of_folder(context, key) for key in KEYS)]


def file_system_queries(context: Context, host: ClusterHost, nodes: int) -> list[Query[Any]]:
    """Return the queries about the file systems that place_queries() found."""
    mounts = parse_mounts(host.answers[MOUNTS])
    states = [host.answers[probe_of_folder(context, key)] for key in KEYS]
    queries: list[Query[Any]] = []
    for state in states:
        query = _quota_query(mount_of(state.real, mounts), host.answers)
        queries += [query] if query is not None else []
    return queries + ([EXPORTS] if _must_be_shared(context, nodes) else [])


def check_places(context: Context, host: ClusterHost, nodes: int) -> Findings:
    """Check the directories of runs and caches, which all ``nodes`` of a job must see.

    ``host`` has run place_queries() and file_system_queries().
    """
    found = Findings()
    answers, login = host.answers, host.login
    mounts = parse_mounts(answers[MOUNTS])
    paths = {"runs_dir": login.runs_dir, "cache_dir": login.cache_dir}
    places: list[ProfileDirectory] = []
    for key in KEYS:
        state = answers[probe_of_folder(context, key)]
        if state.fault:
            found.refuse(key, f"{state.at}: {state.fault}")
        else:
            places.append(ProfileDirectory(key, paths[key], state))
    refused = [place for place in places if place.state.refusal]
    for place in refused:
        reason = f"cannot be written to: {place.state.refusal}"
        _refuse(found, place, reason, "choose a folder that you can write to")
    for place in places:
        first = next(each for each in places if each.state.device == place.state.device)
        if place is not first or place in refused:
            continue
        _measure(found, place, Remainder(place.state.bytes, place.state.files), "")
        left = _quota(mount_of(place.state.real, mounts), answers)
        if left is not None:
            _measure(found, place, left, " of your quota")
    found.notes += [
        f"runs_dir {place.path}: others can write to it, and could put another run in the place of "
        f"one that waits, which your job would start: chmod +t {place.path}"
        for place in places
        if place.key == "runs_dir" and place.state.at == place.path and place.state.is_open
    ]
    if _must_be_shared(context, nodes):
        found.notes += islice(_unshared_notes(context, places, mounts, answers, nodes), 1)
    for problem in found.problems:
        problem.source = context.cluster_source  # the keys are the profile's, not the job's
    return found


def _must_be_shared(context: Context, nodes: int) -> bool:
    return nodes > 1 and context.cluster.name != "sandbox"


def _quota_query(mount: Mount | None, answers: Answers) -> RunCommand | None:
    """Return the query for the user's quota on a file system; None if it has no quotas."""
    user = answers[UserId()]
    argv = quota_argv(mount, -1 if user is None else user) if mount is not None else None
    if argv is None:
        return None
    argv = ["bash", "-c", _WITH_GPFS_PATH, "bash", *argv]
    return RunCommand(tuple(argv), timeout=QUOTA_TIMEOUT_S, env=(("LC_ALL", "C"),))


def _quota(mount: Mount | None, answers: Answers) -> Remainder | None:
    """Return the remainder of the user's quota on a file system; None if the quota is unknown."""
    query, user = _quota_query(mount, answers), answers[UserId()]
    if mount is None or query is None:
        return None
    return parse_quota(mount, -1 if user is None else user, answers[query].stdout)


def _refuse(found: Findings, place: ProfileDirectory, reason: str, fix: str) -> None:
    at = place.state.at
    where = "" if at == place.path else f" (for {place.path})"
    message = f"{at}: {reason}{where}; {fix}"
    if place.key == "runs_dir":
        found.refuse(place.key, message)
    else:  # not every job compiles something
        found.notes.append(f"{place.key}: {message}")


def _measure(found: Findings, place: ProfileDirectory, left: Remainder, whose: str) -> None:
    space = "" if left.bytes is None else _size(left.bytes)
    for rest, few, nothing, some in (
        (left.bytes, LITTLE_SPACE, "no space is left", space),
        (left.files, FEW_FILES, "no inodes are left", f"{left.files} files"),
    ):
        if rest == 0:
            _refuse(found, place, f"{nothing}{whose}", "free some space, or choose another folder")
        elif rest is not None and rest < few:
            found.notes.append(f"{place.key} {place.path}: {some} are left{whose}")


def _unshared_notes(
    context: Context,
    places: Sequence[ProfileDirectory],
    mounts: Sequence[Mount],
    answers: Answers,
    nodes: int,
) -> Iterator[str]:
    """Yield notes on directories that other machines probably do not see."""
    for place in places:
        real = place.state.real
        mount = mount_of(real, mounts)
        kind = mount.type if mount is not None else ""
        own = any(real == folder or real.startswith(f"{folder}/") for folder in _OWN_FOLDERS)
        shared = bool(kind) and kind not in LOCAL_TYPES | MEMORY_TYPES
        if not shared and (own or kind in MEMORY_TYPES or not _exports_disks(answers)):
            where = context.cluster.host or "this machine"
            yield (
                f"{place.key} {place.path}: on {where}'s own disk ({kind or 'local'}), "
                f"apparently; all {nodes} nodes must see it at this path"
            )


def _size(number: int) -> str:
    return f"{number // 10**6} MB" if number >= 10**6 else f"{number // 1000} KB"


def _exports_disks(answers: Answers) -> bool:
    """Return True if the host exports its disks, like a small cluster's head node."""
    answer = answers[EXPORTS]
    lines = [line.strip() for line in answer.stdout.splitlines()]
    return answer.exit_code == 0 or any(line and not line.startswith("#") for line in lines)
