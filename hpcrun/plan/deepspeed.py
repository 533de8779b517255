"""The DeepSpeed JSON that a plan writes; deepspeed_check validates the user's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from hpcrun.spec import Batch, DeepSpeed, Document

# Elements, not bytes. DeepSpeed's default of 5e8 is 1 GB per bucket in 16 bits, and overlap_comm
# uses several buckets; its ZeRO tutorial and the Trainer's examples use 2e8.
BUCKET = 200_000_000
DEFAULT_STAGE = 2
BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
# Frameworks that fill open values of the JSON with those of the script. A value written by hpcrun
# would replace the script's although nobody chose it.
FILLS_OPEN_VALUES = ("accelerate", "transformers", "lightning")
CPU_ADAM = "DeepSpeedCPUAdam"


class DeepSpeedProbe(Struct, frozen=True, kw_only=True):
    """The response of the DeepSpeed that will train: the dotted keys it ``read``, and problems."""

    version: str
    read: list[str] = []
    problems: list[tuple[str, str]] = []


class DeepSpeedInput(Struct, frozen=True, kw_only=True):
    """The user's own JSON, and the response of DeepSpeed to it.

    Attributes:
        note: Why DeepSpeed could not be run.
        own_optimizer: True if the script names an optimizer that works with offload.
        elsewhere: What requests DeepSpeed besides the job's section, in a job without GPUs.
    """

    file: Document | None = None
    answer: DeepSpeedProbe | None = None
    note: str = ""
    own_optimizer: bool = False
    elsewhere: str = ""


class RequestedTraining(Struct, frozen=True, kw_only=True):
    """Settings of a job outside ``deepspeed`` that determine the JSON.

    ``batch`` has the sizes under DeepSpeed's names, in samples; with a framework of
    FILLS_OPEN_VALUES those that the job sets, and ``precision`` is None where it sets none.
    ``nvme_path`` is the folder for
    nvme where the job names none; ``own_optimizer``: whether the script is known to choose an
    optimizer that goes with offload.
    """

    framework: str
    precision: str | None
    batch: dict[str, int]
    nvme_path: str
    own_optimizer: bool = False


def compose_deepspeed_config(
    deepspeed: DeepSpeed, training: RequestedTraining, *, file: Document | None = None
) -> dict[str, Any]:
    """Compose the JSON from the user's file or defaults, then ``config``, then missing values.

    A file is taken as it is, but for what the job sets and the file leaves open: an "auto" for
    the batch sizes, the number format and the stage, and batch sizes that are not there.
    """
    known: dict[str, Any] = dict(training.batch)
    if training.precision is not None:
        known["bf16.enabled"] = training.precision == "bf16"
        known["fp16.enabled"] = training.precision == "fp16"
    stage = DEFAULT_STAGE if file is None else None
    if deepspeed.zero_stage is not None:
        stage = deepspeed.zero_stage
    if stage is not None:
        known["zero_optimization.stage"] = stage
    base = file.value if file is not None else _build_default_config(deepspeed, training)
    config = fill(merge(base, deepspeed.config), known)
    for key, value in training.batch.items():
        if training.framework != "lightning":
            config.setdefault(key, value)
    return config


def model_parallel(deepspeed: DeepSpeed, file: Document | None) -> int:
    """Return the number of ranks that share one copy of the model and see the same samples.

    >>> model_parallel(DeepSpeed(config={"tensor_parallel": {"autotp_size": 4}}), None)
    4
    """
    config = merge(file.value if file is not None else {}, deepspeed.config)
    ranks = 1
    for path in ("tensor_parallel.autotp_size", "sequence_parallel_size"):
        size = value_at(config, path)
        ranks *= size if isinstance(size, int) and size > 1 else 1
    return ranks


def given_batch(deepspeed: DeepSpeed, file: Document | None) -> Batch:
    """Return the batch sizes of the user's own JSON, used by a job that sets none.

    >>> given_batch(DeepSpeed(config={"train_batch_size": 64}), None).effective
    64
    """
    config = merge(file.value if file is not None else {}, deepspeed.config)
    sizes = [config.get(key) for key in BATCH_KEYS]
    effective, micro, steps = (size if type(size) is int and size > 0 else None for size in sizes)
    return Batch(effective=effective, micro_batch_per_gpu=micro, gradient_accumulation_steps=steps)


def given_precision(
    deepspeed: DeepSpeed, file: Document | None
) -> Literal["bf16", "fp16", "fp32"] | None:
    """Return the number format of the user's own JSON; None if it leaves that to the job.

    >>> given_precision(DeepSpeed(config={"fp16": {"enabled": True}}), None)
    'fp16'
    """
    config = merge(file.value if file is not None else {}, deepspeed.config)
    if "auto" in (value_at(config, "bf16.enabled"), value_at(config, "fp16.enabled")):
        return None
    found = precision_of(config)
    # A user's file that names no format trains in fp32 and is used unchanged.
    return found if found != "fp32" or file is not None else None


def _build_default_config(deepspeed: DeepSpeed, training: RequestedTraining) -> dict[str, Any]:
    """Build the JSON for a job without the user's own file.

    All three batch sizes are written: DeepSpeed then stops at once in a world of another size
    (runtime/config.py, ``_batch_assertion``), and the Trainer of transformers where the script's
    arguments set another batch. Lightning sets the accumulation from its Trainer and the micro
    batch from the data loader, and refuses both here; the product must then equal the job's.
    Sizes and a number format that the job does not set are left to Accelerate and to the Trainer
    as "auto", and to Lightning by saying nothing. Nor does hpcrun choose at what gradients are
    clipped: Accelerate and the Trainer fill that too, and DeepSpeed has a default.

    Since 0.17.6 DeepSpeed prints its step lines only at ``log_level`` info (a key since 0.19.3,
    unread before), and since 0.15.2 only with ``steps_per_print``.
    """
    batch: dict[str, Any] = dict(training.batch)
    other: dict[str, Any] = {"steps_per_print": 10, "log_level": "info"}
    if training.framework == "lightning":
        batch = {key: batch[key] for key in BATCH_KEYS[:1] if key in batch}
        # DeepSpeed's default; without the key its validation of a stage 3 model fails.
        other["zero_allow_untested_optimizer"] = True
    if training.framework in ("transformers", "accelerate"):
        other["gradient_clipping"] = "auto"
        # Accelerate disables these lines. Of the level info then stay 150 lines of settings at
        # the start, and in fp16 the steps that an overflow skipped (fp16/loss_scaler.py).
        del other["steps_per_print"]
        if training.precision != "fp16":
            del other["log_level"]
        batch = dict.fromkeys(BATCH_KEYS, "auto") | batch
    formats: dict[str, Any] = {}
    for name in ("bf16", "fp16"):
        # Frameworks add an absent number format if the script requests it.
        if training.precision is None:
            if training.framework != "lightning":
                formats[name] = {"enabled": "auto"}
        elif training.precision == name or training.framework in FILLS_OPEN_VALUES:
            formats[name] = {"enabled": training.precision == name}
    return {
        **batch,
        **other,
        "zero_optimization": _build_zero_section(deepspeed, training),
        **formats,
    }


def _build_zero_section(deepspeed: DeepSpeed, training: RequestedTraining) -> dict[str, Any]:
    """Build the ZeRO section.

    Stage 3 gets no allgather bucket, which it does not read. What the Trainer derives from the
    model's width is left to it (transformers' integrations/deepspeed.py: reduce bucket h * h,
    prefetch 0.9 h * h, persistence 10 h).
    """
    stage = DEFAULT_STAGE if deepspeed.zero_stage is None else deepspeed.zero_stage
    zero: dict[str, Any] = {"stage": stage}
    if stage >= 2:
        zero["overlap_comm"] = True
        zero["contiguous_gradients"] = True
    if stage >= 1:
        zero["reduce_bucket_size"] = BUCKET
    if stage in (1, 2):
        zero["allgather_bucket_size"] = BUCKET
    if stage == 3:
        # Required by save_16bit_model.
        zero["stage3_gather_16bit_weights_on_model_save"] = True
        if training.framework == "transformers":
            zero["reduce_bucket_size"] = "auto"
            zero["stage3_prefetch_bucket_size"] = "auto"
            zero["stage3_param_persistence_threshold"] = "auto"
    for part, device in (
        ("offload_optimizer", deepspeed.offload.optimizer),
        ("offload_param", deepspeed.offload.param),
    ):
        if device != "none":
            zero[part] = {"device": device, "pin_memory": True}
        if device == "nvme":
            zero[part]["nvme_path"] = training.nvme_path
    return zero


# The same settings as keys of the job and of DeepSpeed's JSON.
_ZERO_KEYS = {
    "zero_stage": "zero_optimization.stage",
    "offload.optimizer": "zero_optimization.offload_optimizer.device",
    "offload.param": "zero_optimization.offload_param.device",
}


def find_zero_keys(section: DeepSpeed) -> dict[str, list[str]]:
    """Return the keys of the job that change a setting of ZeRO, if it is not ``deepspeed.NAME``.

    A setting of the user's own JSON changes only by ``deepspeed.config``, which is merged last, and
    must agree with the job's key if that is set.

    >>> find_zero_keys(DeepSpeed(config_file="ds.json"))["zero_stage"]
    ['deepspeed.config.zero_optimization.stage']
    >>> find_zero_keys(DeepSpeed(config={"zero_optimization": {"stage": 2}}, zero_stage=2))
    {'zero_stage': ['deepspeed.zero_stage', 'deepspeed.config.zero_optimization.stage']}
    """
    found = {}
    for name, path in _ZERO_KEYS.items():
        if section.config_file is None and value_at(section.config, path) is None:
            continue
        kind = name.removeprefix("offload.")
        value = section.zero_stage if kind == name else getattr(section.offload, kind)
        own = [] if value in (None, "none") else [f"deepspeed.{name}"]
        found[name] = [*own, f"deepspeed.config.{path}"]
    return found


def optimizer_notes(config: Mapping[str, Any], training: RequestedTraining) -> list[str]:
    """Note the optimizer that offload requires: DeepSpeed refuses torch's own optimizers."""
    device = value_at(config, "zero_optimization.offload_optimizer.device")
    alone = training.framework in ("deepspeed", "lightning") and not training.own_optimizer
    chosen = "optimizer" in config or config.get("zero_force_ds_cpu_optimizer") is False
    if device not in ("cpu", "nvme") or not alone or chosen:
        return []
    return [
        f"optimizer offload: the script must train with deepspeed.ops.adam.{CPU_ADAM}, "
        "or leave the optimizer to the optimizer section of deepspeed.config"
    ]


