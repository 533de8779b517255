"""Curves as text: positions of the drawing, and robustness against any values."""

from __future__ import annotations

import math
import random
import re
from itertools import pairwise
from statistics import linear_regression
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrun.curves.report.axes import log_ticks, smooth, ticks, value_axis
from hpcrun.curves.report.facts import fit_trend
from hpcrun.curves.report.plot import Line, plot_lines, thin
from hpcrun.text.numbers import sparkline
from hpcrun.text.table import Display

CURVES = st.lists(st.lists(st.floats(), max_size=60), min_size=1, max_size=4)


def draw(lines: list[Line], **options: Any) -> str:
    given = {"width": 44, "height": 10, "colour": False, "ascii_only": True, **options}
    look = Display(*(given.pop(name) for name in ("width", "height", "colour", "ascii_only")))
    return plot_lines(lines, look, title="loss", x_label="step", **given)


def line(*values: float, **options: Any) -> Line:
    return Line("a", [float(x) for x in range(len(values))], values, **options)


def canvas(text: str) -> list[str]:
    """Return the part to the right of the y axis."""
    return [row.partition("|")[2] for row in text.splitlines() if "|" in row]


@pytest.mark.slow
@given(CURVES, st.integers(20, 60), st.integers(4, 14), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_values_can_be_plotted(
    curves: list[list[float]], width: int, height: int, colour: bool, ascii_only: bool
) -> None:
    lines = [Line(f"run {i}", [float(x) for x in range(len(y))], y) for i, y in enumerate(curves)]
    text = draw(lines, width=width, height=height, colour=colour, ascii_only=ascii_only)
    assert text == "" or len(text.splitlines()) <= height
    assert not ascii_only or text.isascii()
    if not colour:
        assert all(len(row) <= width for row in text.splitlines())


def test_plot_shows_a_falling_curve() -> None:
    """A curve from the top left to the bottom right, with its ends in the first and last row."""
    rows = canvas(draw([line(3.0, 2.0, 1.0)]))
    stars = [row.find("*") for row in rows]
    assert stars == sorted(stars)
    assert stars[0] < 6 < 30 < rows[-1].rfind("*")


def test_nan_is_a_marked_gap() -> None:
    text = draw([line(1.0, 1.0, math.nan, 1.0, 1.0)], height=8)
    (row,) = [row for row in canvas(text) if "*" in row]
    assert "*" + " " * 5 in row
    (row,) = [row for row in canvas(text) if "!" in row]
    assert abs(row.index("!") - 20) <= 2
    assert "! nan or inf" in text.splitlines()[0]
    assert "nan" not in draw([line(1.0, 2.0)])


def test_noise_is_drawn_faintly_and_smoothed() -> None:
    values = [2 + 0.5 * (-1) ** n - n / 200 for n in range(200)]
    text = draw([line(*values)], colour=True, ascii_only=False)
    assert "\x1b[2;38;5;30m" in text and "\x1b[1;38;5;30m" in text
    assert "raw" in text.splitlines()[0] and "smoothed" in text.splitlines()[0]
    several = draw([line(*values), line(*values)], colour=True, ascii_only=False)
    assert "noise smoothed" in several.splitlines()[0] and "\x1b[2;38;5;30m" not in several
    calm = draw([line(*(n / 200 for n in range(200)))], colour=True, ascii_only=False)
    assert "smoothed" not in calm and "\x1b[2;38;5;30m" not in calm


def test_evaluation_is_drawn_as_points_below_the_curve() -> None:
    falls = [2 - n / 100 for n in range(100)]
    rare = Line("eval", [20.0, 60.0], [0.3, 1.7], is_points=True)
    text = draw([line(*falls), rare], colour=True, ascii_only=False)
    heading, _, below = text.partition("\n")
    assert heading.count("•") == 1 and below.count("•") == 2
    # The curve is complete, wherever the points are.
    alone = draw([line(*falls)], colour=True, ascii_only=False)
    same = Line("eval", [float(n) for n in range(100)], falls, is_points=True)
    covered = draw([line(*falls), same], colour=True, ascii_only=False)
    dots = re.compile("[\u2800-\u28ff]")
    assert dots.findall(covered) == dots.findall(alone)


def test_restarts_are_marked() -> None:
    text = draw([line(*(3 - n / 50 for n in range(101)))], verticals=[50.0, 900.0])
    rows = canvas(text)
    assert all(row[len(row) // 2 - 2 : len(row) // 2 + 20].count(":") <= 1 for row in rows)
    assert sum(":" in row for row in rows) >= len(rows) - 2
    assert ": restart" in text.splitlines()[0]


def test_loss_over_decades_has_a_log_axis() -> None:
    """The axis is logarithmic if all values are positive and the ratio is at least 100."""
    falls = [10 * 0.9**n for n in range(60)]
    text = draw([line(*falls)])
    assert text.splitlines()[0].startswith("loss by step, log axis")
    stars = [row.find("*") for row in canvas(text)]
    steps = [b - a for a, b in pairwise(stars)]
    assert max(steps[1:-1]) - min(steps[1:-1]) <= 1  # an exponential is a straight line
    for values in ([11.0, 4.0, 2.0], [*falls, 0.0], [*falls, -1.0]):
        assert "log axis" not in draw([line(*values)])


def test_outlier_does_not_flatten_the_curve() -> None:
    values = [-1.0 - n / 100 for n in range(100)]
    values[50] = 1e6
    text = draw([line(*values)])
    assert "1 beyond the axis" in text
    assert sum("*" in row for row in canvas(text)) >= len(canvas(text)) - 1


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0, 1), st.floats()), min_size=1), st.integers(1, 50))
def test_thinning_keeps_the_extremes(points: list[tuple[float, float]], columns: int) -> None:
    points.sort(key=lambda point: point[0])
    x, y = [p[0] for p in points], [p[1] for p in points]
    kept = thin(x, y, columns)
    finite = [value for value in y if abs(value) < float("inf")]
    kept_finite = [value for _, value in kept if value == value]
    assert len(kept) <= 5 * columns
    assert [p[0] for p in kept] == sorted(p[0] for p in kept)
    assert set(kept_finite) <= set(finite)
    if finite:
        assert (min(finite), max(finite)) == (min(kept_finite), max(kept_finite))


