"""Generated curves of healthy runs, with typical shapes of training losses and clocks.

Each family generates curves with different lengths, levels and noise from a random generator. None
of these runs has a fault, so any warning about them is a false alarm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random

from hpcrun.curves.curve import Curve, Series, build_series

Family = Callable[[Random], Curve]


def steps_of(rng: Random, count: int, first: int | None = None) -> list[int | None]:
    """Generate the steps of a log that prints every n-th step, or none."""
    every = rng.choice([1, 1, 5, 10, 50, 100])
    begin = rng.choice([0, 1, every]) if first is None else first
    if first is None and rng.random() < 0.1:
        return [None] * count
    return [begin + every * index for index in range(count)]


def loss_curve(steps: Sequence[int | None], values: Sequence[float], **others: Series) -> Curve:
    """Build a curve from a loss and other metrics, rounded to the digits of typical logs."""
    return Curve({"loss": build_series(list(steps), list(values)), **others}, ())


def length(rng: Random, least: int = 10, most: int = 3000) -> int:
    """Draw a number of points, log-uniformly."""
    return int(math.exp(rng.uniform(math.log(least), math.log(most))))


def student(rng: Random, freedom: float) -> float:
    """Draw from Student's t distribution: the fewer degrees of freedom, the longer its tails."""
    return rng.gauss(0, 1) / math.sqrt(rng.gammavariate(freedom / 2, 2 / freedom))


def falling(rng: Random, count: int) -> list[float]:
    """Generate a loss without noise: exponential, a power law, or a delayed logistic fall."""
    start = math.exp(rng.uniform(math.log(0.3), math.log(15)))
    end = start * rng.uniform(0.02, 0.9)
    shape = rng.choice(["exponential", "power", "logistic"])
    pace = rng.uniform(2, 30)
    if shape == "exponential":
        return [end + (start - end) * math.exp(-pace * i / count) for i in range(count)]
    if shape == "power":
        power = rng.uniform(0.1, 0.7)
        return [end + (start - end) * (1 + i) ** -power for i in range(count)]
    middle = rng.uniform(0.05, 0.6)
    return [
        end + (start - end) / (1 + math.exp(pace * 2 * (i / count - middle))) for i in range(count)
    ]


def plain(rng: Random) -> Curve:
    """A falling loss with normal noise, rounded to some digits."""
    level = falling(rng, length(rng))
    noise = math.exp(rng.uniform(math.log(0.001), math.log(0.3)))
    digits = rng.choice([2, 3, 4, 4, 6, 12])
    values = [round(max(0.0, value * (1 + noise * rng.gauss(0, 1))), digits) for value in level]
    return loss_curve(steps_of(rng, len(values)), values)


def small_batches(rng: Random) -> Curve:
    """Fine-tuning with small batches: log-normal noise, hardly any descent."""
    count = length(rng)
    start, drop = rng.uniform(0.3, 3), rng.uniform(0.0, 0.6)
    noise = rng.uniform(0.1, 0.9)
    values = [
        start * (1 - drop * (1 - math.exp(-8 * i / count))) * math.exp(noise * rng.gauss(0, 1))
        for i in range(count)
    ]
    return loss_curve(steps_of(rng, count), [round(value, 4) for value in values])


def long_tails(rng: Random) -> Curve:
    """A loss with long-tailed noise: some batches are much harder than others."""
    level = falling(rng, length(rng))
    freedom, noise = rng.uniform(4, 8), rng.uniform(0.02, 0.3)
    values = [value * math.exp(noise * student(rng, freedom)) for value in level]
    return loss_curve(steps_of(rng, len(values)), values)


