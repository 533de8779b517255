"""The example algorithm-distillation: it learns in context, and alike on any number of ranks."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from typing import Any

import pytest
from yaml import safe_load

from tests.cluster.examples.project import Project
from tests.workloads.trainer import as_by_srun, run_forked

pytestmark = pytest.mark.timeout(1800)

# One process: whole trainings by three seeds; then short ones, the third of which resumes from the
# checkpoint in the middle of the first.
ALONE = """
import shutil, sys
sys.path.insert(0, ".")
import train
def run(name, *argv):
    print("run", name, flush=True)
    folder = f"kept/{name}"
    train.main(["--checkpoint-dir", folder, "--log-dir", folder, *argv])
for seed in ("0", "1", "2"):
    run(f"seed-{seed}", "--seed", seed, "--eval-every", "100")
short = sys.argv[1:]
run("first", *short)
run("second", *short)
shutil.copytree("kept/first/step-00000006", "kept/third/step-00000006")
run("third", *short)
run("other", *short, "--seed", "1")
"""

SHORT = ["--deterministic", "--steps", "12", "--save-every", "6", "--eval-repeats", "1"]

# Reads a run's TensorBoard files: how many have losses, and what steps those are.
EVENTS = """
import json, sys
from pathlib import Path
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
found = []
for path in Path(sys.argv[1]).rglob("events.out.tfevents.*"):
    events = EventFileLoader(str(path)).Load()
    steps = [event.step for event in events for value in event.summary.value if value.tag == "loss"]
    if steps:
        found.append(steps)
print(json.dumps(found))
"""


@pytest.fixture
def example(project: Callable[[str], Project]) -> Project:
    return project("algorithm-distillation")


def returns(text: str) -> tuple[list[float], list[float]]:
    """Read the mean returns by episode that a training prints at last: context kept, cleared."""
    kept, cleared = re.findall(r"context (?:kept|cleared) +([0-9. ]+)  in episodes", text)
    return [float(each) for each in kept.split()], [float(each) for each in cleared.split()]


def weights(text: str) -> str:
    """Read the fingerprint of the weights; insist that one process alone has printed it."""
    (digest,) = re.findall(r"weights: (\w{16})", text)
    return str(digest)


def losses(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"step \S+ loss (\S+)", text)]


@pytest.mark.thorough
def test_two_nodes_train_as_one_process_does(example: Project) -> None:
    run = example.train("small-2node")
    log = example.hpcrun("logs", "--cluster", "sandbox", run.name)
    assert "processes: 4 (MULTI_CPU), cpu" in log
    assert log.count("step 100/100 loss") == 1  # the main process prints it, and no other
    curves = example.curves(run)
    assert list(curves["loss"]) == list(range(5, 101, 5))
    assert {"grad_norm", "samples_per_second"} <= set(curves)
    evaluated = ("eval_return_first", "eval_return_last", "eval_return_cleared")
    assert [list(curves[name]) for name in evaluated] == [[25, 50, 75, 100]] * 3
    kept, cleared = returns(log)
    assert_learns_in_context(kept, cleared)
    assert safe_load(example.python(EVENTS, str(run))) == [list(curves["loss"])]
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["step-00000050", "step-00000100"]

    # One process with four times the batch: the same samples in each step, and lives to the end.
    alone = runs_alone(example)
    assert losses(alone["seed-0"]) == pytest.approx(losses(log), rel=1e-3)
    assert returns(alone["seed-0"])[0] == pytest.approx(kept, abs=0.3)
    for seed in range(3):
        assert_learns_in_context(*returns(alone[f"seed-{seed}"]))

    # The same bits each time, and on from a checkpoint.
    first, second, third, other = (
        weights(alone[name]) for name in ("first", "second", "third", "other")
    )
    assert first == second == third != other
    assert "Resuming training from kept/third/step-00000006 at step 6" in alone["third"]
    assert len(losses(alone["third"])) == 2  # steps 10 and 12 of 5, 10 and 12


def test_four_ranks_go_on_with_the_same_bits(example: Project) -> None:
    """DDP may sum in another order after its first step: a run that resumes has two of these."""
    few = ["--eval-every", "100", "--source-episodes", "10", "--steps", "4", "--save-every", "2"]
    first, third = (example.folder / "kept" / name for name in ("first", "third"))
    shown = []
    for folder in (first, third):
        words = ["--checkpoint-dir", str(folder), "--log-dir", str(folder), *SHORT, *few]
        done = run_forked(
            [
                {**rank, "LOCAL_WORLD_SIZE": "4", "ACCELERATE_USE_CPU": "true"}
                for rank in as_by_srun(4)
            ],
            words,
            program=example.folder / "train.py",
            module="accelerate",
        )
        assert done.returncode == 0, done.stderr[-6000:]
        shown.append(done.stdout)
        if folder == first:
            shutil.copytree(first / "step-00000002", third / "step-00000002")
    assert "at step 2" in shown[1]
    assert weights(shown[0]) == weights(shown[1])


@pytest.mark.thorough
def test_torchrun_in_bf16(example: Project) -> None:
    """The six lives of its evaluation are 2, 2, 1 and 1 a rank."""
    run = example.train("small-torchrun", "--set", "precision=bf16", "--", *SHORT)
    shown = example.hpcrun("logs", "--cluster", "sandbox", run.name)
    assert "processes: 4 (MULTI_CPU), cpu, mixed precision: bf16" in shown
    full = example.train("small-torchrun", "--", *SHORT)
    whole = losses(example.hpcrun("logs", "--cluster", "sandbox", full.name))
    assert losses(shown) != whole
    assert losses(shown) == pytest.approx(whole, rel=0.02)
    node = (run / "node.sh").read_text()
    assert "torch.distributed.run" in node
    assert "accelerate.commands.launch" not in node


def runs_alone(example: Project) -> dict[str, str]:
    """Run ALONE, and give what each of its trainings printed."""
    parts = re.split(r"^run (\S+)$", example.python(ALONE, *SHORT), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def assert_learns_in_context(kept: list[float], cleared: list[float]) -> None:
    """Insist on a rise from episode to episode, and on none in the control.

    With each of the seeds 0 to 4 the return rose from at most 1.0 to 2.7 or more with the context,
    and went by no more than 0.3, up or down, without.
    """
    assert kept[0] == cleared[0]  # in the first episode there is no context yet
    assert kept[0] < kept[1] < kept[2]
    assert kept[-1] > 2 * kept[0]
    assert max(cleared) < 0.6 * kept[-1]
    assert abs(cleared[-1] - cleared[0]) < 0.25 * (kept[-1] - kept[0])


# ---- the guide's hardware

# Job, then partition, nodes, GPUs as Slurm takes them, CPUs of a node; batch per GPU, accumulation.
GPU_JOBS = {
    "darkroom-1x3090": ("rtx3090", 1, "gpu:rtx3090:1", 8, 512, 2),
    "darkroom-2x3090": ("rtx3090", 1, "gpu:rtx3090:2", 16, 512, 1),
    "darkroom-4xa100": ("a100", 1, "gpu:a100:4", 64, 256, 1),
    "darkroom-8xa100": ("a100", 1, "gpu:a100:8", 128, 128, 1),
    "darkroom-2node": ("a100", 2, "gpu:a100:4", 64, 128, 1),
}


def accelerates(files: dict[str, str]) -> dict[str, Any]:
    """Give Accelerate's configuration; insist that the ranks are started by it."""
    assert "-m accelerate.commands.launch" in files["node.sh"]
    assert '--machine_rank="$HPCRUN_NODE_RANK"' in files["node.sh"]
    config: dict[str, Any] = safe_load(files["accelerate.yaml"])
    return config


