"""Copy files of a run to this machine, completely and only once.

The cluster's responses are untrusted except for file contents: names that lead out of the target
are refused, and no link is followed. A file grows next to its destination under a name that
identifies its source, so an interrupted transfer can be resumed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from msgspec import Struct, field

from hpcrun.context import Context
from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.files import free_space, full_disk_hint, open_received_tar, write_error
from hpcrun.remote import quote, quote_profile_path
from hpcrun.runs import RESULTS_MARK, SECRETS, RunFolder, read_plan
from hpcrun.text import format_size

# Limits in bytes for the list of files, and for the line after a file.
_MOST, _LONGEST_END = 256 << 20, 4096
# The number of files per round trip: their names are part of the script, which bash reads slowly.
_AT_ONCE = 500
# Seconds before an interrupted transfer is resumed; it is resumed as long as it makes progress.
_PAUSE = 2.0
# Secrets stay on the cluster, and caches belong to their readers.
_KEPT_BACK = (SECRETS, "notify.json", "secret_marks.json", "cache/")

_LINE = re.compile(r"([0-9a-f]{1,8}) \d{1,20} \d{1,16} -?\d{1,11} \./(.+)", re.DOTALL)
# List the metadata of all files and links below ``roots``, each terminated by NUL; "/" ends a root.
_LIST = r"""
LC_ALL=C
for root in "${roots[@]}"; do
  if cd -- "$root" 2>/dev/null; then
    find . \( -type f -o -type l \) -exec stat --printf '%f %i %s %Y %n\0' -- {} +
  fi
  printf '/\0'
done
"""
# Send the content of each file from an offset on, always with the announced length; then a line
# with the exit code, the digest of the bytes before the offset, and the metadata after the
# transfer.
_GIVE = r"""
LC_ALL=C
for i in "${!paths[@]}"; do
  path=${paths[i]} length=${lengths[i]}
  { tail -c +$((${offsets[i]} + 1)) -- "$path"; code=$?; head -c "$length" /dev/zero; exit "$code"
  } 2>/dev/null | head -c "$length"
  code=${PIPESTATUS[0]} digest=-
  if ((offsets[i])); then
    read -r digest _ < <(head -c "${offsets[i]}" -- "$path" | sha256sum)
  fi 2>/dev/null
  printf '%s %s %s\n' "$code" "${digest:--}" "$(stat -c '%f %i %s %Y' -- "$path" 2>/dev/null)"
done
"""


# Send all files in one stream, then their metadata after the transfer, and its length.
_STREAM = r"""
LC_ALL=C
printf '%s\0' "${paths[@]}" |
  tar --format=gnu -b 1 -P --hard-dereference --no-recursion --null -cf - -T - 2>/dev/null
