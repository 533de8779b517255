"""Estimate the memory of a model from its configuration, from numbers, or from a job."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrun.errors import InputError
from hpcrun.fit import MemoryEstimate, ModelShape, Strategy, Training, Weights, read_model_config
from hpcrun.plan import BUCKET

_UNITS = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_NUMBERS = (
    "give numbers: --params 7B --layers 32 --hidden 4096 --heads 32 --ffn 11008 --vocab 32000"
)


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
        return round(float(match[1]) * _UNITS[match[2].upper()])
    except (AssertionError, ValueError):
        raise InputError(
            f"{text}: not a number of parameters", fix="as in 7B, 1.5B or 125M"
        ) from None


def load_model_shape(name: str, environ: Mapping[str, str], folder: Path) -> ModelShape:
    """Read the dimensions of a model from its folder, its ``config.json`` or the hub's cache.

    Args:
        name: A folder, a file, or a name on the hub such as ``Qwen/Qwen2.5-7B``.
        environ: Says where the hub's cache is.
        folder: What relative paths are relative to.

    Raises:
        InputError: There is no such configuration, or it lacks a dimension.
    """
    path = find_model_config(name, environ, folder)
    if path is None:
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
    return read_model_config(config, str(path))


def find_model_config(name: str, environ: Mapping[str, str], folder: Path) -> Path | None:
    """Find a model's ``config.json``; None if there is none on this machine."""
    path = folder / Path(name).expanduser()
    for candidate in (path / "config.json", path):
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
        trainable=None if trainable is None else parse_parameter_count(trainable),
        reduce_bucket=BUCKET,
    )


def estimate_json(estimate: MemoryEstimate, capacity: float | None) -> dict[str, Any]:
    """Return the JSON of an estimate."""
    return {
        "parameters": estimate.parameters,
        "trainable": estimate.trainable,
        "gpu": {
            "total": round(estimate.total),
            "allocated": round(estimate.allocated),
            "capacity": None if capacity is None else round(capacity),
            "fits": None
            if capacity is None or not estimate.has_activations
            else estimate.total <= capacity,
            "moment": estimate.moment,
            "parts": {part.name: round(part.bytes) for part in estimate.parts},
        },
        "node": {
            "parts": {part.name: round(part.bytes) for part in estimate.host},
            "loading": round(estimate.host_loading),
        },
        "notes": estimate.notes,
    }
