"""Brings what was read from the cluster up to date in a profile's text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs, to_builtins

from hpcrun.errors import InputError, SpecError
from hpcrun.plan.topology import parse_memory_mb, parse_seconds
from hpcrun.spec.cluster import Cluster, GpuType, Partition
from hpcrun.spec.load import load_cluster
from hpcrun.spec.yaml_edit import CannotEdit, comment_out, drop, put

# Facts of the whole cluster that are read from it; read_on is their date.
READ_KEYS = ("slurm_version", "max_array_size")


class Change(Struct, frozen=True, kw_only=True):
    """One thing that is other than the profile says.

    ``what``: added, gone or changed. ``key`` is the path in the profile; a new or lost partition
    or GPU type is one change. ``before`` and ``after`` are as in the file; None: not there.
    """

    what: str
    key: str
    before: str | None = None
    after: str | None = None


class Facts(Struct, frozen=True, kw_only=True):
    """What was read now; ``sure``: the accounting answered too."""

    read_on: str
    values: dict[str, Any]
    partitions: dict[str, Partition]
    gpu_types: dict[str, GpuType]
    sure: bool = True


def changes(cluster: Cluster, facts: Facts) -> list[Change]:
    """List what is other than the profile says; what is not read any more is not told."""
    found = []
    for key in READ_KEYS:
        before, after = getattr(cluster, key), facts.values.get(key)
        if after is not None and before != after:
            found.append(_change(key, before, after))
    for name in sorted({*cluster.partitions, *facts.partitions}):
        key = f"partitions.{name}"
        now = facts.partitions.get(name)
        before = cluster.partitions.get(name)
        if now is None or before is None:
            what = "gone" if now is None else "added"
            found.append(Change(what=what, key=key, after=_shown(given(now)) if now else None))
            continue
        old, new = given(before), given(_merged(before, now, facts))
        found += [
            _change(f"{key}.{field}", old.get(field), new.get(field))
            for field in Partition.__struct_fields__
            if old.get(field) != new.get(field)
        ]
    for name, said in facts.gpu_types.items():
        if _is_new(name, said, cluster):
            found.append(Change(what="added", key=f"gpu_types.{name}", after=_shown(given(said))))
    return found


def update(text: str, source: str, cluster: Cluster, facts: Facts) -> str:
    """Write what was read into the profile's text; comments and all other keys stay as they are.

    Raises InputError where the text is written so that this cannot be done.
    """
    try:
        edited = _edit(text, cluster, facts)
        after = load_cluster(edited, source=source)
    except (CannotEdit, SpecError) as error:
        raise _cannot(source) from error
    if after != _expected(cluster, facts):
        raise _cannot(source)
    return edited


def _edit(text: str, cluster: Cluster, facts: Facts) -> str:
    for key in ("read_on", *READ_KEYS):
        value = facts.read_on if key == "read_on" else facts.values.get(key)
        if value is not None and getattr(cluster, key) != value:
            text = put(text, [key], value)
    gone = [name for name in cluster.partitions if name not in facts.partitions]
    for name, now in facts.partitions.items():
        if name not in cluster.partitions:
            text = put(text, ["partitions", name], given(now))
            continue
        before = cluster.partitions[name]
        text = _edit_partition(text, name, before, _merged(before, now, facts))
    if gone and not facts.partitions:
        raise CannotEdit("no partition is left")
    for name in gone:
        text = comment_out(text, ["partitions", name], f"gone from the cluster on {facts.read_on}:")
    for name, said in facts.gpu_types.items():
        if _is_new(name, said, cluster):
            text = put(text, ["gpu_types", name], given(said))
    return text


def _edit_partition(text: str, name: str, before: Partition, after: Partition) -> str:
    old, new = given(before), given(after)
    path = ["partitions", name]
    if old and not new:
        return put(text, path, {})
    for field, value in new.items():
        if old.get(field) != value:
            text = put(text, [*path, field], value)
    for field in old:
        if field not in new:
            text = drop(text, [*path, field])
    return text


def _merged(before: Partition, now: Partition, facts: Facts) -> Partition:
    """What the profile should say: as read, less what only a silent accounting knows.

    Spelled as it is, where that means the same.
    """
    keep: dict[str, Any] = {} if facts.sure else {"max_gpus": before.max_gpus}
    for field, parse in (
        ("memory_per_node", parse_memory_mb),
        ("memory_per_gpu", parse_memory_mb),
        ("max_time", parse_seconds),
        ("default_time", parse_seconds),
    ):
        old, new = getattr(before, field), getattr(now, field)
        if old is not None and new is not None and parse(old) == parse(new):
            keep[field] = old
    return structs.replace(now, **keep)


def _expected(cluster: Cluster, facts: Facts) -> Cluster:
    partitions = {
        name: _merged(cluster.partitions[name], now, facts) if name in cluster.partitions else now
        for name, now in facts.partitions.items()
    }
    new = {name: said for name, said in facts.gpu_types.items() if _is_new(name, said, cluster)}
    values = {key: value for key, value in facts.values.items() if value is not None}
    return structs.replace(
        cluster,
        read_on=facts.read_on,
        partitions=partitions,
        gpu_types={**cluster.gpu_types, **new},
        **{key: value for key, value in values.items() if key in READ_KEYS},
    )


def _is_new(name: str, said: GpuType, cluster: Cluster) -> bool:
    if "*" in cluster.gpu_types or name in cluster.gpu_types:
        return False
    spelled = [(one.gres, one.constraint, one.partition) for one in cluster.gpu_types.values()]
    return (said.gres, said.constraint, said.partition) not in spelled


def given(value: Partition | GpuType) -> dict[str, Any]:
    """What is said, without what is not."""
    made: Mapping[str, Any] = to_builtins(value)
    return {key: said for key, said in made.items() if said or (said == 0 and said is not False)}


def _change(key: str, before: Any, after: Any) -> Change:
    what = "added" if before is None else "gone" if after is None else "changed"
    return Change(what=what, key=key, before=_text(before), after=_text(after))


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return _shown(value) if isinstance(value, Mapping) else str(value)


def _shown(values: Mapping[str, Any]) -> str:
    parts = [f"{key} {_shown(v) if isinstance(v, Mapping) else v}" for key, v in values.items()]
    return ", ".join(parts)


def _cannot(source: str) -> InputError:
    return InputError(
        f"{source}: its partitions cannot be brought up to date as they are written there",
        fix="move the file away, let hpcrun init write it anew, and take over what is your own",
    )
