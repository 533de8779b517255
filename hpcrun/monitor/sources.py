"""Finds the logs to plot by name: log files, runs, and the output of Slurm jobs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, structs

from hpcrun.context import Context, slurm_transport
from hpcrun.errors import HpcrunError, InputError
from hpcrun.monitor.targets import (
    Target,
    describe_no_runs,
    find_group,
    find_run_or_sweep,
    find_targets_by_word,
    unknown_run_error,
)
from hpcrun.remote import NO_SUCH_FILE
from hpcrun.runs import (
    EVALUATIONS,
    PipelineRecord,
    RunFolder,
    SweepFolder,
    read_record,
    runs_of,
)

STDIN = Path("/dev/stdin")
# The part of a file's name that differs between a job's standard output and error: 7.out and
# 7.err, run.o7 and run.e7 (PBS, SGE), stdout and stderr; output and errors.
_STREAM = re.compile(
    r"(?P<out> \.out(?:put)?$ | \.o(?=\d+$) | (?<![a-z])(?:std)?out(?:put)?(?![a-z]) )"
    r"|(?P<err> \.err(?:or)?$ | \.e(?=\d+$) | (?<![a-z])(?:std)?err(?:or)?(?![a-z]) )",
    re.VERBOSE | re.IGNORECASE,
)


class Source(Struct, frozen=True):
    """The source of one curve: the files of one log, or a run; ``name`` is what the user typed.

    Attributes:
        job: The id of the Slurm job that writes the files, if the user typed that.
        paths: The paths of a job's files on the cluster.
    """

    name: str
    files: tuple[Path, ...] = ()
    run: RunFolder | None = None
    job: str | None = None
    paths: tuple[str, ...] = ()


def find_sources(
    context: Context, arguments: Sequence[str], *, is_awaited: bool = False
) -> list[Source]:
    """Find the sources that the arguments name, one for each curve; without any, the newest run.

    An argument is a log file, "-" for a pipe, a run, a sweep (a source for each of its runs), or a
    Slurm job. Standard output and error of one job are one log: files whose names differ only in
    .out and .err, or stdout and stderr.

    Args:
        is_awaited: The output of a Slurm job need not exist yet.

    Raises:
        InputError: An argument names nothing.
    """
    names: Sequence[str | None] = arguments or (None,)
    files = {name: _find_file_source(context, name) for name in arguments}
    targets = find_targets_by_word(
        context, [name for name in names if name is None or not files[name]], whole=True
    )
    sources: list[Source] = []
    for name in names:
        if name is not None and (file := files[name]) is not None:
            sources.append(file)
        else:
            sources += _find_run_sources(context, name, targets[name], is_awaited=is_awaited)
    return _join_streams(sources)


def _find_file_source(context: Context, name: str) -> Source | None:
    """Return the source of a log file or pipe; None if the name may be that of a run or job."""
    if name == "-":
        return Source("standard input", (STDIN,))
    path = context.cwd / name
    if path.is_dir() and find_run_or_sweep(context.runs_dir, name) is None:
        raise InputError(f"{name}: a folder", fix="name the log files in it")
    return Source(name, (path,)) if path.exists() and not path.is_dir() else None


def _find_run_sources(
    context: Context, name: str | None, target: Target | None, *, is_awaited: bool
) -> list[Source]:
    if name is None and target is None:
        raise InputError(describe_no_runs(context), fix="hpcrun parse FILE")
    if isinstance(target, str):
        from hpcrun.slurm import client  # deferred: a log file needs no Slurm

        jobs = client.show_jobs(slurm_transport(context), target)
        named = jobs[0].outputs if jobs else []
        places, faults = context.transport().copy_outputs(named)
        there = {
            path: place
            for path, place in zip(named, places, strict=True)
            if is_awaited or place.is_file()
        }
        if there:
            files, paths = tuple(there.values()), tuple(there)
            return [Source(paths[0], files, job=target, paths=paths)]
        if named and faults.get(named[0], NO_SUCH_FILE) != NO_SUCH_FILE:
            raise InputError(f"{named[0]}: {faults[named[0]]}", fix="ask the job's owner")
        if named:
            raise InputError(
                f"{name}: its output {named[0]} does not exist (yet)",
                fix=f"hpcrun parse -f {name} waits for it",
            )
    elif target is not None:
        for run in runs_of(target):
            fetch_evaluations(context, run)
        return [Source(run.run_id, run=run) for run in runs_of(target)]
    elif group := find_group(context, name, whole=True):
        # The scores of evaluations are part of the curve of their training.
        folders = _list_without_evaluations(group)
        return [Source(run.run_id, run=run) for each in folders for run in runs_of(each)]
    raise unknown_run_error(context, name, or_file=True)


def _join_streams(sources: Sequence[Source]) -> list[Source]:
    """Join the sources of a job's stdout and stderr if both are named."""
    joined: list[Source] = []
    waiting: dict[tuple[Path | None, bool], int] = {}
    for source in sources:
        log, is_err = _classify_stream(source)
        twin = waiting.pop((log, not is_err), None)
        if twin is None:
            waiting[log, is_err] = len(joined)
            joined.append(source)
        else:
            out, err = (joined[twin], source) if is_err else (source, joined[twin])
            joined[twin] = Source(out.name, (*out.files, *err.files), job=out.job or err.job)
            joined[twin] = structs.replace(joined[twin], paths=(*out.paths, *err.paths))
    return joined


def _classify_stream(source: Source) -> tuple[Path | None, bool]:
    """Return the common part of a job's two stream names, and whether this is its stderr."""
    if len(source.files) == 1 and source.files[0] != STDIN:
        path = source.files[0]
        named = [*_STREAM.finditer(path.name)] or [*re.finditer(r"(?i)\.log$", path.name)]
        if named:
            begin, end = named[-1].span()
            common = path.with_name(f"{path.name[:begin]}\0{path.name[end:]}")
            return common, named[-1].lastgroup == "err"
    return None, False


def fetch_evaluations(context: Context, training: RunFolder) -> None:
    """Fetch the logs of the evaluations of a training from a remote cluster."""
    if context.cluster.host is None or not (training.path / EVALUATIONS).is_file():
        return
    record = read_record(training.pipeline, PipelineRecord)
    if record is not None and record.checkpoint is None:
        find_group(context, record.id, whole=True)


def _list_without_evaluations(
    group: Sequence[RunFolder | SweepFolder],
) -> list[RunFolder | SweepFolder]:
    """List the runs of a group, except the evaluations of trainings that are among them."""
    stages: dict[RunFolder | SweepFolder, PipelineRecord] = {}
    for each in group:
        with contextlib.suppress(HpcrunError):
            if (record := read_record(each.pipeline, PipelineRecord)) is not None:
                stages[each] = record
    there = {record.stage for record in stages.values() if record.checkpoint is None}

    def is_evaluation(each: RunFolder | SweepFolder) -> bool:
        record = stages.get(each)
        if record is None or record.checkpoint is None:
            return False
        return record.stages[record.stage].for_each_checkpoint_of in there

    return [each for each in group if not is_evaluation(each)]
