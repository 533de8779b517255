"""Reader: the bytes of one log file, in whatever pieces they come, to frames of rows.

A line ends at a line feed, a carriage return (progress bars) or a NUL (the hole that a truncated
file leaves). The pieces do not matter: the same bytes give the same rows. Time is linear in the
bytes; memory is bounded by one block and one line. A line of more than ``LONGEST_LINE`` bytes is no
metric line and is passed over.

Speed comes from looking at few lines, and from reading few of these. A line is looked at if it
holds one of ``line.NEEDLES``, or stands below the head of a table. It is read by ``line.read_line``
if its *shape* (the line without its digits) is new; a shape that comes again is learned, as a
template or as noise. Beyond ``THOROUGH`` bytes only every ``SAMPLED``-th block is searched for the
commonest needles (``line.COMMON``), the others for those by which metric lines of this log were
found, ``line.ALWAYS`` among them: a form that begins late in a very long log, without the word loss
and without anything that its other metric lines have, may be missed in part.

A log may be read in ranges of ``RANGE`` bytes, each from ``Reader.move`` on, side by side: unless a
table is open at the end of one, the same rows are found.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from hpcrun.metrics.lines.line import (
    ALWAYS,
    COMMON,
    FORMATS,
    NEEDLES,
    Format,
    find_time,
    read_line,
    read_time,
    records,
)
from hpcrun.metrics.reading.frames import Gatherer, Shape
from hpcrun.metrics.reading.learn import is_noise, learn
from hpcrun.metrics.reading.search import Span, all_lines, fold, lines_with
from hpcrun.metrics.row import Frame, Mark, Placed, Row, Table

LONGEST_LINE = 1 << 16
BLOCK = 1 << 20
RANGE = 1 << 23
THOROUGH = RANGE
SAMPLED = 16

# What is taken out of a line to leave its shape: digits and the blanks that pad them, and the
# blocks that bars are drawn with.
_DIGITS = b" 0123456789#" + bytes(range(0x80, 0x100))
# So many shapes are remembered; one that could not be learned is tried so often.
_MOST_SHAPES = 1 << 14
_TRIES = 4
# A table is over when so many lines on end were none of its rows.
_PATIENCE = 200
_NUMBER = re.compile(rb"[0-9]+")
_LINE = re.compile(rb"[^\n\r\0]*")


class Reader:
    """Reads one log file.

    ``formats`` are the forms of lines that it knows, a job's own among them. ``lines_read`` counts
    the lines up to the first that measures something.

    >>> reader = Reader()
    >>> [(*f.offsets, *f.steps, *f.columns[0]) for f in reader.feed(b"step=1 loss=2.5\\nstep=2 lo")]
    [(0, 1, 2.5)]
    >>> [(*f.offsets, *f.columns[0]) for f in reader.feed(b"ss=2.25\\n")]
    [(16, 2.25)]
    """

    def __init__(self, offset: int = 0, formats: Sequence[Format] = FORMATS) -> None:
        """Begin at byte ``offset``, which must be where a line begins."""
        self.lines_read = 0
        self._has_rows = False
        self._formats = formats
        # What lines were found by: in the thorough part; and in this range besides.
        self._needles = set(ALWAYS)
        self._range, self._range_needles = -1, self._needles
        self._table: Table | None = None
        self._strangers = 0
        self._line_offset = offset
        self._kept: list[bytes] = []
        self._kept_length = 0
        # The block at hand and the offset of its first byte.
        self._block, self._base = b"", offset
        # Shape -> what reads it, or how often it was seen; and shapes that say nothing, which keep
        # the places of their numbers: "step: 5" is no noise because "step:" is.
        self._shapes: dict[bytes, Shape | int] = {}
        self._noise: set[bytes] = set()
        # Shapes that said nothing once: only those that come again are worth an experiment.
        self._silent: set[bytes] = set()
        self._last: Shape | None = None
        self._gathered = Gatherer(read_time)
        self._pieces: list[Frame | Placed] = []

    @property
    def in_table(self) -> bool:
        """Whether a table is open, whose rows tell nothing without its head."""
        return self._table is not None

    @property
    def offset(self) -> int:
        """Where the line begins that is read next."""
        return self._line_offset

    def move(self, offset: int) -> None:
        """Go on at byte ``offset`` of the file, where a line begins."""
        self._line_offset = offset
        self._kept, self._kept_length = [], 0

    def feed(self, data: bytes) -> list[Frame | Placed]:
        """Return the rows of the lines that ``data`` completes; a cut-off last line is kept.

        Frames come in the order of their first line; a mark stands behind all before it.
        """
        start = 0
        while start < len(data):
            # Blocks lie at whole multiples in the file, so that the pieces do not matter.
            room = BLOCK - (self._line_offset + self._kept_length) % BLOCK
            self._read_block(data[start : start + room])
            start += room
        return self._take_pieces()

    def finish(self) -> list[Frame | Placed]:
        """Return the rows of a last line that no line end completes; nothing comes after it.

        Its last word may be cut in the middle of a number, as a killed job leaves it, so only
        what stands before that word counts; a line that ends in a bracket shows that it is whole.

        >>> reader = Reader()
        >>> reader.feed(b"step=7 loss=2.5 lr=0.0001"), [f.layout.names for f in reader.finish()]
        ([], [('loss',)])
        """
        if self._kept_length and not self._has_rows:
            self.lines_read += 1
        if 0 < self._kept_length <= LONGEST_LINE:
            line = b"".join(self._kept).rstrip()
            if not line.endswith((b"}", b"]", b")", b"|")):
                line = line[: max(line.rfind(mark) for mark in b" \t,;|") + 1]
            if not self._read_records(line, self._line_offset):
                self._read_line(line, self._line_offset)
        self._line_offset += self._kept_length
        self._kept, self._kept_length = [], 0
        return self._take_pieces()

    def _take_pieces(self) -> list[Frame | Placed]:
        self._pieces += self._gathered.frames(self._base, self._read_again)
        pieces, self._pieces = self._pieces, []
        return pieces

    def _read_block(self, block: bytes) -> None:
        if not self._has_rows:
            self.lines_read += block.count(b"\n")
        folded = fold(block)
        first_end = folded.find(b"\n")
        if first_end < 0:
            self._keep(block)
            return
        self._keep(block[:first_end])
        if 0 < self._kept_length <= LONGEST_LINE:
            line = b"".join(self._kept)
            self._read_whole_lines(line + b"\n", fold(line) + b"\n", 0, self._line_offset)
        self._line_offset += self._kept_length + 1
        self._kept, self._kept_length = [], 0
        base = self._line_offset - first_end - 1
        self._read_whole_lines(block, folded, first_end + 1, base)
        last_end = folded.rfind(b"\n")
        self._line_offset = base + last_end + 1
        self._keep(block[last_end + 1 :])

    def _keep(self, piece: bytes) -> None:
        self._kept_length += len(piece)
        if self._kept_length > LONGEST_LINE:
            self._kept = []
        elif piece:
            self._kept.append(piece)

    def _read_whole_lines(self, block: bytes, folded: bytes, start: int, base: int) -> None:
        """Read the lines of a block from ``start``, where one begins, to the last line end."""
        self._block, self._base = block, base
        end = folded.rfind(b"\n") + 1
        while start < end:
            table = self._table
            if table is not None or self._formats is not FORMATS:
                spans = all_lines(folded, start, end)
            else:
                needles = self._needles_for(base + start)
                if len(needles) == 1:
                    start = self._read_lines_with(folded, start, end, *needles)
                    continue
                spans = lines_with(folded, start, end, needles)
            start = self._read_spans(spans, table, end)
        self._pieces += self._gathered.frames(self._base, self._read_again)

    def _needles_for(self, offset: int) -> Collection[bytes]:
        """What to look for in the block in which a line begins."""
        if offset >= THOROUGH and offset // RANGE != self._range:
            self._range, self._range_needles = offset // RANGE, set(self._needles)
        if offset < THOROUGH:
            return NEEDLES
        if offset // BLOCK % SAMPLED == 0:
            return self._range_needles | COMMON
        return self._range_needles

    def _read_lines_with(self, folded: bytes, start: int, end: int, needle: bytes) -> int:
        """Find and read the lines with one needle: ``_read_spans`` for most of a long log.

        A template tells where its line ends, so that nobody need look for it.
        """
        block, last = self._block, self._last
        find, rfind = folded.find, folded.rfind
        place = find(needle, start, end)
        while place >= 0:
            begin = rfind(b"\n", start, place) + 1 or start
            found = None if last is None else last.next.match_line(block, begin)
            if last is not None and found is not None:
                last = last.next
                last.found.append(found)
                start = found.end()
            else:
                start = find(b"\n", place, end)
                self._last = last
                if self._read_spans([(begin, start)], self._table, end) != end:
                    return start + 1
                last = self._last
            place = find(needle, start, end)
        self._last = last
        return end

    def _read_spans(self, spans: Iterable[Span], table: Table | None, end: int) -> int:
        """Read lines; return where to go on: ``end``, or behind a line that changed the table."""
        block, last = self._block, self._last
        for start, stop in spans:
            if last is not None:
                shape = last.next
                if found := shape.match(block, start, stop):
                    shape.found.append(found)
                    self._note_needles(shape.needles)
                    last = shape
                    continue
            known = self._look_up(start, stop)
            if known is not None:
                if last is not None:
                    last.next = known
                last = known
            elif self._table is not table:
                self._last = last
                return stop + 1
        self._last = last
        return end

    def _look_up(self, start: int, stop: int) -> Shape | None:
        """Read the line by its shape; return it, None if the line was read otherwise."""
        if stop - start > LONGEST_LINE:
            return None
        line = self._block[start:stop]
        key = line.translate(None, _DIGITS)
        known = self._shapes.get(key, 0)
        if isinstance(known, Shape):
            if found := known.match(self._block, start, stop):
                known.found.append(found)
                self._strangers = 0
                self._note_needles(known.needles)
                return known
            known = known.seen
        numberless = _NUMBER.sub(b"0", line)
        if numberless in self._noise:
            if self._table is not None:
                self._tire()
            return None
        if self._read_records(line, self._base + start):
            return None
        answer = self._read_line(line, self._base + start)
        if answer is None:
            self._make_room()
            if numberless not in self._silent:
                self._silent.add(numberless)
            elif is_noise(line, self._ask):
                self._noise.add(numberless)
        elif isinstance(answer, Row) and known < _TRIES:
            self._make_room()
            self._learn(key, line, known)
        return None

    def _learn(self, key: bytes, line: bytes, seen: int) -> None:
        """Learn the shape of a line that is a row, from its second sight on."""
        self._shapes[key] = seen + 1
        if seen and (template := learn(line, self._ask, _stamp_span(line))):
            shape = self._shapes[key] = Shape(template, seen + 1, _needles_in(line))
            self._gathered.add_shape(shape)

    def _make_room(self) -> None:
        if len(self._silent) >= _MOST_SHAPES:
            self._silent.clear()
        if len(self._shapes) + len(self._noise) >= _MOST_SHAPES:
            self._forget_shapes()

    def _forget_shapes(self) -> None:
        self._pieces += self._gathered.frames(self._base, self._read_again)
        self._gathered.drop_shapes()
        self._shapes.clear()
        self._noise.clear()
        self._silent.clear()
        self._last = None

    def _ask(self, text: str) -> tuple[str, Row | Mark | Table] | None:
        return read_line(text, self._table, self._formats)

    def _read_records(self, line: bytes, offset: int) -> bool:
        """Read a line on which several records stand, one by one; False if it has only one."""
        parts = records(line.decode("utf-8", "replace"))
        if len(parts) > 1:
            for part in parts:
                self._read_line(part.encode("utf-8", "replace"), offset)
        return len(parts) > 1

    def _read_line(self, line: bytes, offset: int) -> Row | Mark | Table | None:
        """Read a line by itself and put down what it says."""
        told = self._ask(line.decode("utf-8", "replace"))
        if told is None:
            if self._table is not None:
                self._tire()
            return None
        form, answer = told
        if isinstance(answer, Row):
            self._has_rows, self._strangers = True, 0
            span = _stamp_span(line)
            self._gathered.add(offset, form, answer, None if span is None else line[slice(*span)])
            self._note_needles(_needles_in(line))
        elif isinstance(answer, Mark):
            self._pieces += self._gathered.frames(self._base, self._read_again)
            self._pieces.append(Placed(offset, answer))
        elif answer != self._table:
            self._open(answer)
        return answer

    def _read_again(self, offset: int) -> Row | None:
        """Read a line of the block at hand anew, and put nothing down."""
        found = _LINE.match(self._block, offset - self._base)
        told = self._ask(found.group().decode("utf-8", "replace")) if found else None
        return told[1] if told is not None and isinstance(told[1], Row) else None

    def _open(self, table: Table | None) -> None:
        """Begin a table, or end it; shapes mean something else then."""
        self._forget_shapes()
        self._table, self._strangers = table, 0

    def _tire(self) -> None:
        self._strangers += 1
        if self._strangers >= _PATIENCE:
            self._open(None)

    def _note_needles(self, needles: Sequence[bytes]) -> None:
        """See to it that lines like one that holds these needles are found in this range."""
        if needles and self._range_needles.isdisjoint(needles):
            self._range_needles.add(needles[0])


def _needles_in(line: bytes) -> list[bytes]:
    folded = fold(line)
    return [needle for needle in NEEDLES if needle in folded]


def _stamp_span(line: bytes) -> Span | None:
    """Where the time stamp of a line stands, in bytes."""
    return find_time(line[:200].decode("latin-1"))
