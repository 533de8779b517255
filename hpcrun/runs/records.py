"""The records of a run and its attempts: their types, and reading and writing them.

Writes are atomic renames; there are no locks.
"""

# Annotations are not postponed: msgspec would evaluate each as text at every start of hpcrun.
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
from hpcrun.jobside import is_known_version
from hpcrun.ownership import foreign_owner, is_own, other_owner
from hpcrun.plan import Plan
from hpcrun.runs import layout
from hpcrun.runs.ends import Stall
from hpcrun.runs.layout import RunFolder, SweepFolder
from hpcrun.spec import Range, Stage
from hpcrun.structs import decodable

T = TypeVar("T")
# Slurm's id of a job, or of a task of an array; "" if an attempt does not run in Slurm. The pattern
# is strict because ids become words of command lines: Slurm's, and those that messages suggest.
JobId = Annotated[str, msgspec.Meta(pattern=r"\A([0-9]+([_+][0-9]+)?)?\Z")]

# Seconds since 1970, of which the C library can make a date.
Timestamp = Annotated[float, msgspec.Meta(ge=-1e11, le=1e11)]

# The id of a sweep, which names a directory beside the run.
SweepId = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{layout.RUN_ID.pattern})\Z")]


class Submitted(Struct, frozen=True, kw_only=True):
    """The submission of a run: a Slurm job, or ``hpcrun run`` on this machine (``job_id`` is None).

    The fields of the plan that a listing shows are repeated here to save it from opening the plan.
    They are None in records of older versions, and if they differ between the runs of a sweep.

    Attributes:
        run_id: The submitted run or sweep. A copy of its directory has another name, and no job.
        checkpoint_dir: The checkpoint directory if it is not in the run's directory; of a sweep,
            that of the first such run.
        dependency: The value of sbatch's --dependency.
        arguments: The options of its program and their values, without secrets; None for a sweep.
    """

    job_id: JobId | None
    run_id: str | None = None
    cluster: str
    slurm_conf: str | None
    submitted_at: Timestamp
    host: str
    user: str
    name: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    log_patterns: list[str] = []
    runs_per_job: int = 1  # the number of runs of a sweep that share a job
    checkpoint_dir: str | None = None
    dependency: str | None = None
    group: str | None = None  # a name for several runs
    project: str | None = None  # the project's directory on the machine of the submission
    arguments: dict[str, str] | None = None


class Task(Struct, frozen=True, kw_only=True):
    """The task of a sweep's array that is this run.

    Attributes:
        values: The run's values of the sweep's parameters.
        checkpoint_dir: Its checkpoint directory if that is not in the run's directory.
    """

    sweep_id: SweepId
    index: int
    values: dict[str, str]
    checkpoint_dir: str | None = None


class Sweep(Struct, frozen=True, kw_only=True):
    """An array of ``tasks`` runs, of which at most ``limit`` run at the same time.

    Attributes:
        indices: The indices of the tasks in Slurm; empty if they are 0, 1, 2 ...
        runs_per_job: The number of consecutive runs that share a task of the array.
    """

    name: str
    tasks: Annotated[int, msgspec.Meta(ge=0, le=4_000_001)]  # the maximum of MaxArraySize
    limit: int
    indices: list[int] = []
    runs_per_job: Annotated[int, msgspec.Meta(ge=1)] = 1

    @property
    def numbers(self) -> Sequence[int]:
        """The indices of the tasks in Slurm, in order.

        >>> Sweep(name="a", tasks=2, limit=2).numbers
        range(0, 2)
        """
        return self.indices or range(self.tasks)


class SearchRecord(Struct, frozen=True, kw_only=True):
    """A search, in the directory of each of its trials, for their jobs (jobside/search.py).

    Attributes:
        method: grid, random or tpe.
        trials: The highest number of a trial, plus 1.
        number: The number of this trial.
        spellings: The names of the metric in logs, the first of which in a log counts.
        before: The path of a trial's directory before its number.
        after: The path after the number.
        every: The seconds after which a job reads its log again.
        pythons: The Pythons to try, one of which has optuna.
        prune: asha, or "".
        prune_from: The step of the first rung; None: derived from the first complete trial.
        prune_factor: One of this many trials continues at each rung.
        resumes: The directory of the earlier trial whose checkpoints this one resumes from, or "".
        earlier: The directory of a trial of the search that is resubmitted without a change, whose
            results tpe also uses, or "".
    """

    method: str
    seed: int
    metric: str
    goal: str
    spellings: list[str] = []
    trials: int
    number: int = 0
    before: str
    after: str
    pythons: list[str]
    space: dict[str, list[str] | Range]
    prune: str = ""
    prune_from: int | None = None
    prune_factor: int = 4
    resumes: str = ""
    earlier: str = ""
    every: float = 30.0


