"""The example speech-lm: what is filtered is gone, what is sharded, and that all is one batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tests.cluster.examples.project import EXAMPLES, Project, shapes
from tests.source import ROOT
from tests.torch_extensions import extensions

pytestmark = pytest.mark.timeout(1800)

FACTS = ROOT / "tests" / "cluster" / "workloads" / "speech_lm_facts.py"
# ln(67): the loss of one who knows nothing but the vocabulary.
NOTHING = 4.2


@pytest.fixture
def example(project: Callable[[str], Project]) -> Project:
    return project("speech-lm")


@pytest.mark.thorough
def test_two_nodes_train_with_everything_in_host_memory(small: tuple[Project, Path]) -> None:
    example, run = small
    log = example.hpcrun("logs", "--cluster", "sandbox", run.name)
    # Who fills "auto": the job, the Trainer and DeepSpeed's engine have one batch.
    assert "  batch     32 effective\n" in example.hpcrun(
        "status", "--cluster", "sandbox", run.name
    )
    assert "Trainer: 4 x 2 x 4 = 32 recordings a step\n" in log
    assert "DeepSpeed: 32 recordings a step, ZeRO-3, AdamW\n" in log
    assert (
        "corpus talk: 512 recordings, the longest has 985 tokens; 177 of more than 128 are " in log
    )
    curves = example.curves(run)
    assert list(curves["loss"]) == list(range(1, 21))
    losses = list(curves["loss"].values())
    floor = float(log.partition("loss on the mixture: ")[2].partition("\n")[0])
    assert losses[0] > NOTHING - 0.1
    assert floor - 0.1 < mean(losses[-5:]) < floor + 0.8
    assert max(curves["longest"].values()) <= 128
    # Each corpus is learned; the control, without the second one, is below.
    assert list(curves["eval_talk_loss"]) == [10, 20]
    assert curves["eval_read_loss"][20] < 1.0 and curves["eval_talk_loss"][20] < 2.0
    # The parameters and the optimizer's states are shared out; DeepSpeed has made as many steps.
    kept = run / "checkpoints" / "checkpoint-20" / "global_step20"
    assert len(list(kept.glob("zero_pp_rank_?_mp_rank_00_model_states.pt"))) == 4
    assert len(list(kept.glob("zero_pp_rank_?_mp_rank_00_optim_states.pt"))) == 4


@pytest.mark.thorough
def test_weights_and_recordings_of_ones_own(example: Project) -> None:
    """One process resumes from saved weights, with a saved dataset, under another attention."""
    shown = example.python(
        """
import sys
sys.path.insert(0, ".")
import torch, train
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM
made = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("models/tiny"))
made.save_pretrained("kept")
rows = [[(start + i) % 60 for i in range(5 + start)] for start in range(40)]
Dataset.from_dict({"input_ids": rows}).save_to_disk("own")
sys.argv += ["--pretrained", "kept", "--data", "own", "--attn_implementation", "eager",
             "--precision", "fp32", "--max_steps", "2", "--learning_rate", "0",
             "--output_dir", "out", "--max_length", "30", "--eval_steps", "2"]
