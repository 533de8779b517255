"""The table of DeepSpeed's keys matches DeepSpeed itself."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import typing
from typing import Any

import pytest

from hpcrun.assets import shipped_folder
from hpcrun.plan.deepspeed_keys import DEPRECATED, KEYS, REMOVED, Key, Section

pytestmark = pytest.mark.slow

# Fields of the classes, what runtime/config.py asks a JSON for, and what it calls removed; in a
# process of its own, since deepspeed changes the one that imports it.
CHECK = r"""
import json, os, sys, typing
out = os.dup(1); os.dup2(2, 1)
import deepspeed.runtime.config as config
from pydantic import BaseModel

def kind(annotation):
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    null = type(None) in args
    if origin is typing.Union:
        return kind(next(a for a in args if a is not type(None)))[0], null
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return fields(annotation), null
    if isinstance(annotation, type) and hasattr(annotation, "__members__"):
        return [m.value for m in annotation], null
    if origin is typing.Literal:
        return list(args), null
    return getattr(origin or annotation, "__name__", str(annotation)), null

def fields(model):
    found = {}
    for name, field in model.model_fields.items():
        about = {
            "kind": kind(field.annotation),
            "bounds": {k: getattr(m, k) for m in field.metadata for k in ("ge", "gt", "le", "lt")
                       if hasattr(m, k)},
            "deprecated": bool((field.json_schema_extra or {}).get("deprecated")),
        }
        for spelling in {name, field.alias or name}:
            found[spelling] = about
    return found

SECTIONS = {
    "zero_optimization": "runtime.zero.config.DeepSpeedZeroConfig",
    "bf16": "runtime.precision_config.DeepSpeedBF16Config",
    "bfloat16": "runtime.precision_config.DeepSpeedBF16Config",
    "fp16": "runtime.precision_config.DeepSpeedFP16Config",
    "tensorboard": "monitor.config.TensorBoardConfig",
    "wandb": "monitor.config.WandbConfig",
    "csv_monitor": "monitor.config.CSVConfig",
    "comet": "monitor.config.CometConfig",
    "comms_logger": "comm.config.CommsLoggerConfig",
    "compile": "compile.config.CompileConfig",
    "timers.throughput": "utils.config.DeepSpeedThroughputTimerConfig",
    "tensor_parallel": "runtime.tensor_parallel.config.TPTrainingConfig",
    "weight_quantization": "inference.config.WeightQuantConfig",
    "hybrid_engine": "runtime.config.HybridEngineConfig",
}
import importlib
classes = {}
for section, path in SECTIONS.items():
    module, _, name = path.rpartition(".")
    classes[section] = fields(getattr(importlib.import_module("deepspeed." + module), name))
removed = [*config._REMOVED_TOP_LEVEL_CONFIG_KEYS]
removed += ["zero_optimization." + key for key in config._REMOVED_ZERO_CONFIG_KEYS]
os.write(out, json.dumps({"classes": classes, "removed": removed}).encode())
os._exit(0)
"""

# Keys requested by name, for a JSON that contains every section read this way.
ASKED = {
    "activation_checkpointing": {},
    "flops_profiler": {},
    "aio": {},
    "checkpoint": {"parallel_write": {}, "writer": {}},
    "data_types": {},
    "torch_autocast": {"dtype": "bf16", "lower_precision_safe_modules": []},
    "optimizer": {"type": "Adam", "params": {}},
    "scheduler": {"type": "WarmupLR", "params": {}},
    "timers": {"throughput": {}},
    "data_efficiency": {},
}

# Keys read outside runtime/config.py: deepspeed/__init__.py, accelerate, transformers.
READ_ELSEWHERE = {"sequence_parallel_size", "data_parallel_size", "msamp", "inference"}


@functools.cache
def real() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@functools.cache
def asked() -> set[str]:
    done = subprocess.run(
        [sys.executable, str(shipped_folder("templates") / "deepspeed_probe.py")],
        input=json.dumps(ASKED),
        capture_output=True,
        text=True,
        check=False,
    )
    answer = json.loads(done.stdout)
    assert answer["problems"] == []
    return set(answer["read"])


def section_at(path: str) -> Section:
    section: Any = KEYS
    for key in path.split("."):
        section = section[key]
    return typing.cast("Section", section)


def test_top_level_keys_match_deepspeed() -> None:
    top = {key for key in asked() if "." not in key} - set(REMOVED)
    assert set(KEYS) == top | READ_ELSEWHERE


@pytest.mark.parametrize(
    "section",
    [
        "activation_checkpointing",
        "aio",
        "checkpoint",
        "checkpoint.writer",
        "checkpoint.parallel_write",
        "data_types",
        "flops_profiler",
        "torch_autocast",
        "optimizer",
        "scheduler",
        "timers",
        "data_efficiency",
    ],
)
def test_keys_of_sections_without_a_class_match_deepspeed(section: str) -> None:
    start = f"{section}."
    names = {key.removeprefix(start) for key in asked() if key.startswith(start)}
    names = {name for name in names if "." not in name}
    assert set(section_at(section)) == names


def test_removed_and_deprecated_keys_match_deepspeed() -> None:
    assert set(REMOVED) == set(real()["removed"])
    old = {
        f"zero_optimization.{name}"
        for name, about in real()["classes"]["zero_optimization"].items()
        if about["deprecated"]
    }
    assert set(DEPRECATED) == old | {"bfloat16"}


SHAPES = {
    "bool": "bool",
    "int": "int",
    "float": "number",
    "str": "text",
    "Path": "text",
    "list": "list",
    "dict": "map",
    "Dict": "map",
}


def compare(table: Section, fields: dict[str, Any], path: str) -> None:
    assert set(table) == set(fields), path
    for name, about in fields.items():
        where = f"{path}.{name}"
        kind, null = about["kind"]
        expected = table[name]
        if isinstance(expected, dict):
            assert isinstance(kind, dict), where
            compare(expected, kind, where)
            continue
        assert isinstance(expected, Key)
        if expected.shape in ("any", "map"):
            continue
        assert expected.null == null, where
        bounds = about["bounds"]
        if isinstance(kind, list):
            # max_stage is an alias of 3.
            assert set(expected.choices) == set(kind), where
        elif expected.auto:
            assert kind in ("str", "int"), where
        else:
            assert expected.shape == SHAPES[kind], where
        if "ge" in bounds or "le" in bounds:
            assert expected.least == bounds.get("ge"), where
            assert expected.most == bounds.get("le"), where
        if "gt" in bounds and expected.shape == "int":
            assert expected.least == bounds["gt"] + 1, where


@pytest.mark.parametrize(
    "section",
    [
        "zero_optimization",
        "bf16",
        "bfloat16",
        "fp16",
        "tensorboard",
        "wandb",
        "csv_monitor",
        "comet",
        "comms_logger",
        "compile",
        "timers.throughput",
        "tensor_parallel",
        "weight_quantization",
        "hybrid_engine",
    ],
)
def test_keys_of_sections_with_a_class_match_deepspeed(section: str) -> None:
    compare(section_at(section), real()["classes"][section], section)
