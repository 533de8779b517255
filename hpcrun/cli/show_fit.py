"""Output of estimates before submission: memory by part, and starts by shape."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from hpcrun.actions import fits
from hpcrun.cli.output import print_line, print_message, print_note, print_pairs, print_table
from hpcrun.fit import Candidate, MemoryEstimate, ModelShape, Part, Training, describe_training
from hpcrun.text import GIB, format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from hpcrun.actions import SizeComparison, StartComparison, TrainingTime


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
    host_capacity: float | None = None,
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
        total = f"{estimate.host_total / GIB:.2f}"
        print_table(
            ["HOST MEMORY OF A NODE", "GiB", ""],
            [*rows, ("total", total, _describe_host(estimate, host_capacity))],
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


def _describe_host(estimate: MemoryEstimate, capacity: float | None) -> str:
    """Describe host memory that exceeds that of the job; "" if it fits or may fit."""
    if capacity is None or estimate.host_total <= capacity:
        return ""
    verdict = click.style("may not fit", fg="yellow")
    if estimate.host_states > capacity:
        verdict = click.style("does not fit", fg="red")
    return f"of {capacity / GIB:.0f} GiB of host memory: {verdict}"


def _verdict(estimate: MemoryEstimate, capacity: float | None) -> str:
    if capacity is None:
        return "" if estimate.has_activations else "without activations"
    size = f"of {capacity / GIB:.1f} GiB: "
    if not estimate.is_comparable:
        return size + "unknown, see the notes"
    if estimate.total > capacity:
        return size + click.style("does not fit", fg="red")
    if not estimate.has_activations:
        return size + "model states fit; activations are unknown"
    if estimate.total > 0.9 * capacity:
        return size + click.style("may not fit", fg="yellow")
    return size + click.style("fits", fg="green")


def show_candidates(
    candidates: Sequence[Candidate],
    training: Training,
    estimate: MemoryEstimate,
    capacity: float | None,
    host_capacity: float | None = None,
) -> None:
    """Print a table of configurations, in order of their cost in speed.

    Args:
        training: The configuration asked for, which has its own row above the others.
        estimate: Its memory.
    """
    for text in estimate.notes:
        print_message("note", text, dim=True)
    asked = f"as given: {dict(describe_training(training))['sharding']}"
    if training.checkpointing:
        asked += ", checkpointing"
    rows = [
        (
            each.name,
            f"{each.estimate.total / GIB:.1f}",
            f"{each.estimate.host_total / GIB:.1f}",
            _describe_host(each.estimate, host_capacity)
            or (_verdict(each.estimate, capacity).partition(": ")[2] if capacity else ""),
        )
        for each in (Candidate(asked, training, estimate), *candidates)
    ]
    print_table(["CONFIGURATION", "GPU GiB", "HOST GiB", ""], rows)


def show_sizes(
    sizes: Sequence[SizeComparison], capacity: float | None, host_capacity: float | None
) -> None:
    """Print the memory of each configuration on several numbers of GPUs."""

    def cell(estimate: MemoryEstimate) -> str:
        size = f"{estimate.total / GIB:.1f}"
        if capacity is None or not estimate.is_comparable:
            return size
        if estimate.total > capacity:
            return f"{size} no"
        if host_capacity is not None and estimate.host_states > host_capacity:
            return f"{size} no (host)"
        return f"{size} yes" if fits(estimate, capacity, host_capacity) else f"{size} perhaps"

    rows = [
        (named[0].name, *(cell(one.estimate) for one in named))
        for named in zip(*(each.candidates for each in sizes), strict=True)
    ]
    heads = [format_count(each.training.gpus, "GPU") for each in sizes]
    print_line()
    print_table(["GPU MEMORY IN GiB ON", *heads], rows)
    if capacity is not None:
        print_line()
        best = [
            (head, each.fastest.name if each.fastest else "none")
            for head, each in zip(heads, sizes, strict=True)
        ]
        print_table(["FASTEST THAT FITS", ""], best)
    print_note("the micro batch per GPU is the same on each number of GPUs")


_BASIS_TEXTS = {
    "measured": "",
    "interpolated": "time between measured sizes",
    "extrapolated": "time scaled with the measured efficiency",
    "linear": "time if scaling is linear",
}


def show_starts(found: StartComparison, now: datetime) -> None:
    """Print when each shape of a job would start and end, and what its account has left."""
    from hpcrun.monitor import NOT_EXPECTED, format_time  # deferred: fit needs no job states

    def time_of(text: str | None) -> str:
        return format_time(datetime.fromisoformat(text), now) if text else "-"

    def hours(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    is_timed = any(one.expected_seconds is not None for one in found.shapes)
    rows = []
    for one in found.shapes:
        takes, limit = one.expected_seconds, one.limit_seconds
        remark = _BASIS_TEXTS[one.basis] if one.basis else ""
        if takes is not None and limit is not None and takes > limit:
            remark = f"ends unfinished: needs {format_duration(takes)}, more than the time limit"
        if one.refused:
            remark = f"refused: {one.refused}"
        elif one.start is None:
            remark = NOT_EXPECTED
        rows.append(
            (
                str(one.nodes),
                one.partition or "-",
                time_of(one.start),
                *((time_of(one.expected_end), hours(one.expected_gpu_hours)) if is_timed else ()),
                time_of(one.latest_end),
                hours(one.gpu_hours),
                remark,
            )
        )
    head = ["NODES", "PARTITION", "START", *(["END", "GPU-HOURS"] if is_timed else [])]
    print_table([*head, "END AT MOST", "GPU-HOURS AT MOST", ""], rows)
    if is_timed:
        for run in found.earlier_runs:
            print_note(_describe_time(run, found.earlier_runs[0]))
    for each in found.limits:
        left = max(each.allowed - each.used, 0)
        amount = f"{left:,.0f} of {each.allowed:,.0f} {each.resource}-hours"
        print_note(f"{each.owner} has {amount} left")
    print_note("not submitted; starts are Slurm's current estimates")


def _describe_time(run: TrainingTime, first: TrainingTime) -> str:
    """Describe the training time of an earlier run, and how well it scales."""
    text = f"{run.run_id}: all steps take {format_duration(run.seconds)} on "
    text += format_count(run.size, run.unit)
    if run.size > first.size and run.effective_batch == first.effective_batch is not None:
        efficiency = first.seconds * first.size / (run.seconds * run.size)
        text += f", efficiency {efficiency:.0%}"
    if run.measured_steps is not None:
        text += f" by {run.measured_steps} measured steps"
    return f"{text}; start-up is not included"
