"""When a line was written, as far as it says so."""

from __future__ import annotations

import re

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_TIME = r"[T _](\d\d):(\d\d):(\d\d(?:[.,]\d+)?)"
# ISO's, as loggers, Slurm and torchrun write it; HF's; syslog's; glog's and torch's, E1120 is one.
_STAMP = re.compile(
    rf"(?:\d{{4}}[-/](?P<a>\d\d)[-/](?P<b>\d\d)|(?P<c>\d\d)/(?P<d>\d\d)/\d{{4}}"
    rf"|(?P<e>{'|'.join(_MONTHS)}) +(?P<f>\d\d?)|(?<![A-Za-z])[EWIF](?P<g>\d\d?)(?P<h>\d\d))"
    rf"{_TIME}(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
# A later time in a line is what the line tells of.
_BEGIN = 100


def when(line: str) -> tuple[bool, float] | None:
    """Read the time at which a line was written: whether with its zone, and seconds of the year.

    Months have 31 days: times are only compared.

    >>> when("2026-01-01 00:00:30,5 INFO step 1"), when("[rank3]:[E101 00:00:30.5 x.cpp:1] no")
    ((False, 30.5), (False, 30.5))
    >>> when("01/02/2026 00:00:00 - INFO"), when("Jan  2 00:00:00 node1 kernel: oom")
    ((False, 86400.0), (False, 86400.0))
    >>> when("2026-01-01T00:00:00.25Z stderr F no"), when("no time at all: 12:30")
    ((True, 0.25), None)
    """
    found = _STAMP.search(line, 0, _BEGIN)
    if found is None:
        return None
    month = found["a"] or found["c"] or found["g"] or str(_MONTHS.index(found["e"]) + 1)
    day = found["b"] or found["d"] or found["f"] or found["h"]
    hours, minutes, seconds = (float(part.replace(",", ".")) for part in found.groups()[8:11])
    days = 31 * (int(month) - 1) + int(day) - 1
    return found["zone"] is not None, days * 86400 + hours * 3600 + minutes * 60 + seconds


def last_time(text: bytes) -> tuple[bool, float] | None:
    """Read the last time that lines tell.

    >>> last_time(b"Jan  2 00:00:00 a\\nplain\\n")
    (False, 86400.0)
    """
    for line in reversed(text.decode("utf-8", "replace").splitlines()):
        if (found := when(line)) is not None:
            return found
    return None
