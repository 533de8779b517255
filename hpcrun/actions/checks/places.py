"""The folders that a run writes to: write access, space and quota, and whether nodes see them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from msgspec import Struct

from hpcrun.actions.there import Spot, Unanswered, ask, own_places, there, want
from hpcrun.context import Context
from hpcrun.plan import Findings

# Below these a note: a run's own files are few, its checkpoints are not.
LITTLE_SPACE = 10**9  # bytes
FEW_FILES = 1000
# seconds; a quota server that is slow is not waited for.
PATIENCE = 2.0
# Each machine has its own of these.
_OWN_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run")
# Where the commands of IBM Storage Scale are.
_GPFS = ":/usr/lpp/mmfs/bin"
MOUNTS = ("read", "/proc/self/mounts")
_USER = ("run", "id", "-u")
_EXPORTED = "cat /etc/exports /etc/exports.d/*.exports 2>/dev/null; [ -e /proc/fs/nfsd/exports ]"
_EXPORTS = (("run", "bash", "-c", _EXPORTED),)
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
    """Run a command in /, away from the project: its exit code, its output, why there is none."""
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


def read_mounts(context: Context) -> list[Mount]:
    """List the file systems where Slurm is asked; none where /proc does not show them."""
    (answer,) = ask(context, [MOUNTS])
    return parse_mounts(answer.stdout)


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

    Options: quota(1) -w -p, lfs-quota(1) -q, mmlsquota -Y (IBM Storage Scale), beegfs-ctl --csv.
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
    """A folder of the profile's, ``key``, and what is there."""

    key: str
    path: Path
    spot: Spot


def want_places(context: Context) -> None:
    """Name what check_places() asks a far host, so that the first trip brings most of it."""
    want(context, [MOUNTS, _USER, *_EXPORTS])
    with contextlib.suppress(Unanswered):
        own_places(context)
    if context.cluster.host is not None:
        there(context)
        with contextlib.suppress(Unanswered):  # now it is known whose quota to ask for
            check_places(context, 1)


def check_places(context: Context, nodes: int) -> Findings:
    """Check the folders of runs and caches, which ``nodes`` must see. To be called by settle()."""
    found = Findings()
    mounts = read_mounts(context)
    places: list[Place] = []
    for key, (path, spot) in own_places(context).items():
        if spot.fault:
            found.refuse(key, f"{spot.at}: {spot.fault}")
        else:
            places.append(Place(key, path, spot))
    refused = [place for place in places if place.spot.refusal]
    for place in refused:
        reason = f"cannot be written to: {place.spot.refusal}"
        _refuse(found, place, reason, "name a folder that you can write to")
    for place in places:
        first = next(each for each in places if each.spot.device == place.spot.device)
        if place is not first or place in refused:
            continue
        _measure(found, place, Left(place.spot.bytes, place.spot.files), "")
        left = _quota(context, mount_of(place.spot.real, mounts))
        if left is not None:
            _measure(found, place, left, " of your quota")
    found.notes += [
        f"runs_dir {place.path}: others can write to it, and could put another run in the place of "
        f"one that waits, which your job would start: chmod +t {place.path}"
        for place in places
        if place.key == "runs_dir" and place.spot.at == place.path and place.spot.is_open
    ]
    if nodes > 1 and context.cluster.name != "sandbox":
        found.notes += islice(_own_disks(context, places, mounts, nodes), 1)
    for problem in found.problems:
        problem.source = context.cluster_source  # the keys are the profile's, not the job's
    return found


def _quota(context: Context, mount: Mount | None) -> Left | None:
    """Ask for the user's quota on a file system; None where there is none, or nobody knows it."""
    far = context.cluster.host is not None
    number = ask(context, [_USER])[0].stdout.strip() if far else ""
    user = int(number) if re.fullmatch("[0-9]{1,20}", number) else -1 if far else os.getuid()
    argv = quota_argv(mount, user) if mount is not None else None
    if mount is None or argv is None:
        return None
    if far:
        patient = f'PATH=$PATH{_GPFS} LC_ALL=C exec timeout {PATIENCE:g} "$@"'
        (answer,) = ask(context, [("run", "bash", "-c", patient, "bash", *argv)])
        return parse_quota(mount, user, answer.stdout)
    search = context.environ.get("PATH", "") + _GPFS
    _, text, _ = answer_of(argv, {**context.environ, "PATH": search})
    return parse_quota(mount, user, text)


def _refuse(found: Findings, place: Place, reason: str, fix: str) -> None:
    at = place.spot.at
    where = "" if at == place.path else f" (for {place.path})"
    message = f"{at}: {reason}{where}; {fix}"
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


def _own_disks(
    context: Context, places: Sequence[Place], mounts: Sequence[Mount], nodes: int
) -> Iterator[str]:
    """Note folders that other machines will hardly see."""
    for place in places:
        real = place.spot.real
        mount = mount_of(real, mounts)
        kind = mount.type if mount is not None else ""
        own = any(real == folder or real.startswith(f"{folder}/") for folder in _OWN_FOLDERS)
        shared = bool(kind) and kind not in LOCAL_TYPES | MEMORY_TYPES
        if not shared and (own or kind in MEMORY_TYPES or not _exports(context)):
            where = context.cluster.host or "this machine"
            yield (
                f"{place.key} {place.path}: on {where}'s own disk ({kind or 'local'}), as it "
                f"seems; the {nodes} nodes must all see it at this path"
            )


def _size(number: int) -> str:
    return f"{number // 10**6} MB" if number >= 10**6 else f"{number // 1000} KB"


def _exports(context: Context) -> bool:
    """Return whether the machine exports its disks, as a small cluster's head node does."""
    (answer,) = ask(context, _EXPORTS)
    lines = [line.strip() for line in answer.stdout.splitlines()]
    return answer.exit_code == 0 or any(line and not line.startswith("#") for line in lines)
