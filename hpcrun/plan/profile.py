"""The text of a cluster profile: a new one, and updates of an existing one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs, to_builtins

from hpcrun.errors import InputError, SpecError
from hpcrun.plan.directives import parse_memory_mb
from hpcrun.plan.site import Site
from hpcrun.plan.times import parse_seconds
from hpcrun.spec import (
    CannotEdit,
    Cluster,
    GpuType,
    Partition,
    comment_out_value,
    format_comment,
    format_flow,
    load_cluster,
    remove_value,
    set_value,
)

# Facts about the whole cluster that are read from Slurm; read_on is their date.
READ_KEYS = ("slurm_version", "max_array_size")


class ClusterFacts(Struct, frozen=True, kw_only=True):
    """Facts read from the cluster; ``sure`` is True if the accounting responded too."""

    read_on: str
    values: dict[str, Any]
    partitions: dict[str, Partition]
    gpu_types: dict[str, GpuType]
    sure: bool = True


class Change(Struct, frozen=True, kw_only=True):
    """One difference between the profile and the cluster.

    ``what`` is added, gone or changed. ``key`` is the path in the profile; a new or removed
    partition or GPU type is one change. ``before`` and ``after`` are as in the file; None: absent.
    """

    what: str
    key: str
    before: str | None = None
    after: str | None = None


# ---- an update ---------------------------------------------------------------------------------


def find_changes(cluster: Cluster, facts: ClusterFacts) -> list[Change]:
    """Return the differences from the profile; facts that could not be read are not differences."""
    found = []
    for path, before, after in _find_differences(cluster, _apply_facts(cluster, facts)):
        what = "gone" if after is None else "added" if before is None else "changed"
        key = ".".join(path)
        found.append(
            Change(what=what, key=key, before=_format_value(before), after=_format_value(after))
        )
    return found


def update_profile(text: str, source: str, cluster: Cluster, facts: ClusterFacts) -> str:
    """Update the facts in a profile's text and keep everything else. Raises InputError."""
    wanted = _apply_facts(cluster, facts)
    cannot = InputError(
        f"{source}: its partitions are written in a way that cannot be updated",
        fix="move the file away, let hpcrun init write a new one, and copy your own keys into it",
    )
    if cluster.partitions and not wanted.partitions:
        raise cannot
    try:
        edited = text
        if cluster.read_on != wanted.read_on:
            edited = set_value(text, ["read_on"], wanted.read_on)
        # Additions first: a section that lost its last entry would have no place for new ones.
        for path, _, after in sorted(
            _find_differences(cluster, wanted), key=lambda one: one[2] is None
        ):
            if after is not None:
                edited = set_value(edited, path, after)
            elif len(path) > 2:
                edited = remove_value(edited, path)
            else:
                edited = comment_out_value(
                    edited, path, f"gone from the cluster on {wanted.read_on}:"
                )
        if load_cluster(edited, source=source) == wanted:
            return edited
    except (CannotEdit, SpecError) as error:
        raise cannot from error
    raise cannot


def _find_differences(cluster: Cluster, wanted: Cluster) -> Iterator[tuple[list[str], Any, Any]]:
    """Yield the path of each difference, and the value before and after; None: absent."""
    for key in READ_KEYS:
        before, after = getattr(cluster, key), getattr(wanted, key)
        if before != after:
            yield [key], before, after
    for name in sorted({*cluster.partitions, *wanted.partitions}):
        path = ["partitions", name]
        if name not in wanted.partitions:
            yield path, None, None
        elif name not in cluster.partitions:
            yield path, None, non_null_keys(wanted.partitions[name])
        else:
            old, new = (
                non_null_keys(cluster.partitions[name]),
                non_null_keys(wanted.partitions[name]),
            )
            for key in Partition.__struct_fields__:
                if old.get(key) != new.get(key):
                    yield [*path, key], old.get(key), new.get(key)
    for name, gpu_type in wanted.gpu_types.items():
        if name not in cluster.gpu_types:
            yield ["gpu_types", name], None, non_null_keys(gpu_type)


def _apply_facts(cluster: Cluster, facts: ClusterFacts) -> Cluster:
    """Return the profile with the facts that were read; everything else is unchanged."""
    partitions = {
        name: _merge_partition(cluster, name, now, facts) if name in cluster.partitions else now
        for name, now in facts.partitions.items()
    }
    known = cluster.gpu_types
    spelled = [(one.gres, one.constraint, one.partition) for one in known.values()]
    types = {
        name: one
        for name, one in facts.gpu_types.items()
        if not {"*", name} & known.keys()
        and (one.gres, one.constraint, one.partition) not in spelled
    }
    values = {key: facts.values[key] for key in READ_KEYS if facts.values.get(key) is not None}
    return structs.replace(
        cluster,
        read_on=facts.read_on,
        partitions=partitions,
        gpu_types={**known, **types},
        **values,
    )


