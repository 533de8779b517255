"""Parse runs whose logs are bytes in memory, in chunks of any size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from hpcrun.curves.lines.log_reader import LogReader
from hpcrun.curves.report.health import find_warnings
from hpcrun.curves.report.parsed import ParsedRun, parse_stored
from hpcrun.curves.store import Store
from tests.curves.rows import thin_to


def parse_chunks(
    source: str, logs: Sequence[tuple[int, Iterable[bytes]]], *, limit: int | None = None
) -> ParsedRun:
    """Parse a run from (attempt number, pieces of one log file) pairs; an attempt may have several.

    >>> run = parse_chunks("a.log", [(0, [b"step=1 loss=2.5\\n", b"step=2 loss=nan\\n"])])
    >>> run.points, run.formats, run.warnings
    (2, ('key=value',), ('loss is nan at step 2',))
    """
    store = Store()
    lines = size = 0
    for file, (attempt, chunks) in enumerate(logs):
        reader, known = LogReader(), list(chunks)
        store.begin(attempt, file)
        for pieces in reader.read(known):
            store.add(pieces)
        lines += reader.lines_read
        size += sum(map(len, known))
    run = parse_stored(source, store, build=thin_to(limit), files=len(logs), lines=lines, size=size)
    return structs.replace(run, warnings=find_warnings(run.curve))
