"""How far a run has come: the last step and loss that its log shows.

Effects: reads the end of one log file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from hpcrun.metrics.lines.line import FORMATS, NEEDLES, Format, read_line
from hpcrun.metrics.names import LOSS
from hpcrun.metrics.row import Row
from hpcrun.runs.brief import attempt_indices
from hpcrun.runs.layout import RunFolder

# The last loss stands near the end of a log; where a program says much else, the look goes further
# back, but not without end: a listing must not wait for one log.
_TAILS = (1 << 14, 1 << 18)
_LONGEST = 10_000  # bytes of a line that is read


class Point(Struct, frozen=True):
    """The last training loss of a run.

    ``step`` is None where the log counts no steps. ``at`` is when the log last grew, in seconds
    since the epoch by the clock of its file system; ``file`` is the log.
    """

    step: int | None
    loss: float
    at: float
    file: Path


def last_point(run: RunFolder, formats: Sequence[Format] = FORMATS) -> Point | None:
    """Read the last step and loss off the newest attempt's log; None where there is none (yet).

    ``formats`` are the forms of lines that are known, a job's own among them. Never raises: a log
    that cannot be read shows nothing.
    """
    for path in _candidates(run):
        try:
            with path.open("rb") as file:
                info = os.fstat(file.fileno())
                for tail in _TAILS:
                    file.seek(max(0, info.st_size - tail))
                    found = _last_in(file.read(tail), tail < info.st_size, formats)
                    if found is not None:
                        return Point(*found, info.st_mtime, path)
                    if tail >= info.st_size:
                        break
        except OSError:
            continue
        if info.st_size:
            return None
    return None


def _candidates(run: RunFolder) -> list[Path]:
    """The logs that may show it, by their names alone: rank 0's, the first node's, the batch's."""
    newest = max(attempt_indices(run), default=None)
    if newest is None:
        return []
    logs = run.logs / str(newest)
    return [logs / "rank-0.log", logs / "node-0.log", run.batch_log]


def _last_in(
    data: bytes, is_cut: bool, formats: Sequence[Format]
) -> tuple[int | None, float] | None:
    """Find the last training loss in the end of a log, whose first line may be cut off.

    >>> _last_in(b"oss=9\\nstep=7 loss=2.5\\rstep=8 loss=2.25\\nsaved\\nstep=9 lo", True, FORMATS)
    (8, 2.25)
    """
    lines = data.replace(b"\r", b"\n").split(b"\n")
    found: float | None = None
    for line in reversed(lines[1 if is_cut else 0 : -1]):
        row = _row(line, formats)
        if row is None:
            continue
        if found is not None:
            # The loss stood on a line without a step: the bar before it has counted on.
            if row.bar is not None and row.step is not None:
                return row.step, found
            continue
        loss = dict(row.values).get(LOSS)
        if loss is not None and row.step is not None:
            return row.step, loss
        found = loss
    return None if found is None else (None, found)


def _row(line: bytes, formats: Sequence[Format]) -> Row | None:
    """What a line says of training; None for the many that measure nothing, and for other ranks."""
    if len(line) > _LONGEST or not any(needle in line.lower() for needle in NEEDLES):
        return None
    answer = read_line(line.decode("utf-8", "replace"), formats=formats)
    row = answer[1] if answer is not None else None
    return row if isinstance(row, Row) and row.split == "train" and not row.rank else None
