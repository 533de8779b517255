"""Settings and ranges of a search in the sweep of a job."""

from __future__ import annotations

import math

import pytest

from hpcrun.errors import SpecError
from hpcrun.spec.dump import dump_job
from hpcrun.spec.job import JobSpec
from hpcrun.spec.search import Range, Search, read_search
from tests.plan.making import job

SPACE = "lr: {log: [1e-5, 1e-2]}, layers: {int: [2, 4]}, act: [relu, gelu]"


def problems(sweep: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        job(f"script: a.py\n{sweep}")
    return [f"{problem.path}: {problem.message}" for problem in caught.value.problems]


def test_search_is_read_and_written_back_unchanged() -> None:
    spec = job(f"sweep: {{search: random, trials: 6, parallel: 2, search_seed: 7, {SPACE}}}")
    search = spec.search
    assert (search.method, search.trials, search.parallel, search.seed) == ("random", 6, 2, 7)
    assert search.space["lr"] == Range(kind="log", low=1e-5, high=1e-2)
    assert spec.sweep_keys == ["lr", "layers", "act"] and spec.runs_at_once == 2
    assert job(dump_job(spec)).sweep == spec.sweep


def test_lists_with_names_of_settings_are_parameters() -> None:
    spec = job("args: ['{trials}{search}']\nsweep: {trials: [1, 2], search: [a]}")
    assert spec.sweep_keys == ["trials", "search"] and spec.search.method == "grid"
    assert spec.runs_at_once == JobSpec().sweep_limit


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ("{search: annealing, trials: 2, lr: [1]}", "sweep.search: expected one of grid, random"),
        ("{search: random, lr: [1, 2]}", "sweep.trials: is missing: the number of runs"),
        ("{search: random, trials: 0, lr: [1]}", "sweep.trials: expected a whole number, at least"),
        ("{search: random, trials: many, lr: [1]}", "sweep.trials: expected a whole number"),
        ("{search: random, trials: 2}", "sweep.search: no key to vary"),
        ("{trials: 2, lr: [1]}", "sweep.trials: only with search: random"),
        ("{lr: {log: [1, 2]}}", "sweep.lr: a range needs search: random and trials"),
        ("{lr: {log: [0, 2]}}", "sweep.lr: log: expected numbers above 0; got 0, 2"),
        ("{lr: {log: [2, 1]}}", "sweep.lr: log: expected two numbers, the lower one first"),
        ("{lr: {log: [1]}}", "sweep.lr: log: expected two numbers"),
        ("{lr: {float: [a, b]}}", "sweep.lr: float: expected two numbers"),
        ("{lr: {float: [nan, 1]}}", "sweep.lr: float: expected two numbers"),
        ("{lr: {int: [1, 2.5]}}", "sweep.lr: int: expected whole numbers; got 1, 2.5"),
        ("{lr: {log: [1, 2], int: [1, 2]}}", "sweep.lr: expected one range"),
        ("{lr: {between: [1, 2]}}", "sweep.lr.between: expected"),
        ("{search: tpe, trials: 2, lr: [1]}", "sweep.metric: is missing: search: tpe minimizes a"),
        ("{search: tpe, metric: a, lr: [1]}", "sweep.trials: is missing"),
        ("{goal: minimize, lr: [1]}", "sweep.goal: only with metric"),
        ("{metric: loss, goal: lowest, lr: [1]}", "sweep.goal: expected one of minimize, maximize"),
        ("{metric: 7, lr: [1]}", "sweep.metric: expected the name of a metric"),
        ("{metric: a, prune: median, lr: [1]}", "sweep.prune: expected asha; got median"),
        ("{prune: asha, lr: [1]}", "sweep.prune: needs a metric"),
        ("{prune_from: 5, lr: [1]}", "sweep.prune_from: only with prune: asha"),
        ("{metric: a, prune: asha, prune_factor: 1, lr: [1]}", "sweep.prune_factor: expected a w"),
        ("{lr: true}", "sweep.lr: expected a list, as in [a, b], or a range"),
    ],
)
def test_invalid_search_is_refused(sweep: str, expected: str) -> None:
    found = problems(f"sweep: {sweep}")
    assert any(each.startswith(expected) for each in found), found


def test_listed_combinations_are_ranked_without_another_key() -> None:
    spec = job("args: ['{a}']\nsweep: {metric: loss}\nsweep_combinations: [{a: 1}, {a: 2}]")
    assert (spec.search.metric, spec.sweep_keys) == ("loss", ["a"])
    wrong = "sweep: {search: random, trials: 2}\nsweep_combinations: [{a: 1}]"
    assert any("sweep.search: random has no key to vary" in each for each in problems(wrong))


def test_two_limits_of_a_search_are_refused() -> None:
    found = problems("sweep: {search: random, trials: 2, parallel: 2, a: [1]}\nsweep_limit: 3")
    assert found == ["sweep_limit: sweep.parallel is set, too; remove one of the two"]


def test_exclusions_without_a_sweep_are_refused() -> None:
    assert problems("sweep_exclude: [{lr: 1}]") == [
        "sweep_exclude: the job has no sweep; remove it"
    ]


@pytest.mark.parametrize("kind", ["float", "log", "int"])
def test_drawn_numbers_fill_their_range(kind: str) -> None:
    search, _ = read_search({"search": "random", "trials": "1", "x": {kind: ["2", "1000"]}})
    drawn = [float(search.draw(number)["x"]) for number in range(2000)]
    assert min(drawn) >= 2 and max(drawn) <= 1000
    middle = math.sqrt(2 * 1000) if kind == "log" else 501
    below = sum(each < middle for each in drawn) / len(drawn)
    assert 0.46 < below < 0.54


def test_ends_of_ranges_are_not_exceeded_by_rounding() -> None:
    one = Range(kind="float", low=0.12345678, high=0.12345679)
    assert all(0.12345678 <= float(one.draw(share)) <= 0.12345679 for share in (0, 0.5, 0.999999))
    assert {Range(kind="int", low=-1, high=1).draw(each / 9) for each in range(9)} == {
        *("-1", "0", "1")
    }


def test_other_seeds_draw_other_values() -> None:
    space: dict[str, list[str] | Range] = {"x": Range(kind="float", low=0, high=1)}
    drawn = {Search(seed=seed, space=space).draw(0)["x"] for seed in range(5)}
    assert len(drawn) == 5
