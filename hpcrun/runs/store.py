"""Reads and writes run folders.

Writes appear by atomic rename; nothing is locked.
"""

from __future__ import annotations

import contextlib
import json
import os
from itertools import chain
from pathlib import Path
from stat import S_IMODE
from threading import get_ident
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from hpcrun.errors import HpcrunError, InputError
from hpcrun.plan.types import Plan
from hpcrun.runs.layout import RUN_ID, TASK_ID, RunFolder, SweepFolder, sweep_folder, task_run_id
from hpcrun.runs.records import (
    Attempt,
    Begin,
    Cancelled,
    End,
    History,
    Seen,
    Submitted,
    Successor,
    Sweep,
    SweepSeen,
    Task,
)
from hpcrun.structs import decodable

T = TypeVar("T")
# An attempt that never got to its first act leaves a gap in the numbers, seldom more.
_GAP = 3


def write_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file whole or not at all. Raises HpcrunError naming the file."""
    part = path.with_name(f".{path.name}.part-{os.getpid()}-{get_ident()}")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise HpcrunError(f"{path}: {error.strerror}", fix=space_fix(error)) from error


def space_fix(error: OSError) -> str:
    """Return a question about the disk for an error that a full one causes; "" for others."""
    return "is the file system full, or your quota?" if error.errno in (28, 122) else ""


def write_record(path: Path, record: Any, mode: int = 0o666) -> None:
    """Write a record as JSON; what is not UTF-8 (see os.fsdecode) as escapes."""
    write_file(path, json.dumps(msgspec.to_builtins(record)).encode() + b"\n", mode)


def read_record(path: Path, type_: type[T]) -> T | None:
    """Read a record; None while it is not there. A damaged one counts as not there.

    Network file systems may show a name before its content, so an unreadable record is asked for
    again by whoever polls.
    """
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise HpcrunError(f"{path}: {error.strerror}") from error
    try:
        # Not msgspec's decoder: texts that are not UTF-8 stand in a plan as lone surrogates.
        return msgspec.convert(json.loads(data), decodable(type_))
    except (ValueError, RecursionError):
        return None


def read_if_there(path: Path, type_: type[T]) -> T | None:
    """Read a record that most of thousands of runs do not have: those cost no opening of a file."""
    return read_record(path, type_) if path.exists() else None


def create_run_folder(path: Path, *, is_array: bool = False) -> RunFolder:
    """Make a new run folder with its empty parts, or that of a sweep's array. Raises InputError."""
    folder = RunFolder(path)
    try:
        path.mkdir(parents=True)
        if not is_array:
            folder.attempts.mkdir()
            folder.logs.mkdir()
    except OSError as error:
        what = "cannot make the sweep's folder" if is_array else "cannot make the run folder"
        raise InputError(
            f"{error.filename or path}: {what}: {error.strerror}",
            fix="set runs_dir in hpcrun.yaml to a folder that you can write and the nodes can see",
        ) from error
    return folder


def expire_caches(run: RunFolder) -> None:
    """Make a network file system show what the nodes wrote.

    Clients of NFS cache what a folder holds for up to a minute (acdirmax); setting its mode, to
    what it is, asks the server again.
    """
    inner = (parent.glob("[0-9]*") for parent in (run.attempts, run.logs))
    for folder in chain((run.path, run.attempts, run.logs), chain.from_iterable(inner)):
        with contextlib.suppress(OSError):
            folder.chmod(S_IMODE(folder.stat().st_mode))


def holds_any(folder: Path) -> bool:
    """Return whether there is anything in a folder; False for one that cannot be read."""
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def read_history(folder: RunFolder) -> History:
    """Read all records of a run and its attempts."""
    attempts = []
    for index in attempt_indices(folder):
        where = folder.attempts / str(index)
        attempts.append(
            Attempt(
                index=index,
                begin=read_record(where / "begin.json", Begin),
                beat=read_record(where / "beat", float),
                end=read_record(where / "end.json", End),
            )
        )
    task = read_task(folder)
    return History(
        run_id=folder.run_id,
        task=task,
        submitted=read_submitted(folder, task),
        cancelled=read_record(folder.cancelled, Cancelled),
        seen=read_if_there(folder.seen, Seen),
        attempts=attempts,
    )


def write_seen(path: Path, seen: Seen | SweepSeen) -> None:
    """Keep an end for later readers; in a folder of somebody else's there may be none."""
    with contextlib.suppress(OSError, HpcrunError):
        path.parent.mkdir(exist_ok=True)
        write_record(path, seen)


