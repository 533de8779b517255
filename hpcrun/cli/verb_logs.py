"""hpcrun logs."""

from __future__ import annotations

import time

import click

from hpcrun.cli.options import RUN, cluster_option, context, json_option


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
    from hpcrun.cli.show_logs import LogPrinter, show_logs
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
    return show_logs(logs, printer, job, follow=follow, is_cut=lines is None)
