"""JobSpec and Cluster: a training job, and the place where jobs run, as their files have them."""

# Annotations are not postponed: msgspec would evaluate the text of each, at every call of hpcrun.

import math
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field, structs

from hpcrun.patterns import SSH_HOST


def about(description: str) -> Meta:
    """Describe a key, in messages, the schema and the documents."""
    return Meta(description=description)


Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]

Filled = Annotated[
    str, Meta(pattern=r"^[\s\S]*[^\s][\s\S]*$", description="text that is not empty")
]
# Slurm's listings, directives and options are lines.
Line = Annotated[
    str, Meta(pattern=r"^[^\r\n]*[^\s][^\r\n]*$", description="one line of text, not empty")
]

# A host of the user's ssh configuration.
SshHost = Annotated[
    str,
    Meta(
        pattern=SSH_HOST,
        description="a host as in `ssh HOST`: a name of ~/.ssh/config, host or user@host",
    ),
]

# Slurm's time grammar: minutes, m:s, h:m:s, d-h, d-h:m, d-h:m:s (sbatch.1, --time); or with units.
_UNITS = r"([0-9]{1,9}d)?([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?"
Time = Annotated[
    str,
    Meta(
        pattern=r"^([0-9]+|[0-9]+:[0-9]{1,2}|[0-9]+:[0-9]{1,2}:[0-9]{1,2}"
        rf"|[0-9]+-[0-9]+(:[0-9]{{1,2}}){{0,2}}|UNLIMITED|INFINITE|(?=[0-9]+[dhms]){_UNITS})$",
        description="a time, as in 30m, 2h, 1d12h; or Slurm's minutes, h:m:s or days-hours",
    ),
]
Memory = Annotated[
    str, Meta(pattern=r"^[0-9]+[KMGT]?B?$", description="memory as in 200G; a bare number is MB")
]
Duration = Annotated[
    str,
    Meta(
        pattern=rf"^(?=[0-9]+[dhms]){_UNITS}$", description="a duration, as in 90s, 5m, 1h, 1h30m"
    ),
]
NodeRange = Annotated[
    str,
    Meta(pattern="^[1-9][0-9]{0,5}-[1-9][0-9]{0,5}$", description="a range of nodes, as in 2-4"),
]
Variable = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="the name of an environment variable: letters, digits and _",
    ),
]
SbatchOption = Annotated[
    str,
    Meta(
        pattern=r"^[a-z][a-z0-9-]+$",
        description="the long name of an sbatch option without its dashes, as in mail-type",
    ),
]
GresName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*(:[A-Za-z0-9_.-]+)?$",
        description="the name of a generic resource, as in nvme, or with its type, as in disk:ssd",
    ),
]
SweepKey = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_-]+)*$",
        description="a name, as in lr, or a key of the job, as in deepspeed.zero_stage",
    ),
]
Env = dict[Variable, str | None]


def set_variables(env: Env) -> dict[str, str]:
    """Return the variables of an ``env`` that have a value; a null unsets a variable.

    >>> set_variables({"A": "1", "B": None})
    {'A': '1'}
    """
    return {name: value for name, value in env.items() if value is not None}


Fabric = Literal["auto", "ethernet", "infiniband", "roce", "efa", "slingshot", "fastrak", "gib"]
LauncherName = Literal["torchrun", "deepspeed", "accelerate", "srun"]
FrameworkName = Literal["torch", "deepspeed", "accelerate", "transformers", "lightning"]
EnvironmentKind = Literal["inherit", "clean"]
ContainerRuntime = Literal["apptainer", "pyxis", "podman-hpc", "shifter", "ce"]
SbatchOptions = dict[SbatchOption, Line | bool]


