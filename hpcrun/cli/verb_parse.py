"""hpcrun parse."""

from __future__ import annotations

import click

from hpcrun.cli.options import DIR, FILE, RUN_OR_FILE, cluster_option, context, json_option
from hpcrun.cli.output import reading_bar


@click.command("parse")
@click.argument("logs", nargs=-1, type=RUN_OR_FILE)
@click.option("-f", "--follow", is_flag=True, help="Redraw as logs grow.")
@click.option("--metric", metavar="NAME", help="Draw this metric instead of the loss.")
@click.option(
    "--pattern",
    "patterns",
    metavar="REGEX",
    multiple=True,
    help="Regex for a line format.",
)
@click.option("--plot", type=FILE, help="Write the curves to FILE.png, .svg or .pdf.")
@click.option("--html", type=FILE, help="Write a self-contained HTML report (2 MB, for plotly.js).")
@click.option("--csv", type=FILE, help="Write the points as CSV.")
@click.option("--tensorboard", type=DIR, help="Write TensorBoard event files.")
@json_option
@click.option("--full", is_flag=True, help="With --json every point; with --csv every sample.")
@click.option(
    "--every",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Keep every Nth line of a kind, of logs too long for the memory.",
)
@cluster_option
def command(
    logs: tuple[str, ...],
    follow: bool,
    metric: str | None,
    patterns: tuple[str, ...],
    as_json: bool,
    full: bool,
    every: int,
    cluster: str | None,
    **files: str | None,
) -> int:
    """Draw the loss curve, and summarize the training.

    LOGS are log files of any framework, "-" for stdin, run ids, Slurm job ids or sweeps, with one
    curve for each run; the default is the newest run. A job's stdout and stderr files (7.out 7.err)
    count as one log.

    A --pattern names its groups, as in 'it (?P<step>\\d+) L (?P<loss>\\S+)'; in a job file the key
    for it is log_patterns.

    With -f the report is redrawn as the logs grow, until their runs are over, or for a plain log
    file until Ctrl-C. If stdout is not a terminal, only the last report is printed.

    The exit code is 1 if no metric is found, and with -f also if a run failed.
    """
    from hpcrun.cli.show_curve import show, write
    from hpcrun.report.files import check_files

    where = context(cluster)
    check_files(where.cwd, logs, files)
    if follow:
        from hpcrun.cli.watch_curve import watch_curve

        runs, ok = watch_curve(
            where,
            logs,
            patterns=patterns,
            metric=metric,
            full=full,
            every=every,
            is_quiet=as_json,
        )
    else:
        from hpcrun.controller.curves.parse import parse

        with reading_bar(is_quiet=as_json) as progress:
            runs = parse(where, logs, patterns=patterns, full=full, every=every, progress=progress)
        ok = True
    show(where, runs, metric=metric, as_json=as_json, full=full)
    write(where, runs, files, full=full)
    return 0 if ok and any(run.curve.metrics for run in runs) else 1
