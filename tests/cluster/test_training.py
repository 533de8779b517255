"""Real trainings on real hosts: ZeRO-2, ZeRO-3 and DDP on one node and on two.

The global batch size is always 8, in fp32, so every loss curve must equal that of one process. In
CI ZeRO-3 and DDP train with one rank on each of two nodes; make test-all uses two ranks each.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cluster.rig import Rig
from tests.cluster.site import Site, Submitted
from tests.cluster.training_jobs import STEPS, finish, train
from tests.torch_extensions import extensions
from tests.waiting import until

# fp32 sums in another order: measured 2e-6 relative over 20 steps; a wrong shard or a batch that
# is counted twice shows in the second digit.
TOLERANCE = 1e-4


def losses(site: Site, run: Submitted) -> dict[int, float]:
    """Return the training loss by step, as read by `hpcrun parse`."""
    done = site.hpcrun("parse", "--json", "--full", run.run_id)
    assert done.returncode == 0, done.stderr + run.log()
    loss = json.loads(done.stdout)["runs"][0]["metrics"]["loss"]
    return dict(zip(loss["steps"], loss["values"], strict=True))


def hashes(run: Submitted) -> list[str]:
    """Return the hash of the parameters printed by each rank."""
    lines = [line for line in run.log().splitlines() if line.startswith('{"parameter_hash"')]
    return [json.loads(line)["parameter_hash"] for line in lines]


@pytest.fixture(scope="module")
def alone(rig: Rig) -> dict[int, float]:
    """Return the curve of one process."""
    site = Site(rig, rig.shared / "alone").prepare()
    run = train(site, "ddp-4gpu", 1, 1, launcher="srun")
    finish(site, run)
    found = losses(site, run)
    until(lambda: not rig.list_jobs(), "the end of the job")
    shutil.rmtree(rig.shared / "runs")  # a test on another rig may be the first that uses this
    return found


def insist_on_all_ranks(site: Site, run: Submitted, ranks: int, nodes: int) -> None:
    """Assert that all ranks have the same parameters, and that both nodes participated."""
    found = hashes(run)
    assert len(found) == ranks, run.log()
    assert len(set(found)) == 1, "all ranks hold the same parameters"
    if nodes == 2:
        hosts = {line.split()[4].rstrip(",") for line in run.log().splitlines() if " is " in line}
        assert set(site.rig.node_names) <= hosts, "both hosts took part"


@pytest.mark.timeout(1800)
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("preset", "nodes"),
    [("ddp-4gpu", 1), ("ddp-4gpu", 2), ("zero2-4gpu", 2), ("zero3-4gpu", 2)],
)
def test_presets_train_like_one_process(
    site: Site, alone: dict[int, float], preset: str, nodes: int
) -> None:
    run = train(site, preset, nodes, 2)
    finish(site, run)
    curve = losses(site, run)
    assert list(curve) == list(range(1, STEPS + 1))
    assert curve[STEPS] < 0.8 * curve[1], "the loss falls"
    assert curve == pytest.approx(alone, rel=TOLERANCE)
    insist_on_all_ranks(site, run, 2 * nodes, nodes)


@pytest.mark.timeout(1800)
@pytest.mark.thorough
def test_range_of_nodes_trains_the_same_curve_on_any_number(wide_site: Site) -> None:
    """Three nodes, and two with one drained, have the same effective batch and curve."""
    rig, curves = wide_site.rig, []
    third, others = rig.node_names[2], ",".join(rig.node_names[3:])
    options = ["--nodes", "2-3", "--gpus-per-node", "1", "--time", "10", "--set", "precision=fp32"]
    options += ["--set", "batch={micro_batch_per_gpu: 2, gradient_accumulation_steps: 2}"]
    options += ["--set", f"slurm.exclude={others}", "--", "--steps", str(STEPS)]
    for nodes, steps in ((3, 2), (2, 3)):
        if nodes == 2:
            rig.run("scontrol", "update", f"node={third}", "state=drain", "reason=test")
        try:
            run = wide_site.submit("zero2-4gpu", *options)
            finish(wide_site, run)
        finally:
            rig.run("scontrol", "update", f"node={third}", "state=resume")
        config = json.loads((run.folder / "deepspeed.json").read_text())
        assert (config["train_batch_size"], config["gradient_accumulation_steps"]) == (12, steps)
        status = wide_site.status(run)
        assert (status["nodes"], status["effective_batch"]) == (nodes, 12)
        assert len(list((run.folder / "logs/0").glob("rank-*.log"))) == nodes
        curves.append(losses(wide_site, run))
    assert list(curves[0]) == list(range(1, STEPS + 1)) and curves[0][STEPS] < 0.8 * curves[0][1]
    assert curves[0] == pytest.approx(curves[1], rel=TOLERANCE)


# In CI, tests/workloads/test_resume.py resumes on one node, and test_survive.py restarts jobs.
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_resume_continues_the_curve(site: Site, alone: dict[int, float]) -> None:
    checkpoints = str(site.project / "checkpoints")
    words = ("--checkpoint-dir", checkpoints)
    saving = ("--checkpoint-every", "10", "--fail-at", "15:1:kill")
    half = train(site, "zero3-4gpu", 2, 1, *words, *saving, launcher="srun")
    assert site.follow(half).returncode == 1
    rest = train(site, "zero3-4gpu", 2, 1, *words, launcher="srun")
    finish(site, rest)
    resumed = losses(site, rest)
    assert list(resumed) == list(range(11, STEPS + 1)), "it goes on behind the checkpoint"
    # The steps after the checkpoint equal those of the killed run, the others those of any run.
    killed = {step: loss for step, loss in losses(site, half).items() if step > 10}
    assert list(killed) == [11, 12, 13, 14]
    assert {step: resumed[step] for step in killed} == pytest.approx(killed, rel=1e-6)
    curve = losses(site, half) | resumed
    assert curve[STEPS] < 0.8 * curve[1], "the loss falls"
    assert curve == pytest.approx(alone, rel=TOLERANCE)
    insist_on_all_ranks(site, rest, ranks=2, nodes=2)
    assert Path(extensions(), "deepspeed_shm_comm").is_dir(), "another folder"


def test_training_works_without_name_resolution(
    unresolved_site: Site, alone: dict[int, float]
) -> None:
    """Node names cannot be resolved: the address of rank 0 comes from Slurm's NodeAddr."""
    run = train(unresolved_site, "ddp-4gpu", 2, 1, launcher="srun")
    finish(unresolved_site, run)
    rig = unresolved_site.rig
    assert f"at {rig.addresses[rig.node_names[0]]} port" in run.log()
    assert losses(unresolved_site, run) == pytest.approx(alone, rel=TOLERANCE)
    insist_on_all_ranks(unresolved_site, run, ranks=2, nodes=2)
