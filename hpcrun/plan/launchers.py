"""Launchers, which start the ranks, and the variables that frameworks read."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcrun.plan.deepspeed import merge
from hpcrun.plan.findings import Findings
from hpcrun.plan.job import Job
from hpcrun.plan.setup import choose_setup
from hpcrun.plan.types import Launcher, Plan, Section
from hpcrun.spec import Cluster, FrameworkName, JobSpec, infer_framework, set_variables

# Options of launchers, with "_" for "-": those that hpcrun sets, and others, by which a misspelt
# option is recognized. From torch 2.13, DeepSpeed 0.19 and Accelerate 1.15; later versions may have
# more.
_OWNED_OPTIONS = {
    "torchrun": "nnodes nproc_per_node node_rank rdzv_backend rdzv_endpoint rdzv_id master_addr "
    "master_port log_dir no_python module standalone run_path local_addr",
    "deepspeed": "hostfile include exclude num_nodes num_gpus num_accelerators node_rank "
    "master_addr master_port no_ssh no_local_rank no_python module launcher force_multi autotuning",
    "accelerate": "config_file machine_rank num_machines num_processes main_process_ip "
    "main_process_port rdzv_backend log_dir no_python module multi_gpu cpu gpu_ids "
    "deepspeed_config_file use_deepspeed same_network",
}
_OTHER_OPTIONS = {
    "torchrun": "max_restarts monitor_interval rdzv_conf role redirects tee local_ranks_filter "
    "start_method numa_binding signals_to_handle shutdown_timeout virtual_local_rank "
    "event_log_handler logs_specs",
    "deepspeed": "bind_cores_to_rank bind_core_list enable_each_rank_log log_level quiet save_pid "
    "venv_script ssh_port launcher_args",
    "accelerate": "debug quiet enable_cpu_affinity num_cpu_threads_per_process mixed_precision "
    "max_restarts monitor_interval rdzv_conf role tee use_fsdp use_megatron_lm dynamo_backend "
    "dynamo_mode downcast_bf16 main_training_function fsdp_sharding_strategy fsdp_version",
}

LAUNCHERS = {
    launcher.name: launcher
    for launcher in (
        Launcher(name="torchrun", is_torchelastic=True, modules=("torch",)),
        Launcher(name="deepspeed", on_hosts="pdsh", modules=("torch", "deepspeed")),
        Launcher(
            name="accelerate",
            is_torchelastic=True,
            frameworks=("accelerate",),
            modules=("torch", "accelerate"),
        ),
        Launcher(name="srun", task="rank", needs_slurm=True),
        # The script runs once, on the first node, and starts its ranks on Ray's workers itself.
        Launcher(name="ray", needs_slurm=True, modules=("ray",)),
        # Jobs cannot name these: DeepSpeed's launcher on the hosts of a hostfile, and no launcher.
        Launcher(name="pdsh", task="rank", remote="pdsh"),
        Launcher(name="none", task="command"),
    )
}
DEFAULT = "torchrun"

# Frameworks whose ranks hold an Accelerator, which reads ACCELERATE_* variables.
ON_ACCELERATE: Sequence[FrameworkName] = ("accelerate", "transformers")


def decide_launcher(spec: JobSpec, hosts: Sequence[str] = ()) -> Launcher:
    """Decide the launcher: the job's, else the framework's own, else torchrun.

    A bare command is started once per node, unless the job names a launcher. ``hosts`` are the
    hosts of a hostfile, if there is no Slurm.

    >>> decide_launcher(JobSpec()).name, decide_launcher(JobSpec(framework="accelerate")).name
    ('torchrun', 'accelerate')
    >>> decide_launcher(JobSpec(command=["make"])).name
    'none'
    >>> decide_launcher(JobSpec(launcher="deepspeed"), ["lab1", "lab2"]).name
    'pdsh'
    """
    own = (name for name, one in LAUNCHERS.items() if spec.framework in one.frameworks)
    usual = "none" if spec.command is not None else next(own, DEFAULT)
    launcher = LAUNCHERS[spec.launcher or usual]
    return LAUNCHERS[launcher.on_hosts] if hosts and launcher.on_hosts else launcher


def list_needed_modules(spec: JobSpec, launcher: str) -> list[str]:
    """Return the Python modules that a launcher and the job's framework require.

    >>> list_needed_modules(JobSpec(framework="deepspeed"), "torchrun")
    ['torch', 'deepspeed']
    """
    own = [spec.framework] if spec.framework not in (None, "lightning") else []
    return list(dict.fromkeys([*LAUNCHERS[launcher].modules, *(name for name in own if name)]))


def check_launcher(spec: JobSpec, found: Findings) -> None:
    """Refuse combinations of launcher and framework that cannot work."""
    launcher = decide_launcher(spec).name
    if spec.accelerate is not None and launcher != "accelerate":
        message = f"launcher {launcher} does not read it; set launcher: accelerate, or leave it out"
        found.refuse("accelerate", message)
    if launcher == "none" and spec.framework == "accelerate":
        message = "accelerate, but the command is started unchanged; set launcher: accelerate too"
        found.refuse("framework", message)
    if spec.ends_with == "first_node" and (launcher != "none" or spec.resources.most_nodes == 1):
        message = (
            "first_node is for a command on several nodes; the ranks of a launcher end together"
        )
        found.refuse("ends_with", message)


def check_shared_job(spec: JobSpec, cluster: Cluster, found: Findings) -> None:
    """Refuse runs that cannot share a job: each starts on its node as without Slurm."""
    _, setup = choose_setup(spec, cluster, "")
    runtime = setup.container and (setup.container.runtime or cluster.container_runtime)
    survive = spec.survive
    reasons = {
        "the runs share one node; set resources.nodes: 1": spec.resources.most_nodes > 1,
        "srun starts the ranks of a single run; set another launcher": spec.launcher == "srun",
        "Ray's nodes are those of a single run; set another launcher": spec.launcher == "ray",
        f"srun starts {runtime}'s containers, for a single run": runtime in ("pyxis", "ce"),
        "runs that share a job cannot be restarted; remove survive": bool(
            survive.when or survive.save_before_end or survive.spare_nodes
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            found.refuse("sweep_per_node", reason)


def build_step(
    job: Job, tasks_per_node: int, directives: Sequence[tuple[str, str | None]]
) -> list[tuple[str, str | None]]:
    """Return the options of srun besides nodes and tasks; the user's come last.

    srun does not inherit --cpus-per-task from Slurm 22.05 on, and then binds each task to one CPU.
    So it is passed, unless the job removes it; 23.11 and later refuse it together with the job's
    --cpus-per-gpu. Ranks started by a launcher do not use MPI: without --mpi=none the site's
    default starts a PMI server, and fails if its library is missing. Ranks that srun starts itself,
    and bare commands, may use MPI.
    """
    merged: dict[str, str | None] = {}
    by_gpu = "cpus-per-gpu" in dict(directives)
    if job.topology.asks_cpus and job.spec.slurm.get("cpus-per-task") is not False and not by_gpu:
        merged["cpus-per-task"] = str(job.topology.cpus_per_node // tasks_per_node)
    merged["kill-on-bad-exit"] = "1"
    if job.launcher.task == "launcher":
        merged["mpi"] = "none"
    elif job.launcher.task == "rank":
        # Consecutive ranks on each node, whatever the default of the site or the shell.
        merged["distribution"] = "block"
        if decide_binding(job) or not job.topology.asks_cpus:
            # Each rank gets the CPUs next to its GPU; or the ranks share all CPUs if it is
            # unknown how many there are: Slurm would bind each rank to one.
            merged["cpu-bind"] = "none"
    if job.launcher.task != "command":
        merged["wait"] = "600"
    given = {**job.cluster.srun, **job.spec.srun}
    for option, value in given.items():
        merged.pop(option, None)
        if value is not False:
            merged[option] = None if value is True else str(value)
    _check_bound(job, merged)
    _check_binding(job, merged)
    return list(merged.items())


def launch_argv(plan: Plan) -> list[str]:
    """Build the command that starts the tasks of a job: srun with all its options.

    A launcher has one task per node, srun itself one per rank. On the hosts of a hostfile there is
    no srun: the harness gets the method to reach the hosts, and their names.

    The number of tasks is given twice, because an salloc with another number would otherwise win
    (SLURM_NTASKS).
    """
    launcher = LAUNCHERS[plan.launcher]
    if plan.hosts:
        return [launcher.remote, plan.python or "python3", *plan.hosts]
    argv = ["srun", f"--nodes={plan.nodes}", f"--ntasks={plan.nodes * plan.tasks_per_node}"]
    argv.append(f"--ntasks-per-node={plan.tasks_per_node}")
    return argv + [
        f"--{option}" if value is None else f"--{option}={value}" for option, value in plan.step
    ]


def build_launcher_args(job: Job) -> list[str]:
    """Fill the launcher's additional options; refuse misspelt ones and those that hpcrun sets."""
    name, given = job.launcher.name, job.spec.launcher_args
    if given and name not in _OWNED_OPTIONS:
        instead = "srun: {OPTION: VALUE} has options of srun" if name == "srun" else "leave it out"
        job.found.refuse("launcher_args", f"launcher {name} reads none; {instead}")
        return []
    owned, others = (table.get(name, "").split() for table in (_OWNED_OPTIONS, _OTHER_OPTIONS))
    for index, word in enumerate(given):
        option, where = word.split("=")[0], f"launcher_args[{index}]"
        plain = option.removeprefix("--").replace("-", "_")
        if not option.startswith("--") or plain in others:
            continue
        close = difflib.get_close_matches(plain, [*others, *owned], 1, cutoff=0.8)
        if plain in owned:
            job.found.refuse(where, f"{option}: hpcrun sets it")
        elif close:
            meant = "--" + (close[0].replace("_", "-") if "-" in option[2:] else close[0])
            job.found.refuse(where, f"{option}: {name} has no such option; did you mean {meant}?")
    return [job.fill(word, f"launcher_args[{index}]") for index, word in enumerate(given)]


