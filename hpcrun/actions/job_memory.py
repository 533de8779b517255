"""The memory of a job: the model that its arguments name, and the settings of its plan."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from hpcrun.actions.measurements import find_calibration
from hpcrun.actions.start_folder import StartFolder
from hpcrun.errors import HpcrunError, InputError
from hpcrun.files import read_plain
from hpcrun.fit import (
    Calibration,
    MemoryEstimate,
    ModelShape,
    Place,
    Precision,
    StepTrace,
    Training,
    apply_trace,
    build_traced_shape,
    count_token_flops,
    estimate_memory,
    find_gpu_memory,
    list_candidates,
    read_model_config,
)
from hpcrun.plan import parse_memory_mb
from hpcrun.spec import parse_hjson
from hpcrun.text import GIB

if TYPE_CHECKING:
    from hpcrun.plan import Plan
    from hpcrun.spec import Cluster, JobSpec

# Options of training scripts: examples of transformers, TRL, nanoGPT, LLaMA-Factory.
MODEL_OPTIONS = (
    *("model_name_or_path", "model_name", "model", "base_model"),
    "pretrained_model_name_or_path",
)
_LENGTH = (
    *("max_seq_length", "max_length", "block_size", "seq_length", "seq_len", "max_seq_len"),
    *("model_max_length", "cutoff_len", "context_length", "sequence_length"),
)
# Options for sequences of exactly this length: run_clm of transformers, Megatron, torchtitan. The
# others are a maximum, to which shorter sequences may not be padded.
_EXACT_LENGTHS = ("block_size", "seq_length", "seq_len")
# Words of a script or its arguments for which the trained parameters or their format are unknown.
_UNKNOWN_TRAINING = re.compile(
    # Parts of names count, as in use_lora, get_peft_model or LoraConfig, but not of words as in
    # "exploration".
    r"(?<![a-z])(?i:peft|[qd]?lora|dora(?![a-z])|bitsandbytes|bnb_|load_in_[48]bit"
    r"|galore|requires_grad|(?:un)?freez|(?:un)?frozen|device_map|adapter)"
    r"|Lo[rR][aA]|Peft|BitsAndBytes|GaLore|Freez|Frozen|Adapter",
)
# Words of Python itself that freeze no parameters.
_OTHER_FREEZING = re.compile(r"dataclass\([^()]*\)|\bgc\.freeze\b|\bfrozenset\b")
# Processes of the data loader: options of the Trainer and others, and as a number in a script.
_WORKERS = ("dataloader_num_workers", "num_workers", "workers", "num_data_workers", "n_workers")
_WORKERS_IN_SCRIPT = re.compile(r"\bnum_workers *= *([0-9]{1,3})\b")
# With model parallelism, fewer samples are in a step than the number of GPUs suggests.
_MODEL_PARALLEL = re.compile(
    r"(tensor|pipeline|context|sequence|expert)[-_ ]?(model[-_ ])?parallel|\b[tpcs]p_size\b", re.I
)
_NUMBERS = "give numbers: --layers 32 --hidden 4096 --heads 32 --ffn 11008 --vocab 32000"
# The optimizers of the Trainer (transformers/training_args.py, OptimizerNames) by hpcrun's names.
_OPTIMIZERS = {
    **dict.fromkeys(("adafactor", "sgd"), ""),
    **dict.fromkeys(("lion_32bit", "paged_lion_32bit", "lion"), "lion"),
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"), "adamw_8bit"),
    "adamw_torch_8bit": "adamw_8bit",
    "rmsprop": "momentum",
    "adagrad": "momentum",
}
# Those of DeepSpeed's JSON (deepspeed/runtime/config.py, DEEPSPEED_OPTIMIZERS). Adagrad keeps one
# sum.
_DEEPSPEED_OPTIMIZERS = {
    **dict.fromkeys(("lion", "sgd", "muon"), ""),
    **dict.fromkeys(("adam", "adamw", "fusedadam", "lamb"), "adamw"),
    "adagrad": "momentum",
}
# Words of a script or its arguments for further models that need memory.
_OTHER_MODELS = re.compile(
    r"\b(?:DPO|GRPO|PPO|KTO|RLOO|GKD)(?:Trainer|Config)\b|\bref(?:erence)?_model|\bteacher_model"
    r"|\bEMAModel\b|\bModelEma|\buse_ema\b|\bAveragedModel\b"
)
# Options with the degree of a parallelism that divides the model or its activations.
_PARALLEL_OPTIONS = re.compile(
    r"(?:tensor|pipeline|context|sequence|expert)_?(?:model_)?parallel(?:ism)?(?:_size|_degree)?"
    r"|[tpcs]p(?:_size|_degree)?"
)


class JobMemory(Struct, frozen=True, kw_only=True):
    """The estimated memory of a job.

    Attributes:
        model: The model's name or folder.
        capacity: Usable bytes of the smallest GPU that the job may get; None if unknown.
        is_certain: The states are known: DeepSpeed trains all of a model of a known family.
        calibration: The measurement that calibrated the estimate; None if there is none.
        host_capacity: The most bytes of host memory that the job gets on each node; None if
            unknown.
        node_memory: Bytes of host memory that each node has; None if unknown.
        zero_keys: As in the plan.
        loads_in_each_rank: The script loads a whole model, in each rank at the same time.
    """

    model: str
    shape: ModelShape
    training: Training
    estimate: MemoryEstimate
    capacity: float | None
    is_certain: bool
    calibration: Calibration | None = None
    host_capacity: float | None = None
    node_memory: float | None = None
    zero_keys: Mapping[str, list[str]] = {}
    loads_in_each_rank: bool = False


def load_model_shape(
    name: str, environ: Mapping[str, str], folder: StartFolder, *, counts_weights: bool = False
) -> ModelShape:
    """Read the dimensions of a model from its folder, its ``config.json`` or the hub's cache.

    Args:
        counts_weights: If the configuration lacks dimensions, count the parameters in the weights
            beside it; then activations are unknown.
        name: A folder, a file, or a name on the hub such as ``Qwen/Qwen2.5-7B``.
        environ: Says where the hub's cache is.
        folder: The folder of relative paths.

    Raises:
        InputError: There is no such configuration, or it lacks a dimension.
    """
    path = find_model_config(name, environ, folder)
    if path is None:
        _refuse_other_folders(name, folder)
        raise InputError(
            f"{name}: no folder with a config.json, and not in the hub's cache"
            f" ({_hub_cache(environ)})",
            fix=f"download it (hf download {name} config.json), or {_NUMBERS}",
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}", fix=_NUMBERS) from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a JSON object", fix=_NUMBERS)
    try:
        shape = read_model_config(config, str(path))
        found = _count_stored_parameters(path.parent) if shape.notes else None
        if found is None:
            return shape
        note = f"the number of parameters is that of {found[1]}"
        return structs.replace(
            shape, given_parameters=found[0], is_counted=True, notes=[*shape.notes, note]
        )
    except InputError as error:
        found = _count_stored_parameters(path.parent) if counts_weights else None
        if found is None:
            raise
        count, file = found
        note = f"{error.message}; only the model states are computed, of the parameters in {file}"
        kind = config.get("model_type") or config.get("_class_name") or path.parent.name
        return ModelShape(name=str(kind), given_parameters=count, notes=[note])


def _refuse_other_folders(name: str, folder: StartFolder) -> None:
    """Raise InputError for folders that have no config.json for a known reason."""
    path = folder.resolve(name)
    if path is None:
        return
    if (path / "model_index.json").is_file():
        parts = sorted(each.parent.name for each in path.glob("*/config.json"))
        trained = next((each for each in ("transformer", "unet") if each in parts), "PART")
        raise InputError(
            f"{name}: a pipeline of diffusers, which has several models ({', '.join(parts)})",
            fix=f"name the one that is trained: --model {path / trained}",
        )
    if (path / "adapter_config.json").is_file():
        raise InputError(
            f"{name}: an adapter without its base model",
            fix="--model with the base model, and --trainable with the adapter's parameters",
        )


# Files of weights in the order of preference: others are variants of the same, such as in fp16.
_WEIGHTS = ("model.safetensors", "diffusion_pytorch_model.safetensors")
_LONGEST_HEADER_BYTES = 100_000_000


def _count_stored_parameters(folder: Path) -> tuple[int, str] | None:
    """Count the numbers in a model's safetensors files by their headers, and name the file.

    Returns:
        None without such files, or for tensors that are no floating-point numbers (quantized).
    """
    for name in _WEIGHTS:
        files = [name]
        try:
            index = folder / f"{name}.index.json"
            if index.is_file():
                known = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
                files = sorted({Path(each).name for each in known.values()})
            counts = [_count_tensors(folder / each) for each in files]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
        if None not in counts:
            return sum(each or 0 for each in counts), index.name if index.is_file() else name
    return None


def _count_tensors(path: Path) -> int | None:
    """Count the numbers in a safetensors file: 8 bytes with the length of a JSON header."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= _LONGEST_HEADER_BYTES:
            raise ValueError("not a safetensors file")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    # A larger tensor of integers or of 8 bits is packed; counters of batch norms are one number.
    for each in header.values():
        if each["dtype"] not in ("F64", "F32", "F16", "BF16") and math.prod(each["shape"]) > 1:
            return None
    return sum(int(math.prod(each["shape"])) for each in header.values())


