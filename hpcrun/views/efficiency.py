"""Views of the efficiency of runs: text, JSON, CSV, and the sections of the HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from hpcrun.curves import PageSection
from hpcrun.runs import (
    MIN_TOTAL_SHARE,
    Advice,
    LostHours,
    RunEfficiency,
    describe_sampled_gpus,
)
from hpcrun.text import (
    BOLD,
    Column,
    Display,
    Table,
    format_clock,
    format_count,
    format_pairs,
    format_size,
    paint,
    replace_unprintable,
)

# The names of the losses in texts, by the fields of LostHours.
_LOSSES = {
    "startup": "startup",
    "restart": "restarts",
    "checkpoint": "checkpoints",
    "replayed": "repeated steps",
    "stalled": "stalled",
    "idle_tail": "idle tail",
}
# GPUs that are listed one by one, suggestions that are shown, and names in one of these.
_MAX_GPUS, _MAX_ADVICE, _MAX_NAMES = 32, 20, 3

_COLUMNS = (
    Column("ID"),
    Column("JOB", least=6, most=24),
    Column("STATE"),
    Column("TIME", right=True, goes=2),
    Column("GPU-H", right=True, optional=True),
    Column("NODE-H", right=True, optional=True),
    Column("GPU", right=True, optional=True),
    Column("GPU MEM", right=True, optional=True, goes=4),
    Column("HOST MEM", right=True, optional=True, goes=3),
    Column("GOODPUT", right=True, optional=True),
    Column("MFU", right=True, optional=True, goes=7),
    Column("QUEUE", right=True, optional=True, goes=1),
    Column("KWH", right=True, optional=True, goes=5),
    Column("COST", right=True, optional=True, goes=6),
    Column("LOST TO", optional=True, below=True),
)


class Total(Struct, frozen=True, kw_only=True):
    """The sums over runs; None if unknown for all of them.

    Attributes:
        goodput: The fraction of the hours that trained, of the runs of which it is known.
        hours_by_state: GPU and node hours of the runs by their states.
        measured: The number of runs that ``energy_kwh`` includes.
    """

    runs: int
    gpu_hours: float | None
    node_hours: float | None
    hours_by_state: dict[str, float]
    goodput: float | None
    lost: LostHours = field(name="lost_hours")
    energy_kwh: float | None
    measured: int = field(name="energy_runs")
    cost: float | None
    co2_kg: float | None


def sum_efficiencies(runs: Sequence[RunEfficiency]) -> Total:
    """Sum the efficiency of runs."""
    by_state: Counter[str] = Counter()
    for run in runs:
        by_state[run.state] += run.hours or 0.0  # type: ignore[assignment]
    rated = [run for run in runs if run.goodput is not None]
    held = sum(run.hours or 0.0 for run in rated)
    trained = sum((run.goodput or 0.0) * (run.hours or 0.0) for run in rated)
    return Total(
        runs=len(runs),
        gpu_hours=_sum([run.hours for run in runs if run.unit == "gpu"]),
        node_hours=_sum([run.hours for run in runs if run.unit == "node"]),
        hours_by_state=dict(by_state),
        goodput=trained / held if held else None,
        lost=LostHours(
            **{name: _sum([getattr(run.lost, name) for run in runs]) for name in _LOSSES}
        ),
        energy_kwh=_sum([run.energy_kwh for run in runs]),
        measured=sum(run.energy_kwh is not None for run in runs),
        cost=_sum([run.cost for run in runs]),
        co2_kg=_sum([run.co2_kg for run in runs]),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


# ---- text


def format_efficiencies(
    runs: Sequence[RunEfficiency],
    advice: Sequence[Advice],
    notes: Sequence[str],
    currency: str,
    display: Display,
) -> list[str]:
    """Lay out one run in detail, or several in a table with their total; then the advice."""
    if len(runs) == 1:
        (run,) = runs
        name = paint(replace_unprintable(run.name or run.word), BOLD, display)
        pairs = format_pairs(_list_facts(run, currency), display)
        lines = [f"{name}  {run.word} {run.state}", *pairs, *_list_gpus(run, display)]
    else:
        cells = [_list_cells(run, currency) for run in runs]
        cells.append(_list_total(sum_efficiencies(runs), currency))
        lines = Table(_COLUMNS, cells, display).lines()
    texts = [format_advice(each) for each in advice]
    more = len(texts) - _MAX_ADVICE
    shown = [*texts[:_MAX_ADVICE], *([f"and {more} more: --json lists all"] if more > 0 else [])]
    if shown or notes:
        lines += ["", *(f"- {text}" for text in shown), *(f"note: {text}" for text in notes)]
    return [replace_unprintable(line, display) if not display.colour else line for line in lines]


def format_advice(advice: Advice) -> str:
    """Format a suggestion with the runs that it is about, and its option."""
    names = ", ".join(advice.words[:_MAX_NAMES])
    if len(advice.words) > _MAX_NAMES:
        names += f" and {len(advice.words) - _MAX_NAMES} more"
    option = f": {advice.option}" if advice.option else ""
    return replace_unprintable(f"{names}: {advice.text}{option}")


def _list_facts(run: RunEfficiency, currency: str) -> list[tuple[str, str]]:
    nodes = "" if run.nodes is None else format_count(run.nodes, "node")
    gpus = "" if run.gpus is None else format_count(run.gpus, "GPU")
    shape = ", ".join(filter(None, (nodes, gpus)))
    attempts = f", {format_count(run.attempts, 'attempt')}" if run.attempts > 1 else ""
    unit = "GPU hours" if run.unit == "gpu" else "node hours"
    used, goodput = run.used, ""
    if run.goodput is not None:
        goodput = f"{100 * run.goodput:.0f} %"
    queue = "" if run.queue_seconds is None else format_clock(run.queue_seconds)
    if queue and run.waited_seconds:
        queue += f", and {format_clock(run.waited_seconds)} between attempts"
    limit = f" of at most {format_clock(run.limit_seconds)}" if run.limit_seconds else ""
    time = "" if run.elapsed_seconds is None else f"{format_clock(run.elapsed_seconds)}{limit}"
    memory = ""
    if used.memory_used is not None:
        at_least = "at least " if run.is_memory_partial else ""
        memory = f"{at_least}{format_size(used.memory_used)}"
        memory += f" of {format_size(used.memory_asked)}" if used.memory_asked else ""
    cpus = ""
    if used.cpu_share is not None:
        cpus = f"{100 * used.cpu_share:.0f} % of {format_count(used.cpus or 0, 'CPU')}"
    return [
        ("shape", shape),
        ("time", f"{time}{attempts}"),
        ("queue", queue),
        (unit, "" if run.hours is None else f"{run.hours:.2f}"),
        ("goodput", goodput),
        ("lost to", _format_losses(run)),
        ("GPU use", _format_gpu_use(run)),
        ("host", ", ".join(filter(None, (memory and f"memory {memory}", cpus)))),
        ("MFU", "" if run.mfu is None else f"{100 * run.mfu:.0f} %"),
        ("energy", _format_energy(run)),
        ("cost", "" if run.cost is None else f"{run.cost:.2f} {currency}".strip()),
        ("CO2", "" if run.co2_kg is None else f"{run.co2_kg:.2f} kg"),
    ]


def _format_losses(run: RunEfficiency) -> str:
    """Name the losses with their hours and shares, and those that are unknown.

    >>> lost = LostHours(startup=1.0, restart=0.0, replayed=0.0, stalled=0.0)
    >>> _format_losses(RunEfficiency(run_id=None, job_id="7", word="7", name="", group="7",
    ...     state="COMPLETED", final=True, hours=8.0, lost=lost))
    'startup 1.00 (12 %); unknown: checkpoints, idle tail'
    """
    parts, unknown = [], []
    for name, title in _LOSSES.items():
        hours = getattr(run.lost, name)
        if hours is None:
            unknown.append(title)
        elif hours and run.hours:
            parts.append(f"{title} {hours:.2f} ({100 * hours / run.hours:.0f} %)")
    if len(unknown) == len(_LOSSES):
        return ""
    text = ", ".join(parts) or "nothing"
    return f"{text}; unknown: {', '.join(unknown)}" if unknown else text


def _format_gpu_use(run: RunEfficiency) -> str:
    if run.gpu_use is None:
        return ""
    mean = f"mean of {format_clock(run.sampled_seconds)}"
    if run.elapsed_seconds and (run.sampled_share or 0.0) < MIN_TOTAL_SHARE:
        mean += f" of {format_clock(run.elapsed_seconds)}"
    gpus = describe_sampled_gpus(run.sampled_gpus or 0, run.training_gpus)
    text = f"{run.gpu_use:.0f} % ({', '.join(filter(None, (mean, gpus)))})"
    return f"{text}, memory up to {memory}" if (memory := _format_gpu_memory(run)) else text


def _format_gpu_memory(run: RunEfficiency) -> str:
    peaks = [gpu.memory_peak for gpu in run.gpu_samples if gpu.memory_peak is not None]
    totals = [gpu.memory_total for gpu in run.gpu_samples if gpu.memory_total is not None]
    peak = max(peaks, default=run.used.gpu_memory)
    total = max(totals, default=run.used.gpu_memory_total)
    if peak is None:
        return ""
    return format_size(peak) + (f" of {format_size(total)}" if total is not None else "")


def _format_energy(run: RunEfficiency) -> str:
    if run.energy_kwh is None:
        return ""
    source = "of the nodes, by Slurm"
    if run.energy_of == "gpus":
        share = run.sampled_share or 0.0
        source = "of the GPUs, by samples"
        source += f" of {100 * share:.0f} % of the time" if share < 0.995 else ""
    return f"{run.energy_kwh:.2f} kWh ({source})"


_GPU_HEADINGS = ("NODE", "GPU", "USE", "MEMORY", "POWER")


def _gpu_rows(run: RunEfficiency) -> list[list[str]]:
    return [
        [
            gpu.node,
            gpu.name,
            "" if gpu.utilization is None else f"{gpu.utilization:.0f} %",
            ""
            if gpu.memory_peak is None
            else format_size(gpu.memory_peak)
            + (f" of {format_size(gpu.memory_total)}" if gpu.memory_total else ""),
            "" if gpu.power_watts is None else f"{gpu.power_watts:.0f} W",
        ]
        for gpu in run.gpu_samples
    ]


def _list_gpus(run: RunEfficiency, display: Display) -> list[str]:
    rows = _gpu_rows(run)
    if not rows:
        return []
    columns = [Column(title, right=title in ("USE", "POWER")) for title in _GPU_HEADINGS]
    cells = [[replace_unprintable(text) for text in row] for row in rows[:_MAX_GPUS]]
    lines = ["", *Table(columns, cells, display).lines()]
    if len(rows) > _MAX_GPUS:
        lines.append(f"and {len(rows) - _MAX_GPUS} more GPUs: --json lists all")
    return lines


def _list_cells(run: RunEfficiency, currency: str) -> list[str]:
    used = run.used
    memory = "" if used.memory_used is None else format_size(used.memory_used)
    if memory and used.memory_asked and used.memory_used is not None:
        memory = f"{100 * used.memory_used / used.memory_asked:.0f} %"
    memory = f">= {memory}" if run.is_memory_partial else memory
    hours = "" if run.hours is None else f"{run.hours:.2f}"
    lost = [(getattr(run.lost, name) or 0.0, title) for name, title in _LOSSES.items()]
    # Less than 1 % is not worth naming in a table.
    shares = [(each / run.hours, title) for each, title in lost if run.hours]
    main = [f"{title} {100 * share:.0f} %" for share, title in shares if share >= 0.01]
    return [
        run.word,
        replace_unprintable(run.name),
        run.state,
        "" if run.elapsed_seconds is None else format_clock(run.elapsed_seconds),
        hours if run.unit == "gpu" else "",
        hours if run.unit == "node" else "",
        "" if run.gpu_use is None else f"{run.gpu_use:.0f} %",
        _format_gpu_memory(run).partition(" of ")[0],
        memory,
        "" if run.goodput is None else f"{100 * run.goodput:.0f} %",
        "" if run.mfu is None else f"{100 * run.mfu:.0f} %",
        "" if run.queue_seconds is None else format_clock(run.queue_seconds),
        "" if run.energy_kwh is None else f"{run.energy_kwh:.2f}",
        "" if run.cost is None else f"{run.cost:.2f} {currency}".strip(),
        ", ".join(main),
    ]


def _list_total(total: Total, currency: str) -> list[str]:
    hours = [
        "" if value is None else f"{value:.2f}" for value in (total.gpu_hours, total.node_hours)
    ]
    return [
        *("total", format_count(total.runs, "run"), "", "", *hours, "", "", ""),
        "" if total.goodput is None else f"{100 * total.goodput:.0f} %",
        *("", ""),
        "" if total.energy_kwh is None else f"{total.energy_kwh:.2f}",
        "" if total.cost is None else f"{total.cost:.2f} {currency}".strip(),
        "",
    ]


# ---- JSON, CSV and HTML

_FOR_ADVICE = (
    *("gpus_per_node", "spare_nodes", "is_fixed_shape", "is_exclusive", "group"),
    *("training_gpus", "judged_attempts", "judged_seconds", "has_all_records", "may_lack_memory"),
)


def efficiencies_json(
    runs: Sequence[RunEfficiency], advice: Sequence[Advice], notes: Sequence[str], currency: str
) -> dict[str, Any]:
    """Return the JSON of a report; docs/json/report.schema.json describes it."""
    return {
        "runs": [_run_json(run) for run in runs],
        "total": _round(msgspec.to_builtins(sum_efficiencies(runs))),
        "currency": currency or None,
        "advice": [msgspec.to_builtins(each) for each in advice],
        "notes": list(notes),
    }


def _run_json(run: RunEfficiency) -> Any:
    values: dict[str, Any] = msgspec.to_builtins(run)
    lost, used = values.pop("lost"), values.pop("used")
    gpus = values.pop("gpu_samples")
    unit = values.pop("unit")
    hours = values.pop("hours")
    kept = {key: value for key, value in values.items() if key not in _FOR_ADVICE}
    found = {
        **kept,
        "gpu_hours": hours if unit == "gpu" else None,
        "node_hours": hours if unit == "node" else None,
        "lost_hours": lost,
        "memory_asked_bytes": used["memory_asked_bytes"],
        "memory_used_bytes": used["memory_used_bytes"],
        "cpus": used["cpus"],
        "cpu_share": used["cpu_share"],
        "gpu_use_by_gpu": gpus,
    }
    return _round(found)


def _round(value: Any) -> Any:
    """Round the numbers in a value to millionths: hours of short runs are small."""
    if isinstance(value, dict):
        return {key: _round(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_round(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


def efficiencies_rows(runs: Sequence[RunEfficiency]) -> list[dict[str, Any]]:
    """Return a flat row per run for CSV: the keys of the JSON, with one for each kind of loss."""
    rows = []
    for run in runs:
        row = _run_json(run)
        lost = row.pop("lost_hours")
        del row["gpu_use_by_gpu"]
        rows.append(row | {f"lost_{name}_hours": value for name, value in lost.items()})
    return rows


def list_page_sections(
    runs: Sequence[RunEfficiency], advice: Sequence[Advice], notes: Sequence[str], currency: str
) -> tuple[list[tuple[str, str, str]], list[PageSection]]:
    """Return the tiles and the sections of the HTML page."""
    if len(runs) == 1:
        tiles = [(name, *_split(text)) for name, text in _list_facts(runs[0], currency) if text]
    else:
        total = sum_efficiencies(runs)
        facts = (
            ("runs", str(total.runs)),
            ("GPU hours", "" if total.gpu_hours is None else f"{total.gpu_hours:,.2f}"),
            ("node hours", "" if total.node_hours is None else f"{total.node_hours:,.2f}"),
            ("goodput", "" if total.goodput is None else f"{100 * total.goodput:.0f} %"),
            ("energy", "" if total.energy_kwh is None else f"{total.energy_kwh:.2f} kWh"),
            ("cost", "" if total.cost is None else f"{total.cost:,.2f} {currency}".strip()),
            ("CO2", "" if total.co2_kg is None else f"{total.co2_kg:.2f} kg"),
        )
        tiles = [(name, text, "") for name, text in facts if text]
    texts = [[format_advice(each)] for each in advice]
    texts += [[f"Note: {note}"] for note in notes]
    sections = [PageSection(title="Advice", rows=texts)]
    if len(runs) > 1:
        cells = [_list_cells(run, currency) for run in runs]
        used = [at for at in range(len(_COLUMNS)) if any(row[at] for row in cells)]
        sections.append(
            PageSection(
                title="Runs",
                headings=[_COLUMNS[at].title for at in used],
                rows=[[row[at] for at in used] for row in cells],
            )
        )
    many = len(runs) > 1
    sections.append(
        PageSection(
            title="GPUs",
            headings=[*(["RUN"] if many else []), *_GPU_HEADINGS],
            rows=[[*([run.word] if many else []), *row] for run in runs for row in _gpu_rows(run)],
        )
    )
    return tiles, sections


def _split(text: str) -> tuple[str, str]:
    """Split a fact into its value and its details.

    >>> _split("62 % (mean of 1:00:00)"), _split("2 nodes, 8 GPUs")
    (('62 %', '(mean of 1:00:00)'), ('2 nodes', '8 GPUs'))
    """
    for mark in (", ", " (", " of "):
        head, found, rest = text.partition(mark)
        if found and "(" not in head:
            return head, f"{mark.strip(', ')}{rest}" if mark == " (" else rest.strip()
    return text, ""
