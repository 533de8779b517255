"""The example cad-curriculum: each stage learns what the one before cannot, in one job or three."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.examples.project import Project, shapes

pytestmark = pytest.mark.timeout(1800)

# A curriculum of 8 steps a stage, of which stage 2 takes two epochs; in fp32, where the number of
# ranks and the ZeRO stage change nothing but rounding.
SHORT = ["--", "--samples", "64", "--epochs", "2", "2", "2"]
FP32 = ["--set", "precision=fp32"]
STAGE_STEPS = 8

# Three ranks, which ask check_ranks() one thing after the other; then the order of samples.
RANKS = """
import os, sys, time
sys.path.insert(0, ".")
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DistributedSampler
from check_ranks import SetupError, _compare, check_ranks, model_hash

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
cpu = torch.device("cpu")

def ask(what, expected, seed, timeout=60):
    torch.manual_seed(seed)
    try:
        facts = {"model": model_hash(nn.Linear(3, 3))}
        said = check_ranks(expected, cpu, facts, timeout=timeout)
    except SetupError as error:
        said = f"refused: {error}"
    print(f"{what} rank {rank}: {said}", flush=True)

ask("well", 3, 0)
ask("seed", 3, rank // 2)
ask("world", 4, 0)
try:  # as two ranks tell it that each call one and the same GPU their cuda:0
    _compare([{"host": "n1", "device": "GPU-5"}] * 2, shared=[])
except SetupError as error:
    print(f"card rank {rank}: {error}", flush=True)
sampler = DistributedSampler(range(1024), seed=0, drop_last=True)
print(f"order rank {rank}:", [list(sampler)[:4] for epoch in range(2)], flush=True)
if rank == 1:
    time.sleep(600)  # it hangs: the others must not wait for it
ask("gone", 3, 0, timeout=3)
"""


@pytest.fixture
def example(project: Callable[[str], Project]) -> Project:
    return project("cad-curriculum")


def log_of(example: Project, run: Path) -> str:
    return example.hpcrun("logs", "--cluster", "sandbox", "--rank", "0", run.name)


def stages_of(curves: dict[str, dict[float, float]]) -> dict[int, list[float]]:
    """The losses of each stage, in the order of the steps."""
    found: dict[int, list[float]] = {}
    for step, loss in sorted(curves["loss"].items()):
        found.setdefault(int(curves["stage"][step]), []).append(loss)
    return found


@pytest.mark.thorough
def test_each_stage_learns_what_the_one_before_cannot(example: Project) -> None:
    """Two nodes with two ranks each, by the job as it is."""
    run = example.train("small")
    log = log_of(example, run)
    assert log.count("check: 4 ranks on 2 hosts agree: model ") == 3
    assert log.count("stage 3 | epoch 2 | step 224 | ") == 1  # from one rank of the four

    curves = example.curves(run)
    assert {"loss", "eval_loss", "stage", "lr", "grad_norm", "samples_per_second"} <= curves.keys()
    assert list(curves["loss"]) == list(range(1, 225))
    assert [len(losses) for losses in stages_of(curves).values()] == [64, 96, 64]
    # Each stage has a schedule of its own: up to the peak, down to nothing.
    for first, last in ((1, 64), (65, 160), (161, 224)):
        rates = [curves["lr"][step] for step in range(first, last + 1)]
        assert rates[0] < max(rates) == pytest.approx(3e-3, rel=0.01) and rates[-1] < 1e-5

    # What the caption, the points and the picture do not tell cannot be known; so chance does not
    # bring a held-out loss below the floor of the stage before: the new input is what does.
    floors, losses = curves["floor"], curves["eval_loss"]
    assert list(losses) == [64, 160, 224]
    assert floors[64] < losses[64] < 1.5 * floors[64]
    assert floors[160] < losses[160] < floors[64]
    assert losses[224] < floors[160] / 2
    # The control: with the points or the picture of another shape that is gone.
    swapped = curves["eval_swapped"]
    assert swapped[160] > floors[64] and swapped[224] > floors[160]

    # Each rank saved its shard; the epochs within a stage are gone when it is over.
    saved = run / "checkpoints"
    tags = {path.name for path in saved.iterdir() if path.is_dir()}
    assert tags == {"stage1-end2-step64", "stage2-end3-step160", "stage3-end2-step224"}
    for tag in tags:
        assert len(list((saved / tag).glob("*zero_pp_rank_*_optim_states.pt"))) == 4

    # Another order in each epoch; the control stands in the test below.
    orders = re.findall(r"epoch (\d) of stage 1 begins with samples (\[.+\])", log)
    assert [epoch for epoch, _ in orders] == ["1", "2"]
    assert orders[0][1] != orders[1][1]


def in_three_ranks(example: Project) -> dict[str, list[str]]:
    """Run RANKS, and give what each rank answered to each question; the hung one is ended."""
    port = 20000 + os.getpid() % 10000
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANKS], cwd=example.folder, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**example.env, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": "3",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        )
        for rank in range(3)
    ]  # fmt: skip
    try:
        texts = [ranks[rank].communicate()[0] for rank in (0, 2)]
    finally:
        for rank in ranks:
            with rank:  # waits, and closes its pipe
                rank.kill()
    found: dict[str, list[str]] = {}
    for text in texts:
        for what, message in re.findall(r"^(\w+) rank \d: (.*)$", text, re.MULTILINE):
            found.setdefault(what, []).append(message)
    return found


def test_a_set_up_that_is_wrong_is_reported_at_once_and_names_the_rank(example: Project) -> None:
    message = in_three_ranks(example)
    for each in message["well"]:
        assert each.startswith("3 ranks on 1 host agree: model ")
    for each in message["seed"]:
        assert re.match(r"refused: rank 2 on \S+: model is \w+, rank 0 has \w+$", each)
    for each in message["world"]:
        assert "3 ranks are connected, not 4" in each
    assert message["card"] == ["rank 1 on n1: GPU-5 is rank 0's too"] * 2
    for each in message["order"]:  # of a sampler that nobody tells the epoch
        first, second = json.loads(each)
        assert first == second
    for each in message["gone"]:
        assert re.match(r"refused: rank [02] on \S+: nothing heard of rank 1 for 3 s", each)
    assert [len(each) for each in message.values()] == [2] * 6


@pytest.mark.thorough
def test_a_chain_of_jobs_is_the_one_job(example: Project) -> None:
    """Each stage with another ZeRO stage, and one that failed on the way and went on."""
    one = ["--gpus-per-node", "1", "--set", "batch.micro_batch_per_gpu=16", *FP32]
    two = ["--gpus-per-node", "2", "--set", "batch.micro_batch_per_gpu=8", *FP32]
    whole = example.train(
        "zero2", *one, "--set", "env.WANDB_MODE=offline", *SHORT, "--wandb", "cad"
    )

    def submit(*words: str) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(
            example.hpcrun("submit", "--cluster", "sandbox", "--json", *words)
        )
        return shown

    # All are submitted before the first has ended; the code of the second has a mistake.
    first = submit("stage1", *one, *SHORT)
    data = example.folder / "data.py"
    mended = data.read_text()
    data.write_text(
        mended.replace("        given, wanted =", "        break_down()\n        given, wanted =")
        + "\n\nSEEN = []\n\n\ndef break_down() -> None:\n    SEEN.append(1)\n"
        "    if len(SEEN) > 40:\n        raise OSError('the disk is gone')\n"
    )
    # Small parameters would be kept whole by every rank.
    gathers = "deepspeed.config.zero_optimization.stage3_param_persistence_threshold=0"
    zero3 = ["--set", "deepspeed.zero_stage=3", "--set", gathers]
    second = submit("stage2", "--after", first["job_id"], *two, *zero3, *SHORT)
    data.write_text(mended)
    example.try_hpcrun("wait", "--cluster", "sandbox", first["job_id"], second["job_id"])
    errors = example.hpcrun("logs", "--cluster", "sandbox", "--err", second["run_id"])
    assert "the disk is gone" in errors
    assert (
        Path(second["run_dir"]) / "checkpoints" / "latest"
    ).read_text() == "stage2-epoch1-step12"
    words = ["--cluster", "sandbox", "--json", "--code", "now", second["run_id"]]
    (again,) = json.loads(example.hpcrun("resubmit", *words))["runs"]
    stage3 = ["--stages", "3", "--init-from", "{after_checkpoint_dir}"]
    third = submit("zero3-offload", "--after", again["job_id"], *one, *SHORT, *stage3)
    example.hpcrun("wait", "--cluster", "sandbox", again["job_id"], third["job_id"])

    expected = stages_of(example.curves(whole))
    assert [len(losses) for losses in expected.values()] == [STAGE_STEPS] * 3
    chain = [example.curves(Path(run["run_dir"])) for run in (first, second, again, third)]
    # The steps are counted on, and the run that went on took the step again that was not saved.
    assert [(min(curve["loss"]), max(curve["loss"])) for curve in chain] == [
        (1, 8), (9, 13), (13, 16), (17, 24)
    ]  # fmt: skip
    for curve in chain:
        for step, loss in curve["loss"].items():
            stage = int(curve["stage"][step])
            wanted = expected[stage][int(step) - 1 - STAGE_STEPS * (stage - 1)]
            assert loss == pytest.approx(wanted, rel=2e-3), (stage, step)
    # The control: a stage that began from new weights would begin where stage 1 did.
    assert expected[2][0] < 0.8 * expected[1][0]
    log = log_of(example, Path(third["run_dir"]))
    assert re.search(r"check: 1 ranks on 1 host agree: model \w+, start stage2-end2-step16", log)

    # W&B where it was asked for, and nowhere else.
    logged = [run["run_dir"] for run in (first, second, again, third)]
    assert list((whole / "checkpoints").glob("wandb/offline-run-*"))
    assert not any((Path(run) / "checkpoints" / "wandb").exists() for run in logged)


def test_what_a_stage_needs_is_reported_before_it_waits(example: Project) -> None:
    refused = example.try_hpcrun("submit", "stage2", "--cluster", "sandbox")
    assert refused.returncode == 2
    assert "{after_checkpoint_dir}: there is one only with --after RUN" in refused.stderr


# ---- the guide's hardware


# The nodes and GPUs of each, the ZeRO stage, and whether it offloads.
GPU_JOBS = {
    "small": (2, "gpu:2", 2, False),
    "zero2": (1, "gpu:4", 2, False),
    "zero3": (1, "gpu:4", 3, False),
    "zero3-offload": (1, "gpu:4", 3, True),
    "large": (1, "gpu:4", 3, False),
    "stage1": (1, "gpu:4", 2, False),
    "zero2 --nodes 2": (2, "gpu:4", 2, False),
    "zero2 --set resources.gpu_type=l40 --gpus-per-node 1": (1, "gpu:l40:1", 2, False),
}


@pytest.mark.parametrize("words", shapes(GPU_JOBS, *GPU_JOBS.keys() - {"small", "zero3-offload"}))
def test_the_guides_hardware_takes_it(example: Project, cluster_like_it: str, words: str) -> None:
    nodes, gres, zero, offloads = GPU_JOBS[words]
    example.env["HPCRUN_SANDBOX_DIR"] = cluster_like_it
    files = example.dry_run(*words.split())
    script, launch = files["job.sbatch"], files["node.sh"]
    for directive in ("partition=l40", f"nodes={nodes}", f"gres={gres}", "ntasks-per-node=1"):
        assert f"#SBATCH --{directive}\n" in script
    assert "HPCRUN_BACKEND=nccl\n" in script
    assert "-m deepspeed.launcher.runner" in launch and "--no_ssh --node_rank=" in launch
    asked = json.loads(files["deepspeed.json"])
    section = asked["zero_optimization"]
    assert section["stage"] == zero and ("offload_param" in section) == offloads
    assert asked["optimizer"]["params"]["torch_adam"] == (not offloads)
    assert asked.get("bf16", {}).get("enabled", False) == (words != "small")
    shown = example.hpcrun("submit", *words.split(), "--cluster", "sandbox", "--test-only")
    assert "partition l40\n" in shown + "\n"


@pytest.mark.thorough
def test_a_language_model_of_transformers_with_adapters(project: Callable[[str], Project]) -> None:
    """Adapters, embeddings and the stage's encoders learn; the language model stays as it was."""
    shown = project("cad-curriculum").python(
        """
import sys
sys.path.insert(0, ".")
import torch
from model import CadModel
CadModel("small").lm.save_pretrained("kept")
model = CadModel("small", pretrained="kept", lora=4, activation_checkpointing=True)
model.train_for(2)
tokens = torch.randint(1, 20, (2, 12))
model(tokens, tokens, points=torch.rand(2, 8, 3)).backward()
got = {name for name, each in model.named_parameters() if each.grad is not None}
other = [n for n in got if not any(w in n for w in ("lora_", "embed_tokens", "lm_head", "point_"))]
print("adapters", any("lora_B" in name for name in got), "others", other)
"""
    )
    assert "adapters True others []" in shown
