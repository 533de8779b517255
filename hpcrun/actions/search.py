"""What the trials of a search need: its record in each of their directories, and optuna."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Sequence

from hpcrun.actions.cluster_host import ClusterHost
from hpcrun.actions.interpreter import (
    Interpreter,
    find_interpreter,
    find_missing_modules,
    plan_module_check,
)
from hpcrun.context import Context
from hpcrun.curves import list_spellings
from hpcrun.errors import InputError, Problem, SpecError
from hpcrun.plan import SweepRun, fill_drawn_values
from hpcrun.runs import RunFolder, SearchRecord, TrialRecord, read_record, sweep_folder
from hpcrun.spec import JobSpec, Range


def plan_search(
    context: Context, spec: JobSpec, host: ClusterHost, sweep_id: str, runs: Sequence[SweepRun]
) -> SearchRecord | None:
    """Return the record of a search for the jobs of its trials; None for a sweep without a metric.

    Raises:
        SpecError: The jobs draw values, and no Python that they could use has optuna.
    """
    search = spec.search
    if search.metric is None:
        return None
    draws = search.method == "tpe" and any(not run.is_drawn for run in runs)
    runs_dir = sweep_folder(host.login.runs_dir, sweep_id).path.parent
    head, _, tail = sweep_id.rpartition("-")
    return SearchRecord(
        method=search.method,
        seed=search.seed,
        metric=search.metric,
        goal=search.goal,
        spellings=list_spellings(search.metric),
        trials=max((run.index for run in runs), default=-1) + 1,
        before=f"{runs_dir}/{head}.",
        after=f"-{tail}",
        pythons=_find_pythons(context, spec, host) if draws else [],
        space=search.space,
        prune=search.prune or "",
        prune_from=search.prune_from,
        prune_factor=search.prune_factor,
    )


def _find_pythons(context: Context, spec: JobSpec, host: ClusterHost) -> list[str]:
    """List the Pythons that have optuna, as far as is known, for jobs to try in this order.

    These are the job's own one and, without SSH, the one that runs hpcrun.
    """
    found = find_interpreter(context, spec, host)
    pythons, where = [], []
    if found.python and not found.inside:
        where.append(f"the job's Python, {found.python}")
        if _has_optuna(context, found, host):
            pythons.append(found.python)
    if context.cluster.host is None and sys.executable != found.python:
        where.append(f"hpcrun's, {sys.executable}")
        if importlib.util.find_spec("optuna") is not None:
            pythons.append(sys.executable)
    if not pythons:
        need = " or ".join(where) or "a Python on the cluster that the job names (setup.python)"
        message = f"tpe needs optuna in {need}: pip install optuna; search: random needs nothing"
        raise SpecError([Problem("sweep.search", message)])
    return pythons


def _has_optuna(context: Context, found: Interpreter, host: ClusterHost) -> bool:
    """Return False if a Python certainly has no optuna. One of modules is only known to the job."""
    if found.python == sys.executable and context.cluster.host is None:
        return importlib.util.find_spec("optuna") is not None
    check = plan_module_check(context, found, ["optuna"], "")
    if check is None:
        return True
    host.run_queries([check.query])
    return not find_missing_modules(check, host.answers)[0]


def fill_trial_values(spec: JobSpec, run: RunFolder) -> JobSpec:
    """Fill in the values of a trial whose job has drawn them; other jobs are returned unchanged.

    Raises:
        InputError: The trial has not started, or its values are not of its search.
    """
    search = read_record(run.search, SearchRecord)
    if search is None or search.method != "tpe":
        return spec
    values = read_drawn_values(run, search)
    if values is None:
        raise InputError(
            f"{run.run_id}: its job has not started, so it has no values yet",
            fix=f"hpcrun status {run.run_id}",
        )
    return fill_drawn_values(spec, values)


def read_drawn_values(run: RunFolder, search: SearchRecord) -> dict[str, str] | None:
    """Return the values that the job of a trial has drawn; None if it has drawn none yet.

    Raises:
        InputError: The values are not of its search.
    """
    trial = read_record(run.trial, TrialRecord)
    if trial is None:
        return None
    if set(trial.values) != set(search.space) or not all(
        _is_in_space(value, search.space[key]) for key, value in trial.values.items()
    ):
        raise InputError(
            f"{run.trial}: corrupt: its values are not of the search",
            fix="hpcrun submit JOB --set for each value",
        )
    return trial.values


def _is_in_space(value: str, values: list[str] | Range) -> bool:
    if isinstance(values, list):
        return value in values
    with contextlib.suppress(ValueError):
        return values.low <= float(value) <= values.high
    return False
