"""The Plan and its parts: every decision about a run, before anything happens."""

# No `from __future__ import annotations`: msgspec would evaluate every annotation at start-up.
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from hpcrun.spec import ContainerRuntime, EndCause, EnvironmentKind, FrameworkName


class Topology(Struct, frozen=True, kw_only=True):
    """The placement of processes on nodes.

    Attributes:
        asks_cpus: True if the number of CPUs is known and requested.
        memory: Memory per node as sbatch writes it; None leaves it to the cluster.
        whole_node: True if the job gets all GPUs of its nodes.
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
    """A program that starts the ranks of a job; its command is in ``templates/node.sh.j2``.

    Attributes:
        task: What each Slurm task is: a rank, a launcher that starts the ranks of its node, or the
            job's own command.
        is_torchelastic: True if it starts ranks as torchrun does and sets TORCHELASTIC_RUN_ID.
        frameworks: Frameworks whose default launcher this is.
        remote: How tasks are started on the hosts of a hostfile, without Slurm.
        on_hosts: The launcher that replaces this one on the hosts of a hostfile.
        needs_slurm: True if it cannot run on the hosts of a hostfile.
        modules: Python modules that it imports.
    """

    name: str
    task: Literal["rank", "launcher", "command"] = "launcher"
    is_torchelastic: bool = False
    frameworks: Sequence[FrameworkName] = ()
    remote: Literal["ssh", "pdsh"] = "ssh"
    on_hosts: str | None = None
    needs_slurm: bool = False
    modules: Sequence[str] = ()


class Provenance(Struct, frozen=True, kw_only=True):
    """The origin of a submission, recorded for people who later look for what was trained.

    Attributes:
        user: The user who submitted the run, on the machine of the submission.
        project: The project directory on that machine.
        command: The command line without secrets; "" if there is none, as in the Python API.
        git_commit: The commit that was checked out; None outside a git checkout.
        git_dirty: True if tracked files differed from that commit.
    """

    user: str = ""
    project: str = ""
    command: str = ""
    git_commit: str | None = None
    git_dirty: bool | None = None


class RolePlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of several programs in a job.

    Attributes:
        nodes: Its nodes, as indices of the job's nodes.
        gpus: The number of its GPUs on each node.
        gpus_per_node: The number of GPUs of the job on each node.
        shares_nodes: True if it may share its nodes with other roles.
        waits_for: The roles that must be ready before it starts.
        ready: A URL, ``tcp://{host}:{port}``, or ``log:`` and a regular expression; None: at once.
        ready_within: The time limit for that in seconds.
        group: Its component of a heterogeneous job; 0 has the main role and the batch script.
    """

    name: str
    is_main: bool
    nodes: list[int]
    gpus: int
    gpus_per_node: int
    shares_nodes: bool
    waits_for: list[str]
    ready: str | None
    ready_within: int
    group: int = 0


