"""sbatch's options: what the plan asks for, in the words that this site takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from hpcrun.errors import InputError, Problem
from hpcrun.plan.topology import Topology, parse_memory_mb
from hpcrun.plan.types import Place, Plan
from hpcrun.slurm.sbatch import quote_pattern
from hpcrun.spec.cluster import Cluster
from hpcrun.spec.job import JobSpec

MAX_NAME = 1024  # bytes; slurmctld's _validate_job_create_req
# sbatch takes one of them (sbatch.1).
_MEMORY = {"mem", "mem-per-cpu", "mem-per-gpu"}


class _Shape(Struct, frozen=True):
    """What another option's grammar counts in."""

    nodes: int
    gpus_per_node: int
    cpus_per_node: int
    exclusive: bool


def build_directives(
    spec: JobSpec,
    cluster: Cluster,
    topology: Topology,
    place: Place,
    *,
    tasks_per_node: int,
    after: str | None,
    problems: list[Problem],
) -> list[tuple[str, str | None]]:
    """List sbatch's options, in the order in which people read them.

    The profile's ``rename`` says hpcrun's own in another option's grammar; the ``slurm`` maps of
    profile and job come last, and False takes an option away.
    """
    given = {**cluster.slurm, **spec.slurm}
    dropped = {option for option, value in given.items() if value is False}
    # Without a word about tasks Slurm starts one a node, which then has all the CPUs.
    tasks = 1 if "ntasks-per-node" in dropped else tasks_per_node
    cpus = topology.cpus_per_rank * topology.ranks_per_node
    memory = None if _MEMORY & (given.keys() - dropped) else topology.memory
    # A script that cannot resume must not start over unasked: slurm: {requeue: true} allows it.
    restarts = {"requeue", "no-requeue"} & given.keys()
    wanted: list[tuple[str, str | bool | None]] = [
        ("job-name", spec.name or "job"),
        ("partition", topology.partition),
        ("account", topology.account),
        ("nodes", str(topology.nodes)),
        ("ntasks-per-node", str(tasks)),
        ("cpus-per-task", str(cpus // tasks) if topology.asks_cpus else None),
        ("gres", topology.gres),
        ("constraint", topology.constraint),
        ("exclusive", topology.exclusive or None),
        ("mem", memory),
        ("time", spec.resources.time),
        ("dependency", f"afterok:{after}" if after else None),
        # Without it the job would stay pending for ever when the other one fails.
        ("kill-on-invalid-dep", "yes" if after else None),
        ("output", _batch_log(place.run_dir)),
        # The login node's limits are not the job's: little locked memory there, and RDMA fails here
        # (sbatch.1; PropagateResourceLimits=ALL is Slurm's default). Core files as the shell says.
        ("propagate", "CORE"),
        ("open-mode", "append"),  # a requeue must not wipe the log of the attempt before
        ("no-requeue", None if restarts else True),
    ]
    said = {k: None if v is True else str(v) for k, v in wanted if v is not None}
    kept = {option: value for option, value in said.items() if option not in dropped}
    if cluster.rename.get("cpus-per-task") == "cpus-per-gpu":
        # Slurm 20.11 finds no node for --cpus-per-gpu with it; srun says the number of tasks.
        kept.pop("ntasks-per-node", None)
    shape = _Shape(topology.nodes, topology.gpus_per_node, cpus, topology.exclusive)
    merged = _renamed(kept, cluster, shape, problems)
    for option, value in given.items():
        if value is False:
            merged.pop(option, None)
        elif option == "dependency" and after:
            merged[option] = _both(str(merged[option]), str(value), problems)
        else:
            merged[option] = None if value is True else str(value)
    return list(merged.items())


def _both(ours: str, users: str, problems: list[Problem]) -> str:
    """Wait for both: a comma means and; it cannot stand beside Slurm's ?, or."""
    if "?" in users:
        message = f"{users}: it cannot be joined with --after, since ? and , do not mix"
        problems.append(Problem("", None, "slurm.dependency", message))
    return f"{ours},{users}"


def _renamed(
    said: Mapping[str, str | None], cluster: Cluster, shape: _Shape, problems: list[Problem]
) -> dict[str, str | None]:
    renamed: dict[str, str | None] = {}
    for option, value in said.items():
        name = cluster.rename.get(option, option)
        if name == "cpus-per-gpu" and shape.exclusive:
            continue  # --exclusive gives all GPUs of a node, each with so many CPUs, and all CPUs
        if name != option and value is not None:
            try:
                value = CONVERSIONS[option, name](value, shape)
            except ValueError as error:
                message = f"{error}; slurm: {{{option}: false}} leaves it out"
                where = f"cluster {cluster.name}"
                problems.append(Problem(where, None, f"rename.{option}", message))
        renamed[name] = value
    return renamed


def _of_all_nodes(gres: str, shape: _Shape) -> str:
    kind = gres.removeprefix("gpu:").rpartition(":")[0]
    return f"{kind}:{shape.nodes * shape.gpus_per_node}".removeprefix(":")


def _memory_per_cpu(memory: str, shape: _Shape) -> str:
    if memory == "0":
        raise ValueError("all of a node's memory cannot be said per CPU: say memory_per_node")
    return f"{parse_memory_mb(memory) // shape.cpus_per_node}M"


def _memory_per_gpu(memory: str, shape: _Shape) -> str:
    if memory == "0" or shape.exclusive:  # --exclusive gives more GPUs than the job asks for
        raise ValueError("the memory of whole nodes cannot be said per GPU")
    if not shape.gpus_per_node:
        raise ValueError("the job has no GPUs to share its memory")
    return f"{parse_memory_mb(memory) // shape.gpus_per_node}M"


def _cpus_per_gpu(_: str, shape: _Shape) -> str:
    if not shape.gpus_per_node:
        raise ValueError("the job has no GPUs to share its CPUs")
    return str(shape.cpus_per_node // shape.gpus_per_node)


# The pairs of spec.names.RENAMES: an option's value in the grammar of another.
CONVERSIONS: dict[tuple[str, str], Callable[[str, _Shape], str]] = {
    ("gres", "gpus-per-node"): lambda value, _: value.removeprefix("gpu:"),
    ("gres", "gpus"): _of_all_nodes,
    ("mem", "mem-per-cpu"): _memory_per_cpu,
    ("mem", "mem-per-gpu"): _memory_per_gpu,
    ("cpus-per-task", "cpus-per-gpu"): _cpus_per_gpu,
    ("ntasks-per-node", "ntasks"): lambda value, shape: str(int(value) * shape.nodes),
    ("constraint", "prefer"): lambda value, _: value,
}


def _batch_log(run_dir: str) -> str:
    """Slurm would take a % or a backslash of the run's folder for its own, if it were unsaid."""
    log = "logs/batch.log"
    return quote_pattern(f"{run_dir}/{log}") if re.search(r"[%\\]", run_dir) else log


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
