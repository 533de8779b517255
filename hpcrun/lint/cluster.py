"""Compare the request of a script with what a cluster's profile knows of its partitions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hpcrun.lint.check import Finding, list_ignored
from hpcrun.lint.directives import Directive
from hpcrun.lint.request import (
    count_gpus_per_node,
    count_nodes,
    count_spread_gpus,
    count_tasks_per_node,
    list_indices,
)
from hpcrun.lint.rule import Severity
from hpcrun.lint.script import Script, parse_script
from hpcrun.plan import parse_memory_mb, parse_seconds
from hpcrun.spec import Cluster, Partition
from hpcrun.text import format_count, is_whole_number


class _Excess(NamedTuple):
    """A request that a partition cannot meet: its option, the reason, the fix."""

    options: tuple[str, ...]
    message: str
    fix: str


def lint_request(
    text: str,
    name: str,
    cluster: Cluster,
    source: str,
    options: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Return the directives of a script that a cluster refuses, by its profile.

    Limits of a partition are warnings if the script names a QOS or a reservation, which may lift
    them. Of several partitions, one that fits is enough; of a script without one, any.

    Args:
        source: The file of the profile.
        options: Options of the command line, which replace those of the script.

    >>> cluster = Cluster(partitions={"gpu": Partition(gpus_per_node=4)})
    >>> text = "#!/bin/bash\\n#SBATCH -p gpu --gres=gpu:8\\n"
    >>> [(one.rule, one.line, one.message) for one in lint_request(text, "a", cluster, "p.yaml")]
    [('beyond-partition', 2, '8 GPUs a node: partition gpu has 4')]
    """
    script = parse_script(text, name)
    for option, value in (options or {}).items():
        script.directives.append(
            Directive(option, f"--{option}", value, start=0, end=0, line_start=0, has_value=True)
        )
    date = f"read on {cluster.read_on}" if cluster.read_on else "no date"
    ignored = list_ignored(script)

    def report(rule: str, severity: Severity, found: _Excess) -> Iterator[Finding]:
        at = next((one.start for each in found.options if (one := script.option(each))), 0)
        line = script.line_of(at)
        if rule in ignored.get(0, ()) or rule in ignored.get(line, ()):
            return
        yield Finding(
            rule=rule,
            severity=severity,
            file=name,
            line=line,
            column=script.column_of(at),
            message=found.message,
            source=f"{source}, {date}",
            fix=found.fix,
        )

    findings: list[Finding] = []
    named = [one for one in script.value("partition").split(",") if one]
    for one in named:
        if cluster.partitions and one not in cluster.partitions:
            listed = ", ".join(sorted(cluster.partitions))
            message = f"partition {one} is not among those of the profile"
            found = _Excess(("partition",), message, f"use one of {listed}")
            findings += report("unknown-partition", "warning", found)
    may_be_lifted = script.has("qos") or script.has("reservation")
    for excess in _find_excess(script, cluster, named):
        findings += report("beyond-partition", "warning" if may_be_lifted else "error", excess)
    findings += [
        each
        for found in _check_array(script, cluster)
        for each in report("array-too-large", "error", found)
    ]
    if cluster.account and not script.has("account"):
        message = f"no --account: jobs of this cluster are charged to {cluster.account}"
        found = _Excess((), message, f"#SBATCH --account={cluster.account}")
        findings += report("account-not-named", "note", found)
    return findings


def _find_excess(script: Script, cluster: Cluster, named: list[str]) -> list[_Excess]:
    """Return what does not fit into the first partition, if none of the partitions fits."""
    names = named or list(cluster.partitions)
    excess: list[list[_Excess]] = []
    for name in names:
        facts = cluster.partitions.get(name)
        found = [] if facts is None else list(_compare(script, cluster, name, facts))
        if not found:
            return []
        excess.append(found)
    return min(excess, key=len, default=[])


def _compare(script: Script, cluster: Cluster, name: str, facts: Partition) -> Iterator[_Excess]:
    yield from _compare_nodes(script, name, facts)
    # Slurm chooses the number of nodes for --gpus if --nodes does not.
    is_spread = count_spread_gpus(script) is not None and not script.has("nodes")
    tasks, gpus = count_tasks_per_node(script), None if is_spread else count_gpus_per_node(script)
    yield from _compare_gpus(script, cluster, name, facts, gpus)
    each = script.number("cpus-per-task")
    cpus = each * tasks if each and tasks else 0
    if not each and (share := script.number("cpus-per-gpu")) and gpus:
        cpus = share * gpus
    if facts.cpus_per_node and cpus > facts.cpus_per_node:
        message = f"{cpus} CPUs a node: partition {name} has {facts.cpus_per_node}"
        fix = "request fewer CPUs, or fewer tasks on each node"
        yield _Excess(("cpus-per-task", "cpus-per-gpu"), message, fix)
    for option, times in (("mem", 1), ("mem-per-cpu", cpus), ("mem-per-gpu", gpus or 0)):
        value = script.value(option)
        if facts.memory_per_node and re.fullmatch(r"\d{1,18}[KMGTkmgt]?[Bb]?", value):
            wanted = parse_memory_mb(value.upper()) * times
            if wanted > parse_memory_mb(facts.memory_per_node):
                shown = value if times == 1 else f"{times} times {value}"
                message = f"{shown} of memory a node: partition {name} has {facts.memory_per_node}"
                yield _Excess((option,), message, "--mem=0 requests all memory of a node")
    asked = script.value("time-min") or script.value("time")
    wanted_s, limit = _seconds(asked), _seconds(facts.max_time or "")
    if wanted_s is not None and limit is not None and wanted_s > limit:
        message = f"{asked}: partition {name} allows {facts.max_time}"
        yield _Excess(("time-min", "time"), message, f"--time={facts.max_time}")


