"""Time limits and durations: Slurm's own grammar, and times with units such as 2h or 1d12h."""

from __future__ import annotations

import re

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def parse_seconds(text: str) -> float:
    """Parse a time limit as seconds: Slurm's text (sbatch.1, --time), or a time with units.

    >>> parse_seconds("90"), parse_seconds("1:30"), parse_seconds("24:00:00"), parse_seconds("2-12")
    (5400, 90, 86400, 216000)
    >>> parse_seconds("2h"), parse_seconds("1d12h"), parse_seconds("UNLIMITED")
    (7200, 129600, inf)
    """
    if not re.match("[0-9]", text):
        return float("inf")
    if text[-1] in _UNITS:
        return duration_seconds(text)
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    # days-hours[:minutes[:seconds]], or minutes, or [hours:]minutes:seconds
    parts = [*parts, 0, 0][:3] if dash else [*parts, 0] if len(parts) == 1 else parts
    total = 0
    for part in parts:
        total = total * 60 + part
    return int(days or 0) * 86400 + total


def duration_seconds(text: str) -> int:
    """Parse a duration with units as seconds.

    >>> duration_seconds("90s"), duration_seconds("5m"), duration_seconds("1h30m")
    (90, 300, 5400)
    """
    return sum(int(count) * _UNITS[unit] for count, unit in re.findall("([0-9]+)([dhms])", text))


def slurm_time(text: str) -> str:
    """Convert a time with units to Slurm's format; any other text is returned unchanged.

    >>> slurm_time("2h"), slurm_time("1d12h"), slurm_time("90s"), slurm_time("1-12")
    ('2:00:00', '36:00:00', '0:01:30', '1-12')
    """
    if not re.fullmatch("([0-9]+[dhms])+", text):
        return text
    minutes, seconds = divmod(duration_seconds(text), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def suspicious_limit(text: str, nodes: int) -> str:
    """Explain a time limit that is probably not intended; "" otherwise.

    >>> suspicious_limit("2:00", 1)
    '2:00 is 2 minutes to Slurm (minutes:seconds); 2h, or 2:00:00, is 2 hours'
    >>> suspicious_limit("3", 2), suspicious_limit("30", 2)
    ('3 is 3 minutes to Slurm, hardly enough to start 2 nodes; 3h, or 3:00:00, is 3 hours', '')
    """
    short = re.fullmatch(r"([0-9]{1,3})(:00)?", text)
    if short is None:
        limit = parse_seconds(text)
        is_short = 0 < limit < 300 and nodes > 1
        return f"{text}: {limit:g} s, hardly enough to start {nodes} nodes" if is_short else ""
    count = int(short[1])
    if not count or (short[2] is None and not (count < 5 and nodes > 1)):
        return ""
    how = " (minutes:seconds)" if short[2] else f", hardly enough to start {nodes} nodes"
    what = "1 minute" if count == 1 else f"{count} minutes"
    hours = "1 hour" if count == 1 else f"{count} hours"
    return f"{text} is {what} to Slurm{how}; {count}h, or {count}:00:00, is {hours}"
