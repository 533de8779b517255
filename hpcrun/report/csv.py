"""The values of runs as CSV, for pandas, spreadsheets and awk.

A row per step, a column per metric:

    step,epoch,loss,eval_loss,lr
    100,0.5,2.31,,0.0003
    200,1.0,nan,2.25,0.0002

``source`` comes first where there are several runs; ``time`` follows the step where the log has
time stamps (seconds since 1970, the log's clock read as UTC). A metric of one of these names has
"metric." before it. An empty field: not logged at this step; "nan", "inf" and "-inf" were logged
(pandas reads all four). Numbers keep every digit. A very long log's metrics are thinned, lows and
highs kept; all samples come with ``full``.

Metrics are joined by step. Where a log has no steps, or its counter starts again, only metrics
logged at the same places share rows; the others have rows of their own, since nothing tells which
belong together.

With ``full`` a row per sample, in the log's order, if samples were kept:

    attempt,offset,epoch,step,split,name,value

Fields are quoted as RFC 4180 says, where they must be; lines end in a line feed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path

from hpcrun.metrics.columns import Row, column_names, curve_rows
from hpcrun.metrics.parse import ParsedRun
from hpcrun.report.writing import whole_file

_SAMPLE = ("attempt", "offset", "epoch", "step", "split", "name", "value")


def write_csv(runs: Sequence[ParsedRun], path: Path, *, full: bool = False) -> None:
    """Write a row per step, or with ``full`` a row per sample. Raises InputError."""
    with whole_file(path) as file:
        for text in csv_pieces(runs, full=full):
            file.write(text.encode("utf-8", "replace"))


def csv_pieces(runs: Sequence[ParsedRun], *, full: bool = False) -> Iterator[str]:
    """Yield the CSV line by line, the header first.

    >>> from hpcrun.metrics.parse import parse_chunks
    >>> log = b"step=1 loss=2.5 lr=0.1\\nstep=2 loss=nan lr=0.1\\nstep=2 val_loss=2\\n"
    >>> print("".join(csv_pieces([parse_chunks("a.log", [(0, [log])])])), end="")
    step,loss,eval_loss,lr
    1,2.5,,0.1
    2,nan,2.0,0.1
    """
    by_sample = full and any(run.samples for run in runs)
    columns = list(_SAMPLE) if by_sample else column_names([run.curve for run in runs])
    if len(runs) > 1:
        columns.insert(0, "source")
    buffer = StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for run in runs:
        for row in _samples(run) if by_sample else curve_rows(run.curve):
            writer.writerow({"source": run.source} | row)
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()  # the header, if there are no rows


def _samples(run: ParsedRun) -> Iterator[Row]:
    for sample in run.samples:
        yield {name: getattr(sample, name) for name in _SAMPLE}