def find_model_config(name: str, environ: Mapping[str, str], folder: StartFolder) -> Path | None:
    """Find a model's ``config.json``; None if there is none on this machine."""
    path = folder.resolve(name)
    for candidate in (path / "config.json", path) if path is not None else ():
        if candidate.is_file():
            return candidate
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is None:
        return None
    model = _hub_cache(environ) / f"models--{name.replace('/', '--')}"
    try:
        revision = (model / "refs" / "main").read_text().strip()
    except OSError:
        revision = "*"
    return next(iter(sorted(model.glob(f"snapshots/{revision}/config.json"))), None)


def _hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the hub's cache (huggingface_hub/constants.py)."""
    home = environ.get("HF_HOME") or str(
        Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/")) / ".cache")
        / "huggingface"
    )
    return Path(environ.get("HF_HUB_CACHE") or Path(home) / "hub")


def parse_arguments(words: Sequence[str]) -> dict[str, str]:
    """Return the options of a command line by name, with dashes as underscores.

    >>> parse_arguments(["--model-name=a/b", "--bf16", "--max_length", "512", "+x.y=3"])
    {'model_name': 'a/b', 'bf16': 'true', 'max_length': '512', 'x.y': '3'}
    """
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, has_value, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = value if has_value else "true"
            name = "" if has_value else name
        elif name:
            found[name] = word
            name = ""
        elif match := re.fullmatch(r"\+{0,2}([\w.]+)=(.*)", word):
            found[match[1]] = match[2]
    return found


