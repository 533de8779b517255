"""hpcrun submit."""

from __future__ import annotations

from typing import Any

import click

from hpcrun.cli.options import (
    JOB,
    RUN,
    JobCommand,
    asked_job,
    check_follow,
    cluster_option,
    context,
    job_options,
    json_option,
)


@click.command("submit", cls=JobCommand)
@click.argument("job", required=False, type=JOB)
@job_options
@click.option("--after", type=RUN, help="Start only after this run or job has succeeded.")
@click.option("--dry-run", is_flag=True, help="Print what would be submitted, and stop.")
@click.option("--test-only", is_flag=True, help="Ask Slurm when it would start, and stop.")
@click.option("--follow", is_flag=True, help="Show the output until the job ends.")
@click.option("--wait", is_flag=True, help="Wait until the job ends; exit code 1 if it failed.")
@cluster_option
@json_option
def command(
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
    from hpcrun.cli.show_submission import hand_in, show_estimate, show_files, submission_json
    from hpcrun.controller.checks.submission import Checks
    from hpcrun.controller.prepare import dependency_on, prepare_job

    check_follow("submit", follow=follow, as_json=as_json)
    where = context(cluster, debug=options["debug"])
    spec, extra_args, origin = asked_job(where, job, options)
    first = dependency_on(where, after) if after is not None else None
    checks = Checks(strict=not options["no_check"])
    made = prepare_job(
        where, spec, extra_args=extra_args, after=first, origin=origin, checks=checks
    )
    if dry_run and not test_only:
        show_files(made, as_json=as_json)
        return 0
    from hpcrun.controller.submit import expected_start, submit_job  # here: a dry run needs none

    if test_only:
        show_estimate(made.plan, expected_start(where, made.plan, made.files), as_json=as_json)
        return 0
    return hand_in(
        where,
        made,
        lambda: submit_job(where, made),
        lambda job_id: submission_json(made, job_id),
        follow=follow,
        wait=wait,
        as_json=as_json,
    )
