"""Partitions and GPU types of a profile, derived from a site's Slurm configuration."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct, structs

from hpcrun.plan.gpus import architecture, is_mig, model
from hpcrun.plan.times import parse_seconds
from hpcrun.slurm import (
    Association,
    NodeLimits,
    NodeRow,
    PartitionRow,
    Qos,
    SlurmConfig,
    count_node_gpus,
    parse_version,
)
from hpcrun.spec import GpuType, Partition

# Words in names of partitions that are not meant for ordinary jobs.
_UNUSUAL = re.compile(
    r"debug|test|devel|interact|short|express|quick|preempt|scaveng|spot|low|free|backfill|jupyter"
    r"|viz|visual|gui|login|transfer|admin|maint",
    re.IGNORECASE,
)


class SlurmOutputs(Struct, frozen=True, kw_only=True):
    """Responses of Slurm's commands.

    ``associations`` and ``qos`` are None if the accounting did not respond. ``limits`` has one node
    of each kind, by its name; ``groups`` are the user's Unix groups.
    """

    config: SlurmConfig
    nodes: list[NodeRow]
    partitions: list[PartitionRow]
    limits: dict[str, NodeLimits] = {}
    associations: list[Association] | None = None
    qos: list[Qos] | None = None
    groups: list[str] = []
    is_root: bool = False


class Site(Struct, frozen=True, kw_only=True):
    """A cluster as a profile describes it.

    Attributes:
        left_out: Partitions that the user cannot use, and the reasons.
        notes: Comments on partitions.
        partition: The likely partition for a training job.
        named_gpus: Partitions whose names mention GPUs although Slurm counts none on any node.
    """

    partitions: dict[str, Partition]
    gpu_types: dict[str, GpuType]
    left_out: dict[str, str]
    notes: dict[str, list[str]]
    partition: str | None = None
    accounts: list[str] = []
    account: str | None = None
    qos: list[str] = []
    named_gpus: list[str] = []


class _NodeKind(Struct, frozen=True):
    """Identical nodes: their number, GPUs by type, and resources available to jobs."""

    nodes: int
    gpus: dict[str, int]
    cpus: int
    threads: int
    memory: int
    features: list[str]

    @property
    def count(self) -> int:
        return sum(self.gpus.values())


def build_site(
    answers: SlurmOutputs, known: Mapping[str, GpuType] | None = None, keep: Collection[str] = ()
) -> Site:
    """Build the site.

    Args:
        known: GPU types of the existing profile, whose names are kept.
        keep: Partitions to include even if the user seems to have no access.
    """
    rows: dict[str, PartitionRow] = {}
    left_out: dict[str, str] = {}
    kinds = {row.name: _group_nodes(row, answers) for row in answers.partitions}
    for row in answers.partitions:
        reason = "" if row.name in keep else _explain_no_access(row, answers)
        if not reason and not kinds[row.name]:
            reason = "it has no nodes"
        if reason:
            left_out[row.name] = reason
        else:
            rows[row.name] = row
    usable = {name: kinds[name] for name in rows}
    gpu_types = _find_gpu_types(usable, known or {})
    partitions = {
        name: _build_partition(row, usable[name], gpu_types, answers) for name, row in rows.items()
    }
    notes = {name: _partition_notes(row, usable[name], answers) for name, row in rows.items()}
    counts = any(kind.count for nodes in kinds.values() for kind in nodes)
    named_gpus = [name for name in rows if not counts and _mentions_gpus(name)]
    for name in named_gpus:
        notes[name].append(
            "CHECK: its name suggests GPUs, but Slurm reports none: set gpus_per_node"
        )
    listed = answers.associations or []
    accounts = list(dict.fromkeys(one.account for one in listed))
    charged = [one.default_account for one in listed if one.default_account in accounts]
    return Site(
        partitions=partitions,
        gpu_types=gpu_types,
        left_out=left_out,
        notes={name: lines for name, lines in notes.items() if lines},
        partition=_choose_default_partition(list(rows.values()), partitions, usable, named_gpus),
        accounts=accounts,
        account=next(iter([*charged, *accounts]), None),
        qos=sorted({name for one in answers.associations or [] for name in one.qos}),
        named_gpus=named_gpus,
    )


# ---- nodes -------------------------------------------------------------------------------------


def first_host(node_list: str) -> str:
    """Return one host of a node list, without expanding it.

    >>> first_host("gpu[01-04,07],x"), first_host("r[1-2]n[08-10]"), first_host("n1,n2")
    ('gpu01', 'r1n08', 'n1')
    """
    name = re.match(r"(?:[^,\[\]]|\[[^\]]*\])*", node_list)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", name[0] if name else "")


def _group_nodes(row: PartitionRow, answers: SlurmOutputs) -> list[_NodeKind]:
    found: list[_NodeKind] = []
    for node in answers.nodes:
        if node.partition != row.name or node.nodes < 1:
            continue
        limits = answers.limits.get(first_host(node.node_list))
        cpus = min(node.cpus, limits.cpus) if limits else node.cpus
        memory = min(node.memory, limits.memory) if limits else node.memory
        cpus = min(cpus, row.max_cpus_per_node or cpus)
        if row.max_memory_per_node:
            memory = min(memory, row.max_memory_per_node)
        if row.max_memory_per_cpu:
            memory = min(memory, row.max_memory_per_cpu * cpus)
        gpus = count_node_gpus(node.gres)
        threads = limits.threads if limits else 1
        kind = _NodeKind(node.nodes, gpus, cpus, threads, memory, sorted(node.features))
        for index, other in enumerate(found):
            if structs.replace(other, nodes=kind.nodes) == kind:
                found[index] = structs.replace(other, nodes=other.nodes + kind.nodes)
                break
        else:
            found.append(kind)
    return found


# ---- GPU types ---------------------------------------------------------------------------------


def _find_gpu_types(
    kinds: Mapping[str, list[_NodeKind]], known: Mapping[str, GpuType]
) -> dict[str, GpuType]:
    """Find the site's name for each type: a gres type, else a feature, else a partition."""
    typed = {kind for nodes in kinds.values() for one in nodes for kind in one.gpus if kind}
    found = [GpuType(gres=kind) for kind in sorted(typed)]
    plain = {name: [k for k in nodes if "" in k.gpus] for name, nodes in kinds.items()}
    features = {
        feature for nodes in plain.values() for one in nodes for feature in _type_features(one)
    }
    found += [GpuType(constraint=feature) for feature in sorted(features)]
    for name, nodes in sorted(plain.items()):
        if nodes and architecture(name) and not any(map(_type_features, nodes)):
            found.append(GpuType(partition=name))
    return _assign_names(found, known)


