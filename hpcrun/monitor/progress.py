"""How far a run has come: the last step and loss that its log shows."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import structs

from hpcrun.curves import FORMATS, LOSS, MEMORY_BYTES, NEEDLES, Format, Row, own_format, read_line
from hpcrun.errors import HpcrunError
from hpcrun.files import add_notice, open_plain, read_plain
from hpcrun.ownership import foreign_owner
from hpcrun.patterns import time_limit
from hpcrun.runs import MAX_IDLE_ATTEMPTS, Attempt, Progress, RunFolder, attempt_indices

# The last loss stands near the end of a log; where a program says much else, the look goes further
# back, but not without end: a listing must not wait for one log.
_TAILS = (1 << 14, 1 << 18)
# So many attempts are looked at: a run ends after IDLE that gained nothing.
_ATTEMPTS = MAX_IDLE_ATTEMPTS + 1
# Seconds of the CPU for such a look, where a job's own patterns are tried.
_PATTERN_SECONDS = 2.0
_LONGEST = 10_000  # bytes of a line that is read
# A line that may say how much memory is in use, and how many are read of each end of a log: a third
# of a millisecond each.
_OF_MEMORY = re.compile(rb"(?i)mem|vram|[0-9] ?[kmgt](?:i?b)?\b")
_LOOKS = 300
_RANK_LOG = re.compile(r"rank-(\d+)\.log")


def last_point(run: RunFolder, patterns: Sequence[str] = ()) -> Progress:
    """Read the last step and loss off the log of the newest attempt that has some: the last one
    may have had nothing left to do. Nothing where there is none. Its log is that of the newest."""
    candidates: list[tuple[int, Path]] = []
    for attempt in attempt_indices(run)[: -_ATTEMPTS - 1 : -1]:
        candidates += _candidates(run, attempt)
        if not candidates or candidates[-1][1].name == "node-0.log":  # no rank has a log
            candidates.append((0, run.batch_log))
            break
    with _formats(run, patterns) as formats:
        for rank, path in candidates:
            with contextlib.suppress(OSError), open_plain(path) as file:
                size = os.fstat(file.fileno()).st_size
                for tail in _TAILS:
                    file.seek(max(0, size - tail))
                    found = _last_in(file.read(tail), tail < size, formats, rank)
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
    """Read the first and the last step off both ends of an attempt's log.

    None where there is none, or where the counter starts again with each epoch.
    """
    with _formats(run, patterns) as formats:
        for rank, path in _candidates(run, attempt):
            first = last = None
            with contextlib.suppress(OSError), open_plain(path) as file:
                size = os.fstat(file.fileno()).st_size
                for part in _TAILS:
                    if first is None:
                        file.seek(0)
                        first = next(_steps_in(file.read(part), formats, rank), None)
                    if last is None:
                        file.seek(max(0, size - part))
                        last = max(_steps_in(file.read(part), formats, rank), default=None)
                    if size <= part:
                        break
            if first is not None and last is not None:
                return (first, last) if first <= last else (None, None)
    return None, None


def most_memory(run: RunFolder, patterns: Sequence[str] = ()) -> int | None:
    """Read off both ends of the newest log how many bytes of a GPU were in use at most."""
    newest = max(attempt_indices(run), default=None)
    found: list[float] = []
    with _formats(run, patterns) as formats:
        for rank, path in () if newest is None else _candidates(run, newest):
            with contextlib.suppress(OSError), open_plain(path) as file:
                ends = [file.read(_TAILS[1])]
                file.seek(max(len(ends[0]), os.fstat(file.fileno()).st_size - _TAILS[1]))
                data = b"\n".join([*ends, file.read()]).replace(b"\r", b"\n")
                lines = data.split(b"\n")
                if formats[0].needle:  # no form of the job's own
                    lines = [line for line in lines if _OF_MEMORY.search(line)]
                for line in dict.fromkeys([*lines[:_LOOKS], *lines[-_LOOKS:]]):
                    row = _row(line, formats, rank)
                    if row is not None and row.is_sure:
                        found += [value for name, value in row.values if name == MEMORY_BYTES]
            if found:
                return int(max(found))
    return None


def with_steps(
    run: RunFolder, attempts: Sequence[Attempt], patterns: Sequence[str] = ()
) -> list[Attempt]:
    """Add to the attempts of a run which steps each has done, and from which checkpoint on."""
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


def _steps_in(data: bytes, formats: Sequence[Format], rank: int) -> Iterator[int]:
    """The steps that a part of a log shows; its first and its last line may be cut off."""
    is_below = False
    for line in data.replace(b"\r", b"\n").split(b"\n"):
        row = _row(line, formats, rank)
        if row is None:
            continue
        # The Trainer prints its losses without steps, and then its bar again, which has them.
        has_loss = LOSS in dict(row.values)
        if row.step is not None and (has_loss or (is_below and row.bar is not None)):
            yield row.step
        is_below = has_loss and row.step is None


@contextlib.contextmanager
def _formats(run: RunFolder, patterns: Sequence[str]) -> Iterator[Sequence[Format]]:
    """Give the formats of a run's lines, the job's own first; slow ones end the block."""
    formats: Sequence[Format] = FORMATS
    # Written for another version of hpcrun, perhaps.
    with contextlib.suppress(re.error, ValueError, RecursionError, OverflowError):
        formats = [*(own_format("log_patterns", each) for each in patterns), *FORMATS]
    slow = HpcrunError(f"{run.path}: its log_patterns take for ever: they are passed over")
    try:
        with time_limit(_PATTERN_SECONDS, slow) if patterns else contextlib.nullcontext():
            yield formats
    except HpcrunError as error:
        add_notice(error.message)


def _candidates(run: RunFolder, newest: int) -> Iterator[tuple[int, Path]]:
    """An attempt's logs that may show how far it has come, with the rank whose they are.

    Rank 0's nearly always; the last rank's in Megatron's family; where no rank has one, the first
    node's.
    """
    logs = run.logs / str(newest)
    if any(folder.is_symlink() and foreign_owner(folder) for folder in (run.logs, logs)):
        return
    yield 0, logs / "rank-0.log"
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir(logs)  # noqa: PTH208 - names alone are wanted
    ranks = [int(match[1]) for name in names if (match := _RANK_LOG.fullmatch(name))]
    if ranks:
        yield max(ranks), logs / f"rank-{max(ranks)}.log"
        return
    yield 0, logs / "node-0.log"


def _last_in(
    data: bytes, is_cut: bool, formats: Sequence[Format], rank: int = 0
) -> tuple[int | None, float] | None:
    """Find the last training loss in the end of a log, whose first line may be cut off.

    >>> _last_in(b"oss=9\\nstep=7 loss=2.5\\rstep=8 loss=2.25\\nsaved\\nstep=9 lo", True, FORMATS)
    (8, 2.25)
    """
    lines = data.replace(b"\r", b"\n").split(b"\n")
    found: float | None = None
    after: Row | None = None
    for line in reversed(lines[1 if is_cut else 0 : -1]):
        row = _row(line, formats, rank)
        if row is None:
            continue
        if found is not None:
            # The loss stood on a line without a step: the bar before it has counted on.
            if row.bar is not None and row.step is not None:
                again = after is not None and (after.bar, after.total) == (row.bar, row.total)
                return after.step if again and after else row.step, found
            continue
        loss = dict(row.values).get(LOSS)
        if loss is not None and row.step is not None:
            return row.step, loss
        found = loss
        # A bar is not drawn at every step, but again after a line that tqdm.write() has printed, as
        # the HF Trainer does: these lines say their epoch.
        after = row if found is None else after if row.epoch is not None else None
    return None if found is None else (None, found)


def _row(line: bytes, formats: Sequence[Format], rank: int) -> Row | None:
    """What a line says of training; None for the many that measure nothing, and for other ranks."""
    # A job's own forms, which come first, need no known word.
    is_known = not formats[0].needle or any(needle in line.lower() for needle in NEEDLES)
    if len(line) > _LONGEST or not is_known:
        return None
    answer = read_line(line.decode("utf-8", "replace"), formats=formats)
    row = answer[1] if answer is not None else None
    if not isinstance(row, Row) or row.split != "train":
        return None
    return row if row.rank in (None, 0, rank) else None
