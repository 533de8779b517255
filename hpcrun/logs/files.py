"""Which files are a run's log, and where in the batch script's, one for all, an attempt begins."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, structs

from hpcrun.runs.layout import RunFolder

# Without ^, which would be tried at each byte of a long log; the first word is searched for.
_BEGINS = re.compile(rb"hpcrun: attempt (\d+) (?:of job \S+ )?begins on ")


class LogFile(Struct, frozen=True):
    """One log file: a rank's, a node's (its launcher's), or the batch script's own.

    The batch script's has no ``attempt``: it is one for all. ``task`` is the number in the sweep or
    array, if several tasks are shown together; ``is_err``: the file is for stderr alone.
    """

    path: Path
    attempt: int | None = None
    node: int | None = None
    rank: int | None = None
    job_id: str | None = None
    task: str = ""
    is_err: bool = False

    @property
    def prefix(self) -> str:
        """The prefix of lines where several files are shown as one; rank 0 has none.

        >>> LogFile(Path("x"), 0, node=1, rank=3, task="7").prefix
        '[task7 rank3]: '
        >>> LogFile(Path("x"), 0, node=2).prefix
        'node2: '
        """
        if not self.task and not self.is_err and not self.rank:
            return f"node{self.node}: " if self.node else ""
        parts = [f"task{self.task}"] if self.task else []
        if self.rank:
            parts.append(f"rank{self.rank}")
        elif self.node:
            parts.append(f"node{self.node}")
        if self.is_err:
            parts.append("stderr")
        return f"[{' '.join(parts)}]: "


def log_files(run: RunFolder) -> list[LogFile]:
    """List a run's logs: attempt by attempt the ranks, then the nodes; last the batch script's.

    The messages of the harness and of Slurm on the job's end are in that one.
    """
    found = []
    for attempt in filter(str.isdigit, _names(run.logs)):
        for name in _names(run.logs / attempt):
            match = re.fullmatch(r"(node|rank)-(\d+)\.log", name)
            if match:
                file = LogFile(run.logs / attempt / name, int(attempt))
                found.append(structs.replace(file, **{match[1]: int(match[2])}))
    found.sort(key=lambda f: (f.attempt or 0, f.rank is None, (f.node or 0) + (f.rank or 0)))
    return found + ([LogFile(run.batch_log)] if run.batch_log.exists() else [])


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def part_of(text: bytes | memoryview, attempt: int) -> tuple[int, int]:
    """Return the offsets at which an attempt begins and ends in a log; -1 is the last attempt.

    A log without any begin is all of it; an attempt after the last one begins at the log's end.

    >>> part_of(b"hpcrun: attempt 0 begins on n1\\nhpcrun: attempt 1 begins on n1\\n", 0)
    (0, 31)
    """
    begins = dict(_begins(text))
    if not begins:
        return 0, len(text)
    if attempt < 0:
        attempt = max(begins)
    later = [at for number, at in begins.items() if number > attempt]
    end = min(later, default=len(text))
    return begins.get(attempt, 0 if later else end), end


def end_in(data: bytes, attempt: int) -> int | None:
    """Return the offset in new lines at which a later attempt begins; None if none does."""
    return next((at for number, at in _begins(data) if number > attempt), None)


def _begins(text: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Give the number of each attempt that begins, and the offset of the line that reports it."""
    for found in _BEGINS.finditer(text):
        at = found.start()
        if at == 0 or text[at - 1] == ord("\n"):
            yield int(bytes(found[1])), at
