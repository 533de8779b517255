"""Bad nodes are detected before the ranks start, and excluded afterwards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.rig import Rig
from tests.cluster.site import Site, Submitted
from tests.json_schemas import check_json
from tests.waiting import until

JOB = "script: train.py\nlauncher: srun\nresources: {nodes: 2, gpus_per_node: 2, time: '5'}\n"

# Clocks are compared in parallel with the ranks, and only while they run.
SLOW = """import glob, os, time
warnings = os.environ["HPCRUN_RUN_DIR"] + "/attempts/0/warnings/*"
for _ in range(600):
    if any("clock" in open(name).read() for name in glob.glob(warnings)):
        break
    time.sleep(0.1)
print("trained")
"""


@pytest.fixture
def prepared(site: Site) -> Iterator[Site]:
    """A site with its own local disk and cache, and a program that reports its start."""
    site.profile["local_dir"] = "/tmp/disk"
    site.profile["cache_dir"] = str(site.project / "cache")
    site.prepare()
    (site.project / "train.py").write_text("print('trained')\n")
    site.project.joinpath("two.yaml").write_text(JOB)
    for name in site.rig.node_names:
        on_node(site, name, "mkdir -p /tmp/disk && mount -t tmpfs -o size=2g tmpfs /tmp/disk")
    yield site
    for name in site.rig.node_names:
        on_node(site, name, "umount /tmp/disk && rmdir /tmp/disk")


def on_node(site: Site, name: str, script: str) -> None:
    done = site.rig.on_node(name, ["sh", "-c", script])
    assert done.returncode == 0, done.stderr


def ended(site: Site, run: Submitted) -> str:
    """Wait for the end of a run; return the log of the batch script."""
    until(lambda: (run.folder / "attempts/0/end.json").exists(), "the end")
    return (run.folder / "logs/batch.log").read_text()


def checked(site: Site, *argv: str) -> Any:
    """Return the JSON of a command, validated by its schema."""
    done = site.hpcrun(*argv)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    check_json(argv[0], answer)
    return answer


def node_log(run: Submitted, node: int) -> str:
    return (run.folder / f"logs/0/node-{node}.log").read_text()


def test_full_disk_ends_the_attempt_and_names_the_node(prepared: Site) -> None:
    site, (first, bad) = prepared, prepared.rig.node_names
    on_node(site, bad, "mount -o remount,size=8m /tmp/disk")
    run = site.submit("two.yaml")
    ended(site, run)
    why = "local_dir: /tmp/disk has 8 MB free"
    assert f"hpcrun: error: {bad}: {why}" in node_log(run, 1)
    # No rank of that node has started; those of others may have, and wait for the world.
    assert {path.name for path in (run.folder / "logs/0").glob("rank-*")} <= {
        "rank-0.log",
        "rank-1.log",
    }
    failure = run.record("end.json")["first_failure"]
    assert (failure["rank"], failure["host"], failure["why"]) == (None, bad, why)
    failed = f"{bad} failed the node check: {why}"
    assert failed in site.hpcrun("status", run.run_id).stdout
    assert failed in site.follow(run).stderr
    folder = run.folder / "attempts/0/bad"
    assert {path.name: path.read_text() for path in folder.iterdir()} == {bad: f"{why}\n"}
    record = json.loads((site.project / "cache/bad-nodes" / bad).read_text())
    assert (record["node"], record["why"], record["run_id"]) == (bad, why, run.run_id)
    assert record["cluster"] == "rig"

    # Other runs exclude it if enough nodes remain.
    [listed] = checked(site, "nodes", "--json")["nodes"]
    assert (listed["node"], listed["why"], listed["run_id"]) == (bad, why, run.run_id)
    done = site.hpcrun("submit", "--json", "two.yaml", "--nodes", "1", "--set", "slurm.hold=true")
    answer = json.loads(done.stdout)
    note = f"{bad} is excluded: {why} ({run.run_id}, "
    assert [text for text in answer["notes"] if text.startswith(note)], answer["notes"]
    shown = site.rig.run("scontrol", "show", "job", answer["job_id"]).stdout
    assert f"ExcNodeList={bad}\n" in shown
    assert site.hpcrun("cancel", answer["job_id"]).returncode == 0
    both = json.loads(site.hpcrun("submit", "--json", "--dry-run", "two.yaml").stdout)
    assert [text for text in both["notes"] if text.startswith(f"{bad} may be bad: {why}")]
    assert "#SBATCH --exclude" not in json.dumps(both)
    assert checked(site, "nodes", "--clear", "--json") == {"nodes": [], "cleared": [bad]}
    again = json.loads(site.hpcrun("submit", "--json", "--dry-run", "two.yaml").stdout)
    assert bad not in json.dumps(again) and first not in json.dumps(again)


def test_warnings_do_not_end_the_attempt(prepared: Site) -> None:
    site, bad = prepared, prepared.rig.node_names[1]
    wrapper, date = site.project / "date", site.project / "real-date"
    shifted = f"#!/bin/sh\nexec {date} -d '5 seconds WAY' \"$@\"\n"
    wrapper.write_text(shifted.replace("WAY", "ago"))
    wrapper.chmod(0o755)
    (site.project / "train.py").write_text(SLOW)
    on_node(
        site,
        bad,
        f"mount -o remount,size=100m /dev/shm && mount -o remount,size=500m /tmp/disk && "
        f"cp /usr/bin/date {date} && mount --bind {wrapper} /usr/bin/date",
    )
    try:
        run = site.submit("two.yaml")
        batch = ended(site, run)
        wrapper.write_text(shifted.replace("WAY", ""))
        ahead = ended(site, site.submit("two.yaml"))
    finally:
        on_node(site, bad, "umount /usr/bin/date; mount -o remount,size=50% /dev/shm")
    assert "trained" in run.log() and run.record("end.json")["exit_code"] == 0
    for warning in (
        "/dev/shm has 100 MB free, which data loaders and NCCL share",
        r"its clock is at least [1-4]\.[0-9] s behind the first node's",
    ):
        line = f"hpcrun: warning: {bad}: {warning}\n"
        assert re.search(line, node_log(run, 1)) and re.search(line, batch)
    assert re.search(line.replace("behind", "ahead of"), ahead)
    full = f"{bad}: local_dir: /tmp/disk has 500 MB free"
    assert f"hpcrun: warning: {full}\n" in node_log(run, 1)
    [attempt] = checked(site, "status", "--json", run.run_id)["runs"][0]["attempts"]
    assert full in attempt["warnings"] and len(attempt["warnings"]) == 3
    shown = site.hpcrun("status", run.run_id).stdout
    assert [shown.count(text) for text in attempt["warnings"]] == [1, 1, 1]
    assert "warning" not in node_log(run, 0) and not (run.folder / "attempts/0/bad").exists()


def test_preflight_false_disables_the_checks(prepared: Site) -> None:
    site, bad = prepared, prepared.rig.node_names[1]
    on_node(site, bad, "mount -o remount,size=8m /tmp/disk")
    run = site.submit("two.yaml", "--set", "preflight=false")
    ended(site, run)
    assert "trained" in run.log() and "warning" not in run.log()
    assert not (run.folder / "attempts/0/bad").exists()


# ---- preflight: full


@pytest.fixture
def three(fresh_root: Path) -> Iterator[Site]:
    """Three nodes, because with two the slow one cannot be determined."""
    rig = Rig(fresh_root, nodes=3, accounting=False)
    rig.start()
    site = Site(rig, rig.shared / "project")
    site.profile["cache_dir"] = str(site.project / "cache")
    site.prepare()
    (site.project / "train.py").write_text("print('trained')\n")
    site.project.joinpath("full.yaml").write_text(f"preflight: full\n{JOB}")
    yield site
    rig.stop()


def test_node_with_a_slow_network_is_found(three: Site) -> None:
    site, bad = three, three.rig.node_names[2]
    run = site.submit("full.yaml", "--nodes", "3")
    ended(site, run)
    assert run.record("end.json")["exit_code"] == 0, run.log()
    for node in range(3):
        text = node_log(run, node)
        assert "multiplies at" in text and text.count("all-reduce with node") >= 2
        assert "warning" not in text
    assert run.log().count("trained") == 6

    slow = "tc qdisc add dev eth0 root tbf rate 200mbit burst 64kb latency 400ms"
    on_node(site, bad, slow)
    run = site.submit("full.yaml", "--nodes", "3")
    ended(site, run)
    why = (run.folder / "attempts/0/bad" / bad).read_text()
    assert re.fullmatch(r"its network reaches 0\.[0-9]+ of the speed of the others: .* GB/s\n", why)
    assert f"hpcrun: warning: {bad} is bad: {why}" in node_log(run, 0)
    # All nodes have been measured before any rank starts.
    assert not list((run.folder / "logs/0").glob("rank-*"))
    assert run.record("end.json")["first_failure"]["host"] == bad
    assert [one["node"] for one in checked(site, "nodes", "--json")["nodes"]] == [bad]
