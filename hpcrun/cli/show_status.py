"""What the state of runs looks like, on the terminal and as JSON.

Effects: prints.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from hpcrun.cli.output import pairs, say, table
from hpcrun.controller.foreign import ForeignStatus
from hpcrun.controller.status import RunStatus
from hpcrun.plan.sweep import label
from hpcrun.plan.types import Plan
from hpcrun.runs.records import Failure
from hpcrun.runs.verdict import Verdict

_COLOURS = {"COMPLETED": "green", "RUNNING": "blue", "PENDING": "yellow", "UNKNOWN": "yellow"}


def status_json(status: RunStatus) -> dict[str, Any]:
    """The stable JSON of a run's state."""
    plan, submitted, verdict = status.plan, status.history.submitted, status.verdict
    return {
        "run_id": status.run.run_id,
        "job_id": status.job_id,
        "name": plan.name if plan else None,
        **_verdict_json(verdict),
        "cluster": submitted.cluster if submitted else None,
        "nodes": plan.nodes if plan else None,
        "gpus_per_node": plan.gpus_per_node if plan else None,
        "effective_batch": plan.effective_batch if plan else None,
        "submitted_at": submitted.submitted_at if submitted else None,
        "elapsed_seconds": elapsed(status),
        "run_dir": str(status.run.path),
        "task": msgspec.to_builtins(status.history.task),
        "attempts": msgspec.to_builtins(status.history.attempts),
    }


def foreign_json(status: ForeignStatus) -> dict[str, Any]:
    """The stable JSON of a job that hpcrun did not submit; ``run_id`` is null."""
    row = status.queue or status.account
    return {
        "run_id": None,
        "job_id": status.job_id,
        "name": row.name if row else None,
        **_verdict_json(status.verdict),
        "node_list": row.node_list if row else None,
        "elapsed": row.elapsed if row else None,
        "limit": row.limit if row else None,
    }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "state": verdict.state,
        "final": verdict.final,
        "reason": verdict.reason or None,
        "exit_code": verdict.exit_code,
        "source": verdict.source,
        "notes": verdict.notes,
    }


def elapsed(status: RunStatus) -> float | None:
    """Seconds that the last attempt has run; None before it begins, or when it died unseen."""
    last = status.history.last
    if last is None or last.begin is None:
        return None
    if last.end is not None:
        return round(last.end.ended_at - last.begin.begun_at, 3)
    if status.verdict.final:
        return None
    return round(max(0.0, time.time() - last.begin.begun_at), 3)


def duration(seconds: float | None) -> str:
    """Write a time as people do.

    >>> duration(3725), duration(62), duration(None)
    ('1:02:05', '1:02', '-')
    """
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def state_text(verdict: Verdict) -> str:
    """The state in its colour."""
    return click.style(verdict.state, fg=_COLOURS.get(verdict.state, "red"))


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


def show_many(statuses: Sequence[RunStatus]) -> None:
    """Print a line a run."""
    rows = [
        (
            status.run.run_id,
            status.job_id or "-",
            status.verdict.state,
            duration(elapsed(status)),
            f"{status.plan.nodes}x{status.plan.gpus_per_node}" if status.plan else "-",
            remarks(status),
        )
        for status in statuses
    ]
    table(["RUN", "JOBID", "STATE", "TIME", "GPUS", ""], rows)


def remarks(status: RunStatus) -> str:
    """What the last column of a listing says: a sweep's values, why it waits or how it failed."""
    task = status.history.task
    values = label(task.values) if task else ""
    return "; ".join(
        text for text in (values, status.verdict.reason or failure_text(status)) if text
    )


def show_one(status: RunStatus) -> None:
    """Print all that matters of one run."""
    plan, verdict, last = status.plan, status.verdict, status.history.last
    say(f"{click.style(plan.name if plan else status.run.run_id, bold=True)}")
    state = state_text(verdict) + (f" ({verdict.reason})" if verdict.reason else "")
    rows = [("run", status.run.run_id), ("state", f"{state}, by {verdict.source}")]
    if status.job_id:
        rows.append(("job", status.job_id))
    if status.history.task is not None:
        rows.append(("sweep", label(status.history.task.values)))
    if plan is not None:
        rows.append(("shape", f"{plan.nodes} × {plan.gpus_per_node} GPUs, {plan.launcher}"))
        if plan.launcher != "none":
            rows.append(("batch", f"{plan.effective_batch} effective"))
    limit = f" of {status.queue.limit}" if status.queue else ""
    rows.append(("time", duration(elapsed(status)) + limit))
    if last is not None and last.begin is not None:
        rows.append(("nodes", last.begin.nodes))
    if last is not None and last.end is not None:
        end = last.end
        text = str(end.exit_code) + (f", stopped by SIG{end.stopped_by}" if end.stopped_by else "")
        rows.append(("exit code", text))
        if end.first_failure is not None:
            rows.append(("failed", failure_text(status)))
    if len(status.history.attempts) > 1:
        rows.append(("attempts", str(len(status.history.attempts))))
    rows.append(("folder", str(status.run.path)))
    rows += [("note", text) for text in verdict.notes]
    pairs(rows)


def show_foreign(status: ForeignStatus) -> None:
    """Print what Slurm knows of a job that hpcrun did not submit."""
    row = status.queue or status.account
    say(f"job {status.job_id}, not submitted by hpcrun")
    verdict = status.verdict
    state = state_text(verdict) + (f" ({verdict.reason})" if verdict.reason else "")
    rows = [("state", f"{state}, by {verdict.source}")]
    if row is not None:
        rows += [
            ("name", row.name),
            ("time", f"{row.elapsed} of {row.limit}"),
            ("nodes", row.node_list or "-"),
        ]
    pairs(rows)
