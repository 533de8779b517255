"""Finds the runs, sweeps and Slurm jobs that words on the command line name.

Records of the named runs are fetched from a remote cluster, so that readers find them locally.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from hpcrun.context import PROFILE, Context, slurm_transport
from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.files import add_notice, read_plain
from hpcrun.ownership import foreign_owner, is_own
from hpcrun.runs import (
    ARRAY,
    EVALUATIONS,
    RUN_ID,
    SUBMITTED,
    TASK_ID,
    History,
    PipelineRecord,
    RunFolder,
    Submitted,
    SweepFolder,
    detach_copied_record,
    parse_sweep_id,
    read_first_job_id,
    read_record,
    read_runs_per_job,
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
# Cached job ids: the record of a submission is written once, so it need not be read again.
INDEX = ".job-ids"
# The index is written only if at least this many records were new.
_MIN_INDEXED_RUNS = 64
# Tasks that one word may name; MaxArraySize is at most 4,000,001 (slurm.conf(5)).
_MAX_TASKS = 100_000
# An unknown job id is searched in the attempt records of this many newest runs.
_MAX_RUNS_READ = 1000
# Pending tasks as squeue prints them, 7_[3-5,9%2], with the concurrency limit; or 7_3-5.
_TASKS = re.compile(r"([0-9]+)_\[([0-9,-]+)(?:%[0-9]+)?\]|([0-9]+)_([0-9]+(?:[,-][0-9,-]*))")

# The name of a group of runs, as in the group of a job file.
MAX_GROUP_NAME = 40
GROUP_NAME = re.compile(rf"[A-Za-z][A-Za-z0-9._+-]{{0,{MAX_GROUP_NAME - 1}}}")

# A run, a whole sweep, or the id of a job that hpcrun did not submit.
Target = RunFolder | SweepFolder | str
T = TypeVar("T", RunFolder, SweepFolder)


class Targets(Struct, frozen=True, kw_only=True):
    """Everything that was named, without duplicates: runs, whole sweeps, ids of other jobs."""

    runs: list[RunFolder]
    sweeps: list[SweepFolder]
    jobs: list[str]

    def all_runs(self) -> list[RunFolder]:
        found = [*self.runs, *(run for sweep in self.sweeps for run in runs_of(sweep))]
        return list(dict.fromkeys(found))


def find_target(context: Context, word: str | None, *, whole: bool = False) -> Target:
    """Find the run, sweep or Slurm job that a word names.

    The number of an array task means the task's run. No word means the newest run of the project,
    or its whole sweep. Raises InputError if nothing has this name.
    """
    found = find_targets_by_word(context, [word], whole=whole)[word]
    if found is None:
        raise unknown_run_error(context, word)
    return found


def find_targets_by_word(
    context: Context, words: Sequence[str | None], *, whole: bool = False
) -> dict[str | None, Target | None]:
    """Map each word to its target as ``find_target`` does, or to None if it names nothing.

    Records of all targets are fetched in one trip; with ``whole``, entire logs instead of the ends.
    """
    plain = {word: strip_task_range(word) if word is not None else None for word in words}
    found = _find_targets_by_word(context, list(plain.values()), RunIndex(context.runs_dir))
    fetch_records(context, found.values(), by_word=True, whole=whole)
    return {word: _if_there(found[name]) for word, name in plain.items()}


def resolve_run_or_sweep(context: Context, word: str | None) -> RunFolder | SweepFolder:
    """Find the run or sweep that a word names; None means the newest. Raises InputError."""
    found = find_target(context, word)
    if isinstance(found, str):
        raise unknown_run_error(context, word)
    return found


def find_targets(context: Context, words: Sequence[str]) -> Targets:
    """Find the targets of words, including lists of tasks as scancel accepts them: 7_[3-5,9].

    Raises InputError for a word that names nothing.
    """
    lookup = RunIndex(context.runs_dir)
    lists = {word: match for word in words if (match := _TASKS.fullmatch(word))}
    named = _find_targets_by_word(context, [word for word in words if word not in lists], lookup)
    found: dict[Target, None] = {}
    for word in words:
        target = named.get(word)
        if (match := lists.get(word)) is not None:
            from hpcrun.slurm import (
                parse_task_numbers,  # deferred: `hpcrun logs RUN` needs no module of slurm
            )

            array = match[1] or match[3]
            tasks = parse_task_numbers(match[2] or match[4], _MAX_TASKS + 1)
            if tasks is None:
                raise InputError(f"{word}: not a list of tasks", fix="write it as 7_[3-5,9]")
            if len(tasks) > _MAX_TASKS:
                raise InputError(f"{word}: more than {_MAX_TASKS} tasks")
            sweep = find_run_or_sweep(context.runs_dir, array, lookup)
            if isinstance(sweep, SweepFolder):
                numbers = read_sweep(sweep).numbers
                if any(task not in numbers for task in tasks):
                    raise InputError(f"{word}: the sweep's tasks are {format_numbers(numbers)}")
                found |= dict.fromkeys(sweep.run(task) for task in tasks)
            else:
                found |= dict.fromkeys(f"{array}_{task}" for task in tasks)
        elif target is not None:
            if not isinstance(target, str):
                _require_unique_name(lookup, word, target)
            found[target] = None
        elif members := find_group(context, word):
            found |= dict.fromkeys(members)
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
    """Return None for a run that no longer existed on the cluster when its records were fetched."""
    return found if found is None or isinstance(found, str) or found.path.is_dir() else None


def fetch_records(
    context: Context,
    found: Iterable[Target | None],
    *,
    by_word: bool = False,
    whole: bool = False,
    follow: bool = False,
) -> None:
    """Fetch the records of runs from a remote cluster in one trip.

    Args:
        found: The runs and sweeps; other targets are ignored.
        by_word: Mark the runs as synced, so that the next status query does not fetch them again,
            and print a notice instead of failing if the cluster is out of reach.
        whole: Fetch entire logs.
        follow: Keep fetching what is appended. Raises OutOfReach.
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
    """Fetch the names of all runs from a remote cluster, once per command.

    Args:
        runs: Their new records are fetched in the same trip.
        begin: Called after the login, to start queries that run in parallel.

    Returns:
        Why the names could not be fetched, else "". The names known locally remain usable.
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
    """Map words to targets with one walk through the runs and at most one query to Slurm."""
    found: dict[str | None, Target | None] = {}
    silence = ""
    if context.cluster.host is not None:
        known = {
            word: _find_own_newest(context)
            if word is None
            else find_run_or_sweep(context.runs_dir, word, RunIndex(context.runs_dir))
            for word in words
        }
        if None in known or None in known.values():
            silence = fetch_run_names(context)  # the word may name a new run
    found |= {
        word: _find_own_newest(context)
        if word is None
        else find_run_or_sweep(context.runs_dir, word, lookup)
        for word in words
    }
    found |= {
        word: _find_stage(context.runs_dir, word)
        for word, one in found.items()
        if one is None and word is not None and "." in word
    }
    unknown = [word for word, one in found.items() if one is None and word and is_job_id(word)]
    if silence and len(unknown) < list(found.values()).count(None):
        raise OutOfReach(silence)  # the run may exist on the cluster
    names = _find_successor_jobs(context.runs_dir, unknown, lookup)
    names |= _find_in_slurm(context, [word for word in unknown if word not in names], lookup)
    for word in unknown:
        name = names.get(word)
        found[word] = (
            (find_run_or_sweep(context.runs_dir, name, lookup) if name else None) or name or word
        )
    return found


def _find_stage(runs_dir: Path, word: str) -> RunFolder | SweepFolder | None:
    """Find the newest run of a stage of a pipeline, named as ID.STAGE."""
    pipeline_id, _, stage = word.rpartition(".")
    for one in reversed(list_group(runs_dir, pipeline_id) if pipeline_id else []):
        record = None
        with contextlib.suppress(HpcrunError):
            record = read_record(one.pipeline, PipelineRecord)
        if record is not None and record.stage == stage:
            return one
    return None


def _find_in_slurm(context: Context, job_ids: Sequence[str], lookup: RunIndex) -> dict[str, str]:
    """Find runs by the WorkDir of Slurm jobs.

    Covers array tasks that are named by their own job number, and runs whose submission was
    interrupted before its job id was recorded; the id is recorded now. Returns the id by which each
    job is known, such as 7_3 for a task. Slurm is queried once, and only if there are such runs or
    sweeps. Never raises.
    """
    lost = lookup.unrecorded
    if not job_ids or not (lost or any(name.endswith(ARRAY) for name in lookup.names)):
        return {}
    from hpcrun.monitor.submitted import record_recovered_job
    from hpcrun.slurm import (
        array_job_id,
        client,  # deferred: see above
        is_valid_job_id,
    )

    plain = [job_id for job_id in job_ids if job_id.isdecimal() or lost]
    asked = [array_job_id(job_id) for job_id in plain if is_valid_job_id(job_id)]
    names: dict[str, str] = {}
    with contextlib.suppress(OutOfReach):
        transport = slurm_transport(context)
        jobs = client.query_queue(transport, asked) if asked else []
        # squeue no longer shows finished jobs.
        gone = set(asked) - {job.array for job in jobs} - {job.number for job in jobs}
        jobs += (client.query_accounting(transport, sorted(gone)) or []) if lost and gone else []
        for job in jobs:
            if job.folder in lost and job.is_taken:
                record_recovered_job(context, context.runs_dir / job.folder, job.array)
                lookup.add_job(job.array, job.folder)
                names |= {word: word for word in job_ids if array_job_id(word) == job.array}
            # The pending tasks of an array have the array's own number.
            is_task = job.array != job.number and job.folder.endswith(ARRAY)
            if is_task and (context.runs_dir / job.folder).is_dir():
                names |= {job.number: job.job_id} if job.number in job_ids else {}
    return names


def _find_successor_jobs(
    runs_dir: Path, job_ids: Sequence[str], lookup: RunIndex
) -> dict[str, str]:
    """Map jobs that continue a run to that run, by the records of its attempts."""
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
    """Find a run or a sweep by a word, in local records only.

    A word is a run id or its unique start or end, a Slurm id, the name of runs (which means the
    newest of them), or the path of a folder, which may belong to another user. None means the
    newest. 123 is a whole array, 123_4 one run of it. If two runs had the same Slurm id, the newer
    one is meant. Pass one ``lookup`` to find many words.
    Raises InputError for an empty or ambiguous word.
    """
    if word is None:
        newest = next(list_runs(runs_dir), None)
        task = read_task(newest) if newest is not None else None
        return sweep_folder(runs_dir, task.sweep_id) if task is not None else newest
    if not word.strip():
        raise InputError(
            "empty run name",
            fix="a variable in the command may be unset; hpcrun status lists the runs",
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
        if found is not None or len(word) < 8:  # a longer number may be the date of a run id
            return found
    return _find_by_part(lookup, word) or _find_newest_by_name(lookup, word)


def _find_own_newest(context: Context) -> RunFolder | SweepFolder | None:
    """Find the newest run, or its sweep: of the current project, or outside any project of all.

    The project of runs that older versions submitted is unknown: they count as runs of each.
    """
    if not (context.project / PROFILE).is_file():
        return find_run_or_sweep(context.runs_dir, None)
    for run in islice(list_runs(context.runs_dir), _MAX_RUNS_READ):
        task = read_task(run)
        submitted = None
        with contextlib.suppress(HpcrunError):
            submitted = read_submitted(run, task)
        if submitted is None or submitted.project in (None, str(context.project)):
            return sweep_folder(context.runs_dir, task.sweep_id) if task is not None else run
    return None


def _find_folder(path: Path) -> RunFolder | SweepFolder | None:
    """Find a run or a sweep by its folder, with a notice if it belongs to another user."""
    sweep_id = parse_sweep_id(path.name)
    if not RUN_ID.fullmatch(sweep_id or path.name) or not path.is_dir():
        return None
    if who := foreign_owner(path):
        add_notice(f"{path}: this run belongs to {who}")
    return RunFolder(path) if sweep_id is None else SweepFolder(path)


def _require_own(found: T) -> T:
    """Refuse a run or sweep of another user. Raises InputError."""
    if who := foreign_owner(found.path):
        raise InputError(
            f"{found.path.name}: this run belongs to {who}",
            fix=f"name it by its folder: {found.path}",
        )
    return found


def strip_task_range(word: str) -> str:
    """Return the array's id for squeue's notation of pending tasks, else the word unchanged.

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
    """The names in a runs folder and the Slurm jobs submitted from there, each read once.

    A job id that several runs had, because a cluster reused it or two clusters share the folder,
    means the newest run. A copied folder has no job of its own.
    """

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self._found: dict[str, str] = {}
        self._known: dict[str, str] = {}
        self._news = 0
        self._walk = self._job_folders()
        # Folders without a record of their job, among those walked so far.
        self.unrecorded: set[str] = set()

    @cached_property
    def names(self) -> list[str]:
        return list_names(self.runs_dir)

    def folder_of_job(self, job_id: str) -> str | None:
        """Return the name of the folder of a job's run, or None if no run has this id."""
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
        """Yield job ids and folders; the id is "" for a run without a job of its own."""
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
                if record is None:  # in progress, or sbatch's reply was lost: read it again later
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
    runs_per_job = read_runs_per_job(sweep, read_record(sweep.submitted, Submitted))
    run = sweep.run(int(index) * runs_per_job)
    if runs_per_job > 1:
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
            # A word that matches a sweep also matches its runs, and means the sweep.
            if task is None or task.sweep_id not in sweeps:
                runs.append(run)
    found = sorted([*sweeps, *(run.run_id for run in runs)], key=_sort_key, reverse=True)
    if len(found) > 1:
        some = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        raise InputError(f"{word} matches {len(found)} runs: {some}", fix="give more of the id")
    if sweeps:
        return sweep_folder(lookup.runs_dir, sweeps[0])
    return runs[0] if runs else None


