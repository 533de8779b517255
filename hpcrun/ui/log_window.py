"""Read a few hundred lines of a log of any size by offset, and search in it."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from hpcrun.files import open_plain
from hpcrun.secrets import Masker

# A window has at most this many lines and bytes; a longer line is truncated.
MAX_LINES, _MAX_BYTES, _MAX_LINE_BYTES = 400, 1 << 19, 1 << 13
# Text before a window that is searched for secrets which began there, such as private keys.
_CONTEXT_BYTES = 1 << 13
_CHUNK_BYTES = 1 << 22


class LogWindow(Struct, frozen=True, kw_only=True):
    """Consecutive lines of a log.

    Attributes:
        begin: Offset of the first line.
        end: Offset after the last line.
        size: The size of the file.
        lines: The lines without their ends, masked, with their escape sequences.
    """

    begin: int
    end: int
    size: int
    lines: list[str]


def read_window(path: Path, masker: Masker, at: int, *, before: bool = False) -> LogWindow:
    """Read the lines that follow an offset, or those ``before`` it.

    An offset within a line means the begin of that line; -1 means the end of the file.

    Raises OSError.
    """
    with open_plain(path) as file:
        size = file.seek(0, 2)
        at = size if at < 0 else min(at, size)
        if at < size:
            at = _find_line_begin(file, at)
        begin = max(0, at - _MAX_BYTES) if before else at
        file.seek(begin)
        data = file.read(at - begin if before else _MAX_BYTES)
        if before:
            # Drop the incomplete first line, and all but the last lines.
            if begin > 0:
                data = data[data.find(b"\n") + 1 :]
            data = b"".join(data.splitlines(keepends=True)[-MAX_LINES:]) if data else data
            begin = at - len(data)
        else:
            lines = data.split(b"\n")
            kept = b"\n".join(lines[:MAX_LINES])
            is_cut = len(lines) > MAX_LINES
            if is_cut:
                data = kept + b"\n"
            elif begin + len(data) < size and b"\n" in data:
                data = data[: data.rfind(b"\n") + 1]
        file.seek(max(0, begin - _CONTEXT_BYTES))
        context = file.read(begin - max(0, begin - _CONTEXT_BYTES))
    end = begin + len(data)
    shown = masker.mask(data, context)
    rows = shown.split(b"\n")
    if rows and not rows[-1]:
        rows.pop()
    return LogWindow(begin=begin, end=end, size=size, lines=[_decode(row) for row in rows])


def _decode(row: bytes) -> str:
    """Decode a line; of a progress bar that redraws itself, only its last state.

    >>> _decode(b"10%\\r100%\\r"), _decode(b"a\\xff")
    ('100%', 'a\\ufffd')
    """
    row = row.rstrip(b"\r")
    row = row[row.rfind(b"\r") + 1 :]
    if len(row) > _MAX_LINE_BYTES:
        row = row[:_MAX_LINE_BYTES] + f" ... ({len(row):,} bytes)".encode()
    return row.decode("utf-8", "replace")


def _find_line_begin(file: BinaryIO, at: int) -> int:
    """Return the offset of the begin of the line at an offset, within the largest window."""
    first = max(0, at - _MAX_BYTES)
    file.seek(first)
    found = file.read(at - first).rfind(b"\n")
    return first + found + 1 if found >= 0 or first == 0 else at


def find_text(path: Path, text: str, at: int, *, backward: bool = False) -> int | None:
    """Return the offset of the next occurrence of a text from an offset on, or before it.

    A text without capital letters matches both cases. Raises OSError.
    """
    needle = text.encode("utf-8", "replace")
    ignores_case = needle == needle.lower()
    overlap = max(len(needle) - 1, 0)
    with open_plain(path) as file:
        size = file.seek(0, 2)
        at = size if at < 0 else min(at, size)
        while needle:
            begin = max(0, at - _CHUNK_BYTES) if backward else at
            file.seek(begin)
            data = file.read(min(_CHUNK_BYTES, at - begin) + overlap if backward else _CHUNK_BYTES)
            if ignores_case:
                data = data.lower()
            # An occurrence that is found backward begins before the offset.
            found = data.rfind(needle, 0, at - begin + overlap) if backward else data.find(needle)
            if found >= 0:
                return begin + found
            if backward:
                if begin == 0:
                    return None
                at = begin
            elif begin + len(data) >= size or len(data) <= overlap:
                return None
            else:
                at = begin + len(data) - overlap
    return None