def _seconds(text: str) -> float | None:
    """Return a time limit; 0 means none (sbatch.1). None if the text is no time."""
    try:
        return (parse_seconds(text) or math.inf) if text else None
    except ValueError:
        return None


def _compare_nodes(script: Script, name: str, facts: Partition) -> Iterator[_Excess]:
    least = script.value("nodes").split("-")[0]
    nodes = int(least) if is_whole_number(least) else count_nodes(script)
    if nodes is None:
        return
    caps = [one for one in (facts.max_nodes, facts.nodes) if one is not None]
    if caps and nodes > min(caps):
        message = f"{format_count(nodes, 'node')}: partition {name} gives a job {min(caps)}"
        yield _Excess(("nodes", "ntasks"), message, f"--nodes={min(caps)}")
    most = script.value("nodes").split("-")[-1]
    if facts.min_nodes and is_whole_number(most) and int(most) < facts.min_nodes:
        asked = format_count(int(most), "node")
        message = f"{asked}: partition {name} accepts jobs of {facts.min_nodes} or more"
        yield _Excess(("nodes",), message, f"--nodes={facts.min_nodes}")


def _compare_gpus(
    script: Script, cluster: Cluster, name: str, facts: Partition, gpus: int | None
) -> Iterator[_Excess]:
    options = ("gres", "gpus-per-node", "gpus", "gpus-per-task")
    kind, total = _find_gpu_type(script), count_spread_gpus(script)
    has, what = facts.gpus_per_node, "GPU"
    if kind and facts.gpu_types:
        known = {name: cluster.gpu_types.get(name) for name in facts.gpu_types}
        # A type without a name in --gres is requested in another way.
        names = {one.gres if one is not None else name for name, one in known.items()}
        if None not in names:
            if kind not in names:
                listed = ", ".join(sorted(str(one) for one in names))
                message = f"GPU type {kind}: partition {name} has {listed}"
                yield _Excess(options, message, "use a type of the partition, or another partition")
                return
            counts = [
                count
                for key, count in facts.gpu_types.items()
                if (one.gres if (one := known[key]) is not None else key) == kind
            ]
            has, what = max(counts), f"{kind} GPU"
    if gpus and has is not None and gpus > has:
        there = f"has {has}" if has else "has none"
        message = f"{format_count(gpus, what)} a node: partition {name} {there}"
        fix = f"--gpus-per-node={has} on more nodes" if has else "use a partition with GPUs"
        yield _Excess(options, message, fix)
    elif total and has is not None:
        most = script.value("nodes").split("-")[-1]
        limits = [one for one in (facts.max_nodes, facts.nodes) if one is not None]
        limits += [int(most)] if is_whole_number(most) else []
        if not has:
            message = f"{format_count(total, what)}: partition {name} has none"
            yield _Excess(options, message, "use a partition with GPUs")
        elif limits and total > has * min(limits):
            nodes = format_count(min(limits), "node")
            message = f"{format_count(total, what)} on {nodes}: partition {name} has {has} a node"
            yield _Excess(options, message, f"request at most {has * min(limits)} GPUs")


def _find_gpu_type(script: Script) -> str:
    """Return the type in ``--gres=gpu:TYPE:COUNT`` and the like; "" if there is none."""
    for part in script.value("gres").split(","):
        words = part.split("(")[0].split(":")
        if words[0] == "gpu" and len(words) > 1 and not is_whole_number(words[1]):
            return words[1]
    for option in ("gpus-per-node", "gpus", "gpus-per-task"):
        words = script.value(option).split(":")
        if len(words) > 1:
            return words[0]
    return ""


def _check_array(script: Script, cluster: Cluster) -> Iterator[_Excess]:
    indices, most = list_indices(script), cluster.max_array_size
    if indices and most is not None and max(indices) >= most:
        message = (
            f"index {max(indices)}: MaxArraySize is {most}, so the largest index is {most - 1}"
        )
        yield _Excess(("array",), message, "submit the array in parts, with smaller indices")
