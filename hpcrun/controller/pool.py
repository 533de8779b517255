"""The hosts of a hostfile: where ``hpcrun run`` trains without Slurm."""

from __future__ import annotations

import re
import shutil

from msgspec import Struct, structs

from hpcrun.controller.context import Context, read_text
from hpcrun.errors import InputError, Problem, SpecError
from hpcrun.plan.launchers import DEFAULT, LAUNCHERS
from hpcrun.plan.types import Plan
from hpcrun.slurm.hostfile import parse_hostfile
from hpcrun.spec.cluster import GpuType
from hpcrun.spec.job import JobSpec, Resources

# DeepSpeed gives these words to pdsh, and pdsh to a shell on each host.
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


class Pool(Struct, frozen=True):
    """Hosts as ssh knows them, each with the same number of GPUs."""

    source: str
    hosts: list[str]
    gpus_per_host: int


def load_pool(context: Context, name: str) -> Pool:
    """Read a hostfile in any of its forms.

    Raises InputError, SpecError: a file that is not there, hosts without slots or with several
    numbers of them, of which a job could use the fewest only.
    """
    path = context.cwd / name
    if not path.is_file():
        raise InputError(
            f"--hostfile {name}: no such file",
            fix="write one: hpcrun hostfile 'lab[1-2]' --slots 4 -o FILE",
        )
    hosts = parse_hostfile(read_text(path), name)
    problems = [
        Problem(name, None, host.name, "how many GPUs? Write it as in lab1 slots=4")
        for host in hosts
        if host.slots is None
    ]
    counts = {host.slots for host in hosts if host.slots is not None}
    if len(counts) > 1:
        told = ", ".join(f"{host.name} {host.slots}" for host in hosts)
        message = f"uneven slots ({told}): every host of a job has as many ranks as any other"
        problems.append(Problem(name, None, "", message))
    if problems:
        raise SpecError(problems)
    return Pool(name, [host.name for host in hosts], counts.pop())


def on_pool(context: Context, pool: Pool) -> Context:
    """The context for a run on these hosts: what the profile says of Slurm does not count."""
    if "SLURM_JOB_ID" in context.environ:
        raise InputError(
            "--hostfile: here is a Slurm allocation, and its hosts are known",
            fix="leave --hostfile out",
        )
    cluster = structs.replace(
        context.cluster, name=pool.source, partition=None, partitions={}, gpu_types={"*": GpuType()}
    )
    return structs.replace(context, cluster=cluster, hosts=pool.hosts)


def take_shape(pool: Pool, spec: JobSpec) -> JobSpec:
    """Give a job that says no shape the pool's. Raises InputError for one that has another.

    A job without GPUs, as a bare command is, has one process on each host.
    """
    resources = spec.resources
    said = (resources.nodes, resources.gpus_per_node)
    there = (len(pool.hosts), pool.gpus_per_host if resources.gpus_per_node else 0)
    if said == there:
        return spec
    unsaid = Resources()
    if said in ((unsaid.nodes, unsaid.gpus_per_node), (unsaid.nodes, 0)):
        shaped = structs.replace(resources, nodes=there[0], gpus_per_node=there[1])
        return structs.replace(spec, resources=shaped)
    raise InputError(
        f"the job wants {said[0]} node(s) with {said[1]} GPU(s) each, and {pool.source} has "
        f"{there[0]} with {there[1]}",
        fix=f"--nodes {there[0]} --gpus-per-node {there[1]}, or another hostfile",
    )


def check_pool(plan: Plan) -> None:
    """Refuse what cannot be driven from here. Raises InputError."""
    launcher = LAUNCHERS[plan.launcher]
    other = f"--set launcher={DEFAULT}"
    if launcher.needs_slurm:
        raise InputError(
            f"launcher: {launcher.name}: there is no Slurm on the hosts of a hostfile", fix=other
        )
    for command in dict.fromkeys(("ssh", launcher.remote)):
        if shutil.which(command) is None:
            raise InputError(
                f"launcher: {plan.launcher}: there is no {command} here",
                fix=f"install it, or {other}" if command != "ssh" else "install it",
            )
    if launcher.remote == "pdsh" and not _PLAIN.fullmatch(plan.run_dir):
        raise InputError(
            f"{plan.run_dir}: DeepSpeed's launcher hands this folder's name to shells as it is",
            fix=f"runs_dir: a folder without spaces or quotes, or {other}",
        )
