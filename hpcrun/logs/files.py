"""Which files are a run's log, and whose they are."""

from __future__ import annotations

import os
import re
from pathlib import Path

from msgspec import Struct, structs

from hpcrun.runs.layout import RunFolder


class LogFile(Struct, frozen=True):
    """One log file: a rank's, a node's (the launcher's words), or the batch script's own.

    The batch script's has no ``attempt``: it is one for all. ``task`` is the number in the sweep or
    array where several tasks are shown together; ``is_err``: the standard error of a job that
    has a file for it.
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
        """What lines get in front where several files are shown as one; rank 0 gets nothing.

        >>> LogFile(Path("x"), 0, node=1, rank=3, task="7").prefix
        '[task7 rank3]: '
        >>> LogFile(Path("x"), 0, node=2).prefix
        'node2: '
        """
        if not self.task and not self.is_err and not self.rank:
            return f"node{self.node}: " if self.node else ""
        words = [f"task{self.task}"] if self.task else []
        if self.rank:
            words.append(f"rank{self.rank}")
        elif self.node:
            words.append(f"node{self.node}")
        return f"[{' '.join([*words, *(['stderr'] if self.is_err else [])])}]: "


def log_files(run: RunFolder) -> list[LogFile]:
    """List a run's logs: attempt by attempt the ranks, then the nodes; last the batch script's.

    What the harness and Slurm say of the end is in that one.
    """
    found = []
    for attempt in _names(run.logs):
        if not attempt.isdigit():
            continue
        for name in _names(run.logs / attempt):
            match = re.fullmatch(r"(node|rank)-(\d+)\.log", name)
            if match:
                path = run.logs / attempt / name
                number, is_rank = int(match.group(2)), match.group(1) == "rank"
                which = {"rank": number} if is_rank else {"node": number}
                found.append(structs.replace(LogFile(path, int(attempt)), **which))
    found.sort(key=_order)
    return found + ([LogFile(run.batch_log)] if run.batch_log.exists() else [])


def _order(file: LogFile) -> tuple[int, bool, int]:
    return file.attempt or 0, file.rank is None, (file.node or 0) + (file.rank or 0)


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
