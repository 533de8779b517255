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
    """Tell the state of the newest runs, of one run in detail, or of all runs of a sweep.

    JOB is a Slurm job id, as 123 or 123_4, a run id or a sweep's id. The exit code is 4 when Slurm
    does not answer.
    """
    from hpcrun.cli.output import emit_json, note, say
    from hpcrun.cli.show_status import (
        foreign_json,
        show_foreign,
        show_many,
        show_one,
        status_json,
    )
    from hpcrun.cli.show_sweep import show_sweep
    from hpcrun.controller.foreign import foreign_status
    from hpcrun.controller.status import newest, resolve_any, status_of
    from hpcrun.runs.layout import SweepFolder
    from hpcrun.runs.store import find, is_job_id, read_sweep, runs_of

    where = context(cluster)
    if job is not None and is_job_id(job) and find(where.runs_dir, job) is None:
        foreign = foreign_status(where, job)
        if as_json:
            emit_json({"runs": [foreign_json(one) for one in foreign]})
        else:
            for one in foreign:
                show_foreign(one)
        return 0
    sweep = None
    if job is not None:
        found = resolve_any(where, job)
        if isinstance(found, SweepFolder):
            sweep, runs = read_sweep(found), runs_of(found)
        else:
            runs = [found]
    else:
        runs = newest(where, count)
    statuses = status_of(where, runs)
    silent = next((status.out_of_reach for status in statuses if status.out_of_reach), "")
    if as_json:
        emit_json({"runs": [status_json(status) for status in statuses]})
    elif sweep is not None:
        show_sweep(sweep, statuses)
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
