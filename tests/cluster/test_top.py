"""hpcrun top on a real Slurm: its output, and the end of its job step."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.runs import RunFolder, read_node_usage
from tests.cluster.rig import Rig
from tests.cluster.site import Site, Submitted
from tests.json_schemas import check_json
from tests.waiting import until

TRAIN = 'for i in $(seq 2000); do echo "step $i/2000 loss: 2.$((3000 - i))"; sleep 0.1; done'


def slurm(rig: Rig, *argv: str) -> str:
    return rig.run(*argv).stdout


def steps(rig: Rig) -> list[str]:
    """Return the usage steps by job number."""
    listed = slurm(rig, "squeue", "--noheader", "--steps", "--format=%i|%j").split()
    return [line.split(".")[0] for line in listed if line.endswith("|hpcrun-top")]


@pytest.fixture
def training(site: Site) -> Iterator[Submitted]:
    """A job on both nodes that uses all their GPUs in a step, like a training."""
    run = site.submit(
        *("--nodes", "2", "--gpus-per-node", "4", "--time", "20"), "--", "bash", "-c", TRAIN
    )
    site.wait_for(run, "attempts/0/launched")
    yield run
    site.hpcrun("cancel", run.run_id)


@contextlib.contextmanager
def top_on_terminal(site: Site, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start top on a terminal; return it with the controlling descriptor."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcrun", "top", *words],
        cwd=site.project,
        env=site.environ() | {"TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.set_blocking(ours, False)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_top_shows_curve_nodes_and_pending_reason(site: Site) -> None:
    """This includes an array task not submitted by hpcrun."""
    strange = site.rig.shared / "strange.out"
    wrap = f"{TRAIN}; true"
    options = ["--parsable", "--overcommit", "--time=20", "--nodes=1"]
    waits = slurm(site.rig, "sbatch", *options, "--hold", "--output=/dev/null", f"--wrap={wrap}")
    task = [*options, "--array=3", f"--output={strange}", f"--wrap={wrap}"]
    array = slurm(site.rig, "sbatch", *task).strip()
    until(lambda: strange.exists() and strange.stat().st_size > 200, "the task's output")
    found = json.loads(site.hpcrun("top", "--json").stdout)
    check_json("top", found)
    by_id = {job["job_id"]: job for job in found["jobs"]}
    found_task, held = by_id[f"{array}_3"], by_id[waits.strip()]
    assert found_task["run_id"] is None
    assert found_task["step"] >= 5, found_task
    assert found_task["total_steps"] == 2000
    assert found_task["metric"] == "loss"
    assert [node["node"] for node in found_task["nodes"]] == [found_task["node_list"]]
    assert found_task["nodes"][0]["cpus_busy"] is not None
    assert (held["state"], held["reason"]) == ("PENDING", "JobHeldUser")
    assert held["why"]
    slurm(site.rig, "scancel", array, waits.strip())


def test_usage_step_ends_with_top_without_affecting_the_job(
    site: Site, training: Submitted
) -> None:
    snapshot = site.hpcrun("top", "--json", training.job_id)
    assert snapshot.returncode == 0, snapshot.stderr
    (job,) = json.loads(snapshot.stdout)["jobs"]
    check_json("top", json.loads(snapshot.stdout))
    assert job["run_id"] == training.run_id
    assert len(job["nodes"]) == 2, job["no_use"]
    assert all(node["cpus_busy"] is not None for node in job["nodes"])
    assert not steps(site.rig)
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9), (None, 0)):
        with top_on_terminal(site, training.job_id) as (process, ours):
            before = termios.tcgetattr(ours)
            until(lambda: steps(site.rig), "the usage step")
            if number is None:
                os.write(ours, b"q")
            else:
                process.send_signal(number)
            ended = process.wait()
            shown = _all(ours)
            assert ended == code, shown
            until(lambda: not steps(site.rig), "the end of the usage step")
            if number is not signal.SIGKILL:
                assert "\x1b[?1049l" in shown
                assert termios.tcgetattr(ours) == before
    assert site.status(training)["state"] == "RUNNING"
    recorded = read_node_usage(RunFolder(Path(training.folder)))
    assert [node.rank for node in recorded] == [0, 1]
    assert all(node.memory_peak and node.cpus for node in recorded)
    slurm(site.rig, "scancel", training.job_id)
    until(lambda: site.status(training)["final"], "the end")
    # DerivedExitCode is the worst exit code of all steps; usage steps did not affect it.
    reported = slurm(
        *(site.rig, "sacct", "-nPj", training.job_id, "--format=JobName,State,ExitCode")
    ).splitlines()
    own = [line for line in reported if line.startswith("hpcrun-top|")]
    assert len(own) == 4, reported
    assert {line.rpartition("|")[2] for line in own} == {"0:0"}, reported


def _all(descriptor: int) -> str:
    shown = b""
    with contextlib.suppress(OSError):
        while piece := os.read(descriptor, 1 << 16):
            shown += piece
    return shown.decode("utf-8", "replace")
