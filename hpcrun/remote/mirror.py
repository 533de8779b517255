"""The local mirror of the cluster's folder of runs: its state, received changes and uploads.

Received data is untrusted: only plain files of bounded size, in runs that were requested, are
accepted. The mirror may hold only the end of a log; the file then starts with a hole, so that
offsets are the same on both machines.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.files import MAX_FILE_BYTES, open_received_tar, replace_atomically
from hpcrun.remote import far
from hpcrun.remote.transport import NO_SUCH_FILE

# How much of the end of a log is fetched where the whole log is not needed.
TAIL = 1 << 19
# Growth of a log since the last fetch up to which all new bytes are fetched; else only its end.
GAP = 1 << 24
# This many known bytes of a log are sent again before the new ones, to detect a replaced file.
OVERLAP = 64
# Limit for uploaded code; a larger project probably contains data.
MOST_CODE = 200 * 10**6
_NAME = re.compile(r"(?!\.)[A-Za-z0-9._+-]{1,120}")
_RECORD = re.compile(r"(?!\.).+\.(json|yaml|sh|sbatch)")  # in the run's folder itself
# Files of a run that grow, of which only new bytes are fetched.
_LOG = re.compile(r"(roles/[^/]+/)?(logs/.|usage/[0-9]+/node-[0-9]+$)")
_RUN = re.compile(r"\d{8}-\d{6}-[A-Za-z0-9._+-]{1,80}")
# Parts of a run's folder that only this machine writes. The channels of notify.json may be
# commands, which the cluster must not choose.
_NEVER_RECEIVED = {"code", "cache", "notify.json", "notify.json.part", "secrets.env"}
_SECRET_MARKS = "secret_marks.json"
_DEPTH = 6  # of the files of a run: roles/ROLE/attempts/N/failures/RECORD
_TREES = 5  # number of copies of code on the cluster whose file lists are remembered here
# The folder of copies of other jobs' outputs, and how long a copy is kept after its last change.
_OUTPUTS, _OUTPUTS_KEPT_S = "files", 7 * 86400
# A record that every submitted run has, and the age after which an upload cannot be in progress.
_SUBMITTED, _SENT_AFTER_S = "submitted.json", 86400.0
# In the cache folder of a run: inode and first mirrored byte of each of its logs.
_INDEX = "cache/logs-there.json"


class Mirror:
    """A local folder of runs that follows the one on the cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # ---- requests

    def build_script(
        self,
        runs_dir: str,
        runs: Iterable[str],
        *,
        names: bool = False,
        whole: bool = False,
        pause: str = "",
    ) -> str:
        """Return the script that fetches the changes of runs.

        Args:
            names: Also fetch the names of all runs.
            whole: Fetch logs from their beginning.
            pause: Repeat the request at this interval in seconds; "" sends one answer.
        """
        script = far.build_preamble(runs_dir, request=self._build_request(runs, names=names))
        numbers = f"tail={TAIL} most={GAP} whole={int(whole)} overlap={OVERLAP}"
        numbers += f" largest={MAX_FILE_BYTES} pause={pause}"
        return f"{script}{numbers}\n{far.REFRESH}"

    def is_whole(self, runs: Iterable[str]) -> bool:
        """Return True if the mirror has every log of these runs from its beginning."""
        return not any(start for run in runs for _, start in self.read_index(run).values())

    def _build_request(self, runs: Iterable[str], *, names: bool) -> list[str]:
        lines = [f"R {run}" for run in runs]
        if names:
            lines += ["N", *(f"H {name}" for name in self._list_runs())]
        for run in runs:
            logs = self.read_index(run)
            for name, size, mtime in self._list_files(run):
                if not _LOG.match(name):
                    lines.append(f"K {run}/{name} {size} {mtime}")
                elif name in logs:
                    inode, start = logs[name]
                    lines.append(f"K {run}/{name} {inode} {start} {size}")
        return lines

    def _list_runs(self) -> list[str]:
        """List the runs in the mirror; remove corrupt ones, so that they are fetched again."""
        found: list[str] = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as places:
            for one in places:
                if not _RUN.fullmatch(one.name):
                    continue
                if not one.is_dir(follow_symlinks=False):
                    Path(one).unlink()
                elif _has_folder_for_record(one.path):
                    shutil.rmtree(one)
                else:
                    found.append(one.name)
        return found

    def _list_files(self, run: str) -> Iterator[tuple[str, int, int]]:
        top = self.folder / run
        for where, folders, names in os.walk(top):
            inner = Path(where).relative_to(top)
            folders[:] = [x for x in folders if inner.parts or x not in ("code", "cache")]
            for name in filter(_NAME.fullmatch, names):
                with contextlib.suppress(OSError):
                    info = Path(where, name).lstat()
                    if stat.S_ISREG(info.st_mode):
                        yield str(inner / name), info.st_size, int(info.st_mtime)

    def read_index(self, run: str) -> dict[str, tuple[int, int]]:
        """Return inode on the cluster and first mirrored byte of each log of a run."""
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            text = (self.folder / run / _INDEX).read_text()
            return {str(k): (int(i), int(start)) for k, (i, start) in json.loads(text).items()}
        return {}

    # ---- received data

    def keep_names(self, listed: set[str]) -> None:
        """Create the folders of the listed runs, and remove those of runs that no longer exist."""
        self.remove_gone(name for name in self._list_runs() if name not in listed)
        for name in listed:
            (self.folder / name).mkdir(0o700, parents=True, exist_ok=True)

    def remove_gone(self, names: Iterable[str]) -> None:
        """Remove runs that no longer exist on the cluster; keep runs that are being uploaded."""
        for name in names:
            folder = self.folder / name
            was_there = (folder / _INDEX).is_file() or (folder / _SUBMITTED).is_file()
            with contextlib.suppress(OSError):
                if was_there or folder.stat().st_mtime < time.time() - _SENT_AFTER_S:
                    shutil.rmtree(folder, ignore_errors=True)

    def prepare_path(self, name: str) -> Path:
        """Return the path for a file of a run; remove links and wrong file types on the way."""
        path = self.folder
        for part in name.split("/")[:-1]:
            path = path / part
            if path.is_symlink() or path.is_file():
                path.unlink()
            path.mkdir(0o755, parents=True, exist_ok=True)
        path = path / name.rpartition("/")[2]
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        return path

    def take_file(self, name: str, data: IO[bytes], mode: int, mtime: int) -> None:
        """Replace a file by received content."""
        path = self.prepare_path(name)
        with replace_atomically(path, mode & 0o700 or 0o600) as file:
            file.write(data.read())
        os.utime(path, (mtime, mtime))

    def open_log(
        self, name: str, inode: int, start: int, index: dict[str, tuple[int, int]], *, new: bool
    ) -> int:
        """Open a log for writing from an offset.

        Args:
            new: Replace the old file, unless another hpcrun process has just replaced it: its
                readers would read the content twice.

        Raises:
            MirrorMismatch: The log in the mirror has changed.
        """
        path, (run, _, inner) = self.prepare_path(name), name.partition("/")
        if new and index.get(inner, (0, 0))[0] != inode:
            index |= self.read_index(run)
            new = index.get(inner, (0, 0))[0] != inode
        if new:
            path.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(path, flags, 0o600)
        if new:
            os.ftruncate(handle, start)  # the bytes before the start are a hole
            index[inner] = (inode, start)
            self.keep_index(run, index)
        elif inner not in index or os.fstat(handle).st_size < start:
            os.close(handle)
            raise MirrorMismatch(f"{path} was changed on this machine")
        os.lseek(handle, start, os.SEEK_SET)
        return handle

    def not_written(self, error: OSError) -> HpcrunError:
        """Return the error for received data that cannot be written to disk."""
        where = error.filename or self.folder
        return HpcrunError(
            f"{where}: {error.strerror or error}: the copies of the cluster's runs are kept there",
            fix=f"free some space, or remove {self.folder}, which hpcrun fetches again; "
            "XDG_STATE_HOME selects another folder",
        )

    def keep_index(self, run: str, logs: Mapping[str, tuple[int, int]]) -> None:
        """Save inode and first mirrored byte of a run's logs."""
        path = self.prepare_path(f"{run}/{_INDEX}")
        with replace_atomically(path, 0o600) as file:
            file.write(json.dumps(logs).encode())

    # ---- uploads

    def list_trees(self) -> dict[str, dict[str, str]]:
        """Return the copies of code that were uploaded, each with its files, by the copy's name."""
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            known = json.loads(self._trees_file.read_text()).items()
            return {str(tree): {str(k): str(v) for k, v in files.items()} for tree, files in known}
        return {}

    def keep_tree(self, tree: str, files: Mapping[str, str]) -> None:
        """Save the file list of a copy of code that exists on the cluster."""
        known = self.list_trees()
        known.pop(tree, None)
        kept = dict([*known.items(), (tree, dict(files))][-_TREES:])
        top = Mirror(self.folder.parent)
        with replace_atomically(top.prepare_path(self._trees_file.name), 0o600) as file:
            file.write(json.dumps(kept).encode())

    @property
    def _trees_file(self) -> Path:
        return self.folder.parent / "code-there.json"


