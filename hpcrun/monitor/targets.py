"""What words name: runs and sweeps, by an id or a part of it, and other jobs of Slurm's.

A word that names runs brings what their jobs have written, so that no reader has to ask for it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from hpcrun.context import Context, slurm_transport
from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.files import add_notice, read_plain
from hpcrun.ownership import foreign_owner, is_own
from hpcrun.runs import (
    ARRAY,
    RUN_ID,
    SUBMITTED,
    TASK_ID,
    History,
    RunFolder,
    Submitted,
    SweepFolder,
    detach_copied_record,
    parse_sweep_id,
    read_first_job_id,
    read_record,
    read_submitted,
    read_sweep,
    read_task,
    runs_of,
    sweep_folder,
    sweep_folder_name,
    write_file,
)

# Characters of a run id's date and time.
_STAMP_LENGTH = 15
# A record is written once and its id never changes, so what was read need not be read again.
INDEX = ".job-ids"
# Fewer runs are read in a moment: no file for them.
_MIN_INDEXED_RUNS = 64
# Tasks that one word may name; MaxArraySize is at most 4,000,001 (slurm.conf(5)).
_MAX_TASKS = 100_000
# For a job that no run was submitted as: the attempts' records of this many newest runs are read.
_MAX_RUNS_READ = 1000
# As squeue shows what waits, 7_[3-5,9%2], with the number that may run at once; or as 7_3-5.
_TASKS = re.compile(r"([0-9]+)_\[([0-9,-]+)(?:%[0-9]+)?\]|([0-9]+)_([0-9]+(?:[,-][0-9,-]*))")

# A run, a whole sweep, or the id of a job that hpcrun did not submit.
Target = RunFolder | SweepFolder | str
T = TypeVar("T", RunFolder, SweepFolder)


class Targets(Struct, frozen=True, kw_only=True):
    """All that was named, each once: single runs, whole sweeps, and ids of other Slurm jobs."""

    runs: list[RunFolder]
    sweeps: list[SweepFolder]
    jobs: list[str]

    def all_runs(self) -> list[RunFolder]:
        found = [*self.runs, *(run for sweep in self.sweeps for run in runs_of(sweep))]
        return list(dict.fromkeys(found))


def find_target(context: Context, word: str | None, *, whole: bool = False) -> Target:
    """Find what a word names, as ``find`` does, or else another job of Slurm's.

    A number that Slurm gave to a task of a run means that run; no word means the newest run, or its
    whole sweep. Raises InputError where there is nothing of this name.
    """
    found = find_targets_by_word(context, [word], whole=whole)[word]
    if found is None:
        raise unknown_run_error(context, word)
    return found


def find_targets_by_word(
    context: Context, words: Sequence[str | None], *, whole: bool = False
) -> dict[str | None, Target | None]:
    """Find what each word names, None for nothing, as ``find_target`` does. One trip brings all
    that they name, and ``whole`` logs where their ends are not enough."""
    plain = {word: strip_task_range(word) if word is not None else None for word in words}
    found = _find_targets_by_word(context, list(plain.values()), RunIndex(context.runs_dir))
    fetch_records(context, found.values(), by_word=True, whole=whole)
    return {word: _if_there(found[name]) for word, name in plain.items()}


def resolve_run_or_sweep(context: Context, word: str | None) -> RunFolder | SweepFolder:
    """Find the run or the sweep that a word names; none means the newest. Raises InputError."""
    found = find_target(context, word)
    if isinstance(found, str):
        raise unknown_run_error(context, word)
    return found


def find_targets(context: Context, words: Sequence[str]) -> Targets:
    """Find what words name, each as ``find_target`` does, and tasks as scancel does: 7_[3-5,9].

    Raises InputError for a word that names nothing; nothing has been done then.
    """
    lookup = RunIndex(context.runs_dir)
    lists = {word: match for word in words if (match := _TASKS.fullmatch(word))}
    named = _find_targets_by_word(context, [word for word in words if word not in lists], lookup)
    found: dict[Target, None] = {}
    for word in words:
        target = named.get(word)
        if (match := lists.get(word)) is not None:
            from hpcrun.slurm import parse_task_numbers  # here: few words name tasks

            array = match[1] or match[3]
            tasks = parse_task_numbers(match[2] or match[4], _MAX_TASKS + 1)
            if tasks is None:
                raise InputError(f"{word}: no list of tasks", fix="write it as 7_[3-5,9]")
            if len(tasks) > _MAX_TASKS:
                raise InputError(f"{word}: more than {_MAX_TASKS} tasks")
            sweep = find_run_or_sweep(context.runs_dir, array, lookup)
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
            raise unknown_run_error(context, word)
    if not words:
        found[resolve_run_or_sweep(context, None)] = None
    fetch_records(context, found, by_word=True)
    gone = [one for one in found if not isinstance(one, str) and _if_there(one) is None]
    if gone and context.cluster.host is not None:
        raise unknown_run_error(context, gone[0].path.name)
    return Targets(
        runs=[one for one in found if isinstance(one, RunFolder)],
        sweeps=[one for one in found if isinstance(one, SweepFolder)],
        jobs=[one for one in found if isinstance(one, str)],
    )


def _if_there(found: Target | None) -> Target | None:
    """Return None for a run that the cluster, when it was asked, did not have any more."""
    return found if found is None or isinstance(found, str) or found.path.is_dir() else None


def fetch_records(
    context: Context,
    found: Iterable[Target | None],
    *,
    by_word: bool = False,
    whole: bool = False,
    follow: bool = False,
) -> None:
    """Bring what the jobs of runs have written, in one trip, where the cluster is another machine.

    What is found ``by_word`` is not brought again when its status is asked for first. Raises
    OutOfReach to who is to ``follow`` them; else Slurm is silent too, and that is reported, or
    noted where it may not be asked.
    """

    def stale() -> Iterator[Path]:
        for one in found:
            if one is None or isinstance(one, str):
                continue
            for run in runs_of(one):
                if run.path not in context.session.synced:
                    yield run.path
                if by_word:
                    context.session.synced.add(run.path)
                else:
                    context.session.synced.discard(run.path)

    try:
        context.transport().fetch_changes(stale(), whole=whole, follow=follow)
    except OutOfReach as error:
        if follow:
            raise
        if by_word:
            add_notice(f"{error.message}; what is known here is shown")


def fetch_run_names(
    context: Context, runs: Sequence[RunFolder] = (), begin: Callable[[], object] | None = None
) -> str:
    """Bring the names of all runs from a cluster that is another machine, once a command.

    In the same trip comes what is new of some ``runs``; ``begin`` is called first, when the user
    has logged in: it may begin on what is to be asked meanwhile. Returns why they did not come,
    else "": then those that are known here are shown.
    """
    if context.cluster.host is not None and context.runs_dir not in context.session.synced:
        folders = {context.runs_dir, *(run.path for run in runs)}
        context.session.synced.update(folders)
        transport = context.transport()
        try:
            if begin is not None:
                transport.open()
                begin()
            transport.fetch_changes(folders)
        except OutOfReach as error:
            return f"{error.message}{f' ({error.fix})' if error.fix else ''}"
    return ""


def _find_targets_by_word(
    context: Context, words: Sequence[str | None], lookup: RunIndex
) -> dict[str | None, Target | None]:
    """Find words with one walk through the runs and at most one question to Slurm."""
    found: dict[str | None, Target | None] = {}
    silence = ""
    if context.cluster.host is not None:
        known = {
            word: find_run_or_sweep(context.runs_dir, word, RunIndex(context.runs_dir))
            for word in words
        }
        if None in known or None in known.values():
            silence = fetch_run_names(context)  # some may be new
    found |= {word: find_run_or_sweep(context.runs_dir, word, lookup) for word in words}
    unknown = [word for word, one in found.items() if one is None and word and is_job_id(word)]
    if silence and len(unknown) < list(found.values()).count(None):
        raise OutOfReach(silence)  # what is not known here may be there
    names = _find_successor_jobs(context.runs_dir, unknown, lookup)
    names |= _find_in_slurm(context, [word for word in unknown if word not in names], lookup)
    for word in unknown:
        name = names.get(word)
        found[word] = (
            (find_run_or_sweep(context.runs_dir, name, lookup) if name else None) or name or word
        )
    return found


def _find_in_slurm(context: Context, job_ids: Sequence[str], lookup: RunIndex) -> dict[str, str]:
    """Find jobs of runs by their WorkDir: of tasks by the numbers that Slurm gave them, and of runs
    whose submission was cut short before it was recorded, which it is now.

    Maps each to its id, for a task as 7_3; others are left out. Asks Slurm once, and only where
    there are such runs, or sweeps; never raises.
    """
    lost = lookup.unrecorded
    if not job_ids or not (lost or any(name.endswith(ARRAY) for name in lookup.names)):
        return {}
    from hpcrun.monitor.submitted import record_recovered_job
    from hpcrun.slurm import (
        array_job_id,
        client,  # here, as what it needs: most words name runs
        is_valid_job_id,
    )

    plain = [job_id for job_id in job_ids if job_id.isdigit() or lost]
    asked = [array_job_id(job_id) for job_id in plain if is_valid_job_id(job_id)]
    names: dict[str, str] = {}
    with contextlib.suppress(OutOfReach):
        transport = slurm_transport(context)
        jobs = client.query_queue(transport, asked) if asked else []
        # squeue forgets what is over.
        gone = set(asked) - {job.array for job in jobs} - {job.number for job in jobs}
        jobs += (client.query_accounting(transport, sorted(gone)) or []) if lost and gone else []
        for job in jobs:
            if job.folder in lost and job.is_taken:
                record_recovered_job(context, context.runs_dir / job.folder, job.array)
                lookup.add_job(job.array, job.folder)
                names |= {word: word for word in job_ids if array_job_id(word) == job.array}
            # What waits of an array has the array's own number.
            is_task = job.array != job.number and job.folder.endswith(ARRAY)
            if is_task and (context.runs_dir / job.folder).is_dir():
                names |= {job.number: job.job_id} if job.number in job_ids else {}
    return names


def _find_successor_jobs(
    runs_dir: Path, job_ids: Sequence[str], lookup: RunIndex
) -> dict[str, str]:
    """Map jobs as which runs went on, or are to, to these runs, by their attempts' records."""
    if not job_ids:
        return {}
    found: dict[str, str] = {}
    asked = "|".join(map(re.escape, job_ids))
    mark = re.compile(rf'"(?:job_id|next|successor)": "({asked})"')
    names = sorted(filter(RUN_ID.fullmatch, lookup.names), key=_sort_key, reverse=True)
    for name in names[:_MAX_RUNS_READ]:
        for path in (runs_dir / name / "attempts").glob("*/*.json"):
            with contextlib.suppress(HpcrunError, OSError):
                text = read_plain(path).decode("utf-8", "replace")
                for job_id in mark.findall(text):
                    found.setdefault(job_id, name)
    return found


