"""hpcrun sandbox."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from hpcrun.cli.options import json_option
from hpcrun.cli.output import emit_json, say
from hpcrun.errors import InputError


@click.group("sandbox")
def command() -> None:
    """A real Slurm on this machine, to try things out; jobs in it train on CPUs.

    While it is up hpcrun submits to it, unless the project has an hpcrun.yaml (then use
    --cluster sandbox).
    """


@command.command("up")
@click.option("--nodes", type=click.IntRange(1, 64), help="Number of nodes (2).")
@click.option("--gpus-per-node", type=click.IntRange(0, 16), help="GPUs on each node (4).")
@click.option(
    "--like",
    metavar="PROFILE",
    help="Take after a cluster: the partitions, GPU types and limits of an hpcrun.yaml or of a "
    "named profile of yours; --nodes then counts nodes of each kind (4 at most).",
)
def up(nodes: int | None, gpus_per_node: int | None, like: str | None) -> int:
    """Start it."""
    from hpcrun.sandbox import lifecycle
    from hpcrun.sandbox.config import plain_shape
    from hpcrun.sandbox.directory import sandbox_dir

    begin, directory = time.monotonic(), sandbox_dir(os.environ, os.getuid())
    if like is None:
        shape = plain_shape(nodes or 2, 4 if gpus_per_node is None else gpus_per_node)
    elif gpus_per_node is not None:
        raise InputError("--gpus-per-node: the profile of --like sets it", fix="leave one out")
    else:
        from hpcrun.controller.context import named_profile
        from hpcrun.controller.rehearsal import shape_like

        cluster = named_profile(os.environ, Path.cwd(), like)
        shape = shape_like(cluster, like, nodes)
    before = lifecycle.status(directory)
    status = lifecycle.up(directory, shape=shape)
    taken = f"up in {time.monotonic() - begin:.1f} s"
    say(f"sandbox: {shape.about()}, {'up already' if before is not None and before.up else taken}")
    if like is None:
        say("  hpcrun submit zero2-4gpu --follow     train something in it")
    else:
        say("  hpcrun submit JOB --cluster sandbox     train in it, on CPUs")
    say(f"  export SLURM_CONF={status.slurm_conf}     for Slurm's own commands")
    say("  hpcrun sandbox down                   remove it")
    return 0


@command.command("down")
def down() -> int:
    """Stop it, and remove all its processes and files. Runs are kept."""
    from hpcrun.sandbox import lifecycle
    from hpcrun.sandbox.directory import sandbox_dir

    found = lifecycle.down(sandbox_dir(os.environ, os.getuid()))
    say("sandbox: gone" if found else "sandbox: there was none")
    return 0


@command.command("status")
@json_option
def status(as_json: bool) -> int:
    """Show whether it is up; the exit code is 4 if it is not."""
    import msgspec

    from hpcrun.sandbox import lifecycle
    from hpcrun.sandbox.directory import sandbox_dir

    found = lifecycle.status(sandbox_dir(os.environ, os.getuid()))
    if as_json:
        emit_json({"sandbox": msgspec.to_builtins(found) if found else None})
    elif found is None:
        say("sandbox: not up")
    elif found.up:
        say(f"sandbox: up, {found.about}")
        say(f"  {found.directory}")
    else:
        say(f"sandbox: not running: {', '.join(found.dead)}; hpcrun sandbox up repairs it")
    return 0 if found is not None and found.up else 4