@pytest.mark.parametrize("job", GPU_JOBS)
def test_the_guides_hardware_takes_it(example: Project, cluster_like_it: str, job: str) -> None:
    partition, nodes, gres, cpus, batch, accumulation = GPU_JOBS[job]
    example.env["HPCRUN_SANDBOX_DIR"] = cluster_like_it
    (example.folder / ".venv").symlink_to(sys.prefix)  # as the README has the user make one
    setup = ["--set", "setup={modules: [python/3.10], venv: .venv}"]
    files = example.dry_run(job, *setup)
    for directive in (
        f"partition={partition}", f"nodes={nodes}", "ntasks-per-node=1", f"cpus-per-task={cpus}",
        f"gres={gres}", "time=24:00:00",
    ):  # fmt: skip
        assert f"#SBATCH --{directive}\n" in files["job.sbatch"]
    script = files["job.sbatch"]
    assert script.index("load_module python/3.10\n") < script.index("activate_venv ")
    assert f"export ACCELERATE_GRADIENT_ACCUMULATION_STEPS={accumulation}\n" in script
    assert f" --batch-size {batch} " in files["node.sh"]
    ranks = nodes * int(gres.rpartition(":")[2])
    assert batch * accumulation * ranks == 1024
    config = accelerates(files)
    assert (config["num_machines"], config["num_processes"]) == (nodes, ranks)
    assert config["mixed_precision"] == "bf16"
    shown = example.hpcrun("submit", job, "--cluster", "sandbox", "--test-only")
    assert f"partition {partition}\n" in shown + "\n"


def test_each_thing_is_changed_in_one_place(example: Project) -> None:
    files = example.dry_run(
        "darkroom-4xa100", "--nodes", "2", "--gpus-per-node", "8",
        "--set", "precision=fp16", "--set", "batch.micro_batch_per_gpu=64",
        "--set", "batch.gradient_accumulation_steps=4", "--", "--context-episodes", "8",
    )  # fmt: skip
    config = accelerates(files)
    assert (config["num_processes"], config["mixed_precision"]) == (16, "fp16")
    assert "export ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4\n" in files["job.sbatch"]
    assert " --batch-size 64 " in files["node.sh"]
    # argparse takes the last of an option that is there twice.
    words = files["node.sh"].split()
    assert words[len(words) - 1 - words[::-1].index("--context-episodes") + 1] == "8"
    files = example.dry_run("darkroom-4xa100", "--set", "launcher=torchrun")
    assert "-m torch.distributed.run" in files["node.sh"]
    assert "accelerate.yaml" not in files