def estimate_job_memory(
    spec: JobSpec,
    plan: Plan,
    cluster: Cluster,
    *,
    environ: Mapping[str, str],
    folder: StartFolder,
    script: str = "",
    sequence: int | None = None,
    model: str | None = None,
    model_folder: StartFolder | None = None,
    cache_dir: Path | None = None,
) -> JobMemory | None:
    """Estimate the memory of a job; None if its model is unknown.

    Args:
        cache_dir: The cluster's cache, with measurements that calibrate the estimate; None: the
            estimate is not calibrated.
        folder: The folder of relative paths in the arguments, as find_start_folder() returns it.
        script: The text of the script, for signs that only a part of the model is trained.
        sequence: Tokens per sample; None: as in the arguments.
        model: The model; None: as in the arguments.
        model_folder: What ``model`` is relative to; None: ``folder``.

    Raises:
        InputError: ``model`` cannot be read.
    """
    given = None if model is None else load_model_shape(model, environ, model_folder or folder)
    found = _read_plan(plan, environ, folder, sequence=sequence, given=given)
    if found is None:
        return None
    shape, training = found
    if spec.activation_checkpointing:
        training = structs.replace(training, checkpointing=True)
    if not training.loader_workers and (match := _WORKERS_IN_SCRIPT.search(script)):
        training = structs.replace(training, loader_workers=int(match[1]))
    calibration = find_calibration(cache_dir, shape, training)
    training = structs.replace(
        training, unknown=(*training.unknown, *_list_unmodelled(plan, script))
    )
    if word := _find_unknown_training(" ".join([script, *plan.program])):
        note = (
            f"computed as if all parameters were trained: the script or its arguments mention"
            f" {word}; hpcrun fit JOB --trace counts what is trained"
        )
        training = structs.replace(training, unknown=(*training.unknown, note))
    return JobMemory(
        model=model or find_model(plan) or shape.name,
        shape=shape,
        training=training,
        estimate=estimate_memory(shape, training, calibration),
        calibration=calibration,
        capacity=find_capacity(spec, cluster),
        host_capacity=find_host_capacity(plan, cluster),
        node_memory=find_node_memory(plan, cluster),
        zero_keys=plan.zero_keys,
        loads_in_each_rank="from_pretrained" in script,
        is_certain=training.strategy == "zero" and not shape.notes and not training.unknown,
    )


def _list_unmodelled(plan: Plan, script: str) -> list[str]:
    """List what a job has besides one model that is trained without model parallelism."""
    found = []
    for name, value in parse_arguments(plan.program).items():
        last = name.rpartition(".")[2]
        if value.isdecimal() and int(value) > 1 and _PARALLEL_OPTIONS.fullmatch(last):
            found.append(f"not modelled: {name} {value}; computed without model parallelism")
    if match := _OTHER_MODELS.search(" ".join([script, *plan.program])):
        found.append(f"not modelled: further models beside the trained one ({match[0]})")
    if "use_liger_kernel" in parse_arguments(plan.program):
        found.append("not modelled: use_liger_kernel, which needs less memory for the logits")
    return found


def _find_unknown_training(text: str) -> str:
    """Return the word of a script or its arguments for a training of a part, or quantization.

    >>> words = ["--lora_r 8", "train_lora.py", "model.requires_grad_(False)", "unfreeze", "QLoRA"]
    >>> [_find_unknown_training(word) for word in words]
    ['lora', 'lora', 'requires_grad', 'unfreez', 'QLoRA']
    >>> _find_unknown_training("@dataclass(frozen=True) exploration")
    ''
    """
    match = _UNKNOWN_TRAINING.search(_OTHER_FREEZING.sub("", text))
    return match[0] if match else ""


