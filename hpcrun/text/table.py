"""Table layout, and measuring, truncating and colouring text for a terminal.

Text may contain colour sequences (SGR of ECMA-48): they have no width and are never split.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from hpcrun.patterns import pattern_of

_SGR = pattern_of(r"\x1b\[[\d;]*m")
_GAP = "  "
# In narrower terminals, remarks after a row, and values of pairs, are not squeezed further.
_LEAST_BELOW, _LEAST_VALUE = 20, 30

# The width of a pipe or a file, in which everything fits.
UNLIMITED = 1 << 30
BOLD, DIM = "1", "2"
_RESET = "\x1b[0m"


class Display(Struct, frozen=True):
    """The size of a terminal in characters, and its capabilities; a pipe has no height."""

    width: int = UNLIMITED
    height: int = UNLIMITED
    colour: bool = False
    ascii_only: bool = False

    @property
    def is_window(self) -> bool:
        return self.height < UNLIMITED


_PIPE = Display()


class Column(Struct, frozen=True):
    """The layout of a column of a table.

    Attributes:
        right: Align texts to the right, like numbers.
        optional: Omit the column if all its texts are empty.
        goes: If the window is too narrow, columns with this value are omitted, 1 first.
        least: After that, columns with this value are truncated, down to this width.
        most: The maximum width.
        fills: The column takes the remaining width, but at least ``least``.
        below: For the last column: its text is placed below its row if it does not fit behind the
            others, or, if it may be truncated, if fewer than ``least`` characters would fit.
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
    >>> print("\\n".join(Table(columns, rows, Display()).lines()))
    JOB  STEP
    12   4000  waits for GPUs
    13     90
    >>> print("\\n".join(Table(columns, rows, Display(width=12)).lines()))
    JOB  STEP
    12   4000
        waits for GPUs
    13     90
    """

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[str]],
        display: Display,
        *,
        head: str = BOLD,
    ) -> None:
        """Choose the columns and their widths; ``head`` is the style of the titles."""
        self._columns, self._rows, self._look, self._head = columns, rows, display, head
        # Column widths by index; omitted columns have no entry.
        self.widths: dict[int, int] = {}
        last = len(columns) - 1
        remark = columns[last] if columns and columns[last].below else None
        for at, column in enumerate(columns):
            texts = [row[at] for row in rows]
            if column is not remark and (not column.optional or any(texts)):
                wanted = (
                    (column.least or 0) if column.fills else max_text_width([column.title, *texts])
                )
                self.widths[at] = wanted if column.most is None else min(wanted, column.most)
        self._make_fit()
        if remark is not None:
            wanted = max_text_width([remark.title, *(row[last] for row in rows)])
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
        """Return the number of free characters in a line; negative if the columns do not fit."""
        return self._look.width - sum(self.widths.values()) - len(_GAP) * (len(self.widths) - 1)

    def head(self) -> list[str]:
        return self._block([column.title for column in self._columns], self._head, self._head)

    def row(self, texts: Sequence[str]) -> list[str]:
        """Lay out a row, with the text below it."""
        return self._block(texts, "", DIM)

    def lines(self) -> list[str]:
        return [*self.head(), *(line for row in self._rows for line in self.row(row))]

    def _block(self, texts: Sequence[str], style: str, below: str) -> list[str]:
        cells = []
        for at, width in self.widths.items():
            text = truncate(texts[at], width, self._look)
            cells.append(pad(text, width, right=self._columns[at].right))
        line = truncate(_GAP.join(cells).rstrip(), self._look.width, self._look)
        rows = [paint(line, style, self._look)]
        last = len(self._columns) - 1
        if last not in self.widths and self._columns[last].below and texts[last]:
            width = max(self._look.width - 4, _LEAST_BELOW)
            wrapped = wrap(texts[last], width, whole_words=True)
            rows += [paint(f"    {part}", below, self._look) for part in wrapped]
        return rows if self._look.colour else [strip_colours(row) for row in rows]


def format_pairs(rows: Iterable[tuple[str, str]], display: Display) -> Iterator[str]:
    """Lay out names and values in two columns, long values on several lines; omit empty values.

    >>> rows = [("state", "FAILED"), ("note", "a " * 20 + "b")]
    >>> print("\\n".join(format_pairs(rows, Display(width=44))))
      state     FAILED
      note      a a a a a a a a a a a a a a a a
                a a a a b
    """
    margin = 12
    for name, value in rows:
        if not value:
            continue
        first, *more = wrap(value, max(display.width - margin, _LEAST_VALUE), whole_words=True)
        yield f"  {dim(pad(name, margin - 3), display)} {first}"
        yield from (f"{' ' * margin}{line}" for line in more)


def format_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], display: Display
) -> list[str]:
    """Lay out a table of texts; its last column, of remarks, is truncated to fit.

    If almost no width remains for a remark, it is placed below its row.
    """
    columns = [*map(Column, header[:-1]), Column(header[-1], least=_LEAST_BELOW, below=True)]
    return Table(columns, rows, display).lines()


def format_next_steps(*verbs: tuple[str, str], display: Display) -> list[str]:
    """Lay out suggested commands with their descriptions; return no lines if there are none."""
    width = max_text_width(verb for verb, _ in verbs)
    lines = [f"  hpcrun {verb:<{width}}  {dim(why, display)}".rstrip() for verb, why in verbs]
    return ["Next", *lines] if lines else []


def paint(text: str, sgr: str, display: Display) -> str:
    """Apply SGR parameters (ECMA-48) to a text if the display has colours."""
    return f"\x1b[{sgr}m{text}{_RESET}" if display.colour and sgr and text else text


def dim(text: str, display: Display) -> str:
    """Make a text faint if the display has colours."""
    return paint(text, DIM, display)


def strip_colours(text: str) -> str:
    r"""Remove colour sequences from a text.

    >>> strip_colours("\x1b[1;31mFAILED\x1b[0m")
    'FAILED'
    """
    return _SGR.sub("", text) if "\x1b" in text else text


def replace_unprintable(text: str, display: Display = _PIPE) -> str:
    r"""Replace control characters, and characters that the encoding lacks, with question marks.

    >>> replace_unprintable("a\x1b[2J\u3042")
    'a?[2J\u3042'
    >>> replace_unprintable("\u3042", Display(ascii_only=True))
    '?'
    """
    if display.ascii_only:
        text = text.encode("ascii", "replace").decode()
    return "".join(char if char.isprintable() else "?" for char in text)


def text_width(text: str) -> int:
    r"""Count the columns that a text occupies in a terminal.

    >>> [text_width(text) for text in ("abc", "損失", "e\u0301", "\x1b[1mabc\x1b[0m")]
    [3, 4, 1, 3]
    """
    text = strip_colours(text)
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def max_text_width(texts: Iterable[str]) -> int:
    """Return the width of the widest text, or 0 without any."""
    return max(map(text_width, texts), default=0)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Pad a text with blanks to ``width`` columns, on the left if ``right`` is set.

    >>> pad("損失", 6), pad("42", 4, right=True)
    ('損失  ', '  42')
    """
    blanks = " " * (width - text_width(text))
    return blanks + text if right else text + blanks


