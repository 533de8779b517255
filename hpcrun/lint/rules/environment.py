"""Rules for environment variables, modules, conda and secrets."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator

from hpcrun.lint.launch import find_programs
from hpcrun.lint.request import is_multi_node, list_training, uses_several_ranks
from hpcrun.lint.rule import Found, rule
from hpcrun.lint.script import OPEN, Assignment, Command, Script, show
from hpcrun.plan import suggest_variable

SECTION = "Environment variables"
_INSTALLERS = {
    *("conda install", "conda create", "conda update", "mamba install", "mamba create"),
    *("uv sync", "uv pip", "poetry install"),
}
# Modules that certainly contain no Python.
_WITHOUT_PYTHON = r"(?i)(\w+/)*(cuda|cudatoolkit|cudnn|nccl|gcc|intel|openmpi|mpi|cmake|git)\b"
# Modules that provide conda.
_OF_CONDA = r"(?i)conda|mamba|miniforge|python|pytorch|tensorflow|jupyter|gpu|env"
_ON = r"(?i)1|true|yes|on|y"


def environment(script: Script) -> list[Assignment]:
    """Return the variables that the script passes to its programs."""
    return [one for one in script.assignments if one.exported or one.prefix]


def _of_name(script: Script, pattern: str, value: str = r"(?s).*") -> Iterator[Assignment]:
    for one in environment(script):
        if re.fullmatch(pattern, one.name) and re.fullmatch(value, one.value.text):
            yield one


@rule(
    "unread-variable",
    "warning",
    "a variable that nothing reads",
    section=SECTION,
    source="not in the sources of NCCL, torch, DeepSpeed 0.19.8 and Accelerate 1.15",
    fix="remove it; for a time-out use init_process_group(timeout=...) or DEEPSPEED_TIMEOUT",
    bad="export NCCL_TIMEOUT=3600\n",
    good="export NCCL_IB_TIMEOUT=22\n",
)
def _(script: Script) -> Iterator[Found]:
    instead = {
        "NCCL_TIMEOUT": "use timeout= of init_process_group, or DEEPSPEED_TIMEOUT (minutes)",
        "DEEPSPEED_LOG_LEVEL": 'use "log_level" in DeepSpeed\'s JSON',
        "DEEPSPEED_HOSTFILE": "use deepspeed --hostfile",
        "NCCL_SOCKET_TIMEOUT": "use timeout= of init_process_group",
        "NCCL_CHECKS_DISABLE": "removed from NCCL",
        "NCCL_IB_CUDA_SUPPORT": "removed in NCCL 2.4",
        "NCCL_RINGS": "removed from NCCL",
        "NCCL_LL_THRESHOLD": "removed in NCCL 2.5",
        "NCCL_TREE_THRESHOLD": "removed in NCCL 2.5",
        "NCCL_SINGLE_RING_THRESHOLD": "removed in NCCL 2.3",
    }
    for one in environment(script):
        if one.name in instead:
            yield Found(one.start, f"nothing reads {one.name}: {instead[one.name]}")


@rule(
    "misspelled-variable",
    "warning",
    "a misspelled variable of NCCL, torch or libfabric",
    section=SECTION,
    source="the variables that NCCL 2.30, torch 2.13 and libfabric read",
    fix="write the name that was meant",
    bad="export NCCL_SOCKET_IFNAMES=eth0\n",
    good="export NCCL_SOCKET_IFNAME=eth0\n",
)
def _(script: Script) -> Iterator[Found]:
    old = r"NCCL_(ASYNC_ERROR_HANDLING|BLOCKING_WAIT|DESYNC_DEBUG|ENABLE_TIMING|TIMEOUT)"
    for one in environment(script):
        if re.fullmatch(old, one.name):
            continue
        meant = suggest_variable(one.name) or _suggest(one.name, _OF_CACHES, 0.9)
        if meant is not None:
            yield Found(one.start, f"nothing reads {one.name}; did you mean {meant}?")
    assigned = {one.name for one in script.assignments}
    for use in script.uses:
        meant = _suggest(use.name, _OF_SLURM, 0.92) if use.name not in assigned else None
        if meant is not None and not use.default:
            yield Found(use.start, f"Slurm sets no {use.name}; did you mean {meant}?")


def _suggest(name: str, known: frozenset[str], cutoff: float) -> str | None:
    """Return the known name that was meant by one that is not known."""
    if name in known or not re.match("SLURM_|HF_|XDG_|TORCH_HOME|TRANSFORMERS_", name):
        return None
    upper = name.upper()
    if upper in known:
        return upper
    if cut := [one for one in known if one[:-1] == name]:
        return cut[0]
    close = difflib.get_close_matches(name, known, 1, cutoff=cutoff)
    # A variable of another version of Slurm may differ from a known one by its last letters.
    return close[0] if close and sorted(close[0]) == sorted(name) else None


_CACHE_NAMES = """
XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME XDG_RUNTIME_DIR XDG_STATE_HOME HF_HOME HF_TOKEN
HF_HUB_CACHE HF_DATASETS_CACHE HF_HUB_OFFLINE HF_DATASETS_OFFLINE TORCH_HOME
TRANSFORMERS_CACHE TRANSFORMERS_OFFLINE
"""
_SLURM_NAMES = """
SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_COUNT SLURM_ARRAY_TASK_ID SLURM_ARRAY_TASK_MAX
SLURM_ARRAY_TASK_MIN SLURM_ARRAY_TASK_STEP SLURM_CLUSTER_NAME SLURM_CPUS_ON_NODE
SLURM_CPUS_PER_GPU SLURM_CPUS_PER_TASK SLURM_GPUS SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE
SLURM_GPUS_PER_TASK SLURM_JOBID SLURM_JOB_ACCOUNT SLURM_JOB_CPUS_PER_NODE SLURM_JOB_END_TIME
SLURM_JOB_GPUS SLURM_JOB_ID SLURM_JOB_NAME SLURM_JOB_NODELIST SLURM_JOB_NUM_NODES
SLURM_JOB_PARTITION SLURM_JOB_QOS SLURM_JOB_START_TIME SLURM_JOB_USER SLURM_LOCALID
SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_NNODES SLURM_NODEID
SLURM_NODELIST SLURM_NPROCS SLURM_NTASKS SLURM_NTASKS_PER_NODE SLURM_PROCID
SLURM_RESTART_COUNT SLURM_STEP_ID SLURM_SUBMIT_DIR SLURM_SUBMIT_HOST SLURM_TASKS_PER_NODE
SLURM_TMPDIR SLURM_TOPOLOGY_ADDR
"""
_OF_CACHES, _OF_SLURM = frozenset(_CACHE_NAMES.split()), frozenset(_SLURM_NAMES.split())


@rule(
    "not-a-number",
    "warning",
    "a word as the value of a variable that is a number",
    section=SECTION,
    source="NCCL reads a number, and ignores anything else",
    fix="write the number, or remove the variable",
    bad="export NCCL_IB_GID_INDEX=mlx5_0\n",
    good="export NCCL_IB_GID_INDEX=$GID\n",
)
def _(script: Script) -> Iterator[Found]:
    names = "NCCL_IB_(GID_INDEX|TIMEOUT|RETRY_CNT|TC|SL|PKEY|QPS_PER_CONNECTION)|OMP_NUM_THREADS"
    names += "|NCCL_(NSOCKS_PERTHREAD|SOCKET_NTHREADS|MIN_NCHANNELS|MAX_NCHANNELS)|MASTER_PORT"
    for one in _of_name(script, names, r"[A-Za-z].*"):
        yield Found(one.start, f"{one.name} is a number; {one.value.text} is none")


@rule(
    "bad-nccl-value",
    "warning",
    "a value that NCCL or InfiniBand does not have",
    section=SECTION,
    source="NCCL user guide; ibv_modify_qp(3): time-outs have 5 bits, retry counts 3",
    fix="NCCL_DEBUG=WARN, or INFO for diagnosis; NCCL_IB_TIMEOUT=22, NCCL_IB_RETRY_CNT=7",
    bad="export NCCL_DEBUG=DEBUG\n",
    good="export NCCL_DEBUG=INFO\nexport NCCL_DEBUG_SUBSYS=INIT,NET\n",
)
def _(script: Script) -> Iterator[Found]:
    for one in _of_name(script, "NCCL_DEBUG", r"[A-Za-z0-9]+"):
        if one.value.text.upper() not in ("VERSION", "WARN", "INFO", "TRACE", "ABORT", "NONE"):
            yield Found(one.start, f"NCCL ignores NCCL_DEBUG={one.value.text}")
    for name, largest in (("NCCL_IB_TIMEOUT", 31), ("NCCL_IB_RETRY_CNT", 7)):
        for one in _of_name(script, name, r"\d{1,9}"):
            if int(one.value.text) > largest:
                yield Found(one.start, f"{one.value.text} is larger than {largest}, the most")
    known = {
        "INIT",
        "COLL",
        "P2P",
        "SHM",
        "NET",
        "GRAPH",
        "TUNING",
        "ENV",
        "ALLOC",
        "CALL",
        "PROXY",
    }
    known |= {"NVLS", "BOOTSTRAP", "REG", "PROFILE", "RAS", "ALL"}
    for one in _of_name(script, "NCCL_DEBUG_SUBSYS", r"[\^A-Za-z0-9,]+"):
        words = one.value.text.lstrip("^").upper().split(",")
        if wrong := [word for word in words if word and word not in known]:
            yield Found(one.start, f"NCCL has no subsystem {wrong[0]}")


@rule(
    "renamed-variable",
    "note",
    "an old name of a variable",
    section=SECTION,
    source="torch 2.2: TORCH_NCCL_...; transformers: HF_HOME; NCCL 2.4: NCCL_NET_GDR_LEVEL",
    fix="write the new name",
    bad="export NCCL_ASYNC_ERROR_HANDLING=1\n",
    good="export TORCH_NCCL_ASYNC_ERROR_HANDLING=1\n",
)
def _(script: Script) -> Iterator[Found]:
    new = {
        "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
        "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
        "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
        "NCCL_IB_GDR_LEVEL": "NCCL_NET_GDR_LEVEL",
        "TRANSFORMERS_CACHE": "HF_HOME",
        "PYTORCH_TRANSFORMERS_CACHE": "HF_HOME",
        "HUGGING_FACE_HUB_TOKEN": "HF_TOKEN",
    }
    for one in environment(script):
        if one.name in new:
            yield Found(one.start, f"{one.name} is an old name of {new[one.name]}")


@rule(
    "nccl-switch",
    "warning",
    "a switch of NCCL for diagnosis",
    section=SECTION,
    source="NCCL user guide: these variables should not be retained in scripts",
    fix="remove it",
    bad="#SBATCH --gres=gpu:4\nexport NCCL_P2P_DISABLE=1\ntorchrun --nproc_per_node=4 t.py\n",
    good="#SBATCH --gres=gpu:4\nexport NCCL_P2P_DISABLE=0\ntorchrun --nproc_per_node=4 t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    effects = {
        "NCCL_IB_DISABLE": "turns off InfiniBand: NCCL uses TCP, many times slower",
        "NCCL_P2P_DISABLE": "turns off NVLink and PCIe transfers between GPUs",
        "NCCL_P2P_DIRECT_DISABLE": "turns off direct transfers between GPUs",
        "NCCL_SHM_DISABLE": "turns off shared memory: NCCL uses the network inside a node",
    }
    several = uses_several_ranks(script)
    for one in _of_name(script, "|".join(effects), _ON):
        severity = None if several else "note"
        yield Found(one.start, f"{one.name} {effects[one.name]}", severity=severity)  # type: ignore[arg-type]
    for one in _of_name(script, "NCCL_NET", "(?i)socket"):
        yield Found(one.start, "NCCL_NET=Socket turns off InfiniBand and vendor plugins")
    for one in _of_name(script, "FI_PROVIDER", "(?i)tcp|sockets|udp"):
        yield Found(one.start, f"FI_PROVIDER={one.value.text} turns off the fast network")


@rule(
    "nccl-tuning",
    "note",
    "an algorithm, protocol or buffer size forced on NCCL",
    section=SECTION,
    source="NCCL user guide: NCCL chooses by the topology; forcing LL128 may corrupt data",
    fix="remove it",
    bad="export NCCL_ALGO=Ring\n",
    good="export NCCL_DEBUG=WARN\n",
)
def _(script: Script) -> Iterator[Found]:
    pattern = "NCCL_(ALGO|PROTO|NTHREADS|BUFFSIZE|MIN_NCHANNELS|MAX_NCHANNELS)"
    for one in _of_name(script, pattern, r"(?s)(?!\^LL128$).+"):
        yield Found(one.start, f"{one.name} replaces NCCL's own choice")


@rule(
    "efa-settings",
    "note",
    "settings for EFA that aws-ofi-nccl makes itself",
    section=SECTION,
    source="aws-ofi-nccl, doc/efa-env-var.md: not needed with libfabric 1.18 and the plugin 1.7",
    fix="remove it",
    bad="export FI_EFA_USE_DEVICE_RDMA=1\n",
    good="export FI_EFA_USE_HUGE_PAGE=0\n",
)
def _(script: Script) -> Iterator[Found]:
    for one in _of_name(script, "RDMAV_FORK_SAFE|FI_EFA_FORK_SAFE|FI_EFA_USE_DEVICE_RDMA"):
        yield Found(one.start, f"{one.name} is not needed with aws-ofi-nccl 1.7 and later")


@rule(
    "gid-index",
    "note",
    "a fixed GID index for RoCE",
    section=SECTION,
    source="NCCL user guide: since 2.21 NCCL finds it on each node",
    fix="remove it with NCCL 2.21 and later",
    bad="export NCCL_IB_GID_INDEX=3\n",
    good="export NCCL_IB_TC=106\n",
)
def _(script: Script) -> Iterator[Found]:
    for one in _of_name(script, "NCCL_IB_GID_INDEX", r"\d+"):
        yield Found(one.start, "the index may differ on the next node; NCCL 2.21 finds it itself")


@rule(
    "loopback-interface",
    "error",
    "the loopback interface for the traffic between nodes",
    section=SECTION,
    source="NCCL user guide, NCCL_SOCKET_IFNAME",
    fix="remove it, or name the interface between the nodes",
    bad="#SBATCH -N 2\nexport NCCL_SOCKET_IFNAME=lo\nsrun python t.py\n",
    good="#SBATCH -N 2\nexport NCCL_SOCKET_IFNAME=^lo,docker\nsrun python t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if is_multi_node(script):
        for one in _of_name(script, "(NCCL|GLOO|TP)_SOCKET_IFNAME", "=?lo"):
            yield Found(one.start, "the loopback interface leads to no other node")


@rule(
    "slow-debugging",
    "warning",
    "a debugging variable that slows down training",
    section=SECTION,
    source="CUDA programming guide; torch.distributed: DETAIL checks every collective",
    fix="remove it",
    bad="export CUDA_LAUNCH_BLOCKING=1\n",
    good="export CUDA_LAUNCH_BLOCKING=0\n",
)
def _(script: Script) -> Iterator[Found]:
    for one in _of_name(script, "CUDA_LAUNCH_BLOCKING", _ON):
        yield Found(one.start, "with CUDA_LAUNCH_BLOCKING each kernel waits for the one before")
    for one in _of_name(script, "TORCH_DISTRIBUTED_DEBUG", "(?i)detail"):
        yield Found(one.start, "TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective")
    for one in _of_name(script, "NCCL_DEBUG", "(?i)trace"):
        yield Found(one.start, "NCCL_DEBUG=TRACE prints a line for every call")
    prints = any(_of_name(script, "NCCL_DEBUG", "(?i)info|trace"))
    is_set = any(_of_name(script, "NCCL_DEBUG"))
    for one in _of_name(script, "NCCL_DEBUG_SUBSYS", r"(?i)(.*,)?(all|coll)(,.*)?"):
        if is_set and not prints:
            continue
        yield Found(one.start, "NCCL prints a line for every collective")
    for one in _of_name(script, "PYTORCH_NO_CUDA_MEMORY_CACHING", _ON):
        yield Found(one.start, "each allocation calls cudaMalloc, which is slow")


@rule(
    "debug-file-shared",
    "warning",
    "one NCCL debug file for all processes",
    section=SECTION,
    source="NCCL user guide, NCCL_DEBUG_FILE: the file is overwritten",
    fix="add %h and %p to the name",
    bad="export NCCL_DEBUG_FILE=nccl.log\n",
    good="export NCCL_DEBUG_FILE=nccl.%h.%p\n",
)
def _(script: Script) -> Iterator[Found]:
    for one in _of_name(script, "NCCL_DEBUG_FILE", r"(?s)(?!/dev/)(?!.*%p).+"):
        yield Found(one.start, "the processes overwrite each other's file")


@rule(
    "secret-in-script",
    "warning",
    "a password or token in the script",
    section=SECTION,
    source="the script is stored by Slurm, and readable in shared folders and repositories",
    fix="read it from a file with mode 600, or from the environment of the submission",
    bad="export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567\n",
    good="export WANDB_API_KEY=$(cat ~/.wandb_key)\n",
)
def _(script: Script) -> Iterator[Found]:
    names = r"(?i)\w*(TOKEN|API_?KEY|SECRET|PASSWORD|PASSWD|ACCESS_KEY)\w*"
    shapes = r"hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|ghp_[A-Za-z0-9]{20,}|[0-9a-f]{40}"
    for one in script.assignments:
        value = one.value.text
        if not one.value.constant or not re.fullmatch(names, one.name):
            continue
        if re.fullmatch(shapes, value) or (
            len(value) >= 16
            and re.search(r"\d", value)
            and re.fullmatch(r"[\w+/=.-]+", value)
            and not value.startswith("/")
            and not re.search(r"(?i)your|xxx|token|key", value)
        ):
            yield Found(one.start, f"the value of {one.name} is in the script")
    tokens = r"hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{30,}|gh[po]_[A-Za-z0-9]{30,}"
    for command in script.commands:
        if command.name == "export":
            continue
        for word in command.words[1:]:
            if not word.constant or (command.prefix and word.start < command.start):
                continue
            # Only what the script itself contains, not the value of a variable.
            raw = script.data[word.start : word.end].decode("utf-8", "replace")
            is_login = re.search(shapes, raw) and "login" in command.args
            in_url = re.search(r"https?://[^/\s:@]*:[^/\s:@$]{8,}@", raw)
            if is_login or in_url or re.search(rf"(?<![\w-])({tokens})(?![\w-])", raw):
                yield Found(word.start, f"{command.name}: a token or password is in the script")
                break


@rule(
    "export-with-commas",
    "error",
    "a value with commas in --export",
    section=SECTION,
    source="sbatch(1): the list is separated by commas, so the value is cut",
    fix="export the variable in the script",
    bad="#SBATCH --export=ALL,NCCL_IB_HCA=mlx5_0,mlx5_1\n",
    good="#SBATCH --export=ALL,NCCL_DEBUG=INFO,NCCL_IB_HCA=mlx5\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("export")
    values = [(one.start, one.value)] if one is not None else []
    for program in find_programs(script):
        if program.step is not None and (text := program.step.get("export")):
            values.append((program.command.start, text))
    for start, value in values:
        parts = value.split(",")
        for before, part in itertools.pairwise(parts):
            has_list = "=" in before and "=" not in part
            if has_list and not re.fullmatch(r"ALL|NIL|NONE|[A-Z][A-Z0-9_]*", part):
                name = before.split("=")[0]
                yield Found(start, f"the value of {name} ends at the comma before {part}")
                break


@rule(
    "export-none",
    "warning",
    "--export=NONE with srun",
    section=SECTION,
    source="sbatch(1): srun inherits it, so the tasks lack the variables of the script",
    fix="srun --export=ALL, or export SLURM_EXPORT_ENV=ALL",
    bad="#SBATCH --export=NONE\nmodule load cuda\nsrun python train.py\n",
    good="#SBATCH --export=NONE\nmodule load cuda\nexport SLURM_EXPORT_ENV=ALL\nsrun python t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    one = script.option("export")
    if one is None or one.value.upper() != "NONE" or "SLURM_EXPORT_ENV" in script.text:
        return
    for program in find_programs(script):
        if (
            program.step is not None
            and not (program.step.get("export") or "").upper().startswith("ALL")
            and not program.step.get("?")
        ):
            yield Found(one.start, "srun passes no variables on: the tasks lack PATH and the rest")
            return


@rule(
    "srun-export-without-all",
    "warning",
    "srun --export with variables but without ALL",
    section=SECTION,
    source="srun(1): only the listed variables and Slurm's reach the tasks",
    fix="--export=ALL,NAME=VALUE",
    bad="srun --export=NCCL_DEBUG=INFO python train.py\n",
    good="srun --export=ALL,NCCL_DEBUG=INFO python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    for program in find_programs(script):
        value = program.step.get("export") if program.step is not None else None
        if value and "ALL" not in value.split(",") and "=" in value and program.kind != "srun":
            text = "the tasks lack PATH and all other variables: ALL is missing"
            yield Found(program.command.start, text)
            return


@rule(
    "variable-not-exported",
    "warning",
    "a variable for the program that is not exported",
    section=SECTION,
    source="bash(1), ENVIRONMENT: programs get exported variables only",
    fix="export NAME=VALUE",
    bad="#SBATCH --gres=gpu:2\nMASTER_ADDR=$(hostname)\nNCCL_DEBUG=INFO\nsrun python train.py\n",
    good="#SBATCH --gres=gpu:2\nMASTER_ADDR=$(hostname)\nexport MASTER_ADDR NCCL_DEBUG=INFO\n"
    "srun python train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives or not list_training(script):
        return
    if re.search(r"(?m)^\s*set\s+(-\w*a|-o allexport)", script.text) or "--export=" in script.text:
        return
    names = (
        r"(MASTER_(ADDR|PORT)|WORLD_SIZE|(LOCAL_|NODE_)?RANK|(OMP|MKL|OPENBLAS)_NUM_THREADS"
        r"|(TORCH_)?NCCL_\w+|(HF|WANDB|TORCH|XLA|TF|NVTE|PYTORCH|TOKENIZERS|TRANSFORMERS)_\w+|CUDA_(?!VISIBLE)\w+"
        r"|PYTHON(PATH|UNBUFFERED|WARNINGS|FAULTHANDLER))"
    )
    # Launchers set the variables of the ranks themselves.
    if all(one.kind in ("torchrun", "deepspeed", "accelerate") for one in list_training(script)):
        names = names.replace("MASTER_(ADDR|PORT)|WORLD_SIZE|(LOCAL_|NODE_)?RANK|", "")
    seen: set[str] = set()
    for one in script.assignments:
        if one.exported or one.prefix or one.items is not None or one.name in seen:
            continue
        if not one.value.text:
            continue
        seen.add(one.name)
        if not re.fullmatch(names, one.name) or script.uses_of(one.name):
            continue
        if any(each.name == one.name and each.exported for each in script.assignments):
            continue
        if re.search(rf"\b(export|declare|typeset)\b[^\n]*\b{one.name}\b", script.text):
            continue
        if re.search(rf"\$\{{?{one.name}\b", script.text):
            continue  # in a text that another shell reads
        yield Found(one.start, f"the program does not get {one.name}: export is missing")


@rule(
    "path-replaced",
    "warning",
    "a search path that loses its former value",
    section=SECTION,
    source="bash(1): the assignment replaces the value that modules and conda have set",
    fix='export PATH="DIR:$PATH"',
    bad="#SBATCH -N 1\nmodule load cuda/12.4\nexport PATH=/opt/tools/bin\npython t.py\n",
    good="#SBATCH -N 1\nmodule load cuda/12.4\nexport PATH=/opt/tools/bin:$PATH\npython t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    loads = [one.start for one in script.commands if one.name in ("module", "ml")]
    for one in script.assignments:
        if one.name not in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH") or one.prefix or one.branch:
            continue
        if one.name == "PYTHONPATH" and not (loads and loads[0] < one.start):
            continue  # without modules it is usually unset
        raw = script.data[one.start : one.end]
        if b"PATH" in raw.partition(b"=")[2] or raw.partition(b"=")[0].endswith(b"+"):
            continue
        if not one.value.text and one.name != "PATH":
            continue
        severity = None if one.name == "PATH" else "note"
        text = f"the former value of {one.name} is lost"
        yield Found(one.start, text, severity=severity)  # type: ignore[arg-type]


@rule(
    "unset-check-with-path",
    "warning",
    "`set -u` with a search path that may be unset",
    section="Modules and conda",
    source="bash(1), set -u: the expansion of an unset variable ends the script",
    fix='"${PYTHONPATH:-}"',
    bad="#SBATCH -N 1\nset -euo pipefail\nexport PYTHONPATH=$PWD:$PYTHONPATH\npython t.py\n",
    good="#SBATCH -N 1\nset -euo pipefail\nexport PYTHONPATH=$PWD:${PYTHONPATH:-}\npython t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    at = next(
        (
            command.end
            for command in script.commands
            if command.name == "set"
            and not command.branch
            and any(re.fullmatch(r"-[a-z]*u[a-z]*|nounset", word) for word in command.args)
        ),
        None,
    )
    if at is None:
        return
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "LD_PRELOAD"):
        before = [one for one in script.assignments if one.name == name]
        for use in script.uses_of(name):
            if use.start < at or use.default or any(one.end <= use.start for one in before):
                continue
            if re.search(r"(?m)^\s*set\s+\+\w*u", script.text):
                break
            yield Found(use.start, f"if {name} is not set, the script ends here: unbound variable")
            break


@rule(
    "bashrc-sourced",
    "note",
    "~/.bashrc in a batch script",
    section="Modules and conda",
    source="bash(1): ~/.bashrc is for interactive shells; those of Debian and Ubuntu, and many "
    "others, return at once in scripts",
    fix="load modules and activate the environment in the script itself",
    bad="#SBATCH -N 1\nsource ~/.bashrc\nconda activate env\npython t.py\n",
    good='#SBATCH -N 1\neval "$(conda shell.bash hook)"\nconda activate env\npython t.py\n',
)
def _(script: Script) -> Iterator[Found]:
    for command in script.commands:
        if command.name in ("source", ".") and command.args[:1]:
            name = command.args[0].rpartition("/")[2]
            if name in (".bashrc", ".zshrc"):
                text = f"{name} may end at once in a script, and differs between users"
                yield Found(command.start, text)
                return


@rule(
    "purge-after-load",
    "warning",
    "`module purge` below `module load`",
    section="Modules and conda",
    source="Lmod: purge unloads all modules",
    fix="module purge first",
    bad="#SBATCH -N 1\nmodule load cuda/12.4\nmodule purge\npython t.py\n",
    good="#SBATCH -N 1\nmodule purge\nmodule load cuda/12.4\npython t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    loaded: dict[str, int] = {}
    for command in script.commands:
        if command.name not in ("module", "ml") or command.branch or command.function:
            continue
        words = command.args
        if "purge" in words[:2]:
            rest = [one for one in script.commands if one.start > command.start]
            again = {word for one in rest if one.name in ("module", "ml") for word in one.args}
            lost = [name for name in loaded if name not in again]
            used = [one for one in list_training(script) if one.command.start < command.start]
            if lost and not used:
                yield Found(command.start, f"it unloads {lost[0]}, which was loaded above")
                return
        elif command.name == "module" and words[:1] in (["load"], ["add"]):
            loaded |= dict.fromkeys(words[1:], command.start)


@rule(
    "module-without-version",
    "note",
    "a module without a version",
    section="Modules and conda",
    source="Lmod: the default version changes when the site installs another one",
    fix="module load NAME/VERSION",
    bad="#SBATCH -N 1\nmodule load cuda\npython t.py\n",
    good="#SBATCH -N 1\nmodule load cuda/12.4\npython t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    named = (
        r"(?i)(cuda(toolkit)?|cudnn|nccl|python3?|pytorch|tensorflow|gcc|openmpi|rocm"
        r"|(ana|mini)conda3?)"
    )
    for command in script.commands:
        if command.name == "module" and command.args[:1] in (["load"], ["add"]):
            for word in command.args[1:]:
                if re.fullmatch(named, word):
                    yield Found(
                        command.start, f"the version of {word} is the site's current default"
                    )
                    return


@rule(
    "module-replaced",
    "note",
    "two versions of a module",
    section="Modules and conda",
    source="Lmod: the second version replaces the first; Environment Modules: it may be refused",
    fix="load one version",
    bad="#SBATCH -N 1\nmodule load cuda/11.8\nmodule load cuda/12.4\npython t.py\n",
    good="#SBATCH -N 1\nmodule load cuda/12.4\npython t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    loaded: dict[str, str] = {}
    for command in script.commands:
        if command.name not in ("module", "ml") or command.function:
            continue
        words = command.args
        if command.branch or words[:1] not in (["load"], ["add"]):
            loaded.clear()  # unloaded, swapped or loaded under a condition
            continue
        for word in words[1:]:
            name, slash, version = word.rpartition("/")
            if not slash or not re.match(r"\d", version) or not word.isascii():
                continue
            if loaded.setdefault(name, version) != version:
                yield Found(command.start, f"{word} replaces {name}/{loaded[name]}")
                return


@rule(
    "environment-of-the-submitter",
    "note",
    "a Python that depends on the shell that submits the job",
    section="Modules and conda",
    source="sbatch(1), --export: by default the job gets the variables of the submitting shell",
    fix="load the module or activate the environment in the script",
    bad="#SBATCH -N 1\npython train.py\n",
    good="#SBATCH -N 1\nmodule load python/3.11\npython train.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives or script.is_login_shell:
        return
    if any(one.name in ("PATH", "VIRTUAL_ENV") for one in script.assignments):
        return
    setup = {
        "module",
        "ml",
        "source",
        ".",
        "eval",
        "conda",
        "mamba",
        "micromamba",
        "spack",
        "pyenv",
    }
    if any(
        (one.name in setup and not _loads_libraries(one)) or OPEN in one.name
        for one in script.commands
    ):
        return
    if re.search(r"\bmodule use\b|activate|container-image|\buenv\b", script.text):
        return
    for program in list_training(script):
        first = re.match(r"(?:\S*/)?(python[0-9.]*|torchrun|accelerate|deepspeed)\b", program.kind)
        words = [word.text for word in program.command.words]
        bare = [
            word
            for word in words
            if re.fullmatch(r"python[0-9.]*|torchrun|accelerate|deepspeed", word)
        ]
        if program.in_shell and not re.search(r"/(python|torchrun|accelerate)", script.text):
            bare = [program.kind]
        wrapped = {"uv", "poetry", "pixi", "pipenv", "pdm", "hatch"} & set(words)
        if first and bare and not wrapped and not program.container:
            text = f"which {bare[0]} this is depends on the shell that submits the job"
            yield Found(program.command.start, text)
            return


_LIBRARIES = (
    r"(?i)(cuda(-?toolkit)?|cudnn|nccl|gcc|gcccore|g\+\+|cmake|openmpi|mpich|intel|mkl|hdf5|git|ffmpeg"
    r"|rocm|ninja|boost)(/\S*)?"
)


def _loads_libraries(command: Command) -> bool:
    """Return True for ``module`` commands that certainly load no Python."""
    words = command.args
    if command.name == "ml":
        return bool(words) and all(re.fullmatch(_LIBRARIES, word) for word in words)
    if command.name != "module":
        return False
    if words[:1] in (["purge"], ["list"], ["unload"], ["rm"], ["avail"], ["reset"]):
        return True
    loads = words[:1] in (["load"], ["add"]) and len(words) > 1
    return loads and all(re.fullmatch(_LIBRARIES, word) for word in words[1:])


@rule(
    "interactive-login",
    "warning",
    "a login that prompts for a key",
    section="Environment variables",
    source="wandb login, huggingface-cli login: they prompt, and a batch job has no input",
    fix="log in once before the job; the key is stored in the home directory",
    bad="#SBATCH -N 1\nwandb login\npython t.py\n",
    good="#SBATCH -N 1\nexport WANDB_MODE=offline\npython t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    for command in script.commands:
        words = [command.name, *command.args]
        if command.redirects or not script.directives:
            continue
        if words in (["wandb", "login"], ["huggingface-cli", "login"], ["hf", "auth", "login"]):
            key = "WANDB_API_KEY" if words[0] == "wandb" else "HF_TOKEN"
            if not script.exports(key):
                yield Found(command.start, f"{' '.join(words)} prompts unless a key is stored")
                return


@rule(
    "unset-check-with-modules",
    "warning",
    "`set -u` while modules or conda are set up",
    section="Modules and conda",
    source="conda/conda#8186, Lmod: their scripts use unset variables",
    fix="set +u before, set -u after",
    bad="set -euo pipefail\nsource activate env\npython t.py\n",
    good="set -eo pipefail\nsource activate env\npython t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    strict = 0
    for command in script.commands:
        if command.name == "set" and not command.branch:
            for word in command.args:
                if re.fullmatch(r"-[a-z]*u[a-z]*", word) or word == "nounset":
                    strict = 1
                elif re.fullmatch(r"\+[a-z]*u[a-z]*", word):
                    strict = 0
        uses_conda = command.name in ("conda", "mamba", "micromamba") and "activate" in command.args
        uses_conda = uses_conda or (
            command.name in ("source", ".")
            and any(word.endswith("activate") for word in command.args)
            and not any("venv" in word or "/env" in word for word in command.args)
            and len(command.args) > 1
        )
        if strict and uses_conda:
            yield Found(command.start, "under set -u the script may end here: unbound variable")
            return


@rule(
    "conda-not-initialized",
    "warning",
    "`conda activate` in a shell that does not know it",
    section="Modules and conda",
    source="conda: it is a shell function, which ~/.bashrc defines for interactive shells only",
    fix='eval "$(conda shell.bash hook)" before, or source .../etc/profile.d/conda.sh',
    bad="#!/bin/bash\n#SBATCH -N 1\nconda activate env\npython t.py\n",
    good='#!/bin/bash\n#SBATCH -N 1\neval "$(conda shell.bash hook)"\nconda activate env\n',
)
def _(script: Script) -> Iterator[Found]:
    if script.is_login_shell or not script.directives:
        return
    modules: list[str] = []
    for command in script.commands:
        if command.name == "source" and command.args[:1] == ["activate"] and not modules:
            if not any(one.name == "PATH" for one in script.assignments):
                text = "source activate finds conda only if the submitter's PATH has it"
                yield Found(command.start, text, severity="note")
            return
        if command.name in ("source", ".", "eval", "spack") and not command.function:
            return
        if command.name in ("module", "ml") and not command.function:
            modules += [word for word in command.args if word not in ("load", "add", "purge")]
        if command.name in ("conda", "mamba", "micromamba") and "activate" in command.args:
            text = f"{command.name} activate needs {command.name}'s shell function"
            provides = [one for one in modules if re.search(_OF_CONDA, one) or OPEN in one]
            if provides:
                # Some sites' modules define the function, others extend PATH only.
                text = f"{text}; the module {show(provides[0])} may not define it"
                yield Found(command.start, text, severity="note")
            else:
                yield Found(command.start, f"{text}, which a batch script does not have")
            return


@rule(
    "conda-init",
    "warning",
    "`conda init` in a script",
    section="Modules and conda",
    source="conda init: it changes ~/.bashrc, and takes effect in new shells only",
    fix='eval "$(conda shell.bash hook)"',
    bad="#SBATCH -N 1\nconda init bash\nconda activate env\n",
    good='#SBATCH -N 1\neval "$(conda shell.bash hook)"\nconda activate env\n',
)
def _(script: Script) -> Iterator[Found]:
    for command in script.commands:
        if command.name in ("conda", "mamba") and command.args[:1] == ["init"]:
            yield Found(command.start, "it has no effect on this script, and edits ~/.bashrc")
            return


@rule(
    "conda-asks",
    "error",
    "`conda create`, `conda install` or `pip uninstall` without -y",
    section="Modules and conda",
    source="conda asks Proceed ([y]/n)? and a batch job has no input: it aborts",
    fix="add -y, better: create the environment once, before the job",
    bad="#SBATCH -N 1\nconda create -n env python=3.11\n",
    good="#SBATCH -N 1\nconda create -y -n env python=3.11\n",
)
def _(script: Script) -> Iterator[Found]:
    for command in script.commands:
        if command.name not in ("conda", "mamba") or "yes" in command.depends:
            continue
        words = command.args
        makes = words[:1] in (["create"], ["install"], ["remove"]) or words[:2] == ["env", "remove"]
        agrees = {"-y", "--yes", "-qy", "-yq", "--dry-run", "-h", "--help", "--file"} & set(words)
        if makes and not agrees and not command.pipes_into:
            if re.search(r"always_yes", script.text) or _is_piped_yes(script, command.start):
                continue
            yield Found(command.start, "conda asks for confirmation, and aborts without a terminal")
    for program in find_programs(script):
        words = [program.kind, *program.args]
        words = ["pip", *words[3:]] if program.module == "pip" else words
        is_removal = re.fullmatch(r"pip[0-9.]*", words[0]) and words[1:2] == ["uninstall"]
        if is_removal and not {"-y", "--yes"} & set(words):
            if _is_piped_yes(script, program.command.start):
                continue
            text = "pip asks for confirmation, and gets no answer"
            yield Found(program.command.start, text, severity="warning")


@rule(
    "install-in-job",
    "note",
    "packages installed while the job runs",
    section="Modules and conda",
    source="tasks and jobs that start together change one environment at the same time",
    fix="install once, before the job",
    bad="#SBATCH --gres=gpu:1\npip install torch\npython t.py\n",
    good="#SBATCH --gres=gpu:1\npython t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    if not script.directives or not list_training(script):
        return
    for one in script.commands:
        makes = one.name in ("virtualenv", "venv") or one.args[:2] == ["-m", "venv"]
        if makes and any("TMP" in word or "JOB" in word for word in one.args):
            return  # an environment of this job
    for program in find_programs(script):
        words = [program.kind, *program.args[:3]]
        is_pip = re.fullmatch(r"pip[0-9.]*", program.kind) and "install" in words
        is_pip = is_pip or (program.module == "pip" and "install" in program.args[:3])
        is_other = " ".join(words[:2]) in _INSTALLERS or words[:3] in (
            ["conda", "env", "create"],
            ["conda", "env", "update"],
            ["python", "setup.py", "install"],
            ["python", "setup.py", "develop"],
        )
        if is_pip or is_other:
            yield Found(program.command.start, "this installs packages while the job runs")
            return


def _activates(command: Command) -> bool:
    shown = " ".join(command.args)
    names = ("source", ".", "conda")
    return command.name in names and "activate" in shown and "deactivate" not in shown


@rule(
    "module-after-conda",
    "note",
    "`module purge`, or a module with a Python, after an environment has been activated",
    section="Modules and conda",
    source="Lmod: purge removes paths that a module has set, e.g. conda's; load puts its own first",
    fix="module purge first, then activate the environment",
    bad="#SBATCH -N 1\nsource activate env\nmodule purge\npython t.py\n",
    good="#SBATCH -N 1\nmodule purge\nsource activate env\npython t.py\n",
)
def _(script: Script) -> Iterator[Found]:
    active = False
    last = max((one.start for one in script.commands if _activates(one)), default=0)
    for command in script.commands:
        if command.branch:
            continue
        if "deactivate" in (command.name, *command.args):
            active = False
        active = active or _activates(command)
        if active and command.name in ("module", "ml") and "purge" in command.args:
            yield Found(command.start, "module purge may remove what was activated above")
            return
        loads = command.name == "ml" or command.args[:1] in (["load"], ["add"])
        for word in command.args if active and command.name in ("module", "ml") and loads else ():
            if command.start < last:
                break  # activated again below
            if re.match(r"(?i)(.*/)?(python|anaconda|miniconda|tensorflow|pytorch)[\d/-]", word):
                text = f"module {word} may put its own Python before the activated one"
                yield Found(command.start, text)
                return


def _is_piped_yes(script: Script, start: int) -> bool:
    line = script.data[:start].rsplit(b"\n", 1)[-1]
    return bool(re.search(rb"\b(yes|echo y|printf)\b.*\|\s*$", line))
