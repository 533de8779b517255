"""Check before submission that Slurm accepts this many jobs: MaxArraySize and MaxSubmitJobs."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrun.actions.cluster_host import ClusterHost
from hpcrun.context import Context, is_slurm_conf_missing
from hpcrun.errors import Problem
from hpcrun.plan import Plan, check_array_size, command_for_parts
from hpcrun.remote import RunCommand
from hpcrun.slurm import (
    SHOW_CONFIG,
    SHOW_PARTITIONS,
    SHOW_QOS_SUBMIT_LIMITS,
    SubmitLimit,
    associations_argv,
    find_submit_limits,
    parse_associations,
    parse_config,
    parse_partitions,
    show_submit_limits_argv,
)

_CONFIG = RunCommand(SHOW_CONFIG, timeout=10.0)
_PARTITIONS = RunCommand(SHOW_PARTITIONS, timeout=10.0)
_USER = RunCommand(("id", "-un"), timeout=10.0)
_QOS = RunCommand(SHOW_QOS_SUBMIT_LIMITS, timeout=10.0)


def check_sweep_size(context: Context, host: ClusterHost, tasks: int, submit: str) -> list[Problem]:
    """Refuse an array with more tasks than Slurm accepts, as it is configured at present."""
    if is_slurm_conf_missing(context, context.cluster.slurm_conf):  # the submission reports it
        return check_array_size(tasks, context.cluster, context.cluster_source, submit=submit)
    config = parse_config(host.run_queries([_CONFIG, _USER])[_CONFIG].stdout)
    if config.max_array_size is None:
        return check_array_size(tasks, context.cluster, context.cluster_source, submit=submit)
    return check_array_size(tasks, config.max_array_size, submit=submit)


def check_job_counts(
    host: ClusterHost, jobs: Sequence[tuple[Plan, int]], submit: str = ""
) -> list[Problem]:
    """Refuse more jobs than the user's account and QOS accept; they would be refused one by one.

    Args:
        jobs: The plan of each submission, and its number of jobs for Slurm.
        submit: The arguments of `hpcrun submit` for the whole sweep, if the only job is one.
    """
    answers = host.run_queries([_CONFIG, _USER])
    config, user = parse_config(answers[_CONFIG].stdout), answers[_USER].stdout.strip()
    if not config.has_accounting or "limits" not in config.enforced:
        return []
    records = RunCommand(tuple(show_submit_limits_argv(user)), timeout=10.0)
    owners = RunCommand(tuple(associations_argv(user, config.cluster)), timeout=10.0)
    answers = host.run_queries([records, owners, _QOS, _PARTITIONS])
    rows = parse_partitions(answers[_PARTITIONS].stdout)
    known = parse_associations(answers[owners].stdout, config.cluster)
    totals: dict[SubmitLimit, int] = {}
    for plan, number in jobs:
        asked = dict(plan.directives)
        environ = host.login.environ
        account = asked.get("account") or environ.get("SBATCH_ACCOUNT") or ""
        account = account or next((each.default_account for each in known), "")
        mine = [each for each in known if each.account == account]
        qos = asked.get("qos") or environ.get("SBATCH_QOS") or ""
        # Without a default, an association's only QOS applies, or else "normal".
        usual = [each.default_qos or (each.qos[0] if len(each.qos) == 1 else "") for each in mine]
        qos = qos or next(filter(None, usual), "normal")
        partition = asked.get("partition") or environ.get("SBATCH_PARTITION") or ""
        partition = partition or next((row.name for row in rows if row.is_default), "")
        partition_qos = {row.qos for row in rows if row.name in partition.split(",")}
        if len(partition_qos) > 1:
            continue  # Slurm chooses one of several partitions later
        limits = find_submit_limits(
            answers[records].stdout,
            answers[_QOS].stdout,
            user=user,
            account=account,
            qos=qos,
            partition=partition,
            partition_qos=next(iter(partition_qos), ""),
        )
        for limit in limits:
            totals[limit] = totals.get(limit, 0) + number
    exceeded = {
        limit: number for limit, number in totals.items() if limit.used + number > limit.allowed
    }
    room = min((limit.allowed - limit.used for limit in exceeded), default=0)
    way_out = ""
    if submit and room > 0:
        count = max(-(-number // room) for number in exceeded.values())
        way_out = f". Submit it in parts: {command_for_parts(submit, count, waits=True)}"
    return [
        Problem("sweep" if len(jobs) == 1 else "jobs", _explain(limit, number) + way_out)
        for limit, number in exceeded.items()
    ]


def _explain(limit: SubmitLimit, number: int) -> str:
    """Explain a limit that a submission would exceed.

    >>> _explain(SubmitLimit("MaxSubmitJobs", "account ml", 6, 2), 5)
    '5 jobs: account ml accepts 6 pending and running jobs (MaxSubmitJobs); 2 are in the queue, \
so it accepts 4 more'
    """
    left = max(limit.allowed - limit.used, 0)
    there = f"{limit.used} {'is' if limit.used == 1 else 'are'} in the queue"
    return (
        f"{number} jobs: {limit.owner} accepts {limit.allowed} pending and running jobs "
        f"({limit.name}); {there}, so it accepts {left or 'no'} more"
    )
