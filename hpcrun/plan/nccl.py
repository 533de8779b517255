"""NCCL's variables by fabric: only what something reads, each with the reason.

Nothing here is one of NCCL's debugging variables, which its user guide wants in no script; the
RoCE address index (NCCL_IB_GID_INDEX) is not set because NCCL >= 2.21 finds it itself, the
time-out and the traffic class are left to the site (``nccl: {env: ...}``), and a single node
needs nothing, with NVLink or without. Names of interfaces and cards are set on each node, by
``hardware.sh``.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcrun.plan.types import Section
from hpcrun.spec.cluster import Cluster
from hpcrun.spec.job import JobSpec

SINGLE_NODE = "single-node"

# NCCL_NET: aws-ofi-nccl answers to this name in all its versions, though it has another since 1.12
# (its src/nccl_ofi_interface_nvidia.cpp).
_OFI = ("NCCL_NET", "AWS Libfabric", "the libfabric plugin, or an error: not TCP unasked")
_DEBUG = ("NCCL_DEBUG", "WARN", "unset, not even errors are printed")
_IB = ("NCCL_NET", "IB", "verbs, or an error: not TCP unasked")

# By fabric: name, value, why. What a site's module or image has set already stays.
FABRICS: dict[str, list[tuple[str, str, str]]] = {
    "infiniband": [_IB],
    "roce": [_IB],
    "ethernet": [("NCCL_NET", "Socket", "TCP; no half-configured RDMA card is tried")],
    # The plugin sets the rest itself since 1.7 (its doc/efa-env-var.md).
    "efa": [_OFI],
    # libfabric's cxi provider, fi_cxi(7); the values are those of the sites' own documentation
    # (CSCS, NERSC, Isambard).
    "slingshot": [
        _OFI,
        ("NCCL_CROSS_NIC", "1", "one network: rings may cross cards"),
        ("FI_MR_CACHE_MONITOR", "userfaultfd", "the default one can deadlock with CUDA"),
        ("FI_CXI_DISABLE_HOST_REGISTER", "1", "it can deadlock with NCCL"),
        ("FI_CXI_DEFAULT_CQ_SIZE", "131072", "room for the completions of many ranks"),
        ("FI_CXI_RX_MATCH_MODE", "hybrid", "a full match list is not fatal"),
    ],
}


def decide_fabric(spec: JobSpec, cluster: Cluster) -> str:
    """Decide the network between the nodes: the job's, else the profile's; one node has none.

    ``auto`` is decided when the job starts, on its first node.
    """
    if spec.resources.nodes == 1:
        return SINGLE_NODE
    return spec.nccl.fabric if spec.nccl.fabric != "auto" else cluster.fabric


def nccl_sections(fabric: str, accelerator: str, *, is_seen: bool = True) -> list[Section]:
    """Set NCCL's variables for a fabric; for ``auto`` a section for each that it may be.

    ``is_seen``: the batch script runs on the job's first node, and not, as with a hostfile, where
    hpcrun was called: that machine shows nothing of the hosts.
    """
    if accelerator != "cuda":
        return []
    comment = {
        SINGLE_NODE: "One node: NVLink, PCIe and shared memory need nothing set.",
        "auto": "In addition to the network's settings, detected on the job's first node."
        if is_seen
        else "NCCL finds the network itself.",
    }.get(fabric, "")
    title = "NCCL" if fabric == "auto" else f"NCCL ({fabric})"
    sections = [_section([_DEBUG, *FABRICS.get(fabric, [])], title=title, comment=comment)]
    if fabric == "auto" and is_seen:
        alike: dict[tuple[tuple[str, str, str], ...], list[str]] = {}
        for name, rows in FABRICS.items():
            alike.setdefault(tuple(rows), []).append(name)
        sections += [_section(rows, fabrics=names) for rows, names in alike.items()]
    return sections


def _section(
    rows: Sequence[tuple[str, str, str]],
    *,
    title: str = "NCCL",
    comment: str = "",
    fabrics: Sequence[str] = (),
) -> Section:
    return Section(
        block="nccl",
        title=title,
        variables={name: value for name, value, _ in rows},
        reasons={name: why for name, _, why in rows},
        keeps=[name for name, _, _ in rows],
        comment=comment,
        fabrics=list(fabrics),
    )
