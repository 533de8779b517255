"""The verbs cancel, requeue, resubmit and clean."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from hpcrun.cli.options import (
    RUN,
    JobCommand,
    cluster_option,
    collect_overrides,
    job_options,
    json_option,
    make_context,
    parse_duration,
)
from hpcrun.cli.output import confirm, emit_json, print_error, print_line, print_note, print_table
from hpcrun.errors import HpcrunError, InputError, OutOfReach

if TYPE_CHECKING:
    from hpcrun.actions import ActionResult, Again, CleanupItem
    from hpcrun.runs import SweepFolder


@click.command("cancel")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, type=RUN)
@click.option("--pending", is_flag=True, help="Cancel only jobs that have not started yet.")
@cluster_option
@json_option
def cancel(jobs: Sequence[str], pending: bool, cluster: str | None, as_json: bool) -> int:
    """Cancel runs, whole sweeps, or any of your Slurm jobs.

    JOB is a Slurm job id, a run id or a sweep's id; 7_3 and 7_[3-5,9] are tasks of array 7. JOB has
    no default. Jobs that have already ended are not changed.
    """
    from hpcrun.actions import cancel_evaluations, cancel_jobs
    from hpcrun.monitor import find_targets

    where = make_context(cluster)
    targets = find_targets(where, jobs)
    if not pending and cancel_evaluations(where, targets):
        targets = find_targets(where, jobs)  # an evaluation may have been submitted meanwhile
    outcomes = cancel_jobs(where, targets, pending=pending)
    if not as_json:
        _show_cancelled(outcomes, targets.sweeps)
    return _report_outcomes(outcomes, done="cancelled", as_json=as_json)


@click.command("requeue")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, type=RUN)
@click.option("--failed", is_flag=True, help="Requeue only jobs that did not succeed.")
@click.option("--hold", is_flag=True, help="Hold the job until scontrol release JOB.")
@cluster_option
@json_option
def requeue(
    jobs: Sequence[str], failed: bool, hold: bool, cluster: str | None, as_json: bool
) -> int:
    """Restart jobs under their own ids, as the next attempt of the same run.

    JOB is a running job, which is stopped first, or a job that has ended but is still known to
    Slurm. For a sweep, the running tasks are requeued, or with --failed the failed tasks. For a job
    that Slurm no longer knows, use hpcrun resubmit.
    """
    from hpcrun.actions import requeue_jobs
    from hpcrun.monitor import find_targets

    where = make_context(cluster)
    outcomes = requeue_jobs(where, find_targets(where, jobs), failed=failed, hold=hold)
    for one in [] if as_json else outcomes:
        name, state = one.status.label, one.status.state
        if one.done and hold:
            print_line(f"{name} was {state} and is held: scontrol release {one.status.job_id}")
        elif one.done:
            print_line(f"{name} was {state} and is being restarted")
        elif one.left:
            print_line(f"{name} is unchanged: {one.left}")
    if any(one.done for one in outcomes) and not (hold or as_json):
        print_line(
            click.style(
                "Slurm waits two minutes first, unless the site has configured another delay",
                dim=True,
            )
        )
    return _report_outcomes(outcomes, done="requeued", as_json=as_json)


def _show_cancelled(outcomes: Sequence[ActionResult], sweeps: Sequence[SweepFolder]) -> None:
    from hpcrun.runs import runs_of

    rest = list(outcomes)
    for sweep in sweeps:
        inside = {run.run_id for run in runs_of(sweep)}
        print_line(
            f"{sweep.sweep_id}: {_summarize_sweep([one for one in rest if one.run_id in inside])}"
        )
        rest = [one for one in rest if one.run_id not in inside]
    for one in rest:
        if one.done:
            print_line(f"{one.status.label} was {one.status.state} and is being cancelled")
        elif one.over:
            print_line(f"{one.status.label} has already ended: {one.status.state}")
        elif one.left:
            print_line(f"{one.status.label} is unchanged: {one.left}")


def _summarize_sweep(runs: Sequence[ActionResult]) -> str:
    gone = [one for one in runs if one.done]
    if not gone and all(one.over for one in runs):
        return f"all {len(runs)} runs have already ended"
    number = Counter(one.status.state for one in gone or runs)
    states = ", ".join(f"{count} {state}" for state, count in number.most_common())
    start = f"{len(gone)} of {len(runs)} runs are being" if gone else "no run is"
    return f"{start} cancelled: {states}"


def _report_outcomes(outcomes: Sequence[ActionResult], *, done: str, as_json: bool) -> int:
    """Print outcomes as JSON, or only errors and failed records; return the exit code."""
    errors = {str(one.error): one.error for one in outcomes if one.error is not None}
    if as_json:
        emit_json({"runs": [_outcome_json(one, done) for one in outcomes]})
    else:
        for text in dict.fromkeys(one.unrecorded for one in outcomes if one.unrecorded):
            print_note(f"note: {done} all the same, without a record of it: {text}")
        for error in errors.values():
            print_error(error)
    codes = [error.exit_code for error in errors.values()]
    # An unreachable Slurm has precedence over rejections.
    return OutOfReach.exit_code if OutOfReach.exit_code in codes else max(codes, default=0)


def _outcome_json(one: ActionResult, done: str) -> dict[str, object]:
    return {
        "run_id": one.run_id,
        "job_id": one.status.job_id,
        "state_before": one.status.state,
        done: one.done,
        "reason": (one.error.message if one.error else one.left or one.unrecorded) or None,
    }


@click.command("resubmit", cls=JobCommand)
@click.argument("job", required=False, type=RUN)
@click.option("--failed", is_flag=True, help="Resubmit only runs that did not succeed.")
@click.option(
    "--from",
    "first",
    metavar="STAGE",
    help="Of a pipeline: resubmit this stage, and all stages that wait for it.",
)
@click.option("--fresh", is_flag=True, help="Start at step 0 with a new checkpoint directory.")
@click.option(
    "--code",
    type=click.Choice(["then", "now"]),
    help="The code to run: the earlier run's copy (then, the default), or the project's current "
    "code (now).",
)
@job_options
@click.option("--dry-run", is_flag=True, help="Print what would be submitted, and stop.")
@click.option("--follow", is_flag=True, help="Show the output until the job ends.")
@click.option("--wait", is_flag=True, help="Wait until the job ends; exit code 1 if it failed.")
@cluster_option
@json_option
def resubmit(
    job: str | None,
    failed: bool,
    first: str | None,
    fresh: bool,
    code: Literal["then", "now"] | None,
    dry_run: bool,
    follow: bool,
    wait: bool,
    cluster: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Submit a new run of the same job, which resumes from the earlier run's checkpoints.

    JOB is a Slurm job id, a run id or a sweep's id; the default is the newest run. The new run has
    the same job, code, project and {checkpoint_dir}, so a script that can resume does; --set and
    the other options change the job. Arguments after -- are appended to those of the script.

    With --from, JOB is the id of a pipeline.
    """
    from hpcrun.actions import Checks, prepare_again
    from hpcrun.cli.show_submission import show_files, show_origin, submit_and_watch
    from hpcrun.monitor import find_pipeline, resolve_run_or_sweep

    where = make_context(cluster, debug=options["debug"])
    pipeline = find_pipeline(where, job)
    if pipeline is not None or first is not None:
        from hpcrun.cli.submit_pipeline import resubmit_stages

        other = {"failed": failed, "follow": follow, "cluster": cluster}
        how: dict[str, Any] = {"code": code or "then", "fresh": fresh, "dry_run": dry_run}
        how |= {"wait": wait, "as_json": as_json}
        return resubmit_stages(where, pipeline, first, options, other, **how)
    found = resolve_run_or_sweep(where, job)

    def plan_again(code: Literal["then", "now"]) -> Again:
        return prepare_again(
            where,
            found,
            overrides=collect_overrides(options),
            extra_args=options["extra_args"] or (),
            code=code,
            fresh=fresh,
            failed=failed,
            named_cluster=cluster is not None,
            checks=Checks(strict=not options["no_check"]),
        )

    again = plan_again(code or "then")
    can_ask = sys.stdin.isatty() and sys.stderr.isatty() and not (as_json or dry_run)
    if again.changed and code is None and can_ask:
        names = ", ".join(again.changed[:3])
        text = f"The code has changed since ({names}): run the current code?"
        if confirm(text, default=False):
            again = plan_again("now")
    made = again.prepared
    if dry_run:
        if not as_json:
            show_origin(again)
        show_files(made, as_json=as_json)
        return 0
    return submit_and_watch(again.context, made, again, follow=follow, wait=wait, as_json=as_json)


