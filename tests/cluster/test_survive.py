"""Automatic restarts on a real Slurm."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.site import Site, Submitted
from tests.waiting import until

# Counts to TOTAL at two steps per second, faster in later attempts, which are not interrupted. It
# saves every fourth step, and when asked to stop it saves and exits with 0.
SLOWLY = ("--set", "env.AGAIN='0.5'")  # a later attempt is ended, too
TRAIN = """
import json, os, pathlib, signal, sys, time, zipfile
asked = []
assert 0 < int(os.environ["HPCRUN_END_TIME"]) - time.time() < 3600
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
rank, total = int(os.environ["RANK"]), int(os.environ["TOTAL"])
folder, step = pathlib.Path(os.environ["HPCRUN_CHECKPOINT_DIR"]), 0
pace = "STEP" if os.environ["HPCRUN_ATTEMPT"] == "0" else "AGAIN"
if "--resume" in sys.argv:
    step = int(zipfile.ZipFile(sys.argv[sys.argv.index("--resume") + 1]).read("step"))
while step < total:
    time.sleep(float(os.environ.get(pace, "0.5")))
    step += 1
    if rank == 0:
        print(json.dumps({"step": step, "loss": 1 / step}), flush=True)
    if rank == 0 and (asked or step % 4 == 0):
        folder.mkdir(exist_ok=True)
        new = folder / f"step-{step}.part"
        with zipfile.ZipFile(new, "w") as file:  # the form of torch.save
            file.writestr("step", str(step))
        new.rename(folder / f"step-{step}.pt")
    if asked:
        print("asked", len(asked), os.path.exists(os.environ["HPCRUN_STOP_FILE"]), flush=True)
        break
