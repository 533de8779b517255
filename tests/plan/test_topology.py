"""How a job lies on nodes: shares of CPUs and memory, GPU types, what cannot be."""

from __future__ import annotations

import pytest

from hpcrun.errors import InputError
from hpcrun.plan.topology import DEFAULT_CPUS_PER_GPU, Topology, build_topology, parse_memory_mb
from tests.plan.making import cluster, job

NODES = "partitions: {gpu: {gpus_per_node: 8, cpus_per_node: 128, memory_per_node: 1T}}\n"


def topology(resources: str, profile: str = NODES, rest: str = "script: a.py") -> Topology:
    return build_topology(job(f"{rest}\nresources: {{{resources}}}"), cluster(profile))


@pytest.mark.parametrize(
    ("text", "mb"),
    [
        ("1000", 1000),
        ("1000M", 1000),
        ("1000MB", 1000),
        ("1G", 1024),
        ("1GB", 1024),
        ("2T", 2 * 1024**2),
        ("4096K", 4),
        ("4096KB", 4),
    ],
)
def test_memory_text(text: str, mb: int) -> None:
    assert parse_memory_mb(text) == mb


@pytest.mark.parametrize(
    ("gpus", "cpus_per_task", "memory"),
    [(1, 16, "131072M"), (4, 16, "524288M"), (8, 16, "1048576M")],
)
def test_cpus_and_memory_are_the_gpus_share_of_the_node(
    gpus: int, cpus_per_task: int, memory: str
) -> None:
    made = topology(f"gpus_per_node: {gpus}")
    assert made.cpus_per_rank == cpus_per_task
    assert made.memory == memory
    assert made.ranks_per_node == gpus
    assert made.notes == []


def test_an_uneven_share_is_rounded_down() -> None:
    profile = "partitions: {a: {gpus_per_node: 3, cpus_per_node: 64, memory_per_node: 100}}"
    made = topology("gpus_per_node: 2", profile)
    assert (made.cpus_per_rank, made.memory) == (21, "66M")


def test_what_the_job_says_goes_before_the_share() -> None:
    made = topology("gpus_per_node: 2, cpus_per_gpu: 3, memory_per_node: 7G")
    assert (made.cpus_per_rank, made.memory) == (3, "7G")


def test_nodes_that_the_profile_does_not_know() -> None:
    made = topology("gpus_per_node: 2", "")
    assert made.cpus_per_rank == DEFAULT_CPUS_PER_GPU
    assert made.memory is None
    assert len(made.notes) == 1 and "does not know its nodes" in made.notes[0]


def test_a_job_without_gpus_has_one_rank_a_node_and_no_gres() -> None:
    made = topology("gpus_per_node: 0, nodes: 3")
    assert (made.nodes, made.ranks_per_node, made.gres, made.memory) == (3, 1, None, None)


def test_more_gpus_than_a_node_has() -> None:
    with pytest.raises(InputError) as caught:
        topology("gpus_per_node: 9")
    assert caught.value.message == "resources.gpus_per_node: 9: the nodes of default have 8"
    assert "--gpus-per-node 8" in caught.value.fix


def test_facts_of_another_partition_do_not_count() -> None:
    two = NODES + "partition: gpu\n"
    two = two.replace("}}", "}, big: {gpus_per_node: 16}}")
    assert topology("gpus_per_node: 16, partition: big", two).gres == "gpu:16"
    assert topology("gpus_per_node: 16, partition: unlisted", two).gres == "gpu:16"
    with pytest.raises(InputError, match="the nodes of gpu have 8"):
        topology("gpus_per_node: 16", two)


TYPES = """
partition: main
gpu_types:
  a100: {gres: a100-sxm, partition: gpu-a100}
  h100: {constraint: hopper}
"""


@pytest.mark.parametrize(
    ("resources", "gres", "constraint", "partition"),
    [
        ("gpus_per_node: 4", "gpu:4", None, "main"),
        ("gpus_per_node: 4, gpu_type: a100", "gpu:a100-sxm:4", None, "gpu-a100"),
        ("gpus_per_node: 4, gpu_type: h100", "gpu:4", "hopper", "main"),
        ("gpus_per_node: 4, gpu_type: a100, partition: x", "gpu:a100-sxm:4", None, "x"),
    ],
)
def test_gpu_types(resources: str, gres: str, constraint: str | None, partition: str) -> None:
    made = topology(resources, TYPES)
    assert (made.gres, made.constraint, made.partition) == (gres, constraint, partition)


def test_an_unlisted_gpu_type() -> None:
    with pytest.raises(InputError, match="gpu_type: v100: cluster default has a100, h100"):
        topology("gpu_type: v100", TYPES)
    assert topology("gpu_type: v100", "").gres == "gpu:v100:1"
    any_other = TYPES + '  "*": {partition: rest}\n'
    made = topology("gpu_type: v100", any_other)
    assert (made.gres, made.partition) == ("gpu:1", "rest")
    assert topology("gpu_type: h100", any_other).constraint == "hopper"


def test_the_account_is_the_jobs_else_the_profiles() -> None:
    assert topology("", "account: lab").account == "lab"
    assert topology("account: other", "account: lab").account == "other"
