"""hpcrun init on real Slurms with and without accounting, and on a changing cluster."""

from __future__ import annotations

import json
from typing import Any

import yaml

from hpcrun.slurm.cluster import SHOW_QOS, associations_argv, parse_associations, parse_qos
from tests.cluster.site import Site
from tests.json_schemas import check_json

SCRIPT = """\
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
print("batch", parser.parse_args().batch_size)
"""


def init(site: Site, *argv: str) -> Any:
    done = site.hpcrun("init", "--json", *argv, env=site.rig.env)
    assert done.returncode in (0, 1), done.stderr
    answer = json.loads(done.stdout)
    check_json("init", answer)
    return answer


def fresh(site: Site) -> None:
    (site.project / "hpcrun.yaml").unlink()
    (site.project / "train.py").write_text(SCRIPT)


def profile(site: Site) -> Any:
    return yaml.safe_load((site.project / "hpcrun.yaml").read_text())


def test_profile_matches_slurm_and_its_job_is_accepted(site: Site) -> None:
    fresh(site)
    answer = init(site, "train.py")
    assert answer["cluster"] == site.rig.network.link and answer["job"]["framework"] == "torch"
    made = profile(site)
    debug = made["partitions"]["debug"]
    assert (debug["nodes"], debug["gpus_per_node"], debug["cpus_per_node"]) == (2, 4, 8)
    assert debug["memory_per_node"] == "16000M" and debug["max_time"] == "7-00:00:00"
    assert made["partitions"]["high"]["max_time"] == "1-00:00:00"
    # Both accounts of root are known; the first one created is the default.
    assert made["account"] in ("root", "research") and answer["defaults"]["account"]
    tested = site.hpcrun("submit", "train", "--test-only", env=site.rig.env)
    assert tested.returncode == 0, tested.stderr


def test_changes_of_the_cluster_are_detected(site: Site) -> None:
    fresh(site)
    init(site)
    try:
        site.rig.run("scontrol", "update", "PartitionName=high", "MaxTime=60", "MaxNodes=1")
        changed = {one["key"]: one["after"] for one in init(site, "--check")["changed"]}
        assert changed == {
            "partitions.high.max_time": "01:00:00",
            "partitions.high.max_nodes": "1",
        }
        assert init(site)["action"] == "updated"
        assert profile(site)["partitions"]["high"]["max_nodes"] == 1
    finally:
        back = ("MaxTime=1-0", "MaxNodes=UNLIMITED")
        site.rig.run("scontrol", "update", "PartitionName=high", *back)
    keys = {one["key"]: one["what"] for one in init(site)["changed"]}
    assert keys == {"partitions.high.max_time": "changed", "partitions.high.max_nodes": "gone"}


def test_qos_and_account_limits_are_read(site: Site) -> None:
    """This reads the real output of sacctmgr for limits."""
    rig, cluster = site.rig, site.rig.network.link
    limits = ("MaxWall=1-00:00:00", "MaxTRESPerUser=gres/gpu=4", "Flags=DenyOnLimit")
    try:
        rig.run("sacctmgr", "-i", "add", "qos", "gold", *limits)
        rig.run("sacctmgr", "-i", "add", "account", "tiny", f"cluster={cluster}")
        rig.run("sacctmgr", "-i", "add", "user", "root", "account=tiny", f"cluster={cluster}")
        where = ("where", "user=root", "account=tiny")
        given = ("set", "qos+=gold", "MaxTRESPerJob=gres/gpu=2", "MaxWall=60")
        rig.run("sacctmgr", "-i", "modify", "user", *where, *given)
        found = {one.name: one for one in parse_qos(rig.run(*SHOW_QOS).stdout)}
        assert (found["gold"].max_time, found["gold"].max_gpus) == ("1-00:00:00", 4)
        assert "denyonlimit" in found["gold"].flags and found["normal"].max_gpus is None
        asked = associations_argv("root", cluster)
        mine = {one.account: one for one in parse_associations(rig.run(*asked).stdout, cluster)}
        assert (mine["tiny"].max_time, mine["tiny"].max_gpus) == ("01:00:00", 2)
        assert set(mine["tiny"].qos) == {"normal", "gold"} and mine["tiny"].default_account
        assert mine["research"].max_gpus is None
        assert parse_associations(rig.run(*asked).stdout, "another") == []
    finally:
        rig.run("sacctmgr", "-i", "delete", "user", "root", "account=tiny")
        rig.run("sacctmgr", "-i", "delete", "account", "tiny")
        rig.run("sacctmgr", "-i", "delete", "qos", "gold")


def test_init_works_without_accounting(bare_site: Site) -> None:
    fresh(bare_site)
    answer = init(bare_site, "train.py")
    assert "account" not in answer["defaults"] and "account" not in profile(bare_site)
    tested = bare_site.hpcrun("submit", "train", "--test-only", env=bare_site.rig.env)
    assert tested.returncode == 0, tested.stderr
