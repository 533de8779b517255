"""hpcrun resubmit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from hpcrun.cli.options import (
    RUN,
    ArgsAfterDashes,
    asked_overrides,
    check_follow,
    cluster_option,
    context,
    job_options,
    json_option,
)

if TYPE_CHECKING:
    from hpcrun.controller.resubmit import Again


@click.command("resubmit", cls=ArgsAfterDashes)
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
@click.pass_context
def command(
    ctx: click.Context,
    /,
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
    from hpcrun.cli.show_submission import hand_in, show_files
    from hpcrun.controller.checks.submission import Checks
    from hpcrun.controller.resubmit import prepare_again, submit_again
    from hpcrun.controller.targets import resolve

    check_follow("resubmit", follow=follow, as_json=as_json)
    where = context(cluster, debug=options["debug"])
    again = prepare_again(
        where,
        resolve(where, job),
        overrides=asked_overrides(options),
        extra_args=ctx.meta["extra_args"] or (),
        code=code,
        fresh=fresh,
        failed=failed,
        named_cluster=cluster is not None,
        checks=Checks(strict=not options["no_check"]),
    )
    made = again.prepared
    if dry_run:
        if not as_json:
            _show_origin(again)
        show_files(made, as_json=as_json)
        return 0

    def submit() -> str:
        job_id = submit_again(again)
        if not as_json:
            _show_origin(again)
        return job_id

    return hand_in(
        again.context,
        made,
        submit,
        lambda job_id: _json(again, job_id),
        follow=follow,
        wait=wait,
        as_json=as_json,
    )


def _show_origin(again: Again) -> None:
    """Report, where messages go, what is taken from which run."""
    from hpcrun.cli.output import note

    first = again.earlier[0]
    name = first.label
    if len(again.earlier) > 1:
        name += f" and {len(again.earlier) - 1} more"
    kept = [folder for folder in again.checkpoint_dirs if folder is not None]
    checkpoints = f"{len(kept)} resume from their checkpoints"
    if len(kept) < 2:
        checkpoints = f"resumes from {kept[0]}" if kept else "starts without checkpoints"
    code = "the code as it was" if again.context.code is not None else "today's code"
    note(click.style(f"again: {name}, {code}; {checkpoints}", dim=True))
    for text in again.notes:
        note(click.style(f"note: {text}", dim=True))


def _json(again: Again, job_id: str) -> dict[str, Any]:
    made = again.prepared
    return {
        "job_id": job_id,
        "sweep_id": made.plan.run_id if made.is_sweep else None,
        "cluster": made.plan.cluster,
        "code": "then" if again.context.code is not None else "now",
        "runs": [
            {
                "run_id": run.plan.run_id,
                "job_id": f"{job_id}_{index}" if made.is_sweep else job_id,
                "run_dir": run.plan.run_dir,
                "resubmitted_from": status.run_id,
                "checkpoint_dir": run.plan.checkpoint_dir,
                "goes_on": folder is not None,
            }
            for index, (run, status, folder) in enumerate(
                zip(made.each(), again.earlier, again.checkpoint_dirs, strict=True)
            )
        ],
        "notes": again.notes,
    }
