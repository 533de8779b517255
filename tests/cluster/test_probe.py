"""Every launcher provides what ranks need, verified by a probe as the user's program.

The tests use a real Slurm on simulated hosts, with one node and two, and two ranks each.
"""

from __future__ import annotations

import os
from typing import get_args

import pytest

from hpcrun.spec.job import LauncherName
from tests.cluster.probe_jobs import RANKS_PER_NODE, shown_by, write_job
from tests.cluster.site import Site, Submitted
from tests.needs import require

LAUNCHER_NAMES = [name for name in get_args(LauncherName) if name != "ray"]
ENV = {
    "NCCL_IB_HCA": "mlx5_0,mlx5_1",
    "QUOTED": 'a "b" it\'s',
    "BLANKS": "  two  words ",
    "LINES": "one\ntwo",
    "lower_case": "stays",
    "NOT_ASCII": "größer 日本",
    "SIGNS": "$HOME `id` \\ * ; & | #",
}
WORDS = ["--name=a b", "it's", '"', "$(exit 3)", "{}", "a\nb", "*", "", "größer", "--", "-x"]


def latin1(value: str) -> str:
    """Return the text that the probe prints for a value."""
    return os.fsencode(value).decode("latin-1")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_every_rank_gets_rank_node_and_gpus(bare_site: Site, nodes: int) -> None:
    """One job for each launcher, concurrently on the same nodes."""
    before = {name: list_tmp(bare_site, name) for name in bare_site.rig.node_names}
    runs = {}
    for launcher in LAUNCHER_NAMES:
        # Plain torch, because only the launcher is tested.
        job = write_job(bare_site, launcher, launcher=launcher, framework="torch", env=ENV)
        options = ["--nodes", str(nodes), "--set", "resources.cpus_per_gpu=1", "--time", "10"]
        shell = {"FROM_THE_SHELL": "a, b", "RANK": "77", "MASTER_PORT": "77"}
        runs[launcher] = bare_site.submit(job, *options, "--", *WORDS, env=shell)
    ports = set()
    for launcher, run in runs.items():
        done = bare_site.follow(run)
        assert done.returncode == 0, f"{launcher}: {done.stdout}{done.stderr}{run.log()}"
        ports.add(check_places(bare_site, run, launcher, nodes))
        if nodes == 2:
            assert len(list((run.folder / "logs" / "0").glob("node-*.log"))) == 2, launcher
            assert f"node 1 is {bare_site.rig.node_names[1]}" in run.log(), launcher
    assert len(ports) == len(LAUNCHER_NAMES)
    assert not (bare_site.project / ".deepspeed_env").exists()
    for name, names in before.items():
        assert "torchelastic" not in " ".join(list_tmp(bare_site, name) - names), name


def list_tmp(site: Site, node: str) -> set[str]:
    """List the files in /tmp of a node."""
    return {*site.rig.on_node(node, ["ls", "/tmp"]).stdout.split()}


def check_places(site: Site, run: Submitted, launcher: str, nodes: int) -> int:
    """Check the reports of all ranks of a run; return the port of the rendezvous."""
    names = site.rig.node_names[:nodes]
    ranks = shown_by(run)
    assert [shown["rank"] for shown in ranks] == list(range(nodes * RANKS_PER_NODE)), launcher
    ((address, port),) = {tuple(shown["master"]) for shown in ranks}
    if nodes == 1:
        # Any of the nodes, which several one-node jobs share.
        names = [ranks[0]["host"]]
    assert address == (site.rig.addresses[names[0]] if nodes > 1 else "127.0.0.1"), launcher
    assert 12000 <= port < 30000
    for shown in ranks:
        rank, environ = shown["rank"], shown["environ"]
        assert shown["world_size"] == nodes * RANKS_PER_NODE, launcher
        assert shown["local_rank"] == rank % RANKS_PER_NODE, launcher
        assert shown["local_world_size"] == RANKS_PER_NODE, launcher
        assert shown["node_rank"] == rank // RANKS_PER_NODE, launcher
        assert environ["GROUP_RANK"] == environ["NODE_RANK"] == str(shown["node_rank"]), launcher
        assert shown["host"] == names[shown["node_rank"]], launcher
        # All GPUs of the job on each node, with Slurm's numbers.
        assert shown["gpus"] in ("0,1", "2,3"), launcher
        assert shown["threads"] == "1", "the profile's OMP_NUM_THREADS"
        assert shown["gloo_interface"] == ("eth0" if nodes > 1 else "lo"), launcher
        assert {name: environ[name] for name in ENV} == {k: latin1(v) for k, v in ENV.items()}
        assert environ["FROM_THE_SHELL"] == "a, b"
        assert environ["HPCRUN_NODES"] == str(nodes)
        assert environ["SLURM_JOB_ID"] == run.job_id
        assert shown["argv"] == [latin1(word) for word in WORDS], launcher
        assert shown["cwd"] == latin1(str(site.project))
    return int(port)


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
@pytest.mark.parametrize("gpus", [1, 2])
def test_every_rank_has_the_requested_cpus(bound_site: Site, launcher: str, gpus: int) -> None:
    """Its data loaders need them; srun of Slurm 22.05 to 23.02 would bind it to one CPU."""
    rig = bound_site.rig
    require(rig.cpus >= 2, "two CPUs")
    cpus_per_gpu = rig.cpus // gpus
    job = write_job(bound_site, f"bound-{launcher}-{gpus}", launcher=launcher)
    cpus = f"resources.cpus_per_gpu={cpus_per_gpu}"
    run = bound_site.submit(job, "--gpus-per-node", str(gpus), "--set", cpus, "--time", "10")
    done = bound_site.follow(run)
    assert done.returncode == 0, done.stdout + done.stderr + run.log()
    ranks = shown_by(run)
    assert len(ranks) == gpus
    bound = [set(shown["cpus"]) for shown in ranks]
    if launcher == "srun":
        assert [len(cpus) for cpus in bound] == [cpus_per_gpu] * gpus
        assert len(set.union(*bound)) == gpus * cpus_per_gpu, "each rank has CPUs of its own"
    else:
        # The ranks of a launcher share the CPUs of its node.
        assert [len(cpus) for cpus in bound] == [gpus * cpus_per_gpu] * gpus


@pytest.mark.parametrize("launcher", [pytest.param("torchrun", marks=pytest.mark.thorough), "srun"])
def test_pinned_ranks_have_separate_cores(bound_site: Site, launcher: str) -> None:
    """The simulated GPUs have no locality, so the cores are divided among the ranks."""
    require(bound_site.rig.cpus >= 2, "two CPUs")
    job = write_job(bound_site, f"near-{launcher}", launcher=launcher, binding="auto")
    asked = ["resources={gpus_per_node: 2, cpus_per_gpu: 1, time: 10, exclusive: true}"]
    run = bound_site.submit(job, "--set", *asked)
    done = bound_site.follow(run)
    assert done.returncode == 0, done.stdout + done.stderr + run.log()
    first, second = (set(shown["cpus"]) for shown in shown_by(run))
    assert len(first) == len(second) == 1 and first != second
    assert f"CPUs {first.pop()}; next to its GPU: unknown" in run.log()