class Outputs:
    """Copies of output files of jobs that hpcrun did not submit, by their paths on the cluster."""

    def __init__(self, folder: Path) -> None:
        """Set the folder of the copies, which is next to the mirror of the runs."""
        self.mirror = Mirror(folder)

    def copy_path(self, path: str) -> Path:
        """Return the path of the copy of a file."""
        return self.mirror.folder / _OUTPUTS / self._copy_name(path)

    def build_script(self, paths: Sequence[str], *, whole: bool) -> str:
        """Return the script that fetches the changes of files."""
        index, known = self.mirror.read_index(_OUTPUTS), []
        for path in paths:
            inode, start = index.get(self._copy_name(path), (0, 0))
            with contextlib.suppress(OSError):
                size = self.copy_path(path).lstat().st_size
                known.append(f"{inode} {start} {size}")
                continue
            known.append("0 0 0")
        names = [f"{_OUTPUTS}/{self._copy_name(path)}" for path in paths]
        numbers = f"tail={TAIL} most={GAP} whole={int(whole)} overlap={OVERLAP}\n"
        return far.build_preamble("/", paths=paths, names=names, known=known) + numbers + far.COPY

    def build_receiver(self, host: str, *, whole: bool) -> Receiver:
        """Return the receiver of the answer."""
        return Receiver(self.mirror, [_OUTPUTS], host=host, whole=whole)

    def remove_unreadable(self, paths: Sequence[str], stderr: str) -> dict[str, str]:
        """Remove copies of unreadable files and old copies; return the reasons by path."""
        why = {"gone": NO_SUCH_FILE, "closed": "permission denied on the cluster"}
        found = re.findall(r"(?m)^(gone|closed) ([0-9]{1,6})$", stderr)
        faults = {paths[int(i)]: why[word] for word, i in found if int(i) < len(paths)}
        for path in faults:
            self.copy_path(path).unlink(missing_ok=True)
        current = {self.copy_path(path) for path in paths}
        oldest = time.time() - _OUTPUTS_KEPT_S
        with contextlib.suppress(OSError):
            for copy in (self.mirror.folder / _OUTPUTS / "logs").iterdir():
                if copy not in current and copy.lstat().st_ctime < oldest:
                    copy.unlink()
        return faults

    @staticmethod
    def _copy_name(path: str) -> str:
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        return f"logs/{digest}-{re.sub(r'[^A-Za-z0-9._+-]', '-', Path(path).name)[-80:]}"


