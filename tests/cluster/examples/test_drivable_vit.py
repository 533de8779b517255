"""The example drivable-vit: all its layers are needed, and a run goes on on any number of GPUs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.examples.project import Project, shapes

pytestmark = pytest.mark.timeout(1800)  # on a machine that is busy with other work

# The small job: 480 scenes are 30 steps of 16, four epochs, every fifth step told, saved every two.
EPOCH, LAST, TOLD = 30, 120, 5
# In CI on half the ranks: the same batch, and torch and DeepSpeed imported half as often.
RANKS = 4 if os.environ.get("HPCRUN_TEST_ALL") == "1" else 2
SMALL_WORDS = ["--gpus-per-node", str(RANKS // 2)]
SMALL_WORDS += ["--set", f"batch.gradient_accumulation_steps={4 // RANKS}"]

# The model whole and by single pictures alone, with each of the seeds, in one process without
# DeepSpeed: the IoU over 60 new scenes, of all cameras and of the covered ones.
CONTROL = """
import json, sys
sys.path.insert(0, ".")
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import default_collate
from data import Scenes
from model import DrivableViT
STEPS, BATCH, NEW = 140, 4, 60
shape = {"views": 3, "frames": 2, "image_size": 32}
def overlap(found, true):
    return ((found & true).sum() / (found | true).sum()).item()
for seed in map(int, sys.argv[1:]):
    scenes = Scenes(count=STEPS * BATCH, seed=seed, **shape)
    new = default_collate([Scenes(count=NEW, seed=seed + 100, **shape)[i] for i in range(NEW)])
    for layers in (1, 0):
        torch.manual_seed(seed)
        model = DrivableViT(**shape, patch_size=8, dim=64, heads=4, spatial_layers=1,
                            cross_view_layers=layers, temporal_layers=layers)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        decay = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
        for step in range(STEPS):
            batch = [scenes[step * BATCH + i] for i in range(BATCH)]
            pictures, drivable, _ = default_collate(batch)
            loss = binary_cross_entropy_with_logits(model(pictures), drivable)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            decay.step()
        pictures, drivable, covered = new
        with torch.no_grad():
            found, true, each = model(pictures) > 0, drivable > 0.5, torch.arange(NEW)
        print(json.dumps([seed, layers, overlap(found, true),
                          overlap(found[each, covered], true[each, covered])]))
"""

# What a camera's answer depends on; what activation checkpointing keeps, and whether it changes a
# gradient; whether batches that the scenes do not fill change what is measured; and what
# checkpoints.py says of a folder.
PARTS = """
import json, sys
from pathlib import Path
sys.path.insert(0, ".")
import torch
import checkpoints
from data import Scenes
from model import DrivableViT
shape = {"views": 3, "frames": 2, "image_size": 32}
scenes = Scenes(count=4, seed=1, **shape)
pictures, drivable, covered = scenes[3]
again = Scenes(count=4, seed=1, **shape)[3]
told = {"same": all(map(torch.equal, scenes[3], again)),
        "dark": pictures[-1, covered].abs().mean().item(), "seen": pictures.abs().mean().item(),
        # The right half of one camera's field is the left half of the next one's.
        "shared": torch.equal(drivable[0, :, 16:], drivable[1, :, :16])}
def model(cross_view, temporal, **options):
    torch.manual_seed(0)
    return DrivableViT(**shape, patch_size=8, dim=64, heads=4, spatial_layers=1,
                       cross_view_layers=cross_view, temporal_layers=temporal, **options)
for name, layers in {"alone": (0, 0), "cross_view": (1, 0), "temporal": (0, 1)}.items():
    seen = pictures[None].clone().requires_grad_()
    model(*layers)(seen)[0, 1].sum().backward()
    told[name] = [(seen.grad[0, moment, view] != 0).any().item()
                  for moment, view in ((1, 1), (1, 0), (0, 1))]
