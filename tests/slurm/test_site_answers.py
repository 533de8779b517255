"""The parsers for `hpcrun init`: real output, documented notations, and malformed input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpcrun.slurm.cluster import (
    parse_associations,
    parse_config,
    parse_nodes,
    parse_partitions,
    parse_qos,
    parse_sinfo,
)
from hpcrun.slurm.jobs import count_node_gpus, parse_gpu_limits

CAPTURED = Path(__file__).parent.parent / "captured"
every_version = pytest.mark.parametrize(
    "version", sorted(folder.name for folder in CAPTURED.iterdir())
)
# Characters with a meaning for some parser, so that random input resembles real output.
ANSWERS = st.text("aN1=|,:()[]/-*\n\t \x1b\udcff9gpu", max_size=120)


def captured(version: str, command: str, case: str) -> Any:
    return json.loads((CAPTURED / version / command / f"{case}.json").read_text())["stdout"]


@every_version
def test_partitions_are_parsed_for_every_version(version: str) -> None:
    debug, high = parse_partitions(captured(version, "scontrol", "partition"))
    assert (debug.name, debug.is_default, debug.max_time) == ("debug", True, "7-00:00:00")
    assert (high.name, high.is_default, high.max_time) == ("high", False, "1-00:00:00")
    for row in (debug, high):
        assert row.state == "UP" and row.max_nodes is None and row.default_time is None
        assert not row.exclusive and not row.is_hidden and not row.qos
        assert not row.allow_accounts and not row.allow_groups and not row.allow_qos


@every_version
def test_nodes_are_parsed_for_every_version(version: str) -> None:
    (node,) = parse_nodes(captured(version, "scontrol", "node"))
    assert (node.name, node.cpus, node.memory) == ("node1", 8, 16000)
    assert node.address == "10.0.0.11"


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", {}),
        ("N/A", {}),
        ("", {}),
        ("gpu:4", {"": 4}),
        ("gpu", {"": 1}),
        ("gpu(S:0-1)", {"": 1}),
        ("gpu:8(S:0,2-3)", {"": 8}),
        ("gpu:a100:4(S:0-1)", {"a100": 4}),
        ("gpu:nvidia_a100-sxm4-80gb:4(S:0-3),nvme:2", {"nvidia_a100-sxm4-80gb": 4}),
        ("gpu:4090:2", {"4090": 2}),
        ("gpu:a100:2,gpu:v100:1,shard:16", {"a100": 2, "v100": 1}),
        ("shard:a100:16,mps:400,bandwidth:lustre:no_consume:4G", {}),
        ("gpu:tesla:no_consume:2", {"tesla": 2}),
        ("gpu:a100_1g.5gb:7(S:0),gpu:a100_3g.20gb:2(S:1)", {"a100_1g.5gb": 7, "a100_3g.20gb": 2}),
        ("gpu:1g.10gb:7", {"1g.10gb": 7}),
        ("craynetwork:4,gpu:gh200:4", {"gh200": 4}),
        ("gres/gpu:h100=8", {"h100": 8}),
        ("gpu:0", {}),
        ("gpumem:80G", {}),
    ],
)
def test_gpus_are_parsed_from_all_notations(gres: str, gpus: dict[str, int]) -> None:
    assert count_node_gpus(gres) == gpus


def test_gpu_limits_are_parsed() -> None:
    assert parse_gpu_limits("cpu=1,gres/gpu=0,mem=1G") == {"": 0}
    assert parse_gpu_limits("gres/gpu:a100=4") == {"a100": 4}
    assert parse_gpu_limits("gres/gpumem=80G,xgres/gpu=1") == {}


def test_partition_rules_are_parsed() -> None:
    line = (
        "PartitionName=gpu AllowGroups=ml,admin AllowAccounts=a,b AllowQos=long DenyQos=x "
        "Default=NO QoS=part_gpu DefaultTime=01:00:00 Hidden=YES MaxNodes=4 MaxTime=UNLIMITED "
        "MinNodes=2 MaxCPUsPerNode=48 RootOnly=YES ReqResv=YES OverSubscribe=EXCLUSIVE "
        "State=DRAIN MaxMemPerNode=180000 FutureKey=FutureValue"
    )
    (row,) = parse_partitions(f"{line}\n\n")
    assert row.allow_groups == ["ml", "admin"] and row.allow_accounts == ["a", "b"]
    assert row.allow_qos == ["long"] and row.deny_qos == ["x"] and row.qos == "part_gpu"
    assert row.max_time is None and row.default_time == "01:00:00"
    assert (row.min_nodes, row.max_nodes, row.max_cpus_per_node) == (2, 4, 48)
    assert row.max_memory_per_node == 180000 and row.exclusive and row.is_hidden
    assert row.root_only and row.needs_reservation and row.state == "DRAIN"


@pytest.mark.parametrize(
    ("message", "exclusive"),
    [
        ("OverSubscribe=NO", False),
        ("OverSubscribe=FORCE:4", False),
        ("OverSubscribe=EXCLUSIVE", True),
        ("Shared=EXCLUSIVE", True),
        ("OverSubscribe=NO Exclusive=NO", False),
        ("OverSubscribe=NO Exclusive=USER", False),
        ("ExclusiveUser=YES OverSubscribe=NO", False),
    ],
)
def test_exclusive_partitions_are_recognized(message: str, exclusive: bool) -> None:
    assert parse_partitions(f"PartitionName=x {message}")[0].exclusive == exclusive


def test_minimum_sizes_are_parsed() -> None:
    (row,) = parse_sinfo("x|3|8+|16000+|idle*|n[1-3]|gpu:2|(null)\n")
    assert (row.cpus, row.memory, row.features) == (8, 16000, [])
    assert [row.is_away for row in parse_sinfo("x|1|8|9|down*|n|g|f\nx|1|8|9|drng|n|g|f\n")] == [
        True,
        False,
    ]


def test_configuration_is_parsed() -> None:
    text = (
        "Configuration data as of 2026-11-21T23:00:00\n"
        "AccountingStorageEnforce = associations,limits,qos,safe\n"
        "AccountingStorageType   = accounting_storage/slurmdbd\n"
        "ClusterName             = hot\nMaxArraySize            = 1001\n"
        "SelectType              = select/linear\nSLURM_VERSION           = 20.11.4\n"
        "SlurmctldHost[0]        = head(10.0.0.1)\nTmpFS                   = /tmp\n"
    )
    config = parse_config(text)
    assert (config.cluster, config.version, config.max_array_size) == ("hot", "20.11.4", 1001)
    assert config.whole_nodes and config.has_accounting
    assert {"associations", "limits", "qos"} <= config.enforced
    assert parse_config("AccountingStorageEnforce = none\n").enforced == frozenset()
    assert parse_config("AccountingStorageEnforce = qos\n").enforced == {"qos", "associations"}


@given(ANSWERS)
@example("PartitionName= x=1")
@example("PartitionName")
@example("gpu:::")
@example("||||||||")
@example("x|99999999999|1|1|1|1|1|1")
def test_malformed_answers_do_not_crash_the_parsers(text: str) -> None:
    parse_partitions(text)
    parse_partitions(f"PartitionName={text}")
    parse_config(text)
    parse_nodes(f"NodeName={text}")
    parse_sinfo(text)
    parse_associations(text)
    parse_qos(text)
    assert all(count > 0 for count in count_node_gpus(text).values())
    parse_gpu_limits(text)
