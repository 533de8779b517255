"""The launcher of each framework, and the variables and options it receives."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from hpcrun.errors import SpecError
from hpcrun.plan.build import build_plan
from hpcrun.plan.launchers import (
    _OTHER_OPTIONS,
    _OWNED_OPTIONS,
    LAUNCHERS,
    decide_framework,
    decide_launcher,
)
from hpcrun.render.environment import open_templates
from hpcrun.render.files import render_files
from hpcrun.spec.job import LauncherName
from tests.plan.making import PLACE, cluster, job, plan, variables


def test_launcher_table_matches_names_and_templates() -> None:
    assert {*get_args(LauncherName), "pdsh", "none"} == LAUNCHERS.keys()
    templates = Path(__file__).parents[2] / "templates"
    node = (templates / "node.sh.j2").read_text()
    for name in (name for name, one in LAUNCHERS.items() if one.task == "launcher"):
        assert f'if plan.launcher == "{name}" %}}' in node
    # The harness counts the ranks of launchers that run on each node.
    harness = (templates / "harness.sh").read_text()
    others = [name for name, one in LAUNCHERS.items() if one.task != "launcher"]
    others.append("ray")  # starts one rank for all nodes
    assert f"'' | {' | '.join(others)}) return 0" in harness


@pytest.mark.parametrize(
    ("text", "launcher", "framework"),
    [
        ("script: a.py", "torchrun", "torch"),
        ("script: a.py\nframework: accelerate", "accelerate", "accelerate"),
        ("script: a.py\nframework: transformers", "torchrun", "transformers"),
        ("script: a.py\nframework: lightning", "torchrun", "lightning"),
        ("script: a.py\nlauncher: accelerate", "accelerate", "accelerate"),
        # A script started by accelerate launch has an Accelerator, with or without DeepSpeed.
        ("script: a.py\nlauncher: accelerate\ndeepspeed: {}", "accelerate", "accelerate"),
        ("script: a.py\ndeepspeed: {}", "torchrun", "deepspeed"),
        ("script: a.py\nframework: accelerate\nlauncher: srun", "srun", "accelerate"),
        ("command: [make]", "none", "torch"),
        ("command: [train]\nlauncher: deepspeed", "deepspeed", "torch"),
    ],
)
def test_default_launcher_and_framework_follow_from_the_job(
    text: str, launcher: str, framework: str
) -> None:
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
        ("command: [make]\nends_with: first_node", "ends_with: first_node is for a command on"),
        (
            "script: a.py\nends_with: first_node\nresources: {nodes: 2}",
            "ends_with: first_node is for a command on several nodes",
        ),
    ],
)
def test_unsupported_launcher_combinations_are_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        plan(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed", "accelerate", "srun"])
@pytest.mark.parametrize("framework", ["accelerate", "transformers"])
def test_accelerate_variables_are_the_same_under_every_launcher(
    framework: str, launcher: str
) -> None:
    text = f"script: a.py\nframework: {framework}\nlauncher: {launcher}\nprecision: fp16\n"
    text += "batch: {gradient_accumulation_steps: 3}\n"
    env = variables(plan(text))
    assert env["ACCELERATE_MIXED_PRECISION"] == "fp16"
    assert "ACCELERATE_USE_DEEPSPEED" not in env
    # The Trainer has an argument for it; a variable would apply the accumulation twice.
    steps = env.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")
    assert steps == ("3" if framework == "accelerate" else None)
    env = variables(plan(text + "deepspeed: {zero_stage: 1}"))
    assert env["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert env["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == f"{PLACE.run_dir}/deepspeed.json"


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed", "accelerate", "srun"])
@pytest.mark.parametrize("framework", ["accelerate", "transformers"])
@pytest.mark.parametrize(
    ("rest", "exported"),
    [
        ("", set()),
        ("batch: {micro_batch_per_gpu: 8}", set()),
        ("precision: bf16", {"ACCELERATE_MIXED_PRECISION"}),
        (
            "batch: {gradient_accumulation_steps: 1}",
            {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS"},
        ),
        ("batch: {effective: 8}", {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS"}),
    ],
)
def test_accelerate_variables_contain_only_values_of_the_job(
    framework: str, launcher: str, rest: str, exported: set[str]
) -> None:
    made = plan(f"script: a.py\nframework: {framework}\nlauncher: {launcher}\n{rest}")
    names = {name for name in variables(made) if name.startswith("ACCELERATE_")}
    if framework == "transformers":
        exported = exported - {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS"}
    assert names == exported
    if made.accelerate_config is not None:
        is_set = "ACCELERATE_MIXED_PRECISION" in exported
        assert ("mixed_precision" in made.accelerate_config) == is_set


@pytest.mark.parametrize("framework", ["torch", "deepspeed", "lightning"])
def test_other_frameworks_get_no_accelerate_variables(framework: str) -> None:
    env = variables(plan(f"script: a.py\nframework: {framework}"))
    assert not [name for name in env if name.startswith("ACCELERATE_")]


@pytest.mark.parametrize(
    ("launcher", "shown"),
    [("torchrun", False), ("accelerate", False), ("deepspeed", True), ("srun", True)],
)
def test_lightning_gets_torchelastic_run_id_where_needed(launcher: str, shown: bool) -> None:
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
def test_accelerate_on_cpus_keeps_deepspeed(text: str, shown: bool) -> None:
    env = variables(plan(f"script: a.py\nprecision: fp32\n{text}", "accelerator: cpu"))
    assert ("ACCELERATE_USE_CPU" in env) == shown
    assert env["DS_ACCELERATOR"] == "cpu"


def test_hostfile_hosts_are_started_with_and_without_pdsh() -> None:
    from msgspec import structs

    place = structs.replace(PLACE, hosts=["lab1", "lab2"])
    for launcher, starter, tasks in (("deepspeed", "pdsh", 4), ("torchrun", "torchrun", 1)):
        text = f"script: a.py\nlauncher: {launcher}\nresources: {{nodes: 2, gpus_per_node: 4}}"
        made = build_plan(job(text), cluster(), place)
        assert (made.launcher, made.tasks_per_node, made.hosts) == (starter, tasks, place.hosts)


def test_unpassed_activation_checkpointing_has_a_note() -> None:
    on = "script: a.py\nactivation_checkpointing: true\n"
    passed = ["args: ['{activation_checkpointing}']", "env: {A: 'x{activation_checkpointing}'}"]
    assert any("activation_checkpointing: neither an arg" in note for note in plan(on).notes)
    for way in passed:
        assert not any("activation_checkpointing" in note for note in plan(on + way).notes)
    assert not any("activation_checkpointing" in note for note in plan("script: a.py").notes)


# ---- the step


def step(text: str, profile: str = "") -> dict[str, str | None]:
    return dict(plan(f"script: a.py\nresources: {{gpus_per_node: 4}}\n{text}", profile).step)


def test_srun_options_of_the_job_override_the_profile() -> None:
    first = {"kill-on-bad-exit": "1"}
    assert step("") == {"cpus-per-task": "16", **first, "mpi": "none", "wait": "600"}
    ranks = {"cpus-per-task": "4", **first, "distribution": "block", "wait": "600"}
    assert step("launcher: srun") == ranks
    whole = plan("script: a.py\nlauncher: srun\nresources: {gpus_per_node: 4, exclusive: true}")
    assert dict(whole.step)["cpu-bind"] == "none" and any("share all" in n for n in whole.notes)
    site = "srun: {cpu-bind: none, network: a}"
    made = step("srun: {network: b, mpi: pmix, unbuffered: true, wait: false}", site)
    options = {"cpu-bind": "none", "network": "b", "mpi": "pmix", "unbuffered": None}
    assert made == {"cpus-per-task": "16", **first, **options}
    command = plan("command: [a]", "srun: {environment: ./my env.toml}")
    assert command.step[-1] == ("environment", "./my env.toml")
    files = render_files(command, open_templates(None))
    script = next(file.text for file in files if file.name == "job.sbatch")
    assert "srun --nodes=1 " in script and "'--environment=./my env.toml'" in script


def test_rank_with_one_visible_gpu_uses_device_zero() -> None:
    """OLCF's example for Frontier: srun starts the ranks, each with the GPU nearest its cores."""
    bound = "srun: {gpus-per-task: 1, gpu-bind: closest}"
    made = plan(f"script: a.py\nlauncher: srun\nresources: {{gpus_per_node: 8}}\n{bound}")
    assert variables(made)["HPCRUN_GPUS_PER_TASK"] == "1"
    files = {file.name: file.text for file in render_files(made, open_templates(None))}
    assert 'harness.sh" rank env LOCAL_RANK=0 ' in files["node.sh"]
    assert "--gpus-per-task=1 --gpu-bind=closest" in files["job.sbatch"]
    usual = plan("script: a.py\nlauncher: srun\nresources: {gpus_per_node: 8}")
    assert "HPCRUN_GPUS_PER_TASK" not in variables(usual)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("srun: {gpus-per-task: 1}", "srun.gpus-per-task: 1, but torchrun starts the ranks"),
        ("launcher: srun\nsrun: {gpus-per-task: 2}", "srun.gpus-per-task: 2: a rank has one GPU"),
        ("launcher: srun\nsrun: {gpu-bind: closest}", "srun.gpu-bind: closest: ranks that see the"),
        ("srun: {gpu-bind: 'single:1'}", "srun.gpu-bind: single:1: ranks that see"),
    ],
)
def test_gpu_binding_other_than_one_per_rank_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        step(text)
    assert message in str(caught.value)
    assert step("srun: {gpu-bind: none}")["gpu-bind"] == "none"
    if "launcher" not in text:
        with pytest.raises(SpecError, match="cluster srun"):
            step("", text)


