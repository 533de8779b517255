"""Thinned columns: what stays exact, what is representative, what becomes approximate."""

from __future__ import annotations

import math
import tracemalloc
from array import array
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.metrics.curve import Series, build_series
from hpcrun.metrics.curves.build import CurveBuilder
from hpcrun.metrics.curves.column import Column
from hpcrun.metrics.curves.passes import Pass
from hpcrun.metrics.curves.thin import pick
from hpcrun.metrics.row import Frame, Layout
from tests.metrics.rows import at, build

_FIRST = Pass()


def thinned(
    values: Sequence[float], limit: int, pieces: int = 7, steps: Sequence[int] | None = None
) -> Series:
    """Put values in a column with a limit, piece by piece."""
    column = Column(limit)
    steps = range(len(values)) if steps is None else steps
    for start in range(0, len(values), pieces):
        end = start + pieces
        column.extend(_FIRST, steps[start:end], values[start:end], None)
        column.compact()
    return column.series()


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=800),
    st.integers(16, 100),
    st.integers(1, 900),
)
def test_the_summary_of_rising_steps_is_exact(values: list[float], limit: int, pieces: int) -> None:
    series = thinned(values, limit, pieces)
    assert series.summary == build_series([*range(len(values))], values).summary
    assert len(series.values) <= limit
    assert series.thinned == (len(values) > len(series.values))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=800), st.integers(16, 100))
def test_what_is_kept_stands_in_the_log(values: list[float], limit: int) -> None:
    series = thinned(values, limit)
    steps = [step for step in series.steps if step is not None]
    assert [values[step] for step in steps] == series.values
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (0, len(values) - 1)


def test_a_nan_and_a_spike_are_kept() -> None:
    values = [1.0] * 100_000
    values[12_345], values[23_456], values[34_567] = 99.0, math.nan, -math.inf
    series = thinned(values, limit=200, pieces=5000)
    kept = dict(zip(series.steps, series.values, strict=True))
    assert kept[12_345] == 99.0
    assert math.isnan(kept[23_456])
    assert series.summary.min == (34_567, -math.inf)


def test_no_stretch_of_the_log_is_left_out() -> None:
    series = thinned([math.sin(step / 50) for step in range(100_000)], limit=400, pieces=999)
    steps = [step for step in series.steps if step is not None]
    assert max(high - low for low, high in pairwise(steps)) < 3000


def test_quantiles_are_of_evenly_spaced_values_and_not_of_extremes() -> None:
    values = [10.0 if step % 100 == 0 else 1.0 + step % 10 / 100 for step in range(200_000)]
    frame = Frame(
        Layout("x", "train", None, None, ("step_seconds",)),
        array("q", range(len(values))),
        array("q", range(len(values))),
        None,
        None,
        (array("d", values),),
    )
    builder = CurveBuilder(limit=400)
    builder.begin(0)
    builder.add([frame])
    curve = builder.curve()
    assert curve.metrics["step_seconds"].thinned
    assert curve.quantile("step_seconds", 0.5) == pytest.approx(1.05, abs=0.02)
    assert curve.quantile("step_seconds", 0.95) == pytest.approx(1.09, abs=0.02)


def test_buckets_that_are_joined_lose_no_extreme() -> None:
    values = [3.0, 9.0, 4.0, 5.0, 5.0, 1.0, 6.0, 7.0]
    once = pick(values, range(8), 4, 0, 8)
    twice = [once[index] for index in pick([values[i] for i in once], once, 8, 0, len(once))]
    assert twice == pick(values, range(8), 8, 0, 8) == [0, 1, 5, 7]


@pytest.mark.parametrize("limit", [None, 64])
def test_a_replay_into_the_thinned_part(limit: int | None) -> None:
    lines = [at(0, step, 1.0) for step in range(0, 10_000, 2)]
    lines += [at(1, step, 2.0) for step in range(3000, 12_000, 2)]
    curve = build(lines, limit=limit, cuts=range(0, 5000, 700))
    summary = curve.summary("loss")
    assert summary is not None
    assert (summary.count, summary.first, summary.last) == (6000, (0, 1.0), (11_998, 2.0))
    assert (summary.min, summary.max) == ((0, 1.0), (3000, 2.0))
    kept = dict(zip(curve.steps("loss"), curve.values("loss"), strict=True))
    assert all(value == (2.0 if (step or 0) >= 3000 else 1.0) for step, value in kept.items())
    assert curve.restarts[0].replayed == 7000 - 1


def test_a_value_that_comes_late_among_the_newest_points_is_exact() -> None:
    column = Column(100)
    column.extend(_FIRST, range(1000), [1.0] * 1000)
    column.compact()
    column.extend(_FIRST, [990, 999], [5.0, 6.0])
    series = column.series()
    assert (series.steps[-10], series.values[-10]) == (990, 5.0)
    assert series.summary.last == (999, 6.0)
    assert series.summary.count == 1000


def test_a_value_that_comes_very_late_replaces_a_kept_point_or_is_left_out() -> None:
    column = Column(100)
    column.extend(_FIRST, range(1000), [1.0] * 1000)
    column.compact()
    column.extend(_FIRST, [0, 3], [5.0, 6.0])
    series = column.series()
    assert series.summary.first == (0, 5.0)
    assert series.summary.count == 1000
    assert 6.0 not in series.values


def test_attempts_are_joined_within_the_limit() -> None:
    lines = [at(a, step, float(a)) for a in range(3) for step in range(a * 900, a * 900 + 1000)]
    series = build(lines, limit=50).metrics["loss"]
    assert len(series.values) <= 50
    assert series.summary == build(lines).metrics["loss"].summary


def test_without_steps_the_order_is_thinned() -> None:
    curve = build([at(a, None, float(step)) for a in (0, 1) for step in range(500)], limit=40)
    series = curve.metrics["loss"]
    assert len(series.values) <= 40
    assert set(series.steps) == {None}
    assert (series.summary.count, series.summary.max) == (1000, (None, 499.0))


@pytest.mark.slow
def test_a_counter_that_falls_at_each_row_takes_no_more_than_linear_time() -> None:
    lines = [at(0, 40_000 - step, 1.0, name="lr") for step in range(40_000)]
    assert len(build(lines).steps("lr")) == 40_000


@pytest.mark.slow
def test_memory_is_bounded_however_long_the_log() -> None:
    names = tuple(f"metric_{index}" for index in range(20))
    rows = 10_000
    builder = CurveBuilder(limit=4000)
    builder.begin(0)
    tracemalloc.start()
    for piece in range(10):
        offsets = array("q", range(piece * rows, (piece + 1) * rows))
        values = array("d", [float(offset % 977) for offset in offsets])
        layout = Layout("x", "train", None, None, names)
        builder.add([Frame(layout, offsets, offsets, None, None, (values,) * len(names))])
        if piece == 4:
            half = tracemalloc.get_traced_memory()[0]
    whole = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert whole < 20e6
    assert whole < 1.2 * half
    assert builder.curve().metrics["metric_7"].summary.count == 10 * rows
