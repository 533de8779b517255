"""hpcrun sandbox.

Effects: those of the sandbox.
"""

from __future__ import annotations

import os
import time

import click

from hpcrun.cli.options import json_option


@click.group("sandbox")
def command() -> None:
    """A real Slurm on this machine, to try things out; jobs in it train on CPUs.

    While it is up hpcrun submits to it, unless the project has an hpcrun.yaml (then say
    --cluster sandbox).
    """


@command.command("up")
@click.option("--nodes", type=click.IntRange(1, 64), default=2, help="Number of nodes (2).")
@click.option("--gpus-per-node", type=click.IntRange(0, 16), default=4, help="GPUs a node (4).")
def up(nodes: int, gpus_per_node: int) -> int:
    """Start it."""
    from hpcrun.cli.output import say
    from hpcrun.sandbox import lifecycle
    from hpcrun.sandbox.directory import sandbox_dir

    begin, directory = time.monotonic(), sandbox_dir(os.environ, os.getuid())
    before = lifecycle.status(directory)
    status = lifecycle.up(directory, nodes=nodes, gpus_per_node=gpus_per_node)
    taken = f"up in {time.monotonic() - begin:.1f} s"
    say(
        f"sandbox: {status.nodes} nodes with {status.gpus_per_node} GPUs each, "
        f"{'up already' if before is not None and before.up else taken}"
    )
    say("  hpcrun submit zero2-4gpu --follow     train something in it")
    say(f"  export SLURM_CONF={status.slurm_conf}     for Slurm's own commands")
    say("  hpcrun sandbox down                   take it away")
    return 0


@command.command("down")
def down() -> int:
    """Stop it: no process and no file of it is left. Runs stay where they are."""
    from hpcrun.cli.output import say
    from hpcrun.sandbox import lifecycle
    from hpcrun.sandbox.directory import sandbox_dir

    found = lifecycle.down(sandbox_dir(os.environ, os.getuid()))
    say("sandbox: gone" if found else "sandbox: there was none")
    return 0


@command.command("status")
@json_option
def status(as_json: bool) -> int:
    """Tell whether it is up; the exit code is 4 when it is not."""
    import msgspec

    from hpcrun.cli.output import emit_json, say
    from hpcrun.sandbox import lifecycle
    from hpcrun.sandbox.directory import sandbox_dir

    found = lifecycle.status(sandbox_dir(os.environ, os.getuid()))
    if as_json:
        emit_json({"sandbox": msgspec.to_builtins(found) if found else None})
    elif found is None:
        say("sandbox: not up")
    elif found.up:
        say(f"sandbox: up, {found.nodes} nodes with {found.gpus_per_node} GPUs each")
        say(f"  {found.directory}")
    else:
        say(f"sandbox: not running: {', '.join(found.dead)}; hpcrun sandbox up mends it")
    return 0 if found is not None and found.up else 4
