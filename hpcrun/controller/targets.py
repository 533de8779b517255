"""What the words after a verb name: runs, sweeps, tasks of them, and jobs that are not hpcrun's."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from hpcrun.assets import name_of_user
from hpcrun.controller.context import Context
from hpcrun.controller.state.foreign import own_names
from hpcrun.controller.state.status import resolve_any
from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.runs.find import Lookup, find, is_job_id
from hpcrun.runs.layout import RunFolder, SweepFolder
from hpcrun.runs.store import read_sweep, runs_of

# Tasks that one word may name; MaxArraySize is at most 4,000,001 (slurm.conf(5)).
_MAX_TASKS = 100_000


class Targets(Struct, frozen=True, kw_only=True):
    """All that was named, each once: single runs, whole sweeps, and ids of other Slurm jobs."""

    runs: list[RunFolder]
    sweeps: list[SweepFolder]
    foreign: list[str]

    def all_runs(self) -> list[RunFolder]:
        """The runs, those of the sweeps included."""
        found = [*self.runs, *(run for sweep in self.sweeps for run in runs_of(sweep))]
        return list(dict.fromkeys(found))


def find_targets(context: Context, words: Sequence[str]) -> Targets:
    """Find what words name: ids as ``find`` takes them, and tasks as scancel does, 7_[3-5,9].

    No words name the newest run, or its whole sweep. Raises InputError for a word that names
    nothing; nothing has been done then.
    """
    runs: list[RunFolder] = []
    sweeps: list[SweepFolder] = []
    foreign: list[str] = []
    lookup = Lookup(context.runs_dir)
    if not words:
        _sort(resolve_any(context, None), runs, sweeps)
    numbers = [
        word for word in words if word.isdigit() and not find(context.runs_dir, word, lookup)
    ]
    names = own_names(context, numbers)
    for word in (names.get(word, word) for word in words):
        # As squeue shows what waits: 7_[3-5,9%2], with the number that may run at once.
        match = re.fullmatch(
            r"([0-9]+)_\[([0-9,-]+)(?:%[0-9]+)?\]|([0-9]+)_([0-9]+(?:[,-][0-9,-]*))", word
        )
        if match is not None:
            array = match[1] or match[3]
            tasks = task_numbers(word, match[2] or match[4])
            sweep = find(context.runs_dir, array, lookup)
            if isinstance(sweep, SweepFolder):
                runs += _tasks_of(sweep, word, tasks)
            else:
                foreign += [f"{array}_{task}" for task in tasks]
            continue
        found = find(context.runs_dir, word, lookup)
        if found is None and is_job_id(word):
            foreign.append(word)
        else:
            _sort(found or resolve_any(context, word), runs, sweeps)
    return Targets(
        runs=list(dict.fromkeys(runs)),
        sweeps=list(dict.fromkeys(sweeps)),
        foreign=list(dict.fromkeys(foreign)),
    )


def _sort(found: RunFolder | SweepFolder, runs: list[RunFolder], sweeps: list[SweepFolder]) -> None:
    if isinstance(found, SweepFolder):
        sweeps.append(found)
    else:
        runs.append(found)


def _tasks_of(sweep: SweepFolder, word: str, tasks: Sequence[int]) -> list[RunFolder]:
    count = read_sweep(sweep).tasks
    beyond = [task for task in tasks if task >= count]
    if beyond:
        raise InputError(f"{word}: the sweep's tasks are 0 to {count - 1}")
    return [sweep.run(task) for task in tasks]


def task_numbers(word: str, text: str) -> list[int]:
    """Read the tasks of an array as Slurm writes them. Raises InputError naming ``word``.

    >>> task_numbers("7_[3-5,9]", "3-5,9")
    [3, 4, 5, 9]
    """
    tasks: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,7})(?:-([0-9]{1,7}))?", part)
        first = int(match[1]) if match else 0
        last = int(match[2] or match[1]) if match else 0
        if match is None or last < first:
            raise InputError(f"{word}: no list of tasks", fix="write it as 7_[3-5,9]")
        if len(tasks) + last - first >= _MAX_TASKS:
            raise InputError(f"{word}: more than {_MAX_TASKS} tasks")
        tasks += range(first, last + 1)
    return list(dict.fromkeys(tasks))


def owner_of(path: Path) -> str:
    """The name of a folder's owner; "" where it is gone."""
    try:
        return name_of_user(path.stat().st_uid)
    except OSError:
        return ""


def user_name() -> str:
    """The name of this process's user."""
    return name_of_user(os.getuid())


def worst(errors: Sequence[HpcrunError]) -> int:
    """The exit code of several errors: silence says least, so it goes first."""
    codes = [error.exit_code for error in errors]
    return OutOfReach.exit_code if OutOfReach.exit_code in codes else max(codes, default=0)
