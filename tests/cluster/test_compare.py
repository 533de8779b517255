"""hpcrun compare with real trainings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.site import Site
from tests.cluster.training_jobs import STEPS


@pytest.mark.timeout(1800)
def test_sweep_over_gpus_and_zero_stages_is_compared_as_a_group(site: Site) -> None:
    """With the same global batch size, and without a launcher's import of torch for each run."""
    done = site.hpcrun(
        *("submit", "zero2-4gpu", "ddp-4gpu", "--as", "memory", "--wait", "--json"),
        *("--nodes", "1", "--time", "10", "--set", "precision=fp32", "--set", "launcher=srun"),
        *("--set", "sweep_combinations=[{resources.gpus_per_node: 1, batch.micro_batch_per_gpu: 8},"
          " {resources.gpus_per_node: 2, batch.micro_batch_per_gpu: 4}]"),
        *("--", "--steps", str(STEPS)),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    submitted = json.loads(done.stdout)
    assert submitted["group"] == "memory" and len(submitted["jobs"]) == 4
    reported = json.loads(site.hpcrun("compare", "memory", "--json").stdout)
    shapes = [(run["zero_stage"], run["gpus"], run["batch"]) for run in reported["runs"]]
    assert shapes == [(2, 1, 8), (2, 2, 8), (None, 1, 8), (None, 2, 8)]
    assert all(run["samples_per_second"] and run["speedup"] for run in reported["runs"])
    assert all(run["gpu_memory"] is None for run in reported["runs"]), "there is no GPU"
    table = site.hpcrun("compare", "memory", "--markdown").stdout
    assert table.startswith("| run | ranks | batch | ZeRO |") and table.count("\n| ") == 5, table
    check_scaling(site, [run["source"] for run in reported["runs"][2:]])


def check_scaling(site: Site, names: list[str]) -> None:
    """One rank and two have equal curves, and only the settings differ."""
    done = site.hpcrun("compare", "--json", *names)
    assert done.returncode == 0, done.stderr
    reported: dict[str, Any] = json.loads(done.stdout)
    assert [run["source"] for run in reported["runs"]] == names
    assert [(run["gpus"], run["batch"]) for run in reported["runs"]] == [(1, 8), (2, 8)]
    # CPUs simulate the rig's GPUs.
    assert (reported["scaling"]["counted"], reported["scaling"]["kind"]) == ("ranks", "strong")
    assert all(run["efficiency"] for run in reported["runs"])
    assert all(1 < run["seconds"] < 300 for run in reported["runs"])
    step = reported["equal"][0]
    assert (step["by"], step["to"]) == ("step", STEPS)
    assert step["levels"][0] == pytest.approx(step["levels"][1], rel=1e-4)
    assert reported["settings"] == {
        "batch.micro_batch_per_gpu": ["8", "4"],
        "resources.gpus_per_node": ["1", "2"],
        "sweep.batch.micro_batch_per_gpu": ["8", "4"],
        "world_size": ["1", "2"],
    }
    shown = site.hpcrun("compare", *names).stdout
    assert "strong scaling, the batch is the same" in " ".join(shown.split())
