"""The report of one or several runs as text for a terminal.

From above: the curve, the table of what matters, what else was logged, what should worry, and
quietly how the log was read. It fits its window if that has 24 rows: the plot takes the rows that
the rest leaves, and of what else was logged only as much is shown as has room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

from msgspec import structs

from hpcrun.metrics.names import EVAL_LOSS, LOSS
from hpcrun.metrics.parse import ParsedRun
from hpcrun.report.facts import (
    Fact,
    columns_of,
    further_metrics,
    learning_facts,
    main_metric,
    running_facts,
)
from hpcrun.report.nothing import nothing_found
from hpcrun.report.plot import Line, plot_lines
from hpcrun.report.rows import run_rows
from hpcrun.report.xaxis import shared_axis, x_axis
from hpcrun.views.numbers import count_of, format_value, sparkline
from hpcrun.views.table import Look, cells, dim, pad, paint, printable, shorten, widest, wrap

# The plot takes what the rest leaves of the window, within these rows.
_LEAST_PLOT = 8
_MOST_PLOT = 36
# A narrower window is written to as if it were this wide.
NARROWEST = 20
_GAP = 3
_LEAST_FACT = 26
_SPARK = 8


def report(
    runs: Sequence[ParsedRun],
    *,
    width: int,
    height: int,
    colour: bool,
    ascii_only: bool = False,
    metric: str | None = None,
    heads: Sequence[bytes] = (),
    is_window: bool = True,
    crop: bool = False,
) -> str:
    """Return the whole report: curve, table and warnings, or what was read in vain.

    ``width`` and ``height`` are the window's, in characters; ``is_window`` False means a pipe or a
    file, where warnings stay on one line each and all that was logged is told. ``ascii_only`` is
    for terminals and locales without more. ``metric`` is drawn instead of the loss. ``heads`` are
    the first bytes of the runs' files, as far as known, to say why nothing was found in them.
    ``crop`` leaves out the end of the table, and in need of the rest, so that ``height`` holds all.
    No line feed ends the text.
    """
    width = max(width, NARROWEST)
    look = Look(width, height, colour, ascii_only)
    found = [run for run in runs if run.curve.metrics]
    main = metric or main_metric(found)
    below: list[str] = []
    if main is not None:
        below += facts_table(found, main, look)
    loud, quiet = _said(runs, heads, look, is_window=is_window)
    said = [*loud, *quiet]
    if main is not None and len(found) == 1:
        room = height - len(below) - len(said) - _LEAST_PLOT - 3
        below += _also_logged(found[0], main, look, room if is_window else None)
    plot = ""
    if main is not None:
        rest = len(below) + len(said) + 1 + bool(below) + bool(said)
        most = min(_MOST_PLOT, max(_LEAST_PLOT, width * 2 // 5))
        rows = max(_LEAST_PLOT, min(most, height - rest)) if is_window else 20
        plot = metric_plot(found, main, structs.replace(look, height=min(rows, height)))
    parts = [plot.splitlines(), below, said]
    if crop and sum(map(len, parts)) + 2 > height:
        loud = loud[: max(2, height // 3)]
        room = height - len(parts[0]) - len(loud) - 1 - bool(loud)
        parts = [parts[0], below[: max(0, room)], loud]
    text = "\n\n".join("\n".join(part) for part in parts if part)
    return "\n".join(text.split("\n")[:height]) if crop else text


def metric_plot(runs: Sequence[ParsedRun], name: str, look: Look) -> str:
    """Return the curves of one metric in a plot of at most ``look.width`` x ``look.height``.

    With the loss of a single run goes its evaluation loss, where that has steps and does not make
    the axis much longer. The text is empty where there is nothing, or no room.
    """
    by = shared_axis([run.curve for run in runs], name)
    alone = len(runs) == 1
    lines = [
        Line(
            label=name if alone else run.source,
            x=x_axis(run.curve, name, by) or [],
            y=run.curve.values(name),
            raw=alone,
        )
        for run in runs
    ]
    restarts: list[float] = []
    if alone and by == "step":
        places = [restart.resumed_at for restart in runs[0].curve.restarts]
        restarts = [float(place) for place in places if place is not None]
        lines += _evaluation(runs[0], name, lines[0])
    return plot_lines(
        lines,
        title=f"{runs[0].source}: {name}" if alone else name,
        x_label="step" if by == "step" else "point",
        width=look.width,
        height=look.height,
        colour=look.colour,
        ascii_only=look.ascii_only,
        verticals=restarts,
        legend=alone,
    )


def _evaluation(run: ParsedRun, name: str, drawn: Line) -> list[Line]:
    """Return the evaluation loss to draw beside the training loss, if they go together."""
    x, y = x_axis(run.curve, EVAL_LOSS), run.curve.values(EVAL_LOSS)
    if name != LOSS or x is None or len(y) < 2:
        return []
    known, beside = ([value for value in each if math.isfinite(value)] for each in (drawn.y, y))
    if not known or not beside or max(x) > 1.1 * max(drawn.x):
        return []
    height = max(known) - min(known)
    if max(*known, *beside) - min(*known, *beside) > 1.5 * height:
        return []
    return [Line(EVAL_LOSS, x, y, smoothed=False)]


def facts_table(runs: Sequence[ParsedRun], main: str, look: Look) -> list[str]:
    """Return the rows of the table: of one run its facts, of several a row each."""
    if len(runs) > 1:
        return run_rows([run.source for run in runs], [columns_of(run, main) for run in runs], look)
    left, right = list(learning_facts(runs[0], main)), list(running_facts(runs[0]))
    names = [widest(name for name, _ in facts) for facts in (left, right)]
    # Side by side, if need be with long facts at the left broken at their commas.
    room = look.width - names[0] - 2 - _GAP - names[1] - 2 - widest(text for _, text in right)
    if right and room >= _LEAST_FACT:
        left = [row for fact in left for row in _broken(fact, room)]
        size = names[0] + 2 + widest(text for _, text in left) + _GAP
        rows = []
        for one, other in zip_longest(left, right):
            row = _fact(one, names[0], look) if one else ""
            used = names[0] + 2 + cells(one[1]) if one else 0
            rows.append(row + (" " * (size - used) + _fact(other, names[1], look) if other else ""))
        return rows
    rows = []
    name_width = min(max(names), max(8, look.width // 3))
    for fact in [*left, *right]:
        name = shorten(fact[0], name_width, ascii_only=look.ascii_only)
        first, *rest = wrap(f"{pad(name, name_width)}  {fact[1]}", look.width, name_width + 2)
        rows += [dim(first[:name_width], look) + first[name_width:], *rest]
    return rows


def _broken(fact: Fact, width: int) -> list[Fact]:
    first, *rest = wrap(fact[1], width)
    return [(fact[0], first), *(("", row) for row in rest)]


def _fact(fact: Fact, name_width: int, look: Look) -> str:
    name = printable(fact[0], ascii_only=look.ascii_only)
    return dim(pad(name, name_width), look) + "  " + fact[1]


def _also_logged(run: ParsedRun, main: str, look: Look, room: int | None) -> list[str]:
    """Return the further metrics: course and last value of each, side by side.

    ``room`` is how many rows there are; None: as many as it takes.
    """
    further = further_metrics(run, main)
    if not further or (room is not None and room < 1):
        return []
    if room is not None and room < 3:
        said = f"also logged: {count_of(len(further), 'metric')} (--metric NAME draws one)"
        return [dim(shorten(said, look.width, ascii_only=look.ascii_only), look)]
    shown = []
    name_width = min(24, max(widest(name for name, _ in further), 6))
    for name, series in further:
        name = shorten(name, name_width, ascii_only=look.ascii_only)
        course = sparkline(series.values, _SPARK)
        last = format_value(series.summary.last.value)
        if look.ascii_only:
            course, last = "", f"{format_value(series.summary.first.value)} > {last}"
        shown.append(
            f"{pad(name, name_width)}  {course:<{0 if look.ascii_only else _SPARK}}  {last}"
        )
    size = widest(shown)
    across = max(1, (look.width + _GAP) // (size + _GAP))
    rows = -(-len(shown) // across)
    title = "also logged" + (": first > last" if look.ascii_only else "")
    if room is not None and rows + 2 > room:
        rows = min(rows, max(1, room - 3))
    hidden = len(shown) - rows * across
    if hidden > 0:
        title += f", and {count_of(hidden, 'more metric')} (--metric NAME draws one)"
    lines = [
        (" " * _GAP).join(pad(cell, size) for cell in shown[row : rows * across : rows]).rstrip()
        for row in range(rows)
    ]
    return [
        "",
        *(dim(row, look) for row in wrap(title, look.width)),
        *(
            shorten(line, look.width, ascii_only=look.ascii_only)
            if cells(line) > look.width
            else line
            for line in lines
        ),
    ]


def _said(
    runs: Sequence[ParsedRun], heads: Sequence[bytes], look: Look, *, is_window: bool
) -> tuple[list[str], list[str]]:
    """Return what should worry, and quietly how the logs were read."""
    loud: list[str] = []
    quiet: list[str] = []

    def rows(label: str, text: str) -> list[str]:
        text = label + printable(text, ascii_only=look.ascii_only).strip()
        return wrap(text, look.width, 2) if is_window else [text]

    for index, run in enumerate(runs):
        of = f"{run.source}: " if len(runs) > 1 else ""
        for text in run.warnings:
            first, *rest = rows("warning: ", of + text)
            loud += [paint("warning:", "1;31", look) + first.removeprefix("warning:"), *rest]
        if run.curve.metrics:
            quiet += [row for text in run.curve.notes for row in rows("note: ", of + text)]
        else:
            head = heads[index] if index < len(heads) else None
            loud += [row for text in nothing_found(run, head) for row in rows("", text)]
    if len(runs) == 1 and runs[0].curve.metrics:
        quiet += rows("read as: ", ", ".join(runs[0].formats))
    return loud, [dim(row, look) for row in quiet]
