"""Runs that survive rare events: simultaneous faults, thirty repeated faults, many jobs at once."""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.rig import Rig
from tests.cluster.site import Site, Submitted
from tests.cluster.slow_training import SLOW
from tests.cluster.survive_job import (
    JOB,
    TRAIN,
    insist_on_the_whole_curve,
    preempting,
    step_in,
    steps_of,
    submit,
)
from tests.cluster.survive_runs import FAULTS, NEEDS, SECRET, WHOLE, nodes_of, queue, submit_whole
from tests.waiting import until

FORBIDDEN = ("--set", "name=forbidden")  # the site starts it never again


def on(*nodes: str) -> tuple[str, ...]:
    """Return the options of a run that uses these nodes exclusively."""
    return ("--set", "slurm.exclusive=true", "--set", f"slurm.nodelist='{','.join(nodes)}'")


def preempt(site: Site, *nodes: str, seconds: int = 1) -> str:
    """Occupy some nodes temporarily; return the job."""
    argv = ["sbatch", "--parsable", "-phigh", f"-w{','.join(nodes)}", f"-N{len(nodes)}"]
    argv += ["--exclusive", "-t30", "-o/dev/null", "--wrap", f"sleep {seconds}"]
    done = site.rig.run(*argv)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def insist_on_steps(run: Submitted, last: int) -> None:
    """Assert that all steps were done and that each attempt started from its checkpoint."""
    begun = 0
    for attempt in sorted(int(path.name) for path in (run.folder / "attempts").iterdir()):
        steps = steps_of(run, attempt)
        resume = run.folder / f"attempts/{attempt}/resume"
        given = resume.read_text().strip() if resume.exists() else ""  # it was not launched
        assert not steps or steps[0] == (step_in(given) if given else 0) + 1
        assert not steps or steps[0] <= begun + 1, "no step is left out"
        begun = max([begun, *steps])
    assert begun == last


@pytest.mark.thorough
def test_ranks_have_the_whole_grace_time(wide_site: Site) -> None:
    """They need 50 s of 90 to save, longer than KillWait and the timeouts of the launchers."""
    site, nodes = wide_site, wide_site.rig.node_names[:8]

    def shown_of(run: Submitted) -> str:
        return site.hpcrun("status", run.run_id).stdout

    with preempting(site, "GraceTime=90 PreemptMode=REQUEUE"):
        runs = []
        for number, launcher in enumerate(("srun", "torchrun", "accelerate", "deepspeed")):
            options = (
                *on(*nodes[2 * number : 2 * number + 2]),
                "--set",
                "env.SAVES='50'",
                "--set",
                f"launcher={launcher}",
                *NEEDS,
            )
            runs.append(
                submit(
                    site,
                    "when: [preempted]",
                    *options,
                    nodes=2,
                    steps=200,  # the first is not done before the last has begun
                    train=SLOW,
                    env=SECRET,
                )
            )
        for run in runs:
            until(functools.partial(steps_of, run, 0), "some steps")
        preempt(site, *nodes)
        for run in runs:
            until(lambda: "RUNNING (about to end: preemption)" in shown_of(run), "the grace")  # noqa: B023
        for run in runs:
            site.wait_for(run, "attempts/0/end.json")
            end = run.record("end.json")
            assert end["why"] == "preempted", run.log()
            assert step_in(end["checkpoint"]) == steps_of(run, 0)[-1], "the save was not cut short"
            shown = insist_on_the_whole_curve(site, run, 200)
            assert len(shown["attempts"]) == 2
            assert steps_of(run, 1)[0] == steps_of(run, 0)[-1] + 1
            assert not (run.folder / "secrets.env").exists()