@given(st.floats(-1e3, 1e3), st.floats(1e-6, 1e9), st.integers(2, 12))
def test_ticks_are_few_and_within_the_axis(low: float, span: float, most: int) -> None:
    found = ticks(low, low + span, most)
    assert len(found) <= most
    assert all(low - span * 1e-3 <= tick <= low + span * 1.001 for tick in found)


@given(st.floats(1e-12, 1e12), st.floats(100, 1e20), st.integers(2, 12))
def test_log_axis_has_readable_ticks(low: float, ratio: float, most: int) -> None:
    found = log_ticks(low, low * ratio, most)
    assert 1 <= len(found) <= most
    assert all(low <= tick <= low * ratio for tick in found)
    assert found == sorted(set(found))


@pytest.mark.slow
@given(st.lists(st.floats(-1e280, 1e280), min_size=1, max_size=80))
def test_axis_contains_most_values(values: list[float]) -> None:
    axis = value_axis(values)
    assert axis.low < axis.high
    places = [axis.place(value) for value in values]
    assert all(0 <= place <= 1 for place in places)
    assert sum(axis.holds(value) for value in values) >= 0.95 * len(values)


@pytest.mark.slow
@given(st.lists(st.floats(0, 1), min_size=3, max_size=200))
def test_smoothed_curve_stays_within_the_values(y: list[float]) -> None:
    x = [index / len(y) for index in range(len(y))]
    smoothed = smooth(x, y)
    assert len(smoothed) == len(y)
    assert all(min(y) - 1e-9 <= value <= max(y) + 1e-9 for value in smoothed)