facts=$(stat -c '%f %i %s %Y' -- "${paths[@]}" 2>/dev/null)
printf '%s%020d' "$facts" "${#facts}"
"""
# Files up to _SMALL bytes are sent in streams of limited size if there are at least _MANY of them.
_SMALL, _MANY, _IN_A_STREAM, _STREAM_BYTES = 1 << 20, 16, 1000, 1 << 26
# The size of a tar member's headers, and the number of digits of the length at the end.
_HEADERS, _DIGITS = 4096, 20


class RemoteFile(Struct, frozen=True):
    """A remote file.

    Attributes:
        name: The path relative to the run's directory.
        facts: The metadata that identifies the version of the file.
    """

    name: str
    path: str
    facts: str  # mode, inode, size and mtime as printed by stat

    @property
    def size(self) -> int:
        return int(self.facts.split()[2])

    @property
    def mtime(self) -> int:
        return int(self.facts.split()[3])


class FoundFiles(Struct):
    """The requested files, the links among them, and the reason why some could not be listed."""

    files: list[RemoteFile]
    links: list[str]
    fault: str = ""


class Fetched(Struct):
    """The progress of a transfer: names of files, and the error of each file that failed."""

    done: list[str] = field(default_factory=list)
    had: list[str] = field(default_factory=list)  # already up to date on this machine
    failed: dict[str, str] = field(default_factory=dict)


def find_outputs(context: Context, run: RunFolder, globs: Sequence[str]) -> FoundFiles:
    """List the run's checkpoints, or the files that match globs. Raises InputError, OutOfReach."""
    plan = read_plan(run)
    if plan is None:
        raise InputError(f"{run.run_id}: it has no plan.json", fix="hpcrun status lists the runs")
    folders = (plan.run_dir, plan.checkpoint_dir, plan.project_dir)
    was, saves, work = (Path(os.path.normpath(folder)) for folder in folders)
    # Another user may have written the record, and its paths determine where local files are
    # written.
    for key, path in (("run_dir", was), ("checkpoint_dir", saves)):
        if not path.is_absolute():
            raise InputError(
                f"{run.plan}: {key}: not an absolute path: {path}",
                fix="hpcrun did not write this record: do not use the run",
            )
    top = run.path if context.cluster.host is None else was
    is_inside = saves.is_relative_to(was) and saves != was
    inner = saves.relative_to(was) if is_inside else Path("checkpoints")
    roots = [(top / inner if is_inside else saves, f"{inner}/")]
    if globs:
        roots = [(top, "")] if is_inside else [(top, ""), *roots]
    bases = ["", f"{inner}/"]
    if work.is_relative_to(was):
        bases.append(f"{work.relative_to(was)}/")
    found = _list_files(context, roots)
    wanted = [_compile_glob(glob) for glob in globs]

    def is_wanted(name: str) -> bool:
        rest = [name[len(base) :] for base in bases if name.startswith(base)]
        return not wanted or any(one.fullmatch(part) for one in wanted for part in rest)

    found.files = [file for file in found.files if is_wanted(file.name)]
    found.links = [name for name in found.links if is_wanted(name)]
    if not found.files:
        which = f"fits {' '.join(globs)}" if globs else f"is in {saves}, its checkpoint folder"
        raise InputError(
            f"{run.run_id}: no file {which}" + (f" ({found.fault})" if found.fault else ""),
            fix="give a pattern of files that it wrote, as in 'out/*.png': a glob starts at the "
            "run's folder, at its "
            "checkpoints, or where the job worked",
        )
    return found


def _compile_glob(glob: str) -> re.Pattern[str]:
    r"""Compile a glob; ``**`` matches any directories, and a directory all its contents.

    At its end ``**`` matches all files.

    Raises:
        InputError: The glob is invalid.

    >>> globs = "a", "*/b", "**/*.pt", "*.pt", "a/?/[!d]*", "a/**", "**", "b/**"
    >>> [bool(_compile_glob(glob).fullmatch("a/b/c.pt")) for glob in globs]
    [True, True, True, False, True, True, True, False]
    """
    words = {"*": "[^/]*", "?": "[^/]"}
    text = ""
    for part in filter(lambda part: part not in ("", "."), glob.split("/")):
        for word in re.split(r"(\*|\?|\[!?[^]]+\])", part):
            if len(word) > 2 and word[0] == "[" and word[-1] == "]":
                inner = word[1:-1].replace("\\", "\\\\")
                text += f"[^{inner[1:]}]" if inner[0] == "!" else f"[{inner}]"
            else:
                text += words.get(word) or re.escape(word)
        text = text.removesuffix("[^/]*[^/]*") + "(?:[^/]+/)*" if part == "**" else f"{text}/"
    text += "[^/]+" if text.endswith(")*") else ""
    try:
        return re.compile(f"{text.removesuffix('/')}(?:/.*)?" if text else ".*", re.DOTALL)
    except re.error as error:
        raise InputError(f"{glob}: invalid glob: {error.msg}", fix="as in 'out/*.png'") from error


def _list_files(context: Context, roots: Sequence[tuple[Path, str]]) -> FoundFiles:
    """List all files below directories.

    Args:
        roots: Pairs of a remote path and the matching local path.
    """
    data = bytearray()

    def collect(piece: bytes) -> None:
        data.extend(piece)
        if len(data) > _MOST:
            raise HpcrunError("there are too many files to list", fix="pack them there, with tar")

    script = f"roots=({' '.join(quote(str(root)) for root, _ in roots)})\n{_LIST}"
    answer = context.transport().run_script(script, collect)
    each = iter(os.fsdecode(bytes(data)).split("\0"))
    found = FoundFiles(
        [], [], answer.stderr.strip().splitlines()[-1] if answer.stderr.strip() else ""
    )
    for root, prefix in roots:
        for line in each:
            if line == "/":
                break
            match = _LINE.fullmatch(line)
            if match is None or any(part in ("", ".", "..") for part in match[2].split("/")):
                raise HpcrunError(f"{root}: malformed file name: {ascii(line)[:80]}")
            name = prefix + match[2]
            if name.startswith(_KEPT_BACK):
                continue
            if stat.S_ISREG(int(match[1], 16)):
                facts = line[: match.start(2) - 3]
                found.files.append(RemoteFile(name, f"{root}/{match[2]}", facts))
            else:
                found.links.append(name)
        else:
            raise OutOfReach(f"{root}: truncated list of files")
    found.files.sort(key=lambda file: file.name)
    return found


