"""The NCCL variables set for each network, and those never set."""

from __future__ import annotations

import re

import msgspec
import pytest

from hpcrun.plan.build import build_plan
from hpcrun.plan.environment import FABRICS
from hpcrun.render.environment import open_templates
from hpcrun.render.files import render_files
from tests.plan.making import PLACE, cluster, job, plan, variables

TWO_NODES = "script: a.py\nresources: {nodes: 2, gpus_per_node: 4}\n"


def shown(env: dict[str, str]) -> dict[str, str]:
    """Return the network-specific variables; the flight recorder is set on every network."""
    recorder = {"TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"}
    found = {k: v for k, v in env.items() if re.match("NCCL|FI_|TORCH_NCCL", k)}
    return {k: v for k, v in found.items() if k not in recorder or not found.get("NCCL_DEBUG")}


@pytest.mark.parametrize(
    ("fabric", "wanted"),
    [
        ("infiniband", {"NCCL_NET": "IB"}),
        ("roce", {"NCCL_NET": "IB"}),
        ("ethernet", {"NCCL_NET": "Socket"}),
        ("efa", {"NCCL_NET": "AWS Libfabric"}),
        ("fastrak", {"NCCL_NET": "FasTrak"}),
        ("gib", {"NCCL_NET": "gIB"}),
        (
            "slingshot",
            {
                "NCCL_NET": "AWS Libfabric",
                "NCCL_CROSS_NIC": "1",
                "NCCL_NET_GDR_LEVEL": "PHB",
                "FI_CXI_DEFAULT_TX_SIZE": "16384",
                "FI_MR_CACHE_MONITOR": "userfaultfd",
                "FI_CXI_DISABLE_HOST_REGISTER": "1",
                "FI_CXI_DEFAULT_CQ_SIZE": "131072",
                "FI_CXI_RX_MATCH_MODE": "hybrid",
            },
        ),
    ],
)
def test_network_is_forced_to_prevent_fallback_to_tcp(fabric: str, wanted: dict[str, str]) -> None:
    wanted = {"NCCL_DEBUG": "WARN", **wanted}
    assert shown(variables(plan(TWO_NODES, f"fabric: {fabric}"))) == wanted
    assert shown(variables(plan(f"{TWO_NODES}nccl: {{fabric: {fabric}}}"))) == wanted
    # Without a fabric in the job, the node detects it, with the same result.
    assert shown(variables(plan(TWO_NODES), network=fabric)) == wanted


def test_single_node_sets_no_network_variables() -> None:
    made = plan("script: a.py\nresources: {gpus_per_node: 8}", "fabric: infiniband")
    assert made.fabric == "single-node"
    assert shown(variables(made)) == {"NCCL_DEBUG": "WARN"}


def test_jobs_without_gpus_set_no_nccl_variables() -> None:
    assert not shown(variables(plan(TWO_NODES, "accelerator: cpu"), network="infiniband"))
    made = plan("script: a.py\nresources: {nodes: 2, gpus_per_node: 0}")
    env = variables(made, network="infiniband")
    assert not shown(env)
    assert (env["HPCRUN_DEVICE"], env["HPCRUN_BACKEND"], env["DS_ACCELERATOR"]) == (
        *("cpu", "gloo", "cpu"),
    )


def test_unknown_network_is_left_to_nccl() -> None:
    assert shown(variables(plan(TWO_NODES), network="omni-path")) == {"NCCL_DEBUG": "WARN"}


def test_hostfile_job_ignores_the_network_of_the_local_machine() -> None:
    place = msgspec.structs.replace(PLACE, hosts=["a", "b"])
    made = build_plan(job(TWO_NODES), cluster(), place)
    assert not [section for section in made.environment if section.fabrics]
    files = render_files(made, open_templates(None))
    assert "hardware.sh" not in next(file.text for file in files if file.name == "job.sbatch")
    forced = build_plan(job(f"{TWO_NODES}nccl: {{fabric: roce}}"), cluster(), place)
    assert shown(variables(forced))["NCCL_NET"] == "IB"


def test_nccl_settings_of_the_job_win_for_every_network() -> None:
    text = f"{TWO_NODES}nccl: {{env: {{NCCL_NET: gIB}}}}\nenv: {{FI_CXI_DEFAULT_CQ_SIZE: '7'}}"
    for network in FABRICS:
        env = variables(plan(text), network)
        assert (env["NCCL_NET"], env["FI_CXI_DEFAULT_CQ_SIZE"]) == ("gIB", "7")
    assert variables(plan(TWO_NODES, "env: {NCCL_NET: gIB}"), "roce")["NCCL_NET"] == "gIB"


def test_debug_switches_and_gid_index_are_never_set() -> None:
    never = r"NCCL_(P2P|IB|SHM)_DISABLE|NCCL_(ALGO|PROTO|BUFFSIZE|NTHREADS)|NCCL_IB_GID_INDEX"
    never += r"|NCCL_M(IN|AX)_\w+|FI_EFA_\w+|FI_PROVIDER|RDMAV_FORK_SAFE"
    names = {name for rows in FABRICS.values() for name, _, _ in rows}
    assert not [name for name in names if re.fullmatch(never, name)]
    # Variables that the vendor recommends on Slingshot only.
    assert [
        key for key, rows in FABRICS.items() if "NCCL_NET_GDR_LEVEL" in dict(r[:2] for r in rows)
    ] == ["slingshot"]


def test_gpu_aware_mpi_is_disabled_on_slingshot() -> None:
    files = render_files(plan(TWO_NODES, "fabric: slingshot"), open_templates(None))
    script = next(file.text for file in files if file.name == "job.sbatch")
    assert "\nexport MPICH_GPU_SUPPORT_ENABLED=0 # GPU-aware MPI" in script
    own = f"{TWO_NODES}env: {{MPICH_GPU_SUPPORT_ENABLED: 1}}"
    assert variables(plan(own, "fabric: slingshot"))["MPICH_GPU_SUPPORT_ENABLED"] == "1"


@pytest.mark.parametrize("fabric", [*FABRICS, "auto"])
def test_nccl_exports_explain_themselves_and_keep_module_values(fabric: str) -> None:
    files = render_files(plan(TWO_NODES, f"fabric: {fabric}"), open_templates(None))
    script = next(file.text for file in files if file.name == "job.sbatch")
    lines = re.findall(r"^ *export ((?:NCCL|FI)_\w+)=(.*)$", script, re.MULTILINE)
    assert len(lines) > 1
    for name, rest in lines:
        assert re.search(r" # \w", rest), name
        assert rest.startswith(f'"${{{name}:-')
    # The values are quoted for bash, so they contain only plain characters.
    values = {value for rows in FABRICS.values() for _, value, _ in rows}
    assert all(re.fullmatch(r"[A-Za-z0-9 ]+", value) for value in values)
