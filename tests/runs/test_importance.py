"""Which parameters of a search mattered."""

from __future__ import annotations

import importlib.util
import math

import pytest

from hpcrun.runs.importance import Importance, compute_importance
from hpcrun.runs.records import SearchRecord
from hpcrun.runs.trials import RankedTrial, SearchResult, rank_trials
from hpcrun.spec import Range


def make_result(count: int) -> SearchResult:
    """Return a search whose metric depends mostly on lr, a little on act, and not on seed."""
    search = SearchRecord(
        method="random",
        seed=0,
        metric="eval_loss",
        goal="minimize",
        trials=count,
        before="",
        after="",
        pythons=[],
        space={
            "lr": Range(kind="log", low=1e-5, high=0.1),
            "act": ["relu", "gelu", "tanh"],
            "seed": ["1", "2", "3", "4", "5", "6", "7"],
        },
    )
    trials = []
    for number in range(count):
        lr = 10 ** (-5 + 4 * number / (count - 1))
        act = ("relu", "gelu", "tanh")[number % 3]
        value = -math.log10(lr) + (act == "relu") / 2
        values = {"lr": f"{lr:.6g}", "act": act, "seed": str(number * 3 % 7 + 1)}
        trials.append(
            RankedTrial(
                number=number, run_id=f"r{number}", state="complete", values=values, value=value
            )
        )
    return SearchResult(search=search, trials=rank_trials(trials, "minimize"))


def compute(count: int) -> Importance:
    found = compute_importance(make_result(count))
    assert found is not None and found.trials == count
    return found


def test_rank_correlation_has_the_sign_of_the_effect() -> None:
    found = compute(15)
    assert found.method == "correlation"
    assert list(found.parameters) == ["lr", "act", "seed"]
    assert found.parameters["lr"] < -0.9 and 0.1 < found.parameters["act"] < 0.5


def test_optuna_is_used_for_many_trials() -> None:
    found = compute(40)
    assert found.method == "optuna"
    assert next(iter(found.parameters)) == "lr" and found.parameters["lr"] > 0.5
    assert sum(found.parameters.values()) == pytest.approx(1)


def test_rank_correlation_is_used_without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert compute(40).method == "correlation"


def test_few_trials_and_foreign_values_show_nothing() -> None:
    assert compute_importance(make_result(4)) is None
    result = make_result(6)
    result.trials[0].values["lr"] = "7"
    result.trials[1].values["act"] = "$(reboot)"
    assert compute_importance(result) is None, "four trials are left"


@pytest.mark.parametrize("trials", [6, 25])
def test_nothing_mattered_to_a_constant_metric(trials: int) -> None:
    result = make_result(trials)
    same = [
        RankedTrial(number=t.number, run_id="", state="complete", values=t.values, value=1.0)
        for t in result.trials
    ]
    ranked = SearchResult(search=result.search, trials=rank_trials(same, "maximize"))
    assert {trial.rank for trial in ranked.trials} == {1}
    assert compute_importance(ranked) is None
