"""hpcrun cancel."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hpcrun.cli.options import RUN, cluster_option, context, json_option


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
    from hpcrun.cli.show_outcomes import end_with, show_cancelled
    from hpcrun.controller.orders import cancel_all
    from hpcrun.controller.targets import find_targets

    where = context(cluster)
    targets = find_targets(where, jobs)
    outcomes = cancel_all(where, targets, pending=pending)
    if not as_json:
        show_cancelled(outcomes, targets.sweeps)
    return end_with(outcomes, done="cancelled", as_json=as_json)
