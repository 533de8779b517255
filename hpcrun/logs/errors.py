"""Finds what went wrong in a log: the last traceback, and lines that name errors."""

from __future__ import annotations

import re

_TRACEBACK = b"Traceback (most recent call last)"
# What connects the tracebacks of a chain.
_CHAINED = (
    b"The above exception was the direct cause of the following exception:",
    b"During handling of the above exception, another exception occurred:",
)
# What launchers put before each line: torch's excepthook, srun --label, torchrun --tee.
_LABEL = re.compile(rb"(?:\[(?:rank|default)?\d+\]:? ?|\s{0,8}\d+: )?")
# The launcher's own traceback, torchrun's or accelerate's, says no more than that a process failed.
# And the lines around it.
_LAUNCHERS = re.compile(
    rb"ChildFailedError|SignalException|accelerate[/.]commands[/.]launch|deepspeed[/.]launcher"
)
_LAUNCHERS_LINE = re.compile(
    rb"torch[/.]distributed[/.](?:elastic|run|launcher)|deepspeed[/.]launcher|launch\.py:\d+"
    rb"|accelerate[/.]commands[/.]launch|ChildFailedError|subprocess\.CalledProcessError"
    rb"|\b(?:exitcode|error_file|traceback) *: |first observed failure|NO_OTHER_FAILURES"
    rb"|^\W*Failures:|\S+ FAILED\s*$"
)
# After the exception's own line its message may go on for a while.
_MESSAGE_LINES = 20
_ERROR = re.compile(
    rb"\berror\b|error:|\bfatal\b|\bkilled\b|\baborted\b|\bcancelled\b|out of memory|oom|exception"
    rb"|segmentation fault|bus error|no space left|disk quota|slurmstepd:|srun:|core dumped"
    rb"|received SIG|time limit|terminat(?:ed|ing)|permission denied|command not found"
    rb"|no such file|failed",
    re.IGNORECASE,
)


def is_launchers(trace: bytes) -> bool:
    """Return whether a traceback is a launcher's, of a process that failed."""
    return _LAUNCHERS.search(trace) is not None


def without_launchers(lines: bytes) -> bytes:
    r"""Leave out the lines in which a launcher reports a process that failed.

    >>> without_launchers(b"E torch/distributed/elastic/api.py] failed (exitcode: 1)\nsrun: no\n")
    b'srun: no\n'
    """
    kept = [line for line in lines.split(b"\n") if not _LAUNCHERS_LINE.search(line)]
    return b"\n".join(kept)


def last_traceback(text: bytes) -> bytes:
    r"""Return the last traceback with the exception and its causes; b"" if there is none.

    A launcher's is passed over for the one before.

    >>> last_traceback(b"x\nTraceback (most recent call last):\n  File\nValueError: no\n\nstep 1\n")
    b'Traceback (most recent call last):\n  File\nValueError: no\n'
    """
    at = text.rfind(_TRACEBACK)
    if at < 0:
        return b""
    first = at
    while (before := text.rfind(_TRACEBACK, 0, first)) >= 0:
        if not any(link in text[before:first] for link in _CHAINED):
            break
        first = before
    first = text.rfind(b"\n", 0, first) + 1
    lines = text[at:].split(b"\n")
    count, is_message = 1, 0
    for line in lines[1:]:
        bare = line[_LABEL.match(line).end() :]  # type: ignore[union-attr]
        if is_message and (not bare.strip() or is_message > _MESSAGE_LINES):
            break
        if is_message or (bare.strip() and bare[:1] not in (b" ", b"\t")):
            is_message += 1
        count += 1
    end = at + len(b"\n".join(lines[:count]))
    trace = text[first:end].rstrip(b"\r\n") + b"\n"
    return (is_launchers(trace) and last_traceback(text[:first])) or trace


def error_lines(text: bytes, limit: int) -> bytes:
    r"""Return the last lines that name an error, at most ``limit`` of them.

    >>> error_lines(b"step 1\nslurmstepd: error: no\nstep 2\n", 9)
    b'slurmstepd: error: no\n'
    """
    found = [line for line in text.split(b"\n") if _ERROR.search(line)][-limit:]
    return b"".join(line.rstrip(b"\r") + b"\n" for line in found)


def last_lines(text: bytes, count: int) -> bytes:
    r"""Return the last lines of a text.

    >>> last_lines(b"a\nb\nc\n", 2)
    b'b\nc\n'
    """
    lines = text.rstrip(b"\n").split(b"\n")[-count:]
    return b"\n".join(lines) + b"\n" if text.strip() else b""
