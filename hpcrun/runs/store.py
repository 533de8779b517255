"""Reads and writes run folders.

Writes appear by atomic rename; nothing is locked.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from stat import S_IMODE
from threading import get_ident
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from hpcrun.errors import HpcrunError, InputError
from hpcrun.plan.types import Plan
from hpcrun.runs.index import JobIds
from hpcrun.runs.layout import (
    RUN_ID,
    TASK_ID,
    RunFolder,
    SweepFolder,
    sweep_folder,
    sweep_id_of,
    task_run_id,
)
from hpcrun.runs.records import (
    Attempt,
    Begin,
    Cancelled,
    End,
    History,
    Seen,
    Submitted,
    Sweep,
    Task,
)
from hpcrun.structs import decodable

T = TypeVar("T")
# Characters of a run id's date and time.
_STAMP = 15


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
    """Ask about the disk where that is what the error is about; "" where not."""
    return "is the file system full, or your quota?" if error.errno in (28, 122) else ""


def write_record(path: Path, record: Any) -> None:
    """Write a record as JSON; what is not UTF-8 (see os.fsdecode) as escapes."""
    write_file(path, json.dumps(msgspec.to_builtins(record)).encode() + b"\n")


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
        # Not msgspec's decoder: words that are not UTF-8 stand in a plan as lone surrogates.
        return msgspec.convert(json.loads(data), decodable(type_))
    except (ValueError, RecursionError):
        return None


def create_run_folder(path: Path) -> RunFolder:
    """Make a new run folder with its empty parts. Raises InputError where it cannot be made."""
    folder = RunFolder(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
        folder.attempts.mkdir()
        folder.logs.mkdir()
    except OSError as error:
        raise InputError(
            f"{error.filename or path}: cannot make the run folder: {error.strerror}",
            fix="set runs_dir in hpcrun.yaml to a folder that you can write and the nodes can see",
        ) from error
    return folder


def refresh(run: RunFolder) -> None:
    """Make a network file system show what the nodes wrote.

    Clients of NFS cache what a folder holds for up to a minute (acdirmax); setting its mode, to
    what it is, asks the server anew.
    """
    for parent in (run.path, run.attempts, run.logs):
        with contextlib.suppress(OSError):
            parent.chmod(S_IMODE(parent.stat().st_mode))
    for parent in (run.attempts, run.logs):
        for folder in parent.glob("[0-9]*"):
            with contextlib.suppress(OSError):
                folder.chmod(S_IMODE(folder.stat().st_mode))


def read_history(folder: RunFolder) -> History:
    """Read all that the run folder knows; cheap enough for a listing."""
    attempts = []
    try:
        names = [entry.name for entry in os.scandir(folder.attempts) if entry.name.isdigit()]
    except FileNotFoundError:
        names = []
    for name in sorted(names, key=int):
        where = folder.attempts / name
        attempts.append(
            Attempt(
                index=int(name),
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
        seen=read_record(folder.seen, Seen),
        attempts=attempts,
    )


def read_plan(folder: RunFolder) -> Plan | None:
    """Read the run's plan; None when it is missing or of a form that this hpcrun cannot read."""
    return read_record(folder.plan, Plan)


def read_task(folder: RunFolder) -> Task | None:
    """Read which task of which sweep a run is; None for a run of its own."""
    # The id tells nearly all others apart, without a look at the disk.
    if not TASK_ID.fullmatch(folder.run_id):
        return None
    return read_record(folder.task, Task)


def read_submitted(folder: RunFolder, task: Task | None) -> Submitted | None:
    """The run's own record, or what the record of its sweep's one sbatch says of the task."""
    if task is None:
        return own_record(read_record(folder.submitted, Submitted), folder.run_id)
    whole = read_record(sweep_folder(folder.path.parent, task.sweep_id).submitted, Submitted)
    return own_record(whole and record_of_task(whole, task.index), folder.run_id)


