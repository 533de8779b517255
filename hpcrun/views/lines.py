"""A job's state, end and failure as single lines, and what to type next."""

from __future__ import annotations

from collections.abc import Mapping

from hpcrun.plan.types import Plan, label
from hpcrun.runs.records import Failure
from hpcrun.runs.status import JobStatus
from hpcrun.runs.verdict import Verdict
from hpcrun.slurm.reasons import explain
from hpcrun.slurm.states import say_exit_code
from hpcrun.views.table import BOLD, Look, dim, paint

RED, GREEN, YELLOW, BLUE, CYAN = "31", "32", "33", "34", "36"
_COLOURS = {"COMPLETED": GREEN, "RUNNING": BLUE, "PENDING": YELLOW, "UNKNOWN": YELLOW}


def state_colour(state: str) -> str:
    """Return the colour of a state, as a parameter of SGR."""
    return _COLOURS.get(state, RED)


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


def reason_text(verdict: Verdict) -> str:
    """Say why a job has ended, in plain words; of one that has not, Slurm's own word."""
    return explain(verdict.reason).words if verdict.final else verdict.reason


def culprit(plan: Plan | None, failure: Failure) -> str:
    """Name the process of a failure."""
    if failure.rank is not None:
        return f"rank {failure.rank} on {failure.host}"
    what = "command" if plan is not None and plan.launcher == "none" else "launcher"
    return f"the {what} on {failure.host}"


def failure_text(status: JobStatus) -> str:
    """Say which process failed first, and how; empty where none is on record."""
    failure = status.end.first_failure if status.end else None
    if failure is None:
        return ""
    how = f"signal {failure.signal}" if failure.signal else f"exit code {failure.exit_code}"
    return f"{culprit(status.plan, failure)} failed first: {how}"


def values_text(values: Mapping[str, str]) -> str:
    """Write what a run of a sweep has of its own, behind its state."""
    return f" [{label(values)}]" if values else ""


def state_line(status: JobStatus, look: Look) -> str:
    """Say a state that is not the last, in one line."""
    reason = f" ({status.reason})" if status.reason else ""
    return dim(f"{status.label}: {status.state}{reason}", look) + values_text(status.values)


def end_line(status: JobStatus, look: Look) -> str:
    """Say how a job ended, in one line: state, exit code, who failed first; of which task."""
    colour = GREEN if status.ok else RED
    text = paint(f"{status.label}: {status.state}", f"{colour};{BOLD}", look)
    if not status.ok:
        text += _failure(status)
    reason = f" ({reason_text(status.verdict)})" if status.reason else ""
    return text + reason + values_text(status.values)


def _failure(status: JobStatus) -> str:
    if status.run is None:
        # Slurm's code:signal, where no record has more.
        by_slurm = say_exit_code(status.job.exit_code) if status.job is not None else ""
        text = f"exit code {status.exit_code}" if status.exit_code else by_slurm
        return f", {text}" if text else ""
    if status.end is None:
        return ""
    text, failure = f", exit code {status.end.exit_code}", status.end.first_failure
    if failure is not None:
        how = f" by signal {failure.signal}" if failure.signal else ""
        text += f"; {culprit(status.plan, failure)} failed first{how}"
    return text


def verdict_lines(status: JobStatus, look: Look) -> str:
    """Say how a run ended, what sources disagree on, and what to type next."""
    text = end_line(status, look)
    if status.run is None:
        return text
    text += "".join(f"\n  note: {note}" for note in status.notes)
    verb = "logs --err" if not status.ok else "parse" if status.trains else "logs"
    if status.state == "CANCELLED" and not status.attempts:
        verb = "status"  # it has no output
    return f"{text}\n  hpcrun {verb} {status.job_id or status.run_id}"


def next_lines(*verbs: tuple[str, str], look: Look) -> list[str]:
    """Lay out what to type next: verbs with their arguments, and why; nothing without any."""
    width = max((len(verb) for verb, _ in verbs), default=0)
    lines = [f"  hpcrun {verb:<{width}}  {dim(why, look)}".rstrip() for verb, why in verbs]
    return ["Next", *lines] if lines else []