class TrialRecord(Struct, frozen=True, kw_only=True):
    """The values that the job of a trial has drawn.

    Attributes:
        based_on: The number of finished trials on which they are based.
    """

    values: dict[str, str]
    based_on: int = 0


class PipelineRecord(Struct, frozen=True, kw_only=True):
    """The pipeline that a run is a stage of, as it was submitted.

    Attributes:
        id: The id of the pipeline: the group of its runs.
        name: The name of its file.
        stages: All its stages, each after those that it waits for.
        overrides: The --set of its submission.
        project: The project's directory on the machine of the submission.
        checkpoint: The checkpoint that a run of such a stage evaluates.
    """

    id: str
    name: str
    stage: str
    stages: dict[str, Stage]
    overrides: list[str] = []
    project: str
    checkpoint: str | None = None


class EvaluationStage(Struct, frozen=True, kw_only=True):
    """A stage of a pipeline that runs for each checkpoint of a training.

    Attributes:
        run_id: The template of its runs, in a folder of the stage's name.
        token: The text that stands for the checkpoint's path in the template.
        submitted: The record of a submission, without the job.
        environment: The environment of sbatch; None for that of its caller.
        without: The variables of the caller's environment that sbatch does not get.
        secrets: The template has a file of secrets, until the training has ended.
        uses_code: Its runs use the training's copy of the code.
    """

    parallel: int
    run_id: str
    token: str
    submitted: Submitted
    environment: dict[str, str] | None = None
    without: list[str] = []
    options: list[str] = []
    secrets: bool = False
    uses_code: bool = False


class EvaluationsRecord(Struct, frozen=True, kw_only=True):
    """The stages that run for each checkpoint, in the runs of the training and its evaluations.

    Attributes:
        folder: The folder of their templates and claims, on the cluster.
        stage: The stage of an evaluation; None in the training's run.
    """

    folder: str
    stages: dict[str, EvaluationStage]
    stage: str | None = None


class RefusedEvaluation(Struct, frozen=True, kw_only=True):
    """Why the job of a training could not submit an evaluation.

    Attributes:
        kind: ``refused`` by Slurm, ``silent`` (Slurm did not answer at the job's end), ``error``.
    """

    stage: str
    kind: str = "refused"
    message: str
    at: Timestamp


class Cancelled(Struct, frozen=True, kw_only=True):
    """A request of hpcrun to Slurm to cancel the run."""

    cancelled_at: Timestamp
    user: str


class Answered(Struct, frozen=True, kw_only=True):
    """The job id that sbatch printed on a cluster behind ssh, whether or not the client got it."""

    job_id: JobId


class Resubmitted(Struct, frozen=True, kw_only=True):
    """The earlier run from which this run was made.

    Attributes:
        checkpoint_dir: The checkpoint directory of the earlier run; None if the run uses its own.
        code: The code of the run: ``then`` (the earlier run's) or ``now``.
    """

    run_id: str
    run_dir: str
    job_id: JobId | None
    code: str
    checkpoint_dir: str | None


class Successor(Struct, frozen=True, kw_only=True):
    """A later run that uses the checkpoints in this run's directory.

    Attributes:
        reads: The later run only starts from them, and writes its own.
    """

    run_dir: str
    reads: bool = False


class Begin(Struct, frozen=True, kw_only=True):
    """The start of an attempt; times are in seconds since the epoch by the clock of its node."""

    attempt: int
    job_id: JobId
    host: str
    pid: int
    nodes: str
    begun_at: Timestamp
    # waits in the queue to continue the run, if Slurm may not requeue this job
    successor: JobId | None = None


