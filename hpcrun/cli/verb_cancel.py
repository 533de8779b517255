"""hpcrun cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import RUN, cluster_option, context, json_option

if TYPE_CHECKING:
    from hpcrun.controller.orders import Outcome
    from hpcrun.runs.layout import SweepFolder


@click.command("cancel")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, type=RUN)
@click.option("--pending", is_flag=True, help="Only jobs that have not started yet.")
@cluster_option
@json_option
def command(jobs: Sequence[str], pending: bool, cluster: str | None, as_json: bool) -> int:
    """Cancel runs, whole sweeps, or any of your Slurm jobs.

    JOB is a Slurm job id, a run id or a sweep's id; 7_3 and 7_[3-5,9] are tasks of array 7. There
    is no default: even the newest run must be named. Jobs that are already over are left alone.
    """
    from hpcrun.cli.show_outcomes import end_with
    from hpcrun.controller.orders import cancel_all
    from hpcrun.controller.targets import find_targets

    where = context(cluster)
    targets = find_targets(where, jobs)
    outcomes = cancel_all(where, targets, pending=pending)
    if not as_json:
        _show(outcomes, targets.sweeps)
    return end_with(outcomes, done="cancelled", as_json=as_json)


def _show(outcomes: Sequence[Outcome], sweeps: Sequence[SweepFolder]) -> None:
    """Print a line for each run, and for each sweep."""
    from hpcrun.cli.output import say
    from hpcrun.runs.store import runs_of

    rest = list(outcomes)
    for sweep in sweeps:
        inside = {run.run_id for run in runs_of(sweep)}
        say(_sweep_line(sweep.sweep_id, [one for one in outcomes if one.run_id in inside]))
        rest = [one for one in rest if one.run_id not in inside]
    for one in rest:
        if one.done:
            say(f"{one.status.label} was {one.status.state} and is being cancelled")
        elif one.over:
            say(f"{one.status.label} is over already: {one.status.state}")
        elif one.left:
            say(f"{one.status.label} is left alone: {one.left}")


def _sweep_line(sweep_id: str, runs: Sequence[Outcome]) -> str:
    from collections import Counter

    gone = Counter(one.status.state for one in runs if one.done)
    if gone:
        states = ", ".join(f"{number} {state}" for state, number in gone.most_common())
        count = sum(gone.values())
        return f"{sweep_id}: {count} of {len(runs)} runs are being cancelled: {states}"
    if all(one.over for one in runs):
        return f"{sweep_id}: all {len(runs)} runs are over already"
    left = Counter(one.status.state for one in runs)
    states = ", ".join(f"{number} {state}" for state, number in left.most_common())
    return f"{sweep_id}: no run is cancelled: {states}"
