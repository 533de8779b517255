"""What programs call: submit jobs, find runs, wait for them, read their metrics."""

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

# What else is needed is imported where it is: a program that reads a log submits nothing.
if TYPE_CHECKING:
    from hpcrun.actions import Lines, Prepared
    from hpcrun.curves import ParsedRun
    from hpcrun.plan import Plan
    from hpcrun.secrets import Masker
    from hpcrun.spec import JobSpec

# What it is called by programs.
Status = JobStatus
# What messages call a job that is a dict, and changes to a job.
_DICT, _SET = "job", "set"


@dataclass(frozen=True)
class DryRun:
    """What a submission would do, decided and written, but nowhere yet.

    ``files``: text by name, as they would lie in the run's folder (job.sbatch, deepspeed.json,
    plan.json, ...). Of a sweep ``plan`` and ``files`` are the array's, ``runs`` are its runs, and
    each of these has ``values``, its own by the sweep's names.
    """

    plan: Plan
    files: Mapping[str, str]
    values: Mapping[str, str] = field(default_factory=dict)
    runs: Sequence[DryRun] = ()

    def __repr__(self) -> str:
        of = f", {len(self.runs)} runs" if self.runs else ""
        return f"<DryRun {self.plan.name!r}: {', '.join(self.files)}{of}>"


class Run:
    """A run that was submitted: its folder, and what can be asked and done.

    Made by submit(), find(), newest(). It holds nothing open and may be used from any thread, be
    copied and pickled. Two are equal that mean the same folder.
    """

    def __init__(self, folder: RunFolder, context: Context) -> None:
        self._folder = folder
        self._context = context

    @property
    def id(self) -> str:
        """The run's id, which every verb of the command line takes too."""
        return self._folder.run_id

    @property
    def folder(self) -> Path:
        """Where everything of the run lies."""
        return self._folder.path

    @property
    def job_id(self) -> str | None:
        """Slurm's id, as "123" or "123_4"; None for a run of ``hpcrun run``, and while unknown.

        Of a run that goes on as another job it is the last one's.
        """
        history = read_history(self._folder)
        return history.job_id if history.submitted else None

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Its attempts so far, by their own records: begin, end, why it ended (``end.why``)."""
        return read_history(self._folder).attempts

    @cached_property
    def plan(self) -> Plan:
        """What was decided at submission: effective_batch, world_size, nodes, checkpoint_dir ...

        Raises HpcrunError where its record is missing or damaged.
        """
        plan = read_plan(self._folder)
        if plan is None:
            raise HpcrunError(f"{self._folder.plan}: no record of a plan that can be read")
        return plan

    @cached_property
    def values(self) -> dict[str, str]:
        """Of a run of a sweep its own values, by the sweep's names; else empty."""
        task = read_task(self._folder)
        return dict(task.values) if task else {}

    def status(self) -> Status:
        """Ask for the state, by one squeue and at most one sacct; Slurm's silence is UNKNOWN."""
        return status_of([self])[0]

    def wait(self, timeout: float | None = None) -> Status:
        """Wait until the run is over, well or not, and return its state then.

        A requeue is not an end; Slurm's silence is none either: the waiting goes on. Ctrl-C ends
        the waiting (KeyboardInterrupt), never the run. Raises WaitTimeout after
        ``timeout`` seconds.
        """
        return wait([self], timeout=timeout)[0]

    def logs(
        self, rank: int | None = None, *, follow: bool = False, raw: bool = False
    ) -> Iterator[str]:
        """Give the lines of the logs, without line ends: of all ranks and nodes, or of one rank.

        Of all, lines of other ranks than rank 0 begin with "[rank3]: ", those of other nodes'
        launchers with "node1: ". ``follow`` goes on as they grow, until the run is over. What
        looks like a secret is ``***``, unless ``raw``. Raises InputError for a rank without a log.
        """
        from hpcrun.actions import JobLogs, LogQuery, masker_of

        if not follow:  # the follower brings it himself
            fetch_records(self._context, [self._folder], whole=True)
        query = LogQuery(ranks=frozenset() if rank is None else frozenset({rank}))
        logs = JobLogs(self._context, [self._folder], query)
        if not follow:
            logs.check()
        events: Iterator[Status | Lines | str] = logs.follow() if follow else logs.read()
        masker = None if raw else masker_of(self._context, [self._folder])
        return _lines(events, masker, with_prefix=rank is None)

    def metrics(self, *, patterns: str | Sequence[str] = ()) -> ParsedRun:
        """Read the logs' metrics so far, all attempts as one curve: see parse()."""
        from hpcrun.actions import CurveLog, build_own_formats
        from hpcrun.monitor import Source

        own = build_own_formats([patterns] if isinstance(patterns, str) else patterns, "patterns")
        fetch_records(self._context, [self._folder], whole=True)
        log = CurveLog(self._context, Source(self.id, run=self._folder), own)
        log.read()
        return log.run(full=True)

    def cancel(self) -> bool:
        """Ask for the run's end; False where it was over already.

        Raises SchedulerRefused (somebody else's job), OutOfReach.
        """
        return _cancel(self._context, runs=[self._folder])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.folder == self.folder

    def __hash__(self) -> int:
        return hash(self.folder)

    def __repr__(self) -> str:
        return f"<Run {self.id}, job {self.job_id}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _pickled(self)


