"""Plan: every decision about a run, before anything happens."""

# Annotations are not postponed: msgspec would evaluate the text of each, at every call of hpcrun.
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from hpcrun.spec import ContainerRuntime, EndCause, EnvironmentKind, FrameworkName


class Topology(Struct, frozen=True, kw_only=True):
    """How the processes lie on the nodes; ``memory`` None leaves memory to the cluster.

    ``asks_cpus``: the number of CPUs is known, and asked for. ``whole_node``: the job has all GPUs
    of its nodes.
    """

    nodes: int
    gpus_per_node: int
    ranks_per_node: int
    cpus_per_rank: int
    asks_cpus: bool
    memory: str | None
    exclusive: bool
    whole_node: bool
    partition: str | None
    account: str | None
    qos: str | None
    modules: Sequence[str]
    gres: str | None
    constraint: str | None

    @property
    def world_size(self) -> int:
        """Return the number of all ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def cpus_per_node(self) -> int:
        """Return the CPUs of all ranks of a node."""
        return self.cpus_per_rank * self.ranks_per_node


class Launcher(Struct, frozen=True, kw_only=True):
    """What starts the ranks of a job; its command is in ``templates/node.sh.j2``.

    ``task`` is what each task of the job is: a rank, a launcher that starts the ranks of its node,
    or the job's own command. ``is_torchelastic``: it starts ranks as torchrun does, and sets
    TORCHELASTIC_RUN_ID. ``frameworks`` are those that get it unless the job names another.
    Without Slurm, on the hosts of a hostfile, ``remote`` starts the tasks, and ``on_hosts`` is the
    launcher that takes its place there; ``needs_slurm``: it cannot run there. ``modules`` are
    those that it needs in the Python that trains.
    """

    name: str
    task: Literal["rank", "launcher", "command"] = "launcher"
    is_torchelastic: bool = False
    frameworks: Sequence[FrameworkName] = ()
    remote: Literal["ssh", "pdsh"] = "ssh"
    on_hosts: str | None = None
    needs_slurm: bool = False
    modules: Sequence[str] = ()


class Place(Struct, frozen=True, kw_only=True):
    """What the planner needs to know of the world: names, times, folders.

    ``shared_code`` is the folder of a copy of the code that several runs have in common;
    ``checkpoint_dir`` is that of another run, which this one goes on from. ``venv``
    and ``conda`` are what to activate before ``python`` trains, ``node_venv`` on each node, where
    its variables are known. ``hosts`` are those of a hostfile,
    where there is no Slurm. ``debug`` asks for diagnosis in this one run; ``inherited`` are the
    submitting shell's variables. ``runs_per_job``: how many runs of a sweep share its job.
    ``node_range`` is the job's range of nodes, of which this is the plan for one number.
    """

    run_id: str
    created: str
    run_dir: str
    project_dir: str
    cache_dir: str
    python: str
    venv: str | None = None
    node_venv: str | None = None
    conda: str | None = None
    shared_code: str | None = None
    checkpoint_dir: str | None = None
    hosts: list[str] = []
    debug: bool = False
    inherited: Mapping[str, str] = {}
    runs_per_job: int = 1
    node_range: str = ""

    @property
    def code_dir(self) -> str:
        return self.shared_code or f"{self.run_dir}/code"


class Dependency(Struct, frozen=True):
    """What a run comes after.

    ``job_id`` is the Slurm id of the job that must end well first (of several: with colons; or the
    one that would go on with it, behind ``?afterok:``); None when it has done so already.
    ``checkpoint_dir`` is that run's; None where it is several, or no run of hpcrun's.
    """

    job_id: str | None
    checkpoint_dir: str | None = None


Block = Literal["run", "environment", "nccl", "job_environment", "node"]


class Section(Struct, frozen=True, kw_only=True):
    """Environment variables that belong together, with the reason as a comment.

    ``block`` is the template's block that lays it out; ``prepend`` holds search paths that go
    before what is there. ``reasons`` are comments by variable; of the variables in ``keeps`` a
    value that is there already stays (a module's, an image's). With ``fabrics`` the section counts
    where the job's first node shows one of these. Block ``node``: what each node decides itself.
    """

    block: Block
    title: str
    variables: dict[str, str] = {}
    prepend: dict[str, str] = {}
    comment: str = ""
    reasons: dict[str, str] = {}
    keeps: list[str] = []
    fabrics: list[str] = []


class ContainerPlan(Struct, frozen=True, kw_only=True):
    """The container of every rank; ``mounts`` are SRC:DST, and $NAME in them is the node's."""

    runtime: ContainerRuntime
    image: str
    mounts: list[str]
    options: list[str]


