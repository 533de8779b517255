"""Stalled runs are detected with the responsible rank; healthy ones are not reported."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.site import Site, Submitted
from tests.waiting import until

LIMIT = 10
# Rank 2 is the first on the second node. All ranks print like a training.
SCRIPT = """
import os, sys, time
how = sys.argv[1]
rank = int(os.environ["RANK"])

def hold():
    time.sleep(600)

def say(*words):
    if rank == 0:
        print(*words, flush=True)

if how == "all_reduce":
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    tensor = torch.ones(2)
if how == "compile":
    time.sleep(25)
for step in range(1, 200):
    # The second attempt is long enough for its pace to be measured.
    time.sleep(0.6 if os.environ["HPCRUN_ATTEMPT"] == "1" else 0.3)
    if how == "all_reduce":
        if step == 10 and rank == 2:
            hold()
        dist.all_reduce(tensor)
    elif how == "sleep" or (how == "once" and os.environ["HPCRUN_ATTEMPT"] == "0"):
        if step == 10 and rank == 2:
            hold()
        if step == 10:
            time.sleep(600)
    elif how == "evaluate" and step in (20, 40):
        time.sleep(14)
    elif how != "suspend" and step == 60:
        break
    say(f"step {step}/60 loss {3 / step:.3f}")
say("done")
"""


def submit(
    site: Site, how: str, seconds: int = LIMIT, *, when: str = "", launcher: str = "torchrun"
) -> Submitted:
    """Submit four ranks on two nodes, with a short limit for stalls."""
    (site.project / "train.py").write_text(SCRIPT)
    (site.project / "watched.yaml").write_text(
        f"script: train.py\nlauncher: {launcher}\n"
        f"survive: {{when: [{when}], stalled_after: {seconds}s, max_attempts: 2}}\n"
    )
    shape = ["--nodes", "2", "--gpus-per-node", "2", "--time", "10"]
    return site.submit("./watched.yaml", *shape, "--", how)


def stall_of(site: Site, run: Submitted) -> Any:
    if not (run.folder / "attempts/0/stall.json").exists():
        return None
    found = site.status(run)["attempts"][0]["stall"]
    return found if found and found["stacks"] else None


def finish(site: Site, run: Submitted) -> None:
    assert site.hpcrun("cancel", run.job_id).returncode == 0
    site.follow(run)


@pytest.mark.parametrize("how", ["all_reduce", pytest.param("sleep", marks=pytest.mark.thorough)])
def test_hanging_rank_is_named_with_stacks(site: Site, how: str) -> None:
    run = submit(site, how)
    until(lambda: "step 9/" in run.log(), "the ninth step")
    stall = until(lambda: stall_of(site, run), "the stall")
    host = site.rig.node_names[1]
    assert LIMIT <= stall["silent_seconds"] < 6 * LIMIT, stall
    assert stall["step"] == 9
    assert (stall["suspect"]["rank"], stall["suspect"]["node"]) == (2, 1), stall
    assert stall["suspect"]["host"] == host
    assert sorted(stall["stacks"]) == [f"stacks/rank-{rank}.txt" for rank in range(4)]
    text = (run.folder / "attempts/0/stacks/rank-2.txt").read_text()
    assert "hold" in text and "train.py" in text
    if how == "all_reduce":
        assert stall["collective"] == {"name": "all_reduce", "seq": None}
        assert stall["ranks"] == [2]
        assert "3 of 4 in all_reduce" in stall["suspect"]["why"]
    shown = site.hpcrun("status", run.job_id).stdout
    assert "no step for" in shown and f"rank 2 on {host} is at hold (train.py:7)" in shown
    assert str(run.folder / "attempts/0/stacks") in shown
    status = site.status(run)
    assert status["state"] == "RUNNING"
    assert status["attempts"][0]["stall"]["suspect"]["rank"] == 2
    top = json.loads(site.hpcrun("top", "--json", "--no-usage", run.job_id).stdout)
    assert top["jobs"][0]["stall"]["suspect"]["rank"] == 2
    finish(site, run)


def test_stalled_run_restarts_if_requested(site: Site) -> None:
    run = submit(site, "once", when="stalled", launcher="srun")
    site.wait_for(run, "attempts/0/end.json")
    assert run.record("end.json")["why"] == "stalled", run.log()
    assert stall_of(site, run)["suspect"]["rank"] == 2
    # It was short and saved nothing, so another job continues after a pause.
    until(lambda: str(run.record("end.json")["next"]).isdecimal(), "the job that goes on")
    site.start_again(run.record("end.json")["next"])
    done = site.follow(run)
    assert done.returncode == 0, run.log()
    status = site.status(run)
    assert (status["state"], status["step"]) == ("COMPLETED", 59)
    assert [each["stall"] is None for each in status["attempts"]] == [False, True]
    assert "is at hold" not in site.hpcrun("status", run.job_id).stdout
    # The log has no times, so the time of a step is measured by when the job saw the steps.
    shown = site.hpcrun("parse", run.job_id).stdout
    pace = (run.folder / "attempts/1/pace.json").read_text()
    pattern = r"step time +([\d.]+) (m?s) mean, by when steps appeared in the log"
    seconds = re.search(pattern, shown)
    assert seconds, (shown, pace)
    assert 0.4 < float(seconds[1]) * (1e-3 if seconds[2] == "ms" else 1) < 6, (shown, pace)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["evaluate", "compile"])
def test_healthy_run_is_not_reported_as_stalled(site: Site, how: str) -> None:
    # An evaluation takes 14 s, more than ten usual intervals; compiling takes 25 s at first.
    run = submit(site, how, LIMIT if how == "compile" else 2 * LIMIT)
    done = site.follow(run)
    assert done.returncode == 0, run.log()
    assert not (run.folder / "attempts/0/stacks").exists(), run.log()


@pytest.mark.thorough
def test_suspended_job_is_not_reported_as_stalled(site: Site) -> None:
    run = submit(site, "suspend")
    until(lambda: "step 9/" in run.log(), "the ninth step")
    assert site.rig.run("scontrol", "suspend", run.job_id).returncode == 0
    time.sleep(3 * LIMIT)
    assert not (run.folder / "attempts/0/stacks").exists()
    assert site.rig.run("scontrol", "resume", run.job_id).returncode == 0
    until(lambda: "step 30/" in run.log(), "more steps")
    time.sleep(2)
    assert not (run.folder / "attempts/0/stacks").exists(), run.log()
    finish(site, run)


def wakeups(folder: Path) -> dict[int, int]:
    """Return how often each shell of a run's harness has slept and woken, by its process id."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            if command[0].endswith(b"bash") and f"{folder}/harness.sh".encode() in command:
                status = (process / "status").read_text()
                count = status.split("\nvoluntary_ctxt_switches:")[1].split()[0]
                found[int(process.name)] = int(count)
        except OSError:  # the process has ended
            continue
    return found


@pytest.mark.thorough
def test_nothing_polls_more_than_once_in_5_s(site: Site) -> None:
    run = submit(site, "suspend", 600, when="preempted, time_limit, node_fail, stalled")
    log = run.folder / "logs/0/rank-0.log"
    until(lambda: log.exists() and "step 3/" in log.read_text(), "step 3")
    time.sleep(5)
    before = wakeups(run.folder)
    time.sleep(40)
    woken = {
        pid: count - before[pid] for pid, count in wakeups(run.folder).items() if pid in before
    }
    # The batch script, its watcher, one on each node, and those of the ranks. A round of the
    # watcher waits for two or three commands and a sleep.
    assert len(woken) >= 8
    assert max(woken.values()) <= 40 / 5 * 3, woken
    finish(site, run)
