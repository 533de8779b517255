"""A shell, or one command, on a node of a running job, with the job's environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from msgspec import Struct

from hpcrun import scheduler
from hpcrun.assets import shipped
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.controller.status import status_of, status_of_job
from hpcrun.controller.targets import Targets
from hpcrun.errors import HpcrunError, InputError, OutOfReach
from hpcrun.runs.status import JobStatus
from hpcrun.slurm.commands import shares_gpus, shell_argv
from hpcrun.slurm.hosts import expand
from hpcrun.slurm.jobs import SlurmJob
from hpcrun.slurm.states import ACTIVE


class Shell(Struct, frozen=True, kw_only=True):
    """What is to be started: srun's arguments and environment; ``notes`` are to be shown before."""

    argv: list[str]
    env: dict[str, str]
    notes: list[str]


def prepare_shell(
    context: Context, targets: Targets, command: Sequence[str], *, node: str | None = None
) -> Shell:
    """Find the job and the node, the first one by default; nothing is started.

    ``node`` is a name or a number, 0 for the first. No ``command``: a shell. Raises InputError
    where the job is not running or the node is not its own, and OutOfReach.
    """
    runs = targets.all_runs()
    if len(runs) + len(targets.jobs) > 1:
        first = runs[0].run_id if runs else targets.jobs[0]
        count = len(runs) + len(targets.jobs)
        raise InputError(f"{count} jobs; a shell is in one", fix=f"name one of them, as {first}")
    folder, notes = "", list[str]()
    statuses = status_of(context, runs) if runs else status_of_job(context, targets.jobs[0])
    if len(statuses) > 1:
        raise InputError(
            f"{targets.jobs[0]}: an array of {len(statuses)} tasks",
            fix=f"name one, as {statuses[0].job_id}",
        )
    status = statuses[0]
    job = _running(status)
    if status.plan is not None:
        folder = status.plan.project_dir
        container = status.plan.setup.container
        if container is not None:
            notes.append(f"outside of the job's container {container.image}")
    host = _choose(job, node)
    version = scheduler.version(slurm_transport(context, status.slurm_conf))
    if not shares_gpus(version):
        notes.append("before Slurm 22.05 a second step cannot use the job's GPUs")
    script = (shipped("templates") / "shell.sh").read_text(encoding="utf-8")
    inside = ["bash", "-c", script, "hpcrun", folder, *command]
    argv = shell_argv(job.number, host, inside, terminal=not command, version=version)
    transport = slurm_transport(context, status.slurm_conf)
    argv, env = transport.process(argv, terminal=not command)
    return Shell(argv=argv, env=env, notes=notes)


def _running(status: JobStatus) -> SlurmJob:
    """The job as squeue shows it. Raises InputError for one that does not run."""
    submitted, name = status.history.submitted, status.label
    if submitted is not None and status.is_local and not status.final:
        raise InputError(f"{name} is no Slurm job", fix=f"it runs on {submitted.host}: go there")
    if status.out_of_reach:
        raise OutOfReach(f"{name}: {status.out_of_reach}")
    job = status.job
    if status.state not in ACTIVE or job is None or job.source != "squeue":
        word = (status.job_id or status.run_id) if status.run is not None else ""
        text = f"{name} is {status.state}" + (f" ({status.reason})" if status.reason else "")
        fix = f"hpcrun logs {word} shows its output" if word else ""
        if status.state in ("PENDING", "CONFIGURING"):
            fix = "a shell needs a running job; hpcrun status shows what it waits for"
        raise InputError(text, fix=fix)
    return job


def _choose(job: SlurmJob, node: str | None) -> str:
    nodes = expand(job.node_list) if job.node_list else []
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


def become(shell: Shell) -> None:
    """Become srun: the terminal, its signals and the exit code are srun's own from here on.

    Raises HpcrunError where there is no srun.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(shell.argv[0], shell.argv, shell.env)
    except OSError as error:
        raise HpcrunError(f"{shell.argv[0]}: {error.strerror}") from error
