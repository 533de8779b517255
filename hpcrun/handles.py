"""What programs hold in their hands: runs and sweeps that were submitted, and their states."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from hpcrun.errors import HpcrunError, InputError, WaitTimeout

if TYPE_CHECKING:
    from hpcrun.controller.context import Context
    from hpcrun.controller.logs import Lines
    from hpcrun.metrics.parse import ParsedRun
    from hpcrun.plan.types import Plan
    from hpcrun.runs.layout import RunFolder, SweepFolder
    from hpcrun.runs.status import JobStatus
    from hpcrun.secrets.mask import Masker


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
        """Slurm's id, as "123" or "123_4"; None for a run of ``hpcrun run``, and while unknown."""
        from hpcrun.runs.store import read_history

        submitted = read_history(self._folder).submitted
        return submitted.job_id if submitted else None

    @cached_property
    def plan(self) -> Plan:
        """What was decided at submission: effective_batch, world_size, nodes, checkpoint_dir ...

        Raises HpcrunError where its record is missing or damaged.
        """
        from hpcrun.runs.store import read_plan

        plan = read_plan(self._folder)
        if plan is None:
            raise HpcrunError(f"{self._folder.plan}: no record of a plan that can be read")
        return plan

    @cached_property
    def values(self) -> dict[str, str]:
        """Of a run of a sweep its own values, by the sweep's names; else empty."""
        from hpcrun.runs.store import read_task

        task = read_task(self._folder)
        return dict(task.values) if task else {}

    def status(self) -> JobStatus:
        """Ask for the state, by one squeue and at most one sacct; Slurm's silence is UNKNOWN."""
        return status_of([self])[0]

    def wait(self, timeout: float | None = None) -> JobStatus:
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
        from hpcrun.controller.logs import JobLogs, LogQuery
        from hpcrun.controller.secrets import masker_of

        query = LogQuery(ranks=frozenset() if rank is None else frozenset({rank}))
        logs = JobLogs(self._context, [self._folder], query)
        if not follow:
            logs.check()
        events: Iterator[JobStatus | Lines] = logs.follow() if follow else logs.read()
        masker = None if raw else masker_of(self._context, [self._folder])
        return _lines(events, masker, with_prefix=rank is None)

    def metrics(self, *, patterns: str | Sequence[str] = ()) -> ParsedRun:
        """Read the logs' metrics so far, all attempts as one curve: see parse()."""
        from hpcrun.controller.curves.parse import Source, own_formats, parse_source

        own = own_formats([patterns] if isinstance(patterns, str) else patterns, "patterns")
        return parse_source(Source(self.id, run=self._folder), own=own, full=True)

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
        return _reopen, (Run, self._folder, _without_environment(self._context))


class Sweep(Sequence[Run]):
    """The runs of a sweep, in the order of its tasks: one array of Slurm's."""

    def __init__(self, folder: SweepFolder, context: Context) -> None:
        from hpcrun.runs.store import runs_of

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
        return first.partition("_")[0] if first else None

    def status(self) -> list[JobStatus]:
        """Ask for the state of all runs at once: see Run.status()."""
        return status_of(self._runs)

    def wait(self, timeout: float | None = None) -> list[JobStatus]:
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
        return _reopen, (Sweep, self._folder, _without_environment(self._context))


def status_of(runs: Iterable[Run]) -> list[JobStatus]:
    """Ask for the state of many runs at once, in their order: one squeue for each cluster."""
    from hpcrun.controller import status

    runs = _listed(runs, "status_of")
    found: dict[Path, JobStatus] = {}
    for context, folders in _by_cluster(runs):
        known = status.status_of(context, folders, level="row")
        found |= {each.folder.path: each for each in known}
    return [found[run.folder] for run in runs]


def wait(runs: Iterable[Run], *, timeout: float | None = None) -> list[JobStatus]:
    """Wait until all runs are over, well or not; return their states in the order of ``runs``.

    All together cost Slurm what one of them does: two squeue a minute, and some around each end.
    Raises WaitTimeout after ``timeout`` seconds; the runs go on, also after Ctrl-C.
    """
    from numbers import Real
    from time import monotonic

    from hpcrun.controller.monitor import Monitor, Runs, poll_all
    from hpcrun.controller.status import complete

    runs = _listed(runs, "wait")
    # nan is no number of seconds
    if timeout is not None and not (isinstance(timeout, Real) and timeout == timeout):
        raise InputError(f"timeout: {timeout!r}: expected seconds", fix="as in timeout=600")
    end = None if timeout is None else monotonic() + timeout
    monitors = [
        Monitor(context, [Runs(folders)], deadline=end) for context, folders in _by_cluster(runs)
    ]
    found = {status.folder.path: status for status in poll_all(monitors, deadline=end)}
    live = [run for run in runs if not found[run.folder].final]
    if live:
        state = found[live[0].folder].state
        others = f" and {len(live) - 1} more runs are not over" if len(live) > 1 else ""
        raise WaitTimeout(f"{live[0].id} is {state}{others} after {timeout:g} s")
    return [complete(found[run.folder], "row") for run in runs]


def _cancel(
    context: Context, *, runs: Sequence[RunFolder] = (), sweeps: Sequence[SweepFolder] = ()
) -> bool:
    from hpcrun.controller.cancel import cancel_all
    from hpcrun.controller.targets import Targets

    outcomes = cancel_all(context, Targets(runs=[*runs], sweeps=[*sweeps], jobs=[]))
    for each in outcomes:
        if each.error is not None:
            raise each.error
    return any(each.done for each in outcomes)


def _lines(
    events: Iterable[JobStatus | Lines], masker: Masker | None, *, with_prefix: bool
) -> Iterator[str]:
    """Give what comes of logs line by line; a long line may come in pieces."""
    from hpcrun.controller.logs import Lines
    from hpcrun.secrets.mask import FileMasker

    maskers: dict[Path, FileMasker] = {}
    begun: dict[Path, tuple[bytes, str]] = {}
    for event in events:
        if not isinstance(event, Lines) or not event.data:
            continue
        prefix = event.file.prefix if with_prefix else ""
        shown = event.data
        if masker is not None:
            shown = maskers.setdefault(event.file.path, FileMasker(masker)).mask(shown)
        data = begun.pop(event.file.path, (b"", ""))[0] + shown
        if not event.data.endswith((b"\n", b"\r")):
            begun[event.file.path] = (data, prefix)
            continue
        for line in data.splitlines():
            yield prefix + line.decode("utf-8", "replace")
    for data, prefix in begun.values():
        yield prefix + data.decode("utf-8", "replace")


def _listed(runs: Iterable[Run], function: str) -> list[Run]:
    """List what a function of many runs was given. Raises InputError for a single one."""
    if not isinstance(runs, Iterable):
        raise InputError(f"{runs!r}: expected a list of runs", fix=f"hpcrun.{function}([run])")
    return list(runs)


def _by_cluster(runs: Sequence[Run]) -> list[tuple[Context, list[RunFolder]]]:
    """Put together the runs that one Slurm is asked about."""
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


def _without_environment(context: Context) -> Context:
    """What may lie in a pickle: the environment may hold secrets."""
    from msgspec import structs

    return structs.replace(context, environ={})


def _reopen(kind: type[Run] | type[Sweep], folder: Any, context: Context) -> Run | Sweep:
    """Bring a run back from a pickle, with the environment of the process that it comes to."""
    from msgspec import structs

    return kind(folder, structs.replace(context, environ=dict(os.environ)))
