"""The presets load, and their schema is current."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcrun.assets import shipped_folder
from hpcrun.spec.load import load_job
from hpcrun.spec.schema import json_schema

PRESETS = sorted(shipped_folder("jobs").glob("*.yaml"))


ASKED_FOR = {
    "single-gpu": (1, 1),
    "ddp-4gpu": (1, 4),
    "accelerate-4gpu": (1, 4),
    "zero1-4gpu": (1, 4),
    "zero2-4gpu": (1, 4),
    "zero3-4gpu": (1, 4),
    "zero3-offload-4gpu": (1, 4),
    "zero2-8gpu-2node": (2, 4),
    "zero3-16gpu-2node": (2, 8),
    "zero3-offload-16gpu-4node": (4, 4),
}


def _preset(name: str) -> tuple[str, str]:
    path = shipped_folder("jobs") / f"{name}.yaml"
    return path.read_text(), path.name


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_preset_loads_and_has_a_description(path: Path) -> None:
    spec = load_job(path.read_text(), source=path.name, resolve=_preset)
    assert spec.description
    assert path.read_text().startswith("# yaml-language-server: $schema=job.schema.json\n")


@pytest.mark.parametrize(("name", "size"), ASKED_FOR.items())
def test_preset_matches_its_name(name: str, size: tuple[int, int]) -> None:
    spec = load_job(*_preset(name)[:1], source=name, resolve=_preset)
    assert (spec.resources.nodes, spec.resources.gpus_per_node) == size
    stage = spec.deepspeed.zero_stage if spec.deepspeed else None
    assert stage == (int(name[4]) if name.startswith("zero") else None)
    offload = spec.deepspeed is not None and spec.deepspeed.offload.param == "cpu"
    assert offload == ("offload" in name)


@pytest.mark.parametrize("name", sorted(ASKED_FOR))
def test_overrides_apply_to_any_preset(name: str) -> None:
    overrides = ["resources.nodes=3", "resources.gpus_per_node=2", "batch.micro_batch_per_gpu=7"]
    spec = load_job(*_preset(name)[:1], source=name, resolve=_preset, overrides=overrides)
    assert (spec.resources.nodes, spec.resources.gpus_per_node) == (3, 2)
    assert spec.batch.micro_batch_per_gpu == 7


def test_schema_next_to_the_presets_is_current() -> None:
    """If this fails, run make docs."""
    assert json.loads((shipped_folder("jobs") / "job.schema.json").read_text()) == json_schema(
        "job"
    )
