"""The reference trainer learns, with the same curve for any ranks and strategy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.workloads.conftest import COMMON
from tests.workloads.trainer import Outcome, train, train_on

# fp32 sums in another order. Measured: 2e-7 for losses and 2e-6 for norms over these 12 steps; a
# wrong shard, sample or scale shows in the second digit.
TOLERANCE = 1e-4


def assert_same_curve(one: Outcome, other: Outcome) -> None:
    """Assert equal values at equal steps."""
    assert (one.returncode, other.returncode) == (0, 0), one.stderr + other.stderr
    assert other.curve() == pytest.approx(one.curve(), rel=TOLERANCE)


def test_training_prints_json_records(alone: Outcome) -> None:
    assert alone.returncode == 0, alone.stderr
    config, *records = alone.records()
    assert config["config"]["world_size"] == 1
    assert config["config"]["effective_batch"] == 8
    assert config["config"]["parameters"] == 459_392
    assert [r["step"] for r in records if "loss" in r] == list(range(1, 13))
    assert [r["step"] for r in records if "eval_loss" in r] == [6, 12]
    assert set(records[0]) == {
        "step",
        "loss",
        "lr",
        "grad_norm",
        "tokens_per_second",
        "step_seconds",
        "memory_allocated_bytes",
    }


def test_loss_falls() -> None:
    # With a quarter of the text: CPUs are slow with bf16.
    steps = ("--steps", 60, "--eval-every", 60, "--seq-len", 32)
    outcome = train_on(2, *steps, "--precision", "bf16")
    assert outcome.returncode == 0, outcome.stderr
    loss = outcome.curve("loss", "eval_loss")
    assert loss[1, "loss"] == pytest.approx(5.545, abs=0.2)  # ln 256: nothing is known yet
    assert loss[60, "loss"] < 1.5
    assert loss[60, "eval_loss"] < 1.5  # and what was learned holds for text not seen


def test_accumulation_equals_a_larger_micro_batch(alone: Outcome) -> None:
    accumulated = ("--micro-batch-per-gpu", 2, "--gradient-accumulation-steps", 4)
    assert_same_curve(alone, train(*COMMON, *accumulated))


def test_four_ranks_match_one_process(alone: Outcome) -> None:
    four = train_on(4, *COMMON, "--micro-batch-per-gpu", 2, "--activation-checkpointing")
    assert_same_curve(alone, four)


# ZeRO-3 is trained on a cluster: tests/cluster/test_training.py.
@pytest.mark.parametrize(
    "strategy",
    [*(pytest.param(one, marks=pytest.mark.thorough) for one in ("ddp", "zero3")), "zero2"],
)
def test_two_ranks_match_one_process(
    strategy: str, alone: Outcome, on_two_ranks: Callable[[str], Outcome]
) -> None:
    outcome = on_two_ranks(strategy)
    assert_same_curve(alone, outcome)
    assert outcome.config()["strategy"] == strategy
    assert outcome.config()["parameters"] == 459_392
    first, second = outcome.hashes()
    assert first == second


def test_seed_changes_the_losses(alone: Outcome) -> None:
    other = train("--steps", 1, "--precision", "fp32", "--micro-batch-per-gpu", 8, "--seed", 1)
    assert other.curve("loss")[1, "loss"] != pytest.approx(alone.curve()[1, "loss"], rel=TOLERANCE)