def find_group(
    context: Context, word: str | None, *, whole: bool = False
) -> list[RunFolder | SweepFolder]:
    """Find the runs and sweeps that were submitted as a group, oldest first; [] if there are none.

    Their records are fetched from a remote cluster; with ``whole`` entire logs too.
    """
    if word is None or not GROUP_NAME.fullmatch(word):
        return []
    found = list_group(context.runs_dir, word)
    if not found and context.cluster.host is not None:  # submitted from another machine
        fetch_records(context, list_runs(context.runs_dir), by_word=True)
        found = list_group(context.runs_dir, word)
    fetch_records(context, found, by_word=True, whole=whole)
    if context.cluster.host is not None and any(
        (one.path / EVALUATIONS).is_file() for one in found
    ):
        # Jobs on the cluster have submitted further runs of the group.
        context.session.synced.discard(context.runs_dir)
        fetch_run_names(context)
        found = list_group(context.runs_dir, word)
        fetch_records(context, found, by_word=True, whole=whole)
    return [one for one in found if one.path.is_dir()]


def list_group(runs_dir: Path, word: str) -> list[RunFolder | SweepFolder]:
    """List the runs and sweeps of a group by the records known here, oldest first."""
    found: list[tuple[float, RunFolder | SweepFolder]] = []
    for name in list_names(runs_dir):
        sweep_id = parse_sweep_id(name)
        if sweep_id is None and (not RUN_ID.fullmatch(name) or TASK_ID.fullmatch(name)):
            continue
        record = None
        with contextlib.suppress(HpcrunError):
            record = read_record(runs_dir / name / SUBMITTED, Submitted)
        if record is not None and record.group == word and record.run_id == (sweep_id or name):
            folder = runs_dir / name
            run = RunFolder(folder) if sweep_id is None else SweepFolder(folder)
            found.append((record.submitted_at, run))
    return [run for _, run in sorted(found, key=lambda each: each[0])]


