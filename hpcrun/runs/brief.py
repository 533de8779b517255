"""Reads of a run only what a listing shows: few files, since there may be thousands of runs."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hpcrun.runs.layout import RunFolder
from hpcrun.runs.records import Attempt, Begin, Cancelled, End, History, Seen, Submitted, Task
from hpcrun.runs.store import read_record, read_submitted, read_task

# An attempt that never got to its first act leaves a gap in the numbers, seldom more.
_GAP = 3


def read_brief(folder: RunFolder, seen: Seen | None = None) -> History:
    """Read a run's history; of an attempt the end alone or, without one, the beginning.

    What is not there costs a look at its folder and no file opened. ``beat`` is when the file was
    written last by its file system's clock. ``seen`` is the run's own, if it was read already.
    """
    task = read_task(folder)
    return _read(folder, task, read_submitted(folder, task), seen)


def read_task_brief(folder: RunFolder, task: Task, submitted: Submitted | None) -> History:
    """Read the history of a sweep's run as read_brief() does, of which the sweep told the rest."""
    return _read(folder, task, submitted, read_seen(folder))


def _read(
    folder: RunFolder, task: Task | None, submitted: Submitted | None, seen: Seen | None
) -> History:
    return History(
        run_id=folder.run_id,
        task=task,
        submitted=submitted,
        cancelled=_read_cancelled(folder),
        seen=seen,
        attempts=[_read_attempt(folder.attempts, index) for index in attempt_indices(folder)],
    )


def _read_cancelled(folder: RunFolder) -> Cancelled | None:
    """That it was cancelled decides; by whom is not shown in a listing, so no file is opened."""
    try:
        at = os.stat(folder.cancelled).st_mtime  # noqa: PTH116
    except OSError:
        return None
    return Cancelled(cancelled_at=at, user="")


def read_seen(folder: RunFolder) -> Seen | None:
    """Read what readers remember of a run's end; damaged or not there: None."""
    return read_record(folder.seen, Seen) if folder.seen.exists() else None


def attempts_stamp(folder: RunFolder) -> int:
    """When the run last began an attempt: its attempts' folder's mtime, in nanoseconds; else 0."""
    try:
        return os.stat(folder.attempts).st_mtime_ns  # noqa: PTH116 - a thousand times in a row
    except OSError:
        return 0


def attempt_indices(folder: RunFolder) -> list[int]:
    """Tell which attempts there are, mostly without opening the folder.

    File systems count a folder's subfolders among its links (not all do: btrfs), so one knows when
    all are found.
    """
    try:
        links = os.stat(folder.attempts).st_nlink  # noqa: PTH116
    except OSError:
        return []
    wanted = links - 2
    found: list[int] = []
    index = gap = 0
    while wanted >= 0 and len(found) < wanted and gap < _GAP:
        is_there = (folder.attempts / str(index)).is_dir()
        found += [index] * is_there
        gap = 0 if is_there else gap + 1
        index += 1
    if len(found) == wanted:
        return found
    try:
        with os.scandir(folder.attempts) as entries:
            return sorted(int(entry.name) for entry in entries if entry.name.isdigit())
    except OSError:
        return []


def _read_attempt(attempts: Path, index: int) -> Attempt:
    where = attempts / str(index)
    end = read_record(where / "end.json", End) if (where / "end.json").exists() else None
    if end is not None:
        return Attempt(index=index, end=end)
    beat = None
    with contextlib.suppress(OSError):
        beat = os.stat(where / "beat").st_mtime  # noqa: PTH116
    return Attempt(index=index, begin=read_record(where / "begin.json", Begin), beat=beat)
