"""The DeepSpeed configuration that a plan writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from hpcrun.errors import Problem
from hpcrun.plan.deepspeed_auto import fill
from hpcrun.plan.deepspeed_check import Answer, Said, check_keys, place
from hpcrun.plan.deepspeed_rules import (
    contradictions,
    inert,
    precision_of,
    stage_of,
    value_at,
)
from hpcrun.spec.deepspeed_json import Document
from hpcrun.spec.job import DeepSpeed

# Elements, not bytes. DeepSpeed's own default of 5e8 is 1 GB a bucket in 16 bits, and with
# overlap_comm there are several; its own ZeRO tutorial and the Trainer's examples take 2e8.
BUCKET = 200_000_000
DEFAULT_STAGE = 2
CPU_ADAM = "DeepSpeedCPUAdam"


class Given(Struct, frozen=True, kw_only=True):
    """What was found out about the user's own JSON: the file as read, and what DeepSpeed said.

    ``note`` tells why it could not be asked. ``own_optimizer``: the script names the optimizer that
    goes with offload.
    """

    file: Document | None = None
    answer: Answer | None = None
    note: str = ""
    own_optimizer: bool = False


class Training(Struct, frozen=True, kw_only=True):
    """What a job says elsewhere than under ``deepspeed``. Batch sizes are in samples.

    ``nvme_path`` is the folder for nvme where the job names none; ``own_optimizer``: whether the
    script is known to choose an optimizer that goes with offload.
    """

    framework: str
    precision: str
    micro_batch_per_gpu: int
    gradient_accumulation_steps: int
    effective_batch: int
    nvme_path: str
    own_optimizer: bool = False


def build_deepspeed_config(
    deepspeed: DeepSpeed,
    training: Training,
    *,
    given: Given,
    problems: list[Problem],
    notes: list[str],
) -> dict[str, Any]:
    """Build the JSON and check it.

    What is wrong is added to ``problems``, what does nothing to ``notes``.
    """
    file, answer = given.file, given.answer
    if given.note:
        notes.append(given.note)
    config = compose_deepspeed_config(deepspeed, training, file=file)
    if file is None and not deepspeed.config:
        _advise(config, training, given, notes)
        return config
    said = Said(config=deepspeed.config, file=file, file_name=deepspeed.config_file or "")
    found: list[Problem] = []
    check_keys(config, said, training.framework, answer, found, notes)
    _check_agreement(config, deepspeed, training, said, found)
    before = list(found)
    for path, message in contradictions(config, training.framework):
        if not any(_names(problem, path) for problem in before):
            found.append(place(said, path, message) or _somewhere(path, message))
    for path, message in inert(config, training.framework):
        problem = place(said, path, message)
        if problem is not None:
            notes.append(str(problem))
    problems += found
    _advise(config, training, given, notes)
    return config


def compose_deepspeed_config(
    deepspeed: DeepSpeed, training: Training, *, file: Document | None = None
) -> dict[str, Any]:
    """Put the JSON together: the user's file, else hpcrun's own; then ``config``; then the gaps.

    A file is taken as it is, but for what the job says and the file leaves open: an "auto" for
    the batch sizes, the number format and the stage, and batch sizes that are not there.
    """
    base = file.value if file is not None else _preset(deepspeed, training)
    merged = merge(base, deepspeed.config)
    known: dict[str, Any] = {
        **_batch(training),
        "bf16.enabled": training.precision == "bf16",
        "fp16.enabled": training.precision == "fp16",
    }
    stage = DEFAULT_STAGE if file is None else None
    if deepspeed.zero_stage is not None:
        stage = deepspeed.zero_stage
    if stage is not None:
        known["zero_optimization.stage"] = stage
    config = fill(merged, known)
    gaps = {} if training.framework == "lightning" else _batch(training)
    for key, value in gaps.items():
        config.setdefault(key, value)
    return config


def model_parallel(deepspeed: DeepSpeed, file: Document | None) -> int:
    """Give how many ranks hold one copy of the model together and see the same samples.

    >>> model_parallel(DeepSpeed(config={"tensor_parallel": {"autotp_size": 4}}), None)
    4
    """
    config = merge(file.value if file is not None else {}, deepspeed.config)
    ranks = 1
    for path in ("tensor_parallel.autotp_size", "sequence_parallel_size"):
        size = value_at(config, path)
        ranks *= size if isinstance(size, int) and size > 1 else 1
    return ranks


def said_precision(
    deepspeed: DeepSpeed, file: Document | None
) -> Literal["bf16", "fp16", "fp32"] | None:
    """Give the number format that the user's own JSON says; None: it leaves that to the job.

    >>> said_precision(DeepSpeed(config={"fp16": {"enabled": True}}), None)
    'fp16'
    """
    config = merge(file.value if file is not None else {}, deepspeed.config)
    if "auto" in (value_at(config, "bf16.enabled"), value_at(config, "fp16.enabled")):
        return None
    said = precision_of(config)
    # A file of the user's own that names no format trains in fp32, and is taken as it is.
    return said if said != "fp32" or file is not None else None


def _batch(training: Training) -> dict[str, Any]:
    return {
        "train_batch_size": training.effective_batch,
        "train_micro_batch_size_per_gpu": training.micro_batch_per_gpu,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
    }


def _preset(deepspeed: DeepSpeed, training: Training) -> dict[str, Any]:
    """Build the JSON of a job that brings none.

    All three batch sizes are written: DeepSpeed then stops at once in a world of another size
    (runtime/config.py, ``_batch_assertion``), and the Trainer of transformers where the script's
    arguments say another batch. Lightning sets the accumulation from its Trainer and the micro
    batch from the data loader, and refuses to be told; the product then holds it to the job's.

    Gradients are clipped at 1.0, DeepSpeed's own default since 0.19.3, said here so that older
    versions do the same; where a Trainer has an argument for it, that one counts.

    Since 0.17.6 DeepSpeed prints its step lines only at ``log_level`` info (a key since 0.19.3,
    unread before), and since 0.15.2 only with ``steps_per_print``.
    """
    batch: dict[str, Any] = _batch(training)
    other: dict[str, Any] = {"gradient_clipping": 1.0, "steps_per_print": 10, "log_level": "info"}
    if training.framework == "lightning":
        batch = {"train_batch_size": training.effective_batch}
        del other["gradient_clipping"]
        # Its own default; without the key its validation of a stage 3 model fails.
        other["zero_allow_untested_optimizer"] = True
    elif training.framework == "transformers":
        other["gradient_clipping"] = "auto"
    if training.framework in ("transformers", "accelerate"):
        # Accelerate switches these lines off. Of the level info then stay 150 lines of settings at
        # the start, and in fp16 the steps that an overflow skipped (fp16/loss_scaler.py).
        del other["steps_per_print"]
        if training.precision != "fp16":
            del other["log_level"]
    formats = {}
    for name in ("bf16", "fp16"):
        # The frameworks add a format that is not mentioned when the script asks for it.
        if training.precision == name or training.framework not in ("deepspeed", "torch"):
            formats[name] = {"enabled": training.precision == name}
    return {**batch, **other, "zero_optimization": _zero(deepspeed, training), **formats}


def _zero(deepspeed: DeepSpeed, training: Training) -> dict[str, Any]:
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
        # Without it save_16bit_model has nothing to save.
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


def _check_agreement(
    config: Mapping[str, Any],
    deepspeed: DeepSpeed,
    training: Training,
    said: Said,
    problems: list[Problem],
) -> None:
    """What a job says elsewhere cannot be another thing in the JSON: which would be trained?"""
    for key, wanted in _batch(training).items():
        got = config.get(key)
        # Lightning's own rule tells of the accumulation.
        if got is None or got == wanted or _is_told(problems, key):
            continue
        field = "resources.nodes, gpus_per_node and batch give it"
        if key != "train_batch_size":
            field = f"say it as batch.{key.replace('train_micro_batch_size', 'micro_batch')}"
        _contradict(said, (key,), f"{got} contradicts the job's {wanted}: {field}", problems)
    got_stage = stage_of(config)
    if deepspeed.zero_stage is not None and got_stage != deepspeed.zero_stage:
        message = f"{got_stage} contradicts the job's {deepspeed.zero_stage}: say it as "
        message += "deepspeed.zero_stage"
        if not _is_told(problems, "zero_optimization.stage"):
            _contradict(said, ("zero_optimization", "stage"), message, problems)
    trains = precision_of(config)
    if trains != training.precision and not _is_told(problems, "bf16", "fp16"):
        at = "bf16" if trains == "fp32" and training.precision == "bf16" else "fp16"
        at = trains if trains != "fp32" else at
        message = f"trains in {trains}, and the job's precision is {training.precision}: "
        message += f"say precision: {trains}"
        _contradict(said, (at, "enabled"), message, problems)
    for part, wanted in (
        ("offload_optimizer", deepspeed.offload.optimizer),
        ("offload_param", deepspeed.offload.param),
    ):
        got = value_at(config, f"zero_optimization.{part}.device") or "none"
        if wanted not in ("none", got):
            field = f"deepspeed.offload.{part.removeprefix('offload_')}"
            message = f"{got} contradicts the job's {wanted}: say it as {field}"
            _contradict(said, ("zero_optimization", part, "device"), message, problems)


def _advise(config: Mapping[str, Any], training: Training, given: Given, notes: list[str]) -> None:
    """Tell what the script must bring for offload: DeepSpeed stops at torch's own optimizers."""
    device = value_at(config, "zero_optimization.offload_optimizer.device")
    knows = training.own_optimizer or given.own_optimizer
    alone = training.framework in ("deepspeed", "lightning") and not knows
    chosen = "optimizer" in config or config.get("zero_force_ds_cpu_optimizer") is False
    if device in ("cpu", "nvme") and alone and not chosen:
        notes.append(
            f"optimizer offload: the script must train with deepspeed.ops.adam.{CPU_ADAM}, "
            "or leave the optimizer to the optimizer section of deepspeed.config"
        )


def _contradict(said: Said, path: tuple[str, ...], message: str, problems: list[Problem]) -> None:
    problems.append(place(said, path, message) or _somewhere(path, message, said))


def _somewhere(path: tuple[str, ...], message: str, said: Said | None = None) -> Problem:
    """Blame the file as a whole, else the section, for a key that the user did not write."""
    dotted = ".".join(path)
    if said is not None and said.file is not None:
        return Problem(said.file_name, None, dotted, message)
    return Problem("", None, f"deepspeed.config.{dotted}", message)


def _names(problem: Problem, path: tuple[str, ...]) -> bool:
    return problem.path.removeprefix("deepspeed.config.") == ".".join(path)


def _is_told(problems: list[Problem], *starts: str) -> bool:
    paths = [problem.path.removeprefix("deepspeed.config.") for problem in problems]
    return any(path.startswith(starts) for path in paths)


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
