"""hpcrun logs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence

import click

from hpcrun.cli.options import RUN, cluster_option, context, json_option, parse_when
from hpcrun.errors import InputError


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
    from hpcrun.controller.logs import LogQuery, logs_of, masker_of

    query = LogQuery(
        ranks=_parse_ranks(ranks),
        nodes=tuple(word for each in nodes for word in each.split(",") if word),
        attempt=_parse_attempt(attempt),
        err=err,
        lines=_parse_count(lines),
        pattern=_parse_pattern(grep),
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


# ---- what is asked for


def _parse_ranks(words: Sequence[str]) -> frozenset[int]:
    """Read ranks as 0,3-5. Raises InputError.

    >>> sorted(_parse_ranks(["0,3-5", "7"]))
    [0, 3, 4, 5, 7]
    """
    found: set[int] = set()
    for word in ",".join(words).split(",") if words else ():
        match = re.fullmatch(r"\s*([0-9]{1,7})(?:-([0-9]{1,7}))?\s*", word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise InputError(f"--rank {word}: no rank", fix="as in --rank 0 or --rank 0,3-5")
        found.update(range(first, last + 1))
    return frozenset(found)


def _parse_count(text: str | None) -> int | None:
    """Read a number of lines; None for all. Raises InputError."""
    if text is None or text == "all":
        return None
    if re.fullmatch(r"[0-9]{1,12}", text):
        return int(text)
    raise InputError(f"--lines {text}: no number of lines", fix="as in -n 50, or -n all")


def _parse_attempt(text: str | None) -> int | None:
    """Read the number of an attempt, -1 for the last one. Raises InputError."""
    if text is None:
        return None
    if text == "last":
        return -1
    if re.fullmatch(r"[0-9]{1,7}", text):
        return int(text)
    raise InputError(f"--attempt {text}: no attempt", fix="as in --attempt 0, or --attempt last")


def _parse_pattern(text: str | None) -> re.Pattern[str] | None:
    """Compile a regular expression of Python's. Raises InputError."""
    if text is None:
        return None
    if any("\ud800" <= char <= "\udfff" for char in text):
        # In a locale that is not UTF-8; logs are.
        text = os.fsencode(text).decode("utf-8", "surrogateescape")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        at = error.pos if isinstance(error, re.error) else None
        where = f" at character {at + 1}" if at is not None else ""
        message = error.msg if isinstance(error, re.error) else str(error)
        raise InputError(
            f"--grep {text}: not a regular expression: {message}{where}",
            fix=f"to search for the text itself: --grep '{re.escape(text)}'",
        ) from error
