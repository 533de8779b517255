"""The shape of a sandbox, derived from a cluster profile."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from hpcrun.actions.sandbox_shape import build_cluster_shape
from hpcrun.errors import InputError
from hpcrun.sandbox.config import NodeKind, SandboxShape, cluster_profile, gres_conf, slurm_conf
from hpcrun.sandbox.directory import SandboxFiles
from hpcrun.spec.job import Cluster, GpuType, Partition, Setup

LAB = Cluster(
    name="lab",
    partition="big",
    account="vision",
    setup=Setup(modules=["cuda/12.4"]),
    partitions={
        "a100": Partition(
            nodes=12, gpus_per_node=4, cpus_per_node=64, memory_per_node="480G",
            max_time="2-00:00:00",
        ),
        "big": Partition(
            nodes=1, gpus_per_node=8, cpus_per_gpu=12, memory_per_gpu="100G",
            default_time="30", min_nodes=1, max_nodes=2, exclusive=True,
        ),
        "cpu": Partition(gpus_per_node=0, cpus_per_node=128),
    },
    gpu_types={
        "a100": GpuType(gres="nvidia_a100", partition="a100"),
        "l40": GpuType(constraint="l40"),
        "h100": GpuType(gres="h100"),
    },
    slurm={"qos": "normal", "mem": False},
)  # fmt: skip


def test_sandbox_nodes_match_the_profile() -> None:
    shape = build_cluster_shape(LAB, "lab.yaml")
    big = NodeKind(partition="big", nodes=1, cpus=96, memory_mb=819200, gpus=8)
    assert list(shape.kinds) == [
        NodeKind(
            partition="a100", nodes=4, cpus=64, memory_mb=491520, gpus=4, gpu_type="nvidia_a100"
        ),
        msgspec.structs.replace(big, feature="l40"),
        msgspec.structs.replace(big, gpu_type="h100"),
        NodeKind(partition="cpu", nodes=4, cpus=128),
    ]
    assert shape.about() == "10 nodes like lab.yaml"
    assert [kind.nodes for kind in build_cluster_shape(LAB, "lab.yaml", 2).kinds] == [2, 2, 2, 2]


def test_sandbox_config_contains_types_features_and_limits() -> None:
    layout, shape = SandboxFiles(Path("/tmp/s")), build_cluster_shape(LAB, "lab.yaml", 1)
    text = slurm_conf(
        layout, hostname="h", user="0", shape=shape, ports=[1, 2, 3, 4, 5], first_job=1
    )
    lines = text.splitlines()
    nodes = [line.split(" ", 3)[3] for line in lines if line.startswith("NodeName=")]
    assert [line.endswith(" Gres=gpu:nvidia_a100:4") for line in nodes] == [True] + 3 * [False]
    assert nodes[1].endswith(" Gres=gpu:8 Feature=l40") and "Gres" not in nodes[3]
    assert [line for line in lines if line.startswith("PartitionName=")] == [
        "PartitionName=a100 Nodes=node1 MaxTime=2-00:00:00 State=UP",
        "PartitionName=big Nodes=node2,node3 Default=YES MaxTime=UNLIMITED DefaultTime=30 "
        "MinNodes=1 MaxNodes=2 OverSubscribe=EXCLUSIVE State=UP",
        "PartitionName=cpu Nodes=node4 MaxTime=UNLIMITED State=UP",
    ]
    assert "SelectTypeParameters=CR_Core_Memory" in lines
    assert gres_conf(layout, shape).splitlines() == [
        "NodeName=node1 Name=gpu Type=nvidia_a100 File=/tmp/s/gpu/gpu[0-3]",
        "NodeName=node2 Name=gpu File=/tmp/s/gpu/gpu[0-7]",
        "NodeName=node3 Name=gpu Type=h100 File=/tmp/s/gpu/gpu[0-7]",
    ]


def test_sandbox_profile_requests_nodes_like_the_cluster() -> None:
    text = cluster_profile(SandboxFiles(Path("/tmp/s")), build_cluster_shape(LAB, "lab.yaml"))
    made = msgspec.convert(yaml.safe_load(text), Cluster)
    for key in ("partition", "account", "partitions", "gpu_types", "slurm", "rename"):
        assert getattr(made, key) == getattr(LAB, key), key
    assert (made.name, made.accelerator) == ("sandbox", "cpu")
    assert made.setup == Cluster().setup


def test_gpu_types_of_a_partition_define_its_nodes() -> None:
    partition = Partition(gpus_per_node=4, gpu_types={"a100": 4, "v100": 2})
    types = {"a100": GpuType(gres="a100")}
    kinds = build_cluster_shape(Cluster(partitions={"gpu": partition}, gpu_types=types), "p").kinds
    assert [(kind.gpu_type, kind.gpus) for kind in kinds] == [("a100", 4), ("v100", 2)]


@pytest.mark.parametrize(
    ("cluster", "nodes", "why"),
    [
        (Cluster(), None, "lists no partitions"),
        (Cluster(partitions={"a b": Partition()}), None, "'a b' cannot be a name"),
        (Cluster(partitions={"gpu": Partition(gpus_per_node=32)}), None, "32 GPUs per node"),
        (Cluster(partitions={f"p{n}": Partition() for n in range(3)}), 40, "120 nodes"),
    ],
)
def test_unsupported_sandbox_shapes_are_refused(
    cluster: Cluster, nodes: int | None, why: str
) -> None:
    with pytest.raises(InputError, match=why):
        build_cluster_shape(cluster, "lab.yaml", nodes)


def test_sandbox_shape_round_trips_through_json() -> None:
    shape = build_cluster_shape(LAB, "lab.yaml")
    assert msgspec.json.decode(msgspec.json.encode(shape), type=SandboxShape) == shape


def test_sandbox_nodes_have_the_features_requested_by_every_job() -> None:
    """All jobs on Perlmutter request gpu, and those for its larger GPUs also hbm80g."""
    types = {"a": GpuType(), "b": GpuType(constraint="hbm80g")}
    all_of_them = {"gpu": Partition(gpus_per_node=4)}
    site = Cluster(partitions=all_of_them, gpu_types=types, slurm={"constraint": "gpu&rome"})
    assert [kind.feature for kind in build_cluster_shape(site, "p").kinds] == [
        "gpu,rome",
        "hbm80g,gpu,rome",
    ]
