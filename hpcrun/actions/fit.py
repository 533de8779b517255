"""Settings and JSON of ``hpcrun fit``, and the memory of a job by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from hpcrun.actions.job_memory import (
    MODEL_OPTIONS,
    JobMemory,
    estimate_job_memory,
    find_model,
    find_model_config,
    load_model_shape,
)
from hpcrun.errors import InputError
from hpcrun.fit import (
    Calibration,
    Candidate,
    MemoryEstimate,
    ModelShape,
    Strategy,
    Training,
    Weights,
    list_candidates,
    list_sizes,
)
from hpcrun.plan import BUCKET

if TYPE_CHECKING:
    from hpcrun.context import Context

_UNITS = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


def parse_parameter_count(text: str) -> int:
    """Parse a number of parameters.

    Raises:
        InputError: It is not a number.

    >>> parse_parameter_count("7.6B"), parse_parameter_count("125M"), parse_parameter_count("1e9")
    (7600000000, 125000000, 1000000000)
    """
    match = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?) ?([KMBGT]?)", text.strip(), re.I)
    try:
        assert match is not None
        count = round(float(match[1]) * _UNITS[match[2].upper()])
        assert count > 0
        return count
    except (AssertionError, ValueError, OverflowError):
        raise InputError(
            f"{text}: not a number of parameters", fix="as in 7B, 1.5B or 125M"
        ) from None


def build_training_settings(options: Mapping[str, Any]) -> Training:
    """Build the settings of a training from the options of ``hpcrun fit``.

    Raises:
        InputError: Options contradict each other.
    """
    gpus = options["nodes"] * options["gpus_per_node"]
    chosen = [name for name in ("zero", "fsdp", "ddp") if options[name]]
    if len(chosen) > 1:
        raise InputError(f"--{chosen[0]} and --{chosen[1]}: choose one")
    offload = options["offload"]
    strategy: Strategy = "zero" if gpus > 1 or offload != "none" else "ddp"
    if chosen:
        strategy = "zero" if options["zero"] else "fsdp" if options["fsdp"] else "ddp"
    stage = int(options["zero"] or 2) if strategy == "zero" else 0
    if offload == "all" and options["zero"] is None and strategy == "zero":
        stage = 3
    if offload != "none" and (strategy != "zero" or stage == 0):
        raise InputError(f"--offload {offload} needs ZeRO", fix="--zero 2 or --zero 3")
    if offload == "all" and stage != 3:
        raise InputError("--offload all: only ZeRO 3 offloads parameters", fix="--zero 3")
    is_half = options["precision"] != "fp32"
    weights: Weights = "pure" if not is_half else "master" if strategy == "zero" else "autocast"
    if options["pure"]:
        if strategy == "zero":
            raise InputError(
                "--pure: DeepSpeed keeps fp32 master weights", fix="--pure with --ddp or --fsdp"
            )
        weights = "pure"
    trainable = options["trainable"]
    return Training(
        strategy=strategy,
        zero_stage=stage,
        precision=options["precision"],
        weights=weights,
        optimizer=options["optimizer"],
        offload_optimizer="none" if offload == "none" else "cpu",
        offload_param="cpu" if offload == "all" else "none",
        gpus=gpus,
        gpus_per_node=options["gpus_per_node"],
        micro_batch=options["batch"],
        accumulation=options["accumulate"],
        sequence=options["seq"],
        checkpointing=options["checkpointing"],
        attention=options["attention"],
        keeps_gradients=options["keep_gradients"],
        trainable=None if trainable is None else parse_parameter_count(trainable),
        reduce_bucket=BUCKET,
    )


def load_job_memory(
    context: Context,
    job: str,
    overrides: Sequence[str],
    *,
    model: str | None,
    sequence: int | None,
) -> JobMemory:
    """Load and plan a job, and estimate its memory.

    Raises:
        InputError: The job does not name a model whose dimensions are known.
    """
    from hpcrun.actions.checks.submission import Checks  # deferred: numbers need no job
    from hpcrun.actions.prepare import load_spec, prepare_job
    from hpcrun.actions.program import find_program, read_sources
    from hpcrun.actions.start_folder import StartFolder, find_start_folder

    spec = load_spec(context, job, overrides)
    plan = prepare_job(context, spec, checks=Checks(strict=False)).each()[0].plan
    path = find_program(context, spec, inside=True).path
    folder = find_start_folder(context, plan.start_dir, plan.project_dir)
    here = StartFolder.local(context.project)
    memory = estimate_job_memory(
        *(spec, plan, context.cluster),
        script=read_sources(context.project, path) if path is not None else "",
        environ=context.environ,
        folder=folder,
        sequence=sequence,
        model=model,
        model_folder=here,
        cache_dir=context.cache_dir,
    )
    name = model or find_model(plan)
    model_folder = folder if model is None else here
    if memory is None and name and find_model_config(name, context.environ, model_folder):
        load_model_shape(name, context.environ, model_folder)  # raises if it is the model
        raise InputError(
            f"{job}: its DeepSpeed settings are unknown to hpcrun fit (model parallelism, a stage "
            'or bf16: {enabled: "auto"} that no argument decides, or a file that cannot be read)',
            fix="set precision and deepspeed.zero_stage in the job",
        )
    if memory is None:
        options = ", ".join(f"--{name}" for name in MODEL_OPTIONS[:3])
        raise InputError(
            f"{job}: its arguments name no model with a config.json on this machine ({options})",
            fix=f"hpcrun fit {job} --model DIR, or numbers instead of the job: --layers, --hidden",
        )
    return memory


def load_traced_memory(
    context: Context, job: str, overrides: Sequence[str], time_limit: float
) -> JobMemory:
    """Trace a step of a job's script, and estimate its memory.

    If the script cannot be traced, a note says where and why, and the memory is computed from the
    model that the job's arguments name.

    Raises:
        InputError: The script cannot be traced, and the job names no known model.
    """
    from hpcrun.actions.job_memory import estimate_traced_memory
    from hpcrun.actions.start_folder import find_start_folder
    from hpcrun.actions.trace import trace_job  # deferred: numbers need no job

    try:
        made, trace = trace_job(context, job, overrides, time_limit)
    except InputError as error:
        try:
            memory = load_job_memory(context, job, overrides, model=None, sequence=None)
        except InputError:
            raise error from None
        notes = [f"{error.message}; computed from its config.json", *memory.estimate.notes]
        return structs.replace(memory, estimate=structs.replace(memory.estimate, notes=notes))
    folder = find_start_folder(context, made.plan.start_dir, made.plan.project_dir)
    return estimate_traced_memory(made.spec, made.plan, context.cluster, trace, folder)


def fits(
    estimate: MemoryEstimate, capacity: float | None, host_capacity: float | None
) -> bool | None:
    """Return whether a training fits; None if that is unknown or uncertain, as in the text."""
    if not estimate.is_comparable:
        return None
    if host_capacity is not None and estimate.host_states > host_capacity:
        return False
    if capacity is None:
        return None
    if estimate.total > capacity:
        return False
    if host_capacity is not None and estimate.host_total > host_capacity:
        return None
    return True if estimate.has_activations and estimate.total <= 0.9 * capacity else None


class SizeComparison(Struct, frozen=True):
    """The configurations of a training on one number of GPUs, the fastest first."""

    training: Training
    candidates: list[Candidate]
    fastest: Candidate | None


def compare_sizes(
    shape: ModelShape,
    training: Training,
    calibration: Calibration | None,
    capacity: float | None,
    host_capacity: float | None,
) -> list[SizeComparison]:
    """Estimate all configurations on several numbers of GPUs, and find the fastest that fits."""
    found = []
    for each in list_sizes(training):
        candidates = list_candidates(shape, each, calibration)
        fitting = (one for one in candidates if fits(one.estimate, capacity, host_capacity))
        found.append(SizeComparison(each, candidates, next(fitting, None)))
    return found


def sizes_json(sizes: Sequence[SizeComparison]) -> list[dict[str, Any]]:
    """Return the JSON of a comparison of numbers of GPUs."""
    return [
        {
            "gpus": each.training.gpus,
            "gpus_per_node": each.training.gpus_per_node,
            "fastest": each.fastest.name if each.fastest else None,
            "totals": {one.name: round(one.estimate.total) for one in each.candidates},
        }
        for each in sizes
    ]


def estimate_json(
    estimate: MemoryEstimate, capacity: float | None, host_capacity: float | None = None
) -> dict[str, Any]:
    """Return the JSON of an estimate."""
    return {
        "parameters": estimate.parameters,
        "trainable": estimate.trainable,
        "gpu": {
            "total": round(estimate.total),
            "allocated": round(estimate.allocated),
            "capacity": None if capacity is None else round(capacity),
            "fits": fits(estimate, capacity, host_capacity),
            "moment": estimate.moment,
            "parts": {part.name: round(part.bytes) for part in estimate.parts},
        },
        "node": {
            "parts": {part.name: round(part.bytes) for part in estimate.host},
            "loading": round(estimate.host_loading),
        },
        "notes": estimate.notes,
    }
