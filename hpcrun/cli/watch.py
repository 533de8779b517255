"""Following a run on the terminal.

Effects: prints; those of the controller.
"""

from __future__ import annotations

import subprocess

import click

from hpcrun.cli.output import emit_bytes, note
from hpcrun.cli.show_status import culprit
from hpcrun.controller.context import Context
from hpcrun.controller.follow import Lines, State, follow
from hpcrun.controller.status import RunStatus
from hpcrun.runs.layout import RunFolder


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
    try:
        for event in follow(context, run, logs=logs, alive=alive):
            if isinstance(event, Lines):
                emit_bytes(prefixed(event.data, event.file.prefix))
            elif event.status.verdict.final:
                if not quiet:
                    note(verdict_line(event.status))
                return 0 if event.status.verdict.ok else 1
            elif isinstance(event, State) and not quiet:
                note(state_line(event.status))
    except KeyboardInterrupt:
        if process is None:
            note(f"\nno longer following; the run goes on: hpcrun logs -f {run.run_id}")
        raise
    return 1


def prefixed(data: bytes, prefix: str) -> bytes:
    """Put a prefix before each line."""
    if not prefix:
        return data
    head = prefix.encode()
    return b"".join(head + line for line in data.splitlines(keepends=True))


def state_line(status: RunStatus) -> str:
    """Say a state that is not the last, in one line."""
    verdict = status.verdict
    reason = f" ({verdict.reason})" if verdict.reason else ""
    return click.style(f"{name(status)}: {verdict.state}{reason}", dim=True)


def name(status: RunStatus) -> str:
    """The job by the name that its user typed or saw last."""
    return f"job {status.job_id}" if status.job_id else status.run.run_id


def verdict_line(status: RunStatus) -> str:
    """Say how a run ended, in one line: state, exit code, who failed first, what to do next."""
    verdict, last = status.verdict, status.history.last
    end = last.end if last else None
    text = click.style(
        f"{name(status)}: {verdict.state}", fg="green" if verdict.ok else "red", bold=True
    )
    if end is not None and not verdict.ok:
        text += f", exit code {end.exit_code}"
        failure = end.first_failure
        if failure is not None:
            how = f" by signal {failure.signal}" if failure.signal else ""
            text += f"; {culprit(status.plan, failure)} failed first{how}"
    if verdict.reason:
        text += f" ({verdict.reason})"
    for extra in verdict.notes:
        text += f"\n  note: {extra}"
    trains = status.plan is not None and status.plan.launcher != "none"
    following = "parse" if verdict.ok and trains else "logs"
    return f"{text}\n  hpcrun {following} {status.job_id or status.run.run_id}"
