"""Sweeps on the command line: what they look like, submitted and on their way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import click

from hpcrun.cli.output import note, say, table
from hpcrun.cli.show_status import duration
from hpcrun.cli.watch import state_line, verdict_line
from hpcrun.controller.context import Context
from hpcrun.controller.state.rows import elapsed_of
from hpcrun.controller.state.status import RunStatus
from hpcrun.controller.state.words import failure_text
from hpcrun.controller.watch.follow import wait_all
from hpcrun.controller.watch.watched_runs import WatchedRuns
from hpcrun.plan.types import column_names
from hpcrun.runs.layout import SweepFolder
from hpcrun.runs.records import Sweep
from hpcrun.runs.store import runs_of
from hpcrun.slurm.reasons import explain
from hpcrun.views.numbers import sweep_size


def show_sweep(sweep: Sweep, statuses: Sequence[RunStatus]) -> None:
    """Print a line for each run of a sweep."""
    counts = Counter(status.verdict.state for status in statuses)
    told = ", ".join(f"{number} {state}" for state, number in counts.most_common())
    say(f"{click.style(sweep.name, bold=True)}: {sweep_size(sweep.tasks, sweep.limit)}: {told}")
    values: list[Mapping[str, str]] = [
        status.history.task.values if status.history.task else {} for status in statuses
    ]
    keys = list(dict.fromkeys(key for each in values for key in each))
    rows = [
        [
            status.job_id or status.run.run_id,
            status.verdict.state,
            duration(elapsed_of(status)),
            *(each.get(key, "-") for key in keys),
            _reason(status) or failure_text(status),
        ]
        for status, each in zip(statuses, values, strict=True)
    ]
    table(["JOBID", "STATE", "TIME", *column_names(keys), ""], rows)


def wait_for_sweep(context: Context, sweep: SweepFolder, *, quiet: bool) -> int:
    """Wait for all runs; 0 if all ended well and 1 if not. Ctrl-C ends the waiting alone."""
    watched = WatchedRuns(context, runs_of(sweep))
    try:
        for status in wait_all([watched]):
            if not quiet:
                note(verdict_line(status) if status.verdict.final else state_line(status))
    except KeyboardInterrupt:
        note(f"\nno longer waiting; the runs go on: hpcrun status {sweep.sweep_id}")
        raise
    return 0 if all(status.verdict.ok for status in watched.statuses) else 1


def _reason(status: RunStatus) -> str:
    return explain(status.verdict.reason, status.job_id or "").words
