"""Numbers of popular guides, and what the memory model computes instead."""

from __future__ import annotations

import pytest

from hpcrun.fit.estimate import estimate_memory
from hpcrun.fit.settings import Training
from hpcrun.fit.shape import ModelShape, build_shape
from hpcrun.fit.states import compute_states
from hpcrun.text import GIB


def kept(shape: ModelShape, stage: int, gpus: int) -> float:
    """Return the bytes of parameters, gradients, master weights and optimizer of a rank."""
    training = Training(
        strategy="zero",
        zero_stage=stage,
        weights="master",
        gpus=gpus,
        reduce_bucket=0,
        prefetch_bucket=0,
    )
    states = compute_states(shape, training)
    gradients = states.gradients + states.staging
    return states.parameters + gradients + states.master + states.optimizer


@pytest.mark.parametrize(("stage", "saved"), [(1, 0.56), (2, 0.66), (3, 0.75)])
def test_zero_saves_more_than_the_guide_says_of_model_states(stage: int, saved: float) -> None:
    """A guide says 7, 40 and 60 % on four GPUs; these are the shares of the ZeRO paper."""
    shape = ModelShape(given_parameters=1_000_000_000)
    assert 1 - kept(shape, stage, 4) / kept(shape, 0, 4) == pytest.approx(saved, abs=0.005)


def test_small_model_needs_megabytes_under_zero_3() -> None:
    """A guide says 4-7 GB of states per GPU for 12 layers of width 768 on 16 GPUs."""
    shape = build_shape(layers=12, hidden=768, heads=12)
    assert shape.parameters == pytest.approx(85e6, rel=0.01)
    assert kept(shape, 3, 16) == pytest.approx(85e6, rel=0.01)


def test_fourteen_billion_parameters_exceed_four_gpus_of_48_gb() -> None:
    """A guide says 5-8 GB per GPU for full training of Qwen-14B on four L40."""
    shape = ModelShape(given_parameters=14_800_000_000)
    assert kept(shape, 3, 4) == pytest.approx(59.2e9, rel=0.01)
    assert kept(shape, 3, 4) > 44.4 * GIB


def test_no_zero_stage_reduces_activations() -> None:
    """A guide's table has 25 GB of activations in each column, and totals below that."""
    shape = build_shape(layers=24, hidden=2048, heads=16, ffn=5504, vocab=32000)
    sizes = set()
    for stage in (1, 2, 3):
        training = Training(
            strategy="zero", zero_stage=stage, weights="master", gpus=4, sequence=2048
        )
        parts = {part.name: part.bytes for part in estimate_memory(shape, training).parts}
        sizes.add(parts["activations"])
    assert len(sizes) == 1


def test_accumulation_does_not_reduce_memory() -> None:
    """Three guides recommend more accumulated steps against out-of-memory errors."""
    shape = build_shape(layers=24, hidden=2048, heads=16, ffn=5504, vocab=32000)
    training = {"strategy": "zero", "zero_stage": 2, "weights": "master", "gpus": 4}
    one = estimate_memory(shape, Training(**training, sequence=2048))  # type: ignore[arg-type]
    more = estimate_memory(
        shape,
        Training(**training, sequence=2048, accumulation=8),  # type: ignore[arg-type]
    )
    assert more.total >= one.total
