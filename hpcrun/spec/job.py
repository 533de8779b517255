"""The types of job files and cluster profiles."""

# No `from __future__ import annotations`: msgspec would evaluate every annotation at start-up.

import math
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field, structs

from hpcrun.patterns import SSH_HOST
from hpcrun.spec.search import Search, read_search


def about(description: str) -> Meta:
    """Describe a key for messages, the JSON Schema and the documentation."""
    return Meta(description=description)


Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]

Filled = Annotated[
    str, Meta(pattern=r"^[\s\S]*[^\s][\s\S]*$", description="text that is not empty")
]
# Slurm's listings, directives and options are lines.
_LINE = r"^[^\r\n]*[^\s][^\r\n]*$"
Line = Annotated[str, Meta(pattern=_LINE, description="one line of text, not empty")]
# msgspec 0.22 frees memory that is not its own when it discards the type of a union of text with a
# pattern and a list or map. The pattern in the schema is checked by check.py.
LineInUnion = Annotated[
    str,
    Meta(extra_json_schema={"pattern": _LINE}, description="one line of text, not empty"),
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
    str, Meta(pattern=r"^[0-9]+([KMGT]B?)?$", description="memory as in 200G; a bare number is MB")
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
SweepPart = Annotated[
    str,
    Meta(pattern="^[1-9][0-9]{0,4}/[1-9][0-9]{0,4}$", description="a part, as in 2/3"),
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
GroupName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z][A-Za-z0-9._+-]{0,39}$",
        description="a name that begins with a letter, as in memory",
    ),
]
SweepKey = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_-]+)*$",
        description="a name, as in lr, or a key of the job, as in deepspeed.zero_stage",
    ),
]
SweepValues = (
    Annotated[list[str], Meta(min_length=1)]
    | Annotated[
        dict[Literal["float", "log", "int"], list[str]],
        about("a range to draw from, as in {log: [1e-5, 1e-2]}"),
    ]
    | Annotated[str, about("a setting of the search")]
)
_NUMBER = r"[-+]?[0-9.]+(e[-+]?[0-9]+)?"
NotifyEvent = Annotated[
    str,
    Meta(
        pattern=r"^(started|failed|stalled|preempted|done|nan|diverged"
        rf"|(loss|step) *[<>]=? *{_NUMBER}|time_left *[<>]=? *[0-9.]+[smhd])$",
        description="started, failed, stalled, preempted, done, nan, diverged, or a condition as "
        'in "loss < 2.0", "step >= 1000" or "time_left < 1h"',
    ),
]
NotifyWord = Annotated[  # in a union, as LineInUnion
    str,
    Meta(
        extra_json_schema={"pattern": r"^(mail|ntfy://[!-~]+)$"},
        description="mail, ntfy://TOPIC, or a kind with its target, as in slack: $SLACK_WEBHOOK",
    ),
]
NotifyKind = Literal["mail", "ntfy", "slack", "discord", "teams", "webhook", "command", "apprise"]
RoleName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z][a-z0-9_]{0,30}$",
        description="the name of a role: lower-case letters, digits and _, a letter first",
    ),
]
Readiness = Annotated[
    str,
    Meta(
        pattern=r"^(https?://[^\s]+|tcp://[^\s]+|log:[^\r\n]+)$",
        description=(
            "http://{host}:{port}/health, tcp://{host}:{port}, or log: and a regular expression"
        ),
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
LauncherName = Literal["torchrun", "deepspeed", "accelerate", "srun", "ray"]
FrameworkName = Literal["torch", "deepspeed", "accelerate", "transformers", "lightning"]
EnvironmentKind = Literal["inherit", "clean"]
ContainerRuntime = Literal["apptainer", "pyxis", "podman-hpc", "shifter", "ce"]
SbatchOptions = dict[SbatchOption, Line | bool]


class Resources(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to request from Slurm. The number of GPUs is specified once, here."""

    nodes: Annotated[
        Positive | NodeRange,
        about("number of nodes; or a range, as in 2-4, of which Slurm allocates as many as it can"),
    ] = 1
    gpus_per_node: Annotated[NotNegative, about("number of GPUs on each node; 0: none")] = 1
    gpu_type: Annotated[
        LineInUnion | Annotated[list[Line], Meta(min_length=1)] | None,
        about(
            "GPU type of the cluster profile, as in a100; or several to accept, as in [a40, l40]"
        ),
    ] = None
    time: Annotated[
        Time | None, about("time limit, as in 30m, 2h, 1d12h; or minutes, h:m:s or days-hours")
    ] = None
    partition: Annotated[Line | None, about("partition; default: the profile's")] = None
    account: Annotated[Line | None, about("account to charge; default: the profile's")] = None
    gres: Annotated[
        dict[GresName, Line],
        about("generic resources on each node besides GPUs, as in nvme: 100 or tmpfs: 50G"),
    ] = {}
    cpus_per_gpu: Annotated[
        Positive | None, about("CPU cores for each GPU; default: the GPU's share of a node")
    ] = None
    memory_per_node: Annotated[
        Memory | None, about("memory on each node, as in 200G; default: the GPUs' share")
    ] = None
    exclusive: Annotated[
        bool, about("request whole nodes: all CPUs and memory, and no other jobs on them")
    ] = False

    @property
    def counts(self) -> range:
        """Return the numbers of nodes that Slurm may allocate.

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
        """Return the GPU types that the job accepts; empty if it accepts any."""
        return [self.gpu_type] if isinstance(self.gpu_type, str) else list(self.gpu_type or [])


class Batch(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Effective batch = micro_batch_per_gpu x gradient_accumulation_steps x world size."""

    micro_batch_per_gpu: Annotated[
        Positive | None,
        about("samples per GPU in one forward pass; default: derived from effective, otherwise 1"),
    ] = None
    gradient_accumulation_steps: Annotated[
        Positive | None,
        about("forward passes per optimizer step; default: derived from effective, otherwise 1"),
    ] = None
    effective: Annotated[
        Positive | None,
        about("samples per optimizer step on all GPUs together, whatever their number"),
    ] = None

    @property
    def sets_micro_batch(self) -> bool:
        """Return True if the job sets the micro batch, directly or by the effective batch."""
        return self.micro_batch_per_gpu is not None or self.effective is not None

    @property
    def sets_accumulation(self) -> bool:
        """Return True if the job sets the accumulation, directly or by the effective batch."""
        return self.gradient_accumulation_steps is not None or self.effective is not None


class Offload(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which states ZeRO keeps in host memory, or on the node's local disk."""

    optimizer: Annotated[
        Literal["none", "cpu", "nvme"],
        about("optimizer states; requires zero_stage 1 or more, nvme requires 3"),
    ] = "none"
    param: Annotated[Literal["none", "cpu", "nvme"], about("parameters; requires zero_stage 3")] = (
        "none"
    )
    nvme_path: Annotated[
        Filled | None, about("folder on the node's local disk for nvme; default: {local_dir}")
    ] = None


class DeepSpeed(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How DeepSpeed shards; ``config`` is merged last into the JSON, with precedence."""

    zero_stage: Annotated[
        Annotated[int, Meta(ge=0, le=3)] | None,
        about(
            "what is sharded: 1 optimizer states, 2 also gradients, 3 also parameters; "
            "default: that of config_file, otherwise 2"
        ),
    ] = None
    offload: Offload = field(default_factory=Offload)
    config_file: Annotated[Filled | None, about("your own DeepSpeed JSON, used unchanged")] = None
    config: Annotated[
        dict[str, Any], about("keys of DeepSpeed's JSON, merged last, with precedence")
    ] = {}


class Accelerate(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The YAML of ``accelerate launch``; ``config`` is merged last, with precedence."""

    config_file: Annotated[
        Filled | None, about("your own YAML of accelerate launch; the job sets the number of GPUs")
    ] = None
    config: Annotated[
        dict[str, Any], about("keys of Accelerate's YAML, merged last, with precedence")
    ] = {}


class Nccl(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The network between the nodes; ``env`` takes precedence over hpcrun's settings."""

    fabric: Annotated[
        Fabric, about("the network; auto: that of the profile, otherwise detected on the nodes")
    ] = "auto"
    env: Annotated[
        Env, about("NCCL variables that take precedence over hpcrun's; null removes one")
    ] = {}


class Container(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The image that the ranks run in."""

    image: Annotated[Line, about("a file or registry reference that the runtime accepts")]
    runtime: Annotated[
        ContainerRuntime | None, about("the container runtime; default: the profile's")
    ] = None
    mounts: Annotated[list[Line], about("additional folders to mount, as SRC or SRC:DST")] = []
    options: Annotated[list[Line], about("additional options of the runtime")] = []


class Setup(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The environment of the training: commands before it starts, and its Python."""

    module_paths: Annotated[
        list[Filled],
        about("additional module folders (module use), added before modules are loaded"),
    ] = []
    modules: Annotated[list[str], about("environment modules to load, as in cuda/12.4")] = []
    venv: Annotated[
        str | None,
        about(
            "folder of a virtual environment; node_commands must create it if the path contains a "
            "variable that is set only on nodes, as in $SLURM_TMPDIR/env"
        ),
    ] = None
    conda: Annotated[Line | None, about("name or folder of a conda environment")] = None
    uv: Annotated[bool, about("sync the project's .venv with uv.lock (uv sync --frozen)")] = False
    container: Container | None = None
    python: Annotated[str | None, about("the Python that runs the training")] = None
    commands: Annotated[
        list[str],
        about("bash commands before training, run once, on the first node, in the project"),
    ] = []
    node_commands: Annotated[
        list[str], about("bash commands before training, run once on every node")
    ] = []


EndCause = Literal["preempted", "time_limit", "node_fail", "stalled"]


class Survive(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a run is restarted automatically; each start is an attempt of the same run."""

    when: Annotated[
        list[EndCause], about("the events after which the run is restarted; default: never")
    ] = []
    max_attempts: Annotated[Positive, about("maximum number of attempts")] = 20
    save_before_end: Annotated[
        Duration | None, about("how long before the time limit the ranks are signalled, as in 5m")
    ] = None
    signal: Annotated[
        Literal["TERM", "USR1"], about("the signal that requests every rank to save and exit")
    ] = "TERM"
    stalled_after: Annotated[
        Duration | None,
        about("time without a step after which a run is stalled; default: derived from its log"),
    ] = None
    spare_nodes: Annotated[
        NotNegative,
        about(
            "additional nodes that stay idle until another node fails: the ranks are then "
            "restarted at once, in the same job"
        ),
    ] = 0


class Notify(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The events of a run that cause notifications, and the channels of these."""

    on: Annotated[
        list[NotifyEvent] | None,
        about("the events; default: failed, stalled and done"),
    ] = None
    to: Annotated[
        list[NotifyWord | dict[NotifyKind, Line]] | None,
        about(
            "the channels, as in [mail, ntfy://TOPIC, {slack: $SLACK_WEBHOOK}, "
            "{command: ./tell.sh}]; the URL of a webhook is in a variable or in a file that only "
            "you can read; []: none"
        ),
    ] = None
    per_hour: Annotated[
        Positive | None,
        about("maximum number of messages of a run per channel and hour; default: 10"),
    ] = None


class Checkpoint(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where your script saves checkpoints, and how it resumes."""

    dir: Annotated[
        Filled | None,
        about("folder of checkpoints, absolute or relative to the run's; path: {checkpoint_dir}"),
    ] = None
    resume: Annotated[
        str,
        about(
            "arguments for your script if there is a complete checkpoint; {resume} is the path of "
            'the newest one, as in "--resume {resume}"'
        ),
    ] = ""
    keep: Annotated[
        Positive | None,
        about("how many complete checkpoints to keep, including newest and best; null: all"),
    ] = None
    marker: Annotated[
        Annotated[
            str, Meta(pattern=r"^(?!\.{1,2}$)[^/*?\[]+$", description="one file's name, no pattern")
        ]
        | None,
        about("name of the file that your script writes last into each checkpoint folder"),
    ] = None


class Role(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of several programs that run in the same job, each on its own nodes or GPUs."""

    main: Annotated[
        bool, about("the result of this role is that of the job; default: the last role")
    ] = False
    nodes: Annotated[Positive, about("number of nodes of the role")] = 1
    gpus: Annotated[
        NotNegative | None,
        about(
            "number of GPUs on each of its nodes; with fewer than resources.gpus_per_node the role "
            "shares its nodes with others; default: all"
        ),
    ] = None
    ready: Annotated[
        Readiness | None,
        about(
            "when roles that refer to this one may start: a URL that answers, a port that accepts "
            "connections, or a line of its log, as in log:Uvicorn running; default: its {port} "
            "accepts connections, if it uses one"
        ),
    ] = None
    ready_within: Annotated[
        Duration, about("how long after its start the role may take to become ready")
    ] = "30m"
    script: Annotated[Filled | None, about("the Python script of the role")] = None
    module: Annotated[Filled | None, about("a Python module to run instead of a script")] = None
    command: Annotated[
        Annotated[list[str], Meta(min_length=1)] | None,
        about("a command and its arguments, instead of a script"),
    ] = None
    args: Annotated[
        list[str],
        about(
            "arguments of the program, as those of a job; {host} and {port} are the role's own, "
            "{server.host} and {server.port} those of the role server"
        ),
    ] = []
    workdir: Annotated[
        Filled | None, about("the folder in which the role starts, instead of the job's")
    ] = None
    launcher: Annotated[LauncherName | None, about("the program that starts the ranks")] = None
    launcher_args: Annotated[list[str] | None, about("additional options of the launcher")] = None
    framework: Annotated[FrameworkName | None, about("the library that the script trains with")] = (
        None
    )
    precision: Annotated[Literal["bf16", "fp16", "fp32"] | None, about("number format")] = None
    batch: Batch | None = None
    deepspeed: DeepSpeed | None = None
    accelerate: Accelerate | None = None
    nccl: Nccl | None = None
    env: Annotated[
        Env, about("variables of this role's ranks, in addition to those of the job")
    ] = {}
    setup: Annotated[Setup | None, about("the environment of this role, instead of the job's")] = (
        None
    )
    srun: Annotated[
        SbatchOptions | None, about("options of this role's srun, instead of the job's")
    ] = None
    resources: Annotated[
        Resources | None,
        about(
            "nodes of another kind for this role, instead of the job's, as in gpu_type: a100; the "
            "job is then a heterogeneous job of Slurm"
        ),
    ] = None
    slurm: Annotated[
        SbatchOptions | None,
        about(
            "options of sbatch for the nodes of this role, as in constraint: a100, in addition to "
            "the job's; the job is then a heterogeneous job of Slurm"
        ),
    ] = None

    @property
    def has_own_nodes(self) -> bool:
        """True for a component of a heterogeneous job."""
        return self.resources is not None or self.slurm is not None


# The keys of a role that describe the role itself; the others replace keys of the job.
_OWN_ROLE_KEYS = ("main", "nodes", "gpus", "ready", "ready_within", "env", "resources", "slurm")
# The keys of a job that apply only to its main role.
_MAIN_ROLE_KEYS = (
    *("launcher", "launcher_args", "framework", "precision", "batch", "deepspeed", "accelerate"),
    *("activation_checkpointing", "binding", "survive", "checkpoint"),
)


class JobSpec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A training job. Exactly one of script, module and command; none: the reference trainer."""

    description: Annotated[str, about("one sentence for listings")] = ""
    name: Annotated[Line | None, about("name of the job; default: that of the file")] = None
    group: Annotated[
        GroupName | None,
        about("a name for several runs, under which compare, status and others find them (--as)"),
    ] = None
    script: Annotated[Filled | None, about("the Python script that trains")] = None
    module: Annotated[Filled | None, about("a Python module to run instead of a script")] = None
    command: Annotated[
        Annotated[list[str], Meta(min_length=1)] | None,
        about("a command and its arguments, instead of a script; it starts its own launcher"),
    ] = None
    args: Annotated[
        list[str],
        about(
            "arguments of the program: a list, a map of options, as in {lr: 1e-4}, or one text as "
            "in a shell; {placeholders} are filled in, and {args} inserts those of the job named "
            "by extends"
        ),
    ] = []
    roles: Annotated[
        dict[RoleName, Role],
        about(
            "several programs in one job, each with its own nodes or GPUs, such as an inference "
            "server and a trainer"
        ),
    ] = {}
    workdir: Annotated[
        Filled | None,
        about(
            "the folder in which the program starts, as after cd: a folder of the project, an "
            "absolute path, or {run_dir}; default: the project. Paths in this file still start "
            "at the project"
        ),
    ] = None
    launcher: Annotated[LauncherName | None, about("the program that starts the ranks")] = None
    launcher_args: Annotated[
        list[str], about("additional options of the launcher, as in --numa-binding=node")
    ] = []
    binding: Annotated[
        Literal["auto", "none"],
        about("auto: each rank runs on the cores next to its GPU, with any launcher"),
    ] = "none"
    framework: Annotated[
        FrameworkName | None,
        about('the library that your script trains with; it fills in "auto" in DeepSpeed\'s JSON'),
    ] = None
    resources: Resources = field(default_factory=Resources)
    precision: Annotated[
        Literal["bf16", "fp16", "fp32"] | None,
        about(
            "number format; default: the script's; with framework deepspeed what the GPU supports"
        ),
    ] = None
    batch: Batch = field(default_factory=Batch)
    activation_checkpointing: Annotated[
        bool, about("passed to your script as {activation_checkpointing}")
    ] = False
    deepspeed: DeepSpeed | None = None
    accelerate: Accelerate | None = None
    nccl: Nccl = field(default_factory=Nccl)
    env: Annotated[
        Env, about("variables of every rank; {placeholders} are filled in, and null removes one")
    ] = {}
    secrets: Annotated[
        list[Variable],
        about("names of variables to pass from your shell without recording their values"),
    ] = []
    environment: Annotated[
        EnvironmentKind | None,
        about("whether the job inherits your shell's variables; default: the profile's"),
    ] = None
    setup: Setup = field(default_factory=Setup)
    stage: Annotated[
        dict[Filled, Filled],
        about("files and folders to copy to each node's local disk, as in SRC: DST"),
    ] = {}
    sweep: Annotated[
        dict[SweepKey, SweepValues],
        about(
            "an array of runs over all combinations, as in lr: [1e-4, 3e-4] for {lr} "
            "in args, or batch.micro_batch_per_gpu: [4, 8] for a key of the job; or a search, as "
            "in search: random, trials: 20, lr: {log: [1e-5, 1e-2]}"
        ),
    ] = {}
    sweep_combinations: Annotated[
        list[Annotated[dict[SweepKey, str], Meta(min_length=1)]],
        about(
            "combinations of values, with a run for each, as in "
            "[{lr: 1e-4, seed: 1}, {lr: 3e-4, seed: 2}]; with sweep, for each of its combinations"
        ),
    ] = []
    sweep_exclude: Annotated[
        list[Annotated[dict[SweepKey, str], Meta(min_length=1)]],
        about(
            "combinations that are not run, as in [{lr: 3e-4, layers: 12}]; a run is excluded if "
            "it has all values of an entry"
        ),
    ] = []
    sweep_part: Annotated[
        SweepPart | None,
        about("submit only this part of the sweep's runs, as in 2/3 for the second of three"),
    ] = None
    sweep_limit: Annotated[
        Positive, about("maximum number of runs of a sweep at the same time")
    ] = 4
    sweep_per_node: Annotated[
        Positive, about("runs of a sweep that share a job on one node, each with its own GPUs")
    ] = 1
    log_patterns: Annotated[
        list[Filled],
        about(
            "regular expressions for metric lines that hpcrun parse does not recognize, "
            "as in 'it (?P<step>[0-9]+) .* L (?P<loss>[0-9.]+)'"
        ),
    ] = []
    ends_with: Annotated[
        Literal["all_nodes", "first_node"],
        about(
            "of a command on several nodes: the job ends when the command has ended on all nodes, "
            "or when it has succeeded on the first node"
        ),
    ] = "all_nodes"
    slurm: Annotated[
        SbatchOptions,
        about("any other sbatch option, as in qos: high; false removes one that hpcrun sets"),
    ] = {}
    srun: Annotated[
        SbatchOptions,
        about(
            "options of the srun that starts the ranks, as in cpu-bind: cores; "
            "false removes one that hpcrun sets"
        ),
    ] = {}
    preflight: Annotated[
        bool | Literal["full"],
        about(
            "check every node before its ranks start; full: also measure its GPUs and the "
            "network, which takes about half a minute"
        ),
    ] = True
    survive: Survive = field(default_factory=Survive)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    notify: Notify = field(default_factory=Notify)
    snapshot: Annotated[bool, about("copy the code at submission, and run the copy")] = True

    @property
    def sweep_keys(self) -> list[str]:
        """The keys of the sweep, and of its combinations."""
        named = [key for values in self.sweep_combinations for key in values]
        varied = [key for key, values in self.sweep.items() if not isinstance(values, str)]
        return list(dict.fromkeys([*varied, *named]))

    @property
    def search(self) -> Search:
        """The search of the sweep; without one, all combinations are run."""
        return read_search(self.sweep)[0]

    @property
    def runs_at_once(self) -> int:
        """The maximum number of runs of the sweep at the same time."""
        return self.search.parallel or self.sweep_limit

    @property
    def main_role(self) -> str:
        """Return the role whose result is that of the job; "" if the job has no roles.

        >>> JobSpec(roles={"train": Role(), "test": Role()}).main_role
        'test'
        """
        named = [name for name, role in self.roles.items() if role.main]
        return [*named, *reversed(self.roles), ""][0]

    def for_role(self, name: str) -> "JobSpec":
        """Return the job of one role alone: the keys of the role replace those of the job.

        Keys of the job that describe a training apply only to the main role.

        >>> roles = {"server": Role(command=["serve"], gpus=2), "train": Role(script="a.py")}
        >>> job = JobSpec(roles=roles, launcher="deepspeed", resources=Resources(gpus_per_node=4))
        >>> server = job.for_role("server")
        >>> server.command, server.resources.gpus_per_node, server.launcher
        (['serve'], 2, None)
        """
        role, defaults = self.roles[name], JobSpec()
        inherited = () if name == self.main_role else _MAIN_ROLE_KEYS
        changes: dict[str, Any] = {key: getattr(defaults, key) for key in inherited}
        for key in role.__struct_fields__:
            if key not in _OWN_ROLE_KEYS and getattr(role, key) is not None:
                changes[key] = getattr(role, key)
        resources = self.resources
        if role.resources is not None:
            account = role.resources.account or resources.account
            resources = structs.replace(role.resources, time=resources.time, account=account)
        gpus = resources.gpus_per_node if role.gpus is None else role.gpus
        changes["resources"] = structs.replace(resources, nodes=role.nodes, gpus_per_node=gpus)
        changes["slurm"] = {**self.slurm, **(role.slurm or {})}
        changes["env"] = {**self.env, **role.env}
        return structs.replace(self, roles={}, **changes)

    def with_nodes(self, nodes: int) -> "JobSpec":
        """Return the job for one number of its range, with the effective batch of the largest.

        If no whole number of accumulated steps gives that batch, it is rounded up. A job that sets
        no batch leaves it to the program for every number of nodes.

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
        """Return the next number of accumulated steps with which all node counts divide the batch.

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
        NotNegative | None, about("number of GPUs of a node, of all types; 0: none")
    ] = None
    gpu_types: Annotated[
        dict[Line, Positive],
        about("number of GPUs of each type on a node, as in a100: 4; names as in gpu_types"),
    ] = {}
    cpus_per_node: Annotated[
        Positive | None,
        about("number of CPUs of a node as counted by Slurm: cores or hardware threads"),
    ] = None
    threads_per_core: Annotated[
        Positive | None, about("number of these CPUs per core, if not 1")
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
    max_time: Annotated[Time | None, about("longest time limit: minutes, h:m:s or days-hours")] = (
        None
    )
    default_time: Annotated[Time | None, about("default time limit of a job")] = None
    min_nodes: Annotated[Positive | None, about("minimum number of nodes of a job")] = None
    max_nodes: Annotated[Positive | None, about("maximum number of nodes of a job")] = None
    max_gpus: Annotated[
        Positive | None, about("maximum number of GPUs in use at once, by QOS and account")
    ] = None
    qos: Annotated[
        Line | None, about("QOS of jobs in this partition, if it does not accept your default QOS")
    ] = None
    exclusive: Annotated[
        bool, about("the partition allocates only whole nodes (OverSubscribe=EXCLUSIVE)")
    ] = False


class GpuType(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to request a GPU type here: any of a gres type, a constraint, a partition."""

    gres: Annotated[Line | None, about("type in --gres=gpu:TYPE:COUNT")] = None
    constraint: Annotated[Line | None, about("node feature for --constraint")] = None
    partition: Annotated[Line | None, about("partition that has this type")] = None
    account: Annotated[Line | None, about("account to charge for this type, if it has its own")] = (
        None
    )
    qos: Annotated[Line | None, about("QOS for jobs with this type")] = None
    cpus_per_gpu: Annotated[Positive | None, about("number of CPUs for each of these GPUs")] = None
    memory_per_gpu: Annotated[Memory | None, about("memory for each of these GPUs")] = None
    modules: Annotated[list[str], about("environment modules to load before those of the job")] = []
    bf16: Annotated[
        bool | None, about("whether the GPU supports bf16; default: derived from the type's name")
    ] = None
    mig: Annotated[
        bool | None,
        about("whether this is a slice of a GPU; default: derived from gres, as in 1g.5gb"),
    ] = None


class CostFactors(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Factors for the cost of runs in ``hpcrun report``; a missing one means unknown."""

    per_gpu_hour: Annotated[
        Annotated[float, Meta(ge=0)] | None, about("price of a GPU for an hour")
    ] = None
    per_node_hour: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        about("price of a node for an hour, for jobs without GPUs"),
    ] = None
    currency: Annotated[Line, about("the currency of the prices, as in EUR")] = ""
    kg_co2_per_kwh: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        about("CO2 in kg for each kWh of energy, including the cooling if you count it"),
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
        Positive | None,
        about("maximum number of jobs of a sweep (MaxArraySize), if Slurm does not answer"),
    ] = None
    accelerator: Annotated[
        Literal["cuda", "rocm", "cpu"],
        about("NVIDIA GPUs (cuda), AMD GPUs (rocm), or nodes without GPUs (cpu)"),
    ] = "cuda"
    slurm_conf: Annotated[
        str | None, about("absolute path of the slurm.conf to use; default: the system's")
    ] = None
    host: Annotated[
        SshHost | None,
        about("the login node, as in `ssh HOST`; without it, Slurm runs on this machine"),
    ] = None
    ssh: Annotated[
        Literal["paramiko", "openssh"],
        about(
            "SSH client for host; openssh: the ssh of this machine, which keeps a connection open"
        ),
    ] = "paramiko"
    transfer_host: Annotated[
        SshHost | None, about("host for file transfers, as in `ssh HOST`; default: host")
    ] = None
    project_dir: Annotated[
        Filled | None,
        about(
            "folder on host in which sbatch scripts run, if the project is there; default: a copy"
        ),
    ] = None
    slurm_path: Annotated[
        Line | None,
        about("folders of Slurm's commands on host if not on its PATH, separated by colons"),
    ] = None
    login_shell: Annotated[
        bool, about("read the login profile on host first, because it sets PATH")
    ] = False
    runs_dir: Annotated[str, about("folder of the runs, at the same path on every node")] = (
        "~/hpcrun/runs"
    )
    cache_dir: Annotated[str, about("folder for compiled operators and caches")] = "~/hpcrun/cache"
    local_dir: Annotated[
        Filled,
        about("folder on the nodes' local disk, as in /local or $TMPDIR; contains {local_dir}"),
    ] = "/tmp"
    partition: Annotated[Line | None, about("default partition of jobs")] = None
    account: Annotated[Line | None, about("default account of jobs")] = None
    gpu_type: Annotated[
        Line | None, about("default GPU type of jobs, for example to avoid slices")
    ] = None
    partitions: Annotated[dict[str, Partition], about("the cluster's partitions, by name")] = {}
    gpu_types: Annotated[dict[str, GpuType], about("GPU types, by the names that jobs use")] = {}
    fabric: Annotated[
        Fabric, about("the network between the nodes; auto: detected on the nodes")
    ] = "auto"
    internet: Annotated[bool, about("whether compute nodes can reach the internet")] = True
    python: Annotated[
        str | None, about("the Python that runs the training, unless the job sets one")
    ] = None
    environment: Annotated[
        EnvironmentKind, about("whether jobs inherit the variables of the submitting shell")
    ] = "inherit"
    container_runtime: Annotated[
        ContainerRuntime | None, about("default container runtime of jobs")
    ] = None
    setup: Setup = field(default_factory=Setup)
    env: Annotated[Env, about("variables of every job; null removes one")] = {}
    slurm: Annotated[
        SbatchOptions, about("sbatch options of every job, as in qos: high; false removes hpcrun's")
    ] = {}
    srun: Annotated[
        SbatchOptions,
        about(
            "options of the srun that starts the ranks of every job, as in network: single_node_vni"
        ),
    ] = {}
    notify: Notify = field(default_factory=Notify)
    cost: CostFactors = field(default_factory=CostFactors)
    rename: Annotated[
        dict[SbatchOption, SbatchOption],
        about("sbatch options that have another name here, as in gres: gpus-per-node"),
    ] = {}


StageName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,39}$",
        description="a name of letters, digits, - and _ that begins with a letter",
    ),
]


class Stage(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A stage of a pipeline: a job, and when it starts."""

    job: Annotated[Filled, about("the job of the stage, by name or path")]
    after: Annotated[
        list[StageName], about("the stages after which this one starts; default: at once")
    ] = []
    when: Annotated[
        Literal["success", "failure", "always", "each"],
        about(
            "start when all stages of after have succeeded (success), when one of them has failed "
            "(failure), or when all have ended (always); each: a sweep after a sweep, of which "
            "each run starts when the run with the same number has succeeded"
        ),
    ] = "success"
    args: Annotated[
        list[str],
        about(
            "additional arguments of the job's program; {checkpoint} is the path of the checkpoint"
        ),
    ] = []
    for_each_checkpoint_of: Annotated[
        StageName | None,
        about("a training; the stage runs once for each of its complete checkpoints"),
    ] = None
    parallel: Annotated[
        Positive, about("how many of these runs may wait or run at the same time")
    ] = 1

    @property
    def waits_for(self) -> list[str]:
        """The stages that come before this one.

        >>> Stage(job="a", for_each_checkpoint_of="train").waits_for
        ['train']
        """
        return [*self.after, *filter(None, [self.for_each_checkpoint_of])]


class UserConfig(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A user's settings for all jobs on all clusters: ``~/.config/hpcrun/config.yaml``."""

    notify: Notify = field(default_factory=Notify)
