"""Runs that restart after failures of nodes, links, Slurm daemons and disks, even two at once."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.rig import Rig
from tests.cluster.site import Site, Submitted
from tests.cluster.survive_job import (
    JOB,
    SLOWLY,
    TRAIN,
    insist_on_the_whole_curve,
    preempt,
    preempting,
    step_in,
    steps_of,
    submit,
)
from tests.cluster.survive_runs import (
    FAULTS,
    NEEDS,
    SECRET,
    WHOLE,
    nodes_of,
    queue,
    submit_whole,
    successor_of,
)
from tests.needs import require
from tests.waiting import until

STALLED, NODE = "when: [preempted, stalled]", "when: [node_fail]"


def submit_faulty(
    site: Site, how: str, *options: str, steps: int = 12, env: dict[str, str] | None = None
) -> Submitted:
    """Submit a run with a fault in the sixth step of its first attempt."""
    train = TRAIN.replace("    if asked:", FAULTS + "    if asked:", 1)
    return submit(
        site, STALLED, "--set", f"env.HOW={how}", *options, steps=steps, train=train, env=env
    )


def excluded(site: Site, run: Submitted) -> set[str]:
    """Return the nodes excluded by a run's job."""
    shown = site.rig.run("scontrol", "--oneliner", "show", "job", run.job_id).stdout
    named = shown.partition("ExcNodeList=")[2].split()[0]
    return {*site.rig.run("scontrol", "show", "hostnames", named).stdout.split()}


def test_run_restarts_without_the_failed_node(wide_site: Site) -> None:
    """Each of four runs loses one of its two nodes in its own way; a fifth loses none.

    A sixth loses its only one, where Slurm may not start it again: another job has waited for that,
    and what waits for the run waits for that, too.
    """
    site, rig = wide_site, wide_site.rig
    how = {"power": 0, "other": 1, "link": 0, "slurmd": 0, "drained": 0}
    unwanted = rig.node_names[-1]
    # None is done before Slurm has noticed.
    slow = ("--set", "env.STEP='4'")
    options = {"other": (*slow, "--set", f"slurm.exclude={unwanted}"), "drained": ()}
    runs = {name: submit_whole(site, NODE, *options.get(name, slow)) for name in how}
    runs["forbidden"] = submit_whole(site, NODE, *slow, "--set", "name=forbidden", nodes=1)
    how["forbidden"] = 0
    later = [site.submit("--after", runs["forbidden"].run_id, "--", "true")]
    waits = until(functools.partial(successor_of, runs["forbidden"]), "the job that waits")
    later.append(site.submit("--after", runs["forbidden"].run_id, "--", "true"))
    either = f"afterok:{runs['forbidden'].job_id}(unfulfilled)?afterok:{waits}(unfulfilled)"
    for one in later:
        until(lambda: dependency_of(site, one) == either, "the dependency")  # noqa: B023
    for run in runs.values():
        until(functools.partial(steps_of, run, 0), "some steps")
    lost = {name: nodes_of(run, 0)[how[name]] for name, run in runs.items()}
    rig.kill_node(lost["power"])
    rig.kill_node(lost["other"])
    rig.kill_node(lost["forbidden"])
    rig.cut(lost["link"])
    rig.stop_slurmd(lost["slurmd"])
    rig.run("scontrol", "update", f"node={lost['drained']}", "state=drain", "reason=test")
    try:
        site.wait_for(runs["other"], "attempts/1/hostfile")  # before Slurm forgets the job
        assert excluded(site, runs["other"]) == {lost["other"], unwanted}, "the job's own, too"
        for name, run in runs.items():
            if name != "drained":
                site.wait_for(run, "attempts/1/hostfile")
                assert lost[name] not in nodes_of(run, 1)
        for name, run in runs.items():
            shown = insist_on_the_whole_curve(site, run, 70)
            assert len(shown["attempts"]) == (1 if name == "drained" else 2), name
            assert shown["job_id"] == (waits if name == "forbidden" else runs[name].job_id)
        for one in later:
            assert site.hpcrun("wait", one.run_id).returncode == 0
    finally:
        for name in ("power", "other", "forbidden"):
            rig.revive_node(lost[name])
        rig.join(lost["link"])
        rig.start_slurmd(lost["slurmd"])
        rig.run("scontrol", "update", f"node={lost['drained']}", "state=resume")
        rig.wait_idle()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("steps", "how"),
    [(60, "dies"), (12, "dies"), (60, "is back at once")],
    ids=["node dies", "first rank is done before Slurm knows", "node is back at once"],
)
def test_run_continues_on_its_spare_node(wide_site: Site, steps: int, how: str) -> None:
    """The node of the second rank dies; the run continues in the same job without waiting."""
    site, rig = wide_site, wide_site.rig
    run = submit_whole(site, f"{NODE}, spare_nodes: 1", steps=steps)
    until(functools.partial(steps_of, run, 0), "a step")
    batch, lost = nodes_of(run, 0)
    if how == "dies":
        rig.kill_node(lost)
    else:
        for state in ("state=down reason=x", "state=resume"):
            rig.run("scontrol", "update", f"nodename={lost}", *state.split())
    try:
        site.wait_for(run, "attempts/1/hostfile")
        kept, spare = nodes_of(run, 1)
        assert kept == batch and spare not in (batch, lost)
        end = run.record("end.json")
        assert (end["why"], end["next"]) == ("node_fail", "relaunch")
        shown = insist_on_the_whole_curve(site, run, steps)
        assert (shown["job_id"], len(shown["attempts"])) == (run.job_id, 2)
        starts = rig.run("sacct", "-nXPD", "-j", run.job_id, "-o", "State").stdout.split()
        assert starts == ["RESIZING", "COMPLETED"], "Slurm has started it once"
    finally:
        if how == "dies":
            rig.revive_node(lost)
        take_away_what_was_left(rig, lost)


