"""Cluster: what a profile says about the place where jobs run."""

# Annotations are not postponed: msgspec would evaluate the text of each, at every call of hpcrun.
from typing import Annotated, Literal

from msgspec import Struct, field

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
    about,
)


class Partition(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One partition's nodes, as read from the cluster on ``Cluster.read_on``.

    Where its nodes differ, the numbers of a node are those of the largest, beyond which no node can
    go; ``cpus_per_gpu`` and ``memory_per_gpu`` are the shares that every GPU has on every node.
    """

    nodes: Annotated[Positive | None, about("number of nodes")] = None
    gpus_per_node: Annotated[
        NotNegative | None, about("GPUs of a node, of all types; 0: it has none")
    ] = None
    gpu_types: Annotated[
        dict[Line, Positive],
        about("GPUs of each type on one node, as in a100: 4, by the types' names here"),
    ] = {}
    cpus_per_node: Annotated[Positive | None, about("CPU cores of a node")] = None
    memory_per_node: Annotated[
        Memory | None, about("memory of a node, as in 200G; a bare number is MB")
    ] = None
    cpus_per_gpu: Annotated[
        Positive | None, about("CPU cores for each GPU, if not cpus_per_node / gpus_per_node")
    ] = None
    memory_per_gpu: Annotated[
        Memory | None, about("memory for each GPU, if not memory_per_node / gpus_per_node")
    ] = None
    max_time: Annotated[Time | None, about("longest job: minutes, h:m:s or days-hours")] = None
    default_time: Annotated[Time | None, about("default time limit of a job")] = None
    min_nodes: Annotated[Positive | None, about("fewest nodes of a job")] = None
    max_nodes: Annotated[Positive | None, about("most nodes of a job")] = None
    max_gpus: Annotated[
        Positive | None, about("most GPUs that you can have at once, by QOS and account")
    ] = None
    exclusive: Annotated[
        bool, about("the partition gives whole nodes only (OverSubscribe=EXCLUSIVE)")
    ] = False


class GpuType(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to request a GPU type here: any of a gres type, a constraint, a partition."""

    gres: Annotated[Line | None, about("type in --gres=gpu:TYPE:COUNT")] = None
    constraint: Annotated[Line | None, about("node feature for --constraint")] = None
    partition: Annotated[Line | None, about("partition that has this type")] = None
    bf16: Annotated[
        bool | None, about("whether it has bf16 units; else known by the type's name")
    ] = None
    mig: Annotated[
        bool | None, about("a slice of a GPU; else known by the gres type, as in 1g.5gb")
    ] = None


class Cluster(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A cluster profile: ``hpcrun.yaml`` in a project, or a file in ~/.config/hpcrun/clusters/."""

    name: Annotated[Line, about("the cluster's name in listings")] = "default"
    description: Annotated[str, about("one sentence for listings")] = ""
    read_on: Annotated[
        str | None, about("date on which the partitions were read from the cluster")
    ] = None
    slurm_version: Annotated[Line | None, about("Slurm's version on that date, as in 24.11.5")] = (
        None
    )
    max_array_size: Annotated[
        Positive | None, about("Slurm's MaxArraySize: a sweep has fewer runs than that")
    ] = None
    accelerator: Annotated[
        Literal["cuda", "cpu"], about("what trains; cpu: nodes without GPUs")
    ] = "cuda"
    slurm_conf: Annotated[str | None, about("slurm.conf to use, if not the system's")] = None
    runs_dir: Annotated[
        str, about("folder of the runs; every node must see it at the same path")
    ] = "~/hpcrun/runs"
    cache_dir: Annotated[str, about("folder of compiled operators and caches")] = "~/hpcrun/cache"
    local_dir: Annotated[
        Filled, about("the nodes' local disk, as in /local or $TMPDIR; {local_dir} is in it")
    ] = "/tmp"
    partition: Annotated[Line | None, about("default partition of jobs")] = None
    account: Annotated[Line | None, about("default account of jobs")] = None
    partitions: Annotated[dict[str, Partition], about("the cluster's partitions, by name")] = {}
    gpu_types: Annotated[dict[str, GpuType], about("GPU types, by the name that jobs use")] = {}
    fabric: Annotated[
        Fabric, about("the network between the nodes; auto: detected on the nodes")
    ] = "auto"
    internet: Annotated[bool, about("whether compute nodes reach the internet")] = True
    python: Annotated[str | None, about("the interpreter that trains, if the job names none")] = (
        None
    )
    environment: Annotated[
        EnvironmentKind, about("whether jobs inherit the variables of the submitting shell")
    ] = "inherit"
    container_runtime: Annotated[ContainerRuntime | None, about("what runs containers here")] = None
    setup: Setup = field(default_factory=Setup)
    env: Annotated[Env, about("variables of every job")] = {}
    slurm: Annotated[
        SbatchOptions, about("sbatch options of every job, as in qos: high; false drops hpcrun's")
    ] = {}
    rename: Annotated[
        dict[SbatchOption, SbatchOption],
        about("options that have another name here, as in gres: gpus-per-node"),
    ] = {}
