"""Draw curves in a terminal, with axes and distinct marks.

A single noisy curve is drawn twice: the raw values faintly, and the smoothed curve above. Several
noisy curves are drawn only smoothed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct, structs

from hpcrun.curves.report.axes import Axis, is_noisy, smooth, step_axis, tick_labels, value_axis
from hpcrun.text import Display, text_width, truncate_start

# In smaller windows no curve fits between the axes, and the plot is omitted.
SMALLEST_WIDTH = 24
SMALLEST_HEIGHT = 6
LARGEST_WIDTH = 500
LARGEST_HEIGHT = 200

# Colours of xterm's 256-colour palette with a WCAG contrast of about 4:1 on both black and white.
_COLOURS = tuple(f"38;5;{n}" for n in (30, 166, 163, 28, 33, 160, 94, 98, 64, 168, 67, 130))
_MARKS = "*o+x#@%&ABCDEFGHIJKLMNPQRSTUVWXYZ"
_ASCII = str.maketrans("┤│└─┬┊━·", "||+-+:*.")
# Braille patterns (Unicode 15): U+2800 plus one bit per dot, indexed by column and row of the dot.
_BLANK = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


class Style(Struct, frozen=True):
    """The appearance of a layer.

    Attributes:
        mark: Character to draw; "" for braille dots.
        sgr: ECMA-48 SGR parameters of the colour, such as "1;36".
        is_faint: Whether layers above replace this layer instead of being merged with it.
    """

    mark: str = ""
    sgr: str = ""
    is_faint: bool = False


class Line(Struct, frozen=True):
    """A labelled curve; non-finite values leave gaps.

    Attributes:
        label: Name in the legend.
        x: Increasing x coordinates.
        y: Values.
        is_points: Whether to draw separate points, below the curves.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    is_points: bool = False


class PlottedLine(Struct, frozen=True):
    """A line that is ready to be drawn, in axis positions from 0 to 1.

    Attributes:
        line: The original line.
        places: Points of the curve.
        style: Appearance of the curve.
        raw: Points of the unsmoothed curve, drawn faintly below; may be empty.
        is_smoothed: Whether the values were noisy and have been smoothed.
        broken: x positions of non-finite values.
    """

    line: Line
    places: list[tuple[float, float]]
    style: Style
    raw: list[tuple[float, float]]
    is_smoothed: bool
    broken: set[float]


def line_sgr(index: int) -> str:
    """Return the colour of a line as ECMA-48 SGR parameters."""
    return _COLOURS[index % len(_COLOURS)]


def line_mark(index: int, look: Display, several: bool) -> str:
    """Return the character that represents a line in legends and tables."""
    if not several or (look.colour and not look.ascii_only):
        return "*" if look.ascii_only else "━"
    return _MARKS[index % len(_MARKS)]


def plot_lines(
    lines: Sequence[Line],
    look: Display,
    *,
    title: str,
    x_label: str,
    verticals: Sequence[float] = (),
) -> str:
    """Draw lines with a title, a legend and axes.

    Args:
        lines: The lines.
        look: Properties of the output, including its size.
        title: Title of the plot.
        x_label: Name of the quantity on the x axis.
        verticals: x coordinates at which the run was restarted.

    Returns:
        The plot, ending in a line feed; "" if there is no data or the window is too small.
    """
    width, height = min(look.width, LARGEST_WIDTH), min(look.height, LARGEST_HEIGHT)
    look = structs.replace(look, width=width, height=height)
    lines = [line for line in lines if any(map(math.isfinite, line.y))]
    if not lines or look.width < SMALLEST_WIDTH:
        return ""
    x_axis = step_axis([x for line in lines for x in line.x])
    y_axis = value_axis([y for line in lines for y in line.y])
    axes = x_axis, y_axis
    drawn = [_prepare(lines, index, axes, look) for index in range(len(lines))]
    restarts = [x for x in verticals if x_axis.holds(x)]
    beyond = sum(math.isfinite(y) and not y_axis.holds(y) for line in lines for y in line.y)
    named = f"{title} by {x_label}"
    if any(line.is_smoothed and not line.raw for line in drawn):
        named += ", noise smoothed"
    if y_axis.is_log:
        named += ", log axis"
    heading = _format_heading(named, _legend_keys(drawn, bool(restarts), beyond, look), look)
    rows = look.height - len(heading) - 2
    if rows < SMALLEST_HEIGHT - 3:
        return ""
    return "\n".join([*heading, *_draw_frame(drawn, restarts, axes, rows, look)]) + "\n"


