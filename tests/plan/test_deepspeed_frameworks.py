"""The generated JSON in the real frameworks: filled keys, checks and refusals."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcrun.plan.deepspeed_check import FILLED_BY
from tests.plan.making import plan
from tests.workloads.recipe_parts import MODULES
from tests.workloads.trainer import free_port, run_forked

PROBE = Path(__file__).with_name("framework_probe.py")

pytestmark = pytest.mark.slow


def generated(framework: str, stage: int, precision: str = "bf16") -> dict[str, Any]:
    made = plan(
        f"script: a.py\nframework: {framework}\nprecision: {precision}\n"
        "batch: {micro_batch_per_gpu: 2, gradient_accumulation_steps: 4}\n"
        f"deepspeed: {{zero_stage: {stage}}}"
    )
    assert made.deepspeed_config is not None
    assert (made.effective_batch, made.world_size) == (8, 1)
    return made.deepspeed_config


def ask(framework: str, folder: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run the cases through a framework in a fork of a process that has imported it."""
    full = [{"folder": str(folder), "loader_batch": 2, "script": {}, **case} for case in cases]
    file = folder / "cases.json"
    file.write_text(json.dumps(full))
    # Use the ninja of the jobs, because another version rebuilds every operator.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = run_forked(
        [{"PATH": path}],
        [framework, free_port(), file],
        program=PROBE,
        module=MODULES.get(framework, framework),
    )
    assert "ANSWERS" in done.stdout, done.stderr[-3000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout.rpartition("ANSWERS")[2])
    return answers


def trained(
    stage: int, clipping: float, *, bf16: bool = True, fp16: bool = False
) -> dict[str, Any]:
    return {
        "batch": [8, 2, 4],
        "clipping": clipping,
        "bf16": bf16,
        "fp16": fp16,
        "stage": stage,
    }


def every_auto(framework: str) -> dict[str, Any]:
    """Create a JSON with "auto" for every key that the framework fills."""
    config: dict[str, Any] = {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {}},
        "scheduler": {"type": "WarmupDecayLR", "params": {}},
    }
    for path in FILLED_BY[framework]:
        *sections, key = path.split(".")
        section = config
        for name in sections:
            section = section[name]
        section[key] = "auto"
    return config


def test_transformers_fills_auto_and_rejects_mismatches(tmp_path: Path) -> None:
    script = {
        "bf16": True,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "max_grad_norm": 0.7,
    }
    unfilled = every_auto("transformers")
    unfilled["zero_optimization"]["sub_group_size"] = "auto"
    two, three, other, narrow, wide, filled, left = ask(
        "transformers",
        tmp_path,
        [
            {"config": generated("transformers", 2), "script": script},
            {"config": generated("transformers", 3), "script": script},
            {
                "config": generated("transformers", 2),
                "script": {**script, "per_device_train_batch_size": 3},
            },
            {"config": generated("transformers", 2), "script": {**script, "bf16": False}},
            {"config": generated("transformers", 2, "fp32"), "script": script},
            {"config": every_auto("transformers"), "script": script},
            {"config": unfilled, "script": script},
        ],
    )
    assert two["trains"] == trained(2, 0.7)
    assert three["trains"] == trained(3, 0.7)
    # A script whose values differ from those hpcrun shows is stopped.
    assert "per_device_train_batch_size=3" in other["error"]
    assert "bf16.enabled=True" in narrow["error"]
    assert "bf16.enabled=False" in wide["error"]
    assert filled == {"left": None, "trains": trained(3, 0.7)}
    assert left["left"]["zero_optimization"]["sub_group_size"] == "auto"


SCRIPT_OF_ACCELERATE = {"gradient_accumulation_steps": 4, "mixed_precision": "bf16"}