def decide_binding(job: Job) -> str:
    """Decide how the harness binds ranks to cores, in torchrun's terms; "" binds none.

    On whole nodes the cores next to a GPU are divided among its ranks, as LUMI's guide recommends.
    """
    if job.spec.binding == "none" or not job.topology.gpus_per_node or sees_one_gpu(job):
        return ""
    return "exclusive" if job.topology.whole_node else "node"


def sees_one_gpu(job: Job) -> bool:
    """Return True if srun gives each rank its own GPU, the only one that it sees."""
    return bool({**job.cluster.srun, **job.spec.srun}.get("gpus-per-task"))


def _check_bound(job: Job, step: Mapping[str, str | None]) -> None:
    where = "srun" if {"gpu-bind", "gpus-per-task"} & job.spec.srun.keys() else "cluster srun"
    each, bind = step.get("gpus-per-task"), step.get("gpu-bind") or "none"
    if each is not None and job.launcher.task != "rank":
        message = f"{each}, but {job.launcher.name} starts the ranks, and its task must see all "
        job.found.refuse(f"{where}.gpus-per-task", message + "GPUs of the node: set launcher: srun")
    elif each not in (None, "1"):
        job.found.refuse(f"{where}.gpus-per-task", f"{each}: a rank has one GPU")
    elif each is None and bind.removeprefix("verbose,") not in ("none", "verbose"):
        message = f"{bind}: ranks that see the same GPUs would share one; set launcher: srun and "
        job.found.refuse(f"{where}.gpu-bind", message + "srun: {gpus-per-task: 1} too, or neither")