def fetch_files(
    context: Context,
    files: Sequence[RemoteFile],
    target: Path,
    show: Callable[[float, float], None],
    tell: Callable[[str], None],
) -> Fetched:
    """Copy files into a directory, except those that exist with the same size and mtime.

    After a connection failure the transfer is resumed as long as it makes progress. Files that were
    copied before an error are kept.

    Raises:
        InputError: A link is in the way, or there is not enough space.
        OutOfReach: The host does not respond.
    """
    fetched = Fetched()
    if not target.exists():  # results must be ignored by git and by the next submission
        try:
            target.mkdir(parents=True)
            (target / ".gitignore").write_text(f"{RESULTS_MARK}\n*\n")
        except OSError as error:
            raise write_error(target, error) from error
    wanted = []
    for file in files:
        place = _place(target, file.name)
        with contextlib.suppress(FileNotFoundError):
            info = place.lstat()
            if stat.S_ISDIR(info.st_mode):
                raise InputError(
                    f"{place}: a folder here, but a file on the cluster", fix="--to DIR"
                )
            is_plain = stat.S_ISREG(info.st_mode)
            if is_plain and (info.st_size, int(info.st_mtime)) == (file.size, file.mtime):
                fetched.had.append(file.name)
                continue
        wanted.append(file)
    _remove_stale(target, wanted)
    total, come = (
        sum(file.size for file in wanted),
        sum(_partial_size(target, file) for file in wanted),
    )
    rest, _ = free_space(next(at for at in (target, *target.absolute().parents) if at.exists()))
    if rest is not None and total - come > rest:
        raise InputError(
            f"{target}: {format_size(total - come)} do not fit: {format_size(rest)} are free",
            fix="--to DIR selects another folder; globs select fewer files",
        )

    def is_more(count: int) -> None:
        nonlocal come
        come += count
        show(come / 1e6, total / 1e6)

    for batch in _batch_small_files([file for file in wanted if not _partial_size(target, file)]):
        # the loop below copies the remaining files or reports the error
        with contextlib.suppress(OutOfReach):
            _fetch_small_files(context, target, batch, fetched, is_more)
    settled = {*fetched.done, *fetched.failed}
    wanted = [file for file in wanted if file.name not in settled]
    while wanted:
        before, batch = come, wanted[:_AT_ONCE]
        try:
            receiver = _FileReceiver(target, batch, fetched, is_more)
        except _PartialCopyChanged:
            continue
        try:
            context.transport().run_script(receiver.build_script(), receiver.receive)
            if receiver.at < len(batch):
                raise OutOfReach(f"{batch[0].path}: truncated response", maybe_done=True)
        except _PartialCopyChanged:
            pass
        except OutOfReach as lost:
            if lost.is_final or come == before:
                raise
            tell(f"{lost.message}; retrying in {_PAUSE:g} s")
            time.sleep(_PAUSE)
        finally:
            receiver.close()
        wanted = [*receiver.again, *wanted[receiver.at :]]
    return fetched


def _batch_small_files(files: Sequence[RemoteFile]) -> Iterator[list[RemoteFile]]:
    """Split small files into batches for one stream each, if there are many."""
    small = [file for file in files if file.size <= _SMALL]
    if len(small) < _MANY:
        return
    batch: list[RemoteFile] = []
    size = 0
    for file in small:
        if len(batch) == _IN_A_STREAM or size > _STREAM_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    yield batch