# Number of runs that are listed before the question, and the time limit for measuring sizes in
# seconds.
_SHOWN = 20
_PATIENCE = 3.0


@click.command("clean")
@click.argument("jobs", metavar="[JOB...]", nargs=-1, type=RUN)
@click.option(
    "--older-than",
    default="30d",
    metavar="T",
    help="Delete runs that ended at least this long ago, e.g. 12h (default: 30d).",
)
@click.option(
    "--keep", type=click.IntRange(0), default=0, help="Keep the newest N runs, regardless of age."
)
@click.option("--failed", is_flag=True, help="Delete only runs that did not succeed.")
@click.option("--dry-run", is_flag=True, help="List the runs that would be deleted, and stop.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@cluster_option
@json_option
def clean(
    jobs: Sequence[str],
    older_than: str,
    keep: int,
    failed: bool,
    dry_run: bool,
    yes: bool,
    cluster: str | None,
    as_json: bool,
) -> int:
    """Delete the folders of old runs, including their logs and checkpoints.

    Only your own runs that have certainly ended are deleted, and a sweep only as a whole. A run
    whose checkpoints a later run uses is kept. A run given as JOB is deleted regardless of its age.
    The command asks for confirmation.
    """
    from hpcrun.actions import find_cleanup_items, measure_sizes, refuse_sweep_members, remove_items
    from hpcrun.monitor import find_targets

    age = parse_duration(older_than)
    asks = not (yes or dry_run)
    if asks and (as_json or not sys.stdin.isatty()):
        raise InputError(
            "clean asks before it removes anything, and there is no terminal",
            fix="-y removes without asking; --dry-run lists what would be removed",
        )
    where = make_context(cluster)
    named = find_targets(where, jobs) if jobs else None
    if named is not None:
        if named.jobs:
            raise InputError(f"{named.jobs[0]}: no such run", fix="hpcrun status lists the runs")
        refuse_sweep_members(named.runs)
    units = find_cleanup_items(
        where,
        older_than=age,
        keep=keep,
        failed=failed,
        named=[*named.runs, *named.sweeps] if named is not None else (),
    )
    going = [unit for unit in units if not unit.kept]
    if dry_run or not as_json:
        measure_sizes(where, going, time.monotonic() + _PATIENCE)
    if not as_json:
        _print_items(units, going, all_of_them=dry_run)
    gone: list[tuple[CleanupItem, HpcrunError | None]] = []
    if going and asks and not confirm("Remove them for good?"):
        print_line("nothing removed")
        return 0
    if going and not dry_run:
        try:
            with where.bar("removing", "runs") as show:
                for one in remove_items(where, going):
                    gone.append(one)
                    show(len(gone), len(going))
        finally:
            if not as_json:
                done = sum(error is None for _, error in gone)
                print_line(f"{done} of {len(going)} removed")
            if len(gone) < len(going):
                print_note("no run is partially removed; run hpcrun clean again to continue")
    errors = [error for _, error in gone if error is not None]
    if as_json:
        emit_json(_clean_json(units, gone, dry_run=dry_run))
    for error in errors:
        print_error(error)
    if errors:
        return 1
    if any(unit.is_silent for unit in units):
        return OutOfReach.exit_code
    return 1 if named is not None and len(going) < len(units) else 0


def _print_items(
    units: Sequence[CleanupItem], going: Sequence[CleanupItem], *, all_of_them: bool
) -> None:
    from hpcrun.text import format_size

    shown = list(going if all_of_them else going[:_SHOWN])
    if shown:
        rows = [
            (
                unit.name,
                _format_states(unit),
                _format_age(time.time() - unit.ended_at),
                "-" if unit.size is None else format_size(unit.size),
                "checkpoints" if unit.has_checkpoints else "",
            )
            for unit in shown
        ]
        print_table(["RUN", "STATE", "ENDED", "SIZE", ""], rows)
        if len(going) > len(shown):
            print_line(f"... and {len(going) - len(shown)} more; --dry-run lists all")
        sizes = [unit.size for unit in going if unit.size is not None]
        least = "at least " if len(sizes) < len(going) else ""
        runs = sum(max(1, len(unit.runs)) for unit in going)
        print_line(f"{runs} run{'s' if runs != 1 else ''}, {least}{format_size(sum(sizes))}")
    else:
        print_line("nothing to remove")
    kept = [unit for unit in units if unit.kept]
    for unit in kept[:3]:
        print_note(click.style(f"kept: {unit.name}: {unit.kept}", dim=True))
    if len(kept) > 3:
        why = Counter("a later run needs it" if "uses" in u.kept else u.kept for u in kept[3:])
        reasons = ", ".join(f"{number} ({reason})" for reason, number in why.most_common(3))
        print_note(click.style(f"also kept: {reasons}", dim=True))


def _format_states(unit: CleanupItem) -> str:
    if not unit.is_sweep:
        return next(iter(unit.states), "-")
    return ", ".join(f"{number} {state}" for state, number in unit.states.items()) or "no runs"


def _format_age(age: float) -> str:
    """Format how long ago something happened.

    >>> _format_age(30), _format_age(7300), _format_age(86400 * 45)
    ('30 s ago', '2 h ago', '45 d ago')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if age >= length:
            return f"{int(age // length)} {unit} ago"
    return f"{max(0, int(age))} s ago"


def _clean_json(
    units: Sequence[CleanupItem],
    gone: Sequence[tuple[CleanupItem, HpcrunError | None]],
    *,
    dry_run: bool,
) -> dict[str, Any]:
    errors = {unit.name: error.message for unit, error in gone if error is not None}
    removed = {unit.name for unit, error in gone if error is None}
    return {
        "dry_run": dry_run,
        "runs": [
            {
                "id": unit.name,
                "sweep": unit.is_sweep,
                "states": unit.states,
                "ended_at": round(unit.ended_at, 3),
                "bytes": unit.size,
                "removed": unit.name in removed,
                "reason": unit.kept or errors.get(unit.name),
            }
            for unit in units
        ],
    }
