"""What a site's Slurm says of itself, made into the partitions and GPU types of a profile."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct, field, structs

from hpcrun.plan.access import Access, why_not
from hpcrun.plan.gpus import architecture, is_mig, model
from hpcrun.plan.site_limits import tightest_for_sure
from hpcrun.slurm.config import SlurmConfig
from hpcrun.slurm.gres import node_gpus
from hpcrun.slurm.nodes import NodeLimits
from hpcrun.slurm.partitions import PartitionRow
from hpcrun.slurm.sacctmgr import Association, Qos
from hpcrun.slurm.sinfo import NodeRow
from hpcrun.spec.cluster import GpuType, Partition

# Partitions that are for something else than the usual job, by a word of their name.
_UNUSUAL = re.compile(
    r"debug|test|devel|interact|short|express|quick|preempt|scaveng|spot|low|free|backfill|jupyter"
    r"|viz|visual|gui|login|transfer|admin|maint",
    re.IGNORECASE,
)


class Answers(Struct, frozen=True, kw_only=True):
    """Everything that was asked of Slurm. ``associations`` and ``qos`` None: nobody could say.

    ``limits`` has one node of each kind, by its name; ``groups`` are the user's Unix groups.
    """

    config: SlurmConfig
    nodes: list[NodeRow]
    partitions: list[PartitionRow]
    limits: dict[str, NodeLimits] = field(default_factory=dict)
    associations: list[Association] | None = None
    qos: list[Qos] | None = None
    groups: list[str] = field(default_factory=list)
    is_root: bool = False


class Site(Struct, frozen=True, kw_only=True):
    """A cluster as a profile tells it.

    ``left_out``: partitions that the user cannot use, and why. ``notes``: words on partitions,
    for people. ``partition``: where a training job belongs, as far as can be told.
    """

    partitions: dict[str, Partition]
    gpu_types: dict[str, GpuType]
    left_out: dict[str, str]
    notes: dict[str, list[str]]
    partition: str | None = None
    accounts: list[str] = field(default_factory=list)
    account: str | None = None
    qos: list[str] = field(default_factory=list)


class _Kind(Struct, frozen=True):
    """Nodes that are alike: how many, the GPUs by type, and what jobs can have of them."""

    nodes: int
    gpus: dict[str, int]
    cpus: int
    memory: int
    features: list[str]

    @property
    def count(self) -> int:
        return sum(self.gpus.values())


def build_site(
    answers: Answers, known: Mapping[str, GpuType] | None = None, keep: Collection[str] = ()
) -> Site:
    """Make the site.

    GPU types keep the names that they have in ``known``; partitions to ``keep`` are the user's own
    choice, whatever their access looks like.
    """
    access = Access(
        config=answers.config,
        associations=answers.associations,
        groups=answers.groups,
        is_root=answers.is_root,
    )
    rows: dict[str, PartitionRow] = {}
    left_out: dict[str, str] = {}
    kinds = {row.name: _kinds(row, answers) for row in answers.partitions}
    for row in answers.partitions:
        reason = "" if row.name in keep else why_not(row, access)
        if not reason and not kinds[row.name]:
            reason = "it has no nodes"
        if reason:
            left_out[row.name] = reason
        else:
            rows[row.name] = row
    usable = {name: kinds[name] for name in rows}
    gpu_types = _gpu_types(usable, known or {})
    partitions = {
        name: _partition(row, usable[name], gpu_types, answers) for name, row in rows.items()
    }
    notes = {name: _notes(row, usable[name], answers) for name, row in rows.items()}
    accounts, account = _accounts(answers)
    return Site(
        partitions=partitions,
        gpu_types=gpu_types,
        left_out=left_out,
        notes={name: said for name, said in notes.items() if said},
        partition=_usual(list(rows.values()), partitions, usable),
        accounts=accounts,
        account=account,
        qos=sorted({name for one in answers.associations or [] for name in one.qos}),
    )


# ---- nodes -------------------------------------------------------------------------------------


def first_host(node_list: str) -> str:
    """Give one host of a node list, without expanding it.

    >>> first_host("gpu[01-04,07],x"), first_host("r[1-2]n[08-10]"), first_host("n1,n2")
    ('gpu01', 'r1n08', 'n1')
    """
    name = re.match(r"(?:[^,\[\]]|\[[^\]]*\])*", node_list)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", name[0] if name else "")


def _kinds(row: PartitionRow, answers: Answers) -> list[_Kind]:
    found: list[_Kind] = []
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
        gpus = node_gpus(node.gres)
        kind = _Kind(node.nodes, gpus, cpus, memory, sorted(node.features))
        for index, other in enumerate(found):
            if structs.replace(other, nodes=kind.nodes) == kind:
                found[index] = structs.replace(other, nodes=other.nodes + kind.nodes)
                break
        else:
            found.append(kind)
    return found


# ---- GPU types ---------------------------------------------------------------------------------


def _gpu_types(
    kinds: Mapping[str, list[_Kind]], known: Mapping[str, GpuType]
) -> dict[str, GpuType]:
    """Tell how this site spells each type: by gres, else by a feature, else by a partition."""
    typed = {kind for nodes in kinds.values() for one in nodes for kind in one.gpus if kind}
    found = [GpuType(gres=kind) for kind in sorted(typed)]
    plain = {name: [k for k in nodes if "" in k.gpus] for name, nodes in kinds.items()}
    features = {
        feature
        for nodes in plain.values()
        for one in nodes
        for feature in one.features
        if architecture(feature)
    }
    found += [GpuType(constraint=feature) for feature in sorted(features)]
    for name, nodes in sorted(plain.items()):
        if nodes and architecture(name) and not any(_type_feature(one) for one in nodes):
            found.append(GpuType(partition=name))
    return _named(found, known)


def _type_feature(kind: _Kind) -> str | None:
    """The feature that names a node's GPUs, where exactly one does."""
    named = [feature for feature in kind.features if architecture(feature)]
    return named[0] if len({model(name) for name in named}) == 1 else None