def _fetch_small_files(
    context: Context,
    target: Path,
    files: Sequence[RemoteFile],
    fetched: Fetched,
    is_more: Callable[[int], None],
) -> None:
    """Copy small files with one tar, because processes for each would take longer.

    Files that another fetch is writing are omitted.

    Raises:
        OutOfReach: The transfer failed; nothing of it is kept.
    """
    by_path = {file.path: file for file in files}
    most = sum(file.size + _HEADERS for file in files) + _LONGEST_END * len(files)
    with tempfile.SpooledTemporaryFile(_STREAM_BYTES) as spool:

        def collect(piece: bytes) -> None:
            spool.write(piece)
            if spool.tell() > most:
                raise OutOfReach(f"{files[0].path}: response too long")

        script = f"paths=({' '.join(quote(file.path) for file in files)})\n{_STREAM}"
        context.transport().run_script(script, collect)
        end = spool.seek(0, os.SEEK_END)
        spool.seek(max(0, end - _DIGITS))
        digits = spool.read().decode("ascii", "replace")
        if not re.fullmatch(f"[0-9]{{{_DIGITS}}}", digits) or int(digits) + _DIGITS > end:
            raise OutOfReach(f"{files[0].path}: truncated response")
        spool.seek(end - _DIGITS - int(digits))
        now = set(spool.read(int(digits)).decode("ascii", "replace").split("\n"))
        try:
            with open_received_tar(spool) as tar:
                for member in tar:
                    file = by_path.get(member.name)
                    if file is None or not member.isreg() or member.size != file.size:
                        continue
                    data = tar.extractfile(member)
                    if data is not None and file.facts in now:
                        _write_small(target, file, data.read(), fetched, is_more)
        except (tarfile.TarError, ValueError, EOFError, OverflowError, RecursionError) as error:
            raise OutOfReach(f"{files[0].path}: malformed response: {error}") from error


def _write_small(
    target: Path, file: RemoteFile, data: bytes, fetched: Fetched, is_more: Callable[[int], None]
) -> None:
    # another fetch is writing the file; the main loop reports it
    with contextlib.suppress(InputError, _PartialCopyChanged):
        part, out = _open_partial_file(_partial_path(target, file), 0)
        try:
            if len(data) == file.size and os.write(out, data) == file.size:
                _publish_file(part, out, target / file.name, file)
                fetched.done.append(file.name)
                is_more(file.size)
        except OSError as error:
            place = target / file.name
            raise InputError(
                f"{place}: {error.strerror}", fix=full_disk_hint(error) or "--to DIR"
            ) from error
        finally:
            os.close(out)


def _publish_file(part: Path, out: int, place: Path, file: RemoteFile) -> None:
    """Rename a complete file to its destination, with its mode and mtime."""
    os.fchmod(out, int(file.facts.split()[0], 16) & 0o777 | 0o600)
    os.utime(part, (file.mtime, file.mtime))
    part.replace(place)


class _PartialCopyChanged(OutOfReach):
    """Another fetch has changed, or renamed to its destination, the partial copy of a file."""