def list_recent_runs(
    context: Context, *, pattern: str = "", count: int | None = None
) -> list[RunFolder | SweepFolder]:
    """List runs and sweeps, newest first: of the current project, or outside any project all.

    Args:
        pattern: A pattern of fnmatch that the name matches; runs of all projects then count.
        count: The maximum number.

    Raises:
        InputError: There is none.
        OutOfReach: The cluster does not respond.
    """
    if silence := fetch_run_names(context):
        raise OutOfReach(silence)
    is_in_project = (context.project / PROFILE).is_file() and not pattern
    found: list[RunFolder | SweepFolder] = []
    for name in list_names(context.runs_dir):
        sweep_id = parse_sweep_id(name)
        if not RUN_ID.fullmatch(sweep_id or name) or TASK_ID.fullmatch(name):
            continue
        folder = context.runs_dir / name
        one = RunFolder(folder) if sweep_id is None else SweepFolder(folder)
        if pattern and not fnmatchcase(run_name(sweep_id or name), pattern):
            continue
        if is_in_project:
            record = None
            with contextlib.suppress(HpcrunError):
                record = read_record(one.submitted, Submitted)
            if record is not None and record.project not in (None, str(context.project)):
                continue
        found.append(one)
        if len(found) == count:
            break
    if not found:
        what = f"no run has a name like {pattern}" if pattern else describe_no_runs(context)
        raise InputError(what, fix="hpcrun status --all lists the runs")
    return found


