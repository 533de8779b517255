"""What the job asks of Slurm: nodes, ranks, CPUs and memory, and sbatch's options for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from hpcrun.errors import InputError, Problem
from hpcrun.plan.gpus import gpu_notes, is_mig
from hpcrun.plan.job import Findings, Job
from hpcrun.plan.types import Plan
from hpcrun.slurm.commands import quote_pattern
from hpcrun.spec.job import Cluster, GpuType, JobSpec, Partition

# Without a word from the profile: Slurm's own default is one CPU for a whole node's task, which
# starves the data loaders; four for each GPU fits nearly every GPU node that is sold.
DEFAULT_CPUS_PER_GPU = 4


class Topology(Struct, frozen=True, kw_only=True):
    """How the processes lie on the nodes; ``memory`` None leaves memory to the cluster.

    ``asks_cpus``: the number of CPUs is known, and asked for.
    """

    nodes: int
    gpus_per_node: int
    ranks_per_node: int
    cpus_per_rank: int
    asks_cpus: bool
    memory: str | None
    exclusive: bool
    partition: str | None
    account: str | None
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


def parse_memory_mb(text: str) -> int:
    """Parse Slurm's memory text as MB; a bare number is MB.

    >>> parse_memory_mb("200G"), parse_memory_mb("1000"), parse_memory_mb("2T")
    (204800, 1000, 2097152)
    """
    digits = text.rstrip("BKMGT")
    unit = text[len(digits) :].removesuffix("B") or "M"
    kib = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}[unit]
    return int(digits) * kib // 1024


def parse_seconds(text: str) -> float:
    """Parse Slurm's time text as seconds; UNLIMITED is infinite (sbatch.1, --time).

    >>> parse_seconds("90"), parse_seconds("1:30"), parse_seconds("24:00:00"), parse_seconds("2-12")
    (5400, 90, 86400, 216000)
    >>> parse_seconds("UNLIMITED")
    inf
    """
    if not re.match("[0-9]", text):
        return float("inf")
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    # days-hours[:minutes[:seconds]], or minutes, or [hours:]minutes:seconds
    parts = [*parts, 0, 0][:3] if dash else [*parts, 0] if len(parts) == 1 else parts
    total = 0
    for part in parts:
        total = total * 60 + part
    return int(days or 0) * 86400 + total


def _gpu_type(spec: JobSpec, cluster: Cluster, found: Findings) -> GpuType:
    wanted = spec.resources.gpu_type
    if wanted is None:
        return GpuType()
    if not cluster.gpu_types:
        if re.search(r"[:,=\s()*]", wanted):
            message = f"{wanted!r}: a type is one word; the number of GPUs is gpus_per_node"
            found.refuse("resources.gpu_type", message)
        return GpuType(gres=wanted)
    known = cluster.gpu_types.get(wanted) or cluster.gpu_types.get("*")
    if known is None:
        message = f"{wanted}: cluster {cluster.name} has {', '.join(sorted(cluster.gpu_types))}; "
        found.refuse(
            "resources.gpu_type", message + "name one of these, or leave it out to take any"
        )
    return known or GpuType()


def build_topology(spec: JobSpec, cluster: Cluster, found: Findings) -> Topology:
    """Lay the job out on nodes.

    CPUs and memory are the GPUs' share of a node where the profile knows the nodes, and all of it
    where nodes are given or asked for whole. A GPU type that cannot be had is refused; what no
    node has is found by plan.limits.
    """
    resources = spec.resources
    gpus = resources.gpus_per_node
    ranks = max(1, gpus)  # a job without GPUs has one rank a node
    gpu_type = _gpu_type(spec, cluster, found)
    partition = resources.partition or gpu_type.partition or cluster.partition
    facts = Partition()
    if partition is not None:
        facts = cluster.partitions.get(partition, facts)
    elif len(cluster.partitions) == 1:
        [facts] = cluster.partitions.values()
    exclusive = resources.exclusive or {**cluster.slurm, **spec.slurm}.get("exclusive") is True
    whole = exclusive or facts.exclusive
    cpus = _cpus_per_rank(spec, facts, found, whole=whole)
    found.notes += gpu_notes(spec, cluster)
    memory = resources.memory_per_node
    if memory is None and whole:
        memory = "0"  # sbatch.1, --mem: all of the node's
    elif memory is None and gpus and facts.memory_per_gpu:
        memory = f"{parse_memory_mb(facts.memory_per_gpu) * gpus}M"
    elif memory is None and facts.memory_per_node and facts.gpus_per_node and gpus:
        memory = f"{parse_memory_mb(facts.memory_per_node) * gpus // facts.gpus_per_node}M"
    made = Topology(
        nodes=resources.nodes,
        gpus_per_node=gpus,
        ranks_per_node=ranks,
        cpus_per_rank=cpus or DEFAULT_CPUS_PER_GPU,
        asks_cpus=cpus is not None,
        memory=memory,
        exclusive=exclusive,
        partition=partition,
        account=resources.account or cluster.account,
        gres=(f"gpu:{gpu_type.gres}:{gpus}" if gpu_type.gres else f"gpu:{gpus}") if gpus else None,
        constraint=gpu_type.constraint,
    )
    _check_gpu_type(spec, gpu_type, made, found)
    return made


def _cpus_per_rank(spec: JobSpec, facts: Partition, found: Findings, *, whole: bool) -> int | None:
    """Return the CPUs of a rank; None for all of a node of unknown size."""
    resources = spec.resources
    gpus = resources.gpus_per_node
    if resources.cpus_per_gpu is not None:
        return resources.cpus_per_gpu
    if facts.cpus_per_gpu and gpus:
        return facts.cpus_per_gpu
    if facts.cpus_per_node and whole:
        return max(1, facts.cpus_per_node // max(1, gpus))
    if facts.cpus_per_node and facts.gpus_per_node and gpus:
        return max(1, facts.cpus_per_node // facts.gpus_per_node)
    default = f"{DEFAULT_CPUS_PER_GPU} CPUs"
    if whole:
        found.notes.append(
            f"the ranks share all CPUs of a node, with {DEFAULT_CPUS_PER_GPU} OpenMP threads each: "
            "the cluster profile does not know how many CPUs there are"
        )
        return None
    if gpus:
        note = f"{default} per GPU by default: the cluster profile does not know its nodes"
    else:
        note = f"{default} on each node by default: resources.cpus_per_gpu sets another number"
    found.notes.append(note)
    return DEFAULT_CPUS_PER_GPU


def _check_gpu_type(spec: JobSpec, gpu_type: GpuType, made: Topology, found: Findings) -> None:
    wanted = spec.resources.gpu_type or ""
    ranks = made.nodes * made.gpus_per_node
    by_name = is_mig(wanted) or is_mig(gpu_type.gres or "")
    if ranks > 1 and (by_name if gpu_type.mig is None else gpu_type.mig):
        # NCCL's user guide, Using MIG instances: there is no way between them but the network.
        message = f"{ranks} ranks on slices of GPUs ({wanted}): NCCL cannot join MIG slices; "
        found.refuse("resources.gpu_type", message + "take one slice, or whole GPUs")
    only_place = gpu_type.partition if not (gpu_type.gres or gpu_type.constraint) else None
    if only_place not in (None, made.partition):
        message = f"{wanted}: it is chosen by its partition, {only_place}; leave partition out"
        found.refuse("resources.partition", message)


# ---- sbatch's options --------------------------------------------------------------------------


MAX_NAME = 1024  # bytes; slurmctld's _validate_job_create_req
# sbatch takes one of them (sbatch.1).
_MEMORY = {"mem", "mem-per-cpu", "mem-per-gpu"}


def build_directives(
    job: Job, tasks_per_node: int, *, after: str | None
) -> list[tuple[str, str | None]]:
    """List sbatch's options, in the order in which people read them.

    The profile's ``rename`` writes hpcrun's own in another option's grammar; the ``slurm`` maps of
    profile and job come last, and False removes an option.
    """
    spec, cluster, topology, run_dir = job.spec, job.cluster, job.topology, job.place.run_dir
    given = {**cluster.slurm, **spec.slurm}
    dropped = {option for option, value in given.items() if value is False}
    # Without a number of tasks Slurm starts one a node, which then has all the CPUs.
    tasks = 1 if "ntasks-per-node" in dropped else tasks_per_node
    memory = None if _MEMORY & (given.keys() - dropped) else topology.memory
    # A script that cannot resume must not start over: slurm: {requeue: true} allows it.
    restarts = {"requeue", "no-requeue"} & given.keys()
    log, is_odd = "logs/batch.log", re.search(r"[%\\]", run_dir)
    wanted: list[tuple[str, str | bool | None]] = [
        ("job-name", spec.name or "job"),
        ("partition", topology.partition),
        ("account", topology.account),
        ("nodes", str(topology.nodes)),
        ("ntasks-per-node", str(tasks)),
        ("cpus-per-task", str(topology.cpus_per_node // tasks) if topology.asks_cpus else None),
        ("gres", topology.gres),
        ("constraint", topology.constraint),
        ("exclusive", topology.exclusive or None),
        ("mem", memory),
        ("time", spec.resources.time),
        ("dependency", f"afterok:{after}" if after else None),
        # Without it the job would stay pending for ever when the other one fails.
        ("kill-on-invalid-dep", "yes" if after else None),
        # The folder where sbatch runs is the run's; one with % or a backslash is quoted for Slurm.
        ("output", f"{quote_pattern(run_dir)}/{log}" if is_odd else log),
        # The login node's limits are not the job's: little locked memory there, and RDMA fails here
        # (sbatch.1; PropagateResourceLimits=ALL is Slurm's default). Core files as in the shell.
        ("propagate", "CORE"),
        ("open-mode", "append"),  # a requeue must not wipe the log of the attempt before
        ("no-requeue", None if restarts else True),
    ]
    kept = {
        option: None if value is True else str(value)
        for option, value in wanted
        if value is not None and option not in dropped
    }
    if cluster.rename.get("cpus-per-task") == "cpus-per-gpu":
        # Slurm 20.11 finds no node for --cpus-per-gpu with it; srun gets the number of tasks.
        kept.pop("ntasks-per-node", None)
    merged = _renamed(kept, cluster, topology, job.found)
    for option, value in given.items():
        if value is False:
            merged.pop(option, None)
        elif option == "dependency" and after:
            # Both are waited for: a comma means and; it cannot be used with Slurm's ?, or.
            if "?" in str(value):
                message = f"{value}: it cannot be joined with --after, since ? and , do not mix"
                job.found.refuse("slurm.dependency", message)
            merged[option] = f"{merged[option]},{value}"
        else:
            merged[option] = None if value is True else str(value)
    return list(merged.items())


def _renamed(
    options: Mapping[str, str | None], cluster: Cluster, shape: Topology, found: Findings
) -> dict[str, str | None]:
    renamed: dict[str, str | None] = {}
    for option, value in options.items():
        name = cluster.rename.get(option, option)
        if name == "cpus-per-gpu" and shape.exclusive:
            continue  # --exclusive gives all GPUs of a node, each with its CPUs, and all CPUs
        if name != option and value is not None:
            try:
                value = CONVERSIONS[option, name](value, shape)
            except ValueError as error:
                message = f"{error}; slurm: {{{option}: false}} leaves it out"
                where = f"cluster {cluster.name}"
                found.problems.append(Problem(f"rename.{option}", message, where))
        renamed[name] = value
    return renamed


def _of_all_nodes(gres: str, shape: Topology) -> str:
    kind = gres.removeprefix("gpu:").rpartition(":")[0]
    return f"{kind}:{shape.nodes * shape.gpus_per_node}".removeprefix(":")


def _memory_per_cpu(memory: str, shape: Topology) -> str:
    if memory == "0":
        raise ValueError("all of a node's memory cannot be given per CPU: set memory_per_node")
    return f"{parse_memory_mb(memory) // shape.cpus_per_node}M"


def _memory_per_gpu(memory: str, shape: Topology) -> str:
    if memory == "0" or shape.exclusive:  # --exclusive gives more GPUs than the job asks for
        raise ValueError("the memory of whole nodes cannot be given per GPU")
    if not shape.gpus_per_node:
        raise ValueError("the job has no GPUs to share its memory")
    return f"{parse_memory_mb(memory) // shape.gpus_per_node}M"


def _cpus_per_gpu(_: str, shape: Topology) -> str:
    if not shape.gpus_per_node:
        raise ValueError("the job has no GPUs to share its CPUs")
    return str(shape.cpus_per_node // shape.gpus_per_node)


# The pairs of spec.rules.RENAMES: an option's value in the grammar of another.
CONVERSIONS: dict[tuple[str, str], Callable[[str, Topology], str]] = {
    ("gres", "gpus-per-node"): lambda value, _: value.removeprefix("gpu:"),
    ("gres", "gpus"): _of_all_nodes,
    ("mem", "mem-per-cpu"): _memory_per_cpu,
    ("mem", "mem-per-gpu"): _memory_per_gpu,
    ("cpus-per-task", "cpus-per-gpu"): _cpus_per_gpu,
    ("ntasks-per-node", "ntasks"): lambda value, shape: str(int(value) * shape.nodes),
    ("constraint", "prefer"): lambda value, _: value,
}


def check_carried(plan: Plan) -> None:
    """Refuse what Slurm itself cannot carry, naming the field. Raises InputError."""
    fields = {"job-name": "name", "output": "runs_dir"}
    for option, value in plan.directives:
        field = fields.get(option, f"slurm.{option}")
        # A directive is a line, and U+001E and U+001F part the rows and fields of squeue's answer.
        if value is not None and re.search(r"[\0\n\r\x1e\x1f]", value):
            raise InputError(
                f"{field}: {value!r}: Slurm's options and listings cannot carry a newline or "
                "the separators U+001E and U+001F"
                + (" beside % or \\" if field == "runs_dir" else ""),
                fix="take it out",
            )
        if option == "job-name" and value is not None and len(value.encode()) > MAX_NAME:
            raise InputError(
                f"name: {len(value.encode())} bytes long, and Slurm takes {MAX_NAME} at most",
                fix="shorten it",
            )