"""
JOB = """
script: train.py
launcher: srun
framework: torch
resources: {nodes: NODES, gpus_per_node: 1, time: "LIMIT"}
survive: {SURVIVE}
checkpoint: {resume: "--resume {resume}"}
env: {TOTAL: "STEPS", STEP: "0.5", AGAIN: "0.05"}
"""


def submit(
    site: Site,
    survive: str,
    *options: str,
    nodes: int = 1,
    limit: str = "30",
    steps: int = 30,
    train: str = TRAIN,
    env: dict[str, str] | None = None,
) -> Submitted:
    """Submit the job above with a section ``survive``."""
    (site.project / "train.py").write_text(train)
    values = {"SURVIVE": survive, "NODES": nodes, "LIMIT": limit, "STEPS": steps}
    text = JOB
    for name, value in values.items():
        text = text.replace(name, str(value), 1)
    (site.project / "job.yaml").write_text(text)
    return site.submit("./job.yaml", *options, env=env)


def steps_of(run: Submitted, attempt: int) -> list[int]:
    """Return the steps in the log of an attempt."""
    log = run.folder / f"logs/{attempt}/rank-0.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [json.loads(line)["step"] for line in lines if line.startswith("{")]


def step_in(checkpoint: str) -> int:
    """Return the step in the name of a checkpoint."""
    return int(checkpoint.strip().rpartition("-")[2].removesuffix(".pt"))


def insist_on_the_whole_curve(site: Site, run: Submitted, steps: int) -> dict[str, Any]:
    """Wait for the end, and assert that the curve contains every step."""
    done = site.hpcrun("wait", run.run_id)
    assert done.returncode == 0, done.stdout + done.stderr + run.log()
    parsed = site.hpcrun("parse", "--json", "--full", run.run_id)
    assert parsed.returncode == 0, parsed.stderr
    loss = json.loads(parsed.stdout)["runs"][0]["metrics"]["loss"]
    assert loss["steps"] == list(range(1, steps + 1))
    assert loss["values"] == [1 / step for step in loss["steps"]]
    shown = site.status(run)
    assert (shown["state"], shown["exit_code"], shown["notes"]) == ("COMPLETED", 0, [])
    return shown


@contextlib.contextmanager
def preempting(site: Site, mode: str) -> Iterator[None]:
    """Change the preemption of the low-priority partition temporarily."""
    update = ["scontrol", "update", "PartitionName=debug"]
    assert site.rig.run(*update, *mode.split()).returncode == 0
    yield
    site.rig.run(*update, "GraceTime=0", "PreemptMode=REQUEUE")


def preempt(site: Site) -> None:
    """Occupy all nodes briefly."""
    argv = ["sbatch", "-phigh", "-N2", "--exclusive", "-t1", "-o/dev/null", "--wrap", "sleep 1"]
    assert site.rig.run(*argv).returncode == 0


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("GraceTime=0 PreemptMode=REQUEUE", marks=pytest.mark.thorough),
        "GraceTime=30 PreemptMode=REQUEUE",
        "GraceTime=0 PreemptMode=CANCEL",
        pytest.param("GraceTime=30 PreemptMode=CANCEL", marks=pytest.mark.thorough),
    ],
)
def test_preempted_run_restarts(site: Site, mode: str) -> None:
    with preempting(site, mode):
        run = submit(site, "when: [preempted]", nodes=2, steps=100)
        until(lambda: len(steps_of(run, 0)) >= 6, "some steps")
        preempt(site)
        site.wait_for(run, "attempts/0/end.json")
        end = run.record("end.json")
        assert (end["why"], end["next"]) == ("preempted", "requeue"), run.log()
        until(lambda: site.status(run)["state"] == "PENDING", "the queue")
        waits = " ".join(site.hpcrun("status", run.run_id).stdout.split())
        whole = end["checkpoint"].rpartition("/")[2].strip()
        assert f"restarts after preemption, from {whole}" in waits
        site.start_again(run.job_id)
        shown = insist_on_the_whole_curve(site, run, 100)
    last, saved = steps_of(run, 0)[-1], step_in(end["checkpoint"])
    # Without a grace time, srun also gets SIGTERM, and may kill the step before the ranks save.
    assert saved == last or (saved < last and "GraceTime=0" in mode), "saved as it was asked"
    assert steps_of(run, 1)[0] == saved + 1, "and no more was done twice than was not saved"
    assert len(shown["attempts"]) == 2
    text = " ".join(site.hpcrun("status", run.run_id).stdout.split())
    assert f"by preemption; resumes from step-{saved}.pt" in text
    assert f"steps 1 to {last} " in text and f"steps {saved + 1} to 100 " in text
    assert shown["cost"]["replayed_steps"] == last - saved
    assert shown["cost"]["goodput"] > 0
    (restart,) = json.loads(site.hpcrun("parse", "--json", run.run_id).stdout)["runs"][0]["resumed"]
    assert (restart["attempt"], restart["cause"]) == (1, "preemption")
    assert "attempt 0 was ended by preemption" in site.hpcrun("logs", run.run_id).stdout


def test_preempted_run_without_restart_is_not_completed(site: Site) -> None:
    """The program saves within the grace time and exits with 0, but is not finished."""
    with preempting(site, "GraceTime=30 PreemptMode=REQUEUE"):
        run = submit(site, "when: []", nodes=2, steps=100)
        until(lambda: len(steps_of(run, 0)) >= 3, "some steps")
        preempt(site)
        done = site.hpcrun("wait", run.run_id)
    assert done.returncode != 0
    assert site.status(run)["state"] == "PREEMPTED"


def test_run_restarts_after_its_time_limit(site: Site) -> None:
    """Some runs have a minute less than they need; two of them are signalled before the limit.

    One is still in its setup when Slurm's signal arrives. Another has no `survive`, so that the
    limit ends it.
    """
    saves = "when: [time_limit], save_before_end: 30s"
    asked = submit(site, saves, *SLOWLY, limit="1", steps=150)
    late = submit(site, saves, "--set", "setup.commands=[sleep 31]", limit="1", steps=150)
    plain = submit(site, "when: [time_limit]", *SLOWLY, limit="1", steps=150)
    over = submit(site, "when: []", limit="1", steps=400)  # Slurm checks twice a minute
    for run in (asked, plain):
        site.wait_for(run, "attempts/0/end.json")
        end = run.record("end.json")
        assert (end["why"], end["next"]) == ("time_limit", "requeue"), run.log()
        last, saved = steps_of(run, 0)[-1], step_in(end["checkpoint"])
        # The ranks of the other one have KillWait, and may save once more.
        assert saved == last if run is asked else saved <= last, (saved, last, run.log())
        assert run is plain or "asked 1 True\n" in run.log(), "once, and the file is there"
        site.start_again(run.job_id)
    site.wait_for(late, "attempts/0/end.json")
    assert late.record("end.json")["next"] == "requeue", late.log()
    assert steps_of(late, 0)[-1] == step_in(late.record("end.json")["checkpoint"]), late.log()
    assert "asked 1 True\n" in late.log(), late.log()
    assert site.hpcrun("cancel", late.run_id).returncode == 0  # it would run for minutes
    for run in (asked, plain):
        site.wait_for(run, "logs/1/rank-0.log")
        until(functools.partial(steps_of, run, 1), "the next attempt")
        # The run without signal may save when Slurm ends its first attempt.
        begun = step_in((run.folder / "attempts/1/resume").read_text())
        assert steps_of(run, 1)[0] == begun + 1 <= steps_of(run, 0)[-1] + 1
        assert site.hpcrun("cancel", run.run_id).returncode == 0
        assert site.hpcrun("wait", run.run_id).returncode == 1
        assert site.status(run)["state"] == "CANCELLED"
    assert site.follow(over).returncode == 1
    assert site.status(over)["state"] == "TIMEOUT"


def test_surviving_run_can_be_requeued_manually(site: Site) -> None:
    """This works while it runs and after it has ended."""
    run = submit(site, "when: [preempted]", "--set", "env.STEP='3'", steps=40)
    until(lambda: steps_of(run, 0), "a step")
    assert site.hpcrun("requeue", run.run_id).returncode == 0
    site.wait_for(run, "attempts/0/end.json")
    until(lambda: run.record("end.json").get("next"), "the end's record")
    assert (run.record("end.json")["why"], run.record("end.json")["next"]) == (
        "requeued",
        "requeue",
    )
    site.start_again(run.job_id)
    assert site.hpcrun("wait", run.run_id).returncode == 0
    # Immediately, because this Slurm forgets a job ten seconds after its end.
    assert site.hpcrun("requeue", run.run_id).returncode == 0
    site.start_again(run.job_id)
    site.wait_for(run, "attempts/2/end.json")
    insist_on_the_whole_curve(site, run, 40)