@pytest.mark.thorough
def test_run_with_a_spare_node_survives_its_first_node(wide_site: Site) -> None:
    """Slurm keeps the job (--no-kill), and nobody is left to start its ranks: a guard sees it.

    The node of the first guard has died before: another one stands.
    """
    site, rig = wide_site, wide_site.rig
    run = submit_whole(site, f"{NODE}, spare_nodes: 1", steps=500)
    until(functools.partial(steps_of, run, 0), "a step")
    first, second = nodes_of(run, 0)
    guard = guard_of(rig, run)
    assert guard not in ("", first, second)
    rig.kill_node(guard)
    lost = [guard]
    try:
        until(lambda: guard_of(rig, run) == second, "another guard")
        assert not (run.folder / "attempts/0/end.json").exists()
        rig.kill_node(first)
        lost.append(first)
        shown = insist_on_the_whole_curve(site, run, 500)
        assert (shown["job_id"], len(shown["attempts"])) == (run.job_id, 2)
        assert first not in nodes_of(run, 1)
    finally:
        for node in lost:
            rig.revive_node(node)
        take_away_what_was_left(rig, second)


def take_away_what_was_left(rig: Rig, node: str) -> None:
    """Remove the leftovers of ranks killed by Slurm, as the next run on the node would."""
    rig.on_node(node, ["rm", "-rf", *rig.folders(node)])


def guard_of(rig: Rig, run: Submitted) -> str:
    """Return the node on which a guard of a run's first node runs, or ""."""
    steps = rig.run("squeue", "-h", "-s", "-j", run.job_id, "-o", "%j %N").stdout
    names = dict(line.split() for line in steps.splitlines() if len(line.split()) == 2)
    return names.get("hpcrun-guard", "")


# nvidia-smi where the driver loses a node's GPU: in the sixth step, as the rank's own error shows.
SMI = """#!/bin/bash
if [ -e "$LOST/$SLURMD_NODENAME" ]; then
    echo "Unable to determine the device handle for GPU0: 0000:3B:00.0: GPU is lost."
    exit 15
fi
echo "9.0, H100, 0, 00000000:3B:00.0, Disabled, 81559, 4, 0, No, No, [N/A], None"
"""
BREAKS = """
    if step == 6 and int(os.environ["HPCRUN_ATTEMPT"]) == 0 and rank == 1:
        if os.environ["HOW"] == "lost":
            open(f"{os.environ['LOST']}/{os.environ['SLURMD_NODENAME']}", "w")
            raise RuntimeError("CUDA error: unspecified launch failure")
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
"""