def learned_by_heart(rng: Random) -> Curve:
    """Overfitting in several epochs on little data: the loss falls in stairs to almost zero."""
    epochs, size = rng.randint(2, 8), rng.randint(10, 300)
    fall, noise = rng.uniform(0.1, 0.6), rng.uniform(0.1, 1.2)
    values, epoch_at = [], []
    for index in range(epochs * size):
        epoch_at.append(index / size)
        level = 1.5 * fall ** (index // size)
        values.append(round(level * math.exp(noise * rng.gauss(0, 1)), 4))
    steps = steps_of(rng, len(values))
    others = {"epoch": build_series(steps, epoch_at)} if rng.random() < 0.5 else {}
    return loss_curve(steps, values, **others)


def reinforcement(rng: Random) -> Curve:
    """The loss of a policy: long-tailed noise around zero, sometimes drifting."""
    count = length(rng)
    scale, freedom = 10 ** rng.uniform(-4, 2), rng.uniform(1.8, 6)
    drift = rng.uniform(-1, 1)
    values = [scale * (student(rng, freedom) + drift * i / count) for i in range(count)]
    others = {}
    if rng.random() < 0.5:
        steps: list[int | None] = list(range(count))
        others["reward"] = build_series(steps, [i / count for i in range(count)])
        values = [abs(value) * (1 + 9 * i / count) for i, value in enumerate(values)]
        return loss_curve(steps, values, **others)
    return loss_curve(steps_of(rng, count), values)


def warm_restarts(rng: Random) -> Curve:
    """SGDR: learning rate and loss rise again after each cycle."""
    count, cycles = length(rng, 30), rng.randint(2, 5)
    noise, lift = rng.uniform(0.005, 0.1), rng.uniform(0.05, 0.5)
    values, rates = [], []
    for index in range(count):
        share = index * cycles / count
        rate = 0.5 * (1 + math.cos(math.pi * (share % 1)))
        level = 0.5 + 1.8 * math.exp(-3 * share)
        rates.append(rate)
        values.append(level * (1 + lift * (rate - 0.2)) * (1 + noise * rng.gauss(0, 1)))
    steps = steps_of(rng, count)
    others = {"lr": build_series(steps, rates)} if rng.random() < 0.7 else {}
    return loss_curve(steps, values, **others)


def running_means(rng: Random) -> Curve:
    """A progress bar with the running mean of the epoch: noisy at first, then smooth."""
    epochs, size = rng.randint(2, 20), rng.randint(10, 200)
    noise, each = rng.uniform(0.05, 0.8), rng.random() < 0.5
    values, epoch_at = [], []
    for epoch in range(epochs):
        level = 0.3 + 2 * math.exp(-0.5 * epoch)
        batches = [level * math.exp(noise * rng.gauss(0, 1)) for _ in range(size)]
        values += [total / (i + 1) for i, total in enumerate(accumulate(batches))]
        epoch_at += [epoch + i / size for i in range(size)]
    steps: list[int | None] = [i % size if each else i for i in range(len(values))]
    return loss_curve(steps, values, epoch=build_series(steps, epoch_at))


def appended(rng: Random) -> Curve:
    """Several complete runs in one log."""
    steps: list[int | None] = []
    values: list[float] = []
    for _ in range(rng.randint(2, 5)):
        level = falling(rng, rng.randint(10, 300))
        steps += range(len(level))
        values += [value * (1 + 0.03 * rng.gauss(0, 1)) for value in level]
    return loss_curve(steps, values)


def resumed(rng: Random) -> Curve:
    """A run resumed from a late checkpoint: hardly any descent."""
    count = length(rng)
    level, noise = rng.uniform(1, 4), 10 ** rng.uniform(-2.7, -0.7)
    fall = rng.uniform(0, 0.05)
    values = [level * (1 - fall * i / count) * (1 + noise * rng.gauss(0, 1)) for i in range(count)]
    return loss_curve(steps_of(rng, count, rng.randint(20_000, 900_000)), values)


def converged(rng: Random) -> Curve:
    """A run that converges in the first tenth, followed by noise."""
    count = length(rng, 50)
    start, floor, noise = rng.uniform(0.5, 10), 10 ** rng.uniform(-4, -0.7), rng.uniform(0.001, 0.5)
    values = [
        (floor + start * math.exp(-60 * i / count)) * math.exp(noise * rng.gauss(0, 1))
        for i in range(count)
    ]
    return loss_curve(
        steps_of(rng, count), [round(value, rng.choice([3, 4, 6])) for value in values]
    )


def harder_tasks(rng: Random) -> Curve:
    """A curriculum: each stage starts with a somewhat higher loss."""
    count, stages = length(rng, 30), rng.randint(2, 4)
    noise, lift = rng.uniform(0.01, 0.1), rng.uniform(0.05, 0.35)
    values = []
    for index in range(count):
        stage = index * stages // count
        within = (index * stages / count) % 1
        level = 0.5 + 3 * math.exp(-2.5 * (stage * 0.4 + within)) * (1 if not stage else lift)
        values.append(level * (1 + noise * rng.gauss(0, 1)))
    return loss_curve(steps_of(rng, count), values)


def annealed(rng: Random) -> Curve:
    """An annealed weight of a divergence: the loss falls, then rises somewhat, by design."""
    count = length(rng, 30)
    rise, noise = rng.uniform(0.05, 0.3), rng.uniform(0.003, 0.1)
    values = [
        100 * (1 + 4 * math.exp(-20 * i / count) + rise * i / count) * (1 + noise * rng.gauss(0, 1))
        for i in range(count)
    ]
    return loss_curve(steps_of(rng, count), values)


def density(rng: Random) -> Curve:
    """A negative log-likelihood of a density, which falls below zero."""
    count = length(rng)
    start, end, noise = rng.uniform(0, 10), -rng.uniform(0.5, 5), rng.uniform(0.01, 0.6)
    values = [
        end + (start - end) * math.exp(-6 * i / count) + noise * rng.gauss(0, 1)
        for i in range(count)
    ]
    return loss_curve(steps_of(rng, count), values)


def thinned(rng: Random) -> Curve:
    """A long log whose older half has only the extremes and the last point of each bucket."""
    count, bucket = rng.randint(5000, 20_000), rng.choice([8, 16, 64])
    level = falling(rng, count)
    noise = rng.uniform(0.003, 0.2)
    points = [(i + 1, value * math.exp(noise * rng.gauss(0, 1))) for i, value in enumerate(level)]
    kept: list[tuple[int, float]] = []
    for begin in range(0, count - 1000, bucket):
        part = points[begin : min(begin + bucket, count - 1000)]
        chosen = {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1]), part[-1]}
        kept += sorted(chosen)
    kept += points[-1000:]
    whole = build_series([step for step, _ in points], [value for _, value in points])
    steps, values = [step for step, _ in kept], [value for _, value in kept]
    return Curve({"loss": Series(list(steps), values, None, whole.summary)}, ())


LOSSES: tuple[Family, ...] = (
    *(plain, small_batches, long_tails, learned_by_heart, reinforcement, warm_restarts),
    *(running_means, appended, resumed, converged, harder_tasks, annealed, density, thinned),
)
