"""`hpcrun run --hostfile` over SSH: training, failures, and no leftover processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.launcher_jobs import WORKLOADS, shown
from tests.cluster.rig import Rig
from tests.cluster.site import Site, Submitted
from tests.cluster.sshd import Lab, lab
from tests.waiting import until

# ssh gives up a silent host after 15 s (ServerAliveInterval), the host its driver after 30 s
# without a line; the rest is the machine's.
SOON_SECONDS = 28.0  # before a host aborts by itself

WAITING = """
import os, sys, time
print("waiting in", os.getcwd(), flush=True)
if os.environ["RANK"] == os.environ.get("FAILS"):
    sys.exit(7)
time.sleep(300)
"""


@pytest.fixture
def hosts(rig: Rig) -> Iterator[Lab]:
    with lab(rig) as made:
        yield made


def write_job(site: Site, launcher: str, **more: object) -> str:
    job = {"launcher": launcher, "precision": "fp32", **more}
    (site.project / "job.yaml").write_text(yaml.safe_dump(job))
    return "./job.yaml"


def last_run(site: Site) -> Submitted:
    folder = max((site.rig.shared / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    return Submitted(folder.name, "", folder)


def left(rig: Rig) -> list[str]:
    """Return the processes on the nodes except sshd."""
    return [
        command
        for name in rig.node_names
        for _, command in rig.processes(name)
        if not command.startswith(("sshd:", "/usr/sbin/sshd"))
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "launcher", [pytest.param("torchrun", marks=pytest.mark.thorough), "deepspeed"]
)
def test_hostfile_run_trains_on_all_hosts(site: Site, hosts: Lab, launcher: str) -> None:
    shutil.copytree(WORKLOADS, site.project, dirs_exist_ok=True)
    # DeepSpeed would read this file, and fail at the empty line.
    home = Path(site.environ()["HOME"])
    home.mkdir(exist_ok=True)
    for folder in (site.project, home):
        (folder / ".deepspeed_env").write_text("NCCL_DEBUG=TRACE\n\n")
    job = write_job(
        site,
        launcher,
        script="train_torch.py",
        batch={"micro_batch_per_gpu": 4, "gradient_accumulation_steps": 2},
        env={"OMP_NUM_THREADS": "1", "NCCL_WORDS": "a b; c", "PYTHON_X": "it's"},
        secrets=["TOKEN"],
    )
    order = list(reversed(site.rig.node_names))
    hostfile = hosts.hostfile(1, *order)
    env = {**hosts.env, "TOKEN": "very secret"}
    done = site.hpcrun("run", "--hostfile", str(hostfile), job, env=env)
    run = last_run(site)
    assert done.returncode == 0, done.stdout + done.stderr + run.log()
    ranks = shown(run)
    assert [(rank["rank"], rank["world"], rank["samples"]) for rank in ranks] == [
        (index, 2, 32) for index in range(2)
    ]
    expected = subprocess.run(
        [sys.executable, str(WORKLOADS / "task.py")], capture_output=True, text=True, check=True
    )
    final = pytest.approx(json.loads(expected.stdout)[-1], rel=1e-5)
    assert [rank["final"] for rank in ranks] == [final] * 2
    for index, name in enumerate(order):
        assert f"node {index} is {name}, interface eth0" in run.log()
    assert not (run.folder / "attempts" / "0" / "environment").exists()
    assert not (run.folder / "secrets.env").exists()
    assert "very secret" not in run.log() + done.stdout
    assert left(site.rig) == []
    (home / ".deepspeed_env").unlink()


def start(site: Site, hosts: Lab, launcher: str, fails: str = "") -> subprocess.Popen[str]:
    """Start ranks that wait for minutes; the one in ``fails`` exits with 7 immediately."""
    (site.project / "wait.py").write_text(WAITING)
    job = write_job(site, launcher, script="wait.py", env={"FAILS": fails})
    argv = [sys.executable, "-m", "hpcrun", "run", "--hostfile", str(hosts.hostfile(2)), job]
    return subprocess.Popen(
        argv,
        cwd=site.project,
        env=site.environ() | hosts.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until_all_wait(site: Site) -> Submitted:
    def waiting() -> Submitted | None:
        with contextlib.suppress(ValueError, OSError):
            run = last_run(site)
            return run if run.log().count(f"waiting in {site.project}\n") == 4 else None
        return None

    return until(waiting, "four ranks that wait")


@pytest.mark.parametrize(
    "launcher", ["torchrun", pytest.param("deepspeed", marks=pytest.mark.thorough)]
)
def test_failing_rank_ends_the_other_hosts(site: Site, hosts: Lab, launcher: str) -> None:
    process = start(site, hosts, launcher, fails="3")
    out, _ = process.communicate()
    run = last_run(site)
    assert process.returncode == 1, out
    end = run.record("end.json")
    assert (end["exit_code"], end["first_failure"]["rank"]) == (7, 3), out + run.log()
    assert end["first_failure"]["host"] == site.rig.node_names[1]
    assert end["ended_at"] - end["first_failure"]["at"] < SOON_SECONDS
    assert left(site.rig) == []


@pytest.mark.parametrize(
    "launcher", ["torchrun", pytest.param("deepspeed", marks=pytest.mark.thorough)]
)
def test_ctrl_c_ends_all_hosts(site: Site, hosts: Lab, launcher: str) -> None:
    process = start(site, hosts, launcher)
    run = until_all_wait(site)
    environment = run.folder / "attempts" / "0" / "environment"
    assert environment.stat().st_mode & 0o777 == 0o600
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    assert process.returncode == 130, out
    ended = run.folder / "attempts" / "0" / "end.json"
    until(ended.exists, "the end record")
    assert run.record("end.json")["stopped_by"] == "TERM"
    assert left(site.rig) == []
    assert not environment.exists()


def test_hosts_end_if_hpcrun_is_killed(site: Site, hosts: Lab) -> None:
    """After kill -9, each host detects the loss and kills even ranks that ignore signals."""
    process = start(site, hosts, "torchrun")
    run = until_all_wait(site)
    driver = [
        int(proc.name)
        for proc in Path("/proc").glob("[0-9]*")
        if f"{run.folder}/jobside.pyz\0launch_hosts" in _command_line(proc)
    ]
    assert driver, "the launcher is there"
    processes = site.rig.processes(site.rig.node_names[1])
    deaf = [pid for pid, command in processes if " node" in command]
    assert deaf, "the second host's own harness is there"
    for pid in deaf:
        os.kill(pid, signal.SIGSTOP)
    for pid in driver:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not left(site.rig), "the hosts to be empty")
    process.communicate()
    assert process.returncode == 1


def test_silent_host_is_named_and_ends_its_ranks(site: Site, hosts: Lab) -> None:
    """Its connections freeze as after a cut cable, without notice to either side."""
    process = start(site, hosts, "deepspeed")
    until_all_wait(site)
    lost = site.rig.node_names[1]
    frozen = [pid for pid, command in site.rig.processes(lost) if command.startswith("sshd: root")]
    assert frozen, "there are sessions on it"
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    out, _ = process.communicate()
    assert process.returncode == 1, out
    assert f"host {lost} cannot be reached by ssh" in out
    until(lambda: not left(site.rig), "the silent host to be empty")


# ---- refusals and immediate errors


def refused(site: Site, hosts: Lab, hostfile: Path | str, *more: str) -> tuple[int, str]:
    (site.project / "wait.py").write_text(WAITING)
    job = write_job(site, "torchrun", script="wait.py")
    words = ["run", "--hostfile", str(hostfile), *more, job]
    done = site.hpcrun(*words, env=hosts.env)
    assert left(site.rig) == []
    return done.returncode, done.stdout + done.stderr


def test_invalid_hostfiles_are_refused(site: Site, hosts: Lab) -> None:
    one, two = site.rig.node_names
    uneven = hosts.folder / "uneven"
    uneven.write_text(f"{one} slots=4\n{two} slots=2\n")
    plain = hosts.folder / "plain"
    plain.write_text(f"{one}\n{two}\n")
    for hostfile, more, message in (
        (Path("nowhere"), (), "--hostfile nowhere: no such file"),
        (uneven, (), f"uneven slots ({one} 4, {two} 2)"),
        (plain, (), "how many GPUs?"),
        (hosts.hostfile(2), ("--nodes", "3"), "has 2 with 2"),
    ):
        code, out = refused(site, hosts, hostfile, *more)
        assert code == 2 and message in out, out
    assert not list((site.rig.shared / "runs").glob("2*"))


def test_all_unreachable_hosts_are_named(site: Site, hosts: Lab) -> None:
    one, two = site.rig.node_names
    text = hosts.known_hosts.read_text()
    hosts.known_hosts.write_text("".join(x for x in text.splitlines(True) if one not in x))
    code, out = refused(site, hosts, hosts.hostfile(2, one, two, "no-such-host"))
    assert code == 1
    assert f"host {one} cannot be reached by ssh: Host key verification failed." in out
    assert f"fix: check its host key: ssh {one}" in out
    assert "host no-such-host cannot be reached by ssh: " in out
    assert f"host {two} " not in out


def test_host_without_the_run_folder_is_named(rig: Rig, hosts: Lab) -> None:
    # /tmp is private to each host.
    with tempfile.TemporaryDirectory(dir="/tmp") as runs:
        site = Site(rig, rig.shared / "unseen", {"runs_dir": runs}).prepare()
        code, out = refused(site, hosts, hosts.hostfile(2))
    assert code == 1
    for name in rig.node_names:
        assert f"host {name} cannot see the run folder {runs}/" in out


def _command_line(proc: Path) -> str:
    with contextlib.suppress(OSError):
        return (proc / "cmdline").read_bytes().decode(errors="replace")
    return ""
