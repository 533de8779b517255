"""Resources that the job requests from Slurm: nodes, ranks, CPUs, memory, and sbatch options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import structs

from hpcrun.errors import InputError, Problem
from hpcrun.plan.findings import Findings
from hpcrun.plan.gpus import gpu_notes, is_mig
from hpcrun.plan.job import Job
from hpcrun.plan.times import parse_seconds, slurm_time, suspicious_limit
from hpcrun.plan.types import Plan, SurvivePlan, Topology
from hpcrun.slurm import quote_pattern
from hpcrun.spec import Cluster, GpuType, JobSpec, Partition

# The default without a profile. Slurm's own default is one CPU for a task, which starves the data
# loaders; four per GPU fit nearly every GPU node on the market.
DEFAULT_CPUS_PER_GPU = 4


def parse_memory_mb(text: str) -> int:
    """Parse Slurm's memory text as MB; a bare number is MB.

    >>> parse_memory_mb("200G"), parse_memory_mb("1000"), parse_memory_mb("2T")
    (204800, 1000, 2097152)
    """
    digits = text.rstrip("BKMGT")
    unit = text[len(digits) :].removesuffix("B") or "M"
    kib = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}[unit]
    return int(digits) * kib // 1024


def _decide_gpu_type(spec: JobSpec, cluster: Cluster, found: Findings) -> GpuType:
    types = []
    for wanted in spec.resources.gpu_types:
        if not cluster.gpu_types and re.search(r"[:,=\s()*]", wanted):
            message = f"{wanted!r}: a type is one word; the number of GPUs is gpus_per_node"
            found.refuse("resources.gpu_type", message)
        known = cluster.gpu_types.get(wanted) or cluster.gpu_types.get("*")
        if cluster.gpu_types and known is None:
            message = f"{wanted}: cluster {cluster.name} has {', '.join(sorted(cluster.gpu_types))}"
            message += "; name one of these, or leave it out to take any"
            found.refuse("resources.gpu_type", message)
        types.append(known or GpuType(gres=None if cluster.gpu_types else wanted))
    return (
        _combine_gpu_types(types, spec, found)
        if len(types) > 1
        else types[0]
        if types
        else GpuType()
    )


def _combine_gpu_types(types: Sequence[GpuType], spec: JobSpec, found: Findings) -> GpuType:
    """Request any of several types: Slurm has "or" for features and partitions, not for gres."""
    named = ", ".join(spec.resources.gpu_types)
    places = list(dict.fromkeys(one.partition for one in types))
    features = list(dict.fromkeys(one.constraint for one in types))
    for key in ("account", "qos", "modules"):
        if any(getattr(one, key) != getattr(types[0], key) for one in types):
            found.refuse("resources.gpu_type", f"{named}: they differ in {key}; name one of them")
    if (None in features and None in places) or (None in places and len(places) > 1):
        message = f"{named}: a job can request one gres type; to accept any of them, each needs a "
        message += "constraint in the profile (a feature of its nodes: sinfo -o '%f')"
        found.refuse("resources.gpu_type", message)
    cpus, memory = [one.cpus_per_gpu for one in types], [one.memory_per_gpu for one in types]
    return structs.replace(
        types[0],
        gres=None,
        constraint=None if None in features else "|".join(one for one in features if one),
        partition=None if None in places else ",".join(one for one in places if one),
        cpus_per_gpu=None if None in cpus else min(one for one in cpus if one),
        memory_per_gpu=None
        if None in memory
        else min((one for one in memory if one), key=parse_memory_mb),
        mig=any(one.mig or is_mig(one.gres or "") for one in types),
    )


def _merge_partitions(partitions: str | None, cluster: Cluster) -> Partition:
    """Return the limits of a job's partitions; for several, limits that apply to all of them."""
    names = partitions.split(",") if partitions else list(cluster.partitions)
    known = [cluster.partitions[name] for name in names if name in cluster.partitions]
    if len(known) != len(names) or not known or (len(known) > 1 and not partitions):
        return Partition()
    if len(known) == 1:
        return known[0]
    shares = [_gpu_share(one.cpus_per_gpu, one.cpus_per_node, one) for one in known]
    sizes = [parse_memory_mb(one.memory_per_gpu or "0") for one in known]
    nodes = [parse_memory_mb(one.memory_per_node or "0") for one in known]
    memory = [
        _gpu_share(own, all_, one) for own, all_, one in zip(sizes, nodes, known, strict=True)
    ]
    return Partition(
        cpus_per_gpu=None if None in shares else min(one for one in shares if one),
        memory_per_gpu=None if None in memory else f"{min(one for one in memory if one)}M",
        qos=known[0].qos if len({one.qos for one in known}) == 1 else None,
        exclusive=all(one.exclusive for one in known),
    )


