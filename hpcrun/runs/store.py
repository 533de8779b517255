"""Reads and writes run folders.

Effects: files. Writes appear by atomic rename; nothing is locked.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE
from typing import Any, TypeVar

import msgspec

from hpcrun.errors import HpcrunError, InputError
from hpcrun.plan.types import Plan
from hpcrun.runs.layout import RUN_ID, RunFolder
from hpcrun.runs.records import Attempt, Begin, Cancelled, End, History, Seen, Submitted

T = TypeVar("T")


def write_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file whole or not at all. Raises HpcrunError naming the file."""
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise HpcrunError(f"{path}: {error.strerror}", fix=_space_fix(error)) from error


def _space_fix(error: OSError) -> str:
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
        return msgspec.convert(json.loads(data), type_)
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
    return History(
        run_id=folder.run_id,
        submitted=read_record(folder.submitted, Submitted),
        cancelled=read_record(folder.cancelled, Cancelled),
        seen=read_record(folder.seen, Seen),
        attempts=attempts,
    )


def read_plan(folder: RunFolder) -> Plan | None:
    """Read the run's plan; None when it is missing or of a form that this hpcrun cannot read."""
    return read_record(folder.plan, Plan)


def list_runs(runs_dir: Path) -> Iterator[RunFolder]:
    """List the runs, newest first."""
    try:
        names = [entry.name for entry in os.scandir(runs_dir) if RUN_ID.fullmatch(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in sorted(names, reverse=True):
        yield RunFolder(runs_dir / name)


def find_run(runs_dir: Path, word: str | None) -> RunFolder | None:
    """Find a run: by its id or the unique start or end of it, by Slurm id, or the newest (None).

    A Slurm id that two runs had (a cluster may start counting anew) means the newer one. Raises
    InputError for a word that fits several runs.
    """
    if word is None:
        return next(list_runs(runs_dir), None)
    if RUN_ID.fullmatch(word) and (runs_dir / word).is_dir():
        return RunFolder(runs_dir / word)
    if word.isdigit():
        found = next((run for run in list_runs(runs_dir) if _job_id(run) == word), None)
        if found is not None or len(word) < 8:  # a longer one may be the date of a run id
            return found
    fits = [
        run
        for run in list_runs(runs_dir)
        if run.run_id.startswith(word) or run.run_id.endswith("-" + word)
    ]
    if len(fits) > 1:
        raise InputError(
            f"{word}: fits {len(fits)} runs, from {fits[-1].run_id} to {fits[0].run_id}",
            fix="give more of the id",
        )
    return fits[0] if fits else None


def _job_id(run: RunFolder) -> str | None:
    submitted = read_record(run.submitted, Submitted)
    return submitted.job_id if submitted else None