def _check_binding(job: Job, step: Mapping[str, str | None]) -> None:
    if job.spec.binding == "none":
        return
    task, bind, unbound = job.launcher.task, step.get("cpu-bind") or "", ("", "none", "verbose")
    if job.launcher.name == "ray":
        message = "auto, but the script starts its own ranks on Ray's workers: remove it"
        job.found.refuse("binding", message)
    elif task == "command":
        message = "auto, but the command starts its own ranks, if any: remove it, or name what "
        job.found.refuse("binding", message + f"starts them (launcher: {DEFAULT})")
    elif sees_one_gpu(job) and not (step.get("gpu-bind") or "").endswith("closest"):
        message = "auto, but srun gives each rank its GPU (gpus-per-task): "
        job.found.refuse(
            "binding", message + "srun: {gpu-bind: closest} selects the one next to it"
        )
    elif task == "rank" and not sees_one_gpu(job) and bind.rpartition(",")[2] not in unbound:
        message = f"auto, but srun binds the ranks, too (cpu-bind: {bind}): remove one of them"
        job.found.refuse("binding", message)


# ---- Frameworks --------------------------------------------------------------------------------


def decide_framework(spec: JobSpec) -> FrameworkName:
    """Return the framework that loading the job has set or inferred; else torch.

    >>> decide_framework(JobSpec(launcher="accelerate")), decide_framework(JobSpec())
    ('accelerate', 'torch')
    """
    return infer_framework(spec).framework or "torch"