def _gpu_share(own: int | None, whole: int | None, facts: Partition) -> int | None:
    """Return a GPU's share of a node."""
    return own or (whole // facts.gpus_per_node if whole and facts.gpus_per_node else None)


def build_topology(spec: JobSpec, cluster: Cluster, found: Findings, runs: int = 1) -> Topology:
    """Place the job on nodes.

    CPUs and memory are the GPUs' share of a node if the profile knows the nodes, and all of the
    node if nodes are allocated or requested whole. An unavailable GPU type is refused; requests
    beyond any node are found by plan.limits. If ``runs`` share the job, it requests the GPUs of
    all of them.
    """
    resources = spec.resources
    gpus = resources.gpus_per_node
    ranks = max(1, gpus)  # a job without GPUs has one rank per node
    asked = gpus * runs
    gpu_type = _decide_gpu_type(spec, cluster, found)
    partition = resources.partition or gpu_type.partition or cluster.partition
    facts = _merge_partitions(partition, cluster)
    given = {**cluster.slurm, **spec.slurm}
    exclusive = resources.exclusive or given.get("exclusive") is True
    facts = as_cores(facts, given)
    whole = exclusive or facts.exclusive
    facts = structs.replace(
        facts,
        cpus_per_gpu=gpu_type.cpus_per_gpu or facts.cpus_per_gpu,
        memory_per_gpu=gpu_type.memory_per_gpu or facts.memory_per_gpu,
    )
    cpus = _cpus_per_rank(spec, facts, found, ranks * runs, whole=whole)
    found.notes += [*gpu_notes(spec, cluster), *_idle_notes(spec, facts, runs, whole=whole)]
    memory = resources.memory_per_node
    if memory is None and whole:
        memory = "0"  # sbatch.1, --mem: 0 is all memory of the node
    elif memory is None and gpus and facts.memory_per_gpu:
        memory = f"{parse_memory_mb(facts.memory_per_gpu) * asked}M"
    elif memory is None and facts.memory_per_node and facts.gpus_per_node and gpus:
        memory = f"{parse_memory_mb(facts.memory_per_node) * asked // facts.gpus_per_node}M"
    made = Topology(
        nodes=resources.most_nodes,
        gpus_per_node=gpus,
        ranks_per_node=ranks,
        cpus_per_rank=cpus or DEFAULT_CPUS_PER_GPU,
        asks_cpus=cpus is not None,
        memory=memory,
        exclusive=exclusive,
        whole_node=whole or asked == facts.gpus_per_node,
        partition=partition,
        account=resources.account or gpu_type.account or cluster.account,
        qos=gpu_type.qos or facts.qos,
        modules=gpu_type.modules,
        gres=":".join(["gpu", *filter(None, [gpu_type.gres]), str(asked)]) if gpus else None,
        constraint=gpu_type.constraint,
    )
    _check_gpu_type(spec, gpu_type, made, found)
    _refuse_slices_of_partition(spec, cluster, made, found)
    return made


def _idle_notes(spec: JobSpec, facts: Partition, runs: int, *, whole: bool) -> list[str]:
    """Warn about unused GPUs for which a job is charged because it gets whole nodes.

    >>> from hpcrun.spec.job import Resources
    >>> job = JobSpec(resources=Resources(gpus_per_node=1, time="8:00:00"))
    >>> _idle_notes(job, Partition(gpus_per_node=4), 1, whole=True)[0][:63]
    'the partition allocates whole nodes: 3 of 4 GPUs stay idle, up '
    """
    resources, there = spec.resources, facts.gpus_per_node or 0
    idle = (there - resources.gpus_per_node * runs) * resources.most_nodes
    if not whole or idle <= 0 or not resources.gpus_per_node:
        return []
    hours = idle * parse_seconds(resources.time) / 3600 if resources.time else 0
    cost = f", up to {hours:g} GPU hours" if 0 < hours < float("inf") else ""
    total = there * resources.most_nodes
    note = (
        f"the partition allocates whole nodes: {idle} of {total} GPUs stay idle{cost}; a "
        "sweep: for each run"
    )
    fit = there // resources.gpus_per_node
    if resources.most_nodes == 1 and fit > runs:
        note += f", unless sweep_per_node: {fit} puts {fit} of them on a node"
    return [note]


def as_cores(facts: Partition, given: Mapping[str, object]) -> Partition:
    """Convert CPUs to cores if the job uses one hardware thread per core.

    --cpus-per-task then counts cores, and Slurm refuses a number of threads (sbatch.1, --hint).

    >>> node = Partition(cpus_per_node=80, threads_per_core=2)
    >>> as_cores(node, {"hint": "nomultithread"}).cpus_per_node, as_cores(node, {}).cpus_per_node
    (40, 80)
    """
    one_thread = given.get("hint") == "nomultithread" or given.get("threads-per-core") == "1"
    if not one_thread or facts.threads_per_core in (None, 1):
        return facts
    threads = facts.threads_per_core or 1
    node, share = facts.cpus_per_node, facts.cpus_per_gpu
    return structs.replace(
        facts,
        cpus_per_node=node and max(1, node // threads),
        cpus_per_gpu=share and max(1, share // threads),
    )


def _cpus_per_rank(
    spec: JobSpec, facts: Partition, found: Findings, ranks: int, *, whole: bool
) -> int | None:
    """Return the CPUs per rank; None for all CPUs of a node of unknown size."""
    resources = spec.resources
    gpus = resources.gpus_per_node
    if resources.cpus_per_gpu is not None:
        return resources.cpus_per_gpu
    if facts.cpus_per_gpu and gpus:
        return facts.cpus_per_gpu
    if facts.cpus_per_node and whole:
        return max(1, facts.cpus_per_node // ranks)
    if facts.cpus_per_node and facts.gpus_per_node and gpus:
        return max(1, facts.cpus_per_node // facts.gpus_per_node)
    default = f"{DEFAULT_CPUS_PER_GPU} CPUs"
    if whole:
        found.notes.append(
            f"the ranks share all CPUs of a node, with {DEFAULT_CPUS_PER_GPU} OpenMP threads each: "
            "the cluster profile does not state the number of CPUs"
        )
        return None
    if gpus:
        note = f"{default} per GPU by default: the cluster profile does not describe its nodes"
    else:
        note = f"{default} on each node by default: set resources.cpus_per_gpu to change it"
    found.notes.append(note)
    return DEFAULT_CPUS_PER_GPU


def _check_gpu_type(spec: JobSpec, gpu_type: GpuType, made: Topology, found: Findings) -> None:
    wanted = ", ".join(spec.resources.gpu_types)
    ranks = made.nodes * made.gpus_per_node
    by_name = is_mig(wanted) or is_mig(gpu_type.gres or "")
    if ranks > 1 and (by_name if gpu_type.mig is None else gpu_type.mig):
        # NCCL's user guide, Using MIG instances: they communicate over the network only.
        message = f"{ranks} ranks on slices of GPUs ({wanted}): NCCL cannot join MIG slices; "
        found.refuse("resources.gpu_type", message + "request one slice, or whole GPUs")
    only_place = gpu_type.partition if not (gpu_type.gres or gpu_type.constraint) else None
    if only_place not in (None, made.partition):
        message = (
            f"{wanted}: this type is selected by its partition, {only_place}; remove partition"
        )
        found.refuse("resources.partition", message)


def _refuse_slices_of_partition(
    spec: JobSpec, cluster: Cluster, made: Topology, found: Findings
) -> None:
    """Refuse several ranks in a partition that has only MIG slices, if the job names no type."""
    ranks = made.nodes * made.gpus_per_node
    if spec.resources.gpu_types or ranks < 2:
        return
    names = made.partition.split(",") if made.partition else list(cluster.partitions)
    if not made.partition and len(names) > 1:
        return
    for name in names:
        types = cluster.partitions[name].gpu_types if name in cluster.partitions else {}
        if types and all(_is_slice(kind, cluster.gpu_types.get(kind)) for kind in types):
            found.refuse(
                "resources.partition" if spec.resources.partition else "resources.gpus_per_node",
                f"{ranks} ranks in {name}, which has only slices of GPUs ({', '.join(types)}): "
                "NCCL cannot join MIG slices; request one, or a partition with whole GPUs",
            )


def _is_slice(name: str, gpu_type: GpuType | None) -> bool:
    if gpu_type is not None and gpu_type.mig is not None:
        return gpu_type.mig
    return is_mig(name) or (gpu_type is not None and is_mig(gpu_type.gres or ""))


# ---- Options of sbatch -------------------------------------------------------------------------


MAX_NAME = 1024  # bytes; slurmctld's _validate_job_create_req
# Mutually exclusive options (sbatch.1).
_MEMORY = {"mem", "mem-per-cpu", "mem-per-gpu"}


def build_directives(
    job: Job, tasks_per_node: int, survive: SurvivePlan, *, after: str | None
) -> list[tuple[str, str | None]]:
    """Return the options of sbatch in reading order.

    The profile's ``rename`` replaces an option by another one; the ``slurm`` maps of profile and
    job apply last, and False removes an option.
    """
    spec, cluster, run_dir = job.spec, job.cluster, job.place.run_dir
    runs = job.place.runs_per_job
    topology = structs.replace(
        job.topology,
        nodes=job.topology.nodes + survive.spare_nodes,
        gpus_per_node=job.topology.gpus_per_node * runs,
        ranks_per_node=job.topology.ranks_per_node * runs,
    )
    given = {**cluster.slurm, **spec.slurm}
    if isinstance(least := given.get("time-min"), str):
        given["time-min"] = slurm_time(least)
    if spec.resources.time and (odd := suspicious_limit(spec.resources.time, topology.nodes)):
        job.found.notes.append(f"resources.time: {odd}")
    if topology.qos and "qos" not in spec.slurm:
        given.pop("qos", None)  # the GPU type's own, which the other jobs do not use
    dropped = {option for option, value in given.items() if value is False}
    if job.place.node_range:
        # sbatch would request the tasks of the smallest node count (22.05).
        dropped.add("ntasks-per-node")
    # Without a task count Slurm starts one task per node, which gets all CPUs.
    tasks = 1 if "ntasks-per-node" in dropped else tasks_per_node
    memory = None if _MEMORY & (given.keys() - dropped) else topology.memory
    # A script that cannot resume must not start over: slurm: {requeue: true} allows it.
    restarts = {"requeue", "no-requeue"} & given.keys()
    by_slurm = {"preempted", "node_fail"} & set(survive.when)
    if by_slurm and given.get("no-requeue"):
        message = f"survive.when has {', '.join(survive.when)}: remove one of the two"
        job.found.refuse("slurm.no-requeue", message)
    log, is_odd = "logs/batch.log", re.search(r"[%\\]", run_dir)
    wanted: list[tuple[str, str | bool | None]] = [
        ("job-name", spec.name or "job"),
        ("partition", topology.partition),
        ("account", topology.account),
        ("nodes", job.place.node_range or str(topology.nodes)),
        ("no-kill", True if survive.spare_nodes else None),  # if another one fails
        ("ntasks-per-node", str(tasks)),
        ("cpus-per-task", str(topology.cpus_per_node // tasks) if topology.asks_cpus else None),
        ("gres", topology.gres),
        ("constraint", topology.constraint),
        ("qos", topology.qos),
        ("exclusive", topology.exclusive or None),
        ("mem", memory),
        ("time", spec.resources.time and slurm_time(spec.resources.time)),
        ("dependency", after),
        # Without it the job would stay pending forever if the other one fails.
        ("kill-on-invalid-dep", "yes" if after else None),
        # sbatch runs in the run directory; % and backslashes in its path are quoted for Slurm.
        ("output", f"{quote_pattern(run_dir)}/{log}" if is_odd else log),
        # The login node's resource limits must not apply: too little locked memory makes RDMA fail
        # (sbatch.1; PropagateResourceLimits=ALL is Slurm's default). Core files as in the shell.
        ("propagate", "CORE"),
        ("open-mode", "append"),  # a requeue must not truncate the log of the previous attempt
        # Slurm requeues a job after these two by itself; after others the job requests it.
        ("no-requeue", None if restarts or by_slurm else True),
        ("requeue", True if by_slurm and not restarts else None),
        # Only to the batch shell: the harness forwards it and requeues the job. A rank that has
        # just started would be killed by USR1.
        ("signal", f"B:URG@{survive.warned}" if survive.warned else None),
    ]
    kept = {
        option: None if value is True else str(value)
        for option, value in wanted
        if value is not None and option not in dropped
    }
    if cluster.rename.get("cpus-per-task") == "cpus-per-gpu":
        # Slurm 20.11 finds no node for it together with --cpus-per-gpu; srun gets the task count.
        kept.pop("ntasks-per-node", None)
    merged = _rename_option(kept, cluster, topology, job.found)
    if job.place.node_range and "gpus" in merged:
        message = f"{job.place.node_range}: cluster {cluster.name} requests the GPUs of "
        job.found.refuse(
            "resources.nodes", message + "all nodes together (--gpus): give one number of nodes"
        )
    others = [f"{name}:{count}" for name, count in spec.resources.gres.items()]
    if others:
        merged["gres"] = ",".join([*filter(None, [merged.get("gres")]), *others])
        given.pop("gres", None)  # a site without gres for GPUs may have other gres
    for option, value in given.items():
        if value is False:
            merged.pop(option, None)
        elif option == "constraint" and merged.get("constraint"):
            # The constraint of the GPU type is combined with the profile's own.
            joined = _combine_constraints(merged[option] or "", str(value))
            if joined is None:
                message = f"{value}: it cannot be combined with {merged[option]}, which the GPU "
                job.found.refuse("slurm.constraint", message + "type needs; remove gpu_type")
            merged[option] = joined
        elif option == "dependency" and after:
            # A comma means "and"; it cannot be combined with "?", Slurm's "or".
            if "?" in str(value):
                message = (
                    f"{value}: it cannot be combined with --after, because ? and , must "
                    "not be mixed"
                )
                job.found.refuse("slurm.dependency", message)
            merged[option] = f"{(merged[option] or '').partition('?')[0]},{value}"
        else:
            merged[option] = None if value is True else str(value)
    either = merged.get("constraint") if "|" in (topology.constraint or "") else None
    if either and len(spec.resources.gpu_types) > 1 and topology.nodes > 1:
        # Brackets mean that all nodes have the same feature (sbatch.1, --constraint); with another
        # constraint, Slurm ignores them (seen on 22.05).
        if either == topology.constraint:
            merged["constraint"] = f"[{either}]"
        else:
            job.found.notes.append(f"constraint {either}: the nodes may differ in their GPUs")
    return list(merged.items())


def _combine_constraints(first: str, second: str) -> str | None:
    """Combine two constraints so that nodes satisfy both; None if Slurm cannot express that.

    Alternatives get parentheses; counts and alternatives in brackets cannot be combined (sbatch.1,
    --constraint).

    >>> both = _combine_constraints
    >>> both("a100", "gpu"), both("hbm80g", "rome|milan"), both("gpu", "gpu&hbm80g")
    ('a100&gpu', 'hbm80g&(rome|milan)', 'gpu&hbm80g')
    >>> _combine_constraints("a100", "[rack1|rack2]")
    """
    if re.search(r"[\[\]*]", first + second):
        return None
    parts = [
        f"({part})" if "|" in part else part
        for text in (first, second)
        for part in _split_constraint(text)
    ]
    return "&".join(dict.fromkeys(parts))


def _split_constraint(text: str) -> list[str]:
    return [text] if re.search(r"[|()]", text) else text.split("&")


def _rename_option(
    options: Mapping[str, str | None], cluster: Cluster, shape: Topology, found: Findings
) -> dict[str, str | None]:
    renamed: dict[str, str | None] = {}
    for option, value in options.items():
        name = cluster.rename.get(option, option)
        if name == "cpus-per-gpu" and shape.exclusive:
            continue  # --exclusive allocates all GPUs and all CPUs of a node
        if name != option and value is not None:
            try:
                value = CONVERSIONS[option, name](value, shape)
            except ValueError as error:
                message = f"{error}; slurm: {{{option}: false}} leaves it out"
                where = f"cluster {cluster.name}"
                found.problems.append(Problem(f"rename.{option}", message, where))
        renamed[name] = value
    return renamed


def _total_gres(gres: str, shape: Topology) -> str:
    kind = gres.removeprefix("gpu:").rpartition(":")[0]
    return f"{kind}:{shape.nodes * shape.gpus_per_node}".removeprefix(":")


def _memory_per_cpu(memory: str, shape: Topology) -> str:
    if memory == "0":
        raise ValueError("all of a node's memory cannot be requested per CPU: set memory_per_node")
    return f"{parse_memory_mb(memory) // shape.cpus_per_node}M"


def _memory_per_gpu(memory: str, shape: Topology) -> str:
    if memory == "0" or shape.exclusive:  # --exclusive allocates more GPUs than the job requests
        raise ValueError("the memory of whole nodes cannot be requested per GPU")
    if not shape.gpus_per_node:
        raise ValueError("the job has no GPUs to share its memory")
    return f"{parse_memory_mb(memory) // shape.gpus_per_node}M"


def _cpus_per_gpu(_: str, shape: Topology) -> str:
    if not shape.gpus_per_node:
        raise ValueError("the job has no GPUs to share its CPUs")
    return str(shape.cpus_per_node // shape.gpus_per_node)


# The pairs of spec.rules.RENAMES: convert an option's value to the other option's grammar.
CONVERSIONS: dict[tuple[str, str], Callable[[str, Topology], str]] = {
    ("gres", "gpus-per-node"): lambda value, _: value.removeprefix("gpu:"),
    ("gres", "gpus"): _total_gres,
    ("mem", "mem-per-cpu"): _memory_per_cpu,
    ("mem", "mem-per-gpu"): _memory_per_gpu,
    ("cpus-per-task", "cpus-per-gpu"): _cpus_per_gpu,
    ("ntasks-per-node", "ntasks"): lambda value, shape: str(int(value) * shape.nodes),
    ("constraint", "prefer"): lambda value, _: value,
}


def check_slurm_values(plan: Plan) -> None:
    """Refuse values that Slurm cannot transport, naming the field. Raises InputError."""
    fields = {"job-name": "name", "output": "runs_dir"}
    for option, value in plan.directives:
        field = fields.get(option, f"slurm.{option}")
        # A directive is one line; U+001E and U+001F separate rows and fields in squeue's output.
        if value is not None and re.search(r"[\0\n\r\x1e\x1f]", value):
            raise InputError(
                f"{field}: {value!r}: Slurm's options and listings cannot carry a newline or "
                "the separators U+001E and U+001F"
                + (" beside % or \\" if field == "runs_dir" else ""),
                fix="take it out",
            )
        if option == "job-name" and value is not None and len(value.encode()) > MAX_NAME:
            raise InputError(
                f"name: {len(value.encode())} bytes long; Slurm accepts at most {MAX_NAME}",
                fix="shorten it",
            )