def record_of_task(whole: Submitted, index: int) -> Submitted:
    """What the record of a sweep's one sbatch says of one of its tasks."""
    return structs.replace(
        whole,
        job_id=whole.job_id and f"{whole.job_id}_{index}",
        run_id=whole.run_id and task_run_id(whole.run_id, index),
    )


def own_record(record: Submitted | None, id_: str) -> Submitted | None:
    """Take the job from a record that was copied with its folder: it works in the original."""
    if record is None or record.run_id in (None, id_):
        return record
    return structs.replace(record, job_id=None)


def read_sweep(folder: SweepFolder) -> Sweep:
    """Read a sweep's record. Raises InputError where it is missing or damaged."""
    found = read_record(folder.record, Sweep)
    if found is None:
        raise InputError(f"{folder.record}: no record of a sweep")
    return found


def runs_of(sweep: SweepFolder) -> list[RunFolder]:
    """List the runs of a sweep, task by task."""
    return [sweep.run(index) for index in range(read_sweep(sweep).tasks)]


def list_runs(runs_dir: Path) -> Iterator[RunFolder]:
    """List the runs, newest first; those of one sweep in the order of its tasks."""
    for name in list_names(runs_dir):
        if RUN_ID.fullmatch(name):
            yield RunFolder(runs_dir / name)


def list_names(runs_dir: Path) -> list[str]:
    """List the names of all that lies there, runs newest first; the folder is read once."""
    names = _names(runs_dir)
    # There may be thousands: as text they are sorted at once, and only those of one second need
    # their exact order.
    names.sort(reverse=True)
    stamps = [name[:_STAMP] for name in names]
    done = 0
    for place, (stamp, following) in enumerate(itertools.pairwise(stamps)):
        if stamp == following and place >= done:
            done = place + 2
            while stamps[done : done + 1] == [stamp]:
                done += 1
            names[place:done] = sorted(names[place:done], key=_newness, reverse=True)
    return names


def _names(runs_dir: Path) -> list[str]:
    try:
        return os.listdir(runs_dir)  # noqa: PTH208 - names alone are wanted
    except (FileNotFoundError, NotADirectoryError):
        return []


def no_runs_in(runs_dir: Path) -> str:
    """Say that there are no runs yet, or that their folder is missing: it may not be mounted."""
    if runs_dir.is_dir():
        return f"no runs yet in {runs_dir}"
    return f"no runs yet in {runs_dir}, which does not exist (is its file system mounted?)"


def _newness(name: str) -> tuple[str, str, int]:
    """The newest is the greatest; of a sweep the first task is.

    The last four characters of an id go on where its stamp ends, at the second.
    """
    # Most names have no point, and there may be thousands of them.
    task = TASK_ID.fullmatch(name) if "." in name else None
    return (
        name[:_STAMP] + name[-4:],
        name if task is None else task[1],
        -int(task[2]) if task else 0,
    )


def find_run(runs_dir: Path, word: str | None) -> RunFolder | None:
    """Find a run as find() does. Raises InputError where the word means a whole sweep."""
    found = find(runs_dir, word)
    if not isinstance(found, SweepFolder):
        return found
    first = found.run(0)
    submitted = read_submitted(first, read_task(first))
    tasks = read_sweep(found).tasks
    one = submitted.job_id if submitted and submitted.job_id else first.run_id
    raise InputError(
        f"{word or found.sweep_id}: a sweep of {tasks} run{'s' if tasks > 1 else ''}",
        fix=f"name one of them, as {one}",
    )