def estimate_traced_memory(
    spec: JobSpec, plan: Plan, cluster: Cluster, trace: StepTrace, folder: StartFolder
) -> JobMemory:
    """Estimate the memory of a job whose step was traced: its sharding is computed.

    Raises:
        InputError: The job's DeepSpeed configuration has model parallelism or an unknown format.
    """
    shape = build_traced_shape(trace, spec.name or plan.name)
    planned = _read_training(plan, parse_arguments(plan.program), None, shape, folder)
    if planned is None and trace.strategy == "deepspeed":
        raise InputError(
            f"{plan.name}: this configuration of DeepSpeed (model parallelism, or "
            'bf16: {enabled: "auto"} that no argument decides) is unknown to hpcrun fit',
            fix="set precision in the job",
        )
    training = apply_trace(planned or Training(gpus=max(plan.world_size, 1)), trace)
    return JobMemory(
        model=shape.name,
        shape=shape,
        training=training,
        estimate=estimate_memory(shape, training),
        capacity=find_capacity(spec, cluster),
        is_certain=False,
    )


def find_model(plan: Plan) -> str | None:
    """Return the model that the arguments of a job name."""
    arguments = parse_arguments(plan.program)
    return next((arguments[key] for key in MODEL_OPTIONS if key in arguments), None)


def _read_plan(
    plan: Plan,
    environ: Mapping[str, str],
    folder: StartFolder,
    *,
    sequence: int | None = None,
    given: ModelShape | None = None,
) -> tuple[ModelShape, Training] | None:
    """Read the model and the settings of a plan; None if they are unknown.

    Args:
        folder: As in estimate_job_memory().
        given: The model; None: as in the arguments.
    """
    shape, name = given, find_model(plan)
    if shape is None and name is not None:
        with contextlib.suppress(InputError):
            shape = load_model_shape(name, environ, folder)
    if shape is None:
        return None
    training = _read_training(plan, parse_arguments(plan.program), sequence, shape, folder)
    return None if training is None else (shape, training)


def count_step_flops(plan: Plan, environ: Mapping[str, str], folder: StartFolder) -> float | None:
    """Return the operations of a step of a job on all GPUs; None unless all of them are known.

    The arguments must name the model and the exact length of the sequences, hpcrun must have
    planned the batch, and the script must train all parameters in 16 bits, without model
    parallelism, and count optimizer steps. ``folder`` is as in estimate_job_memory().
    """
    arguments = parse_arguments(plan.program)
    length = next((arguments[key] for key in _EXACT_LENGTHS if key in arguments), "")
    counts_steps = plan.gradient_accumulation_steps == 1 or plan.framework == "transformers"
    is_script = plan.launcher != "none" and len(plan.program) > 1
    found = _read_plan(plan, environ, folder)
    if not (length.isdecimal() and plan.effective_batch and counts_steps and is_script and found):
        return None
    shape, training = found
    try:
        script = Path(plan.program[1]).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    text = " ".join([script, *plan.program])
    if _find_unknown_training(text) or _MODEL_PARALLEL.search(text) or plan.roles:
        return None
    per_token = count_token_flops(shape, int(length))
    if per_token is None or training.precision == "fp32":
        return None
    return per_token * int(length) * plan.effective_batch


def estimate_options(
    plan: Plan,
    options: Sequence[str],
    environ: Mapping[str, str],
    folder: StartFolder,
    cache_dir: Path | None = None,
) -> dict[str, float]:
    """Estimate the GiB per GPU of a job with one changed option of DeepSpeed each.

    Options whose memory is unknown are omitted, and all if the job's model or batch is unknown.

    Args:
        options: As in ``deepspeed.zero_stage=3``.
        folder: As in estimate_job_memory().
        cache_dir: As in estimate_job_memory().
    """
    memory = _read_plan(plan, environ, folder)
    if memory is None or memory[1].strategy != "zero":
        return {}
    shape, training = memory
    calibration = find_calibration(cache_dir, shape, training)
    found = {}
    for option in options:
        key, _, value = option.removeprefix("deepspeed.").partition("=")
        if key == "zero_stage":
            changed = structs.replace(training, zero_stage=int(value))
        elif key == "offload.optimizer":
            changed = structs.replace(training, offload_optimizer="cpu")
        else:
            changed = structs.replace(training, offload_param="cpu")
        estimate = estimate_memory(shape, changed, calibration)
        if estimate.has_activations:
            found[option] = estimate.total / GIB
    return found


def find_capacity(spec: JobSpec, cluster: Cluster) -> float | None:
    """Return the usable bytes of the smallest GPU that a job may get; None if one is unknown."""
    names = spec.resources.gpu_types or ([cluster.gpu_type] if cluster.gpu_type else [])
    names = names or [name for name in cluster.gpu_types if name != "*"]
    sizes = []
    for name in names:
        kind = cluster.gpu_types.get(name)
        words = [name, *((kind.gres, kind.constraint) if kind is not None else ())]
        known = {find_gpu_memory(word) for word in words if word} - {None}
        if len(known) != 1:
            return None
        sizes.append(known.pop())
    return min((size for size in sizes if size is not None), default=None)


