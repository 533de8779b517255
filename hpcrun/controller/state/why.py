"""Why runs wait, with the numbers of the limit, the job waited for and the expected start."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from hpcrun import scheduler
from hpcrun.controller.context import Context, slurm_transport
from hpcrun.slurm.jobs import SlurmJob
from hpcrun.slurm.reasons import (
    Limit,
    Numbers,
    explain,
    find_numbers,
    parse_limit,
    show_limits_argv,
)
from hpcrun.transport import Transport

# So many limits are asked about for one listing; the rest is told without numbers.
_LIMITS = 3
NOT_FORESEEN = "no start is foreseen"


class Waiting(Struct, frozen=True):
    """A job that waits, as squeue showed it: its reason code and its expected start, or "N/A".

    ``own``: hpcrun has submitted it.
    """

    job_id: str
    reason: str
    start: str
    slurm_conf: str | None
    own: bool = True


class WhyWaiting(Struct, frozen=True):
    """Why a job waits. ``start`` is when Slurm expects it to start, as it writes it, or None.

    ``ahead`` counts the jobs of its partition that go first, where it was asked; ``expected`` says
    the start as people do.
    """

    words: str
    fix: str = ""
    start: str | None = None
    ahead: int | None = None
    expected: str = ""

    def text(self) -> str:
        """All in one line."""
        parts = [self.words]
        if self.expected:
            parts.append(self.expected)
        return "; ".join(parts) + (f" ({self.fix})" if self.fix else "")


def find_whys(
    context: Context, jobs: Sequence[Waiting], *, count_ahead: bool = False
) -> dict[str, WhyWaiting]:
    """Explain why jobs wait, by job id. Never raises: what Slurm does not tell is left out.

    One more squeue is asked if a job waits for another or for a limit, and one scontrol for each
    of a few limits; with ``count_ahead`` also the queue of the partition.
    """
    found: dict[str, WhyWaiting] = {}
    for conf in dict.fromkeys(job.slurm_conf for job in jobs):
        own = [job for job in jobs if job.slurm_conf == conf]
        found |= _of_one_slurm(slurm_transport(context, conf), own, count_ahead=count_ahead)
    return found


def _of_one_slurm(
    transport: Transport, jobs: Sequence[Waiting], *, count_ahead: bool
) -> dict[str, WhyWaiting]:
    is_open = [job for job in jobs if _needs_more(job) or (count_ahead and _in_line(job))]
    told: dict[str, SlurmJob] = {}
    if is_open:
        wanted = list(dict.fromkeys(job.job_id.partition("_")[0] for job in is_open))
        told = {row.job_id: row for row in scheduler.pending(transport, wanted[:1000])}
    limits = _Limits(transport)
    found = {}
    for job in jobs:
        more = told.get(job.job_id)
        limit = parse_limit(job.reason)
        numbers = limits.find(limit, more) if limit is not None and more is not None else None
        why = explain(job.reason, job.job_id, numbers, own=job.own)
        words = why.words
        if more is not None and job.reason == "Dependency":
            words = say_dependency(more.dependency) or words
        start = parse_time(job.start)
        now = datetime.now()
        expected = say_start(start, now) if start and start > now else ""
        if job.reason == "BeginTime" and start and expected:
            words, expected = f"is not to start before {say_time(start, now)}", ""
        ahead = None
        if count_ahead and more is not None and _in_line(job):
            ahead = _count_ahead(transport, more)
            if ahead and job.reason == "Priority":
                words = f"{ahead} job{'s' if ahead > 1 else ''} of its partition go first"
                words = words if ahead > 1 else words.replace("go first", "goes first")
        found[job.job_id] = WhyWaiting(
            words=words,
            fix=why.fix,
            start=job.start if start else None,
            ahead=ahead,
            expected=expected,
        )
    return found


def _needs_more(job: Waiting) -> bool:
    return job.reason == "Dependency" or parse_limit(job.reason) is not None


def _in_line(job: Waiting) -> bool:
    return job.reason in ("Priority", "Resources")


def say_dependency(text: str) -> str:
    """Say which jobs are waited for, as squeue's %E has it; "" where it says nothing known.

    >>> say_dependency("afterok:12(unfulfilled),afterany:7_*(unfulfilled)")
    'waits for job 12 to end well and job 7 to end'
    >>> say_dependency("singleton(unfulfilled)"), say_dependency("(null)")
    ('waits for an earlier job of the same name to end', '')
    """
    endings = {
        "afterok": "to end well",
        "afterany": "to end",
        "afternotok": "to fail",
        "after": "to start",
        "aftercorr": "to end well, task by task",
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


class _Limits:
    """Asks for limits, each once, and not for many."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.texts: dict[tuple[str, ...], str] = {}

    def find(self, limit: Limit, job: SlurmJob) -> Numbers | None:
        argv = show_limits_argv(limit, job.qos, job.account)
        key = tuple(argv)
        if key not in self.texts:
            if len(self.texts) >= _LIMITS:
                return None
            self.texts[key] = scheduler.show(self.transport, argv)
        return find_numbers(self.texts[key], limit, user=job.user, uid=job.uid, account=job.account)


def _count_ahead(transport: Transport, job: SlurmJob) -> int | None:
    """Count the jobs of the partition that wait with a higher priority; None: not to be told."""
    if not job.priority.isdigit() or not job.partition:
        return None
    others = scheduler.pending(transport, partition=job.partition)
    own = job.job_id.partition("_")[0]
    priorities = [int(row.priority) for row in others if row.priority.isdigit()]
    is_seen = any(row.job_id.partition("_")[0] == own for row in others)
    return sum(each > int(job.priority) for each in priorities) if is_seen else None


def parse_time(text: str) -> datetime | None:
    """Read a time as squeue and sacct write it, in the local time of who asks; else None.

    >>> parse_time("2026-11-20T13:51:15"), parse_time("N/A")
    (datetime.datetime(2026, 11, 20, 13, 51, 15), None)
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def is_foreseen(start: datetime, now: datetime) -> bool:
    """Tell whether an expected start means anything: Slurm gives one decades away for "never"."""
    return start - now < timedelta(days=366)


def say_start(start: datetime, now: datetime) -> str:
    """Say when a job is expected to start.

    >>> now = datetime(2026, 11, 20, 13, 0)
    >>> say_start(datetime(2026, 11, 20, 18, 5), now), say_start(datetime(2282, 1, 31), now)
    ('expected to start 18:05', 'no start is foreseen')
    """
    if not is_foreseen(start, now):
        return NOT_FORESEEN
    return f"expected to start {say_time(start, now)}"


def say_time(then: datetime, now: datetime) -> str:
    """Write a time shortly, as seen from now.

    >>> now = datetime(2026, 11, 20, 13, 0)
    >>> say_time(datetime(2026, 11, 20, 18, 5), now), say_time(datetime(2026, 11, 21, 9, 0), now)
    ('18:05', 'tomorrow 09:00')
    >>> say_time(datetime(2026, 12, 24, 9, 0), now)
    '2026-12-24 09:00'
    """
    days = (then.date() - now.date()).days
    if days == 0:
        return f"{then:%H:%M}"
    if days == 1:
        return f"tomorrow {then:%H:%M}"
    return f"{then:%Y-%m-%d %H:%M}"
