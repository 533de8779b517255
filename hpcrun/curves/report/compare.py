"""Format the comparison of several runs for a terminal and as JSON (docs/compare.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import structs, to_builtins

from hpcrun.curves.report.axes import time_unit
from hpcrun.curves.report.comparison import Comparison, Equal, Measure, axis_of, rank_runs
from hpcrun.curves.report.data import summary_json
from hpcrun.curves.report.facts import gpu_hours, seconds_of
from hpcrun.curves.report.parsed import ParsedRun, peak_memory
from hpcrun.curves.report.plot import Line, plot_lines
from hpcrun.curves.report.scaling import Scaling
from hpcrun.curves.report.terminal import distinct, remarks, run_mark, run_rows
from hpcrun.curves.report.windows import Difference
from hpcrun.text import (
    DIM,
    Column,
    Display,
    Table,
    dim,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_seconds,
    format_value,
    replace_unprintable,
    text_width,
    truncate_start,
    wrap,
)

_LEAST_PLOT = 10
_MOST_PLOT = 30
_NAME = 24  # maximum width of a run name within a sentence
_KEY = 30
_LEAST_ROOM = 10
_UNKNOWN = "-"
_DIFFERING = "settings that differ"
ZERO_STAGE = "deepspeed.zero_stage"  # a key of ParsedRun.facts


def format_comparison(
    runs: Sequence[ParsedRun],
    compared: Comparison,
    look: Display,
    *,
    by: Measure = "step",
    per_gpu: bool = False,
) -> str:
    """Return the report without a trailing line feed, limited to the width of ``look``."""
    names = brief([replace_unprintable(run.source, look) for run in runs])
    short = distinct(names, _NAME, look)
    ranking = rank_runs(runs, compared)
    differences = dict(ranking)
    learning = [
        dict(_learning_columns(run, compared, n, differences[n])) for n, run in enumerate(runs)
    ]
    below: list[str] = []
    for part in (
        run_rows(names, learning, look, order=[number for number, _ in ranking]),
        _wrapped((_format_lead(compared, equal, short, look) for equal in compared.equal), look),
        run_rows(names, _speeds(runs, compared), look),
        _wrapped(_scaling(compared.scaling, short), look),
        _wrapped(compared.slow, look),
        _format_settings(compared, names, look),
        _remarks(runs, compared, look),
    ):
        below += ["", *part] if part and below else part
    rest = max(0, look.height - len(below) - 2)
    rows = max(_LEAST_PLOT, min(_MOST_PLOT, rest)) if look.is_window else 20
    plot = _draw_plot(runs, compared, by, rows, look, per_gpu=per_gpu)
    return "\n".join([plot, *below] if plot else below)


def brief(names: Sequence[str]) -> list[str]:
    """Remove the submission time from run ids if the remainders are distinct.

    >>> brief(["20261120-081455-gpt-7k3q", "a.log"])
    ['gpt-7k3q', 'a.log']
    """
    short = [re.sub(r"^\d{8}-\d{6}-(?=.)", "", name) for name in names]
    return short if len(set(short)) == len(set(names)) else list(names)


def _draw_plot(
    runs: Sequence[ParsedRun],
    compared: Comparison,
    by: Measure,
    rows: int,
    look: Display,
    *,
    per_gpu: bool,
) -> str:
    """Draw the metric of all runs over a common axis: ``by``, steps, or the order of points."""
    name = compared.metric
    if name is None:
        return ""
    # A run without the metric keeps its mark, because the tables have a row for it.
    values = [run.curve.values(name) for run in runs]
    for measure in (by, "step", "order"):
        axes = [
            axis_of(run, name, measure, speed.batch, per_gpu=per_gpu) or []
            for run, speed in zip(runs, compared.scaling.speeds, strict=True)
        ]
        if [*map(len, axes)] == [*map(len, values)]:
            break
    label = "point" if measure == "order" else str(measure)
    if measure == "time":
        size, label = time_unit(max(map(max, filter(None, axes)), default=0.0))
        axes = [[place / size for place in x] for x in axes]
    lines = [Line(run.source, x, y) for run, x, y in zip(runs, axes, values, strict=True)]
    look = structs.replace(look, height=rows)
    return plot_lines(lines, look, title=name, x_label=label)


def _learning_columns(
    run: ParsedRun, compared: Comparison, number: int, difference: float | None
) -> Iterator[tuple[str, str]]:
    """Yield facts about the learning of a run as (heading, text).

    Args:
        difference: The difference of its best value from the best value of all runs.
    """
    summary = run.curve.summary(compared.metric) if compared.metric else None
    if summary is not None:
        step = summary.last.step
        yield "steps", f"{step:,}" if step is not None else format_count(summary.count, "point")
        yield "last", format_value(summary.last.value)
        best = summary.min if compared.falls else summary.max
        heading = "lowest" if compared.falls else "highest"
        yield heading, format_value(best.value) if best else "nan"
        sign = "+" if compared.falls else "-"
        shown = "" if difference is None else f"{sign if difference else ''}{difference:.3g}"
        yield "difference", shown or _UNKNOWN
    for equal in compared.equal:
        level = equal.levels[number]
        yield (
            _format_position(equal.by, equal.window.end),
            "-" if level is None else format_value(level),
        )
    if compared.target is not None and summary is not None:
        for measure, form in (("step", "{:,.0f}".format), ("time", format_time)):
            places: list[float | None] = [
                getattr(each, measure, None) for each in compared.target.reached
            ]
            if any(place is not None for place in places):
                missing = _UNKNOWN if compared.target.reached[number] else "never"
                place = places[number]
                text = missing if place is None else form(place)
                yield f"to {compared.target.level:.6g}: {measure}", text


def _format_position(by: Measure, end: float) -> str:
    """Describe the position at which runs are compared.

    >>> [_format_position(*each) for each in (("step", 1e3), ("tokens", 4.1e6), ("time", 7800.0))]
    ['at step 1,000', 'at 4.1M tokens', 'after 2 h 10 min']
    """
    if by == "step":
        return f"at step {end:,.0f}"
    return f"after {format_time(end)}" if by == "time" else f"at {format_amount(end)} {by}"


def format_time(seconds: float) -> str:
    """Format the time since the start of a run.

    >>> format_time(0.0), format_time(12.34), format_time(240.0)
    ('0.0 s', '12.3 s', '4 min 0 s')
    """
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


def format_amount(value: float) -> str:
    """Format a large number with a unit prefix.

    >>> [format_amount(v) for v in (950.0, 32000.0, 4123456.0, 2.5e9, 1.2e13)]
    ['950', '32,000', '4.12M', '2.5B', '12T']
    """
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:,.0f}"


def _wrapped(notes: Iterable[str], look: Display) -> list[str]:
    return [row for note in notes for row in wrap(replace_unprintable(note, look), look.width, 2)]


def _format_lead(compared: Comparison, equal: Equal, names: Sequence[str], look: Display) -> str:
    """Describe which run leads at a common position, by how much, and with what uncertainty."""
    best, others = ("lowest", "higher") if compared.falls else ("highest", "lower")

    def listed(is_meant: Callable[[Difference], bool]) -> str:
        gaps = zip(names, equal.behind, strict=True)
        return ", ".join(
            f"{name} by {_format_difference(g, look)}" for name, g in gaps if g and is_meant(g)
        )

    clear = listed(lambda gap: gap.is_clear)
    noise = listed(lambda gap: not gap.is_clear and gap.error is not None)
    unknown = listed(lambda gap: gap.error is None)
    first = f"{names[equal.best]} {format_value(equal.levels[equal.best] or 0.0)}"
    parts = [f"{first} is {best}; {others}: {clear}"] if clear else [first]
    if noise and clear:
        parts.append(f"within the noise: {noise}")
    elif noise:
        parts = [f"no difference beyond noise: {first}; {others}: {noise}"]
    if unknown:
        parts.append(f"{others}, with too few points to estimate the noise: {unknown}")
    return f"{compared.metric} {_format_position(equal.by, equal.window.end)}: " + "; ".join(parts)


def _format_difference(gap: Difference, look: Display) -> str:
    """Format a difference and its error, both to the second significant digit of the error."""
    size = abs(gap.value)
    if not gap.error:
        return format_value(size)
    about = "+-" if look.ascii_only else "±"
    decimals = 1 - math.floor(math.log10(gap.error))
    if not 0 <= decimals <= 6:
        return f"{format_value(size)} {about} {format_value(gap.error)}"
    return f"{size:.{decimals}f} {about} {gap.error:.{decimals}f}"


def _estimated_memory(run: ParsedRun) -> float | None:
    """Return the estimated memory of a GPU, if there is a measured one to compare it with."""
    return run.usage.estimated_memory if peak_memory(run) is not None else None


def _speeds(runs: Sequence[ParsedRun], compared: Comparison) -> list[dict[str, str]]:
    scaling = compared.scaling
    columns: list[tuple[str, Sequence[float | None], Callable[[float], str]]] = [
        (scaling.counted, [speed.gpus for speed in scaling.speeds], "{:.0f}".format),
        ("batch", [speed.batch for speed in scaling.speeds], "{:,.6g}".format),
        ("peak memory", list(map(peak_memory, runs)), format_bytes),
        ("estimated", list(map(_estimated_memory, runs)), format_bytes),
        ("step time", [speed.step_seconds for speed in scaling.speeds], format_seconds),
        ("steps/s", [speed.steps_per_second for speed in scaling.speeds], format_rate),
        ("samples/s", [speed.samples_per_second for speed in scaling.speeds], format_rate),
        (scaling.unit or "", [speed.work for speed in scaling.speeds], format_rate),
        ("speed-up", [speed.speedup for speed in scaling.speeds], _times),
        ("efficiency", [speed.efficiency for speed in scaling.speeds], "{:.0%}".format),
        ("time", list(map(seconds_of, runs)), format_duration),
        ("GPU hours", list(map(gpu_hours, runs)), format_value),
    ]
    rows = [
        {
            heading: _UNKNOWN if values[number] is None else form(values[number] or 0)
            for heading, values, form in columns
            if any(value is not None for value in values)
        }
        for number in range(len(runs))
    ]
    stages = [format_zero_stage(run.facts) for run in runs]
    if any(stages):
        for row, stage in zip(rows, stages, strict=True):
            row["ZeRO"] = stage or _UNKNOWN
        order = [scaling.counted, "batch", "ZeRO"]
        rows = [{name: row[name] for name in (*order, *row) if name in row} for row in rows]
    return rows


def format_zero_stage(facts: Mapping[str, str]) -> str:
    """Format the ZeRO stage of a run and what it offloads; "" without DeepSpeed.

    >>> format_zero_stage({"deepspeed.zero_stage": "3", "deepspeed.offload.optimizer": "cpu"})
    '3, optimizer on cpu'
    """
    stage = facts.get(ZERO_STAGE, "")
    parts = [
        f"{part} on {device}"
        for part in ("optimizer", "param")
        if (device := facts.get(f"deepspeed.offload.{part}", "none")) != "none"
    ]
    return ", ".join([stage, *parts]) if stage else ""


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.2g}x"


def _scaling(scaling: Scaling, names: Sequence[str]) -> list[str]:
    if scaling.baseline is None:
        return ["speed: the logs have neither times nor rates in common"]
    counted = scaling.counted
    text = f"speed-up over {names[scaling.baseline]} in {scaling.notes[0]}"
    if any(speed.efficiency is not None for speed in scaling.speeds):
        text += f"; efficiency: speed-up over the ratio of {counted}"
        text += {
            "strong": ": strong scaling, the batch is the same",
            "weak": f": weak scaling, the batch grows with the {counted}",
            "mixed": f"; the batch does not grow in proportion to the {counted}",
            None: "",
        }[scaling.kind]
    elif None in [speed.gpus for speed in scaling.speeds]:
        text += "; no efficiency: how many GPUs each run has is not known (--gpus 1,2,...)"
    return [text, *scaling.notes[1:]]


def _format_settings(compared: Comparison, names: Sequence[str], look: Display) -> list[str]:
    """Format the differing settings with one row per setting, or per run if that is shorter."""
    if not compared.settings:
        return []
    key_width = min(_KEY, look.width // 3, max(map(text_width, compared.settings)))
    room = (look.width - key_width) // len(names) - 2
    if len(compared.settings) < len(names) or room < _LEAST_ROOM:
        facts = [
            {
                truncate_start(key, _KEY, look): _format_setting(values[number], look, _KEY)
                for key, values in compared.settings.items()
            }
            for number in range(len(names))
        ]
        return [dim(_DIFFERING, look), *run_rows(names, facts, look)]
    columns = [Column(truncate_start(_DIFFERING, key_width, look))]
    for number, name in enumerate(distinct(names, room - 2, look)):
        columns.append(Column(f"{run_mark(number, look)} {dim(name, look)}"))
    rows = [
        [
            dim(truncate_start(key, key_width, look), look),
            *(_format_setting(each, look, room) for each in values),
        ]
        for key, values in compared.settings.items()
    ]
    return Table(columns, rows, look, head=DIM).lines()


def _format_setting(value: str | None, look: Display, width: int) -> str:
    """Format a setting: "-" if unset, "set" for an option without a value."""
    return "-" if value is None else truncate_start(value or "set", width, look)


def _remarks(runs: Sequence[ParsedRun], compared: Comparison, look: Display) -> list[str]:
    notes = list(compared.notes)
    unknown = [run.source for run in runs if not run.facts]
    if unknown and len(unknown) < len(runs):
        notes.append(f"settings are not known for {', '.join(unknown)}")
    if compared.equal:
        notes.append(
            "values at equal places are means of what was logged just before; the noise is that "
            "within the runs (95%): another seed may change more"
        )
    warnings = [f"{run.source}: {text}" for run in runs for text in run.warnings]
    failures = [f"{run.source}: {run.failure}" for run in runs if run.failure]
    warnings = [*warnings, *(f"failed: {text}" for text in failures)]
    return [*remarks("warning: ", warnings, look), *remarks("note: ", notes, look)]


def format_markdown(runs: Sequence[ParsedRun], compared: Comparison) -> str:
    """Return the speeds and results as a Markdown table, with their basis below it."""
    names = brief([run.source for run in runs])
    rows = _speeds(runs, compared)
    if compared.metric is not None:
        for row, run in zip(rows, runs, strict=True):
            summary = run.curve.summary(compared.metric)
            row[compared.metric] = format_value(summary.last.value) if summary else _UNKNOWN
    if any(run.failure for run in runs):
        for row, run in zip(rows, runs, strict=True):
            row["failed"] = run.failure or _UNKNOWN
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    lines = [
        ["run", *headings],
        ["---", *("---:" for _ in headings)],
        *([name, *(row[each] for each in headings)] for name, row in zip(names, rows, strict=True)),
    ]
    table = [f"| {' | '.join(map(_escape_markdown, line))} |" for line in lines]
    notes = [*_scaling(compared.scaling, names), *compared.slow]
    notes = [_escape_markdown(note) for note in notes]
    return "\n\n".join(["\n".join(table), *notes])


def _escape_markdown(text: str) -> str:
    """Escape the characters with a meaning in the cell of a Markdown table.

    >>> print(_escape_markdown("a|b\\n<c>"))
    a\\|b &lt;c>
    """
    return re.sub(r"([\\`*_|])", r"\\\1", " ".join(text.split())).replace("<", "&lt;")


def comparison_json(runs: Sequence[ParsedRun], compared: Comparison) -> dict[str, Any]:
    """Return the comparison as JSON-compatible objects."""
    found = to_builtins(compared)
    speeds = found["scaling"].pop("speeds")
    ranking = rank_runs(runs, compared)
    differences = dict(ranking)
    ranks = {
        number: None if differences[number] is None else rank
        for rank, (number, _) in enumerate(ranking, 1)
    }
    found["equal"] = [
        {
            "by": equal.by,
            "from": equal.window.begin,
            "to": equal.window.end,
            "levels": list(equal.levels),
            "best": equal.best,
            "behind": [
                gap and {"value": gap.value, "error": gap.error, "clear": gap.is_clear}
                for gap in equal.behind
            ],
        }
        for equal in compared.equal
    ]
    shown = [
        {
            "source": run.source,
            **summary_json(run.curve.summary(compared.metric) if compared.metric else None),
            **speed,
            "steps_per_second": rates.steps_per_second,
            "samples_per_second": rates.samples_per_second,
            "zero_stage": int(stage)
            if (stage := run.facts.get(ZERO_STAGE, "")).isdecimal()
            else None,
            "peak_memory": peak_memory(run),
            "gpu_memory": run.usage.gpu_memory,
            "seconds": seconds_of(run),
            "gpu_hours": gpu_hours(run),
            "failure": run.failure or None,
            "warnings": list(run.warnings),
            "rank": ranks[number],
            "difference": differences[number],
        }
        for number, (run, speed, rates) in enumerate(
            zip(runs, speeds, compared.scaling.speeds, strict=True)
        )
    ]
    return {"metric": compared.metric, "falls": compared.falls, "runs": shown, **found}
