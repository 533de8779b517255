"""Which parameters of a search mattered: by optuna, or by rank correlations."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, to_builtins

from hpcrun.runs.trials import RankedTrial, SearchResult
from hpcrun.spec import Range

# Fewer complete trials show chance, and not what mattered.
MIN_TRIALS, MIN_TRIALS_OPTUNA = 5, 20


class Importance(Struct, frozen=True, kw_only=True):
    """How much each parameter mattered to the metric, the most important one first.

    Attributes:
        method: ``optuna``: shares that sum to 1, by its PED-ANOVA; ``correlation``: the rank
            correlation (Spearman's), from -1 to 1, of parameters whose values are numbers, and the
            correlation ratio of the ranks, from 0 to 1, of the others.
        trials: The number of complete trials.
    """

    method: Literal["optuna", "correlation"]
    trials: int
    parameters: dict[str, float]


def compute_importance(result: SearchResult) -> Importance | None:
    """Compute how much each parameter mattered.

    None with fewer than five complete trials, or if all have the same value.
    """
    space = result.search.space
    ranked = [
        trial
        for trial in result.trials
        if trial.rank is not None and all(_is_in(trial.values, key, space[key]) for key in space)
    ]
    if len(ranked) < MIN_TRIALS or not space or len({trial.value for trial in ranked}) == 1:
        return None
    method: Literal["optuna", "correlation"] = "correlation"
    found = None
    if len(ranked) >= MIN_TRIALS_OPTUNA and importlib.util.find_spec("optuna") is not None:
        method, found = "optuna", _compute_by_optuna(result, ranked)
    if found is None:
        method, found = "correlation", _correlate(ranked, space)
    order = sorted(found, key=lambda key: -abs(found[key]))
    return Importance(
        method=method, trials=len(ranked), parameters={key: found[key] for key in order}
    )


def _is_in(values: Mapping[str, str], key: str, space: list[str] | Range) -> bool:
    """Return True if the value of a trial, which its job wrote, is one of the search."""
    value = values.get(key, "")
    if isinstance(space, list):
        return value in space
    return _is_number(value) and space.low <= float(value) <= space.high


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _compute_by_optuna(
    result: SearchResult, ranked: Sequence[RankedTrial]
) -> dict[str, float] | None:
    """Return optuna's importances; None if this version of optuna cannot compute them."""
    from hpcrun.jobside import Trial, compute_importances

    search: dict[str, Any] = {
        "space": to_builtins(result.search.space),
        "goal": result.search.goal,
    }
    trials = [
        Trial(each.number, each.values, "complete", [(each.step or 0, each.value or 0.0)])
        for each in ranked
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optuna marks this evaluator as experimental
        try:
            return compute_importances(search, trials)
        except (ImportError, AttributeError, ValueError, RuntimeError):
            return None


def _correlate(
    ranked: Sequence[RankedTrial], space: Mapping[str, list[str] | Range]
) -> dict[str, float]:
    metric = rank_values([trial.value or 0.0 for trial in ranked])
    found = {}
    for key, given in space.items():
        texts = [trial.values[key] for trial in ranked]
        if not isinstance(given, list) or all(map(_is_number, given)):
            found[key] = _correlate_ranks(rank_values([float(text) for text in texts]), metric)
        else:
            found[key] = _compute_correlation_ratio(texts, metric)
    return found


def rank_values(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, the smallest first; equal values have the mean of theirs.

    >>> rank_values([0.1, 3.0, 0.1, -2.0])
    [1.5, 3.0, 1.5, 0.0]
    """
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2
        for value in values
    ]


def _correlate_ranks(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Pearson's correlation; of ranks, it is Spearman's. 0 if one of them is constant."""
    mean = (len(x) - 1) / 2
    products = sum((a - mean) * (b - mean) for a, b in zip(x, y, strict=True))
    size = math.sqrt(sum((a - mean) ** 2 for a in x) * sum((b - mean) ** 2 for b in y))
    return products / size if size else 0.0


def _compute_correlation_ratio(groups: Sequence[str], y: Sequence[float]) -> float:
    """Return the root of the share of y's variance between groups; |Spearman's| for two groups."""
    mean = (len(y) - 1) / 2
    total = sum((each - mean) ** 2 for each in y)
    between = 0.0
    for group in set(groups):
        own = [each for each, name in zip(y, groups, strict=True) if name == group]
        between += len(own) * (sum(own) / len(own) - mean) ** 2
    return math.sqrt(between / total) if total else 0.0