def find_host_capacity(plan: Plan, cluster: Cluster) -> float | None:
    """Return the most bytes of host memory that a job gets on each node; None if unknown."""
    with contextlib.suppress(ValueError):
        given = dict(plan.directives)
        asked = parse_memory_mb(given.get("mem") or "0")
        if each := parse_memory_mb(given.get("mem-per-gpu") or "0"):
            asked = each * plan.gpus_per_node
        if asked:
            return float(asked * 2**20)
    return find_node_memory(plan, cluster)  # --mem=0 is all memory of the node


def find_node_memory(plan: Plan, cluster: Cluster) -> float | None:
    """Return the bytes of host memory of a node of the job's partition; None if unknown."""
    name = dict(plan.directives).get("partition") or cluster.partition or ""
    facts = cluster.partitions.get(name)
    with contextlib.suppress(ValueError):
        if facts is not None and facts.memory_per_node:
            return float(parse_memory_mb(facts.memory_per_node) * 2**20)
    return None


def _read_training(
    plan: Plan,
    arguments: Mapping[str, str],
    sequence: int | None,
    shape: ModelShape,
    folder: StartFolder,
) -> Training | None:
    """Read the settings of a plan; None for settings that the memory model does not know."""
    length = next((arguments[key] for key in _LENGTH if key in arguments), "")
    asked = arguments.get("optim", "adamw")
    optimizer = _OPTIMIZERS.get(asked, "adamw") or asked
    unknown = []
    is_adamw = re.fullmatch(r"(paged_)?adamw(_hf|_torch|_torch_fused|_apex_fused|_32bit)?", asked)
    if asked not in _OPTIMIZERS and not is_adamw:
        unknown.append(f"not modelled: optim {asked}; computed as AdamW")
    attention = arguments.get("attn_implementation", "sdpa")
    micro_batch = arguments.get("per_device_train_batch_size", "")
    if plan.effective_batch is not None:
        micro_batch = str(plan.micro_batch_per_gpu)
    if not micro_batch.isdecimal():
        length, sequence = "", None  # without the batch, the activations are unknown
    training = Training(
        precision=_precision(plan, arguments),
        optimizer=optimizer,
        gpus=max(plan.world_size, 1),
        gpus_per_node=max(plan.ranks_per_node, 1),
        micro_batch=int(micro_batch) if micro_batch.isdecimal() else 1,
        accumulation=plan.gradient_accumulation_steps,
        sequence=sequence or (int(length) if length.isdecimal() else None),
        checkpointing=_has_checkpointing(arguments),
        attention="eager" if attention == "eager" else "sdpa",
        unknown=tuple(unknown),
        loader_workers=_find_number(arguments, _WORKERS, 0),
        loader_prefetch=_find_number(
            arguments, ("dataloader_prefetch_factor", "prefetch_factor"), 2
        ),
    )
    if training.precision == "fp32":
        training = structs.replace(training, weights="pure")
    if own_file := find_own_deepspeed_file(plan):
        config = read_own_deepspeed(folder, own_file)
        return None if config is None else _read_deepspeed(training, config, arguments, shape)
    if plan.deepspeed_config is not None:
        return _read_deepspeed(training, plan.deepspeed_config, arguments, shape)
    accelerate = plan.accelerate_config or {}
    kind = str(accelerate.get("distributed_type", ""))
    if kind in ("MEGATRON_LM", "DEEPSPEED"):
        return None
    section = accelerate.get("fsdp_config") if kind == "FSDP" else None
    if kind == "FSDP" or arguments.get("fsdp", "").lower() not in ("", "false"):
        own = _read_fsdp_config(folder, arguments)
        training = _read_fsdp(training, {**(section or {}), **(own or {})}, arguments)
        if "fsdp_config" in arguments and own is None:
            note = "not modelled: fsdp_config cannot be read; computed as full_shard"
            training = structs.replace(training, unknown=(*training.unknown, note))
    dtype = arguments.get("torch_dtype", "")
    if "dtype" in arguments and plan.framework == "transformers":
        dtype = arguments["dtype"]  # in other scripts, such as nanoGPT, it is that of autocast
    half = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}.get(dtype.removeprefix("torch."))
    # With FSDP and mixed precision, accelerate converts the weights back to fp32
    # (accelerate/utils/fsdp_utils.py, fsdp2_prepare_model; accelerator.py, prepare_model).
    if half and (training.strategy == "ddp" or training.precision == "fp32"):
        return structs.replace(training, weights="pure", precision=half)
    if dtype == "auto":
        note = (
            "computed for weights in fp32; with dtype auto they have the format of the checkpoint"
        )
        return structs.replace(training, unknown=(*training.unknown, note))
    return training


def _find_number(arguments: Mapping[str, str], names: Sequence[str], default: int) -> int:
    """Return the whole number that an option gives, of Hydra too."""
    for name, value in arguments.items():
        if name.rpartition(".")[2] in names and value.isdecimal():
            return int(value)
    return default