# ---- runs and sweeps -----------------------------------------------------------------------------


def find_run_or_sweep(
    runs_dir: Path, word: str | None, lookup: RunIndex | None = None
) -> RunFolder | SweepFolder | None:
    """Find a run or a sweep: by its id or the unique start or end of it, by Slurm id, or the
    newest (None); or, also another user's, by the path of its folder.

    123 is the whole array, 123_4 one run of it. A Slurm id that two runs had (a cluster may count
    from 1 again) means the newer one. Pass one ``lookup`` to find many words. Raises InputError for
    a word that fits several runs, and for an empty one. Names are all that is looked at: what the
    jobs have written is as it was brought last.
    """
    if word is None:
        newest = next(list_runs(runs_dir), None)
        task = read_task(newest) if newest is not None else None
        return sweep_folder(runs_dir, task.sweep_id) if task is not None else newest
    if not word.strip():
        raise InputError(
            "an empty name: no run has it",
            fix="is a variable in the command not set? hpcrun status lists the runs",
        )
    if "/" in word:
        return _find_folder(Path(os.path.abspath(word)))  # noqa: PTH100
    if RUN_ID.fullmatch(word) and (runs_dir / word).is_dir():
        return _require_own(RunFolder(runs_dir / word))
    sweep_id = parse_sweep_id(word) or word
    if RUN_ID.fullmatch(sweep_id) and sweep_folder(runs_dir, sweep_id).path.is_dir():
        return _require_own(sweep_folder(runs_dir, sweep_id))
    lookup = lookup or RunIndex(runs_dir)
    if is_job_id(word):
        found = _find_job(lookup, word)
        if found is not None or len(word) < 8:  # a longer one may be the date of a run id
            return found
    return _find_by_part(lookup, word)


