"""hpcrun parse.

Effects: those of the controller.
"""

from __future__ import annotations

import click

from hpcrun.cli.options import cluster_option, context, json_option


@click.command("parse")
@click.argument("logs", nargs=-1)
@cluster_option
@json_option
@click.option("--full", is_flag=True, help="With --json: every point too.")
def command(logs: tuple[str, ...], cluster: str | None, as_json: bool, full: bool) -> int:
    """Draw the loss curve, and say what matters.

    LOGS are log files, run ids or Slurm job ids, each a curve, or sweeps, a curve for each of their
    runs; none means the newest run. Read are JSON lines, key=value and "key: value" lines. The exit
    code is 1 when no metric is found.
    """
    from msgspec import structs

    from hpcrun.cli.output import emit_json, has_colour, has_unicode, say, width_and_height
    from hpcrun.controller.parse import curve_label, parse
    from hpcrun.report.json import report as json_report
    from hpcrun.report.terminal import report

    where = context(cluster)
    runs = [run for word in logs or (None,) for run in parse(where, word)]
    if as_json:
        emit_json(json_report(runs, full=full))
    else:
        runs = [structs.replace(run, source=curve_label(where, run.source)) for run in runs]
        width, height = width_and_height()
        say(
            report(
                runs,
                width=width,
                height=height,
                colour=has_colour(),
                ascii_only=not has_unicode(),
            )
        )
    return 0 if any(run.samples for run in runs) else 1
