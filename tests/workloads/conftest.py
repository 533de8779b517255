"""Training runs shared by several tests; each runs once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.workloads.trainer import Outcome, train, train_on, write_deepspeed_config

# 12 steps in fp32 with an effective batch of 8, however it is divided.
COMMON = ("--steps", 12, "--precision", "fp32", "--eval-every", 6)
HALVED = (*COMMON, "--micro-batch-per-gpu", 2, "--gradient-accumulation-steps", 2)


@pytest.fixture(scope="session")
def alone() -> Outcome:
    """All 8 samples at once in one process."""
    return train(*COMMON, "--micro-batch-per-gpu", 8)


@pytest.fixture(scope="session")
def strategy_arguments(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[object]]:
    """Return arguments for two ranks with 2 samples, accumulated twice: ddp, zero2 or zero3."""
    folder: Path = tmp_path_factory.mktemp("deepspeed")
    stages = {
        "zero2": {"stage": 2},
        # Threshold 0, so that even these small parameters are sharded.
        "zero3": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }

    def arguments(strategy: str) -> list[object]:
        if strategy == "ddp":
            return [*HALVED]
        path = write_deepspeed_config(folder / f"{strategy}.json", stages[strategy])
        return [*HALVED, "--deepspeed-config", path]

    return arguments


@pytest.fixture(scope="session")
def on_two_ranks(strategy_arguments: Callable[[str], list[object]]) -> Callable[[str], Outcome]:
    """Return an uninterrupted training run with a strategy."""

    @cache
    def outcome(strategy: str) -> Outcome:
        return train_on(2, *strategy_arguments(strategy), "--parameter-hash")

    return outcome


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder starts torch, which takes seconds."""
    for item in items:
        if item.nodeid.startswith("tests/workloads/"):
            item.add_marker(pytest.mark.slow)
