"""What the listing of runs looks like, on the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from hpcrun.cli.output import columns, has_unicode, is_terminal, say
from hpcrun.cli.show_status import duration, row_json, state_colour
from hpcrun.controller.state.listing import Listing
from hpcrun.controller.state.rows import Row
from hpcrun.controller.state.why import WhyWaiting
from hpcrun.controller.state.words import reason_text
from hpcrun.plan.types import label
from hpcrun.views.table import cells as cells_of
from hpcrun.views.table import cut

# Columns by how soon they go where the line is short; the others stay.
_HEADER = ("ID", "JOB", "STATE", "TIME", "LIMIT", "NODES", "STEP", "LOSS", "GPU-H")
_GOES_FIRST = ("LIMIT", "GPU-H", "NODES", "STEP", "TIME", "LOSS")
_LONGEST_NAME, _SHORTEST_NAME = 24, 6
_RIGHT = {"TIME", "LIMIT", "STEP", "LOSS", "GPU-H"}


def listing_json(listing: Listing, why: Mapping[str, WhyWaiting]) -> dict[str, Any]:
    """The stable JSON of a listing."""
    return {
        "runs": [row_json(row, why.get(row.id)) for row in listing.rows],
        "older": listing.older,
        "out_of_reach": listing.out_of_reach or None,
    }


def show_list(listing: Listing, why: Mapping[str, WhyWaiting]) -> list[str]:
    """Lay out a line a run; what it waits for or how it failed stands behind or below it."""
    rows = listing.rows
    width = columns() if is_terminal() else None
    cells = [dict(zip(_HEADER, _cells(row), strict=True)) for row in rows]
    header = [name for name in _HEADER if any(cell[name] for cell in cells)]
    remarks = [_remark(row, why.get(row.id)) for row in rows]
    for name in (*_GOES_FIRST, None):
        widths = {key: max(len(key), *(cells_of(cell[key]) for cell in cells)) for key in header}
        used = sum(widths.values()) + 2 * (len(header) - 1)
        if width is None or used <= width or name is None:
            break
        header = [key for key in header if key != name]
    if width is not None and used > width:  # a narrow terminal: names are what can be cut
        longest = max(widths["JOB"] - (used - width), _SHORTEST_NAME)
        for cell in cells:
            cell["JOB"] = _short(cell["JOB"], longest)
        used -= widths["JOB"] - longest
        widths["JOB"] = longest
    # Behind the columns if all fit there, else each below its row.
    room = None if width is None else width - used - 2
    is_behind = room is None or all(cells_of(text) <= room for text in remarks)
    lines = [click.style("  ".join(_cell(key, key, widths) for key in header).rstrip(), bold=True)]
    for row, cell, remark in zip(rows, cells, remarks, strict=True):
        parts = [_styled(key, _cell(key, cell[key], widths), row) for key in header]
        line = "  ".join(parts)
        if remark and is_behind:
            line += "  " + remark
        lines.append(line.rstrip())
        if remark and not is_behind:
            lines += _below(remark, width or 80)
    if listing.older:
        many = f"{listing.older:,} older run{'s' if listing.older > 1 else ''}"
        lines.append(click.style(f"{many}: hpcrun status --all, or -n N", dim=True))
    return lines


def print_list(listing: Listing, why: Mapping[str, WhyWaiting]) -> None:
    """Print the listing."""
    for line in show_list(listing, why):
        say(line)


def _cells(row: Row) -> Sequence[str]:
    nodes = ""
    if row.nodes:
        nodes = f"{row.nodes}x{row.gpus_per_node}" if row.gpus_per_node else str(row.nodes)
    state = row.verdict.state
    if row.states is not None and len(row.states) != 1:
        state = f"{sum(row.states.values())} RUNS"
    return (
        row.id,
        _short(row.name),
        state,
        duration(row.elapsed) if row.elapsed is not None else "",
        duration(row.limit) if row.limit is not None and not row.verdict.final else "",
        nodes,
        "" if row.step is None else str(row.step),
        "" if row.loss is None else f"{row.loss:.4g}",
        "" if row.gpu_hours is None else _hours(row.gpu_hours),
    )


def _hours(hours: float) -> str:
    return f"{hours:.2f}" if hours < 10 else f"{hours:,.0f}"


def _short(name: str, longest: int = _LONGEST_NAME) -> str:
    """Cut a long name, and keep a terminal's control characters away from it."""
    plain = "".join(char if char.isprintable() else "?" for char in name)
    if cells_of(plain) <= longest:
        return plain
    dots = "…" if has_unicode() else "..."
    return cut(plain, longest - len(dots)) + dots


def _cell(key: str, text: str, widths: Mapping[str, int]) -> str:
    room = " " * (widths[key] - cells_of(text))
    return room + text if key in _RIGHT else text + room


def _styled(key: str, text: str, row: Row) -> str:
    if key != "STATE":
        return text
    return click.style(text, fg=state_colour(row.verdict.state))


def _remark(row: Row, why: WhyWaiting | None) -> str:
    parts = [label(row.values)] if row.values else []
    if row.states is not None:
        counts = sorted(row.states.items(), key=lambda item: -item[1])
        told = ", ".join(f"{number} {state}" for state, number in counts)
        if len(counts) == 1:  # the state itself stands in its column
            told = f"{counts[0][1]} run{'s' if counts[0][1] > 1 else ''}"
        parts += [told] if told else []
    if why is not None:
        parts.append(why.text())
    elif row.verdict.reason or row.remark:
        parts.append(row.remark or reason_text(row.verdict))
    parts += row.verdict.notes
    return "".join(char if char.isprintable() else "?" for char in "; ".join(parts))


def _below(remark: str, width: int) -> list[str]:
    import textwrap  # here: most listings need none of its patterns

    wrapped = textwrap.wrap(
        remark, max(width - 4, 20), initial_indent="    ", subsequent_indent="    "
    )
    return [click.style(line, dim=True) for line in wrapped]
