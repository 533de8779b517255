"""Following runs to their end: the lines of their logs, and their states as they change."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from hpcrun.cli.output import note
from hpcrun.cli.show_logs import LogPrinter
from hpcrun.controller.causes import with_cause
from hpcrun.controller.context import Context
from hpcrun.controller.logs import JobLogs, masker_of
from hpcrun.controller.monitor import Monitor, Runs, poll_all
from hpcrun.runs.layout import RunFolder, SweepFolder
from hpcrun.runs.records import runs_of
from hpcrun.runs.status import JobStatus
from hpcrun.views.status import state_line, verdict_lines
from hpcrun.views.table import Look, dim

_LOOK = Look(colour=True)  # where standard error has none, they are taken out again


def watch_run(
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
    found = JobLogs(context, [run], alive=alive)
    printer = LogPrinter(masker_of(context, [run]))
    again = f"the run goes on: hpcrun logs -f {run.run_id}" if process is None else ""
    return watch_logs(found, printer, with_lines=logs, quiet=quiet, again=again)


def watch_logs(
    logs: JobLogs, printer: LogPrinter, *, with_lines: bool, quiet: bool = False, again: str = ""
) -> int:
    """Show lines and states until all is over; return 0 if all ended well and 1 if not.

    ``again`` says, to whom Ctrl-C stops, that nothing else is stopped, and how to go on.
    """
    try:
        for event in logs.follow(with_lines=with_lines):
            if isinstance(event, str):
                if not quiet:
                    note(dim(event, _LOOK))
            elif not isinstance(event, JobStatus):
                printer.show(event)
            elif not quiet:
                printer.pause()
                note(_state(logs.context, event))
    except KeyboardInterrupt:
        if again:
            note(f"\nno longer following; {again}")
        raise
    finally:
        printer.pause()
    return _exit_code(logs.monitor.statuses)


def wait_for_sweep(context: Context, sweep: SweepFolder, *, quiet: bool) -> int:
    """Wait for all runs of a sweep; 0 if all ended well and 1 if not. Ctrl-C ends only the wait."""
    monitor = Monitor(context, [Runs(runs_of(sweep))])
    try:
        for status in poll_all([monitor]):
            if not quiet:
                note(_state(context, status))
    except KeyboardInterrupt:
        note(f"\nno longer waiting; the runs go on: hpcrun status {sweep.sweep_id}")
        raise
    return _exit_code(monitor.statuses)


def _state(context: Context, status: JobStatus) -> str:
    """Say what state a run is in now, or how it ended, and why."""
    if not status.final:
        return state_line(status, _LOOK)
    return verdict_lines(with_cause(context, status), _LOOK)


def _exit_code(statuses: Sequence[JobStatus]) -> int:
    """Return 0 where all ended well, else 1."""
    return 0 if all(status.ok for status in statuses) else 1
