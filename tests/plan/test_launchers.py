"""Who starts the ranks, for each framework, and what the framework is given."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from hpcrun.errors import SpecError
from hpcrun.plan.build import build_plan
from hpcrun.plan.launchers import LAUNCHERS, decide_framework, decide_launcher
from hpcrun.spec.job import LauncherName
from tests.plan.making import PLACE, cluster, job, plan, variables


def test_the_table_agrees_with_the_names_and_the_templates() -> None:
    assert {*get_args(LauncherName), "pdsh", "none"} == LAUNCHERS.keys()
    templates = Path(__file__).parents[2] / "templates"
    node = (templates / "node.sh.j2").read_text()
    for name in (name for name, one in LAUNCHERS.items() if one.task == "launcher"):
        assert f'if plan.launcher == "{name}" %}}' in node
    # The harness counts the ranks of those that are launchers on each node.
    harness = (templates / "harness.sh").read_text()
    others = [name for name, one in LAUNCHERS.items() if one.task != "launcher"]
    assert f"'' | {' | '.join(others)}) return 0" in harness


@pytest.mark.parametrize(
    ("text", "launcher", "framework"),
    [
        ("script: a.py", "torchrun", "torch"),
        ("script: a.py\nframework: accelerate", "accelerate", "accelerate"),
        ("script: a.py\nframework: transformers", "torchrun", "transformers"),
        ("script: a.py\nframework: lightning", "torchrun", "lightning"),
        ("script: a.py\nlauncher: accelerate", "accelerate", "accelerate"),
        # Whoever launches by accelerate has an Accelerator, with DeepSpeed or without.
        ("script: a.py\nlauncher: accelerate\ndeepspeed: {}", "accelerate", "accelerate"),
        ("script: a.py\ndeepspeed: {}", "torchrun", "deepspeed"),
        ("script: a.py\nframework: accelerate\nlauncher: srun", "srun", "accelerate"),
        ("command: [make]", "none", "torch"),
        ("command: [train]\nlauncher: deepspeed", "deepspeed", "torch"),
    ],
)
def test_defaults(text: str, launcher: str, framework: str) -> None:
    spec = job(text)
    assert (decide_launcher(spec).name, decide_framework(spec)) == (launcher, framework)
    made = plan(text)
    assert (made.launcher, made.framework) == (launcher, framework)
    assert variables(made)["HPCRUN_LAUNCHER"] == launcher


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "script: a.py\nlauncher: torchrun\naccelerate: {}",
            "accelerate: launcher torchrun does not read it",
        ),
        ("command: [make]\nframework: accelerate", "framework: accelerate, but the command is"),
    ],
)
def test_what_cannot_work_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        plan(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed", "accelerate", "srun"])
@pytest.mark.parametrize("framework", ["accelerate", "transformers"])
def test_accelerate_is_given_the_same_under_every_launcher(framework: str, launcher: str) -> None:
    text = f"script: a.py\nframework: {framework}\nlauncher: {launcher}\nprecision: fp16\n"
    text += "batch: {gradient_accumulation_steps: 3}\n"
    env = variables(plan(text))
    assert env["ACCELERATE_MIXED_PRECISION"] == "fp16"
    assert "ACCELERATE_USE_DEEPSPEED" not in env
    # The Trainer takes it as an argument, and it would be counted twice.
    steps = env.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")
    assert steps == ("3" if framework == "accelerate" else None)
    env = variables(plan(text + "deepspeed: {zero_stage: 1}"))
    assert env["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert env["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == f"{PLACE.run_dir}/deepspeed.json"


@pytest.mark.parametrize("framework", ["torch", "deepspeed", "lightning"])
def test_others_are_given_nothing_of_accelerate(framework: str) -> None:
    env = variables(plan(f"script: a.py\nframework: {framework}"))
    assert not [name for name in env if name.startswith("ACCELERATE_")]


@pytest.mark.parametrize(
    ("launcher", "shown"),
    [("torchrun", False), ("accelerate", False), ("deepspeed", True), ("srun", True)],
)
def test_lightning_believes_the_ranks_of_any_launcher(launcher: str, shown: bool) -> None:
    env = variables(plan(f"script: a.py\nframework: lightning\nlauncher: {launcher}"))
    assert env.get("TORCHELASTIC_RUN_ID") == (PLACE.run_id if shown else None)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("framework: accelerate", True),
        ("framework: accelerate\ndeepspeed: {}", False),
        ("framework: transformers\ndeepspeed: {}", False),
        ("framework: deepspeed", False),
    ],
)
def test_on_cpus_deepspeed_is_not_left_out(text: str, shown: bool) -> None:
    env = variables(plan(f"script: a.py\nprecision: fp32\n{text}", "accelerator: cpu"))
    assert ("ACCELERATE_USE_CPU" in env) == shown
    assert env["DS_ACCELERATOR"] == "cpu"


def test_hosts_of_a_hostfile() -> None:
    from msgspec import structs

    place = structs.replace(PLACE, hosts=["lab1", "lab2"])
    for launcher, starter, tasks in (("deepspeed", "pdsh", 4), ("torchrun", "torchrun", 1)):
        text = f"script: a.py\nlauncher: {launcher}\nresources: {{nodes: 2, gpus_per_node: 4}}"
        made = build_plan(job(text), cluster(), place)
        assert (made.launcher, made.tasks_per_node, made.hosts) == (starter, tasks, place.hosts)


def test_a_switch_that_nothing_passes_on_is_reported() -> None:
    on = "script: a.py\nactivation_checkpointing: true\n"
    passed = ["args: ['{activation_checkpointing}']", "env: {A: 'x{activation_checkpointing}'}"]
    assert any("activation_checkpointing: no arg" in note for note in plan(on).notes)
    for way in passed:
        assert not any("activation_checkpointing" in note for note in plan(on + way).notes)
    assert not any("activation_checkpointing" in note for note in plan("script: a.py").notes)