class PlanInputs(Struct, frozen=True, kw_only=True):
    """Facts from outside the job file that a plan depends on: names, times, directories.

    Attributes:
        python: The interpreter that trains.
        venv: The virtual environment to activate before.
        node_venv: A virtual environment to activate on each node, because its path contains
            variables that only a node knows.
        conda: The conda environment to activate before.
        shared_code: A copy of the code that several runs share.
        checkpoint_dir: The checkpoint directory of another run, from which this run resumes.
        hosts: The hosts of a hostfile, when there is no Slurm.
        debug: True to enable diagnostics in this run only.
        inherited: Environment variables of the submitting shell.
        runs_per_job: The number of runs of a sweep that share one job.
        node_range: The job's range of nodes, for one number of which this plan is made.
        components: The options of sbatch for further components of a heterogeneous job.
        role: The role for which this plan is made, in a job with roles.
        roles: All roles of the job.
        search: The run is a trial of a search.
        trial: The parameters whose values are drawn when the run starts, with an example of each.
        mounts_workdir: The host has the folder of ``workdir``, so that a container can mount it.
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
    provenance: Provenance = Provenance()
    role: str = ""
    roles: list[RolePlan] = []
    components: list[list[tuple[str, str | None]]] = []
    search: bool = False
    trial: dict[str, str] = {}
    mounts_workdir: bool = True

    @property
    def code_dir(self) -> str:
        return self.shared_code or f"{self.run_dir}/code"


class Dependency(Struct, frozen=True):
    """The jobs that must succeed before a run starts.

    Attributes:
        job_id: Slurm job ids as ``--dependency=afterok:`` takes them, joined by colons, with
            ``?afterok:`` before a successor that may replace one; None if all have succeeded.
        checkpoint_dir: The checkpoint directory of the run; None for several runs, or a job that
            hpcrun did not submit.
        checkpoint_dirs: Those of the runs of a sweep by index, for a sweep of which each run starts
            after one of them.
        kind: afterok, or aftercorr for a sweep of which each run starts after one of another.
    """

    job_id: str | None
    checkpoint_dir: str | None = None
    checkpoint_dirs: dict[int, str] = {}
    kind: Literal["afterok", "aftercorr"] = "afterok"

    @property
    def terms(self) -> str | None:
        """The value of sbatch's --dependency; None if all jobs have succeeded."""
        return self.job_id and f"{self.kind}:{self.job_id}"


Block = Literal["run", "environment", "nccl", "job_environment", "node"]


class Section(Struct, frozen=True, kw_only=True):
    """A group of environment variables with the reason as a comment.

    Attributes:
        block: The block of the template that lays the section out; ``node`` for values that each
            node computes.
        prepend: Search paths to put before the existing value.
        keeps: Variables whose existing value wins, such as one that a module or an image sets.
        reasons: Comments by variable.
        fabrics: The section applies only if the first node has one of these fabrics.
        is_user: The user chose the values, so the setup commands do not override them.
    """

    block: Block
    title: str
    variables: dict[str, str] = {}
    prepend: dict[str, str] = {}
    comment: str = ""
    reasons: dict[str, str] = {}
    keeps: list[str] = []
    fabrics: list[str] = []
    is_user: bool = False


class ContainerPlan(Struct, frozen=True, kw_only=True):
    """The container of every rank; ``mounts`` are SRC:DST, where the node expands $NAME."""

    runtime: ContainerRuntime
    image: str
    mounts: list[str]
    options: list[str]


class SetupPlan(Struct, frozen=True, kw_only=True):
    """Preparation of each node before training.

    Attributes:
        stage: (source, target) pairs to copy to the node.
        local_dir: The node's local directory; the node expands $NAME in it and in the sources.
        own_files: Files of the run that name a local directory, so that each node needs its own
            copy of them.
        workdir: The folder in which the program starts; "": the project's.
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
    workdir: str = ""


class SurvivePlan(Struct, frozen=True, kw_only=True):
    """What happens when an attempt ends: restart conditions and checkpoints.

    Attributes:
        when: Causes of an end after which the run restarts.
        max_attempts: The largest number of attempts.
        warned: Seconds before the time limit at which Slurm signals the batch script; None: never.
        saves: True if the ranks get ``signal`` at that time.
        stalled_after: Seconds without a step after which a run counts as stalled; None: learned
            from the run.
        resume: Arguments that the program gets when a checkpoint exists.
        resumes: True if the job names its checkpoint directory: an attempt that saves nothing there
            makes no progress.
        keep: How many checkpoints to keep; None: all.
        marker: The file that marks a checkpoint directory as complete, if the job names one.
        spare_nodes: Nodes allocated in addition, to replace failed ones.
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


class NotifyPlan(Struct, frozen=True, kw_only=True):
    """The events of a run that cause notifications, and the channels of these.

    Attributes:
        on: Events and conditions as in ``hpcrun.jobside.events``.
        to: The kind and the target of each channel, as the user wrote them: without secrets.
        per_hour: The maximum number of messages per channel and hour.
    """

    on: list[str]
    to: list[tuple[str, str]]
    per_hour: int