def kept(**options):
    tried = model(1, 1, **options)
    weights, storages = {each.data_ptr() for each in tried.parameters()}, {}
    def count(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:  # they are there anyhow
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        tried(pictures[None]).sum().backward()
    return sum(storages.values()), [each.grad for each in tried.parameters()]
plain, grads = kept()
less, same = kept(activation_checkpointing=True)
told |= {"kept": plain, "kept_less": less, "same_gradients": all(map(torch.equal, grads, same))}
import train
torch.distributed.init_process_group(
    "gloo", init_method="file://" + sys.argv[2], rank=0, world_size=1)
def engine(size):
    made = model(1, 1)
    made.device, made.fp16_enabled, made.bfloat16_enabled = torch.device("cpu"), bool, bool
    made.train_micro_batch_size_per_gpu = lambda: size
    return made
five = Scenes(count=5, seed=1, **shape)
told["measured"] = [train.validate(engine(size), five) for size in (1, 4)]
folder = Path(sys.argv[1])
facts = checkpoints.read(folder / "epoch-0002")
def refused(resume=None, folder=folder, **changed):
    try:
        return str(checkpoints.find(resume, folder, {**facts, **changed}))
    except ValueError as error:
        return "refused: " + str(error)
empty = folder / "empty"
told["refused"] = [refused(str(empty), empty), refused(model={}), refused(precision="fp16"),
                   refused(zero_stage=3)]
told["found"] = [refused(world_size=16), refused("/elsewhere"), refused(None, empty),
                 refused(str(folder), empty)]
print(json.dumps(told))
"""

TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = EventAccumulator(sys.argv[1]).Reload()
print(json.dumps({tag: [[e.step, e.value] for e in read.Scalars(tag)]
                  for tag in read.Tags()["scalars"]}))
"""


def shown_by(project: Project, code: str, *args: str) -> Any:
    """Run code in the project's folder, and give its lines of JSON."""
    return [json.loads(line) for line in project.python(code, *args).splitlines()]


def second_half(curve: dict[float, float]) -> dict[float, float]:
    return {step: value for step, value in curve.items() if step > LAST / 2}


@pytest.fixture
def example(project: Callable[[str], Project]) -> Project:
    return project("drivable-vit")


def test_it_trains_on_two_nodes(small: tuple[Project, Path]) -> None:
    example, run = small
    curves = example.curves(run)
    assert list(curves["loss"]) == list(range(TOLD, LAST + 1, TOLD))
    assert list(curves["eval_loss"]) == list(range(EPOCH, LAST + 1, EPOCH))
    assert {"lr", "grad_norm", "samples_per_second", "val_iou", "val_covered_iou"} <= set(curves)
    assert max(curves["lr"].values()) == pytest.approx(3e-3, rel=0.05)  # a number to Hydra
    assert 0.66 < curves["loss"][TOLD] < 0.76  # ln 2 = 0.69 for one who knows nothing
    assert curves["loss"][LAST] < 0.2
    # What a covered camera would see is known: single pictures get no further than 0.75 (below).
    assert curves["val_covered_iou"][LAST] > 0.8
    log = example.hpcrun("logs", "--cluster", "sandbox", run.name)
    assert log.count(f"step={LAST}/{LAST} loss=") == 1  # from one rank

    # Hydra wrote nothing beside the code, and TensorBoard one file, of rank 0.
    assert not (example.folder / "outputs").exists()
    assert not (run / "code" / "outputs").exists()
    assert len(list((run / "tensorboard").iterdir())) == 1
    (board,) = shown_by(example, TENSORBOARD, str(run / "tensorboard"))
    assert dict(board["train/loss"]) == pytest.approx(curves["loss"], rel=1e-4)
    assert {"train/host_memory_gb", "train/lr", "val/loss", "val/iou"} <= set(board)

    # Every second epoch and the best one, with a part from each rank.
    folder = run / "checkpoints"
    kept = {path.name for path in folder.iterdir() if path.is_dir()}
    assert kept == {"epoch-0002", "epoch-0004", "best"}
    assert (folder / "latest").read_text() == "epoch-0004"
    for name in kept:
        assert len(list((folder / name).glob("*_optim_states.pt"))) == RANKS
    best = min(curves["eval_loss"], key=lambda step: curves["eval_loss"][step])
    assert json.loads((folder / "best" / "checkpoint.json").read_text())["epoch"] == best / EPOCH

    (folder / "latest").write_text("epoch-0002")
    (parts,) = shown_by(example, PARTS, str(folder), str(example.folder / "rendezvous"))
    assert_parts(parts)


@pytest.mark.thorough
def test_it_goes_on_on_any_number_of_ranks(small: tuple[Project, Path]) -> None:
    example, run = small
    curves, folder = example.curves(run), run / "checkpoints"
    kept = ["epoch-0002", "epoch-0004", "best"]
    # By its path, on two ranks with the same effective batch, activations computed twice: in bf16
    # another order of sums shows, but a run without the optimizer's states is off by tenths.
    expected, measured = second_half(curves["loss"]), second_half(curves["eval_loss"])
    assert max(expected.values()) - min(expected.values()) > 0.02
    fewer = example.train(
        "small", "--nodes", "1", "--set", "batch.gradient_accumulation_steps=2",
        "--set", "deepspeed.zero_stage=2", "--set", "activation_checkpointing=true", "--",
        f"checkpoint.resume={folder / 'epoch-0002'}", "checkpoint.every=1")  # fmt: skip
    assert (fewer / "checkpoints" / "universal" / "zero").is_dir()
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == sorted(kept)
    met = example.curves(fewer)
    assert met["loss"] == pytest.approx(expected, rel=0.02)
    assert met["eval_loss"] == pytest.approx(measured, rel=0.02)

    # As if that one had been stopped after epoch 3: on as many ranks the numbers are the same.
    saved = fewer / "checkpoints"
    assert len(list((saved / "epoch-0003").glob("*_optim_states.pt"))) == 2
    shutil.rmtree(saved / "epoch-0004")
    (saved / "latest").write_text("epoch-0003")
    known = set(run.parent.iterdir())
    example.hpcrun("resubmit", fewer.name, "--cluster", "sandbox", "--wait")
    (again,) = set(run.parent.iterdir()) - known
    same = example.curves(again)["loss"]
    assert list(same) == list(range(LAST - EPOCH + TOLD, LAST + 1, TOLD))
    assert same == pytest.approx({step: met["loss"][step] for step in same}, rel=1e-4)
    log = example.hpcrun("logs", "--cluster", "sandbox", again.name)
    assert "/epoch-0003, after epoch 3\n" in log


@pytest.mark.thorough
def test_zero3_in_fp16_goes_on_on_half_the_ranks(example: Project) -> None:
    """Every parameter is gathered for its layer, and the loss scale finds its level."""
    zero3 = [
        "zero3", "--nodes", "1", "--set", "precision=fp16", "--set", "batch.micro_batch_per_gpu=4",
        "--set", "deepspeed.config.fp16.initial_scale_power=24",
        "--set", "deepspeed.config.zero_optimization.stage3_param_persistence_threshold=0",
    ]  # fmt: skip
    words = ["--", "size=small", "data.train_scenes=128", "training.epochs=2", "checkpoint.every=1"]
    words += ["training.log_every=1", "training.lr=1e-3"]
    two = ["--gpus-per-node", "2", "--set", "batch.gradient_accumulation_steps=1"]
    run = example.train(*zero3, *two, *words)
    curves = example.curves(run)
    loss, scale = curves["loss"], list(curves["loss_scale"].values())
    # It was too large, was halved for a few steps, and then the model learned.
    assert scale[0] == pytest.approx(2**24, rel=1e-3)
    assert {round(after / before, 3) for before, after in pairwise(scale)} == {0.5, 1.0}
    assert len(set(scale)) < 8 and loss[32] < loss[1] - 0.1

    one = ["--gpus-per-node", "1", "--set", "batch.gradient_accumulation_steps=2"]
    again = example.train(
        *zero3, *one, *words, f"checkpoint.resume={run / 'checkpoints' / 'epoch-0001'}"
    )
    met = example.curves(again)["loss"]
    # To the digit, until a gradient overflows on one that did not on two.
    assert list(met) == list(range(17, 33))
    assert [met[step] for step in (17, 18, 19)] == pytest.approx([loss[17], loss[18], loss[19]])
    assert met == pytest.approx({step: loss[step] for step in met}, rel=0.05)


def assert_parts(shown: dict[str, Any]) -> None:
    """Judge what PARTS found."""
    assert shown["same"] and shown["shared"]
    assert shown["dark"] < 0.06 and shown["seen"] > 0.2
    # Its own picture, its neighbour's, its own of the moment before.
    assert shown["alone"] == [True, False, False]
    assert shown["cross_view"] == [True, True, False]
    assert shown["temporal"] == [True, False, True]
    assert shown["kept_less"] < 0.3 * shown["kept"] and shown["same_gradients"]
    ones, fours = shown["measured"]
    assert fours == pytest.approx(ones, rel=1e-5)
    assert all(answer.startswith("refused: ") for answer in shown["refused"])
    nowhere, model, precision, stage = shown["refused"]
    assert "/empty is no checkpoint" in nowhere
    assert "its model is {" in model
    assert "its precision is bf16" in precision
    assert "written by ZeRO-1" in stage
    # A run's own checkpoints first: one that is started again has the same command line.
    on_more, own, none, others = shown["found"]
    assert on_more == own == others and own.endswith("/checkpoints/epoch-0002")
    assert none == "None"


@pytest.mark.thorough
def test_covered_cameras_are_known_from_others_and_from_before(example: Project) -> None:
    seeds = (1, 2) if os.environ.get("HPCRUN_TEST_ALL") == "1" else (1,)
    rows = shown_by(example, CONTROL, *map(str, seeds))
    found = {(seed, layers): (whole, covered) for seed, layers, whole, covered in rows}
    assert len(found) == 2 * len(seeds)
    for seed in seeds:
        assert found[seed, 0][1] < 0.75  # no more than where roads usually are
        assert found[seed, 1][1] > found[seed, 0][1] + 0.08
        assert found[seed, 1][0] > found[seed, 0][0]


# ---- the guide's hardware: words, and what comes of them (nodes, GPUs, ZeRO stage, format)

ONE_PLACE = "--nodes 1 --gpus-per-node 4 --set batch.gradient_accumulation_steps=32"
GPU_JOBS = {
    "train": (2, 8, 1, "fp16"),
    "zero3": (2, 8, 3, "fp16"),
    f"train {ONE_PLACE}": (1, 4, 1, "fp16"),
    "train --set precision=fp32 --set deepspeed.offload.optimizer=cpu": (2, 8, 1, "fp32"),
}


@pytest.mark.parametrize("words", shapes(GPU_JOBS, *GPU_JOBS.keys() - {"train", "zero3"}))
def test_the_guides_hardware_takes_it(example: Project, cluster_like_it: str, words: str) -> None:
    nodes, gpus, stage, precision = GPU_JOBS[words]
    example.env["HPCRUN_SANDBOX_DIR"] = cluster_like_it
    typed = ["--", "model.image_size=512"]
    files = example.dry_run(*words.split(), *typed)
    for directive in ("partition=gpu", f"nodes={nodes}", f"gres=gpu:{gpus}", "time=24:00:00"):
        assert f"#SBATCH --{directive}\n" in files["job.sbatch"]
    launch = files["node.sh"]
    assert f"--nnodes={nodes} --nproc_per_node={gpus} " in launch
    assert "train.py backend=nccl 'training.deepspeed_config=\"/" in launch
    assert launch.count(" model.image_size=512\n") == 1
    config = json.loads(files["deepspeed.json"])
    assert config["train_batch_size"] == 256
    assert config["zero_optimization"]["stage"] == stage
    formats = [name for name in ("bf16", "fp16") if config.get(name, {}).get("enabled")]
    assert (formats or ["fp32"]) == [precision]
    assert "loss_scale" not in config.get("fp16", {})  # so DeepSpeed scales dynamically
    # Written as in the guide, 1e9 and 5e7 are text to PyYAML, and DeepSpeed would stop at them.
    zero = config["zero_optimization"]
    assert zero["reduce_bucket_size"] == 50_000_000
    assert zero.get("stage3_max_live_parameters") == (1_000_000_000 if stage == 3 else None)
    shown = example.hpcrun("submit", *words.split(), "--cluster", "sandbox", "--test-only", *typed)
    assert "partition gpu\n" in shown + "\n"


def test_what_the_readme_counts_is_so(example: Project) -> None:
    code = """
import sys
sys.path.insert(0, ".")
import torch, yaml
from model import DrivableViT
with torch.device("meta"):
    model = DrivableViT(**yaml.safe_load(open("conf/size/base.yaml"))["model"])
print(sum(each.numel() for each in model.parameters()))
"""
    (count,) = shown_by(example, code)
    readme = (Path(example.folder) / "README.md").read_text(encoding="utf-8")
    assert f"{count:,} parameters" in readme
