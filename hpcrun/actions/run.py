"""Run a job in the foreground: on this machine, in an allocation, or on a hostfile's hosts."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, structs

from hpcrun.actions.prepare import Prepared
from hpcrun.actions.submit import write_run
from hpcrun.context import Context, job_environment, read_text
from hpcrun.errors import InputError, NeedsLinux, Problem, SpecError
from hpcrun.monitor import build_submitted_record
from hpcrun.plan import DEFAULT, LAUNCHERS, RUNTIMES, Plan
from hpcrun.remote import LocalTransport
from hpcrun.render import parse_hostfile
from hpcrun.runs import RunFolder, remove_secret_files, write_record
from hpcrun.slurm import expand_node_counts
from hpcrun.spec import GpuType, JobSpec, Resources, Setup

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# The batch script needs this time to terminate its processes and to write its record.
_TERMINATE_TIMEOUT_S = 25.0
# DeepSpeed passes its arguments to pdsh, and pdsh to a shell on each host.
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


# ---- the machine, allocation or pool ------------------------------------------------------------


def adapt_to_this_machine(context: Context) -> Context:
    """Return the context for a run on this machine or in the current allocation."""
    if in_allocation(context):
        return context
    # The kernel module's directory exists wherever CUDA can work, and /dev also in containers.
    has_gpu = any(Path(path).exists() for path in ("/proc/driver/nvidia/gpus", "/dev/nvidiactl"))
    cluster = structs.replace(
        context.cluster,
        name="here",
        accelerator="cuda" if has_gpu else "cpu",
        partition=None,
        partitions={},
        gpu_types={"*": GpuType()},
        # The profile's value is for the cluster's nodes.
        local_dir=context.environ.get("TMPDIR", "/tmp").replace("$", "$$"),
    )
    if cluster.host is not None:  # the profile's paths are for the remote cluster
        cluster = structs.replace(
            cluster, host=None, python=None, setup=Setup(), slurm_conf=None, env={}
        )
        context = structs.replace(context, connect=LocalTransport)
    return structs.replace(context, cluster=cluster)


def assign_cpus(context: Context, spec: JobSpec) -> JobSpec:
    """Divide this machine's CPUs among the ranks, unless the job sets a number.

    In an allocation the step uses all its CPUs, so srun gets no number.

    Raises:
        InputError: This is not Linux.
    """
    if sys.platform != "linux":
        raise NeedsLinux("hpcrun run")
    resources = spec.resources
    if in_allocation(context):
        spec = structs.replace(spec, slurm={**spec.slurm, "cpus-per-task": False})
        cpus = min(expand_node_counts(context.environ.get("SLURM_JOB_CPUS_PER_NODE", "1")))
    else:
        cpus = len(os.sched_getaffinity(0))
    if resources.cpus_per_gpu is not None:
        return spec
    share = max(1, cpus // max(1, resources.gpus_per_node))
    return structs.replace(spec, resources=structs.replace(resources, cpus_per_gpu=share))


def in_allocation(context: Context) -> bool:
    """Return True if hpcrun was called inside an salloc or another job."""
    return "SLURM_JOB_ID" in context.environ


class HostPool(Struct, frozen=True):
    """Hosts by their names for ssh, each with the same number of GPUs."""

    source: str
    hosts: list[str]
    gpus_per_host: int


def load_host_pool(context: Context, name: str) -> HostPool:
    """Read a hostfile whose hosts have equal slots. Raises InputError, SpecError."""
    path = context.cwd / name
    if not path.is_file():
        raise InputError(
            f"--hostfile {name}: no such file",
            fix="write one: hpcrun hostfile 'lab[1-2]' --slots 4 -o FILE",
        )
    hosts = parse_hostfile(read_text(path), name)
    problems = [
        Problem(host.name, "how many GPUs? Write it as in lab1 slots=4", name)
        for host in hosts
        if host.slots is None
    ]
    counts = {host.slots for host in hosts if host.slots is not None}
    if len(counts) > 1:
        slots = ", ".join(f"{host.name} {host.slots}" for host in hosts)
        message = f"uneven slots ({slots}): every host of a job has as many ranks as any other"
        problems.append(Problem("", message, name))
    if problems:
        raise SpecError(problems)
    return HostPool(name, [host.name for host in hosts], counts.pop())


def adapt_to_pool(context: Context, pool: HostPool) -> Context:
    """Return the context for a run on these hosts, without the profile's Slurm settings."""
    if in_allocation(context):
        raise InputError(
            "--hostfile: this is a Slurm allocation, whose hosts are known",
            fix="leave --hostfile out",
        )
    cluster = structs.replace(
        context.cluster, name=pool.source, partition=None, partitions={}, gpu_types={"*": GpuType()}
    )
    return structs.replace(context, cluster=cluster, hosts=pool.hosts)


