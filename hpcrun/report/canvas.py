"""A canvas of characters: curves as braille dots or marks, one layer over the other.

Places are between 0 and 1, from the left and from below. Where two curves meet in a character it
has the dots of both and the colour of the upper one; what is faint gives way, so that a smoothed
curve stays legible on the noise it was made from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from msgspec import Struct

# Unicode 15, Braille Patterns: U+2800 and a bit for each dot, by column and row of the dot.
_BLANK = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


class Style(Struct, frozen=True):
    """How a layer looks.

    ``mark`` stands for braille dots if not empty; ``sgr`` are ECMA-48 parameters for colour, as
    "1;36"; ``is_faint`` lets what lies above hide it.
    """

    mark: str = ""
    sgr: str = ""
    is_faint: bool = False


class Canvas:
    """A grid of ``width`` x ``height`` characters; what is drawn last lies on top."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        # What is shown by its place, counted row by row from the top.
        self.cells: dict[int, tuple[Style, str]] = {}

    def curve(self, points: Iterable[tuple[float, float]], style: Style) -> None:
        """Join points by lines; an ``y`` that is nan leaves a gap. ``x`` grows."""
        across, down = (1, 1) if style.mark else (2, 4)
        columns, rows = self.width * across, self.height * down
        masks: dict[int, int] = {}
        for column, top, bottom in _spans(points, columns, rows):
            bits = _DOTS[column % across]
            for row in range(top, bottom + 1):
                cell = row // down * self.width + column // across
                masks[cell] = masks.get(cell, 0) | bits[row % down]
        for cell, mask in masks.items():
            if cell in self.cells and not style.mark:
                below, char = self.cells[cell]
                mask |= 0 if below.mark or below.is_faint else ord(char) - _BLANK
            self.cells[cell] = (style, style.mark or chr(_BLANK + mask))

    def vertical(self, x: float, style: Style) -> None:
        """Draw a line from the top to the bottom."""
        column = round(x * (self.width - 1))
        for row in range(self.height):
            self.cells[row * self.width + column] = (style, style.mark)

    def mark(self, x: float, y: float, style: Style) -> None:
        """Draw a single character."""
        column, row = round(x * (self.width - 1)), round((1 - y) * (self.height - 1))
        self.cells[row * self.width + column] = (style, style.mark)

    def rows(self, *, colour: bool) -> list[str]:
        """Return the rows from the top, without blanks at their ends."""
        found = []
        for row in range(self.height):
            parts: list[str] = []
            now, blanks = "", 0
            for cell in range(row * self.width, (row + 1) * self.width):
                if cell not in self.cells:
                    blanks += 1
                    continue
                style, char = self.cells[cell]
                parts.append(" " * blanks)
                blanks = 0
                if colour and style.sgr != now:
                    parts.append("\x1b[0m" if now else "")
                    parts.append(f"\x1b[{style.sgr}m" if style.sgr else "")
                    now = style.sgr
                parts.append(char)
            if now:
                parts.append("\x1b[0m")
            found.append("".join(parts))
        return found


def _spans(
    points: Iterable[tuple[float, float]], columns: int, rows: int
) -> list[tuple[int, int, int]]:
    """Return, for each column that the curve passes, the highest and lowest row that it takes.

    >>> _spans([(0.0, 1.0), (1.0, 0.0)], 3, 3)
    [(0, 0, 0), (1, 1, 1), (2, 2, 2)]
    >>> _spans([(0.0, 1.0), (0.0, 0.0), (0.5, math.nan), (1.0, 0.0)], 3, 3)
    [(0, 0, 2), (2, 2, 2)]
    """
    found: list[tuple[int, int, int]] = []
    spans: dict[int, tuple[int, int]] = {}
    last: tuple[float, float] | None = None
    for x, y in points:
        if math.isnan(y):
            found += [(column, *span) for column, span in spans.items()]
            spans, last = {}, None
            continue
        place = (x * (columns - 1), (1 - y) * (rows - 1))
        for column, top, bottom in _pieces(last or place, place):
            before = spans.get(column, (top, bottom))
            spans[column] = min(top, before[0]), max(bottom, before[1])
        last = place
    return found + [(column, *span) for column, span in spans.items()]


def _pieces(begin: tuple[float, float], end: tuple[float, float]) -> Iterator[tuple[int, int, int]]:
    """Cut the line between two places by columns: column, highest and lowest row of each piece."""
    (x0, y0), (x1, y1) = begin, end
    first, last = round(x0), round(x1)
    slope = (y1 - y0) / (x1 - x0) if last > first else 0.0
    for column in range(first, last + 1):
        a, b = y0, y1
        if last > first:
            a = y0 + slope * (max(x0, column - 0.5) - x0)
            b = y0 + slope * (min(x1, column + 0.5) - x0)
        # A border between two rows belongs to the one that the line comes from.
        top, bottom = math.floor(min(a, b) + 0.5), math.ceil(max(a, b) - 0.5)
        yield column, min(top, bottom), max(top, bottom)
