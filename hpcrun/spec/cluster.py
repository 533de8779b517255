"""Cluster: what a profile says about the place where jobs run."""

# Annotations are not postponed: msgspec would evaluate the text of each, at every call of hpcrun.
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from hpcrun.spec.job import (
    ContainerRuntime,
    Env,
    EnvironmentKind,
    Fabric,
    Filled,
    Line,
    Memory,
    NotNegative,
    Positive,
    SbatchOption,
    SbatchOptions,
    Setup,
    Time,
)


class Partition(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One partition's nodes, as read from the cluster on ``Cluster.read_on``.

    Where its nodes differ, the numbers of a node are those of the largest, beyond which no node can
    go; ``cpus_per_gpu`` and ``memory_per_gpu`` are the shares that every GPU has on every node.
    """

    nodes: Annotated[Positive | None, Meta(description="number of nodes")] = None
    gpus_per_node: Annotated[
        NotNegative | None, Meta(description="GPUs of a node, of all types; 0: it has none")
    ] = None
    gpu_types: Annotated[
        dict[Line, Positive],
        Meta(description="GPUs of each type on one node, as in a100: 4, by the types' names here"),
    ] = field(default_factory=dict)
    cpus_per_node: Annotated[Positive | None, Meta(description="CPU cores of a node")] = None
    memory_per_node: Annotated[
        Memory | None, Meta(description="memory of a node, as in 200G; a bare number is MB")
    ] = None
    cpus_per_gpu: Annotated[
        Positive | None,
        Meta(description="CPU cores for each GPU, if not cpus_per_node / gpus_per_node"),
    ] = None
    memory_per_gpu: Annotated[
        Memory | None,
        Meta(description="memory for each GPU, if not memory_per_node / gpus_per_node"),
    ] = None
    max_time: Annotated[
        Time | None, Meta(description="longest job: minutes, h:m:s or days-hours")
    ] = None
    default_time: Annotated[Time | None, Meta(description="default time limit of a job")] = None
    min_nodes: Annotated[Positive | None, Meta(description="fewest nodes of a job")] = None
    max_nodes: Annotated[Positive | None, Meta(description="most nodes of a job")] = None
    max_gpus: Annotated[
        Positive | None, Meta(description="most GPUs that you can have at once, by QOS and account")
    ] = None
    exclusive: Annotated[
        bool, Meta(description="the partition gives whole nodes only (OverSubscribe=EXCLUSIVE)")
    ] = False


class GpuType(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to request a GPU type here: any of a gres type, a constraint, a partition."""

    gres: Annotated[Line | None, Meta(description="type in --gres=gpu:TYPE:COUNT")] = None
    constraint: Annotated[Line | None, Meta(description="node feature for --constraint")] = None
    partition: Annotated[Line | None, Meta(description="partition that has this type")] = None
    bf16: Annotated[
        bool | None, Meta(description="whether it has bf16 units; else known by the type's name")
    ] = None
    mig: Annotated[
        bool | None, Meta(description="a slice of a GPU; else known by the gres type, as in 1g.5gb")
    ] = None


class Cluster(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A cluster profile: ``hpcrun.yaml`` in a project, or a file in ~/.config/hpcrun/clusters/."""

    name: Annotated[Line, Meta(description="the cluster's name in listings")] = "default"
    description: Annotated[str, Meta(description="one sentence for listings")] = ""
    read_on: Annotated[
        str | None, Meta(description="date on which the partitions were read from the cluster")
    ] = None
    slurm_version: Annotated[
        Line | None, Meta(description="Slurm's version on that date, as in 24.11.5")
    ] = None
    max_array_size: Annotated[
        Positive | None, Meta(description="Slurm's MaxArraySize: a sweep has fewer runs than that")
    ] = None
    accelerator: Annotated[
        Literal["cuda", "cpu"], Meta(description="what trains; cpu: nodes without GPUs")
    ] = "cuda"
    slurm_conf: Annotated[
        str | None, Meta(description="slurm.conf to use, if not the system's")
    ] = None
    runs_dir: Annotated[
        str, Meta(description="folder of the runs; every node must see it at the same path")
    ] = "~/hpcrun/runs"
    cache_dir: Annotated[str, Meta(description="folder of compiled operators and caches")] = (
        "~/hpcrun/cache"
    )
    local_dir: Annotated[
        Filled,
        Meta(description="the nodes' local disk, as in /local or $TMPDIR; {local_dir} is in it"),
    ] = "/tmp"
    partition: Annotated[Line | None, Meta(description="default partition of jobs")] = None
    account: Annotated[Line | None, Meta(description="default account of jobs")] = None
    partitions: Annotated[
        dict[str, Partition], Meta(description="the cluster's partitions, by name")
    ] = field(default_factory=dict)
    gpu_types: Annotated[
        dict[str, GpuType], Meta(description="GPU types, by the name that jobs use")
    ] = field(default_factory=dict)
    fabric: Annotated[
        Fabric, Meta(description="the network between the nodes; auto: detected on the nodes")
    ] = "auto"
    internet: Annotated[bool, Meta(description="whether compute nodes reach the internet")] = True
    python: Annotated[
        str | None, Meta(description="the interpreter that trains, if the job names none")
    ] = None
    environment: Annotated[
        EnvironmentKind,
        Meta(description="whether jobs inherit the variables of the submitting shell"),
    ] = "inherit"
    container_runtime: Annotated[
        ContainerRuntime | None, Meta(description="what runs containers here")
    ] = None
    setup: Setup = field(default_factory=Setup)
    env: Annotated[Env, Meta(description="variables of every job")] = field(default_factory=dict)
    slurm: Annotated[
        SbatchOptions,
        Meta(description="sbatch options of every job, as in qos: high; false drops hpcrun's"),
    ] = field(default_factory=dict)
    rename: Annotated[
        dict[SbatchOption, SbatchOption],
        Meta(description="options that have another name here, as in gres: gpus-per-node"),
    ] = field(default_factory=dict)
