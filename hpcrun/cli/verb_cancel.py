"""hpcrun cancel.

Effects: those of the controller.
"""

from __future__ import annotations

import click

from hpcrun.cli.options import cluster_option, context, json_option


@click.command("cancel")
@click.argument("job")
@cluster_option
@json_option
def command(job: str, cluster: str | None, as_json: bool) -> int:
    """Cancel a run: JOB is its Slurm job id or run id, and must be named."""
    from hpcrun.cli.output import emit_json, say
    from hpcrun.cli.watch import name
    from hpcrun.controller.cancel import cancel
    from hpcrun.controller.status import resolve

    where = context(cluster)
    before = cancel(where, resolve(where, job))
    if as_json:
        emit_json(
            {
                "run_id": before.run.run_id,
                "job_id": before.job_id,
                "state_before": before.verdict.state,
                "cancelled": not before.verdict.final,
            }
        )
    elif before.verdict.final:
        say(f"{name(before)} is over already: {before.verdict.state}")
    else:
        say(f"{name(before)} was {before.verdict.state} and is being cancelled")
    return 0
