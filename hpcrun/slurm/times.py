"""Times as Slurm writes them.

Pure.
"""

from __future__ import annotations

import re
from datetime import datetime

_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")


def parse_duration(text: str) -> float | None:
    """Read ``[days-][hours:]minutes:seconds`` as seconds; None for UNLIMITED and the like.

    >>> parse_duration("1-02:03:04"), parse_duration("5:00"), parse_duration("UNLIMITED")
    (93784.0, 300.0, None)
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_time(text: str) -> datetime | None:
    """Read a time as squeue and sacct write it, in the local time of who asks; else None.

    >>> parse_time("2026-11-20T13:51:15"), parse_time("N/A")
    (datetime.datetime(2026, 11, 20, 13, 51, 15), None)
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


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