def cut_text(text: str, width: int) -> str:
    r"""Return the longest prefix of a text that fits into ``width`` columns.

    >>> cut_text("abcdef", 4), cut_text("損失", 3), cut_text("\x1b[1mabc\x1b[0mdef", 2)
    ('abcd', '損', '\x1b[1mab\x1b[0m')
    """
    if text_width(text) <= width:
        return text
    if "\x1b" not in text:
        return text[: _count_fitting(text, width)]
    kept, style, colours = "", "", _SGR.findall(text)
    for part, colour in zip(_SGR.split(text), [*colours, ""], strict=True):
        fitting = part[: _count_fitting(part, width - text_width(kept))]
        kept += fitting
        if fitting != part:
            break
        kept, style = kept + colour, colour
    return kept if style in ("", _RESET) else kept + _RESET


def truncate(text: str, width: int, display: Display) -> str:
    """Truncate the end of a text that is too long, and mark it with an ellipsis.

    >>> truncate("abcdef", 4, Display()), truncate("ab", 2, Display())
    ('abc…', 'ab')
    >>> truncate("abcdef", 4, Display(ascii_only=True))
    'ab..'
    """
    if text_width(text) <= width:
        return text
    mark = ".." if display.ascii_only else "…"
    return (
        cut_text(text, width - len(mark)) + mark
        if width > len(mark)
        else cut_text(text, max(0, width))
    )


def truncate_start(text: str, width: int, display: Display = _PIPE) -> str:
    """Make a name printable and truncate it at the start, because names differ at the end.

    >>> truncate_start("runs/20261120-zero2/logs/0.log", 12)
    '…/logs/0.log'
    >>> truncate_start("abcdef", 4, Display(ascii_only=True))
    '..ef'
    """
    text = replace_unprintable(text, display)
    if text_width(text) <= width:
        return text
    mark = ".." if display.ascii_only else "…"
    if width <= len(mark):
        return mark[: max(0, width)]
    while text and text_width(text) > width - len(mark):
        text = text[1:]
    return mark + text


def wrap(text: str, width: int, indent: int = 0, *, whole_words: bool = False) -> list[str]:
    r"""Wrap a text into rows of at most ``width`` columns, all but the first indented.

    Args:
        whole_words: Do not split words that are longer than a row, such as paths.

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
        if not is_empty and text_width(row) + 1 + text_width(word) <= width:
            row += " " + word
            continue
        if not is_empty:
            rows.append(row)
            row = " " * indent
        while not whole_words and text_width(row) + text_width(word) > width:
            end = max(1, _count_fitting(word, width - text_width(row)))
            rows.append(row + word[:end])
            row, word = " " * indent, word[end:]
            if not word:
                break
        row, is_empty = row + word, False
    return [*rows, row]


def _count_fitting(text: str, width: int) -> int:
    """Count the leading characters that fit."""
    taken = 0
    for number, char in enumerate(text):
        taken += text_width(char)
        if taken > width:
            return number
    return len(text)