def _prepare(
    lines: Sequence[Line], index: int, axes: tuple[Axis, Axis], look: Display
) -> PlottedLine:
    line, several = lines[index], len(lines) > 1
    x, y = ([axis.place(v) for v in own] for axis, own in zip(axes, (line.x, line.y), strict=True))
    if len(x) > 16 * look.width:  # smoothing is slow, and more points are not visible
        x, y = map(list, zip(*thin(x, y, 4 * look.width), strict=True))
    smoothed = y if line.is_points else smooth(x, y)
    is_smoothed = is_noisy(y, smoothed)
    is_braille = not look.ascii_only and (look.colour or not (several or is_smoothed))
    sgr = line_sgr(index)
    mark = "" if is_braille else line_mark(index, look, several)
    places = thin(x, smoothed if is_smoothed else y, 2 * look.width)
    if line.is_points:  # gaps separate the points
        mark = "o" if look.ascii_only else "•"
        places = [each for place in places for each in (place, (place[0], math.nan))]
    raw = thin(x, y, 2 * look.width) if is_smoothed and _is_alone(lines) else []
    style = Style(mark, f"1;{sgr}" if raw else sgr)
    # Round to columns, since marks within a column coincide.
    broken = {round(a * look.width) / look.width for a, b in zip(x, y, strict=True) if b != b}
    return PlottedLine(line, places, style, raw, is_smoothed, broken)


def _is_alone(lines: Sequence[Line]) -> bool:
    return sum(not line.is_points for line in lines) == 1


def thin(x: Sequence[float], y: Sequence[float], columns: int) -> list[tuple[float, float]]:
    """Keep the first, lowest, highest and last point and one gap of a curve in each column.

    >>> thin([0.0, 0.1, 0.2, 0.3, 1.0], [1.0, 9.0, 5.0, 2.0, 3.0], 2)
    [(0.0, 1.0), (0.1, 9.0), (0.3, 2.0), (1.0, 3.0)]
    """
    column = np.minimum(np.array(x) * columns, columns - 1).astype(int)
    starts = np.flatnonzero(np.diff(column, prepend=-1)).tolist()
    kept: list[tuple[float, float]] = []
    for start, end in pairwise([*starts, len(x)]):
        finite = [index for index in range(start, end) if math.isfinite(y[index])]
        gaps = [index for index in range(start, end) if not math.isfinite(y[index])]
        chosen = {start, end - 1, *gaps[:1]}
        if finite:
            chosen |= {min(finite, key=y.__getitem__), max(finite, key=y.__getitem__)}
        kept += [(x[i], y[i] if math.isfinite(y[i]) else math.nan) for i in sorted(chosen)]
    return kept


def _legend_keys(
    drawn: Sequence[PlottedLine], restarts: bool, beyond: int, look: Display
) -> list[tuple[Style, str]]:
    several, is_alone = len(drawn) > 1, _is_alone([each.line for each in drawn])
    keys: list[tuple[Style, str]] = []
    for index, line in enumerate(drawn):
        mark = line.style.mark if line.line.is_points else line_mark(index, look, several)
        label = [line.line.label] if is_alone and several else []
        if line.raw:
            keys.append((Style("·", f"2;{line_sgr(index)}"), "raw"))
            label.append("smoothed")
        if label:
            keys.append((Style(mark, line.style.sgr), " ".join(label)))
    if restarts:
        keys.append((Style("┊", "2"), "restart"))
    if any(line.broken for line in drawn):
        keys.append((Style("!", "31"), "nan or inf"))
    if beyond:
        keys.append((Style(), f"{beyond} beyond the axis"))
    return keys


def _format_heading(title: str, keys: Sequence[tuple[Style, str]], look: Display) -> list[str]:
    """Format the title and the legend keys in as few rows as possible."""
    title = truncate_start(title, look.width, look)
    rows, room = [title], look.width - text_width(title)
    for style, meaning in keys:
        mark = style.mark.translate(_ASCII) if look.ascii_only else style.mark
        gap = 1 if mark else 0
        meaning = truncate_start(meaning, look.width - 3, look)
        size = text_width(mark) + gap + text_width(meaning)
        shown = f"\x1b[{style.sgr}m{mark}\x1b[0m" if look.colour and style.sgr else mark
        text = shown + " " * gap + meaning
        if room < size + 3:
            rows.append(" " + text)
            room = look.width - 1 - size
        else:
            rows[-1] += "   " + text
            room -= size + 3
    return rows


