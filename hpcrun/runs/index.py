"""Finds runs by their Slurm ids, without opening thousands of records each time.

Effects: reads files; writes RUNS_DIR/.job-ids, which may be deleted at any time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from hpcrun.errors import HpcrunError
from hpcrun.runs.layout import RUN_ID, SUBMITTED, array_of, sweep_id_of
from hpcrun.runs.records import Submitted

# A record is written once and its id never changes, so what was read need not be read again.
INDEX = ".job-ids"
# Fewer runs are read in a moment: no file for them.
_WORTH = 64


def find_by_job_id(runs_dir: Path, names: Sequence[str], job_id: str) -> str | None:
    """Find the folder that a Slurm job was submitted from: a run's, or a sweep's array's.

    ``names`` are those in ``runs_dir``, newest first: a cluster may count anew, or two may share
    the folder, and then the newest is meant. Each record is read once and remembered. None: no run
    of hpcrun has this id.
    """
    known = _read(runs_dir)
    learned = dict[str, str]()
    found = None
    arrays = {name for name in names if sweep_id_of(name)}
    for name in names:
        if name not in arrays and (not RUN_ID.fullmatch(name) or array_of(name) in arrays):
            continue
        its_id = known.get(name)
        if its_id is None:
            its_id = _submitted_as(runs_dir / name)
            if its_id is None:  # not yet, or its reply was lost: to be asked again
                continue
            learned[name] = its_id
        if its_id == job_id:
            found = name
            break
    if len(learned) >= _WORTH:
        _write(runs_dir, known | learned, set(names))
    return found


def _submitted_as(folder: Path) -> str | None:
    """The job's id as its record has it; "" for a run without Slurm, None without a record."""
    from hpcrun.runs.store import read_record  # here: the store itself looks runs up

    with contextlib.suppress(HpcrunError):
        record = read_record(folder / SUBMITTED, Submitted)
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