def _has_folder_for_record(run: str) -> bool:
    with os.scandir(run) as inner:
        return any(_RECORD.fullmatch(one.name) and one.is_dir() for one in inner)


class MirrorMismatch(OutOfReach):
    """Received data does not continue the local copy: the request must be repeated."""


class Receiver:
    """Receives answers piece by piece; ``rounds`` counts the complete ones."""

    def __init__(
        self,
        mirror: Mirror,
        runs: Iterable[str],
        *,
        host: str,
        names: bool = False,
        whole: bool = False,
    ) -> None:
        self.mirror, self.host, self.runs, self.names = mirror, host, set(runs), names
        self.most = 1 << 62 if whole else GAP + OVERLAP  # limit for the bytes of one log
        self.listed: set[str] = set()
        self.gone: set[str] = set()  # requested runs that do not exist
        self.rounds = 0
        self._inflate: Any = None  # decompressor of a compressed answer
        self._held = bytearray()
        self._indexes = {run: mirror.read_index(run) for run in self.runs}
        self._parser: Generator[int, bytes, None] | None = None
        self._wants = -1
        self._fault: OutOfReach | None = None

    def receive(self, data: bytes) -> None:
        """Process a piece of an answer. Raises OutOfReach for a malformed one."""
        # The script runs again if it seems to have failed; the state of the parser is lost.
        if self._fault is not None:
            raise self._fault
        try:
            self._receive_answers(data)
        except OutOfReach as error:
            self._fault = error
            raise

    def _receive_answers(self, data: bytes) -> None:
        try:
            while data:
                if self._parser is None:
                    if data[:1] not in (b"Z", b"="):
                        raise self._malformed_error(repr(data[:20]))
                    self._inflate = zlib.decompressobj(31) if data[:1] == b"Z" else None
                    self._parser = self._parse_answer()
                    self._wants, data = next(self._parser), data[1:]
                # Decompress in small pieces, so that the decompressed size is bounded, too.
                piece, data = data[: 1 << 14], data[1 << 14 :]
                if self._inflate is not None:
                    plain = self._inflate.decompress(piece)
                    is_over = self._parse_pieces(plain) and self._inflate.eof
                    data = self._inflate.unused_data + data
                    if self._inflate.eof and (not is_over or self._held):
                        raise self._malformed_error("not of the announced length")
                else:
                    is_over = self._parse_pieces(piece)
                    if is_over:
                        data, self._held = bytes(self._held) + data, bytearray()
                if is_over:
                    self._parser = None
                    self.rounds += 1
        except (zlib.error, ValueError, OverflowError, RecursionError, tarfile.TarError) as error:
            raise self._malformed_error(str(error)) from error

    def _parse_pieces(self, data: bytes) -> bool:
        """Pass received data to the parser; return True at the end of the answer."""
        assert self._parser is not None
        self._held += data
        while self._wants:
            if self._wants < 0:
                end = self._held.find(b"\n")
                if end < 0:
                    if len(self._held) > 4096:
                        raise self._malformed_error("an unterminated line")
                    return False
                piece = bytes(self._held[:end])
                del self._held[: end + 1]
            else:
                if not self._held:
                    return False
                piece = bytes(self._held[: self._wants])
                del self._held[: self._wants]
            self._wants = self._parser.send(piece)
        return True

    def close(self) -> None:
        """Close an incomplete log, and save the state of the received files."""
        if self._parser is not None:
            self._parser.close()
        for run, logs in self._indexes.items():
            if (self.mirror.folder / run).is_dir() and run not in self.gone:
                self.mirror.keep_index(run, logs)
        if self.rounds and self.names:
            self.mirror.keep_names(self.listed)

    def _malformed_error(self, what: str) -> OutOfReach:
        return OutOfReach(f"{self.host}: malformed response: {ascii(what)[:80]}")

    def _parse_answer(self) -> Generator[int, bytes, None]:
        """Parse an answer.

        Yields the number of bytes wanted next, -1 for a line, 0 at the end; it may be sent fewer
        bytes.
        """
        while True:
            kind, _, rest = (yield -1).decode("ascii").partition(" ")
            if kind == ".":
                yield 0
            if kind == "G":
                if rest not in self.runs:
                    raise self._malformed_error(rest)
                self.gone.add(rest)
            elif kind == "D":
                if not self.names or not _RUN.fullmatch(rest) or len(self.listed) > 10**6:
                    raise self._malformed_error(rest)
                self.listed.add(rest)
            elif kind == "F":
                yield from self._receive_records(int(rest))
            elif kind in ("L", "B"):
                yield from self._receive_log(rest, new=kind == "B")
            else:
                raise self._malformed_error(kind)

    def _receive_records(self, size: int) -> Generator[int, bytes, None]:
        if not 0 <= size <= 16 * MAX_FILE_BYTES:
            raise self._malformed_error(f"{size} bytes of records")
        with tempfile.SpooledTemporaryFile(1 << 22) as spool:
            left = size
            while left:
                piece = yield min(left, 1 << 16)
                spool.write(piece)
                left -= len(piece)
            with (
                contextlib.suppress(tarfile.ReadError, EOFError),
                open_received_tar(spool) as tar,
            ):
                for member in tar:
                    self._write_record(tar, member)

    def _write_record(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        is_file = member.isreg() and not member.issparse() and member.size <= MAX_FILE_BYTES
        if not is_file or not self._is_mine(member.name):
            return
        data = tar.extractfile(member)
        if data is not None:
            content = data.read()
            if len(content) == member.size:  # else the file is truncated
                mtime = int(member.mtime)
                self.mirror.take_file(member.name, io.BytesIO(content), member.mode, mtime)

    def _is_mine(self, name: str) -> bool:
        run, *parts = name.split("/")
        is_asked = run in self.runs or (self.names and run in self.listed)
        is_plain = bool(parts) and len(parts) <= _DEPTH and all(map(_NAME.fullmatch, parts))
        if not is_asked or not is_plain:
            return False
        # Some file systems do not distinguish upper and lower case.
        first = parts[0].lower()
        if first == _SECRET_MARKS:  # another machine may have submitted the run
            return not os.path.lexists(self.mirror.folder / name)
        return first not in _NEVER_RECEIVED

    def _receive_log(self, line: str, *, new: bool) -> Generator[int, bytes, None]:
        name, *numbers = line.rsplit(" ", 4)
        inode, start, end, seconds = map(int, numbers)
        run, _, inner = name.partition("/")
        is_log = self._is_mine(name) and run in self.runs
        is_log = is_log and _LOG.match(inner) is not None
        is_log = is_log and 0 <= start <= end < 1 << 62 and end - start <= self.most
        if not is_log or not 0 <= seconds < 1 << 40:
            raise self._malformed_error(name)
        index = self._indexes[run]
        handle = self.mirror.open_log(name, inode, start, index, new=new)
        try:
            # The last known bytes are sent again: if they differ, the file was replaced.
            is_hole = start < index[inner][1]
            known = b"" if new or is_hole else os.pread(handle, OVERLAP, start)
            left = end - start
            while left:
                piece = yield min(left, 1 << 16)
                if piece[: len(known)] != known[: len(piece)]:
                    del index[inner]
                    raise MirrorMismatch(f"{name} does not continue the bytes on this machine")
                os.write(handle, piece)
                known = known[len(piece) :]
                left -= len(piece)
            if is_hole:  # the hole is filled now
                index[inner] = (inode, start)
        finally:
            os.close(handle)
            with contextlib.suppress(OSError):
                os.utime(self.mirror.folder / name, (seconds, seconds))


# ---- uploads -----------------------------------------------------------------------------------


def code_files(code: Path) -> tuple[str, dict[str, str]]:
    """Return a copy of code's content hash, and each file's mode and hash, or link target."""
    files: dict[str, str] = {}
    for where, folders, names in os.walk(code):
        links = [name for name in folders if Path(where, name).is_symlink()]
        for path in (Path(where, name) for name in [*names, *links]):
            inner = str(path.relative_to(code))
            if path.is_symlink():
                files[inner] = f"-> {path.readlink()}"
                continue
            with path.open("rb") as file:
                digest = hashlib.sha256()
                while piece := file.read(1 << 20):
                    digest.update(piece)
            files[inner] = f"{path.stat().st_mode & 0o111:o} {digest.hexdigest()}"
    text = json.dumps(files, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40], files


def find_nearest_tree(files: Mapping[str, str], trees: Mapping[str, Mapping[str, str]]) -> str:
    """Return the known copy that shares most files with ``files``; "" if none shares any."""
    own = set(files.items())
    shared = {tree: len(own & set(known.items())) for tree, known in trees.items()}
    best = max(shared, key=lambda tree: shared[tree], default="")
    return best if best and shared[best] else ""


def check_size(code: Path, files: Iterable[str]) -> None:
    """Refuse to upload too much. Raises InputError, which names the largest files."""
    sizes = {name: (code / name).stat().st_size for name in files}
    total = sum(sizes.values())
    if total > MOST_CODE:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:5]
        listed = ", ".join(f"{name} ({sizes[name] / 1e6:.0f} MB)" for name in largest)
        raise InputError(
            f"the project's code is {total / 1e6:.0f} MB, more than {MOST_CODE // 10**6} MB; "
            f"the largest files: {listed}",
            fix="add data files to .gitignore, and copy them to the cluster separately",
        )