def _type_features(kind: _NodeKind) -> list[str]:
    """Return the features that name a node's GPUs, such as v100 and v100-32g, if all mean one."""
    named = [feature for feature in kind.features if architecture(feature)]
    return named if len({model(name) for name in named}) == 1 else []


def _site_name(gpu_type: GpuType) -> str:
    return gpu_type.gres or gpu_type.constraint or gpu_type.partition or ""


def _assign_names(found: Sequence[GpuType], known: Mapping[str, GpuType]) -> dict[str, GpuType]:
    """Name the types as the profile does, else by the model (a100) if that is unique."""
    names = {_site_name(one): name for name, one in known.items() if name != "*"}
    own = [_site_name(one) for one in found]
    short = [name if is_mig(name) else model(name) or name for name in own]
    made: dict[str, GpuType] = {}
    for one, name, plain in zip(found, own, short, strict=True):
        is_free = short.count(plain) == 1 and plain not in known
        made.setdefault(names.get(name, plain if is_free else name), one)
    return made


def _mentions_gpus(partition: str) -> bool:
    """Return True if a partition's name suggests that its nodes have GPUs.

    >>> [_mentions_gpus(name) for name in ("gpu-a100-dev", "gh", "h100", "rtx-dev", "normal", "vm")]
    [True, True, True, True, False, False]
    """
    words = re.findall(r"[a-z]+", partition.lower())
    return architecture(partition) is not None or not {"gpu", "gpus", "rtx", "gh"}.isdisjoint(words)


# ---- one partition -----------------------------------------------------------------------------


