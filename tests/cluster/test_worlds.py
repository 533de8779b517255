"""Worlds of different jobs and attempts never mix, even with network failures.

The probe replaces a training. With ``--world`` each rank learns the run and attempt of all others,
which reveals mixed worlds and ports in use.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.probe_jobs import shown_by, write_job
from tests.cluster.rig import Rig
from tests.cluster.site import Site, Submitted
from tests.jobside.written_checkpoints import write
from tests.waiting import until

ROUNDS = 10
TASKS = 5
NAMED_WITHIN = 300.0  # seconds after which a cut link is reported; launchers wait for ten minutes
TWO_BY_ONE = ["--nodes", "2", "--gpus-per-node", "1", "--set", "resources.cpus_per_gpu=1"]


def check_world(run: Submitted, ranks: int, attempt: int = 0) -> int:
    """Assert that exactly the ranks of an attempt met; return the port of the rendezvous."""
    found = shown_by(run, attempt)
    assert [shown["rank"] for shown in found] == list(range(ranks)), run.log()
    for shown in found:
        assert sorted(peer["rank"] for peer in shown["world"]) == list(range(ranks))
        assert {(peer["run"], peer["attempt"]) for peer in shown["world"]} == {
            (run.run_id, attempt)
        }
    return int(found[0]["master"][1])


def insist(site: Site, run: Submitted) -> None:
    """Assert that a run succeeds."""
    done = site.follow(run)
    assert done.returncode == 0, done.stdout + done.stderr + run.log()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.thorough
def test_concurrent_jobs_on_the_same_nodes_do_not_mix(bare_site: Site) -> None:
    """Two equal jobs start on the same two nodes at the same time, repeatedly."""
    job = write_job(bare_site, "pair", launcher="srun")
    ports = []
    for number in range(ROUNDS):
        go = bare_site.project / f"go-{number}"
        words = ["--", "--world", "sockets", "--wait-for", str(go), "--hold", "0.3"]
        pair = [bare_site.submit(job, *TWO_BY_ONE, *words) for _ in range(2)]
        for run in pair:
            for node in (0, 1):
                bare_site.wait_for(run, f"logs/0/rank-{node}.log")
        go.touch()
        for run in pair:
            bare_site.wait_for(run, "attempts/0/end.json")
            assert run.record("end.json")["exit_code"] == 0, run.log()
        ports += [check_world(run, ranks=2) for run in pair]
    assert len(set(ports)) == len(ports) == 2 * ROUNDS


@pytest.mark.slow
def test_requeued_job_does_not_mix_with_its_previous_attempt(bare_site: Site) -> None:
    """The second attempt has another port, and no rank of the first one in its world."""
    rig = bare_site.rig
    job = write_job(bare_site, "again", launcher="srun", slurm={"requeue": True})
    runs = [
        bare_site.submit(job, *TWO_BY_ONE, "--", "--world", "sockets", "--hold", "8")
        for _ in range(2)
    ]
    ports = set()
    for attempt in range(3):
        for run in runs:
            wait_for_ranks(run, attempt)
            ports.add(check_world(run, ranks=2, attempt=attempt))
        if attempt < 2:
            for run in runs:
                done = rig.run("scontrol", "requeue", run.job_id)
                assert done.returncode == 0, done.stderr
            for run in runs:
                bare_site.start_again(run.job_id)
    assert len(ports) == 6
    for run in runs:
        insist(bare_site, run)


def wait_for_ranks(run: Submitted, attempt: int) -> None:
    """Wait until both ranks of an attempt have reported."""
    until(lambda: len(shown_by(run, attempt)) == 2, f"both ranks of attempt {attempt}")


def test_range_of_nodes_uses_the_available_ones(bare_site: Site) -> None:
    """One node while the other is drained, both after a requeue, with the same effective batch.

    Of the checkpoints of the first attempt, only the newest is kept.
    """
    rig, go = bare_site.rig, bare_site.project / "go"
    second = rig.node_names[1]
    sinfo = ["sinfo", "--noheader", f"--nodes={second}", "--format=%T"]
    job = write_job(
        bare_site,
        "range",
        launcher="srun",
        args=["--world", "sockets", "--until", str(go), "--batch={effective_batch}"],
        resources={"nodes": "1-2", "gpus_per_node": 1, "cpus_per_gpu": 1},
        batch={"micro_batch_per_gpu": 4, "gradient_accumulation_steps": 3},
        checkpoint={"dir": "saved", "keep": 1},
        slurm={"requeue": True},
    )
    assert bare_site.hpcrun("submit", "--test-only", job).returncode == 0
    rig.run("scontrol", "update", f"node={second}", "state=drain", "reason=test")
    try:
        run = bare_site.submit(job)
        for attempt, nodes in enumerate([1, 2]):
            for rank in range(nodes):
                bare_site.wait_for(run, f"probe/{attempt}-rank-{rank}.json")
            check_world(run, ranks=nodes, attempt=attempt)
            for shown in shown_by(run, attempt):
                environ = shown["environ"]
                steps = environ["HPCRUN_GRADIENT_ACCUMULATION_STEPS"]
                assert (environ["HPCRUN_NODES"], steps) == (str(nodes), str(6 // nodes))
                assert shown["argv"][-1] == "--batch=24"
            status = bare_site.status(run)
            assert (status["nodes"], status["effective_batch"]) == (nodes, 24)
            listed = bare_site.hpcrun("status", run.run_id).stdout
            assert f"{nodes} × 1 GPUs" in listed and ("node[1-2]" in listed) == (nodes == 2)
            if attempt == 0:
                rig.run("scontrol", "update", f"node={second}", "state=resume")
                until(lambda: set(rig.run(*sinfo).stdout.split()) == {"idle"}, "the other node")
                assert rig.run("scontrol", "requeue", run.job_id).returncode == 0
                bare_site.start_again(run.job_id)
        saved = run.folder / "saved"
        files = [run.folder / name for name in ("spec.yaml", "plan.json")]
        between = sum(file.stat().st_mtime for file in files) / 2
        for step in (1, 2):
            checkpoint = write(saved / f"step-{step}" / "model.pt").parent
            os.utime(checkpoint, (between, between))
        go.touch()
        insist(bare_site, run)
        until(lambda: [path.name for path in saved.iterdir()] == ["step-2"], "one checkpoint")
    finally:
        rig.run("scontrol", "update", f"node={second}", "state=resume")


def test_tasks_of_a_two_node_array_do_not_mix(bare_site: Site) -> None:
    """The tasks of a sweep run concurrently on the same nodes, each with its own world."""
    job = write_job(
        bare_site,
        "sweep",
        launcher="srun",
        args=["--world", "sockets", "--hold", "0.5", "--seed={seed}"],
        sweep={"seed": list(range(TASKS))},
    )
    done = bare_site.hpcrun("submit", "--json", job, *TWO_BY_ONE)
    assert done.returncode == 0, done.stderr
    runs = [
        Submitted(one["run_id"], one["job_id"], Path(one["run_dir"]))
        for one in json.loads(done.stdout)["runs"]
    ]
    assert len(runs) == TASKS
    for run in runs:
        bare_site.wait_for(run, "attempts/0/end.json")
        assert run.record("end.json")["exit_code"] == 0, run.log()
    ports = {check_world(run, ranks=2) for run in runs}
    assert len(ports) == TASKS


def test_ranks_have_time_to_save_when_slurm_stops_the_job(bare_site: Site) -> None:
    """Slurm's SIGTERM reaches the ranks, and is not turned into SIGKILL."""
    (bare_site.project / "saves.py").write_text(
        "import os, pathlib, signal, sys, time\n"
        "def save(number, frame):\n"
        "    time.sleep(3)\n"
        "    pathlib.Path('saved-' + os.environ['RANK']).touch()\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "pathlib.Path('ready-' + os.environ['RANK']).touch()\n"
        "time.sleep(300)\n"
    )
    (bare_site.project / "saves.yaml").write_text("script: saves.py\nlauncher: srun\n")
    run = bare_site.submit("./saves.yaml", *TWO_BY_ONE)
    until(lambda: len(list(bare_site.project.glob("ready-*"))) == 2, "both ranks")
    assert bare_site.hpcrun("cancel", run.run_id).returncode == 0
    bare_site.follow(run)
    assert len(list(bare_site.project.glob("saved-*"))) == 2, run.log()
    assert run.record("end.json")["stopped_by"] == "TERM"


