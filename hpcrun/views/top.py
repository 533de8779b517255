"""The view of hpcrun top: a table with a block for each job, or JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from hpcrun.runs import END_NAMES, GpuUse, JobStatus, NodeUse
from hpcrun.slurm import explain_reason
from hpcrun.text import (
    GIB,
    Column,
    Display,
    Table,
    dim,
    format_clock,
    format_count,
    format_duration,
    format_rate,
    format_value,
    json_number,
    max_text_width,
    pad,
    paint,
    replace_unprintable,
    sparkline,
    truncate,
)
from hpcrun.views.attempts import describe_next_attempt
from hpcrun.views.status import CYAN, GREEN, RED, YELLOW, describe_stall

_TO_ASCII = str.maketrans("▁▂▃▄▅▆▇█", "_.-:=+*#")
_UNITS = {
    "tokens_per_second": "tokens/s",
    "samples_per_second": "samples/s",
    "steps_per_second": "steps/s",
}
# From this width in characters on, a job's speed is shown in its row.
_WIDE_DISPLAY = 110
# For a job on more nodes, one line summarizes all nodes.
_MAX_NODE_ROWS = 4
# GPUs with a lower utilization are highlighted.
_IDLE_GPU_PERCENT = 20
_COLUMNS = (
    Column("JOB"),
    Column("NAME", least=8),
    Column("TIME"),
    Column("STEP", right=True),
    Column("LOSS", right=True),
    Column("CURVE", fills=True, least=12, most=48),
    Column("SPEED"),
    Column("LEFT"),
)
_NARROW = 6  # columns that are shown if SPEED and LEFT are placed below
_CURVE = 5


def top_json(
    jobs: Sequence[JobStatus], *, cluster: str, at: float, left_out: int
) -> dict[str, Any]:
    """Return the stable JSON of a snapshot; ``at`` is in seconds since the epoch."""
    return {
        "at": round(at, 3),
        "cluster": cluster,
        "jobs": [_job_json(job) for job in jobs],
        "left_out": left_out,
    }


def _job_json(job: JobStatus) -> dict[str, Any]:
    progress, slurm = job.progress, job.job
    elapsed = None if job.elapsed is None or job.state == "PENDING" else round(job.elapsed)
    points = zip(progress.steps, progress.recent, strict=True)
    left = progress.seconds_left
    return {
        "job_id": job.job_id,
        "run_id": job.run.run_id if job.run is not None else None,
        "name": job.name,
        "state": job.state,
        "reason": slurm.reason if slurm and slurm.reason not in ("", "None") else None,
        "why": _describe_wait(job) or None,
        "elapsed_seconds": elapsed,
        "limit_seconds": None if job.limit is None else round(job.limit),
        "node_list": (slurm.node_list if slurm else "") or None,
        "exit_code": job.end.exit_code if job.end is not None else None,
        "step": progress.step,
        "total_steps": progress.total_steps,
        "metric": progress.metric,
        "value": None if progress.value is None else json_number(progress.value),
        "recent": [{"step": step, "value": json_number(value)} for step, value in points],
        "rate": progress.rate,
        "rate_unit": progress.unit,
        "seconds_left": None if left is None else round(left),
        "nodes": [to_builtins(use) for use in job.uses],
        "no_use": job.why_no_use or None,
        "stall": to_builtins(job.stall),
        "attempt": job.last.index if job.last is not None else None,
    }


def format_top(jobs: Sequence[JobStatus], display: Display) -> list[list[str]]:
    """Lay out the head of the table, then the rows of each job, within the width of the display."""
    if not jobs:
        return []
    columns = _COLUMNS if display.width >= _WIDE_DISPLAY else _COLUMNS[:_NARROW]
    texts = [_format_cells(job, display) for job in jobs]
    table = Table(columns, [own[: len(columns)] for own in texts], display)
    blocks = [table.head()]
    for job, own in zip(jobs, texts, strict=True):
        if reason := _describe_wait(job):
            text = f"{table.row(own)[0].rstrip()}: {replace_unprintable(reason)}"
            block = [paint(truncate(text, display.width, display), YELLOW, display)]
        else:
            if job.progress.value is None or math.isfinite(job.progress.value):
                curve = sparkline(job.progress.recent, table.widths[_CURVE])
                curve = curve.translate(_TO_ASCII) if display.ascii_only else curve
                own[_CURVE] = paint(curve, CYAN, display)
            block = table.row(own)
            below = ", ".join(text for text in own[len(columns) :] if text)
            if below:
                block.append(dim(truncate(f"  {below}", display.width, display), display))
        if text := _describe_attempt(job):
            block.append(dim(truncate(f"  {text}", display.width, display), display))
        if job.stall is not None:
            block.append(
                paint(truncate(f"  {describe_stall(job)}", display.width, display), RED, display)
            )
        blocks.append([*block, *_format_usage(job, display)])
    return blocks


def _format_cells(job: JobStatus, display: Display) -> list[str]:
    """Return the cells of a job except the curve; a waiting job fills only the first ones."""
    progress = job.progress
    step = "" if progress.step is None else str(progress.step)
    if step and progress.total_steps:
        step += f"/{progress.total_steps}"
    value = "" if progress.value is None else format_value(progress.value)
    left = "" if progress.seconds_left is None else f"{format_duration(progress.seconds_left)} left"
    texts = (
        job.job_id or "",
        job.name,
        _format_time(job),
        step,
        value,
        "",
        _format_speed(job),
        left,
    )
    own = [replace_unprintable(text) for text in texts]
    if _describe_wait(job):
        return own[:3] + [""] * 5
    if progress.value is not None and not math.isfinite(progress.value):
        own[4] = paint(own[4], RED, display)
    if job.end is not None:
        is_well = job.end.exit_code == 0 or job.is_between
        own[2] = paint(own[2], GREEN if is_well else RED, display)
    return own


def _format_time(job: JobStatus) -> str:
    if job.state == "PENDING":
        return "pending"
    if job.end is not None:
        return "restarts" if job.is_between else f"ended, code {job.end.exit_code}"
    text = format_clock(job.elapsed)
    if job.limit is not None:
        text += f"/{_format_limit(job.limit)}"
    return text if job.state == "RUNNING" else f"{text} {job.state.lower()}"


def _format_limit(seconds: float) -> str:
    """Format a time limit in few characters.

    >>> _format_limit(86400), _format_limit(7200), _format_limit(5400), _format_limit(3725)
    ('1d', '2h', '90min', '1:02:05')
    """
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return format_clock(seconds)


def _format_speed(job: JobStatus) -> str:
    rate, unit = job.progress.rate, job.progress.unit
    if rate is None or unit is None:
        return ""
    if unit == "steps_per_second" and rate < 1:
        return f"{format_value(1 / rate)} s/step" if rate > 0 else ""
    return f"{format_rate(rate)} {_UNITS[unit]}"


def _describe_attempt(job: JobStatus) -> str:
    """Describe the current attempt and why the previous one ended; "" for the first attempt."""
    if job.is_between:
        return f"restarts {describe_next_attempt(job)}"
    if job.attempts < 2:
        return ""
    before, last = job.history.attempts[-2:]
    cause = END_NAMES.get(before.end.why or "") if before.end is not None else None
    return f"attempt {last.index}" + (f", after {cause}" if cause else "")


def _describe_wait(job: JobStatus) -> str:
    reason = job.job.reason if job.job else ""
    if job.state != "PENDING" or reason in ("", "None"):
        return ""
    return explain_reason(reason, job.job_id or "", own=job.run is not None).words


def _format_usage(job: JobStatus, display: Display) -> list[str]:
    if job.why_no_use and not job.uses:
        return [
            dim(
                truncate(f"  no utilization shown: {job.why_no_use}", display.width, display),
                display,
            )
        ]
    if len(job.uses) > _MAX_NODE_ROWS:
        return [_summarize_nodes(job.uses, display)]
    width = min(max_text_width(use.node for use in job.uses), 16)
    return [_format_node(use, width, display) for use in job.uses]


def _format_node(use: NodeUse, width: int, display: Display) -> str:
    parts = [pad(truncate(replace_unprintable(use.node), width, display), width)]
    known = [gpu.utilization for gpu in use.gpus]
    if use.gpus:
        shares = ("?" if share is None else f"{share:.0f}" for share in known)
        parts.append(f"GPU {' '.join(shares)}%")
        parts.append(_format_peak_memory(use.gpus))
    if use.cpus_busy is not None and use.cpus:
        parts.append(f"CPU {use.cpus_busy:.1f}/{use.cpus}")
    if memory := _format_peak_memory([use]):
        parts.append(f"mem {memory}")
    if "node" in (use.cpu_of, use.memory_of):
        parts.append("(whole node)")
    return _style_usage(parts, known, display)


def _summarize_nodes(uses: Sequence[NodeUse], display: Display) -> str:
    parts = [format_count(len(uses), "node")]
    gpus = [(gpu.utilization, use.node) for use in uses for gpu in use.gpus]
    known = [(share, node) for share, node in gpus if share is not None]
    if known:
        low, where = min(known)
        mean = sum(share for share, _ in known) / len(known)
        parts.append(f"GPU {mean:.0f}%, lowest {low:.0f}% on {where}")
    parts.append(_format_peak_memory([gpu for use in uses for gpu in use.gpus]))
    busy = [use.cpus_busy / use.cpus for use in uses if use.cpus_busy is not None and use.cpus]
    if busy:
        parts.append(f"CPU {100 * sum(busy) / len(busy):.0f}%")
    if memory := _format_peak_memory(uses):
        parts.append(f"mem up to {memory}")
    return _style_usage(parts, [share for share, _ in known], display)


def _style_usage(parts: Sequence[str], shares: Sequence[float | None], display: Display) -> str:
    """Format the use of one node or of all nodes; highlight it if a GPU idles."""
    text = truncate(
        "  " + replace_unprintable("  ".join(part for part in parts if part)),
        display.width,
        display,
    )
    is_idle = any(share is not None and share < _IDLE_GPU_PERCENT for share in shares)
    return paint(text, YELLOW, display) if is_idle else dim(text, display)


def _format_peak_memory(uses: Sequence[GpuUse | NodeUse]) -> str:
    """Format the memory of the GPU or node with the highest memory utilization."""
    known = [
        (use.memory_used / use.memory_total, use.memory_used, use.memory_total)
        for use in uses
        if use.memory_used is not None and use.memory_total
    ]
    return f"{_format_gib(max(known)[1])}/{_format_gib(max(known)[2])} GiB" if known else ""


def _format_gib(size: int) -> str:
    """Format bytes as GiB in few characters.

    >>> _format_gib(1 << 30), _format_gib(81559 << 20), _format_gib(512 << 30)
    ('1.0', '79.6', '512')
    """
    return f"{size / GIB:.1f}" if size < 100 * GIB else f"{size / GIB:.0f}"
