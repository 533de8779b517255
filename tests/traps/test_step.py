"""Traps of the step that starts the ranks (10 to 18), with a stub of srun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.traps.conftest import Maker

pytestmark = pytest.mark.slow


def test_rank_has_its_cpus(make_job: Maker) -> None:
    """From Slurm 22.05 to 23.02 srun ignores the job's --cpus-per-task: one CPU per task."""
    job = make_job("resources: {nodes: 2, gpus_per_node: 2, cpus_per_gpu: 3}")
    assert job.go() == 0, job.log()
    assert [shown["environ"]["STAND_IN_CPUS"] for shown in job.shown()] == ["3"] * 4
    assert [shown["threads"] for shown in job.shown()] == ["3"] * 4


def test_rank_sees_all_gpus_of_its_node(make_job: Maker) -> None:
    """With one visible GPU per rank, NCCL cannot access the memory of peers."""
    job = make_job("resources: {nodes: 2, gpus_per_node: 4}")
    assert job.go() == 0, job.log()
    assert [shown["gpus"] for shown in job.shown()] == ["0,1,2,3"] * 8
    assert [shown["local_rank"] for shown in job.shown()] == [0, 1, 2, 3] * 2


@pytest.mark.parametrize(("launcher", "starts"), [("", 2), ("launcher: srun", 4)])
def test_launcher_is_started_once_per_node(make_job: Maker, launcher: str, starts: int) -> None:
    text = "command: [sh, -c, 'echo started']\nresources: {nodes: 2, gpus_per_node: 2}\n"
    job = make_job(text + (launcher or "launcher: null"))
    assert job.go() == 0, job.log()
    assert job.log().count("started\n") == starts


def test_every_node_has_a_different_node_rank(make_job: Maker) -> None:
    """$SLURM_NODEID expanded in the batch script is 0 on all nodes."""
    job = make_job("resources: {nodes: 2, gpus_per_node: 2}\nargs: [--world, sockets]")
    assert job.go() == 0, job.log()
    shown = job.shown()
    assert [one["rank"] for one in shown] == [0, 1, 2, 3]
    assert [one["node_rank"] for one in shown] == [0, 0, 1, 1]
    assert [one["environ"]["HPCRUN_NODE_RANK"] for one in shown] == ["0", "0", "1", "1"]
    assert all(len(one["world"]) == one["world_size"] == 4 for one in shown)


def test_failing_rank_ends_the_others(make_job: Maker, tmp_path: Path) -> None:
    script = tmp_path / "fail.py"
    script.write_text(
        "import os, pathlib, sys, time\n"
        "here, rank = pathlib.Path(), os.environ['RANK']\n"
        "(here / f'runs-{rank}').touch()\n"
        "while len(list(here.glob('runs-*'))) < 4: time.sleep(0.1)\n"
        "if rank == '2': sys.exit(7)\n"
        "time.sleep(10)\n"
        "pathlib.Path('survived').touch()\n"
    )
    job = make_job("resources: {nodes: 2, gpus_per_node: 2}", script=script)
    assert job.go() == 7, job.log()
    assert not (job.folder / "survived").exists()
    assert job.record()["first_failure"]["rank"] == 2


def test_run_inside_a_step_gets_its_own_step(make_job: Maker) -> None:
    """Inside `srun --pty bash` a second step would wait forever for the CPUs of the first one."""
    job = make_job("resources: {nodes: 2, gpus_per_node: 1}")
    assert job.go(SLURM_STEP_ID="0", SLURM_STEP_NODELIST="n1", STAND_IN_STEP="0") == 0, job.log()
    assert [shown["rank"] for shown in job.shown()] == [0, 1]


def test_missing_host_list_is_an_error(make_job: Maker) -> None:
    """If scontrol fails, every node would consider itself the only one."""
    job = make_job("resources: {nodes: 2, gpus_per_node: 1}")
    job.stand_in("scontrol", 'echo "scontrol: command not found" >&2; exit 127')
    assert job.go() == 1
    assert "the job wants 2 node(s) and has 0" in job.log()
    assert job.shown() == []


def test_allocation_with_other_nodes_does_not_start(make_job: Maker) -> None:
    job = make_job("resources: {nodes: 2, gpus_per_node: 1}")
    job.stand_in("scontrol", "echo n1")
    assert job.go() == 1
    assert "the job wants 2 node(s) and has 1: n1" in job.log()
    assert job.shown() == []


def test_uneven_ranks_do_not_train(make_job: Maker) -> None:
    job = make_job("resources: {nodes: 2, gpus_per_node: 2}")
    assert job.go(STAND_IN_TASKS="3,1") == 1
    assert "more ranks than the 2 that the job wants on each node" in job.log()


def test_task_without_all_gpus_does_not_train(make_job: Maker) -> None:
    """With --gpus-per-task, NCCL finds no path between the GPUs of a node."""
    job = make_job("resources: {nodes: 2, gpus_per_node: 2}")
    assert job.go(STAND_IN_GPU_IDS="1") == 1
    assert "a task sees 1 of the 2 GPUs (CUDA_VISIBLE_DEVICES=1)" in job.log()
    assert job.shown() == []


def test_gpus_per_task_of_an_allocation_is_removed(make_job: Maker) -> None:
    """salloc --gpus-per-task sets SLURM_GPUS_PER_TASK, which srun treats as its own option."""
    job = make_job("resources: {gpus_per_node: 2}")
    assert job.go(SLURM_GPUS_PER_TASK="1") == 0, job.log()
    assert ["STAND_IN_BOUND" in shown["environ"] for shown in job.shown()] == [False, False]


def test_container_options_are_passed_to_srun(make_job: Maker) -> None:
    """On many sites sbatch does not support the options of pyxis."""
    job = make_job(
        "resources: {nodes: 2, gpus_per_node: 1}\n"
        "setup: {container: {image: 'docker://image:1', runtime: pyxis}, python: python3}"
    )
    assert not [option for option, _ in job.plan.directives if option.startswith("container")]
    assert job.go() == 0, job.log()
    images = [shown["environ"]["STAND_IN_IMAGE"] for shown in job.shown()]
    assert images == ["docker://image:1"] * 2
