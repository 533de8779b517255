"""The folders that a run writes to: write access, space and quota, and whether nodes see them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from stat import S_ISDIR

from msgspec import Struct

from hpcrun.controller.context import Context
from hpcrun.ownership import is_open
from hpcrun.plan.job import Findings

# Below these a note: a run's own files are few, its checkpoints are not.
LITTLE_SPACE = 10**9  # bytes
FEW_FILES = 1000
# Some file systems are full a little before their last byte.
NEXT_TO_NONE = 10**6
# seconds; a quota server that is slow is not waited for.
PATIENCE = 2.0
# Each machine has its own of these.
_OWN_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
# /proc/mounts writes blanks in paths as octal numbers (proc(5)).
_OCTAL = re.compile(r"\\([0-7]{3})")
LOCAL_TYPES = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay"}
    | {"bcachefs", "jfs", "reiserfs", "ntfs", "ntfs3"}
)
MEMORY_TYPES = frozenset({"tmpfs", "ramfs"})


def answer_of(
    argv: Sequence[str], environ: Mapping[str, str], patience: float | None = None, text: str = ""
) -> tuple[int, str, str]:
    """Run a command that reads a text; return its exit code, its output, and why there is none.

    It runs in /: a folder of the project is none of what it imports.
    """
    patience = patience or PATIENCE
    try:
        process = subprocess.Popen(
            argv,
            env={**environ, "LC_ALL": "C"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
    except (OSError, ValueError) as error:
        return 1, "", (isinstance(error, OSError) and error.strerror) or str(error)
    try:
        out, _ = process.communicate(text.encode(), timeout=patience)
        return process.returncode, out.decode("utf-8", "replace"), ""
    except subprocess.TimeoutExpired:
        return 1, "", f"no answer within {patience:g} s"
    finally:
        if process.poll() is None:  # Ctrl-C may have come, too: what it started ends with it
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            for stream in filter(None, (process.stdin, process.stdout)):
                with contextlib.suppress(OSError):
                    stream.close()
            # What hangs in a dead file system cannot end: it is not waited for long.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.2)


# ---- file systems -------------------------------------------------------------------------------


class Mount(Struct, frozen=True):
    """A mounted file system: what is mounted (a device, SERVER:/export), where, its type."""

    source: str
    folder: str
    type: str
    options: str = ""


def read_mounts() -> list[Mount]:
    """List the file systems of this machine; none where /proc does not show them."""
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


# ---- quotas ------------------------------------------------------------------------------------


class Left(Struct, frozen=True):
    """What a quota leaves: bytes and files; None: no limit."""

    bytes: int | None
    files: int | None


def quota_argv(mount: Mount, user: int) -> list[str] | None:
    """Return the command that knows a user's quota there; None where none is known.

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
    """Parse the answer of quota_argv()'s command; None where it is not about this user here."""
    # Several rows are of filesets or storage pools: which of them counts is not known.
    rows = list(_quota_rows(mount, user, text.splitlines()))
    if len(rows) != 1:
        return None
    ((space, files, unit),) = rows
    left = _rest(space)
    return Left(None if left is None else left * unit, _rest(files))


def _quota_rows(
    mount: Mount, user: int, lines: Sequence[str]
) -> Iterator[tuple[list[str], list[str], int]]:
    """Yield usage, soft and hard limit of space and of files, and the unit of space in bytes."""
    if mount.type == "gpfs":
        # Fields by the names in the header; blocks are KiB.
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
        # Of Lustre a long name has a line of its own.
        is_lustre = mount.type == "lustre"
        name = (mount.folder if is_lustre else mount.source).rstrip("/")
        for line in [" ".join(lines)] if is_lustre else lines:
            words = line.split()
            if len(words) == 9 and words[0].rstrip("/") == name:
                yield words[1:4], words[5:8], 1024


def _rest(words: Sequence[str]) -> int | None:
    """Subtract usage from the hard or soft limit; 0 and text are no limit, * marks one exceeded."""
    digits = [word.strip("[]*") for word in words]
    used, soft, hard = (int(x) if re.fullmatch("[0-9]{1,30}", x) else None for x in digits)
    limit = hard or soft
    return None if used is None or not limit else max(0, limit - used)


# ---- folders -----------------------------------------------------------------------------------


class Place(Struct, frozen=True):
    """A folder of the profile's, ``key``, and the nearest to it that is there."""

    key: str
    path: Path
    there: Path
    device: int


