"""Numbers and names as the reports print them.

Pure.
"""

from __future__ import annotations

import math

GIB = 2.0**30


def format_value(value: float) -> str:
    """Print a metric with four significant digits, without an exponent where it stays short.

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
    """Print a rate per second.

    >>> format_rate(21034.4), format_rate(3.14159)
    ('21,034', '3.142')
    """
    return f"{value:,.0f}" if value >= 1000 else format_value(value)


def format_seconds(value: float) -> str:
    """Print a duration.

    >>> [format_seconds(v) for v in (0.0123, 0.19, 1.5, 86.5)]
    ['12.3 ms', '190 ms', '1.50 s', '86.5 s']
    """
    if value < 0.0995:
        return f"{value * 1000:.1f} ms"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"


def format_bytes(value: float) -> str:
    """Print an amount of memory in GiB.

    >>> format_bytes(459000000), format_bytes(51.5e9)
    ('0.43 GiB', '48.0 GiB')
    """
    gib = value / GIB
    return f"{gib:.2f} GiB" if gib < 9.995 else f"{gib:.1f} GiB"


def shorten(text: str, width: int, *, ascii_only: bool = False) -> str:
    """Cut a name to ``width`` characters; the end, where names differ, stays.

    >>> shorten("runs/20261120-zero2/logs/0.log", 12), shorten("abcdef", 4, ascii_only=True)
    ('…/logs/0.log', '..ef')
    """
    if ascii_only:
        text = text.encode("ascii", "replace").decode()
    # A control character in a file name must not reach the terminal.
    text = "".join(char if char.isprintable() else "?" for char in text)
    if len(text) <= width:
        return text
    mark = ".." if ascii_only else "…"
    return (mark + text[len(text) - max(0, width - len(mark)) :])[: max(0, width)]
