"""The layout of a job on nodes: shares of CPUs and memory, GPU types, refused requests."""

from __future__ import annotations

import pytest

from hpcrun.errors import SpecError
from hpcrun.plan.build import build_plan
from hpcrun.plan.directives import DEFAULT_CPUS_PER_GPU, build_topology, parse_memory_mb
from hpcrun.plan.findings import Findings
from hpcrun.plan.limits import find_limits
from hpcrun.plan.types import Topology
from tests.plan.making import PLACE, cluster, job

NODES = "partitions: {gpu: {gpus_per_node: 8, cpus_per_node: 128, memory_per_node: 1T}}\n"


def topology(
    resources: str,
    profile: str = NODES,
    rest: str = "script: a.py",
    notes: list[str] | None = None,
) -> Topology:
    found = Findings(notes=[] if notes is None else notes)
    made = build_topology(job(f"{rest}\nresources: {{{resources}}}"), cluster(profile), found)
    if found.problems:
        raise SpecError(found.problems)
    return made


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
def test_memory_text_is_parsed_to_megabytes(text: str, mb: int) -> None:
    assert parse_memory_mb(text) == mb


@pytest.mark.parametrize(
    ("gpus", "cpus_per_task", "memory"),
    [(1, 16, "131072M"), (4, 16, "524288M"), (8, 16, "1048576M")],
)
def test_cpus_and_memory_are_proportional_to_gpus(
    gpus: int, cpus_per_task: int, memory: str
) -> None:
    notes: list[str] = []
    made = topology(f"gpus_per_node: {gpus}", notes=notes)
    assert made.cpus_per_rank == cpus_per_task
    assert made.memory == memory
    assert made.ranks_per_node == gpus
    assert notes == []


def test_uneven_share_is_rounded_down() -> None:
    profile = "partitions: {a: {gpus_per_node: 3, cpus_per_node: 64, memory_per_node: 100}}"
    made = topology("gpus_per_node: 2", profile)
    assert (made.cpus_per_rank, made.memory) == (21, "66M")


def test_cpus_and_memory_of_the_job_override_the_share() -> None:
    made = topology("gpus_per_node: 2, cpus_per_gpu: 3, memory_per_node: 7G")
    assert (made.cpus_per_rank, made.memory) == (3, "7G")


def test_unknown_nodes_use_default_cpus_with_a_note() -> None:
    notes: list[str] = []
    made = topology("gpus_per_node: 2", "", notes=notes)
    assert made.cpus_per_rank == DEFAULT_CPUS_PER_GPU
    assert made.memory is None
    assert len(notes) == 1 and "does not describe its nodes" in notes[0]


def test_job_without_gpus_has_one_rank_per_node_and_no_gres() -> None:
    made = topology("gpus_per_node: 0, nodes: 3")
    assert (made.nodes, made.ranks_per_node, made.gres, made.memory) == (3, 1, None, None)


