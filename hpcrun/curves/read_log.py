"""Read a log file: plain or compressed, once, as it grows, or from the samples kept of it."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import os
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO
from zlib import crc32

from msgspec import MsgspecError, Struct, msgpack

from hpcrun.curves.lines.formats import LineFormat
from hpcrun.curves.lines.formats.known import FORMATS
from hpcrun.curves.lines.log_reader import BLOCK_BYTES, LONGEST_LINE_BYTES, LogReader
from hpcrun.curves.row import Frame, Mark
from hpcrun.curves.store import Store, StoredLog
from hpcrun.errors import InputError
from hpcrun.files import read_plain, replace_atomically
from hpcrun.version import __version__

Pieces = list[Frame | Mark]
_OpenFile = io.BufferedReader | io.BufferedIOBase | codecs.StreamRecoder
_DECOMPRESSION_ERRORS = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)

# Samples of shorter logs are not kept: reading the log again takes less than a tenth of a second.
KEEP_SAMPLES_ABOVE_BYTES = 1 << 22
# CPU seconds for one block of a log. A user's own pattern may backtrack almost without end.
PATTERN_LIMIT_CPU_S = 20.0
# First bytes of a file -> its decoder, or the name of a program where Python has no decoder.
# UTF-16 is what PowerShell's > writes.
_DECODERS: dict[bytes, Callable[[IO[bytes]], io.BufferedIOBase | codecs.StreamRecoder] | str] = {
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
    """A log file; iterating over it yields its rows and marks, block by block.

    Attributes:
        bytes: number of decompressed bytes read so far.
        position: offset in the file itself, which may be compressed.
        inode: inode of the file that was read.
        notes: messages for the user about the file.
    """

    def __init__(
        self,
        path: Path,
        *,
        formats: Sequence[LineFormat] = FORMATS,
        offset: int = 0,
        kept: Path | None = None,
    ) -> None:
        """Create a reader; the file is opened when it is read.

        Args:
            path: the log file, or a pipe.
            formats: line formats, a job's own first.
            offset: byte to start at; a line must begin there.
            kept: cache file for the samples of a long log. It is used instead of the log as long as
                the log does not change.
        """
        self.path, self._formats, self._kept = path, formats, kept
        self.reader = LogReader(offset, formats)
        self.bytes = self.position = offset
        self.inode = 0
        self.notes: tuple[str, ...] = ()

    @property
    def lines(self) -> int:
        """Number of lines up to the first one that measures something."""
        return self.reader.lines_read

    def read_new(self) -> Iterator[Pieces]:
        """Yield the rows appended since the last call; an incomplete last line is deferred.

        Raises:
            OSError: The file cannot be read.
            InputError: The file is compressed.
        """
        with _open_log(self.path) as (file, raw):
            if file is not raw:
                fix = f"hpcrun parse {self.path}"
                raise InputError(f"{self.path}: only plain text can be followed", fix=fix)
            status = os.fstat(raw.fileno())
            self.inode = status.st_ino
            if self.bytes:
                raw.seek(self.bytes)
            # Stop at the present size: the file may grow as fast as it is read.
            blocks = self._read_blocks(raw, raw, status.st_size - self.bytes)
            yield from map(self.reader.feed, blocks)

    def __iter__(self) -> Iterator[Pieces]:
        """Yield the rows of each block of the file.

        Raises:
            InputError: The file cannot be read.
        """
        try:
            with _open_log(self.path) as (file, raw):
                status = os.fstat(raw.fileno())
                self.inode = status.st_ino
                if self.bytes and file is raw:
                    raw.seek(self.bytes)
                if self._kept is None:
                    yield from self.reader.read(self._read_blocks(file, raw))
                elif known := _load_samples(self._kept, key := _key_of(status, self._formats)):
                    self.bytes = self.position = known.bytes
                    self.reader.lines_read = known.lines
                    yield [*known.marks, *known.laps, *known.stamps, *known.forms]
                else:
                    store = Store()
                    store.begin(0)
                    for pieces in self.reader.read(self._read_blocks(file, raw)):
                        store.add(pieces)
                        yield pieces
                    if self.bytes >= KEEP_SAMPLES_ABOVE_BYTES and not any(store.notes()):
                        _save_samples(self._kept, key, self, store.logs[0])
        except _DECOMPRESSION_ERRORS as error:
            if not self.bytes:
                raise InputError(f"{self.path}: {error}") from error
            # A log that is compressed while it is written has no end if its job was killed.
            self.notes = (f"{self.path}: the compressed data is cut off: {error}",)
            yield self.reader.finish()
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror or error}") from error

    def _read_blocks(
        self, file: _OpenFile, raw: io.BufferedReader, size: int = sys.maxsize
    ) -> Iterator[bytes]:
        """Yield the next ``size`` bytes of a file, or all of it, in blocks."""
        # Unlike read, read1 of damaged compressed data returns what precedes the damage.
        read = file.read1 if isinstance(file, io.BufferedIOBase) and file is not raw else file.read
        while size > 0 and (data := read(min(size, BLOCK_BYTES))):
            size -= len(data)
            self.bytes += len(data)
            self.position = raw.tell() if raw.seekable() else 0
            yield data


# ---- samples kept of long logs

# Size of the samples of a log of several GB.
_MAX_KEPT_BYTES = 1 << 31


class _KeptSamples(Struct):
    """Everything that was read from a log."""

    bytes: int
    lines: int
    forms: list[Frame]
    marks: list[Mark]
    stamps: list[Mark]
    laps: list[Mark]


def _key_of(status: os.stat_result, formats: Sequence[LineFormat]) -> int:
    """Return a checksum that changes with the log, its formats and hpcrun's own code."""
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    code = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    own = [(form.name, form.pattern.pattern) for form in formats[: -len(FORMATS)]]
    log = status.st_ino, status.st_size, status.st_mtime_ns
    return crc32(repr((__version__, sys.byteorder, code, own, log)).encode())


