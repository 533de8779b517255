"""Thin: of a long metric the points that a window or a page can show, spikes among them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrun.metrics.curve import Floats, Series, build_series, summarize

# More than a window or a page can show.
POINTS = 4000


def thin_series(
    steps: NDArray[Any], values: Floats, times: Floats | None = None, most: int = POINTS
) -> Series:
    """Build a series; of a long one ``most`` points are kept, or 16 where that is less.

    The points are parted into buckets of as many each, a power of two. A bucket keeps its lowest,
    its highest and its last point, and its first nan; the first point of all is kept too: so a
    spike of one step stays.

    >>> values = np.array([0.0] * 999 + [1.0] + [0.0] * 9000)
    >>> thin_series(np.arange(10_000), values, most=100).steps[5:8]
    [767, 768, 999]
    """
    if len(values) <= max(most, 16):
        return build_series(steps, values, times)
    kept, even = _choose(values, max(most, 16))
    return Series(
        steps[kept].tolist(),
        values[kept].tolist(),
        None if times is None else times[kept].tolist(),
        summarize(steps, values),
        values[::even].tolist(),
        steps[::even].tolist(),
    )


def _choose(column: Floats, most: int) -> tuple[NDArray[np.intp], int]:
    """Choose the points that buckets keep, ``most`` at most, and the distance of an even sample."""
    even, kept = 1, np.arange(len(column))
    while len(column) > even * most:
        even *= 2
    stride = even
    while len(kept) > most:
        stride *= 2
        # The last bucket is filled with its last value, of which the first one counts.
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
