"""Reads on in the logs of one curve: each look costs only the new bytes."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from pathlib import Path

from hpcrun.controller.curves.parse import (
    POINTS,
    STDIN,
    Source,
    file_choices,
    formats_of,
    with_facts,
)
from hpcrun.errors import InputError
from hpcrun.logs.files import log_files
from hpcrun.logs.tail import read_at
from hpcrun.metrics.curve import Curve
from hpcrun.metrics.derive import derive
from hpcrun.metrics.lines.line import FORMATS, Format
from hpcrun.metrics.names import LOSS
from hpcrun.metrics.parse import ParsedRun, parse_stored
from hpcrun.metrics.reading.read import Reader
from hpcrun.metrics.store import Store

_CHUNK = 1 << 20
# While no rank has logged a loss, the ranks are compared again when the logs are longer by this.
_LONGER = 1.2
# Where only the ends of logs are read, at most this many are read at once.
_FEW = 16
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")


class GrowingLog:
    """The logs of one curve, and how far they were read.

    ``is_over``: nothing can follow (the end of a pipe). A file that became shorter is read from its
    start again, and with it the whole curve. What an attempt writes after the next one has begun
    is left out.
    """

    def __init__(
        self, source: Source, own: Sequence[Format] = (), *, tail: int | None = None
    ) -> None:
        """Begin at the start of the logs, or ``tail`` bytes before their ends; nothing is read yet.

        With ``tail`` it leaves out what needs many files, so that a look at a run stays cheap.
        """
        self.source = source
        self._tail = tail
        self.is_over = False
        self.is_pipe = STDIN in source.files
        if source.run is not None:
            own = (*own, *formats_of(source.run))
        self._formats = (*own, *FORMATS) if own else FORMATS
        # Which of a run's files are read (file_choices), and at what size that was asked last.
        self._choice = 0
        self._is_decided = source.run is None
        self._asked_at = 0.0
        self._begin()

    def look(self) -> bool:
        """Read what is new; return whether there was anything."""
        grew = self._read_on()
        if not self._is_decided and self._size >= self._asked_at * _LONGER:
            before = self._size
            self._decide()
            grew |= self._size != before
        return grew

    def is_missing(self) -> bool:
        """Return whether none of its files is there: a job's, that waits or never began."""
        return self.source.run is None and not any(path.exists() for path in self.source.files)

    def run(self) -> ParsedRun:
        """Return the run as it is known so far."""
        lines = sum(reader.lines_read for reader in self._readers.values())
        parsed = parse_stored(
            self.source.name,
            self._store,
            limit=POINTS,
            files=len(self._readers),
            lines=lines,
            size=self._size,
        )
        if self.source.run is None:
            return parsed
        return with_facts(parsed, self.source.run)

    def curve(self) -> Curve:
        """Return the curve as it is known so far."""
        return derive(self._store, POINTS)

    def _begin(self) -> None:
        self._store = Store()
        self._attempt = 0
        self._readers: dict[Path, Reader] = {}
        self._offsets: dict[Path, int] = {}

    @property
    def _size(self) -> int:
        return sum(self._offsets.values())

    def _read_on(self) -> bool:
        """Read to the present ends of the files."""
        grew = False
        for attempt, path in self._files():
            while attempt >= self._attempt and (data := self._read(path)):
                grew = True
                if path not in self._readers:
                    if data.startswith(_COMPRESSED):
                        fix = f"hpcrun parse {path}"
                        raise InputError(f"{path}: compressed, so it does not grow", fix=fix)
                    self._readers[path] = Reader(formats=self._formats)
                    self._attempt = attempt
                self._offsets[path] = self._offsets.get(path, 0) + len(data)
                self._store.begin(attempt, list(self._readers).index(path))
                self._store.add(self._readers[path].feed(data))
        return grew

    def _files(self) -> list[tuple[int, Path]]:
        if self.source.run is None:
            return [(0, path) for path in self.source.files]
        chosen = file_choices(log_files(self.source.run))[self._choice]
        return [(file.attempt or 0, file.path) for file in chosen]

    def _read(self, path: Path) -> bytes:
        if path == STDIN:
            return self._read_pipe()
        try:
            offset = self._offsets.get(path)
            if offset is None:
                offset = self._offsets[path] = self._start(path)
            data = read_at(path, offset, _CHUNK)
            if not data and offset and path.stat().st_size < offset:
                self._begin()
                data = read_at(path, 0, _CHUNK)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        return data

    def _start(self, path: Path) -> int:
        """Return where to begin: at a line's start."""
        size = path.stat().st_size
        if self._tail is None or size <= self._tail:
            return 0
        start = size - self._tail
        return start + read_at(path, start, _CHUNK).find(b"\n") + 1

    def _read_pipe(self) -> bytes:
        if self.is_over or not select.select([0], [], [], 0)[0]:
            return b""
        data = os.read(0, _CHUNK)
        if not data:
            self.is_over = True
            for reader in self._readers.values():
                self._store.add(reader.finish())
        return data

    def _decide(self) -> None:
        """Find which files have the loss, as ``parse_source`` does; until then all are read."""
        assert self.source.run is not None
        for choice, files in enumerate(file_choices(log_files(self.source.run))):
            if self._tail is not None and len(files) > _FEW:
                continue
            if choice != self._choice:
                self._choice = choice
                self._begin()
                self._read_on()
            if LOSS in derive(self._store, POINTS).metrics:
                self._is_decided = True
                break
        self._asked_at = self._size
