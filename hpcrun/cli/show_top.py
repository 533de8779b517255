"""What hpcrun top shows: a table with a block for each job, or JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import click
from msgspec import to_builtins

from hpcrun.cli.show_status import duration
from hpcrun.controller.top.look import TopJob
from hpcrun.controller.top.usage_lines import GpuUse, NodeUse
from hpcrun.slurm.reasons import explain
from hpcrun.views.numbers import (
    count_of,
    format_duration,
    format_rate,
    format_value,
    number,
    sparkline,
)
from hpcrun.views.table import Look, cells, cut, pad, printable

_TO_ASCII = str.maketrans("▁▂▃▄▅▆▇█", "_.-:=+*#")
_UNITS = {
    "tokens_per_second": "tokens/s",
    "samples_per_second": "samples/s",
    "steps_per_second": "steps/s",
}
# From so many columns on a job's speed stands in its row.
_WIDE = 110
# A job on more nodes gets one line for all of them.
_NODE_ROWS = 4
# A GPU that works less, percent, is worth a look.
_IDLE = 20
_GIB = 1 << 30
_NAMES = ("JOB", "NAME", "TIME", "STEP", "LOSS", "CURVE", "SPEED", "LEFT")


def top_json(jobs: Sequence[TopJob], *, cluster: str, at: float, left_out: int) -> dict[str, Any]:
    """The stable JSON of a snapshot; ``at`` in seconds since the epoch."""
    return {
        "at": round(at, 3),
        "cluster": cluster,
        "jobs": [_job_json(job) for job in jobs],
        "left_out": left_out,
    }


def _job_json(job: TopJob) -> dict[str, Any]:
    row, progress = job.row, job.progress
    limit = job.limit if job.limit is not None and math.isfinite(job.limit) else None
    elapsed = None
    if job.elapsed is not None and row.state != "PENDING":
        elapsed = round(job.elapsed)
    points = zip(progress.steps, progress.recent, strict=True)
    return {
        "job_id": row.job_id,
        "run_id": job.run.run_id if job.run is not None else None,
        "name": job.name,
        "state": row.state,
        "reason": row.reason if row.reason not in ("", "None") else None,
        "why": _reason(job) or None,
        "elapsed_seconds": elapsed,
        "limit_seconds": None if limit is None else round(limit),
        "node_list": row.node_list or None,
        "exit_code": job.end.exit_code if job.end is not None else None,
        "step": progress.step,
        "total_steps": progress.total_steps,
        "metric": progress.metric,
        "value": None if progress.value is None else number(progress.value),
        "recent": [{"step": step, "value": number(value)} for step, value in points],
        "rate": progress.rate,
        "rate_unit": progress.unit,
        "seconds_left": None if progress.seconds_left is None else round(progress.seconds_left),
        "nodes": [to_builtins(use) for use in job.uses],
        "no_use": job.why_no_use or None,
    }


def table(jobs: Sequence[TopJob], look: Look) -> list[list[str]]:
    """The table: its head, then the rows of each job; all fit into the width."""
    fields = [_fields(job, look) for job in jobs]
    widths = _widths(fields, look)
    head = _joined(_NAMES, widths, look)
    blocks = [[_styled(head, look, bold=True)]] if jobs else []
    for job, own in zip(jobs, fields, strict=True):
        rows = [_row(job, own, widths, look)]
        if look.width < _WIDE and any(own[6:]):
            said = "  " + ", ".join(text for text in own[6:] if text)
            rows.append(_dim(_cut(said, look.width, look), look))
        blocks.append([*rows, *_use_rows(job, look)])
    return blocks


def _fields(job: TopJob, look: Look) -> tuple[str, ...]:
    """What stands in the columns, the curve aside."""
    progress = job.progress
    step = "" if progress.step is None else str(progress.step)
    if step and progress.total_steps:
        step += f"/{progress.total_steps}"
    value = "" if progress.value is None else format_value(progress.value)
    left = "" if progress.seconds_left is None else f"{format_duration(progress.seconds_left)} left"
    texts = (job.row.job_id, job.name, _time(job), step, value, "", _speed(job), left)
    return tuple(printable(text) for text in texts)


def _time(job: TopJob) -> str:
    if job.row.state == "PENDING":
        return "pending"
    if job.end is not None:
        return f"ended, code {job.end.exit_code}"
    text = duration(job.elapsed)
    if job.limit is not None and math.isfinite(job.limit):
        text += f"/{_short(job.limit)}"
    return text if job.row.state == "RUNNING" else f"{text} {job.row.state.lower()}"


def _short(seconds: float) -> str:
    """Write a time limit in few characters.

    >>> _short(86400), _short(7200), _short(5400), _short(3725)
    ('1d', '2h', '90min', '1:02:05')
    """
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return duration(seconds)


def _speed(job: TopJob) -> str:
    rate, unit = job.progress.rate, job.progress.unit
    if rate is None or unit is None:
        return ""
    if unit == "steps_per_second" and rate < 1:
        return f"{format_value(1 / rate)} s/step" if rate > 0 else ""
    return f"{format_rate(rate)} {_UNITS[unit]}"


def _widths(fields: Sequence[Sequence[str]], look: Look) -> list[int]:
    """How wide each column is; the name gives way to the curve, and the curve takes the rest."""
    count = len(_NAMES) if look.width >= _WIDE else 6
    widths = [
        max([cells(_NAMES[at]), *(cells(own[at]) for own in fields)]) if at != 5 else 0
        for at in range(count)
    ]
    rest = look.width - sum(widths) - 2 * (count - 1)
    if rest < 12:
        widths[1] = max(8, widths[1] - (12 - rest))
        rest = look.width - sum(widths) - 2 * (count - 1)
    widths[5] = max(0, min(rest, 48))
    return widths


def _row(job: TopJob, own: Sequence[str], widths: Sequence[int], look: Look) -> str:
    reason = _reason(job)
    if reason:
        head = _joined(own[:3], widths[:3], look)
        text = f"{head.rstrip()}: {printable(reason)}"
        return _styled(_cut(text, look.width, look), look, fg="yellow")
    curve = sparkline(job.progress.recent, widths[5]) if widths[5] else ""
    if look.ascii_only:
        curve = curve.translate(_TO_ASCII)
    texts = [*own[:5], curve, *own[6:]]
    is_bad = job.progress.value is not None and not math.isfinite(job.progress.value)
    colour = {4: "red"} if is_bad else {5: "cyan"}
    if job.end is not None:
        colour[2] = "green" if job.end.exit_code == 0 else "red"
    return _joined(texts, widths, look, colour)


def _reason(job: TopJob) -> str:
    """Why a job waits, in plain words."""
    reason = job.row.reason
    if job.row.state != "PENDING" or reason in ("", "None"):
        return ""
    return explain(reason, job.row.job_id, own=job.run is not None).words


def _joined(
    texts: Sequence[str], widths: Sequence[int], look: Look, colours: dict[int, str] | None = None
) -> str:
    """Lay texts out in columns; numbers stand at the right of theirs, and all fit the width."""
    parts, room = [], look.width
    for at, (text, width) in enumerate(zip(texts, widths, strict=False)):
        if room <= 0:
            break
        text = _cut(text, min(width, room), look)
        is_last = not any(texts[at + 1 :])
        filled = " " * (width - cells(text)) + text if at in (3, 4) else pad(text, width)
        filled = text if is_last and at not in (3, 4) else filled
        filled = cut(filled, room)
        room -= cells(filled) + 2
        colour = (colours or {}).get(at)
        parts.append(_styled(filled, look, fg=colour) if colour else filled)
    return "  ".join(parts).rstrip()


def _cut(text: str, width: int, look: Look) -> str:
    """Cut at the end, where a text is too long, and show it."""
    if cells(text) <= width:
        return text
    mark = ".." if look.ascii_only else "…"
    return cut(text, max(0, width - len(mark))) + mark if width > len(mark) else cut(text, width)


def _use_rows(job: TopJob, look: Look) -> list[str]:
    if job.why_no_use and not job.uses:
        return [_dim(_cut(f"  no use shown: {job.why_no_use}", look.width, look), look)]
    if len(job.uses) > _NODE_ROWS:
        return [_all_nodes(job.uses, look)]
    width = max((cells(use.node) for use in job.uses), default=0)
    return [_node(use, min(width, 16), look) for use in job.uses]


def _node(use: NodeUse, width: int, look: Look) -> str:
    parts = [f"  {pad(_cut(printable(use.node), width, look), width)}"]
    known = [gpu.utilization for gpu in use.gpus]
    if use.gpus:
        parts.append("GPU " + " ".join(map(_percent, known)) + "%")
        parts.append(_gpu_memory(use.gpus))
    if use.cpus_busy is not None and use.cpus:
        parts.append(f"CPU {use.cpus_busy:.1f}/{use.cpus}")
    if use.memory_used is not None and use.memory_total:
        parts.append(f"mem {_gib(use.memory_used)}/{_gib(use.memory_total)} GiB")
    if "node" in (use.cpu_of, use.memory_of):
        parts.append("(whole node)")
    text = _cut("  ".join(part for part in parts if part), look.width, look)
    is_idle = any(share is not None and share < _IDLE for share in known)
    return _styled(text, look, fg="yellow") if is_idle else _dim(text, look)


def _all_nodes(uses: Sequence[NodeUse], look: Look) -> str:
    """One line for many nodes: the mean, and where it is lowest or highest."""
    parts = [f"  {count_of(len(uses), 'node')}"]
    shares = [
        (gpu.utilization, use.node)
        for use in uses
        for gpu in use.gpus
        if gpu.utilization is not None
    ]
    is_idle = False
    if shares:
        low, where = min(shares)
        is_idle = low < _IDLE
        mean = sum(share for share, _ in shares) / len(shares)
        parts.append(f"GPU {mean:.0f}%, lowest {low:.0f}% on {where}")
    parts.append(_gpu_memory([gpu for use in uses for gpu in use.gpus]))
    busy = [use.cpus_busy / use.cpus for use in uses if use.cpus_busy is not None and use.cpus]
    if busy:
        parts.append(f"CPU {100 * sum(busy) / len(busy):.0f}%")
    fullest = max(
        (use for use in uses if use.memory_used is not None and use.memory_total),
        key=lambda use: (use.memory_used or 0) / (use.memory_total or 1),
        default=None,
    )
    if fullest is not None:
        used, total = fullest.memory_used or 0, fullest.memory_total or 0
        parts.append(f"mem up to {_gib(used)}/{_gib(total)} GiB")
    text = printable("  ".join(part for part in parts if part))
    text = _cut(text, look.width, look)
    return _styled(text, look, fg="yellow") if is_idle else _dim(text, look)


def _gpu_memory(gpus: Sequence[GpuUse]) -> str:
    """The memory of the GPU that has most of its own in use."""
    known = [
        (gpu.memory_used / gpu.memory_total, gpu.memory_used, gpu.memory_total)
        for gpu in gpus
        if gpu.memory_used is not None and gpu.memory_total
    ]
    return f"{_gib(max(known)[1])}/{_gib(max(known)[2])} GiB" if known else ""


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.0f}"


def _gib(size: int) -> str:
    """Write bytes in GiB, in few characters.

    >>> _gib(1 << 30), _gib(81559 << 20), _gib(512 << 30)
    ('1.0', '79.6', '512')
    """
    return f"{size / _GIB:.1f}" if size < 100 * _GIB else f"{size / _GIB:.0f}"


def _styled(text: str, look: Look, **style: Any) -> str:
    return click.style(text, **style) if look.colour else text


def _dim(text: str, look: Look) -> str:
    return _styled(text, look, dim=True)
