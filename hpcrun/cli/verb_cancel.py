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
    """Cancel a run: JOB is its Slurm job id or run id, and must be named.

    The id of a sweep, or of its array, cancels all its runs.
    """
    from hpcrun.cli.output import emit_json, say
    from hpcrun.cli.watch import name
    from hpcrun.controller.cancel import cancel
    from hpcrun.controller.status import resolve_any
    from hpcrun.runs.layout import SweepFolder

    where = context(cluster)
    found = resolve_any(where, job)
    if isinstance(found, SweepFolder):
        from hpcrun.cli.show_sweep import cancel_and_show

        return cancel_and_show(where, found, as_json=as_json)
    before = cancel(where, found)
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