def _find_folder(path: Path) -> RunFolder | SweepFolder | None:
    """Find a run or a sweep by its folder: it may be another user's, and then that is noted."""
    sweep_id = parse_sweep_id(path.name)
    if not RUN_ID.fullmatch(sweep_id or path.name) or not path.is_dir():
        return None
    if who := foreign_owner(path):
        add_notice(f"{path}: this run belongs to {who}")
    return RunFolder(path) if sweep_id is None else SweepFolder(path)


def _require_own(found: T) -> T:
    """Insist that a run or a sweep is the user's own. Raises InputError."""
    if who := foreign_owner(found.path):
        raise InputError(
            f"{found.path.name}: this run belongs to {who}",
            fix=f"name it by its folder: {found.path}",
        )
    return found


def strip_task_range(word: str) -> str:
    """Return the array's id for what squeue prints for its waiting tasks; all else as it is.

    >>> strip_task_range("7_[0-5%2]"), strip_task_range("7_3"), strip_task_range("7k3q")
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


class RunIndex:
    """The names in a runs folder, and the Slurm jobs submitted from there; each is read once.

    A cluster may count from 1 again, or two may share the folder: then the newest job is meant. A
    copy of a folder has no job of its own.
    """

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self._found: dict[str, str] = {}
        self._known: dict[str, str] = {}
        self._news = 0
        self._walk = self._job_folders()
        # Folders without a record of their job, as far as the walk has come.
        self.unrecorded: set[str] = set()

    @cached_property
    def names(self) -> list[str]:
        return list_names(self.runs_dir)

    def folder_of_job(self, job_id: str) -> str | None:
        """Return the name of the folder that a job was submitted from; None: no run has this id."""
        while job_id not in self._found:
            found = next(self._walk, None)
            if found is None:
                break
            self._found.setdefault(*found)
        if self._news >= _MIN_INDEXED_RUNS:
            self._news = 0
            there = set(self.names)
            lines = [f"{name}\t{id_}\n" for name, id_ in self._known.items() if name in there]
            with contextlib.suppress(HpcrunError):  # a colleague's folder
                write_file(self.runs_dir / INDEX, "".join(lines).encode())
        return self._found.get(job_id)

    def add_job(self, job_id: str, name: str) -> None:
        self._found[job_id] = name

    def _job_folders(self) -> Iterator[tuple[str, str]]:
        """Go through all ids and their folders; "" is that of a run without a job of its own."""
        with contextlib.suppress(OSError):
            index = self.runs_dir / INDEX
            text = "" if foreign_owner(index) else read_plain(index).decode("utf-8", "replace")
            lines = (line.partition("\t") for line in text.split("\n"))
            self._known = {name: job_id for name, tab, job_id in lines if tab}
        arrays = {name for name in self.names if parse_sweep_id(name)}
        for name in self.names:
            is_own = RUN_ID.fullmatch(name) and sweep_folder_name(name) not in arrays
            if name not in arrays and not is_own:
                continue
            job_id = self._known.get(name)
            if job_id is None:
                record = None
                with contextlib.suppress(HpcrunError):
                    record = read_record(self.runs_dir / name / SUBMITTED, Submitted)
                record = detach_copied_record(record, parse_sweep_id(name) or name)
                if record is None:  # not yet, or sbatch's answer was lost: to be read again
                    self.unrecorded.add(name)
                    with contextlib.suppress(HpcrunError):
                        if job_id := read_first_job_id(self.runs_dir / name):
                            yield job_id, name
                    continue
                job_id = self._known[name] = record.job_id or ""
                self._news += 1
            yield job_id, name


def _find_job(lookup: RunIndex, word: str) -> RunFolder | SweepFolder | None:
    job_id, _, index = word.partition("_")
    name = lookup.folder_of_job(job_id)
    if name is None:
        return None
    sweep_id = parse_sweep_id(name)
    if sweep_id is None:
        return RunFolder(lookup.runs_dir / name) if not index else None
    sweep = sweep_folder(lookup.runs_dir, sweep_id)
    if not index:
        return sweep
    submitted = read_record(sweep.submitted, Submitted)
    run = sweep.run(int(index) * (submitted.runs_per_job if submitted else 1))
    if submitted and submitted.runs_per_job > 1:
        raise InputError(
            f"{word}: several runs share this job",
            fix=f"name one of them, as {run.run_id}, or the sweep: {job_id}",
        )
    return run if run.path.is_dir() else None


def _find_by_part(lookup: RunIndex, word: str) -> RunFolder | SweepFolder | None:
    def fits(id_: str) -> bool:
        return id_.startswith(word) or id_.endswith("-" + word)

    sweeps = [id_ for id_ in map(parse_sweep_id, lookup.names) if id_ is not None and fits(id_)]
    runs = []
    for name in lookup.names:
        if fits(name) and RUN_ID.fullmatch(name):
            run = RunFolder(lookup.runs_dir / name)
            task = read_task(run)
            # A word that fits a sweep fits its runs too, and means the sweep.
            if task is None or task.sweep_id not in sweeps:
                runs.append(run)
    found = sorted([*sweeps, *(run.run_id for run in runs)], key=_sort_key, reverse=True)
    if len(found) > 1:
        raise InputError(
            f"{word}: fits {len(found)} runs, from {found[-1]} to {found[0]}",
            fix="give more of the id",
        )
    if sweeps:
        return sweep_folder(lookup.runs_dir, sweeps[0])
    return runs[0] if runs else None


def require_single_run(found: RunFolder | SweepFolder, word: str | None) -> RunFolder:
    """Return a run that was found by a word. Raises InputError if it is a whole sweep."""
    if isinstance(found, RunFolder):
        return found
    first = found.run(0)
    submitted = read_submitted(first, read_task(first))
    tasks = read_sweep(found).tasks
    one = submitted.job_id if submitted and submitted.job_id else first.run_id
    raise InputError(
        f"{word or found.sweep_id}: a sweep of {tasks} run{'s' if tasks > 1 else ''}",
        fix=f"name one of them, as {one}",
    )


def list_runs(runs_dir: Path) -> Iterator[RunFolder]:
    """List the runs, newest first; those of one sweep in the order of its tasks."""
    for name in list_names(runs_dir):
        if RUN_ID.fullmatch(name):
            yield RunFolder(runs_dir / name)


def list_names(runs_dir: Path) -> list[str]:
    """List all names in the folder, runs newest first, without those of other users."""
    try:
        names = os.listdir(runs_dir)  # noqa: PTH208 - names alone are wanted
        if not is_own(runs_dir.stat()):
            names = [name for name in names if not foreign_owner(runs_dir / name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(names, key=_sort_key, reverse=True)


def _sort_key(name: str) -> tuple[str, str, int]:
    """Return the sort key of a run's name: the newest is the greatest; of a sweep the first task.

    The last four characters of an id continue its stamp, which ends at the second.
    """
    # Most names have no point, and there may be thousands of them.
    task = TASK_ID.fullmatch(name) if "." in name else None
    return (
        name[:_STAMP_LENGTH] + name[-4:],
        name if task is None else task[1],
        -int(task[2]) if task else 0,
    )


# ---- words that name nothing ---------------------------------------------------------------------


def _runs_dir(context: Context) -> str:
    """Name the folder of the runs as its user knows it."""
    host = context.cluster.host
    return f"{host}:{context.cluster.runs_dir}" if host is not None else str(context.runs_dir)


def describe_no_runs(context: Context) -> str:
    """Write that there are no runs yet, or that their folder is missing: it may not be mounted."""
    runs_dir = context.runs_dir
    if context.cluster.host is not None:
        return f"no runs yet in {_runs_dir(context)}"
    if not runs_dir.is_dir():
        return f"no runs yet in {runs_dir}, which does not exist (is its file system mounted?)"
    with contextlib.suppress(OSError):
        if any(RUN_ID.fullmatch(path.name) for path in runs_dir.iterdir()):
            return f"no run in {runs_dir} is yours; HPCRUN_TRUST={runs_dir} shows those of others"
    return f"no runs yet in {runs_dir}"


def unknown_run_error(context: Context, word: str | None, *, or_file: bool = False) -> InputError:
    """Report a word that names no run (``or_file``: nor a log); None: there are no runs at all."""
    if word is None:
        message = describe_no_runs(context)
        return InputError(message, fix="hpcrun submit JOB; hpcrun jobs lists them")
    message = f"{word}: no such run in {_runs_dir(context)}"
    if or_file:
        message = f"{word}: no such file, run or job"
    return InputError(message, fix="hpcrun status lists the runs")


def unknown_job_error(job_id: str) -> InputError:
    """Report a job that neither hpcrun nor Slurm knows."""
    return InputError(
        f"{job_id}: neither a run of hpcrun nor a job that Slurm knows",
        fix="hpcrun status lists the runs; squeue --me your jobs",
    )


def copied_run_error(history: History, verb: str) -> InputError | None:
    """Report a folder that is a copy, whose job is the original's; None for all others."""
    if history.copy_of is None:
        return None
    return InputError(
        f"{history.run_id}: a copy of {history.copy_of}, and no job is its own",
        fix=f"hpcrun {verb} {history.copy_of}",
    )
