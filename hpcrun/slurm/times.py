"""Times as Slurm writes them.

Pure.
"""

from __future__ import annotations

from hpcrun.patterns import pattern_of

_DURATION = pattern_of(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")


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
