"""Requests that no node of a partition can satisfy, by the dated facts of the profile."""

from __future__ import annotations

import pytest

from hpcrun.plan.limits import check_array_size, find_limits, find_unlisted_partitions
from tests.plan.making import cluster, job, plan

FACTS = """
read_on: 2026-11-01
partition: gpu
partitions:
  gpu:
    nodes: 10
    gpus_per_node: 8
    gpu_types: {a100: 8, v100: 4}
    cpus_per_node: 128
    memory_per_node: 1T
    max_time: 2-00
    min_nodes: 1
    max_nodes: 4
    max_gpus: 24
  cpu: {gpus_per_node: 0, cpus_per_node: 2, min_nodes: 2}
  long: {gpus_per_node: 4, max_time: 7-00}
  open: {}
"""


def limits(
    text: str, profile: str = FACTS, *, default: str | None = None, words: str = ""
) -> list[str]:
    """Return the findings for these resources without the file name and the date."""
    spec = f"script: a.py\nresources: {{{text}}}\n{words}"
    made = plan(spec, profile)
    found = find_limits(job(spec), made, cluster(profile), "hpcrun.yaml", default=default)
    return [str(problem) for problem in found]


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        (
            "gpus_per_node: 9",
            "resources.gpus_per_node: 9: partition gpu has 8 GPUs a node (hpcrun.yaml: "
            "partitions.gpu.gpus_per_node, read on 2026-11-01); --gpus-per-node 8 --nodes 2, or "
            "partition open",
        ),
        (
            "gpus_per_node: 8, gpu_type: v100",
            "resources.gpus_per_node: 8: partition gpu has 4 v100 GPUs a node (hpcrun.yaml: "
            "partitions.gpu.gpu_types, read on 2026-11-01); --gpus-per-node 4 --nodes 2 for 8 GPUs "
            "in all",
        ),
        (
            "gpu_type: h100",
            "resources.gpu_type: h100: partition gpu has no h100 GPUs (hpcrun.yaml: "
            "partitions.gpu.gpu_types, read on 2026-11-01); name another partition; here are a100, "
            "v100",
        ),
        (
            "nodes: 4, gpus_per_node: 8",
            "resources.gpus_per_node: 32 on 4 nodes: you can have 24 at once in partition gpu "
            "(hpcrun.yaml: partitions.gpu.max_gpus, read on 2026-11-01); request at most 24",
        ),
        (
            "nodes: 5",
            "resources.nodes: 5: partition gpu gives a job 4 at most (hpcrun.yaml: "
            "partitions.gpu.max_nodes, read on 2026-11-01); --nodes 4, or partition "
            "long or open",
        ),
        (
            "gpus_per_node: 8, cpus_per_gpu: 17",
            "resources.cpus_per_gpu: 17 for each of 8 GPUs are 136: partition gpu has 128 CPUs a "
            "node (hpcrun.yaml: partitions.gpu.cpus_per_node, read on 2026-11-01); 16 for each GPU "
            "at most",
        ),
        (
            "memory_per_node: 1025G",
            "resources.memory_per_node: 1025G: partition gpu has 1T a node (hpcrun.yaml: "
            "partitions.gpu.memory_per_node, read on 2026-11-01); 0 takes all of a node's",
        ),
        (
            "time: 2-00:01",
            "resources.time: 2-00:01: partition gpu gives a job 2-00 at most (hpcrun.yaml: "
            "partitions.gpu.max_time, read on 2026-11-01); --time 2-00, or partition "
            "long or open",
        ),
        (
            "partition: cpu, nodes: 2",
            "resources.gpus_per_node: 1: partition cpu has no GPUs (hpcrun.yaml: "
            "partitions.cpu.gpus_per_node, read on 2026-11-01); name partition gpu or long "
            "or open",
        ),
        (
            "partition: cpu, gpus_per_node: 0, cpus_per_gpu: 1",
            "resources.nodes: 1: partition cpu does not accept jobs with fewer than 2 "
            "(hpcrun.yaml: "
            "partitions.cpu.min_nodes, read on 2026-11-01); name partition gpu or long "
            "or open",
        ),
        (
            "partition: cpu, gpus_per_node: 0, nodes: 2",
            "resources.cpus_per_gpu: 4 (hpcrun's default): partition cpu has 2 CPUs a node "
            "(hpcrun.yaml: partitions.cpu.cpus_per_node, read on 2026-11-01); 2 for each node at "
            "most",
        ),
    ],
)
def test_request_beyond_any_node_is_reported_with_file_key_and_date(
    resources: str, message: str
) -> None:
    assert limits(resources) == [message]


def test_all_exceeded_limits_are_reported_together() -> None:
    found = limits("gpus_per_node: 9, nodes: 11, memory_per_node: 2T, time: UNLIMITED")
    fields = [text.partition(":")[0].removeprefix("resources.") for text in found]
    assert fields == ["gpus_per_node", "gpus_per_node", "nodes", "memory_per_node", "time"]
    undated = limits("gpus_per_node: 9", FACTS.replace("read_on: 2026-11-01", ""))
    assert "partitions.gpu.gpus_per_node, no date)" in undated[0]


