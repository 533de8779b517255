"""Explains why jobs are pending, with limits and the expected start."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import structs

from hpcrun.context import Context, slurm_transport
from hpcrun.errors import OutOfReach
from hpcrun.monitor.status import SlurmCache
from hpcrun.remote import Transport
from hpcrun.runs import JobStatus, RunFolder, WhyWaiting, attempt_indices
from hpcrun.slurm import (
    WAITING,
    LimitUsage,
    SlurmJob,
    client,
    explain_reason,
    find_limit_usage,
    parse_limit,
    show_limits_argv,
)

# Limits that one listing queries; further jobs are explained without numbers.
_MAX_LIMIT_QUERIES = 3
NOT_EXPECTED = "no start is estimated"


def add_wait_reasons(
    context: Context,
    statuses: Sequence[JobStatus],
    cache: SlurmCache | None = None,
    *,
    count_ahead: bool = False,
) -> list[JobStatus]:
    """Add to pending jobs why they are pending. Never raises: missing answers are omitted.

    One scontrol runs for each of a few limits; with ``count_ahead`` also one squeue for the
    partition. An answer in ``cache`` is not queried again.
    """
    cache = SlurmCache() if cache is None else cache
    waiting = [status for status in statuses if _is_pending(status)]
    if not waiting:
        return list(statuses)
    if cache.waits is None:
        cache.waits = _find_wait_reasons(context, waiting, count_ahead=count_ahead)
    waits = cache.waits
    return [
        structs.replace(status, why=waits.get(status.job_id or ""))
        if _is_pending(status)
        else status
        for status in statuses
    ]


def describe_stage(status: JobStatus, run: RunFolder) -> str:
    """Return what a run without output is waiting for, by Slurm's state and its records."""
    if status.state in WAITING:
        why = (
            f": {explain_reason(status.reason, status.job_id or '').words}" if status.reason else ""
        )
        return f"its turn in the queue{why}"
    newest = max(attempt_indices(run), default=None)
    if newest is None:
        return "its node to start"
    if not (run.attempts / str(newest) / "launched").exists():
        return "its setup: modules, environment, files"
    return "the program's first output (imports, compilation, data loading)"


def _is_pending(status: JobStatus) -> bool:
    return status.is_waiting and status.job is not None


def _find_wait_reasons(
    context: Context, jobs: Sequence[JobStatus], *, count_ahead: bool
) -> dict[str, WhyWaiting]:
    found: dict[str, WhyWaiting] = {}
    for conf in dict.fromkeys(job.slurm_conf for job in jobs):
        transport = slurm_transport(context, conf)
        texts: dict[tuple[str, ...], str] = {}
        for status in jobs:
            if status.slurm_conf == conf and status.job is not None:
                ahead = _count_ahead(transport, status.job) if count_ahead else None
                numbers = _find_numbers(transport, status.job, texts)
                why = _explain_wait(status.job, numbers, ahead, own=status.run is not None)
                found[status.job_id or ""] = why
    return found


def _explain_wait(
    job: SlurmJob, numbers: LimitUsage | None, ahead: int | None, *, own: bool
) -> WhyWaiting:
    why = explain_reason(job.reason, job.job_id, numbers, own=own)
    text = why.words
    if job.reason == "Dependency":
        text = describe_dependency(job.dependency) or text
    start, now = parse_time(job.start), datetime.now()
    expected = format_start(start, now) if start and start > now else ""
    if job.reason == "BeginTime" and start and expected:
        text, expected = f"starts no earlier than {format_time(start, now)}", ""
    if ahead and job.reason == "Priority":
        text = f"{ahead} jobs are ahead of it in its partition"
        text = text if ahead > 1 else "1 job is ahead of it in its partition"
    return WhyWaiting(
        text=text, fix=why.fix, start=job.start if start else None, ahead=ahead, expected=expected
    )


