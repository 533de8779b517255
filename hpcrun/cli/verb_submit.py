"""hpcrun submit."""

from __future__ import annotations

from typing import Any

import click

from hpcrun.cli.options import (
    JOB,
    RUN,
    WordsAfterDashes,
    asked_job,
    check_follow,
    cluster_option,
    context,
    job_options,
    json_option,
)


@click.command("submit", cls=WordsAfterDashes)
@click.argument("job", required=False, type=JOB)
@job_options
@click.option("--after", type=RUN, help="Start only after this run or job has succeeded.")
@click.option("--dry-run", is_flag=True, help="Print what would be submitted, and stop.")
@click.option("--test-only", is_flag=True, help="Ask Slurm when it would start, and stop.")
@click.option("--follow", is_flag=True, help="Show the output until the job ends.")
@click.option("--wait", is_flag=True, help="Wait until the job ends; exit code 1 if it failed.")
@cluster_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    job: str | None,
    after: str | None,
    dry_run: bool,
    test_only: bool,
    follow: bool,
    wait: bool,
    cluster: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Submit a job to Slurm.

    JOB is a name that `hpcrun jobs` lists, or a job file. Arguments after -- go to the script;
    without JOB they are the command to run: hpcrun submit -- hostname.
    """
    from hpcrun.cli.output import done_anyway, emit_json
    from hpcrun.cli.show_plan import show_files, show_submission
    from hpcrun.controller.checks.submission import Checks
    from hpcrun.controller.prepare import prepare
    from hpcrun.controller.submit import submit

    check_follow("submit", follow=follow, as_json=as_json)
    where = context(cluster, debug=options["debug"])
    spec, words, origin = asked_job(ctx, where, job, options)
    first = None
    if after is not None:
        from hpcrun.controller.state.dependency import dependency_on

        first = dependency_on(where, after)
    checks = Checks(heed=not options["no_check"])
    if test_only:
        from hpcrun.cli.show_plan import show_estimate
        from hpcrun.controller.submit import expected_start
        from hpcrun.controller.sweep import prepare_sweep

        make = prepare_sweep if spec.sweep else prepare
        made = make(where, spec, extra_args=words, after=first, origin=origin, checks=checks)
        show_estimate(made.plan, expected_start(where, made.plan, made.files), as_json=as_json)
        return 0
    if spec.sweep:
        from hpcrun.cli.show_sweep import submit_and_show

        return submit_and_show(
            where,
            spec,
            words,
            after=first,
            origin=origin,
            checks=checks,
            dry_run=dry_run,
            follow=follow,
            wait=wait,
            as_json=as_json,
        )
    prepared = prepare(where, spec, extra_args=words, after=first, origin=origin, checks=checks)
    if dry_run:
        show_files(prepared.files, as_json=as_json, notes=prepared.plan.notes)
        return 0
    submission = submit(where, prepared)
    with done_anyway(f"submitted: job {submission.job_id}"):
        if as_json:
            emit_json(
                {
                    "run_id": submission.run.run_id,
                    "job_id": submission.job_id,
                    "run_dir": str(submission.run.path),
                    "cluster": prepared.plan.cluster,
                    "effective_batch": prepared.plan.effective_batch,
                    "notes": prepared.plan.notes,
                }
            )
        else:
            show_submission(
                prepared.plan, submission.job_id, bare=prepared.spec.command is not None
            )
    if follow or wait:
        from hpcrun.cli.watch import watch  # here: following needs much that a submission does not

        return watch(where, submission.run, logs=follow, quiet=as_json)
    return 0
