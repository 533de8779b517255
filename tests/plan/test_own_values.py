"""A script's own values are those that train, unless the job sets others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.plan.making import plan
from tests.workloads.recipe_parts import MODULES
from tests.workloads.trainer import run_forked

PROBE = Path(__file__).with_name("own_values_probe.py")

pytestmark = pytest.mark.slow

OWN = {"mixed_precision": "bf16", "gradient_accumulation_steps": 4, "dynamo_backend": "eager"}
# As `accelerate launch` exports them.
LAUNCHED = {
    "ACCELERATE_DYNAMO_BACKEND": "NO",
    "ACCELERATE_DYNAMO_MODE": "default",
    "ACCELERATE_MIXED_PRECISION": "no",
}


def exported(framework: str, rest: str = "") -> dict[str, str]:
    """Return the variables of a job that may affect training."""
    made = plan(f"script: a.py\nframework: {framework}\n{rest}")
    found: dict[str, str] = {}
    for section in made.environment:
        found |= {k: v for k, v in section.variables.items() if k.startswith("ACCELERATE_")}
    return found


def test_values_of_the_script_train_unless_the_job_sets_others(tmp_path: Path) -> None:
    bare = {"precision": "no", "steps": 1, "compiler": "no"}
    own = {"precision": "bf16", "steps": 4, "compiler": "eager"}
    job = "precision: bf16\nbatch: {micro_batch_per_gpu: 1, gradient_accumulation_steps: 2}"
    cleared = "env: {ACCELERATE_MIXED_PRECISION: null}\nprecision: bf16"
    bf16 = {"precision": "bf16"}
    cases: list[tuple[str, dict[str, str], dict[str, Any], dict[str, Any]]] = [
        ("Accelerator", exported("accelerate"), {}, bare),
        ("Accelerator", exported("accelerate"), OWN, own),
        ("Accelerator", exported("transformers"), OWN, own),
        ("Accelerator", LAUNCHED | exported("accelerate"), OWN, own),
        ("Accelerator", LAUNCHED | exported("accelerate"), {}, bare),
        ("Accelerator", exported("accelerate", job), {}, {**bare, **bf16, "steps": 2}),
        ("Accelerator", exported("accelerate", cleared), {}, bare),
        ("Trainer", exported("transformers"), {}, bare),
        ("Trainer", exported("transformers"), {"bf16": True}, {**bare, **bf16}),
        ("Trainer", exported("transformers", "precision: bf16"), {}, {**bare, **bf16}),
    ]
    file = tmp_path / "cases.json"
    file.write_text(
        json.dumps(
            [
                {"of": of, "env": env, "script": script, "folder": str(tmp_path)}
                for of, env, script, _ in cases
            ]
        )
    )
    done = run_forked([{}], [file], program=PROBE, module=MODULES["transformers"])
    assert "ANSWERS" in done.stdout, done.stderr[-3000:]
    answers = json.loads(done.stdout.rpartition("ANSWERS")[2])
    for answer, (of, env, script, expected) in zip(answers, cases, strict=True):
        assert answer == expected, (of, env, script)
