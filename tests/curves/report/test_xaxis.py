"""The x axes of curves."""

from __future__ import annotations

import math

import pytest

from hpcrun.curves.curve import Curve, Series, build_series
from hpcrun.curves.report.axes import TOKEN_COUNTERS, shared_axis, x_axis


def curve(**metrics: Series) -> Curve:
    return Curve(metrics, ())


def of(
    values: list[float], steps: list[int | None] | None = None, times: list[float] | None = None
) -> Series:
    counted: list[int | None] = list(range(1, len(values) + 1))
    return build_series(steps or counted, values, times)


def test_rising_steps_are_an_axis() -> None:
    assert x_axis(curve(loss=of([3.0, 2.0], [10, 20])), "loss") == [10.0, 20.0]
    assert x_axis(curve(loss=of([3.0, 2.0], [10, 10])), "loss") == [10.0, 10.0]


@pytest.mark.parametrize("steps", [[None, None], [1, None], [2, 1]])
def test_missing_or_falling_steps_are_not_an_axis(steps: list[int | None]) -> None:
    fallen = curve(loss=of([3.0, 2.0], steps))
    assert x_axis(fallen, "loss", "step") is None
    assert x_axis(fallen, "loss", "order") == [1.0, 2.0]


def test_missing_metric_has_no_axis() -> None:
    for by in ("step", "tokens", "time", "order"):
        assert x_axis(curve(loss=of([3.0])), "eval_loss", by) is None


def test_order_axis_of_a_thinned_series_reaches_its_end() -> None:
    whole = of([float(n) for n in range(9)])
    thinned = Series([None] * 3, [0.0, 4.0, 8.0], None, whole.summary)
    assert x_axis(curve(loss=thinned), "loss", "order") == [1.0, 5.0, 9.0]


@pytest.mark.parametrize("name", ["num_tokens", "train/consumed_tokens", "Tokens"])
def test_tokens_are_interpolated_from_a_counter(name: str) -> None:
    found = Curve({"loss": of([9.0] * 4, [5, 10, 15, 30]), name: of([100.0, 300.0], [10, 20])}, ())
    assert x_axis(found, "loss", "tokens") == [0.0, 100.0, 200.0, 500.0]


@pytest.mark.parametrize("values", [[300.0, 100.0], [5.0, 5.0], [math.nan, 1.0], [-3.0, 1.0]])
def test_counter_must_rise(values: list[float]) -> None:
    assert x_axis(curve(loss=of([9.0, 8.0]), tokens=of(values)), "loss", "tokens") is None


def test_tokens_are_rate_times_step_time() -> None:
    found = curve(
        loss=of([9.0, 8.0, 7.0], [10, 20, 30]),
        tokens_per_second=of([100.0, 200.0, 50.0], [10, 20, 30]),
        step_seconds=of([2.0, 1.0, 4.0], [10, 20, 30]),
        eval_loss=of([8.5], [25]),
    )
    # Each value represents the ten preceding steps.
    assert x_axis(found, "loss", "tokens") == [2000.0, 4000.0, 6000.0]
    assert x_axis(found, "eval_loss", "tokens") == [5000.0]


def test_late_log_counts_from_its_first_step() -> None:
    found = curve(loss=of([9.0, 8.0], [1001, 1002]), step_seconds=of([2.0, 3.0], [1001, 1002]))
    assert x_axis(found, "loss", "time") == [2.0, 5.0]


def test_single_step_has_its_own_duration() -> None:
    assert x_axis(curve(step_seconds=of([2.0], [7])), "step_seconds", "time") == [2.0]
    assert x_axis(curve(step_seconds=of([2.0], [0])), "step_seconds", "time") == [2.0]


def test_time_axis_starts_at_the_first_time_stamp() -> None:
    found = curve(
        loss=of([3.0, 2.0], times=[1000.0, 1060.0]), lr=of([0.1, 0.1], times=[990.0, 1050.0])
    )
    assert x_axis(found, "loss", "time") == [10.0, 70.0]
    assert x_axis(found, "lr", "time") == [0.0, 60.0]


def test_clocks_may_jitter_but_not_go_back() -> None:
    close = curve(loss=of([3.0, 2.0, 1.0], times=[100.0, 99.5, 101.0]))
    assert x_axis(close, "loss", "time") == [0.0, 0.0, 1.0]
    back = curve(loss=of([3.0, 2.0], times=[100.0, 40.0]))
    assert x_axis(back, "loss", "time") is None


@pytest.mark.parametrize("seconds", [[1.0, math.nan], [1.0, math.inf], [1.0, -1.0]])
def test_invalid_times_are_not_an_axis(seconds: list[float]) -> None:
    assert x_axis(curve(loss=of([3.0, 2.0]), step_seconds=of(seconds)), "loss", "time") is None


def test_axis_must_be_available_for_all_runs() -> None:
    timed = curve(loss=of([3.0, 2.0], times=[1.0, 2.0]))
    stepped = curve(loss=of([3.0, 2.0]))
    bare = curve(loss=of([3.0, 2.0], [None, None]))
    other = curve(lr=of([3.0], [None]))
    assert shared_axis([timed, other], "loss", "time") == "time"
    assert shared_axis([timed, stepped], "loss", "time") == "step"
    assert shared_axis([timed, stepped, bare], "loss", "time") == "order"


def test_axes_are_monotonic_and_complete() -> None:
    series = of([float(n % 7) for n in range(50)], times=[1e9 + n for n in range(50)])
    found = curve(
        loss=series, step_seconds=of([0.5] * 50), num_tokens=of([n * 8.0 for n in range(50)])
    )
    for by in ("step", "tokens", "time", "order"):
        x = x_axis(found, "loss", by)
        assert x is not None and len(x) == 50 and x == sorted(x)


def test_counter_names_are_compared_folded() -> None:
    assert all(name == name.lower() and "/" not in name for name in TOKEN_COUNTERS)


def test_overflowing_time_is_ignored() -> None:
    metrics = {
        "step_seconds": build_series([0, 1], [2.0, 1e308]),
        "loss": build_series([1, 3], [2.0, 1.5]),
    }
    assert x_axis(Curve(metrics, ()), "loss", "time") is None


def test_epochs_are_an_axis_if_the_step_counter_restarts_with_each() -> None:
    steps: list[int | None] = [50, 100, 50, 100, 50]
    epochs = of([0.0, 0.0, 1.0, 1.0, 2.0], steps)
    found = curve(loss=of([5.0, 4.0, 3.0, 2.0, 1.0], steps), epoch=epochs)
    assert shared_axis([found], "loss") == "epoch"
    assert x_axis(found, "loss", "epoch") == [0.5, 1.0, 1.5, 2.0, 2.5]
    from_one = curve(loss=found.metrics["loss"], epoch=of([1.0, 1.0, 2.0, 2.0, 3.0], steps))
    assert x_axis(from_one, "loss", "epoch") == [0.5, 1.0, 1.5, 2.0, 2.5]


def test_epochs_of_several_runs_are_not_an_axis() -> None:
    steps: list[int | None] = [50, 100, 50, 100]
    found = curve(loss=of([5.0, 4.0, 3.0, 2.0], steps), epoch=of([0.0, 0.0, 0.0, 0.0], steps))
    assert x_axis(found, "loss", "epoch") is None and shared_axis([found], "loss") == "order"
