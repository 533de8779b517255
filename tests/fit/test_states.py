"""Model states as computed, and those of a real DeepSpeed engine on CPU ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hpcrun.fit.settings import Training, Weights
from hpcrun.fit.shape import ModelShape
from hpcrun.fit.states import compute_states
from tests.torch_extensions import extensions

ENGINE = Path(__file__).parent / "engine_states.py"
HIDDEN, LAYERS = 512, 4
BLOCK = HIDDEN * HIDDEN + HIDDEN
# Only weights matter to the engine's program, whose largest tensor is one matrix.
SHAPE = ModelShape(given_parameters=LAYERS * BLOCK, embedding_parameters=HIDDEN * HIDDEN)
BUCKET = 300_000
CASES: dict[str, dict[str, Any]] = {
    "stage 0, fp32, 2 ranks": {"zero_stage": 0, "precision": "fp32", "gpus": 2},
    "stage 0, bf16, 4 ranks": {"zero_stage": 0, "precision": "bf16", "gpus": 4},
    "stage 1, bf16, 2 ranks": {"zero_stage": 1, "precision": "bf16", "gpus": 2},
    "stage 1, bf16, fp32 gradients, 4 ranks": {
        "zero_stage": 1,
        "precision": "bf16",
        "gpus": 4,
        "gradient_bytes": 4,
    },
    "stage 1, fp32, 4 ranks": {"zero_stage": 1, "precision": "fp32", "gpus": 4},
    "stage 2, bf16, 4 ranks": {"zero_stage": 2, "precision": "bf16", "gpus": 4},
    "stage 2, bf16, fp32 gradients, 2 ranks": {
        "zero_stage": 2,
        "precision": "bf16",
        "gpus": 2,
        "gradient_bytes": 4,
    },
    "stage 2, bf16, offload, 4 ranks": {
        "zero_stage": 2,
        "precision": "bf16",
        "gpus": 4,
        "offload_optimizer": "cpu",
    },
    "stage 3, fp32, 2 ranks": {"zero_stage": 3, "precision": "fp32", "gpus": 2},
    "stage 3, bf16, 4 ranks": {"zero_stage": 3, "precision": "bf16", "gpus": 4},
    "stage 3, bf16, offload, 2 ranks": {
        "zero_stage": 3,
        "precision": "bf16",
        "gpus": 2,
        "offload_optimizer": "cpu",
    },
    "stage 3, bf16, offload of all, 4 ranks": {
        "zero_stage": 3,
        "precision": "bf16",
        "gpus": 4,
        "offload_optimizer": "cpu",
        "offload_param": "cpu",
    },
}


def engine_config(training: Training) -> dict[str, Any]:
    """Return DeepSpeed's configuration for the settings."""
    zero: dict[str, Any] = {
        "stage": training.zero_stage,
        "reduce_bucket_size": training.reduce_bucket,
        "allgather_bucket_size": training.reduce_bucket,
        "overlap_comm": training.overlap_comm,
        "stage3_prefetch_bucket_size": training.prefetch_bucket,
        "stage3_param_persistence_threshold": 100,
    }
    for key, place in (
        ("offload_optimizer", training.offload_optimizer),
        ("offload_param", training.offload_param),
    ):
        if place != "none":
            zero[key] = {"device": place, "pin_memory": False}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": training.accumulation,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
    }
    if training.precision != "fp32":
        config[training.precision] = {"enabled": True}
    if training.gradient_bytes == 4:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config


@pytest.fixture(scope="module")
def engines() -> dict[str, Any]:
    """Train two steps of each case with DeepSpeed; the bytes of rank 0 by moment and role."""
    cases = [
        {
            "name": name,
            "config": engine_config(settings(changes)),
            "ranks": changes["gpus"],
            "hidden": HIDDEN,
            "layers": LAYERS,
        }
        for name, changes in CASES.items()
    ]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", ENGINE],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": extensions()},
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    assert len(lines) == len(cases), done.stderr[-3000:]
    return {line["name"]: line for line in lines}


