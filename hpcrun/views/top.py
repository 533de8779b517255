"""What hpcrun top shows: a table with a block for each job, or JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from hpcrun.runs import WORDS, GpuUse, JobStatus, NodeUse
from hpcrun.slurm import explain
from hpcrun.text import (
    GIB,
    Column,
    Look,
    Table,
    clip,
    count_of,
    dim,
    duration,
    format_duration,
    format_rate,
    format_value,
    number,
    pad,
    paint,
    printable,
    sparkline,
    widest,
)
from hpcrun.views.attempts import between_text
from hpcrun.views.status import CYAN, GREEN, RED, YELLOW, stall_text

_TO_ASCII = str.maketrans("▁▂▃▄▅▆▇█", "_.-:=+*#")
_UNITS = {
    "tokens_per_second": "tokens/s",
    "samples_per_second": "samples/s",
    "steps_per_second": "steps/s",
}
# At this width, in characters, a job's speed stands in its row.
_WIDE = 110
# A job on more nodes gets one line for all of them.
_NODE_ROWS = 4
# A GPU that works less, percent, is worth a look.
_IDLE = 20
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
_NARROW = 6  # columns where SPEED and LEFT stand below
_CURVE = 5


def top_json(
    jobs: Sequence[JobStatus], *, cluster: str, at: float, left_out: int
) -> dict[str, Any]:
    """The stable JSON of a snapshot; ``at`` in seconds since the epoch."""
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
        "why": _reason(job) or None,
        "elapsed_seconds": elapsed,
        "limit_seconds": None if job.limit is None else round(job.limit),
        "node_list": (slurm.node_list if slurm else "") or None,
        "exit_code": job.end.exit_code if job.end is not None else None,
        "step": progress.step,
        "total_steps": progress.total_steps,
        "metric": progress.metric,
        "value": None if progress.value is None else number(progress.value),
        "recent": [{"step": step, "value": number(value)} for step, value in points],
        "rate": progress.rate,
        "rate_unit": progress.unit,
        "seconds_left": None if left is None else round(left),
        "nodes": [to_builtins(use) for use in job.uses],
        "no_use": job.why_no_use or None,
        "stall": to_builtins(job.stall),
        "attempt": job.last.index if job.last is not None else None,
    }


def top_blocks(jobs: Sequence[JobStatus], look: Look) -> list[list[str]]:
    """Lay out the head of the table, then the rows of each job; all fit into the width."""
    if not jobs:
        return []
    columns = _COLUMNS if look.width >= _WIDE else _COLUMNS[:_NARROW]
    texts = [_texts(job, look) for job in jobs]
    table = Table(columns, [own[: len(columns)] for own in texts], look)
    blocks = [table.head()]
    for job, own in zip(jobs, texts, strict=True):
        if reason := _reason(job):
            text = f"{table.row(own)[0].rstrip()}: {printable(reason)}"
            block = [paint(clip(text, look.width, look), YELLOW, look)]
        else:
            if job.progress.value is None or math.isfinite(job.progress.value):
                curve = sparkline(job.progress.recent, table.widths[_CURVE])
                curve = curve.translate(_TO_ASCII) if look.ascii_only else curve
                own[_CURVE] = paint(curve, CYAN, look)
            block = table.row(own)
            below = ", ".join(text for text in own[len(columns) :] if text)
            if below:
                block.append(dim(clip(f"  {below}", look.width, look), look))
        if text := _attempt(job):
            block.append(dim(clip(f"  {text}", look.width, look), look))
        if job.stall is not None:
            block.append(paint(clip(f"  {stall_text(job)}", look.width, look), RED, look))
        blocks.append([*block, *_use_rows(job, look)])
    return blocks


def _texts(job: JobStatus, look: Look) -> list[str]:
    """What stands in the columns, the curve aside; of a job that waits only the first ones."""
    progress = job.progress
    step = "" if progress.step is None else str(progress.step)
    if step and progress.total_steps:
        step += f"/{progress.total_steps}"
    value = "" if progress.value is None else format_value(progress.value)
    left = "" if progress.seconds_left is None else f"{format_duration(progress.seconds_left)} left"
    texts = (job.job_id or "", job.name, _time(job), step, value, "", _speed(job), left)
    own = [printable(text) for text in texts]
    if _reason(job):
        return own[:3] + [""] * 5
    if progress.value is not None and not math.isfinite(progress.value):
        own[4] = paint(own[4], RED, look)
    if job.end is not None:
        is_well = job.end.exit_code == 0 or job.is_between
        own[2] = paint(own[2], GREEN if is_well else RED, look)
    return own


def _time(job: JobStatus) -> str:
    if job.state == "PENDING":
        return "pending"
    if job.end is not None:
        return "goes on" if job.is_between else f"ended, code {job.end.exit_code}"
    text = duration(job.elapsed)
    if job.limit is not None:
        text += f"/{_short(job.limit)}"
    return text if job.state == "RUNNING" else f"{text} {job.state.lower()}"


def _short(seconds: float) -> str:
    """Write a time limit in few characters.

    >>> _short(86400), _short(7200), _short(5400), _short(3725)
    ('1d', '2h', '90min', '1:02:05')
    """
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return duration(seconds)


def _speed(job: JobStatus) -> str:
    rate, unit = job.progress.rate, job.progress.unit
    if rate is None or unit is None:
        return ""
    if unit == "steps_per_second" and rate < 1:
        return f"{format_value(1 / rate)} s/step" if rate > 0 else ""
    return f"{format_rate(rate)} {_UNITS[unit]}"


def _attempt(job: JobStatus) -> str:
    """Say which attempt it is, where it is not the first, and what ended the one before."""
    if job.is_between:
        return f"goes on {between_text(job)}"
    if job.attempts < 2:
        return ""
    before, last = job.history.attempts[-2:]
    cause = WORDS.get(before.end.why or "") if before.end is not None else None
    return f"attempt {last.index}" + (f", after {cause}" if cause else "")


def _reason(job: JobStatus) -> str:
    reason = job.job.reason if job.job else ""
    if job.state != "PENDING" or reason in ("", "None"):
        return ""
    return explain(reason, job.job_id or "", own=job.run is not None).words


def _use_rows(job: JobStatus, look: Look) -> list[str]:
    if job.why_no_use and not job.uses:
        return [dim(clip(f"  no use shown: {job.why_no_use}", look.width, look), look)]
    if len(job.uses) > _NODE_ROWS:
        return [_all_nodes(job.uses, look)]
    width = min(widest(use.node for use in job.uses), 16)
    return [_node(use, width, look) for use in job.uses]


def _node(use: NodeUse, width: int, look: Look) -> str:
    parts = [pad(clip(printable(use.node), width, look), width)]
    known = [gpu.utilization for gpu in use.gpus]
    if use.gpus:
        shares = ("?" if share is None else f"{share:.0f}" for share in known)
        parts.append(f"GPU {' '.join(shares)}%")
        parts.append(_memory(use.gpus))
    if use.cpus_busy is not None and use.cpus:
        parts.append(f"CPU {use.cpus_busy:.1f}/{use.cpus}")
    if memory := _memory([use]):
        parts.append(f"mem {memory}")
    if "node" in (use.cpu_of, use.memory_of):
        parts.append("(whole node)")
    return _use_row(parts, known, look)


def _all_nodes(uses: Sequence[NodeUse], look: Look) -> str:
    parts = [count_of(len(uses), "node")]
    gpus = [(gpu.utilization, use.node) for use in uses for gpu in use.gpus]
    known = [(share, node) for share, node in gpus if share is not None]
    if known:
        low, where = min(known)
        mean = sum(share for share, _ in known) / len(known)
        parts.append(f"GPU {mean:.0f}%, lowest {low:.0f}% on {where}")
    parts.append(_memory([gpu for use in uses for gpu in use.gpus]))
    busy = [use.cpus_busy / use.cpus for use in uses if use.cpus_busy is not None and use.cpus]
    if busy:
        parts.append(f"CPU {100 * sum(busy) / len(busy):.0f}%")
    if memory := _memory(uses):
        parts.append(f"mem up to {memory}")
    return _use_row(parts, [share for share, _ in known], look)


def _use_row(parts: Sequence[str], shares: Sequence[float | None], look: Look) -> str:
    """Lay out what is known of one node or of all; a GPU that idles is worth a look."""
    text = clip("  " + printable("  ".join(part for part in parts if part)), look.width, look)
    is_idle = any(share is not None and share < _IDLE for share in shares)
    return paint(text, YELLOW, look) if is_idle else dim(text, look)


def _memory(uses: Sequence[GpuUse | NodeUse]) -> str:
    """The memory of the GPU, or the node, that has most of its own in use."""
    known = [
        (use.memory_used / use.memory_total, use.memory_used, use.memory_total)
        for use in uses
        if use.memory_used is not None and use.memory_total
    ]
    return f"{_gib(max(known)[1])}/{_gib(max(known)[2])} GiB" if known else ""


def _gib(size: int) -> str:
    """Write bytes in GiB, in few characters.

    >>> _gib(1 << 30), _gib(81559 << 20), _gib(512 << 30)
    ('1.0', '79.6', '512')
    """
    return f"{size / GIB:.1f}" if size < 100 * GIB else f"{size / GIB:.0f}"