def _site_name(gpu_type: GpuType) -> str:
    return gpu_type.gres or gpu_type.constraint or gpu_type.partition or ""


def _named(found: Sequence[GpuType], known: Mapping[str, GpuType]) -> dict[str, GpuType]:
    """Name the types: as the profile does, else short (a100) where that is unmistakable."""
    names = {_site_name(said): name for name, said in known.items() if name != "*"}
    short = [_short(one) for one in found]
    made: dict[str, GpuType] = {}
    for one, name in zip(found, short, strict=True):
        own = _site_name(one)
        plain = name if short.count(name) == 1 and name not in known else own
        made.setdefault(names.get(own, plain), one)
    return made


def _short(gpu_type: GpuType) -> str:
    own = _site_name(gpu_type)
    return own if is_mig(own) else model(own) or own


# ---- one partition -----------------------------------------------------------------------------


def _partition(
    row: PartitionRow, kinds: list[_Kind], types: Mapping[str, GpuType], answers: Answers
) -> Partition:
    limits = tightest_for_sure(row, answers.config, answers.associations, answers.qos)
    if limits.max_gpus == 0:
        kinds = [structs.replace(kind, gpus={}) for kind in kinds]
    gpus = max(kind.count for kind in kinds)
    with_gpus = [kind for kind in kinds if kind.count]
    cpus = max(kind.cpus for kind in kinds)
    memory = max(kind.memory for kind in kinds)
    cpu_share = min((kind.cpus // kind.count for kind in with_gpus), default=0)
    memory_share = min((kind.memory // kind.count for kind in with_gpus), default=0)
    nodes = sum(kind.nodes for kind in kinds)
    return Partition(
        nodes=nodes,
        gpus_per_node=gpus,
        gpu_types=_types_of(row.name, kinds, types),
        cpus_per_node=max(cpus, 1),
        memory_per_node=memory_text(memory) if memory > 1 else None,
        cpus_per_gpu=max(cpu_share, 1) if gpus and cpu_share != cpus // gpus else None,
        memory_per_gpu=memory_text(memory_share)
        if gpus and 1 < memory_share != memory // gpus
        else None,
        max_time=limits.max_time,
        default_time=row.default_time,
        min_nodes=row.min_nodes if row.min_nodes > 1 else None,
        max_nodes=row.max_nodes if row.max_nodes and row.max_nodes < nodes else None,
        max_gpus=limits.max_gpus if gpus else None,
        exclusive=row.exclusive or answers.config.whole_nodes,
    )


def _types_of(partition: str, kinds: list[_Kind], types: Mapping[str, GpuType]) -> dict[str, int]:
    """The most GPUs of each type on one node, by the profile's names."""
    names = {_site_name(said): name for name, said in types.items()}
    found: dict[str, int] = {}
    for kind in kinds:
        for own, count in kind.gpus.items():
            name = names.get(own or _type_feature(kind) or partition)
            if name:
                found[name] = max(found.get(name, 0), count)
    return dict(sorted(found.items()))


def memory_text(megabytes: int) -> str:
    """Write memory as Slurm takes it.

    >>> memory_text(512000), memory_text(515000), memory_text(4194304)
    ('500G', '515000M', '4096G')
    """
    return f"{megabytes // 1024}G" if megabytes % 1024 == 0 else f"{megabytes}M"


def _notes(row: PartitionRow, kinds: list[_Kind], answers: Answers) -> list[str]:
    notes = []
    shapes = {(tuple(sorted(kind.gpus.items())), kind.cpus, kind.memory) for kind in kinds}
    if len(shapes) > 1:
        notes.append("its nodes differ; the numbers of a node are those of the largest")
    if row.state not in ("", "UP"):
        notes.append(f"its state is {row.state}")
    mine = [node for node in answers.nodes if node.partition == row.name and node.nodes]
    away = sum(node.nodes for node in mine if node.is_away)
    if away:
        total = sum(node.nodes for node in mine)
        notes.append(f"{away} of {total} nodes are down or drained")
    limits = tightest_for_sure(row, answers.config, answers.associations, answers.qos)
    if limits.max_gpus == 0 and any(kind.count for kind in kinds):
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


def _usual(
    rows: Sequence[PartitionRow],
    partitions: Mapping[str, Partition],
    kinds: Mapping[str, list[_Kind]],
) -> str | None:
    """The partition of jobs that name none: with GPUs, up, and the site's default if it can be.

    Else one whose nodes are alike and where a job of one node may run; of those the largest.
    """

    def rank(row: PartitionRow) -> tuple[bool | int, ...]:
        gpus = sum(kind.nodes * kind.count for kind in kinds[row.name])
        mine = (partitions[row.name].gpus_per_node or 0) > 0
        open_ = row.state in ("", "UP") and not row.needs_reservation
        usual = not _UNUSUAL.search(row.name)
        alike = len({kind.count for kind in kinds[row.name]}) == 1
        return mine, open_, row.is_default, usual, alike, row.min_nodes < 2, gpus

    best = max(rows, key=rank, default=None)
    return best.name if best is not None and best.name in partitions else None


def _accounts(answers: Answers) -> tuple[list[str], str | None]:
    """The user's accounts, and which is charged where a job names none."""
    listed = answers.associations or []
    names = list(dict.fromkeys(one.account for one in listed))
    default = next((one.default_account for one in listed if one.default_account in names), None)
    return names, default or (names[0] if names else None)
