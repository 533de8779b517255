"""Reads a log file as frames: whole, compressed or not, and a long one by several processes."""

from __future__ import annotations

import bz2
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
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO

from msgspec import Struct

from hpcrun.errors import InputError
from hpcrun.metrics.lines.line import FORMATS, Format, may_be_document
from hpcrun.metrics.lines.read import BLOCK, RANGE, THOROUGH, Reader
from hpcrun.metrics.parse import read_pieces
from hpcrun.metrics.row import Frame, Placed

Pieces = list[Frame | Placed]
_File = io.BufferedReader | io.BufferedIOBase
_DAMAGES = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)

# A reader takes a block at a time: pieces of this size are not copied.
_CHUNK = BLOCK
_HEAD = 1 << 10
# Below this, the processes cost more than they save.
_LONG = 4 * RANGE
_MOST_PROCESSES = 4
_LOOK_AHEAD = 1 << 16
_DECOMPRESS: dict[bytes, Callable[[IO[bytes]], io.BufferedIOBase]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
_UNKNOWN = {b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}


class LogFileReader:
    """Reads a log file; iterate over it for its frames, in the order of the log.

    ``bytes`` and ``lines``: how much was read; lines are counted only up to the first that measures
    something. ``position``: how far that is in the file, which may be compressed. ``notes``: what
    people should know of the file.
    """

    def __init__(
        self,
        path: Path,
        *,
        formats: Sequence[Format] = FORMATS,
        processes: int | None = None,
        offset: int = 0,
    ) -> None:
        """Read with this many processes; None: one for each CPU that we may use, at most 4.

        ``offset``: the byte to begin at, where a line begins.
        """
        self.path = path
        self.reader = Reader(offset, formats)
        self.bytes = self.position = offset
        self.notes: tuple[str, ...] = ()
        if processes is None:
            processes = min(_MOST_PROCESSES, len(os.sched_getaffinity(0)))
        self._processes = processes

    @property
    def lines(self) -> int:
        """How many lines were read before the first that measures something."""
        return self.reader.lines_read

    def read_on(self) -> Iterator[Pieces]:
        """Yield the frames of what the file has more than was read; a last line may grow.

        Raises OSError; InputError for a compressed file.
        """
        with open_log(self.path) as (file, _):
            if not isinstance(file, io.BufferedReader):
                fix = f"hpcrun parse {self.path}"
                raise InputError(f"{self.path}: compressed, so it does not grow", fix=fix)
            file.seek(self.bytes)
            yield from self._read_lines(file)

    def __iter__(self) -> Iterator[Pieces]:
        """Yield the frames of each stretch of the file. Raises InputError for a file that fails."""
        try:
            with open_log(self.path) as (file, raw):
                if isinstance(file, io.BufferedReader) and not may_be_document(file.peek(_HEAD)):
                    yield from self._read_lines(file)
                    yield self.reader.finish()
                else:
                    for pieces in read_pieces(self.reader, self._chunks(file)):
                        self.position = raw.tell() if raw.seekable() else 0
                        yield pieces
        except _DAMAGES as error:
            if not self.bytes:
                raise InputError(f"{self.path}: {error}") from error
            # What a job compresses as it goes has no end when it is killed.
            self.notes = (f"{self.path} ends before its compressed data does: {error}",)
            yield self.reader.finish()
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror or error}") from error

    def _read_lines(self, file: io.BufferedReader) -> Iterator[Pieces]:
        """Read to the end, by several processes where that is faster."""
        size = os.fstat(file.fileno()).st_size
        if not self.bytes and size >= _LONG and self._processes > 1 and can_fork():
            yield from map(self.reader.feed, self._chunks(file, THOROUGH))
            if not self.reader.in_table:
                yield from self._read_ranges(file, size)
        yield from map(self.reader.feed, self._chunks(file))

    def _chunks(self, file: _File, size: int = sys.maxsize) -> Iterator[bytes]:
        """Yield what comes next in a file, ``size`` bytes at most."""
        # Of damaged compressed data read1 gives what comes before the damage.
        read = file.read if isinstance(file, io.BufferedReader) else file.read1
        while size > 0 and (data := read(min(size, _CHUNK))):
            size -= len(data)
            self.bytes += len(data)
            self.position = self.bytes
            yield data

    def _read_ranges(self, file: IO[bytes], size: int) -> Iterator[Pieces]:
        """Read range by range, side by side, as far as no range depends on the one before it.

        Leaves the file and the reader where it is to be read on.
        """
        first, last = THOROUGH // RANGE, size // RANGE
        end = line_from(file, THOROUGH)
        file.seek(THOROUGH)
        self.bytes = end
        yield self.reader.feed(file.read(end - THOROUGH))
        ranges = read_ranges(self.path, self.reader, range(first, last), self._processes)
        found = False
        with contextlib.closing(ranges) as answers:
            for answer in answers:
                if answer.in_table:
                    break
                self.bytes = self.position = end = answer.end
                if not found:
                    self.reader.lines_read += answer.lines
                    found = any(answer.blocks)
                yield from answer.blocks
        self.reader.move(end)
        file.seek(end)