# ---- Reading and changing a configuration ------------------------------------------------------


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


def fill(config: Mapping[str, Any], known: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Replace "auto" by the values of ``known``, by dotted path; ``path`` leads to ``config``.

    >>> fill({"bf16": {"enabled": "auto"}, "x": "auto"}, {"bf16.enabled": True})
    {'bf16': {'enabled': True}, 'x': 'auto'}
    """
    filled = dict(config)
    for key, value in config.items():
        inner = f"{path}{key}"
        if isinstance(value, Mapping):
            filled[key] = fill(value, known, f"{inner}.")
        elif value == "auto" and inner in known:
            filled[key] = known[inner]
    return filled


def value_at(config: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path, or None.

    >>> value_at({"bf16": {"enabled": True}}, "bf16.enabled")
    True
    """
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def is_on(config: Mapping[str, Any], path: str) -> bool:
    """Return True if the switch at a dotted path is on; DeepSpeed accepts 1 for true.

    >>> is_on({"fp16": {"enabled": 1}}, "fp16.enabled")
    True
    """
    return value_at(config, path) in (True, 1)


def zero_stage_of(config: Mapping[str, Any]) -> int:
    """Return the ZeRO stage of a configuration; 0 if it names none.

    >>> zero_stage_of({"zero_optimization": {"stage": 3.0}}), zero_stage_of({})
    (3, 0)
    """
    stage = value_at(config, "zero_optimization.stage")
    return int(stage) if isinstance(stage, (int, float)) else 0


def precision_of(config: Mapping[str, Any]) -> Literal["bf16", "fp16", "fp32"]:
    """Return the number format of a configuration.

    >>> precision_of({"fp16": {"enabled": True}}), precision_of({})
    ('fp16', 'fp32')
    """
    if is_on(config, "bf16.enabled") or is_on(config, "bfloat16.enabled"):
        return "bf16"
    if is_on(config, "fp16.enabled"):
        return "fp16"
    if is_on(config, "torch_autocast.enabled"):
        dtype = str(value_at(config, "torch_autocast.dtype"))
        is_half = dtype.endswith(("fp16", "float16", "half")) and "b" not in dtype
        return "fp16" if is_half else "bf16"
    return "fp32"
