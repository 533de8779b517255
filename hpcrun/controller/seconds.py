"""Reads times as people type them."""

from __future__ import annotations

import re
from datetime import datetime

from hpcrun.errors import InputError

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def seconds(text: str) -> float:
    """Read a time as timeout(1) has it: 90, 90s, 15m, 2.5h, 1d, 1h30m. Raises InputError.

    >>> seconds("90"), seconds("1h30m"), seconds("0.5m")
    (90.0, 5400.0, 30.0)
    """
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)([smhdw]?)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InputError(f"{text}: no time", fix="seconds, or as in 15m, 2h, 1h30m, 1d")
    if len(parts) > 1 and any(not unit for _, unit in parts):
        raise InputError(f"{text}: which unit?", fix="as in 15m, 2h, 1h30m, 1d")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def parse_when(text: str, now: float) -> float:
    """Read 10m, 1h30m, 2026-11-20, 2026-11-20T08:00 or 08:00 (today): seconds since the epoch.

    A time without a zone is local. Raises InputError.

    >>> parse_when("1h30m", 10000.0)
    4600.0
    """
    word = text.strip()
    if re.fullmatch(r"([0-9]+(\.[0-9]+)?[smhdw])+", word.lower()):
        return now - seconds(word.lower())
    if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?", word):
        word = f"{datetime.fromtimestamp(now):%Y-%m-%d}T{word:0>5}"
    try:
        # Python 3.10 reads no Z.
        return datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", word)).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise InputError(
            f"--since {text}: no time",
            fix="as in 10m, 2h, 1d, 08:00, 2026-11-20 or 2026-11-20T08:00",
        ) from error