def forget_end(folder: RunFolder) -> None:
    """Forget the end of a run that was requeued: however long it waits now, it is not over."""
    with contextlib.suppress(OSError):
        folder.seen.unlink(missing_ok=True)


def read_brief(
    folder: RunFolder, seen: Seen | None = None, part: tuple[Task, Submitted | None] | None = None
) -> History:
    """Read what a listing of thousands of runs shows: of an attempt the end or else the begin.

    ``beat`` is when the file was written last by its file system's clock. ``seen`` is the run's
    own, ``part`` what the records of its sweep hold of a run, if they were read already.
    """
    task = part[0] if part else read_task(folder)
    submitted = part[1] if part else read_submitted(folder, task)
    at = stamp_of(folder.cancelled) / 1e9
    return History(
        run_id=folder.run_id,
        task=task,
        submitted=submitted,
        # By whom is not shown in a listing, so no file is opened.
        cancelled=Cancelled(cancelled_at=at, user="") if at else None,
        seen=seen,
        attempts=[_brief_attempt(folder.attempts, index) for index in attempt_indices(folder)],
    )


def _brief_attempt(attempts: Path, index: int) -> Attempt:
    where = attempts / str(index)
    end = read_if_there(where / "end.json", End)
    if end is not None:
        return Attempt(index=index, end=end)
    begin, beat = read_record(where / "begin.json", Begin), stamp_of(where / "beat")
    return Attempt(index=index, begin=begin, beat=beat / 1e9 if beat else None)


def stamp_of(path: Path) -> int:
    """Return when a path was written, in ns by its file system's clock; 0: it is not there."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - a thousand times in a row
    except OSError:
        return 0


def attempt_indices(folder: RunFolder) -> list[int]:
    """Return the numbers of a run's attempts, mostly without opening the folder.

    File systems count a folder's subfolders among its links (not all do: btrfs), so that it is
    known when all are found.
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


def read_plan(folder: RunFolder) -> Plan | None:
    """Read the run's plan; None when it is missing or of a form that this hpcrun cannot read."""
    return read_record(folder.plan, Plan)


def read_task(folder: RunFolder) -> Task | None:
    """Read which task of which sweep a run is; None for a run of its own."""
    # The id alone shows it for nearly all others, without a look at the disk.
    if not TASK_ID.fullmatch(folder.run_id):
        return None
    return read_record(folder.task, Task)


def read_submitted(folder: RunFolder, task: Task | None) -> Submitted | None:
    """Read the run's own record, or its task's part of the record of its sweep's one sbatch."""
    if task is None:
        return own_record(read_record(folder.submitted, Submitted), folder.run_id)
    whole = read_record(sweep_folder(folder.path.parent, task.sweep_id).submitted, Submitted)
    return own_record(whole and record_of_task(whole, task.index), folder.run_id)


def record_of_task(whole: Submitted, index: int) -> Submitted:
    """Make a task's record out of the record of its sweep's one sbatch."""
    return structs.replace(
        whole,
        job_id=whole.job_id and f"{whole.job_id}_{index}",
        run_id=whole.run_id and task_run_id(whole.run_id, index),
    )


def own_record(record: Submitted | None, id_: str) -> Submitted | None:
    """Remove the job from a record that was copied with its folder: it works in the original."""
    if record is None or record.run_id in (None, id_):
        return record
    return structs.replace(record, job_id=None)


def read_sweep(folder: SweepFolder) -> Sweep:
    """Read a sweep's record. Raises InputError if it is missing or damaged."""
    found = read_record(folder.record, Sweep)
    if found is None:
        raise InputError(f"{folder.record}: no record of a sweep")
    return found


def runs_of(found: RunFolder | SweepFolder) -> list[RunFolder]:
    """List the runs of a sweep, task by task; a run is the only one of itself."""
    if isinstance(found, RunFolder):
        return [found]
    return [found.run(index) for index in range(read_sweep(found).tasks)]


def owner_run(checkpoint_dir: Path) -> RunFolder | None:
    """Return the run in whose folder checkpoints lie; None where they lie elsewhere."""
    for folder in checkpoint_dir.parents:
        if RUN_ID.fullmatch(folder.name):
            return RunFolder(folder)
    return None


def successors_of(run: RunFolder) -> list[Path]:
    """List the folders of later runs that use this run's checkpoints, and that exist."""
    try:
        files = list(run.successors.iterdir())
    except OSError:
        return []
    found = (read_record(file, Successor) for file in files if file.suffix == ".json")
    return [Path(one.run_dir) for one in found if one is not None and Path(one.run_dir).is_dir()]
