"""The records of a run and its attempts: as they stand in their files, read and written.

Writes appear by atomic rename; nothing is locked.
"""

# Annotations are not postponed: msgspec would evaluate the text of each, at every call of hpcrun.
import contextlib
import json
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Struct, convert, field, structs

from hpcrun import files
from hpcrun.errors import HpcrunError, InputError
from hpcrun.ownership import foreign_owner, is_own, other_owner
from hpcrun.plan import Plan
from hpcrun.runs import layout
from hpcrun.runs.ends import Stall
from hpcrun.runs.layout import RunFolder, SweepFolder
from hpcrun.structs import decodable

T = TypeVar("T")
# Slurm's number of a job, and of a task; "" where an attempt is not Slurm's. It becomes a word of
# command lines, those of Slurm and those that messages ask the user to type.
JobId = Annotated[str, msgspec.Meta(pattern=r"\A([0-9]+([_+][0-9]+)?)?\Z")]

# The id of a sweep, which names a folder beside the run.
SweepId = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{layout.RUN_ID.pattern})\Z")]


class Submitted(Struct, frozen=True, kw_only=True):
    """What the run was submitted as: a Slurm job, or ``hpcrun run`` here (``job_id`` None).

    What a listing needs of the plan stands here too, so that it opens one file less; None in the
    records of older versions, and where the runs of a sweep may differ. ``run_id`` is what was
    submitted, a run or a sweep; a copy of its folder has another name, and no job of its own.
    """

    job_id: JobId | None
    run_id: str | None = None
    cluster: str
    slurm_conf: str | None
    submitted_at: float
    host: str
    user: str
    name: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    log_patterns: list[str] = []
    runs_per_job: int = 1  # how many runs of a sweep share a job
    checkpoint_dir: str | None = None  # where it is not the run's own


class Task(Struct, frozen=True, kw_only=True):
    """The run is one task of a sweep's array; ``values`` are its own, by the sweep's names."""

    sweep_id: SweepId
    index: int
    values: dict[str, str]


class Sweep(Struct, frozen=True, kw_only=True):
    """An array of ``tasks`` runs, at most ``limit`` of them at the same time."""

    name: str
    tasks: Annotated[int, msgspec.Meta(ge=0, le=4_000_001)]  # the most that MaxArraySize can be
    limit: int


class Cancelled(Struct, frozen=True, kw_only=True):
    """hpcrun asked Slurm to cancel the run."""

    cancelled_at: float
    user: str


class Resubmitted(Struct, frozen=True, kw_only=True):
    """The run was made of an earlier one; ``checkpoint_dir`` is the earlier one's, or None where
    the run keeps its own. ``code``: which code it has, then (the earlier run's) or now.
    """

    run_id: str
    run_dir: str
    job_id: JobId | None
    code: str
    checkpoint_dir: str | None


class Successor(Struct, frozen=True, kw_only=True):
    """A later run uses the checkpoints in this run's folder; ``reads``: and writes its own."""

    run_dir: str
    reads: bool = False


class Begin(Struct, frozen=True, kw_only=True):
    """An attempt began; times are seconds since the epoch on the node that wrote them."""

    attempt: int
    job_id: JobId
    host: str
    pid: int
    nodes: str
    begun_at: float
    successor: JobId | None = None  # waits to go on, where Slurm may not start this job again


class Failure(Struct, frozen=True, kw_only=True):
    """The process that failed first; ``rank`` None: a launcher failed before any rank did.

    ``why``: the node is not fit for the job, as a check of it found.
    """

    rank: int | None
    local_rank: int | None = None
    node: int
    host: str
    exit_code: int
    signal: int | None
    at: float
    why: str | None = None


