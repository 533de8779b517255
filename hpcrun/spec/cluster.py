"""Cluster: what a profile says about the place where jobs run.

Pure.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from hpcrun.spec.job import Memory, Positive, Setup, Time


class Partition(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One partition's nodes, as read from the cluster on ``Cluster.read_on``."""

    gpus_per_node: Positive | None = None
    cpus_per_node: Positive | None = None
    memory_per_node: Memory | None = None
    max_time: Time | None = None


class GpuType(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How this cluster spells one GPU type: any of a gres type, a constraint, a partition."""

    gres: str | None = None
    constraint: str | None = None
    partition: str | None = None


class Cluster(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A cluster profile: ``hpcrun.yaml`` in a project, or a file in ~/.config/hpcrun/clusters/."""

    name: str = "default"
    description: str = ""
    read_on: str | None = None
    accelerator: Literal["cuda", "cpu"] = "cuda"
    slurm_conf: str | None = None
    runs_dir: str = "~/hpcrun/runs"
    cache_dir: str = "~/hpcrun/cache"
    partition: str | None = None
    account: str | None = None
    partitions: dict[str, Partition] = field(default_factory=dict)
    gpu_types: dict[str, GpuType] = field(default_factory=dict)
    fabric: Literal["auto", "ethernet"] = "auto"
    internet: bool = True
    python: str | None = None
    setup: Setup = field(default_factory=Setup)
    env: dict[str, str] = field(default_factory=dict)
    slurm: dict[str, str | bool] = field(default_factory=dict)
