"""State, record and exit code are correct for every kind of failure.

The tests use two nodes with two ranks each. The ranks are plain Python, so each case takes seconds.
"""

from __future__ import annotations

import signal

import pytest

from tests.cluster.site import Site, Submitted
from tests.waiting import until

# Rank 2, the first of the second node, fails as requested; the others would sleep for minutes.
SCRIPT = """
import os, signal, sys, time
how, ready = sys.argv[1:]
rank = int(os.environ["RANK"])
open(f"{ready}/rank-{rank}", "w").write(str(os.getpid()))
while len(os.listdir(ready)) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.05)
if rank == 2:
    if how == "exception":
        raise ValueError("a bad batch")
    if how == "exit7":
        sys.exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
if how == "finish":
    sys.exit(0)
time.sleep(300)
"""
FOUR_RANKS = ["--nodes", "2", "--gpus-per-node", "2", "--time", "10"]


def submit(site: Site, how: str, launcher: str = "srun", *options: str) -> Submitted:
    """Submit the script above on four ranks."""
    (site.project / "rank.py").write_text(SCRIPT)
    ready = site.project / "ready"
    ready.mkdir(exist_ok=True)
    job = site.project / "jobs"
    job.mkdir(exist_ok=True)
    (job / "fault.yaml").write_text(f"script: rank.py\nlauncher: {launcher}\n")
    return site.submit("fault", *FOUR_RANKS, *options, "--", how, str(ready))


def wait_until_ready(site: Site) -> None:
    """Wait until all four ranks run."""
    until(lambda: len(list((site.project / "ready").iterdir())) == 4, "the ranks")


WAYS = [("exception", 1, None), ("exit7", 7, None), ("kill", 137, 9)]


# A rank that exits with 7 under torchrun: tests/cluster/test_hosts_without_slurm.py, too.
@pytest.mark.parametrize(
    ("launcher", "how", "exit_code", "killed_by"),
    [
        *(("srun", *way) for way in WAYS),
        *(pytest.param("torchrun", *way, marks=pytest.mark.thorough) for way in WAYS[:2]),
        ("torchrun", *WAYS[2]),
    ],
)
def test_failing_rank_is_recorded_with_its_host(
    site: Site, launcher: str, how: str, exit_code: int, killed_by: int | None
) -> None:
    run = submit(site, how, launcher)
    done = site.follow(run)
    assert done.returncode == 1, done.stdout + done.stderr
    end = run.record("end.json")
    assert end["exit_code"] == exit_code
    assert end["signal"] == killed_by
    assert end["stopped_by"] is None
    failure = end["first_failure"]
    assert (failure["rank"], failure["local_rank"], failure["node"]) == (2, 0, 1)
    assert failure["host"] == site.rig.node_names[1]
    assert failure["exit_code"] == exit_code
    status = site.status(run)
    assert (status["state"], status["exit_code"]) == ("FAILED", exit_code)
    assert f"rank 2 on {site.rig.node_names[1]} failed first" in done.stderr


def test_successful_ranks_complete_the_job(site: Site) -> None:
    run = submit(site, "finish")
    done = site.follow(run)
    assert done.returncode == 0, done.stdout + done.stderr
    end = run.record("end.json")
    assert (end["exit_code"], end["first_failure"]) == (0, None)
    assert run.record("begin.json")["job_id"] == run.job_id
    hostfile = (run.folder / "attempts/0/hostfile").read_text()
    assert hostfile == "".join(f"{name} slots=2\n" for name in site.rig.node_names)
    assert site.status(run)["state"] == "COMPLETED"


