"""The one layouter of tables, and how text is measured, cut and coloured for a terminal.

Text may carry colours (ECMA-48's SGR): they take no room, and stay whole where a text is cut.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from hpcrun.patterns import pattern_of

_SGR = pattern_of(r"\x1b\[[\d;]*m")
_GAP = "  "
# Where a terminal is narrower, remarks below a row and values of pairs leave it.
_LEAST_BELOW, _LEAST_VALUE = 20, 30

# The width of a pipe or a file: everything fits.
ENDLESS = 1 << 30
BOLD, DIM = "1", "2"
_RESET = "\x1b[0m"


class Look(Struct, frozen=True):
    """What a window can show, and how large it is, in characters; a pipe has no height."""

    width: int = ENDLESS
    height: int = ENDLESS
    colour: bool = False
    ascii_only: bool = False

    @property
    def is_window(self) -> bool:
        return self.height < ENDLESS


_ANYWHERE = Look()


class Column(Struct, frozen=True):
    """How a column of a table is laid out.

    ``right``: its texts stand at the right, as numbers do. ``optional``: it is left out where no
    row has a text. Where the window is too narrow for all columns, those with ``goes`` are left
    out, 1 first, then those with ``least`` are cut, down to this width. ``most``: it is never
    wider. ``fills``: it takes the room that the others leave, ``least`` at least.
    ``below``, for the last column: its text stands below its row where it does not fit behind the
    others, or, where it may be cut, where fewer than ``least`` characters would have room.
    """

    title: str = ""
    right: bool = False
    optional: bool = False
    goes: int = 0
    least: int | None = None
    most: int | None = None
    fills: bool = False
    below: bool = False


class Table:
    """A table whose columns are as wide as their texts, within the width of the window.

    >>> columns = [Column("JOB"), Column("STEP", right=True, goes=1), Column("", below=True)]
    >>> rows = [["12", "4000", "waits for GPUs"], ["13", "90", ""]]
    >>> print("\\n".join(Table(columns, rows, Look()).lines()))
    JOB  STEP
    12   4000  waits for GPUs
    13     90
    >>> print("\\n".join(Table(columns, rows, Look(width=12)).lines()))
    JOB  STEP
    12   4000
        waits for GPUs
    13     90
    """

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[str]],
        look: Look,
        *,
        head: str = BOLD,
    ) -> None:
        """Choose the columns and their widths; ``head`` is the style of the titles."""
        self._columns, self._rows, self._look, self._head = columns, rows, look, head
        # The width of each column by its place; those that are left out have none.
        self.widths: dict[int, int] = {}
        last = len(columns) - 1
        remark = columns[last] if columns and columns[last].below else None
        for at, column in enumerate(columns):
            texts = [row[at] for row in rows]
            if column is not remark and (not column.optional or any(texts)):
                wanted = (column.least or 0) if column.fills else widest([column.title, *texts])
                self.widths[at] = wanted if column.most is None else min(wanted, column.most)
        self._make_fit()
        if remark is not None:
            wanted = widest([remark.title, *(row[last] for row in rows)])
            room = self._room() - len(_GAP)
            if wanted <= room or (remark.least is not None and room >= remark.least):
                self.widths[last] = min(wanted, room)

    def _make_fit(self) -> None:
        for at in sorted(self.widths, key=lambda at: self._columns[at].goes):
            if self._columns[at].goes and self._room() < 0:
                del self.widths[at]
        for at, width in self.widths.items():
            least = self._columns[at].least
            if least is not None and not self._columns[at].fills:
                self.widths[at] = max(min(width, least), width + min(0, self._room()))
        for at, width in self.widths.items():
            if self._columns[at].fills:
                width = max(0, width + self._room())
                self.widths[at] = min(width, self._columns[at].most or width)

    def _room(self) -> int:
        """Return how many characters the columns leave of a line; negative: they do not fit."""
        return self._look.width - sum(self.widths.values()) - len(_GAP) * (len(self.widths) - 1)

    def head(self) -> list[str]:
        return self._block([column.title for column in self._columns], self._head, self._head)

    def row(self, texts: Sequence[str]) -> list[str]:
        """Lay out a row, with what stands below it."""
        return self._block(texts, "", DIM)

    def lines(self) -> list[str]:
        return [*self.head(), *(line for row in self._rows for line in self.row(row))]

    def _block(self, texts: Sequence[str], style: str, below: str) -> list[str]:
        cells = []
        for at, width in self.widths.items():
            text = clip(texts[at], width, self._look)
            cells.append(pad(text, width, right=self._columns[at].right))
        line = clip(_GAP.join(cells).rstrip(), self._look.width, self._look)
        rows = [paint(line, style, self._look)]
        last = len(self._columns) - 1
        if last not in self.widths and self._columns[last].below and texts[last]:
            width = max(self._look.width - 4, _LEAST_BELOW)
            wrapped = wrap(texts[last], width, whole_words=True)
            rows += [paint(f"    {part}", below, self._look) for part in wrapped]
        return rows if self._look.colour else [plain(row) for row in rows]


def format_pairs(rows: Iterable[tuple[str, str]], look: Look) -> Iterator[str]:
    """Lay out names and values in two columns; no value, no row; long ones take several lines.

    >>> rows = [("state", "FAILED"), ("note", "a " * 20 + "b")]
    >>> print("\\n".join(format_pairs(rows, Look(width=44))))
      state     FAILED
      note      a a a a a a a a a a a a a a a a
                a a a a b
    """
    margin = 12
    for name, value in rows:
        if not value:
            continue
        first, *more = wrap(value, max(look.width - margin, _LEAST_VALUE), whole_words=True)
        yield f"  {dim(pad(name, margin - 3), look)} {first}"
        yield from (f"{' ' * margin}{line}" for line in more)


def remarked(header: Sequence[str], rows: Sequence[Sequence[str]], look: Look) -> list[str]:
    """Lay out a table of texts; its last column, of remarks, is cut to fit.

    Where there is next to no room for a remark, it stands below its row.
    """
    columns = [*map(Column, header[:-1]), Column(header[-1], least=_LEAST_BELOW, below=True)]
    return Table(columns, rows, look).lines()


def next_lines(*verbs: tuple[str, str], look: Look) -> list[str]:
    """Lay out what to type next: verbs with their arguments, and why; nothing without any."""
    width = widest(verb for verb, _ in verbs)
    lines = [f"  hpcrun {verb:<{width}}  {dim(why, look)}".rstrip() for verb, why in verbs]
    return ["Next", *lines] if lines else []


def paint(text: str, sgr: str, look: Look) -> str:
    """Print a text with parameters of ECMA-48's SGR, where there are colours."""
    return f"\x1b[{sgr}m{text}{_RESET}" if look.colour and sgr and text else text