def test_accelerate_fills_auto_and_reports_other_keys(tmp_path: Path) -> None:
    unfilled = every_auto("accelerate")
    unfilled["optimizer"]["params"]["betas"] = "auto"
    two, three, other, filled, left = ask(
        "accelerate",
        tmp_path,
        [
            {
                "config": generated("accelerate", 2),
                "script": {"gradient_accumulation_steps": 4},
            },
            {"config": generated("accelerate", 3, "fp16")},
            {"config": generated("accelerate", 2), "script": {"mixed_precision": "fp16"}},
            {"config": every_auto("accelerate"), "script": SCRIPT_OF_ACCELERATE},
            {"config": unfilled, "script": SCRIPT_OF_ACCELERATE},
        ],
    )
    assert two["trains"] == trained(2, 1.0)
    # The job's accumulation applies, although the script's Accelerator sets none.
    assert three["trains"] == trained(3, 1.0, bf16=False, fp16=True)
    assert "when `bf16` is set in the DeepSpeed config file" in other["error"]
    assert filled == {"left": None, "trains": trained(3, 1.0)}
    assert "`optimizer.params.betas` not found in kwargs" in left["error"]


def test_lightning_trains_with_the_generated_json(tmp_path: Path) -> None:
    script = {
        "precision": "bf16-mixed",
        "accumulate_grad_batches": 4,
        "gradient_clip_val": 0.7,
    }
    shown = {**generated("lightning", 2), "gradient_accumulation_steps": 4}
    two, three, steps, loader, refused, left = ask(
        "lightning",
        tmp_path,
        [
            {"config": generated("lightning", 2), "script": script},
            {"config": generated("lightning", 3), "script": script},
            {
                "config": generated("lightning", 2),
                "script": {**script, "accumulate_grad_batches": 3},
            },
            {"config": generated("lightning", 2), "script": script, "loader_batch": 3},
            {"config": shown, "script": script},
            {
                "config": {**generated("lightning", 2), "gradient_clipping": "auto"},
                "script": script,
            },
        ],
    )
    assert two["trains"] == trained(2, 0.7)
    assert three["trains"] == trained(3, 0.7)
    assert "train_batch_size is not equal" in steps["error"]
    assert "train_batch_size is not equal" in loader["error"]
    assert "Do not set `gradient_accumulation_steps`" in refused["error"]
    assert left["left"]["gradient_clipping"] == "auto"


def of_the_job(framework: str, rest: str) -> dict[str, Any]:
    made = plan(f"script: a.py\nframework: {framework}\ndeepspeed: {{zero_stage: 2}}\n{rest}")
    assert made.deepspeed_config is not None
    return made.deepspeed_config


def test_trainer_arguments_decide_values_the_job_does_not_set(tmp_path: Path) -> None:
    script = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 5}
    cases = [
        {"config": of_the_job("transformers", ""), "script": script},
        {"config": of_the_job("transformers", ""), "script": {**script, "bf16": True}},
        {"config": of_the_job("transformers", "batch: {micro_batch_per_gpu: 2}"), "script": script},
        {"config": of_the_job("transformers", "precision: bf16"), "script": script},
    ]
    plain, bf16, other, wide = ask("transformers", tmp_path, cases)
    assert plain["trains"] == {**trained(2, 1.0, bf16=False), "batch": [15, 3, 5]}
    assert bf16["trains"] == {**trained(2, 1.0), "batch": [15, 3, 5]}
    assert "per_device_train_batch_size=3" in other["error"]
    assert "bf16.enabled=True" in wide["error"]


def test_accelerator_decides_values_the_job_does_not_set(tmp_path: Path) -> None:
    config = of_the_job("accelerate", "")
    plain, set_by_script = ask(
        "accelerate",
        tmp_path,
        [
            {"config": config, "loader_batch": 3},
            {"config": config, "script": SCRIPT_OF_ACCELERATE, "loader_batch": 3},
        ],
    )
    assert plain["trains"] == {**trained(2, 1.0, bf16=False), "batch": [3, 3, 1]}
    assert set_by_script["trains"] == {**trained(2, 1.0), "batch": [12, 3, 4]}


def test_lightning_trainer_decides_values_the_job_does_not_set(tmp_path: Path) -> None:
    script = {"precision": "16-mixed", "accumulate_grad_batches": 4, "gradient_clip_val": 0.7}
    (made,) = ask(
        "lightning", tmp_path, [{"config": of_the_job("lightning", ""), "script": script}]
    )
    assert made["trains"] == trained(2, 0.7, bf16=False, fp16=True)