class Lookup:
    """What lies in a runs folder: looked at when it is first wanted, once for many words."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir

    @cached_property
    def names(self) -> list[str]:
        return list_names(self.runs_dir)

    @cached_property
    def job_ids(self) -> JobIds:
        return JobIds(self.runs_dir, self.names)


def find(
    runs_dir: Path, word: str | None, lookup: Lookup | None = None
) -> RunFolder | SweepFolder | None:
    """Find a run or a sweep: by its id or the unique start or end of it, by Slurm id, or the
    newest (None).

    123 is the whole array, 123_4 one run of it. A Slurm id that two runs had (a cluster may start
    counting anew) means the newer one. Who looks for many words gives their ``lookup``. Raises
    InputError for a word that fits several runs, and for an empty one.
    """
    if word is None:
        newest = next(list_runs(runs_dir), None)
        task = read_task(newest) if newest is not None else None
        return sweep_folder(runs_dir, task.sweep_id) if task is not None else newest
    if not word.strip():
        raise InputError(
            "an empty name: no run is called so",
            fix="is a variable in the command not set? hpcrun status lists the runs",
        )
    if RUN_ID.fullmatch(word) and (runs_dir / word).is_dir():
        return RunFolder(runs_dir / word)
    sweep_id = sweep_id_of(word) or word
    if RUN_ID.fullmatch(sweep_id) and sweep_folder(runs_dir, sweep_id).path.is_dir():
        return sweep_folder(runs_dir, sweep_id)
    lookup = lookup or Lookup(runs_dir)
    if is_job_id(word):
        found = _find_job(lookup, word)
        if found is not None or len(word) < 8:  # a longer one may be the date of a run id
            return found
    return _find_by_part(lookup, word)


def plain_id(word: str) -> str:
    """The id of an array, of what squeue prints for all its tasks that wait; all else as it is.

    >>> plain_id("7_[0-5%2]"), plain_id("7_3"), plain_id("7k3q")
    ('7', '7_3', '7k3q')
    """
    match = re.fullmatch(r"([0-9]+)_\[[0-9,:%-]+(?:\.\.\.)?\]", word)
    return match[1] if match else word


def is_job_id(word: str) -> bool:
    """Tell whether a word has the form of a job's id, of an array's task, or of a part of a
    heterogeneous job.

    >>> [is_job_id(word) for word in ("123", "123_4", "123+1", "123_[4-5]", "x")]
    [True, True, True, False, False]
    """
    return re.fullmatch(r"[0-9]+([_+][0-9]+)?", word) is not None


def _find_job(lookup: Lookup, word: str) -> RunFolder | SweepFolder | None:
    runs_dir = lookup.runs_dir
    job_id, _, index = word.partition("_")
    name = lookup.job_ids.find(job_id)
    sweep_id = sweep_id_of(name) if name is not None else None
    if sweep_id is not None:
        sweep = sweep_folder(runs_dir, sweep_id)
        if not index:
            return sweep
        run = sweep.run(int(index))
        return run if run.path.is_dir() else None
    return RunFolder(runs_dir / name) if name is not None and not index else None


def holds_any(folder: Path) -> bool:
    """Tell whether there is anything in a folder; no for one that cannot be read."""
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _find_by_part(lookup: Lookup, word: str) -> RunFolder | SweepFolder | None:
    runs_dir, names = lookup.runs_dir, lookup.names

    def fits(id_: str) -> bool:
        return id_.startswith(word) or id_.endswith("-" + word)

    sweeps = [id_ for id_ in map(sweep_id_of, names) if id_ is not None and fits(id_)]
    runs = []
    for run in (RunFolder(runs_dir / name) for name in names if RUN_ID.fullmatch(name)):
        if fits(run.run_id):
            task = read_task(run)
            # A word that fits a sweep fits its runs too, and means the sweep.
            if task is None or task.sweep_id not in sweeps:
                runs.append(run)
    found = sorted([*sweeps, *(run.run_id for run in runs)], key=_newness, reverse=True)
    if len(found) > 1:
        raise InputError(
            f"{word}: fits {len(found)} runs, from {found[-1]} to {found[0]}",
            fix="give more of the id",
        )
    if sweeps:
        return sweep_folder(runs_dir, sweeps[0])
    return runs[0] if runs else None