class End(Struct, frozen=True, kw_only=True):
    """An attempt ended; ``stopped_by`` is the signal that asked it to (TERM, INT, HUP).

    ``why`` is one of the words of ``runs.ends``, None in records of older versions. ``next``: how
    the run goes on, "requeue", "relaunch" (in the same job) or the id of the next one; None where
    it does not, and then ``note`` may say why. ``checkpoint`` is the newest whole one at that time.
    """

    attempt: int
    job_id: JobId
    exit_code: int
    signal: int | None
    stopped_by: str | None
    first_failure: Failure | None
    begun_at: float
    ended_at: float
    why: str | None = None
    next: Annotated[str, msgspec.Meta(pattern=r"\A(requeue|relaunch|[0-9]+)\Z")] | None = None
    note: str | None = None
    checkpoint: str | None = None


class Attempt(Struct, frozen=True, kw_only=True):
    """One start of the run, as far as its records show; ``beat`` in epoch seconds.

    ``moved``: when its first step was seen, up to half a minute late. ``warnings``: what was odd
    about its nodes. ``ending``: why it was asked to end, where that is known before its end.
    ``first_step``, ``last_step``: those that its log shows, and ``resumed``: the checkpoint that it
    began from ("": none), where they were looked for.
    """

    index: int
    begin: Begin | None = None
    beat: float | None = None
    end: End | None = None
    stall: Stall | None = None
    moved: float | None = None
    ending: str | None = None
    first_step: int | None = None
    last_step: int | None = None
    resumed: str | None = None
    warnings: list[str] = []

    def seconds(self, now: float | None = None) -> float | None:
        """How long it ran: to its end, until ``now``, or to its last sign of life."""
        if self.end is not None:
            return max(0.0, self.end.ended_at - self.end.begun_at)
        until = self.beat if now is None else now
        if self.begin is None or until is None:
            return None
        return max(0.0, until - self.begin.begun_at)


class RunRecords(Struct, frozen=True, kw_only=True):
    """What a run's folder shows of it; of an attempt a listing reads the end or else the begin."""

    task: Task | None = None
    submitted: Submitted | None = None
    cancelled: Cancelled | None = None
    attempts: list[Attempt] = field(default_factory=list)


class CachedRow(RunRecords, frozen=True, kw_only=True):
    """What a listing has read of a run that is over: its records, and its log's last step and loss.

    ``run_id``: whose they are, which another folder may have a copy of; ``stamp``: its attempts'
    folder's mtime_ns then. ``ended_at`` is in seconds since the epoch, ``elapsed`` of the last
    attempt. None: not known.
    """

    run_id: str
    stamp: int
    ended_at: float | None
    elapsed: float | None
    step: int | None
    loss: float | None
    log: str | None


class CachedState(Struct, frozen=True, kw_only=True):
    """A final state that Slurm reported for a run with this many attempts: Slurm forgets jobs.

    ``by_record``: it is from the run's own records, long after the end, and not from Slurm.
    ``elapsed``: the seconds that Slurm counts of the last attempt.
    """

    state: str
    reason: str
    attempts: int
    by_record: bool = False
    elapsed: float | None = None
    kept: CachedRow | None = None


class TaskEnd(Struct, frozen=True, kw_only=True):
    """How a run of a sweep ended; ``stamp`` is its attempts' folder's mtime_ns then.

    ``by_record``: it is from the run's own records; Slurm may still report another.
    """

    state: str
    stamp: int
    by_record: bool = False


class CachedSweep(Struct, frozen=True, kw_only=True):
    """The runs of a sweep that are over, by the numbers of their tasks.

    ``ended_at`` is when all were first seen to be over, in seconds since the epoch; None: not yet.
    """

    ends: dict[str, TaskEnd]
    ended_at: float | None = None


