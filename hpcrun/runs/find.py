"""Finds runs and sweeps by what people type: an id, a part of one, a Slurm job id, or nothing."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from hpcrun.errors import HpcrunError, InputError
from hpcrun.runs import layout, store
from hpcrun.runs.layout import RUN_ID, RunFolder, SweepFolder
from hpcrun.runs.records import Submitted

# Characters of a run id's date and time.
_STAMP = 15
# A record is written once and its id never changes, so what was read need not be read again.
INDEX = ".job-ids"
# Fewer runs are read in a moment: no file for them.
_WORTH = 64


def only_run(found: RunFolder | SweepFolder, word: str | None) -> RunFolder:
    """Return a run that was found by a word. Raises InputError if it is a whole sweep."""
    if isinstance(found, RunFolder):
        return found
    first = found.run(0)
    submitted = store.read_submitted(first, store.read_task(first))
    tasks = store.read_sweep(found).tasks
    one = submitted.job_id if submitted and submitted.job_id else first.run_id
    raise InputError(
        f"{word or found.sweep_id}: a sweep of {tasks} run{'s' if tasks > 1 else ''}",
        fix=f"name one of them, as {one}",
    )


def find(
    runs_dir: Path, word: str | None, lookup: Lookup | None = None
) -> RunFolder | SweepFolder | None:
    """Find a run or a sweep: by its id or the unique start or end of it, by Slurm id, or the
    newest (None).

    123 is the whole array, 123_4 one run of it. A Slurm id that two runs had (a cluster may count
    from 1 again) means the newer one. Pass one ``lookup`` to find many words. Raises InputError for
    a word that fits several runs, and for an empty one.
    """
    if word is None:
        newest = next(list_runs(runs_dir), None)
        task = store.read_task(newest) if newest is not None else None
        return layout.sweep_folder(runs_dir, task.sweep_id) if task is not None else newest
    if not word.strip():
        raise InputError(
            "an empty name: no run has it",
            fix="is a variable in the command not set? hpcrun status lists the runs",
        )
    if RUN_ID.fullmatch(word) and (runs_dir / word).is_dir():
        return RunFolder(runs_dir / word)
    sweep_id = layout.sweep_id_of(word) or word
    if RUN_ID.fullmatch(sweep_id) and layout.sweep_folder(runs_dir, sweep_id).path.is_dir():
        return layout.sweep_folder(runs_dir, sweep_id)
    lookup = lookup or Lookup(runs_dir)
    if is_job_id(word):
        found = _find_job(lookup, word)
        if found is not None or len(word) < 8:  # a longer one may be the date of a run id
            return found
    return _find_by_part(lookup, word)


def plain_id(word: str) -> str:
    """Return the array's id for what squeue prints for its waiting tasks; all else as it is.

    >>> plain_id("7_[0-5%2]"), plain_id("7_3"), plain_id("7k3q")
    ('7', '7_3', '7k3q')
    """
    match = re.fullmatch(r"([0-9]+)_\[[0-9,:%-]+(?:\.\.\.)?\]", word)
    return match[1] if match else word


def is_job_id(word: str) -> bool:
    """Return whether a word has the form of a job's id, an array task's or a heterogeneous job's.

    >>> [is_job_id(word) for word in ("123", "123_4", "123+1", "123_[4-5]", "x")]
    [True, True, True, False, False]
    """
    return re.fullmatch(r"[0-9]+([_+][0-9]+)?", word) is not None


class Lookup:
    """The names in a runs folder, and the Slurm jobs submitted from there; each is read once.

    A cluster may count from 1 again, or two may share the folder: then the newest job is meant. A
    copy of a folder has no job of its own.
    """

    def __init__(self, runs_dir: Path) -> None:
        """Nothing is read yet."""
        self.runs_dir = runs_dir
        self._found: dict[str, str] = {}
        self._known: dict[str, str] = {}
        self._news = 0
        self._walk = self._job_folders()

    @cached_property
    def names(self) -> list[str]:
        return list_names(self.runs_dir)

    def folder_of_job(self, job_id: str) -> str | None:
        """Return the name of the folder, a run's or a sweep's, that a job was submitted from.

        None: no run of hpcrun has this id. Any number of jobs cost one walk through the folders.
        """
        while job_id not in self._found:
            found = next(self._walk, None)
            if found is None:
                break
            self._found.setdefault(*found)
        if self._news >= _WORTH:
            self._news = 0
            there = set(self.names)
            lines = [f"{name}\t{id_}\n" for name, id_ in self._known.items() if name in there]
            with contextlib.suppress(HpcrunError):  # a colleague's folder
                store.write_file(self.runs_dir / INDEX, "".join(lines).encode())
        return self._found.get(job_id)

    def _job_folders(self) -> Iterator[tuple[str, str]]:
        """Go through all ids and their folders; "" is that of a run without a job of its own."""
        with contextlib.suppress(OSError):
            text = (self.runs_dir / INDEX).read_text(encoding="utf-8", errors="replace")
            lines = (line.partition("\t") for line in text.split("\n"))
            self._known = {name: job_id for name, tab, job_id in lines if tab}
        arrays = {name for name in self.names if layout.sweep_id_of(name)}
        for name in self.names:
            is_own = RUN_ID.fullmatch(name) and layout.array_of(name) not in arrays
            if name not in arrays and not is_own:
                continue
            job_id = self._known.get(name)
            if job_id is None:
                record = None
                with contextlib.suppress(HpcrunError):
                    record = store.read_record(self.runs_dir / name / layout.SUBMITTED, Submitted)
                record = store.own_record(record, layout.sweep_id_of(name) or name)
                if record is None:  # not yet, or sbatch's answer was lost: to be read again
                    continue
                job_id = self._known[name] = record.job_id or ""
                self._news += 1
            yield job_id, name


def _find_job(lookup: Lookup, word: str) -> RunFolder | SweepFolder | None:
    job_id, _, index = word.partition("_")
    name = lookup.folder_of_job(job_id)
    if name is None:
        return None
    sweep_id = layout.sweep_id_of(name)
    if sweep_id is None:
        return RunFolder(lookup.runs_dir / name) if not index else None
    sweep = layout.sweep_folder(lookup.runs_dir, sweep_id)
    if not index:
        return sweep
    run = sweep.run(int(index))
    return run if run.path.is_dir() else None


def _find_by_part(lookup: Lookup, word: str) -> RunFolder | SweepFolder | None:
    def fits(id_: str) -> bool:
        return id_.startswith(word) or id_.endswith("-" + word)

    sweeps = [id_ for id_ in map(layout.sweep_id_of, lookup.names) if id_ is not None and fits(id_)]
    runs = []
    for name in lookup.names:
        if fits(name) and RUN_ID.fullmatch(name):
            run = RunFolder(lookup.runs_dir / name)
            task = store.read_task(run)
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
        return layout.sweep_folder(lookup.runs_dir, sweeps[0])
    return runs[0] if runs else None


def list_runs(runs_dir: Path) -> Iterator[RunFolder]:
    """List the runs, newest first; those of one sweep in the order of its tasks."""
    for name in list_names(runs_dir):
        if RUN_ID.fullmatch(name):
            yield RunFolder(runs_dir / name)


def list_names(runs_dir: Path) -> list[str]:
    """List all names in the folder, runs newest first; the folder is read once."""
    try:
        names = os.listdir(runs_dir)  # noqa: PTH208 - names alone are wanted
    except (FileNotFoundError, NotADirectoryError):
        return []
    # There may be thousands: as text they are sorted at once, and only those of one second need
    # their exact order.
    same = Counter(name[:_STAMP] for name in names)
    if len(same) == len(names):
        return sorted(names, reverse=True)

    def key(name: str) -> tuple[str | int, ...]:
        return (name,) if same[name[:_STAMP]] == 1 else _newness(name)

    return sorted(names, key=key, reverse=True)


def no_runs_in(runs_dir: Path) -> str:
    """Write that there are no runs yet, or that their folder is missing: it may not be mounted."""
    if runs_dir.is_dir():
        return f"no runs yet in {runs_dir}"
    return f"no runs yet in {runs_dir}, which does not exist (is its file system mounted?)"


def _newness(name: str) -> tuple[str, str, int]:
    """Return the sort key of a run's name: the newest is the greatest; of a sweep the first task.

    The last four characters of an id continue its stamp, which ends at the second.
    """
    # Most names have no point, and there may be thousands of them.
    task = layout.TASK_ID.fullmatch(name) if "." in name else None
    return (
        name[:_STAMP] + name[-4:],
        name if task is None else task[1],
        -int(task[2]) if task else 0,
    )
