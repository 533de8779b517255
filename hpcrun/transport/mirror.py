"""The local mirror of a far folder of runs: what is known of it, what comes, what is sent.

What comes is hostile input: plain files of bounded sizes, in the runs that were asked for. Only the
end of a log may be here: then the file has a hole before it, so that offsets mean the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from hpcrun.errors import InputError, OutOfReach
from hpcrun.files import LONGEST, replacing
from hpcrun.transport import far

# A log's last bytes that a view has, where it needs no more.
TAIL = 1 << 19
# What a log has grown by since it was looked at comes, up to so many bytes; else its end.
GAP = 1 << 24
# Code that is sent, in bytes: more is data.
MOST_CODE = 200 * 10**6
_NAME = re.compile(r"(?!\.)[A-Za-z0-9._+-]{1,120}")
_RUN = re.compile(r"\d{8}-\d{6}-[A-Za-z0-9._+-]{1,80}")
_TREES = 5  # of how many copies of code there this side remembers the files
# In the cache folder of a run: its logs as they were there.
_INDEX = "cache/logs-there.json"


class Mirror:
    """A folder of runs here that follows one there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # ---- asking for what is new

    def request(self, runs: Sequence[str], *, names: bool) -> list[str]:
        """Write the lines that ask for what is new of runs, and for the ``names`` of all."""
        lines = [f"R {run}" for run in runs]
        if names:
            lines += ["N", *(f"H {name}" for name in self._there())]
        for run in runs:
            logs = self._index(run)
            for name, size, mtime in self._files(run):
                if "/logs/" not in f"/{name}":
                    lines.append(f"K {run}/{name} {size} {mtime}")
                elif name in logs:
                    inode, start = logs[name]
                    lines.append(f"K {run}/{name} {inode} {start} {size}")
        return lines

    def _there(self) -> list[str]:
        with contextlib.suppress(OSError):
            return [one.name for one in os.scandir(self.folder) if _RUN.fullmatch(one.name)]
        return []

    def _files(self, run: str) -> Iterator[tuple[str, int, int]]:
        top = self.folder / run
        for where, folders, names in os.walk(top):
            inner = Path(where).relative_to(top)
            folders[:] = [x for x in folders if inner.parts or x not in ("code", "cache")]
            for name in filter(_NAME.fullmatch, names):
                with contextlib.suppress(OSError):
                    info = Path(where, name).lstat()
                    if stat.S_ISREG(info.st_mode):
                        yield str(inner / name), info.st_size, int(info.st_mtime)

    def _index(self, run: str) -> dict[str, tuple[int, int]]:
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            text = (self.folder / run / _INDEX).read_text()
            return {str(k): (int(i), int(start)) for k, (i, start) in json.loads(text).items()}
        return {}

    # ---- taking what comes

    def receiver(self, runs: Sequence[str], *, names: bool, host: str) -> Receiver:
        """Return what takes the answer to a request."""
        return Receiver(self, runs, names=names, host=host)

    def keep_names(self, listed: set[str]) -> None:
        """Make the folders of runs that are there; those that are there no more go."""
        for name in self._there():
            if name not in listed and (self.folder / name / _INDEX).is_file():
                import shutil  # here: few runs go

                shutil.rmtree(self.folder / name, ignore_errors=True)
        for name in listed:
            (self.folder / name).mkdir(0o700, parents=True, exist_ok=True)

    def place(self, name: str) -> Path:
        """Make way for a file of a run: no link leads out of the mirror."""
        path = self.folder
        for part in name.split("/")[:-1]:
            path = path / part
            if path.is_symlink():
                path.unlink()
            path.mkdir(0o755, parents=True, exist_ok=True)
        return path / name.rpartition("/")[2]

    def take_file(self, name: str, data: IO[bytes], mode: int, mtime: int) -> None:
        """Take a whole file."""
        path = self.place(name)
        with replacing(path, mode & 0o700 or 0o600) as file:
            file.write(data.read())
        os.utime(path, (mtime, mtime))

    def open_log(
        self, name: str, inode: int, start: int, end: int, index: dict[str, tuple[int, int]]
    ) -> int:
        """Open a log that is written from an offset on; another file takes the place of an old."""
        path, inner = self.place(name), name.partition("/")[2]
        was = index.get(inner)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        is_same = was is not None and was[0] == inode and path.is_file() and not path.is_symlink()
        size = path.stat().st_size if is_same else 0
        if end < size:  # it was truncated
            is_same = False
        if not is_same:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        handle = os.open(path, flags, 0o600)
        first = start
        if is_same and was is not None and was[1] <= start <= size:
            first = was[1]  # it is continued
        elif is_same and start > size:
            os.ftruncate(handle, 0)  # what lay before is a hole now
        index[inner] = (inode, first)
        if os.fstat(handle).st_size < start:
            os.ftruncate(handle, start)
        os.lseek(handle, start, os.SEEK_SET)
        return handle

    def keep_index(self, run: str, logs: Mapping[str, tuple[int, int]]) -> None:
        """Remember a run's logs as they are there."""
        path = self.place(f"{run}/{_INDEX}")
        with replacing(path, 0o600) as file:
            file.write(json.dumps(logs).encode())

    # ---- what is sent

    def trees(self) -> dict[str, dict[str, str]]:
        """Return the copies of code that were sent: the files of each by its name there."""
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, dict[str, str]] = json.loads(self._trees_file.read_text())
            return found
        return {}

    def keep_tree(self, tree: str, files: Mapping[str, str]) -> None:
        """Remember a copy of code that is there."""
        known = self.trees()
        known.pop(tree, None)
        kept = dict([*known.items(), (tree, dict(files))][-_TREES:])
        self._trees_file.parent.mkdir(0o700, parents=True, exist_ok=True)
        with replacing(self._trees_file, 0o600) as file:
            file.write(json.dumps(kept).encode())

    @property
    def _trees_file(self) -> Path:
        return self.folder.parent / "code-there.json"


