"""Reads on in growing log files, by offset.

Effects: reads files, through a transport.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcrun.logs.files import LogFile
from hpcrun.transport import Transport

_CHUNK = 1 << 20


# A line that is longer is shown in pieces.
_LONGEST = 1 << 20


class Tail:
    """Remembers how far each file was read; gives whole lines, so that files do not mix midway.

    A line ends at a newline, and so does each state of a progress bar at its carriage return. A
    file that became shorter is read from its start again.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.offsets: dict[str, int] = {}
        self.rests: dict[str, bytes] = {}

    def poll(self, files: Sequence[LogFile]) -> Iterator[tuple[LogFile, bytes]]:
        """Give what is new, as (file, whole lines)."""
        for file in files:
            path = str(file.path)
            while True:
                offset = self.offsets.get(path, 0)
                try:
                    data = self.transport.read(path, offset, _CHUNK)
                except FileNotFoundError:
                    break
                if not data:
                    if offset and self.transport.size(path) < offset:
                        self.offsets[path], self.rests[path] = 0, b""
                        continue
                    break
                self.offsets[path] = offset + len(data)
                rest = self.rests.get(path, b"")
                # A carriage return at the very end may be half of a CRLF.
                cut = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
                if not cut and len(rest) + len(data) > _LONGEST:
                    cut = len(data)
                if not cut:
                    self.rests[path] = rest + data
                    continue
                self.rests[path] = data[cut:]
                yield file, rest + data[:cut]

    def finish(self, files: Sequence[LogFile]) -> Iterator[tuple[LogFile, bytes]]:
        """Give what is new, and last lines that nothing will end any more."""
        yield from self.poll(files)
        for file in files:
            rest = self.rests.pop(str(file.path), b"")
            if rest:
                yield file, rest + b"\n"
