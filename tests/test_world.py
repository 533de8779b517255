"""Consistency checks of a job's ranks by the harness, alone and in a job, without Slurm."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from hpcrun.assets import shipped_folder
from hpcrun.render.quoting import quote_bash
from tests.harness_job import RANK, Job, job

__all__ = ["job"]  # the fixture

TEMPLATES = shipped_folder("templates")
# Bash does not know the folder of a program that it gets as an argument.
HARNESS = (TEMPLATES / "harness.sh").read_text().replace("${BASH_SOURCE[0]%/*}", str(TEMPLATES))


def ask(command: str, **env: str) -> tuple[int, str]:
    """Call a function of the harness on node n1; return its status and error message."""
    functions, _, _ = HARNESS.partition("\nmode=$1\n")
    done = subprocess.run(
        ["bash", "-c", f"{functions}\n{command}"],
        env={"PATH": os.environ["PATH"], "SLURMD_NODENAME": "n1", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr.removeprefix("hpcrun: error: n1: ").rstrip("\n")


# ---- the allocation


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, ""),
        ({"SLURM_GPUS_ON_NODE": "8"}, ""),
        ({"SLURM_GPUS_ON_NODE": "2"}, "Slurm gave it 2 GPU(s), and the job wants 4 on each node"),
        ({"CUDA_VISIBLE_DEVICES": "3"}, "a task sees 1 of the 4 GPUs (CUDA_VISIBLE_DEVICES=3)"),
        ({"CUDA_VISIBLE_DEVICES": "3", "HPCRUN_GPUS_PER_TASK": "1"}, ""),
        (
            {"SLURM_GPUS_ON_NODE": "1", "HPCRUN_GPUS_PER_TASK": "1"},
            "Slurm gave it 1 GPU(s), and the job wants 4 on each node",
        ),
        ({}, ""),
        ({"SLURM_GPUS_ON_NODE": "0", "HPCRUN_GPUS_PER_NODE": "0"}, ""),
    ],
)
def test_uneven_and_bound_gpus_are_refused_by_every_node(env: dict[str, str], message: str) -> None:
    env = {"HPCRUN_GPUS_PER_NODE": "4", "SLURM_JOB_ID": "1", **env}
    code, out = ask("check_allocation", **env)
    assert (code != 0) == bool(message)
    assert out.startswith(message) and bool(out) == bool(message)


def test_cpu_job_without_slurm_ignores_visible_gpus() -> None:
    env = {"HPCRUN_GPUS_PER_NODE": "4", "CUDA_VISIBLE_DEVICES": "0"}
    assert ask("check_allocation", HPCRUN_DEVICE="cpu", **env)[0] == 0
    assert ask("check_allocation", HPCRUN_DEVICE="cuda", **env)[0] == 1


# ---- the hostfile


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n1 slots=4\nn2 slots=4\n", ""),
        ("n1 slots=4\n", "has 1 of the job's 2 nodes"),
        ("n1 slots=4\nn2 slots=8\n", "has 1 of the job's 2 nodes"),
        ("", "is missing: each node would train alone"),
        (None, "is missing: each node would train alone"),
    ],
)
def test_hostfile_of_another_job_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    hostfile = tmp_path / "host file"
    if text is not None:
        hostfile.write_text(text)
    env = {"HPCRUN_HOSTFILE": str(hostfile), "HPCRUN_NODES": "2", "HPCRUN_RANKS_PER_NODE": "4"}
    code, out = ask("sleep() { :; }; check_hostfile", **env)
    assert (code == 0) == (not message)
    if message:
        assert out == f"the hostfile {hostfile} {message}"


# ---- reaching rank 0


def test_listening_and_refusing_ports_are_both_reachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert ask(f"reach 127.0.0.1 {port}") == (0, "")
    assert ask(f"sleep() {{ echo again; }}; reach 127.0.0.1 {port}") == (0, "")


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("bash: connect: No route to host", "No route to host"),
        ("bash: connect: Network is unreachable", "Network is unreachable"),
        ("bash: connect: Connection timed out", "Connection timed out"),
    ],
)
def test_unreachable_host_is_reported(says: str, reason: str) -> None:
    # The kernel's answers cannot be had from here; tests/cluster cuts a real link.
    command = f"sleep() {{ SECONDS=99; }}; timeout() {{ echo '{says}' >&2; return 1; }}; "
    code, out = ask(command + "reach 10.9.8.7 12345")
    assert code == 1
    assert out == f"cannot reach rank 0's node at 10.9.8.7, port 12345: {reason}"


def test_missing_response_is_reported() -> None:
    command = "sleep() { SECONDS=99; }; timeout() { return 124; }; reach 10.9.8.7 1"
    code, out = ask(command)
    assert (code, out) == (1, "cannot reach rank 0's node at 10.9.8.7, port 1: no answer")


def test_temporarily_unreachable_host_is_retried() -> None:
    command = (
        "tries=0; sleep() { tries=1; }; "
        'timeout() { [ $tries -eq 1 ] || { echo "connect: No route to host" >&2; return 1; }; }; '
    )
    assert ask(command + "reach 10.9.8.7 1")[0] == 0


def test_missing_bash_feature_does_not_stop_the_job() -> None:
    command = "timeout() { echo '/dev/tcp/x/1: No such file or directory' >&2; return 1; }; "
    assert ask(command + "reach x 1") == (0, "")


# ---- what launchers overwrite, and how they end


def rank(local_rank: int, *words: str) -> str:
    return (
        f"(export RANK={local_rank} LOCAL_RANK={local_rank} WORLD_SIZE=2\n"
        f"{RANK} {' '.join(words)})\n"
    )


def test_variables_overwritten_by_a_launcher_are_restored(job: Job) -> None:
    tell = 'echo "${CUDA_VISIBLE_DEVICES-none} ${HIP_VISIBLE_DEVICES-none}"'
    words = f"bash -c '{tell} >\"$HPCRUN_RUN_DIR/told\"'"
    node = "export CUDA_VISIBLE_DEVICES=0,1 HIP_VISIBLE_DEVICES=0,1\n" + rank(0, words)
    job.write(node, world=2)
    assert job.go(CUDA_VISIBLE_DEVICES="5,7")[0] == 0
    assert (job.run.path / "told").read_text() == "5,7 none\n"


def test_every_rank_knows_its_node_with_any_launcher(job: Job) -> None:
    tell = 'echo "$NODE_RANK $GROUP_RANK $LOCAL_WORLD_SIZE"'
    job.write(rank(1, f"bash -c '{tell} >\"$HPCRUN_RUN_DIR/told\"'"), world=2)
    assert job.go()[0] == 0
    assert (job.run.path / "told").read_text() == "0 0 2\n"


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed", "accelerate"])
@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (rank(0, "true") + rank(1, "true"), ""),
        (rank(0, "true"), "the launcher ended, but 1 of its 2 ranks ended well: was it killed?"),
        ("", "the launcher ended, but 0 of its 2 ranks ended well: was it killed?"),
    ],
)
def test_launcher_that_ends_without_its_ranks_is_not_success(
    job: Job, launcher: str, ranks: str, message: str
) -> None:
    job.write(f"{ranks}exit 0", setup=f"export HPCRUN_LAUNCHER={launcher}", world=2)
    code, _ = job.go()
    assert code == job.end.exit_code == (1 if message else 0)
    assert message in job.log()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["none", "srun"])
def test_command_without_launcher_needs_no_rank_records(job: Job, launcher: str) -> None:
    job.write("exit 0", setup=f"export HPCRUN_LAUNCHER={launcher}", world=2)
    assert job.go()[0] == 0


def test_failed_rank_does_not_count_as_success(job: Job) -> None:
    ranks = rank(0, "true") + rank(1, "false")
    job.write(f"{ranks}exit 0", setup="export HPCRUN_LAUNCHER=deepspeed", world=2)
    assert job.go()[0] == 1
    assert job.failure.rank == 1


@pytest.mark.slow
def test_ranks_may_save_after_their_launcher_has_died(job: Job) -> None:
    """DeepSpeed's runner dies of TERM at once; its ranks go on, and nobody has asked them."""
    (job.run.path / "rank.sh").write_text(
        'save() { sleep 1; touch "$HPCRUN_RUN_DIR/saved"; exit 0; }\ntrap save TERM\n'
        'touch "$HPCRUN_RUN_DIR/ready"\nwhile :; do sleep 0.05; done\n'
    )
    started = rank(0, 'bash "$HPCRUN_RUN_DIR/rank.sh"')
    setup = "export HPCRUN_LAUNCHER=deepspeed"
    job.write(f"setsid bash -c {quote_bash(started)} &\nwait", setup=setup, world=2)
    process = job.start()
    job.wait_for("ready")
    process.terminate()
    assert job.finish(process)[0] == 143
    assert (job.run.path / "saved").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("job_id", "looks"), [({"SLURM_JOB_ID": "7"}, 400), ({}, 42)])
def test_ranks_of_deepspeed_have_the_whole_grace_time_to_save(
    tmp_path: Path, job_id: dict[str, str], looks: int
) -> None:
    """Slurm kills them at the end of the grace time; on hostfile hosts it is twenty seconds."""
    count = tmp_path / "looks"
    stubs = f'sleep() {{ :; }}; guards() {{ echo >>"{count}"; '
    stubs += f'[ "$(wc -l <"{count}")" -ge 400 ] || echo 99999999; }}; '
    assert ask(stubs + "await_ranks", HPCRUN_LAUNCHER="deepspeed", **job_id) == (0, "")
    assert len(count.read_text().splitlines()) == looks