class SetupPlan(Struct, frozen=True, kw_only=True):
    """What the nodes do before training. ``stage`` holds pairs of source and target.

    $NAME in ``local_dir`` and in the sources is the node's. ``own_files`` are files of the run that
    name a node's own folder: each node makes its own copy of them.
    """

    modules: list[str]
    venv: str | None
    conda: str | None
    uv: bool
    offline: bool
    commands: list[str]
    node_commands: list[str]
    stage: list[tuple[str, str]]
    local_dir: str
    own_files: list[str]
    container: ContainerPlan | None
    module_paths: list[str] = []
    node_venv: str | None = None


class SurvivePlan(Struct, frozen=True, kw_only=True):
    """What the harness does as an attempt ends.

    ``when`` are the ends that the run goes on after, in at most ``max_attempts``. ``warned`` is how
    many seconds before the time limit Slurm signals the batch script, None: never; with ``saves``
    the ranks get ``signal`` then. After ``stalled_after`` seconds without a step the run has
    stalled; None: that is learned. ``resume`` are words of the program where there is a checkpoint;
    ``resumes``: the job says where it saves, so one that saves nothing there gets nowhere.
    Of those ``keep`` stay, None: all; a folder is whole with the file ``marker``, if one is named.
    ``spare_nodes`` are in the job beside its nodes.
    """

    when: list[EndCause] = []
    max_attempts: int = 1
    warned: int | None = None
    saves: bool = False
    signal: str = "TERM"
    stalled_after: int | None = None
    resume: list[str] = []
    resumes: bool = False
    keep: int | None = None
    marker: str | None = None
    spare_nodes: int = 0


class Plan(Struct, frozen=True, kw_only=True):
    """A run, decided. ``world_size`` = nodes x ranks_per_node.

    ``precision`` and ``effective_batch`` are None where nothing that can be seen passes them on to
    the program: it has its own.

    ``launcher`` is a name of plan.launchers. ``hosts`` are those of a hostfile.
    ``directives`` are sbatch long options in order; None is an option without a value; ``step`` are
    those of srun beside nodes and tasks. ``launcher_args`` follow the launcher's own options.
    ``node_range``: the job has a range of nodes, and ``nodes`` is one number of it. ``unset`` are
    variables that the program must not have, whoever sets them. ``resumes``: started again, the
    program resumes from its checkpoints, as far as can be seen.
    """

    hpcrun_version: str
    run_id: str
    name: str
    description: str
    cluster: str
    created: str
    run_dir: str
    project_dir: str
    checkpoint_dir: str
    python: str
    launcher: str
    launcher_args: list[str]
    framework: FrameworkName
    accelerator: str
    precision: str | None
    nodes: int
    gpus_per_node: int
    ranks_per_node: int
    tasks_per_node: int
    world_size: int
    cpus_per_rank: int
    micro_batch_per_gpu: int
    gradient_accumulation_steps: int
    effective_batch: int | None
    fabric: str
    program: list[str]
    reference_trainer: bool
    snapshot: bool
    directives: list[tuple[str, str | None]]
    step: list[tuple[str, str | None]]
    environment_kind: EnvironmentKind
    environment: list[Section]
    setup: SetupPlan
    secrets: list[str]
    unset: list[str] = []
    deepspeed_config: dict[str, Any] | None = None
    accelerate_config: dict[str, Any] | None = None
    hosts: list[str] = []
    log_patterns: list[str] = []
    preflight: bool | Literal["full"] = False
    survive: SurvivePlan = SurvivePlan()
    notes: list[str] = []
    runs_per_job: int = 1
    node_range: str = ""
    resumes: bool = True

    @property
    def shares_checkpoint_dir(self) -> bool:
        """Return True if checkpoints are saved to a directory that other runs may save to."""
        return not f"{self.checkpoint_dir}/".startswith(f"{self.run_dir}/")

    @property
    def all_nodes(self) -> int:
        """Those of the job: the ranks' and the spare ones."""
        return self.nodes + self.survive.spare_nodes


def label(values: Mapping[str, str]) -> str:
    """Label a run of a sweep by its values.

    >>> label({"lr": "1e-4", "deepspeed.zero_stage": "2"})
    'lr=1e-4 zero_stage=2'
    """
    heads = column_names(values)
    return " ".join(f"{head}={value}" for head, value in zip(heads, values.values(), strict=True))


def column_names(keys: Collection[str]) -> list[str]:
    """Shorten a sweep's keys to their last part where that is unique.

    >>> column_names(["lr", "deepspeed.zero_stage"]), column_names(["env.a", "nccl.env.a"])
    (['lr', 'zero_stage'], ['env.a', 'nccl.env.a'])
    """
    last = [key.rpartition(".")[2] for key in keys]
    return [end if last.count(end) == 1 else key for key, end in zip(keys, last, strict=True)]
