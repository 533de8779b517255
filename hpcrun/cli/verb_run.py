"""hpcrun run."""

from __future__ import annotations

import signal
from typing import Any

import click

from hpcrun.cli.options import (
    FILE,
    JOB,
    JobCommand,
    asked_job,
    cluster_option,
    context,
    job_options,
)
from hpcrun.cli.output import note, pairs, say


@click.command("run", cls=JobCommand)
@click.argument("job", required=False, type=JOB)
@click.option("--hostfile", type=FILE, help="Run on these hosts, by ssh, without Slurm.")
@job_options
@cluster_option
def command(
    job: str | None,
    hostfile: str | None,
    cluster: str | None,
    **options: Any,
) -> int:
    """Run a job here, in the foreground.

    Without Slurm the job runs on this machine, or on the hosts of a hostfile; inside an salloc it
    uses the allocation. Ctrl-C ends it on all hosts.
    """
    from hpcrun.cli.show_logs import watch
    from hpcrun.cli.show_submission import describe
    from hpcrun.controller.checks.submission import Checks
    from hpcrun.controller.prepare import prepare
    from hpcrun.controller.run import here, load_pool, on_pool, running, share_cpus, take_shape

    pool = None
    where = context(cluster, debug=options["debug"])
    if hostfile is not None:
        pool = load_pool(where, hostfile)
        where = on_pool(where, pool)
    else:
        where = here(where)
    spec, extra_args, origin = asked_job(where, job, options)
    spec = take_shape(pool, spec) if pool is not None else share_cpus(where, spec)
    checks = Checks(strict=not options["no_check"])
    prepared = prepare(where, spec, extra_args=extra_args, origin=origin, checks=checks)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    with running(where, prepared) as (run, process):
        say(f"Running {prepared.plan.name} {'here' if pool is None else f'on {pool.source}'}")
        pairs(describe(prepared))
        try:
            return watch(where, run, logs=True, process=process)
        except KeyboardInterrupt:
            note("stopping the run")
            raise
