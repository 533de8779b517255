"""Interpretation of a falling step counter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.curves.curve import is_increasing
from hpcrun.curves.passes import (
    CountedSteps,
    CounterTurn,
    Position,
    StepCounter,
    follow_counter,
    restarts_each_epoch,
)

_UP = [*range(0, 1000, 10)]


def course(
    steps: Sequence[int],
    epochs: Sequence[float] | None = None,
    *,
    total: int | None = None,
    marks: Iterable[int] = (),
) -> list[CounterTurn]:
    """Follow a counter; each row is at the byte that is its number."""
    counted = CountedSteps(
        np.arange(len(steps)),
        np.array(steps, dtype=np.int64),
        np.array(epochs) if epochs else None,
        total,
        is_bar=total is not None,
    )
    within = restarts_each_epoch([counted])
    return follow_counter(counted, [*marks], StepCounter(), within_epochs=within)


def resumed(turns: Iterable[CounterTurn]) -> list[CounterTurn]:
    """Return the positions at which steps are repeated."""
    return [turn for turn in turns if turn.replayed is not None]


def in_epochs(*epochs: tuple[int, Iterable[int]]) -> tuple[list[int], list[float]]:
    """Return steps within epochs."""
    rows = [(step, float(epoch)) for epoch, steps in epochs for step in steps]
    return [step for step, _ in rows], [epoch for _, epoch in rows]


def test_resumption_needs_five_steps() -> None:
    (turn,) = resumed(course([*_UP, 500, 510, 520, 530, 540, 3, 3]))
    assert (turn.reached, turn.at) == (Position(0, 990), Position(0, 500))
    assert course([*_UP, 500, 510, 520, 530, 3, 3]) == []


def test_fewer_steps_up_to_the_previous_end_are_a_resumption() -> None:
    (turn,) = resumed(course([*_UP, 960, 970, 980, 990, 3, 3]))
    assert turn.at.step == 960


def test_three_steps_at_the_end_of_the_log_are_a_resumption() -> None:
    (turn,) = course([*_UP, 500, 510, 520])
    assert (turn.reached, turn.at) == (Position(0, 990), Position(0, 500))
    assert turn.replayed == 491


@pytest.mark.parametrize("steps", [[500], [500, 510], [500, 700, 720]], ids=str)
def test_few_or_uneven_steps_are_no_resumption(steps: list[int]) -> None:
    assert course([*_UP, *steps]) == []
    assert course([*_UP, *steps, *range(1000, 1050, 10)]) == []


def test_full_bar_restarts_immediately() -> None:
    steps = [*range(1, 11), 1]
    assert course(steps, total=10) == [CounterTurn(10, 1, Position(0, 1), reached=Position(0, 10))]
    assert course(steps, total=20) == []


@pytest.mark.parametrize(
    ("steps", "begins"),
    [
        ([1, 1, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4], [1, 2, 6, 10]),
        ([1, 2, 1, 2, 3, 1, 2], [2, 5]),
        ([1, 2, 3, 1, 1, 2], [3, 4]),
        ([0, 10, 20, 0, 30, 40], []),
        ([0, 0, 10, 20, 0, 0, 10, 20], []),
        ([1, 2, 3, 1], [3]),
        ([1, 2, 3, 1, 2, 3, 2, 3], []),
    ],
    ids=str,
)
def test_short_runs_begin_at_the_first_step(steps: list[int], begins: list[int]) -> None:
    """Unless it is a summary, stands twice at each beginning, or the counter falls elsewhere."""
    assert [turn.offset for turn in course(steps)] == begins


def test_short_runs_begin_at_the_first_step_of_the_first_epoch() -> None:
    tries = [(0, [10, 20, 30]), (0, [10, 20]), (0, [10])]
    whole = [(epoch, [10, 20, 30]) for epoch in range(3)]
    steps, epochs = in_epochs(*tries, *whole, (0, [10]), *whole)
    turns = course(steps, epochs)
    assert [turn.offset for turn in turns if turn.reached] == [3, 5, 6, 15, 16]


def test_counter_with_another_stride_is_another_run() -> None:
    (turn,) = course([*range(200), *range(10, 110, 10)])
    assert (turn.run, turn.at, turn.replayed) == (1, Position(0, 10), None)


def test_constantly_falling_counter_has_no_turns() -> None:
    assert course(range(1000, 0, -1)) == []


def test_one_row_per_epoch_has_a_turn_per_epoch() -> None:
    found = course([1563] * 3, [1.0, 2.0, 3.0])
    assert [turn.at.epoch for turn in found] == [1, 2, 3]


@pytest.mark.parametrize("first", [0, 1])
def test_repeated_epochs_are_counted_completely(first: int) -> None:
    whole = range(first, first + 100)
    steps, epochs = in_epochs(
        *((epoch, whole) for epoch in range(3)),
        (3, range(first, first + 40)),
        (1, range(first + 50, first + 60)),
    )
    (turn,) = resumed(course(steps, epochs))
    assert turn.replayed == 50 + 100 + 40


def test_restart_in_the_next_epoch_replays_nothing() -> None:
    steps, epochs = in_epochs(*((epoch, range(1, 101)) for epoch in range(3)), (3, range(1, 10)))
    (turn,) = resumed(course(steps, epochs, marks=[300]))
    assert turn.replayed == 0


def test_growing_epoch_with_continuing_steps_is_no_turn() -> None:
    steps = [*range(50, 300, 50)]
    assert course(steps, [step / 100 for step in steps]) == []


@given(st.lists(st.integers(0, 60), min_size=1), st.lists(st.integers(0, 60)))
def test_later_rows_do_not_move_settled_turns(steps: list[int], more: list[int]) -> None:
    """What a fall means is known after 64 rows: before them nothing find_changes."""
    settled = course(steps + [61 + n for n in range(70)])
    longer = course(steps + [61 + n for n in range(70)] + more)
    assert longer[: len(settled)] == settled


@given(st.lists(st.integers(0, 9)))
def test_is_increasing_requires_strictly_rising_steps(steps: list[int]) -> None:
    assert is_increasing(np.array(steps)) == (sorted(set(steps)) == steps)


@pytest.mark.parametrize("epoch", [10**15, 10**300])
def test_invalid_epoch_is_handled_quickly(epoch: int) -> None:
    steps, epochs = in_epochs((0, range(5)), (1, range(5)), (epoch, range(5)), (1, range(2, 9)))
    (turn,) = resumed(course(steps, epochs, marks=[15]))
    assert turn.replayed is not None and turn.replayed < 20
