"""Thinned series: what stays exact, and what is representative."""

from __future__ import annotations

import math
import time
import tracemalloc
from array import array
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.curves.curve import Series, build_series
from hpcrun.curves.derive import derive_curve
from hpcrun.curves.report.thin import quantile_of
from hpcrun.curves.row import Frame, Mark, RowLayout, Scope
from hpcrun.curves.store import Store
from tests.curves.rows import Line, at, build, thin_to


def frame(values: Sequence[float], *names: str, first: int = 0) -> Frame:
    """Log a value at each step, under each name."""
    steps, column = array("q", range(first, first + len(values))), array("d", values)
    layout = RowLayout("x", Scope(), None, None, names)
    return Frame(layout, steps, steps, None, None, (column,) * len(names))


def thinned(values: Sequence[float], limit: int) -> Series:
    """Derive a curve of values with a limit."""
    store = Store()
    store.begin(0)
    store.add([frame(values, "loss")])
    return derive_curve(store, thin_to(limit)).metrics["loss"]


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=800), st.integers(16, 100))
def test_summary_of_a_thinned_series_is_exact(values: list[float], limit: int) -> None:
    series = thinned(values, limit)
    assert series.summary == build_series([*range(len(values))], values).summary
    assert len(series.values) <= limit
    assert series.thinned == (len(values) > len(series.values))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=800), st.integers(16, 100))
def test_kept_points_are_points_of_the_log(values: list[float], limit: int) -> None:
    series = thinned(values, limit)
    steps = [step for step in series.steps if step is not None]
    assert [values[step] for step in steps] == series.values
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (0, len(values) - 1)


def test_nan_and_spikes_are_kept() -> None:
    values = [1.0] * 100_000
    values[12_345], values[23_456], values[34_567] = 99.0, math.nan, -math.inf
    series = thinned(values, limit=200)
    kept = dict(zip(series.steps, series.values, strict=True))
    assert kept[12_345] == 99.0
    assert math.isnan(kept[23_456])
    assert series.summary.min == (34_567, -math.inf)


def test_every_section_of_the_log_is_represented() -> None:
    series = thinned([math.sin(step / 50) for step in range(100_000)], limit=400)
    steps = [step for step in series.steps if step is not None]
    assert max(high - low for low, high in pairwise(steps)) < 3000


def test_quantiles_use_evenly_spaced_values() -> None:
    values = [10.0 if step % 100 == 0 else 1.0 + step % 10 / 100 for step in range(200_000)]
    store = Store()
    store.begin(0)
    store.add([frame(values, "step_seconds")])
    curve = derive_curve(store, thin_to(400))
    assert curve.metrics["step_seconds"].thinned
    assert quantile_of(curve, "step_seconds", 0.5) == pytest.approx(1.05, abs=0.02)
    assert quantile_of(curve, "step_seconds", 0.95) == pytest.approx(1.09, abs=0.02)


@pytest.mark.parametrize("limit", [None, 64])
def test_replayed_steps_have_their_latest_value(limit: int | None) -> None:
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


def test_late_values_are_exact() -> None:
    lines = [at(0, step, 1.0) for step in range(1000)] + [at(0, 3, 6.0), at(0, 999, 5.0)]
    series = build(lines, limit=100).metrics["loss"]
    assert series.summary.max == (3, 6.0)
    assert (series.summary.count, series.summary.last) == (1000, (999, 5.0))


def test_joined_attempts_stay_within_the_limit() -> None:
    lines = [at(a, step, float(a)) for a in range(3) for step in range(a * 900, a * 900 + 1000)]
    series = build(lines, limit=50).metrics["loss"]
    assert len(series.values) <= 50
    assert series.summary == build(lines).metrics["loss"].summary


def test_series_without_steps_is_thinned_by_order() -> None:
    curve = build([at(a, None, float(step)) for a in (0, 1) for step in range(500)], limit=40)
    series = curve.metrics["loss"]
    assert len(series.values) <= 40
    assert set(series.steps) == {None}
    assert (series.summary.count, series.summary.max) == (1000, (None, 499.0))


@pytest.mark.slow
def test_falling_counter_takes_linear_time() -> None:
    lines = [at(0, 40_000 - step, 1.0, name="lr") for step in range(40_000)]
    assert len(build(lines).steps("lr")) == 40_000


@pytest.mark.slow
def test_thousands_of_formats_and_headings_take_linear_time() -> None:
    def seconds(count: int) -> float:
        lines = [
            each
            for n in range(count)
            for each in (
                Line(mark=Mark(epoch=float(n))),
                Line((("loss", 1.0), (f"norm_{n}", 2.0)), n),
            )
        ]
        begun = time.process_time()
        assert len(build(lines).metrics) == count + 1
        return time.process_time() - begun

    seconds(100)
    # With each form's rows sought among all headings, and each metric's among all forms: 64 times.
    short = min(seconds(500) for _ in range(3))
    assert min(seconds(4000) for _ in range(3)) < 32 * short


