"""hpcrun run.

Effects: those of the controller.
"""

from __future__ import annotations

from typing import Any

import click

from hpcrun.cli.options import (
    WordsAfterDashes,
    asked_job,
    cluster_option,
    context,
    job_options,
)


@click.command("run", cls=WordsAfterDashes)
@click.argument("job", required=False)
@job_options
@cluster_option
@click.pass_context
def command(ctx: click.Context, /, job: str | None, cluster: str | None, **options: Any) -> int:
    """Run a job here, in the foreground.

    Without Slurm the job runs on this machine alone; inside an salloc it uses the allocation.
    Ctrl-C ends it.
    """
    import signal

    from hpcrun.cli.output import note, pairs, say
    from hpcrun.cli.show_plan import describe
    from hpcrun.cli.watch import watch
    from hpcrun.controller.prepare import prepare
    from hpcrun.controller.run import here, running, share_cpus

    where = here(context(cluster, debug=options["debug"]))
    spec, words, source = asked_job(ctx, where, job, options)
    prepared = prepare(where, share_cpus(where, spec), extra_args=words, source=source)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    with running(where, prepared) as (run, process):
        say(f"Running {prepared.plan.name} here")
        pairs(describe(prepared.plan, bare=prepared.spec.command is not None))
        try:
            return watch(where, run, logs=True, process=process)
        except KeyboardInterrupt:
            note("stopping the run")
            raise