class Receiver:
    """Takes an answer, piece by piece, as it comes."""

    def __init__(self, mirror: Mirror, runs: Sequence[str], *, names: bool, host: str) -> None:
        self.mirror, self.host, self.runs, self.names = mirror, host, set(runs), names
        self.listed: set[str] = set()
        self.is_whole = False
        self._inflate: Callable[[bytes], bytes] | None = None
        self._held = bytearray()
        self._indexes = {run: mirror._index(run) for run in runs}
        self._parser = self._parse()
        self._wants = next(self._parser)

    def take(self, data: bytes) -> None:
        """Take a piece. Raises OutOfReach for what no such answer has."""
        if self._inflate is None and data:
            plain: Callable[[bytes], bytes] = bytes
            self._inflate = zlib.decompressobj(31).decompress if data[:1] == b"Z" else plain
            data = data[1:]
        if self._inflate is None:
            return
        try:
            for start in range(0, len(data), 1 << 14):  # what unfolds is bounded, too
                self._held += self._inflate(data[start : start + (1 << 14)])
                self._feed()
        except (zlib.error, ValueError, tarfile.TarError) as error:
            raise self._bad(str(error)) from error

    def _feed(self) -> None:
        while not self.is_whole:
            if self._wants < 0:
                end = self._held.find(b"\n")
                if end < 0:
                    if len(self._held) > 4096:
                        raise self._bad("a line without end")
                    return
                piece = bytes(self._held[:end])
                del self._held[: end + 1]
            else:
                if not self._held:
                    return
                piece = bytes(self._held[: self._wants])
                del self._held[: self._wants]
            try:
                self._wants = self._parser.send(piece)
            except StopIteration:
                self.is_whole = True

    def close(self) -> None:
        """Let go of a log that has not come whole, and remember what came."""
        self._parser.close()
        for run, logs in self._indexes.items():
            if (self.mirror.folder / run).is_dir():
                self.mirror.keep_index(run, logs)
        if self.is_whole and self.names:
            self.mirror.keep_names(self.listed)

    def _bad(self, what: str) -> OutOfReach:
        return OutOfReach(f"{self.host}: an answer that makes no sense: {ascii(what)[:80]}")

    def _parse(self) -> Generator[int, bytes, None]:
        """Say how many bytes are wanted, -1 for a line; fewer of them may come."""
        while True:
            kind, _, rest = (yield -1).decode("ascii").partition(" ")
            if kind == ".":
                return
            if kind == "D":
                if not self.names or not _RUN.fullmatch(rest) or len(self.listed) > 10**6:
                    raise self._bad(rest)
                self.listed.add(rest)
            elif kind == "F":
                yield from self._files(int(rest))
            elif kind == "L":
                yield from self._log(rest)
            else:
                raise self._bad(kind)

    def _files(self, size: int) -> Generator[int, bytes, None]:
        if not 0 <= size <= 16 * LONGEST:
            raise self._bad(f"{size} bytes of records")
        with tempfile.SpooledTemporaryFile(1 << 22) as spool:
            left = size
            while left:
                piece = yield min(left, 1 << 16)
                spool.write(piece)
                left -= len(piece)
            spool.seek(0)
            with (
                contextlib.suppress(tarfile.ReadError, EOFError),
                tarfile.open(fileobj=spool) as tar,
            ):
                for member in tar:
                    self._record(tar, member)

    def _record(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        if not member.isreg() or member.size > LONGEST or not self._is_mine(member.name):
            return
        data = tar.extractfile(member)
        if data is not None:
            content = data.read()
            if len(content) == member.size:  # else it has not come whole
                mtime = int(member.mtime)
                self.mirror.take_file(member.name, io.BytesIO(content), member.mode, mtime)

    def _is_mine(self, name: str) -> bool:
        run, *parts = name.split("/")
        is_asked = run in self.runs or (self.names and run in self.listed)
        is_plain = bool(parts) and len(parts) <= 5 and all(map(_NAME.fullmatch, parts))
        return is_asked and is_plain and parts[0] not in ("code", "cache")

    def _log(self, line: str) -> Generator[int, bytes, None]:
        name, *numbers = line.rsplit(" ", 4)
        inode, start, end, seconds = map(int, numbers)
        run, _, inner = name.partition("/")
        if not self._is_mine(name) or not inner.startswith("logs/") or not 0 <= start <= end:
            raise self._bad(name)
        handle = self.mirror.open_log(name, inode, start, end, self._indexes[run])
        try:
            left = end - start
            while left:
                piece = yield min(left, 1 << 16)
                os.write(handle, piece)
                left -= len(piece)
            os.ftruncate(handle, end)
        finally:
            os.close(handle)
            with contextlib.suppress(OSError):
                os.utime(self.mirror.folder / name, (seconds, seconds))


# ---- sending -----------------------------------------------------------------------------------


def code_files(code: Path) -> tuple[str, dict[str, str]]:
    """Name a copy of code by its content, with its files: mode and hash of each, or its target."""
    files: dict[str, str] = {}
    for where, folders, names in os.walk(code):
        links = [name for name in folders if Path(where, name).is_symlink()]
        for path in (Path(where, name) for name in [*names, *links]):
            inner = str(path.relative_to(code))
            if (target := _kept_link(path)) is not None:
                files[inner] = f"-> {target}"
                continue
            with path.open("rb") as file:
                digest = hashlib.sha256()
                while piece := file.read(1 << 20):
                    digest.update(piece)
            files[inner] = f"{path.stat().st_mode & 0o111:o} {digest.hexdigest()}"
    text = json.dumps(files, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40], files


def _kept_link(path: Path) -> str | None:
    """Return where a link leads that is sent as one; a file that is only here is sent itself."""
    if not path.is_symlink():
        return None
    target = path.readlink()
    return None if target.is_absolute() and path.is_file() else str(target)


def nearest(files: Mapping[str, str], trees: Mapping[str, Mapping[str, str]]) -> str:
    """Name the copy there that has most of some files; "" where none has any."""
    own = set(files.items())
    shared = {tree: len(own & set(known.items())) for tree, known in trees.items()}
    best = max(shared, key=lambda tree: shared[tree], default="")
    return best if best and shared[best] else ""


def check_size(code: Path, files: Iterable[str]) -> None:
    """Refuse to send more than code. Raises InputError naming the largest files."""
    sizes = {name: (code / name).stat().st_size for name in files}
    total = sum(sizes.values())
    if total > MOST_CODE:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:5]
        listed = ", ".join(f"{name} ({sizes[name] / 1e6:.0f} MB)" for name in largest)
        raise InputError(
            f"the project's code is {total / 1e6:.0f} MB, more than {MOST_CODE // 10**6} MB; "
            f"the largest files: {listed}",
            fix="put data into .gitignore, and bring it to the cluster by other means",
        )


