"""Traps of the rendezvous and of hostfiles (19 to 34)."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.traps.conftest import Maker
from tests.traps.standing_in import in_harness

pytestmark = pytest.mark.slow

# Start of the ephemeral ports in Linux (net.ipv4.ip_local_port_range).
EPHEMERAL = 32768


def ports(job_ids: range, attempt: int = 0) -> list[int]:
    """Return the ports of some jobs."""
    loop = f"for SLURM_JOB_ID in {{{job_ids.start}..{job_ids.stop - 1}}}; do free_port; done"
    return [int(line) for line in in_harness(loop, HPCRUN_ATTEMPT=str(attempt)).split()]


def test_concurrent_jobs_have_different_ports() -> None:
    found = ports(range(5_000_000, 5_000_400))
    assert len(set(found)) == 400
    assert all(1024 < port < EPHEMERAL for port in found)


def test_restart_has_a_different_port() -> None:
    """The previous attempt may still use its port, or have ranks that would join the new one."""
    attempts = [ports(range(77, 78), attempt)[0] for attempt in range(10)]
    assert len(set(attempts)) == 10


def test_port_in_use_is_skipped() -> None:
    (first,) = ports(range(88, 89))
    with socket.create_server(("127.0.0.1", first)):
        (second,) = ports(range(88, 89))
    assert second != first
    assert 1024 < second < EPHEMERAL


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """Stubs of scontrol with two nodes, and of ip on the first one, with address 10.77.0.1."""
    stand_ins = {
        "scontrol": 'echo "NodeName=n2 X=1 NodeAddr=$SECOND Y=2"\n'
        'echo "NodeName=n1 X=1 NodeAddr=$FIRST Y=2"',
        "ip": 'case "$*" in\n'
        '"-o route get 10.77.0.2") echo "10.77.0.2 dev ib0 src 10.77.0.1 uid 0 \\\\  cache" ;;\n'
        '"-o route get 127."*) echo "local ${*: -1} dev lo src 127.0.0.1 uid 0" ;;\n'
        '*) echo "RTNETLINK answers: Network is unreachable" >&2; exit 2 ;;\nesac',
    }
    for name, body in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("first", "second", "address"),
    [
        ("10.77.0.1", "10.77.0.2", "10.77.0.1"),
        ("localhost", "10.77.0.2", "10.77.0.1"),
        ("127.0.1.1", "10.77.0.2", "10.77.0.1"),
        # A cluster on one machine, like a sandbox.
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_address_of_rank_0_is_reachable_from_other_nodes(
    commands: Path, first: str, second: str, address: str
) -> None:
    """Debian resolves a host's own name to 127.0.1.1; scontrol or the route is right."""
    found = in_harness("first_address n1 n2", commands, FIRST=first, SECOND=second)
    assert found == f"{address}\n"


@pytest.mark.parametrize("second", ["10.99.0.2", ""])
def test_missing_address_is_an_error(commands: Path, second: str) -> None:
    found = in_harness("first_address n1 n2", commands, FIRST="127.0.1.1", SECOND=second)
    assert "hpcrun: error: " in found and "n2" in found.partition("error: ")[2]


def test_failing_address_lookup_ends_the_job(make_job: Maker) -> None:
    """`export X=$(command)` hides that the command failed."""
    job = make_job("resources: {nodes: 2, gpus_per_node: 1}")
    job.stand_in("ip", "exit 2")
    assert job.go(hosts={"n1": "127.0.1.1", "n2": "10.77.0.2"}) == 1
    assert "n1 has no route to n2 (10.77.0.2)" in job.log()
    assert job.shown() == [] and "rank 0 is on" not in job.log()


def test_bare_command_runs_without_an_address(make_job: Maker) -> None:
    """For example, preprocessing on two nodes that do not communicate."""
    command = 'command: [bash, -c, "echo trained at ${{MASTER_ADDR:-nowhere}}"]\nlauncher: null\n'
    job = make_job(f"{command}resources: {{nodes: 2, gpus_per_node: 1}}")
    job.stand_in("ip", "exit 2")
    assert job.go(hosts={"n1": "127.0.1.1", "n2": "10.77.0.2"}) == 0, job.log()
    assert job.log().count("trained at nowhere\n") == 2
    assert "at no known address" in job.log() and "error" not in job.log()


