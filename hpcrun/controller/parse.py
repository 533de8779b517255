"""Reads the metrics of log files or of runs.

Effects: reads files, Slurm commands for jobs that hpcrun did not submit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.errors import InputError
from hpcrun.logs.files import log_files
from hpcrun.metrics.parse import ParsedRun, parse_chunks
from hpcrun.plan.sweep import label
from hpcrun.runs.layout import RunFolder, SweepFolder
from hpcrun.runs.store import find, is_job_id, read_task, runs_of

_CHUNK = 1 << 20


def parse(context: Context, word: str | None) -> list[ParsedRun]:
    """Read the metrics of a log file, a run, a sweep's runs, or a Slurm job; none: the newest.

    Raises InputError when there is no such thing.
    """
    if word is not None:
        path = context.cwd / word
        if path.is_dir() and find(context.runs_dir, word) is None:
            raise InputError(f"{word}: a folder", fix="name the log files in it")
        if path.exists() and not path.is_dir():
            return [parse_chunks(word, [(0, _chunks(path))])]
    run = find(context.runs_dir, word)
    if isinstance(run, SweepFolder):
        return [parse_run(each) for each in runs_of(run)]
    if run is not None:
        return [parse_run(run)]
    if word is None:
        raise InputError(f"no runs yet in {context.runs_dir}", fix="hpcrun parse FILE")
    if is_job_id(word):
        found = scheduler.stdout_path(slurm_transport(context), word)
        if found is not None and Path(found).is_file():
            return [parse_chunks(found, [(0, _chunks(Path(found)))])]
    raise InputError(f"{word}: no such file, run or job", fix="hpcrun status lists the runs")


def curve_label(context: Context, source: str) -> str:
    """What a curve is called in a drawing: a sweep's run by its values, all else as it is."""
    task = read_task(RunFolder(context.runs_dir / source))
    return f"{task.index}: {label(task.values)}" if task is not None else source


def parse_run(run: RunFolder) -> ParsedRun:
    """Read a run's curve, attempt by attempt.

    Rank 0 prints it nearly always, the last rank in Megatron's family; else all files are read.
    """
    files = [file for file in log_files(run) if file.attempt is not None]
    last = max((file.rank or 0 for file in files), default=0)
    parsed = None
    for chosen in (
        [file for file in files if file.rank == 0],
        [file for file in files if file.rank == last],
        files,
    ):
        parsed = parse_chunks(run.run_id, [(f.attempt or 0, _chunks(f.path)) for f in chosen])
        if parsed.points:
            break
    assert parsed is not None
    return parsed


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
