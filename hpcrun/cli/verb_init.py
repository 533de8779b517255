"""hpcrun init."""

from __future__ import annotations

import click

from hpcrun.cli.options import CLUSTER, json_option


@click.command("init")
@click.argument("script", required=False)
@click.option("--cluster", type=CLUSTER, help="The cluster's name (default: Slurm's ClusterName).")
@click.option("--user", "for_user", is_flag=True, help="Write ~/.config/hpcrun/clusters/NAME.yaml.")
@click.option("--check", is_flag=True, help="Show what changed, and stop; exit code 1 if so.")
@click.option("--yes", is_flag=True, help="Do not ask; take the defaults.")
@json_option
def command(
    script: str | None, cluster: str | None, for_user: bool, check: bool, yes: bool, as_json: bool
) -> int:
    """Ask the cluster, then you, and write hpcrun.yaml and a job file for SCRIPT.

    Partitions, GPUs, limits and your accounts are read from Slurm; you are asked only for the rest.
    Called again it shows what has changed on the cluster since and updates the profile; your own
    keys and comments stay. An existing file is not overwritten without asking.
    """
    from hpcrun.cli.init_dialog import run_init

    return run_init(script, cluster, for_user=for_user, check=check, yes=yes, as_json=as_json)
