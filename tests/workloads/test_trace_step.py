"""The tracer of training steps, on scripts with known sizes and against the memory model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

import hpcrun.workloads
from hpcrun.fit.activations import compute_activations
from hpcrun.fit.model_config import read_model_config
from hpcrun.fit.settings import Training
from hpcrun.fit.step_trace import StepTrace, apply_trace

TRACER = Path(hpcrun.workloads.__file__).parent / "trace_step.py"
SCRIPT = Path(__file__).parent / "traced_script.py"
LLAMA = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
}
TRAINER = """\
import json, sys, torch
from transformers import AutoConfig, AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("llama", dtype=torch.bfloat16).cuda()
if sys.argv[1] == "checkpointing":
    model.gradient_checkpointing_enable()
model.train()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    tokens = torch.randint(8192, (2, 512)).cuda()
    output = model(input_ids=tokens, labels=tokens)
    output.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def trace(folder: Path, *words: str) -> dict[str, Any]:
    """Trace a script in a process of its own."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "4"}
    report = folder / "report.json"
    done = subprocess.run(
        [sys.executable, TRACER, report, *words],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.is_file(), done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.mark.slow
def test_trace_counts_what_a_script_for_gpus_keeps(tmp_path: Path) -> None:
    found = trace(tmp_path, str(SCRIPT))
    assert found["error"] == "" and found["steps"] == 2
    numbers = 2 * 1024 * 4096 + 4096 + 1024
    assert found["trained"] == numbers and found["trained_formats"] == {"float32": numbers}
    assert found["strategy"] == "ddp" and found["autocast"] == "bfloat16"
    assert found["gradient_bytes"] == 4 * numbers
    assert found["optimizer_bytes"] == pytest.approx(8 * numbers, rel=1e-5)
    # The batch in both formats; relu's output, dropout's mask and output; the fp32 copy of the
    # model's output; autocast's copy of the second weight, because the gradient of the first
    # layer's input is not needed; and the loss.
    batch = 64 * (1024 * (4 + 2) + 4096 * (2 + 1 + 2) + 1024 * 4)
    assert found["activations"] == batch + 2 * 1024 * 4096 + 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before_forward", "before_backward", "expected"),
    [
        ("optimizer.zero_grad()", "", False),
        ("optimizer.zero_grad(set_to_none=False)", "", True),
        ("", "optimizer.zero_grad()", True),
    ],
)
def test_trace_finds_gradients_that_exist_in_the_next_forward_pass(
    tmp_path: Path, before_forward: str, before_backward: str, expected: bool
) -> None:
    script = f"""
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    {before_forward}
    loss = model(torch.ones(8, 64, device="cuda")).sum()
    {before_backward}
    loss.backward()
    optimizer.step()
"""
    (tmp_path / "train.py").write_text(script)
    found = trace(tmp_path, "train.py")
    assert found["error"] == "" and found["keeps_gradients"] is expected
    settings = apply_trace(Training(), convert(found, StepTrace))
    assert settings.keeps_gradients is expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting", [pytest.param("plain", marks=pytest.mark.thorough), "checkpointing"]
)
def test_trace_of_a_transformer_agrees_with_the_memory_model(tmp_path: Path, setting: str) -> None:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "train.py").write_text(TRAINER)
    found = trace(tmp_path, "train.py", setting)
    assert found["error"] == "" and found["steps"] == 2
    shape = read_model_config(LLAMA, "config.json")
    assert found["trained"] == shape.parameters
    assert found["largest_layer"] == shape.largest_layer
    assert found["checkpointing"] == (setting == "checkpointing")
    training = Training(
        weights="pure", micro_batch=2, sequence=512, checkpointing=setting == "checkpointing"
    )
    computed = compute_activations(shape, training)
    assert computed is not None
    peak = computed.kept + max(computed.logits, computed.transient)
    assert found["peak"] == pytest.approx(peak, rel=0.1)


@pytest.mark.slow
def test_trace_says_where_a_script_failed(tmp_path: Path) -> None:
    found = trace(tmp_path, str(SCRIPT), "--fail")
    assert found["steps"] == 0 and found["error"] == "ValueError: no data in /scratch"
    line = SCRIPT.read_text().splitlines().index('    raise ValueError("no data in /scratch")') + 1
    assert found["where"] == f"{SCRIPT}:{line}"
