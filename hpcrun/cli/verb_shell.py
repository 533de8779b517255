"""hpcrun shell."""

from __future__ import annotations

import sys

import click

from hpcrun.cli.options import RUN, ArgsAfterDashes, cluster_option, context
from hpcrun.cli.output import is_terminal, note
from hpcrun.errors import InputError


@click.command("shell", cls=ArgsAfterDashes)
@click.argument("job", required=False, type=RUN)
@click.option("--node", metavar="N", help="The node, by name or number (default: the first).")
@cluster_option
def command(
    job: str | None, node: str | None, cluster: str | None, extra_args: list[str] | None
) -> int:
    """Open a shell on a node of a running job, beside its own processes.

    It has the job's environment: modules, Python, GPUs, working directory. A command after -- is
    run instead, and its exit code returned: hpcrun shell 7 -- nvidia-smi. The default JOB is the
    newest run.
    """
    from hpcrun.controller.shell import become, prepare_shell
    from hpcrun.controller.targets import find_targets

    if extra_args == []:
        raise click.UsageError("no command after --")
    has_terminal = bool(sys.stdin and sys.stdin.isatty()) and is_terminal()
    if extra_args is None and not has_terminal:
        raise InputError(
            "a shell needs a terminal", fix="give a command: hpcrun shell JOB -- nvidia-smi"
        )
    where = context(cluster)
    shell = prepare_shell(
        where, find_targets(where, [job] if job else []), extra_args or [], node=node
    )
    for text in shell.notes:
        note(click.style(f"note: {text}", dim=True))
    become(shell)
    return 1  # not reached
