"""A real Slurm starts, runs jobs and stops without leaving traces."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from hpcrun.errors import InputError
from hpcrun.sandbox import lifecycle, processes
from hpcrun.sandbox.config import plain_shape
from hpcrun.sandbox.lifecycle import SandboxStatus
from tests.cli.calling import Caller
from tests.sandbox.using import job_state, pids_with, slurm, submit
from tests.waiting import until

pytestmark = pytest.mark.cluster


def test_two_nodes_with_four_gpus_each_are_ready(running: SandboxStatus) -> None:
    assert running.up and not running.dead
    assert (running.nodes, running.gpus_per_node) == (2, 4)
    assert set(running.pids) == {"keeper", "munged", "slurmctld", "node1", "node2"}
    message = slurm(running, "srun", "-N2", "--gres=gpu:4", "sh", "-c", "echo $SLURMD_NODENAME")
    assert sorted(message.split()) == ["node1", "node2"]


def listening(pids: Iterable[int]) -> list[str]:
    """Return the addresses on which processes listen, in kernel notation."""
    sockets = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(str(file.readlink()))
    rows = [line.split() for name in ("tcp", "tcp6", "udp", "udp6") for line in _net(name)]
    return [row[1] for row in rows if f"socket:[{row[9]}]" in sockets and row[3] in ("0A", "07")]


def _net(name: str) -> list[str]:
    path = Path("/proc/net") / name
    return path.read_text().splitlines()[1:] if path.exists() else []


def test_sandbox_listens_only_on_the_loopback_device(
    running: SandboxStatus, tmp_path: Path
) -> None:
    """Includes the Slurm processes of its jobs, which the network must not reach."""
    script = tmp_path / "job.sh"
    step = f"srun -N2 sh -c 'touch {tmp_path}/on; exec sleep 30'"
    script.write_text(f"#!/bin/bash\n{step} & echo $! >{tmp_path}/srun; wait\n")
    script.chmod(0o755)
    job = slurm(running, "sbatch", "--parsable", "--output=/dev/null", "-N2", str(script))
    until((tmp_path / "on").exists)
    srun = int((tmp_path / "srun").read_text())
    daemons, ours = listening(running.pids.values()), listening([srun])
    slurm(running, "scancel", job)
    assert len(daemons) >= 3 and ours, (daemons, ours)
    assert {address.partition(":")[0] for address in [*daemons, *ours]} == {"0100007F"}


def test_sandbox_gpus_are_visible_like_real_ones(running: SandboxStatus) -> None:
    show = "echo $CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE"
    message = slurm(running, "srun", "-N2", "--gres=gpu:2", "sh", "-c", show)
    assert message.splitlines() == ["0,1 2", "0,1 2"]
    assert slurm(running, "srun", "--gres=gpu:4", "sh", "-c", show) == "0,1,2,3 4"


def test_sandbox_node_may_exceed_the_cpus_and_memory_of_the_machine(running: SandboxStatus) -> None:
    asked = ["srun", "--cpus-per-task=16", "--mem=2T", "sh", "-c", "echo $SLURM_CPUS_PER_TASK"]
    assert slurm(running, *asked) == "16"


def test_sixteen_gpus_on_one_node_are_visible(place: Path) -> None:
    now = lifecycle.up(place, shape=plain_shape(1, 16))
    show = "echo $CUDA_VISIBLE_DEVICES"
    message = slurm(now, "srun", "--gres=gpu:16", "sh", "-c", show)
    assert message == ",".join(str(index) for index in range(16))


def test_sandbox_without_gpus_runs_jobs(place: Path) -> None:
    now = lifecycle.up(place, shape=plain_shape(1, 0))
    assert slurm(now, "srun", "echo", "ran") == "ran"


def test_sandbox_enforces_the_limits_of_its_profile(place: Path, tmp_path: Path) -> None:
    """The sandbox accepts and refuses the same requests as the cluster."""
    (tmp_path / "hpcrun.yaml").write_text(
        "name: lab\n"
        "partition: v100\n"
        "partitions:\n"
        "  a100: {gpus_per_node: 4, cpus_per_node: 64, memory_per_node: 480G, max_time: 60}\n"
        "  v100: {gpus_per_node: 8, cpus_per_node: 40, max_nodes: 1}\n"
        "gpu_types: {a100: {gres: a100, partition: a100}, v100: {partition: v100}}\n"
    )
    env = {**os.environ, "HPCRUN_SANDBOX_DIR": str(place), "HOME": str(tmp_path)}

    def hpcrun(*argv: str, code: int = 0, more: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "hpcrun", *argv],
            cwd=tmp_path, env=env | (more or {}), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "4 nodes like hpcrun.yaml, up in" in hpcrun(
        "sandbox", "up", "--like", "hpcrun.yaml", "--nodes", "2"
    )
    test = ("submit", "zero2-4gpu", "--test-only", "--set")
    for where in ({"HPCRUN_CLUSTER": "sandbox"}, {"SLURM_CONF": str(place / "slurm.conf")}):
        taken = hpcrun(*test, "resources.gpu_type=a100", "--nodes", "2", "--time", "60", more=where)
        assert "partition a100" in taken and "node[1-2], 128 processors" in taken
        # Slurm itself refuses requests that hpcrun was told to let through.
        asked = (*test, "resources.gpu_type=a100", "--no-check")
        for excess in (
            ("--time", "61"),
            ("--nodes", "3"),
            ("--set", "resources.memory_per_node=481G"),
        ):
            hpcrun(*asked, *excess, code=3, more=where)
        hpcrun(*test, "resources.gpu_type=v100", "--no-check", "--nodes", "2", code=3, more=where)
    other = hpcrun("sandbox", "up", code=2)
    assert "a sandbox of 4 nodes like hpcrun.yaml is up" in other
    assert "4 nodes like hpcrun.yaml" in hpcrun("sandbox", "status")
    hpcrun("sandbox", "down")


@pytest.mark.thorough  # seconds, which a busy machine does not keep
def test_up_is_quick_and_a_job_starts_at_once(place: Path) -> None:
    begin = time.monotonic()
    now = lifecycle.up(place)
    took_up = time.monotonic() - begin
    begin = time.monotonic()
    slurm(now, "srun", "-N2", "true")
    took_job = time.monotonic() - begin
    assert took_up < 8 and took_job < 4, (took_up, took_job)


def test_up_shows_its_progress(place: Path, tmp_path: Path, clean_environ: dict[str, str]) -> None:
    environ = clean_environ | {"HPCRUN_SANDBOX_DIR": str(place)}
    hpcrun = Caller(tmp_path, environ)
    hpcrun.environ["PATH"] = f"/usr/sbin:{os.environ['PATH']}"
    hpcrun.insist_on_bar("starting", "sandbox", "up")
    assert "2 nodes with 4 GPUs each, up in " in (hpcrun.project / "printed").read_text()
    lifecycle.down(place)
    done = hpcrun.process("sandbox", "up")
    assert done.code == 0 and "starting" not in done.err, done


def test_up_again_changes_nothing_and_another_shape_is_refused(running: SandboxStatus) -> None:
    directory = Path(running.directory)
    assert lifecycle.up(directory) == running == lifecycle.status(directory)
    with pytest.raises(InputError, match="2 nodes with 4 GPUs each is up") as refusal:
        lifecycle.up(directory, shape=plain_shape(3, 4))
    assert "hpcrun sandbox down" in refusal.value.fix
    assert lifecycle.status(directory) == running


def test_arrays_and_dependencies_work(running: SandboxStatus, tmp_path: Path) -> None:
    mark = f"echo $SLURM_ARRAY_TASK_ID >> {tmp_path}/ran"
    array = submit(running, mark, "--array=0-3")
    after = submit(running, f"wc -l < {tmp_path}/ran > {tmp_path}/seen", f"-dafterok:{array}")
    until(lambda: job_state(running, after) == "COMPLETED")
    assert (tmp_path / "seen").read_text().strip() == "4"


def test_requeue_starts_the_job_again(running: SandboxStatus, tmp_path: Path) -> None:
    script = f"echo ${{SLURM_RESTART_COUNT:-0}} >> {tmp_path}/starts; [ $SLURM_RESTART_COUNT ]"
    job = submit(running, f"{script} || sleep 600", "--requeue")
    until((tmp_path / "starts").exists)
    slurm(running, "scontrol", "requeue", job)
    until(lambda: job_state(running, job) == "COMPLETED")
    assert (tmp_path / "starts").read_text().split() == ["0", "1"]


def test_scancel_reaches_a_process_in_a_session_of_its_own(running: SandboxStatus) -> None:
    word = f"77{os.getpid()}.5"
    job = submit(running, f"setsid --wait sleep {word} & wait", "-N1")
    until(lambda: pids_with(word))
    slurm(running, "scancel", job)
    until(lambda: not pids_with(word))
    until(lambda: job_state(running, job) == "CANCELLED")


def test_down_from_inside_a_job_is_refused(running: SandboxStatus) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path; from hpcrun.sandbox import lifecycle\n"
        "from hpcrun.errors import InputError\n"
        "try: lifecycle.down(Path(sys.argv[1]))\n"
        "except InputError as error: print(error.message)\n"
    )
    root = str(Path(lifecycle.__file__).parents[2])
    message = slurm(running, "srun", sys.executable, "-c", code, running.directory, root)
    assert "runs in a job of the sandbox" in message
    assert lifecycle.status(Path(running.directory)) == running


def test_down_leaves_no_process_and_no_file(place: Path) -> None:
    now = lifecycle.up(place)
    word = f"78{os.getpid()}.5"
    stray = f"setsid sleep {word} & (env -i setsid -f sleep {word}); nohup sleep {word} & wait"
    submit(now, stray)
    submit(now, f"trap '' TERM; {stray}", "-N2")
    submit(now, f"srun -N2 sleep {word}", "-N2", "--exclusive")
    submit(now, "true", "--begin=now+1hour")
    until(lambda: len(pids_with(word)) >= 6)
    assert lifecycle.down(place)
    assert pids_with(word) == []
    assert processes.find_members(place) == []
    assert pids_with(str(place)) == []
    assert not place.exists()
    assert lifecycle.status(place) is None
    assert not lifecycle.down(place)


def test_down_lets_jobs_handle_sigterm(place: Path, tmp_path: Path) -> None:
    now = lifecycle.up(place)
    script = f"trap 'echo bye > {tmp_path}/end; exit' TERM; touch {tmp_path}/on; sleep 600 & wait"
    batch = tmp_path / "job.sh"
    batch.write_text(f"#!/bin/bash\n{script}\n")
    batch.chmod(0o755)
    submit(now, f"srun {batch}")
    until((tmp_path / "on").exists)
    assert lifecycle.down(place)
    assert (tmp_path / "end").read_text() == "bye\n"


def test_down_spares_other_programs_of_the_user(place: Path) -> None:
    now = lifecycle.up(place)
    users = {**os.environ, "SLURM_CONF": now.slurm_conf, "SLURM_JOB_ID": "1"}
    with subprocess.Popen(["sleep", "60"], env=users, cwd=place) as shell:
        assert lifecycle.down(place)
        assert shell.poll() is None
        shell.kill()


def test_down_of_one_leaves_another_working(running: SandboxStatus, place: Path) -> None:
    other = lifecycle.up(place, shape=plain_shape(1, 1))
    assert not set(other.pids.values()) & set(running.pids.values())
    assert lifecycle.down(place)
    assert lifecycle.status(Path(running.directory)) == running
    assert slurm(running, "srun", "-N2", "echo", "ok").split() == ["ok", "ok"]


@pytest.mark.parametrize("victim", ["slurmctld", "munged", "node2", "keeper"])
def test_up_recovers_from_a_daemon_that_was_killed(place: Path, victim: str) -> None:
    first = lifecycle.up(place)
    word = f"79{os.getpid()}.5"
    submit(first, f"srun -N2 sleep {word}", "-N2")
    until(lambda: len(pids_with(word)) >= 2)
    os.kill(first.pids[victim], signal.SIGKILL)
    until(lambda: (now := lifecycle.status(place)) and now.dead == (victim,))
    now = lifecycle.status(place)
    assert now and not now.up
    # The shape may change, because the broken sandbox is not kept.
    second = lifecycle.up(place, shape=plain_shape(3, 2))
    assert second.up and second.nodes == 3
    assert pids_with(word) == []
    assert not set(first.pids.values()) & set(second.pids.values())
    assert len(slurm(second, "srun", "-N3", "--gres=gpu:2", "hostname").split()) == 3
    if victim == "keeper":  # its orphans are found by their marks
        os.kill(second.pids["keeper"], signal.SIGKILL)
    assert lifecycle.down(place)
    assert processes.find_members(place) == []


def test_down_finds_daemons_whose_directory_was_removed(place: Path) -> None:
    lifecycle.up(place)
    subprocess.run(["rm", "-rf", str(place)], check=True)
    assert lifecycle.down(place)
    assert processes.find_members(place) == []


def test_job_ids_are_not_reused_after_down(place: Path) -> None:
    first = int(submit(lifecycle.up(place), "true"))
    lifecycle.down(place)
    time.sleep(1)
    assert int(submit(lifecycle.up(place), "true")) > first


def test_sandbox_record_is_json_serializable(running: SandboxStatus) -> None:
    import msgspec

    shown = json.loads(msgspec.json.encode(running))
    assert shown["up"] is True and shown["profile"].endswith("/cluster.yaml")
