"""hpcrun top."""

from __future__ import annotations

import click

from hpcrun.cli.options import RUN, cluster_option, context, json_option
from hpcrun.cli.output import is_terminal


@click.command("top")
@click.argument("jobs", nargs=-1, metavar="[JOB]...", type=RUN)
@click.option("-n", "count", type=click.IntRange(1), default=20, help="Number of jobs (20).")
@click.option("--no-usage", is_flag=True, help="Do not measure GPU and CPU use.")
@cluster_option
@json_option
def command(
    jobs: tuple[str, ...], count: int, no_usage: bool, cluster: str | None, as_json: bool
) -> int:
    """Watch jobs as they run: step, loss, speed, and how busy each node is.

    JOB is a Slurm job id, a run id or a sweep's id; the default is all your running and pending
    jobs, including those that hpcrun did not submit. q or Ctrl-C quits. With --json, or if stdout
    is not a terminal, it prints one snapshot.

    GPU and CPU use is measured by a job step (srun --overlap) that takes no resources, ends with
    this command, and shows in sacct as hpcrun-top.
    """
    from hpcrun.cli.watch_top import print_snapshot, watch_top

    where = context(cluster)
    if as_json or not is_terminal():
        return print_snapshot(where, jobs, count=count, usage=not no_usage, as_json=as_json)
    return watch_top(where, jobs, count=count, usage=not no_usage)