@pytest.mark.thorough
def test_node_with_a_broken_gpu_is_replaced(wide_site: Site) -> None:
    """By the driver, on a spare node of the same job; by CUDA's words, as the job starts again."""
    site = wide_site
    site.profile["accelerator"] = "cuda"
    site.prepare()
    (site.project / "nvidia-smi").write_text(SMI)
    (site.project / "nvidia-smi").chmod(0o755)
    tools = f"export PATH={site.project}:$PATH LOST={site.project}"
    train = TRAIN.replace("    if asked:", BREAKS + "    if asked:", 1)
    how = {
        "lost": (f"{NODE}, spare_nodes: 1", "relaunch", "nvidia-smi: Unable to determine"),
        "ecc": (NODE, "requeue", "uncorrectable ECC error"),
    }
    for name, (survive, going_on, why) in how.items():
        options = ("--set", f"env.HOW={name}", "--set", f"setup.commands=['{tools}']")
        run = submit_whole(site, survive, *options, steps=20, train=train)
        site.wait_for(run, "attempts/1/hostfile")
        kept, lost = nodes_of(run, 0)
        assert lost not in nodes_of(run, 1), run.log()
        end = run.record("end.json")
        assert (end["why"], end["next"], end["first_failure"]["rank"]) == ("node_fail", going_on, 1)
        assert (run.folder / f"attempts/0/bad/{lost}").read_text().startswith(why)
        shown = insist_on_the_whole_curve(site, run, 20)
        assert len(shown["attempts"]) == 2
        listed = json.loads(site.hpcrun("nodes", "--json").stdout)["nodes"]
        assert lost in [each["node"] for each in listed]
        assert kept not in [each["node"] for each in listed]


def test_permanent_failures_are_not_repeated(wide_site: Site) -> None:
    """A program error, its own verdict, lack of memory, a full disk: no second attempt."""
    site, node = wide_site, wide_site.rig.node_names[0]
    full = site.rig.shared / "full"
    full.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "small", str(full)]
    assert site.rig.on_node(node, mount).returncode == 0
    try:
        words = (f"checkpoint.dir={full}", f"slurm.nodelist={node}", "checkpoint.keep=1")
        on_it = tuple(part for word in words for part in ("--set", word))
        codes = {"error": 1, "nan": 1, "memory": 137, "disk": 1}
        runs = {how: submit_faulty(site, how, *(on_it * (how == "disk"))) for how in codes}
        for how, run in runs.items():
            assert site.hpcrun("wait", run.run_id).returncode == 1
            shown, end = site.status(run), run.record("end.json")
            assert (shown["state"], len(shown["attempts"])) == ("FAILED", 1), how
            assert (end["why"], end["next"], end["exit_code"]) == ("error", None, codes[how])
            assert step_in(end["checkpoint"]) == 4, "no whole one is lost"
        assert "No space left on device" in runs["disk"].log()
        kept = site.rig.on_node(node, ["ls", str(full)]).stdout.split()
        assert "step-4.pt" in kept, "nothing removed for the sake of what is not whole"
    finally:
        site.rig.on_node(node, ["umount", str(full)])


