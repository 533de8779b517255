"""Published measurements of memory, and what the memory model computes for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from hpcrun.fit.estimate import CONTEXT_BYTES, NCCL_BYTES, estimate_memory
from hpcrun.fit.model_config import read_model_config
from hpcrun.fit.settings import Strategy, Training


def load(name: str) -> dict[str, Any]:
    """Read a file of published measurements."""
    found: dict[str, Any] = yaml.safe_load((Path(__file__).parent / name).read_text())
    return found


DATA = load("published.yaml")
MIB = 2**20
MEASURES = ("total", "reserved", "allocated")


def predict(row: dict[str, Any], models: dict[str, Any]) -> float:
    """Compute the MiB of a measurement."""
    shape = read_model_config(models[row["model"]], row["model"])
    shape = structs.replace(shape, **row.get("shape", {}))
    if row["model"] == "bert_classifier":  # two labels instead of the vocabulary
        shape = structs.replace(shape, vocab=0)
        row = {**row, "training": {"attention": "eager", "sequence": 512, **row["training"]}}
    training = Training(**row["training"])
    estimate = estimate_memory(shape, training)
    total = estimate.total
    if "reserved" in row:
        total -= CONTEXT_BYTES + (NCCL_BYTES if training.gpus > 1 else 0)
    if "allocated" in row:
        total = estimate.allocated
    if "gpus_minus" in row:
        other = estimate_memory(shape, structs.replace(training, gpus=row["gpus_minus"]))
        total = estimate.total - other.total
    return total / MIB


def compute_errors(data: dict[str, Any]) -> dict[str, float]:
    """Compute the relative errors of measurements."""
    return {
        name: predict(row, data["models"]) / next(row[key] for key in MEASURES if key in row) - 1
        for name, row in data["measurements"].items()
    }


def test_published_measurements_within_a_fifth() -> None:
    found = compute_errors(DATA)
    assert len(found) == 30 and all(abs(error) <= 0.2 for error in found.values()), found
    assert sum(abs(error) <= 0.15 for error in found.values()) >= 28, found


def test_measurements_held_back_to_the_end_within_a_fifth() -> None:
    """The miss is a difference of two values that were "arbitrarily sampled" in one step."""
    found = compute_errors(load("published_held_back.yaml"))
    misses = [name for name, error in found.items() if abs(error) > 0.2]
    assert len(found) == 10 and misses == ["llama 3.1 8B difference of 32 and 64 GPUs"], found
    assert sum(abs(error) <= 0.15 for error in found.values()) >= 7, found


def test_gradients_of_the_previous_step_count_where_they_are_kept() -> None:
    shape = read_model_config(DATA["models"]["mingpt_xl"], "mingpt_xl")
    added: float
    strategy: Strategy
    for strategy, added in (("ddp", 4.0), ("fsdp", 1.0), ("zero", 0.0)):
        freed = Training(strategy=strategy, gpus=4, sequence=1024, micro_batch=8)
        kept = structs.replace(freed, keeps_gradients=True)
        difference = (
            estimate_memory(shape, kept).allocated - estimate_memory(shape, freed).allocated
        )
        assert difference == pytest.approx(added * shape.parameters)
