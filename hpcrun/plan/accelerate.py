"""The YAML that ``accelerate launch`` reads."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from hpcrun.errors import Problem
from hpcrun.plan.deepspeed import merge
from hpcrun.spec.job import JobSpec

# The keys of Accelerate's ClusterConfig (commands/config/config_args.py), 1.0 to 1.15: any other
# ends the launch with "unknown keys".
KNOWN_KEYS = frozenset({
    "command_file", "commands", "compute_environment", "debug", "deepspeed_config",
    "distributed_type", "downcast_bf16", "dynamo_backend", "dynamo_config",
    "enable_cpu_affinity", "fp16", "fp8_config", "fsdp_config", "gpu_ids", "ipex_config",
    "machine_rank", "main_process_ip", "main_process_port", "main_training_function",
    "megatron_lm_config", "mixed_precision", "mpirun_config", "num_machines", "num_processes",
    "parallelism_config", "rdzv_backend", "same_network", "tpu_env", "tpu_name",
    "tpu_use_cluster", "tpu_use_sudo", "tpu_vm", "tpu_zone", "use_cpu",
})  # fmt: skip

# Of these the job or the allocation decides; another value would be another job.
DECIDED = {
    "compute_environment": "the ranks run where Slurm starts them",
    "gpu_ids": "the GPUs are those of the allocation",
    "machine_rank": "each node has its own",
    "main_process_ip": "it is known when the job starts",
    "main_process_port": "it is known when the job starts",
    "num_machines": "say it as resources.nodes",
    "num_processes": "say it as resources.nodes and gpus_per_node",
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

# Types with which `accelerate launch` starts one process for each rank (commands/launch.py,
# launch_command); with NO and MULTI_CPU it starts one on each node.
STARTS_ALL = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "MULTI_GPU", "MULTI_HPU", "MULTI_MLU",
              "MULTI_MUSA", "MULTI_NEURON", "MULTI_NPU", "MULTI_SDAA", "MULTI_XPU")  # fmt: skip


def build_accelerate_config(
    spec: JobSpec,
    *,
    precision: str,
    nodes: int,
    ranks_per_node: int,
    deepspeed_config: str | None,
    problems: list[Problem],
) -> dict[str, Any]:
    """Build the YAML; the user's ``accelerate.config`` merges last and wins.

    MULTI_GPU is right on CPUs too: it makes ``accelerate launch`` start all ranks by torchrun, and
    each rank finds its own device. With a DeepSpeed JSON neither precision nor anything else of
    it may stand here. The multi-node launcher ``standard`` is torchrun once more: any other would
    start a ``deepspeed`` of its own and append the whole environment to ./.deepspeed_env. Keys
    that Accelerate does not know, or that contradict the job, are added to ``problems``.

    >>> made = build_accelerate_config(
    ...     JobSpec(),
    ...     precision="bf16",
    ...     nodes=2,
    ...     ranks_per_node=4,
    ...     deepspeed_config=None,
    ...     problems=[],
    ... )
    >>> made["distributed_type"], made["num_processes"]
    ('MULTI_GPU', 8)
    """
    config: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE"}
    if deepspeed_config is None:
        config["distributed_type"] = "MULTI_GPU"
        config["mixed_precision"] = "no" if precision == "fp32" else precision
    else:
        config["distributed_type"] = "DEEPSPEED"
        config["deepspeed_config"] = {
            "deepspeed_config_file": deepspeed_config,
            "deepspeed_multinode_launcher": "standard",
        }
    config["num_machines"] = nodes
    config["num_processes"] = nodes * ranks_per_node
    over = spec.accelerate.config if spec.accelerate else {}
    _check(config, over, problems)
    return merge(config, over)


def _check(decided: Mapping[str, Any], over: Mapping[str, Any], problems: list[Problem]) -> None:
    def refuse(key: str, message: str) -> None:
        problems.append(Problem("", None, f"accelerate.config.{key}", message))

    for key, value in over.items():
        if key not in KNOWN_KEYS:
            close = difflib.get_close_matches(key, KNOWN_KEYS, 1)
            hint = f"did you mean {close[0]}?" if close else "accelerate launch would refuse it"
            refuse(key, f"no such key of Accelerate; {hint}")
        elif key in DECIDED and value != decided.get(key):
            refuse(key, f"hpcrun sets it: {DECIDED[key]}")
    kind = over.get("distributed_type", decided["distributed_type"])
    with_deepspeed = decided["distributed_type"] == "DEEPSPEED"
    if with_deepspeed != (kind == "DEEPSPEED"):
        wanted = "the job has a deepspeed section" if with_deepspeed else "say it as deepspeed: {}"
        refuse("distributed_type", f"{kind}: {wanted}")
    elif kind not in STARTS_ALL:
        refuse("distributed_type", f"{kind} starts one process on a node; MULTI_GPU starts all, "
               "on CPUs too")  # fmt: skip
    precision = over.get("mixed_precision")
    if precision is not None and with_deepspeed:
        refuse("mixed_precision", "DeepSpeed's JSON has it: say it as precision")
    elif precision not in (None, "fp8", decided.get("mixed_precision")):
        refuse("mixed_precision", f"{precision}: say it as precision")
    if over.get("use_cpu"):
        refuse("use_cpu", "the cluster profile says it, as accelerator: cpu")
    _check_deepspeed(over.get("deepspeed_config"), with_deepspeed, problems)


def _check_deepspeed(section: object, with_deepspeed: bool, problems: list[Problem]) -> None:
    if section is None:
        return
    path = "accelerate.config.deepspeed_config"
    if not with_deepspeed:
        message = "the job has no deepspeed section: say it as deepspeed: {}"
        problems.append(Problem("", None, path, message))
        return
    if not isinstance(section, Mapping):
        problems.append(Problem("", None, path, "not a map"))
        return
    for key, value in section.items():
        if key in IN_THE_JSON:
            message = f"Accelerate refuses it beside DeepSpeed's JSON: say it as {IN_THE_JSON[key]}"
        elif key == "deepspeed_config_file":
            message = "hpcrun's own: say it as deepspeed.config_file"
        elif key == "deepspeed_multinode_launcher" and value != "standard":
            message = f"{value}: it would start a launcher in the launcher; leave it out"
        elif key == "deepspeed_hostfile":
            message = "nothing reads it: Slurm starts the nodes"
        else:
            continue
        problems.append(Problem("", None, f"{path}.{key}", message))