class Failure(Struct, frozen=True, kw_only=True):
    """The process that failed first.

    Attributes:
        rank: None if a launcher failed before any rank.
        why: The reason why a node check found the node unfit, if it did.
        role: Its role in a job with several; None for the main role, or without roles.
    """

    rank: int | None
    local_rank: int | None = None
    node: int
    host: str
    exit_code: int
    signal: int | None
    at: Timestamp
    why: str | None = None
    role: str | None = None


class End(Struct, frozen=True, kw_only=True):
    """The end of an attempt.

    Attributes:
        stopped_by: The signal that requested the end (TERM, INT, HUP).
        why: A reason listed in ``runs.ends``; None in records of older versions.
        next: How the run continues: "requeue", "relaunch" (in the same job), or the id of the next
            job. None if it does not; then ``note`` may state the reason.
        checkpoint: The newest complete checkpoint at that time.
    """

    attempt: int
    job_id: JobId
    exit_code: int
    signal: int | None
    stopped_by: str | None
    first_failure: Failure | None
    begun_at: Timestamp
    ended_at: Timestamp
    why: str | None = None
    next: Annotated[str, msgspec.Meta(pattern=r"\A(requeue|relaunch|[0-9]+)\Z")] | None = None
    note: str | None = None
    checkpoint: str | None = None


class RoleState(Struct, frozen=True, kw_only=True):
    """The state of a role in an attempt: waiting, starting, ready, ended or failed.

    Attributes:
        at: When it reached this state, in seconds since the epoch.
    """

    state: str
    at: Timestamp
    hosts: list[str]
    address: str
    port: int


