"""What cancel and requeue did about each job: JSON, errors, the exit code."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrun.cli.output import emit_json, show_error
from hpcrun.controller.orders import Outcome
from hpcrun.errors import OutOfReach


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
