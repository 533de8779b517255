"""The Python API: submit jobs, find runs, wait for them, read their metrics."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from numbers import Real
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, overload

from msgspec import structs

from hpcrun.context import CommandState, Context, load_context
from hpcrun.errors import HpcrunError, InputError, SpecError, WaitTimeout
from hpcrun.monitor import (
    Targets,
    fetch_records,
    list_runs,
    require_single_run,
    resolve_run_or_sweep,
)
from hpcrun.runs import (
    Attempt,
    JobStatus,
    RunFolder,
    SweepFolder,
    read_history,
    read_plan,
    read_task,
    runs_of,
)
from hpcrun.slurm import array_job_id

# Other modules are imported in the functions that use them, so that a program that reads a log does
# not load the submission code.
if TYPE_CHECKING:
    from hpcrun.actions import Lines, Prepared
    from hpcrun.curves import ParsedRun
    from hpcrun.plan import Plan
    from hpcrun.secrets import Masker
    from hpcrun.spec import JobSpec

# The public name of the type.
Status = JobStatus
# The sources of problems, for messages: a job given as a dict, and the argument ``set``.
_DICT, _SET = "job", "set"


@dataclass(frozen=True)
class DryRun:
    """The result of dry_run(): the plan and files of a submission that did not happen.

    Attributes:
        plan: The plan of the run, or of the array of a sweep.
        files: The texts of the run directory's files by name, such as job.sbatch and plan.json.
        values: The values of this run in a sweep, by name.
        runs: The runs of a sweep.
    """

    plan: Plan
    files: Mapping[str, str]
    values: Mapping[str, str] = field(default_factory=dict)
    runs: Sequence[DryRun] = ()

    def __repr__(self) -> str:
        of = f", {len(self.runs)} runs" if self.runs else ""
        return f"<DryRun {self.plan.name!r}: {', '.join(self.files)}{of}>"


class Run:
    """A submitted run, as returned by submit(), find() and newest().

    A Run keeps no file or connection open. It is thread-safe and can be copied and pickled. Two
    Runs are equal if they have the same folder.
    """

    def __init__(self, folder: RunFolder, context: Context) -> None:
        self._folder = folder
        self._context = context

    @property
    def id(self) -> str:
        """The run's id, which all commands of the command line accept."""
        return self._folder.run_id

    @property
    def folder(self) -> Path:
        """The run directory, which contains all files of the run."""
        return self._folder.path

    @property
    def job_id(self) -> str | None:
        """The Slurm job id, such as "123" or "123_4"; None if unknown or started by ``hpcrun run``.

        A run that was restarted as another job has the id of the latest job.
        """
        history = read_history(self._folder)
        return history.job_id if history.submitted else None

    @property
    def attempts(self) -> Sequence[Attempt]:
        """The attempts so far: begin, end, and the cause of the end (``end.why``)."""
        return read_history(self._folder).attempts

    @cached_property
    def plan(self) -> Plan:
        """The decisions at submission: effective_batch, world_size, nodes, checkpoint_dir, etc.

        Raises:
            HpcrunError: If the record is missing or corrupt.
        """
        plan = read_plan(self._folder)
        if plan is None:
            raise HpcrunError(f"{self._folder.plan}: missing or unreadable")
        return plan

    @cached_property
    def values(self) -> dict[str, str]:
        """The values of a run of a sweep by name; empty for other runs."""
        task = read_task(self._folder)
        return dict(task.values) if task else {}

    def status(self) -> Status:
        """Query the state with one squeue and at most one sacct; UNKNOWN if Slurm is silent."""
        return status_of([self])[0]

    def wait(self, timeout: float | None = None) -> Status:
        """Wait until the run has ended, successfully or not, and return its final state.

        The wait continues through requeues and while Slurm does not respond. Ctrl-C stops the wait
        (KeyboardInterrupt), not the run.

        Args:
            timeout: Seconds to wait; None waits without limit.

        Raises:
            WaitTimeout: If the run has not ended after ``timeout`` seconds.
        """
        return wait([self], timeout=timeout)[0]

    def logs(
        self, rank: int | None = None, *, follow: bool = False, raw: bool = False
    ) -> Iterator[str]:
        """Iterate over the lines of the logs, without line ends.

        Without ``rank``, lines of all ranks and nodes are returned: lines of ranks other than 0
        begin with "[rank3]: ", and lines of launchers on other nodes with "node1: ".

        Args:
            rank: Return only the lines of this rank.
            follow: Wait for new lines until the run has ended.
            raw: Do not replace strings that look like secrets with ``***``.

        Raises:
            InputError: If the rank has no log.
        """
        from hpcrun.actions import JobLogs, LogQuery, masker_of

        if not follow:  # following the logs fetches the records itself
            fetch_records(self._context, [self._folder], whole=True)
        query = LogQuery(ranks=frozenset() if rank is None else frozenset({rank}))
        logs = JobLogs(self._context, [self._folder], query)
        if not follow:
            logs.check()
        events: Iterator[Status | Lines | str] = logs.follow() if follow else logs.read()
        masker = None if raw else masker_of(self._context, [self._folder])
        return _iterate_lines(events, masker, with_prefix=rank is None)

    def metrics(self, *, patterns: str | Sequence[str] = ()) -> ParsedRun:
        """Read the metrics logged so far, of all attempts as one curve; see parse()."""
        from hpcrun.actions import CurveLog, build_own_formats
        from hpcrun.monitor import Source, fetch_evaluations

        own = build_own_formats([patterns] if isinstance(patterns, str) else patterns, "patterns")
        fetch_records(self._context, [self._folder], whole=True)
        fetch_evaluations(self._context, self._folder)
        log = CurveLog(self._context, Source(self.id, run=self._folder), own)
        log.read()
        return log.run(full=True)

    def cancel(self) -> bool:
        """Cancel the run; return False if it had already ended.

        Raises:
            SchedulerRefused: If Slurm refuses, as for another user's job.
            OutOfReach: If the cluster cannot be reached.
        """
        return _cancel(self._context, runs=[self._folder])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.folder == self.folder

    def __hash__(self) -> int:
        return hash(self.folder)

    def __repr__(self) -> str:
        return f"<Run {self.id}, job {self.job_id}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduce(self)


