"""What the words after a verb name: runs, whole sweeps, and other jobs of Slurm's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from hpcrun.controller.context import Context, slurm_transport
from hpcrun.errors import InputError, OutOfReach
from hpcrun.runs.find import Lookup, find, is_job_id, no_runs_in, plain_id
from hpcrun.runs.layout import ARRAY, RunFolder, SweepFolder
from hpcrun.runs.records import History
from hpcrun.runs.store import read_sweep, runs_of

# Tasks that one word may name; MaxArraySize is at most 4,000,001 (slurm.conf(5)).
_MAX_TASKS = 100_000
# As squeue shows what waits, 7_[3-5,9%2], with the number that may run at once; or as 7_3-5.
_TASKS = re.compile(r"([0-9]+)_\[([0-9,-]+)(?:%[0-9]+)?\]|([0-9]+)_([0-9]+(?:[,-][0-9,-]*))")

# A run, a whole sweep, or the id of a job that hpcrun did not submit.
Target = RunFolder | SweepFolder | str


class Targets(Struct, frozen=True, kw_only=True):
    """All that was named, each once: single runs, whole sweeps, and ids of other Slurm jobs."""

    runs: list[RunFolder]
    sweeps: list[SweepFolder]
    jobs: list[str]

    def all_runs(self) -> list[RunFolder]:
        """The runs, those of the sweeps included."""
        found = [*self.runs, *(run for sweep in self.sweeps for run in runs_of(sweep))]
        return list(dict.fromkeys(found))


def find_target(context: Context, word: str | None) -> Target | None:
    """Find what a word names, as ``runs.find.find`` does, or else another job of Slurm's.

    A number that Slurm gave to a task of a run means that run; no word means the newest run, or its
    whole sweep. None: there is nothing of this name. Raises InputError as find() does.
    """
    if word is None:
        return find(context.runs_dir, None)
    word = plain_id(word)
    return _find_each(context, [word], Lookup(context.runs_dir))[word]


def resolve(context: Context, word: str | None) -> RunFolder | SweepFolder:
    """Find the run or the sweep that a word names; none means the newest. Raises InputError."""
    found = find_target(context, word)
    if found is None or isinstance(found, str):
        raise no_such_run(context, word)
    return found


def find_targets(context: Context, words: Sequence[str]) -> Targets:
    """Find what words name, each as ``find_target`` does, and tasks as scancel does: 7_[3-5,9].

    No words name the newest run, or its whole sweep. Raises InputError for a word that names
    nothing; nothing has been done then.
    """
    lookup = Lookup(context.runs_dir)
    lists = {word: match for word in words if (match := _TASKS.fullmatch(word))}
    named = _find_each(context, [word for word in words if word not in lists], lookup)
    found: dict[Target, None] = {}
    for word in words:
        target = named.get(word)
        if (match := lists.get(word)) is not None:
            array, tasks = match[1] or match[3], task_numbers(word, match[2] or match[4])
            sweep = find(context.runs_dir, array, lookup)
            if isinstance(sweep, SweepFolder):
                count = read_sweep(sweep).tasks
                if any(task >= count for task in tasks):
                    raise InputError(f"{word}: the sweep's tasks are 0 to {count - 1}")
                found |= dict.fromkeys(sweep.run(task) for task in tasks)
            else:
                found |= dict.fromkeys(f"{array}_{task}" for task in tasks)
        elif target is not None:
            found[target] = None
        else:
            raise no_such_run(context, word)
    if not words:
        found[resolve(context, None)] = None
    return Targets(
        runs=[one for one in found if isinstance(one, RunFolder)],
        sweeps=[one for one in found if isinstance(one, SweepFolder)],
        jobs=[one for one in found if isinstance(one, str)],
    )


def _find_each(context: Context, words: Sequence[str], lookup: Lookup) -> dict[str, Target | None]:
    """Find words with one walk through the runs and at most one question to Slurm."""
    found: dict[str, Target | None] = {word: find(context.runs_dir, word, lookup) for word in words}
    unknown = [word for word, one in found.items() if one is None and is_job_id(word)]
    names = _names_of_tasks(context, unknown, lookup)
    for word in unknown:
        name = names.get(word, word)
        found[word] = (find(context.runs_dir, name, lookup) if name != word else None) or name
    return found


def _names_of_tasks(context: Context, job_ids: Sequence[str], lookup: Lookup) -> dict[str, str]:
    """Map the numbers that Slurm gave to tasks of runs to the tasks' ids, as 7_3.

    Other ids are left out. Asks Slurm once, and only where there are sweeps; never raises.
    """
    if not job_ids or not any(name.endswith(ARRAY) for name in lookup.names):
        return {}
    from hpcrun import scheduler  # here, as what it needs: most words name runs
    from hpcrun.slurm.jobs import is_possible

    asked = [job_id for job_id in job_ids if job_id.isdigit() and is_possible(job_id)]
    try:
        jobs = scheduler.queue(slurm_transport(context), asked) if asked else []
    except OutOfReach:
        return {}
    return {
        job.number: job.job_id
        for job in jobs
        # What waits of an array has the array's own number.
        if job.number in asked
        and job.array != job.number
        and job.folder.endswith(ARRAY)
        and (context.runs_dir / job.folder).is_dir()
    }


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


# ---- words that name nothing


def no_such_run(context: Context, word: str | None) -> InputError:
    """Report a word that names no run; None: there are no runs at all."""
    if word is None:
        message = no_runs_in(context.runs_dir)
        return InputError(message, fix="hpcrun submit JOB; hpcrun jobs lists them")
    message = f"{word}: no such run in {context.runs_dir}"
    return InputError(message, fix="hpcrun status lists the runs")


def unknown_job(job_id: str) -> InputError:
    """Report a job that neither hpcrun nor Slurm knows."""
    return InputError(
        f"{job_id}: neither a run of hpcrun nor a job that Slurm knows",
        fix="hpcrun status lists the runs; squeue --me your jobs",
    )


def job_of_another(history: History, verb: str) -> InputError | None:
    """Report a folder that is a copy, whose job is the original's; None for all others."""
    if history.copy_of is None:
        return None
    return InputError(
        f"{history.run_id}: a copy of {history.copy_of}, and no job is its own",
        fix=f"hpcrun {verb} {history.copy_of}",
    )