def framework_section(job: Job) -> Section | None:
    """Set the variables that the framework reads, identically for every launcher.

    A setting that affects training is exported only if the job names it, because Accelerate's
    variables override the arguments of a script.

    Accelerate's variables are those that ``accelerate launch`` sets (utils/launch.py). Lightning
    uses RANK and WORLD_SIZE only if torchrun's variable exists; otherwise it counts Slurm's tasks,
    one per node (accelerator_connector.py, _choose_and_init_cluster_environment).
    """
    framework, launcher, precision = job.framework, job.launcher, job.spec.precision
    variables: dict[str, str] = {}
    if framework in ON_ACCELERATE:
        if precision is not None:
            variables["ACCELERATE_MIXED_PRECISION"] = "no" if precision == "fp32" else precision
        if "deepspeed_config" in job.values:
            variables["ACCELERATE_USE_DEEPSPEED"] = "true"
            variables["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = job.values["deepspeed_config"]
        if framework == "accelerate" and job.spec.batch.sets_accumulation:
            steps = str(job.batch.gradient_accumulation_steps)
            variables["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = steps
    if framework == "lightning" and launcher.task != "command" and not launcher.is_torchelastic:
        variables["TORCHELASTIC_RUN_ID"] = job.place.run_id
    if not variables:
        return None
    title = {"accelerate": "Accelerate", "transformers": "The Trainer's Accelerate"}
    comments = {
        "accelerate": "Defaults of Accelerator().",
        "transformers": "Precision, and DeepSpeed's configuration, for any launcher.",
        "lightning": "Makes Lightning use the launcher's ranks instead of Slurm's tasks.",
    }
    return Section(
        block="environment",
        title=title.get(framework, "Lightning"),
        variables=variables,
        comment=comments[framework],
    )


def activation_checkpointing_notes(spec: JobSpec, extra_args: Sequence[str]) -> list[str]:
    """Warn if nothing passes activation_checkpointing to the program: it then saves no memory.

    ``extra_args`` are the arguments of the command line.

    >>> spec = JobSpec(script="a.py", activation_checkpointing=True)
    >>> activation_checkpointing_notes(spec, ["--recompute"])[0][:42]
    'activation_checkpointing: neither an argum'
    """
    texts = [*spec.args, *(spec.command or []), *set_variables(spec.env).values(), *extra_args]
    if not spec.activation_checkpointing or any("{activation_checkpointing}" in t for t in texts):
        return []
    return [
        "activation_checkpointing: neither an argument nor a variable passes "
        "{activation_checkpointing}; your script must read HPCRUN_ACTIVATION_CHECKPOINTING itself"
    ]


# ---- The YAML of accelerate launch -------------------------------------------------------------


# The keys of Accelerate's ClusterConfig (commands/config/config_args.py), 1.0 to 1.15: any other
# key makes the launch fail with "unknown keys".
KNOWN_KEYS = frozenset(
    {
        "command_file",
        "commands",
        "compute_environment",
        "debug",
        "deepspeed_config",
        "distributed_type",
        "downcast_bf16",
        "dynamo_backend",
        "dynamo_config",
        "enable_cpu_affinity",
        "fp16",
        "fp8_config",
        "fsdp_config",
        "gpu_ids",
        "ipex_config",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "main_training_function",
        "megatron_lm_config",
        "mixed_precision",
        "mpirun_config",
        "num_machines",
        "num_processes",
        "parallelism_config",
        "rdzv_backend",
        "same_network",
        "tpu_env",
        "tpu_name",
        "tpu_use_cluster",
        "tpu_use_sudo",
        "tpu_vm",
        "tpu_zone",
        "use_cpu",
    }
)

# The job or the allocation decides these; another value would contradict them.
DECIDED = {
    "compute_environment": "the ranks run where Slurm starts them",
    "gpu_ids": "the GPUs are those of the allocation",
    "machine_rank": "each node has its own",
    "main_process_ip": "it is known when the job starts",
    "main_process_port": "it is known when the job starts",
    "num_machines": "set resources.nodes instead",
    "num_processes": "set resources.nodes and gpus_per_node instead",
    "rdzv_backend": "hpcrun's rendezvous is static",
    "same_network": "hpcrun's rendezvous is static",
}

# With one of these and a deepspeed_config_file, DeepSpeedPlugin raises (utils/dataclasses.py,
# _deepspeed_config_checks).
IN_THE_JSON = {
    "gradient_accumulation_steps": "batch.gradient_accumulation_steps",
    "gradient_clipping": "deepspeed.config.gradient_clipping",
    "offload_optimizer_device": "deepspeed.offload.optimizer",
    "offload_optimizer_nvme_path": "deepspeed.offload.nvme_path",
    "offload_param_device": "deepspeed.offload.param",
    "offload_param_nvme_path": "deepspeed.offload.nvme_path",
    "zero3_save_16bit_model": "deepspeed.config",
    "zero_stage": "deepspeed.zero_stage",
}

# Types with which `accelerate launch` starts one process per rank (commands/launch.py,
# launch_command); with NO and MULTI_CPU it starts one per node.
STARTS_ALL = (
    "DEEPSPEED",
    "FSDP",
    "MEGATRON_LM",
    "MULTI_GPU",
    "MULTI_HPU",
    "MULTI_MLU",
    "MULTI_MUSA",
    "MULTI_NEURON",
    "MULTI_NPU",
    "MULTI_SDAA",
    "MULTI_XPU",
)


def build_accelerate_config(job: Job) -> dict[str, Any]:
    """Build the YAML; the user's ``accelerate.config`` is merged last and wins.

    MULTI_GPU is correct on CPUs too: it makes ``accelerate launch`` start all ranks with torchrun,
    and each rank finds its own device. With a DeepSpeed JSON, neither precision nor anything else
    that it contains may appear here. The multi-node launcher ``standard`` uses torchrun; any other
    would start its own ``deepspeed`` and append the whole environment to ./.deepspeed_env. Keys
    that Accelerate does not know, or that contradict the job, are refused.
    """
    config: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE"}
    if "deepspeed_config" not in job.values:
        config["distributed_type"] = "MULTI_GPU"
        if (precision := job.spec.precision) is not None:
            config["mixed_precision"] = "no" if precision == "fp32" else precision
    else:
        config["distributed_type"] = "DEEPSPEED"
        config["deepspeed_config"] = {
            "deepspeed_config_file": job.values["deepspeed_config"],
            "deepspeed_multinode_launcher": "standard",
        }
    config["num_machines"] = job.topology.nodes
    config["num_processes"] = job.topology.world_size
    over = job.spec.accelerate.config if job.spec.accelerate else {}
    for key, message in _find_forbidden_keys(config, over):
        job.found.refuse(f"accelerate.config.{key}", message)
    return merge(config, over)


def unknown_key(key: str) -> str:
    """Explain a key that Accelerate does not know, with a suggestion; "" for a known key.

    >>> unknown_key("num_proceses"), unknown_key("debug")
    ('no such key of Accelerate; did you mean num_processes?', '')
    """
    if key in KNOWN_KEYS:
        return ""
    close = difflib.get_close_matches(key, KNOWN_KEYS, 1)
    hint = f"did you mean {close[0]}?" if close else "accelerate launch would refuse it"
    return f"no such key of Accelerate; {hint}"


def _find_forbidden_keys(
    decided: Mapping[str, Any], over: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield each key of the user that is not allowed, and the reason."""
    for key, value in over.items():
        if message := unknown_key(key):
            yield key, message
        elif key in DECIDED and value != decided.get(key):
            yield key, f"hpcrun sets it: {DECIDED[key]}"
    kind = over.get("distributed_type", decided["distributed_type"])
    with_deepspeed = decided["distributed_type"] == "DEEPSPEED"
    if with_deepspeed != (kind == "DEEPSPEED"):
        why = "the job has a deepspeed section" if with_deepspeed else "set deepspeed: {} instead"
        yield "distributed_type", f"{kind}: {why}"
    elif kind not in STARTS_ALL:
        why = "starts one process on a node; MULTI_GPU starts all, on CPUs too"
        yield "distributed_type", f"{kind} {why}"
    precision = over.get("mixed_precision")
    if precision is not None and with_deepspeed:
        yield "mixed_precision", "DeepSpeed's JSON has it: set precision instead"
    elif precision not in (None, "fp8", decided.get("mixed_precision")):
        yield "mixed_precision", f"{precision}: set precision instead"
    if over.get("use_cpu"):
        yield "use_cpu", "the cluster profile sets it, as accelerator: cpu"
    section, path = over.get("deepspeed_config"), "deepspeed_config"
    if section is not None and not with_deepspeed:
        yield path, "the job has no deepspeed section: set deepspeed: {} instead"
    elif isinstance(section, Mapping):
        for key, value in section.items():
            if key in IN_THE_JSON:
                instead = f"set {IN_THE_JSON[key]} instead"
                yield f"{path}.{key}", f"Accelerate refuses it beside DeepSpeed's JSON: {instead}"
            elif key == "deepspeed_config_file":
                yield f"{path}.{key}", "hpcrun's own: set deepspeed.config_file instead"
            elif key == "deepspeed_multinode_launcher" and value != "standard":
                why = f"{value}: it would start a launcher inside the launcher; remove it"
                yield f"{path}.{key}", why
            elif key == "deepspeed_hostfile":
                yield f"{path}.{key}", "nothing reads it: Slurm starts the nodes"
    elif section is not None:
        yield path, "not a map"
