"""What a curve is drawn over: steps, tokens, wall time, or the order of its points.

Where a log does not print an axis, it is derived from what it does print: tokens from a rate and
step times, time from step times. Nothing is guessed beyond that: an axis that the log cannot give
is None, and the caller falls back on the next one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Literal

from hpcrun.metrics.curve import Curve, Series
from hpcrun.metrics.names import STEP_SECONDS, TOKENS_PER_SECOND

By = Literal["step", "tokens", "time", "order"]

# Metrics that count the tokens seen so far, as loggers spell them (HF Trainer, TRL, torchtune,
# Megatron, OLMo, lit-gpt ...); compared in lower case, by what follows the last slash.
TOKEN_COUNTERS = frozenset(
    {
        *("tokens", "num_tokens", "total_tokens", "n_tokens", "ntokens", "tokens_seen"),
        *("num_input_tokens_seen", "num_tokens_seen", "n_tokens_seen", "ntokens_seen"),
        *("consumed_tokens", "consumed_train_tokens", "tokens_consumed", "tokens_processed"),
        *("total_tokens_seen", "train_tokens", "tokens_so_far", "cumulative_tokens"),
    }
)

# Clocks of several ranks in one log differ by less; a larger fall is a clock that was set back, or
# days whose date the log does not print.
_CLOCKS_DIFFER_SECONDS = 1.0


def x_axis(curve: Curve, name: str, by: By = "step") -> list[float] | None:
    """Return where each point of a metric stands on an axis; None where the log cannot tell.

    The list is as long as the metric's values and never falls.

    - "step": the step. None where the log has no steps, or where its counter starts again.
    - "tokens": tokens seen since the training began, from a counter in the log, else from
      tokens_per_second and step_seconds: tokens of a GPU where the log gives the rate per GPU.
    - "time": seconds since the log's first time stamp; without time stamps, the sum of
      step_seconds since the log's first step, which leaves out evaluations and checkpoints.
    - "order": 1, 2, 3 ...; spread evenly over a series that was thinned.

    >>> from hpcrun.metrics.curve import build_series
    >>> curve = Curve({"loss": build_series([5, 10], [2.0, 1.5], [100.0, 130.0])}, ())
    >>> [x_axis(curve, "loss", by) for by in ("step", "time", "order", "tokens")]
    [[5.0, 10.0], [0.0, 30.0], [1.0, 2.0], None]
    """
    series = curve.metrics.get(name)
    if series is None or not series.values:
        return None
    if by == "order":
        return _order(series)
    if by == "step":
        return _rising_steps(series)
    return _tokens(curve, series) if by == "tokens" else _seconds(curve, series)


def shared_axis(curves: Sequence[Curve], name: str, by: By = "step") -> By:
    """Return ``by`` if all curves that have the metric have that axis, else "step" or "order"."""
    shown = [curve for curve in curves if name in curve.metrics]
    for choice in (by, "step"):
        if all(x_axis(curve, name, choice) is not None for curve in shown):
            return choice
    return "order"


def time_unit(longest: float) -> tuple[float, str]:
    """Choose the unit for an axis of so many seconds: its size in seconds, and its name.

    >>> time_unit(7200.0), time_unit(20_000.0)
    ((60.0, 'minutes'), (3600.0, 'hours'))
    """
    units = ((3600.0, "hours"), (60.0, "minutes"))
    return next((unit for unit in units if longest >= 3 * unit[0]), (1.0, "seconds"))


def _order(series: Series) -> list[float]:
    kept, count = len(series.values), series.summary.count
    if kept < 2 or kept == count:
        return [float(index + 1) for index in range(kept)]
    return [1 + index * (count - 1) / (kept - 1) for index in range(kept)]


def _rising_steps(series: Series) -> list[float] | None:
    steps = [float(step) for step in series.steps if step is not None]
    if len(steps) < len(series.values) or any(after < before for before, after in pairwise(steps)):
        return None
    return steps


def _tokens(curve: Curve, series: Series) -> list[float] | None:
    for name, counter in curve.metrics.items():
        if name.lower().rpartition("/")[2] in TOKEN_COUNTERS and _rises(counter.values):
            return _carried(counter, counter.values, series)
    rate, seconds = curve.metrics.get(TOKENS_PER_SECOND), curve.metrics.get(STEP_SECONDS)
    if rate is None or seconds is None or rate.steps != seconds.steps:
        return None
    per_step = [a * b for a, b in zip(rate.values, seconds.values, strict=True)]
    even = [a * b for a, b in zip(rate.sample or (), seconds.sample or (), strict=False)]
    return _carried(rate, _summed(rate, per_step, even), series)


def _seconds(curve: Curve, series: Series) -> list[float] | None:
    if series.times is not None:
        if any(b < a - _CLOCKS_DIFFER_SECONDS for a, b in pairwise(series.times)):
            return None
        begun = min(other.times[0] for other in curve.metrics.values() if other.times)
        return [max(0.0, at - begun) for at in accumulate(series.times, max)]
    per_step = curve.metrics.get(STEP_SECONDS)
    if per_step is None:
        return None
    return _carried(per_step, _summed(per_step, per_step.values, per_step.sample), series)


def _rises(values: Sequence[float]) -> bool:
    """Tell whether a metric counts up; one that stands still or has nan does not."""
    return values[-1] > values[0] >= 0 and all(b >= a for a, b in pairwise(values))


def _summed(
    series: Series, per_step: Sequence[float], even: Sequence[float] | None = None
) -> list[float] | None:
    """Sum what each step took; a value stands for the steps since the one before it.

    Of a thinned series lows and highs were kept on purpose, so that their sum is not the whole's:
    then each step takes the mean of ``even``, which are evenly spaced.
    """
    steps = _rising_steps(series)
    if steps is None or not all(0 <= value < float("inf") for value in per_step):
        return None
    # The first value stands for as many steps as the second, but for none before the first step.
    first = min(steps[1] - steps[0] if len(steps) > 1 else 1.0, steps[0]) or 1.0
    if series.thinned:
        mean = sum(even) / len(even) if even else None
        return None if mean is None else [mean * (step - steps[0] + first) for step in steps]
    spans = [first, *(b - a for a, b in pairwise(steps))]
    return list(accumulate(span * value for span, value in zip(spans, per_step, strict=True)))


def _carried(
    counter: Series, counted: Sequence[float] | None, series: Series
) -> list[float] | None:
    """Read a counter at the steps of another series, in a straight line between its own."""
    if counted is None:
        return None
    if counter.steps == series.steps:
        return list(counted)
    at, wanted = _rising_steps(counter), _rising_steps(series)
    if at is None or wanted is None or len(at) < 2 or at[0] == at[-1]:
        return None
    return [_read(at, counted, step) for step in wanted]


def _read(at: Sequence[float], counted: Sequence[float], step: float) -> float:
    """Interpolate, or carry on the nearest piece's slope, never below zero.

    >>> [_read([10, 20], [100, 300], step) for step in (0, 15, 20, 30)]
    [0.0, 200.0, 300.0, 500.0]
    """
    above = min(max(bisect_left(at, step), 1), len(at) - 1)
    below = above - 1
    while below > 0 and at[below] == at[above]:
        below -= 1
    while above < len(at) - 1 and at[below] == at[above]:
        above += 1
    slope = (counted[above] - counted[below]) / (at[above] - at[below])
    return max(0.0, counted[below] + (step - at[below]) * slope)
