"""Updates of a cluster profile: changes are reported, and the user's own text is kept."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.errors import InputError
from hpcrun.plan.profile import ClusterFacts, find_changes, update_profile
from hpcrun.spec.job import GpuType, Partition
from hpcrun.spec.load import load_cluster
from tests.source import PACKAGE

TEXT = """\
# ours, do not touch
name: hot
read_on: "2026-01-01"
runs_dir: /scratch/runs   # purged after 30 days
partition: gpu
partitions:
  gpu:   # the usual
    nodes: 20
    gpus_per_node: 4
    cpus_per_node: 64
    memory_per_node: 480G
    max_time: 48:00:00
  old: {nodes: 3, gpus_per_node: 2}
gpu_types: {a100: {gres: a100}}
internet: false
"""
GPU = Partition(
    nodes=20, gpus_per_node=4, cpus_per_node=64, memory_per_node="480G", max_time="2-00:00:00"
)
OLD = Partition(nodes=3, gpus_per_node=2)


def facts(**message: Any) -> ClusterFacts:
    plain: dict[str, Any] = {
        "read_on": "2026-11-21",
        "values": {},
        "partitions": {"gpu": GPU, "old": OLD},
        "gpu_types": {},
    }
    return ClusterFacts(**{**plain, **message})


def shown(text: str, now: ClusterFacts) -> list[tuple[str, str]]:
    return [(one.what, one.key) for one in find_changes(load_cluster(text, source="p"), now)]


def updated(text: str, now: ClusterFacts) -> str:
    return update_profile(text, "p", load_cluster(text, source="p"), now)


def test_unchanged_facts_update_only_the_date() -> None:
    assert shown(TEXT, facts()) == []
    assert updated(TEXT, facts()) == TEXT.replace("2026-01-01", "2026-11-21")


def test_lowered_limit_is_updated() -> None:
    lower = Partition(nodes=20, gpus_per_node=4, cpus_per_node=64, max_time="1-00:00:00")
    now = facts(partitions={"gpu": lower, "old": OLD})
    assert shown(TEXT, now) == [
        ("gone", "partitions.gpu.memory_per_node"),
        ("changed", "partitions.gpu.max_time"),
    ]
    made = updated(TEXT, now)
    assert 'max_time: "1-00:00:00"' in made and "480G" not in made
    assert "# the usual" in made and "# purged after 30 days" in made
    assert load_cluster(made, source="p").partitions["gpu"] == lower


def test_new_partitions_are_added_and_old_ones_removed() -> None:
    new = Partition(nodes=4, gpus_per_node=8, gpu_types={"h100": 8}, cpus_per_node=96)
    types = {"h100": GpuType(gres="h100"), "a100": GpuType(gres="a100")}
    now = facts(partitions={"gpu": GPU, "new": new}, gpu_types=types)
    assert shown(TEXT, now) == [
        ("added", "partitions.new"),
        ("gone", "partitions.old"),
        ("added", "gpu_types.h100"),
    ]
    made = updated(TEXT, now)
    assert "  # gone from the cluster on 2026-11-21:\n  # old: {nodes: 3, gpus_per_node: 2}" in made
    assert "gpu_types: {a100: {gres: a100}, h100: {gres: h100}}" in made
    assert load_cluster(made, source="p").partitions == {"gpu": GPU, "new": new} | {
        "gpu": Partition(**{**_fields(GPU), "max_time": "48:00:00"})
    }
    # A second update with the same facts changes nothing.
    assert shown(made, now) == [] and updated(made, now) == made


def test_gpu_limit_is_kept_without_accounting() -> None:
    text = TEXT.replace("    nodes: 20\n", "    nodes: 20\n    max_gpus: 8\n")
    assert shown(text, facts(sure=False)) == []
    assert shown(text, facts()) == [("gone", "partitions.gpu.max_gpus")]


def test_profile_without_partitions_gets_partitions() -> None:
    made = updated("name: hot\n# end", facts(values={"slurm_version": "24.11.5"}))
    read = load_cluster(made, source="p")
    assert read.partitions == {"gpu": GPU, "old": OLD} and read.slurm_version == "24.11.5"
    assert made.startswith("name: hot\n") and made.endswith("# end")
    assert "\n  gpu:\n    nodes: 20\n    gpus_per_node: 4\n" in made


def test_partition_without_gpus_is_updated_to_zero() -> None:
    now = facts(partitions={"gpu": Partition(nodes=20, gpus_per_node=0), "old": OLD})
    assert ("changed", "partitions.gpu.gpus_per_node") in shown(TEXT, now)
    assert load_cluster(updated(TEXT, now), source="p").partitions["gpu"].gpus_per_node == 0


def test_renamed_gpu_types_and_wildcards_are_kept() -> None:
    types = {"a100-80gb": GpuType(gres="a100")}
    assert shown(TEXT, facts(gpu_types=types)) == []
    text = TEXT.replace("{a100: {gres: a100}}", '{"*": {}}')
    assert shown(text, facts(gpu_types={"h100": GpuType(gres="h100")})) == []


@pytest.mark.parametrize(
    "partitions",
    [
        "  gpu: &one {nodes: 1}\n  old: *one\n",
        "  gpu: &one {nodes: 20}\n  old:\n    nodes: 3\n    <<: *one\n",
    ],
)
def test_uneditable_profile_is_refused_unchanged(partitions: str) -> None:
    text = f"name: hot\npartitions:\n{partitions}"
    try:
        cluster = load_cluster(text, source="p")
    except InputError:
        return  # merge keys are no keys of a profile
    with pytest.raises(InputError, match="cannot be updated"):
        update_profile(text, "p", cluster, facts())


def test_update_without_any_partition_is_refused() -> None:
    now = facts(partitions={})
    assert {what for what, _ in shown(TEXT, now)} == {"gone"}
    with pytest.raises(InputError, match="cannot be updated"):
        updated(TEXT, now)


def _fields(partition: Partition) -> dict[str, Any]:
    return {name: getattr(partition, name) for name in Partition.__struct_fields__}


def test_gpu_count_of_the_user_is_kept_without_gres() -> None:
    text = "partitions: {gpu-a100: {nodes: 2, gpus_per_node: 3}}\nslurm: {gres: false}"
    now = facts(partitions={"gpu-a100": Partition(nodes=2, gpus_per_node=0)})
    assert shown(text, now) == []
    assert shown(text.replace("slurm", "# slurm"), now) == [
        ("changed", "partitions.gpu-a100.gpus_per_node")
    ]


RENAMED = [
    "partitions: {gpu: {gpus_per_node: 4}}\n",
    "partitions:\n  gpu: {gpus_per_node: 4}\n\n# end\n",
    "partitions: {\n  gpu: {gpus_per_node: 4},\n}\nruns_dir: runs\n",
    'partitions:\n  "gpu":\n    gpus_per_node: 4\nname: lab',
    "{partitions: {gpu: {gpus_per_node: 2}}, runs_dir: x}\n",
    "partitions:\n  gpu: {gpus_per_node: 4}\n  cpu: {}\npartition: gpu\n",
    *(path.read_text() for path in sorted((PACKAGE / "sites").glob("*.yaml"))),
]


@pytest.mark.parametrize("text", RENAMED, ids=lambda text: text.splitlines()[0][:40])
def test_entirely_new_partitions_replace_all_known_ones(text: str) -> None:
    other = {"elsewhere": Partition(nodes=2, gpus_per_node=4, cpus_per_node=16)}
    edited = load_cluster(updated(text, facts(partitions=other)), source="p")
    assert edited.partitions == other
    assert edited.runs_dir == load_cluster(text, source="p").runs_dir
