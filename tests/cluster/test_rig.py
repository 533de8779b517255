"""The rig itself: separate hosts, a real Slurm, and no leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.rig import Rig, RigError
from tests.waiting import until


def test_every_node_has_its_own_name_address_and_tmp(rig: Rig) -> None:
    first, second = rig.node_names
    rig.on_node(first, ["touch", "/tmp/mine", "/dev/shm/mine"])
    for name in rig.node_names:
        assert rig.on_node(name, ["hostname"]).stdout.strip() == name
        own = rig.on_node(name, ["ip", "-4", "-br", "addr", "show", "eth0"]).stdout
        assert own.split()[2] == f"{rig.addresses[name]}/24"
        assert rig.on_node(name, ["ls", "/sys/class/net"]).stdout.split() == ["eth0", "lo"]
    assert rig.on_node(first, ["ls", "/tmp", "/dev/shm"]).stdout.count("mine") == 2
    assert rig.on_node(second, ["ls", "/tmp", "/dev/shm"]).stdout.count("mine") == 0
    assert not Path("/tmp/mine").exists()


def test_loopback_is_not_shared(rig: Rig) -> None:
    first, second = rig.node_names
    listen = "import socket; s = socket.create_server(('', 29500)); s.accept()[0].send(b'here')"
    connect = "import socket, sys; print(socket.create_connection((sys.argv[1], 29500), 2).recv(9))"
    python = [sys.executable, "-c"]
    with subprocess.Popen(rig.argv_on(first, [*python, listen])):
        until(lambda: "29500" in rig.on_node(first, ["ss", "-ltn"]).stdout, "the socket")
        refused = rig.on_node(second, [*python, connect, "127.0.0.1"])
        reached = rig.on_node(second, [*python, connect, rig.addresses[first]])
    assert "ConnectionRefusedError" in refused.stderr
    assert reached.stdout.strip() == "b'here'"


def test_own_name_is_127_0_1_1_and_the_other_name_is_an_address(rig: Rig) -> None:
    first, second = rig.node_names
    assert _resolve(rig, first, first) == "127.0.1.1"
    assert _resolve(rig, first, second) == rig.addresses[second]
    assert _resolve(rig, second, first) == rig.addresses[first]


def test_unresolved_names_are_known_to_slurm_alone(unresolved_rig: Rig) -> None:
    first, second = unresolved_rig.node_names
    assert _resolve(unresolved_rig, first, first) == "127.0.1.1"
    assert _resolve(unresolved_rig, first, second) == ""
    assert f"{second}" not in Path("/etc/hosts").read_text()
    shown = unresolved_rig.run("scontrol", "show", "node", second).stdout
    assert f"NodeAddr={unresolved_rig.addresses[second]} " in shown
    assert _names_seen_by_srun(unresolved_rig) == {first, second}


def test_a_job_runs_a_step_on_both_nodes(rig: Rig) -> None:
    out = rig.shared / "step.out"
    _submit(rig, "--wait", "-N2", f"--output={out}", "--wrap", "srun -l hostname")
    assert sorted(line.split()[1] for line in out.read_text().splitlines()) == rig.node_names


def test_srun_from_the_login_host_reaches_both_nodes(bare_rig: Rig) -> None:
    assert _names_seen_by_srun(bare_rig) == set(bare_rig.node_names)


def test_gpus_are_counted_per_node(rig: Rig) -> None:
    show = "echo $SLURM_NODEID $CUDA_VISIBLE_DEVICES"
    done = rig.run("srun", "-N2", "--gpus-per-node=3", "bash", "-c", show)
    assert sorted(done.stdout.splitlines()) == ["0 0,1,2", "1 0,1,2"]
    refused = rig.run("srun", "-N2", "--gpus-per-node=5", "true")
    assert refused.returncode != 0
    assert "Requested node configuration is not available" in refused.stderr


def test_sacct_knows_an_ended_job(rig: Rig) -> None:
    job = _submit(rig, "-N2", "--wrap", "exit 3")
    ask = ["sacct", "-X", "-n", "-P", "-j", job, "-o", "State,ExitCode,AllocNodes"]
    until(lambda: rig.run(*ask).stdout.strip() == "FAILED|3:0|2", "sacct's record")


def test_sacct_fails_without_accounting(bare_rig: Rig) -> None:
    done = bare_rig.run("sacct")
    assert (done.returncode, done.stderr) == (1, "Slurm accounting storage is disabled\n")


def test_squeue_forgets_an_ended_job(rig: Rig) -> None:
    job = _submit(rig, "--wrap", "true")
    assert _states(rig, job)
    until(lambda: not _states(rig, job), "squeue to forget the job")


def test_processes_lists_what_a_job_left_running(rig: Rig) -> None:
    first = rig.node_names[0]
    left = subprocess.Popen(rig.argv_on(first, ["setsid", "sleep", "4321"]))
    until(lambda: [c for _, c in rig.processes(first)] == ["sleep 4321"], "the process to show")
    assert rig.leftovers() == [f"{first}: process {rig.processes(first)[0][0]}: sleep 4321"]
    rig.clear()
    assert rig.leftovers() == []
    left.wait()


@pytest.mark.slow
def test_a_dead_node_requeues_its_job_within_a_minute(bare_rig: Rig) -> None:
    _, second = bare_rig.node_names
    requeued = _submit(bare_rig, "-N2", "-c1", "--mem=1", "--requeue", "--wrap", "sleep 600")
    failed = _submit(bare_rig, "-N2", "-c1", "--mem=1", "--no-requeue", "--wrap", "sleep 600")
    until(lambda: _states(bare_rig, requeued, failed) == ["RUNNING", "RUNNING"], "both jobs to run")
    bare_rig.kill_node(second)
    assert bare_rig.processes(second) == []
    until(
        lambda: _states(bare_rig, requeued, failed) == ["PENDING", "NODE_FAIL"], "Slurm to notice"
    )
    bare_rig.run("scancel", requeued)
    bare_rig.revive_node(second)
    assert _names_seen_by_srun(bare_rig) == set(bare_rig.node_names)


def test_a_job_outlives_a_restart_of_the_controller(bare_rig: Rig) -> None:
    job = _submit(bare_rig, "--wrap", "sleep 600")
    until(lambda: _states(bare_rig, job) == ["RUNNING"], "the job to run")
    bare_rig.stop_controller()
    assert bare_rig.run("squeue").returncode == 1
    bare_rig.start_controller()
    assert _states(bare_rig, job) == ["RUNNING"]
    bare_rig.run("scancel", job)


def test_a_cut_node_cannot_be_reached_until_it_is_joined(bare_rig: Rig) -> None:
    first, second = bare_rig.node_names
    code = "import socket, sys; socket.create_connection((sys.argv[1], 6818), 1)"
    knock = [sys.executable, "-c", code, bare_rig.addresses[second]]
    assert bare_rig.on_node(first, knock).returncode == 0
    bare_rig.cut(second)
    assert bare_rig.on_node(first, knock).returncode != 0
    bare_rig.join(second)
    until(lambda: bare_rig.on_node(first, knock).returncode == 0, "the cable")


def test_a_failed_start_shows_the_daemons_log_and_leaves_nothing(fresh_root: Path) -> None:
    rig = Rig(fresh_root, accounting=False, settings={"KillWait": "-1"})
    with pytest.raises(RigError, match=r"(slurmctld|node\d) ended[\s\S]*KillWait"):
        rig.start()
    assert _traces(fresh_root) == []


def test_two_rigs_live_side_by_side_and_stop_leaves_nothing(
    bare_rig: Rig, fresh_root: Path
) -> None:
    other = Rig(fresh_root, nodes=1, gpus_per_node=0, accounting=False)
    other.start()
    assert _traces(fresh_root)
    assert other.network.link in Path("/proc/net/dev").read_text()
    _submit(other, "--job-name=elsewhere", "--wrap", "setsid sleep 600 & sleep 600")
    until(lambda: len(other.processes(other.node_names[0])) >= 3, "the job's processes")
    assert "elsewhere" not in bare_rig.run("squeue", "-h", "--states=all", "-o", "%j").stdout
    link = other.network.link
    other.stop()
    assert _traces(fresh_root) == []
    assert link not in Path("/proc/net/dev").read_text()
    assert not fresh_root.exists()


def test_a_killed_test_run_takes_its_rig_along(fresh_root: Path) -> None:
    code = (
        "import pathlib, sys, time; from tests.cluster.rig import Rig\n"
        "Rig(pathlib.Path(sys.argv[1]), nodes=1, accounting=False).start()\n"
        "print('up', flush=True); time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", code, str(fresh_root)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert run.stdout.readline() == "up\n"
        os.kill(run.pid, signal.SIGKILL)
    until(lambda: _traces(fresh_root) == [], "the end of all")


def _submit(rig: Rig, *options: str) -> str:
    done = rig.run("sbatch", "--parsable", f"--chdir={rig.shared}", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _states(rig: Rig, *jobs: str) -> list[str]:
    argv = ["squeue", "-h", "--states=all", "--sort=i", "-o", "%T", "-j", ",".join(jobs)]
    return rig.run(*argv).stdout.split()


def _resolve(rig: Rig, on: str, name: str) -> str:
    return " ".join(rig.on_node(on, ["getent", "ahostsv4", name]).stdout.split()[:1])


def _names_seen_by_srun(rig: Rig) -> set[str]:
    done = rig.run("srun", "-N2", "hostname")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def _traces(root: Path) -> list[str]:
    """List processes whose command lines contain the folder, and mounts below it."""
    found = [line for line in Path("/proc/mounts").read_text().splitlines() if str(root) in line]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(root).encode() in words:
                found.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return found
