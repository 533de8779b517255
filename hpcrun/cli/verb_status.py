"""hpcrun status."""

from __future__ import annotations

import click

from hpcrun.cli.options import RUN, cluster_option, context, json_option
from hpcrun.errors import InputError


@click.command("status")
@click.argument("job", required=False, type=RUN)
@click.option("-n", "count", type=click.IntRange(1), default=20, help="Number of runs (20).")
@click.option("--all", "everything", is_flag=True, help="All runs, those of a sweep one by one.")
@click.option("-w", "--watch", "is_watched", is_flag=True, help="Refresh as the state changes.")
@cluster_option
@json_option
def command(
    job: str | None,
    count: int,
    everything: bool,
    is_watched: bool,
    cluster: str | None,
    as_json: bool,
) -> int:
    """Show the state of the newest runs, of one run in detail, or of all runs of a sweep.

    JOB is a Slurm job id such as 123 or 123_4 (also of a job that hpcrun did not submit), a run id,
    its last four characters, or a sweep's id. In the list a sweep is one line.

    --watch runs until Ctrl-C, or until the given JOB is over. It queries Slurm at most twice a
    minute, reads the runs' own files more often, and needs a terminal.

    The exit code is 4 if the state depends on Slurm and Slurm does not answer.
    """
    from hpcrun.cli.show_status import Query, show_status

    where = context(cluster)
    query = Query(job, None if everything else count, everything)
    if not is_watched:
        return show_status(where, query, as_json=as_json)
    if as_json:
        raise InputError("--watch shows a picture, --json a state", fix="give one of them")
    from hpcrun.cli.watch_status import watch_status

    return watch_status(where, query)