class History(RunRecords, frozen=True, kw_only=True):
    """All records of a run in its folder."""

    run_id: str
    seen: CachedState | None = None
    gone_on_as: str | None = None  # its successor, where Slurm has seen the last attempt's job end

    @property
    def copy_of(self) -> str | None:
        """The run whose folder this one was copied from; None for all others."""
        made_as = self.submitted.run_id if self.submitted is not None else None
        return made_as if made_as != self.run_id else None

    @property
    def known(self) -> Attempt | None:
        """The newest attempt that has a record: one that just begins has only its folder."""
        with_records = (each for each in reversed(self.attempts) if each.begin or each.end)
        return next(with_records, None)

    @property
    def chained(self) -> str | None:
        """The job that has the run now, where one attempt or more were another's."""
        known = self.known
        record = (known.end or known.begin) if known is not None else None
        if record is None or self.submitted is None or self.is_local or self.copy_of is not None:
            return None
        after = known.end.next if known and known.end is not None else self.gone_on_as
        now = record.job_id if after in (None, "requeue", "relaunch") else after
        return now if now != self.submitted.job_id else None

    @property
    def job_id(self) -> str | None:
        """The Slurm id: as sbatch printed it, else as the job itself recorded it."""
        if self.chained is not None:
            return self.chained
        if self.submitted is not None:
            return self.submitted.job_id
        begin = self.last.begin if self.last is not None else None
        return (begin.job_id or None) if begin is not None else None

    @property
    def is_local(self) -> bool:
        """Whether it is a run of this machine, without Slurm."""
        return self.submitted is not None and self.submitted.job_id is None

    @property
    def shares_job(self) -> bool:
        """Whether its job is that of other runs of its sweep, too, and goes on after its end."""
        return self.submitted is not None and self.submitted.runs_per_job > 1

    @property
    def tag(self) -> str:
        """The last part of the job's WorkDir: the run's folder, or that of its sweep."""
        if self.task is None or self.chained is not None:
            return self.run_id
        return f"{self.task.sweep_id}{layout.ARRAY}"

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def end(self) -> End | None:
        return self.last.end if self.last is not None else None

    @property
    def last_sign(self) -> float:
        """When the run last gave a sign: its beat, begin or submission, or its folder's id."""
        last = self.last
        if last is not None and last.beat is not None:
            return last.beat
        if last is not None and last.begin is not None:
            return last.begin.begun_at
        if self.submitted is not None:
            return self.submitted.submitted_at
        try:
            return layout.parse_creation_time(self.run_id)
        except ValueError:  # a folder that is only named like a run's
            return 0.0


# ---- reading and writing them


def write_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file whole or not at all. Raises HpcrunError naming the file."""
    try:
        with files.replace_atomically(path, mode) as file:
            file.write(data)
    except OSError as error:
        raise HpcrunError(f"{path}: {error.strerror}", fix=files.full_disk_hint(error)) from error


def write_record(path: Path, record: Any, mode: int = 0o644) -> None:
    """Write a record as JSON; what is not UTF-8 (see os.fsdecode) as escapes."""
    write_file(path, json.dumps(msgspec.to_builtins(record)).encode() + b"\n", mode)


def read_record(path: Path, type_: type[T]) -> T | None:
    """Read a record; None while it is not there. What is no record counts as not there.

    Network file systems may show a name before its content, so an unreadable record is asked for
    again by whoever polls. Which Slurm to ask is believed from the user's own records alone.
    """
    hook = None
    try:
        with files.open_plain(path) as file:
            data = files.read_bounded(file, path)
            if not is_own(os.fstat(file.fileno())):
                hook = _drop_slurm_conf
    except (FileNotFoundError, NotADirectoryError):
        return None
    except files.UnsafeFile as error:
        files.add_notice(f"{path}: {error.strerror}: it is passed over")
        return None
    except OSError as error:
        raise HpcrunError(f"{path}: {error.strerror}") from error
    record = decode_record(data, type_, hook)
    if record is None and data.strip(b"\0 \n"):
        files.add_notice(f"{path}: damaged, or of another version of hpcrun: it is passed over")
    return record


def decode_record(
    data: bytes | str, type_: type[T], hook: Callable[[dict[str, Any]], Any] | None = None
) -> T | None:
    """Read a record's text; None for what is none."""
    try:
        # Not msgspec's decoder: texts that are not UTF-8 stand in a plan as lone surrogates.
        return convert(
            json.loads(data, object_hook=hook, parse_int=_parse_bounded_int), decodable(type_)
        )
    except (ValueError, RecursionError, OverflowError):
        return None


