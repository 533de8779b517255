"""``hpcrun fit JOB --measure`` on a real Slurm: the files of the job itself remain unchanged."""

from __future__ import annotations

import json

import pytest

from tests.cluster.laptop import Laptop
from tests.cluster.laptop import laptop as laptop
from tests.cluster.laptop import link as link
from tests.cluster.site import Site
from tests.json_schemas import check_json

SCRIPT = """\
import argparse, os, torch
parser = argparse.ArgumentParser()
parser.add_argument("--output_dir")
args = parser.parse_args()
torch.distributed.init_process_group("gloo")
os.makedirs(args.output_dir, exist_ok=True)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(500, 1000))
optimizer = torch.optim.AdamW(model.parameters())
rank = torch.distributed.get_rank()
for step in range(1, 1001):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 500)).square().mean()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(f"step {step}/1000 loss {loss.item():.4f}", flush=True)
        torch.save(model.state_dict(), f"{args.output_dir}/model.pt")
"""
JOB = """\
script: train.py
args: [--output_dir, out]
launcher: srun
framework: torch
resources: {gpus_per_node: 2, time: 2h}
checkpoint: {dir: /nonexistent/checkpoints}
survive: {when: [preempted]}
"""


def test_measured_steps_leave_the_outputs_of_the_job_alone_and_give_its_time(site: Site) -> None:
    (site.project / "train.py").write_text(SCRIPT)
    (site.project / "job.yaml").write_text(JOB)
    (site.project / "out").mkdir()
    (site.project / "out" / "model.pt").write_bytes(b"trained for weeks")
    files = sorted(path for path in site.project.rglob("*"))
    done = site.hpcrun("fit", "job.yaml", "--measure", "--steps", "3", "--yes", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    check_json("fit", answer)
    assert (site.project / "out" / "model.pt").read_bytes() == b"trained for weeks"
    assert sorted(path for path in site.project.rglob("*")) == files
    assert answer["estimate"] is None
    measured = answer["measured"]
    weights = (500 + 1) * 1000 * 4
    for rank in measured["ranks"]:
        assert len(rank["seconds"]) == 3 and rank["error"] == "" and rank["gpu"] == ""
        parts = rank["parts"]
        assert (parts["parameters"], parts["gradients"]) == (weights, weights)
        assert 2 * weights <= parts["optimizer"] <= 2 * weights + 100
        assert rank["host_peak"] > 100e6
    assert [rank["rank"] for rank in measured["ranks"]] == [0, 1]
    assert measured["total_steps"] == 1000 and measured["calibration"] is None
    runs = [json.loads(site.hpcrun("status", "--json").stdout)["runs"][0]]
    assert runs[0]["state"] == "COMPLETED" and runs[0]["run_id"] == measured["run_id"]
    # The time of the whole training, for which no run exists.
    times = site.hpcrun("when", "job.yaml", "--json")
    (earlier,) = json.loads(times.stdout)["earlier_runs"]
    assert earlier["measured_steps"] == 3
    expected = 1000 * measured["seconds_per_step"]
    assert abs(earlier["training_seconds"] - expected) < 0.001 * expected


@pytest.mark.thorough
def test_steps_are_measured_over_ssh(laptop: Laptop) -> None:
    laptop.write("train.py", SCRIPT)
    laptop.write("job.yaml", JOB)
    done = laptop.hpcrun("fit", "job.yaml", "--measure", "--yes", "--json", timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads(done.stdout)["measured"]
    weights = (500 + 1) * 1000 * 4
    assert [rank["parts"]["gradients"] for rank in measured["ranks"]] == [weights, weights]
    assert [len(rank["seconds"]) for rank in measured["ranks"]] == [2, 2]
    assert not (laptop.project / "out").exists()
    # The measurement is kept on the laptop, and gives the time of the whole training.
    (earlier,) = laptop.json("when", "job.yaml")["earlier_runs"]
    assert (earlier["run_id"], earlier["measured_steps"]) == (measured["run_id"], 2)
