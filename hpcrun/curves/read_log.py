"""Reads a log file as frames: whole, compressed or not, and a long one by several processes."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import multiprocessing
import os
import signal
import sys
import threading
import zlib
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO
from zlib import crc32

from msgspec import MsgspecError, Struct, msgpack

from hpcrun.curves.lines.formats import Format
from hpcrun.curves.lines.formats.table import FORMATS
from hpcrun.curves.lines.line import may_be_document
from hpcrun.curves.lines.read import BLOCK, LONGEST_LINE, RANGE, THOROUGH, Reader
from hpcrun.curves.row import Frame, Mark
from hpcrun.curves.store import Log, Store
from hpcrun.errors import InputError
from hpcrun.files import read_plain, replace_atomically
from hpcrun.patterns import time_limit
from hpcrun.version import __version__

Pieces = list[Frame | Mark]
_File = io.BufferedReader | io.BufferedIOBase | codecs.StreamRecoder
_DAMAGES = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)

# Below this, the processes cost more than they save.
LONG = 8 * RANGE
_MOST_PROCESSES = 4
# Seconds of the CPU for one piece of a log, a megabyte or less: a user's pattern may need for ever.
PATTERN_SECONDS = 20.0
# How a compressed file begins, or one in UTF-16 (PowerShell's >), and what reads it; by name what
# Python lacks.
_ENCODED: dict[bytes, Callable[[IO[bytes]], io.BufferedIOBase | codecs.StreamRecoder] | str] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    **dict.fromkeys(
        (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
        lambda file: codecs.EncodedFile(file, "utf-8", "utf-16", "replace"),
    ),
}


class LogFileReader:
    """Reads a log file; iterate over it for its frames, in the order of the log.

    ``bytes`` and ``lines``: how much was read; lines are counted only up to the first that measures
    something. ``position``: how far that is in the file, which may be compressed; ``inode``: which
    one that is. ``notes``: what people should know of the file.
    """

    def __init__(
        self,
        path: Path,
        *,
        formats: Sequence[Format] = FORMATS,
        processes: int | None = None,
        offset: int = 0,
        kept: Path | None = None,
    ) -> None:
        """Read with this many processes; None: one for each CPU that we may use, at most 4.

        ``offset``: the byte to begin at, where a line begins. ``kept``: the file that has what was
        read of a long log before: as long as that stays as it is it is not read again.
        """
        self.path, self._formats, self._kept = path, formats, kept
        self.reader = Reader(offset, formats)
        self.bytes = self.position = offset
        self.inode = 0
        self.notes: tuple[str, ...] = ()
        if processes is None:
            affinity = getattr(os, "sched_getaffinity", None)  # a Mac has none
            cpus = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
            processes = min(_MOST_PROCESSES, cpus)
        self._processes = processes

    @property
    def lines(self) -> int:
        """How many lines were read before the first that measures something."""
        return self.reader.lines_read

    def read_on(self) -> Iterator[Pieces]:
        """Yield the frames of what the file has more than was read; a last line may grow.

        Raises OSError; InputError for a compressed file.
        """
        with _open(self.path) as (file, raw):
            if file is not raw:
                fix = f"hpcrun parse {self.path}"
                raise InputError(f"{self.path}: not plain text, so it is not followed", fix=fix)
            now = os.fstat(raw.fileno())  # it may grow as fast as it is read
            self.inode = now.st_ino
            yield from self._read_plain(raw, now.st_size)

    def __iter__(self) -> Iterator[Pieces]:
        """Yield the frames of each stretch of the file. Raises InputError for a file that fails."""
        try:
            with _open(self.path) as (file, raw):
                now = os.fstat(raw.fileno())
                self.inode = now.st_ino
                if self._kept is None:
                    yield from self._read_whole(file, raw)
                elif known := _recall(self._kept, key := _key_of(now, self._formats)):
                    self.bytes = self.position = known.bytes
                    self.reader.lines_read = known.lines
                    yield [*known.marks, *known.forms]
                else:
                    store = Store()
                    store.begin(0)
                    for pieces in self._read_whole(file, raw):
                        store.add(pieces)
                        yield pieces
                    if self.bytes >= RANGE and not any(store.notes()):
                        _keep(self._kept, key, self, store.logs[0])
        except _DAMAGES as error:
            if not self.bytes:
                raise InputError(f"{self.path}: {error}") from error
            # What a job compresses as it goes has no end when it is killed.
            self.notes = (f"{self.path} ends before its compressed data does: {error}",)
            yield self.reader.finish()
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror or error}") from error

    def _read_whole(self, file: _File, raw: io.BufferedReader) -> Iterator[Pieces]:
        if file is not raw or may_be_document(raw.peek(1)):
            yield from self.reader.read(self._chunks(file, raw))
        else:
            yield from self._read_plain(raw)
            yield self.reader.finish()

    def _chunks(
        self, file: _File, raw: io.BufferedReader, size: int = sys.maxsize
    ) -> Iterator[bytes]:
        """Yield what comes next in a file, ``size`` bytes at most, a block at a time."""
        # Of damaged compressed data read1 gives what comes before the damage.
        read = file.read1 if isinstance(file, io.BufferedIOBase) and file is not raw else file.read
        while size > 0 and (data := read(min(size, BLOCK))):
            size -= len(data)
            self.bytes += len(data)
            self.position = raw.tell() if raw.seekable() else 0
            yield data

    def _read_plain(self, file: io.BufferedReader, size: int = sys.maxsize) -> Iterator[Pieces]:
        """Read on in a file that is not compressed, to ``size``."""
        if self.bytes:
            file.seek(self.bytes)
        yield from self._read_ranges(file)
        yield from map(self.reader.feed, self._chunks(file, file, size - self.bytes))

    def _read_ranges(self, file: io.BufferedReader) -> Iterator[Pieces]:
        """Read a long file range by range, side by side, as far as none needs the one before it.

        Leaves the file and the reader where it is to be read on.
        """
        size = os.fstat(file.fileno()).st_size
        if size - self.bytes < LONG or self._processes < 2 or not can_fork():
            return
        begin = max(THOROUGH, -(-self.bytes // RANGE) * RANGE)
        yield from map(self.reader.feed, self._chunks(file, file, begin - self.bytes))
        if self.reader.table is not None:
            return
        numbers = range(begin // RANGE, size // RANGE)
        with contextlib.closing(self._answers(numbers)) as answers:
            for number, (pieces, lines) in zip(numbers, answers, strict=False):
                self.bytes = self.position = (number + 1) * RANGE
                if not self.reader.has_rows:
                    self.reader.lines_read += lines
                    self.reader.has_rows = any(isinstance(piece, Frame) for piece in pieces)
                yield pieces
        self.bytes = line_at(file, self.bytes)
        file.seek(self.bytes)
        self.reader.move(self.bytes)

    def _answers(self, numbers: range) -> Generator[tuple[Pieces, int], None, None]:
        """Yield the rows of the lines that end in each range, and the lines before the first row.

        Each process begins as our reader is now, and so knows the shapes that it knows. Stops early
        where a table is open, no process may start, or one was killed, for its memory perhaps.
        """
        context = multiprocessing.get_context("fork")
        workers: list[tuple[BaseProcess, Connection]] = []
        try:
            for index in range(min(self._processes, len(numbers))):
                ours, theirs = context.Pipe(duplex=False)
                part = (numbers[index :: self._processes], theirs, ours)
                worker: BaseProcess = context.Process(target=self._work, args=part, daemon=True)
                with theirs:
                    worker.start()
                workers.append((worker, ours))
            for turn in range(len(numbers)):
                yield workers[turn % len(workers)][1].recv()
        except (EOFError, OSError):
            return
        finally:
            for worker, ours in workers:
                worker.kill()
                worker.join()
                ours.close()

    def _work(self, numbers: range, answers: Connection, ours: Connection) -> None:
        """Read ranges and send their rows; the pipe holds back a worker that is ahead."""
        # The caller's handlers are not ours; a Ctrl-C is the caller's to act on.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # As long as somebody holds its other end, a pipe does not break when the caller is gone.
        # The last worker's is held by the caller alone; others' by those that began after them.
        ours.close()
        reader = self.reader
        with contextlib.suppress(BrokenPipeError, TimeoutError), self.path.open("rb") as file:
            for number in numbers:
                reader.move(line_at(file, number * RANGE))
                file.seek(reader.offset)
                before, pieces = reader.lines_read, []
                while block := file.read(min(BLOCK, (number + 1) * RANGE - reader.offset)):
                    with time_limit(PATTERN_SECONDS, TimeoutError()):  # the caller reports it
                        pieces += reader.feed(block)
                if reader.table is not None:
                    return
                answers.send((pieces, reader.lines_read - before))


# ---- what is kept of long logs

# The longest file of samples, in bytes: of a log of several GB.
_MOST_KEPT = 1 << 31


class _Known(Struct):
    """What was read of a log."""

    bytes: int
    lines: int
    forms: list[Frame]
    marks: list[Mark]


def _key_of(now: os.stat_result, formats: Sequence[Format]) -> int:
    """Return a number that is another one where the log has changed, or the reader has."""
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    code = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    own = [(form.name, form.pattern.pattern) for form in formats[: -len(FORMATS)]]
    log = now.st_ino, now.st_size, now.st_mtime_ns
    return crc32(repr((__version__, sys.byteorder, code, own, log)).encode())


def _recall(kept: Path, key: int) -> _Known | None:
    """Read what is kept of a log; None where it is damaged, or of another one."""
    with contextlib.suppress(OSError, MsgspecError):
        data = memoryview(read_plain(kept, _MOST_KEPT))
        if crc32(data[4:], key) == int.from_bytes(data[:4], "big"):
            return msgpack.decode(data[4:], type=_Known, dec_hook=lambda _, kept: array(*kept))
    return None


def _keep(kept: Path, key: int, read: LogFileReader, log: Log) -> None:
    """Keep what was read of a log, unless there is no room."""
    known = {"bytes": read.bytes, "lines": read.lines, "marks": log.marks}
    known["forms"] = list(log.forms.values())
    with contextlib.suppress(OSError, ValueError, OverflowError):
        data = msgpack.encode(known, enc_hook=lambda column: (column.typecode, column.tobytes()))
        with replace_atomically(kept, 0o600) as out:
            out.write(crc32(data, key).to_bytes(4, "big") + data)


@contextlib.contextmanager
def _open(path: Path) -> Iterator[tuple[_File, io.BufferedReader]]:
    """Open a log file, a compressed one as what it holds; a pipe may be one too.

    The second is the file as it lies on the disk. Raises OSError, InputError for a form of
    compression that Python lacks.
    """
    with path.open("rb") as file:
        head = file.peek(6)
        decompress = next((_ENCODED[each] for each in _ENCODED if head.startswith(each)), None)
        if isinstance(decompress, str):
            fix = f"{decompress} -dc {path} | hpcrun parse -"
            raise InputError(f"{path}: compressed by {decompress}", fix=fix)
        if decompress is None:
            yield file, file
            return
        with decompress(file) as inside:
            yield inside, file


def line_at(file: IO[bytes], offset: int) -> int:
    """Return where the line begins that byte ``offset`` is part of; of one too long, a part of it.

    >>> import io
    >>> [line_at(io.BytesIO(b"ab\\ncd\\n"), offset) for offset in (0, 1, 3, 4, 6)]
    [0, 0, 3, 3, 6]
    """
    place = max(0, offset - LONGEST_LINE - 1)
    file.seek(place)
    before = file.read(offset - place)
    end = max(before.rfind(mark) for mark in (b"\n", b"\r", b"\0"))
    return place + end + 1


def can_fork() -> bool:
    """Return whether this process may be copied.

    Not beside other threads, whose locks a copy would keep; nor in a worker of a Pool, which may
    have no children.
    """
    return threading.active_count() == 1 and not multiprocessing.current_process().daemon