def find_own_deepspeed_file(plan: Plan) -> str:
    """Return the DeepSpeed JSON that the arguments name instead of hpcrun's; "" for none."""
    for name, value in parse_arguments(plan.program).items():
        is_option = "deepspeed" in name or name.startswith("ds_")
        if is_option and value.endswith(".json") and value not in _list_generated_files(plan):
            return value
    return ""


def _list_generated_files(plan: Plan) -> list[str]:
    """Return the places of hpcrun's DeepSpeed JSON."""
    if plan.deepspeed_config is None:
        return []
    return [f"{folder}/deepspeed.json" for folder in (plan.run_dir, "${HPCRUN_LOCAL_DIR}")]


def read_own_deepspeed(folder: StartFolder, name: str) -> dict[str, Any] | None:
    """Read the DeepSpeed JSON that a script reads itself; None if this machine does not have it.

    ``folder`` is as in estimate_job_memory().
    """
    path = folder.resolve(name)
    if path is None:
        return None
    try:
        text = read_plain(path).decode()
        return parse_hjson(text, name).value
    except (OSError, ValueError, HpcrunError):
        return None


_CHECKPOINTING = (
    "gradient_checkpointing",
    "activation_checkpointing",
    "use_gradient_checkpointing",
)


def _has_checkpointing(arguments: Mapping[str, str]) -> bool:
    """Return True if arguments, of Hydra too, enable activation checkpointing.

    >>> _has_checkpointing({"model.activation_checkpointing": "True"})
    True
    """
    return any(
        value.lower() in ("true", "1", "yes", "unsloth")
        for name, value in arguments.items()
        if name.rpartition(".")[2] in _CHECKPOINTING
    )


def _read_fsdp_config(folder: StartFolder, arguments: Mapping[str, str]) -> dict[str, Any] | None:
    """Read the JSON of the Trainer's --fsdp_config, inline or from a file; None if it fails.

    Its keys may lack the prefix fsdp_ (transformers/training_args.py, __post_init__).
    """
    given = arguments.get("fsdp_config", "")
    try:
        text = given
        if not given.lstrip().startswith("{"):
            path = folder.resolve(given)
            if path is None:
                return None
            text = read_plain(path).decode()
        found = json.loads(text)
    except (OSError, ValueError, HpcrunError):
        return None
    if not isinstance(found, dict):
        return None
    return {f"fsdp_{key.removeprefix('fsdp_')}": value for key, value in found.items()}


