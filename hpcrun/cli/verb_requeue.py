"""hpcrun requeue.

Effects: those of the controller.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from hpcrun.cli.options import cluster_option, context, json_option


@click.command("requeue")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@click.option("--failed", is_flag=True, help="Only what is over and did not end well.")
@click.option("--hold", is_flag=True, help="Let it wait until scontrol release JOB.")
@cluster_option
@json_option
def command(
    jobs: Sequence[str], failed: bool, hold: bool, cluster: str | None, as_json: bool
) -> int:
    """Start jobs anew under their own ids: the next attempt of the same run.

    JOB is a run that runs, or that is over while Slurm still knows it; of a sweep those runs that
    run now, or with --failed those that failed. A running one is stopped first. What Slurm has
    forgotten is started again by hpcrun resubmit.
    """
    from hpcrun.cli.output import emit_json, say, show_error
    from hpcrun.controller.requeue import requeue_all
    from hpcrun.controller.targets import find_targets, worst

    where = context(cluster)
    told = requeue_all(where, find_targets(where, jobs), failed=failed, hold=hold)
    errors = {str(one.error): one.error for one in told if one.error is not None}
    if as_json:
        emit_json(
            {
                "runs": [
                    {
                        "run_id": one.run_id,
                        "job_id": one.job_id,
                        "state_before": one.state,
                        "requeued": one.requeued,
                        "reason": one.error.message if one.error is not None else one.left or None,
                    }
                    for one in told
                ]
            }
        )
        return worst(list(errors.values()))
    for one in told:
        name = f"job {one.job_id}" if one.job_id else one.run_id
        if one.requeued and hold:
            say(f"{name} was {one.state} and is held: scontrol release {one.job_id}")
        elif one.requeued:
            say(f"{name} was {one.state} and starts anew")
        elif one.left:
            say(f"{name} is left alone: {one.left}")
    if any(one.requeued for one in told) and not hold:
        say(click.style("Slurm lets two minutes pass first, unless the site says else", dim=True))
    for error in errors.values():
        show_error(error)
    return worst(list(errors.values()))
