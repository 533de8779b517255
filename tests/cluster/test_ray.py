"""Ray on several hosts of a real Slurm: real Ray, on CPUs."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.site import Site, Submitted
from tests.waiting import until

DRIVER = """
import json, os, pathlib, sys, time
import ray
assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & os.environ.keys()
ray.init()

@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def where():
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & os.environ.keys()
    time.sleep(0.2)
    return os.environ["SLURM_JOB_ID"], os.environ["SLURMD_NODENAME"]

places = set()
while len({node for _, node in places}) < 2:  # a slow machine starts the second node's workers late
    places |= set(ray.get([where.remote() for _ in range(12)]))
out = pathlib.Path(os.environ["HPCRUN_RUN_DIR"], "seen.json")
out.write_text(json.dumps({"nodes": len(ray.nodes()), "places": sorted(places)}))
print("step 1 loss 0.5", flush=True)
while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
    ray.get(where.remote())
"""
JOB = """
launcher: ray
script: driver.py
resources: {nodes: 2, gpus_per_node: 1, cpus_per_gpu: 1, time: 15}
args: ["{project_dir}/go"]
# Ray gives up on a node that does not start within 30 s, so the other tests have to wait for it.
# The kernel shares the CPUs among sessions first (sched(7), autogroup).
setup: {node_commands: ["{ echo -15 >/proc/self/autogroup; renice -n -15 $$; } || true"]}
"""


def submit(site: Site) -> Submitted:
    (site.project / "driver.py").write_text(DRIVER)
    (site.project / "job.yaml").write_text(JOB)
    return site.submit("./job.yaml")


def wait_for_program(runs: list[Submitted]) -> None:
    def is_over(run: Submitted) -> bool:
        return (run.folder / "attempts/0/end.json").exists()

    def have_all_begun() -> bool:
        assert not any(map(is_over, runs)), "\n".join(run.log() for run in runs)
        return all((run.folder / "seen.json").exists() for run in runs)

    deadline = time.monotonic() + 600  # Ray starts a dozen processes on each node
    while not have_all_begun() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert have_all_begun(), "\n".join(run.log() for run in runs)


def test_two_ray_jobs_share_their_nodes_and_leave_nothing_behind(site: Site) -> None:
    runs = [submit(site)]
    wait_for_program(runs)  # Ray gives up on a head that needs 30 s to start, here for both at once
    runs.append(submit(site))
    wait_for_program(runs)
    ports = [run.record("ray.json")["dashboard"] for run in runs]
    assert ports[0] != ports[1]
    (site.project / "go").touch()
    for run in runs:
        assert site.follow(run).returncode == 0, run.log()
        seen = json.loads((run.folder / "seen.json").read_text())
        assert seen["nodes"] == 2
        # Each job has its own workers, on both nodes.
        assert seen["places"] == [[run.job_id, "node1"], [run.job_id, "node2"]]
        assert (run.folder / "logs/0/ray-1/raylet.out").exists()
        assert "step 1 loss 0.5" in (run.folder / "logs/0/rank-0.log").read_text()
    for node in ("node1", "node2"):
        found = site.rig.on_node(node, ["find", "/tmp", "-maxdepth", "1", "-name", "ray*"])
        assert found.stdout == ""


@pytest.mark.thorough
def test_a_ray_worker_that_ends_ends_the_job(site: Site) -> None:
    run = submit(site)
    wait_for_program([run])
    victims = [pid for pid, line in site.rig.processes("node2") if "raylet/raylet" in line]
    assert victims
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    assert site.follow(run).returncode == 1
    log = Path(run.folder / "logs/0/node-1.log").read_text()
    assert "hpcrun: error: ray: its worker ended" in log, run.log()
    assert json.loads(site.hpcrun("why", run.run_id, "--json").stdout)["runs"][0]["cause"]
    until(lambda: not site.rig.leftovers(), "the processes of Ray to end")
