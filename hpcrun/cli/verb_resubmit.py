"""hpcrun resubmit."""

from __future__ import annotations

from typing import Any, Literal

import click

from hpcrun.cli.options import (
    RUN,
    JobCommand,
    asked_overrides,
    check_follow,
    cluster_option,
    context,
    job_options,
    json_option,
)


@click.command("resubmit", cls=JobCommand)
@click.argument("job", required=False, type=RUN)
@click.option("--failed", is_flag=True, help="Only runs that are over and did not succeed.")
@click.option("--fresh", is_flag=True, help="Start from scratch, with an own checkpoint folder.")
@click.option(
    "--code",
    type=click.Choice(["then", "now"]),
    default="then",
    help="The earlier run's copy of the code (then), or the project's current code (now).",
)
@job_options
@click.option("--dry-run", is_flag=True, help="Print what would be submitted, and stop.")
@click.option("--follow", is_flag=True, help="Show the output until the job ends.")
@click.option("--wait", is_flag=True, help="Wait until the job ends; exit code 1 if it failed.")
@cluster_option
@json_option
def command(
    job: str | None,
    failed: bool,
    fresh: bool,
    code: Literal["then", "now"],
    dry_run: bool,
    follow: bool,
    wait: bool,
    cluster: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Submit a run again: a new run of the same job, which resumes from its checkpoints.

    JOB is a Slurm job id, a run id or a sweep's id; the default is the newest run. The new run has
    the same job (with the changes of --set and the other options), code, project and
    {checkpoint_dir}, so a script that can resume does. Arguments after -- are appended to the
    script's.
    """
    from hpcrun.cli.show_submission import again_json, hand_in, show_files, show_origin
    from hpcrun.controller.checks.submission import Checks
    from hpcrun.controller.resubmit import prepare_again, submit_again
    from hpcrun.controller.targets import resolve

    check_follow("resubmit", follow=follow, as_json=as_json)
    where = context(cluster, debug=options["debug"])
    again = prepare_again(
        where,
        resolve(where, job),
        overrides=asked_overrides(options),
        extra_args=options["extra_args"] or (),
        code=code,
        fresh=fresh,
        failed=failed,
        named_cluster=cluster is not None,
        checks=Checks(strict=not options["no_check"]),
    )
    made = again.prepared
    if dry_run:
        if not as_json:
            show_origin(again)
        show_files(made, as_json=as_json)
        return 0

    def submit() -> str:
        job_id = submit_again(again)
        if not as_json:
            show_origin(again)
        return job_id

    return hand_in(
        again.context,
        made,
        submit,
        lambda job_id: again_json(again, job_id),
        follow=follow,
        wait=wait,
        as_json=as_json,
    )
