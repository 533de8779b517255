"""Nodes that failed a check of the user's runs, recorded for a day and excluded from other runs."""

# Annotations are not postponed: msgspec would evaluate each as text at every start of hpcrun.
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, structs

from hpcrun.actions.cluster_host import files_in_cache
from hpcrun.context import Context, slurm_transport
from hpcrun.errors import HpcrunError, InputError
from hpcrun.plan import Plan
from hpcrun.remote import Answers, ReadOwnFiles, quote_profile_path
from hpcrun.runs import decode_record
from hpcrun.slurm import SHOW_PARTITIONS, SINFO, client, expand_hosts, parse_partitions, parse_sinfo
from hpcrun.text import format_duration

if TYPE_CHECKING:
    from hpcrun.slurm import NodeRow

_NAME = "bad-nodes"
# After a day, the site has probably repaired the node; otherwise another run detects it again.
EXCLUSION_S = 86400.0


class BadNode(Struct, frozen=True, kw_only=True):
    """A node, by its name in Slurm, that ``run_id`` found unfit; written by ``preflight.sh``."""

    node: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]+\Z")]
    why: str
    at: float
    run_id: str
    cluster: str | None = None

    @property
    def until(self) -> float:
        """Return the time from which other runs may use the node again."""
        return self.at + EXCLUSION_S


def bad_nodes_query(context: Context) -> ReadOwnFiles:
    """Return the query for the records of bad nodes; other users' records are ignored."""
    return files_in_cache(context, _NAME)


def list_bad_nodes(context: Context, answers: Answers | None = None) -> list[BadNode]:
    """List the nodes that are excluded now, the newest record first.

    Args:
        answers: Holds the answer to bad_nodes_query(); without it the host is queried.
    """
    query = bad_nodes_query(context)
    answers = answers or context.transport().run_queries([query])
    now = time.time()
    records = [(name, decode_record(text, BadNode)) for name, text in answers[query].items()]
    found = [
        record
        for name, record in records
        if record is not None
        and record.node == name
        and abs(now - record.at) <= EXCLUSION_S
        and record.cluster in (None, context.cluster.name)
    ]
    return sorted(found, key=lambda record: (-record.at, record.node))


def clear_bad_nodes(context: Context, nodes: Collection[str]) -> list[str]:
    """Remove the records of bad nodes, of all nodes if none is named; return the nodes' names.

    Raises:
        OSError: A record on this machine cannot be removed.
        HpcrunError: The records on the cluster's host cannot be removed.
    """
    known = [record.node for record in list_bad_nodes(context)]
    gone = [name for name in known if not nodes or name in nodes]
    if context.cluster.host is not None and gone:
        folder = quote_profile_path(f"{context.cluster.cache_dir}/{_NAME}")
        script = f"cd -- {folder} && rm -f -- {' '.join(gone)}"
        done = context.transport().run(["bash", "-s"], stdin=script)
        if done.exit_code != 0:
            raise HpcrunError(f"{context.cluster.host}: {done.stderr.strip()}")
    else:
        for name in gone:
            (context.cache_dir / _NAME / name).unlink(missing_ok=True)
    return gone


def exclude_bad_nodes(context: Context, answers: Answers) -> Callable[[Plan], Plan]:
    """Find the bad nodes of a cluster; return a function that excludes them from a plan.

    Slurm is queried only if there are bad nodes. Without a response no node is excluded, because
    Slurm rejects a job that names an unknown node.
    """
    nodes, now = list_bad_nodes(context, answers), time.time()
    rows: list[NodeRow] = []
    partition = context.environ.get("SBATCH_PARTITION")
    if nodes and not context.hosts:
        with contextlib.suppress(HpcrunError):
            transport = slurm_transport(context)
            rows = parse_sinfo(client.run_query(transport, SINFO) or "")
            if partition is None:
                shown = parse_partitions(client.run_query(transport, SHOW_PARTITIONS) or "")
                partition = next((one.name for one in shown if one.is_default), None)
    why = {
        one.node: f"{one.why} ({one.run_id}, {format_duration(max(0, now - one.at))} ago)"
        for one in nodes
        if rows
    }
    return lambda plan: add_exclusions(plan, why, rows, partition) if why else plan


def add_exclusions(
    plan: Plan, bad: Mapping[str, str], rows: "Sequence[NodeRow]", default: str | None
) -> Plan:
    """Add bad nodes to the --exclude option of a job, with a note on each.

    Nodes that the job itself names are not excluded, and none is if too few would remain.

    Args:
        bad: The reason for each bad node.
        default: The partition of a job that names none.
    """

    given = dict(plan.directives)
    partitions = (given.get("partition") or default or "").split(",")
    here = [row for row in rows if row.partition in partitions or partitions == [""]]
    try:
        there = {name for row in here for name in expand_hosts(row.node_list)}
        own, named = (
            expand_hosts(given.get("exclude") or ""),
            expand_hosts(given.get("nodelist") or ""),
        )
        fit = {
            name
            for row in here
            if not row.is_away and (not plan.gpus_per_node or "gpu" in row.gres)
            for name in expand_hosts(row.node_list)
        }
    except InputError:  # e.g. the option names a file of nodes
        return plan
    gone = [name for name in bad if name in there and name not in (*own, *named)]
    if not gone:
        return plan
    if len(fit.difference(own, gone)) < plan.requested_nodes:
        notes = [
            f"{name} may be bad: {bad[name]}; it is not excluded, because too few nodes would "
            "remain"
            for name in gone
        ]
        return structs.replace(plan, notes=[*plan.notes, *notes])
    notes = [
        f"{name} is excluded: {bad[name]}; hpcrun nodes --clear {name} allows it again"
        for name in gone
    ]
    given["exclude"] = ",".join([*filter(None, [given.get("exclude")]), *gone])
    return structs.replace(plan, directives=list(given.items()), notes=[*plan.notes, *notes])
