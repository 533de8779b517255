"""Generated curves of runs with one fault each, and the word that its warning must contain.

Each fault is added to a loss that falls like those of language models and classifiers, or to a
regular clock. Detection is measured for each size of a fault in ``SIZES``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from hpcrun.curves.curve import Curve, build_series
from tests.curves.report.healthy import length, loss_curve

Fault = Callable[[Random, float], Curve]


def base(rng: Random, count: int) -> tuple[list[int | None], list[float]]:
    """Generate steps and values of a healthy loss."""
    start = rng.choice([0.7, 2.3, 6.9, 11.0])
    end = start * rng.uniform(0.2, 0.7)
    noise = 10 ** rng.uniform(-2.3, -1)
    power = rng.uniform(0.15, 0.6)
    steps: list[int | None] = [10 * (i + 1) for i in range(count)]
    values = [
        (end + (start - end) * (1 + i / 3) ** -power) * (1 + noise * rng.gauss(0, 1))
        for i in range(count)
    ]
    return steps, values


def spike(rng: Random, size: float) -> Curve:
    """The loss is ``size`` times as high for one or a few points, and recovers."""
    count = length(rng, 40)
    steps, values = base(rng, count)
    at = rng.randint(count // 4, count - 4)
    for offset in range(rng.randint(1, max(1, min(count // 60, 20)))):
        if at + offset < count - 3:
            values[at + offset] *= size * (1 - 0.02 * offset)
    return loss_curve(steps, values)


def jump(rng: Random, size: float) -> Curve:
    """The loss jumps permanently by a share of what was gained: 1 is back to its start."""
    count = length(rng, 40)
    steps, values = base(rng, count)
    at = int(count * rng.uniform(0.3, 0.95))
    rise = size * (values[0] - values[at])
    return loss_curve(steps, values[:at] + [value + rise for value in values[at:]])


def climb(rng: Random, size: float) -> Curve:
    """The loss climbs steadily in the last part of the run, by a share of what was gained."""
    count = length(rng, 40)
    steps, values = base(rng, count)
    at = int(count * rng.uniform(0.4, 0.8))
    rise = size * (values[0] - values[at])
    for i in range(at, count):
        values[i] += rise * (i - at) / (count - 1 - at)
    return loss_curve(steps, values)


def never_learns(rng: Random, size: float) -> Curve:
    """The loss remains that of a uniform guess among ten classes; ``size`` is its noise."""
    count = length(rng, 100)
    steps = [10 * (i + 1) for i in range(count)]
    values = [round(math.log(10) * (1 + size * rng.gauss(0, 1)), 4) for _ in steps]
    return loss_curve(list(steps), values)


def collapse(rng: Random, size: float) -> Curve:
    """The loss scale is halved ``size`` times in a row."""
    count = length(rng, 40, 1000)
    steps, values = base(rng, count)
    scales = [65536.0] * count
    at = rng.randint(count // 3, count - 30) if count > 60 else count // 3
    for i in range(at, count):
        scales[i] = max(1.0, 65536 / 2 ** min(size, i - at))
    return loss_curve(steps, values, loss_scale=build_series(steps, scales))


def clock(rng: Random, count: int) -> list[float]:
    """Generate durations of steps: regular with some jitter, slow at first."""
    usual = 10 ** rng.uniform(-1, 1.3)
    jitter = rng.uniform(0.005, 0.1)
    seconds = [usual * math.exp(jitter * rng.gauss(0, 1)) for _ in range(count)]
    seconds[0] += rng.uniform(0, 300)
    return seconds


def stall(rng: Random, size: float) -> Curve:
    """One step takes ``size`` seconds more than usual."""
    count = length(rng, 40)
    steps, values = base(rng, count)
    seconds = clock(rng, count)
    seconds[rng.randint(7, count - 2)] += size
    return loss_curve(steps, values, step_seconds=build_series(steps, seconds))


def silence(rng: Random, size: float) -> Curve:
    """The log is silent for ``size`` seconds, by the time stamps of its lines."""
    count = length(rng, 40)
    steps, values = base(rng, count)
    seconds = clock(rng, count)
    seconds[rng.randint(7, count - 2)] += size
    times, now = [], 1.7e9
    for each in seconds:
        now += 10 * each
        times.append(float(int(now)))
    return Curve({"loss": build_series(steps, values, times)}, ())


def slower(rng: Random, size: float) -> Curve:
    """Throughput falls permanently to ``size`` times its earlier value."""
    count = length(rng, 40)
    steps, values = base(rng, count)
    rates = [1000 / each for each in clock(rng, count)]
    at = int(count * rng.uniform(0.3, 0.75))
    rates[at:] = [rate * size for rate in rates[at:]]
    return loss_curve(steps, values, tokens_per_second=build_series(steps, rates))


# Fault, the word of its warning, sizes to measure.
FAULTS: tuple[tuple[Fault, str, tuple[float, ...]], ...] = (
    (spike, "spike", (1.2, 1.5, 2.0, 3.0, 10.0)),
    (jump, "diverges", (0.5, 0.8, 1.0, 2.0)),
    (climb, "diverges", (0.5, 0.8, 1.0, 2.0)),
    (never_learns, "stays at", (0.0001, 0.001, 0.01, 0.05)),
    (collapse, "scale", (4, 8, 12, 16)),
    (stall, "took", (60, 120, 600, 3600)),
    (silence, "no progress", (60, 120, 600, 3600)),
    (slower, "drops", (0.8, 0.65, 0.5, 0.3)),
)
