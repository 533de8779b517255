"""What a node says of its network and GPUs: hardware.sh over a /sys of the test's own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.hardware_node import HARDWARE, Node
from tests.harness_job import Job


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "it's a $(node)")


def test_a_node_with_nothing_special_has_ethernet(node: Node) -> None:
    assert node.fabric() == ("ethernet", "hpcrun: fabric: ethernet (no other network is up)")


@pytest.mark.parametrize(
    ("layer", "driver", "fabric"),
    [
        ("InfiniBand", "mlx5_core", "infiniband"),
        ("InfiniBand", "mlx4_core", "infiniband"),
        ("Ethernet", "mlx5_core", "roce"),
        ("Ethernet", "bnxt_en", "roce"),
        ("Unspecified", "efa", "efa"),
        ("InfiniBand", "hfi1", "omni-path"),
    ],
)
def test_verbs_devices_show_the_network(node: Node, layer: str, driver: str, fabric: str) -> None:
    node.rdma("dev_0", layer, driver)
    node.rdma("dev_1", layer, driver)
    assert node.fabric() == (fabric, f"hpcrun: fabric: {fabric} (dev_0, dev_1)")


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "3: ARMED"])
def test_ports_that_are_down_do_not_count(node: Node, state: str) -> None:
    node.rdma("mlx5_0", "InfiniBand", "mlx5_core", state)
    assert node.fabric()[0] == "ethernet"
    node.rdma("mlx5_1", "InfiniBand", "mlx5_core", state, "4: ACTIVE")
    assert node.fabric() == ("infiniband", "hpcrun: fabric: infiniband (mlx5_1)")


def test_the_fastest_of_several_networks_is_taken(node: Node) -> None:
    node.rdma("mlx5_bond_0", "Ethernet")
    assert node.fabric()[0] == "roce"
    node.rdma("mlx5_0", "InfiniBand")
    assert node.fabric() == ("infiniband", "hpcrun: fabric: infiniband (mlx5_0)")


def test_slingshot_is_known_by_its_cards(node: Node) -> None:
    node.cxi("cxi0", "hsn0", "down")
    assert node.fabric()[0] == "ethernet"
    node.cxi("cxi1", "hsn1")
    assert node.fabric() == ("slingshot", "hpcrun: fabric: slingshot (cxi1)")


def library(folder: Path) -> str:
    """Put a plugin of NCCL's into a folder."""
    folder.mkdir(parents=True)
    (folder / "libnccl-net.so").touch()
    return str(folder)


@pytest.mark.parametrize(
    ("folder", "card", "fabric"),
    [("var/lib/tcpxo/lib64", "", "fastrak"), ("usr/local/gib/lib64", "mlx5_core", "gib")],
)
def test_googles_networks_are_known_by_their_plugins(
    node: Node, folder: str, card: str, fabric: str
) -> None:
    """Without the plugin these cards are Ethernet and RoCE, and NCCL would train over TCP."""
    if card:
        node.rdma("mlx5_0", "Ethernet", card)
    assert node.fabric()[0] == ("roce" if card else "ethernet")
    library(node.root / folder)
    assert node.fabric()[0] == fabric


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "fabric"),
    [
        ({"NCCL_NET_PLUGIN": "fabric"}, "plugin"),
        ({"NCCL_NET_PLUGIN": "none"}, "ethernet"),
        ({"NCCL_TUNER_PLUGIN": "libtuner.so"}, "plugin"),
        ({"NCCL_FASTRAK_CTRL_DEV": "enp0s12"}, "plugin"),
        ({"NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0"}, "plugin"),
        ({"LD_LIBRARY_PATH": "/no/where:{lib}"}, "plugin"),
        ({"LD_LIBRARY_PATH": "/no/where:"}, "ethernet"),
    ],
)
def test_a_plugin_that_the_job_has_been_given_is_not_turned_off_by_tcp(
    node: Node, env: dict[str, str], fabric: str
) -> None:
    lib = library(node.root / "lib of *")
    given = {name: value.replace("{lib}", lib) for name, value in env.items()}
    assert node.fabric(**given)[0] == fabric
    node.rdma("mlx5_0", "InfiniBand")
    assert node.fabric(**given)[0] == "infiniband"