def describe_dependency(text: str) -> str:
    """Describe the dependencies in squeue's %E; "" if none is known.

    >>> describe_dependency("afterok:12(unfulfilled),afterany:7_*(unfulfilled)")
    'waits for job 12 to succeed and job 7 to end'
    >>> describe_dependency("singleton(unfulfilled)"), describe_dependency("(null)")
    ('waits for an earlier job of the same name to end', '')
    """
    endings = {
        "afterok": "to succeed",
        "afterany": "to end",
        "afternotok": "to fail",
        "after": "to start",
        "aftercorr": "to succeed, task by task",
        "afterburstbuffer": "to end, its data staged out",
    }
    parts = []
    for kind, ids in re.findall(r"(\w+)((?::[\w+*]+(?:\(\w+\))?)*)", text):
        if kind == "singleton":
            parts.append("an earlier job of the same name to end")
        elif kind in endings and (jobs := re.findall(r":(\d+(?:_\d+)?)", ids)):
            named = f"job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}"
            parts.append(f"{named} {endings[kind]}")
    link = " or " if "?" in text else " and "
    return f"waits for {link.join(parts)}" if parts else ""


def _find_numbers(
    transport: Transport, job: SlurmJob, texts: dict[tuple[str, ...], str]
) -> LimitUsage | None:
    """Query the limit that a job is waiting for; ``texts`` caches the answers."""
    limit = parse_limit(job.reason)
    argv = tuple(show_limits_argv(limit, job.qos, job.account)) if limit is not None else ()
    if limit is None or (argv not in texts and len(texts) >= _MAX_LIMIT_QUERIES):
        return None
    if argv not in texts:
        texts[argv] = ""
        with contextlib.suppress(OutOfReach):
            texts[argv] = client.run_query(transport, argv) or ""
    return find_limit_usage(texts[argv], limit, user=job.user, uid=job.uid, account=job.account)


def _count_ahead(transport: Transport, job: SlurmJob) -> int | None:
    """Count the partition's pending jobs with a higher priority; None if unknown."""
    in_line = job.reason in ("Priority", "Resources")
    if not in_line or not job.priority.isdecimal() or not job.partition:
        return None
    others: list[SlurmJob] = []
    with contextlib.suppress(OutOfReach):
        others = client.query_pending(transport, partition=job.partition)
    priorities = [int(other.priority) for other in others if other.priority.isdecimal()]
    is_seen = any(other.array == job.array for other in others)
    return sum(each > int(job.priority) for each in priorities) if is_seen else None


def parse_time(text: str) -> datetime | None:
    """Parse a local time as squeue and sacct print it; None for any other text.

    >>> parse_time("2026-11-20T13:51:15"), parse_time("N/A")
    (datetime.datetime(2026, 11, 20, 13, 51, 15), None)
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def is_expected(start: datetime, now: datetime) -> bool:
    """Return False for a start decades away, which is how Slurm reports "never"."""
    return start - now < timedelta(days=366)


def format_start(start: datetime, now: datetime) -> str:
    """Format when a job is expected to start.

    >>> now = datetime(2026, 11, 20, 13, 0)
    >>> format_start(datetime(2026, 11, 20, 18, 5), now), format_start(datetime(2282, 1, 31), now)
    ('expected to start 18:05', 'no start is estimated')
    """
    if not is_expected(start, now):
        return NOT_EXPECTED
    return f"expected to start {format_time(start, now)}"


def format_time(then: datetime, now: datetime) -> str:
    """Format a time briefly, relative to now.

    >>> now = datetime(2026, 11, 20, 13, 0)
    >>> format_time(datetime(2026, 11, 20, 18, 5), now)
    '18:05'
    >>> format_time(datetime(2026, 11, 21, 9, 0), now)
    'tomorrow 09:00'
    >>> format_time(datetime(2026, 12, 24, 9, 0), now)
    '2026-12-24 09:00'
    """
    days = (then.date() - now.date()).days
    if days == 0:
        return f"{then:%H:%M}"
    if days == 1:
        return f"tomorrow {then:%H:%M}"
    return f"{then:%Y-%m-%d %H:%M}"
