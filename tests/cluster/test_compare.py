"""hpcrun compare with real trainings."""

from __future__ import annotations

import json

import pytest

from tests.cluster.site import Site
from tests.cluster.test_training import finish, train


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
        "batch.micro_batch_per_gpu": ["8", "4"],
        "resources.gpus_per_node": ["1", "2"],
        "world_size": ["1", "2"],
    }
    shown = site.hpcrun("compare", *(run.run_id for run in runs)).stdout
    assert "strong scaling, the batch is the same" in " ".join(shown.split())