class Plan(Struct, frozen=True, kw_only=True):
    """All decisions about a run.

    Attributes:
        world_size: The number of ranks, ``nodes * ranks_per_node``.
        precision: The number format; None if nothing visible passes it to the program, which then
            uses its own.
        effective_batch: Samples per optimizer step of all ranks; None as for ``precision``.
        launcher: A name in plan.launchers.
        launcher_args: Arguments that follow the launcher's own options.
        hosts: The hosts of a hostfile.
        directives: Long options of sbatch in order; None for an option without a value.
        step: Options of srun besides nodes and tasks.
        node_range: The range of nodes if the job has one; ``nodes`` is one number of it.
        unset: Variables that the program must not have, whatever sets them.
        resumes: True if the program, started again, resumes from its checkpoints as far as can be
            seen.
        group: A name for several runs, under which they are compared.
        zero_keys: The keys of the job that change a setting of ZeRO, by the setting, where
            ``deepspeed.NAME`` does not.
        estimated_memory: Bytes of one GPU as hpcrun fit estimates them; None if unknown.
        ends_with: Whether a command on several nodes ends on all nodes when it succeeds on the
            first one.
        role: The role of which this is the plan, in a job with roles.
        roles: All roles of the job, in the plan of the main role, which is that of the run.
        components: The options of sbatch for further components of a heterogeneous job.
        search: The run is a trial of a search, which its job records or ends early.
        trial: The parameters whose values are drawn when the run starts, with an example of each.
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
    zero_keys: dict[str, list[str]] = {}
    accelerate_config: dict[str, Any] | None = None
    hosts: list[str] = []
    log_patterns: list[str] = []
    preflight: bool | Literal["full"] = False
    survive: SurvivePlan = SurvivePlan()
    notes: list[str] = []
    runs_per_job: int = 1
    node_range: str = ""
    resumes: bool = True
    group: str | None = None
    estimated_memory: int | None = None
    ends_with: Literal["all_nodes", "first_node"] = "all_nodes"
    provenance: Provenance = Provenance()
    notify: NotifyPlan | None = None
    role: str = ""
    roles: list[RolePlan] = []
    components: list[list[tuple[str, str | None]]] = []
    search: bool = False
    trial: dict[str, str] = {}

    @property
    def start_dir(self) -> str:
        """Return the folder in which the program starts."""
        return self.setup.workdir or self.project_dir

    @property
    def makes_start_dir(self) -> bool:
        """Return True if the job creates the folder in which the program starts."""
        inside = f"{self.start_dir}/".startswith(f"{self.run_dir}/")
        return inside and not f"{self.start_dir}/".startswith(f"{self.run_dir}/code/")

    @property
    def shares_checkpoint_dir(self) -> bool:
        """Return True if checkpoints are saved to a directory that other runs may save to."""
        return not f"{self.checkpoint_dir}/".startswith(f"{self.run_dir}/")

    @property
    def all_nodes(self) -> int:
        """Return the number of nodes in the job, spare nodes included."""
        if self.roles:
            return 1 + max(node for role in self.roles for node in role.nodes)
        return self.nodes + self.survive.spare_nodes

    @property
    def all_gpus_per_node(self) -> int:
        """Return the number of GPUs on each node, for all roles together; 0 if it varies."""
        numbers = {role.gpus_per_node for role in self.roles}
        if len(numbers) > 1:  # of a heterogeneous job, which has no single number
            return 0
        return self.roles[0].gpus_per_node if self.roles else self.gpus_per_node

    @property
    def requested_nodes(self) -> int:
        """Return the number of nodes that the first request of the job is for.

        It is that of all nodes, but of a heterogeneous job that of its first component.
        """
        other = {node for role in self.roles if role.group for node in role.nodes}
        return self.all_nodes - len(other)

    @property
    def requested_gpus_per_node(self) -> int:
        """Return the number of GPUs on each of the ``requested_nodes``."""
        first = (role.gpus_per_node for role in self.roles if not role.group)
        return next(first, self.gpus_per_node)


def format_label(values: Mapping[str, str]) -> str:
    """Label a run of a sweep by its values.

    >>> format_label({"lr": "1e-4", "deepspeed.zero_stage": "2"})
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
