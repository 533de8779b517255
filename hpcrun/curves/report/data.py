"""Export runs as JSON, and as CSV for pandas, spreadsheets and awk.

docs/parse.md describes both formats, and docs/json/parse.schema.json is the JSON Schema. CSV fields
are quoted according to RFC 4180 where necessary; lines end in a line feed.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from msgspec import structs, to_builtins

from hpcrun.curves.curve import Series, Summary
from hpcrun.curves.report.parsed import (
    ParsedRun,
    Sample,
    column_names,
    curve_rows,
    peak_memory,
)
from hpcrun.files import write_atomically
from hpcrun.text import json_number


def runs_json(runs: Sequence[ParsedRun], *, full: bool = False) -> dict[str, Any]:
    """Return the report as JSON-compatible objects; ``full`` adds the columns of all values."""
    return {"runs": [_run(run, full) for run in runs]}


def json_text(runs: Sequence[ParsedRun], *, full: bool = False) -> str:
    """Return the report as ASCII-only JSON text that ends in a line feed."""
    return _encode(runs_json(runs, full=full)) + "\n"


def _run(run: ParsedRun, full: bool) -> dict[str, Any]:
    curve = run.curve
    return {
        "source": run.source,
        "formats": list(run.formats),
        "points": run.points,
        "restarts": len(curve.restarts),
        "metrics": {name: _metric(curve.metrics[name], full) for name in sorted(curve.metrics)},
        "warnings": list(run.warnings),
        "notes": list(curve.notes),
        "total_steps": curve.total_steps,
        "axis": curve.axis,
        "resumed": [to_builtins(restart) for restart in curve.restarts],
        "files": run.files,
        "bytes": run.bytes,
        "gpus": run.gpus,
        "seconds": run.seconds,
        "time": {"seconds": curve.seconds, "from": curve.seconds_from},
        "peak_memory_bytes": peak_memory(run),
        "facts": dict(run.facts),
    }


def _metric(series: Series, full: bool) -> dict[str, Any]:
    found = summary_json(series.summary)
    if full:
        # Lines without a timestamp become null if other lines have one.
        times = [t if math.isfinite(t) else None for t in series.times or ()]
        found |= {
            "steps": list(series.steps),
            "values": list(map(json_number, series.values)),
            "times": None if series.times is None else times,
        }
    return found


def summary_json(summary: Summary | None) -> dict[str, Any]:
    """Return the number of points of a metric and its first, last, minimum and maximum points."""
    found: dict[str, Any] = {"count": summary.count if summary else 0}
    for name in ("first", "last", "min", "max"):
        point = getattr(summary, name, None)
        found[name] = point and {"step": point.step, "value": json_number(point.value)}
    return found


def _encode(value: Any, indent: str = "") -> str:
    """Encode a value as JSON; nested containers and dicts of many keys span several lines."""
    inner = indent + "  "
    if isinstance(value, dict) and (len(value) > 4 or any(map(_is_nested, value.values()))):
        parts = [f"{json.dumps(key)}: {_encode(each, inner)}" for key, each in value.items()]
    elif isinstance(value, list) and any(map(_is_nested, value)):
        parts = [_encode(each, inner) for each in value]
    else:
        return json.dumps(value, allow_nan=False)
    brackets = "{}" if isinstance(value, dict) else "[]"
    return f"{brackets[0]}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{brackets[1]}"


def _is_nested(value: Any) -> bool:
    return isinstance(value, (dict, list))


def write_csv(runs: Sequence[ParsedRun], path: Path, *, full: bool = False) -> None:
    """Write a CSV row per step, or per sample with ``full``.

    Raises:
        InputError: The file cannot be written.
    """
    with write_atomically(path) as file:
        for text in csv_pieces(runs, full=full):
            file.write(text.encode("utf-8", "replace"))


def csv_pieces(runs: Sequence[ParsedRun], *, full: bool = False) -> Iterator[str]:
    """Yield the CSV line by line, starting with the header.

    >>> from hpcrun.curves.report.parsed import parse_stored
    >>> from hpcrun.curves.lines.log_reader import LogReader
    >>> from hpcrun.curves.store import Store
    >>> log = b"step=1 loss=2.5 lr=0.1\\nstep=2 loss=nan lr=0.1\\nstep=2 val_loss=2\\n"
    >>> store = Store()
    >>> store.begin(0)
    >>> for pieces in LogReader().read([log]):
    ...     store.add(pieces)
    >>> print("".join(csv_pieces([parse_stored("a.log", store)])), end="")
    step,loss,eval_loss,lr
    1,2.5,,0.1
    2,nan,2.0,0.1
    """
    by_sample = full and any(run.samples for run in runs)
    columns = (
        list(Sample.__struct_fields__) if by_sample else column_names([run.curve for run in runs])
    )
    if len(runs) > 1:
        columns.insert(0, "source")
    buffer = StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n", extrasaction="ignore")
    writer.writerow({column: _cell(column) for column in columns})
    for run in runs:
        for row in map(structs.asdict, run.samples) if by_sample else curve_rows(run.curve):
            cells = {"source": run.source} | row
            texts = {key: _cell(each) for key, each in cells.items() if isinstance(each, str)}
            writer.writerow(cells | texts)
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()  # the header, if the table has no rows


def _cell(text: str) -> str:
    r"""Escape text that a spreadsheet would run as a formula, and terminal control characters.

    >>> _cell("=1+cmd|'/C calc'!A0"), _cell("loss\x1b[2J\x07"), _cell("-1.5"), _cell("@SUM(1)")
    ("'=1+cmd|'/C calc'!A0", 'loss\\x1b[2J\\x07', '-1.5', "'@SUM(1)")
    """
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", text)
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
    return text
