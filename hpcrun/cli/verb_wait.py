"""hpcrun wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from hpcrun.cli.options import RUN, cluster_option, context, json_option

if TYPE_CHECKING:
    from hpcrun.controller.watch.watched import Status

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
    from hpcrun.cli.watch import end_line, name
    from hpcrun.controller.targets import find_targets
    from hpcrun.controller.wait import seconds, wait_for

    limit = None if timeout is None else seconds(timeout)
    where = context(cluster)
    targets = find_targets(where, jobs)
    last: dict[str, Status] = {}
    over: list[Status] = []
    try:
        for status in wait_for(where, targets, timeout=limit):
            if status.verdict.final:
                over.append(status)
                if not as_json:
                    say(end_line(status))
            elif not as_json:
                _tell_progress(last.get(_key(status)), status)
            last[_key(status)] = status
            if first and over:
                break
    except KeyboardInterrupt:
        note("\nno longer waiting; the jobs go on")
        raise
    left = [status for status in last.values() if not status.verdict.final]
    timed_out = bool(left) and not (first and over)
    silent = [status for status in left if status.verdict.state == "UNKNOWN"]
    if as_json:
        emit_json({"runs": [_json(one) for one in last.values()], "timed_out": timed_out})
    elif timed_out:
        names = ", ".join(name(one) for one in left[:3]) + (", ..." if len(left) > 3 else "")
        note(f"time is up; not over yet: {names}")
    if timed_out:
        return 4 if silent else TIMED_OUT
    return 0 if all(status.verdict.ok for status in over) else 1


def _key(status: Status) -> str:
    run = getattr(status, "run", None)
    return str(run.path) if run is not None else status.job_id or ""


def _tell_progress(before: Status | None, now: Status) -> None:
    """Say to people what goes on; in a pipe only that Slurm is silent, and that it is back."""
    from hpcrun.cli.output import is_terminal, note
    from hpcrun.cli.watch import state_line

    state = now.verdict.state
    was = before.verdict.state if before is not None else ""
    silence = "UNKNOWN" in (state, was) and state != was and before is not None
    if silence or is_terminal():
        note(state_line(now) + ("; still waiting" if state == "UNKNOWN" else ""))


def _json(status: Status) -> dict[str, Any]:
    run = getattr(status, "run", None)
    verdict = status.verdict
    return {
        "run_id": run.run_id if run is not None else None,
        "job_id": status.job_id,
        "state": verdict.state,
        "final": verdict.final,
        "ok": verdict.ok,
        "exit_code": verdict.exit_code,
        "reason": verdict.reason or None,
    }
