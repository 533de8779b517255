"""Sweeps on the command line: what they look like, submitted and on their way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import click

from hpcrun.cli.output import done_anyway, emit_json, note, pairs, say, show_next, table
from hpcrun.cli.show_plan import describe, show_files
from hpcrun.cli.show_status import duration
from hpcrun.cli.watch import state_line, verdict_line
from hpcrun.controller.checks.submission import Checks
from hpcrun.controller.context import Context
from hpcrun.controller.state.rows import elapsed_of
from hpcrun.controller.state.status import RunStatus
from hpcrun.controller.state.words import failure_text
from hpcrun.controller.sweep import (
    PreparedSweep,
    SweepSubmission,
    prepare_sweep,
    submit_sweep,
)
from hpcrun.controller.watch.follow import wait_all
from hpcrun.controller.watch.watched_runs import WatchedRuns
from hpcrun.errors import InputError
from hpcrun.plan.types import Dependency, column_names
from hpcrun.runs.layout import SweepFolder
from hpcrun.runs.records import Sweep
from hpcrun.runs.store import runs_of
from hpcrun.slurm.reasons import explain
from hpcrun.spec.job import JobSpec
from hpcrun.spec.load import Origin


def submit_and_show(
    context: Context,
    spec: JobSpec,
    words: Sequence[str],
    *,
    after: Dependency | None,
    origin: Origin,
    checks: Checks,
    dry_run: bool,
    follow: bool,
    wait: bool,
    as_json: bool,
) -> int:
    """Submit a sweep, or show what would be; return the exit code.

    Raises InputError for --follow: a sweep has many logs.
    """
    if follow and not dry_run:
        raise no_follow()
    sweep = prepare_sweep(
        context, spec, extra_args=words, after=after, origin=origin, checks=checks
    )
    if dry_run:
        show_sweep_files(sweep, as_json=as_json)
        return 0
    submission = submit_sweep(context, sweep)
    with done_anyway(f"submitted: job {submission.job_id}"):
        if as_json:
            emit_json(_submission_json(sweep, submission))
        else:
            show_sweep_submission(sweep, submission)
    return wait_for_sweep(context, submission.sweep, quiet=as_json) if wait else 0


def _submission_json(sweep: PreparedSweep, submission: SweepSubmission) -> dict[str, object]:
    return {
        "sweep_id": submission.sweep.sweep_id,
        "job_id": submission.job_id,
        "sweep_dir": str(submission.sweep.path),
        "cluster": sweep.plan.cluster,
        "notes": sweep.plan.notes,
        "runs": [
            {
                "run_id": run.plan.run_id,
                "job_id": f"{submission.job_id}_{index}",
                "run_dir": run.plan.run_dir,
                "values": values,
                "effective_batch": run.plan.effective_batch,
            }
            for index, (run, values) in enumerate(zip(sweep.runs, sweep.values, strict=True))
        ],
    }


def _size(runs: int, limit: int) -> str:
    """Say how many runs there are, and how many of them may run at once.

    >>> _size(6, 4), _size(2, 4)
    ('6 runs, at most 4 at a time', '2 runs')
    """
    count = f"{runs} run{'' if runs == 1 else 's'}"
    return f"{count}, at most {limit} at a time" if limit < runs else count


def show_sweep_files(sweep: PreparedSweep, *, as_json: bool) -> None:
    """Print what a submission would write: the array's script, the runs, the first one's files."""
    if as_json:
        emit_json(
            {file.name: file.text for file in sweep.files}
            | {
                "notes": sweep.plan.notes,
                "runs": [
                    {"values": values, "files": {file.name: file.text for file in run.files}}
                    for run, values in zip(sweep.runs, sweep.values, strict=True)
                ],
            }
        )
        return
    shown = [file for file in sweep.files if file.name == "job.sbatch"]
    show_files(shown, as_json=False, notes=sweep.plan.notes)
    say(click.style(f"==> {_size(len(sweep.runs), sweep.spec.sweep_limit)} <==", bold=True))
    _values_table(sweep)
    say()
    say(click.style("==> the files of the first run <==", bold=True))
    show_files([file for file in sweep.runs[0].files if file.name != "task.json"], as_json=False)


def _values_table(sweep: PreparedSweep) -> None:
    batches = [run.plan.effective_batch for run in sweep.runs]
    several = len(set(batches)) > 1
    header = ["TASK", *column_names(list(sweep.spec.sweep)), *(["batch"] if several else [])]
    rows = [
        [str(index), *values.values(), *([str(batch)] if several else [])]
        for index, (values, batch) in enumerate(zip(sweep.values, batches, strict=True))
    ]
    table([*header, ""], [[*row, ""] for row in rows])


def show_sweep_submission(sweep: PreparedSweep, submission: SweepSubmission) -> None:
    """Say what was submitted, and what to type next."""
    plan, job_id = sweep.plan, submission.job_id
    size = _size(len(sweep.runs), sweep.spec.sweep_limit)
    say(f"Submitted {click.style(plan.name, bold=True)} to {plan.cluster} as job {job_id}: {size}")
    one_batch = len({run.plan.effective_batch for run in sweep.runs}) == 1
    rows = [("sweep", plan.run_id)]
    for name, text in describe(plan, bare=sweep.spec.command is not None):
        if name == "folder":
            text = str(submission.sweep.path)
        if name != "run" and (name != "batch" or one_batch):
            rows.append((name, text))
    pairs(rows)
    _values_table(sweep)
    show_next(
        (f"status {job_id}", "the state of all its runs"),
        (f"logs -f {job_id}_0", "the output of one as it comes"),
        (f"parse {job_id}", "a loss curve for each"),
        (f"cancel {job_id}", f"end it; {job_id}_0 for one run"),
    )


def show_sweep(sweep: Sweep, statuses: Sequence[RunStatus]) -> None:
    """Print a line for each run of a sweep."""
    counts = Counter(status.verdict.state for status in statuses)
    told = ", ".join(f"{number} {state}" for state, number in counts.most_common())
    say(f"{click.style(sweep.name, bold=True)}: {_size(sweep.tasks, sweep.limit)}: {told}")
    values: list[Mapping[str, str]] = [
        status.history.task.values if status.history.task else {} for status in statuses
    ]
    keys = list(dict.fromkeys(key for each in values for key in each))
    rows = [
        [
            status.job_id or status.run.run_id,
            status.verdict.state,
            duration(elapsed_of(status)),
            *(each.get(key, "-") for key in keys),
            _reason(status) or failure_text(status),
        ]
        for status, each in zip(statuses, values, strict=True)
    ]
    table(["JOBID", "STATE", "TIME", *column_names(keys), ""], rows)


def wait_for_sweep(context: Context, sweep: SweepFolder, *, quiet: bool) -> int:
    """Wait for all runs; 0 if all ended well and 1 if not. Ctrl-C ends the waiting alone."""
    watched = WatchedRuns(context, runs_of(sweep))
    try:
        for status in wait_all([watched]):
            if not quiet:
                note(verdict_line(status) if status.verdict.final else state_line(status))
    except KeyboardInterrupt:
        note(f"\nno longer waiting; the runs go on: hpcrun status {sweep.sweep_id}")
        raise
    return 0 if all(status.verdict.ok for status in watched.statuses) else 1


def no_follow() -> InputError:
    """Say that a sweep has many logs."""
    return InputError(
        "--follow: a sweep has a log for each run", fix="--wait, or hpcrun logs -f of one run"
    )


def _reason(status: RunStatus) -> str:
    return explain(status.verdict.reason, status.job_id or "").words
