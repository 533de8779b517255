"""Thousands of runs on a simulated cluster that fails at random."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from hpcrun.jobside.records import MAX_IDLE_ATTEMPTS
from tests.jobside.simulation import MAX_ATTEMPTS, Outcome, circles, goodput, make_world, simulate

RUNS = 3000


def _runs(*, has_bug: bool, naive: bool = False, **worse: Any) -> list[Outcome]:
    rng = random.Random(16)
    worlds = [replace(make_world(rng, has_bug=has_bug), **worse) for _ in range(RUNS)]
    return [simulate(world, seed, naive=naive) for seed, world in enumerate(worlds)]


@pytest.mark.slow
def test_runs_finish_and_lose_less_than_with_a_naive_requeue() -> None:
    found, naive = _runs(has_bug=False), _runs(has_bug=False, naive=True)
    given_up = [each for each in found if not each.is_done]
    assert len(given_up) < RUNS / 200 < sum(not each.is_done for each in naive)
    for each in given_up:  # each by a rule
        idle = each.gains[-MAX_IDLE_ATTEMPTS:] == [False] * MAX_IDLE_ATTEMPTS
        assert idle or each.ends[-2:] == ["setup", "setup"], each
    assert goodput(found) > 0.94 > 0.8 > goodput(naive)


@pytest.mark.slow
def test_no_run_restarts_forever() -> None:
    for found in (
        _runs(has_bug=False),
        _runs(has_bug=True),
        _runs(has_bug=False, damaged=1.0),  # nothing that it saves is whole
        _runs(has_bug=False, preempted=30.0, grace=0.0),  # every two minutes
        _runs(has_bug=False, preempted=5.0, grace=90.0),  # each saves a little
    ):
        assert not any(map(circles, found))
        assert max(len(each.ends) for each in found) <= MAX_ATTEMPTS
    assert any(map(circles, _runs(has_bug=True, naive=True)[:100])), "it can be seen"


def test_program_errors_are_not_retried() -> None:
    for each in _runs(has_bug=True):
        errors = [end for end in each.ends if end in ("error", "out_of_memory")]
        assert not each.is_done and len(errors) <= 1
        assert not errors or each.ends[-1] == errors[0]
