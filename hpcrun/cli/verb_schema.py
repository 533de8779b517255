"""hpcrun schema."""

from __future__ import annotations

from typing import Literal

import click

from hpcrun.cli.output import emit_json


@click.command("schema")
@click.argument("kind", type=click.Choice(["job", "cluster"]), default="job")
def command(kind: Literal["job", "cluster"]) -> int:
    """Print the JSON Schema of job files (or cluster files), for editors.

    In a job file the line `# yaml-language-server: $schema=FILE` makes editors complete it.
    """
    from hpcrun.spec.schema import json_schema

    emit_json(json_schema(kind))
    return 0
