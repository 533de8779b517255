"""Format the report of one or several runs for a terminal.

The report fits windows of at least 24 rows: the plot uses the rows that the other parts leave free,
and the list of further metrics is truncated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile, zip_longest

from msgspec import structs

from hpcrun.curves.names import EVAL_LOSS, LOSS
from hpcrun.curves.report.axes import By, shared_axis, x_axis
from hpcrun.curves.report.facts import (
    Fact,
    columns_of,
    further_metrics,
    has_curve,
    learning_facts,
    main_metric,
    running_facts,
)
from hpcrun.curves.report.parsed import ParsedRun
from hpcrun.curves.report.plot import Line, line_mark, line_sgr, plot_lines
from hpcrun.text import (
    DIM,
    Column,
    Display,
    Table,
    dim,
    format_count,
    format_value,
    max_text_width,
    pad,
    paint,
    replace_unprintable,
    sparkline,
    truncate,
    truncate_start,
    wrap,
)

# Limits for the height of the plot, in rows.
_LEAST_PLOT = 8
_MOST_PLOT = 36
# Narrower windows are treated as if they had this many columns.
NARROWEST = 20
_GAP = 3
_LEAST_FACT = 26
_SPARK = 8
# Number of bytes that are read to identify a file.
HEAD = 1 << 16

_UNDERSTOOD = (
    "hpcrun reads the logs of the common frameworks, and lines such as step=3 loss=2.1, "
    '"step: 3, loss: 2.1", {"step": 3, "loss": 2.1}, CSV with a header; for other formats '
    r"--pattern 'at (?P<step>\d+) cost (?P<loss>\S+)'"
)
# Magic numbers, as in file(1): bytes, offset, description, and the command that unpacks the file.
_MAGIC: tuple[tuple[bytes, int, str, str], ...] = (
    (b"\x28\xb5\x2f\xfd", 0, "compressed by zstd", "zstd -d"),
    (b"\x04\x22\x4d\x18", 0, "compressed by lz4", "lz4 -d"),
    (b"PK\x03\x04", 0, "a zip archive (PyTorch's checkpoints are, too)", "unzip"),
    (b"7z\xbc\xaf\x27\x1c", 0, "a 7z archive", "7z x"),
    (b"ustar", 257, "a tar archive", "tar xf"),
    (b"\x89HDF", 0, "an HDF5 file", ""),
    (b"\x80\x02", 0, "a pickle", ""),
    (b"\x80\x04", 0, "a pickle", ""),
    (b"SQLite format 3", 0, "an SQLite database", ""),
    (b"brain.Event:", 24, "a TensorBoard event file", ""),
    (b":W&B", 0, "a W&B run file", ""),
)
# Compression formats that are unpacked while reading: gzip, bzip2, xz.
_UNPACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ")


def format_report(
    runs: Sequence[ParsedRun],
    look: Display,
    *,
    metric: str | None = None,
    heads: Sequence[bytes] = (),
    crop: bool = False,
) -> str:
    """Return the report without a trailing line feed, or the reason why no metrics were found.

    In a pipe, each warning occupies one line and all metrics are listed.

    Args:
        runs: The runs.
        look: Properties of the output.
        metric: The metric to draw instead of the loss.
        heads: The first bytes of each run's file, if known, to explain why nothing was found.
        crop: Whether to truncate the table, and if necessary other parts, to the window's height.
    """
    look = structs.replace(look, width=max(look.width, NARROWEST))
    found = [run for run in runs if run.curve.metrics]
    main = metric or main_metric(found)
    below: list[str] = []
    if main is not None:
        below += facts_table(found, main, look)
    warnings, notes = _remarks(runs, heads, look)
    rest = len(warnings) + len(notes)
    if main is not None and len(found) == 1:
        room = look.height - len(below) - rest - _LEAST_PLOT - 3
        below += _also_logged(found[0], main, look, room if look.is_window else None)
    plot = ""
    if main is not None and has_curve(found, main):
        room = look.height - len(below) - rest - 1 - bool(below) - bool(rest)
        most = min(_MOST_PLOT, max(_LEAST_PLOT, look.width * 2 // 5))
        rows = max(_LEAST_PLOT, min(most, room)) if look.is_window else 20
        plot = metric_plot(found, main, structs.replace(look, height=min(rows, look.height)))
    parts = [plot.splitlines(), below, [*warnings, *notes]]
    if crop and sum(map(len, parts)) + 2 > look.height:
        warnings = warnings[: max(2, look.height // 3)]
        room = look.height - len(parts[0]) - len(warnings) - 1 - bool(warnings)
        parts = [parts[0], below[: max(0, room)], warnings]
    text = "\n\n".join("\n".join(part) for part in parts if part)
    return "\n".join(text.split("\n")[: look.height]) if crop else text


def metric_plot(runs: Sequence[ParsedRun], name: str, look: Display) -> str:
    """Return a plot of one metric that fits ``look``; "" if there is no data or no space.

    The loss of a single run is drawn together with its evaluation loss if that fits on the axis.
    """
    by = shared_axis([run.curve for run in runs], name)
    alone = len(runs) == 1
    lines = [
        Line(
            name if alone else run.source, x_axis(run.curve, name, by) or [], run.curve.values(name)
        )
        for run in runs
    ]
    restarts: list[float] = []
    if alone and by == "step":
        places = [restart.resumed_at for restart in runs[0].curve.restarts]
        restarts = [float(place) for place in places if place is not None]
    if alone and by in ("step", "epoch"):
        lines += _evaluation(runs[0], name, lines[0], by)
    x_label = {"step": runs[0].curve.axis if alone else "step", "epoch": "epoch"}.get(by, "point")
    return plot_lines(
        lines,
        look,
        title=f"{runs[0].source}: {name}" if alone else name,
        x_label=x_label,
        verticals=restarts,
    )


def _evaluation(run: ParsedRun, name: str, drawn: Line, by: By) -> list[Line]:
    """Return the evaluation loss as a line if its range is compatible with the training loss."""
    x, y = x_axis(run.curve, EVAL_LOSS, by), run.curve.values(EVAL_LOSS)
    if name != LOSS or x is None or len(y) < 2:
        return []
    known, beside = ([value for value in each if math.isfinite(value)] for each in (drawn.y, y))
    if not known or not beside or max(x) > 1.1 * max(drawn.x):
        return []
    height = max(known) - min(known)
    if max(*known, *beside) - min(*known, *beside) > 1.5 * height:
        return []
    return [Line(EVAL_LOSS, x, y, is_points=True)]


def facts_table(runs: Sequence[ParsedRun], main: str, look: Display) -> list[str]:
    """Return the table: one fact per row for a single run, otherwise one run per row."""
    if len(runs) > 1:
        return run_rows([run.source for run in runs], [columns_of(run, main) for run in runs], look)
    left, right = list(learning_facts(runs[0], main)), list(running_facts(runs[0]))
    names = [max_text_width(name for name, _ in facts) for facts in (left, right)]
    # Two columns of facts; long facts in the left one are wrapped at commas.
    room = (
        look.width - names[0] - 2 - _GAP - names[1] - 2 - max_text_width(text for _, text in right)
    )
    if right and room >= _LEAST_FACT:
        left = [
            row
            for name, text in left
            for row in zip_longest([name], wrap(text, room), fillvalue="")
        ]
        both = zip_longest(_dimmed(left, look), _dimmed(right, look), fillvalue=("", ""))
        cells = [[name, f"{text} ", other, value] for (name, text), (other, value) in both]
        return Table([Column()] * 4, cells, look).lines()[1:]
    rows = []
    name_width = min(max(names), max(8, look.width // 3))
    for fact in [*left, *right]:
        name = truncate_start(fact[0], name_width, look)
        first, *rest = wrap(f"{pad(name, name_width)}  {fact[1]}", look.width, name_width + 2)
        rows += [dim(first[:name_width], look) + first[name_width:], *rest]
    return rows


def _dimmed(facts: Sequence[Fact], look: Display) -> list[Fact]:
    width = max_text_width(name for name, _ in facts)
    return [(dim(pad(replace_unprintable(name, look), width), look), text) for name, text in facts]


def _also_logged(run: ParsedRun, main: str, look: Display, room: int | None) -> list[str]:
    """Return a sparkline and the last value of each further metric, in several columns.

    Args:
        run: The run.
        main: The metric that is drawn, which is excluded.
        look: Properties of the output.
        room: Number of available rows; None for unlimited.
    """
    further = further_metrics(run, main)
    if not further or (room is not None and room < 1):
        return []
    if room is not None and room < 3:
        text = f"also logged: {format_count(len(further), 'metric')} (--metric NAME draws one)"
        return [dim(truncate_start(text, look.width, look), look)]
    shown = []
    name_width = min(24, max(max_text_width(name for name, _ in further), 6))
    for name, series in further:
        name = pad(truncate_start(name, name_width, look), name_width)
        last = format_value(series.summary.last.value)
        if look.ascii_only:
            first = f"{format_value(series.summary.first.value)} > "
            shown.append(f"{name}    {first if series.summary.count > 1 else ''}{last}")
        else:
            shown.append(f"{name}  {sparkline(series.values, _SPARK):<{_SPARK}}  {last}")
    size = max_text_width(shown)
    across = max(1, (look.width + _GAP) // (size + _GAP))
    rows = -(-len(shown) // across)
    title = "also logged" + (": first > last" if look.ascii_only else "")
    if room is not None and rows + 2 > room:
        rows = min(rows, max(1, room - 3))
    hidden = len(shown) - rows * across
    if hidden > 0:
        title += f", and {format_count(hidden, 'more metric')} (--metric NAME draws one)"
    lines = [
        (" " * _GAP).join(pad(cell, size) for cell in shown[row : rows * across : rows]).rstrip()
        for row in range(rows)
    ]
    return [
        "",
        *(dim(row, look) for row in wrap(title, look.width)),
        *(truncate_start(line, look.width, look) for line in lines),
    ]


def _remarks(
    runs: Sequence[ParsedRun], heads: Sequence[bytes], look: Display
) -> tuple[list[str], list[str]]:
    warnings: list[str] = []
    notes: list[str] = []
    for index, run in enumerate(runs):
        of = f"{run.source}: " if len(runs) > 1 else ""
        warnings += remarks("failed: ", [of + run.failure] * bool(run.failure), look)
        warnings += remarks("warning: ", [of + text for text in run.warnings], look)
        if run.curve.metrics:
            notes += remarks("note: ", [of + text for text in run.curve.notes], look)
        else:
            head = heads[index] if index < len(heads) else None
            warnings += remarks("", nothing_found(run, head), look)
        notes += remarks("not used: ", [of + text for text in run.unused], look)
    if len(runs) == 1 and runs[0].curve.metrics:
        notes += remarks("read as: ", [", ".join(runs[0].formats)], look)
    return warnings, notes


def remarks(label: str, texts: Iterable[str], look: Display) -> list[str]:
    """Format remarks: warnings with a red label, notes faint; one line each in a pipe."""
    rows: list[str] = []
    for text in texts:
        line = label + replace_unprintable(text, look).strip()
        first, *rest = wrap(line, look.width, 2) if look.is_window else [line]
        if label == "warning: ":
            rows += [paint("warning:", "1;31", look) + first.removeprefix("warning:"), *rest]
        else:
            rows += [dim(row, look) if label else row for row in (first, *rest)]
    return rows


def run_rows(
    names: Sequence[str],
    facts: Sequence[Mapping[str, str]],
    look: Display,
    *,
    order: Sequence[int] | None = None,
) -> list[str]:
    """Return a row per run, split into several tables if the columns exceed the width.

    Args:
        order: The indices of the runs in the order of their rows.
    """
    headings = list(dict.fromkeys(heading for each in facts for heading in each))
    sizes = [max_text_width([name, *(each.get(name, "-") for each in facts)]) for name in headings]
    # In a very narrow window names are truncated, because a truncated number would be wrong.
    room = look.width - 4 - max(sizes, default=0)
    sources = [
        f"{run_mark(number, look)} {source}"
        for number, source in enumerate(
            distinct(names, max(4, min(max(12, look.width // 3), room)), look)
        )
    ]
    rows: list[str] = []
    begin = 0
    while begin < len(headings):
        used, end = max_text_width(sources) + 2 + sizes[begin], begin + 1
        while end < len(headings) and used + 2 + sizes[end] <= look.width:
            used, end = used + 2 + sizes[end], end + 1
        chosen, begin = headings[begin:end], end
        columns = [Column(), *(Column(heading, right=True) for heading in chosen)]
        texts = [
            [source, *(each.get(heading, "-") for heading in chosen)]
            for source, each in zip(sources, facts, strict=True)
        ]
        texts = [texts[number] for number in order] if order is not None else texts
        rows += ["", *Table(columns, texts, look, head=DIM).lines()]
    return rows[1:]


def run_mark(number: int, look: Display) -> str:
    """Return the mark of a run, which precedes its name in tables."""
    return paint(line_mark(number, look, several=True), line_sgr(number), look)


def distinct(names: Sequence[str], width: int, look: Display) -> list[str]:
    """Truncate names to a width, first removing parts that all names begin or end with.

    >>> distinct(["exp/run-a/train.log", "exp/run-b/train.log"], 12, Display(80, 24))
    ['run-a', 'run-b']
    >>> distinct(["1_megatron-deepspeed.log", "2_megatron-deepspeed.log"], 12, Display(80, 24))
    ['1', '2']
    """
    for separator in ("(/)", r"([\W_]+)"):
        if max_text_width(names) > width and len(set(names)) > 1:
            names = _without_common(names, separator)
    ends = [truncate_start(name, width, look) for name in names]
    if len(set(ends)) == len(set(names)):
        return ends
    return [truncate(name, width, look) for name in names]


def _without_common(names: Sequence[str], separator: str) -> list[str]:
    """Remove the parts that all names begin or end with; at least one part of each remains."""
    parts = [re.split(separator, name) for name in names]
    for _ in ("begin", "end"):
        # Every second part is a separator, and is removed with the part before it.
        alike = [*takewhile(lambda each: len(set(each)) == 1, zip(*parts, strict=False))]
        shared = min(len(alike), *(len(each) - 1 for each in parts)) // 2 * 2
        parts = [each[shared:][::-1] for each in parts]
    return ["".join(each) for each in parts]


def nothing_found(run: ParsedRun, head: bytes | None = None) -> list[str]:
    """Explain that no metric was found: what was read, and the reason or the supported formats.

    Args:
        run: The run without metrics.
        head: The first bytes of the file, or None if unknown.
    """
    lines = f"{format_count(run.lines, 'line')}, " if run.lines else ""
    read = f"{format_count(run.files, 'file')}, {lines}{format_count(run.bytes, 'byte')}"
    if not run.files:
        return [f"{run.source}: no log yet"]
    if run.failure:
        return [
            f"{run.source}: no metrics in {read}: it failed before its first logged step; "
            f"hpcrun why {run.source} explains the failure"
        ]
    why = reason(run, head)
    first = f"{run.source}: no metrics in {read}" + (f": {why}" if why else "")
    return [first] if why else [first, _UNDERSTOOD]


def reason(run: ParsedRun, head: bytes | None) -> str:
    """Return why a log contains no metrics, judged by its first bytes; "" if unknown.

    >>> from hpcrun.curves.report.parsed import parse_stored
    >>> from hpcrun.curves.store import Store
    >>> pointer = b"version https://git-lfs.github.com/spec/v1\\noid sha256:00\\nsize 9\\n"
    >>> reason(parse_stored("a.log", Store(), size=len(pointer)), pointer)
    'it is a git-lfs pointer, not the log; git lfs pull fetches that'
    >>> bar = "`Trainer.fit` stopped\\nEpoch 1/1 \u2501\u2501 32/32 loss: 0.5\\n".encode()
    >>> reason(parse_stored("a.log", Store(), size=len(bar)), bar)[:29]
    "Lightning's progress bar by r"
    """
    if not run.bytes:
        return "it is empty" if run.files == 1 else "they are empty"
    if not head:
        return ""
    if head.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer, not the log; git lfs pull fetches that"
    for magic, offset, what, command in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return f"it is {what}" + (f"; unpack it first ({command})" if command else "")
    if head.lstrip()[:15].lower().startswith((b"<!doctype html", b"<html")):
        return "it is a web page, perhaps a login or an error page instead of the log"
    if head.startswith(_UNPACKED):
        return ""
    odd = sum(byte < 9 or 13 < byte < 27 or 27 < byte < 32 for byte in head)
    if odd > len(head) * 0.1:
        return "it is not text"
    if "━".encode() in head and re.search(rb"Trainer\.fit|v_num|lightning", head):
        return (
            "Lightning's progress bar by rich prints only its last state where the output is not a "
            "terminal: Trainer(callbacks=[TQDMProgressBar()]) prints every step"
        )
    bars = sum(b"it/s" in line or b"s/it" in line for line in head.splitlines())
    if bars and bars > 0.5 * sum(bool(line.strip()) for line in head.splitlines()):
        return "it has progress bars, but none that shows a value (tqdm's set_postfix adds them)"
    return ""