@pytest.fixture
def small_memory(fresh_root: Path) -> Iterator[Site]:
    """A node that enforces the memory limits of jobs with cgroups, as most clusters do."""
    tree = Path("/sys/fs/cgroup/memory")
    require((tree / "memory.limit_in_bytes").exists(), "the memory controller of cgroup v1")
    rig = Rig(
        fresh_root, nodes=1, accounting=False, pause=10, settings={"TaskPlugin": "task/cgroup"}
    )
    rig.start()
    try:
        yield Site(rig, rig.shared / "project").prepare()
    finally:
        rig.stop()
        for folder, _, _ in os.walk(tree / "slurm_node1", topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


def test_rank_killed_for_memory_is_out_of_memory(small_memory: Site) -> None:
    site, kill = small_memory, "os.kill(os.getpid(), signal.SIGKILL)"
    faults = FAULTS.replace(kill, 'b"x" * (1 << 30)')
    train = TRAIN.replace("    if asked:", faults + "    if asked:", 1)
    options = ("--set", "env.HOW=memory", "--set", "resources.memory_per_node=200M")
    run = submit(site, STALLED, *options, steps=12, train=train)
    assert site.hpcrun("wait", run.run_id).returncode == 1
    shown, end = site.status(run), run.record("end.json")
    assert (end["why"], end["next"], end["exit_code"]) == ("out_of_memory", None, 137), run.log()
    assert (shown["state"], len(shown["attempts"])) == ("OUT_OF_MEMORY", 1)
    assert "state     OUT_OF_MEMORY" in site.hpcrun("status", run.run_id).stdout
    found, first = shown["diagnosis"], end["first_failure"]
    cause = found["cause"]
    wanted = ("oom_host", first["rank"], first["host"])
    assert (cause["class"], cause["rank"], cause["host"]) == wanted, cause
    again = f"hpcrun resubmit {run.job_id} --set resources.memory_per_node=400M"
    assert found["fixes"][0] == again


def test_next_attempt_has_checkpoint_and_secrets(wide_site: Site) -> None:
    """A complete checkpoint older than a corrupt one; a secret; separate ones per sweep task."""
    site = wide_site
    run = submit_faulty(site, "damaged", *NEEDS, env=SECRET)
    site.wait_for(run, "attempts/0/end.json")
    end = run.record("end.json")
    assert (end["why"], end["next"]) == ("stalled", "requeue")
    assert step_in(end["checkpoint"]) == 4
    assert (run.folder / "secrets.env").exists()
    site.start_again(run.job_id)
    insist_on_the_whole_curve(site, run, 12)
    assert steps_of(run, 1)[0] == 5
    assert "step-6.pt" in (run.folder / "logs/batch.log").read_text(), "it says what it left out"
    assert not (run.folder / "secrets.env").exists()


def test_run_without_progress_ends(wide_site: Site) -> None:
    """It crashes before its first checkpoint each time, with minutes between attempts."""
    site = wide_site
    train = TRAIN.replace("    if asked:", FAULTS.replace("== 6", "== 2") + "    if asked:", 1)
    train = train.replace('int(os.environ["HPCRUN_ATTEMPT"]) == 0', "True")
    train = train.replace("attempts/0/", "attempts/{os.environ['HPCRUN_ATTEMPT']}/")
    run = submit(site, STALLED, train=train)
    for attempt in (0, 1):
        job_id = until(functools.partial(next_of, run, attempt), "the job that goes on")
        start = site.rig.run("squeue", "-h", "-j", job_id, "-o", "%S").stdout.strip()
        ended = json.loads((run.folder / f"attempts/{attempt}/end.json").read_text())["ended_at"]
        pause = time.mktime(time.strptime(start, "%Y-%m-%dT%H:%M:%S")) - ended
        # Between the two the job that goes on is submitted, which may take a while.
        assert 60 * (attempt + 1) - 1 < pause < 60 * (attempt + 2)
        site.start_again(job_id)
    done = site.hpcrun("wait", run.run_id)
    assert done.returncode == 1
    text = " ".join(site.hpcrun("status", run.run_id).stdout.split())
    same = "three attempts in a row got no further: the next would not either (the same in all "
    same += "of them: a standstill, on node1, rank 0 on node1 failed first, last at step 2"
    assert same in text
    assert len(site.status(run)["attempts"]) == 3


def test_run_continues_as_another_job_if_requeueing_is_forbidden(wide_site: Site) -> None:
    """The run stays the same, so jobs waiting for its success wait for the successor job."""
    site = wide_site
    with preempting(site, "GraceTime=30 PreemptMode=CANCEL"):
        forbidden = ("--set", "name=forbidden", "--set", "env.STEP='1'", *NEEDS)
        run = submit(site, "when: [preempted]", *WHOLE, *forbidden, nodes=11, steps=100, env=SECRET)
        later = site.submit("--after", run.run_id, "--", "true")
        until(lambda: len(steps_of(run, 0)) >= 6, "some steps")
        preempt(site)
        site.wait_for(run, "attempts/0/end.json")
        until(lambda: run.record("end.json")["next"] not in (None, "requeue"), "another job")
        job_id = run.record("end.json")["next"]
        assert job_id != run.job_id, run.log()
        waits = site.rig.run("squeue", "-h", "-j", later.job_id, "-o", "%E").stdout
        assert waits.startswith(f"afterok:{job_id}("), waits
        shown = insist_on_the_whole_curve(site, run, 100)
    assert (shown["job_id"], len(shown["attempts"])) == (job_id, 2)
    assert site.hpcrun("wait", later.run_id).returncode == 0


@pytest.mark.thorough
def test_dependency_on_a_sweep_follows_its_successor_jobs(wide_site: Site) -> None:
    """Both tasks continue as other jobs at the same moment."""
    site = wide_site
    train = TRAIN.replace("    if asked:", FAULTS + "    if asked:", 1)
    (site.project / "train.py").write_text(train)
    text = JOB.replace("SURVIVE", STALLED)
    for name, value in {"NODES": 1, "LIMIT": 10, "STEPS": 8}.items():
        text = text.replace(name, str(value), 1)
    text = text.replace('"8"', '"8", HOW: stall') + "name: forbidden\n"
    (site.project / "job.yaml").write_text(text)
    slow = ("--set", "env.STEP='4'", "--set", "env.AGAIN='3'")  # Slurm shows no job that has ended
    sweep = ("--set", "sweep={env.TASK: ['0', '1']}", *slow)
    done = site.hpcrun("submit", "--json", "./job.yaml", *sweep)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    runs = [Submitted(run["run_id"], run["job_id"], Path(run["run_dir"])) for run in answer["runs"]]
    sweep_id, array = answer["sweep_id"], answer["job_id"]
    later = site.submit("--after", sweep_id, "--", "true")
    assert dependency_of(site, later) == f"afterok:{array}_*(unfulfilled)"
    failure = f"--dependency=afternotok:{array}"
    repair = site.rig.run("sbatch", "--parsable", failure, "--wrap=true").stdout.strip()
    each = ("sbatch", "--parsable", "--array=0-1", f"--dependency=aftercorr:{array}")
    evaluation = site.rig.run(*each, "--output=/dev/null", "--wrap=true").stdout.strip()
    until(functools.partial(steps_of, runs[1], 0), "a step")
    steps = site.rig.run("squeue", "-hs", "-j", runs[1].job_id, "-o%i").stdout.split()
    assert f"{array}_1.0" in steps and not [step for step in steps if f"{array}_0" in step]
    for run in runs:
        site.wait_for(run, "attempts/0/end.json")
        until(functools.partial(next_of, run), "another job")
    jobs = [next_of(run) for run in runs]
    waits = dependency_of(site, later)
    assert sorted(waits.split(",")) == sorted(f"afterok:{job}(unfulfilled)" for job in jobs), waits
    waits_for_failure = site.rig.run("squeue", "-h", "-j", repair, "-o", "%E").stdout.strip()
    rows = site.rig.run("squeue", "-hr", "-j", evaluation, "-o", "%i %E").stdout.splitlines()
    assert sorted(rows) == [
        f"{evaluation}_{task} afterok:{job}(unfulfilled)" for task, job in enumerate(jobs)
    ]
    alternatives = sorted(f"afternotok:{job}(unfulfilled)" for job in jobs)
    assert sorted(waits_for_failure.split("?")) == alternatives, waits_for_failure
    latest = site.submit("--after", sweep_id, "--", "true")
    assert sorted(dependency_of(site, latest).split(",")) == sorted(waits.split(","))
    for run in runs:
        insist_on_the_whole_curve(site, run, 8)
    for run in (later, latest):
        assert site.hpcrun("wait", run.run_id).returncode == 0
    reason = site.rig.run("squeue", "-h", "-j", repair, "-o", "%r").stdout.strip()
    assert reason == "DependencyNeverSatisfied"
    site.rig.run("scancel", repair)


def next_of(run: Submitted, attempt: int = 0) -> str:
    """Return the job of a run's next attempt; "" while it is unknown."""
    end = run.folder / f"attempts/{attempt}/end.json"
    known = json.loads(end.read_text()).get("next") if end.exists() else None
    return "" if known in (None, "requeue") else str(known)


def dependency_of(site: Site, run: Submitted) -> str:
    return site.rig.run("squeue", "-h", "-j", run.job_id, "-o", "%E").stdout.strip()


def test_successor_job_ends_with_the_run(wide_site: Site) -> None:
    """Where Slurm may not start it again. One ends well; a person cancels one by Slurm's command,
    and one by hpcrun; of one the script is killed: the job that waits looks, and does not run."""
    site, rig = wide_site, wide_site.rig
    steps = {"well": 8, "scancel": 3000, "cancel": 3000, "killed": 3000}
    forbidden = ("--set", "name=forbidden")
    runs = {how: submit(site, NODE, *forbidden, steps=count) for how, count in steps.items()}
    waits = {how: until(functools.partial(successor_of, run), how) for how, run in runs.items()}
    later = site.submit("--after", runs["killed"].run_id, "--", "true")
    shown = site.status(runs["killed"])
    assert (shown["job_id"], shown["state"]) == (runs["killed"].job_id, "RUNNING")
    rig.run("scancel", runs["scancel"].job_id)
    assert site.hpcrun("cancel", runs["cancel"].run_id).returncode == 0
    for node in rig.node_names:
        for pid, command in rig.processes(node):
            if f"{runs['killed'].run_id}/harness.sh batch" in command:
                with contextlib.suppress(ProcessLookupError):  # the beat ends with it
                    os.kill(pid, signal.SIGKILL)
    until(lambda: not rig.run("squeue", "-h", "--me").stdout, "all to end")
    states = {how: site.status(run)["state"] for how, run in runs.items()}
    ends = {"well": "COMPLETED", "scancel": "CANCELLED", "cancel": "CANCELLED", "killed": "FAILED"}
    assert states == ends
    for how, run in runs.items():
        assert len(list((run.folder / "attempts").iterdir())) == 1, how
        wanted = "FAILED|93:0" if how == "killed" else "CANCELLED"
        ask = ("sacct", "-nXP", "-j", waits[how], "-o", "State,ExitCode")
        until(lambda: rig.run(*ask).stdout.startswith(wanted), f"{how} to be {wanted}")  # noqa: B023
    assert "is not needed" in runs["killed"].log()
    assert site.status(later)["state"] == "CANCELLED"


def test_run_cancelled_between_attempts_has_ended(wide_site: Site) -> None:
    site = wide_site
    partition = ("scontrol", "update", "PartitionName=debug")
    run = submit_faulty(site, "stall", "--set", "env.STEP='3'")
    site.wait_for(run, "attempts/0/begin.json")
    assert site.rig.run(*partition, "State=DOWN").returncode == 0  # so it waits for long
    try:
        site.wait_for(run, "attempts/0/end.json")
        until(lambda: queue(site, run, "%T") == "PENDING", "the pause")
        assert site.hpcrun("cancel", run.run_id).returncode == 0
        assert site.hpcrun("wait", run.run_id).returncode == 1
        shown = site.status(run)
        assert (shown["state"], len(shown["attempts"])) == ("CANCELLED", 1)
        title = shown["diagnosis"]["cause"]["title"]
        assert title.startswith("cancelled by ") and title.endswith(" s after its last attempt")
    finally:
        site.rig.run(*partition, "State=UP")


@pytest.mark.thorough
def test_preemption_during_the_time_limit_signal_is_survived(wide_site: Site) -> None:
    site = wide_site
    with preempting(site, "GraceTime=0 PreemptMode=REQUEUE"):
        when = "when: [preempted, time_limit], save_before_end: 30s"
        run = submit(site, when, *WHOLE, nodes=11, limit="1", steps=80)
        site.wait_for(run, "attempts/0/stop")
        preempt(site)
        site.wait_for(run, "attempts/0/end.json")
        end = run.record("end.json")
        assert end["why"] in ("preempted", "time_limit")
        shown = insist_on_the_whole_curve(site, run, 80)
    assert len(shown["attempts"]) >= 2  # the next ones are asked to save, too
    assert steps_of(run, 1)[0] == steps_of(run, 0)[-1] + 1


@pytest.mark.thorough
def test_every_task_of_a_sweep_restarts_separately(wide_site: Site) -> None:
    """One of two tasks on exclusive nodes loses its node; the other continues."""
    site = wide_site
    (site.project / "train.py").write_text(TRAIN)
    text = JOB.replace("SURVIVE", "when: [node_fail]")
    for name, value in {"NODES": 1, "LIMIT": 10, "STEPS": 80}.items():
        text = text.replace(name, str(value), 1)
    (site.project / "job.yaml").write_text(text + "slurm: {exclusive: true}\n")
    done = site.hpcrun(
        "submit", "--json", "./job.yaml", "--set", "sweep={env.STEP: ['0.5', '0.51']}"
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    runs = [Submitted(run["run_id"], run["job_id"], Path(run["run_dir"])) for run in answer["runs"]]
    for run in runs:
        until(functools.partial(steps_of, run, 0), "some steps")
    lost = nodes_of(runs[0], 0)[0]
    site.rig.kill_node(lost)
    try:
        for run, attempts in zip(runs, (2, 1), strict=True):
            shown = insist_on_the_whole_curve(site, run, 80)
            assert len(shown["attempts"]) == attempts
        assert lost not in nodes_of(runs[0], 1)
    finally:
        site.rig.revive_node(lost)


@pytest.mark.thorough
def test_restart_of_slurms_daemons_loses_no_attempt(fresh_root: Path) -> None:
    """Of a preemption, as the program saves, and of a dead node: no attempt is lost, none is run
    twice."""
    rig = Rig(fresh_root, nodes=4, pause=10)
    rig.start()
    try:
        site = Site(rig, rig.shared / "project", {"cache_dir": str(rig.shared / "cache")}).prepare()
        with preempting(site, "GraceTime=30 PreemptMode=REQUEUE"):
            run = submit_whole(site, "when: [preempted, node_fail]", *SLOWLY, steps=80)
            until(lambda: len(steps_of(run, 0)) >= 6, "some steps")
            argv = ["sbatch", "-phigh", "-N4", "--exclusive", "-t1", "-o/dev/null"]
            assert rig.run(*argv, "--wrap", "sleep 1").returncode == 0
            until(lambda: "PreemptTime=2" in shown(site, run), "the preemption")
            restart_daemons(rig, 12)
            site.wait_for(run, "attempts/1/hostfile")
        end = run.record("end.json")
        assert (end["why"], end["next"]) == ("preempted", "requeue"), run.log()
        until(lambda: steps_of(run, 1), "the next attempt")
        rig.kill_node(nodes_of(run, 1)[1])
        restart_daemons(rig, 5)
        state = insist_on_the_whole_curve(site, run, 80)
        assert (state["job_id"], len(state["attempts"])) == (run.job_id, 3)
        for attempt in (1, 2):
            assert steps_of(run, attempt)[0] <= steps_of(run, attempt - 1)[-1] + 1
    finally:
        rig.stop()


def restart_daemons(rig: Rig, pause: float) -> None:
    """Stop slurmctld and slurmdbd, and start them again after this many seconds."""
    rig.stop_controller()
    rig.stop_accounting()
    time.sleep(pause)
    rig.start_accounting()
    rig.start_controller()


def shown(site: Site, run: Submitted) -> str:
    return site.rig.run("scontrol", "-o", "show", "job", run.job_id).stdout
