"""What the checks before a submission refuse a real Slurm refuses too, and no more."""

from __future__ import annotations

import json

import pytest

from tests.cluster.site import Site


@pytest.fixture
def limited(site: Site) -> Site:
    """A project whose profile knows what the rig's Slurm says of its partition."""
    said = site.rig.run("sinfo", "-h", "-o", "%P|%D|%c|%m|%G").stdout.splitlines()[0]
    name, nodes, cpus, memory, gres = said.split("|")
    facts = {
        "nodes": int(nodes),
        "cpus_per_node": int(cpus.rstrip("+")),
        "memory_per_node": memory.rstrip("+"),
        "gpus_per_node": int(gres.partition("(")[0].rpartition(":")[2]),
    }
    name = name.rstrip("*")
    profile = {**site.profile, "partition": name, "partitions": {name: facts}}
    return type(site)(site.rig, site.project, profile).prepare()


def test_what_the_checks_refuse_slurm_refuses_too(limited: Site) -> None:
    facts = next(iter(limited.profile["partitions"].values()))
    (limited.project / "job.yaml").write_text("command: [hostname]\n")
    asked = {
        "nodes": facts["nodes"],
        "gpus_per_node": facts["gpus_per_node"],
        "memory_per_node": int(facts["memory_per_node"]),
    }
    most = [f"--set=resources.{key}={value}" for key, value in asked.items()]
    most.append(f"--set=resources.cpus_per_gpu={facts['cpus_per_node'] // facts['gpus_per_node']}")
    fits = limited.hpcrun("submit", "job.yaml", *most, "--test-only", "--json")
    assert fits.returncode == 0, fits.stderr
    assert json.loads(fits.stdout)["processors"] > 0
    runs = limited.rig.shared / "runs"
    before = sorted(runs.glob("*"))
    for key, value in asked.items():
        more = ["submit", "job.yaml", f"--set=resources.{key}={value + 1}"]
        ours = limited.hpcrun(*more)
        assert (ours.returncode, ours.stdout) == (2, "")
        assert f"job.yaml: resources.{key}: {value + 1}: partition " in ours.stderr
        slurms = limited.hpcrun(*more, "--no-check")
        assert slurms.returncode == 3 and "Slurm refused the job: " in slurms.stderr
    assert sorted(runs.glob("*")) == before
