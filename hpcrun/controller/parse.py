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
from hpcrun.runs.layout import RunFolder
from hpcrun.runs.store import find_run

_CHUNK = 1 << 20


def parse(context: Context, word: str | None) -> ParsedRun:
    """Read the metrics of a log file, a run, or a Slurm job; none means the newest run.

    Raises InputError when there is no such thing.
    """
    if word is not None:
        path = context.cwd / word
        if path.is_file():
            return parse_chunks(word, [(0, _chunks(path))])
    run = find_run(context.runs_dir, word)
    if run is not None:
        return parse_run(run)
    if word is None:
        raise InputError(f"no runs yet in {context.runs_dir}", fix="hpcrun parse FILE")
    if word.isdigit():
        found = scheduler.stdout_path(slurm_transport(context), word)
        if found is not None and Path(found).is_file():
            return parse_chunks(found, [(0, _chunks(Path(found)))])
    raise InputError(f"{word}: no such file, run or job", fix="hpcrun status lists the runs")


def parse_run(run: RunFolder) -> ParsedRun:
    """Read a run's curve, attempt by attempt; rank 0's node speaks first (some print elsewhere)."""
    files = [
        (file.attempt, _chunks(file.path)) for file in log_files(run) if file.attempt is not None
    ]
    return parse_chunks(run.run_id, files)


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
