"""Reads logs by offset: the last lines of one, and what was added to many since the last look."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hpcrun.logs.files import LogFile

_CHUNK = 1 << 20
# A longer line is returned in pieces.
_LONGEST = 1 << 20
# Each read begins this many bytes before the new ones: if they changed, it is another file.
_OVERLAP = 64
# A piece of a long line ends between words, if there are any in its last bytes.
_WORD = 1 << 12
# Of what size pieces are read from the end: the first and the largest.
_BLOCKS = (1 << 16, 1 << 22)


def read_at(path: str | Path, offset: int, limit: int) -> bytes:
    """Read up to ``limit`` bytes from ``offset``; empty at the end. Raises OSError."""
    with open(path, "rb") as file:  # noqa: PTH123 - a str of any bytes, opened in the hot loop
        file.seek(offset)
        return file.read(limit)


def start_of_last(
    path: Path,
    count: int,
    keep: Callable[[bytes], bool] | None = None,
    *,
    end: int | None = None,
) -> int:
    """Return the offset (bytes) at which the last ``count`` lines begin; 0 if there are fewer.

    Lines end at newlines; one without an end counts too. With ``keep`` only the lines for which it
    is true count; with ``end`` those before that offset. Raises OSError.
    """
    end = path.stat().st_size if end is None else end
    if count == 0:
        return end
    block, rest, is_last, found = _BLOCKS[0], b"", True, 0
    while end > 0:
        first = max(0, end - block)
        data = read_at(path, first, end - first) + rest
        # ``rest`` is the begin of a line whose end was in the block after.
        at = len(data)
        if is_last and data.endswith(b"\n"):
            at -= 1
        is_last = False
        while (newline := data.rfind(b"\n", 0, at)) >= 0:
            if keep is None or keep(data[newline + 1 : at]):
                found += 1
                if found == count:
                    return first + newline + 1
            at = newline
        # Without a test the text of a line does not matter, however long it is.
        rest = data[:at] + b"\n" if keep is not None else b""
        is_last = keep is not None
        end, block = first, min(2 * block, _BLOCKS[1])
    return 0


class _Place:
    """How far a file was read: the offset, the bytes before it, and the begin of a line."""

    def __init__(self, offset: int = 0, seen: bytes = b"") -> None:
        self.offset = offset
        self.seen = seen
        self.rest = b""
        self.is_over = False


class Tail:
    """Remembers how far each file was read; gives whole lines, so that files do not mix midway.

    A line ends at a newline, and so does each state of a progress bar at its carriage return. A
    file that became shorter, or changed where it was read before, is read from its start again;
    its path is then in ``rewritten`` until the caller takes it out. ``ends`` returns the offset in
    new lines at which a file's reading ends for good, or None.
    """

    def __init__(
        self, ends: Callable[[LogFile, bytes], int | None] = lambda file, lines: None
    ) -> None:
        self._ends = ends
        self.rewritten: set[Path] = set()
        self._places: dict[Path, _Place] = {}

    def start(self, file: LogFile, offset: int) -> None:
        """Leave out what stands before ``offset`` (bytes)."""
        first = max(0, offset - _OVERLAP)
        try:
            seen = read_at(file.path, first, offset - first)
        except OSError:
            return  # it comes later, and is then read whole
        if len(seen) == offset - first:
            self._places[file.path] = _Place(offset, seen)

    def poll(self, files: Sequence[LogFile]) -> Iterator[tuple[LogFile, bytes]]:
        """Give what is new, as (file, whole lines). What cannot be read now is left for later."""
        for file in files:
            for data in self._news(file):
                yield file, data

    def finish(self, files: Sequence[LogFile]) -> Iterator[tuple[LogFile, bytes]]:
        """Give what is new, and last lines that nothing will end any more."""
        for file in files:
            for data in self._news(file, is_last=True):
                yield file, data
        for file in files:
            place = self._places.get(file.path)
            if place is not None and place.rest:
                rest, place.rest = place.rest, b""
                yield file, rest + b"\n"

    def _news(self, file: LogFile, *, is_last: bool = False) -> Iterator[bytes]:
        place = self._places.setdefault(file.path, _Place())
        while not place.is_over and (data := self._read_on(file.path, place, is_last=is_last)):
            place.offset += len(data)
            place.seen = (place.seen + data)[-_OVERLAP:]
            # A carriage return at the very end may be half of a CRLF.
            cut = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
            whole = place.rest + data
            if cut:
                cut += len(place.rest)
            elif len(whole) > _LONGEST:
                cut = _between_words(whole)
            place.rest = whole[cut:]
            if (end := self._ends(file, whole[:cut])) is not None:
                place.is_over, place.rest, cut = True, b"", end
            if cut:
                yield whole[:cut]

    def _read_on(self, path: Path, place: _Place, *, is_last: bool) -> bytes:
        before = len(place.seen)
        try:
            data = read_at(path, place.offset - before, _CHUNK + before)
            if not data.startswith(place.seen):
                self.rewritten.add(path)
                place.offset, place.seen, place.rest, before = 0, b"", b"", 0
                data = read_at(path, 0, _CHUNK)
        except OSError:
            return b""
        data = data[before:]
        # A network file system may show a file's new length before its new bytes, as zeros.
        return data if is_last or len(data) == _CHUNK else data.rstrip(b"\0")


def _between_words(line: bytes) -> int:
    """Return where to cut a long line: no secret is then cut in two."""
    low = len(line) - _WORD
    return max(line.rfind(b" ", low), line.rfind(b",", low), line.rfind(b"\t", low)) + 1 or len(
        line
    )
