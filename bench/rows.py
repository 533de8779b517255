"""Results of benchmarks, and their table."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

# Units of values that are counted exactly.
COUNTED = ("files", "lines", "modules")


@dataclass
class Row:
    """A value with its limit (``bar``) and its goal; smaller is better.

    ``unit``: "x" for a ratio of two whole processes, "s" for seconds, "ms", or a name of what is
    counted. If ``value`` is None, it could not be measured, and ``notes`` has the reason.
    """

    name: str
    what: str
    unit: str
    value: float | None
    bar: float | None = None
    goal: float | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Compare the value with limit and goal, in words."""
        if self.value is None:
            return "not measured"
        if self.bar is None or self.goal is None:
            return ""
        shown = round(self.value, 3)
        return "goal" if shown <= self.goal else "bar" if shown <= self.bar else "MISSED"


def failed(name: str, what: str, why: str) -> Row:
    """Return the row of a benchmark that failed."""
    return Row(name, what, "", None, notes=[why])


def machine() -> dict[str, str | int]:
    """Describe the machine, and the time (UTC)."""
    cpu = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu,
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def report(rows: Sequence[Row], *, as_json: bool) -> int:
    """Print all rows; return 1 if a value exceeds its limit or is missing."""
    about = machine()
    print(json.dumps(for_programs(rows, about), indent=1) if as_json else as_table(rows, about))
    return int(any(row.verdict in ("MISSED", "not measured") for row in rows))


def for_programs(rows: Sequence[Row], about: dict[str, str | int]) -> dict[str, object]:
    """Return all rows as JSON values."""
    return {"machine": about, "rows": [asdict(row) | {"verdict": row.verdict} for row in rows]}


def as_table(rows: Sequence[Row], about: dict[str, str | int]) -> str:
    """Return the table as text."""
    cells = [("what", "figure", "bar", "goal", "met")]
    cells += [
        (row.what, _number(row.value, row.unit), _limit(row.bar), _limit(row.goal), row.verdict)
        for row in rows
    ]
    widths = [max(len(cell[i]) for cell in cells) for i in range(5)]
    lines = [
        f"{about['date']}; {about['cpus']} CPUs, {about['cpu']}; Linux {about['kernel']};"
        f" Python {about['python']}",
        "",
    ]
    for number, cell in enumerate(cells):
        line = "  ".join(text.ljust(widths[i]) for i, text in enumerate(cell)).rstrip()
        lines.append(line)
        if number:
            lines += [f"    {note}" for note in rows[number - 1].notes]
    return "\n".join(lines)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    text = f"{value:.0f}" if unit in ("ms", *COUNTED) else f"{value:.2f}"
    return f"{text} {unit}".strip()


def _limit(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