# Numbers of torch's ShardingStrategy (accelerate/utils/constants.py, FSDP_SHARDING_STRATEGY).
_SHARDING = {"1": "full_shard", "2": "shard_grad_op", "3": "no_shard", "4": "hybrid_shard"}
_SHARDING["5"] = "hybrid_shard_zero2"
# Words of --fsdp and keys of fsdp_config whose memory is not modelled.
_UNKNOWN_FSDP = ("shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "offload")


def _read_fsdp(
    training: Training, section: Mapping[str, Any], arguments: Mapping[str, str]
) -> Training:
    """Read the settings of FSDP of the Trainer's arguments or of accelerate's configuration."""
    strategy = str(section.get("fsdp_sharding_strategy", "")).lower()
    words = [_SHARDING.get(strategy, strategy), *re.split(r"[\s,]+", arguments.get("fsdp", ""))]
    enabled = {key for key, value in section.items() if str(value).lower() == "true"}
    if "no_shard" in words:
        return training
    unknown = [f"fsdp: {word}" for word in words if word in _UNKNOWN_FSDP]
    if "fsdp_offload_params" in enabled:
        unknown.append("fsdp_offload_params")
    reshards = str(section.get("fsdp_reshard_after_forward", "true")).lower()
    if _SHARDING.get(reshards, reshards) not in ("true", "full_shard"):
        unknown.append(f"fsdp_reshard_after_forward: {reshards}")
    return structs.replace(
        training,
        strategy="fsdp",
        checkpointing=training.checkpointing or "fsdp_activation_checkpointing" in enabled,
        unknown=(
            *training.unknown,
            *(f"not modelled: {each}; computed as full_shard" for each in unknown),
        ),
    )


def _precision(plan: Plan, arguments: Mapping[str, str]) -> Any:
    for name in ("bf16", "fp16"):
        if arguments.get(name, "").lower() in ("true", "1"):
            return name
    return plan.precision or "fp32"


def _read_deepspeed(
    training: Training,
    config: Mapping[str, Any],
    arguments: Mapping[str, str],
    shape: ModelShape,
) -> Training | None:
    """Read the settings of DeepSpeed's JSON; None for model parallelism or an unknown format."""
    precision: Precision | None = "fp32"
    for name in ("bf16", "fp16"):
        section = config.get(name)
        enabled = section.get("enabled") if isinstance(section, Mapping) else False
        if enabled is True or (enabled == "auto" and arguments.get(name, "") in ("true", "True")):
            precision = "bf16" if name == "bf16" else "fp16"
            break
        if enabled == "auto":
            precision = None
    if precision is None:
        return None
    if any(config.get(key) for key in ("tensor_parallel", "sequence_parallel_size", "pipeline")):
        return None
    zero = config.get("zero_optimization")
    zero = zero if isinstance(zero, Mapping) else {}

    def place(key: str) -> Place:
        section = zero.get(key)
        device = section.get("device") if isinstance(section, Mapping) else "none"
        return "cpu" if device == "cpu" else "nvme" if device == "nvme" else "none"

    hidden = max([stack.hidden for stack in shape.stacks], default=0)

    def number(key: str, default: int, auto: float = 0) -> int:
        """Return a size; for "auto" the one that the Trainer derives from the hidden size."""
        value = zero.get(key, default)
        if value == "auto" and auto:
            return int(auto * hidden**2)
        return int(value) if isinstance(value, int | float) else default

    stage = zero.get("stage", 0)
    if type(stage) is not int or not 0 <= stage <= 3:
        return None
    types = config.get("data_types")
    accumulates_fp32 = isinstance(types, Mapping) and types.get("grad_accum_dtype") == "fp32"
    optimizer = config.get("optimizer")
    kind = str(optimizer.get("type", "")).lower() if isinstance(optimizer, Mapping) else ""
    # DeepSpeed's own optimizer replaces that of the Trainer's arguments.
    unknown = list(training.unknown) if not kind else []
    if kind and kind not in _DEEPSPEED_OPTIMIZERS:
        unknown.append(f"not modelled: optimizer {kind}; computed as AdamW")
    elif kind:
        training = structs.replace(training, optimizer=_DEEPSPEED_OPTIMIZERS[kind] or kind)
    partial = zero.get("offload_optimizer")
    if isinstance(partial, Mapping) and partial.get("ratio", 1.0) != 1.0:
        unknown.append("not modelled: offload_optimizer.ratio; computed as 1")
    for key in ("zero_hpz_partition_size", "mics_shard_size"):
        if isinstance(size := zero.get(key), int) and size > 1:
            unknown.append(f"not modelled: {key}; computed as sharded over all GPUs")
    return structs.replace(
        training,
        strategy="zero",
        zero_stage=stage,
        precision=precision,
        weights="pure" if precision == "fp32" else "master",
        unknown=tuple(unknown),
        offload_optimizer=place("offload_optimizer") if stage else "none",
        offload_param=place("offload_param") if stage == 3 else "none",
        gradient_bytes=4 if accumulates_fp32 else None,
        reduce_bucket=number("reduce_bucket_size", 500_000_000, auto=1),
        prefetch_bucket=number("stage3_prefetch_bucket_size", 50_000_000, auto=0.9),
        # The default of DeepSpeed is true for stage 3 only, which has one bucket anyway.
        overlap_comm=zero.get("overlap_comm") is True,
        sub_group=number("sub_group_size", 1_000_000_000),
        pins_memory=_is_pinned(zero),
        optimizer_buffers=_offload_number(zero, "offload_optimizer", "buffer_count", 4),
        parameter_buffers=_offload_number(zero, "offload_param", "buffer_count", 5),
        parameter_buffer_size=_offload_number(zero, "offload_param", "buffer_size", 100_000_000),
        max_in_cpu=_offload_number(zero, "offload_param", "max_in_cpu", 1_000_000_000),
    )


def _is_pinned(zero: Mapping[str, Any]) -> bool:
    """Return False if offloaded states are not in page-locked memory; the default is true."""
    sections = (zero.get("offload_optimizer"), zero.get("offload_param"))
    return not any(
        isinstance(section, Mapping) and section.get("pin_memory") is False for section in sections
    )


def _offload_number(zero: Mapping[str, Any], section: str, key: str, default: int) -> int:
    values = zero.get(section)
    value = values.get(key, default) if isinstance(values, Mapping) else default
    return int(value) if isinstance(value, int | float) else default


def describe_memory(memory: JobMemory) -> str:
    """Describe the memory of a job in one line."""
    estimate = memory.estimate
    shown = {
        name: sum(part.bytes for part in estimate.parts if part.name in names)
        for name, names in {
            "parameters": ("parameters", "master weights"),
            "gradients": ("gradients",),
            "optimizer": ("optimizer",),
            "activations": ("activations", "logits and loss"),
            "other": ("buckets", "fragmentation", "CUDA and NCCL"),
        }.items()
    }
    parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in shown.items() if size)
    size = f"{estimate.total / GIB:.1f}"
    size += f" of {memory.capacity / GIB:.1f}" if memory.capacity else ""
    text = f"memory: about {size} GiB per GPU ({parts})"
    if memory.calibration is not None:
        text += f", calibrated with {memory.calibration.run_id}"
    if not estimate.has_activations:
        text = f"memory: about {size} GiB per GPU without activations ({parts})"
    if memory.capacity and estimate.total > memory.capacity and estimate.is_comparable:
        text += "; it may not fit: hpcrun fit JOB --table compares settings"
    return text + _describe_host_memory(memory)


