"""What the state of runs looks like, on the terminal and as JSON."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import structs

from hpcrun.cli.output import pairs, say, show_next
from hpcrun.controller.state.rows import Row
from hpcrun.controller.state.status import RunStatus
from hpcrun.controller.state.why import WhyWaiting
from hpcrun.controller.state.words import failure_text, reason_text
from hpcrun.plan.types import label
from hpcrun.runs.records import Attempt, End
from hpcrun.runs.store import holds_any
from hpcrun.runs.verdict import Verdict
from hpcrun.slurm.states import say_limit

_COLOURS = {"COMPLETED": "green", "RUNNING": "blue", "PENDING": "yellow", "UNKNOWN": "yellow"}


def status_json(status: RunStatus, row: Row, why: WhyWaiting | None = None) -> dict[str, Any]:
    """The stable JSON of a run in detail: that of its row in a listing, and more."""
    plan, submitted, history = status.plan, status.history.submitted, status.history
    last = history.last
    return {
        **row_json(row, why),
        "cluster": submitted.cluster if submitted else None,
        "effective_batch": plan.effective_batch if plan else None,
        "node_list": last.begin.nodes if last and last.begin else None,
        "checkpoint_dir": plan.checkpoint_dir if plan else None,
        "log_dir": str(status.run.logs),
        "task": msgspec.to_builtins(history.task),
        "attempts": msgspec.to_builtins(history.attempts),
    }


def row_json(row: Row, why: WhyWaiting | None) -> dict[str, Any]:
    """The stable JSON of a row of a listing."""
    return {
        "kind": "sweep" if row.sweep else "run",
        "id": row.id,
        "run_id": row.run.run_id if row.run else None,
        "sweep_id": row.sweep.sweep_id if row.sweep else None,
        "job_id": row.job_id,
        "name": row.name,
        **verdict_json(row.verdict),
        **why_json(why),
        "submitted_at": row.submitted_at,
        "elapsed_seconds": _rounded(row.elapsed),
        "limit_seconds": row.limit,
        "nodes": row.nodes,
        "gpus_per_node": row.gpus_per_node,
        "step": row.step,
        "loss": _number(row.loss),
        "gpu_hours": _rounded(row.gpu_hours),
        "values": row.values,
        "states": row.states,
        "run_dir": str(row.run.path if row.run else row.sweep.path if row.sweep else ""),
    }


def why_json(why: WhyWaiting | None) -> dict[str, Any]:
    """The JSON of why it waits."""
    return {
        "why": why.words if why else None,
        "fix": (why.fix or None) if why else None,
        "expected_start": why.start if why else None,
        "ahead": why.ahead if why else None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _number(value: float | None) -> float | str | None:
    if value is None or value - value == 0:
        return value
    from hpcrun.views.numbers import number  # here: a loss that is no number is rare

    return number(value)


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """The JSON of a state, and of where it comes from."""
    return {
        "state": verdict.state,
        "final": verdict.final,
        "reason": verdict.reason or None,
        "exit_code": verdict.exit_code,
        "source": verdict.source,
        "notes": verdict.notes,
    }


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


def state_colour(state: str) -> str:
    """The colour of a state."""
    return _COLOURS.get(state, "red")


def state_text(verdict: Verdict) -> str:
    """The state in its colour."""
    return click.style(verdict.state, fg=state_colour(verdict.state))


def show_one(status: RunStatus, row: Row, why: WhyWaiting | None = None) -> None:
    """Print all that matters of one run, and what to type next."""
    plan, verdict, last, history = status.plan, status.verdict, status.history.last, status.history
    say(click.style(plan.name if plan else status.run.run_id, bold=True))
    rows = [("state", state_line(verdict))]
    rows += why_lines(why)
    rows.append(("run", status.run.run_id))
    if status.job_id:
        on = f" on {history.submitted.cluster}" if history.submitted else ""
        rows.append(("job", f"{status.job_id}{on}"))
    if history.task is not None:
        rows.append(("sweep", label(history.task.values)))
    if plan is not None:
        how = "a command on each node" if plan.launcher == "none" else plan.launcher
        rows.append(("shape", f"{plan.nodes} × {plan.gpus_per_node} GPUs, {how}"))
        if plan.launcher != "none":
            rows.append(("batch", f"{plan.effective_batch} effective"))
    if row.loss is not None:
        at = "" if row.step is None else f"step {row.step}, "
        rows.append(("progress", f"{at}loss {row.loss:.6g}"))
    rows.append(("time", _time_text(status, row)))
    if last is not None and last.begin is not None:
        rows.append(("nodes", last.begin.nodes))
    if last is not None and last.end is not None:
        rows.append(("exit code", _end_text(last.end)))
    if text := failure_text(status):
        rows.append(("failed", text))
    if len(history.attempts) > 1:
        rows += [("attempt", _attempt_text(status, each)) for each in history.attempts]
    rows.append(("folder", str(status.run.path)))
    if history.attempts:
        rows.append(("log", str(row.log or status.run.logs)))
    if plan is not None and plan.launcher != "none" and plan.checkpoint_dir:
        rows.append(("saves to", plan.checkpoint_dir))
    rows += [("note", text) for text in verdict.notes]
    pairs(rows)
    _show_next(status)


def _time_text(status: RunStatus, row: Row) -> str:
    """Say how long it has run, of how long it may, and what that makes in GPU hours."""
    limit = status.queue.limit if status.queue else status.account.limit if status.account else ""
    may = say_limit(limit)
    ran = duration(row.elapsed)
    if row.elapsed is None:
        ran = "not known" if status.history.attempts else "0:00"
    hours = "" if row.gpu_hours is None else f"{row.gpu_hours:.2f} GPU hours"
    return "; ".join(part for part in (f"{ran} {may}".strip(), hours) if part)


def state_line(verdict: Verdict) -> str:
    """The state with its reason, and who says so."""
    by = {"seen": "as Slurm said before", "record": "by its own records"}
    source = by.get(verdict.source, f"by {verdict.source}")
    reason = f" ({reason_text(verdict)})" if verdict.reason else ""
    return f"{state_text(verdict)}{reason}, {source}"


def why_lines(why: WhyWaiting | None) -> list[tuple[str, str]]:
    """Why it waits and what to do about it, as names and values."""
    if why is None:
        return []
    lines = [("why", structs.replace(why, fix="").text())]
    return [*lines, ("fix", why.fix)] if why.fix else lines


def _end_text(end: End) -> str:
    return str(end.exit_code) + (f", stopped by SIG{end.stopped_by}" if end.stopped_by else "")


def _attempt_text(status: RunStatus, attempt: Attempt) -> str:
    """Say how an attempt went: when, where, for how long, why it ended."""
    begin, end = attempt.begin, attempt.end
    said = [str(attempt.index)]
    if begin is not None:
        when = time.strftime("%m-%d %H:%M", time.localtime(begin.begun_at))
        said.append(f"{when} on {begin.nodes}")
    if end is not None:
        ran = duration(end.ended_at - end.begun_at)
        said.append(f"ended after {ran}: exit code {_end_text(end)}")
    elif attempt is status.history.last and not status.verdict.final:
        said.append("is on its way" if begin is not None else "has not begun")
    else:
        seen = (
            ""
            if attempt.beat is None or begin is None
            else (f", last sign of life after {duration(attempt.beat - begin.begun_at)}")
        )
        said.append(f"left no end record: its node died or it was killed{seen}")
    return "  ".join(said)


_WRONG = "what went wrong"


def _show_next(status: RunStatus) -> None:
    """Say what to type next."""
    word = status.job_id or status.run.run_id
    trains = status.plan is not None and status.plan.launcher != "none"
    verbs: list[tuple[str, str]] = []
    if not status.verdict.final:
        if status.history.attempts:
            verbs.append((f"logs -f {word}", "its output as it comes"))
            verbs += [(f"parse -f {word}", "its loss curve")] * trains
        verbs.append((f"cancel {word}", "end it"))
    elif status.history.attempts:
        well = status.verdict.ok
        verbs.append((f"logs {word}", "its output") if well else (f"logs --err {word}", _WRONG))
        verbs += [(f"parse {word}", "its loss curve")] * trains
        if not well and status.job_id:
            goes_on = status.plan is not None and holds_any(Path(status.plan.checkpoint_dir))
            why = "again, on from its checkpoints" if goes_on else "again"
            verbs.append((f"resubmit {word}", why))
    show_next(*verbs)
