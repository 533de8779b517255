"""Output of memory estimates: the parts of one configuration, and the table of several."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hpcrun.cli.output import print_line, print_message, print_pairs, print_table
from hpcrun.fit import Candidate, MemoryEstimate, ModelShape, Training, describe_training
from hpcrun.text import GIB, format_bytes


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
    rows = [(part.name, f"{part.bytes / GIB:.2f}", "") for part in estimate.parts if part.bytes]
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
