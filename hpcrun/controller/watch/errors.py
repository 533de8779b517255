"""What `hpcrun logs --err` shows: of each run the process that failed, and who else complained.

Effects: reads the ends of log files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcrun.controller.watch.follow import Begins, Lines
from hpcrun.controller.watch.watched import Watched
from hpcrun.controller.watch.watched_runs import WatchedRuns
from hpcrun.logs.errors import error_lines, last_lines, last_traceback
from hpcrun.logs.files import LogFile
from hpcrun.runs.records import Failure
from hpcrun.runs.store import read_history
from hpcrun.transport import Transport

# An error stands at the end of a log. In bytes; of hundreds of ranks less is read.
_END = 1 << 20
_END_OF_MANY = 1 << 17
_MANY = 64
_LINES = 40
_LAST_WORDS = 20


def read_errors(watched: Watched, files: Sequence[LogFile]) -> Iterator[Lines | Begins]:
    """Give what went wrong, each piece with a word of whose it is; nothing where nothing did."""
    for job_id in dict.fromkeys(file.job_id for file in files):
        own = [file for file in files if file.job_id == job_id]
        failure = None
        if isinstance(watched, WatchedRuns):
            last = max((file.attempt for file in own if file.attempt is not None), default=0)
            own = [file for file in own if file.attempt in (last, None)]
            failure = _failure(watched, job_id, last)
        yield from _of_one(watched.transport, own, failure)


def _failure(watched: WatchedRuns, job_id: str | None, attempt: int) -> Failure | None:
    """The process that failed first, by the record of the attempt."""
    for run in watched.runs:
        if run.run_id == job_id:
            for each in read_history(run).attempts:
                if each.index == attempt and each.end is not None:
                    return each.end.first_failure
    return None


def _of_one(
    transport: Transport, files: Sequence[LogFile], failure: Failure | None
) -> Iterator[Lines | Begins]:
    ranks = [file for file in files if file.rank is not None]
    first = failure.rank if failure is not None else None
    ranks.sort(key=lambda file: file.rank != first)
    size = _END if len(ranks) <= _MANY else _END_OF_MANY
    told: dict[bytes, str] = {}
    for file in ranks:
        text = _end(transport, file, size)
        found = last_traceback(text)
        words = f"rank {file.rank}"
        if file.rank == first:
            words += " failed first"
            if not found:
                found, words = last_lines(text, _LAST_WORDS), f"{words}; its last lines"
        key = found.rstrip().rpartition(b"\n")[2]
        if not found:
            continue
        if key in told:
            # Ranks that fail alike say the same; one of them is enough.
            yield Begins(file, f"rank {file.rank} ended like {told[key]}")
            continue
        told[key] = f"rank {file.rank}"
        yield Begins(file, words)
        yield Lines(file, found)
    for file in files:
        if file.rank is not None:
            continue
        text = _end(transport, file, _END)
        found = text if file.is_err else last_traceback(text) + error_lines(text, _LINES)
        if found:
            yield Begins(file, _whose(file))
            yield Lines(file, found)


def _whose(file: LogFile) -> str:
    if file.is_err:
        return "standard error"
    if file.node is not None:
        return f"the launcher on node {file.node}"
    return "the batch script and Slurm" if file.path.name == "batch.log" else str(file.path)


def _end(transport: Transport, file: LogFile, size: int) -> bytes:
    path = str(file.path)
    try:
        first = max(0, transport.size(path) - size)
        text = transport.read(path, first, size)
    except OSError:
        return b""
    return text if not first else text[text.find(b"\n") + 1 :]
