"""Runs to compare, made by formulas: how low a loss comes, how noisy and how fast it is."""

from __future__ import annotations

import math
import random
from typing import Any

from hpcrun.curves.curve import Series, build_series
from hpcrun.curves.report.parsed import ParsedRun
from tests.curves.report.runs import built


def loss(last: int, floor: float, *, every: int = 1, seed: int = 0, speed: float = 100.0) -> Series:
    """A loss that falls from 6 to ``floor`` with noise of 0.05."""
    chance = random.Random(seed)
    steps: list[int | None] = list(range(every, last + 1, every))
    return build_series(
        steps,
        [floor + 4 * math.exp(-(step or 0) / speed) + chance.gauss(0, 0.05) for step in steps],
    )


def timed(series: Series, seconds: float) -> Series:
    return build_series(
        series.steps, series.values, [1e9 + seconds * (step or 0) for step in series.steps]
    )


def run(source: str, series: Series, **more: Any) -> ParsedRun:
    return built(source, {"loss": series}, **more)
