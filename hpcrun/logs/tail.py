"""Reads logs by offset: the last lines of one, and what was added to many since the last look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    path: Path, count: int, keep: Callable[[bytes], bool] | None = None, *, end: int | None = None
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
        self.is_rewritten = False
        self.is_over = False


class Tail:
    """Makes whole lines of the bytes of many files; remembers how far each was read.

    A line ends at a newline, and so does each state of a progress bar at its carriage return. A
    file that became shorter, or changed where it was read before, is read from its start again.
    ``ends`` returns the offset in new lines at which a file's reading ends for good, or None.
    """

    def __init__(
        self, ends: Callable[[LogFile, bytes], int | None] = lambda file, lines: None
    ) -> None:
        self._ends = ends
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

    def lines(self, file: LogFile, *, is_last: bool = False) -> Iterator[bytes | None]:
        """Give what is new, whole lines a piece; before those of a file that was rewritten None.

        What cannot be read now is left for later; with ``is_last`` nothing comes later.
        """
        place = self._places.setdefault(file.path, _Place())
        while not place.is_over and (data := _new_bytes(file.path, place, is_last=is_last)):
            place.offset += len(data)
            place.seen = (place.seen + data)[-_OVERLAP:]
            # A carriage return at the very end may be half of a CRLF.
            cut = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
            whole = place.rest + data
            if cut:
                cut += len(place.rest)
            elif len(whole) > _LONGEST:
                # Between words: no secret is then cut in two.
                low = len(whole) - _WORD
                cut = max(whole.rfind(blank, low) for blank in (b" ", b",", b"\t")) + 1
                cut = cut or len(whole)
            place.rest = whole[cut:]
            if (end := self._ends(file, whole[:cut])) is not None:
                place.is_over, place.rest, cut = True, b"", end
            if cut:
                if place.is_rewritten:
                    yield None
                place.is_rewritten = False
                yield whole[:cut]

    def rest(self, file: LogFile) -> bytes:
        """Take the begin of a line that nothing will end any more; b"" where there is none."""
        place = self._places.get(file.path, _Place())
        rest, place.rest = place.rest, b""
        return rest + b"\n" if rest else b""


def _new_bytes(path: Path, place: _Place, *, is_last: bool) -> bytes:
    before = len(place.seen)
    try:
        data = read_at(path, place.offset - before, _CHUNK + before)
        if not data.startswith(place.seen):
            place.offset, place.seen, place.rest, before = 0, b"", b"", 0
            place.is_rewritten = True
            data = read_at(path, 0, _CHUNK)
    except OSError:
        return b""
    data = data[before:]
    # A network file system may show a file's new length before its new bytes, as zeros.
    return data if is_last or len(data) == _CHUNK else data.rstrip(b"\0")
