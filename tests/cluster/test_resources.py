"""Requests to a real Slurm: whole nodes, renamed options, expected start, networks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import get_args

import pytest

from hpcrun.actions.prepare import load_spec, prepare_job
from hpcrun.assets import shipped_folder
from hpcrun.context import load_context
from hpcrun.slurm.commands import parse_estimate
from hpcrun.spec.job import Fabric
from tests.cluster.rig import Rig
from tests.cluster.site import Site, Submitted
from tests.pairs import pairwise

# Reports the resources of a task; python is that of the rig.
TELL = """
import json, os
names = ("SLURM_CPUS_PER_TASK", "SLURM_STEP_NUM_TASKS", "SLURM_CPUS_ON_NODE", "OMP_NUM_THREADS",
         "CUDA_VISIBLE_DEVICES", "HPCRUN_FABRIC", "NCCL_NET", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG",
         "NCCL_DEBUG_FILE", "TORCH_CPP_LOG_LEVEL")
told = {name: os.environ.get(name) for name in names}
rank = os.environ.get("RANK") or os.environ["SLURM_NODEID"]
open(f"{os.environ['HPCRUN_RUN_DIR']}/told-{rank}.json", "w").write(json.dumps(told))
"""


MakeSite = Callable[..., Site]


@pytest.fixture
def site_with(rig: Rig, site: Site) -> MakeSite:
    """Add settings to the profile of the project."""

    def make(**profile: object) -> Site:
        return type(site)(rig, site.project, {**site.profile, "env": {}, **profile}).prepare()

    return make


def shown(run: Submitted, rank: int = 0) -> dict[str, str]:
    """Return the report of a rank."""
    answer: dict[str, str] = json.loads((run.folder / f"told-{rank}.json").read_text())
    return answer


def ended(site: Site, *args: str) -> Submitted:
    """Submit the reporting program, and assert that it succeeds."""
    (site.project / "tell.py").write_text(TELL)
    (site.project / "tell.yaml").write_text("script: tell.py\n")
    run = site.submit("tell.yaml", *args)
    done = site.follow(run)
    assert done.returncode == 0, done.stdout + done.stderr + run.log()
    return run


def allocated(rig: Rig, run: Submitted) -> dict[str, str]:
    """Return the resources of the job according to Slurm."""
    words = rig.run("scontrol", "show", "job", "-o", run.job_id).stdout.split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def test_only_shows_the_expected_start(site: Site) -> None:
    """Nothing is left behind, and a refusal has exit code 3."""
    done = site.hpcrun("submit", "zero2-8gpu-2node", "--test-only")
    assert done.returncode == 0, done.stderr
    assert "zero2-8gpu-2node was not submitted; rig would accept it" in done.stdout
    assert "16 processors" in done.stdout and "debug" in done.stdout
    done = site.hpcrun("submit", "zero2-4gpu", "--test-only", "--json")
    answer = json.loads(done.stdout)
    assert (answer["processors"], answer["partition"]) == (8, "debug")
    assert answer["nodes"] in site.rig.node_names and answer["start"][:2] == "20"
    done = site.hpcrun("submit", "zero2-4gpu", "--test-only", "--set", "slurm.constraint=nosuch")
    assert done.returncode == 3
    assert "Slurm would refuse the job" in done.stderr
    assert site.rig.run("squeue", "-h").stdout == ""
    assert not (site.rig.shared / "runs").exists()


def test_exclusive_job_gets_whole_nodes(site_with: MakeSite) -> None:
    """The job gets all CPUs and memory of a node if requested, otherwise a share."""
    site = site_with()
    share = ended(site, "--gpus-per-node", "1")
    assert shown(share)["SLURM_CPUS_PER_TASK"] == shown(share)["OMP_NUM_THREADS"] == "2"
    assert shown(share)["CUDA_VISIBLE_DEVICES"] == "0"
    run = ended(site, "--gpus-per-node", "2", "--set", "resources.exclusive=true")
    has = allocated(site.rig, run)
    assert has["OverSubscribe"] == "NO" and has["MinMemoryNode"] == "0"
    assert has["NumCPUs"] == str(site.rig.cpus)
    # Two ranks share eight CPUs, and each sees all GPUs of the node.
    assert shown(run, 1)["OMP_NUM_THREADS"] == "4"
    assert shown(run)["SLURM_CPUS_PER_TASK"] == str(site.rig.cpus)


def test_exclusive_job_gets_whole_nodes_unknown_to_the_profile(
    rig: Rig, site_with: MakeSite
) -> None:
    """No number of CPUs is requested, and the step gets all of them."""
    site = site_with(partitions={})
    words = ["--gpus-per-node", "1", "--set", "launcher=srun"]
    run = ended(site, *words, "--set", "resources.exclusive=true")
    assert "cpus-per-task" not in (run.folder / "job.sbatch").read_text()
    assert allocated(rig, run)["NumCPUs"] == str(rig.cpus)
    assert shown(run)["SLURM_CPUS_ON_NODE"] == str(rig.cpus)


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_renamed_options_request_the_same_resources(
    rig: Rig, site_with: MakeSite, launcher: str
) -> None:
    """The same job with renamed options gets the same resources."""
    rename = {
        "gres": "gpus-per-node",
        "mem": "mem-per-gpu",
        "cpus-per-task": "cpus-per-gpu",
    }
    site = site_with(rename=rename)
    words = ["--nodes", "2", "--gpus-per-node", "2", "--set", f"launcher={launcher}"]
    run = ended(site, *words, "--set", "resources.memory_per_node=400M")
    script = (run.folder / "job.sbatch").read_text()
    assert "#SBATCH --gpus-per-node=2\n" in script and "#SBATCH --cpus-per-gpu=2\n" in script
    assert "#SBATCH --mem-per-gpu=200M\n" in script and "cpus-per-task" not in script
    assert allocated(rig, run)["NumCPUs"] == "8"
    for rank in range(4):
        assert shown(run, rank)["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert shown(run, rank)["OMP_NUM_THREADS"] == "2"


def test_dropped_options_do_not_affect_the_ranks(rig: Rig, site_with: MakeSite) -> None:
    """Dropped directives are absent from the step, too, and the ranks start."""
    drop = {"ntasks-per-node": False, "mem": False}
    site = site_with(slurm=drop)
    words = ["--nodes", "2", "--gpus-per-node", "2", "--set", "launcher=srun"]
    run = ended(site, *words)
    assert "ntasks-per-node=" not in (run.folder / "job.sbatch").read_text().split("launch")[0]
    assert shown(run, 3)["SLURM_STEP_NUM_TASKS"] == "4"
    assert shown(run, 3)["SLURM_CPUS_PER_TASK"] == "2"


def test_network_is_detected_and_debug_is_verbose(rig: Rig, site_with: MakeSite) -> None:
    """The rig's hosts have only Ethernet, for which NCCL is configured on every node."""
    types = {"partitions": {"debug": {"gpus_per_node": 4, "cpus_per_node": 8}}}
    site = site_with(accelerator="cuda", **types)
    run = ended(site, "--nodes", "2", "--gpus-per-node", "1", "--debug")
    assert "hpcrun: fabric: ethernet (no other network is up)" in run.log()
    for rank in (0, 1):
        received = shown(run, rank)
        assert (received["HPCRUN_FABRIC"], received["NCCL_NET"]) == ("ethernet", "Socket")
        assert received["NCCL_SOCKET_IFNAME"].startswith("=") and received["NCCL_DEBUG"] == "INFO"
        assert received["NCCL_DEBUG_FILE"] == f"{run.folder}/logs/nccl-%h-%p.log"
        assert received["TORCH_CPP_LOG_LEVEL"] == "INFO"
    assert "debug" not in (run.folder / "spec.yaml").read_text().lower()
    # An automatic choice is not recorded for the next run.
    assert "fabric" not in (run.folder / "spec.yaml").read_text()


