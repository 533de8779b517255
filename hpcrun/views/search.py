"""Views of the result of a search: its best trial, what mattered, and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcrun.curves import PageSection
from hpcrun.plan import column_names, format_label
from hpcrun.runs import Importance, RankedTrial, SearchResult
from hpcrun.text import (
    Display,
    format_count,
    format_pairs,
    format_table,
    json_number,
    replace_unprintable,
)


def format_search(
    result: SearchResult, importance: Importance | None, display: Display
) -> list[str]:
    """Lay out the best trial, the command that repeats it, and what mattered."""
    return list(format_pairs(describe_search(result, importance), display))


def format_ranking(
    result: SearchResult, importance: Importance | None, display: Display
) -> list[str]:
    """Lay out a row for each trial, the best first, above what ``format_search`` lays out."""
    headings, rows = list_trial_rows(result)
    table = format_table([*headings, ""], [[*row, ""] for row in rows], display)
    return [*table, *format_search(result, importance, display)]


def list_search_sections(result: SearchResult, importance: Importance | None) -> list[PageSection]:
    """Return the sections of an HTML page: the best trial and what mattered, and all trials."""
    headings, rows = list_trial_rows(result)
    facts = [(f"{name}: {text}",) for name, text in describe_search(result, importance)]
    return [
        PageSection(title="Search", rows=facts),
        PageSection(title="Trials", headings=headings, rows=rows),
    ]


def list_trial_rows(result: SearchResult) -> tuple[list[str], list[list[str]]]:
    """Return the headings and a row for each trial, the best first."""
    keys = list(dict.fromkeys(key for trial in result.trials for key in trial.values))
    rows = [
        [
            "-" if trial.rank is None else str(trial.rank),
            str(trial.number),
            trial.state,
            *(trial.values.get(key, "-") for key in keys),
            "-" if trial.step is None else str(trial.step),
            "-" if trial.value is None else f"{trial.value:.6g}",
        ]
        for trial in result.trials
    ]
    headings = ["RANK", "RUN", "STATE", *column_names(keys), "STEP", result.search.metric]
    return (
        [replace_unprintable(text) for text in headings],
        [[replace_unprintable(text) for text in row] for row in rows],
    )


def describe_search(result: SearchResult, importance: Importance | None) -> list[tuple[str, str]]:
    """Return rows of a name and a text: the best trial, the command that repeats it, and so on."""
    search, best = result.search, result.best
    rows = []
    if result.lacks_metric:
        rows.append(
            ("warning", f"no run's log has {search.metric}: hpcrun parse shows what it has")
        )
    if best is not None:
        complete = sum(trial.rank is not None for trial in result.trials)
        of = f"best of {format_count(complete, 'complete run')}"
        rows.append(("best", f"run {best.number}: {_format_value(result, best)} ({of})"))
        rows.append(("values", format_label(best.values)))
        rows.append(("run it", f"hpcrun resubmit {best.run_id} --fresh"))
    if importance is not None:
        rows.append(("mattered", describe_importance(importance)))
    return [(name, replace_unprintable(text)) for name, text in rows]


def _format_value(result: SearchResult, trial: RankedTrial) -> str:
    value = 0.0 if trial.value is None else trial.value
    return f"{result.search.metric} {value:.6g} at step {trial.step}"


def describe_importance(importance: Importance) -> str:
    """Describe how much each parameter mattered, and by which method.

    >>> shares = {"lr": 0.8, "n": 0.2}
    >>> describe_importance(Importance(method="optuna", trials=20, parameters=shares))
    "lr 80%, n 20% (optuna's PED-ANOVA, 20 runs; the shares always sum to 100%)"
    """
    if importance.method == "optuna":
        shares = ", ".join(f"{key} {share:.0%}" for key, share in importance.parameters.items())
        method = f"optuna's PED-ANOVA, {importance.trials} runs; the shares always sum to 100%"
        return f"{shares} ({method})"
    shares = ", ".join(f"{key} {value:.2f}" for key, value in importance.parameters.items())
    return f"{shares} (rank correlation with the metric, {importance.trials} runs)"


def search_json(result: SearchResult, importance: Importance | None) -> dict[str, Any]:
    """Return the JSON of a search and its trials, the best first."""
    search, best = result.search, result.best
    return {
        "method": search.method,
        "metric": search.metric,
        "goal": search.goal,
        "lacks_metric": result.lacks_metric,
        "best": None if best is None else best.run_id,
        "command": None if best is None else ["hpcrun", "resubmit", best.run_id, "--fresh"],
        "importance": None
        if importance is None
        else {
            "method": importance.method,
            "trials": importance.trials,
            "parameters": importance.parameters,
        },
        "trials": list(_list_trials(result)),
    }


def _list_trials(result: SearchResult) -> Iterator[dict[str, Any]]:
    for trial in result.trials:
        yield {
            "number": trial.number,
            "run_id": trial.run_id,
            "state": trial.state,
            "rank": trial.rank,
            "value": None if trial.value is None else json_number(trial.value),
            "step": trial.step,
            "values": trial.values,
        }
