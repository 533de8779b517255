"""What slows a training down: each cause with its number, and look-alikes without one."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.curves.curve import build_series
from hpcrun.curves.report.bottlenecks import find_bottlenecks
from hpcrun.curves.report.comparison import compare_runs
from hpcrun.curves.report.parsed import ParsedRun, Usage
from tests.curves.report.compared import loss
from tests.curves.report.runs import built

GIB = 1 << 30


def run(gpus: int = 1, *, batch: int = 8, seconds: float = 1.0, **more: Any) -> ParsedRun:
    """Return a run of 100 steps; other metrics are constant, and ``slow`` steps take ten times."""
    steps: list[int | None] = list(range(1, 101))
    slow = more.pop("slow", 0)
    times = [seconds * (10 if step <= slow else 1) for step in range(1, 101)]
    metrics = {"loss": loss(100, 2.0), "step_seconds": build_series(steps, times)}
    for name, value in more.pop("metrics", {}).items():
        metrics[name] = build_series(steps, [value] * 100)
    facts = {"effective_batch": str(batch), **more.pop("facts", {})}
    return built(f"{gpus}gpu", metrics, gpus=gpus, facts=facts, **more)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"usage": Usage(data_shares={0: 0.4, 1: 0.38})},
            "38% of the time the ranks wait for data",
        ),
        ({"metrics": {"data_time": 0.3}}, "30% of the time the ranks wait for data"),
        ({"metrics": {"data_time": 150.0, "iter_time": 250.0}}, "60% of the time the ranks wait"),
        ({"metrics": {"train/data_time": 0.5}}, "50% of the time the ranks wait for data"),
        (
            {"usage": Usage(data_shares={0: 0.02, 1: 0.5, 2: 0.02, 3: 0.03})},
            "rank 1 waits for data 50% of the time, the others 2%",
        ),
        (
            {"usage": Usage(data_shares={0: 0.03, 1: 0.8})},
            "rank 1 waits for data 80% of the time, the others 3%",
        ),
        (
            {"metrics": {"fwd": 20.0, "bwd": 70.0, "bwd_allreduce": 40.0, "step_ms": 10.0}},
            "40% of a step is the reduction of gradients",
        ),
        ({"slow": 8}, "one step in twenty takes at least 10 times the median"),
        (
            {"facts": {"deepspeed.offload.optimizer": "cpu"}},
            "DeepSpeed offloads (optimizer on cpu)",
        ),
        (
            {"usage": Usage(peak_memory=12 * GIB, gpu_memory=80 * GIB)},
            "the peak memory is 12.0 GiB of 80.0 GiB: take a larger batch per GPU",
        ),
        (
            {"facts": {"resources.nodes": "2", "nccl.fabric": "ethernet"}},
            "the nodes communicate over Ethernet",
        ),
    ],
)
def test_bottleneck_is_named_with_its_number(changes: dict[str, Any], expected: str) -> None:
    found = find_bottlenecks(run(**changes))
    assert any(text.startswith(expected) for text in found), found
    assert len(found) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"usage": Usage(data_shares={0: 0.05, 1: 0.1})},
        {"metrics": {"data_time": 0.01}},
        {"metrics": {"data_time": 3.0, "iter_time": 250.0}},
        {"metrics": {"data_time": 300.0}},  # milliseconds, and the step time is in seconds
        {"metrics": {"fwd": 20.0, "bwd": 70.0, "bwd_allreduce": 2.0, "step_ms": 10.0}},
        {"slow": 3},
        {"facts": {"deepspeed.offload.optimizer": "none"}},
        {"usage": Usage(peak_memory=70 * GIB, gpu_memory=80 * GIB)},
        {"facts": {"resources.nodes": "1", "nccl.fabric": "ethernet"}},
        {"facts": {"resources.nodes": "2", "nccl.fabric": "infiniband"}},
    ],
)
def test_fast_run_has_no_bottleneck(changes: dict[str, Any]) -> None:
    assert find_bottlenecks(run(**changes)) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"batch": 32, "seconds": 2.0},
            "with the same batch per GPU, a step takes 2 times as long: 50% of it is",
        ),
        ({"batch": 8, "seconds": 0.6}, "the batch per GPU is 2 instead of 8"),
        (
            {"batch": 8, "seconds": 0.6, "usage": Usage(data_shares={0: 0.7})},
            "70% of the time the ranks wait for data",
        ),
        ({"batch": 16, "seconds": 1.0}, "the batch per GPU is 4 instead of 8"),
        ({"batch": 26, "seconds": 1.6}, "its numbers do not show why"),
    ],
)
def test_poor_scaling_is_explained(changes: dict[str, Any], expected: str) -> None:
    compared = compare_runs([run(), run(4, **changes)])
    (text,) = compared.slow
    assert text.startswith("4gpu has an efficiency of ") and expected in text, text


def test_good_scaling_needs_no_explanation() -> None:
    assert compare_runs([run(), run(4, batch=32, seconds=1.1)]).slow == ()