class _FileReceiver:
    """Writes the stream of one round trip: the content and a metadata line of each file."""

    def __init__(
        self,
        target: Path,
        files: Sequence[RemoteFile],
        fetched: Fetched,
        is_more: Callable[[int], None],
    ) -> None:
        self.target, self.files, self.fetched, self.is_more = target, files, fetched, is_more
        self.starts = [_partial_size(target, file) for file in files]
        self.digests = [
            _hash_prefix(_partial_path(target, file), start)
            for file, start in self._files_with_starts()
        ]
        self.again: list[RemoteFile] = []  # files whose partial copies turned out to be outdated
        self.at = -1
        self.held = b""
        self.out = -1
        self._open_next()

    def _files_with_starts(self) -> Iterator[tuple[RemoteFile, int]]:
        yield from zip(self.files, self.starts, strict=True)

    def build_script(self) -> str:
        lengths = [file.size - start for file, start in self._files_with_starts()]
        return (
            f"paths=({' '.join(quote(file.path) for file in self.files)})\n"
            f"offsets=({' '.join(map(str, self.starts))}) lengths=({' '.join(map(str, lengths))})\n"
            f"{_GIVE}"
        )

    def _open_next(self) -> None:
        self.close()
        self.at += 1
        if self.at < len(self.files):
            file = self.files[self.at]
            self.left = file.size - self.starts[self.at]
            self.part, self.out = _open_partial_file(
                _partial_path(self.target, file), self.starts[self.at]
            )

    def close(self) -> None:
        if self.out >= 0:
            os.close(self.out)
            self.out = -1

    def receive(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self.at < len(self.files):
            file = self.files[self.at]
            if self.left:
                try:
                    count = os.write(self.out, view[: self.left])
                except OSError as error:
                    place = self.target / file.name
                    raise InputError(
                        f"{place}: {error.strerror}", fix=full_disk_hint(error) or "--to DIR"
                    ) from error
                self.left -= count
                view = view[count:]
                self.is_more(count)
                continue
            line, found, rest = (self.held + bytes(view)).partition(b"\n")
            if not found:
                self.held = line
                if len(line) > _LONGEST_END:
                    raise OutOfReach(f"{file.path}: malformed response")
                return
            self.held, view = b"", memoryview(rest)
            self._finish_file(file, line.decode("ascii", "replace"))
            self._open_next()

    def _finish_file(self, file: RemoteFile, line: str) -> None:
        code, _, line = line.partition(" ")
        digest, _, facts = line.partition(" ")
        part, place = self.part, self.target / file.name
        if self.starts[self.at] and digest != self.digests[self.at]:
            part.unlink(missing_ok=True)
            self.is_more(-file.size)
            self.again.append(file)
            return
        if (code, facts) == ("0", file.facts) and os.fstat(self.out).st_size == file.size:
            _publish_file(part, self.out, place, file)
            self.fetched.done.append(file.name)
            return
        part.unlink(missing_ok=True)
        why = "it cannot be read" if facts == file.facts else "it is being written"
        self.fetched.failed[file.name] = why if facts else "it is gone"


def _place(target: Path, name: str) -> Path:
    """Return the destination of a file, which is always inside ``target``.

    Raises:
        InputError: The path contains a link, which could lead anywhere, or leaves the directory.
    """
    path, parts = target, name.split("/")
    if {"", ".", ".."} & set(parts):
        raise InputError(f"{ascii(name)[:80]}: not a name of a file inside {target}")
    for part in parts[:-1]:
        path = path / part
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise InputError(
                f"{path}: not a folder, but a link or a file", fix="--to DIR, a new one"
            )
    return path / name.rpartition("/")[2]


def _partial_path(target: Path, file: RemoteFile) -> Path:
    """Return the path of a file's partial copy, whose name contains the metadata of its source."""
    place = _place(target, file.name)
    name = os.fsdecode(os.fsencode(place.name)[-150:])
    return place.with_name(f".{name}.{'-'.join(file.facts.split()[1:])}.part")


def _open_partial_file(part: Path, start: int) -> tuple[Path, int]:
    """Open and lock a partial copy, truncated to ``start`` bytes; return its path and descriptor.

    If the file system does not support locks, the copy gets a unique name.

    Raises:
        InputError: Another fetch is writing the file.
        _PartialCopyChanged: The partial copy is shorter than ``start`` bytes.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    part.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(part, flags, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise InputError(
                    f"{part.parent}: another hpcrun fetch is writing this file here: {part.name}",
                    fix="wait until it has ended, or --to another folder",
                ) from error
            if start:
                part.unlink()
                raise _PartialCopyChanged(f"{part}: cannot be locked: starting over") from error
            part = part.with_name(f".{os.urandom(8).hex()}{part.name}")
            handle = os.open(part, flags | os.O_EXCL, 0o600)
        info = os.fstat(handle)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(info, part.lstat()):
                if info.st_size < start:
                    os.close(handle)
                    raise _PartialCopyChanged(f"{part}: another fetch has changed it")
                os.ftruncate(handle, start)
                return part, handle
        os.close(handle)  # another fetch has just completed the file


def _hash_prefix(part: Path, length: int) -> str:
    """Return the digest of the first ``length`` bytes of a file."""
    digest = hashlib.sha256()
    if length:
        with contextlib.suppress(FileNotFoundError), part.open("rb") as file:
            while length and (piece := file.read(min(length, 1 << 20))):
                digest.update(piece)
                length -= len(piece)
    return digest.hexdigest()


def _partial_size(target: Path, file: RemoteFile) -> int:
    part = _partial_path(target, file)
    with contextlib.suppress(FileNotFoundError):
        info = part.lstat()
        if stat.S_ISREG(info.st_mode) and info.st_size <= file.size:
            return info.st_size
        part.unlink()
    return 0


def _remove_stale(target: Path, files: Sequence[RemoteFile]) -> None:
    parts = {_partial_path(target, file) for file in files}
    heads = {part.name.rsplit(".", 2)[0] for part in parts}
    for folder in {part.parent for part in parts}:
        for old in folder.glob(".*.part") if folder.is_dir() else ():
            match = re.fullmatch(r"(.+)\.\d+-\d+--?\d+\.part", old.name, re.DOTALL)
            if match and match[1] in heads and old not in parts:
                with contextlib.suppress(OSError, InputError, _PartialCopyChanged):
                    # fails if another fetch is using it
                    path, handle = _open_partial_file(old, old.stat().st_size)
                    path.unlink()
                    os.close(handle)


# ---- the run's copy of the code ------------------------------------------------------------------

_CODE = r"""
cd -- "$folder"/code || exit
exec tar --format=gnu -cf - .
"""


def fetch_code(context: Context, folder: Path) -> None:
    """Copy the code of a remote run into its local directory.

    It is missing here if the run was submitted from another machine. Raises InputError, OutOfReach.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".hpcrun-", dir=folder) as aside:
        with tempfile.TemporaryFile(dir=aside) as spool:

            def collect(piece: bytes) -> None:
                spool.write(piece)
                if spool.tell() > _MOST:
                    raise InputError(
                        f"{folder.name}: its code on the cluster is too large to fetch",
                        fix="--code now uses the current code",
                    )

            place = f"{quote_profile_path(context.cluster.runs_dir)}/{quote(folder.name)}"
            script = f"folder={place}\n{_CODE}"
            answer = context.transport().run_script(script, collect)
            if answer.exit_code != 0:
                raise InputError(
                    f"{place}/code: the run's copy of the code cannot be read: "
                    f"{(answer.stderr.strip().splitlines() or ['no message'])[-1]}",
                    fix="--code now uses the current code",
                )
            try:
                _unpack(spool, Path(aside, "code"))
            except (
                tarfile.TarError,
                ValueError,
                OSError,
                OverflowError,
                RecursionError,
            ) as error:
                raise OutOfReach(f"{place}/code: malformed response: {error}") from error
        Path(aside, "code").replace(folder / "code")


