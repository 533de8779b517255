"""Finds runs by their Slurm ids, without opening thousands of records each time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcrun.errors import HpcrunError
from hpcrun.runs.layout import RUN_ID, SUBMITTED, array_of, sweep_id_of
from hpcrun.runs.records import Submitted

# A record is written once and its id never changes, so what was read need not be read again.
INDEX = ".job-ids"
# Fewer runs are read in a moment: no file for them.
_WORTH = 64


class JobIds:
    """The folders that Slurm jobs were submitted from, each a run's or a sweep's array's.

    A cluster may count anew, or two may share the folder: then the newest is meant. A copy of a
    folder has no job of its own.
    """

    def __init__(self, runs_dir: Path, names: Sequence[str]) -> None:
        """Nothing is read yet. ``names`` are those in ``runs_dir``, newest first."""
        self._runs_dir = runs_dir
        self._names = names
        self._found: dict[str, str] = {}
        self._known: dict[str, str] = {}
        self._learned: dict[str, str] = {}
        self._walk = self._folders()

    def find(self, job_id: str) -> str | None:
        """Find a job's folder; None: no run of hpcrun has this id.

        Any number of jobs cost one walk through the folders, and each record is read once.
        """
        while job_id not in self._found:
            its_own = next(self._walk, None)
            if its_own is None:
                break
            self._found.setdefault(its_own[0], its_own[1])
        if len(self._learned) >= _WORTH:
            self._known |= self._learned
            self._learned = {}
            _write(self._runs_dir, self._known, set(self._names))
        return self._found.get(job_id)

    def _folders(self) -> Iterator[tuple[str, str]]:
        """Go through all ids and their folders."""
        self._known = _read(self._runs_dir)
        arrays = {name for name in self._names if sweep_id_of(name)}
        for name in self._names:
            if name not in arrays and (not RUN_ID.fullmatch(name) or array_of(name) in arrays):
                continue
            job_id = self._known.get(name)
            if job_id is None:
                job_id = _submitted_as(self._runs_dir / name)
                if job_id is None:  # not yet, or its reply was lost: to be asked again
                    continue
                self._learned[name] = job_id
            yield job_id, name


def _submitted_as(folder: Path) -> str | None:
    """The job's id as its record has it; "" for a run without Slurm and for a copy of another's
    folder, None without a record."""
    from hpcrun.runs.store import own_record, read_record  # here: the store itself looks runs up

    with contextlib.suppress(HpcrunError):
        record = read_record(folder / SUBMITTED, Submitted)
        record = own_record(record, sweep_id_of(folder.name) or folder.name)
        return None if record is None else record.job_id or ""
    return None


def _read(runs_dir: Path) -> dict[str, str]:
    """The index: lines of a folder's name, a tab, an id. What is no such line is passed over."""
    try:
        text = (runs_dir / INDEX).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = (line.partition("\t") for line in text.split("\n"))
    return {name: job_id for name, tab, job_id in lines if tab}


def _write(runs_dir: Path, known: dict[str, str], there: set[str]) -> None:
    from hpcrun.runs.store import write_file

    lines = [f"{name}\t{job_id}\n" for name, job_id in known.items() if name in there]
    with contextlib.suppress(HpcrunError):  # a colleague's folder
        write_file(runs_dir / INDEX, "".join(lines).encode())