class Sweep(Sequence[Run]):
    """The runs of a sweep, in the order of its tasks: one array of Slurm's."""

    def __init__(self, folder: SweepFolder, context: Context) -> None:
        self._folder = folder
        self._context = context
        self._runs = [Run(run, context) for run in runs_of(folder)]

    @property
    def id(self) -> str:
        """The sweep's id, which the verbs of the command line take too."""
        return self._folder.sweep_id

    @property
    def folder(self) -> Path:
        """Where the array's script and the code of all runs lie."""
        return self._folder.path

    @property
    def job_id(self) -> str | None:
        """The array's id in Slurm; None while unknown."""
        first = self._runs[0].job_id if self._runs else None
        return array_job_id(first) if first else None

    def status(self) -> list[Status]:
        """Ask for the state of all runs at once: see Run.status()."""
        return status_of(self._runs)

    def wait(self, timeout: float | None = None) -> list[Status]:
        """Wait until all runs are over: see wait()."""
        return wait(self._runs, timeout=timeout)

    def cancel(self) -> bool:
        """Ask for the end of all runs; False where all were over already."""
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
        return _pickled(self)


# ---- submitting ----------------------------------------------------------------------------------


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

    ``job`` is a name that ``hpcrun jobs`` lists, the path of a job file, or a dict with the keys
    of one. ``set`` changes keys of it, as in {"resources.nodes": 2}. ``args`` go to the script
    behind the job's own. ``after`` starts it only when that run or job, or each one of a list, has
    ended well. ``check`` False is ``--no-check``: what you know better becomes a note of the plan.
    ``cluster`` names a profile; ``cwd`` is where project, profile and paths are looked for (here).

    Raises SpecError with all that is wrong with the job, InputError, SchedulerRefused, OutOfReach;
    nothing is left behind but where OutOfReach says that Slurm may have taken it (maybe_done).
    """
    from hpcrun.actions import submit_job

    context = _context(cluster, cwd)
    made = _prepared(context, job, set, args, after, check)
    if made.is_sweep:
        raise InputError(f"{made.plan.name}: a sweep", fix="hpcrun.submit_sweep(...)")
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
    """Submit a job that has a ``sweep`` as one array of Slurm's: arguments and errors of submit().

    A job becomes a sweep here too, as in set={"sweep": {"args.lr": [1e-3, 1e-4]}}.
    """
    from hpcrun.actions import submit_job

    context = _context(cluster, cwd)
    made = _prepared(context, job, set, args, after, check)
    if not made.is_sweep:
        raise InputError(f"{made.plan.name}: no sweep", fix="hpcrun.submit(...)")
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
    """Do all of submit(), or of submit_sweep(), but its effects: nothing is written or submitted.

    Arguments and errors are submit()'s. Slurm is asked only about ``after``.
    """
    return _dry(_prepared(_context(cluster, cwd), job, set, args, after, check))


def find(
    word: str | int, *, cluster: str | None = None, cwd: str | os.PathLike[str] | None = None
) -> Run:
    """Find a run by its id, the unique start or end of that, or its Slurm id ("123", "123_4").

    Raises InputError for what is not there, fits several runs, or is a sweep.
    """
    context = _context(cluster, cwd)
    return Run(require_single_run(_resolved(context, str(word)), str(word)), context)


def find_sweep(
    word: str | int, *, cluster: str | None = None, cwd: str | os.PathLike[str] | None = None
) -> Sweep:
    """Find a sweep by its id, a part of that, or its array's Slurm id. Raises InputError."""
    context = _context(cluster, cwd)
    found = _resolved(context, str(word))
    if not isinstance(found, SweepFolder):
        raise InputError(f"{word}: a run, and no sweep", fix=f"hpcrun.find({word!r})")
    return Sweep(found, context)


