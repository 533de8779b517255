"""Which files are a run's log, and whose they are.

Effects: reads folders.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from msgspec import Struct

from hpcrun.runs.layout import RunFolder


class LogFile(Struct, frozen=True):
    """One log file; ``attempt`` and ``node`` None: the batch script's own, of all attempts."""

    path: Path
    attempt: int | None = None
    node: int | None = None

    @property
    def prefix(self) -> str:
        """What lines get in front where several files are shown as one: rank 0's node nothing."""
        return f"node{self.node}: " if self.node else ""


def log_files(run: RunFolder) -> list[LogFile]:
    """List the run's logs: the batch script's, then attempt by attempt, rank 0's node first."""
    files = [LogFile(run.batch_log)] if run.batch_log.exists() else []
    found = []
    for attempt in _names(run.logs):
        if not attempt.isdigit():
            continue
        for name in _names(run.logs / attempt):
            match = re.fullmatch(r"node-(\d+)\.log", name)
            if match:
                path = run.logs / attempt / name
                found.append(LogFile(path, int(attempt), int(match.group(1))))
    return files + sorted(found, key=lambda file: (file.attempt, file.node))


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