def _list_by_name(lookup: RunIndex, name: str) -> list[RunFolder | SweepFolder]:
    """List the runs and sweeps that were submitted under a name, newest first."""
    found: list[RunFolder | SweepFolder] = []
    for folder in lookup.names:
        sweep_id = parse_sweep_id(folder)
        if f"-{name}-" not in folder or run_name(sweep_id or folder) != name:
            continue
        if sweep_id is not None:
            found.append(sweep_folder(lookup.runs_dir, sweep_id))
        elif RUN_ID.fullmatch(folder):
            found.append(RunFolder(lookup.runs_dir / folder))
    return found


def _find_newest_by_name(lookup: RunIndex, name: str) -> RunFolder | SweepFolder | None:
    found = _list_by_name(lookup, name)
    if len(found) > 1:
        add_notice(f"{name}: {len(found)} runs have this name; the newest is {_id_of(found[0])}")
    return found[0] if found else None


def _require_unique_name(lookup: RunIndex, word: str, target: RunFolder | SweepFolder) -> None:
    """Refuse a name that several runs have. Raises InputError."""
    if run_name(_id_of(target)) != word:
        return
    found = _list_by_name(lookup, word)
    if len(found) > 1:
        ids = ", ".join(_id_of(one) for one in found[:5])
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise InputError(
            f"{word}: {len(found)} runs have this name: {ids}{more}", fix="give the id of one"
        )


