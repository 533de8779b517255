"""Finds where in a log a time begins: by the stamps of its lines, else by the file's own."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import BinaryIO

from hpcrun.metrics.lines.prefixes import find_time, read_time

_BLOCK = 1 << 16
_DAY = 86400.0


def start_since(path: Path, since: float) -> int:
    """Return the offset (bytes) of the first line that is not older; the size: none is.

    Lines are in the order of time. Where the last lines have no stamps the file counts as a whole,
    by when it was written last. Raises OSError.
    """
    info = path.stat()
    if info.st_mtime < since:
        return info.st_size
    with path.open("rb") as file:
        log = _Stamps(file, info.st_size, info.st_mtime)
        if log.first_from(max(0, info.st_size - _BLOCK)) is None:
            return 0
        low = info.st_size
        if not log.knows_date and since < info.st_mtime - 0.8 * _DAY:
            low = 0  # such stamps repeat each day
        while low > 0:
            low = max(0, low - 4 * _BLOCK)
            found = log.first_from(low)
            if found is not None and found[1] < since:
                break
        while (found := log.first_from(low)) is not None:
            at, stamp, end = found
            if stamp >= since:
                return 0 if at == log.begin else at
            low = end
        return info.st_size


class _Stamps:
    """Reads the time stamps of one log's lines."""

    def __init__(self, file: BinaryIO, size: int, written: float) -> None:
        self.file, self.size, self.written = file, size, written
        self.knows_date = True  # until a stamp without one is read
        # The first stamp's own place: banners before it belong to it.
        first = self.first_from(0)
        self.begin = first[0] if first else 0

    def first_from(self, offset: int) -> tuple[int, float, int] | None:
        """Return the first line with a stamp from an offset on: its begin, its time, its end."""
        self.file.seek(offset)
        at = offset
        if offset:
            self.file.seek(offset - 1)
            at = offset - 1 + len(self.file.readline(_BLOCK))
        while at < min(self.size, offset + 2 * _BLOCK):
            line = self.file.readline(_BLOCK)
            if not line:
                return None
            stamp = self._time(line[:400].decode("utf-8", "replace"))
            if stamp is not None:
                return at, stamp, at + len(line)
            at += len(line)
        return None

    def _time(self, line: str) -> float | None:
        """The time of a line, in seconds since the epoch; what the stamp lacks the file tells."""
        span = find_time(line)
        seconds = read_time(line) if span else None
        if span is None or seconds is None:
            return None
        stamp = line[slice(*span)]
        if re.search(r"(Z|[+-]\d\d:?\d\d|UTC.*)\s*$", stamp) and seconds > 400 * _DAY:
            return seconds
        try:
            return self._local(stamp, seconds)
        except (ValueError, OverflowError, OSError):
            return None

    def _local(self, stamp: str, seconds: float) -> float:
        fields = time.gmtime(seconds)
        part = seconds % 1
        if seconds > 400 * _DAY:
            return time.mktime((*fields[:6], 0, 0, -1)) + part
        written = time.localtime(self.written)
        if re.match(r"\d\d:\d\d:\d\d", stamp):
            self.knows_date = False
            date, step = written[:3], _DAY
        else:
            # Days were counted from the begin of a leap year, as 1972 was.
            fields = time.gmtime(seconds + 730 * _DAY)
            date, step = (written[0], fields[1], fields[2]), 365.25 * _DAY
        found = time.mktime((*date, *fields[3:6], 0, 0, -1)) + part
        return found if found <= self.written + 3600 else found - step
