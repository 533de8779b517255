"""Settings of a job's plan as the memory model reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from hpcrun.actions.job_memory import _read_deepspeed, estimate_options, find_capacity
from hpcrun.fit.settings import Training
from hpcrun.fit.shape import build_shape
from hpcrun.plan import Plan
from hpcrun.spec import Cluster, GpuType, JobSpec, Resources
from hpcrun.text import GIB

SHAPE = build_shape(layers=2, hidden=1024)


def read(config: dict[str, Any], **arguments: str) -> Training | None:
    return _read_deepspeed(Training(), config, arguments, SHAPE)


def test_deepspeed_settings_are_read_from_its_json() -> None:
    zero = {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "nvme"},
        "reduce_bucket_size": 2e8,
    }
    found = read({"zero_optimization": zero, "bf16": {"enabled": True}})
    assert found is not None
    assert (found.zero_stage, found.precision, found.weights) == (3, "bf16", "master")
    assert (found.offload_optimizer, found.offload_param) == ("cpu", "nvme")
    assert found.reduce_bucket == 200_000_000 and found.prefetch_bucket == 50_000_000


def test_auto_sizes_are_those_of_the_trainer() -> None:
    zero = {"stage": 2, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}
    found = read({"zero_optimization": zero, "bf16": {"enabled": "auto"}}, bf16="true")
    assert found is not None and found.precision == "bf16"
    assert (found.reduce_bucket, found.prefetch_bucket) == (1024**2, int(0.9 * 1024**2))


@pytest.mark.parametrize(
    "config",
    [
        {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}},
        {"zero_optimization": {"stage": "auto"}},
        {"zero_optimization": {"stage": 2}, "tensor_parallel": {"autotp_size": 4}},
    ],
)
def test_unknown_settings_give_no_estimate(config: dict[str, Any]) -> None:
    assert read(config) is None


@pytest.mark.parametrize(
    ("wanted", "types", "gib"),
    [
        ("a100", {"a100": GpuType(gres="a100-80gb")}, 79.14),
        ("a100", {"a100": GpuType()}, None),
        (["h100", "h200"], {}, 79.1),
        (["h100", "fast"], {}, None),
        (None, {"h200": GpuType()}, 139.7),
        (None, {}, None),
    ],
)
def test_capacity_is_that_of_the_smallest_gpu_that_the_job_may_get(
    wanted: Any, types: dict[str, GpuType], gib: float | None
) -> None:
    spec = JobSpec(resources=Resources(gpu_type=wanted))
    found = find_capacity(spec, Cluster(gpu_types=types))
    assert found == (None if gib is None else gib * GIB)


def test_options_are_estimated_for_a_job_whose_model_is_known(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 8}
    config |= {"num_attention_heads": 16, "vocab_size": 32000, "intermediate_size": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = Planned(["python", "t.py", "--model", str(tmp_path), "--max_length", "512"])
    options = ["deepspeed.zero_stage=3", "deepspeed.offload.optimizer=cpu"]
    found = estimate_options(cast(Plan, plan), options, {}, tmp_path)
    assert list(found) == options and all(2 < size < 5 for size in found.values())
    unknown = Planned(["python", "t.py", "--model", "other/model", "--max_length", "512"])
    assert estimate_options(cast(Plan, unknown), options, {"HOME": "/none"}, tmp_path) == {}
    endless = Planned(["python", "t.py", "--model", str(tmp_path)])
    assert estimate_options(cast(Plan, endless), options, {}, tmp_path) == {}


class Planned:
    """What the memory model reads of a plan."""

    precision = "bf16"
    world_size = ranks_per_node = 4
    micro_batch_per_gpu, gradient_accumulation_steps, effective_batch = 1, 1, 4
    accelerate_config = None

    def __init__(self, program: list[str]) -> None:
        self.program = program
        zero = {"stage": 2, "reduce_bucket_size": 1000}
        self.deepspeed_config = {"bf16": {"enabled": True}, "zero_optimization": zero}