def check_places(context: Context, nodes: int) -> Findings:
    """Check the folders of the runs and of the cache, which all ``nodes`` of the job must see."""
    found = Findings()
    mounts = read_mounts()
    every = (("runs_dir", context.runs_dir), ("cache_dir", context.cache_dir))
    places = [place for key, path in every if (place := _find(found, key, path)) is not None]
    refused: list[Place] = []
    for place in places:
        reason = _refusal(place.there)
        if reason:
            refused.append(place)
            _refuse(found, place, reason, "name a folder that you can write to")
    for place in places:
        first = next(each for each in places if each.device == place.device)
        if place is not first or place in refused:
            continue
        _measure(found, place, _room(place.there), "")
        mount = mount_of(os.path.realpath(place.there), mounts)
        argv = quota_argv(mount, os.getuid()) if mount is not None else None
        if mount is not None and argv is not None:
            search = context.environ.get("PATH", "") + ":/usr/lpp/mmfs/bin"
            _, answer, _ = answer_of(argv, {**context.environ, "PATH": search})
            left = parse_quota(mount, os.getuid(), answer)
            if left is not None:
                _measure(found, place, left, " of your quota")
    found.notes += [
        f"runs_dir {place.path}: others can write to it, and could put another run in the place of "
        f"one that waits, which your job would start: chmod +t {place.path}"
        for place in places
        if place.key == "runs_dir" and place.there == place.path and is_open(place.path)
    ]
    if nodes > 1 and context.cluster.name != "sandbox":
        found.notes += islice(_own_disks(places, mounts, nodes), 1)
    for problem in found.problems:
        problem.source = context.cluster_source  # the keys are the profile's, not the job's
    return found


def _find(found: Findings, key: str, path: Path) -> Place | None:
    for folder in (path, *path.parents):
        try:
            info = folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            found.refuse(key, f"{folder}: {error.strerror}")
            return None
        if S_ISDIR(info.st_mode):
            return Place(key, path, folder, info.st_dev)
        found.refuse(key, f"{folder}: not a folder")
        return None
    return None


def _refuse(found: Findings, place: Place, reason: str, fix: str) -> None:
    where = "" if place.there == place.path else f" (for {place.path})"
    message = f"{place.there}: {reason}{where}; {fix}"
    if place.key == "runs_dir":
        found.refuse(place.key, message)
    else:  # not every job compiles something
        found.notes.append(f"{place.key}: {message}")


def _measure(found: Findings, place: Place, left: Left, whose: str) -> None:
    space = "" if left.bytes is None else _size(left.bytes)
    for rest, few, nothing, some in (
        (left.bytes, LITTLE_SPACE, "no space is left", space),
        (left.files, FEW_FILES, "no more files fit", f"{left.files} files"),
    ):
        if rest == 0:
            _refuse(found, place, f"{nothing}{whose}", "free some space, or choose another folder")
        elif rest is not None and rest < few:
            found.notes.append(f"{place.key} {place.path}: {some} are left{whose}")


def _own_disks(places: Sequence[Place], mounts: Sequence[Mount], nodes: int) -> Iterator[str]:
    """Note folders that other machines will hardly see."""
    for place in places:
        real = os.path.realpath(place.there)
        mount = mount_of(real, mounts)
        kind = mount.type if mount is not None else ""
        own = any(real == folder or real.startswith(f"{folder}/") for folder in _OWN_FOLDERS)
        shared = bool(kind) and kind not in LOCAL_TYPES | MEMORY_TYPES
        if not shared and (own or kind in MEMORY_TYPES or not _exports()):
            yield (
                f"{place.key} {place.path}: on this machine's own disk ({kind or 'local'}), as it "
                f"seems; the {nodes} nodes must all see it at this path"
            )


def say_full(folder: Path) -> str:
    """Report a folder whose file system is full; "" where it is not, or nobody knows."""
    left = _room(folder)
    what = ""
    if left.files == 0:
        what = "no more files fit"
    if left.bytes is not None and left.bytes < NEXT_TO_NONE:
        what = f"{_size(left.bytes)} are left" if left.bytes else "no space is left"
    return f"disk: the file system of {folder} is full: {what}; make room there" if what else ""


def _room(folder: Path) -> Left:
    """Return what a folder's file system has left; with project quotas often the quota's rest."""
    try:
        info = os.statvfs(folder)
    except OSError:
        return Left(None, None)
    # Some network file systems report nothing, which is no sign of a full disk.
    space = info.f_bavail * info.f_frsize if info.f_blocks else None
    return Left(space, info.f_favail if info.f_files else None)


def _size(number: int) -> str:
    return f"{number // 10**6} MB" if number >= 10**6 else f"{number // 1000} KB"


def _exports() -> bool:
    """Return whether this machine exports its disks, as a small cluster's head node does."""
    files = [Path("/etc/exports")]
    with contextlib.suppress(OSError):
        files += Path("/etc/exports.d").glob("*.exports")
    for file in files:
        with contextlib.suppress(OSError):
            lines = file.read_text(errors="replace").splitlines()
            if any(line.strip() and not line.strip().startswith("#") for line in lines):
                return True
    return Path("/proc/fs/nfsd/exports").exists()


def _refusal(folder: Path) -> str:
    """Explain why nothing can be written to a folder; "" where it can.

    Mode bits do not decide (root on NFS is nobody, a disk may be read-only): so a file without a
    name is opened, which is gone when it is closed. Where the file system has none (NFS, Lustre),
    a folder is made and removed.
    """
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600))
        return ""
    except OSError as error:
        if error.errno in (*_FULL, *_REFUSED):
            return f"cannot be written to: {error.strerror or error}"
    probe = folder / f".hpcrun-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except FileExistsError:
        return ""
    except OSError as error:
        return f"cannot be written to: {error.strerror or error}"
    return ""
