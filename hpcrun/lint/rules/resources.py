"""Rules for the requested resources: tasks, CPUs, memory, GPUs and arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpcrun.lint.launch import LaunchedProgram, find_programs
from hpcrun.lint.request import (
    count_gpus_of,
    count_gpus_per_node,
    count_nodes,
    count_tasks_per_node,
    count_tasks_per_node_option,
    is_array,
    is_exclusive,
    is_multi_node,
    list_indices,
    list_started,
    list_training,
    requests_gpus,
    resolve_number,
)
from hpcrun.lint.rule import Found, rule
from hpcrun.lint.script import OPEN, Script, unknown_parts
from hpcrun.text import is_whole_number

SECTION = "Resources"
# Variables that Slurm sets only if the option is given.
_NEED_OPTION = {
    "SLURM_NTASKS_PER_NODE": ("ntasks-per-node", "tasks-per-node"),
    "SLURM_CPUS_PER_TASK": ("cpus-per-task",),
    "SLURM_GPUS": ("gpus",),
    "SLURM_GPUS_PER_NODE": ("gpus-per-node",),
    "SLURM_GPUS_PER_TASK": ("gpus-per-task",),
    "SLURM_CPUS_PER_GPU": ("cpus-per-gpu",),
    "SLURM_NTASKS_PER_GPU": ("ntasks-per-gpu",),
}


@rule(
    "two-memory-options",
    "error",
    "two of --mem, --mem-per-cpu and --mem-per-gpu",
    section=SECTION,
    source="sbatch 22.05: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive",
    fix="keep one of them",
    bad="#SBATCH --mem=16G\n#SBATCH --mem-per-cpu=4G\n",
    good="#SBATCH --mem=16G\n",
)
def _(script: Script) -> Iterator[Found]:
    given = [one for one in ("mem", "mem-per-cpu", "mem-per-gpu") if script.has(one)]
    if len(given) > 1:
        last = script.option(given[-1])
        assert last is not None
        yield Found(last.start, f"sbatch refuses --{given[0]} together with --{given[1]}")


@rule(
    "memory-without-unit",
    "warning",
    "a small amount of memory without a unit",
    section=SECTION,
    source="sbatch(1), --mem: the default unit is megabytes",
    fix="add G",
    bad="#SBATCH --mem=64\n",
    good="#SBATCH --mem=64G\n#SBATCH --mem=0\n",
)
def _(script: Script) -> Iterator[Found]:
    for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        one = script.option(name)
        if one is not None and is_whole_number(one.value) and 0 < int(one.value) <= 512:
            yield Found(one.start, f"--{name}={one.value} is {one.value} MB")


@rule(
    "bad-memory",
    "error",
    "an amount of memory that sbatch cannot read",
    section=SECTION,
    source="sbatch 22.05: Invalid --mem specification",
    fix="write a whole number and K, M, G or T",
    bad="#SBATCH --mem=16GiB\n",
    good="#SBATCH --mem=16gb\n",
)
def _(script: Script) -> Iterator[Found]:
    for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        one = script.option(name)
        if one is None or not one.value or re.search(r"[$<{]", one.value):
            continue
        if not re.fullmatch(r"\d+(?i:[kmgt]b?)?", one.value.strip()):
            yield Found(one.start, f"sbatch refuses the amount {one.value}")


@rule(
    "tasks-differ",
    "warning",
    "--ntasks that differs from --nodes times --ntasks-per-node",
    section=SECTION,
    source="sbatch(1): with --ntasks, --ntasks-per-node is a maximum only",
    fix="remove --ntasks",
    bad="#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --ntasks=2\n",
    good="#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --ntasks=8\n",
)
def _(script: Script) -> Iterator[Found]:
    nodes, each = script.number("nodes"), count_tasks_per_node_option(script)
    total, one = script.number("ntasks"), script.option("ntasks")
    if nodes and total and total < nodes:
        return  # see tasks-fewer-than-nodes
    if nodes and each and total and one is not None and total != nodes * each:
        text = f"the job has {total} tasks, not {nodes} nodes x {each}"
        if total > nodes * each:
            text = f"{total} tasks do not fit on {nodes} nodes with at most {each} each"
        yield Found(one.start, text)


@rule(
    "tasks-fewer-than-nodes",
    "warning",
    "fewer tasks than nodes",
    section=SECTION,
    source="Slurm 22.05: can't run 1 processes on 4 nodes, setting nnodes to 1",
    fix="--ntasks-per-node=1 instead of --ntasks=1",
    bad="#SBATCH --nodes=4\n#SBATCH --ntasks=1\nsrun python t.py\n",
    good="#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\nsrun python t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    nodes, tasks = script.number("nodes"), script.option("ntasks")
    if nodes and tasks is not None and is_whole_number(tasks.value) and int(tasks.value) < nodes:
        text = f"{tasks.value} tasks use at most {tasks.value} of {nodes} nodes"
        yield Found(tasks.start, text.replace("1 tasks use", "1 task uses"))


@rule(
    "gpu-options-differ",
    "error",
    "two options that request different numbers of GPUs",
    section=SECTION,
    source="sbatch(1): --gpus-per-node and --gres=gpu request the same resource",
    fix="keep one of them",
    bad="#SBATCH --gres=gpu:2\n#SBATCH --gpus-per-node=4\n",
    good="#SBATCH --gres=gpu:4\n#SBATCH --gpus-per-node=4\n",
)
def _(script: Script) -> Iterator[Found]:
    node, gres = script.option("gpus-per-node"), script.option("gres")
    total, nodes = script.option("gpus"), count_nodes(script)
    each = count_gpus_of(node.value) if node is not None else None
    if each is None and gres is not None and "gpu" in gres.value:
        each = count_gpus_of(gres.value)
    if total is not None and each and nodes:
        count = count_gpus_of(total.value)
        if count and count != each * nodes:
            text = (
                f"--gpus requests {count} in all, the other option {each} on each of {nodes} nodes"
            )
            yield Found(total.start, text.replace("of 1 nodes", "node"))
            return
    if node is None or gres is None or "gpu" not in gres.value:
        return
    first, second = count_gpus_of(node.value), count_gpus_of(gres.value)
    if first and second and first != second:
        yield Found(node.start, f"{first} GPUs per node here, {second} in --gres={gres.value}")


@rule(
    "gpus-per-task-hides-gpus",
    "warning",
    "--gpus-per-task with several tasks on a node",
    section=SECTION,
    source="srun(1): it binds each task to its GPUs, so that NCCL uses no NVLink (nccl#1066)",
    fix="use --gpus-per-node, or srun --gpu-bind=none",
    bad="#SBATCH -N 1\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-task=1\nsrun python t.py\n",
    good="#SBATCH -N 1\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\nsrun python t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("gpus-per-task")
    tasks = count_tasks_per_node(script)
    if one is None or not tasks or tasks < 2 or script.value("gpu-bind") == "none":
        return
    if "allow-task-sharing" in script.value("gres-flags"):
        return
    for program in list_training(script):
        if program.step is None or count_tasks_per_node(script, program.step) == 1:
            continue
        free = program.step.get("gpu-bind") == "none"
        if not free and "allow-task-sharing" not in (program.step.get("gres-flags") or ""):
            yield Found(one.start, "each task sees only its own GPU, so NCCL cannot use NVLink")
            return


@rule(
    "gpus-total-on-several-nodes",
    "note",
    "--gpus, which is a total, with several nodes",
    section=SECTION,
    source="sbatch(1): Slurm may distribute the GPUs of --gpus unevenly",
    fix="use --gpus-per-node",
    bad="#SBATCH --nodes=2\n#SBATCH --gpus=8\n",
    good="#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("gpus")
    if one is not None and is_multi_node(script):
        yield Found(one.start, f"{one.value} is the total, which may be uneven on the nodes")


@rule(
    "tasks-run-once",
    "note",
    "several tasks, but no srun or mpirun that starts them",
    section=SECTION,
    source="sbatch(1): the script runs once, on the first node; --ntasks only allocates CPUs",
    fix="start the program with srun, or request CPUs with --cpus-per-task",
    bad="#SBATCH -N 1\n#SBATCH --ntasks-per-node=4\npython train.py\n",
    good="#SBATCH -N 1\n#SBATCH --ntasks-per-node=4\nsrun python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("ntasks-per-node") or script.option("ntasks")
    tasks = count_tasks_per_node(script) or script.number("ntasks")
    programs = find_programs(script)
    training = list_training(script)
    if not tasks or tasks < 2 or one is None or is_multi_node(script) or not training:
        return
    known = {"python", "torchrun", "accelerate", "deepspeed"}
    starts = any(
        each.step is not None or each.kind in ("mpirun", "horovodrun", "parallel", "xargs")
        for each in programs
    )
    if (
        not starts
        and "srun" not in script.text
        and all(each.kind in known for each in training)
        and not any(
            use.name == "SLURM_NTASKS" and not _is_only_printed(script, use.start)
            for use in script.uses
        )
    ):
        text = f"the script does not start {tasks} tasks: it runs once"
        if script.has("ntasks") and not script.has("nodes"):
            text += "; without --nodes=1 its CPUs may be on several nodes"
        yield Found(one.start, text)


@rule(
    "cpus-not-requested",
    "note",
    "GPUs without a number of CPUs",
    section=SECTION,
    source="sbatch(1), --cpus-per-task: without it, Slurm allocates one CPU for each task, unless "
    "the site has another default (DefCpuPerGPU)",
    fix="#SBATCH --cpus-per-task=N, with the share of the node's CPUs that belongs to the GPUs",
    bad="#SBATCH --gres=gpu:4\n#SBATCH --time=1:00:00\npython train.py\n",
    good="#SBATCH --gres=gpu:4\n#SBATCH --cpus-per-task=32\npython train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    gpus = count_gpus_per_node(script)
    given = ("cpus-per-task", "cpus-per-gpu", "mincpus", "cores-per-socket", "extra-node-info")
    if not gpus or is_exclusive(script) or any(script.has(one) for one in given):
        return
    tasks = count_tasks_per_node(script)
    if tasks is None or tasks > gpus or not script.commands:
        return  # the tasks stand for the CPUs
    one = next(one for one in script.directives if one.option.startswith(("gres", "gpus")))
    cpus = f"{tasks} CPU{'s' * (tasks > 1)}"
    yield Found(one.start, f"by Slurm's default {gpus} GPU{'s' * (gpus > 1)} get {cpus} here")


@rule(
    "few-cpus",
    "note",
    "less than two CPUs for each GPU",
    section=SECTION,
    source="each rank has a Python process, and data loaders that need CPUs of their own",
    fix="#SBATCH --cpus-per-task=N, with the share of the node's CPUs that belongs to the GPUs",
    bad="#SBATCH --gres=gpu:2\n#SBATCH --cpus-per-task=1\npython train.py\n",
    good="#SBATCH --gres=gpu:2\n#SBATCH --cpus-per-task=16\npython train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    gpus, cpus = count_gpus_per_node(script), script.number("cpus-per-task")
    tasks = count_tasks_per_node(script)
    if not gpus or cpus is None or tasks is None or is_exclusive(script):
        return
    if cpus * tasks < 2 * gpus and script.commands:
        one = script.option("cpus-per-task")
        assert one is not None
        shown = f"{gpus} GPU{'s' * (gpus > 1)} of a node get {cpus * tasks} CPU"
        yield Found(one.start, f"{shown}{'s' * (cpus * tasks > 1)}")


@rule(
    "gpu-share-without-gpus",
    "warning",
    "CPUs or memory for each GPU, but no GPUs",
    section=SECTION,
    source="sbatch(1): --cpus-per-gpu and --mem-per-gpu apply to allocated GPUs",
    fix="#SBATCH --gpus-per-node=N",
    bad="#SBATCH --nodes=2\n#SBATCH --cpus-per-gpu=6\nsrun python train.py\n",
    good="#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-gpu=6\nsrun python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    named = [one for one in script.directives if one.option.startswith(("gres", "gpus", "tres-"))]
    one = script.option("cpus-per-gpu") or script.option("mem-per-gpu")
    if one is not None and not named:
        yield Found(one.start, f"--{one.option} has no effect: the job requests no GPUs")


@rule(
    "cpus-not-passed-to-srun",
    "note",
    "srun without the job's --cpus-per-task",
    section=SECTION,
    source="Slurm 22.05 to 23.02: srun ignores the job's option, each task is bound to one CPU",
    fix='export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK" before srun',
    bad="#SBATCH --cpus-per-task=8\nsrun python train.py\n",
    good="#SBATCH --cpus-per-task=8\nsrun --cpus-per-task=8 python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    cpus = script.number("cpus-per-task")
    if not cpus or cpus < 2 or script.exports("SRUN_CPUS_PER_TASK"):
        return
    for program in list_started(script):
        step = program.step
        if step is None or any(one.name == "?" for one in step.options):
            continue
        names = {one.name for one in step.options}
        bind = step.get("cpu-bind") or ""
        if names & {
            "cpus-per-task",
            "cpus-per-gpu",
            "exact",
            "overlap",
            "ntasks-per-core",
        } or not re.fullmatch(r"((verbose|v|quiet|q|cores|threads)(,|$))*", bind):
            continue  # none, or a binding of the script's own
        text = f"with Slurm 22.05 to 23.02 each task gets one CPU instead of {cpus}"
        yield Found(program.command.start, text)
        return


@rule(
    "variable-needs-option",
    "warning",
    "a variable that Slurm sets only if the job has the option",
    section=SECTION,
    source="sbatch(1), OUTPUT ENVIRONMENT VARIABLES: only set if the option is specified",
    fix="set the option, or give a default: ${NAME:-1}",
    bad="#SBATCH -N 1\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\n",
    good="#SBATCH -N 1\n#SBATCH -c 4\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives:
        return
    for name, options in _NEED_OPTION.items():
        if any(script.has(one) for one in options) or script.exports(name):
            continue
        uses = script.uses_of(name)
        if any(one.default for one in uses) or not uses:
            continue
        if _is_only_printed(script, uses[0].start):
            continue
        yield Found(uses[0].start, f"{name} is empty: the job does not set --{options[0]}")


@rule(
    "gpus-variable-has-type",
    "error",
    "`$SLURM_GPUS_PER_NODE` as a number, although the request has a type",
    section=SECTION,
    source="sbatch(1): the variable is the value of the option, e.g. a100:4",
    fix="use $SLURM_GPUS_ON_NODE",
    bad="#SBATCH --gpus-per-node=a100:4\ntorchrun --nproc_per_node=$SLURM_GPUS_PER_NODE t.py\n",
    good="#SBATCH --gpus-per-node=4\ntorchrun --nproc_per_node=$SLURM_GPUS_PER_NODE t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    for name, option in (("SLURM_GPUS_PER_NODE", "gpus-per-node"), ("SLURM_GPUS", "gpus")):
        value = script.value(option)
        if not value or is_whole_number(value) or script.exports(name):
            continue
        for use in script.uses_of(name):
            if not _is_only_printed(script, use.start):
                yield Found(use.start, f"{name} is {value}, not a number")
                break


@rule(
    "tasks-per-node-variable",
    "warning",
    "`$SLURM_TASKS_PER_NODE` as a number",
    section=SECTION,
    source="sbatch(1): it is a list for all nodes, e.g. 4(x2)",
    fix="use $SLURM_NTASKS_PER_NODE, which needs --ntasks-per-node",
    bad="#SBATCH -N 2\ntorchrun --nproc_per_node=$SLURM_TASKS_PER_NODE t.py\n",
    good="#SBATCH -N 2\necho $SLURM_TASKS_PER_NODE\n",
)
def _(script: Script) -> Iterator[Found]:
    nodes = count_nodes(script)
    for use in script.uses_of("SLURM_TASKS_PER_NODE"):
        if nodes == 1 or use.default or use.substituted or _is_only_printed(script, use.start):
            continue
        line = script.data[: use.start].rsplit(b"\n", 1)[-1]
        if re.search(rb"nproc|\$\(\(|np\b", line):
            yield Found(use.start, "the value is a list such as 4(x2), not a number")
            return


@rule(
    "array-index-unused",
    "warning",
    "an array of which all tasks do the same",
    section="Arrays",
    source="sbatch(1): tasks differ only in SLURM_ARRAY_TASK_ID",
    fix="use $SLURM_ARRAY_TASK_ID",
    bad="#SBATCH --array=0-9\npython train.py --seed 1\n",
    good="#SBATCH --array=0-9\npython train.py --seed $SLURM_ARRAY_TASK_ID\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("array")
    indices = list_indices(script)
    if one is None or not indices or len(indices) < 2:
        return
    if "SLURM_ARRAY" in script.text.replace("#", "", 1) and _mentions_array(script):
        return
    known = {"python", "torchrun", "accelerate", "deepspeed"}
    training = list_training(script)
    limit = re.search(r"%1\b", one.value)  # a chain of restarts
    if training and not limit and all(program.kind in known for program in training):
        text = f"the script does not use SLURM_ARRAY_TASK_ID: {len(indices)} tasks do the same"
        yield Found(one.start, text)


@rule(
    "array-index-out-of-range",
    "error",
    "an array index for which a bash array has no element",
    section="Arrays",
    source="bash arrays begin at 0",
    fix="begin --array at 0, or add elements",
    bad="#SBATCH --array=1-3\nLR=(0.1 0.2 0.3)\npython t.py ${LR[$SLURM_ARRAY_TASK_ID]}\n",
    good="#SBATCH --array=0-2\nLR=(0.1 0.2 0.3)\npython t.py ${LR[$SLURM_ARRAY_TASK_ID]}\n",
)
def _(script: Script) -> Iterator[Found]:
    indices = list_indices(script)
    if not indices:
        return
    pattern = re.compile(rb"\$\{(\w+)\[\$?\{?SLURM_ARRAY_TASK_ID\}?\]\}")
    for found in pattern.finditer(script.data):
        name = found[1].decode()
        assigned = [one for one in script.assignments if one.name == name]
        if len(assigned) != 1 or assigned[0].items is None or assigned[0].branch:
            continue
        items = assigned[0].items
        if any(not word.constant or re.search(r"[{*?]", word.text) for word in items):
            continue
        if any(use.name.startswith("SLURM_ARRAY_TASK") and use.default for use in script.uses):
            continue
        if max(indices) >= len(items):
            text = f"{name} has {len(items)} elements, from 0: none for index {max(indices)}"
            yield Found(found.start(), text)


@rule(
    "array-index-zero-line",
    "warning",
    "line 0 of a file",
    section="Arrays",
    source="sed(1): the first line is 1; sed -n 0p is refused, head -n 0 prints nothing",
    fix="begin --array at 1, or use $((SLURM_ARRAY_TASK_ID + 1))",
    bad='#SBATCH --array=0-9\npython t.py $(sed -n "${SLURM_ARRAY_TASK_ID}p" params.txt)\n',
    good='#SBATCH --array=1-10\npython t.py $(sed -n "${SLURM_ARRAY_TASK_ID}p" params.txt)\n',
)
def _(script: Script) -> Iterator[Found]:
    indices = list_indices(script)
    name = rb"\$\{?SLURM_ARRAY_TASK_ID\}?"
    pattern = (
        rb"sed -n [\"']*" + name + rb"[\"' ]*p|head -n? ?-?\"?" + name + rb"|NR ?== ?[\"']*" + name
    )
    if indices and 0 in indices and (found := re.search(pattern, script.data)):
        yield Found(found.start(), "index 0 selects no line: lines are counted from 1")


@rule(
    "array-index-without-array",
    "note",
    "`$SLURM_ARRAY_TASK_ID` in a script without --array",
    section="Arrays",
    source="sbatch(1): the variable is set for arrays only",
    fix="submit with sbatch --array=..., or write it into the script",
    bad="#SBATCH -N 1\npython t.py $SLURM_ARRAY_TASK_ID\n",
    good="#SBATCH -N 1\npython t.py ${SLURM_ARRAY_TASK_ID:-0}\n",
)
def _(script: Script) -> Iterator[Found]:
    uses = [one for one in script.uses if one.name == "SLURM_ARRAY_TASK_ID"]
    if not uses or is_array(script) or not script.directives or any(one.default for one in uses):
        return
    if not _is_only_printed(script, uses[0].start):
        yield Found(uses[0].start, "it is empty unless the job is submitted with --array")


@rule(
    "visible-devices",
    "warning",
    "CUDA_VISIBLE_DEVICES set by the script",
    section="GPUs",
    source="gres.conf(5): without ConstrainDevices nothing but this variable keeps jobs apart",
    fix="remove it: Slurm sets it to the GPUs of the job",
    bad="#SBATCH --gres=gpu:2\nexport CUDA_VISIBLE_DEVICES=0,1\npython train.py\n",
    good="#SBATCH --gres=gpu:2\necho $CUDA_VISIBLE_DEVICES\npython train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives:
        return
    gpus = count_gpus_per_node(script)
    for start, name, value in _visible_devices(script):
        listed = value.split(",")
        if value == "" or not all(re.fullmatch(r"\d+", one) for one in listed):
            continue
        beyond = gpus is not None and (len(listed) > gpus or max(map(int, listed)) >= gpus)
        if beyond or (script.has("exclusive") and len(listed) == gpus):
            continue
        text = f"it replaces the GPUs that Slurm gave the job, perhaps by another job's: {value}"
        yield Found(start, f"{name}={value}: {text.split(':')[0]}")
        return


@rule(
    "visible-devices-beyond-request",
    "error",
    "CUDA_VISIBLE_DEVICES with more GPUs than requested",
    section="GPUs",
    source="gres.conf(5): the GPUs belong to other jobs, or are hidden by cgroups",
    fix="remove it, and request the GPUs that the program uses",
    bad="#SBATCH --gres=gpu:1\nCUDA_VISIBLE_DEVICES=2,3 python train.py\n",
    good="#SBATCH --gres=gpu:4\nCUDA_VISIBLE_DEVICES=2,3 python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    gpus = count_gpus_per_node(script)
    if not gpus or script.has("exclusive"):
        return
    for start, name, value in _visible_devices(script):
        listed = value.split(",")
        if not all(re.fullmatch(r"\d+", one) for one in listed):
            continue
        if len(listed) > gpus:
            yield Found(start, f"{name}={value} are {len(listed)} GPUs, but the job has {gpus}")
            return
        if max(map(int, listed)) >= gpus:
            text = f"{name}={value}: the job has {gpus} GPU{'s' if gpus > 1 else ''}, from 0"
            yield Found(start, text)
            return


@rule(
    "too-many-processes",
    "error",
    "more processes per node than GPUs requested",
    section="GPUs",
    source="torchrun, deepspeed: one process per GPU; the rest fails with invalid device ordinal",
    fix="request as many GPUs as processes, e.g. --gres=gpu:4",
    bad="#SBATCH -N 1\n#SBATCH --gres=gpu:2\ntorchrun --nproc_per_node=4 train.py\n",
    good="#SBATCH -N 1\n#SBATCH --gres=gpu:4\ntorchrun --nproc_per_node=4 train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    gpus = count_gpus_per_node(script)
    for program in list_training(script):
        number = _processes_per_node(script, program)
        if gpus and number and number > gpus and not _uses_cpu(program.args):
            yield Found(
                program.command.start,
                f"{program.kind} starts {number} processes per node, but the job has {gpus} "
                f"GPU{'s' if gpus > 1 else ''} per node",
            )


@rule(
    "idle-gpus",
    "warning",
    "fewer processes per node than GPUs requested",
    section="GPUs",
    source="torchrun, deepspeed: one process per GPU",
    fix="start one process per GPU, e.g. --nproc_per_node=$SLURM_GPUS_ON_NODE",
    bad="#SBATCH -N 1\n#SBATCH --gres=gpu:4\ntorchrun --nproc_per_node=2 train.py\n",
    good="#SBATCH -N 1\n#SBATCH --gres=gpu:4\ntorchrun --nproc_per_node=4 train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    gpus = count_gpus_per_node(script)
    programs = [one for one in list_training(script) if _processes_per_node(script, one)]
    if not gpus or len(programs) != 1 or programs[0].command.background:
        return
    program = programs[0]
    number = _processes_per_node(script, program)
    tasks = count_tasks_per_node(script, program.step) if program.step else 1
    if number and tasks == 1 and number < gpus and not program.command.branch:
        yield Found(
            program.command.start,
            f"{program.kind} uses {number} of {gpus} GPUs on each node",
        )


@rule(
    "threads-oversubscribed",
    "warning",
    "more threads than the process has CPUs",
    section=SECTION,
    source="OpenMP: each process starts OMP_NUM_THREADS threads, on the CPUs of its task",
    fix="OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / processes per task))",
    bad="#SBATCH --gres=gpu:4 --ntasks-per-node=1 --cpus-per-task=32\n"
    "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\ntorchrun --nproc_per_node=4 train.py\n",
    good="#SBATCH --gres=gpu:4 --ntasks-per-node=1 --cpus-per-task=32\n"
    "export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / 4))\ntorchrun --nproc_per_node=4 train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    cpus, tasks = script.number("cpus-per-task"), count_tasks_per_node(script)
    training = list_training(script)
    if not training or not tasks:
        return
    for one in script.assignments:
        if one.name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            continue
        whole_node = bool(
            set(one.value.unknown) & {"SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE", "$(nproc)"}
        )
        threads = resolve_number(script, one.value.text)
        for program in training:
            processes = _processes_per_node(script, program)
            if program.kind == "python":
                processes = count_tasks_per_node(script, program.step) if program.step else 1
            if not processes:
                continue
            if whole_node and processes > 1 and one.value.text.count(OPEN) == 1:
                text = f"each of {processes} processes uses all CPUs of the node as threads"
                yield Found(one.start, text)
                return
            if threads and cpus and threads > 1 and threads * processes > cpus * tasks:
                text = f"{processes} processes with {threads} threads each have {cpus * tasks} CPUs"
                yield Found(one.start, text.replace("1 processes with", "1 process with"))
                return
    for program in training:
        value = program.get("num-cpu-threads-per-process") or ""
        names = "".join(unknown_parts(value))
        several = program.get("num-processes") not in (None, "1")
        if several and re.fullmatch(r"SLURM_CPUS_(ON_NODE|PER_TASK)", names):
            text = "each process uses all CPUs of the task as threads"
            yield Found(program.command.start, text)
            return


@rule(
    "two-cpu-options",
    "warning",
    "--cpus-per-task together with --cpus-per-gpu",
    section=SECTION,
    source="sbatch(1): --cpus-per-gpu is not compatible with --cpus-per-task",
    fix="keep one of them",
    bad="#SBATCH --gres=gpu:2\n#SBATCH --cpus-per-task=8\n#SBATCH --cpus-per-gpu=8\n",
    good="#SBATCH --gres=gpu:2\n#SBATCH --cpus-per-gpu=8\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("cpus-per-gpu")
    if one is not None and script.has("cpus-per-task"):
        yield Found(one.start, "Slurm refuses or ignores one of --cpus-per-gpu and --cpus-per-task")


@rule(
    "exclusive-without-cpus",
    "note",
    "several tasks on an exclusive node without --cpus-per-task",
    section=SECTION,
    source="srun(1), --cpu-bind: the binding follows --cpus-per-task, which is 1 by default",
    fix="#SBATCH --cpus-per-task=N, and pass it to srun",
    bad="#SBATCH --exclusive\n#SBATCH --gres=gpu:4\n#SBATCH --ntasks-per-node=4\n"
    "srun python t.py\n",
    good="#SBATCH --exclusive\n#SBATCH --gres=gpu:4\n#SBATCH --ntasks-per-node=4\n"
    "#SBATCH --cpus-per-task=16\nexport SRUN_CPUS_PER_TASK=16\nsrun python t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    one, tasks = script.option("exclusive"), count_tasks_per_node(script)
    given = ("cpus-per-task", "cpus-per-gpu", "mincpus", "cores-per-socket", "extra-node-info")
    if one is None or not tasks or any(script.has(each) for each in given):
        return
    for program in list_started(script):
        step = program.step
        if step is None or step.get("cpus-per-task") or step.get("cpu-bind") or step.get("?"):
            continue
        if (count_tasks_per_node(script, step) or 1) > 1 and (tasks > 1):
            yield Found(
                one.start, "each task may be bound to one CPU, although the node is its own"
            )
            return


@rule(
    "gpus-not-requested",
    "note",
    "a program for GPUs in a job that requests none",
    section="GPUs",
    source="sbatch(1), --gres: a job gets only the GPUs that it requests, unless the site gives "
    "whole nodes",
    fix="#SBATCH --gpus-per-node=N",
    bad="#SBATCH -N 1\n#SBATCH --time=1:00:00\ntorchrun --nproc_per_node=4 train.py\n",
    good="#SBATCH -N 1\n#SBATCH --gpus-per-node=4\ntorchrun --nproc_per_node=4 train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    named = [one for one in script.directives if one.option.startswith(("gres", "gpus", "tres-"))]
    if not script.directives or named or is_exclusive(script):
        return
    for program in list_training(script):
        step = program.step
        if step is not None and (step.get("gres") or step.get("gpus") or step.get("gpus-per-node")):
            return
        if step is not None and (step.get("gpus-per-task") or step.get("?")):
            return
    for program in list_training(script):
        words = " ".join([*program.args, *(f"{one.name}={one.value}" for one in program.options)])
        if re.search(r"(?i)\bcpu\b|gloo|no[-_]cuda", words):
            continue
        processes = _processes_per_node(script, program)
        is_launcher = program.kind in ("torchrun", "deepspeed", "accelerate")
        if is_launcher and (processes is None or processes > 1):
            yield Found(program.command.start, f"{program.kind} needs GPUs, the job requests none")
            return
        if re.search(r"(?i)--?(device|accelerator)[ =]?(cuda|gpu)|--n?gpus?[ =][1-9]", words):
            yield Found(program.command.start, "the program needs GPUs, the job requests none")
            return
    text = "\n".join(line for line in script.text.split("\n") if not line.lstrip().startswith("#"))
    uses = re.search(r"\bnvidia-smi\b|--nv\b|\bNCCL_\w+=|CUDA_VISIBLE_DEVICES=\d", text)
    if uses and list_training(script):
        yield Found(script.directives[0].line_start, f"{uses[0]}, but the job requests no GPUs")


@rule(
    "ranks-share-gpus",
    "warning",
    "another number of tasks than GPUs on each node",
    section="GPUs",
    source="NCCL: Duplicate GPU detected, if two ranks use one GPU; one task per GPU is usual",
    fix="--ntasks-per-node equal to the GPUs of a node",
    bad="#SBATCH -N 2\n#SBATCH --ntasks-per-node=8\n#SBATCH --gres=gpu:4\nsrun python train.py\n",
    good="#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gres=gpu:4\nsrun python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    gpus = count_gpus_per_node(script)
    for program in list_training(script):
        if program.kind != "python" or program.step is None or program.command.background:
            continue
        step = program.step
        if step.get("gres") or step.get("gpus") or step.get("gpus-per-task") or step.get("?"):
            continue
        tasks = count_tasks_per_node(script, step)
        if not gpus or not tasks or tasks < 2 or tasks == gpus or _uses_cpu(program.args):
            continue
        if tasks > gpus:
            yield Found(program.command.start, f"{tasks} tasks share {gpus} GPUs on each node")
        else:
            text = f"{tasks} tasks for {gpus} GPUs on each node"
            yield Found(program.command.start, text, severity="note")
        return


@rule(
    "program-differs-from-request",
    "warning",
    "an option of the program that differs from the requested nodes or GPUs",
    section=SECTION,
    source="Lightning and others compare --num_nodes and --devices with Slurm's tasks, or wait",
    fix="--num_nodes=$SLURM_NNODES, --devices=$SLURM_GPUS_ON_NODE",
    bad="#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=4\n#SBATCH --gres=gpu:4\n"
    "srun python train.py --num_nodes 2 --devices 4\n",
    good="#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=4\n#SBATCH --gres=gpu:4\n"
    "srun python train.py --num_nodes 4 --devices 4\n",
)
def _(script: Script) -> Iterator[Found]:
    nodes, gpus = count_nodes(script), count_gpus_per_node(script)
    for program in list_training(script):
        if program.kind not in ("python", "torchrun") or program.command.background:
            continue
        for name, value in _options_of(program.args):
            number = resolve_number(script, value)
            if number is None:
                continue
            counts_nodes = re.fullmatch(r"(\w+[._])*num[-_]nodes|nnodes", name)
            uses_several = program.step is not None or number > 1
            if counts_nodes and nodes and number != nodes and uses_several:
                text = f"--{name} {number}, but the job has {nodes} node{'s' * (nodes > 1)}"
                yield Found(program.command.start, text)
                return
            if (
                re.fullmatch(r"(trainer\.)?(devices|gpus|num[-_]gpus|ngpus?|n[-_]gpus?)", name)
                and gpus
                and number > gpus
                and nodes == 1
            ):
                text = f"--{name} {number}, but the job has {gpus} GPU{'s' * (gpus > 1)}"
                yield Found(program.command.start, text)
                return


@rule(
    "workers-exceed-cpus",
    "note",
    "more data-loader workers than CPUs",
    section=SECTION,
    source="torch DataLoader warns: excessive worker creation might get it slow or even freeze",
    fix="as many workers as CPUs of the task, divided by its processes",
    bad="#SBATCH --gres=gpu:1\n#SBATCH --cpus-per-task=4\npython train.py --num_workers 16\n",
    good="#SBATCH --gres=gpu:1\n#SBATCH --cpus-per-task=16\npython train.py --num_workers 15\n",
)
def _(script: Script) -> Iterator[Found]:
    cpus = script.number("cpus-per-task")
    if is_exclusive(script):
        return
    tasks = count_tasks_per_node(script)
    if script.has("cpus-per-gpu"):
        each, gpus = script.number("cpus-per-gpu"), count_gpus_per_node(script)
        cpus = each * gpus if each and gpus and tasks == 1 else None
    if cpus is None and (tasks is None or not script.has("ntasks")):
        cpus = 1 if requests_gpus(script) and tasks == 1 else None
    for program in list_training(script):
        processes = _processes_per_node(script, program) or 1
        for name, value in _options_of(program.args):
            if not re.fullmatch(
                r"(\w+\.)*(num[-_]?workers|(\w+[-_])?workers|dataloader[-_]num[-_]workers)", name
            ):
                continue
            number = resolve_number(script, value)
            own = cpus * (tasks or 1) if cpus and program.step is None else cpus
            if number and own and number * processes > own:
                shown = f"{number} workers" + f" for each of {processes} processes" * (
                    processes > 1
                )
                yield Found(program.command.start, f"{shown}, but {own} CPU{'s' * (own > 1)}")
                return


@rule(
    "step-larger-than-job",
    "error",
    "srun with more nodes or GPUs than the job has",
    section=SECTION,
    source="srun 22.05: Requested node count is not available; Invalid generic resource (gres)",
    fix="request them in the #SBATCH lines",
    bad="#SBATCH --nodes=1\n#SBATCH --gres=gpu:1\nsrun --nodes=2 python t.py\n",
    good="#SBATCH --nodes=2\n#SBATCH --gres=gpu:1\nsrun --nodes=2 python t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    nodes, gpus = script.number("nodes"), count_gpus_per_node(script)
    if not script.directives or b"hetjob" in script.data:
        return
    for program in find_programs(script):
        step = program.step
        if step is None or step.get("jobid") or program.command.branch:
            continue
        wanted = resolve_number(script, step.get("nodes"))
        if nodes and wanted and wanted > nodes:
            text = f"srun requests {wanted} nodes, the job has {nodes}"
            yield Found(program.command.start, text)
            return
        given = step.get("gres") or step.get("gpus-per-node") or ""
        number = count_gpus_of(given) if "gpu" in given or step.get("gpus-per-node") else None
        if gpus and number and number > gpus:
            text = f"srun requests {number} GPUs on each node, the job has {gpus}"
            yield Found(program.command.start, text)
            return


@rule(
    "world-size-differs",
    "warning",
    "a WORLD_SIZE that differs from the number of tasks",
    section=SECTION,
    source="torch.distributed, env://: all ranks wait until WORLD_SIZE processes have joined",
    fix="export WORLD_SIZE=$SLURM_NTASKS",
    bad="#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\nexport WORLD_SIZE=4\nsrun python t.py\n",
    good="#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\nexport WORLD_SIZE=8\nsrun python t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    nodes = count_nodes(script)
    last = script.last_assignment("WORLD_SIZE")
    if last is None or not nodes or not (last.exported or last.prefix):
        return
    size = resolve_number(script, last.value.text)
    for program in list_training(script):
        if program.kind != "python" or program.step is None or program.command.background:
            continue
        tasks = count_tasks_per_node(script, program.step)
        if size and tasks and tasks * nodes > 1 and size != tasks * nodes:
            if size == nodes * (count_gpus_per_node(script) or 0) and tasks == 1:
                continue  # the program starts a process for each GPU
            text = f"WORLD_SIZE is {size}, but srun starts {tasks * nodes} tasks"
            yield Found(last.start, text)
            return


@rule(
    "node-pinned",
    "note",
    "a fixed node",
    section=SECTION,
    source="sbatch(1), --nodelist: the job waits until these nodes are free",
    fix="remove it, or name a property of the nodes with --constraint",
    bad="#SBATCH --nodelist=gpu17\npython train.py\n",
    good="#SBATCH --constraint=a100\npython train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("nodelist")
    if one is not None and one.value and not re.search(r"[<{$]", one.value):
        yield Found(one.start, f"the job waits for {one.value}, even if other nodes are free")


def _options_of(args: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of a program: ``--a 1``, ``--a=1`` and Hydra's ``a=1``."""
    for index, word in enumerate(args):
        name, equals, value = word.partition("=")
        if not equals and index + 1 < len(args):
            value = args[index + 1]
        if equals or word.startswith("-"):
            yield name.lstrip("-+"), value


