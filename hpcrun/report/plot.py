"""Lines in a terminal: axes, ticks and curves as text.

Effects: plotext keeps one figure for the process, which is cleared and drawn upon here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import plotext
from msgspec import Struct

from hpcrun.report.text import format_value, shorten

# Below this there is no room for a line between the axes; the caller gets no plot.
SMALLEST_WIDTH = 24
SMALLEST_HEIGHT = 6
LARGEST_WIDTH = 500
LARGEST_HEIGHT = 200

# Of the 16 colours of every terminal theme, blue last (dark on many): cyan, red, green, magenta ...
_COLOURS = (6, 1, 2, 5, 3, 4)
_MARKS = "*o+x#@%&"
_ASCII = str.maketrans("┌┐└┘─│┬┤├┴┼", "++++-|+++++")


class Line(Struct, frozen=True):
    """A labelled curve; values that are not finite leave a gap."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def plot_lines(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    width: int,
    height: int,
    colour: bool,
    ascii_only: bool,
) -> str:
    """Draw lines into ``width`` x ``height`` characters, title, ticks and legend included.

    Without colour, several lines are told apart by their marks. The text is empty if there is
    nothing to draw or no room (under 24 x 6), and ends with a line feed otherwise.
    """
    lines = [line for line in lines if any(map(math.isfinite, line.y))]
    width, height = min(width, LARGEST_WIDTH), min(height, LARGEST_HEIGHT)
    marks_differ = ascii_only or (len(lines) > 1 and not colour)
    heading = [shorten(f"{title} by {x_label}", width, ascii_only=ascii_only)]
    if len(lines) > 1:
        heading += _legend(lines, width, colour=colour, marks=marks_differ, ascii_only=ascii_only)
    canvas_height = height - len(heading)
    if not lines or width < SMALLEST_WIDTH or canvas_height < SMALLEST_HEIGHT - 1:
        return ""

    x_low, x_high = _range([x for line in lines for x in line.x], pad=0.0)
    y_low, y_high = _range([y for line in lines for y in line.y if math.isfinite(y)], pad=0.02)
    y_ticks = ticks(y_low, y_high, max(3, (canvas_height - 3) // 3))
    x_ticks = ticks(x_low, x_high, max(2, width // 16), whole=True)
    columns = 2 * width

    figure = plotext.figure
    plotext.terminal.limit(False, False)
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, canvas_height)
    # plotext (6.1) gets places between 0 and 1 only: of values that lie close together it warns
    # on standard output, at values far outside its limits its kernel aborts the process.
    for index, line in enumerate(lines):
        places = thin(
            [_place(x, x_low, x_high) for x in line.x],
            [_place(y, y_low, y_high) for y in line.y],
            columns,
        )
        mark = plotext.marker(
            _MARKS[index % len(_MARKS)] if marks_differ else "braille",
            pixel=plotext.pixel(foreground=_COLOURS[index % len(_COLOURS)]) if colour else None,
        )
        for part in _unbroken(places):
            signal = figure.signal([x for x, _ in part], [y for _, y in part], marker=mark)
            figure.draw(signal.lines())
    figure.ruler("x").lim(0, 1)
    figure.ruler("y").lim(0, 1)
    figure.ruler("x").ticks([_place(x, x_low, x_high) for x in x_ticks], _labels(x_ticks))
    figure.ruler("y").ticks([_place(y, y_low, y_high) for y in y_ticks], _labels(y_ticks))
    text: str = figure.build().string(not colour)
    figure.clear()
    if ascii_only:
        text = text.translate(_ASCII)
    return "\n".join([*heading, *(row.rstrip() for row in text.rstrip("\n").split("\n"))]) + "\n"


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Return at most ``most`` round numbers, evenly spread, within ``low`` and ``high``.

    >>> ticks(0.93, 4.1, 5), ticks(1, 200, 4, whole=True), ticks(1, 3, 9, whole=True)
    ([1.0, 2.0, 3.0, 4.0], [50.0, 100.0, 150.0, 200.0], [1.0, 2.0, 3.0])
    """
    exponent = math.floor(math.log10((high - low) / max(1, most))) if high > low else 0
    for power in range(exponent, exponent + 3):
        for digit in (1.0, 2.0, 2.5, 5.0):
            step = digit * 10.0**power
            if whole and step != int(step):
                continue
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
            if last - first < most:
                return [number * step for number in range(first, last + 1)]
    return []


def thin(x: Sequence[float], y: Sequence[float], columns: int) -> list[tuple[float, float]]:
    """Thin a curve to what can be seen: first, lowest, highest and last of each column.

    ``x`` lies between 0 and 1 and grows. A value that is not finite stays, as nan, so that the
    gap stays.

    >>> thin([0.0, 0.1, 0.2, 0.3, 1.0], [1.0, 9.0, 5.0, 2.0, 3.0], 2)
    [(0.0, 1.0), (0.1, 9.0), (0.3, 2.0), (1.0, 3.0)]
    """
    kept: list[tuple[float, float]] = []
    start = 0
    while start < len(x):
        column = min(int(x[start] * columns), columns - 1)
        end = start
        while end < len(x) and min(int(x[end] * columns), columns - 1) == column:
            end += 1
        inside = range(start, end)
        finite = [index for index in inside if math.isfinite(y[index])]
        chosen = {start, end - 1}
        if finite:
            chosen |= {min(finite, key=y.__getitem__), max(finite, key=y.__getitem__)}
        if len(finite) < len(inside):
            chosen.add(next(index for index in inside if not math.isfinite(y[index])))
        kept += [(x[i], y[i] if math.isfinite(y[i]) else math.nan) for i in sorted(chosen)]
        start = end
    return kept


def _unbroken(places: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    parts: list[list[tuple[float, float]]] = [[]]
    for place in places:
        if math.isnan(place[1]):
            parts.append([])
        else:
            parts[-1].append(place)
    return [part for part in parts if part]


def _place(value: float, low: float, high: float) -> float:
    """Return where a value stands between two others, from 0 to 1; nan if it is not finite.

    >>> _place(3.0, 2.0, 4.0), _place(9.0, 2.0, 4.0), _place(math.inf, 2.0, 4.0)
    (0.5, 1.0, nan)
    """
    if not math.isfinite(value):
        return math.nan
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _range(values: Sequence[float], *, pad: float) -> tuple[float, float]:
    """Return the range to show; never empty, and narrow enough for its width to be a number."""
    largest = 1e300
    low, high = max(min(values), -largest), min(max(values), largest)
    margin = (high - low) * pad
    if high - low <= max(1e-9 * max(abs(low), abs(high)), 1e-300):
        margin = abs(high) * 0.05 if abs(high) > 1e-290 else 1.0
    return low - margin, high + margin


def _labels(at: Sequence[float]) -> list[str]:
    """Print ticks with as many decimals as tell one from the next.

    >>> _labels([0.0, 0.5, 1.0]), _labels([2e-05, 4e-05]), _labels([500.0, 10000.0])
    (['0.0', '0.5', '1.0'], ['2e-05', '4e-05'], ['500', '10000'])
    """
    gap = min((b - a for a, b in pairwise(at)), default=0.0)
    if gap <= 0 or gap < 1e-4 or max(map(abs, at)) >= 1e6:
        return [format_value(value) if value else "0" for value in at]
    decimals = next(
        (d for d in range(6) if abs(gap * 10**d - round(gap * 10**d)) < 1e-6 * gap * 10**d), 6
    )
    return [f"{value:.{decimals}f}" for value in at]


def _legend(
    lines: Sequence[Line], width: int, *, colour: bool, marks: bool, ascii_only: bool
) -> list[str]:
    """Return the rows that name the lines, as few as hold them all."""
    rows: list[str] = []
    room = 0
    for index, line in enumerate(lines):
        label = shorten(line.label, max(1, width - 4), ascii_only=ascii_only)
        mark = _MARKS[index % len(_MARKS)] if marks else "━"
        shown = f"\x1b[38;5;{_COLOURS[index % len(_COLOURS)]}m{mark}\x1b[0m" if colour else mark
        if not rows or room < len(label) + 5:
            rows.append(f" {shown} {label}")
            room = width - len(label) - 3
        else:
            rows[-1] += f"   {shown} {label}"
            room -= len(label) + 5
    return rows