class UploadStream:
    """Files to upload, as a compressed tar; its last member proves that it is complete."""

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

    def __enter__(self) -> UploadStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()
        self.file.close()

    def add(self, path: Path, name: str) -> None:
        """Add a file, a link, or a folder with its whole content."""
        info = self._tar.gettarinfo(str(path), name)
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        if info.isreg():
            with path.open("rb") as file:
                # Store hard links as independent files: tar would record a link to the first name.
                info.type, info.linkname = tarfile.REGTYPE, ""
                info.size = os.fstat(file.fileno()).st_size
                self._tar.addfile(info, file)
            return
        self._tar.addfile(info)
        if info.isdir():
            for inner in sorted(path.iterdir()):
                self.add(inner, f"{name}/{inner.name}")

    def add_bytes(self, name: str, data: bytes) -> None:
        """Add a file with the given content."""
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))

    def add_folder(self, name: str) -> None:
        """Add an empty folder."""
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        self._tar.addfile(info)

    def complete(self) -> int:
        """Complete the stream; return its length in bytes."""
        if not self._is_whole:
            self.add_bytes(far.WHOLE, b"")
            self._tar.close()
            self._is_whole = True
        return self.file.seek(0, os.SEEK_END)

    def pieces(self) -> Iterator[bytes]:
        """Yield the whole stream in pieces, from its beginning at each call."""
        self.complete()
        self.file.seek(0)
        while piece := self.file.read(1 << 16):
            yield piece