def _id_of(target: RunFolder | SweepFolder) -> str:
    return target.run_id if isinstance(target, RunFolder) else target.sweep_id


def run_name(run_id: str) -> str:
    """Return the name under which a run or sweep was submitted; "" for the task of a sweep.

    >>> run_name("20261120-081455-lr-7k3q"), run_name("20261120-081455-lr.3-7k3q")
    ('lr', '')
    """
    return "" if TASK_ID.fullmatch(run_id) else run_id[_STAMP_LENGTH + 1 : -5]


def format_numbers(numbers: Sequence[int]) -> str:
    """Format the indices of an array.

    >>> format_numbers(range(4)), format_numbers([1, 5])
    ('0 to 3', '1, 5')
    """
    if len(numbers) > 1 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def require_single_run(found: RunFolder | SweepFolder, word: str | None) -> RunFolder:
    """Return the run that a word named. Raises InputError if it is a whole sweep."""
    if isinstance(found, RunFolder):
        return found
    sweep = read_sweep(found)
    first = found.run(next(iter(sweep.numbers), 0))
    submitted = read_submitted(first, read_task(first))
    tasks = sweep.tasks
    one = submitted.job_id if submitted and submitted.job_id else first.run_id
    raise InputError(
        f"{word or found.sweep_id}: a sweep of {tasks} run{'s' if tasks > 1 else ''}",
        fix=f"name one of them, as {one}",
    )


def list_runs(runs_dir: Path) -> Iterator[RunFolder]:
    """List the runs, newest first, and the runs of a sweep in the order of its tasks."""
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
    """Return the sort key of a run's name; newer runs and earlier tasks of a sweep are greater.

    The last four characters of an id refine its time stamp, which has a resolution of a second.
    """
    # Most names have no point, and there may be thousands of them.
    task = TASK_ID.fullmatch(name) if "." in name else None
    return (
        name[:_STAMP_LENGTH] + name[-4:],
        name if task is None else task[1],
        -int(task[2]) if task else 0,
    )


# ---- errors for unknown words --------------------------------------------------------------------


def _runs_dir(context: Context) -> str:
    """Return the path of the runs folder, with the host of a remote cluster."""
    host = context.cluster.host
    return f"{host}:{context.cluster.runs_dir}" if host is not None else str(context.runs_dir)


def describe_no_runs(context: Context) -> str:
    """Return the message that there are no runs, or that their folder does not exist."""
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
    """Return the error for a word that names no run, or for None if there are no runs."""
    if word is None:
        message = describe_no_runs(context)
        newest = find_run_or_sweep(context.runs_dir, None)
        if newest is not None:
            run = newest if isinstance(newest, RunFolder) else newest.run(0)
            record = read_submitted(run, read_task(run))
            where = record.project if record is not None else None
            return InputError(
                f"no run of this project, {context.project}: the newest run, {_id_of(newest)}, is "
                f"of {where or 'another one'}",
                fix="name a run; hpcrun status lists those of all projects",
            )
        return InputError(message, fix="hpcrun submit JOB; hpcrun jobs lists them")
    if group := find_group(context, word):
        one = group[0].run_id if isinstance(group[0], RunFolder) else group[0].sweep_id
        count = sum(len(runs_of(each)) for each in group)
        return InputError(f"{word}: a group of {count} runs", fix=f"name one of them, as {one}")
    message = f"{word}: no such run in {_runs_dir(context)}"
    if or_file:
        message = f"{word}: no such file, run or job"
    return InputError(message, fix="hpcrun status lists the runs")


def unknown_job_error(job_id: str) -> InputError:
    """Return the error for a job unknown to hpcrun and Slurm."""
    return InputError(
        f"{job_id}: neither a run of hpcrun nor a job that Slurm knows",
        fix="hpcrun status lists the runs; squeue --me your jobs",
    )


def copied_run_error(history: History, verb: str) -> InputError | None:
    """Return the error for a copied run folder, whose job belongs to the original; else None."""
    if history.copy_of is None:
        return None
    return InputError(
        f"{history.run_id}: a copy of {history.copy_of}, without a job of its own",
        fix=f"hpcrun {verb} {history.copy_of}",
    )