def fit_to_pool(pool: HostPool, spec: JobSpec) -> JobSpec:
    """Set the shape of a job to that of the pool. Raises InputError if the job sets another one.

    A job without GPUs, such as a bare command, has one process on each host.
    """
    resources, default = spec.resources, Resources()
    nodes, gpus = len(pool.hosts), pool.gpus_per_host if resources.gpus_per_node else 0
    if nodes in resources.counts and resources.gpus_per_node == gpus:
        steps = spec.batch.gradient_accumulation_steps or 1
        if spec.batch.effective is None and steps * resources.most_nodes % nodes:
            raise InputError(
                f"resources.nodes: {resources.nodes}: on the {nodes} of {pool.source} no whole "
                "number of accumulated steps makes the effective batch of "
                f"{resources.most_nodes} nodes",
                fix=f"--set batch.gradient_accumulation_steps={spec.even_steps}, which works "
                f"with all of them; or --nodes {nodes}, which has its own batch",
            )
        return spec.with_nodes(nodes)
    if resources.nodes == default.nodes and resources.gpus_per_node in (default.gpus_per_node, 0):
        shaped = structs.replace(resources, nodes=nodes, gpus_per_node=gpus)
        return structs.replace(spec, resources=shaped)
    raise InputError(
        f"the job wants {resources.nodes} node(s) with {resources.gpus_per_node} GPU(s) each, and "
        f"{pool.source} has {nodes} with {gpus}",
        fix=f"--nodes {nodes} --gpus-per-node {gpus}, or another hostfile",
    )


def check_can_run_here(context: Context, plan: Plan) -> None:
    """Refuse a plan that cannot run on this machine or pool. Raises InputError."""
    launcher, other = LAUNCHERS[plan.launcher], f"--set launcher={DEFAULT}"
    if context.hosts and launcher.needs_slurm:
        raise InputError(
            f"launcher: {launcher.name}: there is no Slurm on the hosts of a hostfile", fix=other
        )
    for command in dict.fromkeys(("ssh", launcher.remote)) if context.hosts else ():
        if shutil.which(command) is None:
            raise InputError(
                f"launcher: {plan.launcher}: there is no {command} here",
                fix=f"install it, or {other}" if command != "ssh" else "install it",
            )
    if context.hosts and launcher.remote == "pdsh" and not _PLAIN.fullmatch(plan.run_dir):
        raise InputError(
            f"{plan.run_dir}: DeepSpeed's launcher passes this folder's name to shells unquoted",
            fix=f"runs_dir: a folder without spaces or quotes, or {other}",
        )
    if in_allocation(context):
        return
    if plan.nodes > 1 and not context.hosts:
        raise InputError(
            f"the job wants {plan.nodes} nodes, and this is one machine",
            fix="hpcrun submit; hpcrun run in an allocation (salloc) or with --hostfile; --nodes 1",
        )
    container = plan.setup.container
    if container is not None and not RUNTIMES[container.runtime].programs:
        raise InputError(
            f"setup.container: {container.runtime} is a part of srun, and there is no Slurm "
            "allocation here",
            fix="hpcrun submit, or runtime: apptainer",
        )
    if launcher.needs_slurm and plan.world_size > 1:
        raise InputError(
            f"launcher: {plan.launcher}: there is no Slurm allocation here to start ranks in",
            fix=f"{other}, or hpcrun submit",
        )


# ---- the run ------------------------------------------------------------------------------------


@contextlib.contextmanager
def run_in_foreground(
    context: Context, prepared: Prepared
) -> Iterator[tuple[RunFolder, subprocess.Popen[bytes]]]:
    """Run a batch script; the end of the block kills all its processes. Raises InputError."""
    check_can_run_here(context, prepared.plan)
    written: list[Path] = []
    try:
        write_run(context, prepared, written)
        run = RunFolder(prepared.path)
        # As a subreaper, this process adopts orphaned processes, so that kill_descendants() finds
        # them.
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        process = _start_batch_script(context, prepared, run)
    except BaseException:
        for folder in written:
            kill_descendants()
            shutil.rmtree(folder, ignore_errors=True)
        raise
    try:
        write_record(run.submitted, build_submitted_record(context, prepared.plan))
        yield run, process
    finally:
        terminate_run(process)
        remove_secret_files(run)  # the harness was killed, or kept them for a requeue
        # If the harness was killed, its directory on the local disk still exists.
        if (run.attempts / "0" / "local" / "0").exists():
            subprocess.run(
                ["bash", str(run.path / "harness.sh"), "clean"],
                env={**os.environ, "HPCRUN_RUN_DIR": str(run.path), "HPCRUN_ATTEMPT": "0"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )


def _start_batch_script(
    context: Context, prepared: Prepared, run: RunFolder
) -> subprocess.Popen[bytes]:
    env = job_environment(context, prepared.plan.environment_kind)
    for name in prepared.plan.secrets:
        env.pop(name, None)
    if in_allocation(context):
        env |= {k: value for k, value in context.environ.items() if k.startswith("SLURM")}
        # An allocation has one CPU per node unless salloc requested more.
        cpus = min(expand_node_counts(env.get("SLURM_JOB_CPUS_PER_NODE", "1")))
        if prepared.plan.tasks_per_node > cpus:
            env["SLURM_OVERCOMMIT"] = "1"
    env["HPCRUN_OWN_PYTHON"] = sys.executable  # if the job's is not found
    with run.batch_log.open("ab") as log:
        return subprocess.Popen(
            [shutil.which("bash") or "bash", str(run.script)],
            cwd=run.path,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def terminate_run(process: subprocess.Popen[bytes]) -> None:
    """Terminate the batch script, gracefully until the next Ctrl-C, and kill its descendants."""
    hurry: list[int] = []
    with contextlib.suppress(ValueError):  # not the main thread
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, frame: hurry.append(number))
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _TERMINATE_TIMEOUT_S
        while process.poll() is None and not hurry and time.monotonic() < deadline:
            time.sleep(0.05)
    kill_descendants()


def kill_descendants() -> None:
    """Kill all descendants of this process, including those in other sessions."""
    for _ in range(50):
        pids = _descendants(os.getpid())
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *_descendants(child)]
    return found