def newest(
    count: int = 20, *, cluster: str | None = None, cwd: str | os.PathLike[str] | None = None
) -> list[Run]:
    """List the newest runs, newest first, runs of sweeps among them; Slurm is not asked.

    Raises InputError for a ``count`` that is no number, or less than 0.
    """
    if not hasattr(count, "__index__") or count < 0:
        raise InputError(f"count: {count!r}: expected how many runs", fix="as in newest(20)")
    context = _context(cluster, cwd)
    return [Run(folder, context) for folder in islice(list_runs(context.runs_dir), count)]


def parse(
    log: str | os.PathLike[str],
    *,
    patterns: str | Sequence[str] = (),
    cluster: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> ParsedRun:
    """Read a training log, a run or a Slurm job: what ``hpcrun parse`` takes, as one curve.

    As in::

        run = hpcrun.parse("train.log")
        pandas.DataFrame(run.columns()).plot(x="step", y="loss")

    The result has ``curve`` (metrics, restarts), ``columns()`` (a row per step), ``samples`` (every
    number as the log has it) and ``warnings``. ``patterns`` are forms of lines of your own. All
    points are kept: memory grows with the log. Raises InputError for what is not there, cannot be
    read, or names several runs.
    """
    from hpcrun.actions import parse_runs as parse_words

    word = os.fspath(log)
    patterns = [patterns] if isinstance(patterns, str) else patterns
    runs = parse_words(_context(cluster, cwd), [word], patterns=patterns, full=True)
    if len(runs) != 1:
        names = ", ".join(run.source for run in runs[:3])
        raise InputError(f"{word}: {len(runs)} runs", fix=f"name one of them: {names}")
    return runs[0]


# ---- many runs -----------------------------------------------------------------------------------


def status_of(runs: Iterable[Run]) -> list[Status]:
    """Ask for the state of many runs at once, in their order: one squeue for each cluster."""
    from hpcrun.monitor import status_of as read_statuses

    runs = _listed(runs, "status_of")
    found: dict[Path, Status] = {}
    for context, folders in _by_cluster(runs):
        known = read_statuses(context, folders, level="row")
        found |= {each.folder.path: each for each in known}
    return [found[run.folder] for run in runs]


def wait(runs: Iterable[Run], *, timeout: float | None = None) -> list[Status]:
    """Wait until all runs are over, well or not; return their states in the order of ``runs``.

    All together cost Slurm what one of them does: two squeue a minute, and some around each end.
    Raises WaitTimeout after ``timeout`` seconds; the runs go on, also after Ctrl-C.
    """
    from hpcrun.monitor import Monitor, WatchedRuns, add_details, poll_all

    runs = _listed(runs, "wait")
    # nan is no number of seconds
    if timeout is not None and not (isinstance(timeout, Real) and timeout == timeout):
        raise InputError(f"timeout: {timeout!r}: expected seconds", fix="as in timeout=600")
    end = None if timeout is None else monotonic() + timeout
    monitors = [
        Monitor(context, [WatchedRuns(folders)], deadline=end)
        for context, folders in _by_cluster(runs)
    ]
    found = {status.folder.path: status for status in poll_all(monitors, deadline=end)}
    live = [run for run in runs if not found[run.folder].final]
    if live:
        state = found[live[0].folder].state
        others = f" and {len(live) - 1} more runs are not over" if len(live) > 1 else ""
        raise WaitTimeout(f"{live[0].id} is {state}{others} after {timeout:g} s")
    return [add_details(found[run.folder], "row") for run in runs]


# ---- how -----------------------------------------------------------------------------------------


def _context(cluster: str | None, cwd: str | os.PathLike[str] | None) -> Context:
    try:
        folder = Path(cwd or "").absolute()
    except FileNotFoundError as error:
        raise InputError("the current directory no longer exists", fix="cwd=...") from error
    if not folder.is_dir():
        raise InputError(f"cwd: {folder}: no such folder")
    return load_context(os.environ, folder, cluster)


def _resolved(context: Context, word: str) -> RunFolder | SweepFolder:
    found = resolve_run_or_sweep(context, word)
    # A method may be called much later: it has to fetch the run's records again.
    context.session.synced.clear()
    return found


def _each(
    after: Run | Sweep | str | Sequence[Run | Sweep | str] | None,
) -> Sequence[Run | Sweep | str]:
    """Return what comes first as a list; a sweep is one thing, and a sequence of runs too."""
    if after is None:
        return []
    return [after] if isinstance(after, (Run, Sweep, str)) else after


def _prepared(
    context: Context,
    job: object,
    changes: Mapping[str, object] | None,
    args: Sequence[object],
    after: Run | Sweep | str | Sequence[Run | Sweep | str] | None,
    check: bool,
) -> Prepared:
    """Plan and render a run or a sweep. Raises InputError, or SpecError with all that is wrong."""
    from hpcrun.actions import Checks, build_dependency, prepare_job
    from hpcrun.spec import SOURCE, Origin, dump_value

    words = [one.id if isinstance(one, (Run, Sweep)) else one for one in _each(after)]
    try:
        for path in changes or {}:
            if not isinstance(path, str) or ("=" in path and '"' not in path):
                raise InputError(f"{_SET}: {path!r}: expected a key, as in resources.nodes")
        asked = (changes or {}).items()
        overrides = [f"{path}={dump_value(value, _SET, path)}" for path, value in asked]
        spec, name = _spec(context, job, overrides)
        return prepare_job(
            context,
            spec,
            extra_args=_arguments(args),
            after=build_dependency(context, words),
            origin=Origin(name, tuple(overrides)),
            checks=Checks(strict=check),
        )
    except SpecError as error:
        # Problems are named as the caller does: a dict has no lines, and --set is ``set``.
        for problem in error.problems:
            if problem.source == _DICT:
                problem.line = None
            elif problem.source == SOURCE:
                problem.source = _SET
            problem.message = problem.message.replace(f"({SOURCE} ", f"({_SET} ")
        raise SpecError(error.problems, fix=error.fix, notes=error.notes) from error


def _spec(context: Context, job: object, overrides: Sequence[str]) -> tuple[JobSpec, str]:
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


def _arguments(args: Sequence[object]) -> list[str]:
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


def _dry(made: Prepared) -> DryRun:
    files = {file.name: file.text for file in made.files if not file.is_binary}
    return DryRun(made.plan, files, made.values, tuple(map(_dry, made.runs)))


def _cancel(
    context: Context, *, runs: Sequence[RunFolder] = (), sweeps: Sequence[SweepFolder] = ()
) -> bool:
    from hpcrun.actions import cancel_jobs

    outcomes = cancel_jobs(context, Targets(runs=[*runs], sweeps=[*sweeps], jobs=[]))
    for each in outcomes:
        if each.error is not None:
            raise each.error
    return any(each.done for each in outcomes)


def _lines(
    events: Iterable[Status | Lines | str], masker: Masker | None, *, with_prefix: bool
) -> Iterator[str]:
    """Give what comes of logs line by line; a long line may come in pieces."""
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


def _listed(runs: Iterable[Run], function: str) -> list[Run]:
    """List what a function of many runs was given. Raises InputError for a single one."""
    if not isinstance(runs, Iterable):
        raise InputError(f"{runs!r}: expected a list of runs", fix=f"hpcrun.{function}([run])")
    return list(runs)


def _by_cluster(runs: Sequence[Run]) -> list[tuple[Context, list[RunFolder]]]:
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


def _pickled(one: Run | Sweep) -> tuple[Any, ...]:
    """Leave the environment and the state of the session out of a pickle: both may hold secrets."""
    context = structs.replace(one._context, environ={}, session=CommandState())
    return _reopen, (type(one), one._folder, context)


def _reopen(kind: type[Run] | type[Sweep], folder: Any, context: Context) -> Run | Sweep:
    """Bring a run back from a pickle, with the environment of the process that it comes to."""
    return kind(folder, structs.replace(context, environ=dict(os.environ)))
