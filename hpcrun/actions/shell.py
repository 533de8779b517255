"""Access to a node of a running job: a shell, a command with the job's environment, or a port."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from hpcrun.assets import shipped_folder
from hpcrun.context import Context, slurm_transport
from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.monitor import Targets, status_of, status_of_job
from hpcrun.runs import JobStatus, read_optional_record
from hpcrun.slurm import (
    ACTIVE,
    SlurmJob,
    client,
    expand_hosts,
    parse_nodes,
    shares_gpus,
    shell_argv,
    show_nodes_argv,
)


class ShellCommand(Struct, frozen=True, kw_only=True):
    """The srun command and environment of a shell; ``notes`` are shown before it starts."""

    argv: list[str]
    env: dict[str, str]
    notes: list[str]


def prepare_shell(
    context: Context,
    targets: Targets,
    command: Sequence[str],
    *,
    node: str | None = None,
    unbuffered: bool = False,
) -> ShellCommand:
    """Build the srun command for a job's node; without a command, it starts a shell.

    ``unbuffered``: pass on output at once, instead of at the end of a line.

    Raises the same errors as find_node().
    """
    status, job, host = find_node(context, targets, node)
    folder, notes = "", list[str]()
    if status.plan is not None:
        folder = status.plan.start_dir
        container = status.plan.setup.container
        if container is not None:
            notes.append(f"outside of the job's container {container.image}")
    version = client.query_version(slurm_transport(context, status.slurm_conf))
    if not shares_gpus(version):
        notes.append("before Slurm 22.05 a second step cannot use the job's GPUs")
    script = (shipped_folder("templates") / "shell.sh").read_text(encoding="utf-8")
    inside = ["bash", "-c", script, "hpcrun", folder, *command]
    argv = shell_argv(job.number, host, inside, terminal=not command, version=version)
    if unbuffered:
        argv.insert(1, "--unbuffered")
    transport = slurm_transport(context, status.slurm_conf)
    argv, env = transport.wrap_command(argv, terminal=not command)
    return ShellCommand(argv=argv, env=env, notes=notes)


def find_node(
    context: Context, targets: Targets, node: str | None
) -> tuple[JobStatus, SlurmJob, str]:
    """Find the only running job and its node, which is a name or a number (0 is the first)."""
    runs = targets.all_runs()
    if len(runs) + len(targets.jobs) > 1:
        first = runs[0].run_id if runs else targets.jobs[0]
        count = len(runs) + len(targets.jobs)
        raise InputError(f"{count} jobs; expected one", fix=f"name one of them, as {first}")
    statuses = status_of(context, runs) if runs else status_of_job(context, targets.jobs[0])
    if len(statuses) > 1:
        raise InputError(
            f"{targets.jobs[0]}: an array of {len(statuses)} tasks",
            fix=f"name one, as {statuses[0].job_id}",
        )
    job = _require_running(statuses[0])
    return statuses[0], job, _choose_node(job, node)


def find_dashboard_port(status: JobStatus) -> int:
    """Return the port of Ray's dashboard, which the job has recorded. Raises InputError."""
    run, last = status.run, status.last
    record = None
    if run is not None and last is not None:
        path = run.attempts / str(last.index) / "ray.json"
        record = read_optional_record(path, dict[str, Any])
    port = (record or {}).get("dashboard")
    if not isinstance(port, int):
        raise InputError(
            f"{status.label}: no dashboard of Ray",
            fix="a job with launcher: ray has one once it runs",
        )
    return port


def _require_running(status: JobStatus) -> SlurmJob:
    submitted, name = status.history.submitted, status.label
    if submitted is not None and status.is_local and not status.final:
        raise InputError(
            f"{name} is not a Slurm job", fix=f"it runs on {submitted.host}: log in there"
        )
    if status.out_of_reach:
        raise OutOfReach(f"{name}: {status.out_of_reach}")
    job = status.job
    if status.state not in ACTIVE or job is None or job.source != "squeue":
        word = (status.job_id or status.run_id) if status.run is not None else ""
        text = f"{name} is {status.state}" + (f" ({status.reason})" if status.reason else "")
        fix = f"hpcrun logs {word} shows its output" if word else ""
        if status.state in ("PENDING", "CONFIGURING"):
            fix = "the job must be running; hpcrun status shows what it waits for"
        raise InputError(text, fix=fix)
    return job


