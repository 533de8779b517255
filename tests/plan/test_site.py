"""Profiles derived from Slurm's replies: partitions, GPU types, access, limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrun.assets import shipped_folder
from hpcrun.plan.build import build_plan
from hpcrun.plan.limits import find_limits
from hpcrun.plan.profile import ClusterFacts, format_profile
from hpcrun.plan.site import Site, SlurmOutputs, build_site, first_host
from hpcrun.plan.times import parse_seconds
from hpcrun.slurm.cluster import (
    Association,
    NodeLimits,
    NodeRow,
    PartitionRow,
    Qos,
    SlurmConfig,
    parse_config,
    parse_nodes,
    parse_partitions,
    parse_sinfo,
)
from hpcrun.slurm.hosts import expand_hosts
from hpcrun.spec.job import Cluster, GpuType
from hpcrun.spec.load import load_cluster, load_job
from tests.plan.making import PLACE, job

ENFORCED = SlurmConfig(
    version="22.05.8", enforced=frozenset({"associations", "limits", "qos"}), has_accounting=True
)


def nodes(partition: str, gres: str = "", **message: Any) -> NodeRow:
    plain: dict[str, Any] = {"nodes": 2, "cpus": 64, "memory": 512000, "features": []}
    names = {"node_list": f"{partition}[1-2]", "state": "idle"}
    return NodeRow(partition=partition, gres=gres, **{**plain, **names, **message})


def site(rows: list[NodeRow], *partitions: PartitionRow, **message: Any) -> Site:
    named = {row.name for row in partitions}
    others = dict.fromkeys(row.partition for row in rows if row.partition not in named)
    listed = [*partitions, *(PartitionRow(name=name) for name in others)]
    known = message.pop("known", None)
    keep = message.pop("keep", ())
    answers = {"config": SlurmConfig(version="22.05.8"), **message}
    return build_site(SlurmOutputs(nodes=rows, partitions=listed, **answers), known, keep)


def test_identical_nodes_set_the_partition_facts() -> None:
    row = PartitionRow(name="gpu", max_time="2-00:00:00", max_nodes=1, default_time="01:00:00")
    made = site([nodes("gpu", "gpu:a100:4(S:0-1)")], row).partitions["gpu"]
    assert (made.nodes, made.gpus_per_node, made.cpus_per_node) == (2, 4, 64)
    assert made.memory_per_node == "500G" and made.gpu_types == {"a100": 4}
    assert made.cpus_per_gpu is None and made.memory_per_gpu is None
    assert (made.max_time, made.default_time, made.max_nodes) == ("2-00:00:00", "01:00:00", 1)


def test_mixed_nodes_use_the_smallest_share_per_gpu() -> None:
    rows = [
        nodes("gpu", "gpu:a100:4", cpus=64, memory=512000),
        nodes("gpu", "gpu:v100:8", cpus=64, memory=256000),
        nodes("gpu", "", cpus=192, memory=768000),
    ]
    made = site(rows).partitions["gpu"]
    assert (made.gpus_per_node, made.cpus_per_node, made.memory_per_node) == (8, 192, "750G")
    # 8 CPUs and 32000 MB per GPU of the V100 nodes; nodes without GPUs are ignored.
    assert (made.cpus_per_gpu, made.memory_per_gpu) == (8, "32000M")
    assert made.gpu_types == {"a100": 4, "v100": 8}
    assert any("differ" in note for note in site(rows).notes["gpu"])


def test_partition_without_gpus_has_a_gpu_count_of_zero() -> None:
    made = site([nodes("cpu", "(null)")]).partitions["cpu"]
    assert made.gpus_per_node == 0 and made.gpu_types == {} and made.max_gpus is None


def test_cpus_and_memory_reserved_by_slurm_are_excluded() -> None:
    limits = {"gpu1": NodeLimits(name="gpu1", cpus=60, memory=500000)}
    row = PartitionRow(name="gpu", max_cpus_per_node=48)
    made = site([nodes("gpu", "gpu:4")], row, limits=limits).partitions["gpu"]
    assert (made.cpus_per_node, made.memory_per_node) == (48, "500000M")


@pytest.mark.parametrize(
    ("rows", "types"),
    [
        (
            [nodes("g", "gpu:nvidia_a100-sxm4-80gb:4")],
            {"a100": GpuType(gres="nvidia_a100-sxm4-80gb")},
        ),
        # Two types with the same short name keep the site's names.
        (
            [nodes("g", "gpu:a100-40gb:4"), nodes("h", "gpu:a100-80gb:4")],
            {"a100-40gb": GpuType(gres="a100-40gb"), "a100-80gb": GpuType(gres="a100-80gb")},
        ),
        ([nodes("g", "gpu:a100_3g.20gb:2")], {"a100_3g.20gb": GpuType(gres="a100_3g.20gb")}),
        ([nodes("g", "gpu:4", features=["ib", "v100"])], {"v100": GpuType(constraint="v100")}),
        (
            [
                nodes("g", "gpu:4", features=["v100", "v100-32g"]),
                nodes("h", "gpu:4", features=["v100"]),
            ],
            {"v100": GpuType(constraint="v100"), "v100-32g": GpuType(constraint="v100-32g")},
        ),
        # It is unknown which of the two types the nodes have.
        ([nodes("g", "gpu:4", features=["v100", "a100"])], {}),
        ([nodes("gpu-h100", "gpu:8")], {"h100": GpuType(partition="gpu-h100")}),
        ([nodes("g", "gpu:8", features=["skylake"])], {}),
        ([nodes("c", "", features=["v100"])], {}),
        ([nodes("g", "gpu:fast:2")], {"fast": GpuType(gres="fast")}),
    ],
)
def test_gpu_types_are_read_from_gres_and_features(
    rows: list[NodeRow], types: dict[str, GpuType]
) -> None:
    made = site(rows)
    assert made.gpu_types == types
    counted = {name for message in made.partitions.values() for name in message.gpu_types}
    assert counted == set(types)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["gpu-h100", "main", "v100"]),
            st.sampled_from(["gpu:4", "gpu:a100:4", "gpu:a100-40gb:2", "gpu:2,gpu:v100:1", ""]),
            st.lists(st.sampled_from(["v100", "v100-32g", "v100-16g", "a100", "ib", "mi250"])),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_gpu_types_written_by_init_are_accepted_in_jobs(
    rows: list[tuple[str, str, list[str]]],
) -> None:
    """Regression: init wrote v100 and v100-32g, but its partitions had no v100-32g."""
    made = site([nodes(name, gres, features=features) for name, gres, features in rows])
    profile = Cluster(read_on="2026-11-23", partitions=made.partitions, gpu_types=made.gpu_types)
    for kind in made.gpu_types:
        text = f"script: a.py\nprecision: fp32\nresources: {{gpus_per_node: 1, gpu_type: {kind}}}"
        spec = job(text)
        planned = build_plan(spec, profile, PLACE)
        assert not find_limits(spec, planned, profile, "hpcrun.yaml"), kind


TACC = [nodes("normal", cpus=128), nodes("gpu-a100", cpus=128), nodes("gpu-a100-dev", cpus=128)]


def test_partitions_with_gpus_only_in_their_name_have_a_note() -> None:
    """The Slurm of TACC counts no GPUs, but the names of its partitions contain them."""
    made = site(TACC, PartitionRow(name="normal", is_default=True))
    assert made.partition == "gpu-a100" and made.named_gpus == ["gpu-a100", "gpu-a100-dev"]
    assert "set gpus_per_node" in made.notes["gpu-a100"][0] and "normal" not in made.notes
    counted = site([*TACC, nodes("h100", "gpu:h100:4")])
    assert (counted.partition, counted.named_gpus) == ("h100", [])


def test_threads_per_core_are_read_from_node_limits() -> None:
    limits = {"gpu1": NodeLimits(name="gpu1", cpus=112, memory=512000, threads=2)}
    made = site([nodes("gpu", "gpu:8", cpus=128)], limits=limits).partitions["gpu"]
    assert (made.cpus_per_node, made.threads_per_core) == (112, 2)
    other = site([nodes("gpu", "gpu:8", cpus=128), nodes("gpu", "", node_list="x1")], limits=limits)
    assert other.partitions["gpu"].threads_per_core is None


def test_gpu_types_keep_their_names_in_the_profile() -> None:
    known = {"big": GpuType(gres="nvidia_a100-sxm4-80gb"), "old": GpuType(gres="k80")}
    made = site([nodes("g", "gpu:nvidia_a100-sxm4-80gb:4")], known=known)
    assert made.gpu_types == {"big": GpuType(gres="nvidia_a100-sxm4-80gb")}
    assert made.partitions["g"].gpu_types == {"big": 4}


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"is_hidden": True}, "hides"),
        ({"root_only": True}, "root"),
        ({"allow_groups": ["physics"]}, "Unix groups physics"),
        ({"allow_accounts": ["bio"]}, "accounts bio"),
        ({"deny_accounts": ["ml", "bio"]}, "closed to your accounts ml"),
        ({"allow_qos": ["long"]}, "QOS long"),
        ({"deny_qos": ["normal"]}, "closed to your QOS normal"),
        ({"allow_groups": ["users", "x"]}, ""),
        ({"allow_accounts": ["ml", "bio"]}, ""),
        ({"state": "DOWN"}, ""),
        ({"needs_reservation": True}, ""),
    ],
)
def test_inaccessible_partitions_are_excluded(message: dict[str, Any], why: str) -> None:
    mine = [Association(cluster="hot", account="ml", qos=["normal"])]
    asked: dict[str, Any] = {"config": ENFORCED, "associations": mine, "groups": ["users"]}
    row = PartitionRow(name="gpu", **message)
    made = site([nodes("gpu", "gpu:4")], row, **asked)
    assert list(made.partitions) == ([] if why else ["gpu"])
    assert why in made.left_out.get("gpu", "")
    # The user's own choice is kept.
    assert "gpu" in site([nodes("gpu", "gpu:4")], row, **asked, keep=["gpu"]).partitions


def test_possibly_accessible_partitions_are_included() -> None:
    row = PartitionRow(name="gpu", allow_accounts=["bio"])
    rows = [nodes("gpu", "gpu:4")]
    mine = [Association(cluster="hot", account="ml")]
    assert "gpu" in site(rows, row, associations=mine).partitions  # not enforced
    assert "gpu" in site(rows, row, associations=[], config=ENFORCED).partitions
    newer = SlurmConfig(version="24.11.5", enforced=ENFORCED.enforced)
    assert "gpu" in site(rows, row, associations=mine, config=newer).partitions
    assert "gpu" not in site(rows, row, associations=mine, config=ENFORCED).partitions


def test_loosest_limits_of_qos_and_account_apply() -> None:
    mine = [
        Association(cluster="c", account="a", qos=["normal", "long"], max_gpus=2),
        Association(cluster="c", account="b", qos=["normal"], max_gpus=3),
    ]
    qos = [
        Qos(name="normal", max_time="12:00:00"),
        Qos(name="long", max_time="5-00:00:00", max_gpus=16),
        Qos(name="part", max_gpus=6),
        Qos(name="vip", flags=frozenset({"partitiontimelimit"}), max_time="30-00:00:00"),
    ]
    row = PartitionRow(name="gpu", max_time="2-00:00:00")
    asked: dict[str, Any] = {"associations": mine, "qos": qos, "config": ENFORCED}

    def made(partition: PartitionRow, **message: Any) -> tuple[str | None, int | None]:
        found = site([nodes("gpu", "gpu:4")], partition, **{**asked, **message}).partitions["gpu"]
        return found.max_time, found.max_gpus

    # The loosest limit of any choice: QOS long, whose 5 days the partition limits to 2.
    assert made(row) == ("2-00:00:00", 16)
    assert made(row, associations=mine[1:]) == ("12:00:00", 3)
    with_qos = PartitionRow(name="gpu", max_time="2-00:00:00", qos="part")
    assert made(with_qos) == ("2-00:00:00", 6)
    vip = [Association(cluster="c", account="a", qos=["vip"])]
    assert made(row, associations=vip) == ("30-00:00:00", None)
    none = [Association(cluster="c", account="a", qos=["normal"], max_gpus=0)]
    closed = site([nodes("gpu", "gpu:a100:4")], row, **{**asked, "associations": none})
    assert closed.partitions["gpu"].gpus_per_node == 0 and "none of its" in closed.notes["gpu"][0]
    # Limits that are unenforced or unknown do not apply.
    assert made(row, config=SlurmConfig(version="22.05.8")) == ("2-00:00:00", None)
    assert made(row, associations=None) == ("2-00:00:00", None)


def test_default_partition_prefers_gpus_and_many_nodes() -> None:
    rows = [
        nodes("cpu", "", nodes=100),
        nodes("debug", "gpu:4", nodes=50),
        nodes("gpu", "gpu:4", nodes=10),
        nodes("mixed", "gpu:4", nodes=10),
        nodes("mixed", "gpu:8", nodes=10),
        nodes("down", "gpu:8", nodes=90),
    ]
    default, down = (
        PartitionRow(name="cpu", is_default=True),
        PartitionRow(name="down", state="DOWN"),
    )
    assert site(rows, default, down).partition == "gpu"
    assert site(rows, PartitionRow(name="mixed", is_default=True)).partition == "mixed"
    assert site(rows[:1]).partition == "cpu"
    # Default partitions are often meant for short tests, and MIG slices for small models.
    short = PartitionRow(name="interactive", is_default=True)
    assert site([*rows, nodes("interactive", "gpu:4")], short, down).partition == "gpu"
    slices = nodes("slices", "gpu:a100_1g.5gb:14,gpu:a100_3g.20gb:4", nodes=50)
    assert site([slices, nodes("full", "gpu:a100:4")]).partition == "full"
    assert site([slices]).partition == "slices"
    assert site([]).partition is None


@pytest.mark.parametrize(
    ("row", "associations", "qos"),
    [
        ({"allow_qos": ["gpu", "long"]}, [("", ["normal", "long"])], "long"),
        ({"allow_qos": ["gpu", "long"]}, [("normal", ["normal", "gpu", "long"])], "gpu"),
        ({"deny_qos": ["normal"]}, [("normal", ["normal", "gpu"])], "gpu"),
        ({"allow_qos": ["gpu"]}, None, "gpu"),
        ({"allow_qos": ["gpu"]}, [("gpu", ["normal", "gpu"])], None),
        ({"allow_qos": ["normal", "gpu"]}, [("", ["normal", "gpu"])], None),
        ({"allow_qos": ["gpu", "vip"]}, None, None),
        ({}, [("", ["normal", "gpu"])], None),
        ({}, None, None),
    ],
)
def test_partition_that_refuses_the_default_qos_gets_another(
    row: dict[str, Any], associations: list[Any] | None, qos: str | None
) -> None:
    mine = associations and [
        Association(cluster="c", account="a", default_qos=default, qos=names)
        for default, names in associations
    ]
    made = site([nodes("gpu", "gpu:4")], PartitionRow(name="gpu", **row), associations=mine)
    assert made.partitions["gpu"].qos == qos


def test_accounts_and_default_account_are_read() -> None:
    mine = [
        Association(cluster="c", account="a", default_account="b"),
        Association(cluster="c", account="b", default_account="b"),
        Association(cluster="c", account="b", partition="gpu", default_account="b"),
    ]
    made = site([nodes("gpu", "gpu:4")], associations=mine)
    assert (made.accounts, made.account) == (["a", "b"], "b")


@pytest.mark.slow
@given(
    st.from_regex(
        r"[a-z]{1,3}(\[[0-9]{1,2}(-[0-9]{1,2})?(,[0-9]{1,2})?\])?(,x[1-3])?", fullmatch=True
    )
)
def test_first_host_is_one_of_the_expanded_hosts(text: str) -> None:
    try:
        hosts = expand_hosts(text)
    except ValueError:
        return
    assert first_host(text) in hosts


# ---- clusters unlike one another, as a real slurmctld (22.05.8) showed them (shapes.json): without
# gres; GPUs known by features, with reserved cores; MIG slices beside whole GPUs, and a hidden
# default partition; two types and CPU nodes in one partition, four threads a core; a default
# partition for tries; two types of GPU in one node.

SHAPES = json.loads((Path(__file__).parent / "shapes.json").read_text())
PRESETS = {file.stem: file.read_text() for file in sorted(shipped_folder("jobs").glob("*.yaml"))}


def profile_of(shape: dict[str, str]) -> Cluster:
    """Return the profile that init writes, parsed again."""
    answers = SlurmOutputs(
        config=parse_config(shape["config"]),
        nodes=parse_sinfo(shape["sinfo"]),
        partitions=parse_partitions(shape["partitions"]),
        limits={one.name: one for one in parse_nodes(shape["nodes"])},
    )
    made = build_site(answers)
    facts = ClusterFacts(
        read_on="2026-11-25", values={}, partitions=made.partitions, gpu_types=made.gpu_types
    )
    text = format_profile({"name": "s", "partition": made.partition}, {}, facts, made, "s.json")
    return load_cluster(text, source="hpcrun.yaml")


def resolve(name: str) -> tuple[str, str]:
    return PRESETS[name], f"{name}.yaml"


@pytest.mark.parametrize("name", SHAPES)
def test_presets_fit_or_name_a_fitting_partition_on_different_clusters(name: str) -> None:
    """Presets are refused only if the partition is too small, and a sufficient one is suggested."""
    profile = profile_of(SHAPES[name])
    for preset, text in PRESETS.items():
        spec = load_job(text, source=preset, resolve=resolve)
        if spec.sweep:
            continue
        wanted = spec.resources
        found = find_limits(spec, build_plan(spec, profile, PLACE), profile, "hpcrun.yaml")
        fits = [
            place
            for place, facts in profile.partitions.items()
            if (facts.gpus_per_node or 0) >= wanted.gpus_per_node
            and (facts.nodes or 0) >= wanted.most_nodes
            and parse_seconds(facts.max_time or "UNLIMITED") >= 3600
        ]
        assert not found or profile.partition not in fits, (preset, found)
        for place in fits[:1] if found else []:
            assert place in str(found[0]) or len(found) > 1, (preset, found)
    for kind in profile.gpu_types:
        place = next(key for key, one in profile.partitions.items() if kind in one.gpu_types)
        spec = job(
            "script: a.py\nprecision: fp32\n"
            f"resources: {{gpus_per_node: 1, gpu_type: {kind}, partition: {place}, time: 10}}"
        )
        assert not find_limits(spec, build_plan(spec, profile, PLACE), profile, "hpcrun.yaml")


def test_init_selects_partitions_of_different_clusters() -> None:
    made = {name: profile_of(shape) for name, shape in SHAPES.items()}
    usual = {name: one.partition for name, one in made.items()}
    assert usual == {
        "nogres": "gpu-a100",
        "features": "gpu",
        "mig": "full",
        "mixed": "batch",
        "gh200": "workq",
        "cores": "p.gpu+long",
    }
    v100 = made["features"].partitions["gpu"]
    # 40 cores with two threads each, two of the cores reserved for the system.
    assert (v100.cpus_per_node, v100.threads_per_core) == (76, 2)
    power9 = made["mixed"].partitions["debug"]
    assert (power9.cpus_per_node, power9.threads_per_core) == (128, 4)
    assert made["mixed"].partitions["batch"].gpu_types == {"a100": 8, "v100": 4}
    assert "all" not in made["mig"].partitions, "the site hides it"
