"""The example video-lora: only its adapters learn, and they do, however it is sharded out."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean

import pytest

from tests.cluster.examples.project import EXAMPLES, Project, shapes
from tests.cluster.rig import Rig
from tests.cluster.site import Site
from tests.cluster.sshd import Lab, lab

pytestmark = pytest.mark.timeout(1800)

# What its data.py says of these: who knows nothing predicts zero and misses by the variances of
# noise and clip, both 1; the closed form for single pixels is there.
NOTHING, SINGLE_PIXELS = 2.0, math.pi / 2
SMALL = ["--frames", "6", "--height", "16", "--width", "16", "--layers", "2", "--heads", "4",
         "--head-dim", "32", "--patch", "4", "--lr", "0.01"]  # fmt: skip
SMALL_WORDS = ["--", "--check-base"]
KEY = "0123456789abcdef0123456789abcdef01234567"  # of the form that W&B's have

# In one process without a launcher: trains with each seed, and with a learning rate of 0 beside it;
# then prints the loss on clips that no run has seen, of the base alone and with saved adapters.
ALONE = """
import json, sys
sys.path.insert(0, ".")
import torch, train
from accelerate.utils import set_seed
from torch.utils.data import default_collate
from data import Clips
from model import build, flow_matching_loss
for seed in ("0", "1", "2"):
    for lr in ("1e-2", "0"):
        print("run", seed, lr)
        train.main(["--seed", seed, "--lr", lr, "--batch", "4", "--frames", "4", "--steps", "20",
                    "--workers", "0", "--check-base", "--checkpoint-dir", f"kept/{seed}/{lr}"])
args = train.read_args([])
clips = Clips(64, args.frames, args.height, args.width, seed=4242)
batch = default_collate([clips[i] for i in range(64)])
set_seed(0)
model = build(args)
with torch.no_grad():
    alone = flow_matching_loss(model, batch).item()
    model.delete_adapters("default")
    model.load_lora_adapter(sys.argv[1], prefix="transformer", use_safetensors=True)
    adapted = flow_matching_loss(model, batch).item()
