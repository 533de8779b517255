"""Reads the ranges of a long log side by side, in processes of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from array import array
from collections.abc import Generator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO

from msgspec import Struct

from hpcrun.metrics.reading.read import BLOCK, RANGE, Reader
from hpcrun.metrics.row import Frame, Layout, Placed

_LOOK_AHEAD = 1 << 16


class RangeRows(Struct, frozen=True):
    """What the lines say that begin in one range, block by block.

    ``end`` is where the first line of the next range begins; ``in_table``: a table is open there.
    ``lines`` is how many came before the first that measures something.
    """

    blocks: list[list[Frame | Placed]]
    end: int
    in_table: bool
    lines: int


def line_from(file: IO[bytes], offset: int) -> int:
    """Return where the first line begins at ``offset`` or behind; the end of the file, if none.

    >>> import io
    >>> [line_from(io.BytesIO(b"ab\\ncd\\n"), offset) for offset in (0, 1, 3, 4)]
    [0, 3, 3, 6]
    """
    if offset == 0:
        return 0
    place = offset - 1
    file.seek(place)
    while data := file.read(_LOOK_AHEAD):
        ends = [end for mark in (b"\n", b"\r", b"\0") if (end := data.find(mark)) >= 0]
        if ends:
            return place + min(ends) + 1
        place += len(data)
    return place


def can_fork() -> bool:
    """Tell whether this process may be copied.

    Not beside other threads, whose locks a copy would keep; nor in a worker of a Pool, which may
    have no children.
    """
    return threading.active_count() == 1 and not multiprocessing.current_process().daemon


def read_ranges(
    path: Path, reader: Reader, numbers: range, processes: int
) -> Generator[RangeRows, None, None]:
    """Yield what each range says, in order; stops early where a process cannot go on.

    Each process begins as ``reader`` is now, and so knows the shapes that it knows.
    """
    context = multiprocessing.get_context("fork")
    workers: list[tuple[BaseProcess, Connection]] = []
    try:
        for index in range(min(processes, len(numbers))):
            ours, theirs = context.Pipe(duplex=False)
            not_theirs = [ours, *(end for _, end in workers)]
            part = (path, reader, numbers[index::processes], theirs, not_theirs)
            worker: BaseProcess = context.Process(target=_work, args=part, daemon=True)
            try:
                worker.start()
            except OSError:
                return  # so few processes are allowed here that the log is read by one
            finally:
                theirs.close()
            workers.append((worker, ours))
        for turn in range(len(numbers)):
            # A worker that is no more (killed for its memory, say) leaves half a message at most.
            with contextlib.suppress(EOFError, OSError):
                packed, *rest = workers[turn % len(workers)][1].recv()
                blocks = [[_unpacked(piece) for piece in block] for block in packed]
                yield RangeRows(blocks, *rest)
                continue
            return
    finally:
        for worker, ours in workers:
            worker.kill()
            worker.join()
            ours.close()


def _work(
    path: Path,
    reader: Reader,
    numbers: range,
    answers: Connection,
    not_ours: Sequence[Connection],
) -> None:
    """Read every so-many-th range and send what it says; the pipe holds back who is ahead."""
    # The caller's handlers are not ours; a Ctrl-C is the caller's to act on.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # As long as somebody holds its other end, a pipe does not tell that the caller is gone.
    for end in not_ours:
        end.close()
    with contextlib.suppress(BrokenPipeError), path.open("rb") as file:
        for number in numbers:
            begin, end_of_range = (line_from(file, n * RANGE) for n in (number, number + 1))
            reader.move(begin)
            file.seek(begin)
            blocks = []
            before = reader.lines_read
            while block := file.read(min(end_of_range - begin, BLOCK - begin % BLOCK)):
                blocks.append([_packed(piece) for piece in reader.feed(block)])
                begin += len(block)
            answers.send((blocks, end_of_range, reader.in_table, reader.lines_read - before))
            if reader.in_table:
                break
    answers.close()


# The columns of a frame, which travel as they lie in memory; a mark travels as it is.
_Columns = tuple[
    Layout,
    "array[int]",
    "array[int] | None",
    "array[float] | None",
    "array[float] | None",
    "list[array[float]]",
    int | None,
]


def _packed(piece: Frame | Placed) -> _Columns | Placed:
    if isinstance(piece, Placed):
        return piece
    return (
        piece.layout,
        array("q", piece.offsets),
        None if piece.steps is None else array("q", piece.steps),
        None if piece.epochs is None else array("d", piece.epochs),
        None if piece.times is None else array("d", piece.times),
        [array("d", column) for column in piece.columns],
        piece.total,
    )


def _unpacked(packed: _Columns | Placed) -> Frame | Placed:
    if isinstance(packed, Placed):
        return packed
    layout, offsets, steps, epochs, times, columns, total = packed
    return Frame(
        layout,
        offsets.tolist(),
        None if steps is None else steps.tolist(),
        None if epochs is None else epochs.tolist(),
        None if times is None else times.tolist(),
        tuple(column.tolist() for column in columns),
        total,
    )
