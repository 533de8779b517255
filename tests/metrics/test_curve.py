"""Views of the samples: replays, epochs, order, summaries."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.metrics.curve import Restart, Series, build_curve, quantile
from hpcrun.metrics.sample import Sample


def at(
    attempt: int,
    step: int | None,
    value: float,
    *,
    name: str = "loss",
    epoch: float | None = None,
) -> Sample:
    return Sample(attempt, 0, epoch, step, "train", name, value)


def test_a_later_attempt_replaces_what_it_replays() -> None:
    first = [at(0, step, 10.0 - step) for step in range(1, 6)]
    second = [at(1, step, 20.0 - step) for step in range(4, 9)]
    curve = build_curve(first + second)
    assert curve.series("loss") == Series(
        [1, 2, 3, 4, 5, 6, 7, 8], [9.0, 8.0, 7.0, 16.0, 15.0, 14.0, 13.0, 12.0]
    )
    assert curve.restarts == (Restart(1, lost_at=5, resumed_at=4, replayed=2),)


def test_steps_not_reached_again_are_gone_with_their_weights() -> None:
    samples = [at(0, step, 1.0) for step in range(1, 101)]
    samples += [at(0, 100, 1.0, name="eval_loss"), at(1, 51, 2.0), at(1, 52, 2.0)]
    curve = build_curve(samples)
    assert curve.series("loss").steps == list(range(1, 53))
    assert curve.series("eval_loss").steps == []
    assert "eval_loss" not in curve.metrics


def test_an_evaluation_before_training_replaces_no_training() -> None:
    samples = [at(0, step, 1.0) for step in range(1, 101)] + [at(0, 50, 3.0, name="eval_loss")]
    samples += [at(1, 0, 9.0, name="eval_loss"), at(1, 81, 2.0)]
    curve = build_curve(samples)
    assert curve.series("loss").steps == list(range(1, 82))
    assert curve.series("eval_loss").steps == [0, 50]


def test_an_attempt_without_a_metric_is_a_restart() -> None:
    curve = build_curve([at(0, 1, 1.0), at(2, 2, 1.0)], attempts=[0, 1, 2])
    assert curve.restarts == (Restart(1, 1, None, 0), Restart(2, 1, 2, 0))


def test_interleaved_values_of_one_step_count_once() -> None:
    curve = build_curve([at(0, s, float(i)) for i, s in enumerate([1, 1, 2, 1, 2, 3, 2, 3])])
    assert curve.series("loss") == Series([1, 2, 3], [3.0, 6.0, 7.0])


def test_a_counter_that_starts_again_each_epoch_is_no_replay() -> None:
    samples = [at(0, s, e + s / 10, epoch=float(e)) for e in range(3) for s in range(2)]
    curve = build_curve(samples)
    assert curve.series("loss") == Series([0, 1] * 3, [0.0, 0.1, 1.0, 1.1, 2.0, 2.1])
    assert curve.restarts == ()


def test_a_counter_that_starts_again_without_an_epoch() -> None:
    samples = [at(0, s, float(e * 10 + s)) for e in range(2) for s in range(4)]
    assert build_curve(samples).series("loss").values == [0, 1, 2, 3, 10, 11, 12, 13]


def test_a_restart_within_epochs_replays_its_epoch() -> None:
    samples = [at(0, s, 1.0, epoch=float(e)) for e in range(3) for s in range(5)]
    samples += [at(1, s, 2.0, epoch=2.0) for s in range(2, 5)]
    curve = build_curve(samples)
    assert curve.series("loss").steps == [*range(5), *range(5), *range(5)]
    assert curve.series("loss").values == [1.0] * 12 + [2.0] * 3
    assert curve.restarts == (Restart(1, lost_at=4, resumed_at=2, replayed=3),)


def test_an_attempt_per_epoch_is_no_replay() -> None:
    samples = [at(e, s, 1.0, epoch=float(e)) for e in range(3) for s in range(5)]
    curve = build_curve(samples)
    assert len(curve.series("loss").steps) == 15
    assert [restart.replayed for restart in curve.restarts] == [0, 0]


def test_without_steps_the_order_counts() -> None:
    curve = build_curve([at(0, None, 3.0), at(0, None, 2.0)])
    assert curve.series("loss") == Series([None, None], [3.0, 2.0])


def test_a_closing_summary_without_a_step_is_left_out() -> None:
    curve = build_curve([at(0, 1, 3.0), at(0, None, 9.0)])
    assert curve.series("loss") == Series([1], [3.0])


def test_summary() -> None:
    values = [3.0, math.nan, 1.0, math.inf, 2.0]
    summary = build_curve([at(0, i, v) for i, v in enumerate(values)]).summary("loss")
    assert summary is not None
    assert (summary.count, summary.first, summary.last) == (5, (0, 3.0), (4, 2.0))
    assert (summary.min, summary.max) == ((2, 1.0), (3, math.inf))


def test_summary_of_nothing() -> None:
    assert build_curve([]).summary("loss") is None
    only_nan = build_curve([at(0, 1, math.nan)]).summary("loss")
    assert only_nan is not None
    assert only_nan.min is None and only_nan.max is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
def test_quantile_lies_among_the_values(values: list[float], share: float) -> None:
    found = quantile(values, share)
    assert found is not None
    assert min(values) - 1e-6 <= found <= max(values) + 1e-6
    assert quantile(values, 0.0) == min(values)
    assert quantile(values, 1.0) == pytest.approx(max(values))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.floats(0, 9)), max_size=60))
def test_a_curve_invents_no_point(rows: list[tuple[int, int, float]]) -> None:
    samples = [at(attempt, step, value) for attempt, step, value in rows]
    said = {(sample.step, sample.value) for sample in samples}
    steps, values = build_curve(samples).series("loss")
    assert set(zip(steps, values, strict=True)) <= said
    if samples:
        last = max(samples, key=lambda sample: sample.attempt).attempt
        newest = {sample.step for sample in samples if sample.attempt == last}
        assert newest <= set(steps)
