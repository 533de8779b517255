"""The folders that a run writes to: write access, free room, and whether nodes see them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from stat import S_ISDIR

from msgspec import Struct

from hpcrun.controller.checks.question import Question
from hpcrun.controller.checks.quota import Left, parse_quota, quota_argv
from hpcrun.controller.context import Context
from hpcrun.controller.mounts import LOCAL_TYPES, MEMORY_TYPES, Mount, mount_of, read_mounts
from hpcrun.errors import Problem

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


class Place(Struct, frozen=True):
    """A folder of the profile's, ``key``, and the nearest to it that is there."""

    key: str
    path: Path
    there: Path
    device: int


class Places:
    """The folders of the runs and of the cache, looked at; slow answers are awaited last."""

    def __init__(self, context: Context) -> None:
        """Find the folders, and ask for the quota where a command knows it."""
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self._mounts = read_mounts()
        self._asked: list[tuple[Place, Mount, Question]] = []
        self._places: list[Place] = []
        self._told: list[Place] = []
        for key, path in (("runs_dir", context.runs_dir), ("cache_dir", context.cache_dir)):
            place = self._find(key, path)
            if place is not None:
                self._places.append(place)
        self._user = os.getuid()
        for place in self._one_each():
            mount = mount_of(os.path.realpath(place.there), self._mounts)
            argv = quota_argv(mount, self._user) if mount is not None else None
            if mount is not None and argv is not None:
                search = context.environ.get("PATH", "") + ":/usr/lpp/mmfs/bin"
                question = Question(argv, {**context.environ, "PATH": search})
                self._asked.append((place, mount, question))

    def look(self, nodes: int, *, sandbox: bool) -> None:
        """Look at all of them; ``nodes`` is how many nodes must see them."""
        for place in self._places:
            said = _refusal(place.there)
            if said:
                self._told.append(place)
                self._refuse(place, said, "name a folder that you can write")
        for place in self._one_each():
            self._measure(place, _room(place.there), "")
        if nodes > 1 and not sandbox:
            self._look_for_nodes(nodes)

    def take_answers(self) -> None:
        """Read what the quota commands said, if they did so in time."""
        for place, mount, question in self._asked:
            answer = question.answer(PATIENCE)
            left = parse_quota(mount, self._user, answer[1]) if answer else None
            if left is not None:
                self._measure(place, left, " of your quota")

    def drop(self) -> None:
        """Ask no more."""
        for _, _, question in self._asked:
            question.drop()

    def _find(self, key: str, path: Path) -> Place | None:
        for folder in (path, *path.parents):
            try:
                info = folder.stat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                self.problems.append(Problem("", None, key, f"{folder}: {error.strerror}"))
                return None
            if not S_ISDIR(info.st_mode):
                self.problems.append(Problem("", None, key, f"{folder}: not a folder"))
                return None
            return Place(key, path, folder, info.st_dev)
        return None

    def _one_each(self) -> list[Place]:
        """One place for each file system, the runs' first."""
        found: dict[int, Place] = {}
        for place in self._places:
            found.setdefault(place.device, place)
        return list(found.values())

    def _refuse(self, place: Place, said: str, fix: str) -> None:
        where = "" if place.there == place.path else f" (for {place.path})"
        message = f"{place.there}: {said}{where}; {fix}"
        if place.key == "runs_dir":
            self.problems.append(Problem("", None, place.key, message))
        else:  # not every job compiles something
            self.notes.append(f"{place.key}: {message}")

    def _measure(self, place: Place, left: Left, whose: str) -> None:
        measures: tuple[tuple[int | None, int, str, Callable[[int], str]], ...] = (
            (left.bytes, LITTLE_SPACE, "no space is left", lambda n: f"{_size(n)} are left"),
            (left.files, FEW_FILES, "no more files fit", lambda n: f"{n} files are left"),
        )
        if place in self._told:
            return
        for rest, few, nothing, some in measures:
            if rest == 0:
                self._refuse(place, f"{nothing}{whose}", "make room, or take another folder")
            elif rest is not None and rest < few:
                self.notes.append(f"{place.key} {place.path}: {some(rest)}{whose}")

    def _look_for_nodes(self, nodes: int) -> None:
        """Tell of a folder that other machines will hardly see."""
        for place in self._places:
            real = os.path.realpath(place.there)
            mount = mount_of(real, self._mounts)
            kind = mount.type if mount is not None else ""
            own = any(real == folder or real.startswith(f"{folder}/") for folder in _OWN_FOLDERS)
            shared = bool(kind) and kind not in LOCAL_TYPES | MEMORY_TYPES
            if shared or not (own or kind in MEMORY_TYPES or not _exports()):
                continue
            self.notes.append(
                f"{place.key} {place.path}: on this machine's own disk ({kind or 'local'}), as it "
                f"seems; the {nodes} nodes must all see it at this path"
            )
            return


def say_full(folder: Path) -> str:
    """Say that nothing more can be written to a folder now; "" where it can, or nobody knows."""
    left = _room(folder)
    what = ""
    if left.files == 0:
        what = "no more files fit"
    if left.bytes is not None and left.bytes < NEXT_TO_NONE:
        what = f"{_size(left.bytes)} are left" if left.bytes else "no space is left"
    return f"disk: the file system of {folder} is full: {what}; make room there" if what else ""


def _room(folder: Path) -> Left:
    """What the file system of a folder has left; with project quotas that is often the quota's."""
    try:
        info = os.statvfs(folder)
    except OSError:
        return Left(None, None)
    # Some network file systems tell nothing, which is no sign of a full disk.
    space = info.f_bavail * info.f_frsize if info.f_blocks else None
    return Left(space, info.f_favail if info.f_files else None)


def _size(number: int) -> str:
    return f"{number // 10**6} MB" if number >= 10**6 else f"{number // 1000} KB"


def _exports() -> bool:
    """Tell whether this machine serves its disks to others, as a small cluster's head node does."""
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
    """Say why nothing can be written to a folder; "" where it can.

    What mode bits say is not what counts (root on NFS is nobody, a disk may be read-only): so a
    file without a name is opened, which is gone when it is closed. Where the file system has none
    (NFS, Lustre), a folder is made and taken away.
    """
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600))
        return ""
    except OSError as error:
        said = error.strerror or str(error)
        if error.errno in (*_FULL, *_REFUSED):
            return f"cannot be written to: {said}"
    probe = folder / f".hpcrun-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except FileExistsError:
        return ""
    except OSError as error:
        return f"cannot be written to: {error.strerror or error}"
    return ""
