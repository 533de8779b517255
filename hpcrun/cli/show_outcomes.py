"""What cancel and requeue did about each job: JSON, errors, the exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hpcrun.cli.output import emit_json, say, show_error
from hpcrun.controller.orders import Outcome
from hpcrun.errors import OutOfReach
from hpcrun.runs.layout import SweepFolder
from hpcrun.runs.records import runs_of


def show_cancelled(outcomes: Sequence[Outcome], sweeps: Sequence[SweepFolder]) -> None:
    """Print a line for each run, and for each sweep."""
    rest = list(outcomes)
    for sweep in sweeps:
        inside = {run.run_id for run in runs_of(sweep)}
        say(f"{sweep.sweep_id}: {_of_sweep([one for one in rest if one.run_id in inside])}")
        rest = [one for one in rest if one.run_id not in inside]
    for one in rest:
        if one.done:
            say(f"{one.status.label} was {one.status.state} and is being cancelled")
        elif one.over:
            say(f"{one.status.label} is over already: {one.status.state}")
        elif one.left:
            say(f"{one.status.label} is left alone: {one.left}")


def _of_sweep(runs: Sequence[Outcome]) -> str:
    gone = [one for one in runs if one.done]
    if not gone and all(one.over for one in runs):
        return f"all {len(runs)} runs are over already"
    number = Counter(one.status.state for one in gone or runs)
    states = ", ".join(f"{count} {state}" for state, count in number.most_common())
    start = f"{len(gone)} of {len(runs)} runs are being" if gone else "no run is"
    return f"{start} cancelled: {states}"


def end_with(outcomes: Sequence[Outcome], *, done: str, as_json: bool) -> int:
    """Print all as JSON, in which ``done`` names what was to be done, or else the errors alone.

    Returns the exit code.
    """
    errors = {str(one.error): one.error for one in outcomes if one.error is not None}
    if as_json:
        emit_json({"runs": [_json(one, done) for one in outcomes]})
    else:
        for error in errors.values():
            show_error(error)
    codes = [error.exit_code for error in errors.values()]
    # Silence says least, so it goes first.
    return OutOfReach.exit_code if OutOfReach.exit_code in codes else max(codes, default=0)


def _json(one: Outcome, done: str) -> dict[str, object]:
    return {
        "run_id": one.run_id,
        "job_id": one.status.job_id,
        "state_before": one.status.state,
        done: one.done,
        "reason": one.error.message if one.error is not None else one.left or None,
    }
