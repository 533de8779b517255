"""What a script requests: nodes, tasks and GPUs, as far as its directives say."""

from __future__ import annotations

import re

from hpcrun.lint.launch import TRAINERS, LaunchedProgram, Step, find_programs
from hpcrun.lint.script import (
    OPEN,
    Script,
    compute_sum,
    mark,
    unknown_parts,
)
from hpcrun.text import is_whole_number

# Commands that print the number of GPUs of the job on a node.
_COUNTS_GPUS = re.compile(
    r"""(?:\$\(|`)\s*(nvidia-smi\s+(-L|--list-gpus|--query-gpu=\w+\s+--format=csv,noheader)\s*\|\s*wc\s+-l"""
    r"""|echo\s+"?\$\{?CUDA_VISIBLE_DEVICES\}?"?\s*\|\s*tr\s+["']?,["']?\s+["']\\n["']\s*\|\s*wc\s+-l"""
    r"""|python3?\s+-c\s+["']import torch; ?print\(torch\.cuda\.device_count\(\)\)["'])\s*[)`]"""
)
_GPU_KINDS = ("gres", "gpus-per-node", "gpus-per-task", "gpus")


def count_nodes(script: Script) -> int | None:
    """Return the number of nodes; None if it is not fixed by the script.

    A job without any of the options that size it has one node.
    """
    value = script.value("nodes")
    if value:
        return int(value) if is_whole_number(value) else None
    tasks, per_node = script.number("ntasks"), count_tasks_per_node_option(script)
    if tasks and per_node:
        return -(-tasks // per_node)
    if script.has("ntasks") and tasks != 1:
        return None
    return None if re.search(r"[,\[/]", script.value("nodelist")) else 1


def is_spread(script: Script) -> bool:
    """Return True if only the number of tasks is given, which Slurm may spread over nodes."""
    tasks = script.number("ntasks")
    sized = ("nodes", "ntasks-per-node", "tasks-per-node", "nodelist", "nodefile", "ntasks-per-gpu")
    return bool(tasks and tasks > 1) and not any(script.has(one) for one in sized)


def is_multi_node(script: Script) -> bool:
    """Return True if the job certainly has several nodes."""
    nodes = count_nodes(script)
    return nodes is not None and nodes > 1


def count_tasks_per_node_option(script: Script) -> int | None:
    """Return the value of --ntasks-per-node or --tasks-per-node."""
    return script.number("ntasks-per-node") or script.number("tasks-per-node")


def count_tasks_per_node(script: Script, step: Step | None = None) -> int | None:
    """Return the number of tasks on each node of a step, or of the job; None if unknown."""
    nodes = count_nodes(script)
    if step is not None:
        if any(one.name == "?" for one in step.options):
            return None
        own = step.get("ntasks-per-node") or step.get("tasks-per-node")
        total, step_nodes = step.get("ntasks"), step.get("nodes")
        if own is not None:
            return int(own) if is_whole_number(own) else None
        if total is not None:
            on = step_nodes if step_nodes is not None else (str(nodes) if nodes else "")
            if is_whole_number(total) and is_whole_number(on) and int(on):
                return -(-int(total) // int(on))
            # -n $SLURM_NNODES and the like start one task on each node.
            return 1 if re.search(r"N?NODES", total) else None
    per_node, tasks = count_tasks_per_node_option(script), script.number("ntasks")
    if tasks is not None and nodes:
        return -(-tasks // nodes)
    if script.has("ntasks") or script.has("ntasks-per-gpu"):
        return None
    return per_node or 1


def count_gpus_of(value: str) -> int | None:
    """Return the number of GPUs in the value of --gres or --gpus-per-node.

    >>> [count_gpus_of(one) for one in ("gpu:4", "gpu", "gpu:x:2,nvme:1", "a100:4", "8", "nvme:1")]
    [4, 1, 2, 4, 8, None]
    """
    for part in value.split(","):
        words = part.split("(")[0].split(":")
        if words[0] == "nvme" or words[0] in ("lscratch", "tmpfs", "shard", "mps", "craynetwork"):
            continue
        if is_whole_number(words[-1]):
            return int(words[-1])
        if words[0] == "gpu" and len(words) <= 2:
            return 1
    return None


def count_gpus_per_node(script: Script) -> int | None:
    """Return the number of GPUs on each node; None if it is not known."""
    gres = script.value("gres")
    if gres and "gpu" in gres:
        return count_gpus_of(gres)
    if script.has("gpus-per-node"):
        return count_gpus_of(script.value("gpus-per-node"))
    nodes = count_nodes(script)
    if script.has("gpus-per-task"):
        # Without a number of tasks, the command line gives it.
        if not any(script.has(one) for one in ("ntasks", "ntasks-per-node", "tasks-per-node")):
            return None
        each, tasks = count_gpus_of(script.value("gpus-per-task")), count_tasks_per_node(script)
        return each * tasks if each and tasks else None
    if script.has("gpus") and nodes == 1:
        return count_gpus_of(script.value("gpus"))
    return None


def count_spread_gpus(script: Script) -> int | None:
    """Return the value of --gpus if Slurm may distribute these GPUs unevenly over the nodes."""
    is_per_node = script.has("gpus-per-node") or "gpu" in script.value("gres")
    return None if is_per_node or not script.has("gpus") else count_gpus_of(script.value("gpus"))


def resolve_number(script: Script, text: str | None) -> int | None:
    """Return the number that a value has in the job; None if it is not known.

    Variables that Slurm sets from the directives are replaced, also in ``$((...))``.

    >>> from hpcrun.lint.script import parse_script
    >>> script = parse_script("#!/bin/bash\\n#SBATCH -N 2 --ntasks-per-node=4\\n")
    >>> resolve_number(script, mark("$(($SLURM_NNODES * SLURM_NTASKS_PER_NODE))"))
    8
    """
    if text is None or is_whole_number(text):
        return None if text is None else int(text)
    parts = unknown_parts(text)
    if len(parts) != 1 or text != mark(parts[0]):
        return None
    if _COUNTS_GPUS.fullmatch(parts[0]) and not script.exports("CUDA_VISIBLE_DEVICES"):
        return count_gpus_per_node(script)
    inner = re.fullmatch(r"\$\(\((.*)\)\)", parts[0], re.S)
    if inner is None and not re.fullmatch(r"[A-Za-z_]\w*", parts[0]):
        return None  # an argument of the script, or the output of a command
    assigned = {one.name for one in script.assignments}

    def replace(found: re.Match[str]) -> str:
        value = None if found[1] in assigned else _slurm_number(script, found[1])
        return found[0] if value is None else str(value)

    return compute_sum(re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", replace, inner[1] if inner else parts[0]))


def _slurm_number(script: Script, name: str) -> int | None:
    """Return the value of a variable that Slurm sets for the job."""
    nodes = count_nodes(script)
    if name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
        return nodes
    if name == "SLURM_NTASKS_PER_NODE":
        return count_tasks_per_node_option(script)
    if name in ("SLURM_NTASKS", "SLURM_NPROCS"):
        each = count_tasks_per_node_option(script)
        return script.number("ntasks") or (nodes * each if nodes and each else None)
    if name == "SLURM_GPUS_ON_NODE":
        return count_gpus_per_node(script)
    options = {"SLURM_GPUS_PER_NODE": "gpus-per-node", "SLURM_CPUS_PER_TASK": "cpus-per-task"}
    return script.number(options[name]) if name in options else None


def requests_gpus(script: Script) -> bool:
    """Return True if a directive requests GPUs."""
    return any(script.has(one) for one in _GPU_KINDS[1:]) or "gpu" in script.value("gres")


def is_exclusive(script: Script) -> bool:
    """Return True if the job has its nodes for itself."""
    return script.has("exclusive") and script.value("exclusive") not in ("user", "mcs")


def list_training(script: Script) -> list[LaunchedProgram]:
    """Return the launchers and Python programs of a script, without small commands."""
    found = [one for one in find_programs(script) if one.kind in TRAINERS]
    programs = [one for one in found if not (one.kind == "python" and _is_small(one))]
    return programs or [one for one in found[-1:] if _runs_statements(one)]


def list_started(script: Script) -> list[LaunchedProgram]:
    """Return the programs that train; without any that is known, those that srun starts."""
    small = {"srun", "hostname", "echo", "nvidia-smi", "true", "sleep", "cp", "mkdir", "rm", "ls"}
    return list_training(script) or [
        one
        for one in find_programs(script)
        if one.step is not None and one.kind not in small and OPEN not in one.kind
    ]


def _is_small(program: LaunchedProgram) -> bool:
    """Return True for ``python --version``, ``python -c ...`` and ``python -m pip``."""
    first = program.args[:2]
    return not first or first[0] in ("-c", "-") or program.module in ("pip", "venv", "ensurepip")


def _runs_statements(program: LaunchedProgram) -> bool:
    """Return True for ``python -c`` with code that does more than to import and print."""
    code = program.args[1] if program.args[:1] == ["-c"] and len(program.args) > 1 else ""
    idle = r"(import|from|assert)\s.*|print\(.*\)|\w+\.(__version__|__file__)|(sys\.)?exit\(.*"
    statements = [one.strip() for one in re.split(r"[;\n]", code)]
    return any(one and not re.fullmatch(idle, one) for one in statements)


def uses_several_ranks(script: Script) -> bool:
    """Return True if the script trains on several GPUs or ranks."""
    gpus, tasks = count_gpus_per_node(script), count_tasks_per_node(script)
    return is_multi_node(script) or (gpus or 0) > 1 or (tasks or 0) > 1


def is_array(script: Script) -> bool:
    """Return True for an array job."""
    return script.has("array")


def list_indices(script: Script) -> list[int] | None:
    """Return the indices of the array; None if there is none, or it is not constant."""
    value = script.value("array").split("%")[0]
    found: list[int] = []
    for part in value.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part)
        if match is None:
            return None
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if step < 1 or last - first > 100_000:
            return None
        found += range(first, last + 1, step)
    return found