class Attempt(Struct, frozen=True, kw_only=True):
    """One start of the run, as shown by its records.

    Attributes:
        beat: The last heartbeat, in seconds since the epoch.
        moved: When the first step was noticed, up to half a minute late.
        warnings: Warnings about its nodes.
        roles: The states of its roles, by name, in a job with several.
        ending: The reason why it was asked to end, if that is known before its end.
        first_step: The first step in its log, if the log was read.
        last_step: The last step in its log, if the log was read.
        resumed: The checkpoint from which it resumed ("": none), if the log was read.
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
    roles: dict[str, RoleState] = {}

    def seconds(self, now: float | None = None) -> float | None:
        """Return its duration: to its end, until ``now``, or to its last heartbeat."""
        if self.end is not None:
            return max(0.0, self.end.ended_at - self.end.begun_at)
        until = self.beat if now is None else now
        if self.begin is None or until is None:
            return None
        return max(0.0, until - self.begin.begun_at)


class RankUsage(Struct, frozen=True, kw_only=True):
    """What a rank measured of itself (jobside/rank_hook.py); fields are None where it could not.

    Attributes:
        peak_allocated: Peak of the GPU memory in tensors, in bytes.
        peak_reserved: Peak of the GPU memory that torch's allocator reserved, in bytes.
        gpu: Name of the GPU.
        gpu_memory: Memory of the GPU in bytes.
        batches: Batches of data loaders.
        data_seconds: Time that the script waited for these batches, without the first one.
        loop_seconds: Time between the first and the last batch.
    """

    peak_allocated: int | None = None
    peak_reserved: int | None = None
    gpu: str | None = None
    gpu_memory: int | None = None
    batches: int | None = None
    data_seconds: float | None = None
    loop_seconds: float | None = None


class RunRecords(Struct, frozen=True, kw_only=True):
    """The records in a run's directory; a listing reads only one record of each attempt.

    Attributes:
        runs_per_job: The number of runs of its sweep that share a job, if ``submitted`` is missing.
    """

    task: Task | None = None
    submitted: Submitted | None = None
    answered: str | None = None  # the job id in the answer of sbatch, if ``submitted`` is missing
    runs_per_job: int = 1
    cancelled: Cancelled | None = None
    attempts: list[Attempt] = field(default_factory=list)


class CachedRow(RunRecords, frozen=True, kw_only=True):
    """The cached row of a finished run in a listing: its records, and its last step and loss.

    None means unknown.

    Attributes:
        run_id: The run that the row describes; a copy of its directory may contain the same cache.
        stamp: The mtime_ns of the attempts' directory when the row was cached.
        ended_at: Seconds since the epoch.
        elapsed: The seconds of the last attempt.
        loss: The last loss; a word if it is nan or infinite, because JSON has no such numbers.
    """

    run_id: str
    stamp: int
    ended_at: Timestamp | None
    elapsed: float | None
    step: int | None
    loss: float | str | None
    log: str | None


class CachedState(Struct, frozen=True, kw_only=True):
    """A final state that Slurm reported, cached because Slurm forgets jobs.

    Attributes:
        attempts: The number of attempts of the run at that time.
        by_record: The state was derived from the run's own records long after its end.
        elapsed: The seconds of the last attempt, according to Slurm.
    """

    state: str
    reason: str
    attempts: int
    by_record: bool = False
    elapsed: float | None = None
    kept: CachedRow | None = None


class TaskEnd(Struct, frozen=True, kw_only=True):
    """The end of a run of a sweep.

    Attributes:
        stamp: The mtime_ns of its attempts' directory when the end was cached.
        by_record: The state was derived from the run's own records; Slurm may still report another.
        is_read: Its log was read for ``step`` and ``loss``, its last ones.
        loss: A word if it is nan or infinite, because JSON has no such numbers.
    """

    state: str
    stamp: int
    by_record: bool = False
    is_read: bool = False
    step: int | None = None
    loss: float | str | None = None


class CachedSweep(Struct, frozen=True, kw_only=True):
    """The finished runs of a sweep, by task index.

    Attributes:
        ended_at: When all runs were first seen to be finished, in seconds since the epoch, or None.
    """

    ends: dict[str, TaskEnd]
    ended_at: Timestamp | None = None


class History(RunRecords, frozen=True, kw_only=True):
    """All records in a run's directory."""

    run_id: str
    seen: CachedState | None = None
    # the successor, if Slurm reports that the last attempt's job has ended
    gone_on_as: str | None = None

    @property
    def copy_of(self) -> str | None:
        """The run from whose directory this one was copied, or None."""
        made_as = self.submitted.run_id if self.submitted is not None else None
        return made_as if made_as != self.run_id else None

    @property
    def known(self) -> Attempt | None:
        """The newest attempt with a record; an attempt that just starts has only a directory."""
        with_records = (each for each in reversed(self.attempts) if each.begin or each.end)
        return next(with_records, None)

    @property
    def chained(self) -> str | None:
        """The current job of the run, if it differs from the submitted job."""
        known = self.known
        record = (known.end or known.begin) if known is not None else None
        if record is None or self.submitted is None or self.is_local or self.copy_of is not None:
            return None
        after = known.end.next if known and known.end is not None else self.gone_on_as
        now = record.job_id if after in (None, "requeue", "relaunch") else after
        return now if now != self.submitted.job_id else None

    @property
    def job_id(self) -> str | None:
        """The Slurm job id, as printed by sbatch or else as recorded by the job itself."""
        if self.chained is not None:
            return self.chained
        if self.submitted is not None:
            return self.submitted.job_id
        begin = self.last.begin if self.last is not None else None
        return (begin.job_id if begin is not None else None) or self.answered

    @property
    def is_local(self) -> bool:
        """True for a run on this machine without Slurm."""
        return self.submitted is not None and self.submitted.job_id is None

    @property
    def shares_job(self) -> bool:
        """True if other runs of its sweep share its job, which may outlive this run."""
        record = self if self.submitted is None else self.submitted
        return record.runs_per_job > 1

    @property
    def tag(self) -> str:
        """The last component of the job's WorkDir: the run's directory, or that of its sweep."""
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
        """The last sign of life: a heartbeat, the start, the submission, or the run id's time."""
        last = self.last
        if last is not None and last.beat is not None:
            return last.beat
        if last is not None and last.begin is not None:
            return last.begin.begun_at
        if self.submitted is not None:
            return self.submitted.submitted_at
        try:
            return layout.parse_creation_time(self.run_id)
        except ValueError:  # a directory with a name similar to a run id
            return 0.0


# ---- reading and writing records


