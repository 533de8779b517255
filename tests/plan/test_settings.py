"""docs/settings.md lists every variable and key of a plan, and user values override them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hpcrun.plan.build import build_plan
from hpcrun.plan.environment import FABRICS
from hpcrun.plan.types import Plan
from hpcrun.render.environment import open_templates
from hpcrun.render.files import render_files
from tests.plan.making import PLACE, cluster, job, plan

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
# Exported by the harness on the nodes, where a plan does not show them.
BY_THE_HARNESS = {
    "GLOO_SOCKET_IFNAME", "GROUP_RANK", "HF_HOME", "LOCAL_WORLD_SIZE", "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME", "NODE_RANK", "PET_LOG_DIR", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
}  # fmt: skip
JOBS = [
    f"script: a.py\nresources: {{nodes: 2}}\n{rest}"
    for rest in (
        "",
        "framework: accelerate\nprecision: bf16\nbatch: {effective: 8}",
        "framework: transformers\nprecision: fp32\ndeepspeed: {}",
        "framework: lightning\nlauncher: srun",
    )
]
PROFILES = [
    "",
    "accelerator: rocm",
    "accelerator: cpu",
    "internet: false",
    *(f"fabric: {fabric}" for fabric in FABRICS),
]


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def names(title: str) -> set[str]:
    """Return the names in the first column of a section's table."""
    rows = re.findall(r"^\| (`.*?) \|", section(title), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def plans() -> Iterator[Plan]:
    for text, profile in itertools.product(JOBS, PROFILES):
        place = structs.replace(PLACE, debug=True)
        yield build_plan(job(text), cluster(profile), place)


def exported() -> set[str]:
    found = set()
    for made in plans():
        for one in made.environment:
            found |= {*one.variables, *one.prepend}
    return {name for name in found if not name.startswith("HPCRUN_")}


EXPORTED = sorted(exported())


def test_page_lists_every_variable_and_no_other() -> None:
    assert names("Variables") == {*EXPORTED, *BY_THE_HARNESS, "HPCRUN_*"}


# For the programs that reach other hosts, and bash's own.
NOT_FOR_PROGRAMS = {"DS_ENV_FILE", "PDSH_SSH_ARGS_APPEND", "PWD", "SHLVL"}


def test_page_lists_every_variable_that_templates_export() -> None:
    listed = names("Variables") | names("Variables of the launch") | NOT_FOR_PROGRAMS
    folder = Path(__file__).parents[2] / "templates"
    for path in [*folder.glob("*.sh"), *folder.glob("*.j2")]:
        for words in re.findall(r"(?m)^[^#\n]*\bexport ([A-Z].*)", path.read_text()):
            for name in re.findall(r"(?:^|\s)([A-Z][A-Z0-9_]+)(?==|\s|$)", words):
                assert name in listed or name.startswith("HPCRUN_"), (path.name, name)


def text_of(made: Plan, file: str) -> str:
    return next(f.text for f in render_files(made, open_templates(None)) if f.name == file)


@pytest.mark.parametrize("name", [*EXPORTED, *sorted(BY_THE_HARNESS)])
def test_user_value_overrides_a_variable_and_null_removes_it(name: str) -> None:
    key = "nccl" if name.startswith("NCCL_") else "env"
    own = f"nccl: {{env: {{{name}: mine}}}}" if key == "nccl" else f"env: {{{name}: mine}}"
    for text, profile in itertools.product(JOBS, ("", "fabric: slingshot", "accelerator: cpu")):
        made = plan(f"{text}\n{own}", profile)
        values = [one.variables[name] for one in made.environment if name in one.variables]
        assert values == ["mine"]
        made = plan(f"{text}\n{own.replace('mine', 'null')}", profile)
        assert made.unset == [name]
        assert not [one for one in made.environment if name in {*one.variables, *one.prepend}]
        # Unset, no matter whether the launcher, a module or the shell set it.
        assert f"env -u {name} " in text_of(made, "node.sh")


def test_job_overrides_null_variables_of_the_profile() -> None:
    profile = "env: {A: null, B: null, C: 1}"
    made = plan("script: a.py\nenv: {B: 2, C: null}", profile)
    assert made.unset == ["A", "C"]


TRAINS = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "gradient_clipping", "bf16.enabled", "fp16.enabled",
}  # fmt: skip


def keys(config: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict) and not key.startswith("offload_"):
            yield from keys(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


@pytest.mark.parametrize("framework", ["deepspeed", "accelerate", "transformers", "lightning"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_page_lists_every_key_of_deepspeed_json(framework: str, stage: int) -> None:
    text = f"script: a.py\nframework: {framework}\ndeepspeed: {{zero_stage: {stage}}}"
    config = plan(text).deepspeed_config
    assert config is not None
    found = dict(keys(config))
    listed = section("DeepSpeed's JSON")
    for key in found:
        last = key.rpartition(".")[2]
        is_bucket = "bucket" in key or "persistence" in key
        assert is_bucket or f"`{key}`" in listed or f"`{last}`" in listed, key
    if framework != "deepspeed":
        assert all(found[key] == "auto" for key in TRAINS & found.keys())


@pytest.mark.parametrize("rest", ["", "deepspeed: {}", "precision: fp16"])
def test_page_lists_every_key_of_accelerate_yaml(rest: str) -> None:
    config = plan(f"script: a.py\nlauncher: accelerate\n{rest}").accelerate_config
    assert config is not None
    assert config.keys() <= names("Accelerate's YAML")
    assert ("mixed_precision" in config) == ("precision" in rest)
