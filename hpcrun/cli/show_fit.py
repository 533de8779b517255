"""Output of estimates before submission: memory by part, and starts by shape."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from hpcrun.cli.output import print_line, print_message, print_note, print_pairs, print_table
from hpcrun.fit import Candidate, MemoryEstimate, ModelShape, Part, Training, describe_training
from hpcrun.text import GIB, format_bytes

if TYPE_CHECKING:
    from hpcrun.actions import StartEstimate


def format_parameters(count: int) -> str:
    """Format a number of parameters.

    >>> format_parameters(7615487488), format_parameters(124439808)
    ('7.62 B', '124 M')
    """
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"


def show_fit(
    shape: ModelShape,
    training: Training,
    estimate: MemoryEstimate,
    capacity: float | None,
) -> None:
    """Print the memory of one configuration by part."""
    for text in estimate.notes:
        print_message("note", text, dim=True)
    size = format_parameters(estimate.parameters) + " parameters"
    if estimate.trainable != estimate.parameters:
        size += f", {format_parameters(estimate.trainable)} trained"
    print_line(f"{click.style(shape.name or 'model', bold=True)}: {size}")
    print_pairs(describe_training(training))
    print_line()
    rows = [
        (part.name, f"{part.bytes / GIB:.2f}", _describe_other_moment(part))
        for part in estimate.parts
        if part.most
    ]
    rows.append(("total", f"{estimate.total / GIB:.2f}", _verdict(estimate, capacity)))
    print_table(["GPU MEMORY", "GiB", ""], rows)
    if estimate.host:
        print_line()
        rows = [(part.name, f"{part.bytes / GIB:.2f}", "") for part in estimate.host]
        total = sum(part.bytes for part in estimate.host)
        print_table(
            ["HOST MEMORY OF A NODE", "GiB", ""], [*rows, ("total", f"{total / GIB:.2f}", "")]
        )
    print_line()
    print_line(
        "While loading, if each rank first loads the whole model: "
        f"{format_bytes(estimate.host_loading)} of host memory on each node"
    )


def _describe_other_moment(part: Part) -> str:
    """Describe a part that is larger when the whole is not at its peak."""
    if part.most <= part.bytes + 0.005 * GIB:
        return ""
    return f"{part.most / GIB:.2f} at another moment"


def _verdict(estimate: MemoryEstimate, capacity: float | None) -> str:
    if capacity is None:
        return "" if estimate.has_activations else "without activations"
    size = f"of {capacity / GIB:.1f} GiB: "
    if estimate.total > capacity:
        return size + click.style("does not fit", fg="red")
    if not estimate.has_activations:
        return size + "model states fit; activations are unknown"
    if estimate.total > 0.9 * capacity:
        return size + click.style("may not fit", fg="yellow")
    return size + click.style("fits", fg="green")


def show_candidates(candidates: Sequence[Candidate], capacity: float | None) -> None:
    """Print a table of configurations, in order of their cost in speed."""
    rows = [
        (
            each.name,
            f"{each.estimate.total / GIB:.1f}",
            f"{sum(part.bytes for part in each.estimate.host) / GIB:.1f}",
            _verdict(each.estimate, capacity).partition(": ")[2] if capacity else "",
        )
        for each in candidates
    ]
    print_table(["CONFIGURATION", "GPU GiB", "HOST GiB", ""], rows)


def show_starts(estimates: Sequence[StartEstimate], now: datetime) -> None:
    """Print when each shape of a job would start."""
    from hpcrun.monitor import NOT_EXPECTED, format_time  # deferred: fit needs no job states

    rows = []
    for one in estimates:
        start = datetime.fromisoformat(one.start) if one.start else None
        end = datetime.fromisoformat(one.latest_end) if one.latest_end else None
        rows.append(
            (
                str(one.nodes),
                one.partition or "-",
                format_time(start, now) if start else "-",
                format_time(end, now) if end else "-",
                f"{one.gpu_hours:.1f}" if one.gpu_hours is not None else "-",
                f"refused: {one.refused}" if one.refused else "" if start else NOT_EXPECTED,
            )
        )
    print_table(["NODES", "PARTITION", "START", "END AT MOST", "GPU-HOURS AT MOST", ""], rows)
    print_note("not submitted; starts are Slurm's current estimates")
