"""The ground truth about a created log: recorded while printing, summarized for the index."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

# What the index says of a log, if it was logged: canonical names, then those of some frameworks.
LOSS = "loss"
RESTART: dict[str, Any] = {"restart": True}


def note(step: int | None, **values: float | str) -> None:
    """Record a value logged at a step, as printed (text) or in full."""
    if path := os.environ.get("MADE_TRUTH"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")


def read_notes(path: Path) -> list[dict[str, Any]]:
    """Return the records in order."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def summarise(notes: list[dict[str, Any]], *, stepless: bool = False) -> dict[str, Any]:
    """Return points, restarts and metrics as the index has them.

    A restart replaces what it replays: from its first training loss on, what was logged before at
    that step and after is gone. ``stepless``: the log shows no steps, so the index has none.

    >>> told = [{"step": 1, "loss": "2.5"}, {"step": 2, "loss": "2.4"}, RESTART]
    >>> summarise([*told, {"step": 2, "loss": "2.3"}])["metrics"]["loss"]["last"]
    {'step': 2, 'value': 2.3}
    """
    series: dict[str, list[tuple[int | None, float]]] = {}
    restarts, resuming = 0, False
    for line in notes:
        if line == RESTART:
            restarts, resuming = restarts + 1, True
            continue
        step = line["step"]
        if resuming and LOSS in line:
            resuming = False
            for name, values in series.items():
                series[name] = [at for at in values if at[0] is None or at[0] < step]
        for name, value in line.items():
            if name != "step":
                series.setdefault(name, []).append((step, float(value)))

    def point(at: tuple[int | None, float]) -> dict[str, Any]:
        return {"step": None if stepless else at[0], "value": at[1]}

    return {
        "points": len(series.get(LOSS, ())),
        "restarts": restarts,
        "metrics": {
            name: {"count": len(values), "first": point(values[0]), "last": point(values[-1])}
            for name, values in series.items()
            if values
        },
    }


def agree(found: float, true: float) -> bool:
    """Tell whether two values are one and the same number, but for the last bits.

    >>> agree(math.nan, math.nan), agree(1.0000001, 1.0), agree(1.001, 1.0)
    (True, True, False)
    """
    if math.isnan(true):
        return math.isnan(found)
    return math.isclose(found, true, rel_tol=1e-6, abs_tol=1e-12)
