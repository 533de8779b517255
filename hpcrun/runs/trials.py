"""The trials of a search, ranked by its metric, from the records of their jobs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from hpcrun.jobside import DEAD_AFTER_S
from hpcrun.runs.layout import TASK_ID, RunFolder
from hpcrun.runs.records import End, SearchRecord, attempt_indices, read_record, read_task

TrialState = Literal["waiting", "running", "complete", "pruned", "failed"]


class MetricRecord(Struct, frozen=True, kw_only=True):
    """The values of the metric in the logs of an attempt, by step (jobside/search.py)."""

    metric: str
    points: list[tuple[int, float | Annotated[str, Meta(pattern=r"\A-?(nan|inf)\Z")]]]


class RankedTrial(Struct, frozen=True, kw_only=True):
    """A trial of a search.

    Attributes:
        values: Its parameters; empty before its job has drawn them.
        step: The step of ``value``.
        value: The last value of the metric in its log.
        rank: 1 for the best one; None for trials that are not complete or have no finite value.
    """

    number: int
    run_id: str
    state: TrialState
    values: dict[str, str]
    step: int | None = None
    value: float | None = None
    rank: int | None = None


class SearchResult(Struct, frozen=True, kw_only=True):
    """A search and its trials, the best first, then those without a rank by their number."""

    search: SearchRecord
    trials: list[RankedTrial]

    @property
    def best(self) -> RankedTrial | None:
        """The complete trial with the best value, if there is one."""
        return self.trials[0] if self.trials and self.trials[0].rank == 1 else None

    @property
    def lacks_metric(self) -> bool:
        """True if trials have ended, and the metric is in the log of none."""
        has_ended = any(trial.state in ("complete", "failed") for trial in self.trials)
        return has_ended and all(trial.value is None for trial in self.trials)


def read_search_result(runs: Sequence[RunFolder]) -> SearchResult | None:
    """Read the trials of a sweep; None if it has no metric by which they could be ranked."""
    search = read_record(runs[0].search, SearchRecord) if runs else None
    if search is None or not search.metric:
        return None
    return SearchResult(search=search, trials=rank_trials(map(_read_trial, runs), search.goal))


def rank_trials(trials: Iterable[RankedTrial], goal: str) -> list[RankedTrial]:
    """Rank the complete trials by their values; equal values have equal ranks.

    >>> def trial(number, value, state="complete"):
    ...     return RankedTrial(number=number, run_id="", state=state, values={}, value=value)
    >>> found = rank_trials([trial(0, 3.0), trial(1, 2.0), trial(2, 1.0, "pruned")], "minimize")
    >>> [(each.number, each.rank) for each in found]
    [(1, 1), (0, 2), (2, None)]
    """
    sign = 1.0 if goal == "minimize" else -1.0
    trials = list(trials)
    levels = {
        number: sign * trial.value
        for number, trial in enumerate(trials)
        if trial.state == "complete" and trial.value is not None and math.isfinite(trial.value)
    }
    ranked = [
        structs.replace(trial, rank=1 + sum(each < levels[number] for each in levels.values()))
        if number in levels
        else trial
        for number, trial in enumerate(trials)
    ]
    return sorted(ranked, key=lambda trial: (trial.rank is None, trial.rank or 0, trial.number))


def _is_dead(attempt: Path) -> bool:
    """Return True if the heartbeat of an attempt stopped long ago, by the file system's clock."""
    try:
        return time.time() - (attempt / "beat").stat().st_mtime > DEAD_AFTER_S
    except OSError:
        return False


def _read_trial(run: RunFolder) -> RankedTrial:
    task, of_sweep = read_task(run), TASK_ID.fullmatch(run.run_id)
    points: list[tuple[int, float]] = []
    attempts = [run.attempts / str(index) for index in attempt_indices(run)]
    for attempt in [*_list_earlier_attempts(run), *attempts]:
        record = read_record(attempt / "metric-end.json", MetricRecord)
        record = record or read_record(attempt / "metric.json", MetricRecord)
        found = [(step, float(value)) for step, value in (record.points if record else [])]
        # A later attempt repeats the steps since its checkpoint.
        points = [each for each in points if found and each[0] < found[0][0]] + found or points
    state: TrialState = "waiting"
    if attempts:
        end = read_record(attempts[-1] / "end.json", End)
        if end is None:
            state = "failed" if _is_dead(attempts[-1]) else "running"
        elif end.next is not None:
            state = "failed" if run.cancelled.exists() else "running"
        else:
            state = "complete" if end.why == "done" else "failed"
            state = "pruned" if end.why == "pruned" else state
    elif run.cancelled.exists():
        state = "failed"
    step, value = points[-1] if points else (None, None)
    return RankedTrial(
        number=int(of_sweep[2]) if of_sweep is not None else 0,
        run_id=run.run_id,
        state=state,
        values=task.values if task is not None else {},
        step=step,
        value=value,
    )


def _list_earlier_attempts(run: RunFolder) -> list[Path]:
    """Return the attempts of the trials whose checkpoints a resubmitted trial resumes from."""
    found: list[RunFolder] = []
    search = read_record(run.search, SearchRecord)
    while search is not None and search.resumes:
        # A path of the cluster, whose runs may be in a mirror here.
        earlier = RunFolder(run.path.parent / PurePosixPath(search.resumes).name)
        if any(earlier.path == each.path for each in found):
            break
        found.insert(0, earlier)
        search = read_record(earlier.search, SearchRecord)
    return [each.attempts / str(index) for each in found for index in attempt_indices(each)]
