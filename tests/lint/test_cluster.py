"""Requests of scripts compared with the profile of a cluster."""

from __future__ import annotations

import pytest
from msgspec import structs

from hpcrun.lint import lint_request
from hpcrun.spec import Cluster, GpuType, Partition

GPU = Partition(
    nodes=8,
    max_nodes=4,
    gpus_per_node=4,
    gpu_types={"a100": 4, "a40": 2},
    cpus_per_node=64,
    memory_per_node="480G",
    max_time="2-00:00:00",
)
CLUSTER = Cluster(
    partitions={"gpu": GPU, "cpu": Partition(gpus_per_node=0, cpus_per_node=128, min_nodes=2)},
    gpu_types={"a100": GpuType(gres="nvidia_a100"), "a40": GpuType(gres="a40")},
    max_array_size=1001,
    read_on="2026-11-20",
)


def check(directives: str, cluster: Cluster = CLUSTER, **options: str) -> list[tuple[str, str]]:
    """Return rules and messages of errors and warnings."""
    text = f"#!/bin/bash\n#SBATCH {directives}\nsrun python t.py\n"
    found = lint_request(text, "old.sbatch", cluster, "hpcrun.yaml", options)
    return [(one.rule, one.message) for one in found if one.severity != "note"]


@pytest.mark.parametrize(
    ("directives", "message"),
    [
        ("-p gpu --gres=gpu:8", "8 GPUs a node: partition gpu has 4"),
        ("-p gpu --gres=gpu:a40:4", "4 a40 GPUs a node: partition gpu has 2"),
        ("-p gpu --gres=gpu:h100:1", "GPU type h100: partition gpu has a40, nvidia_a100"),
        ("-p cpu -N 2 --gpus-per-node=1", "1 GPU a node: partition cpu has none"),
        ("-p gpu --gpus=8 -N 1", "8 GPUs a node: partition gpu has 4"),
        ("-p gpu --gpus=17", "17 GPUs on 4 nodes: partition gpu has 4 a node"),
        ("-p gpu --gpus=9 -N 1-2", "9 GPUs on 2 nodes: partition gpu has 4 a node"),
        ("-p gpu --gpus=9 -N 2", "9 GPUs on 2 nodes: partition gpu has 4 a node"),
        ("-p gpu --gpus=a40:9", "9 a40 GPUs on 4 nodes: partition gpu has 2 a node"),
        ("-p cpu --gpus=1", "1 GPU: partition cpu has none"),
        ("-p gpu -N 6", "6 nodes: partition gpu gives a job 4"),
        ("-p cpu -N 1", "1 node: partition cpu accepts jobs of 2 or more"),
        ("-p gpu --ntasks-per-node=4 -c 32", "128 CPUs a node: partition gpu has 64"),
        ("-p gpu --mem=1T", "1T of memory a node: partition gpu has 480G"),
        ("-p gpu -t 3-0", "3-0: partition gpu allows 2-00:00:00"),
        ("-t 3-0 --gres=gpu:1 -N 1", "3-0: partition gpu allows 2-00:00:00"),
    ],
)
def test_request_beyond_its_partition_is_an_error(directives: str, message: str) -> None:
    found = check(directives)
    assert ("beyond-partition", message) in found
    text = f"#!/bin/bash\n#SBATCH {directives} --qos=long\n"
    lifted = lint_request(text, "a", CLUSTER, "hpcrun.yaml")
    assert {one.severity for one in lifted} == {"warning"}


@pytest.mark.parametrize(
    "directives",
    [
        "-p gpu -N 4 --gres=gpu:nvidia_a100:4 -c 16 --ntasks-per-node=4 --mem=480G -t 48:00:00",
        "-p gpu,cpu -N 2 --gres=gpu:4",
        "--gres=gpu:4",
        "-p gpu --time-min=1:00:00 -t 7-0",
        "-p gpu -N 2-8",
        "-p gpu --gpus=8 -N 2",
        "-p gpu --gpus=16",
        "-p gpu --gpus=16 --cpus-per-gpu=16 --mem-per-gpu=120G",
        "-p gpu -N 1-2 --gpus=8",
        "-p gpu --mem=0",
        "-p gpu -t 0:30",
        "--array=0-1000",
    ],
)
def test_request_within_a_partition_has_no_finding(directives: str) -> None:
    assert check(directives) == []


def test_unknown_partition_and_large_index_are_reported() -> None:
    ((rule, message),) = check("-p gpus")
    assert (rule, message) == (
        "unknown-partition",
        "partition gpus is not among those of the profile",
    )
    assert check("--array=0-1001")[0][0] == "array-too-large"
    assert check("-p gpus", Cluster()) == []


def test_options_of_the_command_line_replace_directives() -> None:
    assert check("-p gpu -t 3-0", time="1-0") == []
    assert check("-p gpu -t 1-0", time="3-0") != []


def test_type_that_is_requested_by_a_constraint_is_not_compared() -> None:
    types = {"a100": GpuType(constraint="a100"), "a40": GpuType(gres="a40")}
    assert check("-p gpu --gres=gpu:h100:1", structs.replace(CLUSTER, gpu_types=types)) == []


def test_comment_ignores_a_finding() -> None:
    text = "#!/bin/bash\n# hpcrun: ignore=beyond-partition soon\n#SBATCH -p gpu -t 9-0\n"
    assert lint_request(text, "a", CLUSTER, "hpcrun.yaml") == []


def test_account_of_the_profile_is_suggested() -> None:
    found = lint_request("#!/bin/bash\n", "a", Cluster(account="abc"), "p.yaml")
    assert [(one.severity, one.fix) for one in found] == [("note", "#SBATCH --account=abc")]
