"""Stand in for Python and its launchers in a job, and record what each rank is given.

A shell script named python, torchrun, accelerate or deepspeed runs it with its own name first. The
launchers are imitated: they start the ranks on their node with the variables that torchrun sets.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from hpcrun.lint import parse_launcher, skip_image
from hpcrun.text import is_whole_number

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_IMITATED = re.compile(r"python[0-9.]*|torchrun|accelerate|deepspeed|singularity|apptainer")
FOLDER = "RANK_PROBE_FOLDER"  # where the records are written
CODE = "RANK_PROBE_CODE"  # set if the program of the script is python -c
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def main(words: Sequence[str]) -> int:
    """Record the call of a program, or start the ranks of a launcher."""
    name, *args = words
    if name == "python":
        while args and re.fullmatch("-[uOBEsSIWX]+", args[0]):
            args = args[1:]
        if args and args[0].endswith("/jobside.pyz"):  # hpcrun's own
            os.execv(sys.executable, [sys.executable, *args])
        if args[:1] == ["-m"] and len(args) > 1 and args[1] in _MODULES:
            return _launch(_MODULES[args[1]], args[2:])
        records_code = args[:1] == ["-c"] and CODE in os.environ
        if not args or args[0] in ("-V", "--version", "-") or args[:2] == ["-m", "pip"]:
            return 0
        if args[0] == "-c" and not records_code:
            return 0
        _record(args)
        return 0
    if name == "wrapper":  # [options] COMMAND; other commands than the imitated ones do nothing
        while args and not _IMITATED.fullmatch(args[0]):
            args = args[1:]
        return subprocess.run(args, check=False).returncode if args else 0
    if name == "mpirun":
        return _start_copies(args)
    if name == "container":  # exec [options] IMAGE COMMAND
        command = skip_image(args[1:])
        return subprocess.run(command, check=False).returncode if command else 0
    if name == "accelerate":
        return _launch(name, args[1:]) if args[:1] == ["launch"] else 0
    return _launch(name, args)


def _start_copies(args: Sequence[str]) -> int:
    """Start the copies of ``mpirun -np N COMMAND`` on this node, one after the other."""
    at = next((i for i, one in enumerate(args) if _IMITATED.fullmatch(one)), len(args))
    given = dict(itertools.pairwise(args[:at]))
    found = [given[one] for one in ("-np", "-n", "--np", "--n") if one in given]
    total = found[0] if found else os.environ.get("SLURM_NTASKS", "1")
    for rank in range(int(total) if is_whole_number(total) and args[at:] else 0):
        env = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": total}
        code = subprocess.run(args[at:], env=os.environ | env, check=False).returncode
        if code:
            return code
    return 0


def _record(argv: Sequence[str]) -> None:
    environ = os.environ
    in_step = is_whole_number(environ.get("SLURM_STEP_ID", ""))
    rank = environ.get("RANK") or environ.get("OMPI_COMM_WORLD_RANK")
    rank = rank or (environ.get("SLURM_PROCID", "0") if in_step else "0")
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1") if in_step else "1"
    tasks = environ.get("OMPI_COMM_WORLD_SIZE", tasks)
    cpus: list[int] = []
    if sys.platform == "linux":  # mypy checks hpcrun for macOS, too
        cpus = sorted(os.sched_getaffinity(0))
    found = {
        "rank": int(rank),
        "world_size": int(environ.get("WORLD_SIZE") or tasks),
        "argv": list(argv),
        "directory": os.path.normpath(environ.get("RANK_PROBE_CD") or Path.cwd()),
        "cpus": cpus,
        "gpus": environ.get("CUDA_VISIBLE_DEVICES", ""),
        "host": environ.get("SLURMD_NODENAME", ""),
        "task": environ.get("SLURM_ARRAY_TASK_ID", ""),
        "environ": dict(environ),
    }
    folder = Path(environ[FOLDER])
    part = folder / f".{uuid.uuid4().hex}"
    part.write_text(json.dumps(found), encoding="utf-8")
    part.rename(folder / f"{part.name[1:]}.json")


def _launch(kind: str, words: Sequence[str]) -> int:
    """Start the ranks of this node, or of all nodes for DeepSpeed's own launcher."""
    options, args = parse_launcher(kind, words)
    given = {one.name: one.value for one in options}
    nodes, node = int(os.environ.get("SLURM_NNODES", "1")), int(os.environ.get("SLURM_NODEID", "0"))
    in_step = is_whole_number(os.environ.get("SLURM_STEP_ID", ""))
    if kind == "deepspeed" and nodes > 1 and "no-ssh" not in given and not in_step:
        each = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
        return subprocess.run([*each, "deepspeed", "--no_ssh", *words], check=False).returncode
    per_node = _count_ranks(kind, given, nodes)
    is_python = "no-python" not in given
    if any(one.name == "module" for one in options):
        args = ["-m", *args]
    for local in range(per_node):
        ranks = (node * per_node + local, local, nodes * per_node)
        env = dict(zip(RANK_VARIABLES, map(str, ranks), strict=True))
        command = ["python", *args] if is_python else args
        code = subprocess.run(command, env=os.environ | env, check=False).returncode
        if code:
            return code
    return 0


def _count_ranks(kind: str, given: dict[str, str], nodes: int) -> int:
    gpus = len([one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one])
    config = given.get("config-file")
    if kind == "accelerate" and config and Path(config).is_file():
        found = re.search(r"(?m)^num_processes: *(\d+)", Path(config).read_text())
        return int(found[1]) // nodes if found else 1
    name = {"torchrun": "nproc-per-node", "accelerate": "num-processes", "deepspeed": "num-gpus"}
    value = given.get(name[kind], "")
    if not is_whole_number(value):
        return max(1, gpus) if value in ("gpu", "auto") or kind != "torchrun" else 1
    return int(value) // nodes if kind == "accelerate" else int(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