def test_hostfile_lists_each_host_once_in_slurms_order(make_job: Maker) -> None:
    job = make_job("resources: {nodes: 2, gpus_per_node: 3}")
    hosts = {"z9": "127.0.0.2", "a1": "127.0.0.3"}
    assert job.go(hosts=hosts) == 0, job.log()
    hostfile = (job.run_dir / "attempts/0/hostfile").read_text()
    assert hostfile == "z9 slots=3\na1 slots=3\n"
    assert [shown["environ"]["SLURMD_NODENAME"] for shown in job.shown()] == ["z9"] * 3 + ["a1"] * 3


DEEPSPEED = "launcher: deepspeed\nresources: {nodes: 2, gpus_per_node: 2}"


def test_deepspeed_launcher_creates_one_world(make_job: Maker) -> None:
    job = make_job(f"{DEEPSPEED}\nargs: [--world, sockets]")
    assert job.go() == 0, job.log()
    assert [shown["rank"] for shown in job.shown()] == [0, 1, 2, 3]
    assert all(len(shown["world"]) == 4 for shown in job.shown())


def test_missing_hostfile_prevents_training(make_job: Maker) -> None:
    """DeepSpeed would print "will proceed with training with local resources only" on each node."""
    job = make_job(DEEPSPEED)
    srun = (job.bin / "srun").read_text().partition("exec ")[2]
    job.stand_in("srun", f'rm "$HPCRUN_HOSTFILE"\nexec {srun}')
    assert job.go() == 1
    assert f"the hostfile {job.run_dir}/attempts/0/hostfile is missing" in job.log()
    assert job.shown() == []


def test_hostfile_with_fewer_hosts_prevents_training(make_job: Maker) -> None:
    job = make_job(DEEPSPEED)
    srun = (job.bin / "srun").read_text().partition("exec ")[2]
    job.stand_in("srun", f'sed -i 1d "$HPCRUN_HOSTFILE"\nexec {srun}')
    assert job.go() == 1
    assert "has 1 of the job's 2 nodes" in job.log()
    assert job.shown() == []


def test_killed_launcher_is_not_success(make_job: Maker) -> None:
    """DeepSpeed's launcher exits with 0 after a signal has ended its processes."""
    job = make_job(DEEPSPEED)
    assert job.go(STAND_IN_KILLED="1") == 1
    assert "0 of its 2 ranks ended well: was it killed?" in job.log()
    assert job.record()["exit_code"] == 1


def test_ranks_keep_the_gpus_allocated_by_slurm(make_job: Maker) -> None:
    """DeepSpeed numbers GPUs from 0, which on a shared node may belong to another job."""
    job = make_job(DEEPSPEED)
    assert job.go(STAND_IN_GPU_IDS="2,3") == 0, job.log()
    assert [shown["gpus"] for shown in job.shown()] == ["2,3"] * 4


def test_rank_0_is_on_the_first_node_in_any_order_of_arrival(make_job: Maker) -> None:
    """With torchrun's c10d, ranks are assigned by arrival, and rank 0 may be on any node."""
    job = make_job("launcher: torchrun\nresources: {nodes: 2, gpus_per_node: 1}")
    # Node 0 arrives later, with a higher process id.
    late = '[ "$SLURM_NODEID$1$LATE" != 0 ] || { sleep 1; LATE=1 bash "$0"; exit; }\n'
    node = job.run_dir / "node.sh"
    node.write_text(node.read_text().replace("\n", f"\n{late}", 1))
    assert job.go() == 0, job.log()
    shown = job.shown()
    assert [one["environ"]["SLURMD_NODENAME"] for one in shown] == ["n1", "n2"]
    assert [one["node_rank"] for one in shown] == [0, 1]
