"""Choose the axes, ranges, scales and ticks of a plot, and smooth its curves.

An axis is logarithmic if all values are positive and the maximum is at least ``DECADES`` times the
first percentile. A linear axis ignores outliers: if the full range exceeds ``CROWDED`` times the
range of the middle 96% of at least 50 values, the axis shows only that middle range.

Smoothing fits a straight line by least squares to the points around each value (Savitzky and
Golay, Analytical Chemistry 36, 1964; order 1). Unlike a moving average, the fit lags neither
behind a falling curve nor at its end. A training loss falls fastest at its start, so the window
grows with the distance from the start: half of that distance, limited to a twentieth of the points
and to 1,000 points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from hpcrun.curves.curve import Curve, Floats, Series
from hpcrun.curves.names import EPOCH, LR, STEP_SECONDS, TOKENS_PER_SECOND, words
from hpcrun.curves.report.parsed import ParsedRun
from hpcrun.text import format_value

By = Literal["step", "epoch", "tokens", "time", "order"]

DECADES = 100.0
CROWDED = 20.0
# Beyond these limits the width of a range can overflow, and the logarithm of a value can fail.
_LARGEST, _SMALLEST = 1e290, 1e-300
_SMALLEST_WINDOW, _LARGEST_WINDOW = 3, 1000
# Image panels with fewer points than this are drawn without smoothing.
FEWEST = 60

# Names that loggers give to the cumulative token count (HF Trainer, TRL, torchtune, Megatron, OLMo,
# lit-gpt ...). The part of a metric name after the last slash is compared in lower case.
TOKEN_COUNTERS = words(
    "tokens num_tokens total_tokens n_tokens ntokens tokens_seen num_input_tokens_seen "
    "num_tokens_seen n_tokens_seen ntokens_seen consumed_tokens consumed_train_tokens "
    "tokens_consumed tokens_processed total_tokens_seen train_tokens tokens_so_far "
    "cumulative_tokens"
)

# The clocks of several ranks in one log differ by less than this. A larger decrease means that a
# clock was set back, or that the log prints times without dates and passed midnight.
_CLOCKS_DIFFER_SECONDS = 1.0


class Axis(Struct, frozen=True):
    """The range and scale of an axis.

    Attributes:
        low: Lower limit, less than ``high``; positive on a logarithmic axis.
        high: Upper limit.
        is_log: Whether the axis is logarithmic.
    """

    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 to 1; nan if it is not finite.

        Values outside the range are clamped to its nearest limit.

        >>> Axis(2.0, 4.0).place(3.0), Axis(1.0, 100.0, True).place(10.0), Axis(0.0, 1.0).place(9.0)
        (0.5, 0.5, 1.0)
        """
        if not math.isfinite(value):
            return math.nan
        value = min(self.high, max(self.low, value))
        if self.is_log:
            low = math.log(self.low)
            return (math.log(value) - low) / (math.log(self.high) - low)
        return (value - self.low) / (self.high - self.low)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def ticks(self, most: int, *, whole: bool = False) -> list[float]:
        """Return at most ``most`` round numbers within the range, evenly spaced on its scale."""
        if self.is_log:
            return log_ticks(self.low, self.high, most)
        return ticks(self.low, self.high, most, whole=whole)


def value_axis(values: Sequence[float]) -> Axis:
    """Choose the axis for values of which at least one is finite."""
    ordered = np.sort([value for value in values if math.isfinite(value)])
    places = np.rint(np.array([0, 0.01, 0.02, 0.98, 1]) * (len(ordered) - 1)).astype(int)
    low, least, inner_low, inner_high, high = np.clip(ordered[places], -_LARGEST, _LARGEST).tolist()
    if low > _SMALLEST and high >= DECADES * least:
        margin = math.exp(0.02 * (math.log(high) - math.log(low)))
        return Axis(low / margin, high * margin, is_log=True)
    inner = inner_high - inner_low
    if len(ordered) >= 50 and 0 < inner * CROWDED < high - low:
        low, high = max(low, inner_low - 0.1 * inner), min(high, inner_high + 0.1 * inner)
    return Axis(*_widen(low, high, 0.02))


def step_axis(steps: Sequence[float]) -> Axis:
    """Choose a linear axis that covers all steps exactly, without a margin."""
    low, high = np.clip([min(steps), max(steps)], -_LARGEST, _LARGEST).tolist()
    return Axis(*_widen(low, high, 0.0))