def _draw_frame(
    drawn: Sequence[PlottedLine],
    restarts: Sequence[float],
    axes: tuple[Axis, Axis],
    rows: int,
    look: Display,
) -> list[str]:
    """Draw the lines, a y axis on the left and an x axis below, in ``rows`` + 2 rows."""
    x_axis, y_axis = axes
    y_ticks = y_axis.ticks(max(rows // 3, min(5, (rows + 1) // 2)))
    labels = tick_labels(y_ticks, is_log=y_axis.is_log)
    margin = max(map(len, labels), default=0)
    width = look.width - margin - 2
    canvas = Canvas(width, rows)
    for place in restarts:
        canvas.mark(x_axis.place(place), Style("┊", "2"), rows)
    for index, line in enumerate(drawn):
        if line.raw:
            style = Style("." if look.ascii_only else "", f"2;{line_sgr(index)}", is_faint=True)
            canvas.curve(line.raw, style)
    for line in sorted(drawn, key=lambda drawn: not drawn.line.is_points):
        canvas.curve(line.places, line.style)
    for line in drawn:
        for x in line.broken:
            canvas.mark(x, Style("!", "31"))
    at_row = {
        round((1 - y_axis.place(tick)) * (rows - 1)): label
        for tick, label in zip(y_ticks, labels, strict=True)
    }
    framed = [
        f"{at_row.get(number, ''):>{margin}} {'┤' if number in at_row else '│'}{row}"
        for number, row in enumerate(canvas.rows(colour=look.colour))
    ]
    framed += _draw_x_axis(x_axis, margin + 1, width, look)
    return [row.translate(_ASCII) for row in framed] if look.ascii_only else framed


def _draw_x_axis(axis: Axis, indent: int, width: int, look: Display) -> list[str]:
    x_ticks = axis.ticks(max(2, width // 16), whole=True)
    rule, numbers = ["─"] * width, ""
    for tick, label in zip(x_ticks, tick_labels(x_ticks), strict=True):
        column = round(axis.place(tick) * (width - 1))
        rule[column] = "┬"
        begin = indent + 1 + column - len(label) // 2
        begin = min(begin, look.width - len(label))
        if begin >= len(numbers) + (2 if numbers else 0):
            numbers += " " * (begin - len(numbers)) + label
    return [" " * indent + "└" + "".join(rule), numbers]


class Canvas:
    """A grid of characters, on which later drawings cover earlier ones.

    Positions range from 0 to 1, from left to right and from bottom to top. A character that two
    curves share combines the dots of both in the colour of the upper curve; faint curves are
    replaced.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        # Style and character by cell index, in row-major order from the top.
        self.cells: dict[int, tuple[Style, str]] = {}

    def curve(self, points: Iterable[tuple[float, float]], style: Style) -> None:
        """Connect points of increasing ``x`` by lines; a ``y`` of nan leaves a gap."""
        across, down = (1, 1) if style.mark else (2, 4)
        columns, rows = self.width * across, self.height * down
        masks: dict[int, int] = {}
        for column, top, bottom in _column_spans(points, columns, rows):
            bits = _DOTS[column % across]
            for row in range(top, bottom + 1):
                cell = row // down * self.width + column // across
                masks[cell] = masks.get(cell, 0) | bits[row % down]
        for cell, mask in masks.items():
            if cell in self.cells and not style.mark:
                below, char = self.cells[cell]
                mask |= 0 if below.mark or below.is_faint else ord(char) - _BLANK
            self.cells[cell] = (style, style.mark or chr(_BLANK + mask))

    def mark(self, x: float, style: Style, height: int = 1) -> None:
        """Draw a column of ``height`` characters from the bottom up."""
        column = round(x * (self.width - 1))
        for row in range(self.height - height, self.height):
            self.cells[row * self.width + column] = (style, style.mark)

    def rows(self, *, colour: bool) -> list[str]:
        found = []
        for row in range(self.height):
            text, now, end = "", "", row * self.width
            for cell in range(end, end + self.width):
                if cell not in self.cells:
                    continue
                style, char = self.cells[cell]
                text += " " * (cell - end)
                end = cell + 1
                if colour and style.sgr != now:
                    text += "\x1b[0m" if now else ""
                    text += f"\x1b[{style.sgr}m" if style.sgr else ""
                    now = style.sgr
                text += char
            found.append(text + ("\x1b[0m" if now else ""))
        return found


def _column_spans(
    points: Iterable[tuple[float, float]], columns: int, rows: int
) -> list[tuple[int, int, int]]:
    """Return (column, top row, bottom row) for each column that the curve crosses.

    >>> _column_spans([(0.0, 1.0), (1.0, 0.0)], 3, 3)
    [(0, 0, 0), (1, 1, 1), (2, 2, 2)]
    >>> _column_spans([(0.0, 1.0), (0.0, 0.0), (0.5, math.nan), (1.0, 0.0)], 3, 3)
    [(0, 0, 2), (2, 2, 2)]
    """
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    last, gaps = None, 0
    for x, y in points:
        if math.isnan(y):
            last, gaps = None, gaps + 1
            continue
        place = (x * (columns - 1), (1 - y) * (rows - 1))
        for column, top, bottom in _split_by_column(last or place, place):
            before = spans.get((gaps, column), (top, bottom))
            spans[gaps, column] = min(top, before[0]), max(bottom, before[1])
        last = place
    return [(column, *span) for (_, column), span in spans.items()]


def _split_by_column(
    begin: tuple[float, float], end: tuple[float, float]
) -> Iterator[tuple[int, int, int]]:
    """Split the line between two positions into (column, top row, bottom row)."""
    (x0, y0), (x1, y1) = begin, end
    first, last = round(x0), round(x1)
    slope = (y1 - y0) / (x1 - x0) if last > first else 0.0
    for column in range(first, last + 1):
        a, b = y0, y1
        if last > first:
            a = y0 + slope * (max(x0, column - 0.5) - x0)
            b = y0 + slope * (min(x1, column + 0.5) - x0)
        # A point on the border between two rows belongs to the row of the line's start.
        top, bottom = math.floor(min(a, b) + 0.5), math.ceil(max(a, b) - 0.5)
        yield column, min(top, bottom), max(top, bottom)
