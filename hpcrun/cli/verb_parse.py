"""hpcrun parse."""

from __future__ import annotations

import click

from hpcrun.cli.options import DIR, FILE, RUN_OR_FILE, cluster_option, context, json_option


@click.command("parse")
@click.argument("logs", nargs=-1, type=RUN_OR_FILE)
@click.option("-f", "--follow", is_flag=True, help="Draw anew as the logs grow, to the end.")
@click.option("--metric", metavar="NAME", help="Draw this metric, not the loss.")
@click.option(
    "--pattern", "patterns", metavar="REGEX", multiple=True, help="A form of lines of your own."
)
@click.option("--plot", type=FILE, help="Write the curves to FILE.png, .svg or .pdf.")
@click.option("--html", type=FILE, help="Write a report for the browser, one file.")
@click.option("--csv", type=FILE, help="Write the points as CSV.")
@click.option("--tensorboard", type=DIR, help="Write TensorBoard's event files.")
@json_option
@click.option("--full", is_flag=True, help="With --json every point; with --csv every sample.")
@cluster_option
def command(
    logs: tuple[str, ...],
    follow: bool,
    metric: str | None,
    patterns: tuple[str, ...],
    plot: str | None,
    html: str | None,
    csv: str | None,
    tensorboard: str | None,
    as_json: bool,
    full: bool,
    cluster: str | None,
) -> int:
    """Draw the loss curve, and say what matters.

    LOGS are log files of whatever framework, "-" for a pipe, run ids or Slurm job ids, each a
    curve, or sweeps, a curve for each of their runs; none means the newest run. A job's output and
    errors (7.out 7.err) are one log.

    A --pattern names what it finds, as in 'it (?P<step>\\d+) L (?P<loss>\\S+)'; in a job file the
    key log_patterns holds such.

    With -f the report is drawn anew as the logs grow, until their runs are over; of a log file
    nobody knows that, so Ctrl-C ends it. Where the output is no terminal, only the last report is
    printed.

    The exit code is 1 when no metric is found; with -f also when a run ended badly.
    """
    from hpcrun.cli.output import note
    from hpcrun.cli.show_curve import check_files, show, write_files

    files = {"plot": plot, "html": html, "csv": csv, "tensorboard": tensorboard}
    where = context(cluster)
    check_files(where, logs, files)
    if follow:
        from hpcrun.cli.watch_curve import watch_curve

        runs, ok = watch_curve(
            where, logs, patterns=patterns, metric=metric, full=full, is_quiet=as_json
        )
    else:
        from hpcrun.controller.curves.parse import parse

        runs, ok = parse(where, logs, patterns=patterns, full=full), True
    show(where, runs, metric=metric, as_json=as_json, full=full)
    for written in write_files(where, runs, files, full=full):
        note(f"wrote {written}")
    return 0 if ok and any(run.curve.metrics for run in runs) else 1
