"""hpcrun requeue."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hpcrun.cli.options import RUN, cluster_option, context, json_option
from hpcrun.cli.output import say


@click.command("requeue")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, type=RUN)
@click.option("--failed", is_flag=True, help="Only jobs that are over and did not succeed.")
@click.option("--hold", is_flag=True, help="Hold it until scontrol release JOB.")
@cluster_option
@json_option
def command(
    jobs: Sequence[str], failed: bool, hold: bool, cluster: str | None, as_json: bool
) -> int:
    """Start jobs again under their own ids: the next attempt of the same run.

    JOB is a run that runs, or that is over but still in Slurm's memory; of a sweep the running
    tasks, or with --failed the failed ones. A running job is stopped first. For jobs that Slurm
    has forgotten use hpcrun resubmit.
    """
    from hpcrun.cli.show_outcomes import end_with
    from hpcrun.controller.orders import requeue_all
    from hpcrun.controller.targets import find_targets

    where = context(cluster)
    outcomes = requeue_all(where, find_targets(where, jobs), failed=failed, hold=hold)
    for one in [] if as_json else outcomes:
        name, state = one.status.label, one.status.state
        if one.done and hold:
            say(f"{name} was {state} and is held: scontrol release {one.status.job_id}")
        elif one.done:
            say(f"{name} was {state} and starts again")
        elif one.left:
            say(f"{name} is left alone: {one.left}")
    if any(one.done for one in outcomes) and not (hold or as_json):
        say(
            click.style(
                "Slurm waits two minutes first, unless the site has set another time", dim=True
            )
        )
    return end_with(outcomes, done="requeued", as_json=as_json)
