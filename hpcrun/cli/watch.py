"""Following runs and jobs on the terminal."""

from __future__ import annotations

import subprocess

import click

from hpcrun.cli.output import note
from hpcrun.cli.show_logs import LogPrinter
from hpcrun.controller.context import Context
from hpcrun.controller.secrets import masker_of
from hpcrun.controller.state.status import RunStatus
from hpcrun.controller.state.words import culprit, reason_text
from hpcrun.controller.watch.follow import Choose, State, follow
from hpcrun.controller.watch.watched import Status, Watched
from hpcrun.controller.watch.watched_runs import WatchedRuns
from hpcrun.logs.tail import Tail
from hpcrun.plan.types import label
from hpcrun.runs.layout import RunFolder
from hpcrun.slurm.states import say_exit_code


def watch(
    context: Context,
    run: RunFolder,
    *,
    logs: bool,
    quiet: bool = False,
    process: subprocess.Popen[bytes] | None = None,
) -> int:
    """Follow a run to its end; return 0 if it ended well and 1 if not.

    Ctrl-C ends the following, never the run; but a ``process`` of our own is the caller's to end.
    """
    alive = None if process is None else lambda: process.poll() is None
    watched = WatchedRuns(context, [run], alive=alive)
    printer = LogPrinter(masker_of(context, [run]))
    again = f"the run goes on: hpcrun logs -f {run.run_id}" if process is None else ""
    return watch_logs(watched, printer, choose=list if logs else None, quiet=quiet, again=again)


def watch_logs(
    watched: Watched,
    printer: LogPrinter,
    *,
    choose: Choose | None,
    tail: Tail | None = None,
    quiet: bool = False,
    again: str = "",
) -> int:
    """Show lines and states until all is over; return 0 if all ended well and 1 if not.

    ``again`` tells whom Ctrl-C stops that nothing else is stopped, and how to go on.
    """
    try:
        for event in follow(watched, choose=choose, tail=tail):
            if not isinstance(event, State):
                printer.show(event)
            elif not quiet:
                printer.pause()
                final = event.status.verdict.final
                note(verdict_line(event.status) if final else state_line(event.status))
    except KeyboardInterrupt:
        if again:
            note(f"\nno longer following; {again}")
        raise
    finally:
        printer.pause()
    return 0 if all(status.verdict.ok for status in watched.statuses) else 1


def state_line(status: Status) -> str:
    """Say a state that is not the last, in one line."""
    verdict = status.verdict
    reason = f" ({verdict.reason})" if verdict.reason else ""
    return click.style(f"{name(status)}: {verdict.state}{reason}", dim=True) + _values(status)


def name(status: Status) -> str:
    """The job by the name that its user typed or saw last."""
    if status.job_id or not isinstance(status, RunStatus):
        return f"job {status.job_id}"
    return status.run.run_id


def end_line(status: Status) -> str:
    """Say how a job ended, in one line: state, exit code, who failed first; of which task."""
    verdict = status.verdict
    text = click.style(
        f"{name(status)}: {verdict.state}", fg="green" if verdict.ok else "red", bold=True
    )
    if not verdict.ok:
        text += _failure(status)
    return text + (f" ({reason_text(verdict)})" if verdict.reason else "") + _values(status)


def _failure(status: Status) -> str:
    if not isinstance(status, RunStatus):
        # Slurm's code:signal, where it alone tells.
        known = say_exit_code(status.account.exit_code) if status.account is not None else ""
        said = f"exit code {status.verdict.exit_code}" if status.verdict.exit_code else known
        return f", {said}" if said else ""
    last = status.history.last
    end = last.end if last else None
    if end is None:
        return ""
    text, failure = f", exit code {end.exit_code}", end.first_failure
    if failure is not None:
        how = f" by signal {failure.signal}" if failure.signal else ""
        text += f"; {culprit(status.plan, failure)} failed first{how}"
    return text


def _values(status: Status) -> str:
    """What a run of a sweep has of its own."""
    task = status.history.task if isinstance(status, RunStatus) else None
    return f" [{label(task.values)}]" if task is not None else ""


def verdict_line(status: Status) -> str:
    """Say how a run ended, what sources disagree on, and what to do next."""
    verdict, text = status.verdict, end_line(status)
    if not isinstance(status, RunStatus):
        return text
    for extra in verdict.notes:
        text += f"\n  note: {extra}"
    trains = status.plan is not None and status.plan.launcher != "none"
    following = "logs --err" if not verdict.ok else "parse" if trains else "logs"
    if verdict.state == "CANCELLED" and not status.history.attempts:
        following = "status"  # it has no output
    return f"{text}\n  hpcrun {following} {status.job_id or status.run.run_id}"
