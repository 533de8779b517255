"""The report of one or several runs as text for a terminal.

Effects: draws with plotext, which keeps one figure for the process; prints nothing itself.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from hpcrun.metrics.curve import Point
from hpcrun.metrics.names import (
    EVAL_LOSS,
    LOSS,
    LR,
    MEMORY_BYTES,
    SAMPLES_PER_SECOND,
    STEP_SECONDS,
    TOKENS_PER_SECOND,
)
from hpcrun.metrics.parse import ParsedRun
from hpcrun.report.plot import Line, plot_lines
from hpcrun.report.text import (
    format_bytes,
    format_rate,
    format_seconds,
    format_value,
    shorten,
)

_NAME_WIDTH = 18
_LEAST_COLUMN = 16


def report(
    runs: Sequence[ParsedRun], *, width: int, height: int, colour: bool, ascii_only: bool = False
) -> str:
    """Return the whole report: curve, table and warnings, or what was read in vain.

    ``width`` and ``height`` are the window's, in characters; the plot takes at most half of it
    and 24 rows, so that the table stays in sight. ``ascii_only`` is for terminals and locales
    without more. No line feed ends the text.
    """
    found = [run for run in runs if run.samples]
    parts: list[str] = []
    if found:
        rows = min(24, max(10, height // 2))
        plot = loss_plot(found, width=width, height=rows, colour=colour, ascii_only=ascii_only)
        tables = "\n".join(
            render(table, width=width, colour=colour)
            for table in summary_tables(found, width=width, ascii_only=ascii_only)
        )
        parts += [plot, tables]
    several = len(runs) > 1
    for run in runs:
        name = shorten(run.source, 200, ascii_only=ascii_only)
        warnings = [f"warning: {name + ': ' if several else ''}{text}\n" for text in run.warnings]
        parts.append(
            "".join(warnings) if run.samples else nothing_found(run, ascii_only=ascii_only) + "\n"
        )
    return "\n".join(part for part in parts if part).rstrip("\n")


def loss_plot(
    runs: Sequence[ParsedRun], *, width: int, height: int, colour: bool, ascii_only: bool = False
) -> str:
    """Return the loss curves of the runs in one plot of at most ``width`` x ``height``.

    Where no run logs a training loss, the evaluation loss is drawn; the text is empty where
    there is neither, or no room.
    """
    name = LOSS if any(run.points for run in runs) else EVAL_LOSS
    series = [(run.source, run.curve.series(name)) for run in runs]
    by_step = all(None not in steps for _, (steps, _) in series)
    lines = []
    for label, (steps, values) in series:
        x = [float(step) for step in steps if step is not None] if by_step else []
        # A counter that starts again each epoch cannot be an axis: then the order is.
        if not by_step or any(b < a for a, b in pairwise(x)):
            by_step = False
        lines.append(Line(label, x, values))
    if not by_step:
        lines = [
            Line(each.label, [float(i + 1) for i in range(len(each.y))], each.y) for each in lines
        ]
    return plot_lines(
        lines,
        title=name,
        x_label="step" if by_step else "point",
        width=width,
        height=height,
        colour=colour,
        ascii_only=ascii_only,
    )


def summary_tables(
    runs: Sequence[ParsedRun], *, width: int, ascii_only: bool = False
) -> list[Table]:
    """Return tables of what matters, a column for each run, as many tables as the width asks."""
    fit = max(1, (width - _NAME_WIDTH) // _LEAST_COLUMN)
    return [_table(runs[i : i + fit], width, ascii_only) for i in range(0, len(runs), fit)]


def _table(runs: Sequence[ParsedRun], width: int, ascii_only: bool) -> Table:
    room = max(4, (width - _NAME_WIDTH) // len(runs) - 2)
    table = Table(box=None, show_header=True, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("", style="dim", no_wrap=True)
    for run in runs:
        table.add_column(shorten(run.source, room, ascii_only=ascii_only), overflow="fold")
    facts = [dict(_facts(run)) for run in runs]
    for name in dict.fromkeys(name for each in facts for name in each):
        table.add_row(name, *(each.get(name, "-") for each in facts))
    return table


def _facts(run: ParsedRun) -> Iterator[tuple[str, str]]:
    """Yield what matters of one run, in the order of the table; what the log lacks is left out."""
    curve = run.curve
    loss, eval_loss, lr = map(curve.summary, (LOSS, EVAL_LOSS, LR))
    if loss:
        steps = [step for step in curve.series(LOSS).steps if step is not None]
        yield (
            "steps",
            f"{steps[0]} to {steps[-1]}, {loss.count} points"
            if steps
            else (f"{loss.count} points, without step numbers"),
        )
        yield "loss first", _at(loss.first)
        yield "loss last", _at(loss.last)
        yield "loss best", _at(loss.min)
    else:
        yield "training loss", "none in the log"
    if eval_loss:
        yield "eval loss last", _at(eval_loss.last)
        yield "eval loss best", _at(eval_loss.min)
    if lr:
        yield "lr last", format_value(lr.last.value)
    for label, name in (("tokens/s", TOKENS_PER_SECOND), ("samples/s", SAMPLES_PER_SECOND)):
        middle = curve.quantile(name, 0.5)
        if middle is not None:
            yield f"{label} median", format_rate(middle)
    half, most = (curve.quantile(STEP_SECONDS, share) for share in (0.5, 0.95))
    if half is not None and most is not None:
        yield "step time p50", format_seconds(half)
        yield "step time p95", format_seconds(most)
    memory = curve.summary(MEMORY_BYTES)
    if memory and memory.max:
        yield "peak memory", format_bytes(memory.max.value)
    if curve.restarts:
        replayed = sum(restart.replayed for restart in curve.restarts)
        yield "restarts", f"{len(curve.restarts)}, {replayed} steps replayed"


def _at(point: Point | None) -> str:
    if point is None:
        return "nan"
    return format_value(point.value) + ("" if point.step is None else f" at step {point.step}")


def render(table: Table, *, width: int, colour: bool) -> str:
    """Return a table as text; lines have no blanks at their end."""
    console = Console(
        file=io.StringIO(),
        width=max(_NAME_WIDTH + _LEAST_COLUMN, width),
        color_system="standard" if colour else None,
        force_terminal=colour,
        no_color=not colour,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
        _environ={},
    )
    with console.capture() as capture:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def nothing_found(run: ParsedRun, *, ascii_only: bool = False) -> str:
    """Say what was read in vain, and which forms would have been understood."""
    files = f"{run.files} file{'' if run.files == 1 else 's'}"
    lines = f"{run.lines} line{'' if run.lines == 1 else 's'}"
    source = shorten(run.source, 200, ascii_only=ascii_only)
    return (
        f"{source}: no metrics in {files}, {lines}, {run.bytes} bytes; understood are lines "
        'such as {"step": 3, "loss": 2.1} and step=3 loss=2.1 or step: 3, loss: 2.1'
    )
