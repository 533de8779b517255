"""Generated clocks of healthy runs: durations of steps, time stamps and throughputs.

As with ``tests.curves.report.healthy``, any warning about them is a false alarm.
"""

from __future__ import annotations

import math
from random import Random

from hpcrun.curves.curve import Curve, Restart, Series, build_series
from tests.curves.report.healthy import Family, length

Pauses = dict[int, float]


def clocked(rng: Random, pauses: Pauses, others: dict[str, Series] | None = None) -> Curve:
    """Generate a log with a regular clock and pauses (in seconds) before some of its points.

    The clock is logged as time stamps, durations, or both; ``others`` are additional metrics.
    """
    count = max(pauses, default=0) + length(rng, 20, 500)
    usual = 10 ** rng.uniform(-1.5, 1.7)
    jitter = rng.uniform(0.005, 0.3)
    every = rng.choice([1, 1, 5, 10, 100])
    steps: list[int | None] = [every * (i + 1) for i in range(count)]
    seconds = [usual * math.exp(jitter * rng.gauss(0, 1)) for _ in range(count)]
    coarse = rng.choice([0.001, 1.0, 1.0, 60.0])
    times, now = [], 1.7e9
    for index, each in enumerate(seconds):
        now += every * each + pauses.get(index, 0.0)
        times.append(now // coarse * coarse)
    losses = build_series(
        steps, [3 - i / count for i in range(count)], times if rng.random() < 0.7 else None
    )
    metrics = {"loss": losses}
    if losses.times is None or rng.random() < 0.3:
        spread = [each + pauses.get(i, 0.0) / every for i, each in enumerate(seconds)]
        metrics["step_seconds"] = build_series(steps, spread)
    scale = {name: _scaled(series, every) for name, series in (others or {}).items()}
    return Curve({**metrics, **scale}, ())


def _scaled(series: Series, every: int) -> Series:
    return build_series([(step or 0) * every for step in series.steps], series.values)


def even(rng: Random) -> Curve:
    """Only compilation and warm-up."""
    return clocked(rng, {i: rng.uniform(0, 1200) / (i + 1) ** 2 for i in range(4)})


def evaluations(rng: Random) -> Curve:
    """Occasional evaluations, which log their loss."""
    count, every = rng.randint(1, 6), rng.randint(7, 60)
    at = [every * (i + 1) for i in range(count)]
    took = rng.uniform(5, 7200)
    series = build_series(list(at), [2.0] * count)
    name = rng.choice(["eval_loss", "accuracy", "test/bleu"])
    return clocked(rng, {i: took * rng.uniform(0.8, 1.3) for i in at}, {name: series})


def checkpoints(rng: Random) -> Curve:
    """Regular checkpoints, on a file system that is sometimes busy."""
    every = rng.choice([25, 50, 100, 250])
    took = rng.uniform(5, 400)
    return clocked(
        rng, {every * (i + 1): took * rng.uniform(0.5, 2.5) for i in range(rng.randint(3, 8))}
    )


def one_checkpoint(rng: Random) -> Curve:
    """A single checkpoint, at a round step."""
    return clocked(rng, {rng.choice([50, 100, 200, 500]): rng.uniform(5, 500)})


def epochs(rng: Random) -> Curve:
    """Long pauses at the end of epochs: loaders restart, a model is saved."""
    size, count = rng.randint(10, 80), rng.randint(2, 6)
    took = rng.uniform(5, 600)
    curve = clocked(rng, {size * (i + 1): took * rng.uniform(0.7, 1.5) for i in range(count)})
    losses = curve.metrics["loss"]
    numbers = [index / size for index in range(len(losses.steps))]
    epoch = build_series(losses.steps, [math.floor(number) * 1.0 for number in numbers])
    return Curve({**curve.metrics, "epoch": epoch}, ())


def hiccups(rng: Random) -> Curve:
    """Data that is sometimes late: long-tailed waits."""
    waits = {
        index: min(55.0, rng.paretovariate(1.2) * rng.uniform(0.1, 1))
        for index in range(10, 800)
        if rng.random() < 0.1
    }
    return clocked(rng, waits or {10: 1.0})


def restarted(rng: Random) -> Curve:
    """A requeue: hours in the queue between two steps, marked as a restart."""
    at = rng.randint(6, 300)
    curve = clocked(rng, {at: rng.uniform(60, 90_000)})
    step = curve.steps("loss")[at]
    return Curve(curve.metrics, (Restart(1, step, step, 0),))


def throughputs(rng: Random) -> Curve:
    """Throughput with noise, dips, a warm-up, and some drift."""
    count = length(rng, 20)
    rate, noise, drift = 10 ** rng.uniform(0, 6), rng.uniform(0.001, 0.2), rng.uniform(-0.2, 0.3)
    values = []
    for i in range(count):
        dip = rng.uniform(0.05, 0.8) if rng.random() < 0.05 else 1.0
        warm = 1 - 0.8 * math.exp(-i / 2)
        values.append(
            rate * dip * warm * (1 + drift * i / count) * abs(1 + noise * rng.gauss(0, 1))
        )
    steps: list[int | None] = list(range(count))
    name = rng.choice(["tokens_per_second", "samples_per_second"])
    losses = build_series(steps, [3 - i / count for i in range(count)])
    return Curve({"loss": losses, name: build_series(steps, values)}, ())


def buckets_of_length(rng: Random) -> Curve:
    """Alternating batches of short and long samples: samples per second in clusters."""
    count = length(rng, 100)
    heaps = [10 ** rng.uniform(1, 2.5) for _ in range(rng.randint(2, 4))]
    stay = rng.choice([0.0, 0.3, 0.6])
    values, current = [], heaps[0]
    for _ in range(count):
        current = current if rng.random() < stay else rng.choice(heaps)
        values.append(current * (1 + 0.02 * rng.gauss(0, 1)))
    steps: list[int | None] = list(range(count))
    losses = build_series(steps, [3 - i / count for i in range(count)])
    return Curve({"loss": losses, "samples_per_second": build_series(steps, values)}, ())


CLOCKS: tuple[Family, ...] = (
    *(even, evaluations, checkpoints, one_checkpoint, epochs, hiccups, restarted),
    *(throughputs, buckets_of_length),
)
