"""hpcrun logs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import RUN, cluster_option, context, json_option

if TYPE_CHECKING:
    from hpcrun.cli.show_logs import LogPrinter
    from hpcrun.controller.logs import JobLogs
    from hpcrun.logs.files import LogFile

# On a terminal nobody reads more: what stands before is named, and how to see it.
MUCH = 4 << 20
FEW_LINES = 2000


@click.command("logs")
@click.argument("job", required=False, type=RUN)
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the job ends.")
@click.option("--rank", "ranks", multiple=True, metavar="R", help="Only these ranks, e.g. 0,3-5.")
@click.option(
    "--node", "nodes", multiple=True, metavar="N", help="Only this node, by number or name."
)
@click.option("--err", is_flag=True, help="Only what explains a failure; see above.")
@click.option("--attempt", metavar="K", help="Only this attempt: 0, 1, ..., or last.")
@click.option("-n", "--lines", metavar="N", help="The last N lines of each file, or all.")
@click.option("--grep", metavar="RE", help="Only lines that match this Python regex.")
@click.option("--since", metavar="WHEN", help="Only lines since: 10m, 2h, 08:00, 2026-11-20T08:00.")
@click.option("--raw", is_flag=True, help="Do not mask secrets or remove control characters.")
@cluster_option
@json_option
def command(
    job: str | None,
    follow: bool,
    ranks: tuple[str, ...],
    nodes: tuple[str, ...],
    err: bool,
    attempt: str | None,
    lines: str | None,
    grep: str | None,
    since: str | None,
    raw: bool,
    cluster: str | None,
    as_json: bool,
) -> int:
    """Show a job's output: rank by rank, then the launchers' and the batch script's.

    JOB is a run id, a sweep, or any Slurm job id such as 123 or 123_4; the default is the newest
    run. Lines of ranks other than 0 begin with [rankN]:, those of other nodes' launchers with
    nodeN:, those of a sweep's or array's tasks with [taskN]:.

    With -f the exit code is 0 if the job succeeded and 1 if it did not. Ctrl-C stops following, not
    the job. On a terminal only the last lines of a long log are shown; -n all shows all of it, and
    so does a pipe: hpcrun logs | less -R.

    --err shows why a job failed: the last traceback of the rank that failed first, then those of
    the others, and the error lines of the launcher, the batch script and Slurm. (The ranks of a run
    write stdout and stderr to one file.) Of other jobs it shows stderr, if that is a separate file.

    --since compares the time stamps of the lines (local time unless they name a zone); a log whose
    last lines have none is shown whole if it was written to since.

    Secrets are shown as ***: the values of the job's secrets, well-known kinds of tokens (Hugging
    Face, GitHub, OpenAI, AWS ...), values of names that end in _KEY, _TOKEN, _SECRET or _PASSWORD,
    and passwords in URLs. With --json each line is a JSON object.
    """
    from hpcrun.cli.show_logs import LogPrinter
    from hpcrun.controller.logs import (
        LogQuery,
        logs_of,
        masker_of,
        parse_attempt,
        parse_count,
        parse_pattern,
        parse_ranks,
    )
    from hpcrun.controller.seconds import parse_when

    query = LogQuery(
        ranks=parse_ranks(ranks),
        nodes=tuple(word for each in nodes for word in each.split(",") if word),
        attempt=parse_attempt(attempt),
        err=err,
        lines=parse_count(lines),
        pattern=parse_pattern(grep),
        since=None if since is None else parse_when(since, time.time()),
    )
    where = context(cluster)
    logs = logs_of(where, job, query)
    printer = LogPrinter(
        None if raw else masker_of(where, logs.runs),
        as_json=as_json,
        keeps=query.keeps if query.pattern is not None else None,
    )
    return _show(logs, printer, job, follow=follow, is_cut=lines is None)


def _show(
    logs: JobLogs, printer: LogPrinter, job: str | None, *, follow: bool, is_cut: bool
) -> int:
    """Show what is there, and with ``follow`` what comes; return the exit code."""
    from hpcrun.cli.output import is_terminal, note

    logs.check()
    query, files = logs.query, logs.chosen()
    # An own file of errors is shown like any other.
    extracts = query.err and not any(file.is_err for file in files)
    if extracts and not logs.runs:
        files = logs.files()
    if is_cut and is_terminal() and not extracts:
        _cut(logs)
    if not extracts:
        logs.begin()
    if follow:
        from hpcrun.cli.watch import watch_logs

        kind = "run" if logs.runs else "job"
        again = f"the {kind} goes on: hpcrun logs -f {job or ''}".rstrip()
        code = watch_logs(logs, printer, with_lines=not extracts, again=again)
        if extracts:
            _note_full_disk(logs)
            _show_errors(logs, printer, logs.chosen() or files)
        return code
    if not files:
        note(_nothing(logs))
    if query.err:
        _note_full_disk(logs)
    if not extracts:
        printer.show_all(logs.read())
    elif not _show_errors(logs, printer, files) and files:
        note("no error in these logs")
    return 0


def _show_errors(logs: JobLogs, printer: LogPrinter, files: list[LogFile]) -> bool:
    """Show what went wrong; return whether anything did."""
    from hpcrun.controller.log_errors import read_errors

    return printer.show_all(read_errors(logs, files, logs.query.attempt))


def _note_full_disk(logs: JobLogs) -> None:
    """Say that a run's disk is full, of which its logs can say nothing."""
    from hpcrun.cli.output import note
    from hpcrun.controller.checks.places import say_full

    if logs.runs and (text := say_full(logs.runs[0].path)):
        note(text)


def _cut(logs: JobLogs) -> None:
    """Begin near the end where there is more than anybody reads on a terminal."""
    from msgspec import structs

    from hpcrun.cli.output import note
    from hpcrun.views.numbers import format_size

    query = logs.query
    sizes = [file.path.stat().st_size for file in logs.chosen() if file.path.exists()]
    if sum(sizes) <= MUCH or query.pattern is not None or query.since is not None:
        return
    lines = max(10, FEW_LINES // len(sizes))
    each = " of each file" if len(sizes) > 1 else ""
    note(
        f"{format_size(sum(sizes))}: the last {lines} lines{each}; "
        "all of it: -n all, or hpcrun logs | less -R"
    )
    logs.query = structs.replace(query, lines=lines)


def _nothing(logs: JobLogs) -> str:
    """Say that there is no output, or none yet, and where it is going to be."""
    if logs.runs:
        if len(logs.runs) == 1:
            return f"{logs.runs[0].run_id}: no output yet"
        return f"none of the {len(logs.runs)} runs of the sweep has output yet"
    statuses = logs.monitor.statuses
    paths = [str(file.path) for file in (logs.output.files() if logs.output else ())]
    where = f" ({paths[0]})" if paths else ""
    states = ", ".join(dict.fromkeys(status.state for status in statuses))
    yet = "" if all(status.final for status in statuses) else " yet"
    return f"job {statuses[0].job_id}: {states}; no output{yet}{where}"