def test_missing_network_names_the_node(rig: Rig, site_with: MakeSite) -> None:
    """A job for InfiniBand on nodes without it ends immediately with the node's name."""
    site = site_with(accelerator="cuda", fabric="infiniband")
    (site.project / "tell.yaml").write_text("script: tell.py\nsnapshot: false\n")
    (site.project / "tell.py").write_text(TELL)
    run = site.submit("tell.yaml", "--nodes", "2", "--gpus-per-node", "1")
    assert site.follow(run).returncode != 0
    message = [f"{name}: no InfiniBand or RoCE port is up" for name in rig.node_names]
    assert any(line in run.log() for line in message), run.log()
    assert not (run.folder / "told-0.json").exists()


FACTORS = {
    "preset": sorted(file.stem for file in shipped_folder("jobs").glob("*.yaml")),
    "launcher": ["torchrun", "deepspeed", "accelerate", "srun"],
    "fabric": list(get_args(Fabric)),
    "nodes": ["1", "2"],
    "gpus": ["1", "4"],
    "accelerator": ["cuda", "cpu"],
    "whole": ["true", "false"],
    "site": ["plain", "renames", "drops"],
    "environment": ["inherit", "clean"],
    "setup": [
        "{}",
        "{modules: [cuda/12.4]}",
        *(
            f"{{container: {{image: 'docker://pytorch/pytorch', runtime: {runtime}}}}}"
            for runtime in ("apptainer", "pyxis")
        ),
    ],
}
PROFILES: dict[str, dict[str, object]] = {
    "plain": {},
    "renames": {"rename": {"gres": "gpus-per-node", "cpus-per-task": "cpus-per-gpu"}},
    "drops": {"slurm": {"ntasks-per-node": False, "mem": False}},
}


def test_pairwise_selection_is_accepted_by_sbatch(rig: Rig, site_with: MakeSite) -> None:
    """Every pair of values of all options occurs in a submission that Slurm accepts."""
    refused = []
    for row in pairwise(FACTORS):
        site = site_with(accelerator=row["accelerator"], **PROFILES[row["site"]])
        context = load_context(site.environ(), site.project)
        overrides = [
            *(f"launcher={row['launcher']}", f"nccl.fabric={row['fabric']}"),
            *(f"resources.nodes={row['nodes']}", f"resources.gpus_per_node={row['gpus']}"),
            *(f"resources.exclusive={row['whole']}", f"environment={row['environment']}"),
            f"setup={row['setup']}",
        ]
        spec = load_spec(context, row["preset"], overrides)
        made = prepare_job(context, spec)
        script = site.project / "job.sbatch"
        script.write_text(next(file.text for file in made.files if file.name == "job.sbatch"))
        message = rig.run("sbatch", "--test-only", str(script)).stderr
        if parse_estimate(message) is None:
            refused.append((row, message, made.plan.directives))
    assert refused == []
    assert rig.run("squeue", "-h").stdout == ""
