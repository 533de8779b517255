"""Plan: every decision about a run, before anything happens."""

# Annotations are not postponed: msgspec would evaluate the text of each, at every call of hpcrun.
from collections.abc import Collection, Mapping
from typing import Any, Literal

from msgspec import Struct

from hpcrun.spec.job import ContainerRuntime, EnvironmentKind, FrameworkName


class Place(Struct, frozen=True, kw_only=True):
    """What the planner needs to know of the world: names, times, folders.

    ``shared_code`` is the folder of a copy of the code that several runs have in common;
    ``checkpoint_dir`` is that of another run, which this one goes on from. ``venv``
    and ``conda`` are what to activate before ``python`` trains. ``hosts`` are those of a hostfile,
    where there is no Slurm. ``debug`` asks for diagnosis in this one run; ``inherited`` are the
    submitting shell's variables.
    """

    run_id: str
    created: str
    run_dir: str
    project_dir: str
    cache_dir: str
    python: str
    venv: str | None = None
    conda: str | None = None
    shared_code: str | None = None
    checkpoint_dir: str | None = None
    hosts: list[str] = []
    debug: bool = False
    inherited: Mapping[str, str] = {}

    @property
    def code_dir(self) -> str:
        """Return where the copy of the code lies."""
        return self.shared_code or f"{self.run_dir}/code"


class Dependency(Struct, frozen=True):
    """What a run comes after.

    ``job_id`` is the Slurm id of the job that must end well first; None when it has done so
    already. ``checkpoint_dir`` is that run's; None where it is several, or no run of hpcrun's.
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


class Plan(Struct, frozen=True, kw_only=True):
    """A run, decided. ``world_size`` = nodes x ranks_per_node.

    ``precision`` and ``effective_batch`` are None where nothing that can be seen passes them on to
    the program: it has its own.

    ``launcher`` is a name of plan.launchers. ``hosts`` are those of a hostfile.
    ``directives`` are sbatch long options in order; None is an option without a value.
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
    environment_kind: EnvironmentKind
    environment: list[Section]
    setup: SetupPlan
    secrets: list[str]
    deepspeed_config: dict[str, Any] | None = None
    accelerate_config: dict[str, Any] | None = None
    hosts: list[str] = []
    log_patterns: list[str] = []
    notes: list[str] = []


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