def dim(text: str, look: Look) -> str:
    """Print a text faintly, where there are colours."""
    return paint(text, DIM, look)


def plain(text: str) -> str:
    r"""Take the colours off a text.

    >>> plain("\x1b[1;31mFAILED\x1b[0m")
    'FAILED'
    """
    return _SGR.sub("", text) if "\x1b" in text else text


def printable(text: str, look: Look = _ANYWHERE) -> str:
    r"""Replace what could command a terminal, or what its encoding lacks, by question marks.

    >>> printable("a\x1b[2J\u3042"), printable("\u3042", Look(ascii_only=True))
    ('a?[2J\u3042', '?')
    """
    if look.ascii_only:
        text = text.encode("ascii", "replace").decode()
    return "".join(char if char.isprintable() else "?" for char in text)


def cells(text: str) -> int:
    r"""Count the columns that a text takes in a terminal.

    >>> cells("abc"), cells("損失"), cells("e\u0301"), cells("\x1b[1mabc\x1b[0m")
    (3, 4, 1, 3)
    """
    text = plain(text)
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def widest(texts: Iterable[str]) -> int:
    """Count the columns of the widest text, 0 without any."""
    return max(map(cells, texts), default=0)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Fill a text up with blanks to ``width`` columns; ``right``: it stands at the right.

    >>> pad("損失", 6), pad("42", 4, right=True)
    ('損失  ', '  42')
    """
    blanks = " " * (width - cells(text))
    return blanks + text if right else text + blanks


def cut(text: str, width: int) -> str:
    r"""Keep the start of a text that fits into ``width`` columns.

    >>> cut("abcdef", 4), cut("損失", 3), cut("\x1b[1mabc\x1b[0mdef", 2)
    ('abcd', '損', '\x1b[1mab\x1b[0m')
    """
    if cells(text) <= width:
        return text
    if "\x1b" not in text:
        return text[: _fitting(text, width)]
    kept, style, colours = "", "", _SGR.findall(text)
    for part, colour in zip(_SGR.split(text), [*colours, ""], strict=True):
        fitting = part[: _fitting(part, width - cells(kept))]
        kept += fitting
        if fitting != part:
            break
        kept, style = kept + colour, colour
    return kept if style in ("", _RESET) else kept + _RESET


def clip(text: str, width: int, look: Look) -> str:
    """Cut the end of a text that is too long, and mark it by an ellipsis.

    >>> clip("abcdef", 4, Look()), clip("abcdef", 4, Look(ascii_only=True)), clip("ab", 2, Look())
    ('abc…', 'ab..', 'ab')
    """
    if cells(text) <= width:
        return text
    mark = ".." if look.ascii_only else "…"
    return cut(text, width - len(mark)) + mark if width > len(mark) else cut(text, max(0, width))


def shorten(text: str, width: int, look: Look = _ANYWHERE) -> str:
    """Make a name printable and cut it to ``width`` columns; the end, where names differ, stays.

    >>> shorten("runs/20261120-zero2/logs/0.log", 12), shorten("abcdef", 4, Look(ascii_only=True))
    ('…/logs/0.log', '..ef')
    """
    text = printable(text, look)
    if cells(text) <= width:
        return text
    mark = ".." if look.ascii_only else "…"
    if width <= len(mark):
        return mark[: max(0, width)]
    while text and cells(text) > width - len(mark):
        text = text[1:]
    return mark + text


def wrap(text: str, width: int, indent: int = 0, *, whole_words: bool = False) -> list[str]:
    r"""Break a text into rows of at most ``width`` columns, all but the first indented.

    ``whole_words``: a longer word, such as a path, stays whole.

    >>> wrap("loss is nan at step 91", 12, 2)
    ['loss is nan', '  at step 91']
    >>> wrap("abcdefgh", 4), wrap("abcdefgh i\nj", 4, whole_words=True)
    (['abcd', 'efgh'], ['abcdefgh', 'i', 'j'])
    """
    if "\n" in text:
        lines = text.split("\n")
        return [row for line in lines for row in wrap(line, width, indent, whole_words=whole_words)]
    width = max(width, indent + 1, 1)
    rows, row, is_empty = [], "", True
    for word in text.split(" "):
        if not is_empty and cells(row) + 1 + cells(word) <= width:
            row += " " + word
            continue
        if not is_empty:
            rows.append(row)
            row = " " * indent
        while not whole_words and cells(row) + cells(word) > width:
            end = max(1, _fitting(word, width - cells(row)))
            rows.append(row + word[:end])
            row, word = " " * indent, word[end:]
            if not word:
                break
        row, is_empty = row + word, False
    return [*rows, row]


def _fitting(text: str, width: int) -> int:
    """Count the leading characters that fit."""
    taken = 0
    for number, char in enumerate(text):
        taken += cells(char)
        if taken > width:
            return number
    return len(text)