@pytest.mark.thorough
def test_suspended_run_has_one_attempt(fresh_root: Path) -> None:
    """With PreemptMode=SUSPEND, its ranks are stopped for longer than the stall limit."""
    settings = {"PreemptMode": "SUSPEND,GANG", "SchedulerTimeSlice": "5"}
    rig = Rig(fresh_root, accounting=False, settings=settings)
    rig.start()
    try:
        site = Site(rig, rig.shared / "project").prepare()
        run = submit(site, "when: [preempted, stalled], stalled_after: 10s", nodes=2)
        until(lambda: len(steps_of(run, 0)) >= 4, "some steps")
        # (A job that asks for --exclusive would wait for the other's end.)
        argv = ["sbatch", "-phigh", "-N2", "-n16", "--mem=100", "-t2", "-o/dev/null"]
        assert rig.run(*argv, "--wrap", "sleep 25").returncode == 0
        until(lambda: site.status(run)["state"] == "SUSPENDED", "the run to stand still")
        assert "SUSPENDED" in site.hpcrun("status", run.run_id).stdout
        time.sleep(1)
        before = steps_of(run, 0)
        time.sleep(5)
        assert steps_of(run, 0) == before
        shown = insist_on_the_whole_curve(site, run, 30)
        assert len(shown["attempts"]) == 1
        assert not (run.folder / "attempts/0/stall.json").exists(), run.log()
        assert steps_of(run, 0) == list(range(1, 31))
    finally:
        rig.stop()


@pytest.mark.thorough
def test_run_restarts_after_a_node_has_rebooted(wide_site: Site) -> None:
    """One run briefly loses the node of its batch script, which Slurm detects after two minutes."""
    site, rig = wide_site, wide_site.rig
    slow = ("--set", "env.STEP='3'")
    runs = [submit_whole(site, "when: [node_fail]", *slow, steps=24) for _ in range(2)]
    for run in runs:
        until(lambda: len(steps_of(run, 0)) >= 5, "a checkpoint")  # noqa: B023
    lost = [nodes_of(run, 0)[number] for number, run in enumerate(runs)]
    rig.reboot_nodes(*lost)
    for number, run in enumerate(runs):
        shown = insist_on_the_whole_curve(site, run, 24)
        # Slurm may give the first one its old node again: that attempt ends before its launch.
        last = len(shown["attempts"]) - 1
        assert last == 1 or (last, number) == (2, 0)
        assert lost[number] not in nodes_of(run, last)
        assert shown["attempts"][0]["end"] is None or run.record("end.json")["why"] == "node_fail"
        insist_on_steps(run, 24)


@pytest.mark.thorough
def test_run_whose_nodes_always_die_ends(wide_site: Site) -> None:
    """Before its first checkpoint, and with its script: Slurm starts the job again by itself."""
    site, rig = wide_site, wide_site.rig
    still = ("--set", "env.STEP='999'", "--set", "env.AGAIN='999'")
    run = submit_whole(site, "when: [preempted, node_fail]", *still, nodes=1)
    try:
        for attempt in range(3):
            site.wait_for(run, f"attempts/{attempt}/hostfile")
            site.wait_for(run, f"logs/{attempt}/rank-0.log")
            rig.kill_node(nodes_of(run, attempt)[0])
        assert site.hpcrun("wait", run.run_id).returncode == 1
        shown = site.status(run)
        assert (shown["state"], len(shown["attempts"])) == ("NODE_FAIL", 3)
        text = " ".join(site.hpcrun("status", run.run_id).stdout.split())
        assert "three attempts in a row got no further" in text
    finally:
        rig.clear()