class Sweep(Sequence[Run]):
    """A sweep, submitted as one Slurm array: a sequence of its runs in task order."""

    def __init__(self, folder: SweepFolder, context: Context) -> None:
        self._folder = folder
        self._context = context
        self._runs = [Run(run, context) for run in runs_of(folder)]

    @property
    def id(self) -> str:
        """The sweep's id, which the commands of the command line accept."""
        return self._folder.sweep_id

    @property
    def folder(self) -> Path:
        """The directory with the array's script and the code of all runs."""
        return self._folder.path

    @property
    def job_id(self) -> str | None:
        """The Slurm id of the array; None if unknown."""
        first = self._runs[0].job_id if self._runs else None
        return array_job_id(first) if first else None

    def status(self) -> list[Status]:
        """Query the states of all runs at once; see Run.status()."""
        return status_of(self._runs)

    def wait(self, timeout: float | None = None) -> list[Status]:
        """Wait until all runs have ended; see wait()."""
        return wait(self._runs, timeout=timeout)

    def cancel(self) -> bool:
        """Cancel all runs; return False if all had already ended."""
        return _cancel(self._context, sweeps=[self._folder])

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> list[Run]: ...
    def __getitem__(self, index: int | slice) -> Run | list[Run]:
        return self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"<Sweep {self.id}, job {self.job_id}, {len(self)} runs>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduce(self)


# ---- Submission ----------------------------------------------------------------------------------