# ---- Nodes that cannot reach each other --------------------------------------------------------


@contextmanager
def barred(rig: Rig, how: str) -> Iterator[None]:
    """Block the ports of rank 0's node for the second node, without affecting Slurm.

    ``refused``: an immediate error, as from a router or a firewall; ``silent``: no response.
    """
    first, second = rig.node_names
    ports = ["ipproto", "tcp"]
    if how == "refused":
        where, rule = second, ["to", rig.addresses[first], *ports, "dport", "12000-30000"]
        rule += ["unreachable"]
    else:
        where, rule = first, ["to", rig.addresses[second], *ports, "sport", "12000-30000"]
        rule += ["blackhole"]
    add = rig.on_node(where, ["ip", "rule", "add", "pref", "10", *rule])
    assert add.returncode == 0, add.stderr
    try:
        yield
    finally:
        rig.on_node(where, ["ip", "rule", "del", "pref", "10"])


@pytest.mark.parametrize("how", ["refused", "silent"])
def test_node_that_cannot_reach_rank_0_is_named(bare_site: Site, how: str) -> None:
    """Launchers would wait for at least ten minutes, and not name the node."""
    rig = bare_site.rig
    first, second = rig.node_names
    with barred(rig, how):
        jobs = {
            launcher: write_job(bare_site, launcher, launcher=launcher, framework="torch")
            for launcher in ("torchrun", "srun")
        }
        runs = {
            launcher: bare_site.submit(job, *TWO_BY_ONE, "--", "--world", "gloo")
            for launcher, job in jobs.items()
        }
        for launcher, run in runs.items():
            done = bare_site.follow(run)
            assert done.returncode == 1, done.stdout + done.stderr
            end = run.record("end.json")
            assert end["ended_at"] - end["begun_at"] < NAMED_WITHIN, launcher
            assert f"{second}: cannot reach rank 0's node at {rig.addresses[first]}" in run.log()
            assert (end["exit_code"], end["first_failure"]["host"]) == (1, second), launcher
            assert shown_by(run) == [], "nobody trained"


