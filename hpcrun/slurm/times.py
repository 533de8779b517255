"""Times as Slurm writes them."""

from __future__ import annotations

from hpcrun.patterns import pattern_of

# Of a job without a limit Slurm also says a year, which it counts with then.
_NO_LIMIT = frozenset({"UNLIMITED", "365-00:00:00"})

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


def is_unlimited(limit: str) -> bool:
    """Tell whether a job's time limit, as squeue and sacct print it, is none.

    >>> is_unlimited("UNLIMITED"), is_unlimited("365-00:00:00"), is_unlimited("7-00:00:00")
    (True, True, False)
    """
    return limit in _NO_LIMIT


def say_limit(limit: str) -> str:
    """Say a job's time limit behind the time that it has run; "" where it is not known.

    >>> say_limit("1:00:00"), say_limit("UNLIMITED"), say_limit("")
    ('of 1:00:00', 'without a limit', '')
    """
    if is_unlimited(limit):
        return "without a limit"
    return f"of {limit}" if limit else ""