@pytest.mark.parametrize(
    "fabric",
    ["ethernet", "infiniband", "roce", "efa", "slingshot", "fastrak", "gib", "plugin"],
)
def test_nccl_meets_on_the_way_to_rank_0(node: Node, fabric: str) -> None:
    node.rdma("mlx5_0", "InfiniBand")
    error, env = node.check('set_nccl_devices "$1" eth1', HPCRUN_FABRIC=fabric)
    assert (error, env["NCCL_SOCKET_IFNAME"]) == ("", "=eth1")
    assert "NCCL_IB_HCA" not in env
    own = {"HPCRUN_FABRIC": fabric, "NCCL_SOCKET_IFNAME": "^docker"}
    assert node.check('set_nccl_devices "$1" eth1', **own)[1]["NCCL_SOCKET_IFNAME"] == "^docker"


@pytest.mark.parametrize("fabric", ["single-node", "omni-path", ""])
def test_elsewhere_nccl_chooses_its_interface(node: Node, fabric: str) -> None:
    env = node.check('set_nccl_devices "$1" eth1', HPCRUN_FABRIC=fabric)[1]
    assert "NCCL_SOCKET_IFNAME" not in env
    env = node.check('set_nccl_devices "$1" ""', HPCRUN_FABRIC="ethernet")[1]
    assert "NCCL_SOCKET_IFNAME" not in env


def test_a_node_without_a_port_that_is_up_is_reported_before_nccl_stops(node: Node) -> None:
    call, env = 'set_nccl_devices "$1" eth1', {"HPCRUN_FABRIC": "infiniband", "NCCL_NET": "IB"}
    node.rdma("mlx5_0", "InfiniBand", "mlx5_core", "1: DOWN")
    assert node.check(call, **env)[0].startswith("no InfiniBand or RoCE port is up, and NCCL_NET")
    assert node.check(call, HPCRUN_FABRIC="infiniband", NCCL_NET="gIB")[0] == ""
    node.rdma("mlx5_1", "InfiniBand")
    assert node.check(call, **env)[0] == ""


def test_ports_in_ethernet_mode_are_kept_out_of_an_infiniband_job(node: Node) -> None:
    call, env = 'set_nccl_devices "$1" eth1', {"HPCRUN_FABRIC": "infiniband", "NCCL_NET": "IB"}
    for name in ("mlx5_0", "mlx5_1"):
        node.rdma(name, "InfiniBand")
    assert "NCCL_IB_HCA" not in node.check(call, **env)[1]
    node.rdma("mlx5_2", "Ethernet")
    assert node.check(call, **env)[1]["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    assert node.check(call, **env, NCCL_IB_HCA="mlx5_1")[1]["NCCL_IB_HCA"] == "mlx5_1"
    roce = {**env, "HPCRUN_FABRIC": "roce"}
    assert "NCCL_IB_HCA" not in node.check(call, **roce)[1]


def test_what_the_sites_nccl_conf_says_stays(node: Node) -> None:
    """The environment would win over the file: NCCL sets only what is not set."""
    call = 'set_nccl_devices "$1" eth1'
    env = {"HPCRUN_FABRIC": "infiniband", "NCCL_NET": "IB"}
    node.rdma("mlx5_0", "InfiniBand")
    node.rdma("mlx5_1", "Ethernet")
    conf = node.root / "etc/nccl.conf"
    conf.parent.mkdir()
    conf.write_text("# NCCL_SOCKET_IFNAME=eth7\nNCCL_IB_HCA=mlx5_0:1\n")
    seen = node.check(call, **env)[1]
    assert "NCCL_IB_HCA" not in seen and seen["NCCL_SOCKET_IFNAME"] == "=eth1"
    own = node.root / ".nccl.conf"
    own.write_text("NCCL_SOCKET_IFNAME=ib0\n")
    for place in ({"HOME": str(node.root)}, {"NCCL_CONF_FILE": str(own)}):
        assert not node.check(call, **env, **place)[1].keys() & {"NCCL_SOCKET_IFNAME"}
    assert "NCCL_SOCKET_IFNAME" in node.check(call, **env, HOME="/", NCCL_CONF_FILE=str(conf))[1]


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({}, True),
        ({"NCCL_NET_PLUGIN": "none", "NCCL_COLLNET_ENABLE": "0"}, True),
        ({"NCCL_NET_PLUGIN": "rdma-sharp"}, False),
        ({"NCCL_COLLNET_ENABLE": "1"}, False),
    ],
)
def test_a_plugin_for_verbs_is_not_turned_off(
    node: Node, asked: dict[str, str], kept: bool
) -> None:
    node.rdma("mlx5_0", "InfiniBand")
    env = {"HPCRUN_FABRIC": "infiniband", "NCCL_NET": "IB", **asked}
    seen = node.check('set_nccl_devices "$1" eth1', **env)[1]
    assert seen.get("NCCL_NET") == ("IB" if kept else None)
    ofi = {**env, "NCCL_NET": "AWS Libfabric"}
    assert node.check('set_nccl_devices "$1" eth1', **ofi)[1]["NCCL_NET"] == "AWS Libfabric"


