"""Keys of DeepSpeed's JSON that contradict one another, or that do nothing as they stand.

Each rule names where DeepSpeed 0.19.8 stops or looks away. A contradiction fails the run or trains
something else; what does nothing is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

Path = tuple[str, ...]
Finding = tuple[Path, str]

# runtime/config.py, DEEPSPEED_OPTIMIZERS, of those that ZeRO knows or that the muP and Muon
# wrappers stand for.
_KNOWN_TO_ZERO = {"adam", "adamw", "adagrad", "lion", "muon", "muadam", "muadamw", "musgd"}


def value_at(config: Mapping[str, Any], path: str) -> Any:
    """Give the value at a dotted path, or None.

    >>> value_at({"bf16": {"enabled": True}}, "bf16.enabled")
    True
    """
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def stage_of(config: Mapping[str, Any]) -> int:
    """Give the ZeRO stage that a configuration trains with; 0 where it says none.

    >>> stage_of({"zero_optimization": {"stage": 3.0}}), stage_of({})
    (3, 0)
    """
    stage = value_at(config, "zero_optimization.stage")
    return int(stage) if isinstance(stage, (int, float)) else 0


def precision_of(config: Mapping[str, Any]) -> Literal["bf16", "fp16", "fp32"]:
    """Give the number format that a configuration trains in.

    >>> precision_of({"fp16": {"enabled": True}}), precision_of({})
    ('fp16', 'fp32')
    """
    if _on(config, "bf16.enabled") or _on(config, "bfloat16.enabled"):
        return "bf16"
    if _on(config, "fp16.enabled"):
        return "fp16"
    if _on(config, "torch_autocast.enabled"):
        dtype = str(value_at(config, "torch_autocast.dtype"))
        return (
            "fp16" if dtype.endswith(("fp16", "float16", "half")) and "b" not in dtype else "bf16"
        )
    return "fp32"


def contradictions(config: Mapping[str, Any], framework: str) -> list[Finding]:
    """List what fails the run or trains something else, each with the key to blame."""
    return [finding for rule in _ERRORS for finding in rule(config, framework)]


def inert(config: Mapping[str, Any], framework: str) -> list[Finding]:
    """List what does nothing as it stands."""
    return [finding for rule in _NOTES for finding in rule(config, framework)]


def _both_formats(config: Mapping[str, Any], _: str) -> Iterator[Finding]:
    # runtime/config.py: "cannot be simultaneously enabled".
    if _on(config, "bf16.enabled") and _on(config, "fp16.enabled"):
        yield ("fp16", "enabled"), "bf16 is enabled too; one of the two"


def _offload(config: Mapping[str, Any], _: str) -> Iterator[Finding]:
    stage = stage_of(config)
    for part, least in (("offload_param", 3), ("offload_optimizer", 1)):
        device = value_at(config, f"zero_optimization.{part}.device")
        at = ("zero_optimization", part, "device")
        if device not in ("cpu", "nvme"):
            continue
        if stage < least:
            yield at, f"needs stage {least}{'' if least == 3 else ' or more'}; it is {stage}"
        elif device == "nvme" and stage < 3:
            # Only runtime/zero/stage3.py swaps to files.
            yield at, f"nvme needs stage 3; it is {stage}"
        if device == "nvme" and not value_at(config, f"zero_optimization.{part}.nvme_path"):
            yield at, "nvme needs nvme_path beside it"
    ratio = value_at(config, "zero_optimization.offload_optimizer.ratio")
    if isinstance(ratio, (int, float)) and ratio < 1 and stage != 3:
        yield ("zero_optimization", "offload_optimizer", "ratio"), f"needs stage 3; it is {stage}"


def _old_beside_new(config: Mapping[str, Any], _: str) -> Iterator[Finding]:
    # runtime/config_utils.py, _process_deprecated_field asserts.
    for old, new in (
        ("cpu_offload", "offload_optimizer"),
        ("cpu_offload_param", "offload_param"),
        (
            "stage3_gather_fp16_weights_on_model_save",
            "stage3_gather_16bit_weights_on_model_save",
        ),
    ):
        zero = _section(config, "zero_optimization")
        if zero.get(old) is not None and zero.get(new) is not None:
            yield ("zero_optimization", old), f"{new} is given too and replaces it; take this away"


def _legacy_stage_1(config: Mapping[str, Any], _: str) -> Iterator[Finding]:
    if _on(config, "zero_optimization.legacy_stage1"):
        yield ("zero_optimization", "legacy_stage1"), "is gone since 0.5.9, and DeepSpeed stops"


def _checkpointing(config: Mapping[str, Any], _: str) -> Iterator[Finding]:
    # runtime/activation_checkpointing/checkpointing.py, configure(): both are asserted.
    section = _section(config, "activation_checkpointing")
    at = ("activation_checkpointing", "contiguous_memory_optimization")
    if section.get("contiguous_memory_optimization") in (True, 1):
        if section.get("number_checkpoints") is None:
            yield at, "needs number_checkpoints, the number of the model's layers"
        if section.get("partition_activations") not in (True, 1):
            yield at, "needs partition_activations: true"


def _gradient_norm(config: Mapping[str, Any], _: str) -> Iterator[Finding]:
    if value_at(config, "zero_optimization.compute_grad_norm") not in (False, 0):
        return
    at = ("zero_optimization", "compute_grad_norm")
    if stage_of(config) not in (1, 2):
        yield at, f"false needs stage 1 or 2; it is {stage_of(config)}"
    # Absent, gradients are clipped at 1.0 (since 0.19.3).
    elif value_at(config, "gradient_clipping") != 0:
        yield at, "false needs gradient_clipping: 0"


def _summed_gradients(config: Mapping[str, Any], _: str) -> Iterator[Finding]:
    how = value_at(config, "gradient_allreduce_op")
    if isinstance(how, str) and how.lower() == "sum" and stage_of(config) == 3:
        yield ("gradient_allreduce_op",), "sum does not go with stage 3"


def _half_masters(config: Mapping[str, Any], _: str) -> Iterator[Finding]:
    # runtime/config.py, _do_error_check.
    for section, key in (
        ("fp16", "fp16_master_weights_and_grads"),
        ("bf16", "bf16_master_weights_and_grads"),
        ("bf16", "bf16_optimizer_states"),
    ):
        if _on(config, f"{section}.{key}") and stage_of(config) == 0:
            yield (section, key), "needs stage 1, 2 or 3; it is 0"
    states, masters = "bf16.bf16_optimizer_states", "bf16.bf16_master_weights_and_grads"
    if _on(config, states) and not _on(config, masters):
        yield ("bf16", "bf16_optimizer_states"), "needs bf16_master_weights_and_grads: true"


def _optimizer(config: Mapping[str, Any], _: str) -> Iterator[Finding]:
    params = _section(_section(config, "optimizer"), "params")
    if "max_grad_norm" in params:
        # runtime/engine.py, _configure_basic_optimizer raises.
        yield ("optimizer", "params", "max_grad_norm"), "say it as gradient_clipping"
    kind = value_at(config, "optimizer.type")
    untested = isinstance(kind, str) and kind.lower() not in _KNOWN_TO_ZERO
    if untested and stage_of(config) and not _on(config, "zero_allow_untested_optimizer"):
        message = f"ZeRO does not know {kind}; it takes it with zero_allow_untested_optimizer: true"
        yield ("optimizer", "type"), message


def _warmup(config: Mapping[str, Any], _: str) -> Iterator[Finding]:
    steps = value_at(config, "scheduler.params.warmup_num_steps")
    if isinstance(steps, (int, float)) and steps < 1:
        # runtime/lr_schedules.py raises since 0.19.6; before it took another number.
        yield ("scheduler", "params", "warmup_num_steps"), f"{steps} is too small; 1 or more"


def _lightning(config: Mapping[str, Any], framework: str) -> Iterator[Finding]:
    # strategies/deepspeed.py, _format_batch_size_and_grad_accum_config raises.
    if framework == "lightning" and "gradient_accumulation_steps" in config:
        yield (
            ("gradient_accumulation_steps",),
            "Lightning stops at it; the job says it under batch, and the script gives "
            "{gradient_accumulation_steps} to Trainer(accumulate_grad_batches=...)",
        )


def _stage_3_options(config: Mapping[str, Any], _: str) -> Iterator[Finding]:
    stage = stage_of(config)
    for key in _section(config, "zero_optimization"):
        if key.startswith("stage3_") and stage != 3:
            yield ("zero_optimization", key), f"does nothing with stage {stage}"


def _unread_sections(config: Mapping[str, Any], framework: str) -> Iterator[Finding]:
    if framework in ("transformers", "accelerate"):
        if _section(config, "activation_checkpointing"):
            yield (
                ("activation_checkpointing",),
                "only deepspeed.checkpointing reads it; a model of transformers needs "
                "gradient_checkpointing_enable() or --gradient_checkpointing",
            )
        if "steps_per_print" in config:
            yield ("steps_per_print",), "Accelerate switches these lines off"
    if stage_of(config) == 3 and _on(config, "zero_optimization.elastic_checkpoint"):
        yield ("zero_optimization", "elastic_checkpoint"), "does nothing with stage 3"


def _section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    below = config.get(key)
    return below if isinstance(below, Mapping) else {}


def _on(config: Mapping[str, Any], path: str) -> bool:
    return value_at(config, path) in (True, 1)


_Rule = Callable[[Mapping[str, Any], str], Iterator[Finding]]
_ERRORS: tuple[_Rule, ...] = (
    _both_formats,
    _offload,
    _old_beside_new,
    _legacy_stage_1,
    _checkpointing,
    _gradient_norm,
    _summed_gradients,
    _half_masters,
    _optimizer,
    _warmup,
    _lightning,
)
_NOTES: tuple[_Rule, ...] = (_stage_3_options, _unread_sections)
