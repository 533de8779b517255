"""hpcrun hostfile."""

from __future__ import annotations

from typing import Any

import click

from hpcrun.cli.options import FILE, RUN_OR_FILE, cluster_option, context, json_option
from hpcrun.cli.output import emit_json, note, say

_FORMS = click.Choice(["deepspeed", "openmpi", "mpich", "plain", "slurm"])


@click.command("hostfile")
@click.argument("hosts", required=False, type=RUN_OR_FILE)
@click.option("--slots", type=click.IntRange(1), help="GPUs, or processes, on each host.")
@click.option("--to", "form", type=_FORMS, default="deepspeed", help="Format to write (deepspeed).")
@click.option("--from", "source", type=_FORMS, help="Format of the file (default: detected).")
@click.option("-o", "output", type=FILE, help="Write to this file (atomically).")
@cluster_option
@json_option
def command(
    hosts: str | None,
    slots: int | None,
    form: Any,
    source: Any,
    output: str | None,
    cluster: str | None,
    as_json: bool,
) -> int:
    """Write a hostfile, from a node list, a job or another hostfile.

    For launchers that read their hosts from a file: deepspeed, mpirun, hpcrun run --hostfile.
    hpcrun's own jobs under Slurm do not need it: each attempt writes one.

    HOSTS is a node list such as node[01-04,07], a Slurm job id, a run id or a file; inside a job it
    may be left out. "slurm" is the node list, "mpich" Intel MPI's form too.
    """
    from hpcrun.controller.hostfile import find_hosts, write_hostfile
    from hpcrun.slurm.hostfile import format_hostfile
    from hpcrun.slurm.nodelist import compress

    where = context(cluster)
    pool = find_hosts(where, hosts, source, slots)
    text = format_hostfile(pool.hosts, form)
    if pool.note:
        note(pool.note)
    if output is not None:
        write_hostfile(where, output, text)
    if as_json:
        counts = [host.slots for host in pool.hosts if host.slots is not None]
        emit_json(
            {
                "source": pool.source,
                "node_list": compress([host.name for host in pool.hosts]),
                "hosts": [{"host": host.name, "slots": host.slots} for host in pool.hosts],
                "slots": sum(counts) if len(counts) == len(pool.hosts) else None,
            }
        )
    elif output is None:
        say(text.rstrip("\n"))
    return 0
