"""What programs call: submit jobs, find runs, wait for them, read their metrics."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hpcrun.errors import InputError
from hpcrun.handles import Run, Sweep, status_of, wait
from hpcrun.runs.layout import RunFolder, SweepFolder
from hpcrun.runs.status import JobStatus as Status

if TYPE_CHECKING:
    from hpcrun.controller.context import Context
    from hpcrun.controller.prepare import Prepared
    from hpcrun.metrics.parse import ParsedRun
    from hpcrun.plan.types import Plan
    from hpcrun.render.files import RenderedFile

__all__ = [
    "DryRun",
    "Run",
    "Status",
    "Sweep",
    "dry_run",
    "find",
    "find_sweep",
    "newest",
    "parse",
    "status_of",
    "submit",
    "submit_sweep",
    "wait",
]


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


def submit(
    job: str | os.PathLike[str] | Mapping[str, object],
    *,
    set: Mapping[str, object] | None = None,
    args: Sequence[object] = (),
    after: Run | Sweep | str | None = None,
    check: bool = True,
    cluster: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Run:
    """Submit a job to Slurm, as ``hpcrun submit`` does, and return its run.

    ``job`` is a name that ``hpcrun jobs`` lists, the path of a job file, or a dict with the keys
    of one. ``set`` changes keys of it, as in {"resources.nodes": 2}. ``args`` go to the script
    behind the job's own. ``after`` starts it only when that run or job has ended well. ``check``
    False is ``--no-check``: what you know better than hpcrun becomes a note of the plan.
    ``cluster`` names a profile; ``cwd`` is where project, profile and paths are looked for (here).

    Raises SpecError with all that is wrong with the job, InputError, SchedulerRefused, OutOfReach;
    nothing is left behind but where OutOfReach says that Slurm may have taken it (maybe_done).
    """
    from hpcrun.controller.submit import submit_job

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
    after: Run | Sweep | str | None = None,
    check: bool = True,
    cluster: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> Sweep:
    """Submit a job that has a ``sweep`` as one array of Slurm's: arguments and errors of submit().

    A job becomes a sweep here too, as in set={"sweep": {"args.lr": [1e-3, 1e-4]}}.
    """
    from hpcrun.controller.submit import submit_job

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
    after: Run | Sweep | str | None = None,
    check: bool = True,
    cluster: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> DryRun:
    """Do all of submit(), or of submit_sweep(), but its effects: nothing is written or submitted.

    Arguments and errors are submit()'s. Slurm is asked only about ``after``.
    """

    made = _prepared(_context(cluster, cwd), job, set, args, after, check)
    if not made.is_sweep:
        return DryRun(made.plan, _texts(made.files))
    runs = tuple(
        DryRun(run.plan, _texts(run.files), values)
        for run, values in zip(made.runs, made.values, strict=True)
    )
    return DryRun(made.plan, _texts(made.files), runs=runs)


def find(
    word: str | int, *, cluster: str | None = None, cwd: str | os.PathLike[str] | None = None
) -> Run:
    """Find a run by its id, the unique start or end of that, or its Slurm id ("123", "123_4").

    Raises InputError for what is not there, fits several runs, or is a sweep.
    """
    from hpcrun.controller.targets import resolve
    from hpcrun.runs.find import only_run

    context = _context(cluster, cwd)
    return Run(only_run(resolve(context, str(word)), str(word)), context)


def find_sweep(
    word: str | int, *, cluster: str | None = None, cwd: str | os.PathLike[str] | None = None
) -> Sweep:
    """Find a sweep by its id, a part of that, or its array's Slurm id. Raises InputError."""
    from hpcrun.controller.targets import resolve

    context = _context(cluster, cwd)
    found = resolve(context, str(word))
    if not isinstance(found, SweepFolder):
        raise InputError(f"{word}: a run, and no sweep", fix=f"hpcrun.find({word!r})")
    return Sweep(found, context)


def newest(
    count: int = 20, *, cluster: str | None = None, cwd: str | os.PathLike[str] | None = None
) -> list[Run]:
    """List the newest runs, newest first, runs of sweeps among them; Slurm is not asked.

    Raises InputError for a ``count`` that is no number, or less than 0.
    """
    from itertools import islice

    from hpcrun.runs.find import list_runs

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
    from hpcrun.controller.curves.parse import parse as parse_words

    word = os.fspath(log)
    patterns = [patterns] if isinstance(patterns, str) else patterns
    runs = parse_words(_context(cluster, cwd), [word], patterns=patterns, full=True)
    if len(runs) != 1:
        names = ", ".join(run.source for run in runs[:3])
        raise InputError(f"{word}: {len(runs)} runs", fix=f"name one of them: {names}")
    return runs[0]


def _context(cluster: str | None, cwd: str | os.PathLike[str] | None) -> Context:
    from hpcrun.controller.context import load_context

    try:
        folder = Path(cwd or "").absolute()
    except FileNotFoundError as error:
        raise InputError("the current folder is gone", fix="cwd=...") from error
    if not folder.is_dir():
        raise InputError(f"cwd: {folder}: no such folder")
    return load_context(os.environ, folder, cluster)


def _prepared(
    context: Context,
    job: object,
    changes: Mapping[str, object] | None,
    args: Sequence[object],
    after: Run | Sweep | str | None,
    check: bool,
) -> Prepared:
    from hpcrun.controller.asked import prepare_asked

    first = after.id if isinstance(after, (Run, Sweep)) else after
    return prepare_asked(context, job, changes=changes or {}, args=args, after=first, check=check)


def _texts(files: Sequence[RenderedFile]) -> dict[str, str]:
    return {file.name: file.text for file in files}
