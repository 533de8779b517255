"""Reads on in growing log files, by offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hpcrun.logs.files import LogFile
from hpcrun.transport import Transport

_CHUNK = 1 << 20
# A line that is longer is shown in pieces.
_LONGEST = 1 << 20
# Each look begins so many bytes before what is new: where they are others, it is another file.
_OVERLAP = 64
# A piece of a long line ends between words, where there are any in so many bytes.
_WORD = 1 << 12


class _Place:
    """How far a file was read: the offset, what stands before it, and the begin of a line."""

    def __init__(self, offset: int = 0, seen: bytes = b"") -> None:
        self.offset = offset
        self.seen = seen
        self.rest = b""
        self.is_over = False


class Tail:
    """Remembers how far each file was read; gives whole lines, so that files do not mix midway.

    A line ends at a newline, and so does each state of a progress bar at its carriage return. A
    file that became shorter, or has other words where it was read before, is read from its start
    again; its path is then in ``begun_anew`` until somebody takes it out. ``ends`` tells where in
    new lines a file's reading ends for good, None: not there.
    """

    def __init__(
        self,
        transport: Transport,
        ends: Callable[[LogFile, bytes], int | None] = lambda file, lines: None,
    ) -> None:
        self.transport = transport
        self._ends = ends
        self.begun_anew: set[str] = set()
        self._places: dict[str, _Place] = {}

    def start(self, file: LogFile, offset: int) -> None:
        """Leave out what stands before ``offset`` (bytes)."""
        path = str(file.path)
        first = max(0, offset - _OVERLAP)
        try:
            seen = self.transport.read(path, first, offset - first)
        except OSError:
            return  # it comes later, and is then read whole
        if len(seen) == offset - first:
            self._places[path] = _Place(offset, seen)

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
            place = self._places.get(str(file.path))
            if place is not None and place.rest:
                rest, place.rest = place.rest, b""
                yield file, rest + b"\n"

    def _news(self, file: LogFile, *, is_last: bool = False) -> Iterator[bytes]:
        path = str(file.path)
        place = self._places.setdefault(path, _Place())
        while not place.is_over and (data := self._read_on(path, place, is_last=is_last)):
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

    def _read_on(self, path: str, place: _Place, *, is_last: bool) -> bytes:
        before = len(place.seen)
        try:
            data = self.transport.read(path, place.offset - before, _CHUNK + before)
            if not data.startswith(place.seen):
                self.begun_anew.add(path)
                place.offset, place.seen, place.rest, before = 0, b"", b"", 0
                data = self.transport.read(path, 0, _CHUNK)
        except OSError:
            return b""
        data = data[before:]
        # A network file system may show a file's new length before its new bytes, as zeros.
        return data if is_last or len(data) == _CHUNK else data.rstrip(b"\0")


def _between_words(line: bytes) -> int:
    """Where to cut a long line: no secret is then cut in two."""
    low = len(line) - _WORD
    return max(line.rfind(b" ", low), line.rfind(b",", low), line.rfind(b"\t", low)) + 1 or len(
        line
    )
