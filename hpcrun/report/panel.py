"""How a panel of a picture shows its values: on which axis, and with a trend or without."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcrun.metrics.names import LR
from hpcrun.report.axes import Axis, value_axis
from hpcrun.report.smooth import smooth

# Fewer points show all they have.
FEWEST = 60
# Of the height of the picture. A terminal's rows are coarser: see smooth.NOISE.
VISIBLE = 0.004


def panel_axis(name: str, values: Sequence[float]) -> Axis:
    """Choose the axis of a metric: ``axes.value_axis``, but linear for the learning rate.

    A schedule that ends near zero is read by its shape. Without a finite value: from 0 to 1.

    >>> panel_axis("lr", [1.0, 1e-6]).is_log, panel_axis("loss", [1.0, 1e-6]).is_log
    (False, True)
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return Axis(0.0, 1.0)
    axis = value_axis(finite)
    if name == LR and axis.is_log:
        margin = 0.02 * max(finite)
        return Axis(min(finite) - margin, max(finite) + margin)
    return axis


def is_visibly_noisy(x: Sequence[float], values: Sequence[float], axis: Axis) -> bool:
    """Tell whether at least 60 values scatter about their trend by a 250th of the axis' length.

    That is the root mean square; values that are not finite are passed over.

    >>> steps = [float(step) for step in range(200)]
    >>> is_visibly_noisy(steps, [2 - step / 200 for step in steps], Axis(1.0, 2.0))
    False
    >>> is_visibly_noisy(steps, [1.5 + 0.01 * (-1) ** step for step in range(200)], Axis(1.0, 2.0))
    True
    """
    finite = [value if math.isfinite(value) else math.nan for value in values]
    pairs = zip(finite, smooth(x, finite), strict=True)
    squares = [(axis.place(a) - axis.place(b)) ** 2 for a, b in pairs if math.isfinite(a)]
    return len(squares) >= FEWEST and sum(squares) / len(squares) > VISIBLE**2
