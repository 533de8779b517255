"""What it means that a counter falls."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.metrics.curves.passes import Counter, Verdict, never_falls, rises


def verdicts(counter: Counter, steps: Iterable[int], epoch: float | None = None) -> list[str]:
    """Take steps one by one; list what is not going on as before."""
    told = [counter.take(step, epoch).name for step in steps]
    return [name for name in told if name != "ON"]


def test_a_resumption_needs_five_steps_or_all_the_way_up() -> None:
    counter = Counter()
    assert verdicts(counter, range(0, 1000, 10)) == []
    assert verdicts(counter, [500, 510, 520, 530]) == ["SUSPECT"]
    assert verdicts(counter, [540]) == ["AGAIN"]
    assert counter.fallen_from is not None and counter.fallen_to is not None
    assert (counter.fallen_from.step, counter.fallen_to.step) == (990, 500)


def test_where_the_log_ends_three_steps_are_enough() -> None:
    counter = Counter()
    verdicts(counter, range(0, 1000, 10))
    verdicts(counter, [500, 510, 520])
    assert counter.is_suspicious
    assert counter.settle() is Verdict.AGAIN


@pytest.mark.parametrize("steps", [[500], [500, 510], [500, 700, 720]], ids=str)
def test_fewer_or_uneven_steps_are_none(steps: list[int]) -> None:
    counter = Counter()
    verdicts(counter, range(0, 1000, 10))
    assert verdicts(counter, steps) == ["SUSPECT"]
    assert counter.settle() is Verdict.CLEARED
    assert verdicts(counter, range(1000, 1050, 10)) == []


def test_a_bar_that_was_full_begins_again_at_once() -> None:
    counter = Counter()
    for step in range(1, 11):
        counter.take(step, None, 10)
    assert counter.take(1, None, 10) is Verdict.ANOTHER_RUN


def test_what_falls_for_ever_means_nothing() -> None:
    counter = Counter()
    told = verdicts(counter, range(1000, 0, -1))
    assert set(told) == {"SUSPECT", "CLEARED"}


def test_one_row_an_epoch() -> None:
    counter = Counter()
    told = [counter.take(1563, float(epoch)).name for epoch in range(1, 4)]
    assert told == ["ON", "NEXT_EPOCH", "NEXT_EPOCH"]
    assert counter.first_epoch == 1


@pytest.mark.parametrize("first", [0, 1])
def test_epochs_that_are_done_again_are_counted_whole(first: int) -> None:
    counter = Counter()
    for epoch in range(3):
        verdicts(counter, range(first, first + 100), epoch)
    verdicts(counter, range(first, first + 40), 3)
    assert verdicts(counter, range(first + 50, first + 60), 1) == ["SUSPECT", "AGAIN"]
    assert counter.replayed == 50 + 100 + 40


def test_the_next_epoch_after_a_restart_does_nothing_again() -> None:
    counter = Counter()
    for epoch in range(3):
        verdicts(counter, range(1, 101), epoch)
    counter.expect_restart()
    assert verdicts(counter, range(1, 10), 3) == ["AGAIN"]
    assert counter.replayed == 0


def test_an_epoch_that_grows_while_the_steps_go_on_is_no_pass() -> None:
    counter = Counter()
    assert [counter.take(step, step / 100).name for step in range(50, 300, 50)] == ["ON"] * 5
    assert counter.spans_epochs and not counter.by_epoch


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 50), min_size=1, unique=True).map(sorted),
    st.lists(st.integers(0, 80), max_size=9),
)
def test_all_at_once_is_as_one_by_one(steps: list[int], before: list[int]) -> None:
    at_once, one_by_one = Counter(), Counter()
    for step in before:
        at_once.take(step, None)
        one_by_one.take(step, None)
    if at_once.skips(steps, None, None):
        assert {one_by_one.take(step, None) for step in steps} == {Verdict.ON}
        assert vars(at_once) == vars(one_by_one)
    else:
        assert vars(at_once) == vars(one_by_one)


@pytest.mark.slow
@given(st.lists(st.integers(0, 9)))
def test_rises_and_never_falls(steps: list[int]) -> None:
    assert rises(steps) == (sorted(set(steps)) == steps)
    assert never_falls(steps) == (sorted(steps) == steps)