def _describe_host_memory(memory: JobMemory) -> str:
    """Describe host memory that may not suffice; "" if it does or is unknown."""
    needed, has = memory.estimate.host_total, memory.host_capacity
    if has is None:
        return ""
    if memory.estimate.is_comparable and memory.estimate.host_states and needed > has:
        return (
            f"; host memory: about {needed / GIB:.0f} of {has / GIB:.0f} GiB per node, it may not "
            f"fit: {_suggest_host_memory(memory)}"
        )
    loading = memory.estimate.host_loading
    if memory.loads_in_each_rank and loading > has:
        return (
            f"; host memory: {loading / GIB:.0f} GiB if all ranks of a node load the whole model "
            f"at the same time, and the job has {has / GIB:.0f} GiB per node"
        )
    return ""


# States alone exceed the GPU, or what is offloaded exceeds the host memory, by more than this: they
# agree within 1 % with DeepSpeed's engine, in tests/fit/test_states.py. On a GPU, activations,
# kernels and fragmentation come on top; on the host, 0.5 to 2 GB of each process, data loaders and
# the rounding of pinned memory.
REFUSAL_MARGIN = 1.03


def check_memory(memory: JobMemory) -> str:
    """Return why a job certainly does not fit; "" if it fits or may fit."""
    if not memory.is_certain:
        return ""
    return _check_gpu_memory(memory) or _check_host_memory(memory)


def _check_host_memory(memory: JobMemory) -> str:
    needed, has = memory.estimate.host_states, memory.host_capacity
    if has is None or needed <= REFUSAL_MARGIN * has:
        return ""
    return (
        f"what DeepSpeed offloads for {memory.model} needs {needed / GIB:.1f} GiB of host memory "
        f"on each node, and the job has {has / GIB:.1f} GiB; {_suggest_host_memory(memory)}"
    )


def _suggest_host_memory(memory: JobMemory) -> str:
    """Return the request of host memory that suffices, or the number of nodes."""
    needed = math.ceil(memory.estimate.host_total / GIB)
    if memory.node_memory is None or needed * GIB <= memory.node_memory:
        return f"--set resources.memory_per_node={needed}G"
    training = memory.training
    nodes = math.ceil(training.gpus / training.gpus_per_node)
    for factor in (2, 4, 8, 16):
        changed = structs.replace(training, gpus=factor * nodes * training.gpus_per_node)
        needed = math.ceil(estimate_memory(memory.shape, changed).host_total / GIB)
        if needed * GIB <= memory.node_memory:
            return (
                f"on {factor * nodes} nodes, each needs {needed} GiB: --set "
                f"resources.nodes={factor * nodes} --set resources.memory_per_node={needed}G"
            )
    return "offload less, or use nodes with more memory"


def _check_gpu_memory(memory: JobMemory) -> str:
    if memory.capacity is None:
        return ""
    if memory.estimate.states <= REFUSAL_MARGIN * memory.capacity:
        return ""
    states = f"{memory.estimate.states / GIB:.1f}"
    message = (
        f"{memory.model} needs {states} GiB per GPU for parameters, gradients and optimizer alone,"
        f" and the GPU has {memory.capacity / GIB:.1f} GiB"
    )
    return f"{message}; {fix}" if (fix := suggest_smaller(memory)) else message


def suggest_smaller(memory: JobMemory) -> str:
    """Return the fastest setting of DeepSpeed that fits, as in "ZeRO-3 needs 18 GiB: --set ...".

    It fits on the GPU and, if the host memory of the job is known, into that.
    """
    if memory.capacity is None or memory.training.strategy != "zero":
        return ""
    for each in list_candidates(memory.shape, memory.training, memory.calibration):
        changed = each.training
        is_same = changed.checkpointing == memory.training.checkpointing
        host = each.estimate.host_total if each.estimate.host_states else 0
        if memory.host_capacity is not None and host > memory.host_capacity:
            continue
        if is_same and each.estimate.total <= 0.95 * memory.capacity:
            settings: dict[str, object] = {"zero_stage": changed.zero_stage}
            if changed.offload_optimizer != memory.training.offload_optimizer:
                settings["offload.optimizer"] = changed.offload_optimizer
            if changed.offload_param != memory.training.offload_param:
                settings["offload.param"] = changed.offload_param
            options = [
                f"--set {key}={value}"
                for name, value in settings.items()
                for key in memory.zero_keys.get(name, [f"deepspeed.{name}"])
            ]
            size = f"{each.estimate.total / GIB:.0f} GiB"
            if host:
                size += f" and {host / GIB:.0f} GiB of host memory per node"
            return f"{each.name} would need about {size}: {' '.join(options)}"
    return ""