@pytest.mark.parametrize("time", ["2-00", "48:00:00", "2880", "2-0:0:0"])
def test_request_of_exactly_the_limits_is_accepted(time: str) -> None:
    whole = f"gpus_per_node: 8, nodes: 3, cpus_per_gpu: 16, memory_per_node: 1T, time: '{time}'"
    assert limits(whole) == []


@pytest.mark.parametrize(
    "resources",
    [
        "gpus_per_node: 64, nodes: 99, time: UNLIMITED, memory_per_node: 99T, cpus_per_gpu: 99",
        "gpus_per_node: 64, partition: open",
        "gpus_per_node: 64, partition: nobody-read-it",
        "gpus_per_node: 64, partition: 'gpu,open'",
    ],
)
def test_unknown_facts_impose_no_limit(resources: str) -> None:
    profile = "" if "nodes: 99" in resources else FACTS
    assert limits(resources, profile) == []


def test_unlimited_time_is_longer_than_any_limit() -> None:
    assert len(limits("time: '0'")) == 1
    assert limits("partition: long, gpus_per_node: 4, time: 7-0") == []


def test_time_min_is_checked_instead_of_time() -> None:
    assert limits("time: 3-00", words="slurm: {time-min: 1-00}") == []
    assert "slurm.time-min: 3-00: " in limits("time: 4-00", words="slurm: {time-min: 3-00}")[0]


@pytest.mark.parametrize(
    ("slurm", "message"),
    [
        ("mem: 2T", "slurm.mem: 2T: "),
        ("mem-per-cpu: 9G", "slurm.mem-per-cpu: 9G for each of 128: "),
    ],
)
def test_memory_requested_by_slurm_options_is_checked(slurm: str, message: str) -> None:
    found = limits("gpus_per_node: 8", words=f"slurm: {{{slurm}}}")
    assert len(found) == 1 and found[0].startswith(message)


def test_one_fitting_partition_of_several_is_enough() -> None:
    assert limits("partition: 'gpu,long', gpus_per_node: 8") == []
    assert limits("partition: 'gpu,long', gpus_per_node: 4, time: 5-00") == []
    [message] = limits("partition: 'gpu,long', gpus_per_node: 9, time: 8-00")
    assert message == (
        "resources.partition: gpu,long: the job fits none of the partitions: partition gpu has 8 "
        "GPUs a node, not 9; partition long has 4 GPUs a node, not 9 (hpcrun.yaml: partitions, "
        "read on 2026-11-01)"
    )


def test_job_without_partition_is_checked_against_all_partitions() -> None:
    profile = FACTS.replace("partition: gpu\n", "").replace("  open: {}\n", "")
    assert limits("gpus_per_node: 8", profile) == []
    [message] = limits("gpus_per_node: 99", profile)
    assert message.startswith("resources: the job fits none of the partitions: ")
    [message] = limits("gpus_per_node: 5", profile, default="long")
    assert message.startswith("resources.gpus_per_node: 5: partition long has 4 GPUs a node")
    dropped = limits("gpus_per_node: 99", FACTS + "slurm: {partition: false}\n")
    assert dropped == []  # it lands in the cluster's default, which nobody knows


def test_partition_of_the_gpu_type_sets_the_limits() -> None:
    profile = FACTS + "gpu_types: {old: {partition: long}}\n"
    [message] = limits("gpus_per_node: 8, gpu_type: old", profile)
    assert message.startswith("resources.gpus_per_node: 8: partition long has 4 GPUs a node")


def test_unlisted_partition_is_reported() -> None:
    text = "script: a.py\nresources: {partition: 'gpuu,gpu'}"
    assert find_unlisted_partitions(plan(text, FACTS), cluster(FACTS), "hpcrun.yaml") == {
        "gpuu": "not among those of hpcrun.yaml (read on 2026-11-01): cpu, gpu, long, open; "
        "did you mean gpu?"
    }
    undated = FACTS.replace("read_on: 2026-11-01", "")
    assert find_unlisted_partitions(plan(text, undated), cluster(undated), "x") == {}
    assert find_unlisted_partitions(plan("script: a.py", FACTS), cluster(FACTS), "x") == {}


def test_sweep_larger_than_max_array_size_is_refused() -> None:
    profile = cluster("max_array_size: 1001\nread_on: 2026-11-01")
    assert check_array_size(1001, profile, "hpcrun.yaml") == []
    [message] = check_array_size(2003, profile, "hpcrun.yaml")
    assert str(message) == (
        "sweep: 2003 runs: an array has 1001 tasks at most (hpcrun.yaml: max_array_size, read on "
        "2026-11-01); submit fewer"
    )
    assert check_array_size(1001, 1001) == []
    [message] = check_array_size(1002, 1001)
    assert "an array has 1001 tasks at most (MaxArraySize); submit fewer" in str(message)


def test_partition_with_the_gpu_type_is_suggested() -> None:
    """init writes such a profile for GPUs known by features: the type has no partition."""
    profile = """\
read_on: 2026-11-25
partition: gpu
partitions:
  gpu: {gpus_per_node: 4, gpu_types: {v100: 4}, max_time: 4-04}
  gpu_p5: {gpus_per_node: 8, gpu_types: {a100: 8}, max_time: 20:00:00}
gpu_types: {a100: {constraint: a100}, v100: {constraint: v100}}
"""
    (problem,) = limits("gpu_type: a100", profile)
    assert problem.endswith("name partition gpu_p5; here are v100")
