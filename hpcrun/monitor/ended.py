"""Details of finished jobs: who cancelled them, why a node failed, which resources they used.

Slurm is queried once per run, and its answer is cached.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from msgspec import Struct, structs

from hpcrun.context import Context, slurm_transport
from hpcrun.errors import HpcrunError
from hpcrun.runs import (
    LOST,
    JobStatus,
    NodeSeries,
    NodeUse,
    ResourceUsage,
    RunFolder,
    cache_record,
    compute_trained_share,
    count_nodes,
    read_node_usage,
    read_optional_record,
)
from hpcrun.slurm import JobAccounting, client, expand_known_hosts, parse_exit_code

# Finished jobs whose accounting one command queries, one by one.
_MAX_ACCOUNTS = 8
# Nodes of a job that are queried for the reason why they are down or drained.
_MAX_NODES = 4
# End states caused by Slurm, for which its accounting has details.
_BY_SLURM = frozenset({"CANCELLED", "NODE_FAIL", "BOOT_FAIL"})


class CachedAccount(Struct, frozen=True, kw_only=True):
    """Cached accounting of a run's job; ``stamp`` is its job id, attempts and state."""

    stamp: list[str]
    account: JobAccounting


class GpuSamples(Struct, frozen=True, kw_only=True):
    """Samples that ``top`` took of a run's GPUs: count, mean utilization, and peak memory."""

    looks: int = 0
    use: float | None = None
    memory: int | None = None
    memory_total: int | None = None


def add_accounting(context: Context, status: JobStatus, *, always: bool = False) -> JobStatus:
    """Add Slurm's accounting of a finished job if it may explain the end, or ``always``."""
    run, job_id = status.run, status.job_id
    if not status.final or status.account is not None or not job_id or status.is_local:
        return status
    stamp = [job_id, str(status.attempts), status.state]
    kept = read_optional_record(run.account, CachedAccount) if run is not None else None
    if kept is not None and kept.stamp == stamp:
        return structs.replace(status, account=kept.account)
    is_open = status.state in _BY_SLURM and status.history.cancelled is None
    is_open |= run is not None and not status.attempts
    is_asked = (always or is_open) and not status.out_of_reach and status.state != LOST
    if not is_asked or context.session.accounts_queried >= _MAX_ACCOUNTS:
        return status
    context.session.accounts_queried += 1
    found = None
    with contextlib.suppress(HpcrunError):
        transport = slurm_transport(context, status.slurm_conf)
        found = client.query_job_accounting(transport, job_id)
        has_node = status.state in ("NODE_FAIL", "BOOT_FAIL") or not (status.attempts or status.ok)
        had = (status.job.node_list if status.job is not None else "") or status.nodes
        for node in expand_known_hosts(had)[:_MAX_NODES] if has_node else ():
            if reason := client.query_node_reason(transport, node):
                found = structs.replace(found or JobAccounting(), node=node, node_reason=reason)
                break
    if found is None:
        return status
    if run is not None and found.held_seconds is not None:
        cache_record(run.account, CachedAccount(stamp=stamp, account=found))
    return structs.replace(status, account=found)


def add_resource_usage(context: Context, status: JobStatus) -> JobStatus:
    """Add the resources that a finished job used, by its records, its log, Slurm and ``top``."""
    if not status.final or not (status.attempts or status.run is None):
        return status
    nodes = [] if status.run is None else read_node_usage(status.run, with_series=False)
    return structs.replace(_add_step_note(status), used=measure_resources(status, nodes))