def write_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file atomically.

    Raises:
        HpcrunError: The file cannot be written; the message names it.
    """
    try:
        with files.replace_atomically(path, mode) as file:
            file.write(data)
    except OSError as error:
        raise HpcrunError(f"{path}: {error.strerror}", fix=files.full_disk_hint(error)) from error


def write_record(path: Path, record: Any, mode: int = 0o644) -> None:
    """Write a record as JSON; bytes that are not UTF-8 (see os.fsdecode) become escapes."""
    write_file(path, json.dumps(msgspec.to_builtins(record)).encode() + b"\n", mode)


def read_record(path: Path, type_: type[T]) -> T | None:
    """Read a record; return None if it is missing or malformed.

    Network file systems may show a name before its content, so pollers retry an unreadable record.
    Records that select a Slurm installation are trusted only if they are the user's own.
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
        files.add_notice(f"{path}: {error.strerror}: ignored")
        return None
    except OSError as error:
        raise HpcrunError(f"{path}: {error.strerror}") from error
    record = decode_record(data, type_, hook)
    if record is None and data.strip(b"\0 \n"):
        files.add_notice(
            f"{path}: ignored: corrupt, or written by an incompatible version of hpcrun"
        )
    return record


def decode_record(
    data: bytes | str, type_: type[T], hook: Callable[[dict[str, Any]], Any] | None = None
) -> T | None:
    """Decode the JSON text of a record; return None if it is malformed."""
    try:
        # msgspec's own decoder cannot be used: bytes that are not UTF-8 appear in a plan as lone
        # surrogates.
        values = json.loads(data, object_hook=hook, parse_int=_parse_bounded_int)
        if isinstance(values, dict) and not is_known_version(values):
            return None
        return convert(values, decodable(type_))
    except (ValueError, RecursionError, OverflowError):
        return None


def _parse_bounded_int(digits: str) -> int:
    """Parse an integer that fits into a float; valid records contain no larger ones.

    Raises:
        ValueError: The integer is too large.
    """
    if len(digits) > 30:
        raise ValueError("too long a number")
    return int(digits)


def _drop_slurm_conf(values: dict[str, Any]) -> dict[str, Any]:
    return values | {"slurm_conf": None} if "slurm_conf" in values else values


def read_optional_record(path: Path, type_: type[T]) -> T | None:
    """Read a record that few runs have; a missing one costs no attempt to open it."""
    return read_record(path, type_) if path.exists() else None


def is_nonempty_folder(folder: Path) -> bool:
    """Return True if a directory has entries; False if it cannot be read."""
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def has_checkpoints(plan: Plan, attempts: Sequence[Attempt], *, is_here: bool) -> bool:
    """Return True if a new run could resume from the checkpoints of this one.

    The directory cannot be read on another machine, so the attempts' records decide there.
    """
    if is_here:
        return is_nonempty_folder(Path(plan.checkpoint_dir))
    return any(attempt.end is not None and attempt.end.checkpoint for attempt in attempts)


def read_history(folder: RunFolder) -> History:
    """Read all records of a run and its attempts."""
    attempts = []
    for index in attempt_indices(folder):
        where = folder.attempts / str(index)
        end = read_record(where / "end.json", End)
        attempts.append(
            Attempt(
                index=index,
                begin=read_record(where / "begin.json", Begin),
                beat=read_record(where / "beat", float),
                end=end,
                stall=read_stall(folder, index),
                moved=read_record(where / "moved", float),
                ending=read_ending(where),
                roles=_read_roles(where / "roles.json", end),
            )
        )
    task = read_task(folder)
    submitted = read_submitted(folder, task)
    runs_per_job = 1 if submitted is not None else _read_runs_per_job(folder, task)
    return History(
        run_id=folder.run_id,
        task=task,
        submitted=submitted,
        answered=_read_answer(folder, task, runs_per_job) if submitted is None else None,
        runs_per_job=runs_per_job,
        cancelled=read_record(folder.cancelled, Cancelled),
        seen=read_optional_record(folder.seen, CachedState),
        attempts=attempts,
    )


def _read_roles(path: Path, end: End | None) -> dict[str, RoleState]:
    """Read the states of an attempt's roles; a killed attempt has not recorded their ends."""
    roles = read_optional_record(path, dict[str, RoleState]) or {}
    if end is None:
        return roles
    return {
        name: structs.replace(role, state="ended", at=end.ended_at)
        if role.state in ("starting", "ready")
        else role
        for name, role in roles.items()
    }