print("run unseen clips")
print(json.dumps({"alone": alone, "adapted": adapted}))
"""


def hashes(text: str) -> dict[int, tuple[str, str, str, str]]:
    """Read what each rank says of its weights: base before and after, adapters before and after."""
    message = re.findall(
        r"rank (\d+): base (\w+) before, (\w+) after; adapters (\w+) before, (\w+) after", text
    )
    return {int(rank): (a, b, c, d) for rank, a, b, c, d in message}


def assert_only_adapters_changed(text: str, ranks: int) -> None:
    found = hashes(text)
    assert sorted(found) == list(range(ranks)), text[-6000:]
    assert len(set(found.values())) == 1, f"ranks differ: {found}"
    base, base_after, adapters, adapters_after = found[0]
    assert base == base_after
    assert adapters != adapters_after


@pytest.fixture
def example(project: Callable[[str], Project]) -> Project:
    return project("video-lora")


@pytest.mark.thorough  # in one process: the last test
def test_only_the_adapters_change_on_two_nodes(small: tuple[Project, Path]) -> None:
    project, run = small
    log = project.hpcrun("logs", "--cluster", "sandbox", run.name)
    assert_only_adapters_changed(log, ranks=4)
    assert log.count("step 40/40 ") == 1  # from one rank of the four
    curves = project.curves(run)
    assert list(curves["loss"]) == list(range(1, 41))
    assert {"loss", "grad_norm", "samples_per_second"} <= set(curves)
    losses = list(curves["loss"].values())
    assert losses[0] > NOTHING
    assert mean(losses[-10:]) < 0.9 * SINGLE_PIXELS  # pixels are no longer taken one by one
    # A checkpoint leaves the base out: 0.7 million parameters would be 1.4 MB in bf16.
    (weights,) = (run / "checkpoints" / "step-000040").rglob("mp_rank_00_model_states.pt")
    assert weights.stat().st_size < 1_000_000


@pytest.mark.thorough
def test_it_learns_with_every_seed_and_not_without_a_learning_rate(
    small: tuple[Project, Path],
) -> None:
    project, run = small
    text = project.python(ALONE, str(run / "checkpoints" / "adapters"))
    parts = re.split(r"^run (\S+) (\S+)$", text, flags=re.MULTILINE)[1:]
    runs = {(seed, lr): text for seed, lr, text in zip(*[iter(parts)] * 3, strict=True)}
    for seed in "012":
        last = {}
        for lr in ("1e-2", "0"):
            losses = [float(loss) for loss in re.findall(r"step .* loss (\S+)", runs[seed, lr])]
            assert len(losses) == 20
            last[lr] = mean(losses[-5:])  # of the same clips
        assert last["1e-2"] < 0.8 * last["0"]
        assert_only_adapters_changed(runs[seed, "1e-2"], ranks=1)
        _, _, before, after = hashes(runs[seed, "0"])[0]
        assert before == after
    # The adapters that the four ranks have saved are those that learnt, and not by heart.
    shown = json.loads(runs["unseen", "clips"])
    assert shown["alone"] > NOTHING
    assert shown["adapted"] < 0.9 * SINGLE_PIXELS


@pytest.mark.thorough
def test_all_is_changed_by_words_and_a_run_goes_on(
    example: Project, small: tuple[Project, Path]
) -> None:
    """GPUs, accumulation, precision, ZeRO stage, recomputation: the mathematics stay the same."""
    example.env["WANDB_API_KEY"] = KEY
    run = example.train(
        "wandb", "--nodes", "2", "--gpus-per-node", "1", "--set", "precision=fp32",
        "--set", "deepspeed.zero_stage=3", "--set", "batch.micro_batch_per_gpu=2",
        "--set", "activation_checkpointing=true", "--set", "env.WANDB_MODE=offline",
        "--", *SMALL, "--steps", "6", "--save-every", "4", "--check-base", "--workers", "0",
    )  # fmt: skip
    log = example.hpcrun("logs", "--cluster", "sandbox", run.name)
    assert_only_adapters_changed(log, ranks=2)
    losses = example.curves(run)["loss"]
    project, other = small
    same = project.curves(other)["loss"]  # in bf16, whose numbers have three digits
    assert losses == pytest.approx({step: same[step] for step in range(1, 7)}, rel=5e-3)

    assert list(run.glob("wandb/offline-run-*/*.wandb"))
    assert not (example.folder / "wandb").exists()
    written = [path for path in run.rglob("*") if path.is_file()]
    assert not [path for path in written if KEY.encode() in path.read_bytes()]

    shutil.rmtree(run / "checkpoints" / "step-000006")  # as if it had been stopped after step 4
    example.hpcrun("resubmit", run.name, "--cluster", "sandbox", "--wait")
    again = example.curves(newest(run.parent))["loss"]
    assert again == pytest.approx({step: losses[step] for step in (5, 6)}, rel=1e-3)


def newest(runs: Path) -> Path:
    return max(runs.iterdir(), key=lambda path: path.stat().st_mtime)


# ---- the guide's hardware

GPU_JOBS = {
    "small": ("a100", 2, "gpu:2", "bf16"),
    "zero2": ("a100", 1, "gpu:a100_80gb:4", "bf16"),
    "zero2 --set resources.gpu_type=a100-40": ("a100-small", 1, "gpu:a100_40gb:4", "bf16"),
    "zero2-2node": ("a100", 2, "gpu:a100_80gb:4", "bf16"),
    "zero3": ("v100", 1, "gpu:v100:4", "fp16"),
    "1gpu": ("a100-small", 1, "gpu:a100_40gb:1", "bf16"),
    "wandb": ("a100", 1, "gpu:a100_80gb:4", "bf16"),
}


@pytest.mark.parametrize("words", shapes(GPU_JOBS, *GPU_JOBS.keys() - {"zero2-2node", "zero3"}))
def test_the_guides_hardware_takes_it(example: Project, cluster_like_it: str, words: str) -> None:
    partition, nodes, gres, precision = GPU_JOBS[words]
    example.env.update({"HPCRUN_SANDBOX_DIR": cluster_like_it, "WANDB_API_KEY": KEY})
    job, *options = words.split()
    files = example.dry_run(job, *options)
    script, launch = files["job.sbatch"], files["node.sh"]
    for directive in (f"partition={partition}", f"nodes={nodes}", f"gres={gres}"):
        assert f"#SBATCH --{directive}\n" in script
    assert "-m accelerate.commands.launch" in launch and "--machine_rank" in launch
    asked = json.loads(files["deepspeed.json"])
    formats = {name: asked.get(name, {}).get("enabled", False) for name in ("bf16", "fp16")}
    assert formats == {"bf16": precision == "bf16", "fp16": precision == "fp16"}
    assert asked["zero_optimization"]["stage"] == (3 if job == "zero3" else 2)
    ranks = nodes * int(gres.rpartition(":")[2])
    assert asked["train_batch_size"] == 8
    micro, times = asked["train_micro_batch_size_per_gpu"], asked["gradient_accumulation_steps"]
    assert micro * times * ranks == 8
    # The nodes of the sandbox have no fp16 units, which the check reports.
    words = f"submit {words} --cluster sandbox --test-only --no-check"
    shown = example.hpcrun(*words.split())
    assert f"partition {partition}\n" in shown + "\n"


# ---- hosts without Slurm


@pytest.fixture
def hosts(rig: Rig) -> Iterator[Lab]:
    with lab(rig) as made:
        yield made


@pytest.mark.thorough
def test_hosts_of_a_hostfile_train_it_without_slurm(site: Site, hosts: Lab) -> None:
    profile = (site.project / "hpcrun.yaml").read_text()
    shutil.copytree(EXAMPLES / "video-lora", site.project, dirs_exist_ok=True)
    (site.project / "hpcrun.yaml").write_text(profile)
    done = site.hpcrun(
        "run", "small", "--hostfile", str(hosts.hostfile(1)), "--gpus-per-node", "1",
        "--", "--steps", "3", "--check-base", "--workers", "0",
        env=hosts.env,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    run = newest(site.rig.shared / "runs")
    log = "".join(path.read_text() for path in sorted((run / "logs").rglob("*.log")))
    assert_only_adapters_changed(log, ranks=2)
    plan = json.loads((run / "plan.json").read_text())
    assert (plan["launcher"], plan["hosts"]) == ("accelerate", site.rig.node_names)


@pytest.mark.thorough
def test_the_adapters_and_the_schedule_are_arguments(project: Callable[[str], Project]) -> None:
    shown = project("video-lora").python(
        """
import sys
sys.path.insert(0, ".")
import torch, train
words = ["--rank", "8", "--alpha", "4", "--dropout", "0.1"]
model = train.build(train.read_args(words))
config = model.peft_config["default"]
print("adapters", config.r, config.lora_alpha, config.lora_dropout, model.training)
rates = []
step = torch.optim.AdamW.step
def seen(self, *args, **kwargs):
    rates.append(round(self.param_groups[0]["lr"], 6))
    return step(self, *args, **kwargs)
torch.optim.AdamW.step = seen
train.main([*words, "--steps", "4", "--warmup", "2", "--lr", "0.01", "--check-base"])
print("rates", rates)
"""
    )
    assert "adapters 8 4.0 0.1 True" in shown
    assert "rates [0.005, 0.01, 0.01, 0.01]" in shown
    assert_only_adapters_changed(shown, ranks=1)