@pytest.mark.parametrize("count", [3, 9, 10, 60, 399, 2000])
def test_smoothed_value_is_on_the_local_line(count: int) -> None:
    chance = random.Random(count)
    x = sorted(chance.uniform(1e5, 2e5) for _ in range(count))
    y = [chance.gauss(2.0, 0.3) for _ in range(count)]
    smoothed = smooth(x, y)
    for place in range(count):
        half = max(3, min(max(5, count // 20), place // 2)) // 2
        begin = min(max(0, place - half), count - 2 * half - 1)
        near = slice(begin, begin + 2 * half + 1)
        slope, height = linear_regression(x[near], y[near])
        line = min(max(y[near]), max(min(y[near]), height + slope * x[place]))
        assert smoothed[place] == pytest.approx(line, rel=1e-9)


def test_outlier_does_not_affect_values_beyond_its_window() -> None:
    x = [float(step) for step in range(2000)]
    y = [2.0 + 0.1 * (-1) ** step for step in range(2000)]
    wild = [*y[:500], 1e30, *y[501:]]
    calm = [step for step in range(2000) if not 440 < step < 560]
    passed, undisturbed = smooth(x, wild), smooth(x, y)
    far = [passed[step] for step in calm]
    assert far == pytest.approx([undisturbed[step] for step in calm], rel=1e-12)


def test_smoothing_window_has_at_most_a_thousand_points() -> None:
    """The time for smoothing therefore grows linearly with the number of points."""
    spike = [1.0] * 30_000 + [2.0] + [1.0] * 29_999
    smoothed = smooth([float(step) for step in range(60_000)], spike)
    moved = [abs(step - 30_000) for step, value in enumerate(smoothed) if value != 1.0]
    assert max(moved) == 500


def test_smoothing_does_not_lag_behind_a_fall() -> None:
    x = [index / 300 for index in range(300)]
    fall = [1 - value + 0.1 * (-1) ** index for index, value in enumerate(x)]
    smoothed = smooth(x, fall)
    middle = range(30, 300)
    assert max(abs(smoothed[i] - (1 - x[i])) for i in middle) < 0.045
    assert math.isnan(smooth([0.0, 1.0, 2.0, 3.0], [1.0, 2.0, math.nan, 4.0])[2])


@pytest.mark.slow
@given(st.lists(st.floats(), max_size=5) | st.lists(st.floats(), min_size=25, max_size=45))
def test_any_values_can_be_smoothed(values: list[float]) -> None:
    trend = fit_trend(values)
    assert trend is None or math.isfinite(trend.begin + trend.end) or abs(trend.end) > 1e300
    assert len(sparkline(values, 8)) <= 8


def test_trend_ends_within_its_points() -> None:
    """A line through too much of a steep fall would end below all points."""
    falls = [[3.0 * math.exp(-n / 10) for n in range(count)] for count in (12, 29, 30, 60)]
    trends = [fit_trend(fall) for fall in falls]
    assert trends[:2] == [None, None]
    for fall, trend in zip(falls[2:], trends[2:], strict=True):
        assert trend is not None and min(fall) <= trend.end <= trend.begin <= fall[-trend.points]


def test_few_points_are_drawn_as_they_are() -> None:
    """A spike of a short curve must not be smoothed away."""
    values = [1.1, 1.1, 1.1, 1.1, 4.33, 1.1, 1.1, 1.1, 1.1, 1.1]
    text = plot_lines(
        [Line("loss", [float(step) for step in range(10)], values)],
        Display(80, 20),
        title="loss",
        x_label="step",
    )
    rows = text.splitlines()
    assert "smooth" not in rows[0]
    assert any(set(row.partition("┤")[2] or row.partition("│")[2]) - {" "} for row in rows[1:3])