def _refusal(resources: str, profile: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        topology(resources, profile)
    return caught.value


@pytest.mark.parametrize(
    ("resources", "profile", "cpus", "memory", "message"),
    [
        ("gpus_per_node: 2, exclusive: true", NODES, 64, "0", True),
        ("gpus_per_node: 2", NODES.replace("}}", ", exclusive: true}}"), 64, "0", False),
        ("gpus_per_node: 0, exclusive: true", NODES, 128, "0", True),
        ("gpus_per_node: 2, exclusive: true, cpus_per_gpu: 5", NODES, 5, "0", True),
        ("gpus_per_node: 2, exclusive: true, memory_per_node: 9G", NODES, 64, "9G", True),
        ("gpus_per_node: 2", f"{NODES}slurm: {{exclusive: true}}", 64, "0", True),
        ("gpus_per_node: 2", f"{NODES}slurm: {{exclusive: user}}", 16, "262144M", False),
    ],
)
def test_exclusive_jobs_get_all_cpus_and_memory(
    resources: str, profile: str, cpus: int, memory: str, message: bool
) -> None:
    made = topology(resources, profile)
    assert (made.cpus_per_rank, made.memory, made.exclusive) == (cpus, memory, message)


def test_unknown_exclusive_nodes_request_no_cpu_count() -> None:
    notes: list[str] = []
    made = topology("gpus_per_node: 2, exclusive: true", "", notes=notes)
    assert (made.asks_cpus, made.memory, made.cpus_per_rank) == (False, "0", DEFAULT_CPUS_PER_GPU)
    assert "share all CPUs of a node" in notes[0]
    assert topology("gpus_per_node: 2", "").asks_cpus


@pytest.mark.parametrize(
    ("resources", "profile"),
    [
        ("gpus_per_node: 2, gpu_type: 1g.5gb", ""),
        ("nodes: 2, gpu_type: a100_3g.20gb", ""),
        ("gpus_per_node: 2, gpu_type: small", "gpu_types: {small: {gres: a100_1g.5gb}}"),
        ("gpus_per_node: 2, gpu_type: small", "gpu_types: {small: {gres: x, mig: true}}"),
    ],
)
def test_mig_slices_allow_only_one_rank(resources: str, profile: str) -> None:
    assert "NCCL cannot join MIG slices" in str(_refusal(resources, profile))
    one = resources.replace("gpus_per_node: 2", "gpus_per_node: 1").replace("nodes: 2, ", "")
    assert topology(one, profile).gres is not None


SLICES = (
    "partitions: {small: {gpu_types: {1g.5gb: 7, a100_3g.20gb: 2}}, gpu: {gpu_types: {a100: 4}}}\n"
)


@pytest.mark.parametrize(
    ("resources", "profile"),
    [
        ("gpus_per_node: 2, partition: small", SLICES),
        ("nodes: 2, partition: small", SLICES),
        ("gpus_per_node: 2, partition: 'gpu,small'", SLICES),
        ("gpus_per_node: 2", f"{SLICES}partition: small"),
        (
            "gpus_per_node: 2",
            "partitions: {mine: {gpu_types: {half: 2}}}\ngpu_types: {half: {mig: true}}",
        ),
    ],
)
def test_partition_with_only_mig_slices_allows_only_one_rank(resources: str, profile: str) -> None:
    assert "NCCL cannot join MIG slices; request one, or" in str(_refusal(resources, profile))


@pytest.mark.parametrize(
    ("resources", "profile"),
    [
        ("gpus_per_node: 1, partition: small", SLICES),
        ("gpus_per_node: 2, partition: gpu", SLICES),
        ("gpus_per_node: 2", SLICES),  # Slurm's default partition may be any of them
        ("gpus_per_node: 2, partition: small", f"{SLICES}gpu_types: {{1g.5gb: {{mig: false}}}}"),
        ("gpus_per_node: 2", "partitions: {mixed: {gpu_types: {1g.5gb: 7, a100: 4}}}"),
    ],
)
def test_partition_with_whole_gpus_allows_several_ranks(resources: str, profile: str) -> None:
    assert topology(resources, profile).gres is not None


@pytest.mark.parametrize(
    ("resources", "profile", "qos"),
    [
        ("partition: a", "partitions: {a: {qos: long}, b: {}}", "long"),
        ("partition: b", "partitions: {a: {qos: long}, b: {}}", None),
        ("gpus_per_node: 1", "partitions: {a: {qos: long}}\npartition: a", "long"),
        ("partition: 'a,b'", "partitions: {a: {qos: long}, b: {qos: long}}", "long"),
        ("partition: 'a,b'", "partitions: {a: {qos: long}, b: {qos: short}}", None),
        (
            "partition: a, gpu_type: x",
            "partitions: {a: {qos: long}}\ngpu_types: {x: {gres: x, qos: vip}}",
            "vip",
        ),
    ],
)
def test_partition_qos_is_requested(resources: str, profile: str, qos: str | None) -> None:
    assert topology(resources, profile).qos == qos


def test_mig_setting_of_the_profile_overrides_detection() -> None:
    made = topology("gpus_per_node: 2, gpu_type: 1g.5gb", "gpu_types: {1g.5gb: {mig: false}}")
    assert made.ranks_per_node == 2


def test_gpu_type_with_a_partition_selects_that_partition() -> None:
    profile = "gpu_types: {h100: {partition: hopper}}"
    assert topology("gpu_type: h100", profile).partition == "hopper"
    assert topology("gpu_type: h100, partition: hopper", profile).partition == "hopper"
    message = str(_refusal("gpu_type: h100, partition: main", profile))
    assert "h100: this type is selected by its partition, hopper; remove partition" in message


def test_facts_of_other_partitions_are_ignored() -> None:
    two = NODES + "partition: gpu\n"
    two = two.replace("}}", "}, big: {gpus_per_node: 16}}")
    assert topology("gpus_per_node: 16, partition: big", two).gres == "gpu:16"
    assert topology("gpus_per_node: 16, partition: unlisted", two).gres == "gpu:16"


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
def test_gpu_type_sets_gres_constraint_and_partition(
    resources: str, gres: str, constraint: str | None, partition: str
) -> None:
    made = topology(resources, TYPES)
    assert (made.gres, made.constraint, made.partition) == (gres, constraint, partition)


def test_unlisted_gpu_type_is_refused_unless_the_profile_allows_any() -> None:
    with pytest.raises(SpecError, match="gpu_type: v100: cluster default has a100, h100"):
        topology("gpu_type: v100", TYPES)
    assert topology("gpu_type: v100", "").gres == "gpu:v100:1"
    any_other = TYPES + '  "*": {partition: rest}\n'
    made = topology("gpu_type: v100", any_other)
    assert (made.gres, made.partition) == ("gpu:1", "rest")
    assert topology("gpu_type: h100", any_other).constraint == "hopper"


def test_account_of_the_job_overrides_the_profile() -> None:
    assert topology("", "account: lab").account == "lab"
    assert topology("account: other", "account: lab").account == "other"


# ---- cores and hardware threads

LUMI = (
    "partition: g\npartitions: {g: {gpus_per_node: 8, cpus_per_node: 112, threads_per_core: 2}}\n"
)


@pytest.mark.parametrize(
    ("given", "cpus"),
    [
        ("", 14),
        ("slurm: {hint: nomultithread}", 7),
        ("slurm: {threads-per-core: 1}", 7),
        ("slurm: {hint: multithread}", 14),
    ],
)
def test_cpus_count_cores_with_one_thread_per_core(given: str, cpus: int) -> None:
    """LUMI-G documents 7 cores for each of 8 ranks, of the 56 cores available to jobs."""
    assert topology("gpus_per_node: 8", LUMI + given).cpus_per_rank == cpus
    text = f"script: a.py\nresources: {{gpus_per_node: 8, cpus_per_gpu: 14}}\n{given}"
    spec, profile = job(text), cluster(LUMI)
    found = find_limits(spec, build_plan(spec, profile, PLACE), profile, "hpcrun.yaml")
    assert len(found) == (1 if cpus == 7 else 0)


@pytest.mark.parametrize(
    ("resources", "node", "wanted"),
    [
        ("time: 8:00:00", "exclusive: true", "3 of 4 GPUs stay idle, up to 24 GPU hours; a sweep"),
        ("nodes: 2, gpus_per_node: 3", "exclusive: true", "2 of 8 GPUs stay idle; a sweep"),
        ("exclusive: true, time: UNLIMITED", "", "3 of 4 GPUs stay idle; a sweep"),
        ("gpus_per_node: 4", "exclusive: true", ""),
        ("time: 8:00:00", "", ""),
        ("gpus_per_node: 0", "exclusive: true", ""),
    ],
)
def test_allocated_but_idle_gpus_have_a_note(resources: str, node: str, wanted: str) -> None:
    notes: list[str] = []
    facts = f"partition: g\npartitions: {{g: {{gpus_per_node: 4, {node or 'nodes: 9'}}}}}"
    topology(resources, facts, notes=notes)
    found = [note for note in notes if "idle" in note]
    assert bool(found) == bool(wanted) and wanted in "".join(found)
