"""Spikes: losses far above what stood before them, that came down again.

What the thresholds were measured on is in docs/warnings.md.

A loss is compared with the scatter that it has itself, in logarithms where it is positive: batches
differ by factors. Noise with long tails has many high points, of all heights; a spike stands out
from all the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from hpcrun.metrics.health.losses import Losses
from hpcrun.metrics.health.robust import grain, line, logarithms, median, scatter, sigma

# Sigmas above the points before it, and how many times the height of the next lower peak.
LEAST_SIGMAS = 10.0
LEAST_GAP = 2.5
# Of few points the scatter is hardly known: of 30 twice as many sigmas are asked for.
DOUBT = 30
# A spike is also higher than the noise is deep, by this factor: deep points show long tails.
DEEP = 2.0
# It lifts the loss by this factor, and gives back this share of what was gained since the start.
LEAST_RATIO = 1.3
LEAST_SHARE = 0.1
# A loss that can be negative has no ratio: it must give back half.
LEAST_SHARE_SIGNED = 0.5
# Among fewer points than FEWEST, a spike is so many times all other points, the first ones too.
FEWEST = 20
FEWEST_AT_ALL = 8
TOWERS = 5.0
# Points after a beginning that are not looked at: a mean over an epoch is noisy at first.
SETTLED = 5


class Spike(Struct, frozen=True):
    """A loss that spikes: which point, its value, and the level that it rose from."""

    index: int
    value: float
    level: float


class _Peak(NamedTuple):
    """The highest of a group of high points; ``height`` in sigmas above ``level``."""

    height: float
    at: int
    level: float


def find_spikes(losses: Losses) -> list[Spike]:
    """Find the spikes, highest first; none among fewer than 8 points."""
    values, count = losses.values, len(losses.values)
    if count < FEWEST:
        return _spike_of_few(values)
    positive = min(values) >= 0
    x = logarithms(values) if positive else values
    size = median([abs(value) for value in values]) or 1.0
    least_sigma = max(0.01 * size, grain(values))
    peaks, depth = _peaks(x, least_sigma / size if positive else least_sigma)
    least = max(LEAST_SIGMAS * (1 + DOUBT / count), DEEP * depth)
    spikes = [
        Spike(peak.at, values[peak.at], math.exp(peak.level) if positive else peak.level)
        for peak in _outstanding(peaks, max(2, count // 100), least)
        if _comes_down(x, peak) and not _by_design(losses, peak.at)
    ]
    is_plain = _lifts if positive else _undoes
    return [spike for spike in spikes if is_plain(values, spike)]


def _peaks(x: Sequence[float], least_sigma: float) -> tuple[list[_Peak], float]:
    """Return the peaks above 4 sigmas, highest first, and how deep points go, in sigmas.

    Level and scatter are those of the one or two blocks before, the scatter around a line through
    them and at least the usual one. Where they rise, a point is compared with the line.
    """
    size = min(32, max(8, len(x) // 8))
    cuts = [*range(0, len(x), size), len(x)]
    usual = max(least_sigma, median([scatter(x[a:b]) for a, b in pairwise(cuts) if b - a == size]))
    peaks: list[_Peak] = []
    depth, last = 0.0, -10
    for a, b in pairwise(cuts[1:]):
        before, block = x[max(0, a - 2 * size) : a], x[a:b]
        after, slope = line(before)
        level, recent = median(before), median(before[-8:])
        top = max(level, after, after + slope * (b - a))
        if max(block) < top + 4 * usual and min(block) > level - 4 * usual:
            continue
        around = max(usual, scatter(before))
        if a > len(x) // 5:  # before, a loss may fall steeply
            depth = max(depth, (min(level, after) - min(block)) / around)
        for index in range(a, b):
            height = (x[index] - max(level, after + slope * (index - a))) / around
            if height < 4:
                continue
            peak = _Peak(height, index, recent)
            if index - last > 3:
                peaks.append(peak)
            elif height > peaks[-1].height:
                peaks[-1] = peak
            last = index
    return sorted(peaks, reverse=True), depth


def _outstanding(peaks: Sequence[_Peak], most: int, least: float) -> Sequence[_Peak]:
    """Return the highest peaks that a gap parts from all the others."""
    found = 0
    for rank, peak in enumerate(peaks[:most]):
        below = peaks[rank + 1].height if rank + 1 < len(peaks) else 0.0
        if peak.height >= max(least, LEAST_GAP * below):
            found = rank + 1
    return peaks[:found]


def _comes_down(x: Sequence[float], peak: _Peak) -> bool:
    """Tell whether half the height is gone soon: a lift that lasts is no spike."""
    after = x[peak.at + 1 : peak.at + 1 + max(3, len(x) // 50)]
    return any(value <= (peak.level + x[peak.at]) / 2 for value in after)


def _by_design(losses: Losses, index: int) -> bool:
    """Tell whether something begins here, or the learning rate goes up."""
    count = len(losses.values)
    settled = max(SETTLED, count // 30)
    return any(begin <= index < begin + settled for begin in losses.begins) or losses.lr_rises(
        max(0, index - max(16, count // 50)), index, 1.5
    )


def _lifts(values: Sequence[float], spike: Spike) -> bool:
    gained = median(values[:SETTLED]) - spike.level
    return (
        spike.value >= LEAST_RATIO * spike.level
        and spike.value - spike.level >= LEAST_SHARE * gained
    )


def _undoes(values: Sequence[float], spike: Spike) -> bool:
    """Tell of a loss that can be negative whether a spike undoes half of a plain descent."""
    size = max(SETTLED, len(values) // 10)
    lowest = min(median(values[a : a + size]) for a in range(0, len(values), size))
    gained = median(values[:SETTLED]) - lowest
    jumps = sigma([b - a for a, b in pairwise(values)], 0.0) / math.sqrt(2)
    return gained >= 10 * jumps and spike.value - spike.level >= LEAST_SHARE_SIGNED * gained


def _spike_of_few(values: Sequence[float]) -> list[Spike]:
    if len(values) < FEWEST_AT_ALL or min(values) <= 0:
        return []
    index = max(range(len(values)), key=values.__getitem__)
    highest_other = max(value for other, value in enumerate(values) if other != index)
    if 3 <= index < len(values) - 1 and values[index] >= TOWERS * highest_other:
        return [Spike(index, values[index], median(values[:index]))]
    return []
