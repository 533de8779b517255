"""Formatting of numbers for reports and views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

GIB = 2.0**30
# The square of a larger value would overflow.
LARGEST = 1e140
_BARS = "▁▂▃▄▅▆▇█"


def is_whole_number(text: str) -> bool:
    """Return True if a text consists of ASCII digits that int() reads.

    str.isdigit() accepts superscripts, which int() refuses, as it refuses thousands of digits.

    >>> [is_whole_number(text) for text in ("12", "", "-1", "²", "٣", "1" * 5000)]
    [True, False, False, False, False, False]
    """
    return text.isascii() and text.isdecimal() and len(text) < 1000


def format_value(value: float) -> str:
    """Format a metric with four significant digits, without an exponent if it stays short.

    >>> [format_value(v) for v in (2.0, 2.31456, 1.5e-05, 123456.7, 0.0, float("nan"))]
    ['2.000', '2.315', '1.5e-05', '123457', '0', 'nan']
    """
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e7 or size < 1e-2:
        digits, _, exponent = f"{value:.3e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{exponent}"
    if size >= 1000:
        return f"{value:.0f}"
    return f"{value:.{max(0, 3 - math.floor(math.log10(size)))}f}" if size >= 1 else f"{value:.4f}"


def format_rate(value: float) -> str:
    """Format a rate per second.

    >>> format_rate(21034.4), format_rate(3.14159)
    ('21,034', '3.142')
    """
    return f"{value:,.0f}" if value >= 1000 else format_value(value)


def format_seconds(value: float) -> str:
    """Format a short duration, such as that of a step.

    >>> [format_seconds(v) for v in (0.0123, 0.19, 1.5, 86.5, 4020.0)]
    ['12.3 ms', '190 ms', '1.50 s', '86.5 s', '1 h 7 min']
    """
    if not math.isfinite(value):
        return str(value)
    if value < 0.0995:
        return f"{value * 1000:.1f} ms"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value >= 600:
        return format_duration(value)
    return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"


def format_clock(seconds: float | None) -> str:
    """Format a time as hours, minutes and seconds.

    >>> format_clock(3725), format_clock(62), format_clock(None)
    ('1:02:05', '1:02', '-')
    """
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_duration(seconds: float) -> str:
    """Format a duration in its two largest units.

    >>> [format_duration(v) for v in (4.2, 90.0, 7800.0, 200000.0)]
    ['4 s', '1 min 30 s', '2 h 10 min', '2 d 7 h']
    """
    whole = round(seconds)
    for unit, size, below, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {below}"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def format_bytes(value: float) -> str:
    """Format an amount of memory in GiB.

    >>> format_bytes(459000000), format_bytes(51.5e9)
    ('0.43 GiB', '48.0 GiB')
    """
    gib = value / GIB
    return f"{gib:.2f} GiB" if gib < 9.995 else f"{gib:.1f} GiB"


def format_size(value: int) -> str:
    """Format a file size in units of powers of 1024; KiB are whole numbers, as in du(1).

    >>> format_size(0), format_size(5_000_000), format_size(3 << 40)
    ('0 KiB', '4.8 MiB', '3.0 TiB')
    """
    for unit, size in (("TiB", 1 << 40), ("GiB", GIB), ("MiB", 1 << 20)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{-(-value // 1024)} KiB"


def format_count(number: int, noun: str) -> str:
    """Format a count with its noun.

    >>> format_count(1, "file"), format_count(12000, "line")
    ('1 file', '12,000 lines')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_sweep_size(runs: int, limit: int) -> str:
    """Format the number of runs of a sweep, and how many of them may run at once.

    >>> format_sweep_size(6, 4), format_sweep_size(2, 4)
    ('6 runs, at most 4 at a time', '2 runs')
    """
    size = format_count(runs, "run")
    return f"{size}, at most {limit} at a time" if limit < runs else size


def json_number(value: float) -> float | str:
    """Return a value that JSON can represent.

    >>> json_number(2.5), json_number(float("nan")), json_number(float("-inf"))
    (2.5, 'NaN', '-Infinity')
    """
    names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return value if math.isfinite(value) else names[str(value)]


def sparkline(y: Sequence[float], width: int) -> str:
    """Draw the course of a metric in one row: the mean of each of ``width`` parts.

    >>> sparkline([0.0, 1.0, 2.0, 3.0], 4), sparkline([1.0, 1.0], 4), sparkline([1.0], 4)
    ('▁▃▆█', '▄▄', '')
    """
    finite = [value for value in y if abs(value) < LARGEST]
    parts = min(width, len(finite))
    if parts < 2:
        return ""
    bounds = [round(part * len(finite) / parts) for part in range(parts + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(bounds) if b > a]
    low, high = min(means), max(means)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        return _BARS[3] * len(means)
    top = len(_BARS) - 1
    return "".join(_BARS[round((mean - low) / (high - low) * top)] for mean in means)


def format_ranges(numbers: Sequence[int]) -> str:
    """Format sorted numbers as ranges.

    >>> format_ranges([0, 1, 2, 5])
    '0-2,5'
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)
