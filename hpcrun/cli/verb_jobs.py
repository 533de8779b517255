"""hpcrun jobs."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hpcrun.cli.options import json_option
from hpcrun.cli.output import emit_json, table


@click.command("jobs")
@json_option
def command(as_json: bool) -> int:
    """List the jobs that can be submitted: the project's, the user's, the built-in ones."""
    from hpcrun.assets import list_jobs
    from hpcrun.controller.context import find_project
    from hpcrun.controller.prepare import describe_job

    project = find_project(Path.cwd())
    jobs = [
        {"name": name, "from": whose, "file": str(path), **describe_job(project, os.environ, path)}
        for name, (whose, path) in list_jobs(project, os.environ).items()
    ]
    if as_json:
        emit_json({"jobs": jobs})
        return 0
    table(
        ["JOB", "FROM", "WHAT"],
        [(str(j["name"]), str(j["from"]), str(j["error"] or j["description"])) for j in jobs],
    )
    return 0