def _build_partition(
    row: PartitionRow, kinds: list[_NodeKind], types: Mapping[str, GpuType], answers: SlurmOutputs
) -> Partition:
    max_time, max_gpus = _find_certain_limits(row, answers)
    if max_gpus == 0:
        kinds = [structs.replace(kind, gpus={}) for kind in kinds]
    gpus = max(kind.count for kind in kinds)
    with_gpus = [kind for kind in kinds if kind.count]
    cpus = max(kind.cpus for kind in kinds)
    memory = max(kind.memory for kind in kinds)
    cpu_share = min((kind.cpus // kind.count for kind in with_gpus), default=0)
    memory_share = min((kind.memory // kind.count for kind in with_gpus), default=0)
    nodes = sum(kind.nodes for kind in kinds)
    threads = {kind.threads for kind in kinds}
    return Partition(
        nodes=nodes,
        gpus_per_node=gpus,
        gpu_types=_count_gpus_by_type(row.name, kinds, types),
        cpus_per_node=max(cpus, 1),
        threads_per_core=threads.pop() if len(threads) == 1 and threads != {1} else None,
        memory_per_node=format_memory(memory) if memory > 1 else None,
        cpus_per_gpu=max(cpu_share, 1) if gpus and cpu_share != cpus // gpus else None,
        memory_per_gpu=format_memory(memory_share)
        if gpus and 1 < memory_share != memory // gpus
        else None,
        max_time=max_time,
        default_time=row.default_time,
        min_nodes=row.min_nodes if row.min_nodes > 1 else None,
        max_nodes=row.max_nodes if row.max_nodes and row.max_nodes < nodes else None,
        max_gpus=max_gpus if gpus else None,
        qos=_choose_qos(row, answers),
        exclusive=row.exclusive or answers.config.whole_nodes,
    )


def _choose_qos(row: PartitionRow, answers: SlurmOutputs) -> str | None:
    """Choose the QOS for a partition that refuses the user's default one; None if none is needed.

    The first QOS of AllowQos that one of the user's associations has is chosen.
    """

    def is_allowed(name: str) -> bool:
        return (not row.allow_qos or name in row.allow_qos) and name not in row.deny_qos

    mine = [one for one in answers.associations or [] if one.partition in ("", row.name)]
    # Slurm's default is "normal" unless an association has its own (slurmdbd creates it).
    if any(is_allowed(one.default_qos or "normal") for one in mine) or (
        not mine and is_allowed("normal")
    ):
        return None
    own = {name for one in mine for name in one.qos}
    usable = [name for name in row.allow_qos or sorted(own) if is_allowed(name)]
    known = [name for name in usable if name in own]
    if known:
        return known[0]
    return usable[0] if len(usable) == 1 and not own else None


def _count_gpus_by_type(
    partition: str, kinds: list[_NodeKind], types: Mapping[str, GpuType]
) -> dict[str, int]:
    """Return the largest number of GPUs of each type on one node, by the profile's names."""
    names = {_site_name(one): name for name, one in types.items()}
    found: dict[str, int] = {}
    for kind in kinds:
        for own, count in kind.gpus.items():
            for word in [own] if own else _type_features(kind) or [partition]:
                if name := names.get(word):
                    found[name] = max(found.get(name, 0), count)
    return dict(sorted(found.items()))


def format_memory(megabytes: int) -> str:
    """Format memory as Slurm accepts it.

    >>> format_memory(512000), format_memory(515000), format_memory(4194304)
    ('500G', '515000M', '4096G')
    """
    return f"{megabytes // 1024}G" if megabytes % 1024 == 0 else f"{megabytes}M"


def _partition_notes(row: PartitionRow, kinds: list[_NodeKind], answers: SlurmOutputs) -> list[str]:
    notes = []
    shapes = {(tuple(sorted(kind.gpus.items())), kind.cpus, kind.memory) for kind in kinds}
    if len(shapes) > 1:
        notes.append("its nodes differ; the figures are those of the largest")
    if row.state not in ("", "UP"):
        notes.append(f"its state is {row.state}")
    mine = [node for node in answers.nodes if node.partition == row.name and node.nodes]
    away = sum(node.nodes for node in mine if node.is_away)
    if away:
        total = sum(node.nodes for node in mine)
        notes.append(f"{away} of {total} nodes are down or drained")
    if _find_certain_limits(row, answers)[1] == 0 and any(kind.count for kind in kinds):
        notes.append("your QOS and accounts give you none of its GPUs")
    if row.needs_reservation:
        notes.append("jobs need a reservation there (slurm: {reservation: NAME})")
    if row.qos:
        notes.append(f"it has a QOS of its own, {row.qos}")
    if row.allow_accounts:
        notes.append(f"for accounts {', '.join(row.allow_accounts[:8])}")
    if row.allow_qos:
        notes.append(f"for QOS {', '.join(row.allow_qos[:8])}")
    return notes


# ---- defaults ----------------------------------------------------------------------------------


def _choose_default_partition(
    rows: Sequence[PartitionRow],
    partitions: Mapping[str, Partition],
    kinds: Mapping[str, list[_NodeKind]],
    named_gpus: Collection[str],
) -> str | None:
    """Choose the partition for jobs that name none: up, with whole GPUs, for ordinary jobs.

    The site's default is preferred unless it is a short one for tests; then partitions with
    identical nodes that accept one-node jobs; then the largest.
    """

    def rank(row: PartitionRow) -> tuple[bool | int, ...]:
        gpus = sum(kind.nodes * kind.count for kind in kinds[row.name])
        mine = (partitions[row.name].gpus_per_node or 0) > 0 or row.name in named_gpus
        whole = any(not is_mig(each) for kind in kinds[row.name] for each in kind.gpus)
        open_ = row.state in ("", "UP") and not row.needs_reservation
        usual = not _UNUSUAL.search(row.name)
        alike = len({kind.count for kind in kinds[row.name]}) == 1
        return mine, open_, whole, usual, row.is_default, alike, row.min_nodes < 2, gpus

    best = max(rows, key=rank, default=None)
    return best.name if best is not None and best.name in partitions else None


# ---- Access to partitions ----------------------------------------------------------------------


def _explain_no_access(row: PartitionRow, answers: SlurmOutputs) -> str:
    """Explain why the user cannot use a partition; "" if they can.

    Uncertain access counts as access: a superfluous partition costs a refusal, a missing one is
    never noticed.
    """
    if row.is_hidden and not answers.is_root:
        return "the site hides it"
    if row.root_only and not answers.is_root:
        return "it is for root only"
    if row.allow_groups and not answers.is_root and not set(row.allow_groups) & set(answers.groups):
        return f"it is for the Unix groups {_join_names(row.allow_groups)}"
    # An empty list proves nothing: sacctmgr may hide associations (PrivateData).
    if not answers.associations or "associations" not in answers.config.enforced:
        return ""
    mine = [one for one in answers.associations if one.partition in ("", row.name)]
    if not mine:
        return "none of your accounts is for it"
    accounts = {one.account for one in mine}
    # Since 23.11 child accounts of AllowAccounts may use it too.
    version = parse_version(answers.config.version) or (23, 11)
    if row.allow_accounts and not accounts & set(row.allow_accounts) and version < (23, 11):
        return f"it is for the accounts {_join_names(row.allow_accounts)}"
    if accounts and accounts <= set(row.deny_accounts):
        return f"it is closed to your accounts {_join_names(sorted(accounts))}"
    qos = {name for one in mine for name in one.qos}
    if qos and "qos" in answers.config.enforced:
        if row.allow_qos and not qos & set(row.allow_qos):
            return f"it is for the QOS {_join_names(row.allow_qos)}"
        if qos <= set(row.deny_qos):
            return f"it is closed to your QOS {_join_names(sorted(qos))}"
    return ""


def _join_names(names: list[str]) -> str:
    return ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")


# ---- Limits for every account and QOS ----------------------------------------------------------


def _find_certain_limits(row: PartitionRow, answers: SlurmOutputs) -> tuple[str | None, int | None]:
    """Find the time limit and the most GPUs for every account and QOS that the user can choose.

    A limit of the partition's QOS precedes one of the job's QOS, which precedes one of the
    association; a QOS with OverPartQOS comes first (resource_limits.html, Hierarchy). The
    partition's own MaxTime holds unless a QOS lifts it (PartitionTimeLimit). The loosest of all
    choices is returned; limits that are not enforced are ignored; None means no certain limit.
    """
    choices = list(_iterate_limits(row, answers)) if "limits" in answers.config.enforced else []
    if not choices:
        return row.max_time, None
    gpus = [limit for _, limit in choices if limit is not None]
    return (
        max((time for time, _ in choices), key=_seconds),
        max(gpus) if len(gpus) == len(choices) else None,
    )


def _iterate_limits(
    row: PartitionRow, answers: SlurmOutputs
) -> Iterator[tuple[str | None, int | None]]:
    """Yield time limit and GPUs of each account with each of its QOS."""
    qos = {one.name: one for one in answers.qos or []}
    of_partition = qos.get(row.qos)
    for one in answers.associations or []:
        if one.partition not in ("", row.name):
            continue
        allowed = [name for name in one.qos if not row.allow_qos or name in row.allow_qos]
        names = [name for name in allowed if name not in row.deny_qos]
        if "qos" not in answers.config.enforced:
            names = []
        for name in names or [""]:
            of_job = qos.get(name)
            flags = of_job.flags if of_job is not None else []
            order = [of_job, of_partition] if "overpartqos" in flags else [of_partition, of_job]
            limits = [each for each in (*order, one) if each is not None]
            time = next((each.max_time for each in limits if each.max_time is not None), None)
            gpus = next((each.max_gpus for each in limits if each.max_gpus is not None), None)
            lifts = "partitiontimelimit" in flags
            yield min(time, None if lifts else row.max_time, key=_seconds), gpus


def _seconds(time: str | None) -> float:
    return float("inf") if time is None else parse_seconds(time)
