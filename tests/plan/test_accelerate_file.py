"""A user's own YAML of accelerate launch: merged into the job, or refused with a line number."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.plan.accelerate_file import merge_accelerate_file
from hpcrun.plan.build import build_plan
from hpcrun.spec.job import Accelerate, JobSpec
from hpcrun.spec.rules import infer_framework
from tests.plan.making import PLACE, cluster, job

JOB = "script: a.py\naccelerate: {config_file: acc.yaml}\nresources: {nodes: 2, gpus_per_node: 4}\n"
_STEPS = "gradient_accumulation_steps"
# As `accelerate config` writes it.
WRITTEN: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "deepspeed_config": {
        "deepspeed_multinode_launcher": "pdsh",
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 0.5,
        "offload_optimizer_device": "nvme",
        "offload_optimizer_nvme_path": "/local",
        "offload_param_device": "none",
        "zero3_init_flag": True,
        "zero3_save_16bit_model": True,
        "zero_stage": 3,
    },
    "distributed_type": "DEEPSPEED",
    "downcast_bf16": "no",
    "gpu_ids": "all",
    "machine_rank": 0,
    "main_process_ip": "10.0.0.1",
    "main_process_port": 29500,
    "main_training_function": "main",
    "mixed_precision": "fp16",
    "num_machines": 2,
    "num_processes": 8,
    "rdzv_backend": "c10d",
    "same_network": True,
    "use_cpu": False,
}


def taken(keys: dict[str, Any], text: str = JOB) -> tuple[JobSpec, list[str]]:
    lines = {key: number for number, key in enumerate(keys, start=1)}
    spec, found = merge_accelerate_file(job(text), keys, lines)
    return spec, [str(problem) for problem in found.problems]


def test_yaml_of_accelerate_config_sets_the_jobs_keys() -> None:
    spec, problems = taken(WRITTEN)
    section = spec.deepspeed
    assert not problems and section is not None and spec.accelerate is not None
    assert (spec.precision, spec.batch.gradient_accumulation_steps) == ("fp16", 4)
    assert (section.zero_stage, section.offload.optimizer, section.offload.param) == (
        3, "nvme", "none",
    )  # fmt: skip
    assert section.offload.nvme_path == "/local"
    zero = {"stage3_gather_16bit_weights_on_model_save": True}
    assert section.config == {"gradient_clipping": 0.5, "zero_optimization": zero}
    rest = ("compute_environment", "debug", "downcast_bf16", "main_training_function", "use_cpu")
    expected = {key: WRITTEN[key] for key in rest} | {"deepspeed_config": {"zero3_init_flag": True}}
    assert spec.accelerate.config == expected
    assert infer_framework(spec).framework == "accelerate"


def test_deepspeed_json_named_by_accelerate_yaml_is_used() -> None:
    own = {"deepspeed_config_file": "ds.json", "zero3_init_flag": False}
    spec, problems = taken({"distributed_type": "DEEPSPEED", "deepspeed_config": own})
    assert not problems and spec.deepspeed is not None
    assert spec.deepspeed.config_file == "ds.json" and spec.deepspeed.zero_stage is None


def test_job_keys_override_accelerate_file() -> None:
    text = JOB.replace("acc.yaml}", "acc.yaml, config: {debug: true}}")
    spec, _ = taken({"debug": False, "distributed_type": "FSDP"}, text)
    assert spec.accelerate is not None
    assert spec.accelerate.config == {"debug": True, "distributed_type": "FSDP"}


def test_accelerate_file_for_one_gpu_is_accepted_for_one_gpu() -> None:
    one = "script: train.py\nresources: {gpus_per_node: 1}\naccelerate: {config_file: acc.yaml}\n"
    for text, config in ((one, {}), (JOB, {"distributed_type": "NO"})):
        spec, problems = taken({"distributed_type": "NO"}, text)
        assert spec.accelerate is not None
        assert (problems, spec.accelerate.config) == ([], config)


@pytest.mark.parametrize(
    ("keys", "more", "note"),
    [
        (
            {"debug": 1, "num_processes": 4},
            "",
            "num_processes: 4 is ignored: the job has 8, by resources.nodes and gpus_per_node",
        ),
        ({"num_machines": 1}, "", "num_machines: 1 is ignored: the job has 2, by resources.nodes"),
        (
            {"mixed_precision": "fp16"},
            "precision: bf16",
            "mixed_precision: fp16 is ignored: the job has bf16, by precision",
        ),
        (
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {_STEPS: 2}},
            "batch: {gradient_accumulation_steps: 4}",
            "gradient_accumulation_steps: 2 is ignored: the job has 4, by batch.",
        ),
        (
            {
                "distributed_type": "DEEPSPEED",
                "deepspeed_config": {"zero_stage": 3, "offload_param_device": "cpu"},
            },
            "deepspeed: {zero_stage: 2}",
            "deepspeed_config: zero_stage, offload_param_device: ignored, because the job has",
        ),
    ],
)
def test_accelerate_file_values_decided_by_the_job_are_dropped_with_a_note(
    keys: dict[str, Any], more: str, note: str
) -> None:
    """Projects ship such files, for example with num_machines: 1 and num_processes: 8."""
    lines = {key: number for number, key in enumerate(keys, 1)}
    spec, found = merge_accelerate_file(job(JOB + more), keys, lines)
    assert found.problems == [] and len(found.notes) == 1
    assert found.notes[0].startswith("acc.yaml: ") and note in found.notes[0]
    plan = build_plan(spec, cluster(), PLACE)
    assert plan.world_size == 8 and plan.accelerate_config is not None
    if "deepspeed" in more:
        assert plan.deepspeed_config is not None
        assert plan.deepspeed_config["zero_optimization"]["stage"] == 2
        assert "offload_param" not in plan.deepspeed_config["zero_optimization"]


def test_unknown_key_of_accelerate_file_is_refused() -> None:
    _, problems = taken({"num_proceses": 8}, JOB)
    (problem,) = problems
    assert "acc.yaml:1: num_proceses: no such key of Accelerate; did you" in problem


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("zero_stage", "three", "'three': expected 0, 1, 2 or 3"),
        ("zero_stage", 2.5, "2.5: expected 0, 1, 2 or 3"),
        ("gradient_accumulation_steps", "many", "'many': expected a whole number"),
        ("offload_optimizer_device", "gpu", "'gpu': expected none, cpu or nvme"),
        ("deepspeed_config_file", 3, "3: expected a path"),
    ],
)
def test_wrong_type_in_deepspeed_section_of_accelerate_file_is_reported(
    key: str, value: object, expected: str
) -> None:
    spec = JobSpec(accelerate=Accelerate(config_file="a.yaml"))
    keys = {"distributed_type": "DEEPSPEED", "deepspeed_config": {key: value}}
    _, found = merge_accelerate_file(spec, keys, {"deepspeed_config": 7})
    (problem,) = found.problems
    assert str(problem) == f"a.yaml:7: deepspeed_config.{key}: {expected}"


def test_quoted_numbers_are_parsed_as_accelerate_does() -> None:
    spec = JobSpec(accelerate=Accelerate(config_file="a.yaml"))
    own = {"zero_stage": "3", "gradient_accumulation_steps": "4", "offload_param_device": "none"}
    keys = {"distributed_type": "DEEPSPEED", "deepspeed_config": own}
    taken, found = merge_accelerate_file(spec, keys, {})
    assert found.problems == [] and taken.deepspeed is not None
    assert (taken.deepspeed.zero_stage, taken.batch.gradient_accumulation_steps) == (3, 4)