@pytest.mark.slow
def test_the_harness_stops_before_the_launcher_does(tmp_path: Path) -> None:
    """GPUs without bf16 end a job that needs it, on the node, with the GPU's name."""
    made = Job(tmp_path / "run")
    node = Node(tmp_path / "node")
    node.gpus("7.0, Tesla V100-SXM2-32GB")
    env = {"PATH": f"{node.bin}:{os.environ['PATH']}", "HPCRUN_CACHE_DIR": str(tmp_path)}
    code, out = made.go(b"", HPCRUN_NEEDS_BF16="1", **env)
    assert code == 1 and "trained" not in made.log()
    assert "Tesla V100-SXM2-32GB has no bf16 units (compute capability 7.0)" in made.log() + out
    again = Job(tmp_path / "again")
    assert again.go(b"", **env)[0] == 0


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("7.0, Tesla V100-SXM2-32GB", True),
        ("7.5, Tesla T4", True),
        ("6.1, NVIDIA GeForce GTX 1080 Ti", True),
        ("8.0, NVIDIA A100-SXM4-80GB", False),
        ("9.0, NVIDIA H200", False),
        ("10.0, NVIDIA B200", False),
        ("12.0, NVIDIA GeForce RTX 5090", False),
    ],
)
def test_bf16_needs_gpus_that_have_it(node: Node, line: str, bad: bool) -> None:
    node.gpus("9.0, NVIDIA H100", line)
    error, _ = node.check("check_gpus", HPCRUN_NEEDS_BF16="1")
    capability, _, name = line.partition(", ")
    wanted = f"{name} has no bf16 units (compute capability {capability}): set precision: fp16"
    assert error == (f"{wanted} (--set precision=fp16)" if bad else "")
    assert node.check("check_gpus")[0] == ""


def test_only_the_jobs_gpus_are_asked_and_an_old_driver_is_not_believed(node: Node) -> None:
    assert node.check("check_gpus", HPCRUN_NEEDS_BF16="1")[0] == ""  # no nvidia-smi at all
    node.gpus('Field "compute_cap" is not a valid field to query.', code=2)
    env = {"HPCRUN_NEEDS_BF16": "1", "CUDA_VISIBLE_DEVICES": "2,3"}
    assert node.check("check_gpus", **env)[0] == ""
    assert (node.root / "asked").read_text().split() == [
        *("--query-gpu=compute_cap,name", "--format=csv,noheader", "--id=2,3"),
    ]