def test_concurrent_trainings_do_not_mix_and_use_an_interface_with_a_route(bare_site: Site) -> None:
    """Two jobs with torchrun's store and a gather over gloo, and one of srun, on the same nodes.

    The first interface of each node has no route, and the address of the node's own name.
    """
    rig = bare_site.rig
    dead = {name: f"10.255.{n}.1" for n, name in enumerate(rig.node_names)}
    torchrun = write_job(bare_site, "gloo", launcher="torchrun", framework="torch")
    srun = write_job(bare_site, "sockets", launcher="srun", framework="torch")
    with second_interfaces(rig, dead):
        runs = [
            bare_site.submit(job, *TWO_BY_ONE, "--", "--world", world)
            for job, world in ((torchrun, "gloo"), (torchrun, "gloo"), (srun, "sockets"))
        ]
        for run in runs:
            insist(bare_site, run)
    assert len({check_world(run, ranks=2) for run in runs}) == 3
    for run in runs:
        assert {shown["gloo_interface"] for shown in shown_by(run)} == {"eth0"}
        assert {shown["master"][0] for shown in shown_by(run)} == {rig.addresses[rig.node_names[0]]}


@contextmanager
def second_interfaces(rig: Rig, addresses: dict[str, str]) -> Iterator[None]:
    """Add an interface without route to the nodes, with the address of their own names."""
    before = {}
    for name, address in addresses.items():
        hosts = rig.root / "hosts" / name / "hosts"
        before[hosts] = hosts.read_text()
        hosts.write_text(before[hosts].replace(f"127.0.1.1 {name}", f"{address} {name}"))
        _on(rig, name, ["ip", "link", "add", "adead0", "type", "veth", "peer", "name", "nowhere"])
        _on(rig, name, ["ip", "address", "add", f"{address}/24", "dev", "adead0"])
        _on(rig, name, ["ip", "link", "set", "adead0", "up"])
        _on(rig, name, ["ip", "link", "set", "nowhere", "up"])
    try:
        yield
    finally:
        for name in addresses:
            _on(rig, name, ["ip", "link", "delete", "adead0"])
        for hosts, text in before.items():
            hosts.write_text(text)