def settings(changes: dict[str, Any]) -> Training:
    """Return the settings of a case."""
    weights: Weights = "pure" if changes["precision"] == "fp32" else "master"
    return Training(
        strategy="zero",
        weights=weights,
        accumulation=2,
        reduce_bucket=BUCKET,
        prefetch_bucket=BUCKET,
        **changes,
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_states_are_those_of_a_deepspeed_engine(case: str, engines: dict[str, Any]) -> None:
    """Each role agrees within 1 % of the total; both kinds of memory are host memory here."""
    training = settings(CASES[case])
    found = engines[case]
    assert found["params"] == SHAPE.parameters
    moments = found["moments"]
    states = compute_states(SHAPE, training)
    host = states.host
    step = {
        "parameters": states.parameters + host.get("parameters", 0),
        "master": states.master + host.get("master weights", 0),
        "optimizer": states.optimizer + host.get("optimizer", 0),
        "gradients": states.step_gradients + host.get("gradients", 0),
        "buckets": states.step_buckets,
        "other": states.transfer
        + host.get("transfer buffer", 0)
        + host.get("accumulated gradients", 0),
    }
    expected = sum(step.values())
    measured = moments["step"]
    assert sum(measured.values()) == pytest.approx(expected, rel=0.01)
    for role, size in step.items():
        assert measured[role] == pytest.approx(size, abs=0.01 * expected), role
    # The buckets exist during the backward pass, in all stages but 0.
    if training.zero_stage and not (training.zero_stage == 1 and training.gradient_bytes == 4):
        assert moments["backward 1"]["buckets"] == pytest.approx(states.buckets, rel=0.01)
    # Between the accumulated passes; stage 2 keeps the sum under another name.
    kept = states.gradients + host.get("gradients", 0)
    if training.zero_stage == 1:
        kept += states.staging
    between = moments["after backward 0"]
    other = between["other"] if training.zero_stage == 2 and not host else 0
    assert between["gradients"] + other == pytest.approx(kept, abs=0.01 * expected)


def test_zero_stages_divide_what_the_paper_says() -> None:
    """Table 1 of arXiv 1910.02054: 7.5 billion parameters on 64 GPUs."""
    model = ModelShape(given_parameters=7_500_000_000)
    kept = []
    for stage in (0, 1, 2, 3):
        training = Training(strategy="zero", zero_stage=stage, weights="master", gpus=64)
        states = compute_states(model, training)
        gradients = states.gradients + states.staging
        kept.append(states.parameters + states.master + states.optimizer + gradients)
    assert [round(size / 1e9, 1) for size in kept] == [120.0, 31.4, 16.6, 1.9]


def test_frozen_parameters_have_no_gradients_or_states() -> None:
    model = ModelShape(given_parameters=1_000_000_000)
    training = Training(strategy="zero", zero_stage=2, weights="master", gpus=2, reduce_bucket=0)
    lora = structs.replace(training, trainable=10_000_000)
    states = compute_states(model, lora)
    assert states.parameters == 2e9
    assert states.in_step == pytest.approx(2e9 + 12e6 * 10 / 2 + 4e6 * 10 / 2)
    assert compute_states(model, structs.replace(lora, zero_stage=3)).parameters == 1e9
    quantized = structs.replace(lora, frozen_bytes=0.5)
    assert compute_states(model, quantized).parameters == 0.5 * 0.99e9 + 2e7


def test_offload_moves_states_to_the_host() -> None:
    model = ModelShape(given_parameters=1_000_000_000)
    training = Training(
        strategy="zero", zero_stage=3, weights="master", gpus=4, offload_optimizer="cpu"
    )
    states = compute_states(model, training)
    assert states.master == states.optimizer == 0
    assert states.host["optimizer"] == 2e9 and states.host["master weights"] == 1e9
    everything = compute_states(model, structs.replace(training, offload_param="cpu"))
    assert everything.parameters == 0 and everything.host["parameters"] == 0.5e9


def test_nvme_leaves_buffers_in_host_memory() -> None:
    model = ModelShape(given_parameters=40_000_000_000)
    training = Training(
        strategy="zero",
        zero_stage=3,
        weights="master",
        gpus=4,
        offload_optimizer="nvme",
        offload_param="nvme",
    )
    host = compute_states(model, training).host
    assert host == {
        "NVMe buffers": 4 * 1e9 * 4,
        "gradients": 10e9 * 2,
        "parameters": 1e9 * 2,
        "parameter buffers": 5 * 1e8 * 2,
    }
    small = compute_states(ModelShape(given_parameters=400_000_000), training).host
    assert small["parameters"] == 0.1e9 * 2 and small["NVMe buffers"] == 4 * 0.1e9 * 4


def test_eight_bit_optimizer_needs_a_quarter_of_the_states() -> None:
    model = ModelShape(given_parameters=1_000_000_000)
    full = compute_states(model, Training())
    small = compute_states(model, Training(optimizer="adamw_8bit"))
    assert full.optimizer == 8e9 and small.optimizer == pytest.approx(2.03e9, rel=0.01)
    assert compute_states(model, Training(optimizer="sgd")).optimizer == 0


def test_states_of_eight_bits_are_the_same_for_weights_of_16_bits() -> None:
    model = ModelShape(given_parameters=1_000_000_000)
    pure = Training(weights="pure", optimizer="adamw_8bit")
    assert compute_states(model, pure).optimizer == pytest.approx((2 + 2 * 4 / 256) * 1e9)
    for optimizer, size in (("adamw", 4e9), ("lion", 2e9)):
        training = structs.replace(pure, optimizer=optimizer)
        assert compute_states(model, training).optimizer == size
