"""A stub of srun on one machine, with the documented behaviour that hpcrun relies on.

It makes the mutation tests fast. tests/cluster verifies this behaviour on a real Slurm.

Each task gets SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID, SLURMD_NODENAME and its node's GPUs. As
srun of Slurm 22.05 does it: a step's tasks have one CPU unless --cpus-per-task or
SRUN_CPUS_PER_TASK says more (shown as STAND_IN_CPUS); SLURM_EXPORT_ENV=NONE takes the environment
away; while another step has the CPUs (STAND_IN_STEP), a step without --overlap waits for ever
(here: an error); TERM, which Slurm itself
sends when it ends a job, ends no task before KillWait; without --kill-on-bad-exit the other tasks
of a failed one go on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

KILL_WAIT = 10.0  # seconds, as on the real test cluster
# Option -> whether it takes a value.
OPTIONS = {
    "nodes": True,
    "ntasks": True,
    "ntasks-per-node": True,
    "cpus-per-task": True,
    "cpu-bind": True,
    "kill-on-bad-exit": True,
    "wait": True,
    "export": True,
    "gres": True,
    "gpus-per-node": True,
    "gpu-bind": True,
    "mem": True,
    "mpi": True,
    "distribution": True,
    "container-image": True,
    "container-mounts": True,
    "container-workdir": True,
    "nodelist": True,
    "job-name": True,
    "overlap": False,
    "quiet": False,
    "exact": False,
    "unbuffered": False,
}


def read_options(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Separate srun's options from the command.

    >>> read_options(["--nodes=2", "--overlap", "bash", "--x"])
    ({'nodes': '2', 'overlap': ''}, ['bash', '--x'])
    """
    found: dict[str, str] = {}
    rest = list(argv)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).removeprefix("--").partition("=")
        if name not in OPTIONS or OPTIONS[name] != bool(equals):
            sys.exit(f"srun: unrecognized option '--{name}'")
        found[name] = value
    return found, rest


def places(options: Mapping[str, str], environ: Mapping[str, str]) -> list[tuple[int, int]]:
    """Return node and local id of each task; STAND_IN_TASKS describes an uneven allocation.

    >>> places({"nodes": "2", "ntasks": "4", "ntasks-per-node": "2"}, {})
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    >>> places({"nodes": "2", "ntasks": "4"}, {"STAND_IN_TASKS": "3,1"})
    [(0, 0), (0, 1), (0, 2), (1, 0)]
    """
    ntasks, nodes = int(options["ntasks"]), int(options["nodes"])
    per_node = int(options.get("ntasks-per-node") or ntasks // nodes)
    uneven = environ.get("STAND_IN_TASKS")
    counts = [int(n) for n in uneven.split(",")] if uneven else [per_node] * nodes
    return [(node, local) for node, count in enumerate(counts) for local in range(count)][:ntasks]


def task_environment(
    options: Mapping[str, str], environ: Mapping[str, str], task: int, node: int, local: int
) -> dict[str, str]:
    """Return the environment of one task of the step."""
    hosts = environ["SLURM_JOB_NODELIST"].split(",")
    export = options.get("export") or environ.get("SLURM_EXPORT_ENV", "ALL")
    env = {
        name: value
        for name, value in environ.items()
        if export == "ALL" or name.startswith(("SLURM_", "STAND_IN_")) or name == "PATH"
    }
    gpus = int(environ.get("STAND_IN_GPUS", "0"))
    shown = {
        "SLURM_PROCID": task,
        "SLURM_LOCALID": local,
        "SLURM_NODEID": node,
        "SLURMD_NODENAME": hosts[node],
        "SLURM_NTASKS": options["ntasks"],
        "SLURM_STEP_ID": "0",
        "STAND_IN_CPUS": options.get("cpus-per-task") or environ.get("SRUN_CPUS_PER_TASK") or 1,
    }
    if "container-image" in options:
        shown["STAND_IN_IMAGE"] = options["container-image"]
    if environ.get("SLURM_GPUS_PER_TASK"):
        shown["STAND_IN_BOUND"] = environ["SLURM_GPUS_PER_TASK"]
    if gpus:
        shown["SLURM_GPUS_ON_NODE"] = gpus
        all_of_them = ",".join(map(str, range(gpus)))
        shown["CUDA_VISIBLE_DEVICES"] = environ.get("STAND_IN_GPU_IDS", all_of_them)
    return env | {name: str(value) for name, value in shown.items()}


def main() -> int:
    """Start the tasks, wait for them, and return the highest exit code."""
    options, command = read_options(sys.argv[1:])
    if "STAND_IN_STEP" in os.environ and "overlap" not in options:
        sys.exit(
            "srun: Job step creation temporarily disabled, retrying (Requested nodes are busy)"
        )
    stopped: list[float] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stopped.append(time.monotonic()))
    tasks = [
        subprocess.Popen(
            command,
            env=task_environment(options, os.environ, task, node, local),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        for task, (node, local) in enumerate(places(options, os.environ))
    ]
    patience = float(options.get("wait", "0")) or float("inf")
    first_end = float("inf")
    while any(task.poll() is None for task in tasks):
        codes = [code for task in tasks if (code := task.poll()) is not None]
        if codes and first_end == float("inf"):
            first_end = time.monotonic()
        bad = any(codes) and options.get("kill-on-bad-exit") == "1"
        now = time.monotonic()
        late = now - first_end > patience or bool(stopped and now - stopped[0] > KILL_WAIT)
        if bad or late:
            for task in tasks:
                if task.poll() is None:
                    os.killpg(task.pid, signal.SIGKILL)
        time.sleep(0.02)
    return max(task.returncode if task.returncode >= 0 else 128 - task.returncode for task in tasks)


if __name__ == "__main__":
    sys.exit(main())
