"""Downsample long metrics without losing spikes, and compute quantiles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcrun.curves.curve import Curve, Floats, Series, build_series, summarize

# More points than a terminal window or a page can resolve.
POINTS = 4000


def thin_series(
    steps: NDArray[Any], values: Floats, times: Floats | None = None, most: int = POINTS
) -> Series:
    """Build a series of at most ``most`` points (at least 16), keeping one-step spikes.

    The points are divided into buckets of equal size, a power of two. Each bucket keeps its lowest,
    highest and last point and its first nan. The first point of the series is also kept.

    >>> values = np.array([0.0] * 999 + [1.0] + [0.0] * 9000)
    >>> thin_series(np.arange(10_000), values, most=100).steps[5:8]
    [767, 768, 999]
    """
    if len(values) <= max(most, 16):
        return build_series(steps, values, times)
    kept, even = _choose_points(values, max(most, 16))
    return Series(
        steps[kept].tolist(),
        values[kept].tolist(),
        None if times is None else times[kept].tolist(),
        summarize(steps, values),
        values[::even].tolist(),
        steps[::even].tolist(),
    )


def _choose_points(column: Floats, most: int) -> tuple[NDArray[np.intp], int]:
    """Return the indices of at most ``most`` points to keep, and the stride of an even sample."""
    even, kept = 1, np.arange(len(column))
    while len(column) > even * most:
        even *= 2
    stride = even
    while len(kept) > most:
        stride *= 2
        # The last bucket is padded with its last value; argmax finds the original one first.
        buckets = np.pad(column, (0, -len(column) % stride), mode="edge").reshape(-1, stride)
        begins, is_nan = np.arange(0, len(column), stride), np.isnan(buckets)
        parts = [
            begins[:1],
            np.minimum(begins + stride, len(column)) - 1,
            (begins + is_nan.argmax(axis=1))[is_nan.any(axis=1)],
        ]
        for end in (np.fmin, np.fmax):
            is_end = buckets == end.reduce(buckets, axis=1, keepdims=True)
            parts.append(begins + is_end.argmax(axis=1))
        kept = np.flatnonzero(np.bincount(np.concatenate(parts)))  # np.unique imports numpy.ma
    return kept, even


def quantile_of(curve: Curve, name: str, share: float) -> float | None:
    """Return the quantile ``share`` (0 to 1) of a metric, or None if it has no values."""
    series = curve.metrics.get(name)
    if series is None:
        return None
    return quantile(series.values if series.sample is None else series.sample, share)


def quantile(values: ArrayLike, share: float) -> float | None:
    """Return a linearly interpolated quantile, ignoring nan and infinite values.

    >>> quantile([1.0, 2.0, 4.0], 0.5), quantile([1.0, 2.0], 0.95), quantile([], 0.5)
    (2.0, 1.95, None)
    """
    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known)]
    if not known.size:
        return None
    place = share * (known.size - 1)  # np.quantile would import numpy.ma, which is slow
    below, above = math.floor(place), math.ceil(place)
    low, high = np.partition(known, (below, above))[[below, above]].tolist()
    part = place - below
    return float(low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part))
