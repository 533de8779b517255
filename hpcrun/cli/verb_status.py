"""hpcrun status.

Effects: those of the controller.
"""

from __future__ import annotations

import click

from hpcrun.cli.options import cluster_option, context, json_option


@click.command("status")
@click.argument("job", required=False)
@click.option("-n", "count", type=click.IntRange(1), default=20, help="How many runs (20).")
@cluster_option
@json_option
def command(job: str | None, count: int, cluster: str | None, as_json: bool) -> int:
    """Tell the state of the newest runs, or of one run in detail.

    JOB is a Slurm job id or a run id. The exit code is 4 when Slurm does not answer.
    """
    from hpcrun.cli.output import emit_json, note, say
    from hpcrun.cli.show_status import (
        foreign_json,
        show_foreign,
        show_many,
        show_one,
        status_json,
    )
    from hpcrun.controller.status import foreign_status, newest, status_of
    from hpcrun.runs.store import find_run

    where = context(cluster)
    if job is not None and job.isdigit() and find_run(where.runs_dir, job) is None:
        foreign = foreign_status(where, job)
        if as_json:
            emit_json({"runs": [foreign_json(foreign)]})
        else:
            show_foreign(foreign)
        return 0
    if job is not None:
        from hpcrun.controller.status import resolve

        runs = [resolve(where, job)]
    else:
        runs = newest(where, count)
    statuses = status_of(where, runs)
    silent = next((status.out_of_reach for status in statuses if status.out_of_reach), "")
    if as_json:
        emit_json({"runs": [status_json(status) for status in statuses]})
    elif job is not None:
        show_one(statuses[0])
    elif statuses:
        show_many(statuses)
    else:
        say(f"no runs yet in {where.runs_dir}; hpcrun jobs lists what can be submitted")
    if silent:
        note(f"Slurm is out of reach: {silent}")
    # What is final stays known without Slurm.
    return 4 if silent and any(not status.verdict.final for status in statuses) else 0
