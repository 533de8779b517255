"""Reads on in growing log files, by offset.

Effects: reads files, through a transport.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcrun.logs.files import LogFile
from hpcrun.transport import Transport

_CHUNK = 1 << 20


class Tail:
    """Remembers how far each file was read; gives whole lines, so that files do not mix midway.

    A line ends at a newline; a progress bar's carriage return does not end it. A file that became
    shorter is read from its start again.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.offsets: dict[str, int] = {}
        self.rests: dict[str, bytes] = {}

    def poll(self, files: Sequence[LogFile]) -> Iterator[tuple[LogFile, bytes]]:
        """Give what is new, as (file, whole lines)."""
        for file in files:
            path = str(file.path)
            offset = self.offsets.get(path, 0)
            while True:
                try:
                    data = self.transport.read(path, offset, _CHUNK)
                except FileNotFoundError:
                    break
                if not data:
                    if offset and self.transport.size(path) < offset:
                        offset, self.rests[path] = 0, b""
                        continue
                    break
                offset += len(data)
                lines, newline, rest = (self.rests.get(path, b"") + data).rpartition(b"\n")
                self.rests[path] = rest
                if newline:
                    yield file, lines + newline
            self.offsets[path] = offset

    def finish(self, files: Sequence[LogFile]) -> Iterator[tuple[LogFile, bytes]]:
        """Give what is new, and last lines that nothing will end any more."""
        yield from self.poll(files)
        for file in files:
            rest = self.rests.pop(str(file.path), b"")
            if rest:
                yield file, rest + b"\n"
