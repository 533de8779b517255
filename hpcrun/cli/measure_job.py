"""``hpcrun fit JOB --measure``: the question, the job, and measured memory beside the estimate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from hpcrun.actions import (
    JobMemory,
    Measurement,
    MeasuringJob,
    collect_measurement,
    estimate_json,
    find_fullest,
    prepare_measurement,
    submit_job,
)
from hpcrun.cli.output import confirm, emit_json, print_line, print_note, print_pairs, print_table
from hpcrun.cli.show_logs import watch_run
from hpcrun.cli.show_submission import describe_run
from hpcrun.context import Context
from hpcrun.fit import parse_gpu
from hpcrun.runs import RunFolder
from hpcrun.text import GIB, format_bytes, format_count, format_ranges, format_seconds

# Parts of the estimate that the ranks measure by role.
_ROLES = ("parameters", "master weights", "gradients", "optimizer")


def measure_job(
    context: Context,
    job: str,
    overrides: Sequence[str],
    *,
    steps: int,
    limit: str,
    gpu: str | None,
    asks: bool,
    as_json: bool,
) -> int:
    """Submit the measuring job after a question, wait for its end and show what it measured."""
    made = prepare_measurement(context, job, overrides, steps=steps, limit=limit)
    plan = made.made.plan
    if not as_json:
        print_pairs(describe_run(made.made))
    for option in made.replaced:
        print_note(f"note: {option} names a directory of this run instead of the job's")
    question = f"Submit this job to {plan.cluster}? It makes {steps} optimizer steps and ends."
    if asks and not confirm(question):
        print_line("not submitted")
        return 0
    submission = submit_job(context, made.made)
    print_note(f"submitted as job {submission.job_id}")
    code = watch_run(context, RunFolder(made.made.path), logs=False, quiet=as_json)
    found = collect_measurement(context, made)
    capacity = made.memory.capacity if made.memory is not None else None
    if gpu is not None:
        capacity = parse_gpu(gpu)
    if as_json:
        emit_json(_build_json(made, found, capacity))
    else:
        show_measurement(found, made.memory, capacity)
    is_complete = len(found.ranks) == found.world_size and not any(r.error for r in found.ranks)
    return 0 if is_complete and code == 0 else 1


def _build_json(made: MeasuringJob, found: Measurement, capacity: float | None) -> dict[str, Any]:
    measured = msgspec.to_builtins(found)
    for name in ("shape", "training", "spec"):
        del measured[name]
    estimate = None if made.memory is None else estimate_json(made.memory.estimate, capacity)
    return {"estimate": estimate, "measured": measured}


def show_measurement(found: Measurement, memory: JobMemory | None, capacity: float | None) -> None:
    """Print the measured memory beside the estimate, and what follows from it."""
    print_line(f"{click.style(found.run_id, bold=True)}: {_describe_ranks(found)}")
    steps = format_count(found.steps, "step")
    first = max(each.seconds[0] for each in found.ranks if each.seconds)
    pace = "unknown" if found.seconds_per_step is None else format_seconds(found.seconds_per_step)
    print_pairs(
        [
            ("seconds per step", f"{pace} ({steps}; the first after {format_seconds(first)})"),
            *_host_rows(found),
        ]
    )
    print_line()
    full = find_fullest(found.ranks)
    on_host = "" if full is not None else " (IN HOST MEMORY: NO GPU)"
    rows = _part_rows(found, memory)
    print_table([f"MEMORY OF A RANK{on_host}", "COMPUTED GiB", "MEASURED GiB"], rows)
    if full is None:
        print_note("these nodes have no GPU: peaks of GPU memory were not measured")
    elif len(found.ranks) > 1:
        totals = sorted(each.total or 0 for each in found.ranks if each.total is not None)
        print_note(
            f"rank {full.rank} is the fullest; all ranks: {totals[0] / GIB:.2f} to"
            f" {totals[-1] / GIB:.2f} GiB"
        )
    if samples := [peak for node in found.nodes for peak in node.gpu_peaks]:
        print_note(f"highest sample of a GPU by the driver: {format_bytes(max(samples))}")
    for path in found.refused:
        print_note(f"the script was not allowed to change {path}")
    for each in found.ranks:
        if each.error:
            print_note(f"rank {each.rank}: {each.error}")
    _print_consequences(found, memory, capacity)


def _describe_ranks(found: Measurement) -> str:
    text = format_count(len(found.ranks), "rank")
    if len(found.ranks) < found.world_size:
        known = {each.rank for each in found.ranks}
        missing = [rank for rank in range(found.world_size) if rank not in known]
        text += f" of {found.world_size} (without {format_ranges(missing)})"
    gpus = sorted({each.gpu for each in found.ranks if each.gpu})
    return f"{text}, {', '.join(gpus) or 'no GPU'}"


def _host_rows(found: Measurement) -> list[tuple[str, str]]:
    peaks = [each.host_peak for each in found.ranks if each.host_peak is not None]
    rows = [("host memory of a rank", format_bytes(max(peaks)))] if peaks else []
    nodes = [each.host_peak for each in found.nodes if each.host_peak is not None]
    return rows + ([("host memory of a node", format_bytes(max(nodes)))] if nodes else [])


def _part_rows(found: Measurement, memory: JobMemory | None) -> list[tuple[str, str, str]]:
    """Return the rows of parts, computed and measured, in GiB; "-" for unknown ones."""
    full = find_fullest(found.ranks)
    rank = full or max(found.ranks, key=lambda each: sum(each.parts.values()))
    measured: dict[str, float | None] = dict(rank.parts)
    computed: dict[str, float] = {}
    total = None
    if memory is not None:
        parts = memory.estimate.parts
        # Gradients may not exist at the moment of the peak; the ranks measure them in the step.
        computed = {part.name: part.most if part.name in _ROLES else part.bytes for part in parts}
        total = memory.estimate.total
    if full is not None and full.peak_allocated is not None and full.peak_reserved is not None:
        measured["fragmentation"] = full.peak_reserved - full.peak_allocated
        measured["CUDA and NCCL"] = full.outside
        computed["allocated by torch"] = 0 if memory is None else memory.estimate.allocated
        measured["allocated by torch"] = full.peak_allocated
    elif full is None:
        computed = {name: computed[name] for name in _ROLES if name in computed}
    names = [name for name in computed if computed[name] or measured.get(name)]
    names += [name for name in measured if name not in computed]

    def cell(value: float | None) -> str:
        return "-" if value is None else f"{value / GIB:.2f}"

    rows = [
        (name, cell(computed.get(name) if memory is not None else None), cell(measured.get(name)))
        for name in names
    ]
    if full is not None:
        rows.append(("total", cell(total), cell(full.total)))
    return rows


def _print_consequences(
    found: Measurement, memory: JobMemory | None, capacity: float | None
) -> None:
    """Print what the measurement calibrates, and what `hpcrun when` uses."""
    full = find_fullest(found.ranks)
    if found.calibration is not None:
        factor = found.calibration.activations
        what = "" if factor is None else f"activations x {factor:.2f}, "
        print_note(
            f"later estimates of this model are calibrated: {what}fragmentation"
            f" {found.calibration.fragmentation:.0%},"
            f" {found.calibration.outside / GIB:.1f} GiB outside of torch"
        )
    elif full is not None and memory is None:
        print_note("the job names no known model, so no estimate is calibrated")
    elif full is not None:
        print_note("not calibrated: the script does not train what the estimate assumes")
    if full is not None and full.total is not None and capacity is not None:
        print_note(f"{full.total / GIB:.1f} of the {capacity / GIB:.1f} GiB of the GPU were used")
    if found.seconds_per_step is None or found.total_steps is None:
        print_note("hpcrun when does not use it: the log shows no number of steps")
    else:
        seconds = found.seconds_per_step * found.total_steps
        print_note(
            f"hpcrun when uses it: all {found.total_steps} steps take about"
            f" {format_seconds(seconds)}"
        )
