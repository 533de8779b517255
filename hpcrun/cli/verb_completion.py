"""hpcrun completion."""

from __future__ import annotations

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option("--install", is_flag=True, help="Put it where the shell reads it at its start.")
@click.option(
    "--command",
    "name",
    metavar="NAME",
    default="hpcrun",
    help="What you type to call hpcrun, where that is an alias (hpcrun).",
)
def command(shell: str, install: bool, name: str) -> int:
    """Print what makes a shell complete verbs, options, jobs, runs and job ids.

    For this shell:  eval "$(hpcrun completion bash)"; zsh alike; fish:  hpcrun completion fish |
    source. For all to come: --install. It asks the hpcrun that wrote it, whatever the PATH has; run
    it anew after hpcrun was moved.

    Where you call it as python -m hpcrun: alias hr='python -m hpcrun', and --command hr.
    """
    from hpcrun.cli.completion_install import install as put
    from hpcrun.cli.completion_install import script
    from hpcrun.cli.output import note, say

    if not install:
        say(script(shell, name).rstrip("\n"))
        return 0
    for path, is_changed in put(shell, name):
        note(f"{'wrote' if is_changed else 'as it was'}: {path}")
    note(f"it works in each {shell} that starts from now on")
    return 0
