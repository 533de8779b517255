"""What a script sets itself is what trains: the real Accelerate and Trainer, in real runs.

A run records what its launcher gives the script, which then runs in a fork of a process that has
imported the framework: importing it takes longer than everything else.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.cli.calling import Caller
from tests.workloads.trainer import free_port, run_forked

# The first lines of each script, in the run itself.
RECORD = """\
import json, os, sys
if "RECORD" in os.environ:
    print("given", json.dumps([dict(os.environ), sys.argv[1:]]), flush=True)
    sys.exit()
"""
ACCELERATE = """\
from accelerate import Accelerator
accelerator = Accelerator({arguments})
print("seen", json.dumps({{
    "steps": accelerator.gradient_accumulation_steps,
    "precision": accelerator.mixed_precision,
    "names": [name for name in os.environ if name.startswith("ACCELERATE_")],
}}), flush=True)
"""
TRAINER = """\
from transformers import Trainer, TrainingArguments
import torch
arguments = TrainingArguments(output_dir="out", report_to="none", {arguments})
trainer = Trainer(torch.nn.Linear(1, 1), arguments)
print("seen", json.dumps({{
    "steps": arguments.gradient_accumulation_steps,
    "precision": trainer.accelerator.mixed_precision,
    "names": [],
}}), flush=True)
"""


def printed(output: str, word: str) -> Any:
    """Parse the JSON after a word that a script printed once."""
    (line,) = [line for line in output.splitlines() if f"{word} " in line]
    return json.loads(line.partition(f"{word} ")[2])


def seen(hpcrun: Caller, script: str, job: str, module: str = "accelerate") -> dict[str, Any]:
    """Run a script on this machine, and return what it reported of itself."""
    hpcrun.write("hpcrun.yaml", f"accelerator: cpu\npython: {sys.executable}\n")
    path = hpcrun.write("train.py", RECORD + script)
    hpcrun.write("jobs/train.yaml", f"script: train.py\nresources: {{gpus_per_node: 1}}\n{job}\n")
    hpcrun.environ["RECORD"] = "1"
    done = hpcrun.process("run", "train")
    assert done.code == 0, done
    environ, arguments = printed(done.out, "given")
    del environ["RECORD"]
    # torchrun's store ended with the run.
    environ |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": str(free_port())}
    trained = run_forked([environ], arguments, program=path, module=module)
    assert trained.returncode == 0, trained.stderr
    found: dict[str, Any] = printed(trained.stdout, "seen")
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", [pytest.param("torchrun", marks=pytest.mark.thorough), "accelerate"]
)
@pytest.mark.parametrize(
    ("arguments", "job", "steps", "precision"),
    [
        ("gradient_accumulation_steps=4, mixed_precision='bf16'", "", 4, "bf16"),
        pytest.param("", "", 1, "no", marks=pytest.mark.thorough),
        ("", "precision: bf16\nbatch: {gradient_accumulation_steps: 2}", 2, "bf16"),
        ("gradient_accumulation_steps=4", "batch: {micro_batch_per_gpu: 8}", 4, "no"),
    ],
)
def test_accelerator_trains_what_the_script_sets(
    hpcrun: Caller, launcher: str, arguments: str, job: str, steps: int, precision: str
) -> None:
    job = f"framework: accelerate\nlauncher: {launcher}\n{job}"
    found = seen(hpcrun, ACCELERATE.format(arguments=arguments), job)
    assert (found["steps"], found["precision"]) == (steps, precision)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "job", "steps", "precision"),
    [
        ("gradient_accumulation_steps=4", "", 4, "no"),
        ("bf16=True, use_cpu=True", "", 1, "bf16"),
        ("", "precision: bf16\nbatch: {gradient_accumulation_steps: 2}", 1, "bf16"),
    ],
)
def test_trainer_trains_what_its_arguments_say(
    hpcrun: Caller, arguments: str, job: str, steps: int, precision: str
) -> None:
    script = TRAINER.format(arguments=arguments)
    found = seen(hpcrun, script, f"framework: transformers\n{job}", "transformers.trainer")
    assert (found["steps"], found["precision"]) == (steps, precision)


@pytest.mark.slow
def test_null_keeps_a_variable_of_the_launcher_from_the_program(hpcrun: Caller) -> None:
    job = "framework: accelerate\nlauncher: accelerate\nprecision: bf16\n"
    script = ACCELERATE.format(arguments="")
    removed = {"ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_MODE"}
    assert removed <= {*seen(hpcrun, script, job)["names"]}
    job += "env: {ACCELERATE_MIXED_PRECISION: null, ACCELERATE_DYNAMO_MODE: null}\n"
    assert not removed & {*seen(hpcrun, script, job)["names"]}