def _widen(low: float, high: float, share: float) -> tuple[float, float]:
    """Extend a range by a share of its width on both sides; the result is never empty."""
    margin = (high - low) * share
    if high - low <= max(1e-9 * max(abs(low), abs(high)), 1e-300):
        margin = abs(high) * 0.05 if abs(high) > 1e-290 else 1.0
    return low - margin, high + margin


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Return at most ``most`` evenly spaced round numbers between ``low`` and ``high``.

    >>> ticks(0.93, 4.1, 5), ticks(1, 200, 4, whole=True), ticks(1, 3, 9, whole=True)
    ([1.0, 2.0, 3.0, 4.0], [50.0, 100.0, 150.0, 200.0], [1.0, 2.0, 3.0])
    """
    exponent = math.floor(math.log10((high - low) / max(1, most))) if high > low else 0
    for power in range(exponent, exponent + 3):
        for digit in (1.0, 2.0, 2.5, 5.0):
            step = digit * 10.0**power
            if whole and step != int(step):
                continue
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
            if last - first < most:
                return [number * step for number in range(first, last + 1)]
    return []


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most ``most`` ticks of a logarithmic axis: powers of ten, and steps between them.

    >>> log_ticks(0.5, 20, 9), log_ticks(0.5, 200, 3), log_ticks(1e-9, 1e9, 4)
    ([0.5, 1.0, 2.0, 5.0, 10.0, 20.0], [1.0, 10.0, 100.0], [1e-05, 1.0, 100000.0])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    strides = [((1,), stride) for stride in range(1, last - first + 2)]
    for digits, stride in (((1, 2, 5), 1), ((1, 3), 1), *strides):
        found = [
            tick
            for power in range(first, last + 1)
            for digit in digits
            if power % stride == 0 and low <= (tick := float(f"{digit}e{power}")) <= high
        ]
        if len(found) <= most:
            return found
    return []


def tick_labels(at: Sequence[float], *, is_log: bool = False) -> list[str]:
    """Format ticks with the fewest decimals that keep them distinct.

    >>> tick_labels([0.0, 0.5, 1.0]), tick_labels([2e-05, 4e-05]), tick_labels([500.0, 10000.0])
    (['0.0', '0.5', '1.0'], ['2e-05', '4e-05'], ['500', '10000'])
    >>> tick_labels([0.01, 0.1, 1.0, 10.0], is_log=True)
    ['0.01', '0.1', '1', '10']
    """
    gap = min((b - a for a, b in pairwise(at)), default=0.0)
    if is_log or gap < 1e-4 or max(map(abs, at)) >= 1e6:
        return [f"{v:g}" if v == 0 or 1e-3 <= abs(v) < 1e6 else format_value(v) for v in at]
    decimals = next(
        (d for d in range(6) if abs(gap * 10**d - round(gap * 10**d)) < 1e-6 * gap * 10**d), 6
    )
    return [f"{value:.{decimals}f}" for value in at]


def x_axis(curve: Curve, name: str, by: By = "step") -> list[float] | None:
    """Return the x coordinate of each point of a metric.

    Args:
        curve: The metrics of a run.
        name: The metric.
        by: The quantity on the axis.

            - "step": the training step.
            - "epoch": epochs since the start, if the step counter restarts with each epoch.
            - "tokens": tokens processed since the start of training, from a counter in the log, or
              from tokens_per_second and step_seconds. If the log gives the rate per GPU, the
              result counts the tokens of one GPU.
            - "time": seconds since the first timestamp of the log. Without timestamps, the sum of
              step_seconds since the first logged step, which excludes evaluations and checkpoints.
            - "order": 1, 2, 3 ...; evenly spaced over a thinned series.

    Returns:
        A non-decreasing list as long as the metric's values, or None if the log lacks the
        quantity. Steps are unavailable if the log has none or if its step counter restarts.
    """
    series = curve.metrics.get(name)
    if series is None or not series.values:
        return None
    found: Floats | None
    with np.errstate(all="ignore"):  # a log may have infinities
        if by == "order":
            found = np.linspace(1, series.summary.count, len(series.values))
        elif by == "step":
            found = _rising_steps(series)
        elif by == "epoch":
            found = _epoch_axis(curve, series)
        else:
            found = _token_axis(curve, series) if by == "tokens" else _time_axis(curve, series)
    # An infinite step time makes the cumulative sum infinite, which has no position on an axis.
    return None if found is None or not np.isfinite(found).all() else list(found.tolist())


def shared_axis(curves: Sequence[Curve], name: str, by: By = "step") -> By:
    """Return the first axis that all curves with the metric have: ``by``, steps, epochs, order."""
    shown = [curve for curve in curves if name in curve.metrics]
    choices: tuple[By, ...] = (by, "step", "epoch")
    for choice in choices:
        if all(x_axis(curve, name, choice) is not None for curve in shown):
            return choice
    return "order"


def time_unit(longest: float) -> tuple[float, str]:
    """Choose the unit of a time axis that spans ``longest`` seconds.

    Returns:
        The size of the unit in seconds, and its name.

    >>> time_unit(7200.0), time_unit(20_000.0)
    ((60.0, 'minutes'), (3600.0, 'hours'))
    """
    units = ((3600.0, "hours"), (60.0, "minutes"))
    return next((unit for unit in units if longest >= 3 * unit[0]), (1.0, "seconds"))


def _rising_steps(series: Series) -> Floats | None:
    steps = np.array(series.steps, float)  # an unknown step (None) becomes nan
    return steps if (np.diff(steps, prepend=-np.inf) >= 0).all() else None


def _epoch_axis(curve: Curve, series: Series) -> Floats | None:
    """Return the epochs of points whose step counter restarts with each epoch.

    The length of an epoch is not logged, so its highest logged step counts as its end.
    """
    epochs, steps = curve.metrics.get(EPOCH), np.array(series.steps, float)
    if epochs is None or np.isnan(steps).any():
        return None
    done = np.cumsum(np.append(False, steps[1:] < steps[:-1]))
    first, last = epochs.summary.first.value, epochs.summary.last.value
    if first % 1 or done[-1] == 0 or done[-1] != last - first:  # several runs, or a resumed one
        return None
    begun = first - (first >= 1)  # epochs count from 0 or from 1
    found: Floats = begun + done + steps / steps.max()
    return found


def is_token_counter(name: str) -> bool:
    """Return True if a metric is a cumulative token count, judged by its name."""
    return name.lower().rpartition("/")[2] in TOKEN_COUNTERS


def _token_axis(curve: Curve, series: Series) -> Floats | None:
    for name, counter in curve.metrics.items():
        if is_token_counter(name) and counter.values[-1] > counter.values[0] >= 0:
            counted = np.array(counter.values)
            if (np.diff(counted) >= 0).all():
                return _interpolate_counter(counter, counted, series)
    rate, seconds = curve.metrics.get(TOKENS_PER_SECOND), curve.metrics.get(STEP_SECONDS)
    if rate is None or seconds is None or rate.steps != seconds.steps:
        return None
    if rate.sample_steps != seconds.sample_steps:
        return None
    even = np.array(rate.sample or ()) * np.array(seconds.sample or ())
    return _interpolate_counter(
        rate, _accumulate(rate, np.array(rate.values) * seconds.values, even), series
    )


def _time_axis(curve: Curve, series: Series) -> Floats | None:
    if series.times is not None:
        if (np.diff(series.times) < -_CLOCKS_DIFFER_SECONDS).any():
            return None
        begun = min(other.times[0] for other in curve.metrics.values() if other.times)
        return np.fmax(0.0, np.maximum.accumulate(series.times) - begun)
    per_step = curve.metrics.get(STEP_SECONDS)
    if per_step is None:
        return None
    summed = _accumulate(per_step, np.array(per_step.values), np.array(per_step.sample or ()))
    return _interpolate_counter(per_step, summed, series)


def _accumulate(series: Series, per_step: Floats, even: Floats) -> Floats | None:
    """Accumulate a per-step quantity; a value applies to all steps since the previous point.

    Args:
        series: The metric that provides the steps.
        per_step: The quantity of one step at each point of ``series``.
        even: The quantity at evenly spaced points of a thinned series. Its mean is used for every
            step, because the extremes that thinning keeps would bias the sum.
    """
    steps = _rising_steps(series)
    if steps is None or not ((per_step >= 0) & (per_step < np.inf)).all():
        return None
    # The first value covers as many steps as the second, but none before the first step.
    first = min(steps[1] - steps[0] if len(steps) > 1 else 1.0, steps[0]) or 1.0
    if series.thinned:
        return even.mean() * (steps - steps[0] + first) if len(even) else None
    return np.cumsum(np.diff(steps, prepend=steps[0] - first) * per_step)


def _interpolate_counter(counter: Series, counted: Floats | None, series: Series) -> Floats | None:
    """Interpolate a counter linearly at the steps of another series."""
    if counted is None or counter.steps == series.steps:
        return counted
    at, wanted = _rising_steps(counter), _rising_steps(series)
    if at is None or wanted is None or at[0] == at[-1]:
        return None
    at, own = np.unique(at, return_index=True)
    counted = counted[own]
    below = np.clip(np.searchsorted(at, wanted) - 1, 0, len(at) - 2)
    slopes = np.diff(counted) / np.diff(at)
    return np.fmax(0.0, counted[below] + (wanted - at[below]) * slopes[below])


def panel_scale(runs: Sequence[ParsedRun], names: Sequence[str]) -> tuple[Axis, int]:
    """Choose a common axis for metrics of several runs, and count the values outside its range.

    Learning rates always get a linear axis, because a logarithmic one would distort the shape of a
    schedule that ends near zero.
    """
    values = [value for run in runs for name in names for value in run.curve.values(name)]
    finite = [value for value in values if math.isfinite(value)]
    scale = value_axis(finite) if finite else Axis(0.0, 1.0)
    if names[0] == LR and scale.is_log:
        margin = 0.02 * max(finite)
        scale = Axis(min(finite) - margin, max(finite) + margin)
    return scale, sum(not scale.holds(value) for value in finite)


def smooth(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """Smooth a curve over its increasing ``x``; non-finite values are returned unchanged."""
    smoothed = np.array(y, float)
    known = np.flatnonzero(np.isfinite(smoothed))
    count = len(known)
    if count < _SMALLEST_WINDOW:
        return list(y)
    xs, ys = np.array(x, float)[known] - x[known[0]], smoothed[known]
    place = np.arange(count)
    half = np.clip(place // 2, _SMALLEST_WINDOW, min(max(5, count // 20), _LARGEST_WINDOW)) // 2
    size = 2 * half + 1
    begin = np.clip(place - half, 0, count - size)
    borders = np.column_stack([begin, begin + size]).ravel()

    def each_window(function: np.ufunc, values: Any) -> Any:
        # Each window is summed separately, because the rounding error that an extreme value causes
        # in a cumulative sum would affect windows that do not contain the value.
        return function.reduceat(np.append(values, 0.0), borders)[::2]

    with np.errstate(all="ignore"):  # products of the largest values overflow
        mean_x, mean_y, mean_xx, mean_xy = (
            each_window(np.add, values) / size for values in (xs, ys, xs * xs, xs * ys)
        )
        spread = mean_xx - mean_x * mean_x
        slope = (mean_xy - mean_x * mean_y) / spread
        slope[spread <= 1e-12 * mean_xx] = 0.0  # all x are equal: use the mean
        line = mean_y + slope * (xs - mean_x)
    low, high = each_window(np.minimum, ys), each_window(np.maximum, ys)
    smoothed[known] = np.fmin(high, np.fmax(low, line))
    return list(smoothed.tolist())


def is_noisy(
    y: Sequence[float], smoothed: Sequence[float], *, fewest: int = 20, noise: float = 0.015
) -> bool:
    """Return True if values scatter visibly around their smoothed curve.

    Args:
        y: Values as fractions (0 to 1) of the plot height.
        smoothed: The smoothed values, in the same unit.
        fewest: Minimum number of finite points.
        noise: Smallest visible root mean square deviation. The default suits the coarse rows of a
            terminal.
    """
    squares = [(a - b) ** 2 for a, b in zip(y, smoothed, strict=True) if math.isfinite(a)]
    return len(squares) >= fewest and math.sqrt(sum(squares) / len(squares)) > noise


def is_visibly_noisy(x: Sequence[float], values: Sequence[float], axis: Axis) -> bool:
    """Return True if at least 60 values scatter around their trend by 0.4% of the axis."""
    places = [[axis.place(value) for value in each] for each in (values, smooth(x, values))]
    return is_noisy(*places, fewest=FEWEST, noise=0.004)
