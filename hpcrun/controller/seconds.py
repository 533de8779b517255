"""Reads times as people type them."""

from __future__ import annotations

import re

from hpcrun.errors import InputError

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """Read a time as timeout(1) has it: 90, 90s, 15m, 2.5h, 1d, 1h30m. Raises InputError.

    >>> seconds("90"), seconds("1h30m"), seconds("0.5m")
    (90.0, 5400.0, 30.0)
    """
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InputError(f"{text}: no time", fix="seconds, or as in 15m, 2h, 1h30m, 1d")
    if len(parts) > 1 and any(not unit for _, unit in parts):
        raise InputError(f"{text}: which unit?", fix="as in 15m, 2h, 1h30m, 1d")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
