"""Read the progress of a run (last step, last loss, GPU memory) from the ends of its logs."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import structs

from hpcrun.curves import (
    FORMATS,
    LOSS,
    MEMORY_BYTES,
    NEEDLES,
    LineFormat,
    Row,
    own_format,
    read_line,
)
from hpcrun.errors import HpcrunError
from hpcrun.files import add_notice, open_plain, read_plain
from hpcrun.jobside import MAX_IDLE_ATTEMPTS
from hpcrun.ownership import foreign_owner
from hpcrun.patterns import time_limit
from hpcrun.runs import Attempt, Progress, RunFolder, attempt_indices

# Bytes at the end of a log in which the last loss is searched for, first the smaller number. The
# search is bounded because a listing must not wait for one log.
_TAIL_BYTES = (1 << 14, 1 << 18)
# A run ends after MAX_IDLE_ATTEMPTS attempts without progress, so the attempt before made progress.
_MAX_ATTEMPTS = MAX_IDLE_ATTEMPTS + 1
# CPU seconds for one log if the job defines its own patterns.
_PATTERN_LIMIT_CPU_S = 2.0
_MAX_LINE_BYTES = 10_000
# Lines that may contain the memory in use. Of each end of a log only some are read, because each
# takes a third of a millisecond.
_MEMORY_LINE = re.compile(rb"(?i)mem|vram|[0-9] ?[kmgt](?:i?b)?\b")
_MAX_MEMORY_LINES = 300
# Lines that state how long a checkpoint took to save: torchtitan's "Finished saving the checkpoint
# ... in 3.21 seconds.", "Saved checkpoint at step 100 in 3.2 s", "checkpoint written, took 850 ms",
# and the timers of Megatron, in ms for the fastest and the slowest rank.
_SAVING = re.compile(
    rb"(?i)(?:(?:sav(?:ed|ing)|wr(?:ote|itten|iting))\b.{0,60}\bcheckpoint|checkpoint\b.{0,60}\b"
    rb"(?:saved|written))\b.{0,120}?\b(?:in|took)[ :=]+([0-9]+(?:\.[0-9]+)?) ?"
    rb"(ms|seconds|secs?|s|minutes|min)\b"
)
_MEGATRON_SAVING = re.compile(rb"\bsave-checkpoint[ .]*: ?\([0-9.]+, ?([0-9]+(?:\.[0-9]+)?)\)")
# The units of these times in seconds, by their first two letters.
_SAVING_UNITS = {b"ms": 1e-3, b"s": 1.0, b"se": 1.0, b"mi": 60.0}
# A log that is larger is not searched for such lines.
_MAX_SEARCHED_BYTES = 1 << 28
_RANK_LOG = re.compile(r"rank-(\d+)\.log")


def last_point(run: RunFolder, patterns: Sequence[str] = ()) -> Progress:
    """Read the last step and loss of the newest attempt that logged one.

    The newest attempt may have had nothing left to do. Progress.log is set only if the loss is in
    the logs of the newest attempt.
    """
    candidates: list[tuple[int, Path]] = []
    for attempt in attempt_indices(run)[: -_MAX_ATTEMPTS - 1 : -1]:
        candidates += _find_progress_logs(run, attempt)
        if not candidates or candidates[-1][1].name == "node-0.log":  # no rank has a log
            candidates.append((0, run.batch_log))
            break
    with _line_formats(run, patterns) as formats:
        for rank, path in candidates:
            with contextlib.suppress(OSError), open_plain(path) as file:
                size = os.fstat(file.fileno()).st_size
                for tail in _TAIL_BYTES:
                    file.seek(max(0, size - tail))
                    found = _find_last_loss(file.read(tail), tail < size, formats, rank)
                    if found is not None:
                        of_newest = (candidates[0][1].parent, run.logs)
                        log = path if path.parent in of_newest else None
                        return Progress(step=found[0], metric=LOSS, value=found[1], log=log)
                    if tail >= size:
                        break
    return Progress()


def steps_of(
    run: RunFolder, attempt: int, patterns: Sequence[str] = ()
) -> tuple[int | None, int | None]:
    """Read the first and last step from both ends of the log of an attempt.

    Both are None if the log has no steps, or if the step counter restarts with each epoch.
    """
    with _line_formats(run, patterns) as formats:
        for rank, path in _find_progress_logs(run, attempt):
            first = last = None
            with contextlib.suppress(OSError), open_plain(path) as file:
                size = os.fstat(file.fileno()).st_size
                for part in _TAIL_BYTES:
                    if first is None:
                        file.seek(0)
                        steps = list(_find_steps(file.read(part), formats, rank))
                        first = steps[0] if steps else None
                        if _restarts(steps):
                            return None, None
                    if last is None:
                        file.seek(max(0, size - part))
                        steps = list(_find_steps(file.read(part), formats, rank))
                        last = max(steps, default=None)
                        if _restarts(steps):
                            return None, None
                    if size <= part:
                        break
            if first is not None and last is not None:
                return (first, last) if first <= last else (None, None)
    return None, None


def most_memory(run: RunFolder, patterns: Sequence[str] = ()) -> int | None:
    """Read the peak memory of a GPU in bytes from both ends of the newest log."""
    newest = max(attempt_indices(run), default=None)
    found: list[float] = []
    with _line_formats(run, patterns) as formats:
        for rank, path in () if newest is None else _find_progress_logs(run, newest):
            with contextlib.suppress(OSError), open_plain(path) as file:
                ends = [file.read(_TAIL_BYTES[1])]
                file.seek(max(len(ends[0]), os.fstat(file.fileno()).st_size - _TAIL_BYTES[1]))
                data = b"\n".join([*ends, file.read()]).replace(b"\r", b"\n")
                lines = data.split(b"\n")
                if formats[0].needle:  # the job defines no patterns
                    lines = [line for line in lines if _MEMORY_LINE.search(line)]
                for line in dict.fromkeys(
                    [*lines[:_MAX_MEMORY_LINES], *lines[-_MAX_MEMORY_LINES:]]
                ):
                    row = _read_training_row(line, formats, rank)
                    if row is not None and row.is_sure:
                        found += [value for name, value in row.values if name == MEMORY_BYTES]
            if found:
                return int(max(found))
    return None


def with_steps(
    run: RunFolder, attempts: Sequence[Attempt], patterns: Sequence[str] = ()
) -> list[Attempt]:
    """Add the first and last step of each attempt, and the checkpoint it resumed from."""
    found = []
    for attempt in attempts:
        first, last = steps_of(run, attempt.index, patterns)
        resumed = None
        with contextlib.suppress(OSError):
            data = read_plain(run.attempts / str(attempt.index) / "resume")
            resumed = data.decode(errors="replace").strip()
        more = {"first_step": first, "last_step": last, "resumed": resumed}
        found.append(structs.replace(attempt, **more))
    return found


def read_checkpoint_seconds(run: RunFolder, attempt: int) -> float | None:
    """Sum the times that the log of an attempt states for saving checkpoints; None if it has none.

    Loading a checkpoint is part of the startup.
    """
    for _, path in _find_progress_logs(run, attempt):
        with contextlib.suppress(OSError), open_plain(path) as file:
            if os.fstat(file.fileno()).st_size > _MAX_SEARCHED_BYTES:
                return None
            data = file.read(_MAX_SEARCHED_BYTES)
            found = [*_find_saving_times(data)]
            if found:
                return sum(found)
    return None


def _find_saving_times(data: bytes) -> Iterator[float]:
    r"""Yield the seconds in the lines of a log that state how long a checkpoint took to save.

    >>> log = b"Saved checkpoint at step 5 in 1.5 s\nloaded checkpoint a in 9 s\n"
    >>> log += b"Finished saving the checkpoint (or staging if async is enabled) in 3.25 seconds.\n"
    >>> [*_find_saving_times(log + b"    save-checkpoint ......: (1200.00, 1250.50)\n")]
    [1.5, 3.25, 1.2505]
    """
    at = 0
    while (found := re.compile(rb"(?i)checkpoint").search(data, at)) is not None:
        start = max(data.rfind(b"\n", 0, found.start()), data.rfind(b"\r", 0, found.start())) + 1
        end = data.find(b"\n", found.end())
        at = len(data) if end < 0 else end
        line = data[start : min(at, start + _MAX_LINE_BYTES)]
        if match := _SAVING.search(line):
            yield float(match[1]) * _SAVING_UNITS[match[2].lower()[:2]]
        elif match := _MEGATRON_SAVING.search(line):
            yield float(match[1]) / 1000


def _restarts(steps: Sequence[int]) -> bool:
    """Return True if the counter begins again, as with each epoch; a repeated step is no restart.

    >>> _restarts([0, 50, 99, 0, 50]), _restarts([10, 20, 20, 19, 30])
    (True, False)
    """
    return any(2 * after < before for before, after in pairwise(steps))


def _find_steps(data: bytes, formats: Sequence[LineFormat], rank: int) -> Iterator[int]:
    """Yield the steps in a part of a log, whose first and last lines may be truncated."""
    is_below = False
    for line in data.replace(b"\r", b"\n").split(b"\n"):
        row = _read_training_row(line, formats, rank)
        if row is None:
            continue
        # The HF Trainer prints a loss without a step, and then redraws its bar, which has the step.
        has_loss = LOSS in dict(row.values)
        if row.step is not None and (has_loss or (is_below and row.bar is not None)):
            yield row.step
        is_below = has_loss and row.step is None


@contextlib.contextmanager
def _line_formats(run: RunFolder, patterns: Sequence[str]) -> Iterator[Sequence[LineFormat]]:
    """Yield the line formats of a run, its own first; slow patterns end the block."""
    formats: Sequence[LineFormat] = FORMATS
    # A pattern may have been written for another version of hpcrun.
    with contextlib.suppress(re.error, ValueError, RecursionError, OverflowError):
        formats = [*(own_format("log_patterns", each) for each in patterns), *FORMATS]
    slow = HpcrunError(
        f"{run.path}: log_patterns took more than {_PATTERN_LIMIT_CPU_S:g} s of CPU time: ignored"
    )
    try:
        with time_limit(_PATTERN_LIMIT_CPU_S, slow) if patterns else contextlib.nullcontext():
            yield formats
    except HpcrunError as error:
        add_notice(error.message)


def _find_progress_logs(run: RunFolder, newest: int) -> Iterator[tuple[int, Path]]:
    """Yield the logs of an attempt that may show its progress, with their ranks.

    Nearly always rank 0 prints the loss, with Megatron and its relatives the last rank. If no rank
    has a log, the first node's is used.
    """
    logs = run.logs / str(newest)
    if any(folder.is_symlink() and foreign_owner(folder) for folder in (run.logs, logs)):
        return
    yield 0, logs / "rank-0.log"
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir(logs)  # noqa: PTH208 - only the names are needed
    ranks = [int(match[1]) for name in names if (match := _RANK_LOG.fullmatch(name))]
    if ranks:
        yield max(ranks), logs / f"rank-{max(ranks)}.log"
        return
    yield 0, logs / "node-0.log"


def _find_last_loss(
    data: bytes, is_cut: bool, formats: Sequence[LineFormat], rank: int = 0
) -> tuple[int | None, float] | None:
    """Return the last training loss in the tail of a log, and its step.

    >>> tail = b"oss=9\\nstep=7 loss=2.5\\rstep=8 loss=2.25\\nsaved\\nstep=9 lo"
    >>> _find_last_loss(tail, True, FORMATS)
    (8, 2.25)
    """
    lines = data.replace(b"\r", b"\n").split(b"\n")
    found: float | None = None
    after: Row | None = None
    for line in reversed(lines[1 if is_cut else 0 : -1]):
        row = _read_training_row(line, formats, rank)
        if row is None:
            continue
        if found is not None:
            # The line of the loss has no step: the bar drawn before it has.
            if row.bar is not None and row.step is not None:
                again = after is not None and (after.bar, after.total) == (row.bar, row.total)
                return after.step if again and after else row.step, found
            continue
        loss = dict(row.values).get(LOSS)
        if loss is not None and row.step is not None:
            return row.step, loss
        found = loss
        # A bar is not redrawn at every step, but it is after a line printed by tqdm.write(), as by
        # the HF Trainer, whose lines have an epoch.
        after = row if found is None else after if row.epoch is not None else None
    return None if found is None else (None, found)


def _read_training_row(line: bytes, formats: Sequence[LineFormat], rank: int) -> Row | None:
    """Read a row of the training; return None for all other lines, and for other ranks."""
    # A job's own formats, which come first, need no known word.
    is_known = not formats[0].needle or any(needle in line.lower() for needle in NEEDLES)
    if len(line) > _MAX_LINE_BYTES or not is_known:
        return None
    answer = read_line(line.decode("utf-8", "replace"), formats=formats)
    row = answer[1] if answer is not None else None
    if not isinstance(row, Row) or row.scope.split != "train":
        return None
    return row if row.rank in (None, 0, rank) else None