def _parse_bounded_int(digits: str) -> int:
    """Read a number; no record has one that a float cannot hold. Raises ValueError."""
    if len(digits) > 30:
        raise ValueError("too long a number")
    return int(digits)


def _drop_slurm_conf(values: dict[str, Any]) -> dict[str, Any]:
    return values | {"slurm_conf": None} if "slurm_conf" in values else values


def read_optional_record(path: Path, type_: type[T]) -> T | None:
    """Read a record that most of thousands of runs do not have: those cost no opening of a file."""
    return read_record(path, type_) if path.exists() else None


def is_nonempty_folder(folder: Path) -> bool:
    """Return whether there is anything in a folder; False for one that cannot be read."""
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def has_checkpoints(plan: Plan, attempts: Sequence[Attempt], *, is_here: bool) -> bool:
    """Return whether a new run could resume from the checkpoints of this one.

    On another machine the folder cannot be opened: there the attempts' own records count.
    """
    if is_here:
        return is_nonempty_folder(Path(plan.checkpoint_dir))
    return any(attempt.end is not None and attempt.end.checkpoint for attempt in attempts)


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
                stall=read_stall(folder, index),
                moved=read_record(where / "moved", float),
                ending=read_ending(where),
            )
        )
    task = read_task(folder)
    return History(
        run_id=folder.run_id,
        task=task,
        submitted=read_submitted(folder, task),
        cancelled=read_record(folder.cancelled, Cancelled),
        seen=read_optional_record(folder.seen, CachedState),
        attempts=attempts,
    )


def cache_record(path: Path, record: Struct) -> None:
    """Keep what was found for later readers, but in no folder of somebody else's."""
    if foreign_owner(path.parent.parent) or foreign_owner(path.parent):
        return
    with contextlib.suppress(OSError, HpcrunError):
        path.parent.mkdir(0o755, exist_ok=True)
        write_record(path, record)


def read_history_summary(
    folder: RunFolder,
    seen: CachedState | None = None,
    part: tuple[Task, Submitted | None] | None = None,
) -> History:
    """Read what a listing of thousands of runs shows: of an attempt the end or else the begin.

    ``beat`` is when the file was written last by its file system's clock. ``seen`` is the run's
    own, ``part`` what the records of its sweep hold of a run, if they were read already.
    """
    task = part[0] if part else read_task(folder)
    submitted = part[1] if part else read_submitted(folder, task)
    at = read_mtime_ns(folder.cancelled) / 1e9
    return History(
        run_id=folder.run_id,
        task=task,
        submitted=submitted,
        # By whom is not shown in a listing, so no file is opened.
        cancelled=Cancelled(cancelled_at=at, user="") if at else None,
        seen=seen,
        attempts=[_read_attempt_summary(folder, index) for index in attempt_indices(folder)],
    )


def _read_attempt_summary(folder: RunFolder, index: int) -> Attempt:
    where = folder.attempts / str(index)
    end = read_optional_record(where / "end.json", End)
    if end is not None:
        return Attempt(index=index, end=end)
    begin, beat = (
        read_record(where / "begin.json", Begin),
        read_mtime_ns(where / "beat") / 1e9 or None,
    )
    stall, ending = read_stall(folder, index), read_ending(where)
    return Attempt(index=index, begin=begin, beat=beat, stall=stall, ending=ending)


def read_ending(attempt: Path) -> str | None:
    """Read why an attempt is about to end: Slurm preempts its job, or the time limit is near."""
    return read_optional_record(attempt / "stop", str) or read_optional_record(
        attempt / "told-0", str
    )


def read_stall(folder: RunFolder, index: int) -> Stall | None:
    """Read what an attempt that does not move on is at, and who holds it up."""
    stall = read_optional_record(folder.attempts / str(index) / "stall.json", Stall)
    if stall is None:
        return None
    from hpcrun.runs import flight  # deferred: it imports pickle, and few runs stall

    return flight.find_culprit(stall, folder.attempts / str(index), folder.logs)