@pytest.mark.thorough
def test_two_simultaneous_faults_are_survived(wide_site: Site) -> None:
    """Nodes die together, in a preemption's grace, and while Slurm's daemons are down."""
    site, rig = wide_site, wide_site.rig
    when = "when: [preempted, node_fail, stalled]"
    with preempting(site, "GraceTime=30 PreemptMode=REQUEUE"):
        train = SLOW.replace("    if asked:", FAULTS + "    if asked:", 1)
        train = train.replace("step == 6", 'os.environ.get("HOW") and step == 16')
        runs = {}
        for name in ("both", "grace", "away", "stalls"):
            options = ["--set", "slurm.exclusive=true", "--set", "env.SAVES='8'"]
            options += ["--set", "env.HOW=stall"] * (name == "stalls")
            runs[name] = submit(site, when, *options, nodes=2, steps=120, train=train)
        for run in runs.values():
            until(functools.partial(steps_of, run, 0), "some steps")
        pairs = {name: nodes_of(run, 0) for name, run in runs.items()}
        for node in pairs["both"]:
            rig.kill_node(node)
        preempt(site, *pairs["grace"])
        until(lambda: list((runs["grace"].folder / "attempts/0").glob("told-*")), "the grace")
        rig.kill_node(pairs["grace"][0])
        rig.stop_controller()
        rig.stop_accounting()
        rig.kill_node(pairs["away"][1])
        try:
            until(lambda: len(steps_of(runs["stalls"], 0)) >= 15, "the standstill")
            time.sleep(5)
            rig.start_accounting()
            rig.start_controller()
            for name, run in runs.items():
                shown = insist_on_the_whole_curve(site, run, 120)
                # After its own restart 22.05 forgets the GPUs of a job that it starts again: the
                # attempt ends in its setup, and is tried once more.
                assert 2 <= len(shown["attempts"]) <= 3, name
                insist_on_steps(run, 120)
        finally:
            rig.clear()