def test_killed_batch_script_is_recorded(site: Site) -> None:
    run = submit(site, "sleep")
    wait_until_ready(site)
    begin = run.record("begin.json")
    site.rig.on_node(begin["host"], ["kill", "-9", str(begin["pid"])])
    done = site.follow(run)
    assert done.returncode == 1, done.stdout + done.stderr
    status = site.status(run)
    assert status["state"] in ("FAILED", "LOST")
    assert status["final"]


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_cancelled_job_is_recorded(site: Site, launcher: str) -> None:
    run = submit(site, "sleep", launcher)
    wait_until_ready(site)
    assert site.hpcrun("cancel", run.job_id).returncode == 0
    done = site.follow(run)
    assert done.returncode == 1
    assert site.status(run)["state"] == "CANCELLED"
    end = run.record("end.json")
    assert (end["exit_code"], end["stopped_by"], end["first_failure"]) == (143, "TERM", None)
    again = site.hpcrun("cancel", run.run_id)
    assert again.returncode == 0
    assert "has already ended" in again.stdout


def test_dead_host_is_node_fail(site: Site) -> None:
    run = submit(site, "sleep")
    wait_until_ready(site)
    batch_host = run.record("begin.json")["host"]
    site.rig.kill_node(batch_host)
    try:
        done = site.follow(run)
        assert done.returncode == 1, done.stdout + done.stderr
        status = site.status(run)
        assert status["state"] in ("NODE_FAIL", "LOST")
        assert status["final"]
    finally:
        site.rig.revive_node(batch_host)


def test_duplicate_job_ends_immediately(site: Site) -> None:
    run = submit(site, "sleep")
    wait_until_ready(site)
    second = site.rig.run(
        "sbatch", "--parsable", f"--chdir={run.folder}", str(run.folder / "job.sbatch")
    )
    assert second.returncode == 0, second.stderr
    until(lambda: "is taken" in (run.folder / "logs/batch.log").read_text(), run.log)
    assert not (run.folder / "attempts/0/end.json").exists()
    assert site.hpcrun("cancel", run.job_id).returncode == 0
    site.follow(run)


def test_failing_or_exiting_setup_fails_the_job(site: Site) -> None:
    for command, expected in (("false", 1), ("exit 5", 5), ("exit 0", 1)):
        (site.project / "early.yaml").write_text(
            f"command: [touch, ran]\nsetup: {{commands: ['{command}']}}\n"
        )
        run = site.submit("./early.yaml", "--gpus-per-node", "0")
        assert site.follow(run).returncode == 1
        assert run.record("end.json")["exit_code"] == expected, command
        assert not (site.project / "ran").exists()
        assert site.status(run)["state"] == "FAILED"


def test_launcher_that_starts_separate_worlds_is_stopped(site: Site) -> None:
    """A launcher that starts every process as a separate world is stopped."""
    (site.project / "alone.py").write_text("print('training')")
    job = site.project / "templates"
    job.mkdir()
    (job / "node.sh.j2").write_text(
        '{% extends "hpcrun/node.sh.j2" %}{% block node %}\n'
        "export RANK=0 LOCAL_RANK=0 WORLD_SIZE=1\n"
        'exec bash "$HPCRUN_RUN_DIR/harness.sh" rank python alone.py\n{% endblock %}'
    )
    (site.project / "alone.yaml").write_text("script: alone.py\n")
    run = site.submit("./alone.yaml", *FOUR_RANKS)
    assert site.follow(run).returncode == 1
    assert "sees a world of 1 ranks, and the job has 4" in run.log()
    assert "\ntraining" not in run.log()


def test_externally_killed_rank_is_recorded(site: Site) -> None:
    run = submit(site, "sleep")
    wait_until_ready(site)
    name = site.rig.node_names[1]
    pid = int((site.project / "ready" / "rank-2").read_text())
    assert site.rig.on_node(name, ["kill", f"-{signal.SIGKILL.value}", str(pid)]).returncode == 0
    assert site.follow(run).returncode == 1
    end = run.record("end.json")
    assert (end["exit_code"], end["signal"], end["first_failure"]["rank"]) == (137, 9, 2)
    assert end["first_failure"]["host"] == name
