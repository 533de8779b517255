"""Lines printed by programs (printed.txt), and look-alikes (prose.txt)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class Printed(NamedTuple):
    """A line and what a person reads in it; other metrics than these may be read, too."""

    line: str
    step: int | None
    epoch: float | None
    split: str
    values: dict[str, float]


def _read_printed(text: str) -> list[Printed]:
    """Read pairs of a line and ``    -> step=3 loss=2.5``."""
    printed, line = [], ""
    for each in text.splitlines():
        if not each.startswith("    -> "):
            line = each or line
            continue
        shown = dict(pair.split("=") for pair in each.removeprefix("    -> ").split())
        step, epoch, split = (shown.pop(key, None) for key in ("step", "epoch", "split"))
        printed.append(
            Printed(
                line,
                None if step is None else int(step),
                None if epoch is None else float(epoch),
                split or "train",
                {name: float(value) for name, value in shown.items()},
            )
        )
    return printed


PRINTED = _read_printed((HERE / "printed.txt").read_text())
PROSE = [
    line for line in (HERE / "prose.txt").read_text().splitlines() if not line.startswith("## ")
]
