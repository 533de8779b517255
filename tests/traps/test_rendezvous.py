"""Traps of the rendezvous and of hostfiles (19 to 34), by the harness' own functions and jobs."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.traps.conftest import Maker
from tests.traps.standing_in import in_harness

pytestmark = pytest.mark.slow

# Of Linux (net.ipv4.ip_local_port_range): from here the kernel takes ports itself.
EPHEMERAL = 32768


def ports(job_ids: range, attempt: int = 0) -> list[int]:
    """The port of each of some jobs."""
    loop = f"for SLURM_JOB_ID in {{{job_ids.start}..{job_ids.stop - 1}}}; do free_port; done"
    return [int(line) for line in in_harness(loop, HPCRUN_ATTEMPT=str(attempt)).split()]


def test_jobs_beside_each_other_have_ports_of_their_own() -> None:
    found = ports(range(5_000_000, 5_000_400))
    assert len(set(found)) == 400
    assert all(1024 < port < EPHEMERAL for port in found)


def test_a_restart_has_a_port_of_its_own() -> None:
    """The attempt before may still hold its port, or have ranks that would join the new one."""
    attempts = [ports(range(77, 78), attempt)[0] for attempt in range(10)]
    assert len(set(attempts)) == 10


def test_a_port_that_is_taken_is_passed_over() -> None:
    (first,) = ports(range(88, 89))
    with socket.create_server(("127.0.0.1", first)):
        (second,) = ports(range(88, 89))
    assert second != first
    assert 1024 < second < EPHEMERAL


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A scontrol that knows two nodes, and an ip of the first one, whose address is 10.77.0.1."""
    stand_ins = {
        "scontrol": 'case $* in *n1) echo "X=1 NodeAddr=$FIRST Y=2" ;;\n'
        '*n2) echo "X=1 NodeAddr=$SECOND Y=2" ;; esac',
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
        # A cluster on one machine, as a sandbox is.
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_the_address_of_rank_0_is_one_that_others_reach(
    commands: Path, first: str, second: str, address: str
) -> None:
    """Debian resolves a host's own name to 127.0.1.1; scontrol knows better, or the route does."""
    found = in_harness("first_address n1 n2", commands, FIRST=first, SECOND=second)
    assert found == f"{address}\n"


@pytest.mark.parametrize("second", ["10.99.0.2", ""])
def test_no_address_is_an_error_and_not_a_guess(commands: Path, second: str) -> None:
    found = in_harness("first_address n1 n2", commands, FIRST="127.0.1.1", SECOND=second)
    assert "hpcrun: error: " in found and "n2" in found.partition("error: ")[2]


def test_a_failure_to_find_the_address_ends_the_job(make_job: Maker) -> None:
    """`export X=$(command)` hides that the command failed."""
    job = make_job("resources: {nodes: 2, gpus_per_node: 1}")
    job.stand_in("ip", "exit 2")
    assert job.go(hosts={"n1": "127.0.1.1", "n2": "10.77.0.2"}) == 1
    assert "n1 has no route to n2 (10.77.0.2)" in job.log()
    assert job.shown() == [] and "rank 0 is on" not in job.log()


def test_a_command_alone_runs_without_the_address(make_job: Maker) -> None:
    """It may be a preprocessing of two nodes that never meet."""
    command = 'command: [bash, -c, "echo trained at ${{MASTER_ADDR:-nowhere}}"]\nlauncher: null\n'
    job = make_job(f"{command}resources: {{nodes: 2, gpus_per_node: 1}}")
    job.stand_in("ip", "exit 2")
    assert job.go(hosts={"n1": "127.0.1.1", "n2": "10.77.0.2"}) == 0, job.log()
    assert job.log().count("trained at nowhere\n") == 2
    assert "at no known address" in job.log() and "error" not in job.log()


def test_the_hostfile_is_slurms_order_each_host_once(make_job: Maker) -> None:
    job = make_job("resources: {nodes: 2, gpus_per_node: 3}")
    hosts = {"z9": "127.0.0.2", "a1": "127.0.0.3"}
    assert job.go(hosts=hosts) == 0, job.log()
    hostfile = (job.run_dir / "attempts/0/hostfile").read_text()
    assert hostfile == "z9 slots=3\na1 slots=3\n"
    assert [shown["environ"]["SLURMD_NODENAME"] for shown in job.shown()] == ["z9"] * 3 + ["a1"] * 3


DEEPSPEED = "launcher: deepspeed\nresources: {nodes: 2, gpus_per_node: 2}"


def test_deepspeeds_launcher_makes_one_world(make_job: Maker) -> None:
    job = make_job(f"{DEEPSPEED}\nargs: [--world, sockets]")
    assert job.go() == 0, job.log()
    assert [shown["rank"] for shown in job.shown()] == [0, 1, 2, 3]
    assert all(len(shown["world"]) == 4 for shown in job.shown())


def test_a_hostfile_that_is_gone_is_no_training_alone(make_job: Maker) -> None:
    """DeepSpeed says "will proceed with training with local resources only", on each node."""
    job = make_job(DEEPSPEED)
    srun = (job.bin / "srun").read_text().partition("exec ")[2]
    job.stand_in("srun", f'rm "$HPCRUN_HOSTFILE"\nexec {srun}')
    assert job.go() == 1
    assert f"the hostfile {job.run_dir}/attempts/0/hostfile is missing" in job.log()
    assert job.shown() == []


def test_a_hostfile_of_fewer_hosts_is_no_smaller_training(make_job: Maker) -> None:
    job = make_job(DEEPSPEED)
    srun = (job.bin / "srun").read_text().partition("exec ")[2]
    job.stand_in("srun", f'sed -i 1d "$HPCRUN_HOSTFILE"\nexec {srun}')
    assert job.go() == 1
    assert "has 1 of the job's 2 nodes" in job.log()
    assert job.shown() == []


def test_a_launcher_that_was_killed_is_no_success(make_job: Maker) -> None:
    """DeepSpeed's launcher ends with 0 when a signal has ended what it started."""
    job = make_job(DEEPSPEED)
    assert job.go(STAND_IN_KILLED="1") == 1
    assert "0 of its 2 ranks ended well: was it killed?" in job.log()
    assert job.record()["exit_code"] == 1


def test_ranks_keep_the_gpus_that_slurm_gave(make_job: Maker) -> None:
    """DeepSpeed's launcher counts from 0, which on a shared node are another job's GPUs."""
    job = make_job(DEEPSPEED)
    assert job.go(STAND_IN_GPU_IDS="2,3") == 0, job.log()
    assert [shown["gpus"] for shown in job.shown()] == ["2,3"] * 4


def test_rank_0_is_on_the_first_node_whoever_comes_first(make_job: Maker) -> None:
    """With torchrun's c10d the ranks go by arrival, and rank 0 may be anywhere."""
    job = make_job("launcher: torchrun\nresources: {nodes: 2, gpus_per_node: 1}")
    # Node 0 comes later, and as a process with a higher number.
    late = '[ "$SLURM_NODEID$1$LATE" != 0 ] || { sleep 1; LATE=1 bash "$0"; exit; }\n'
    node = job.run_dir / "node.sh"
    node.write_text(node.read_text().replace("\n", f"\n{late}", 1))
    assert job.go() == 0, job.log()
    shown = job.shown()
    assert [one["environ"]["SLURMD_NODENAME"] for one in shown] == ["n1", "n2"]
    assert [one["node_rank"] for one in shown] == [0, 1]