def _merge_partition(cluster: Cluster, name: str, now: Partition, facts: ClusterFacts) -> Partition:
    """Return a partition as read, keeping the profile's spelling of equal values.

    Values that only the accounting knows are kept if it did not respond, and so are GPUs that the
    user has counted if Slurm has no GRES.
    """
    before = cluster.partitions[name]
    keep: dict[str, Any] = {} if facts.sure else {"max_gpus": before.max_gpus}
    keep["qos"] = before.qos or now.qos  # the user may have chosen another one
    if cluster.slurm.get("gres") is False and not now.gpus_per_node:
        keep |= {"gpus_per_node": before.gpus_per_node, "gpu_types": before.gpu_types}
    for key, parse in (
        ("memory_per_node", parse_memory_mb),
        ("memory_per_gpu", parse_memory_mb),
        ("max_time", parse_seconds),
        ("default_time", parse_seconds),
    ):
        old, new = getattr(before, key), getattr(now, key)
        if old is not None and new is not None and parse(old) == parse(new):
            keep[key] = old
    return structs.replace(now, **keep)


def non_null_keys(value: Partition | GpuType) -> dict[str, Any]:
    """Return the keys that have a value, including 0."""
    made: Mapping[str, Any] = to_builtins(value)
    return {key: one for key, one in made.items() if one or (one == 0 and one is not False)}


def _format_value(value: Any) -> str | None:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_format_value(inner)}" for key, inner in value.items())
    return None if value is None else str(value)


# ---- a new profile -----------------------------------------------------------------------------


def format_profile(
    chosen: Mapping[str, Any],
    comments: Mapping[str, str],
    facts: ClusterFacts | None,
    site: Site | None,
    schema: str,
) -> str:
    """Return the text of a new profile; without ``site``, for a machine without Slurm.

    Args:
        chosen: Keys that Slurm does not know, chosen by the user or by default; None omits a key.
        comments: Comments by key.
        schema: The path of the JSON Schema, relative to the profile.
    """
    lines = [
        f"# yaml-language-server: $schema={schema}",
        "# A cluster profile, written by `hpcrun init`. It is yours to edit: called again, init",
        "# reads the cluster again, changes read_on, slurm_version, max_array_size and partitions,",
        "# and leaves everything else as it is.",
    ]

    def add(values: Mapping[str, Any], *keys: str) -> None:
        """Append keys that have a value, each with its comment at the end or above."""
        for key in keys:
            value, comment = values.get(key), comments.get(key)
            if value is None or value == {}:
                continue
            line = f"{key}: {format_flow(value)}"
            if comment and len(line) + len(comment) + 4 <= 100 and len(line) <= 40:
                lines.append(f"{line}  {format_comment(comment)}")
            else:
                lines.extend([format_comment(comment), line] if comment else [line])

    add(chosen, "name")
    if facts is not None:
        add({"read_on": facts.read_on, **facts.values}, "read_on", *facts.values)
    add(chosen, "host", "login_shell", "slurm_path", "accelerator", "slurm_conf")
    lines += ["", "# Every node must see these folders at the same path."]
    add(chosen, "runs_dir", "cache_dir", "local_dir")
    lines += [""]
    add(chosen, "partition", "account", "gpu_type")
    if site is not None and len(site.qos) > 1:
        named = ", ".join(site.qos[:12])
        lines.append(
            format_comment(f"slurm: {{qos: NAME}}  # yours: {named}; else your account's default")
        )
    add({"fabric": "auto", **chosen}, "slurm", "internet", "fabric", "setup", "python")
    if chosen.get("python") is None and comments.get("python"):
        lines.append(format_comment(comments["python"]))
    if chosen.get("env"):
        lines += [
            "env:",
            *(f"  {key}: {format_flow(value)}" for key, value in chosen["env"].items()),
        ]
    if facts is not None and site is not None:
        lines += ["", *_format_partitions(facts, site), *_format_gpu_types(facts)]
    return "\n".join(lines) + "\n"


def _format_partitions(facts: ClusterFacts, site: Site) -> list[str]:
    lines = [f"# Read from Slurm on {facts.read_on}."]
    if site.left_out:
        lines.append("# Left out:")
        lines += [format_comment(f"  {name}: {why}") for name, why in sorted(site.left_out.items())]
    if not facts.partitions:
        return [*lines, "partitions: {}"]
    lines.append("partitions:")
    for name, partition in facts.partitions.items():
        lines += [f"  {format_comment(note)}" for note in site.notes.get(name, [])]
        lines.append(f"  {format_flow(name)}:")
        lines += [
            f"    {key}: {format_flow(value)}" for key, value in non_null_keys(partition).items()
        ]
    return lines


def _format_gpu_types(facts: ClusterFacts) -> list[str]:
    if not facts.gpu_types:
        return []
    rows = [
        f"  {format_flow(name)}: {format_flow(non_null_keys(one))}"
        for name, one in facts.gpu_types.items()
    ]
    comment = "# GPU types: the name that a job uses (gpu_type: NAME), and Slurm's name for it."
    return ["", comment, "gpu_types:", *rows]


def format_names(names: Sequence[str], most: int = 8) -> str:
    """List the first names and the number of others.

    >>> format_names(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
