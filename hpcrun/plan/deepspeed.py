"""The DeepSpeed configuration that a plan writes.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcrun.errors import Problem, SpecError
from hpcrun.spec.job import DeepSpeed


def build_deepspeed_config(
    deepspeed: DeepSpeed,
    *,
    precision: str,
    micro_batch_per_gpu: int,
    gradient_accumulation_steps: int,
    effective_batch: int,
) -> dict[str, Any]:
    """Build the JSON; the user's ``config`` merges last and wins.

    All three batch sizes are written: DeepSpeed then stops at once in a world of another size
    (runtime/config.py, ``_batch_assertion``). Gradients are clipped at 1.0, DeepSpeed's own
    default since 0.19.3, said here so that older versions do the same.
    """
    zero: dict[str, Any] = {"stage": deepspeed.zero_stage}
    if deepspeed.zero_stage >= 2:
        zero["overlap_comm"] = True
        zero["contiguous_gradients"] = True
    if deepspeed.zero_stage == 3:
        # Without it save_16bit_model has nothing to save.
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    for part, device in (
        ("offload_optimizer", deepspeed.offload.optimizer),
        ("offload_param", deepspeed.offload.param),
    ):
        if device != "none":
            zero[part] = {"device": device, "pin_memory": True}
    config: dict[str, Any] = {
        "train_batch_size": effective_batch,
        "train_micro_batch_size_per_gpu": micro_batch_per_gpu,
        "gradient_accumulation_steps": gradient_accumulation_steps,
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
    }
    if precision != "fp32":
        config[precision] = {"enabled": True}
    merged = merge(config, deepspeed.config)
    _refuse_contradictions(config, merged)
    return merged


def _refuse_contradictions(decided: Mapping[str, Any], merged: Mapping[str, Any]) -> None:
    """What a job says elsewhere cannot be another thing in the JSON: which would be trained?"""
    batch = "resources.nodes, gpus_per_node and batch give it"
    problems = []
    for path, field in (
        ("train_batch_size", batch),
        ("train_micro_batch_size_per_gpu", "batch.micro_batch_per_gpu"),
        ("gradient_accumulation_steps", "batch.gradient_accumulation_steps"),
        ("bf16.enabled", "precision"),
        ("fp16.enabled", "precision"),
        ("zero_optimization.stage", "deepspeed.zero_stage"),
    ):
        wanted, got = _at(decided, path), _at(merged, path)
        if got is not None and got != (wanted or False):
            message = f"{got} contradicts {wanted or 'no such setting'}: say it as {field}"
            problems.append(Problem("", None, f"deepspeed.config.{path}", message))
    if problems:
        raise SpecError(problems)


def _at(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge maps deeply; anything else is replaced; None removes a key.

    >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": None}})
    {'a': {'b': 3}}
    """
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            below = merged.get(key)
            merged[key] = merge(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged
