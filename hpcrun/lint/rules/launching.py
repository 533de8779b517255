"""Rules for srun, torchrun, deepspeed, accelerate and mpirun, and for the rendezvous."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hpcrun.lint.launch import LaunchedProgram, find_programs
from hpcrun.lint.request import (
    count_gpus_per_node,
    count_nodes,
    count_tasks_per_node,
    is_exclusive,
    is_multi_node,
    list_started,
    list_training,
    resolve_number,
    uses_several_ranks,
)
from hpcrun.lint.rule import Found, rule
from hpcrun.lint.script import CLOSE, OPEN, Script, unknown_parts
from hpcrun.text import is_whole_number

SECTION = "Launchers"
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
_OWN_RANK = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID")
_LOCAL = r"(localhost|127\.0\.\d+\.\d+|::1|0\.0\.0\.0)"


def launchers(script: Script) -> list[LaunchedProgram]:
    """Return the launchers of a script."""
    return [one for one in list_training(script) if one.kind in _LAUNCHERS]


def is_static(program: LaunchedProgram) -> bool:
    """Return True for a rendezvous in which each node needs its number."""
    backend = program.get("rdzv-backend")
    if backend is not None:
        return backend == "static"
    # Where a nested shell breaks the options up, they are among the arguments.
    text = " ".join([*(f"{one.name} {one.value}" for one in program.options), *program.args])
    return not re.search(r"rdzv[-_](backend|endpoint)|c10d", text)


@rule(
    "launcher-in-every-task",
    "error",
    "srun starts a launcher several times on each node",
    section=SECTION,
    source="torchrun: one launcher per node starts all ranks of the node",
    fix="#SBATCH --ntasks-per-node=1, or srun --ntasks-per-node=1",
    bad="#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\nsrun torchrun --nproc_per_node=4 train.py\n",
    good="#SBATCH -N 1\n#SBATCH --ntasks-per-node=1\nsrun torchrun --nproc_per_node=4 train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    for program in launchers(script):
        if program.step is None:
            continue
        tasks = count_tasks_per_node(script, program.step)
        given = ("nproc-per-node",) if program.kind == "torchrun" else ("num-processes", "num-gpus")
        each = resolve_number(script, program.get(*given))
        if tasks and tasks > 1 and each is not None and each > 1:
            yield Found(
                program.command.start,
                f"srun starts {tasks} launchers on each node, each with {each} processes",
            )
        elif tasks and tasks > 1 and program.kind == "deepspeed" and each is None:
            yield Found(
                program.command.start,
                f"srun starts deepspeed {tasks} times on each node, and each time all its ranks",
            )


@rule(
    "launcher-on-one-node",
    "error",
    "a launcher for several nodes that is started on the first node only",
    section=SECTION,
    source="sbatch(1): the script runs on the first node; torchrun waits for the other nodes",
    fix="start it with srun, one task per node",
    bad="#SBATCH -N 2\n#SBATCH --gres=gpu:4\ntorchrun --nnodes=2 --nproc_per_node=4 train.py\n",
    good="#SBATCH -N 2\n#SBATCH --gres=gpu:4\nsrun torchrun --nnodes=2 --nproc_per_node=4 \\\n"
    "  --rdzv_backend=c10d --rdzv_endpoint=$HOST:29500 train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not is_multi_node(script) or _reaches_other_nodes(script, counts_srun=False):
        return
    if _may_start_launchers(script):
        return
    for program in launchers(script):
        if program.step is None and program.kind in ("torchrun", "accelerate"):
            nodes = program.get("nnodes", "num-machines")
            if nodes is not None and nodes not in ("1", "1:1"):
                text = f"{program.kind} runs on the first node only, and waits for the others"
                yield Found(program.command.start, text)


@rule(
    "nodes-unused",
    "warning",
    "several nodes, but no command that uses them",
    section=SECTION,
    source="sbatch(1): the script runs on the first node only",
    fix="start the program with srun, or request one node",
    bad="#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\ntorchrun --nproc_per_node=4 train.py\n",
    good="#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\nsrun python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not is_multi_node(script) or _reaches_other_nodes(script):
        return
    training = list_training(script)
    known = {"python", *_LAUNCHERS}
    if not training or any(one.step is not None or one.kind not in known for one in training):
        return
    named = ("nnodes", "num-machines", "hostfile", "launcher")
    if any(one.get(*named) not in (None, "1", "1:1") for one in training):
        return
    if any(
        re.search(r"--?(num_?nodes|nnodes|hostfile)", word) for one in training for word in one.args
    ):
        return
    if any(re.search(r"(?i)host_?file|machine_?file", one.name) for one in script.assignments):
        return  # the program starts the other nodes
    one = script.option("nodes") or script.option("ntasks")
    assert one is not None
    yield Found(one.start, f"the commands run on the first of {count_nodes(script)} nodes only")


@rule(
    "nodes-differ",
    "error",
    "a launcher for another number of nodes than the job has",
    section=SECTION,
    source="torchrun: it waits until --nnodes nodes have joined",
    fix="--nnodes=$SLURM_JOB_NUM_NODES",
    bad="#SBATCH --nodes=2\nsrun torchrun --nnodes=4 --nproc_per_node=4 train.py\n",
    good="#SBATCH --nodes=2\nsrun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=4 \\\n"
    "  --rdzv_backend=c10d --rdzv_endpoint=$A:29500 train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    nodes = script.number("nodes")
    if nodes is None:
        return
    for program in launchers(script):
        step = program.step
        if step is not None and (step.get("nodes") or step.get("nodelist") or step.get("?")):
            continue
        given = program.number("nnodes", "num-machines", "num-nodes")
        tasks = count_tasks_per_node(script, step) if step is not None else 1
        if given is None or given == nodes or program.command.branch:
            continue
        if tasks and given == nodes * tasks:
            continue  # one launcher per task
        if given < nodes and step is None:
            continue
        yield Found(
            program.command.start, f"{program.kind} waits for {given} nodes; the job has {nodes}"
        )


@rule(
    "rank-expanded-early",
    "error",
    "a rank that bash expands before srun starts the tasks",
    section=SECTION,
    source="srun(1): SLURM_PROCID, SLURM_NODEID and SLURM_LOCALID differ in each task; in the "
    "script they are 0",
    fix="let each task expand it: srun bash -c '... $SLURM_NODEID ...' in single quotes, or \\$",
    bad='#SBATCH -N 2\nsrun bash -c "torchrun --nnodes 2 --node_rank $SLURM_NODEID t.py"\n',
    good='#SBATCH -N 2\nsrun bash -c "torchrun --nnodes 2 --node_rank \\$SLURM_NODEID t.py"\n',
)
def _(script: Script) -> Iterator[Found]:
    nodes = count_nodes(script)
    if not script.directives:
        return
    for program in find_programs(script):
        if program.step is None or program.kind in ("echo", "hostname", "true"):
            continue
        tasks = count_tasks_per_node(script, program.step)
        if nodes == 1 and tasks == 1:
            continue
        given = program.step.get("nodes")
        if given == "1" and (program.step.get("ntasks") or "1") == "1":
            continue
        texts = [*(f"{one.name}={one.value}" for one in program.options), *program.args]
        early = [
            (name, text) for text in texts for name in unknown_parts(text) if name in _OWN_RANK
        ]
        if not early:
            continue
        if (
            nodes is None
            and not (tasks or 0) > 1
            and "NODEID" not in early[0][0]
            and not script.has("ntasks-per-node")
        ):
            continue
        name, text = early[0]
        ignored = program.kind in _LAUNCHERS and not is_static(program)
        ignored = ignored and bool(re.search("(node|machine)[-_]rank", text))
        where = "all tasks get the value of the first node, 0"
        if ignored:
            yield Found(
                program.command.start,
                f"${name} is expanded before srun: {where}; a c10d rendezvous ignores it",
                severity="note",
            )
        else:
            severity = None if nodes is not None else "warning"
            yield Found(
                program.command.start,
                f"${name} is expanded before srun: {where}",
                severity=severity,  # type: ignore[arg-type]
            )
        return


@rule(
    "missing-node-rank",
    "error",
    "torchrun on several nodes without a rendezvous or the number of the node",
    section=SECTION,
    source="torchrun: the static rendezvous needs a different --node_rank on each node",
    fix="--rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT, or a --node_rank that each "
    "task expands",
    bad="#SBATCH -N 2\nsrun torchrun --nnodes=2 --nproc_per_node=4 --master_addr=$A t.py\n",
    good="#SBATCH -N 2\nsrun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d \\\n"
    "  --rdzv_endpoint=$A:29500 t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not is_multi_node(script):
        return
    for program in launchers(script):
        if program.step is None or program.kind != "torchrun" or program.get("standalone") == "":
            continue
        nodes = program.get("nnodes")
        if nodes is None or nodes == "1" or _has_unknown_options(program):
            continue
        if is_static(program) and program.get("node-rank") is None:
            text = "every node has the number 0: without --node_rank or c10d they never meet"
            yield Found(program.command.start, text)


@rule(
    "rendezvous-without-endpoint",
    "error",
    "a c10d rendezvous with --master_addr instead of --rdzv_endpoint",
    section=SECTION,
    source="torch/distributed/run.py, get_rdzv_endpoint: --master_addr is only for the static one",
    fix="--rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT",
    bad="#SBATCH -N 2\nsrun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d \\\n"
    "  --master_addr=$A t.py\n",
    good="#SBATCH -N 2\nsrun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d \\\n"
    "  --rdzv_endpoint=$A:29500 t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not is_multi_node(script):
        return
    for program in launchers(script):
        if program.kind != "torchrun" or _has_unknown_options(program):
            continue
        nodes, backend = program.get("nnodes"), program.get("rdzv-backend")
        has_endpoint = program.get("rdzv-endpoint") is not None
        if backend == "c10d" and not has_endpoint and nodes not in (None, "1"):
            text = "without --rdzv_endpoint each node waits for the others on its own localhost"
            yield Found(program.command.start, text)


@rule(
    "rank-of-the-batch-shell",
    "warning",
    "a rank that is exported before srun starts the tasks",
    section=SECTION,
    source="srun(1): SLURM_PROCID, SLURM_NODEID and SLURM_LOCALID differ in each task; in the "
    "script they are 0",
    fix="set it in each task: srun bash -c 'export RANK=$SLURM_PROCID; ...'",
    bad="#SBATCH -N 2\nexport RANK=$SLURM_PROCID\nsrun python train.py\n",
    good="#SBATCH -N 2\nsrun bash -c 'RANK=$SLURM_PROCID python train.py'\n",
)
def _(script: Script) -> Iterator[Found]:
    if not uses_several_ranks(script):
        return
    if not any(one.step is not None for one in list_training(script)):
        return
    for one in script.assignments:
        is_own = re.fullmatch(r"SLURM_(PROCID|NODEID|LOCALID)", "".join(one.value.unknown))
        is_rank = re.fullmatch(r"(LOCAL_|NODE_|GROUP_)?RANK", one.name) and one.exported
        if is_own and is_rank and not one.prefix:
            yield Found(one.start, f"{one.name} is 0 in all tasks: bash expands it before srun")
        elif is_own and one.exported and re.fullmatch(r"(CUDA|ROCR|HIP)_VISIBLE_DEVICES", one.name):
            yield Found(
                one.start, f"all tasks use GPU 0: bash expands {one.value.unknown[0]} before srun"
            )


@rule(
    "separate-worlds",
    "error",
    "each node trains by itself",
    section=SECTION,
    source="torchrun: --standalone, and one node by default, is a world of its own",
    fix="--nnodes=$SLURM_JOB_NUM_NODES and a rendezvous",
    bad="#SBATCH -N 2\n#SBATCH --ntasks-per-node=1\nsrun torchrun --standalone t.py\n",
    good="#SBATCH -N 1\nsrun torchrun --standalone --nproc_per_node=4 t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not is_multi_node(script):
        return
    if (script.number("ntasks") or count_nodes(script) or 0) < (count_nodes(script) or 0):
        return  # see tasks-fewer-than-nodes
    for program in launchers(script):
        step = program.step
        if step is None or step.get("nodes") == "1" or step.get("?") or program.command.background:
            continue
        if program.kind != "torchrun" or program.command.branch or _has_unknown_options(program):
            continue
        if program.get("standalone") is not None:
            yield Found(program.command.start, "--standalone makes each node a world of its own")
        elif program.get("nnodes") in (None, "1"):
            yield Found(program.command.start, "without --nnodes each node is a world of its own")


@rule(
    "local-master",
    "error",
    "localhost as the master address of several nodes",
    section="Rendezvous",
    source="each node would look for rank 0 on itself",
    fix='MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
    bad="#SBATCH -N 2\nexport MASTER_ADDR=localhost\nsrun python train.py\n",
    good="#SBATCH -N 1\nexport MASTER_ADDR=localhost\nsrun python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not is_multi_node(script):
        return
    for one in script.assignments:
        last = script.last_assignment(one.name)
        if one.name == "MASTER_ADDR" and last is one and re.fullmatch(_LOCAL, one.value.text):
            yield Found(one.start, f"MASTER_ADDR={one.value.text}: no node finds the first one")
            return
    for program in launchers(script):
        value = program.get("rdzv-endpoint", "master-addr", "main-process-ip") or ""
        nodes = program.get("nnodes", "num-machines")
        if program.step is not None and nodes not in (None, "1") and re.match(_LOCAL, value):
            yield Found(program.command.start, f"{value}: no node finds the first one")


@rule(
    "master-is-own-host",
    "error",
    "each node takes itself for the master",
    section="Rendezvous",
    source="inside srun, $(hostname) is a different host on each node",
    fix="determine the address in the script, before srun",
    bad="#SBATCH -N 2\nsrun bash -c 'MASTER_ADDR=$(hostname) python train.py'\n",
    good="#SBATCH -N 2\nMASTER_ADDR=$(hostname)\nexport MASTER_ADDR\nsrun python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not is_multi_node(script):
        return
    for program in find_programs(script):
        if program.step is None or program.inner is None:
            continue
        inside = [(one.name, one.value.text) for one in program.inner.assignments]
        for name, value in inside:
            parts = unknown_parts(value)
            if name == "MASTER_ADDR" and any(
                re.fullmatch(r"(\$\(|`)hostname( -[a-zA-Z]+)*(\)|`)", one) for one in parts
            ):
                yield Found(program.command.start, "each node takes itself for the master")
                return


@rule(
    "hostname-ip",
    "warning",
    "the IP address of the master by `hostname -i` or `hostname -I`",
    section="Rendezvous",
    source="hostname(1): the name may resolve to a loopback address; -I lists all in any order",
    fix='MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
    bad="#SBATCH -N 2\nexport MASTER_ADDR=$(hostname -I | awk '{print $1}')\nsrun python t.py\n",
    good="#SBATCH -N 2\nexport MASTER_ADDR=$(hostname)\nsrun python t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    pattern = re.compile(r"hostname\s+(--ip-address|--all-ip-addresses|-i|-I)\b")
    used = r"(?i)master_|head_node|rdzv|dist[-_]url|init[-_]method"
    for one in script.assignments:
        for part in unknown_parts(one.value.text):
            found = pattern.search(part)
            if not found or not re.search(used, script.text):
                continue
            if is_multi_node(script) or count_nodes(script) is None:
                text = f"{found[0]} may give a loopback address, or several addresses"
                yield Found(one.start, text)
                return


@rule(
    "nodelist-parsed",
    "warning",
    "the first node cut out of $SLURM_JOB_NODELIST",
    section="Rendezvous",
    source="the list is compressed: a[1,3-4],b7; scontrol show hostnames expands it",
    fix='scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1',
    bad="#SBATCH -N 2\nMASTER_ADDR=${SLURM_JOB_NODELIST:0:9}\nsrun python t.py\n",
    good='#SBATCH -N 2\nMASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)\n',
)
def _(script: Script) -> Iterator[Found]:
    for one in script.assignments:
        source = script.data[one.start : one.end].decode("utf-8", "replace")
        if "NODELIST" not in source or "scontrol" in source:
            continue
        tools = r"\$\{SLURM_(JOB_)?NODELIST(:|%|#|/)|perl|cut |sed |awk |tr "
        cut = "hostlist" not in source and re.search(tools, source)
        if cut and re.search(r"(?i)master|head|main|addr|host", one.name):
            yield Found(one.start, "this works for some node names only: the list is compressed")
            return
    split = rb"(?m)^[^#\n]*\bIFS=[\"']?,[^\n]*\bread\b[^\n]*<<<[^\n]*\$\{?SLURM_(JOB_)?NODELIST"
    if found := re.search(split, script.data):
        at = found.start() + len(found[0]) - len(found[0].lstrip())
        yield Found(at, "commas separate the nodes of a short list only: a[1,3-4] is compressed")


@rule(
    "launch-node-address",
    "error",
    "$SLURM_LAUNCH_NODE_IPADDR in the batch script",
    section="Rendezvous",
    source="srun(1) sets it, sbatch does not: it is empty in the script",
    fix='MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
    bad="#SBATCH -N 2\nexport MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR\nsrun python t.py\n",
    good="#SBATCH -N 2\nsrun bash -c 'MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR python t.py'\n",
)
def _(script: Script) -> Iterator[Found]:
    if script.directives:
        for use in script.uses_of("SLURM_LAUNCH_NODE_IPADDR"):
            if not use.default:
                yield Found(use.start, "it is empty in the batch script: only srun sets it")
                return


@rule(
    "fixed-port",
    "warning",
    "a fixed port",
    section="Rendezvous",
    source="two jobs on a node fail with EADDRINUSE, or join each other (measured with DeepSpeed)",
    fix="MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))",
    bad="#SBATCH --gres=gpu:2\nexport MASTER_PORT=29500\nsrun python train.py\n",
    good="#SBATCH --gres=gpu:2\nexport MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))\n"
    "srun python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if is_exclusive(script) or not (script.directives or script.late):
        return
    for name, value, start in _ports(script):
        if name == "MASTER_PORT" and _ignores_master_port(script):
            continue
        if is_whole_number(value) and value != "0":
            text = f"port {value}: another job on the same node may use it ({name})"
            is_certain = bool(launchers(script)) or uses_several_ranks(script)
            yield Found(start, text, severity=None if is_certain else "note")
            return


def _ignores_master_port(script: Script) -> bool:
    """Return True if all launchers are torchrun, which reads only its option, and none uses it."""
    started = list_training(script)
    return bool(started) and all(
        one.kind == "torchrun" and not re.search("MASTER_PORT", _text_of(script, one))
        for one in started
    )


def _text_of(script: Script, program: LaunchedProgram) -> str:
    command = program.command
    return script.data[command.start : command.end].decode("utf-8", "surrogateescape")


@rule(
    "default-port",
    "note",
    "the default port of the launcher",
    section="Rendezvous",
    source="torchrun, accelerate and deepspeed use 29500: two jobs on a node collide",
    fix="--standalone or --rdzv_endpoint=localhost:0 on one node, otherwise --master_port",
    bad="#SBATCH -N 1\n#SBATCH --gres=gpu:2\ntorchrun --nproc_per_node=2 train.py\n",
    good="#SBATCH -N 1\n#SBATCH --gres=gpu:2\ntorchrun --standalone --nproc_per_node=2 train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if is_exclusive(script) or not script.directives:
        return
    names = ("master-port", "rdzv-endpoint", "main-process-port", "standalone", "hostfile")
    for program in launchers(script):
        if program.get(*names) is not None or program.get("config-file") is not None:
            continue
        ranks = program.get("nproc-per-node", "num-gpus", "num-processes")
        if program.kind != "torchrun" and ranks in (None, "1"):
            continue
        is_set = any(one.name == "MASTER_PORT" for one in script.assignments)
        if not is_set or _ignores_master_port(script):
            text = f"{program.kind} uses port 29500, like any other job on the node"
            text += "; it does not read MASTER_PORT" if is_set else ""
            yield Found(program.command.start, text)
            return


@rule(
    "random-port",
    "warning",
    "a random port that may be reserved or in use",
    section="Rendezvous",
    source="$RANDOM is 0 to 32767; ports below 1024 are privileged, 32768 to 60999 ephemeral",
    fix="MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))",
    bad="#SBATCH --gres=gpu:2\ntorchrun --nproc_per_node=2 --master_port=$RANDOM train.py\n",
    good="#SBATCH --gres=gpu:2\ntorchrun --nproc_per_node=2 \\\n"
    "  --master_port=$((20000 + RANDOM % 10000)) train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    for _name, value, start in _ports(script):
        parts = unknown_parts(value)
        if value == f"{OPEN}RANDOM{CLOSE}":
            yield Found(start, "$RANDOM may be below 1024, where a port is privileged")
            return
        for part in parts:
            if re.search(r"^\$\(\(.*\$\(date \+%[A-Z]*N\)|^\$\(\(.*`date \+%[A-Z]*N`", part):
                text = "a number from date +%N may begin with 0: then bash takes it for octal"
                yield Found(start, text)
                return
            found = re.search(r"shuf -i ?(\d+)-(\d+)", part)
            if found and int(found[2]) > 32768:
                text = "ports above 32767 are ephemeral: another program may use it already"
                yield Found(start, text, severity="note")
                return


@rule(
    "port-differs-between-tasks",
    "error",
    "a random port that each task draws for itself",
    section="Rendezvous",
    source="inside srun, $RANDOM and shuf give another value in each task",
    fix="choose the port in the script, before srun",
    bad="#SBATCH -N 2\nsrun bash -c 'MASTER_PORT=$((20000 + RANDOM % 1000)) python train.py'\n",
    good="#SBATCH -N 2\nexport MASTER_PORT=$((20000 + RANDOM % 1000))\nsrun python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    for program in find_programs(script):
        if program.step is None or program.inner is None:
            continue
        tasks = count_tasks_per_node(script, program.step)
        if not is_multi_node(script) and not (tasks or 1) > 1:
            continue
        for one in program.inner.assignments:
            random = any(
                re.search(r"RANDOM|shuf|get_free_port", part)
                for part in unknown_parts(one.value.text)
            )
            if one.name == "MASTER_PORT" and random:
                yield Found(program.command.start, "each task has another port, so they never meet")
                return


@rule(
    "random-id",
    "note",
    "a random rendezvous id inside the tasks, or a fixed one",
    section="Rendezvous",
    source="torchrun: nodes with different ids do not meet; old processes with the same id may",
    fix="--rdzv_id=$SLURM_JOB_ID",
    bad="#SBATCH -N 2\nsrun torchrun --nnodes 2 --nproc_per_node 4 --rdzv_id 101 \\\n"
    "  --rdzv_backend c10d --rdzv_endpoint $A:29500 t.py\n",
    good="#SBATCH -N 2\nsrun torchrun --nnodes 2 --nproc_per_node 4 --rdzv_id $SLURM_JOB_ID \\\n"
    "  --rdzv_backend c10d --rdzv_endpoint $A:29500 t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    for program in launchers(script):
        value = program.get("rdzv-id")
        if value is None or program.step is None or not script.directives:
            continue
        if program.in_shell and "$RANDOM" in value:
            text = "each node draws another id, so the nodes never meet"
            yield Found(program.command.start, text, severity="error")
        elif is_whole_number(value) and not is_exclusive(script):
            text = f"the id {value} is the same for all jobs: --rdzv_id=$SLURM_JOB_ID"
            yield Found(program.command.start, text)


@rule(
    "accelerate-same-rank",
    "error",
    "accelerate on several nodes without the number of the node",
    section=SECTION,
    source="accelerate launch: without --machine_rank or c10d every node is number 0",
    fix="--machine_rank $SLURM_NODEID, expanded by each task, or --rdzv_backend c10d",
    bad="#SBATCH -N 2\nsrun accelerate launch --num_machines 2 --num_processes 8 \\\n"
    "  --main_process_ip $A t.py\n",
    good="#SBATCH -N 2\nsrun accelerate launch --num_machines 2 --num_processes 8 \\\n"
    "  --rdzv_backend c10d --main_process_ip $A t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not is_multi_node(script):
        return
    for program in launchers(script):
        if program.kind != "accelerate" or program.step is None or _has_unknown_options(program):
            continue
        if program.get("num-machines") in (None, "1") or program.get("machine-rank") is not None:
            continue
        if program.get("config-file") is None and is_static(program):
            yield Found(program.command.start, "every node has the machine rank 0")


@rule(
    "accelerate-processes",
    "error",
    "accelerate's --num_processes is the number for one node",
    section=SECTION,
    source="accelerate launch: --num_processes is the total of all machines",
    fix="--num_processes $((SLURM_JOB_NUM_NODES * GPUS_PER_NODE))",
    bad="#SBATCH -N 2\n#SBATCH --gres=gpu:4\nsrun accelerate launch --num_machines 2 \\\n"
    "  --rdzv_backend c10d --num_processes 4 t.py\n",
    good="#SBATCH -N 2\n#SBATCH --gres=gpu:4\nsrun accelerate launch --num_machines 2 \\\n"
    "  --rdzv_backend c10d --num_processes 8 t.py\n",
)
def _(script: Script) -> Iterator[Found]:

    gpus, nodes = count_gpus_per_node(script), count_nodes(script)
    for program in launchers(script):
        total, machines = program.number("num-processes"), program.get("num-machines")
        if program.kind != "accelerate" or not total or machines in (None, "1"):
            continue
        if gpus and nodes and nodes > 1 and total == gpus:
            text = f"{total} processes in all, although {nodes} nodes have {nodes * gpus} GPUs"
            yield Found(program.command.start, text)


@rule(
    "deepspeed-one-node",
    "error",
    "deepspeed on several nodes without a hostfile",
    section=SECTION,
    source="deepspeed: without /job/hostfile it only warns, and trains on the local GPUs",
    fix="write a hostfile and pass --hostfile, or start torchrun with srun",
    bad="#SBATCH -N 2\n#SBATCH --gres=gpu:4\ndeepspeed train.py\n",
    good="#SBATCH -N 2\n#SBATCH --gres=gpu:4\ndeepspeed --hostfile=hosts.txt train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not is_multi_node(script):
        return
    for program in launchers(script):
        if program.kind == "deepspeed" and program.get("hostfile", "H", "launcher") is None:
            if program.command.branch or _has_unknown_options(program):
                continue
            where = "each node trains by itself" if program.step else "only the first node trains"
            yield Found(program.command.start, f"without a hostfile {where}")


@rule(
    "deepspeed-slurm-launcher",
    "warning",
    "deepspeed's launcher for Slurm",
    section=SECTION,
    source="deepspeed 0.19.8, SlurmRunner: it passes --include to srun and sets no ranks",
    fix="start torchrun with srun, one task per node",
    bad="#SBATCH -N 2\ndeepspeed --hostfile=h --launcher SLURM train.py\n",
    good="#SBATCH -N 2\ndeepspeed --hostfile=h --launcher pdsh train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    for program in launchers(script):
        if (program.get("launcher") or "").lower() == "slurm":
            text = "deepspeed's launcher for Slurm sets no ranks, and uses options srun lacks"
            yield Found(program.command.start, text)


@rule(
    "deepspeed-ignores-devices",
    "warning",
    "CUDA_VISIBLE_DEVICES together with deepspeed --num_gpus",
    section=SECTION,
    source="deepspeed, launcher/runner.py: with --num_gpus or --include it ignores the variable",
    fix="remove the variable, or use --include localhost:2,3",
    bad="#SBATCH --gres=gpu:4\nCUDA_VISIBLE_DEVICES=2,3 deepspeed --num_gpus 2 train.py\n",
    good="#SBATCH --gres=gpu:4\ndeepspeed --num_gpus 4 train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    for program in launchers(script):
        if program.kind != "deepspeed" or program.get("num-gpus", "include") is None:
            continue
        value = program.env.get("CUDA_VISIBLE_DEVICES")
        last = script.last_assignment("CUDA_VISIBLE_DEVICES")
        if value is None and last is not None and last.exported and not last.prefix:
            value = last.value.text
        if value:
            text = f"deepspeed ignores CUDA_VISIBLE_DEVICES={value} because of --num_gpus"
            if not unknown_parts(value):
                yield Found(program.command.start, text)


@rule(
    "old-launcher",
    "note",
    "torch.distributed.launch",
    section=SECTION,
    source="PyTorch: deprecated; torchrun sets LOCAL_RANK instead of passing --local_rank",
    fix="torchrun, and read LOCAL_RANK in the program",
    bad="#SBATCH --gres=gpu:2\npython -m torch.distributed.launch --nproc_per_node=2 t.py\n",
    good="#SBATCH --gres=gpu:2\ntorchrun --standalone --nproc_per_node=2 t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    for program in launchers(script):
        if program.module == "torch.distributed.launch":
            yield Found(program.command.start, "torch.distributed.launch is deprecated")
            return


@rule(
    "launcher-variable-unset",
    "warning",
    "an option of a launcher from a variable that nothing sets",
    section=SECTION,
    source="the script does not assign it, and Slurm does not set it",
    fix="assign it in the script, e.g. from $SLURM_JOB_NUM_NODES",
    bad="#SBATCH -N 2\nsrun torchrun --nnodes=$WORLD_SIZE --rdzv_endpoint=$MASTER_ADDR:29500 \\\n"
    "  --rdzv_backend=c10d t.py\n",
    good="#SBATCH -N 2\nMASTER_ADDR=$(hostname)\nsrun torchrun --nnodes=$SLURM_NNODES \\\n"
    "  --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:29500 t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    names = {
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        "NODE_RANK",
        "NNODES",
        "LOCAL_RANK",
    }
    names |= {"GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_NODES", "NUM_GPUS"}
    if not script.directives:
        return
    assigned = {one.name for one in script.assignments}
    sourced = any(
        one.name in ("source", ".") and not any("activate" in word for word in one.args)
        for one in script.commands
    )
    if sourced:
        return
    for program in launchers(script):
        for option in program.options:
            for name in unknown_parts(option.value):
                if name in names - assigned and not any(
                    use.default for use in script.uses_of(name)
                ):
                    text = f"--{option.name} is empty: nothing sets {name}"
                    yield Found(program.command.start, text)
                    return


@rule(
    "mpirun-count-differs",
    "warning",
    "mpirun with another number of processes than the job has tasks",
    section=SECTION,
    source="mpirun -n: the other tasks of the job stay idle, or it has too few slots",
    fix="mpirun without -n, or -n $SLURM_NTASKS",
    bad="#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\nmpirun -n 3 python t.py\n",
    good="#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\nmpirun -n 8 python t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    nodes, each = script.number("nodes"), script.number("ntasks-per-node")
    total = script.number("ntasks") or (nodes * each if nodes and each else None)
    if total is None and nodes and nodes > 1 and not script.has("ntasks-per-node"):
        total = None if script.has("tasks-per-node") or script.has("ntasks-per-gpu") else nodes
    for program in find_programs(script):
        if program.kind not in ("mpirun", "horovodrun") or program.command.background:
            continue
        for index, word in enumerate(program.args[:-1]):
            if word in ("-n", "-np", "--np") and is_whole_number(program.args[index + 1]):
                count = int(program.args[index + 1])
                if total and count != total and count > 1:
                    text = f"mpirun starts {count} processes, but the job has {total} tasks"
                    yield Found(program.command.start, text)
                break


@rule(
    "nested-srun",
    "error",
    "srun inside srun",
    section=SECTION,
    source="the inner step waits for CPUs that the outer one holds (Slurm 20.11 and later)",
    fix="start one step only, or srun --overlap inside",
    bad="#SBATCH -N 2\nsrun bash -c 'srun python train.py'\n",
    good="#SBATCH -N 2\nsrun bash -c 'srun --overlap python train.py'\n",
)
def _(script: Script) -> Iterator[Found]:
    for program in find_programs(script):
        if program.inner is None or program.step is None:
            continue
        for one in program.inner.commands:
            if one.name == "srun" and "--overlap" not in one.args:
                yield Found(program.command.start, "the inner srun waits for the outer one")
                return


@rule(
    "interactive-srun",
    "error",
    "srun --pty or docker -it in a batch script",
    section=SECTION,
    source="srun(1): --pty needs a terminal; docker: the input device is not a TTY",
    fix="remove the option",
    bad="#SBATCH -N 1\nsrun --pty bash\n",
    good="#SBATCH -N 1\nsrun bash train.sh\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives:
        return
    for program in find_programs(script):
        if program.step is not None and program.step.get("pty") is not None:
            yield Found(program.command.start, "a batch job has no terminal for --pty")
            return
    for command in script.commands:
        words = [word.text for word in command.words]
        words = words[1:] if words[:1] == ["sudo"] else words
        if words[:2] in (["docker", "run"], ["docker", "exec"]) and _needs_terminal(words[2:]):
            yield Found(command.start, "a batch job has no terminal for docker's -it")
            return


def _needs_terminal(words: Sequence[str]) -> bool:
    """Return True if docker runs in the foreground with an input that is a terminal."""
    flags, is_value = "", False
    for word in words:
        is_option = word.startswith("-")
        if not is_option and not is_value:
            break  # the image
        long = {"--interactive": "i", "--tty": "t", "--detach": "d"}.get(word)
        short = word[1:] if re.fullmatch(r"-[dit]+", word) else ""
        flags += long or short
        is_flag = bool(long or short) or word in ("--rm", "--init", "--privileged", "-P")
        is_value = is_option and not is_flag and "=" not in word
    return "i" in flags and "t" in flags and "d" not in flags


@rule(
    "parallel-steps-wait",
    "warning",
    "several srun in the background that each take all CPUs",
    section=SECTION,
    source="srun(1), --exact: since 20.11 a step gets all resources of its nodes",
    fix="srun --exact with -n, -c and --gres for each step",
    bad="#SBATCH -n 2\nsrun -n 1 python a.py &\nsrun -n 1 python b.py &\nwait\n",
    good="#SBATCH -n 2\nsrun -n 1 --exact python a.py &\nsrun -n 1 --exact python b.py &\nwait\n",
)
def _(script: Script) -> Iterator[Found]:
    steps = [one for one in find_programs(script) if one.step and one.command.background]
    alike = []
    for one in steps:
        assert one.step is not None
        names = {each.name for each in one.step.options}
        free = names & {
            "exact",
            "exclusive",
            "overlap",
            "relative",
            "nodelist",
            "mem",
            "?",
            "nodes",
        }
        if not free and not names & {"mem-per-cpu", "cpus-per-task", "gres", "gpus"}:
            alike.append(one)
    if len(alike) > 1 and not script.exports("SLURM_OVERLAP") and not script.exports("SLURM_EXACT"):
        yield Found(
            alike[1].command.start, "this step waits for the one before: both take all CPUs"
        )


@rule(
    "failing-rank-hangs",
    "note",
    "srun on several nodes without --kill-on-bad-exit",
    section=SECTION,
    source="srun(1): by default the other tasks of a failed one continue, and wait for it",
    fix="srun --kill-on-bad-exit=1",
    bad="#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\nsrun python train.py\n",
    good="#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\nsrun --kill-on-bad-exit=1 python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if script.exports("SLURM_KILL_BAD_EXIT") or not is_multi_node(script):
        return
    for program in list_training(script):
        if program.step is not None and not program.step.get("?"):
            names = {one.name for one in program.step.options}
            if "kill-on-bad-exit" not in names and not program.command.background:
                text = "if one rank fails, the others wait for it until the time limit"
                yield Found(program.command.start, text)
                return


@rule(
    "launcher-on-fewer-nodes",
    "error",
    "srun that starts a launcher on fewer nodes than it waits for",
    section=SECTION,
    source="torchrun: it waits until --nnodes nodes have joined",
    fix="srun --nodes=$SLURM_NNODES --ntasks-per-node=1",
    bad="#SBATCH -N 2\n#SBATCH --gres=gpu:4\nsrun -N 1 -n 1 torchrun --nnodes=2 \\\n"
    "  --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$A:29500 t.py\n",
    good="#SBATCH -N 2\n#SBATCH --gres=gpu:4\nsrun -N 2 torchrun --nnodes=2 \\\n"
    "  --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$A:29500 t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    programs = launchers(script)
    if len(programs) != 1 or _reaches_other_nodes(script, counts_srun=False):
        return
    program = programs[0]
    step = program.step
    if step is None or step.get("?") or program.command.background or program.command.branch:
        return
    given = resolve_number(script, program.get("nnodes", "num-machines"))
    total = resolve_number(script, step.get("ntasks") or step.get("nodes"))
    if given and total and total < given:
        times = f"{total} time{'s' * (total > 1)}"
        text = f"{program.kind} waits for {given} nodes, srun starts it {times}"
        yield Found(program.command.start, text)


@rule(
    "step-node-not-chosen",
    "warning",
    "a launcher for each node, started by srun without a node",
    section=SECTION,
    source="srun(1): with -N 1 Slurm chooses the node, so rank 0 may not be on the master's node",
    fix="srun -N 1 -n 1 -w $node, or one srun for all nodes",
    bad="#SBATCH -N 2\nRANK=0\nfor node in $HOSTS; do\n"
    "  srun -N 1 -n 1 torchrun --nnodes 2 --node_rank $RANK --master_addr $A t.py &\n"
    "  RANK=$((RANK + 1))\ndone\nwait\n",
    good="#SBATCH -N 2\nRANK=0\nfor node in $HOSTS; do\n"
    "  srun -N 1 -n 1 -w $node torchrun --nnodes 2 --node_rank $RANK --master_addr $A t.py &\n"
    "  RANK=$((RANK + 1))\ndone\nwait\n",
)
def _(script: Script) -> Iterator[Found]:
    for program in launchers(script):
        step = program.step
        if step is None or not program.command.background or step.get("nodes") != "1":
            continue
        if step.get("nodelist") or step.get("relative") or step.get("?"):
            continue
        # In a loop the rank is counted up, whatever its first value.
        rank = program.get("node-rank", "machine-rank")
        if rank is not None and (program.command.branch or rank != "0"):
            yield Found(program.command.start, "Slurm may start this rank on any node of the job")
            return


@rule(
    "hostfile-of-other-nodes",
    "warning",
    "a hostfile that the script does not write",
    section=SECTION,
    source="DeepSpeed, fetch_hostfile: it starts on the hosts of the file, whatever the job has",
    fix='scontrol show hostnames "$SLURM_JOB_NODELIST", and write HOST slots=N for each',
    bad="#SBATCH -N 2\n#SBATCH --gres=gpu:8\ndeepspeed --hostfile conf/hosts.txt train.py\n",
    good="#SBATCH -N 2\n#SBATCH --gres=gpu:8\n"
    "scontrol show hostnames | sed 's/$/ slots=8/' > conf/hosts.txt\n"
    "deepspeed --hostfile conf/hosts.txt train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not is_multi_node(script):
        return
    for program in launchers(script):
        path = program.get("hostfile", "H")
        if path and not unknown_parts(path):
            name = path.rpartition("/")[2]
            lines = [one for one in script.text.split("\n") if not one.lstrip().startswith("#")]
            if sum(name in line for line in lines) <= 1:
                yield Found(
                    program.command.start, f"{path} lists other nodes than those of the job"
                )
                return


@rule(
    "accelerate-default-config",
    "note",
    "accelerate launch without a configuration",
    section=SECTION,
    source="accelerate launch: it reads ~/.cache/huggingface/accelerate/default_config.yaml, if "
    "there is one",
    fix="--config_file, or --num_processes and --multi_gpu",
    bad="#SBATCH --gres=gpu:4\naccelerate launch train.py\n",
    good="#SBATCH --gres=gpu:4\naccelerate launch --multi_gpu --num_processes 4 train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    names = (
        "config-file",
        "num-processes",
        "num-machines",
        "use-deepspeed",
        "use-fsdp",
        "multi-gpu",
    )
    for program in launchers(script):
        if program.kind != "accelerate" or _has_unknown_options(program):
            continue
        if all(program.get(name) is None for name in names):
            text = "the number of processes depends on a file in the home directory"
            yield Found(program.command.start, text)
            return


@rule(
    "srun-ignores-option",
    "note",
    "an option of srun that has no effect inside a job",
    section=SECTION,
    source="srun(1): within an allocation, --partition, --account and --qos are ignored",
    fix="write it as a #SBATCH line",
    bad="#SBATCH -N 1\nsrun --partition=gpu python t.py\n",
    good="#SBATCH -N 1\n#SBATCH --partition=gpu\nsrun python t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives:
        return
    for program in find_programs(script):
        step = program.step
        for name in ("partition", "account", "qos") if step is not None else ():
            if step is not None and step.get(name):
                yield Found(program.command.start, f"srun --{name} has no effect inside a job")
                return


@rule(
    "fixed-service-port",
    "note",
    "a server with a fixed port",
    section="Rendezvous",
    source="two jobs on a node cannot listen on one port",
    fix="--port=$((10000 + SLURM_JOB_ID % 20000))",
    bad="#SBATCH --gres=gpu:1\njupyter lab --no-browser --port=8888\n",
    good="#SBATCH --gres=gpu:1\n"
    "jupyter lab --no-browser --port=$((10000 + SLURM_JOB_ID % 20000))\n",
)
def _(script: Script) -> Iterator[Found]:
    if is_exclusive(script) or not (script.directives or script.late):
        return
    rendezvous = {value for _, value, _ in _ports(script)}
    servers = {
        "jupyter",
        "jupyter-lab",
        "jupyter-notebook",
        "vllm",
        "tensorboard",
        "ray",
        "redis-server",
    }
    servers |= {"ollama", "code-server", "mlflow", "text-generation-launcher", "sglang"}
    for program in find_programs(script):
        is_server = program.kind in servers or re.search(
            r"vllm|http\.server|sglang|fastchat|tensorboard|api_server", program.module
        )
        if program.kind not in (*servers, "python") or program.get("standalone"):
            continue
        words = program.args
        for index, word in enumerate(words):
            name, equals, value = word.partition("=")
            if not equals and index + 1 < len(words):
                value = words[index + 1]
            ports = ("--port", "-p") if is_server else ("--port", "--server_port", "--dist_port")
            if name in ports and is_whole_number(value) and 1023 < int(value) < 65536:
                text = f"port {value}: another job on the same node may use it"
                yield Found(program.command.start, text)
                return
    for one in script.assignments:
        if re.fullmatch(r"(?i)\w*[a-z]_?port|port", one.name) and is_whole_number(one.value.text):
            if re.fullmatch(r"(?i)(master|main_process|rdzv)_port", one.name):
                continue
            if one.value.text in rendezvous:
                continue  # reported by fixed-port
            if 1023 < int(one.value.text) < 65536:
                text = f"port {one.value.text}: another job on the same node may use it"
                yield Found(one.start, text)
                return


def _has_unknown_options(program: LaunchedProgram) -> bool:
    """Return True if a variable with unknown content stands among the launcher's options."""
    first = program.args[:1]
    return bool(first and re.fullmatch(f"{OPEN}[^{CLOSE}]*{CLOSE}", first[0])) or any(
        one.name.startswith(OPEN) for one in program.options
    )


