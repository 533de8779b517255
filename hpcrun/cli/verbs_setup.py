"""The verbs init, sandbox, hostfile, schema and completion."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Any, Literal

import click

from hpcrun.cli.options import CLUSTER, FILE, RUN_OR_FILE, cluster_option, json_option, make_context
from hpcrun.cli.output import (
    TerminalPrompts,
    confirm,
    emit_json,
    print_line,
    print_note,
    progress_bar,
)
from hpcrun.errors import InputError


@click.command("init")
@click.argument("script", required=False)
@click.argument("arguments", nargs=-1, metavar="[ARGUMENTS...]")
@click.option("-m", "--module", help="Draft the job of a module, as in package.module.")
@click.option("--cluster", type=CLUSTER, help="The cluster's name (default: Slurm's ClusterName).")
@click.option("--user", "for_user", is_flag=True, help="Write ~/.config/hpcrun/clusters/NAME.yaml.")
@click.option("--host", help="Query the cluster at this SSH host.")
@click.option("--like", metavar="SITE", help="Start from a built-in profile, such as lumi-g.")
@click.option(
    "--check", is_flag=True, help="Show what has changed, and stop; exit code 1 if anything has."
)
@click.option("--yes", is_flag=True, help="Do not ask; use the defaults.")
@json_option
def init(
    script: str | None,
    arguments: tuple[str, ...],
    cluster: str | None,
    module: str | None,
    **options: Any,
) -> int:
    """Write hpcrun.yaml, and a job file for SCRIPT.

    SCRIPT is a Python file of the project, a module (package.module), or a command that the
    project's packaging installs. It may also be an sbatch script, with its arguments after --: the
    job then does the same, and all lines that it does not repeat are listed. With --check, the
    script and the job are run in a sandbox with a probe as the program, and their ranks compared.

    Partitions, GPUs, limits and your accounts are read from Slurm; the command asks you only for
    the rest. If it is run again, it shows what has changed on the cluster, and updates the profile;
    your own keys and comments are kept. An existing file is overwritten only after confirmation.

    With --host the cluster is queried over SSH, on one connection, and the profile is written on
    this machine.
    """
    from hpcrun.cli.init_dialog import run_init

    if module is not None and script is not None:
        raise InputError(
            f"{script} and -m {module}: one of the two", fix=f"hpcrun init -m {module}"
        )
    return run_init(module or script, cluster, arguments=arguments, **options)


@click.command("connect")
@click.argument("cluster", required=False, type=CLUSTER)
@click.option("--close", "closes", is_flag=True, help="Close the connection that was kept open.")
@click.option("--verbose", is_flag=True, help="Show the jump hosts and the login method.")
def connect(cluster: str | None, closes: bool, verbose: bool) -> None:
    """Test the SSH connection to CLUSTER, or keep it open.

    The command logs in to the cluster's host and checks that Slurm is available there. If the
    profile has `ssh: openssh`, the connection stays open for eight hours after its last use, and
    other commands do not ask for a password or code in that time.
    """
    from hpcrun.actions import connect_to, disconnect_from

    where = make_context(cluster)
    if closes:
        print_line("disconnected" if disconnect_from(where) else "there was no connection")
        return
    kept, version = connect_to(where, TerminalPrompts(is_verbose=verbose))
    print_line(f"connected to {where.cluster.host}: {version}")
    if not kept:
        print_note(f"it is not kept open; to keep it, set `ssh: openssh` in {where.cluster_source}")


@click.group("sandbox")
def sandbox() -> None:
    """Run a real Slurm on this machine for testing; its jobs train on CPUs.

    While the sandbox is running, hpcrun submits to it, unless the project has an hpcrun.yaml; in
    that case pass --cluster sandbox.
    """


@sandbox.command("up")
@click.option("--nodes", type=click.IntRange(1, 64), help="Number of nodes (default: 2).")
@click.option(
    "--gpus-per-node", type=click.IntRange(0, 16), help="Number of GPUs on each node (default: 4)."
)
@click.option(
    "--like",
    metavar="PROFILE",
    help="Use the partitions, GPU types and limits of an hpcrun.yaml or of one of your profiles; "
    "--nodes is then the number of nodes of each kind (at most 4).",
)
def up(nodes: int | None, gpus_per_node: int | None, like: str | None) -> int:
    """Start the sandbox."""
    from hpcrun.sandbox import lifecycle, plain_shape, sandbox_dir

    begin, directory = time.monotonic(), sandbox_dir(os.environ, os.getuid())
    if like is None:
        shape = plain_shape(nodes or 2, 4 if gpus_per_node is None else gpus_per_node)
    elif gpus_per_node is not None:
        raise InputError("--gpus-per-node: the profile of --like sets it", fix="leave one out")
    else:
        from hpcrun.actions import build_cluster_shape
        from hpcrun.context import load_named_profile

        cluster = load_named_profile(os.environ, Path.cwd(), like)
        shape = build_cluster_shape(cluster, like, nodes)
    before = lifecycle.status(directory)
    with progress_bar("starting", "daemons") as show:
        status = lifecycle.up(directory, shape=shape, show=show)
    taken = f"up in {time.monotonic() - begin:.1f} s"
    is_old = before is not None and before.up
    print_line(f"sandbox: {shape.about()}, {'already running' if is_old else taken}")
    if like is None:
        print_line("  hpcrun submit zero2-4gpu --follow     train something in it")
    else:
        print_line("  hpcrun submit JOB --cluster sandbox     train in it, on CPUs")
    print_line(f"  export SLURM_CONF={status.slurm_conf}     for Slurm's own commands")
    print_line("  hpcrun sandbox down                   remove it")
    return 0


@sandbox.command("down")
@click.option("-y", "--yes", is_flag=True, help="Do not ask, even if jobs are pending or running.")
def down(yes: bool) -> int:
    """Stop the sandbox, and remove its processes and files. Runs are kept.

    The command asks for confirmation if jobs are pending or running.
    """
    from hpcrun.sandbox import lifecycle, sandbox_dir

    directory = sandbox_dir(os.environ, os.getuid())
    jobs = [] if yes else lifecycle.live_jobs(directory)
    if jobs:
        listed = ", ".join(f"{job.job_id} ({job.name}, {job.state})" for job in jobs[:5])
        listed += f" and {len(jobs) - 5} more" if len(jobs) > 5 else ""
        if not sys.stdin or not sys.stdin.isatty():
            raise InputError(
                f"the sandbox has jobs, which would end: {listed}",
                fix="hpcrun sandbox down -y ends them too",
            )
        if not confirm(f"This ends its jobs: {listed}. Continue?"):
            print_line("sandbox: unchanged")
            return 0
    found = lifecycle.down(directory)
    print_line("sandbox: gone" if found else "sandbox: none was running")
    return 0


@sandbox.command("status")
@json_option
def status(as_json: bool) -> int:
    """Show whether the sandbox is running; the exit code is 4 if it is not."""
    import msgspec

    from hpcrun.sandbox import lifecycle, sandbox_dir

    found = lifecycle.status(sandbox_dir(os.environ, os.getuid()))
    if as_json:
        emit_json({"sandbox": msgspec.to_builtins(found) if found else None})
    elif found is None:
        print_line("sandbox: not running")
    elif found.up:
        print_line(f"sandbox: up, {found.about}")
        print_line(f"  {found.directory}")
    else:
        print_line(f"sandbox: not running: {', '.join(found.dead)}; hpcrun sandbox up repairs it")
    return 0 if found is not None and found.up else 4


_FORMS = click.Choice(["deepspeed", "openmpi", "mpich", "plain", "slurm"])


@click.command("hostfile")
@click.argument("hosts", required=False, type=RUN_OR_FILE)
@click.option("--slots", type=click.IntRange(1), help="Number of GPUs, or processes, on each host.")
@click.option(
    "--to", "form", type=_FORMS, default="deepspeed", help="Format to write (default: deepspeed)."
)
@click.option("--from", "source", type=_FORMS, help="Format of an input file (default: detected).")
@click.option("-o", "output", type=FILE, help="Write to this file (atomically).")
@cluster_option
@json_option
def hostfile(
    hosts: str | None,
    slots: int | None,
    form: Any,
    source: Any,
    output: str | None,
    cluster: str | None,
    as_json: bool,
) -> int:
    """Write a hostfile from a node list, a job or another hostfile.

    Hostfiles are read by deepspeed, mpirun and hpcrun run --hostfile. Jobs that hpcrun submits to
    Slurm do not need this command, because each attempt writes its own hostfile.

    HOSTS is a node list such as node[01-04,07], a Slurm job id, a run id or a file; inside a job it
    can be omitted. The format "slurm" is a node list; "mpich" is also the format of Intel MPI.
    """
    from hpcrun.actions import find_hosts, write_hostfile
    from hpcrun.render import format_hostfile
    from hpcrun.slurm import compress_hosts

    where = make_context(cluster)
    pool = find_hosts(where, hosts, source, slots)
    text = format_hostfile(pool.hosts, form)
    if pool.note:
        print_note(pool.note)
    if output is not None:
        write_hostfile(where, output, text)
    if as_json:
        counts = [host.slots for host in pool.hosts if host.slots is not None]
        emit_json(
            {
                "source": pool.source,
                "node_list": compress_hosts([host.name for host in pool.hosts]),
                "hosts": [{"host": host.name, "slots": host.slots} for host in pool.hosts],
                "slots": sum(counts) if len(counts) == len(pool.hosts) else None,
            }
        )
    elif output is None:
        print_line(text.rstrip("\n"))
    return 0


@click.command("schema")
@click.argument("kind", type=click.Choice(["job", "cluster", "pipeline"]), default="job")
def schema(kind: Literal["job", "cluster", "pipeline"]) -> int:
    """Print the JSON Schema of job files, cluster profiles or pipelines, for editors.

    With the line `# yaml-language-server: $schema=FILE` in a job file, editors complete its keys.
    """
    from hpcrun.spec import json_schema, pipeline_schema

    emit_json(pipeline_schema() if kind == "pipeline" else json_schema(kind))
    return 0


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option(
    "--install", is_flag=True, help="Install the script where the shell loads it at startup."
)
@click.option(
    "--command",
    "name",
    metavar="NAME",
    default="hpcrun",
    help="The alias that you type for hpcrun, if you have one.",
)
def completion(shell: str, install: bool, name: str) -> int:
    """Print the shell script that completes commands, options, jobs, runs and job ids.

    To enable completion in the current bash or zsh: eval "$(hpcrun completion bash)" (or zsh); in
    fish: hpcrun completion fish | source. To enable it in all new shells, pass --install. The
    script calls the hpcrun that printed it, regardless of the PATH; print it again if hpcrun is
    moved.

    If you run python -m hpcrun, define an alias (alias hr='python -m hpcrun') and pass --command
    hr.
    """
    from hpcrun.cli.completion import SHELLS, install_script

    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", name):
        raise InputError(f"--command {name}: not the name of a command", fix="as in: --command hr")
    script = SHELLS[shell](prog_name=name).source()
    if not install:
        print_line(script.rstrip("\n"))
        return 0
    for path, is_changed in install_script(shell, name, script):
        print_note(f"{'wrote' if is_changed else 'unchanged'}: {path}")
    print_note(f"it works in every new {shell}")
    return 0
