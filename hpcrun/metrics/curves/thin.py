"""Thinning: which points of a long column are kept.

Points stand in buckets of as many each, a power of two, by their ordinals (0 for the first point of
all). A bucket keeps its lowest, its highest and its last point, and its first nan; the first point
of all is kept too. Of buckets that are joined, what is kept of both is all that the joined one
needs: so thinning again and again loses no extreme.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence


def pick(
    values: Sequence[float], ordinals: Sequence[int], stride: int, start: int, stop: int
) -> list[int]:
    """Choose the points that the buckets between two indices keep; ``ordinals`` rise.

    >>> pick([5.0, 4.0, 9.0, 6.0, 1.0, 2.0], range(6), stride=4, start=0, stop=6)
    [0, 1, 2, 3, 4, 5]
    >>> pick([5.0, 6.0, 7.0, 8.0, 9.0, 1.0, 4.0, 3.0], range(8), stride=8, start=0, stop=8)
    [0, 4, 5, 7]
    """
    picked: set[int] = set() if start else {0}
    holds_nan = has_nan(values[start:stop])
    for begin, end in _buckets(ordinals, stride, start, stop):
        bucket = values[begin:end]
        if holds_nan:
            nans = (begin + index for index, value in enumerate(bucket) if math.isnan(value))
            picked.update([next(nans, end - 1)])
            known = [value for value in bucket if not math.isnan(value)] or bucket[:1]
            low, high = min(known), max(known)
        else:
            low, high = min(bucket), max(bucket)
        picked.update((begin + bucket.index(low), begin + bucket.index(high), end - 1))
    return sorted(picked)


def has_nan(values: Sequence[float]) -> bool:
    """Whether a nan is among the values.

    >>> has_nan([1.0, math.nan]), has_nan([math.inf, -math.inf])
    (True, False)
    """
    # The sum tells several times faster that there is none.
    return math.isnan(sum(values)) and any(map(math.isnan, values))


def _buckets(
    ordinals: Sequence[int], stride: int, start: int, stop: int
) -> Iterator[tuple[int, int]]:
    while start < stop:
        end = bisect_left(ordinals, (ordinals[start] // stride + 1) * stride, start, stop)
        yield start, end
        start = end