train.main()
after = AutoModelForCausalLM.from_pretrained("out/checkpoint-2", attn_implementation="eager")
same = [torch.equal(a, b) for a, b in zip(made.parameters(), after.parameters())]
print("the same weights:", all(same), after.config._attn_implementation)
"""
    )
    assert "own: 26 recordings of at most 30 tokens" in shown and "eval_data_loss" in shown
    assert "the same weights: True eager" in shown


@pytest.mark.thorough
def test_one_gpu_and_another_zero_stage_take_the_same_recordings(
    small: tuple[Project, Path],
) -> None:
    example, run = small
    curves = example.curves(run)
    other = example.train(
        "small", "--nodes", "1", "--gpus-per-node", "1",
        "--set", "deepspeed.config_file=ds/zero2.json",
        "--set", "batch.gradient_accumulation_steps=8",
        "--", "--max_steps", "4", "--eval_strategy", "no", "--save_strategy", "no")  # fmt: skip
    log = example.hpcrun("logs", "--cluster", "sandbox", other.name)
    assert "Trainer: 4 x 8 x 1 = 32 recordings a step\n" in log
    assert "DeepSpeed: 32 recordings a step, ZeRO-2, AdamW\n" in log
    alone = example.curves(other)
    for name in ("num_input_tokens_seen", "longest", "padding"):
        assert [alone[name][step] for step in range(1, 5)] == [
            curves[name][step] for step in range(1, 5)
        ]
    for step in range(1, 5):  # from other first weights: ZeRO-3 draws them shard by shard
        assert alone["loss"][step] == pytest.approx(curves["loss"][step], abs=0.15)


@pytest.mark.thorough
def test_deepspeeds_own_adam_on_the_host_makes_the_same_steps(small: tuple[Project, Path]) -> None:
    example, run = small
    curves = example.curves(run)
    other = example.train("small", "--set", "deepspeed.config=null")
    log = example.hpcrun("logs", "--cluster", "sandbox", other.name)
    assert "ZeRO-3, DeepSpeedCPUAdam\n" in log
    assert example.curves(other)["loss"] == pytest.approx(curves["loss"], rel=0.01)


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process finds out about the example's code."""
    shown = subprocess.run(
        [sys.executable, str(FACTS), str(tmp_path_factory.mktemp("facts"))],
        cwd=EXAMPLES / "speech-lm",
        env={
            **os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": extensions(), "RANK": "0",
            "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr[-6000:]
    found: dict[str, Any] = json.loads(shown.stdout.splitlines()[-1])
    return found


def test_what_is_too_long_is_gone_and_is_there_without_the_filter(facts: dict[str, Any]) -> None:
    assert len(facts["filtered"]) == 2  # seeds
    for found in facts["filtered"]:
        assert found["long"] > 100
        assert found["long_trained_on"] == 0
        assert found["longest"] <= 128
        assert found["long_without_filter"] > 100


def test_the_weights_are_the_shares(facts: dict[str, Any]) -> None:
    for weight, first, rows in facts["shares"]:
        deviation = (weight * (1 - weight) / rows) ** 0.5
        assert abs(first / rows - weight) < 4 * deviation


def test_a_corpus_of_weight_nought_is_not_learned(facts: dict[str, Any]) -> None:
    assert facts["first_only"]["eval_read_loss"] < 1.0
    assert facts["first_only"]["eval_talk_loss"] > NOTHING


def test_activations_are_computed_again_only_where_the_trainer_is_asked_to(
    facts: dict[str, Any],
) -> None:
    assert facts["passes"] == {"true": 2.0, "false": 1.0}
    assert facts["passes_json_alone"] == 1.0


def test_a_training_goes_on_from_the_last_whole_checkpoint(facts: dict[str, Any]) -> None:
    whole, again, made = facts["resumed"]
    assert made == 3  # steps: the other three are the checkpoint's
    assert list(again) == list(whole) == [str(step) for step in range(1, 7)]
    assert again == pytest.approx(whole, rel=1e-5)


# ---- the guide's hardware: partition, nodes, gres, ZeRO stage, precision, effective batch

GPU_JOBS = {
    "zero3-offload": ("gpu24", 1, "gpu:rtx3090:4", 3, "bf16", 32),
    "zero3-offload --set resources.gpu_type=t4": ("gpu16", 1, "gpu:t4:4", 3, "fp16", 32),
    "zero2": ("gpu24", 1, "gpu:rtx3090:4", 2, "bf16", 32),
    "zero2 --gpus-per-node 1": ("gpu24", 1, "gpu:rtx3090:1", 2, "bf16", 8),
}


@pytest.mark.parametrize(
    "words", shapes(GPU_JOBS, "zero3-offload", "zero2", "zero2 --gpus-per-node 1")
)
def test_the_guides_hardware_takes_it(example: Project, cluster_like_it: str, words: str) -> None:
    partition, nodes, gres, stage, precision, batch = GPU_JOBS[words]
    example.env["HPCRUN_SANDBOX_DIR"] = cluster_like_it
    job, *options = words.split()
    files = example.dry_run(job, *options)
    script, launch = files["job.sbatch"], files["node.sh"]
    for directive in (f"partition={partition}", f"nodes={nodes}", f"gres={gres}"):
        assert f"#SBATCH --{directive}\n" in script
    assert "-m deepspeed.launcher.runner" in launch and "--no_ssh" in launch
    assert "--ddp_backend nccl" in launch and f"--precision {precision}" in launch
    asked = json.loads(files["deepspeed.json"])
    # The Trainer fills these from --precision.
    assert {name: asked[name]["enabled"] for name in ("bf16", "fp16")} == {
        "bf16": "auto",
        "fp16": "auto",
    }
    zero = asked["zero_optimization"]
    assert zero["stage"] == stage
    devices = {zero.get(part, {}).get("device") for part in ("offload_optimizer", "offload_param")}
    assert devices == ({"cpu"} if stage == 3 else {None})
    assert asked["train_batch_size"] == batch
    shown = example.hpcrun("submit", job, *options, "--cluster", "sandbox", "--test-only")
    assert f"partition {partition}\n" in shown + "\n"


def test_a_json_block_that_does_nothing_is_reported(example: Project) -> None:
    block = "deepspeed.config.activation_checkpointing.partition_activations=true"
    done = example.try_hpcrun("submit", "zero3-offload", "--set", block, "--dry-run")
    assert done.returncode == 0
    assert "needs gradient_checkpointing_enable() or --gradient_checkpointing" in done.stderr