def submit(
    job: str | os.PathLike[str] | Mapping[str, object],
    *,
    set: Mapping[str, object] | None = None,
    args: Sequence[object] = (),
    after: Run | Sweep | str | Sequence[Run | Sweep | str] | None = None,
    check: bool = True,
    cluster: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Run:
    """Submit a job to Slurm, as ``hpcrun submit`` does, and return its run.

    Args:
        job: A name that ``hpcrun jobs`` lists, the path of a job file, or a dict with its keys.
        set: Changes to keys of the job, such as {"resources.nodes": 2}.
        args: Arguments for the script, appended to the job's own.
        after: A run or job, or a list of them, that must succeed before this run starts.
        check: False turns problems that a user may know better into notes (``--no-check``).
        cluster: The name of a cluster profile.
        cwd: The folder in which project, profile and relative paths are searched; by default the
            current one.

    Raises:
        SpecError: With all problems of the job.
        InputError: If another argument, a file or a profile is invalid.
        SchedulerRefused: If Slurm rejects the job.
        OutOfReach: If the cluster cannot be reached. If its ``maybe_done`` is true, Slurm may have
            accepted the job; in all other cases nothing is left behind.
    """
    from hpcrun.actions import submit_job

    context = _load_context(cluster, cwd)
    made = _prepare(context, job, set, args, after, check)
    if made.is_sweep:
        raise InputError(f"{made.plan.name} is a sweep", fix="hpcrun.submit_sweep(...)")
    submit_job(context, made)
    return Run(RunFolder(made.path), context)


def submit_sweep(
    job: str | os.PathLike[str] | Mapping[str, object],
    *,
    set: Mapping[str, object] | None = None,
    args: Sequence[object] = (),
    after: Run | Sweep | str | Sequence[Run | Sweep | str] | None = None,
    check: bool = True,
    cluster: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Sweep:
    """Submit a job that has a ``sweep`` as one Slurm array.

    The arguments and exceptions are those of submit(). ``set`` can add the sweep, as in
    set={"sweep": {"lr": [1e-3, 1e-4]}}.
    """
    from hpcrun.actions import submit_job

    context = _load_context(cluster, cwd)
    made = _prepare(context, job, set, args, after, check)
    if not made.is_sweep:
        raise InputError(f"{made.plan.name} is not a sweep", fix="hpcrun.submit(...)")
    submit_job(context, made)
    return Sweep(SweepFolder(made.path), context)


def dry_run(
    job: str | os.PathLike[str] | Mapping[str, object],
    *,
    set: Mapping[str, object] | None = None,
    args: Sequence[object] = (),
    after: Run | Sweep | str | Sequence[Run | Sweep | str] | None = None,
    check: bool = True,
    cluster: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> DryRun:
    """Plan and check a submission without writing or submitting anything.

    The arguments and exceptions are those of submit(). Slurm is queried only about ``after``.
    """
    return _build_dry_run(_prepare(_load_context(cluster, cwd), job, set, args, after, check))


def find(
    word: str | int, *, cluster: str | None = None, cwd: str | os.PathLike[str] | None = None
) -> Run:
    """Find a run by its id, a unique beginning or end of it, or its Slurm id ("123", "123_4").

    Raises:
        InputError: If no run or several runs match, or the match is a sweep.
    """
    context = _load_context(cluster, cwd)
    return Run(require_single_run(_resolve(context, str(word)), str(word)), context)


def find_sweep(
    word: str | int, *, cluster: str | None = None, cwd: str | os.PathLike[str] | None = None
) -> Sweep:
    """Find a sweep by its id, a unique beginning or end of it, or the Slurm id of its array.

    Raises:
        InputError: If no sweep or several match, or the match is a run.
    """
    context = _load_context(cluster, cwd)
    found = _resolve(context, str(word))
    if not isinstance(found, SweepFolder):
        raise InputError(f"{word} is a run, not a sweep", fix=f"hpcrun.find({word!r})")
    return Sweep(found, context)


def newest(
    count: int = 20, *, cluster: str | None = None, cwd: str | os.PathLike[str] | None = None
) -> list[Run]:
    """List the newest runs, newest first, including runs of sweeps, without querying Slurm.

    Raises:
        InputError: If ``count`` is not a number or is negative.
    """
    if not hasattr(count, "__index__") or count < 0:
        raise InputError(f"count: {count!r}: expected how many runs", fix="as in newest(20)")
    context = _load_context(cluster, cwd)
    return [Run(folder, context) for folder in islice(list_runs(context.runs_dir), count)]


def parse(
    log: str | os.PathLike[str],
    *,
    patterns: str | Sequence[str] = (),
    cluster: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> ParsedRun:
    """Parse a training log, a run or a Slurm job to one curve, as ``hpcrun parse`` does.

    Example::

        run = hpcrun.parse("train.log")
        pandas.DataFrame(run.columns()).plot(x="step", y="loss")

    All points are kept, so memory grows with the log.

    Args:
        log: A log file, a run id or a Slurm job id.
        patterns: Regular expressions for your own metric lines.

    Returns:
        The parsed run with ``curve`` (metrics, restarts), ``columns()`` (one row per step),
        ``samples`` (all numbers as logged) and ``warnings``.

    Raises:
        InputError: If the log does not exist, is unreadable, or contains several runs.
    """
    from hpcrun.actions import parse_runs as parse_words

    word = os.fspath(log)
    patterns = [patterns] if isinstance(patterns, str) else patterns
    runs = parse_words(_load_context(cluster, cwd), [word], patterns=patterns, full=True)
    if len(runs) != 1:
        names = ", ".join(run.source for run in runs[:3])
        raise InputError(f"{word}: {len(runs)} runs", fix=f"name one of them: {names}")
    return runs[0]


# ---- Many runs -----------------------------------------------------------------------------------


def status_of(runs: Iterable[Run]) -> list[Status]:
    """Query the states of many runs with one squeue per cluster, in the order of ``runs``."""
    from hpcrun.monitor import status_of as read_statuses

    runs = _list_runs(runs, "status_of")
    found: dict[Path, Status] = {}
    for context, folders in _group_by_cluster(runs):
        known = read_statuses(context, folders, level="row")
        found |= {each.folder.path: each for each in known}
    return [found[run.folder] for run in runs]


def wait(runs: Iterable[Run], *, timeout: float | None = None) -> list[Status]:
    """Wait until all runs have ended, successfully or not; return their states in order.

    The number of queries does not depend on the number of runs: two squeue per minute, and a few at
    each end. The runs continue after a timeout and after Ctrl-C.

    Raises:
        WaitTimeout: If a run has not ended after ``timeout`` seconds.
    """
    from hpcrun.monitor import Monitor, WatchedRuns, add_details, poll_all

    runs = _list_runs(runs, "wait")
    # Reject NaN too, which differs from itself.
    if timeout is not None and not (isinstance(timeout, Real) and timeout == timeout):
        raise InputError(f"timeout: {timeout!r}: expected seconds", fix="as in timeout=600")
    end = None if timeout is None else monotonic() + timeout
    monitors = [
        Monitor(context, [WatchedRuns(folders)], deadline=end)
        for context, folders in _group_by_cluster(runs)
    ]
    found = {status.folder.path: status for status in poll_all(monitors, deadline=end)}
    live = [run for run in runs if not found[run.folder].final]
    if live:
        state = found[live[0].folder].state
        others = f" and {len(live) - 1} more runs are not over" if len(live) > 1 else ""
        raise WaitTimeout(f"{live[0].id} is {state}{others} after {timeout:g} s")
    return [add_details(found[run.folder], "row") for run in runs]


# ---- Implementation ------------------------------------------------------------------------------


def _load_context(cluster: str | None, cwd: str | os.PathLike[str] | None) -> Context:
    try:
        folder = Path(cwd or "").absolute()
    except FileNotFoundError as error:
        raise InputError("the current directory no longer exists", fix="cwd=...") from error
    if not folder.is_dir():
        raise InputError(f"cwd: {folder}: no such folder")
    return load_context(os.environ, folder, cluster)


def _resolve(context: Context, word: str) -> RunFolder | SweepFolder:
    found = resolve_run_or_sweep(context, word)
    # A method may be called much later and must fetch the run's records again.
    context.session.synced.clear()
    return found


def _list_dependencies(
    after: Run | Sweep | str | Sequence[Run | Sweep | str] | None,
) -> Sequence[Run | Sweep | str]:
    """Return ``after`` as a list; a Sweep is one item although it is a sequence."""
    if after is None:
        return []
    return [after] if isinstance(after, (Run, Sweep, str)) else after


def _prepare(
    context: Context,
    job: object,
    changes: Mapping[str, object] | None,
    args: Sequence[object],
    after: Run | Sweep | str | Sequence[Run | Sweep | str] | None,
    check: bool,
) -> Prepared:
    """Plan and render a run or a sweep.

    Raises:
        SpecError: With all problems of the job.
        InputError: If another argument is invalid.
    """
    from hpcrun.actions import Checks, build_dependency, prepare_job
    from hpcrun.spec import SOURCE, Origin, dump_value

    words = [one.id if isinstance(one, (Run, Sweep)) else one for one in _list_dependencies(after)]
    try:
        for path in changes or {}:
            if not isinstance(path, str) or ("=" in path and '"' not in path):
                raise InputError(f"{_SET}: {path!r}: expected a key, as in resources.nodes")
        asked = (changes or {}).items()
        overrides = [f"{path}={dump_value(value, _SET, path)}" for path, value in asked]
        spec, name = _load_spec(context, job, overrides)
        return prepare_job(
            context,
            spec,
            extra_args=_format_arguments(args),
            after=build_dependency(context, words),
            origin=Origin(name, tuple(overrides)),
            checks=Checks(strict=check),
        )
    except SpecError as error:
        # Problems refer to the API's arguments: a dict has no lines, and --set is ``set``.
        for problem in error.problems:
            if problem.source == _DICT:
                problem.line = None
            elif problem.source == SOURCE:
                problem.source = _SET
            problem.message = problem.message.replace(f"({SOURCE} ", f"({_SET} ")
        raise SpecError(error.problems, fix=error.fix, notes=error.notes) from error


def _load_spec(context: Context, job: object, overrides: Sequence[str]) -> tuple[JobSpec, str]:
    from hpcrun.actions import load_spec, read_spec
    from hpcrun.spec import dump_value

    if isinstance(job, Mapping):
        spec = read_spec(context, dump_value(job, _DICT), _DICT, overrides)
        return (spec if spec.name else structs.replace(spec, name="job")), _DICT
    if isinstance(job, (str, os.PathLike)):
        name = os.fsdecode(job)
        if isinstance(job, os.PathLike) and "/" not in name:
            name = f"./{name}"  # a path is never the name of a preset
        return load_spec(context, name, overrides), name
    raise InputError(
        f"job: {type(job).__name__}: expected a job's name, a path or a dict",
        fix='a bare command is {"command": ["echo", "hello"], "resources": {"gpus_per_node": 0}}',
    )


def _format_arguments(args: Sequence[object]) -> list[str]:
    if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
        raise InputError(
            f"args: {args!r}: expected a list of arguments", fix=f"as in {str(args).split()!r}"
        )
    texts = []
    for arg in args:
        if isinstance(arg, bool) or not isinstance(arg, (str, os.PathLike, Real)):
            raise InputError(f"args: {arg!r}: expected a text, a path or a number")
        texts.append(os.fsdecode(arg) if isinstance(arg, (str, os.PathLike)) else str(arg))
    return texts


def _build_dry_run(made: Prepared) -> DryRun:
    files = {file.name: file.text for file in made.files if not file.is_binary}
    return DryRun(made.plan, files, made.values, tuple(map(_build_dry_run, made.runs)))


def _cancel(
    context: Context, *, runs: Sequence[RunFolder] = (), sweeps: Sequence[SweepFolder] = ()
) -> bool:
    from hpcrun.actions import cancel_jobs

    outcomes = cancel_jobs(context, Targets(runs=[*runs], sweeps=[*sweeps], jobs=[]))
    for each in outcomes:
        if each.error is not None:
            raise each.error
    return any(each.done for each in outcomes)


def _iterate_lines(
    events: Iterable[Status | Lines | str], masker: Masker | None, *, with_prefix: bool
) -> Iterator[str]:
    """Yield the lines of log events, and join lines that arrive in pieces."""
    from hpcrun.actions import Lines
    from hpcrun.secrets import FileMasker

    maskers: dict[Path, FileMasker] = {}
    begun: dict[Path, tuple[bytes, Lines]] = {}

    def text(event: Lines, line: bytes) -> str:
        return (event.file.prefixed(line) if with_prefix else line).decode("utf-8", "replace")

    for event in events:
        if not isinstance(event, Lines) or not event.data:
            continue
        shown = event.data
        if masker is not None:
            shown = maskers.setdefault(event.file.path, FileMasker(masker)).mask(shown)
        data = begun.pop(event.file.path, (b"", event))[0] + shown
        if not event.data.endswith((b"\n", b"\r")):
            begun[event.file.path] = data, event
            continue
        for line in data.splitlines():
            yield text(event, line)
    for data, event in begun.values():
        yield text(event, data)


def _list_runs(runs: Iterable[Run], function: str) -> list[Run]:
    """Return the runs as a list.

    Raises:
        InputError: If the caller passed a single run.
    """
    if not isinstance(runs, Iterable):
        raise InputError(f"{runs!r}: expected a list of runs", fix=f"hpcrun.{function}([run])")
    return list(runs)


def _group_by_cluster(runs: Sequence[Run]) -> list[tuple[Context, list[RunFolder]]]:
    groups: list[tuple[Context, list[RunFolder]]] = []
    for run in runs:
        if not isinstance(run, Run):
            raise InputError(
                f"{run!r}: expected a run, as submit() or find() gives", fix="hpcrun.find(...)"
            )
        for context, folders in groups:
            if context.cluster == run._context.cluster:
                folders.append(run._folder)
                break
        else:
            groups.append((run._context, [run._folder]))
    return groups


def _reduce(one: Run | Sweep) -> tuple[Any, ...]:
    """Pickle without the environment and the session state, which may contain secrets."""
    context = structs.replace(one._context, environ={}, session=CommandState())
    return _reopen, (type(one), one._folder, context)


def _reopen(kind: type[Run] | type[Sweep], folder: Any, context: Context) -> Run | Sweep:
    """Unpickle a run or sweep with the environment of the current process."""
    return kind(folder, structs.replace(context, environ=dict(os.environ)))
