"""Levels, differences and their noise, for curves with known differences."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.curves.report.windows import (
    Difference,
    Track,
    Window,
    block_means,
    build_track,
    common_window,
    compare_blocks,
    first_at,
    lowest_level,
    round_up,
)


def noisy(seed: int, floor: float = 2.0, *, every: int = 1, likeness: float = 0.0) -> Track:
    """Return a loss that falls to ``floor`` in 1000 steps, with autocorrelated noise."""
    chance, noise = random.Random(seed), 0.0
    x, y = [], []
    for step in range(1, 1001):
        noise = likeness * noise + chance.gauss(0.0, 0.05)
        if step % every == 0:
            x.append(float(step))
            y.append(floor + 5 * math.exp(-step / 250) + noise)
    return Track(x, y)


def difference(track: Track, other: Track) -> Difference:
    window = common_window([track, other])
    assert window is not None
    return compare_blocks(block_means(track, window), block_means(other, window))


@pytest.mark.slow
@pytest.mark.parametrize(("every", "likeness"), [(1, 0.0), (10, 0.0), (100, 0.0), (1, 0.7)])
def test_chance_differences_are_rarely_reported(every: int, likeness: float) -> None:
    """About a twentieth of 300 pairs that differ only by chance may be reported."""
    found = sum(
        difference(
            noisy(2 * pair, likeness=likeness), noisy(2 * pair + 1, every=every, likeness=likeness)
        ).is_clear
        for pair in range(300)
    )
    assert found <= 0.1 * 300


@pytest.mark.slow
def test_difference_is_found_with_a_correct_error() -> None:
    gaps = [difference(noisy(2 * pair, 2.1), noisy(2 * pair + 1)) for pair in range(200)]
    assert all(gap.is_clear for gap in gaps)
    within = sum(abs(gap.value - 0.1) <= (gap.error or 0.0) for gap in gaps)
    assert within >= 0.9 * 200


def test_common_noise_cancels() -> None:
    same = noisy(1)
    shifted = Track(same.x, [value + 0.001 for value in same.y])
    gap = difference(shifted, same)
    assert gap.is_clear and gap.value == pytest.approx(0.001) and (gap.error or 0) < 1e-9


def test_noise_needs_enough_blocks() -> None:
    few = Track([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])
    gap = difference(few, Track(few.x, [9.0, 9.0, 9.0]))
    assert gap.error is None and not gap.is_clear
    assert Difference(0.5, 0.5).is_clear is False and Difference(-0.6, 0.5).is_clear


@pytest.mark.parametrize(
    ("tracks", "window"),
    [
        # The last tenth of the common range, which starts where the later curve starts.
        ([Track(range(1001), range(1001)), Track(range(500, 2001), range(1501))], (950, 1000, 10)),
        # A sparse log needs a longer window, of five points.
        (
            [Track(range(1001), range(1001)), Track(range(0, 1001, 100), range(11))],
            (600, 1000, 5),
        ),
        # At most half of the common range.
        ([Track(range(101), range(101)), Track([0, 30, 60, 100], range(4))], (50, 100, 2)),
    ],
)
def test_comparison_windows_are_the_common_end(
    tracks: list[Track], window: tuple[float, float, int]
) -> None:
    assert common_window(tracks) == Window(*window)


def test_disjoint_curves_have_no_window() -> None:
    assert common_window([Track([0, 1, 2], [1, 1, 1]), Track([2, 3], [1, 1])]) is None
    assert common_window([Track([5], [1]), Track([5], [2])]) is None


def test_non_finite_values_are_ignored() -> None:
    inf, nan = math.inf, math.nan
    assert build_track([1, 2, 3, 4], [inf, 2.0, nan, 1.0]) == Track([2, 4], [2.0, 1.0])
    assert build_track([1, 2], [nan, nan]) is None and build_track([], []) is None


def test_empty_block_is_interpolated() -> None:
    track = Track([0.0, 10.0], [10.0, 0.0])
    assert block_means(track, Window(0.0, 10.0, 5)) == [10.0, 7.0, 5.0, 3.0, 0.0]


points = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@pytest.mark.slow
@given(points, points)
def test_mean_is_within_the_curve(first: list[float], second: list[float]) -> None:
    tracks = [Track([float(n) for n in range(len(y))], y) for y in (first, second)]
    window = common_window(tracks)
    if window is None:
        assert min(len(first), len(second)) == 1
        return
    blocks = [block_means(track, window) for track in tracks]
    for track, means in zip(tracks, blocks, strict=True):
        assert len(means) == window.blocks
        assert all(min(track.y) - 1e-6 <= mean <= max(track.y) + 1e-6 for mean in means)
    one, other = (compare_blocks(*pair) for pair in (blocks, reversed(blocks)))
    assert one.value == -other.value and one.is_clear == other.is_clear


def test_exploded_loss_is_not_used() -> None:
    track = build_track(range(12), [2.0] * 8 + [1e300, -1e300, 1e99, 3.0])
    assert track is not None and track.x[-2:] == [10, 11]
    assert difference(track, track).value == 0.0


def test_lowest_level_is_a_windowed_mean() -> None:
    assert lowest_level([3.0]) == 3.0
    assert lowest_level([9.0] * 50 + [0.0] + [9.0] * 49) == pytest.approx(7.2)  # one of five
    assert lowest_level(noisy(3).y) == pytest.approx(2.1, abs=0.06)


def test_reached_step_is_where_the_smoothed_curve_falls() -> None:
    assert first_at([5.0, 4.0, 2.0, 5.0, 1.0], 3.0) == 1.5
    assert first_at([5.0, 3.0], 3.0) == 1.0
    assert first_at([2.0, 3.0], 3.0) == 0.0
    assert first_at([], 3.0) is None


@given(st.floats(1e-300, 1e300))
def test_rounding_up_is_close_and_not_below(value: float) -> None:
    assert value * (1 - 1e-5) <= round_up(value) <= value * 1.011
    assert -value * (1 + 1e-5) <= round_up(-value) <= -value * 0.989


def test_extreme_numbers_are_handled() -> None:
    assert math.isnan(round_up(math.nan)) and round_up(math.inf) == math.inf