def measure_resources(status: JobStatus, nodes: Sequence[NodeSeries]) -> ResourceUsage:
    """Return the resources that a job used so far; ``nodes`` is the use in its last attempt.

    The use of the host is unknown if a node of that attempt has no samples, or if the job has
    several runs.
    """
    # The records and the control group of a job that several runs share are of all of them.
    is_alone = not status.history.shares_job
    account, run = (status.account if is_alone else None) or JobAccounting(), status.run
    looks, logged = GpuSamples(), None
    if run is not None and status.gpus_per_node:
        from hpcrun.monitor.progress import (
            most_memory,  # deferred: the log reader takes long to import
        )

        looks = read_optional_record(run.looks, GpuSamples) or looks
        logged = most_memory(run, status.plan.log_patterns if status.plan is not None else ())
    busy, held = account.cpu_seconds, account.held_seconds
    share = min(1.0, busy / held) if busy and held else None
    gpus = [gpu for node in nodes for gpu in node.gpus]
    uses = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    by_index = {attempt.index: attempt for attempt in status.history.attempts}
    attempt = by_index.get(nodes[0].attempt) if nodes else None
    count = count_nodes(attempt) if attempt is not None else 1
    is_known = is_alone and len(nodes) >= count
    if uses:  # the job's samples have no gaps, unlike those of top
        looks = structs.replace(looks, looks=0, use=sum(uses) / len(uses))
    peaks = (logged, looks.memory, *(gpu.memory_peak for gpu in gpus))
    totals = (looks.memory_total, *(gpu.memory_total for gpu in gpus))
    return ResourceUsage(
        memory_asked=account.memory_asked,
        memory_used=account.memory_used or (_sum_memory(nodes) if is_known else None),
        cpus=account.cpus or (_sum_cpus(nodes) if is_known else None),
        cpu_share=share if share is not None else _cpu_share(nodes) if is_known else None,
        gpu_memory=max(filter(None, peaks), default=None),
        gpu_memory_total=max(filter(None, totals), default=None),
        gpu_share=None if looks.use is None else looks.use / 100,
        gpus=count * (status.gpus_per_node or 0) if uses else None,
        sampled_gpus=len(gpus) if uses else None,
        looks=looks.looks,
        trained_share=compute_trained_share(status),
    )


def _sum_memory(nodes: Sequence[NodeSeries]) -> int | None:
    """Return the sum of the nodes' peaks, if they are the job's own."""
    peaks = [node.memory_peak for node in nodes if node.memory_of == "job"]
    known = [peak for peak in peaks if peak is not None]
    return sum(known) if known and len(known) == len(nodes) else None


def _sum_cpus(nodes: Sequence[NodeSeries]) -> int | None:
    return sum(node.cpus or 0 for node in nodes if node.cpu_of == "job") or None


def _cpu_share(nodes: Sequence[NodeSeries]) -> float | None:
    """Return the share of the job's CPUs that were busy, if that was measured on all nodes."""
    cpus = _sum_cpus(nodes)
    busy = [node.cpus_busy for node in nodes if node.cpu_of == "job"]
    known = [each for each in busy if each is not None]
    return min(1.0, sum(known) / cpus) if cpus and len(known) == len(nodes) else None


def _add_step_note(status: JobStatus) -> JobStatus:
    """Add a note if a step of the user's own script failed but the script returned 0."""
    job, account, verdict = status.job, status.account, status.verdict
    code = parse_exit_code(job.step_code) if job is not None else None
    code = code or (account.step_code if account is not None else None)
    if not code or not status.ok or status.run is not None:  # steps of earlier attempts, say
        return status
    text = (
        f"a step of it ended with exit code {code}, and its script with 0: with set -e it would end"
    )
    return structs.replace(status, verdict=structs.replace(verdict, notes=[*verdict.notes, text]))


def record_gpu_usage(run: RunFolder, nodes: Sequence[NodeUse]) -> None:
    """Record a sample of a run's GPUs, unless the run belongs to another user."""
    gpus = [gpu for use in nodes for gpu in use.gpus]
    uses = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    if not gpus:
        return
    old = read_optional_record(run.looks, GpuSamples) or GpuSamples()
    use, count = old.use, old.looks + 1
    if uses:
        now = sum(uses) / len(uses)
        use = now if use is None else (use * old.looks + now) / count
    memory = (old.memory, *(gpu.memory_used for gpu in gpus))
    total = (old.memory_total, *(gpu.memory_total for gpu in gpus))
    new = GpuSamples(
        looks=count,
        use=use,
        memory=max(filter(None, memory), default=None),
        memory_total=max(filter(None, total), default=None),
    )
    cache_record(run.looks, new)