@contextlib.contextmanager
def open_log(path: Path) -> Iterator[tuple[_File, io.BufferedReader]]:
    """Open a log file, a compressed one as what it holds; a pipe may be one too.

    The second is the file as it lies on the disk. Raises OSError, InputError for a form of
    compression that Python lacks.
    """
    with path.open("rb") as file:
        head = file.peek(6)
        for magic, name in _UNKNOWN.items():
            if head.startswith(magic):
                fix = f"{name} -dc {path} | hpcrun parse -"
                raise InputError(f"{path}: compressed by {name}", fix=fix)
        for magic, decompress in _DECOMPRESS.items():
            if head.startswith(magic):
                with decompress(file) as inside:
                    yield inside, file
                return
        yield file, file


class RangeRows(Struct, frozen=True):
    """The frames of the lines that begin in one range, block by block.

    ``end`` is where the first line of the next range begins; ``in_table``: a table is open there.
    ``lines`` is how many came before the first that measures something.
    """

    blocks: list[list[Frame | Placed]]
    end: int
    in_table: bool
    lines: int


def line_from(file: IO[bytes], offset: int) -> int:
    """Return where the first line begins at ``offset`` or behind; the end of the file, if none.

    >>> import io
    >>> [line_from(io.BytesIO(b"ab\\ncd\\n"), offset) for offset in (0, 1, 3, 4)]
    [0, 3, 3, 6]
    """
    if offset == 0:
        return 0
    place = offset - 1
    file.seek(place)
    while data := file.read(_LOOK_AHEAD):
        ends = [end for mark in (b"\n", b"\r", b"\0") if (end := data.find(mark)) >= 0]
        if ends:
            return place + min(ends) + 1
        place += len(data)
    return place


def can_fork() -> bool:
    """Return whether this process may be copied.

    Not beside other threads, whose locks a copy would keep; nor in a worker of a Pool, which may
    have no children.
    """
    return threading.active_count() == 1 and not multiprocessing.current_process().daemon


def read_ranges(
    path: Path, reader: Reader, numbers: range, processes: int
) -> Generator[RangeRows, None, None]:
    """Yield the rows of each range, in order; stop early where a process cannot go on.

    Each process begins as ``reader`` is now, and so knows the shapes that it knows.
    """
    context = multiprocessing.get_context("fork")
    workers: list[tuple[BaseProcess, Connection]] = []
    try:
        for index in range(min(processes, len(numbers))):
            ours, theirs = context.Pipe(duplex=False)
            not_theirs = [ours, *(end for _, end in workers)]
            part = (path, reader, numbers[index::processes], theirs, not_theirs)
            worker: BaseProcess = context.Process(target=_work, args=part, daemon=True)
            try:
                worker.start()
            except OSError:
                return  # the limit of processes is reached: the log is read by one
            finally:
                theirs.close()
            workers.append((worker, ours))
        for turn in range(len(numbers)):
            # A worker that was killed, for its memory perhaps, leaves half a message at most.
            with contextlib.suppress(EOFError, OSError):
                yield workers[turn % len(workers)][1].recv()
                continue
            return
    finally:
        for worker, ours in workers:
            worker.kill()
            worker.join()
            ours.close()


def _work(
    path: Path,
    reader: Reader,
    numbers: range,
    answers: Connection,
    not_ours: Sequence[Connection],
) -> None:
    """Read ranges and send their rows; the pipe holds back a worker that is ahead."""
    # The caller's handlers are not ours; a Ctrl-C is the caller's to act on.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # As long as somebody holds its other end, a pipe does not break when the caller is gone.
    for end in not_ours:
        end.close()
    with contextlib.suppress(BrokenPipeError), path.open("rb") as file:
        for number in numbers:
            begin, end_of_range = (line_from(file, n * RANGE) for n in (number, number + 1))
            reader.move(begin)
            file.seek(begin)
            blocks = []
            before = reader.lines_read
            while block := file.read(min(end_of_range - begin, BLOCK - begin % BLOCK)):
                blocks.append(reader.feed(block))
                begin += len(block)
            lines = reader.lines_read - before
            answers.send(RangeRows(blocks, end_of_range, reader.in_table, lines))
            if reader.in_table:
                break
    answers.close()