@pytest.mark.parametrize(
    ("address", "interface"),
    [
        ("10.1.2.3", "ib0"),
        ("10.1.9.9", "eth1"),
        ("10.9.9.9", "eth0"),
        ("127.0.0.1", "lo"),
        ("fe80::1", ""),
        ("node1", ""),
    ],
)
def test_the_interface_of_a_route_without_ip(tmp_path: Path, address: str, interface: str) -> None:
    """In an image there may be no ip: the kernel's table has the answer, the longest mask wins."""
    table = tmp_path / "proc/net/route"
    table.parent.mkdir(parents=True)
    rows = [
        ("eth0", "00000000", "00000000"),
        ("eth1", "0000010A", "0000FFFF"),
        ("ib0", "0002010A", "00FFFFFF"),
    ]
    text = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    for name, target, mask in rows:
        text += f"{name}\t{target}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0\n"
    table.write_text(text)
    done = subprocess.run(
        ["bash", "-c", f'. {HARDWARE}; routed_interface "$1" "$2"', "-", address, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.strip(), done.stderr) == (interface, "")


# ---- the cores next to each GPU


def of_lumi(node: Node, *, gpus: int = 8) -> None:
    """A node of LUMI-G: its GPUs in pairs at four places, one core of eight the system's.

    GPUs 0 and 1 are next to cores 48 to 63.
    """
    places = ["48-63,112-127", "16-31,80-95", "0-15,64-79", "32-47,96-111"]
    topology = node.root / "sys/class/kfd/kfd/topology/nodes"
    for number in range(4 + gpus):
        gpu = number - 4
        bus = 0xC1 + gpu if gpu >= 0 else 0
        (topology / str(number)).mkdir(parents=True)
        (topology / str(number) / "properties").write_text(
            f"cpu_cores_count {16 if gpu < 0 else 0}\nsimd_count {0 if gpu < 0 else 440}\n"
            f"location_id {bus << 8}\ndomain 0\n"
        )
        if gpu >= 0:
            node.place(f"0000:{bus:02x}:00.0", places[gpu // 2])
    node.cpus([core for core in range(64) if core % 8], threads=64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "cpus"),
    [(0, range(49, 56)), (1, range(57, 64)), (2, range(17, 24)), (5, range(9, 16))],
)
def test_ranks_are_bound_as_lumi_documents_it(node: Node, rank: int, cpus: range) -> None:
    """By masks: fe000000000000 for rank 0, fe00000000000000 for rank 1, fe0000, fe000000, fe, fe00.

    docs.lumi-supercomputer.eu/runjobs/scheduled-jobs/distribution-binding, as read in four users'
    scripts that cite it.
    """
    of_lumi(node)
    assert sorted(node.bound(rank, 8)) == list(cpus)


@pytest.mark.slow
def test_ranks_on_a_shared_node_have_all_cores_of_their_place(node: Node) -> None:
    of_lumi(node)
    # The third and the fourth GPU are this job's; hardware.sh finds them by Slurm's variable.
    assert sorted(node.bound(0, 2, "node", ROCR_VISIBLE_DEVICES="2,4")) == [
        *range(17, 24), *range(25, 32)
    ]  # fmt: skip
    assert sorted(node.bound(1, 2, "node", ROCR_VISIBLE_DEVICES="2,4"))[0] == 1


NVIDIA = [
    "0, GPU-aa, 00000000:1B:00.0", "1, GPU-bb, 00000000:5E:00.0", "2, GPU-cc, 00010000:B1:00.0",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("visible", "rank", "cpus"),
    [
        (None, 0, {0, 4, 1, 5}),
        (None, 2, {2, 3, 6, 7}),
        ("2,0", 0, {2, 3, 6, 7}),
        ("GPU-cc,GPU-bb", 1, {0, 1, 4, 5}),
        ("MIG-1234,1", 0, {0, 1, 2, 3, 4, 5, 6, 7}),
    ],
)
def test_the_gpus_are_those_that_the_job_sees(
    node: Node, visible: str | None, rank: int, cpus: set[int]
) -> None:
    node.gpus(*NVIDIA)
    for address, place in (("0000:1b", "0-1,4-5"), ("0000:5e", "0-1,4-5"), ("10000:b1", "2-3,6-7")):
        node.place(f"{address}:00.0", place)
    node.cpus(range(8), threads=4)
    given = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert node.bound(rank, 2 if visible else 3, "node", **given) == cpus


def test_threads_of_a_core_stay_together(node: Node) -> None:
    node.gpus("0, GPU-aa, 00000000:1B:00.0", "1, GPU-bb, 00000000:5E:00.0")
    for address in ("1b", "5e"):
        node.place(f"0000:{address}:00.0", "0-7")
    node.cpus(range(8), threads=4)
    assert [node.bound(rank, 2) for rank in (0, 1)] == [{0, 1, 4, 5}, {2, 3, 6, 7}]


def test_without_a_word_on_the_gpus_the_cores_are_shared_out(node: Node) -> None:
    node.cpus([1, 2, 5, 6, 7], threads=64)
    assert [node.bound(rank, 2) for rank in (0, 1)] == [{1, 2}, {5, 6, 7}]
    # Fewer cores than ranks: none is left without, and none is alone.
    assert node.bound(7, 8) == {1, 2, 5, 6, 7}


def test_cores_of_the_job_that_are_far_from_its_gpu_are_still_its_own(node: Node) -> None:
    node.gpus("0, GPU-aa, 00000000:1B:00.0")
    node.place("0000:1b:00.0", "32-63")
    node.cpus(range(4), threads=64)
    assert node.bound(0, 1) == {0, 1, 2, 3}
