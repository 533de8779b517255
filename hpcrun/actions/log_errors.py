"""Errors for `hpcrun logs --err`: for each run the rank that failed first, then the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hpcrun.actions.logs import JobLogs, Lines
from hpcrun.logs import LogFile, find_attempt, read_at
from hpcrun.runs import Failure, read_history
from hpcrun.text import format_ranges
from hpcrun.why import find_tracebacks, parse_line

# Errors are read from the last bytes of a log; from fewer if there are hundreds of ranks.
_END_BYTES = 1 << 20
_END_BYTES_OF_MANY = 1 << 17
_MANY_RANKS = 64
_MAX_ERROR_LINES = 40
_LAST_LINES = 20
_TRACEBACK = b"Traceback (most recent call last)"
# The tracebacks of launchers (torchrun, accelerate), and the lines around them, only report that a
# process failed.
_LAUNCHER = re.compile(
    rb"ChildFailedError|SignalException|accelerate[/.]commands[/.]launch|deepspeed[/.]launcher"
)
_LAUNCHER_LINE = re.compile(
    rb"torch[/.]distributed[/.](?:elastic|run|launcher)|deepspeed[/.]launcher|launch\.py:\d+"
    rb"|accelerate[/.]commands[/.]launch|ChildFailedError|subprocess\.CalledProcessError"
    rb"|\b(?:exitcode|error_file|traceback) *: |first observed failure|NO_OTHER_FAILURES"
    rb"|^\W*Failures:|\S+ FAILED\s*$"
)
# Parts of an error that differ between ranks with the same failure.
_PLACES = re.compile(
    rb"\[?\brank[ :=]*\d+\]?:?|\bcuda:\d+|\bGPU \d+|\b0x[0-9a-f]+|\bpid[ :=]*\d+", re.IGNORECASE
)
# Further lines of an exception's message.
_MAX_MESSAGE_LINES = 20
_ERROR_WORDS = re.compile(
    rb"\berror\b|error:|\bfatal\b|\bkilled\b|\baborted\b|\bcancelled\b|out of memory|oom|exception"
    rb"|segmentation fault|bus error|no space left|disk quota|slurmstepd:|srun:|core dumped"
    rb"|received SIG|time limit|terminat(?:ed|ing)|permission denied|command not found"
    rb"|no such file|failed",
    re.IGNORECASE,
)


def read_errors(
    logs: JobLogs, files: Sequence[LogFile], attempt: int | None = None
) -> Iterator[Lines]:
    """Yield the errors of the last attempt, each with a heading that names its source.

    ``attempt``: the attempt that the files belong to; errors of later ones are ignored.
    """
    by_job: dict[str | None, list[LogFile]] = {}
    for file in files:
        by_job.setdefault(file.job_id, []).append(file)
    is_bounded = attempt is not None and attempt >= 0
    for job_id, own in by_job.items():
        failure, last = None, 0
        if (run := logs.run_of(job_id)) is not None:
            last = max((file.attempt for file in own if file.attempt is not None), default=0)
            own = [file for file in own if file.attempt in (last, None)]
            ends = [each.end for each in read_history(run).attempts if each.index == last]
            failure = ends[0].first_failure if ends and ends[0] is not None else None
        yield from _read_job_errors(own, failure, last, is_bounded=is_bounded)


def _read_job_errors(
    files: Sequence[LogFile], failure: Failure | None, last: int, *, is_bounded: bool
) -> Iterator[Lines]:
    """Yield the errors in the files of one job.

    In the batch script's log, only the ``last`` attempt is read, to its end unless ``is_bounded``.
    """
    ranks = [file for file in files if file.rank is not None]
    first = failure.rank if failure is not None else None
    role = (failure.role or "") if failure is not None else ""
    ranks.sort(key=lambda file: (file.role != role, file.rank != first))
    size = _END_BYTES if len(ranks) <= _MANY_RANKS else _END_BYTES_OF_MANY
    reported: dict[bytes, str] = {}
    alike: dict[str, list[LogFile]] = {}
    for file in ranks:
        text = _read_end(file, size)
        found = find_last_traceback(text)
        words = f"rank {file.rank}"
        if file.rank == first:
            words += " failed first"
            if not found:
                found, words = get_last_lines(text, _LAST_LINES), f"{words}; its last lines"
        key = _PLACES.sub(b"", found.rstrip().rpartition(b"\n")[2])
        if not found:
            continue
        if key in reported:
            # Ranks with the same failure print the same errors, so only one of them is shown.
            alike.setdefault(reported[key], []).append(file)
            continue
        reported[key] = f"rank {file.rank}"
        yield Lines(file, found, words)
    for shown, others in alike.items():
        numbers = sorted(file.rank for file in others if file.rank is not None)
        some = f"ranks {format_ranges(numbers)}" if len(numbers) > 1 else f"rank {numbers[0]}"
        yield Lines(others[0], heading=f"{some} ended like {shown}")
    silent: list[LogFile] = []
    for file in files:
        if file.rank is not None:
            continue
        text = _read_end(file, _END_BYTES)
        if file.attempt is None:
            start, end = find_attempt(text, last)
            text = text[start : end if is_bounded else None]
        found, is_less = (
            (text, False) if file.is_err else _read_launcher_errors(text, is_known=bool(reported))
        )
        if is_less:
            silent.append(file)
        if found:
            whose = "the batch script and Slurm"
            if file.is_err or file.node is not None:
                whose = "standard error" if file.is_err else f"the launcher on node {file.node}"
            elif file.path.name != "batch.log":
                whose = str(file.path)
            yield Lines(file, found, whose)
    if silent:
        yield Lines(silent[0], heading=_format_launcher_note(silent))


def _read_launcher_errors(text: bytes, *, is_known: bool) -> tuple[bytes, bool]:
    """Return the errors in the log of a launcher or a batch script.

    The launcher's report of a failed process is dropped if the error of the process itself is known
    (``is_known``) or in the same log.

    Returns:
        The lines, and whether some were dropped.
    """
    trace, lines = find_last_traceback(text), find_error_lines(text, _MAX_ERROR_LINES)
    is_noise = bool(trace) and is_from_launcher(trace)
    if is_noise and not is_known:
        return trace + lines, False
    less = drop_launcher_lines(lines)
    return (b"" if is_noise else trace) + less, is_noise or less != lines


def _format_launcher_note(files: Sequence[LogFile]) -> str:
    """Note that launchers also report the failure."""
    nodes = [str(file.node) for file in files if file.node is not None]
    if not nodes:
        return f"the launcher also reports that a process failed: {files[0].path}"
    some = ", ".join(nodes[:4]) + (", ..." if len(nodes) > 4 else "")
    kind = (
        f"launchers on nodes {some} report"
        if len(nodes) > 1
        else f"launcher on node {some} reports"
    )
    return f"the {kind} that a process failed: hpcrun logs --node {nodes[0]}"


def _read_end(file: LogFile, size: int) -> bytes:
    try:
        first = max(0, file.path.stat().st_size - size)
        text = read_at(file.path, first, size)
    except OSError:
        return b""
    return text if not first else text[text.find(b"\n") + 1 :]


# ---- errors in the text of a log


def is_from_launcher(trace: bytes) -> bool:
    """Return True if a traceback is that of a launcher that reports a failed process."""
    return _LAUNCHER.search(trace) is not None


def drop_launcher_lines(lines: bytes) -> bytes:
    r"""Drop the lines in which a launcher reports a failed process.

    >>> drop_launcher_lines(b"E torch/distributed/elastic/api.py] failed (exitcode: 1)\nsrun: no\n")
    b'srun: no\n'
    """
    kept = [line for line in lines.split(b"\n") if not _LAUNCHER_LINE.search(line)]
    return b"\n".join(kept)


def find_last_traceback(text: bytes) -> bytes:
    r"""Return the last exception chain with its tracebacks and message; b"" if there is none.

    Tracebacks of launchers count only if there is no other one.

    >>> text = b"x\nTraceback (most recent call last):\n  File\nValueError: no\n\nstep 1\n"
    >>> find_last_traceback(text)
    b'Traceback (most recent call last):\n  File\nValueError: no\n'
    """
    lines = text.split(b"\n")
    found = find_tracebacks([line.decode("utf-8", "replace") for line in lines])
    launchers = b""
    for last in reversed(found):
        begin = min(each.begin for each in found if each.chain == last.chain)
        end = last.line
        if not last.is_cut:  # the message may have further lines
            end += _count_message_lines(lines[last.line :])
        trace = b"\n".join(lines[begin - 1 : end]).rstrip(b"\r\n") + b"\n"
        if not is_from_launcher(trace):
            return trace
        launchers = launchers or trace
    return launchers


def _count_message_lines(lines: Sequence[bytes]) -> int:
    """Count the further lines of an exception's message.

    The message ends at an empty line, at another traceback, or where a launcher reports the
    failure.
    """
    for number, line in enumerate(lines[:_MAX_MESSAGE_LINES]):
        text = parse_line(line.decode("utf-8", "replace")).text
        if not text.strip() or _TRACEBACK in line or _LAUNCHER_LINE.search(line):
            return number
    return min(len(lines), _MAX_MESSAGE_LINES)


def find_error_lines(text: bytes, limit: int) -> bytes:
    r"""Return the last ``limit`` lines that name an error.

    >>> find_error_lines(b"step 1\nslurmstepd: error: no\nstep 2\n", 9)
    b'slurmstepd: error: no\n'
    """
    found = [line for line in text.split(b"\n") if _ERROR_WORDS.search(line)][-limit:]
    return b"".join(line.rstrip(b"\r") + b"\n" for line in found)


def get_last_lines(text: bytes, count: int) -> bytes:
    r"""Return the last lines of a text.

    >>> get_last_lines(b"a\nb\nc\n", 2)
    b'b\nc\n'
    """
    lines = text.rstrip(b"\n").split(b"\n")[-count:]
    return b"\n".join(lines) + b"\n" if text.strip() else b""