# ---- the launcher's own options


def node_script(text: str, profile: str = "") -> str:
    made = plan(f"script: a.py\nresources: {{gpus_per_node: 4}}\n{text}", profile)
    files = render_files(made, open_templates(None))
    return next(file.text for file in files if file.name == "node.sh")


def test_launcher_args_precede_the_program() -> None:
    made = node_script("launcher_args: [--max-restarts=2, --role, '{run_id} x']")
    assert "--max-restarts=2 --role '20261120-081455-train-7k3q x' --no_python bash" in made
    made = node_script("launcher: deepspeed\nlauncher_args: [--enable_each_rank_log=x]")
    assert "--enable_each_rank_log=x --no_python bash" in made
    made = node_script("launcher: accelerate\nlauncher_args: [--of-tomorrow]")
    assert "--of-tomorrow --no_python bash" in made


@pytest.mark.parametrize(
    ("launcher", "word", "message"),
    [
        ("torchrun", "--numa-bindings=node", "did you mean --numa-binding?"),
        ("torchrun", "--nproc-per-node=2", "--nproc-per-node: hpcrun sets it"),
        ("deepspeed", "--bind_core_to_rank", "did you mean --bind_cores_to_rank?"),
        ("deepspeed", "--num_gpus=2", "--num_gpus: hpcrun sets it"),
        ("accelerate", "--num_processes=2", "--num_processes: hpcrun sets it"),
        ("srun", "--unbuffered", "launcher srun reads none; srun: {OPTION: VALUE} has options"),
    ],
)
def test_invalid_launcher_args_are_refused(launcher: str, word: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        node_script(f"launcher: {launcher}\nlauncher_args: ['{word}']")
    assert message in str(caught.value)


@pytest.mark.slow
def test_known_launcher_options_exist_in_the_real_launchers() -> None:
    modules = {
        "torchrun": "torch.distributed.run",
        "deepspeed": "deepspeed.launcher.runner",
        "accelerate": "accelerate.commands.launch",
    }
    for name, module in modules.items():
        argv = [sys.executable, "-m", module, "--help"]
        shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        there = {word.replace("-", "_") for word in re.findall(r"--([a-zA-Z0-9_-]+)", shown)}
        assert set(f"{_OWNED_OPTIONS[name]} {_OTHER_OPTIONS[name]}".split()) <= there, name


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed", "accelerate", "srun"])
def test_cpu_binding_is_the_same_under_every_launcher(launcher: str) -> None:
    """The harness binds each rank: torch, DeepSpeed and Accelerate have different options."""
    text = f"binding: auto\nlauncher: {launcher}\nresources: {{gpus_per_node: 4}}\nscript: a.py"
    node = "partitions: {g: {gpus_per_node: 4}}\npartition: g"
    made = plan(text, node)
    assert variables(made)["HPCRUN_BINDING"] == "exclusive"
    assert variables(plan(text))["HPCRUN_BINDING"] == "node"
    assert (dict(made.step).get("cpu-bind") == "none") == (launcher == "srun")
    assert "HPCRUN_BINDING" not in variables(plan(text.replace("auto", "none"), node))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("command: [make]", "binding: auto, but the command starts its own ranks"),
        ("launcher: srun\nsrun: {gpus-per-task: 1}", "srun: {gpu-bind: closest} selects the one"),
        ("launcher: srun\nsrun: {cpu-bind: 'verbose,cores'}", "cpu-bind: verbose,cores): remove"),
    ],
)
def test_binding_without_effect_is_refused(text: str, message: str) -> None:
    script = "" if "command" in text else "script: a.py\n"
    with pytest.raises(SpecError) as caught:
        plan(f"{script}{text}\nbinding: auto\nresources: {{gpus_per_node: 4}}")
    assert message in str(caught.value)
    closest = "launcher: srun\nbinding: auto\nsrun: {gpus-per-task: 1, gpu-bind: closest}"
    assert "cpu-bind" not in step(closest), "Slurm chooses the GPU next to the rank's cores"


def test_ray_runs_the_script_once_and_is_not_a_rank_of_the_job() -> None:
    made = plan("script: a.py\nlauncher: ray\nresources: {nodes: 2, gpus_per_node: 4}")
    assert (made.tasks_per_node, made.world_size) == (1, 8)
    assert dict(made.step)["mpi"] == "none"
    assert not any(
        "hook.pyz" in section.prepend.get("PYTHONPATH", "") for section in made.environment
    )


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("binding: auto", "binding: auto, but the script starts its own ranks on Ray's workers"),
        ("launcher_args: [--verbose]", "launcher_args: launcher ray reads none; leave it out"),
    ],
)
def test_settings_that_ray_does_not_read_are_refused(rest: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        plan(f"script: a.py\nlauncher: ray\n{rest}")
    assert message in str(caught.value)