class Resources(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to request from Slurm. The number of GPUs is specified once, here."""

    nodes: Annotated[
        Positive | NodeRange,
        about("number of nodes; or a range, as in 2-4: Slurm gives what it can as the job starts"),
    ] = 1
    gpus_per_node: Annotated[NotNegative, about("GPUs on each node; 0: none")] = 1
    gpu_type: Annotated[
        Line | Annotated[list[Line], Meta(min_length=1)] | None,
        about("a GPU type of the cluster profile, as in a100, or any of several, as in [a40, l40]"),
    ] = None
    time: Annotated[
        Time | None, about("time limit, as in 30m, 2h, 1d12h; or minutes, h:m:s or days-hours")
    ] = None
    partition: Annotated[Line | None, about("partition; else the profile's")] = None
    account: Annotated[Line | None, about("account; else the profile's")] = None
    gres: Annotated[
        dict[GresName, Line],
        about("generic resources beside the GPUs, on each node, as in nvme: 100 or tmpfs: 50G"),
    ] = {}
    cpus_per_gpu: Annotated[
        Positive | None, about("CPU cores for each GPU; else the GPU's share of a node")
    ] = None
    memory_per_node: Annotated[
        Memory | None, about("memory on each node, as in 200G; else the GPUs' share of the node")
    ] = None
    exclusive: Annotated[
        bool, about("whole nodes: all their CPUs and memory, and no other jobs on them")
    ] = False

    @property
    def counts(self) -> range:
        """Return the numbers of nodes of which Slurm may give one.

        >>> Resources(nodes=2).counts, Resources(nodes="2-4").counts
        (range(2, 3), range(2, 5))
        """
        fewest, _, most = str(self.nodes).partition("-")
        return range(int(fewest), int(most or fewest) + 1)

    @property
    def most_nodes(self) -> int:
        """Return the largest number of nodes that the job may have."""
        return self.counts[-1]

    @property
    def gpu_types(self) -> list[str]:
        """Return the GPU types of which the job takes any; none: whatever there is."""
        return [self.gpu_type] if isinstance(self.gpu_type, str) else list(self.gpu_type or [])


class Batch(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Effective batch = micro_batch_per_gpu x gradient_accumulation_steps x world size."""

    micro_batch_per_gpu: Annotated[
        Positive | None,
        about("samples for each GPU in one forward pass; else from effective, else 1"),
    ] = None
    gradient_accumulation_steps: Annotated[
        Positive | None,
        about("forward passes for one optimizer step; else from effective, else 1"),
    ] = None
    effective: Annotated[
        Positive | None,
        about("samples for one optimizer step on all GPUs, however many there are"),
    ] = None

    @property
    def sets_micro_batch(self) -> bool:
        """Return whether the job chooses the micro batch, directly or by the effective batch."""
        return self.micro_batch_per_gpu is not None or self.effective is not None

    @property
    def sets_accumulation(self) -> bool:
        """Return whether the job chooses the accumulation, directly or by the effective batch."""
        return self.gradient_accumulation_steps is not None or self.effective is not None


class Offload(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What ZeRO keeps in host memory, or on the node's own disk."""

    optimizer: Annotated[
        Literal["none", "cpu", "nvme"],
        about("optimizer states; needs zero_stage 1 or more, nvme needs 3"),
    ] = "none"
    param: Annotated[Literal["none", "cpu", "nvme"], about("parameters; needs zero_stage 3")] = (
        "none"
    )
    nvme_path: Annotated[
        Filled | None, about("folder on the node's disk for nvme; else {local_dir}")
    ] = None


class DeepSpeed(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How DeepSpeed shards; ``config`` merges last into the JSON and wins."""

    zero_stage: Annotated[
        Annotated[int, Meta(ge=0, le=3)] | None,
        about(
            "what is sharded: 1 optimizer states, 2 gradients too, 3 parameters too; "
            "else from config_file, else 2"
        ),
    ] = None
    offload: Offload = field(default_factory=Offload)
    config_file: Annotated[Filled | None, about("your own DeepSpeed JSON, used as it is")] = None
    config: Annotated[
        dict[str, Any], about("keys of DeepSpeed's own JSON; merged last, they win")
    ] = {}


class Accelerate(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The configuration of ``accelerate launch``; ``config`` merges last into the YAML and wins."""

    config_file: Annotated[
        Filled | None, about("your own YAML of accelerate launch; the number of GPUs is the job's")
    ] = None
    config: Annotated[
        dict[str, Any], about("keys of Accelerate's own YAML; merged last, they win")
    ] = {}


class Nccl(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The network between the nodes; ``env`` wins over what hpcrun sets."""

    fabric: Annotated[
        Fabric, about("the network; auto: from the profile, else detected on the nodes")
    ] = "auto"
    env: Annotated[Env, about("NCCL variables that win over hpcrun's; null unsets one")] = {}


class Container(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The image that the ranks run in."""

    image: Annotated[Line, about("a file or a registry reference, as the runtime takes it")]
    runtime: Annotated[ContainerRuntime | None, about("what runs it; else the profile's")] = None
    mounts: Annotated[list[Line], about("further folders to mount, as SRC or SRC:DST")] = []
    options: Annotated[list[Line], about("further options of the runtime")] = []


class Setup(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What happens before training starts, and which Python trains."""

    module_paths: Annotated[
        list[Filled], about("folders of further modules (module use), before any is loaded")
    ] = []
    modules: Annotated[list[str], about("environment modules to load, as in cuda/12.4")] = []
    venv: Annotated[
        str | None,
        about(
            "folder of a virtual environment; one in a variable that only nodes have, as in "
            "$SLURM_TMPDIR/env, is made by node_commands"
        ),
    ] = None
    conda: Annotated[Line | None, about("name or folder of a conda environment")] = None
    uv: Annotated[bool, about("sync the project's .venv with uv.lock (uv sync --frozen)")] = False
    container: Container | None = None
    python: Annotated[str | None, about("the interpreter that trains")] = None
    commands: Annotated[
        list[str], about("bash commands before training, run once, on the first node")
    ] = []
    node_commands: Annotated[
        list[str], about("bash commands before training, run once on every node")
    ] = []


EndCause = Literal["preempted", "time_limit", "node_fail", "stalled"]


class Survive(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a run goes on after, by itself; each start is an attempt of the same run."""

    when: Annotated[
        list[EndCause], about("the ends that it goes on after; none: it never does")
    ] = []
    max_attempts: Annotated[Positive, about("maximum number of attempts")] = 20
    save_before_end: Annotated[
        Duration | None, about("how long before the time limit the ranks get the signal, as in 5m")
    ] = None
    signal: Annotated[
        Literal["TERM", "USR1"], about("the signal that asks every rank to save and end")
    ] = "TERM"
    stalled_after: Annotated[
        Duration | None,
        about("how long without a step it has stalled; by default ten usual pauses, at least 10m"),
    ] = None
    spare_nodes: Annotated[
        NotNegative,
        about(
            "nodes beside those of resources that stay idle until one of them fails: the ranks are "
            "started again at once, in the same job"
        ),
    ] = 0


class Checkpoint(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where your script saves, and how it learns where to go on."""

    dir: Annotated[
        Filled | None,
        about("the folder, below the run's own unless absolute; {checkpoint_dir} is its path"),
    ] = None
    resume: Annotated[
        str,
        about(
            "words for your script where there is a whole checkpoint: {resume} is the newest one, "
            'as in "--resume {resume}"'
        ),
    ] = ""
    keep: Annotated[
        Positive | None,
        about("how many whole ones stay, the newest and the best among them; null: all"),
    ] = None
    marker: Annotated[
        Annotated[
            str, Meta(pattern=r"^(?!\.{1,2}$)[^/*?\[]+$", description="one file's name, no pattern")
        ]
        | None,
        about("a file that your script writes into a checkpoint's folder as the last one"),
    ] = None


class JobSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A training job. Exactly one of script, module and command; none: the reference trainer."""

    description: Annotated[str, about("one sentence for listings")] = ""
    name: Annotated[Line | None, about("the job's name; else the file's")] = None
    script: Annotated[Filled | None, about("the Python script to train with")] = None
    module: Annotated[Filled | None, about("a Python module to run instead of a script")] = None
    command: Annotated[
        Annotated[list[str], Meta(min_length=1)] | None,
        about("a command and its arguments, instead of a script; it brings its launcher"),
    ] = None
    args: Annotated[
        list[str],
        about(
            "arguments of the program; {placeholders} are filled, and {args} stands "
            "for those of the job that this one extends"
        ),
    ] = []
    launcher: Annotated[LauncherName | None, about("what starts the ranks")] = None
    launcher_args: Annotated[
        list[str], about("further options of the launcher, as in --numa-binding=node")
    ] = []
    binding: Annotated[
        Literal["auto", "none"],
        about("auto: each rank runs on the cores next to its GPU, whatever starts it"),
    ] = "none"
    framework: Annotated[
        FrameworkName | None,
        about("what your script trains with; it fills the auto of DeepSpeed's JSON"),
    ] = None
    resources: Resources = field(default_factory=Resources)
    precision: Annotated[
        Literal["bf16", "fp16", "fp32"] | None,
        about("number format; else bf16, or fp16 where the GPUs have no bf16 units"),
    ] = None
    batch: Batch = field(default_factory=Batch)
    activation_checkpointing: Annotated[
        bool, about("your script reads it: {activation_checkpointing}")
    ] = False
    deepspeed: DeepSpeed | None = None
    accelerate: Accelerate | None = None
    nccl: Nccl = field(default_factory=Nccl)
    env: Annotated[
        Env, about("variables of every rank; {placeholders} are filled, and null unsets one")
    ] = {}
    secrets: Annotated[
        list[Variable],
        about("names of variables whose values are passed from your shell, unrecorded"),
    ] = []
    environment: Annotated[
        EnvironmentKind | None,
        about("whether jobs inherit your shell's variables; else from the profile"),
    ] = None
    setup: Setup = field(default_factory=Setup)
    stage: Annotated[
        dict[Filled, Filled],
        about("files and folders to copy to each node's local disk, as in SRC: DST"),
    ] = {}
    sweep: Annotated[
        dict[SweepKey, Annotated[list[str], Meta(min_length=1)]],
        about(
            "an array of runs over all combinations, as in lr: [1e-4, 3e-4] for {lr} "
            "in args, or batch.micro_batch_per_gpu: [4, 8] for a key of the job"
        ),
    ] = {}
    sweep_limit: Annotated[
        Positive, about("maximum number of runs of a sweep at the same time")
    ] = 4
    sweep_per_node: Annotated[
        Positive, about("runs of a sweep on one node, in one job; each has its GPUs and its end")
    ] = 1
    log_patterns: Annotated[
        list[Filled],
        about(
            "regular expressions of your log's metric lines, where hpcrun parse does "
            "not know them, as in 'it (?P<step>[0-9]+) .* L (?P<loss>[0-9.]+)'"
        ),
    ] = []
    slurm: Annotated[
        SbatchOptions,
        about("any other sbatch option, as in qos: high; false drops one of hpcrun's"),
    ] = {}
    srun: Annotated[
        SbatchOptions,
        about(
            "options of the srun that starts the ranks, as in cpu-bind: cores; "
            "false drops one of hpcrun's"
        ),
    ] = {}
    preflight: Annotated[
        bool | Literal["full"],
        about(
            "check every node before its ranks start; full: measure its GPUs and the network, "
            "too, in half a minute"
        ),
    ] = True
    survive: Survive = field(default_factory=Survive)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    snapshot: Annotated[bool, about("run a copy of the original code at submission")] = True

    def with_nodes(self, nodes: int) -> "JobSpec":
        """Return the job on one number of its range; the effective batch is that of the most nodes.

        If no whole number of accumulated steps gives that batch, the next larger one is used. A job
        that sets no batch leaves it to the program on every number of nodes.

        >>> batch = Batch(gradient_accumulation_steps=1)
        >>> job = JobSpec(resources=Resources(nodes="2-4"), batch=batch)
        >>> job.with_nodes(3).batch.gradient_accumulation_steps
        2
        """
        batch = self.batch
        if batch != Batch() and batch.effective is None:
            passes = (batch.gradient_accumulation_steps or 1) * self.resources.most_nodes
            batch = structs.replace(batch, gradient_accumulation_steps=-(-passes // nodes))
        resources = structs.replace(self.resources, nodes=nodes)
        return structs.replace(self, resources=resources, batch=batch)

    @property
    def even_steps(self) -> int:
        """Return the accumulated steps, the job's or the next, that keep the batch on its range.

        >>> JobSpec(resources=Resources(nodes="2-4")).even_steps
        3
        """
        counts = self.resources.counts
        unit = math.lcm(*(count // math.gcd(count, counts[-1]) for count in counts))
        return -(-(self.batch.gradient_accumulation_steps or 1) // unit) * unit


# ---- the cluster ---------------------------------------------------------------------------------


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
    cpus_per_node: Annotated[
        Positive | None, about("CPUs of a node as Slurm counts them: cores, or hardware threads")
    ] = None
    threads_per_core: Annotated[
        Positive | None, about("how many of these CPUs one core is, if not 1")
    ] = None
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
    account: Annotated[Line | None, about("account to charge for it, if it has its own")] = None
    qos: Annotated[Line | None, about("QOS of its jobs")] = None
    cpus_per_gpu: Annotated[Positive | None, about("CPUs for each of these GPUs")] = None
    memory_per_gpu: Annotated[Memory | None, about("memory for each of these GPUs")] = None
    modules: Annotated[list[str], about("environment modules to load before the job's")] = []
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
        Literal["cuda", "rocm", "cpu"],
        about("what trains: NVIDIA's GPUs, AMD's, or cpu: nodes without GPUs"),
    ] = "cuda"
    slurm_conf: Annotated[
        str | None, about("absolute path of the slurm.conf to use, if not the system's")
    ] = None
    host: Annotated[
        SshHost | None, about("the login node, as your ssh calls it; none: the cluster is here")
    ] = None
    ssh: Annotated[
        Literal["paramiko", "openssh"],
        about("what connects to host; openssh: the ssh of this machine, which keeps a connection"),
    ] = "paramiko"
    transfer_host: Annotated[
        SshHost | None, about("what files go through, if not host, as your ssh calls it")
    ] = None
    slurm_path: Annotated[
        Line | None, about("folders of Slurm's commands on host, if not on PATH there; : between")
    ] = None
    login_shell: Annotated[
        bool, about("run the profile of a login shell on host first, as it sets PATH")
    ] = False
    runs_dir: Annotated[
        str, about("folder of the runs; every node must see it at the same path")
    ] = "~/hpcrun/runs"
    cache_dir: Annotated[str, about("folder of compiled operators and caches")] = "~/hpcrun/cache"
    local_dir: Annotated[
        Filled, about("the nodes' local disk, as in /local or $TMPDIR; {local_dir} is in it")
    ] = "/tmp"
    partition: Annotated[Line | None, about("default partition of jobs")] = None
    account: Annotated[Line | None, about("default account of jobs")] = None
    gpu_type: Annotated[
        Line | None, about("GPU type of jobs that name none, where any would be a slice, say")
    ] = None
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
    env: Annotated[Env, about("variables of every job; null unsets one")] = {}
    slurm: Annotated[
        SbatchOptions, about("sbatch options of every job, as in qos: high; false drops hpcrun's")
    ] = {}
    srun: Annotated[
        SbatchOptions,
        about(
            "options of the srun that starts the ranks of every job, as in network: single_node_vni"
        ),
    ] = {}
    rename: Annotated[
        dict[SbatchOption, SbatchOption],
        about("options that have another name here, as in gres: gpus-per-node"),
    ] = {}