def _choose_node(job: SlurmJob, node: str | None) -> str:
    nodes = expand_hosts(job.node_list) if job.node_list else []
    if not nodes:
        raise InputError(f"job {job.job_id}: Slurm shows no nodes of it yet", fix="try again")
    if node is None:
        return nodes[0]
    if node in nodes:
        return node
    if node.isdecimal() and int(node) < len(nodes):
        return nodes[int(node)]
    raise InputError(
        f"--node {node}: job {job.job_id} is on {job.node_list}",
        fix=f"a name, or 0 to {len(nodes) - 1}",
    )


def exec_shell(shell: ShellCommand) -> None:
    """Replace this process with srun, which takes over terminal and signals. Raises HpcrunError."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(shell.argv[0], shell.argv, shell.env)
    except OSError as error:
        raise HpcrunError(f"{shell.argv[0]}: {error.strerror}") from error


# ---- ports -------------------------------------------------------------------------------------


# Seconds between checks of the connection of a port, and between Slurm queries for its job.
_BEAT, _LOOKS = 3.0, 60.0
# A bash script for the cluster's host: test whether a port accepts connections.
_LISTENS = 'exec timeout 5 bash -c "exec 3<>/dev/tcp/$1/$2" 2>/dev/null'
# A bash script for the node: relay one connection to a port of its loopback interface.
_RELAY = """\
exec 3<>/dev/tcp/127.0.0.1/$1 4<&0 || exit
{ cat <&4 >&3; kill $$; } 2>/dev/null & cat <&3; kill $! 2>/dev/null
"""


class ForwardedPort(Struct, frozen=True):
    """A port of a node, its address according to Slurm, and its local address."""

    address: str
    port: int
    here: tuple[str, int]
    is_answered: bool
    is_relayed: bool = False  # the port is only open on the node's loopback interface


def open_port(context: Context, job: SlurmJob, host: str, port: int) -> ForwardedPort:
    """Forward a port of a job's node; see Transport.forward_port. Raises OutOfReach.

    The node's address comes from Slurm, because other programs may not resolve its name. A port
    that is only open on the node's loopback interface is relayed by a job step per connection. On a
    login node that is not possible, because other users could connect to it.
    """
    transport = slurm_transport(context)
    shown = parse_nodes(client.run_query(transport, show_nodes_argv([host])) or "")
    address = (shown[0].address if shown else "") or host
    argv = ["bash", "-c", _LISTENS, "bash", address, str(port)]
    is_answered = transport.run(argv).exit_code == 0
    if not is_answered:
        version = client.query_version(transport)
        argv = ["bash", "-c", _LISTENS, "bash", "127.0.0.1", str(port)]
        argv = shell_argv(job.number, host, argv, terminal=False, version=version)
        with contextlib.suppress(OutOfReach):
            is_answered = transport.run(argv).exit_code == 0
        if is_answered:
            argv = ["bash", "-c", _RELAY, "bash", str(port)]
            argv = shell_argv(job.number, host, argv, terminal=False, version=version)
            argv.insert(1, "--unbuffered")  # without it, a line is only sent at its end
            return ForwardedPort(
                address, port, transport.forward_port(address, port, argv), True, is_relayed=True
            )
    return ForwardedPort(address, port, transport.forward_port(address, port), is_answered)


def keep_port_open(
    context: Context, status: JobStatus, port: ForwardedPort, tell: Callable[[str], None]
) -> JobStatus:
    """Keep a port forwarded until its job ends; return the final status.

    A lost connection is reopened if that requires no prompt. Raises OutOfReach.
    """
    transport, run, is_lost = slurm_transport(context), status.run, False
    while not status.final:
        for _ in range(int(_LOOKS / _BEAT)):
            time.sleep(_BEAT)
            try:
                if not port.is_relayed:
                    transport.forward_port(port.address, port.port)
            except OutOfReach as lost:
                if lost.is_final:
                    raise
                if not is_lost:
                    tell(f"{lost.message}; trying again")
                is_lost = True
            else:
                is_lost = False
        with contextlib.suppress(OutOfReach):
            shown = status_of(context, [run]) if run else status_of_job(context, status.label)
            status = shown[0]
    return status
