"""What the command line says when it fails: to people in words, with --json as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from hpcrun.cli.output import note, show_error
from hpcrun.errors import HpcrunError, SpecError


def show_failure(error: click.ClickException | HpcrunError, argv: Sequence[str]) -> None:
    """Print an error in the form that the words of the command line ask for.

    The JSON goes to standard error too, as its last line: standard output holds answers alone, so
    that whoever reads it need not tell the two apart.
    """
    if _wants_json(argv):
        import json

        note(json.dumps({"error": error_json(error)}))
    elif isinstance(error, HpcrunError):
        show_error(error)
    else:
        error.show()


def error_json(error: click.ClickException | HpcrunError) -> dict[str, Any]:
    """The stable JSON of an error, as docs/json/error.schema.json describes it."""
    problems: list[dict[str, Any]] = []
    notes: list[str] = []
    if isinstance(error, HpcrunError):
        message, fix = error.message, error.fix
        if isinstance(error, SpecError):
            problems = [
                {"source": p.source, "line": p.line, "path": p.path, "message": p.message}
                for p in error.problems
            ]
            notes = error.notes
    else:
        context = error.ctx if isinstance(error, click.UsageError) else None
        message = error.format_message()
        fix = f"{context.command_path} --help" if context is not None else ""
    return {
        "message": message,
        "fix": fix or None,
        "problems": problems,
        "notes": notes,
        "exit_code": error.exit_code,
    }


def _wants_json(argv: Sequence[str]) -> bool:
    """Tell whether --json stands on the command line; words after -- are the job's.

    >>> [_wants_json(line.split()) for line in ("jobs --json", "submit -- x --json", "status")]
    [True, False, False]
    """
    own = list(argv)
    return "--json" in own[: own.index("--") if "--" in own else None]
