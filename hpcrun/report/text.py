"""Numbers and names as the reports print them."""

from __future__ import annotations

import math
import unicodedata

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
    """Print the duration of something short, as a step.

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


def format_duration(seconds: float) -> str:
    """Print how long something takes, in its two largest units.

    >>> [format_duration(v) for v in (4.2, 90.0, 7800.0, 200000.0)]
    ['4 s', '1 min 30 s', '2 h 10 min', '2 d 7 h']
    """
    whole = round(seconds)
    for unit, size, below, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {below}"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def format_bytes(value: float) -> str:
    """Print an amount of memory in GiB.

    >>> format_bytes(459000000), format_bytes(51.5e9)
    ('0.43 GiB', '48.0 GiB')
    """
    gib = value / GIB
    return f"{gib:.2f} GiB" if gib < 9.995 else f"{gib:.1f} GiB"


def format_size(value: int) -> str:
    """Print the size of files, in bytes, by the powers of 1024; whole KiB, as du(1) has them.

    >>> format_size(0), format_size(5_000_000), format_size(3 << 40)
    ('0 KiB', '4.8 MiB', '3.0 TiB')
    """
    for unit, size in (("TiB", 1 << 40), ("GiB", GIB), ("MiB", 1 << 20)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{-(-value // 1024)} KiB"


def count_of(number: int, noun: str) -> str:
    """Print a number of things.

    >>> count_of(1, "file"), count_of(12000, "line")
    ('1 file', '12,000 lines')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(text: str, *, ascii_only: bool = False) -> str:
    r"""Replace what could command a terminal, or what its encoding lacks, by question marks.

    >>> printable("a\x1b[2J\u3042"), printable("\u3042", ascii_only=True)
    ('a?[2J\u3042', '?')
    """
    if ascii_only:
        text = text.encode("ascii", "replace").decode()
    return "".join(char if char.isprintable() else "?" for char in text)


def cells(text: str) -> int:
    """Count the columns that a text takes in a terminal.

    >>> cells("abc"), cells("損失"), cells("e\u0301")
    (3, 4, 1)
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def shorten(text: str, width: int, *, ascii_only: bool = False) -> str:
    """Make a name printable and cut it to ``width`` columns; the end, where names differ, stays.

    >>> shorten("runs/20261120-zero2/logs/0.log", 12), shorten("abcdef", 4, ascii_only=True)
    ('…/logs/0.log', '..ef')
    """
    text = printable(text, ascii_only=ascii_only)
    if cells(text) <= width:
        return text
    mark = ".." if ascii_only else "…"
    if width <= len(mark):
        return mark[: max(0, width)]
    while text and cells(text) > width - len(mark):
        text = text[1:]
    return mark + text


def wrap(text: str, width: int, indent: int = 0) -> list[str]:
    """Break a text into rows of at most ``width`` columns, all but the first indented.

    >>> wrap("loss is nan at step 91", 12, 2)
    ['loss is nan', '  at step 91']
    >>> wrap("abcdefgh", 4)
    ['abcd', 'efgh']
    """
    width = max(width, indent + 1, 1)
    rows, row, is_empty = [], "", True
    for word in text.split(" "):
        if not is_empty and cells(row) + 1 + cells(word) <= width:
            row += " " + word
            continue
        if not is_empty:
            rows.append(row)
            row = " " * indent
        while cells(row) + cells(word) > width:
            cut = max(1, _fitting(word, width - cells(row)))
            rows.append(row + word[:cut])
            row, word = " " * indent, word[cut:]
            if not word:
                break
        row, is_empty = row + word, False
    return [*rows, row]


def cut(text: str, width: int) -> str:
    """Keep the begin of a text that fits into ``width`` columns.

    >>> cut("abcdef", 4), cut("損失", 3)
    ('abcd', '損')
    """
    return text if cells(text) <= width else text[: _fitting(text, width)]


def _fitting(text: str, width: int) -> int:
    """Count the leading characters that fit."""
    taken = 0
    for number, char in enumerate(text):
        taken += cells(char)
        if taken > width:
            return number
    return len(text)


def pad(text: str, width: int) -> str:
    """Fill a text up with blanks to ``width`` columns.

    >>> pad("損失", 6)
    '損失  '
    """
    return text + " " * (width - cells(text))