def _unpack(spool: IO[bytes], code: Path) -> None:
    """Unpack files, directories and links, without writing through a link.

    Raises tarfile.TarError, ValueError, OverflowError, RecursionError, OSError.
    """
    code.mkdir()
    with open_received_tar(spool) as tar:
        for member in tar:
            parts = Path(member.name).parts
            if Path(member.name).is_absolute() or ".." in parts:
                raise ValueError(f"the name {ascii(member.name)[:80]}")
            path = code.joinpath(*parts)
            inside = [code.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
            if any(each.is_symlink() for each in inside):
                raise ValueError(f"the name {ascii(member.name)[:80]}")
            if member.isdir():
                path.mkdir(exist_ok=True)
            elif member.issym():
                path.symlink_to(member.linkname)
            elif member.isreg() and not member.issparse():
                data = tar.extractfile(member)
                assert data is not None
                with path.open("xb") as file:
                    shutil.copyfileobj(data, file)
                path.chmod(member.mode & 0o755 | 0o600)
                os.utime(path, (member.mtime, member.mtime))


# ---- Weights & Biases --------------------------------------------------------------------------


OFFLINE = "**/offline-run-*"


def find_wandb(context: Context) -> str:
    """Return the program that uploads W&B's offline runs. Raises InputError."""
    search = f"{Path(sys.executable).parent}:{context.environ.get('PATH', '')}"
    if program := shutil.which("wandb", path=search):
        return program
    raise InputError("wandb is not installed here", fix=f"{sys.executable} -m pip install wandb")


def sync_offline(
    context: Context, wandb: str, target: Path, files: Sequence[RemoteFile]
) -> list[str]:
    """Upload the offline W&B runs among fetched files; return those that wandb rejected."""
    names = (re.match(r"(?:.*/)?offline-run-[^/]*(?=/)", file.name) for file in files)
    folders = dict.fromkeys(match[0] for match in names if match)
    refused = []
    for folder in folders:
        argv = [wandb, "sync", str(target / folder)]
        # The output of wandb is for people, so it goes to stderr.
        if subprocess.call(argv, env=context.environ, stdout=sys.stderr) != 0:
            refused.append(folder)
    return refused