class TestMemory:
    def test_a_value_takes_at_most_16_bytes(self) -> None:
        names, rows = tuple(f"metric_{index}" for index in range(8)), 10_000
        values = [float(number) for number in range(rows)]
        tracemalloc.start()
        store = Store()
        store.begin(0)
        for piece in range(10):
            store.add([frame(values, *names, first=piece * rows)])
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert held <= 16 * 8 * 10 * rows

    @pytest.mark.slow
    def test_metrics_are_derived_one_after_the_other(self) -> None:
        """Joined from two forms each has a copy of its own."""

        def peak(count: int) -> int:
            names, rows = tuple(f"metric_{index}" for index in range(count)), 10_000
            store = Store()
            store.begin(0)
            for first, form in enumerate(("json", "dict")):
                places = array("q", range(first, rows, 2))
                columns = (array("d", places),) * count
                layout = RowLayout(form, Scope(), None, None, names)
                store.add([Frame(layout, places, places, None, None, columns)])
            tracemalloc.start()
            derive_curve(store, thin_to(100))
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return most

        peak(1)  # what is loaded at first use
        copied = 8 * 10_000
        assert peak(40) - peak(4) < 36 * copied / 4

    @pytest.mark.slow
    def test_deriving_takes_about_as_much_as_what_is_stored(self) -> None:
        """A row of eight values takes 80 bytes."""
        rows, names = 200_000, ("loss", *(f"metric_{index}" for index in range(7)))
        column = array("d", range(rows))
        layout = RowLayout("json", Scope(), None, None, names)
        places = array("q", range(rows))
        store = Store()
        store.begin(0)
        store.add([Frame(layout, places, places, None, column, (column,) * 8)])
        tracemalloc.start()
        derive_curve(store, thin_to(100))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 100 * rows

    def test_beyond_the_bound_every_kth_row_is_kept_and_a_note_says_so(self) -> None:
        store = Store(max_bytes=150_000)
        store.begin(0)
        for piece in range(10):
            values = [float(piece * 1000 + number) for number in range(1000)]
            store.add([frame(values, "loss", "lr", "grad_norm", first=piece * 1000)])
        curve = derive_curve(store)
        assert curve.steps("loss") == [*range(0, 10_000, 4), 9999]
        assert curve.values("loss") == curve.values("lr") == [*range(0, 10_000, 4), 9999]
        assert ["every 4th" in note for note in curve.notes] == [True]

    @pytest.mark.slow
    @given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
    def test_the_last_row_is_kept(self, pieces: list[int]) -> None:
        store, first = Store(max_bytes=1500), 0
        store.begin(0)
        for count in pieces:
            store.add([frame([*map(float, range(first, first + count))], "loss", first=first)])
            first += count
            (form,) = store.logs[0].forms.values()
            assert [*(form.steps or ())] == sorted({*range(0, first, form.every), first - 1})
            assert form.bytes <= 1500

    def test_drawings_that_give_steps_are_kept_where_other_rows_take_the_memory(self) -> None:
        store = Store(max_bytes=60_000)
        store.begin(0)
        places = array("q", [0, *(3 * n + k for n in range(1, 501) for k in (0, 2))])
        drawn = array("q", [0, *(n for n in range(1, 501) for _ in (0, 2))])
        store.add(
            [Frame(RowLayout("bar", Scope(), None, "", ()), places, drawn, None, None, (), 500)]
        )
        names = ("loss", *(f"loss_{number}" for number in range(14)))
        columns = tuple(array("d", range(1, 501)) for _ in names)
        offsets = array("q", range(4, 1504, 3))
        layout = RowLayout("x", Scope(), None, None, names)
        store.add([Frame(layout, offsets, None, None, None, columns)])
        curve = derive_curve(store)
        assert curve.steps("loss") == curve.values("loss") == [*range(1, 500, 2), 500]

    def test_headings_without_end_take_no_more_than_their_share(self) -> None:
        store = Store()
        store.begin(0)
        store.add([Mark(epoch=float(number), offset=number) for number in range(110_000)])
        store.add([Mark(epoch=1.0, offset=200_000)] * 9)
        assert len(store.logs[0].marks) == 100_000

    def test_rows_that_come_one_by_one_count_too(self) -> None:
        layout = RowLayout("json", Scope(), None, None, ("loss", "lr"))
        store = Store(max_bytes=10_000)
        store.begin(0)
        for n in range(5000):
            columns = array("d", [1.0]), array("d", [0.1])
            store.add([Frame(layout, array("q", [n]), array("q", [n]), None, None, columns)])
        (form,) = store.logs[0].forms.values()
        assert len(form.offsets) * 4 * 8 <= 10_000

    def test_every_kth_row_stands_at_its_own_step(self) -> None:
        store = Store(every=10)
        store.begin(0)
        drawn = Frame(
            RowLayout("bar", Scope(), None, "", ("step_seconds",)),
            array("q", range(0, 2000, 2)),
            array("q", range(1, 1001)),
            None,
            None,
            (array("d", [0.5]) * 1000,),
            1000,
        )
        losses = RowLayout("dict", Scope(), None, None, ("loss",))
        values = array("d", range(10, 1001, 10))
        offsets = array("q", range(19, 2000, 20))
        store.add([drawn, Frame(losses, offsets, None, None, None, (values,))])
        curve = derive_curve(store)
        assert curve.steps("loss") == curve.values("loss") == [*range(10, 1001, 100)]

    def test_every_kth_row_on_request_is_no_note(self) -> None:
        store = Store(every=3)
        store.begin(0)
        for piece in range(4):
            store.add([frame([1.0] * 10, "loss", first=piece * 10)])
        curve = derive_curve(store)
        assert (curve.steps("loss"), curve.notes) == ([*range(0, 40, 3)], ())
