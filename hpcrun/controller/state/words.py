"""What is known of a run's end, and of whose job it is, in words."""

from __future__ import annotations

from hpcrun.controller.state.status import RunStatus
from hpcrun.errors import InputError
from hpcrun.plan.types import Plan
from hpcrun.runs.records import Failure, History
from hpcrun.runs.verdict import Verdict
from hpcrun.slurm.reasons import explain


def reason_text(verdict: Verdict) -> str:
    """Say why a job has ended, in plain words; of one that has not, Slurm's own word."""
    return explain(verdict.reason).words if verdict.final else verdict.reason


def failure_text(status: RunStatus) -> str:
    """Say which process failed first, and how; empty where none is on record."""
    last = status.history.last
    failure = last.end.first_failure if last and last.end else None
    if failure is None:
        return ""
    how = f"signal {failure.signal}" if failure.signal else f"exit code {failure.exit_code}"
    return f"{culprit(status.plan, failure)} failed first: {how}"


def culprit(plan: Plan | None, failure: Failure) -> str:
    """Name the process of a failure."""
    if failure.rank is not None:
        return f"rank {failure.rank} on {failure.host}"
    what = "command" if plan is not None and plan.launcher == "none" else "launcher"
    return f"the {what} on {failure.host}"


def job_of_another(history: History, verb: str) -> InputError | None:
    """Say that a folder is a copy, whose job is the original's; None for all others."""
    if history.copy_of is None:
        return None
    return InputError(
        f"{history.run_id}: a copy of {history.copy_of}, and no job is its own",
        fix=f"hpcrun {verb} {history.copy_of}",
    )