def _may_start_launchers(script: Script) -> bool:
    """Return True unless each srun certainly starts something other than a launcher."""
    steps = [one for one in find_programs(script) if one.step is not None]
    inside = [one for one in script.commands if one.name == "srun" and one.substituted]
    lines = [line for line in script.text.split("\n") if not line.lstrip().startswith("#")]
    if sum(len(re.findall(r"\bsrun\b", line)) for line in lines) > len(steps) + len(inside):
        return True  # in a text that another shell may read
    return any(
        one.kind in ("script", "srun", *_LAUNCHERS) or OPEN in one.kind or one.in_shell
        for one in steps
    )


def _reaches_other_nodes(script: Script, *, counts_srun: bool = True) -> bool:
    """Return True if the script may start something on other nodes by other means than srun."""
    words = r"\b(ssh|pdsh|mpirun|mpiexec|parallel|clush|ibrun|jsrun|aprun|horovodrun|ray|dask)\b"
    if counts_srun:
        words += r"|\bsrun\b"
    return any(
        re.search(words, re.sub(r"(\$\(|`)\s*srun\b", "", line))  # its output is only a value
        for line in script.text.split("\n")
        if not line.lstrip().startswith("#")
    )


def _ports(script: Script) -> Iterator[tuple[str, str, int]]:
    """Yield the name, value and place of each port for a rendezvous."""
    training = launchers(script)
    is_distributed = bool(training) or uses_several_ranks(script)
    for one in script.assignments:
        is_own = is_distributed or (one.name == "MASTER_PORT" and list_started(script))
        if is_own and re.fullmatch(r"(?i)master_port|main_process_port|rdzv_port", one.name):
            yield one.name, one.value.text, one.start
    if not is_distributed:
        return
    for program in training:
        if program.get("standalone") is not None:
            continue  # torchrun then chooses a free port, whatever else is given
        value = program.get("master-port", "main-process-port")
        if value is None:
            endpoint = program.get("rdzv-endpoint") or ""
            value = endpoint.rpartition(":")[2] if ":" in endpoint else None
        if value:
            yield program.kind, value, program.command.start
    for one in script.assignments:  # e.g. DIST_URL=tcp://host:40000
        raw = script.data[one.start : one.end].decode("utf-8", "surrogateescape")
        if found := re.search(r"tcp://[^\s\"']*:(?:\$\{\w+:-)?(\d{4,5})\}?[\"']?$", raw):
            yield one.name, found[1], one.start
    for each in list_training(script):
        for index, word in enumerate(each.args):
            name, equals, given = word.partition("=")
            if not equals and index + 1 < len(each.args):
                given = each.args[index + 1]
            if re.fullmatch(r"-*(dist[-_]url|init[-_]method|dist[-_]init)", name):
                if found := re.search(r"tcp://.*:(\d{4,5})$", given):
                    yield name, found[1], each.command.start
            elif re.fullmatch(r"--(master|dist)[-_]port", name) and each.step:
                yield name, given, each.command.start