def cache_record(path: Path, record: Struct) -> None:
    """Cache a result for later readers, except in another user's directory."""
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
    """Read the records that a listing shows: of each attempt only the end, or else the begin.

    ``beat`` is the modification time of the file by the clock of its file system.

    Args:
        seen: The run's cached state, if it was already read.
        part: The run's part of the records of its sweep, if they were already read.
    """
    task = part[0] if part else read_task(folder)
    submitted = part[1] if part else read_submitted(folder, task)
    runs_per_job = 1 if submitted is not None else _read_runs_per_job(folder, task)
    at = read_mtime_ns(folder.cancelled) / 1e9
    return History(
        run_id=folder.run_id,
        task=task,
        submitted=submitted,
        answered=_read_answer(folder, task, runs_per_job) if submitted is None else None,
        runs_per_job=runs_per_job,
        # The listing does not show who cancelled the run, so the record is not opened.
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
    """Read why an attempt is about to end: a preemption, or the time limit."""
    return read_optional_record(attempt / "stop", str) or read_optional_record(
        attempt / "told-0", str
    )


class Pace(Struct, frozen=True, kw_only=True):
    """When the first rank's log showed which step, in an attempt.

    Attributes:
        seconds: Times since the watcher started, without those in which the job was suspended.
        steps: The step that the log showed last at each of these times.
    """

    seconds: list[float]
    steps: list[int]


def read_pace(folder: RunFolder) -> Pace | None:
    """Read the pace of the newest attempt with a record of it."""
    for index in reversed(attempt_indices(folder)):
        path = folder.attempts / str(index) / "pace.json"
        if (pace := read_optional_record(path, Pace)) is not None:
            return pace
    return None


def read_stall(folder: RunFolder, index: int) -> Stall | None:
    """Read the stall of an attempt that makes no progress, with the rank that blocks it."""
    stall = read_optional_record(folder.attempts / str(index) / "stall.json", Stall)
    if stall is None:
        return None
    from hpcrun.runs import flight  # deferred: it imports pickle, and few runs stall

    return flight.find_culprit(stall, folder.attempts / str(index), folder.logs)


def read_mtime_ns(path: Path) -> int:
    """Return the modification time of a path in ns; 0 if it does not exist."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - called thousands of times in a row
    except OSError:
        return 0


def remove_secret_files(folder: RunFolder) -> None:
    """Remove the values of a run's secrets, including those on a hostfile's hosts."""
    attempts = (folder.attempts / str(index) for index in attempt_indices(folder))
    for path in (folder.secrets, *(attempt / "environment" for attempt in attempts)):
        with contextlib.suppress(OSError):
            path.unlink()


def attempt_indices(folder: RunFolder) -> list[int]:
    """Return the indices of a run's attempts."""
    if not _is_trusted_folder(folder.attempts):
        return []
    try:
        names = [name for name in os.listdir(folder.attempts) if name.isdecimal()]  # noqa: PTH208
    except OSError:
        return []
    return sorted(int(name) for name in names if _is_trusted_folder(folder.attempts / name))


def _is_trusted_folder(path: Path) -> bool:
    """Return True for a directory that is not reached through another user's link."""
    try:
        info = os.lstat(path)
        if stat.S_ISLNK(info.st_mode):
            if who := other_owner(info):
                files.add_notice(f"{path}: a link that belongs to {who}: ignored")
                return False
            info = os.stat(path)  # noqa: PTH116 - of thousands of runs
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode)


def read_first_job_id(path: Path) -> str:
    """Return the first Slurm job of a run, or of a sweep's first task; "" if there is none."""
    sweep_id = layout.parse_sweep_id(path.name)
    run = RunFolder(path) if sweep_id is None else SweepFolder(path).run(0)
    begun = read_record(run.attempts / "0" / "begin.json", Begin)
    return begun.job_id.partition("_")[0] if begun is not None else ""


