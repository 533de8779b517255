"""Lines of logs on the terminal, in a pipe, or as JSON: prefixed, filtered, without secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from hpcrun.cli.output import emit_bytes, has_colour, is_terminal
from hpcrun.controller.logs import Lines
from hpcrun.logs.files import LogFile
from hpcrun.secrets.mask import FileMasker, Masker

_RESET = b"\x1b[0m"
# Of a progress bar each state is a line, where lines are counted one by one.
_STATES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class LogPrinter:
    """Shows what comes of logs; knows where each line of each file stands.

    ``masker`` None shows all as it is, control characters included. ``keeps`` picks lines.
    """

    def __init__(
        self,
        masker: Masker | None,
        *,
        as_json: bool = False,
        keeps: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._masker = masker
        self._as_json = as_json
        self._keeps = keeps
        self._is_terminal = is_terminal()
        self._colours = has_colour()
        self._maskers: dict[Path, FileMasker] = {}
        self._last: Path | None = None
        self._end = b"\n"

    def show(self, event: Lines) -> None:
        """Show lines, under their heading if they have one."""
        if event.heading:
            self.pause()
            if not self._as_json:
                whose = f"task {event.file.task}: " if event.file.task else ""
                emit_bytes(f"==> {whose}{event.heading} <==\n".encode("utf-8", "surrogateescape"))
        if not event.data:
            return
        data, path = event.data, event.file.path
        if self._masker is not None:
            data = self._maskers.setdefault(path, FileMasker(self._masker)).mask(data)
        if self._as_json:
            lines = [_as_json(event.file, line) for line in self._kept(data)]
            emit_bytes("".join(lines).encode())
            return
        if self._keeps is not None:
            data = b"".join(
                line if line.endswith((b"\n", b"\r")) else line + b"\n" for line in self._kept(data)
            )
        if self._last not in (None, path):
            # Bars of several ranks take turns in one row.
            self._end_line(ends=b"\n\r")
        self._last = path
        if self._masker is not None and self._is_terminal:
            from hpcrun.logs.terminal import for_terminal  # here: in a pipe nothing is cleaned

            data = for_terminal(data, colours=self._colours)
        if data:
            emit_bytes(prefixed(data, event.file.prefix))
            self._end = data[-1:]

    def show_all(self, events: Iterable[Lines]) -> bool:
        """Show what comes, to its end; return whether anything came."""
        has_any = False
        try:
            for event in events:
                has_any = True
                self.show(event)
        finally:
            self.pause()
        return has_any

    def pause(self) -> None:
        """Other text follows: what a line left open, or a bar, ends here, and so do colours."""
        self._end_line(ends=b"\n")

    def _end_line(self, *, ends: bytes) -> None:
        if self._last is not None and self._is_terminal and self._colours and self._masker:
            emit_bytes(_RESET)
        if self._end not in ends:
            emit_bytes(b"\n")
            self._end = b"\n"
        self._last = None

    def _kept(self, data: bytes) -> Iterator[bytes]:
        for found in _STATES.finditer(data):
            if self._keeps is None or self._keeps(found.group()):
                yield found.group()


def prefixed(data: bytes, prefix: str) -> bytes:
    """Put a prefix before each line, and before each state of a progress bar."""
    if not prefix:
        return data
    head = prefix.encode()
    return b"".join(head + found.group() for found in _STATES.finditer(data))


def _as_json(file: LogFile, line: bytes) -> str:
    """One line as a JSON object on a line of its own; in ASCII, whatever the locale."""
    value = {
        "job": file.job_id,
        "task": int(file.task) if file.task.isdigit() else None,
        "attempt": file.attempt,
        "node": file.node,
        "rank": file.rank,
        "stream": "stderr" if file.is_err else None,
        "file": str(file.path),
        "line": line.rstrip(b"\r\n").decode("utf-8", "replace"),
    }
    return json.dumps(value) + "\n"