def _processes_per_node(script: Script, program: LaunchedProgram) -> int | None:
    """Return the number of processes that a launcher starts on each node."""
    if program.kind == "torchrun":
        value = program.get("nproc-per-node")
        if value is None and not _has_unknown_options(program):
            return 1
        return resolve_number(script, value)
    if program.kind == "deepspeed":
        return resolve_number(script, program.get("num-gpus"))
    if program.kind == "accelerate" and count_nodes(script) == 1:
        return resolve_number(script, program.get("num-processes"))
    return None


def _has_unknown_options(program: LaunchedProgram) -> bool:
    """Return True if a variable with unknown content is among the launcher's options."""
    first = program.args[:1]
    return bool(first and first[0].startswith(OPEN)) or any(
        OPEN in one.name or (one.name == "standalone" and OPEN in one.value)
        for one in program.options
    )


def _uses_cpu(args: list[str]) -> bool:
    return any(re.search(r"(?i)\bcpu\b|gloo", one) for one in args)


def _visible_devices(script: Script) -> Iterator[tuple[int, str, str]]:
    """Yield the start, name and value of each assignment to CUDA_VISIBLE_DEVICES and the like."""
    for one in script.assignments:
        if (
            one.name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
            and one.value.constant
            # Slurm has exported the variable if the job has GPUs: any assignment changes it.
            and (one.exported or one.prefix or requests_gpus(script))
        ):
            yield one.start, one.name, one.value.text.replace(" ", "")


def _is_only_printed(script: Script, start: int) -> bool:
    """Return True if the place is in an echo or printf."""
    for command in script.commands:
        if command.start <= start < command.end and command.name in ("echo", "printf", "log", ":"):
            return True
    return False


def _mentions_array(script: Script) -> bool:
    """Return True if a line that is no comment mentions SLURM_ARRAY."""
    for line in script.text.split("\n"):
        if "SLURM_ARRAY" in line and not line.lstrip().startswith("#"):
            return True
    return False