class Stream:
    """Files on their way: a compressed tar, which is known to be whole by its last member."""

    def __init__(self) -> None:
        self._is_whole = False
        self.file = tempfile.SpooledTemporaryFile(1 << 24)  # noqa: SIM115 - closed with it
        self._tar = tarfile.open(  # noqa: SIM115
            fileobj=self.file,
            mode="w:gz",
            compresslevel=5,
            format=tarfile.GNU_FORMAT,
            errors="surrogateescape",
        )

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()
        self.file.close()

    def add(self, path: Path, name: str, *, is_file: bool = False) -> None:
        """Add a file or a folder with all that is in it; ``is_file``: what a link leads to."""
        info = self._tar.gettarinfo(str(path.resolve() if is_file else path), name)
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        if info.isreg():
            with path.open("rb") as file:
                # Several names of one file, which tar would take for links.
                info.type, info.linkname = tarfile.REGTYPE, ""
                info.size = os.fstat(file.fileno()).st_size
                self._tar.addfile(info, file)
            return
        self._tar.addfile(info)
        if info.isdir():
            for inner in sorted(path.iterdir()):
                self.add(inner, f"{name}/{inner.name}")

    def add_bytes(self, name: str, data: bytes) -> None:
        """Add a file with this content."""
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))

    def add_folder(self, name: str) -> None:
        """Add a folder with nothing in it yet."""
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        self._tar.addfile(info)

    def pieces(self) -> Iterator[bytes]:
        """Give the whole stream, in pieces; as often as it is asked for."""
        if not self._is_whole:
            self.add_bytes(far.WHOLE, b"")
            self._tar.close()
            self._is_whole = True
        self.file.seek(0)
        while piece := self.file.read(1 << 16):
            yield piece
