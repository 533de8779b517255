"""hpcrun compare with real trainings."""

from __future__ import annotations

import json

import pytest

from tests.cluster.site import Site
from tests.cluster.training_jobs import finish, train


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_compare_of_one_and_two_ranks_shows_equal_curves(site: Site) -> None:
    """With the same global batch size the curves are equal, and only the settings differ."""
    runs = [train(site, "ddp-4gpu", 1, ranks, launcher="srun") for ranks in (1, 2)]
    for run in runs:
        finish(site, run)
    done = site.hpcrun("compare", "--json", *(run.run_id for run in runs))
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert [run["source"] for run in reported["runs"]] == [run.run_id for run in runs]
    assert [(run["gpus"], run["batch"]) for run in reported["runs"]] == [(1, 8), (2, 8)]
    # CPUs simulate the rig's GPUs.
    assert (reported["scaling"]["counted"], reported["scaling"]["kind"]) == ("ranks", "strong")
    assert all(run["efficiency"] for run in reported["runs"])
    assert all(1 < run["seconds"] < 300 for run in reported["runs"])
    step = reported["equal"][0]
    assert (step["by"], step["to"]) == ("step", 20)
    assert step["levels"][0] == pytest.approx(step["levels"][1], rel=1e-4)
    assert reported["settings"] == {
        "args.--micro-batch-per-gpu": ["8", "4"],
        "batch.micro_batch_per_gpu": ["8", "4"],
        "resources.gpus_per_node": ["1", "2"],
        "world_size": ["1", "2"],
    }
    shown = site.hpcrun("compare", *(run.run_id for run in runs)).stdout
    assert "strong scaling, the batch is the same" in " ".join(shown.split())


# Prints like a training that takes half as long on two ranks.
SCRIPT = """
import json, os, time
seconds = 0.4 / int(os.environ["WORLD_SIZE"])
for step in range(1, 11):
    time.sleep(seconds)
    if os.environ["RANK"] == "0":
        record = {"step": step, "loss": 1 / step, "step_seconds": seconds, "effective_batch": 2}
        print(json.dumps(record), flush=True)
"""


def test_sweep_over_gpus_and_zero_stages_is_compared_as_a_group(site: Site) -> None:
    (site.project / "train.py").write_text(SCRIPT)
    for name, more in (("zero2", "deepspeed: {zero_stage: 2}\n"), ("ddp", "")):
        text = f"script: train.py\nlauncher: srun\nprecision: fp32\n{more}"
        (site.project / f"{name}.yaml").write_text(text)
    done = site.hpcrun(
        *("submit", "./zero2.yaml", "./ddp.yaml", "--as", "memory", "--wait", "--json"),
        *("--set", "sweep_combinations=[{resources.gpus_per_node: 1, batch.micro_batch_per_gpu: 2},"
          " {resources.gpus_per_node: 2, batch.micro_batch_per_gpu: 1}]"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    submitted = json.loads(done.stdout)
    assert submitted["group"] == "memory" and len(submitted["jobs"]) == 4
    reported = json.loads(site.hpcrun("compare", "memory", "--json").stdout)
    shapes = [(run["zero_stage"], run["gpus"], run["batch"]) for run in reported["runs"]]
    assert shapes == [(2, 1, 2), (2, 2, 2), (None, 1, 2), (None, 2, 2)]
    assert all(run["samples_per_second"] for run in reported["runs"])
    assert [round(run["speedup"], 1) for run in reported["runs"]] == [1.0, 2.0, 1.0, 2.0]
    assert all(run["gpu_memory"] is None for run in reported["runs"]), "there is no GPU"
    table = site.hpcrun("compare", "memory", "--markdown").stdout
    assert table.startswith("| run | ranks | batch | ZeRO |") and table.count("\n| ") == 5, table
