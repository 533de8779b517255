"""batch: derived sizes and refused combinations."""

from __future__ import annotations

import pytest

from hpcrun.errors import SpecError
from tests.plan.making import job, plan

EIGHT = "script: a.py\nresources: {nodes: 2, gpus_per_node: 4}\n"


@pytest.mark.parametrize(
    ("batch", "micro", "steps", "effective"),
    [
        ("{}", 1, 1, 8),
        ("{micro_batch_per_gpu: 3}", 3, 1, 24),
        ("{micro_batch_per_gpu: 3, gradient_accumulation_steps: 2}", 3, 2, 48),
        ("{effective: 64}", 8, 1, 64),
        ("{effective: 64, micro_batch_per_gpu: 2}", 2, 4, 64),
        ("{effective: 64, gradient_accumulation_steps: 4}", 2, 4, 64),
        ("{effective: 64, micro_batch_per_gpu: 4, gradient_accumulation_steps: 2}", 4, 2, 64),
    ],
)
def test_missing_batch_sizes_are_derived(
    batch: str, micro: int, steps: int, effective: int
) -> None:
    made = plan(f"{EIGHT}batch: {batch}")
    sizes = (made.micro_batch_per_gpu, made.gradient_accumulation_steps, made.effective_batch)
    assert sizes == (micro, steps, effective)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ("{effective: 60}", "60 is not a multiple of 8 ranks; 56 or 64 is"),
        ("{effective: 4}", "4 is not a multiple of 8 ranks; 8 is"),
        (
            "{effective: 64, micro_batch_per_gpu: 3}",
            "64 is not a multiple of 8 ranks x 3 samples per GPU; 48 or 72 is",
        ),
        (
            "{effective: 64, micro_batch_per_gpu: 2, gradient_accumulation_steps: 2}",
            "64, but 8 ranks x 2 samples per GPU x 2 accumulated steps make 32",
        ),
    ],
)
def test_indivisible_effective_batch_is_refused(batch: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        plan(f"{EIGHT}batch: {batch}")
    assert f"batch.effective: {message}" in str(caught.value)


@pytest.mark.parametrize(("gpus", "steps"), [(1, 16), (2, 8), (4, 4), (16, 1)])
def test_effective_batch_is_independent_of_gpu_count(gpus: int, steps: int) -> None:
    made = plan(
        f"script: a.py\nresources: {{gpus_per_node: {gpus}}}\n"
        "batch: {effective: 64, micro_batch_per_gpu: 4}"
    )
    assert (made.gradient_accumulation_steps, made.effective_batch) == (steps, 64)


def test_node_range_keeps_the_effective_batch() -> None:
    spec = job("script: a.py\nresources: {nodes: 2-4}\nbatch: {effective: 12}")
    assert [spec.with_nodes(nodes).batch.effective for nodes in (2, 3, 4)] == [12, 12, 12]


def test_job_without_batch_sets_no_accumulation_for_node_range() -> None:
    spec = job("script: a.py\nresources: {nodes: 2-4}")
    assert not spec.with_nodes(2).batch.sets_accumulation
