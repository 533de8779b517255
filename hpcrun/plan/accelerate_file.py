"""Merge a user's ``accelerate launch`` YAML into the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from hpcrun.errors import Problem
from hpcrun.plan.deepspeed import merge
from hpcrun.plan.findings import Findings
from hpcrun.plan.launchers import unknown_key
from hpcrun.spec import Accelerate, DeepSpeed, JobSpec, Offload

# These keys describe the machine on which the file was written, not the allocation.
_MACHINE_KEYS = (
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "gpu_ids",
    "rdzv_backend",
    "same_network",
)
_PRECISIONS = {"no": "fp32", "fp16": "fp16", "bf16": "bf16"}
_STEPS = "gradient_accumulation_steps"


def merge_accelerate_file(
    spec: JobSpec, keys: Mapping[str, Any], lines: Mapping[str, int | None]
) -> tuple[JobSpec, Findings]:
    """Move the settings of a file to the job's fields, and the rest to ``accelerate.config``.

    Settings that the job decides, such as the number of processes, are ignored; a different value
    in the file is a note. Unknown keys are refused.

    Args:
        keys: The contents of the file.
        lines: The line of each key, for messages.

    >>> spec = JobSpec(accelerate=Accelerate(config_file="a.yaml"))
    >>> taken, _ = merge_accelerate_file(spec, {"mixed_precision": "fp16", "num_machines": 1}, {})
    >>> taken.precision, taken.accelerate.config
    ('fp16', {})
    """
    section = spec.accelerate or Accelerate()
    found, source = Findings(), section.config_file or ""
    rest = {key: value for key, value in keys.items() if key not in _MACHINE_KEYS}

    def note_other(key: str, given: object, wanted: object, decides: str) -> None:
        if given is not None and given != wanted:
            found.notes.append(
                f"{source}: {key}: {given} is ignored: the job has {wanted}, by {decides}"
            )

    for key in keys:
        if message := unknown_key(key):
            found.problems.append(Problem(key, message, source, lines.get(key)))
    nodes, gpus = spec.resources.most_nodes, spec.resources.gpus_per_node
    note_other("num_machines", rest.pop("num_machines", None), nodes, "resources.nodes")
    processes, decides = nodes * max(1, gpus), "resources.nodes and gpus_per_node"
    note_other("num_processes", rest.pop("num_processes", None), processes, decides)
    kind = rest.get("distributed_type")
    if kind == "NO" and nodes * gpus <= 1:
        del rest["distributed_type"]  # the value in a file for one GPU
    elif kind == "DEEPSPEED":
        del rest["distributed_type"]
        own = rest.pop("deepspeed_config", None)
        own = dict(own) if isinstance(own, Mapping) else {}
        for key in list(own):
            expected, own[key] = _read_value(key, own[key])
            if expected:
                path = f"deepspeed_config.{key}"
                message = f"{own.pop(key)!r}: expected {expected}"
                found.problems.append(Problem(path, message, source, lines.get("deepspeed_config")))
        steps = own.pop(_STEPS, None)
        steps = None if steps == "auto" else steps
        if not spec.batch.sets_accumulation and steps:
            spec = structs.replace(
                spec, batch=structs.replace(spec.batch, gradient_accumulation_steps=steps)
            )
        wanted = spec.batch.gradient_accumulation_steps or steps
        note_other(f"deepspeed_config.{_STEPS}", steps, wanted, f"batch.{_STEPS}")
        given = dict(own)
        section_of_file = _extract_deepspeed(own)
        if spec.deepspeed is None:
            spec = structs.replace(spec, deepspeed=section_of_file)
        elif dropped := [key for key in given if key not in own]:
            names = ", ".join(dropped)
            found.notes.append(
                f"{source}: deepspeed_config: {names}: ignored, because the job has a deepspeed "
                "section"
            )
        rest |= {"deepspeed_config": own} if own else {}
    precision = rest.get("mixed_precision")
    if precision in _PRECISIONS:
        del rest["mixed_precision"]
        spec = structs.replace(spec, precision=spec.precision or _PRECISIONS[precision])
        note_other("mixed_precision", _PRECISIONS[precision], spec.precision, "precision")
    config = merge(rest, section.config)
    return structs.replace(spec, accelerate=structs.replace(section, config=config)), found


def _read_value(key: str, value: Any) -> tuple[str, Any]:
    """Parse a value of ``deepspeed_config``, where Accelerate also accepts quoted numbers.

    Returns:
        The expected kind of value, "" if the value is valid; and the parsed value.

    >>> _read_value("zero_stage", "3"), _read_value("zero_stage", "three")
    (('', 3), ('0, 1, 2 or 3', 'three'))
    """
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        value = value.lower() == "true"
    if key == "zero_stage":
        return "" if value in (0, 1, 2, 3) and type(value) is int else "0, 1, 2 or 3", value
    if key == _STEPS:
        is_number = type(value) is int and value > 0
        return "" if is_number or value == "auto" else "a whole number", value
    if key in ("offload_optimizer_device", "offload_param_device"):
        value = None if value in (None, "none") else value
        return "" if value in (None, "cpu", "nvme") else "none, cpu or nvme", value
    is_path = key in ("deepspeed_config_file", "offload_optimizer_nvme_path")
    is_path = is_path or key == "offload_param_nvme_path"
    if is_path:
        return "" if value is None or isinstance(value, str) else "a path", value
    return "", value


def _extract_deepspeed(own: dict[str, Any]) -> DeepSpeed:
    """Move the keys that the job's section has from ``own`` to a new section."""
    for key in ("deepspeed_multinode_launcher", "deepspeed_hostfile"):
        own.pop(key, None)  # hpcrun starts the nodes
    offload: dict[str, Any] = {}
    for part in ("optimizer", "param"):
        offload[part] = own.pop(f"offload_{part}_device", None) or "none"
        path = own.pop(f"offload_{part}_nvme_path", None)
        if path not in (None, "none"):
            offload["nvme_path"] = path
    config: dict[str, Any] = {}
    clipping, gather = own.pop("gradient_clipping", None), own.pop("zero3_save_16bit_model", None)
    if clipping is not None:
        config["gradient_clipping"] = clipping
    stage = own.pop("zero_stage", None)
    if gather is not None and stage == 3:
        config["zero_optimization"] = {"stage3_gather_16bit_weights_on_model_save": gather}
    return DeepSpeed(
        zero_stage=stage,
        offload=Offload(**offload),
        config_file=own.pop("deepspeed_config_file", None),
        config=config,
    )
