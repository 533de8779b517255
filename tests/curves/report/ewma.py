"""A Python reference for the smoothing in the JavaScript of the HTML report."""

from __future__ import annotations

import math
from collections.abc import Sequence


def ewma(values: Sequence[float], span: float) -> list[float]:
    """Average with weights that decay exponentially, by 1 - 2 / (span + 1) per point.

    Values that are not finite remain unchanged and have no weight. The bias towards the initial
    zero is corrected as in TensorBoard (tensorflow/tensorboard, pull request 639), by the sum of
    the weights so far, 1 - weight ** count. TensorBoard's smoothing of 0.9 is a span of 19.

    >>> ewma([2.0, 2.0, math.nan, 2.0], 19)
    [2.0, 2.0, nan, 2.0]
    >>> [round(value, 3) for value in ewma([0.0, 1.0], 3)]
    [0.0, 0.667]
    """
    weight = 1 - 2 / (span + 1)
    total, left = 0.0, 1.0
    smoothed = []
    for value in values:
        if math.isfinite(value):
            total = weight * total + (1 - weight) * value
            left *= weight
            value = total / (1 - left)
        smoothed.append(value)
    return smoothed
