"""Convert the directives of a script to the resources and Slurm options of a job."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field

from hpcrun.convert.remarks import Remarks
from hpcrun.lint import (
    Directive,
    Script,
    count_gpus_of,
    count_nodes,
    count_tasks_per_node,
    is_spread,
    list_indices,
)
from hpcrun.text import is_whole_number

_MEMORY = r"\d+([KMGT]B?)?"
# Directives without a counterpart, because hpcrun keeps the output of each rank itself.
_OUTPUT = {"output", "error", "open-mode"}
_LOGS = "each rank has its own log file: hpcrun logs"
# Directives that other parts of this module convert.
_CONVERTED = {
    *("job-name", "nodes", "time", "partition", "account", "mem", "exclusive"),
    *("ntasks", "ntasks-per-node", "tasks-per-node", "cpus-per-task", "cpus-per-gpu"),
    *("gres", "gpus-per-node", "gpus", "gpus-per-task", "array", "signal", "requeue"),
}
# Options that only concern the call of sbatch.
_CALL = {"parsable", "quiet", "verbose", "wait", "test-only"}
_REFUSED = {
    "wrap": "sbatch refuses it in a script",
    "input": "a batch job has nothing to read",
    "clusters": "write a profile for each cluster (slurm_conf)",
    "gpu-bind": "a rank must see all GPUs of its node; with launcher: srun, set "
    "srun: {gpus-per-task: 1, gpu-bind: closest}",
    "no-kill": "the remaining ranks would wait for the lost one",
}


class Request(Struct):
    """What a script requests.

    Attributes:
        tasks: Tasks on each node; None if the script does not fix them.
        gpus: GPUs on each node; None if the script does not fix them.
        cpus: CPUs of each task; None without --cpus-per-task.
        total_gpus: The value of --gpus.
    """

    nodes: str = "1"
    tasks: int | None = 1
    gpus: int | None = 0
    cpus: int | None = None
    resources: dict[str, Any] = field(default_factory=dict)
    slurm: dict[str, Any] = field(default_factory=dict)
    survive: dict[str, Any] = field(default_factory=dict)
    environment: str | None = None
    name: str = ""
    indices: list[int] | None = None
    limit: int | None = None
    folder: str = ""
    total_gpus: int = 0

    @property
    def is_single_node(self) -> bool:
        """True if the job has one node."""
        return self.nodes == "1"


def convert_directives(script: Script, remarks: Remarks, gpu_types: dict[str, str]) -> Request:
    """Convert the directives of a script.

    Args:
        gpu_types: The name of the profile for each type in --gres, where they differ.
    """
    made = Request()
    if re.search(rb"(?m)^#SBATCH\s+(hetjob|packjob)", script.data):
        one = re.search(rb"(?m)^#SBATCH\s+(hetjob|packjob)", script.data)
        remarks.missing(one.start() if one else 0, "#SBATCH hetjob", "a job has one kind of nodes")
    made.name = script.value("job-name")
    _convert_size(script, remarks, made, gpu_types)
    resources = made.resources
    for option in ("time", "partition", "account"):
        if value := script.value(option):
            resources[option] = value
    if script.has("exclusive"):
        if script.value("exclusive"):
            made.slurm["exclusive"] = script.value("exclusive")
        else:
            resources["exclusive"] = True
    memory = script.value("mem").upper()
    if re.fullmatch(_MEMORY, memory):
        resources["memory_per_node"] = memory
    elif memory:
        made.slurm["mem"] = script.value("mem")
    _convert_survival(script, remarks, made)
    for directive in script.directives:
        _convert_other(directive, script, remarks, made)
    for directive in script.late:
        remarks.replaced(
            directive.start,
            f"#SBATCH {directive.written} {directive.value}",
            "sbatch ignores it: it is below the first command",
        )
    return made


def _convert_size(
    script: Script, remarks: Remarks, made: Request, gpu_types: dict[str, str]
) -> None:
    resources = made.resources
    nodes, count = script.value("nodes"), count_nodes(script)
    if re.fullmatch(r"[1-9]\d*-[1-9]\d*", nodes) and nodes.split("-")[0] != nodes.split("-")[1]:
        made.nodes = nodes
        resources["nodes"] = nodes
    else:
        if "-" in nodes and is_whole_number(nodes.split("-")[0]):
            count = int(nodes.split("-")[0])
        if count is None and is_spread(script):
            one = script.option("ntasks")
            assert one is not None
            reason = f"one node: Slurm may spread the {one.value} tasks over several (--nodes=1)"
            remarks.assumed(one.start, f"{one.written} {one.value}", reason)
            count = 1
        if count is None:
            one = script.option("nodes") or script.option("ntasks") or script.option("nodelist")
            remarks.missing(
                one.start if one else 0,
                f"{one.written} {one.value}" if one else "",
                "the number of nodes depends on Slurm: set resources.nodes",
            )
        made.nodes = str(count or 1)
        if count and count > 1:
            resources["nodes"] = count
    made.tasks = script.number("ntasks") if is_spread(script) else count_tasks_per_node(script)
    made.gpus = _count_gpus(script, made)
    if made.gpus is None:
        one = next(
            one
            for name in ("gpus", "gpus-per-task", "gpus-per-node", "gres")
            if (one := script.option(name))
        )
        remarks.missing(
            one.start, f"{one.written} {one.value}", "the number of GPUs on each node is not fixed"
        )
    resources["gpus_per_node"] = made.gpus or 0
    kind = _find_gpu_type(script)
    if kind and made.gpus:
        resources["gpu_type"] = gpu_types.get(kind, kind)
    others = [part for part in script.value("gres").split(",") if part and not _is_gpu(part)]
    if others:
        split = [part.rpartition(":") if ":" in part else (part, ":", "1") for part in others]
        resources["gres"] = {name: number for name, _, number in split}
    made.cpus = script.number("cpus-per-task")
    each = script.number("cpus-per-gpu")
    ranks = max(1, made.gpus or 0)
    if each is not None and made.cpus is None:
        resources["cpus_per_gpu"] = each
        return
    total = (made.cpus or 1) * (made.tasks or 1)
    if made.cpus is None and total == 1:
        # The default of Slurm or the site, e.g. DefCpuPerGPU.
        if not script.has("exclusive"):
            made.slurm["cpus-per-task"] = False
    elif total % ranks:
        one = script.option("cpus-per-task") or script.option("ntasks-per-node")
        resources["cpus_per_gpu"] = -(-total // ranks)
        remarks.changed(
            one.start if one else 0,
            f"{one.written} {one.value}" if one else "",
            f"{total} CPUs for {ranks} GPUs become {resources['cpus_per_gpu']} for each",
        )
    else:
        resources["cpus_per_gpu"] = total // ranks


def _count_gpus(script: Script, made: Request) -> int | None:
    """Return the GPUs on each node; 0 without a request, None if they are not fixed."""
    if any(_is_gpu(part) for part in script.value("gres").split(",")):
        return count_gpus_of(",".join(filter(_is_gpu, script.value("gres").split(","))))
    if script.has("gpus-per-node"):
        return count_gpus_of(script.value("gpus-per-node"))
    if script.has("gpus-per-task"):
        each = count_gpus_of(script.value("gpus-per-task"))
        return each * made.tasks if each and made.tasks else None
    if script.has("gpus"):
        total = count_gpus_of(script.value("gpus"))
        made.total_gpus = total or 0
        nodes = int(made.nodes) if is_whole_number(made.nodes) else 0
        return total // nodes if total and nodes and total % nodes == 0 else None
    return 0


def _is_gpu(part: str) -> bool:
    return part.strip("'\"").split(":")[0] == "gpu"


def _find_gpu_type(script: Script) -> str:
    for option in ("gres", "gpus-per-node", "gpus-per-task", "gpus"):
        for part in script.value(option).split(","):
            words = part.split("(")[0].split(":")
            if option == "gres":
                if not _is_gpu(part):
                    continue
                words = words[1:]
            if words and not is_whole_number(words[0]) and words[0]:
                return words[0]
    return ""


def _convert_survival(script: Script, remarks: Remarks, made: Request) -> None:
    """Convert --requeue and --signal, and a trap that requeues the job."""
    requeues = any(
        one.name == "scontrol" and one.args[:1] == ["requeue"] for one in script.commands
    ) or bool(re.search(rb"scontrol requeue", script.data))
    if script.has("requeue"):
        made.survive["when"] = ["preempted", "node_fail"]
    signal = script.option("signal")
    if signal is None and requeues and any(one.name == "trap" for one in script.commands):
        made.survive["when"] = [*made.survive.get("when", []), "time_limit"]
    if signal is not None:
        found = re.fullmatch(r"(?:[BR]+:)?(?:SIG)?(\w+)(?:@(\d+))?", signal.value)
        name = {"10": "USR1", "15": "TERM"}.get(found[1], found[1]) if found else ""
        seconds = int(found[2] or 60) if found else 0
        if name in ("USR1", "TERM"):
            made.survive["save_before_end"] = f"{seconds}s"
            made.survive["signal"] = name
        else:
            made.survive["save_before_end"] = f"{seconds or 60}s"
            remarks.changed(
                signal.start,
                f"--signal={signal.value}",
                "hpcrun signals every rank with TERM or USR1 (survive.signal)",
            )
        if requeues:
            when = [*made.survive.get("when", []), "time_limit"]
            made.survive["when"] = when


def _convert_other(directive: Directive, script: Script, remarks: Remarks, made: Request) -> None:
    option, value = directive.option, directive.value
    text = f"#SBATCH {directive.written} {value}".rstrip()
    if option == "array":
        made.indices = list_indices(script)
        limit = value.partition("%")[2]
        made.limit = int(limit) if is_whole_number(limit) else None
        if made.indices is None:
            remarks.missing(directive.start, text, "the indices of the array are not numbers")
    elif option in _OUTPUT:
        remarks.replaced(directive.start, text, _LOGS)
    elif option in _CONVERTED:
        return
    elif option == "chdir":
        made.folder = "" if value in (".", "./") else value
    elif option == "export":
        names = value.split(",")
        if value == "NONE":
            made.environment = "clean"
        elif names != ["ALL"]:
            assigned = [one for one in names if "=" in one]
            if names[0] == "ALL" or len(assigned) == len(names):
                made.slurm["export"] = value
            else:
                remarks.missing(directive.start, text, "list these variables in env")
    elif option == "gpu-bind" and value == "none":
        remarks.replaced(directive.start, text, "each rank sees all GPUs of its node")
    elif option in _CALL:
        remarks.replaced(directive.start, text, "it concerns only the call of sbatch")
    elif option in _REFUSED:
        remarks.missing(directive.start, text, _REFUSED[option])
    elif option.startswith(("container-", "image", "module", "volume")) and not directive.known:
        remarks.missing(directive.start, text, "an option of a plugin: see setup.container")
    elif not directive.known:
        remarks.missing(directive.start, text, "sbatch does not know this option")
    elif option == "nodelist" and "nodelist" not in made.slurm:
        made.slurm[option] = value
    else:
        made.slurm[option] = value if directive.has_value or value else True
