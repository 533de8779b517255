"""hpcrun sync -f of a real job, from a laptop."""

from __future__ import annotations

from tests.cli.test_sync import read_events
from tests.cluster.laptop import Laptop, laptop

__all__ = ["laptop"]  # fixture


def test_laptop_follows_a_job_into_tensorboard_with_the_use_of_its_node(laptop: Laptop) -> None:
    laptop.write("say.sh", "for i in 1 2 3 4 5 6; do echo step=$i loss=0.$i; sleep 1; done\n")
    laptop.write("job.yaml", "command: [bash, say.sh]\nresources: {gpus_per_node: 0}\n")
    run = laptop.json("submit", "job.yaml")["run_id"]
    told = laptop.hpcrun("sync", "-f", run, "--to", "tensorboard", timeout=120)
    assert told.returncode == 0 and "new points: tensorboard --logdir" in told.stderr, told
    folder = laptop.project / "tensorboard" / run
    losses = read_events(folder)["train/loss"]
    assert [(step, round(value, 3)) for step, value in losses] == [
        (step, step / 10) for step in range(1, 7)
    ]
    assert read_events(folder / "system")["memory_gib"]
    again = laptop.does("sync", run, "--to", "tensorboard")
    assert again == ""
    assert read_events(folder)["train/loss"] == losses