# Its first attempt fails as the test asks for it: it stands still, or its newest checkpoint is cut.
FAULT = """
    if rank == 0 and os.path.exists(os.environ["HPCRUN_RUN_DIR"] + "/attempts/0/fault"):
        if os.environ["HPCRUN_ATTEMPT"] == "0" and "HOW" in os.environ:
            if os.environ["HOW"] == "hang":
                time.sleep(999)
            whole = (folder / "step-4.pt").read_bytes()
            (folder / f"step-{step}.pt").write_bytes(whole[:-30])
            open(os.environ["HPCRUN_RUN_DIR"] + "/attempts/0/stalled", "w")
            sys.exit(1)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("moment", ["as they fail", "as they end"])
def test_restart_of_slurms_daemons_during_each_fault_is_survived(
    wide_site: Site, moment: str
) -> None:
    """Before Slurm and hpcrun detect the faults, and just after the end of the first attempts."""
    site, rig = wide_site, wide_site.rig
    train = TRAIN.replace("    if asked:", FAULT + "    if asked:", 1)
    saves = "when: [time_limit], save_before_end: 30s"
    asked = {
        "limit": (saves, {"limit": "1"}, ()),
        "plain limit": ("when: [time_limit]", {"limit": "1"}, ()),
        "chain": (saves, {"limit": "1"}, FORBIDDEN),
        "hang": ("when: [stalled], stalled_after: 10s", {}, ("--set", "env.HOW=hang")),
        "damaged": ("when: [stalled]", {}, ("--set", "env.HOW=damaged")),
        "link": ("when: [node_fail]", {"nodes": 2}, WHOLE),
        "slurmd": ("when: [node_fail]", {"nodes": 2}, WHOLE),
        "drained": ("when: [node_fail]", {"nodes": 2}, WHOLE),
    }
    runs = {
        name: submit(site, when, *options, steps=130, train=train, **shape)  # type: ignore[arg-type]
        for name, (when, shape, options) in asked.items()
    }
    for run in runs.values():
        # Slurm may warn of a limit of a minute as soon as the job begins.
        asked_early = run.folder / "attempts/0/stop"
        until(lambda: len(steps_of(run, 0)) >= 5 or asked_early.exists(), run.log)  # noqa: B023
    lost = {name: nodes_of(runs[name], 0)[0] for name in ("link", "slurmd", "drained")}
    for name in ("limit", "chain"):
        site.wait_for(runs[name], "attempts/0/stop")
    try:
        if moment == "as they fail":
            stop_daemons(rig)
        for name in ("hang", "damaged"):
            (runs[name].folder / "attempts/0/fault").touch()
        rig.cut(lost["link"])
        rig.stop_slurmd(lost["slurmd"])
        if moment == "as they end":
            rig.run("scontrol", "update", f"node={lost['drained']}", "state=drain", "reason=test")
            site.wait_for(runs["damaged"], "attempts/0/end.json")
            stop_daemons(rig)
        time.sleep(10)
        start_daemons(rig)
        rig.run("scontrol", "update", f"node={lost['drained']}", "state=drain", "reason=test")
        for name, run in runs.items():
            shown = insist_on_the_whole_curve(site, run, 130)
            insist_on_steps(run, 130)
            ends = [attempt["end"] and attempt["end"]["why"] for attempt in shown["attempts"]]
            assert ends.pop() == "done", name
            # See test_two_simultaneous_faults_are_survived.
            fault = [end for end in ends if end != "setup"]
            expected = {"limit": "time_limit", "plain limit": "time_limit", "chain": "time_limit"}
            if name in expected:
                assert set(fault) == {expected[name]}, (name, ends)
            elif name in ("hang", "damaged"):
                assert fault == ["stalled"], (name, ends)
            elif name == "drained":
                assert not ends
            else:
                assert len(fault) == 1 and fault[0] in ("node_fail", None), (name, ends)
                assert lost[name] not in nodes_of(run, len(ends)), name
    finally:
        rig.run("scontrol", "update", f"node={lost['drained']}", "state=resume")
        rig.clear()


def stop_daemons(rig: Rig) -> None:
    rig.stop_controller()
    rig.stop_accounting()


def start_daemons(rig: Rig) -> None:
    rig.start_accounting()
    rig.start_controller()


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_thirty_equal_faults_are_survived(fresh_root: Path) -> None:
    rig = Rig(fresh_root, nodes=1, accounting=False, pause=5)
    rig.start()
    try:
        site = Site(rig, rig.shared / "project").prepare()
        n = 'int(os.environ["HPCRUN_ATTEMPT"])'
        fault = FAULTS.replace("step == 6", f"step == 4 * {n} + 5").replace(
            f"{n} == 0", "step < 122"
        )
        fault = fault.replace("attempts/0/", "attempts/{os.environ['HPCRUN_ATTEMPT']}/")
        train = TRAIN.replace("    if asked:", fault + "    if asked:", 1)
        env = ("--set", "env.STEP='0.02'", "--set", "env.AGAIN='0.02'")
        run = submit(
            site,
            "when: [stalled], max_attempts: 40",
            *env,
            *NEEDS,
            train=train,
            steps=124,
            env=SECRET,
        )
        done = site.hpcrun("wait", run.run_id)
        assert done.returncode == 0, done.stdout + done.stderr + run.log()
        shown = site.status(run)
        ends = [attempt["end"] for attempt in shown["attempts"]]
        assert [end["why"] for end in ends] == ["stalled"] * 30 + ["done"]
        for attempt in range(31):
            assert (
                steps_of(run, attempt)
                == list(range(4 * attempt + 1, 4 * attempt + 6))[: 5 if attempt < 30 else 4]
            )
        curve = json.loads(site.hpcrun("parse", "--json", run.run_id).stdout)["runs"][0]
        assert curve["points"] == 124 and len(curve["resumed"]) == 30
    finally:
        rig.stop()


def test_run_ended_by_its_user_does_not_restart(wide_site: Site) -> None:
    """By scancel, which hpcrun does not see: between attempts, in a grace, and in a chain."""
    site = wide_site
    how = ("requeued", "grace", "old", "new", "hpcrun")
    nodes = dict(zip(how, site.rig.node_names, strict=False))
    with preempting(site, "GraceTime=30 PreemptMode=REQUEUE"):
        runs = {}
        for name, node in nodes.items():
            options = [*on(node), "--set", f"env.SAVES='{5 if name in ('grace', 'old') else 0}'"]
            options += FORBIDDEN * (name in ("old", "new", "hpcrun"))
            runs[name] = submit(site, "when: [preempted]", *options, steps=2000, train=SLOW)
        for run in runs.values():
            until(functools.partial(steps_of, run, 0), "some steps")
        blocking = preempt(site, *nodes.values(), seconds=1200)  # until it is cancelled

        def scancel(name: str, job_id: str) -> None:
            assert site.rig.run("scancel", job_id).returncode == 0, name

        for name in ("grace", "old"):
            site.wait_for(runs[name], "attempts/0/told-0")
            scancel(name, runs[name].job_id)
        for name in ("requeued", "new", "hpcrun"):
            site.wait_for(runs[name], "attempts/0/end.json")
        for name in ("new", "hpcrun"):
            until(lambda: next_of(runs[name]) not in (None, "requeue"), "the next job")  # noqa: B023
        until(lambda: queue(site, runs["requeued"], "%T") == "PENDING", "the queue")
        scancel("requeued", runs["requeued"].job_id)
        scancel("new", next_of(runs["new"]))
        assert site.hpcrun("cancel", runs["hpcrun"].run_id).returncode == 0
        scancel("blocking", blocking)
        for name, run in runs.items():
            done = site.hpcrun("wait", run.run_id)
            shown = site.status(run)
            assert (done.returncode, shown["state"], len(shown["attempts"])) == (
                *(1, "CANCELLED", 1),
            ), f"{name}: {shown}"
            cause = shown["diagnosis"]["cause"]
            assert cause["title"].startswith("cancelled by "), f"{name}: {cause}"
        time.sleep(1)
        assert site.rig.run("squeue", "-h", "-pdebug", "-tPD,R").stdout == ""


def next_of(run: Submitted) -> Any:
    """Return the job that continues a run after its first attempt."""
    return run.record("end.json").get("next")


@pytest.mark.thorough
def test_sweep_tasks_survive_preemption_and_time_limit(wide_site: Site) -> None:
    """Two tasks each, with a requeue by Slurm and with a successor job."""
    site = wide_site
    (site.project / "train.py").write_text(TRAIN)
    survive = "when: [preempted, time_limit], save_before_end: 30s"
    text = JOB.replace("SURVIVE", survive) + "slurm: {exclusive: true}\n"
    for name, value in {"NODES": 1, "LIMIT": 30, "STEPS": 130}.items():
        text = text.replace(name, str(value), 1)
    (site.project / "job.yaml").write_text(text)
    runs: dict[str, Submitted] = {}
    for prefix, options in (("", ()), ("chained ", FORBIDDEN)):
        sweep = ("--set", "sweep={env.STEP: ['3', '3.01']}")
        done = site.hpcrun("submit", "--json", "./job.yaml", *sweep, *options)
        assert done.returncode == 0, done.stderr
        for name, one in zip(("preempted", "limit"), json.loads(done.stdout)["runs"], strict=True):
            runs[prefix + name] = Submitted(one["run_id"], one["job_id"], Path(one["run_dir"]))
    for run in runs.values():
        until(functools.partial(steps_of, run, 0), "some steps")
    with preempting(site, "GraceTime=30 PreemptMode=REQUEUE"):
        for name, run in runs.items():
            if "limit" in name:  # however long it took to get here
                minutes = int((time.time() - run.record("begin.json")["begun_at"]) / 60) + 2
                update = ["scontrol", "update", f"JobId={run.job_id}", f"TimeLimit={minutes}"]
                assert site.rig.run(*update).returncode == 0
        preempt(site, *(nodes_of(run, 0)[0] for name, run in runs.items() if "preem" in name))
        for name, run in runs.items():
            site.wait_for(run, "attempts/0/end.json")
            if "chained" in name:
                until(lambda: next_of(run) not in (None, "requeue"), "the next job")  # noqa: B023
            end = run.record("end.json")
            assert end["why"] == ("preempted" if "preem" in name else "time_limit"), name
            assert (end["next"] == "requeue") is ("chained" not in name), name
            assert step_in(end["checkpoint"]) == steps_of(run, 0)[-1], name
        for run in runs.values():
            insist_on_the_whole_curve(site, run, 130)
            insist_on_steps(run, 130)
