"""hpcrun wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import RUN, cluster_option, context, json_option, seconds

if TYPE_CHECKING:
    from hpcrun.runs.status import JobStatus

# As timeout(1) has it.
TIMED_OUT = 124


@click.command("wait")
@click.argument("jobs", metavar="[JOB...]", nargs=-1, type=RUN)
@click.option("--any", "first", is_flag=True, help="Only until the first one is over.")
@click.option("--timeout", metavar="T", help="Give up after T: seconds, or e.g. 15m, 2h, 1h30m.")
@cluster_option
@json_option
def command(
    jobs: Sequence[str], first: bool, timeout: str | None, cluster: str | None, as_json: bool
) -> int:
    """Wait until runs, sweeps or other Slurm jobs are over.

    The default JOB is the newest run. The exit code is 0 if all succeeded, 1 if one failed, 124 at
    the timeout, and 4 if Slurm did not answer at the timeout. A requeued job is not over. Ctrl-C
    stops waiting, not the job.
    """
    from hpcrun.cli.output import emit_json, note, say
    from hpcrun.controller.monitor import Jobs, Monitor, Runs, name_of, poll_all
    from hpcrun.controller.targets import find_targets
    from hpcrun.views.status import end_line, ended_json
    from hpcrun.views.table import Look

    limit = None if timeout is None else seconds(timeout)
    where = context(cluster)
    targets = find_targets(where, jobs)
    deadline = None if limit is None else time.monotonic() + limit
    watched = [Runs(targets.all_runs()), Jobs(targets.jobs)]
    monitor = Monitor(where, watched, deadline=deadline)
    last: dict[str, JobStatus] = {}
    over: list[JobStatus] = []
    try:
        for status in poll_all([monitor], deadline=deadline):
            if status.final:
                over.append(status)
                if not as_json:
                    say(end_line(status, Look(colour=True)))
            elif not as_json:
                _show_progress(last.get(name_of(status)), status)
            last[name_of(status)] = status
            if first and over:
                break
    except KeyboardInterrupt:
        note("\nno longer waiting; the jobs go on")
        raise
    # Tasks that waited shared a row, and have their own since they began.
    there = {name_of(status) for status in monitor.statuses}
    last = {key: status for key, status in last.items() if key in there}
    left = [status for status in last.values() if not status.final]
    timed_out = bool(left) and not (first and over)
    silent = [status for status in left if status.state == "UNKNOWN"]
    if as_json:
        emit_json({"runs": [ended_json(one) for one in last.values()], "timed_out": timed_out})
    elif timed_out:
        names = ", ".join(one.label for one in left[:3]) + (", ..." if len(left) > 3 else "")
        note(f"time is up; not over yet: {names}")
    if timed_out:
        return 4 if silent else TIMED_OUT
    return 0 if all(status.ok for status in over) else 1


def _show_progress(before: JobStatus | None, now: JobStatus) -> None:
    """Show people what goes on; in a pipe only that Slurm is silent, and that it is back."""
    from hpcrun.cli.output import is_terminal, note
    from hpcrun.views.status import state_line
    from hpcrun.views.table import Look

    was = before.state if before is not None else ""
    silence = "UNKNOWN" in (now.state, was) and now.state != was and before is not None
    if silence or is_terminal():
        line = state_line(now, Look(colour=True))
        note(line + ("; still waiting" if now.state == "UNKNOWN" else ""))