def _on(rig: Rig, name: str, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    done = rig.on_node(name, argv)
    assert done.returncode == 0, done.stderr
    return done


def test_missing_hostfile_ends_the_job(bare_site: Site) -> None:
    """DeepSpeed's launcher would train separately on each node, with only a warning."""
    job = write_job(bare_site, "gone", launcher="deepspeed", framework="torch")
    template = bare_site.project / "templates"
    template.mkdir()
    (template / "job.sbatch.j2").write_text(
        '{% extends "hpcrun/job.sbatch.j2" %}{% block launch %}\n'
        "# The hostfile goes once it is written.\n"
        '( until rm "$HPCRUN_RUN_DIR/attempts/0/hostfile"; do sleep 0.01; done ) 2>/dev/null &\n'
        "{{ super() }}{% endblock %}\n"
    )
    run = bare_site.submit(job, *TWO_BY_ONE, "--", "--world", "sockets")
    assert bare_site.follow(run).returncode == 1
    end = run.record("end.json")
    assert end["ended_at"] - end["begun_at"] < NAMED_WITHIN
    assert "attempts/0/hostfile is missing: each node would train alone" in run.log()
    assert shown_by(run) == []


@pytest.mark.slow
def test_launch_waits_for_slurmctld(bare_site: Site) -> None:
    """srun gives up after about 14 seconds, and would end a job that was pending for hours."""
    go = bare_site.project / "go"
    setup = {"commands": [f"until [ -e '{go}' ]; do sleep 0.1; done"]}
    job = write_job(bare_site, "away", launcher="srun", framework="torch", setup=setup)
    runs = {}
    for nodes in (1, 2):
        words = ["--nodes", str(nodes), *TWO_BY_ONE[2:], "--", "--world", "sockets"]
        runs[nodes] = bare_site.submit(job, *words)
    for run in runs.values():
        bare_site.wait_for(run, "attempts/0/begin.json")
    bare_site.rig.stop_controller()
    try:
        go.touch()
        waits = "Slurm does not answer, so the launch waits for it"
        until(lambda: all(waits in run.log() for run in runs.values()), "the launches")
    finally:
        bare_site.rig.start_controller()
    for nodes, run in runs.items():
        insist(bare_site, run)
        check_world(run, ranks=nodes)


@pytest.mark.thorough
def test_node_with_a_cut_link_ends_the_job(bare_site: Site) -> None:
    """The link is cut between allocation and launch, so Slurm cannot start the step."""
    rig = bare_site.rig
    second = rig.node_names[1]
    go = bare_site.project / "go"
    setup = {"commands": [f"until [ -e '{go}' ]; do sleep 0.1; done"]}
    job = write_job(bare_site, "cut", launcher="torchrun", framework="torch", setup=setup)
    run = bare_site.submit(job, *TWO_BY_ONE, "--", "--world", "gloo")
    bare_site.wait_for(run, "attempts/0/begin.json")
    rig.cut(second)
    try:
        began = time.time()
        go.touch()
        # The end of the job is recorded long before Slurm marks the node as down.
        done = bare_site.follow(run)
    finally:
        rig.join(second)
    assert done.returncode == 1, done.stdout + done.stderr
    assert run.record("end.json")["ended_at"] - began < NAMED_WITHIN, run.log()
    log = (run.folder / "logs/batch.log").read_text()
    assert second in log.partition("rank 0 is on")[2]
    # Leftovers of the first node are cleaned up without contacting the second one again.
    assert log.count("Application launch failed") == 1, log
    assert not list((run.folder / "attempts/0/local").glob("*[0-9]")), run.log()
    assert shown_by(run) == [], "nobody trained"
    rig.wait_idle()


def test_processes_that_leave_their_session_end_with_the_job(bare_site: Site) -> None:
    """This holds even with proctrack/linuxproc, which tracks processes only by their parents."""
    script = "setsid sleep 4711 & until pgrep -fx 'sleep 4711'; do sleep 0.1; done"
    run = bare_site.submit("--gpus-per-node", "0", "--nodes", "2", "--", "bash", "-c", script)
    insist(bare_site, run)
    left = [bare_site.rig.processes(name) for name in bare_site.rig.node_names]
    assert "sleep 4711" not in json.dumps(left)