def read_usage(folder: RunFolder) -> dict[int, RankUsage]:
    """Read what the ranks of the last attempt with such records measured, by rank."""
    for index in reversed(attempt_indices(folder)):
        found = {}
        for path in (folder.attempts / str(index) / "usage").glob("rank-*.json"):
            rank, record = path.stem.removeprefix("rank-"), read_record(path, RankUsage)
            if rank.isdecimal() and record is not None:
                found[int(rank)] = record
        if found:
            return dict(sorted(found.items()))
    return {}


def read_plan(folder: RunFolder) -> Plan | None:
    """Read the run's plan; return None if it is missing or incompatible with this version."""
    return read_record(folder.plan, Plan)


def read_task(folder: RunFolder) -> Task | None:
    """Read the sweep task of a run; return None for a run that belongs to no sweep."""
    # The run id alone excludes nearly all other runs, without access to the disk.
    if not layout.TASK_ID.fullmatch(folder.run_id):
        return None
    task = read_record(folder.task, Task)
    # Only the runs of a search whose jobs draw values have none at submission.
    if task is not None and not task.values:
        trial = read_record(folder.trial, TrialRecord)
        task = task if trial is None else structs.replace(task, values=trial.values)
    return task


def read_submitted(folder: RunFolder, task: Task | None) -> Submitted | None:
    """Read the submission record of a run, or its task's part of the sweep's record."""
    if task is None:
        return detach_copied_record(read_record(folder.submitted, Submitted), folder.run_id)
    whole = read_record(layout.sweep_folder(folder.path.parent, task.sweep_id).submitted, Submitted)
    return detach_copied_record(whole and derive_task_record(whole, task.index), folder.run_id)


def read_runs_per_job(folder: SweepFolder, submitted: Submitted | None) -> int:
    """Return the number of runs of a sweep that share a job, even before it was submitted."""
    if submitted is not None:
        return submitted.runs_per_job
    record = read_record(folder.record, Sweep)
    return record.runs_per_job if record is not None else 1


def _read_runs_per_job(folder: RunFolder, task: Task | None) -> int:
    if task is None:
        return 1
    return read_runs_per_job(layout.sweep_folder(folder.path.parent, task.sweep_id), None)


def _read_answer(folder: RunFolder, task: Task | None, runs_per_job: int) -> str | None:
    """Read the job id that sbatch printed for a run, or for its sweep's array."""
    if task is None:
        answer = read_record(folder.answered, Answered)
        return answer.job_id if answer is not None else None
    whole = layout.sweep_folder(folder.path.parent, task.sweep_id)
    answer = read_record(whole.answered, Answered)
    return f"{answer.job_id}_{task.index // runs_per_job}" if answer is not None else None


def derive_task_record(whole: Submitted, index: int) -> Submitted:
    """Derive a task's record from the record of the sweep's sbatch."""
    return structs.replace(
        whole,
        job_id=whole.job_id and f"{whole.job_id}_{index // whole.runs_per_job}",
        run_id=whole.run_id and layout.task_run_id(whole.run_id, index),
    )


def detach_copied_record(record: Submitted | None, id_: str) -> Submitted | None:
    """Remove the job from a record that was copied with its directory."""
    if record is None or record.run_id in (None, id_):
        return record
    return structs.replace(record, job_id=None)


def read_sweep(folder: SweepFolder) -> Sweep:
    """Read a sweep's record.

    Raises:
        InputError: The record is missing or corrupt.
    """
    found = read_record(folder.record, Sweep)
    if found is None:
        raise InputError(f"{folder.record}: not a record of a sweep")
    return found


def runs_of(found: RunFolder | SweepFolder) -> list[RunFolder]:
    """List the runs of a sweep in the order of their tasks; a single run is returned alone."""
    if isinstance(found, RunFolder):
        return [found]
    return [found.run(index) for index in read_sweep(found).numbers]


def find_owner_run(checkpoint_dir: Path | None) -> RunFolder | None:
    """Return the run whose directory contains the checkpoints, or None."""
    for folder in checkpoint_dir.parents if checkpoint_dir is not None else ():
        if layout.RUN_ID.fullmatch(folder.name):
            return RunFolder(folder)
    return None


def list_successors(run: RunFolder, *, is_mirror: bool) -> list[Path]:
    """List the existing directories of later runs that use this run's checkpoints.

    Args:
        is_mirror: The records are mirrored from another machine, so later runs are beside this one.
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
