"""Who fills "auto" in DeepSpeed's JSON: hpcrun what a job says, each framework what it knows.

DeepSpeed itself fills nothing. "auto" at its top level stays a word, and stops the training in a
comparison of a word with a number, or never; in a section it is dropped for the default, so that
``bf16.enabled: "auto"`` trains in fp32 (runtime/config_utils.py, DeepSpeedConfigModel).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Path = tuple[str, ...]

_BUCKETS = (
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
)
_SCHEDULER = tuple(
    f"scheduler.params.{name}"
    for name in ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")
)

# transformers 5.23, integrations/deepspeed.py, HfTrainerDeepSpeedConfig (with its Trainer's
# Accelerate: the clipping of 16-bit weights at saving); accelerate 1.15, utils/dataclasses.py,
# DeepSpeedPlugin, and accelerator.py, _prepare_deepspeed (the optimizer's and the scheduler's for
# DummyOptim and DummyScheduler). Lightning 2.6, strategies/deepspeed.py, adds what is absent and
# leaves an "auto" as it is.
FILLED_BY: Mapping[str, tuple[str, ...]] = {
    "deepspeed": (),
    "torch": (),
    "lightning": (),
    "transformers": (
        "gradient_clipping",
        "optimizer.params.lr",
        "optimizer.params.betas",
        "optimizer.params.eps",
        "optimizer.params.weight_decay",
        *_SCHEDULER,
        *_BUCKETS,
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    ),
    "accelerate": (
        "gradient_clipping",
        "optimizer.params.lr",
        "optimizer.params.weight_decay",
        *_SCHEDULER,
        *_BUCKETS,
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    ),
}


def explain_auto(path: Path, framework: str) -> str:
    """Say what would happen to an "auto" that nobody fills; "" where somebody does.

    >>> explain_auto(("gradient_clipping",), "transformers")
    ''
    >>> explain_auto(("gradient_clipping",), "deepspeed")
    '"auto" is filled by nobody with framework deepspeed: DeepSpeed takes it for a value and fails'
    """
    dotted = ".".join(path)
    if dotted in FILLED_BY.get(framework, ()):
        return ""
    start = f'"auto" is filled by nobody with framework {framework}: '
    if framework == "accelerate":
        return start + "Accelerate stops at it"
    if len(path) == 1 or path[1] == "params":
        return start + "DeepSpeed takes it for a value and fails"
    return start + "DeepSpeed drops it without a word and takes its default"


def fill(config: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Put the values of ``known``, by dotted path, where ``config`` has "auto".

    >>> fill({"bf16": {"enabled": "auto"}, "x": "auto"}, {"bf16.enabled": True})
    {'bf16': {'enabled': True}, 'x': 'auto'}
    """

    def walk(section: Mapping[str, Any], path: str) -> dict[str, Any]:
        filled = dict(section)
        for key, value in section.items():
            inner = f"{path}{key}"
            if isinstance(value, Mapping):
                filled[key] = walk(value, f"{inner}.")
            elif value == "auto" and inner in known:
                filled[key] = known[inner]
        return filled

    return walk(config, "")