def _load_samples(kept: Path, key: int) -> _KeptSamples | None:
    """Load kept samples; return None if they are corrupt or belong to another log."""
    with contextlib.suppress(OSError, MsgspecError):
        data = memoryview(read_plain(kept, _MAX_KEPT_BYTES))
        if crc32(data[4:], key) == int.from_bytes(data[:4], "big"):
            return msgpack.decode(data[4:], type=_KeptSamples, dec_hook=lambda _, c: array(*c))
    return None


def _save_samples(kept: Path, key: int, read: LogFileReader, log: StoredLog) -> None:
    """Save samples, unless the disk is full."""
    known = {"bytes": read.bytes, "lines": read.lines, "marks": log.marks, "stamps": log.stamps}
    known["laps"] = log.laps
    known["forms"] = list(log.forms.values())
    with contextlib.suppress(OSError, ValueError, OverflowError):
        data = msgpack.encode(known, enc_hook=lambda column: (column.typecode, column.tobytes()))
        with replace_atomically(kept, 0o600) as out:
            out.write(crc32(data, key).to_bytes(4, "big") + data)


@contextlib.contextmanager
def _open_log(path: Path) -> Iterator[tuple[_OpenFile, io.BufferedReader]]:
    """Open a log file or pipe; yield its decompressed text and the raw file.

    Raises:
        OSError: The file cannot be opened.
        InputError: Python does not support the compression format.
    """
    with path.open("rb") as file:
        head = file.peek(6)
        decode = next((_DECODERS[each] for each in _DECODERS if head.startswith(each)), None)
        if isinstance(decode, str):
            fix = f"{decode} -dc {path} | hpcrun parse -"
            raise InputError(f"{path}: compressed by {decode}", fix=fix)
        if decode is None:
            yield file, file
            return
        with decode(file) as inside:
            yield inside, file


def read_beginning(path: Path, size: int) -> bytes:
    """Read the first bytes of a log, decompressed; without any if it cannot be read."""
    with (
        contextlib.suppress(OSError, InputError, *_DECOMPRESSION_ERRORS),
        _open_log(path) as (
            file,
            _,
        ),
    ):
        return file.read(size)
    return b""


def find_line_start(file: IO[bytes], offset: int) -> int:
    """Return where the line containing byte ``offset`` starts; a too long line counts as several.

    >>> import io
    >>> [find_line_start(io.BytesIO(b"ab\\ncd\\n"), offset) for offset in (0, 1, 3, 4, 6)]
    [0, 0, 3, 3, 6]
    """
    start = max(0, offset - LONGEST_LINE_BYTES - 1)
    file.seek(start)
    before = file.read(offset - start)
    end = max(before.rfind(mark) for mark in (b"\n", b"\r", b"\0"))
    return start + end + 1
