"""hpcrun resubmit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from hpcrun.cli.options import (
    RUN,
    WordsAfterDashes,
    asked_overrides,
    check_follow,
    cluster_option,
    context,
    job_options,
    json_option,
)

if TYPE_CHECKING:
    from hpcrun.controller.resubmit import Again
    from hpcrun.controller.submit import Submission
    from hpcrun.controller.sweep import SweepSubmission


@click.command("resubmit", cls=WordsAfterDashes)
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
    from hpcrun.cli.output import done_anyway
    from hpcrun.controller.checks.submission import Checks
    from hpcrun.controller.resubmit import prepare_again, submit_again
    from hpcrun.controller.state.status import resolve_any
    from hpcrun.controller.sweep import PreparedSweep

    check_follow("resubmit", follow=follow, as_json=as_json)
    where = context(cluster, debug=options["debug"])
    again = prepare_again(
        where,
        resolve_any(where, job),
        overrides=asked_overrides(options),
        extra_args=ctx.meta["words"] or (),
        code=code,
        fresh=fresh,
        failed=failed,
        named_cluster=cluster is not None,
        checks=Checks(heed=not options["no_check"]),
    )
    if dry_run:
        _show_files(again, as_json=as_json)
        return 0
    if follow and isinstance(again.prepared, PreparedSweep):
        from hpcrun.cli.show_sweep import no_follow

        raise no_follow()
    submission = submit_again(again)
    with done_anyway(f"submitted: job {submission.job_id}"):
        _show(again, submission, as_json=as_json)
    return _watch(again, submission, follow=follow, quiet=as_json) if follow or wait else 0


def _watch(
    again: Again, submission: Submission | SweepSubmission, *, follow: bool, quiet: bool
) -> int:
    """Go on to the end, as submit does; return 0 if it ended well and 1 if not."""
    from hpcrun.controller.submit import Submission

    if isinstance(submission, Submission):
        from hpcrun.cli.watch import watch

        return watch(again.context, submission.run, logs=follow, quiet=quiet)
    from hpcrun.cli.show_sweep import wait_for_sweep

    return wait_for_sweep(again.context, submission.sweep, quiet=quiet)


def _show(again: Again, submission: Submission | SweepSubmission, *, as_json: bool) -> None:
    from hpcrun.cli.output import emit_json
    from hpcrun.controller.submit import Submission
    from hpcrun.controller.sweep import PreparedSweep

    if as_json:
        emit_json(_json(again, submission.job_id))
    elif isinstance(again.prepared, PreparedSweep):
        from hpcrun.cli.show_sweep import show_sweep_submission

        assert not isinstance(submission, Submission)
        _tell_origin(again)
        show_sweep_submission(again.prepared, submission)
    else:
        from hpcrun.cli.show_plan import show_submission

        _tell_origin(again)
        bare = again.prepared.spec.command is not None
        show_submission(again.prepared.plan, submission.job_id, bare=bare)


def _show_files(again: Again, *, as_json: bool) -> None:
    from hpcrun.cli.show_plan import show_files
    from hpcrun.cli.show_sweep import show_sweep_files
    from hpcrun.controller.sweep import PreparedSweep

    if not as_json:
        _tell_origin(again)
    if isinstance(again.prepared, PreparedSweep):
        show_sweep_files(again.prepared, as_json=as_json)
        return
    notes = again.prepared.plan.notes
    show_files(again.prepared.files, as_json=as_json, notes=notes)


def _tell_origin(again: Again) -> None:
    """Say, where messages go, what is taken from which run."""
    from hpcrun.cli.output import note

    first = again.earlier[0]
    name = f"job {first.job_id}" if first.job_id else first.run.run_id
    if len(again.earlier) > 1:
        name += f" and {len(again.earlier) - 1} more"
    kept = sum(folder is not None for folder in again.checkpoint_dirs)
    if kept == 1:
        where = f"goes on from {next(folder for folder in again.checkpoint_dirs if folder)}"
    elif kept:
        where = f"{kept} go on from their checkpoints"
    else:
        where = "begins without checkpoints"
    code = "the code as it was" if again.context.code is not None else "today's code"
    note(click.style(f"again: {name}, {code}; {where}", dim=True))
    for text in again.notes:
        note(click.style(f"note: {text}", dim=True))


def _json(again: Again, job_id: str) -> dict[str, Any]:
    from hpcrun.controller.sweep import PreparedSweep

    made = again.prepared
    is_sweep = isinstance(made, PreparedSweep)
    plans = [run.plan for run in made.runs] if isinstance(made, PreparedSweep) else [made.plan]
    return {
        "job_id": job_id,
        "sweep_id": made.plan.run_id if is_sweep else None,
        "cluster": made.plan.cluster,
        "code": "then" if again.context.code is not None else "now",
        "runs": [
            {
                "run_id": plan.run_id,
                "job_id": f"{job_id}_{index}" if is_sweep else job_id,
                "run_dir": plan.run_dir,
                "resubmitted_from": status.run.run_id,
                "checkpoint_dir": plan.checkpoint_dir,
                "goes_on": folder is not None,
            }
            for index, (plan, status, folder) in enumerate(
                zip(plans, again.earlier, again.checkpoint_dirs, strict=True)
            )
        ],
        "notes": again.notes,
    }