def read_mtime_ns(path: Path) -> int:
    """Return when a path was written, in ns by its file system's clock; 0: it is not there."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - a thousand times in a row
    except OSError:
        return 0


def remove_secret_files(folder: RunFolder) -> None:
    """Remove the values of a run's secrets; an attempt on hosts of a hostfile has them, too."""
    attempts = (folder.attempts / str(index) for index in attempt_indices(folder))
    for path in (folder.secrets, *(attempt / "environment" for attempt in attempts)):
        with contextlib.suppress(OSError):
            path.unlink()


def attempt_indices(folder: RunFolder) -> list[int]:
    """Return the numbers of a run's attempts."""
    if not _is_trusted_folder(folder.attempts):
        return []
    try:
        names = [name for name in os.listdir(folder.attempts) if name.isdecimal()]  # noqa: PTH208
    except OSError:
        return []
    return sorted(int(name) for name in names if _is_trusted_folder(folder.attempts / name))


def _is_trusted_folder(path: Path) -> bool:
    """Return whether there is a folder, and not behind a link of somebody else's."""
    try:
        info = os.lstat(path)
        if stat.S_ISLNK(info.st_mode):
            if who := other_owner(info):
                files.add_notice(f"{path}: a link that belongs to {who}: it is passed over")
                return False
            info = os.stat(path)  # noqa: PTH116 - of thousands of runs
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode)


def read_first_job_id(path: Path) -> str:
    """Return the Slurm job that a run, or a sweep's first task, began as; "" where none did."""
    sweep_id = layout.parse_sweep_id(path.name)
    run = RunFolder(path) if sweep_id is None else SweepFolder(path).run(0)
    begun = read_record(run.attempts / "0" / "begin.json", Begin)
    return begun.job_id.partition("_")[0] if begun is not None else ""


def read_plan(folder: RunFolder) -> Plan | None:
    """Read the run's plan; None when it is missing or of a form that this hpcrun cannot read."""
    return read_record(folder.plan, Plan)


def read_task(folder: RunFolder) -> Task | None:
    """Read which task of which sweep a run is; None for a run of its own."""
    # The id alone shows it for nearly all others, without a look at the disk.
    if not layout.TASK_ID.fullmatch(folder.run_id):
        return None
    return read_record(folder.task, Task)


def read_submitted(folder: RunFolder, task: Task | None) -> Submitted | None:
    """Read the run's own record, or its task's part of the record of its sweep's one sbatch."""
    if task is None:
        return detach_copied_record(read_record(folder.submitted, Submitted), folder.run_id)
    whole = read_record(layout.sweep_folder(folder.path.parent, task.sweep_id).submitted, Submitted)
    return detach_copied_record(whole and derive_task_record(whole, task.index), folder.run_id)


def derive_task_record(whole: Submitted, index: int) -> Submitted:
    """Make a task's record out of the record of its sweep's one sbatch."""
    return structs.replace(
        whole,
        job_id=whole.job_id and f"{whole.job_id}_{index // whole.runs_per_job}",
        run_id=whole.run_id and layout.task_run_id(whole.run_id, index),
    )


def detach_copied_record(record: Submitted | None, id_: str) -> Submitted | None:
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


def find_owner_run(checkpoint_dir: Path | None) -> RunFolder | None:
    """Return the run in whose folder checkpoints lie; None where they lie elsewhere."""
    for folder in checkpoint_dir.parents if checkpoint_dir is not None else ():
        if layout.RUN_ID.fullmatch(folder.name):
            return RunFolder(folder)
    return None


def list_successors(run: RunFolder, *, is_mirror: bool) -> list[Path]:
    """List the folders of later runs that use this run's checkpoints, and that exist.

    ``is_mirror``: the records are another machine's, whose runs are only beside this one here.
    """
    try:
        paths = list(run.successors.iterdir())
    except OSError:
        return []
    found = (read_record(file, Successor) for file in paths if file.suffix == ".json")
    places = [Path(one.run_dir) for one in found if one is not None]
    places = [path for path in places if layout.RUN_ID.fullmatch(path.name)]
    if is_mirror:
        places = [run.path.parent / path.name for path in places]
    return [path for path in places if path.is_dir()]
