"""Reader: the bytes of one log file, in whatever pieces they come, to frames of rows.

A line ends at a line feed, a carriage return (progress bars) or a NUL (the hole that a truncated
file leaves). The pieces do not matter: the same bytes give the same rows. Time is linear in the
bytes; memory is bounded by one block and one line. A line of more than ``LONGEST_LINE`` bytes is no
metric line and is passed over.

Speed comes from looking at few lines, and from reading few of these. A line is looked at if it
holds one of ``line.NEEDLES``, or stands below the head of a table. It is read by ``line.read_line``
unless a shape fits it that was learned from lines like it (``learn``), or lines like it are known
to be noise. Beyond ``THOROUGH`` bytes only every ``SAMPLED``-th block is searched for the commonest
needles (``line.COMMON``), the others for those by which metric lines of this log were found,
``line.ALWAYS`` among them: a form that begins late in a very long log, without the word loss and
without anything that its other metric lines have, may be missed in part.

A log may be read in ranges of ``RANGE`` bytes, each from ``Reader.move`` on, side by side: a line
belongs to the range in which it ends. Unless a table is open at the end of one, the same rows are
found.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

from msgspec import structs

from hpcrun.curves.lines.formats import Format
from hpcrun.curves.lines.formats.table import FORMATS
from hpcrun.curves.lines.learn import Shape, frame_of, is_noise, learn
from hpcrun.curves.lines.line import (
    ALWAYS,
    COMMON,
    LARGEST_DOCUMENT,
    NEEDLES,
    may_be_document,
    read_document,
    read_line,
    records,
)
from hpcrun.curves.lines.prefixes import read_time
from hpcrun.curves.names import decode
from hpcrun.curves.row import Frame, Mark, Row, Table

LONGEST_LINE = 1 << 16
BLOCK = 1 << 18
RANGE = 1 << 22
THOROUGH = RANGE
SAMPLED = 16

# What is taken out of a line to look for its shapes: digits and the blanks that pad them, and the
# blocks that bars are drawn with.
_DIGITS = b" 0123456789#" + bytes(range(0x80, 0x100))
# How many shapes are remembered. To learn a shape its line is read about twice for each number in
# it. That pays at the second line of the shape; where lines have many numbers, only after one line
# for every _WORTH of them. What fails is tried again at twice as many lines, _TRIES times in all.
_MOST_SHAPES = 1 << 14
_WORTH = 4
_TRIES = 3
# A table is over when that many lines on end were none of its rows.
_PATIENCE = 200
# A last line is compared with more lines like it than this, within so many bytes above it.
_ALIKE, _BACK = 8, 1 << 13
_NUMBER = re.compile(rb"[0-9]+")
_DECIMALS, _LINES = re.compile(rb"\.[0-9]+\Z"), re.compile(rb"[ \t]*[\n\r\0]+")
_NAME_AT_END = re.compile(
    rb"[\s,;|-]{0,9}(?<![\w./])(?:[^\W\d][\w./]{0,60} ){0,3}[^\W\d][\w./]{0,60} ?[:=]?\s{0,9}\Z"
)
_EVERY_LINE = (b"\n",)
# One pass of bytes.translate folds case and makes every line end a line feed, keeping offsets.
_FOLD = bytes(0x0A if i in (0x00, 0x0D) else i for i in range(256)).lower()


class Reader:
    """Reads one log file.

    ``formats`` are the forms of lines that it knows, a job's own among them. ``offset`` is where in
    the file the byte stands that comes next. ``lines_read`` counts the lines up to the first that
    measures something (``has_rows``: it was found); ``table`` is open, whose rows say nothing
    without it.

    >>> reader = Reader()
    >>> [(*f.offsets, *f.steps, *f.columns[0]) for f in reader.feed(b"step=1 loss=2.5\\nstep=2 lo")]
    [(0, 1, 2.5)]
    >>> [(*f.offsets, *f.columns[0]) for f in reader.feed(b"ss=2.25\\n")]
    [(16, 2.25)]
    """

    def __init__(self, offset: int = 0, formats: Sequence[Format] = FORMATS) -> None:
        """Begin at byte ``offset``, which must be where a line begins."""
        self.lines_read = 0
        self.offset = offset
        self.has_rows = False
        self._formats = formats
        self.table: Table | None = None
        # How many lines on end were none of its rows.
        self._misses = 0
        # The upper line of a head, and where the lower one may begin: right below.
        self._upper, self._below = Table("head", ()), -1
        # The line that has no end yet; of one that is too long only the last bytes.
        self._rest = b""
        self._above = b""  # what stands above it, as far as it may show whether it is cut off
        # Where the block at hand begins.
        self._base = offset
        # What lines were found by: in the thorough part; and in this range besides.
        self._needles = set(ALWAYS)
        self._range, self._range_needles = -1, self._needles
        # The shapes of lines that are alike but for their digits and blanks. Lines that say nothing
        # keep the places of their numbers: "step: 5" is no noise because "step:" is.
        self._shapes: dict[bytes, list[Shape]] = {}
        self._noise: set[bytes] = set()
        # How often lines like this were read: an experiment is worth it from the second.
        self._seen: Counter[bytes] = Counter()
        self._last: Shape | None = None
        self._frames: list[Frame] = []
        self._marks: list[Mark] = []

    def move(self, offset: int) -> None:
        """Go on at byte ``offset`` of the file, where a line begins."""
        self.offset, self._rest, self._above = offset, b"", b""

    def feed(self, data: bytes) -> list[Frame | Mark]:
        """Return the rows of the lines that ``data`` completes; a cut-off last line is kept.

        Frames come in the order of their first line, behind the marks.
        """
        start = 0
        while start < len(data):
            # Blocks lie at whole multiples in the file, so that the pieces do not matter.
            stop = start + BLOCK - self.offset % BLOCK
            self._read_block(data[start:stop])
            start = stop
        return self._take_pieces()

    def finish(self) -> list[Frame | Mark]:
        """Return the rows of a last line that no line end completes; nothing comes after it.

        Its last word may be cut in the middle of a number, as a killed job leaves it, so only
        what stands before that word and its name counts; a line that ends in a bracket is whole,
        and so is one whose decimals are as many as those of all lines like it.

        >>> reader = Reader()
        >>> reader.feed(b"step=7 loss=2.5 lr=0.0001"), [f.layout.names for f in reader.finish()]
        ([], [('loss',)])
        """
        if self._rest and not self.has_rows:
            self.lines_read += 1
        line = self._rest.rstrip()
        if not (line.endswith((b"}", b"]", b")", b"|")) or self._is_whole(line)):
            marks = b";" if self.table and self.table.kind == "semicolons" else b" \t,;|"
            line = line[: max(line.rfind(mark) for mark in marks) + 1]
            line = _NAME_AT_END.sub(b"", line)
        self._base = self.offset - len(self._rest)
        if len(self._rest) <= LONGEST_LINE:
            self._look_at(line, 0, len(line))
        self._take_learned()
        self._rest = b""
        return self._take_pieces()

    def _is_whole(self, line: bytes) -> bool:
        """Whether a line ends in a number with as many decimals as all those like it above."""
        form, lines = _NUMBER.sub(b"", line), [line, *_LINES.split(self._above)[1:]]
        alike = [each for each in lines if _NUMBER.sub(b"", each) == form]
        ends = [each.rpartition(b".")[2] for each in alike]
        enough = len(ends) > _ALIKE and all(map(_DECIMALS.search, alike))
        return enough and len({*map(len, ends)}) == 1 < len({*ends[1:]})

    def read(self, chunks: Iterable[bytes]) -> Iterator[list[Frame | Mark]]:
        """Read a log that comes in chunks to its end; it may be one JSON document.

        Of a document the offsets are the places in its list.

        >>> state = [b'{"log_history": [{"loss": 2.5,', b' "step": 10}]}']
        >>> [[*frame.steps] for pieces in Reader().read(state) for frame in pieces]
        [[10]]
        """
        chunks, begun, size = iter(chunks), [], 0
        for chunk in chunks if not self.offset else ():
            begun.append(chunk)
            size += len(chunk)
            if size > LARGEST_DOCUMENT or not may_be_document(b"".join(begun[:2])):
                break
        else:
            rows = read_document(b"".join(begun).decode("utf-8", "replace"))
            for place, row in enumerate(rows or ()):
                self._frames.append(frame_of("json document", row, [place], ()))
            if rows:
                yield self._take_pieces()
                return
        yield from map(self.feed, chain(begun, chunks))
        yield self.finish()

    def _read_block(self, block: bytes) -> None:
        """Read the lines that end in a block or a part of one; what begins behind them is kept."""
        folded = fold(block)
        first, end = folded.find(b"\n") + 1, folded.rfind(b"\n") + 1
        if not self.has_rows:
            self.lines_read += block.count(b"\n")
        if first:
            line = self._rest + block[:first]
            self._read_lines(line, fold(line), 0, len(line), self.offset - len(self._rest))
            self._read_lines(block, folded, first, end, self.offset)
            self._above = (self._above + self._rest + block[max(0, end - _BACK) : end])[-_BACK:]
            self._rest = b""
        self.offset += len(block)
        self._rest = (self._rest + block[end:])[-LONGEST_LINE - 1 :]

    def _read_lines(self, text: bytes, folded: bytes, start: int, end: int, base: int) -> None:
        """Read the lines from ``start`` to ``end``; in the file the text begins at ``base``."""
        self._base = base
        while start < end:
            start = self._scan(text, folded, start, end)
        self._take_learned()

    def _scan(self, text: bytes, folded: bytes, start: int, end: int) -> int:
        """Read the lines that may say something; return where to go on.

        That is ``end``, or behind a line at which all shapes were forgotten: where a table begins,
        other lines matter. Jumping from needle to needle never looks at what stands between: so
        noise is cheap. Lines come in the same order again and again: the shapes that followed last
        time are tried first.
        """
        find, rfind, shapes, last = folded.find, folded.rfind, self._shapes, self._last
        places = dict.fromkeys(self._needles_for(self.offset), -1)
        while start < end:
            nearest = end
            for needle, place in places.items():
                if place < start:
                    place = find(needle, start, end)
                    places[needle] = place = end if place < 0 else place
                if place < nearest:
                    nearest = place
            if nearest == end:
                break
            begin = rfind(b"\n", start, nearest) + 1 or start
            for shape in () if last is None else last.followers:
                if found := shape.pattern.match(text, begin):
                    shape.found.append(found)
                    last, stop, self._misses = shape, found.end(), 0
                    break
            else:
                stop = find(b"\n", nearest)
                if known := self._look_at(text, begin, stop):
                    if last is not None:
                        last.followers = (known, *last.followers[:1])
                    last = known
            start = stop + 1
            if self._shapes is not shapes:
                return start
        self._last = last
        return end

    def _needles_for(self, offset: int) -> Collection[bytes]:
        """What to look for in the block that holds this byte of the file."""
        if self.table is not None or self._formats is not FORMATS:
            return _EVERY_LINE
        if offset < THOROUGH:
            return NEEDLES
        if offset // RANGE != self._range:
            self._range, self._range_needles = offset // RANGE, set(self._needles)
        if offset // BLOCK % SAMPLED == 0:
            return self._range_needles | COMMON
        return self._range_needles

    def _look_at(self, text: bytes, begin: int, end: int) -> Shape | None:
        """Take the numbers of a line or a record by its shape; read it by itself if none fits."""
        if not begin < end <= begin + LONGEST_LINE:
            return None
        line = text[begin:end]
        key = line.translate(None, _DIGITS)
        for shape in self._shapes.get(key, ()):
            if found := shape.pattern.match(text, begin, end):
                shape.found.append(found)
                self._misses = 0
                return shape
        numberless = _NUMBER.sub(b"0", line)
        if numberless in self._noise:
            self._miss()
            return None
        parts = records(line)
        if len(parts) > 1:
            for part in parts:
                self._look_at(text, begin, begin + len(part))
                begin += len(part)
            return None
        answer = self._read_line(line, self._base + begin)
        if len(self._seen) >= _MOST_SHAPES:
            self._seen.clear()
        if len(self._shapes) + len(self._noise) >= _MOST_SHAPES:
            self._forget_shapes()
        if answer is None:
            self._seen[numberless] += 1
            if self._seen[numberless] > 1 and is_noise(line, self._ask):
                self._noise.add(numberless)
        elif isinstance(answer, Row):
            self._seen[key] += 1
            worth = max(2, numberless.count(b"0") // _WORTH)
            tried = self._seen[key] in [worth << again for again in range(_TRIES)]
            if tried and (learned := learn(line, self._ask)):
                self._shapes.setdefault(key, []).append(learned)
        return None

    def _ask(self, text: str) -> tuple[str, Row | Mark | Table] | None:
        return read_line(text, self.table, self._formats)

    def _read_line(self, line: bytes, offset: int) -> Row | Mark | Table | None:
        """Read a line of one record by itself, and put down what it says."""
        text, above = decode(line), self._upper if offset <= self._below else None
        form, answer = read_line(text, self.table or above, self._formats) or ("", None)
        if answer is None:
            self._miss()
        elif isinstance(answer, Row):
            self.has_rows, self._misses = True, 0
            self._frames.append(frame_of(form, answer, [offset], [read_time(text)]))
            self._note_needles(line)
        elif isinstance(answer, Mark):
            self._marks.append(structs.replace(answer, offset=offset))
        elif not answer.columns:
            self._upper, self._below = answer, offset + len(line) + len(b"\r\n")
        elif answer != self.table:
            self._open(answer)
        return answer

    def _note_needles(self, line: bytes) -> None:
        """See to it that lines like this one are found in the rest of the range."""
        needles = [needle for needle in NEEDLES if needle in fold(line)]
        if needles and self._range_needles.isdisjoint(needles):
            self._range_needles.add(needles[0])

    def _miss(self) -> None:
        """Count a line that is no row: a table is over some time."""
        self._misses += 1
        if self.table is not None and self._misses >= _PATIENCE:
            self._open(None)

    def _open(self, table: Table | None) -> None:
        """Begin a table, or end it; shapes mean something else then."""
        self._forget_shapes()
        self.table, self._misses = table, 0

    def _forget_shapes(self) -> None:
        self._take_learned()
        self._shapes, self._last = {}, None
        self._noise.clear()
        self._seen.clear()

    def _take_learned(self) -> None:
        """Make frames of the lines of this block that shapes fit."""
        for shape in chain.from_iterable(self._shapes.values()):
            if shape.found:
                self._note_needles(shape.found[0].group())
            for row, lines in shape.take():
                offsets = [self._base + found.start() for found in lines]
                if row is not None:
                    self._frames.append(shape.frame(row, offsets, lines))
                    continue
                for found, offset in zip(lines, offsets, strict=True):
                    self._read_line(found.group(), offset)

    def _take_pieces(self) -> list[Frame | Mark]:
        """Return all that was read, a frame of each kind."""
        kinds: dict[object, list[Frame]] = {}
        for frame in self._frames:
            kinds.setdefault(frame.kind, []).append(frame)
        frames = sorted(map(_joined, kinds.values()), key=lambda frame: frame.offsets[0])
        pieces: list[Frame | Mark] = [*self._marks, *frames]
        self._frames, self._marks = [], []
        return pieces


def fold(block: bytes) -> bytes:
    """Fold case and line ends; every byte keeps its place."""
    if b"\r" in block or b"\0" in block:
        return block.translate(_FOLD)
    return block.lower()


def _joined(frames: Sequence[Frame]) -> Frame:
    """Join frames of one kind, their rows in the order of their lines."""
    whole, *rest = frames
    for frame in rest:
        for column, more in zip(whole.arrays(), frame.arrays(), strict=True):
            column += more
    if rest:
        order = sorted(range(len(whole)), key=whole.offsets.__getitem__)
        for column in whole.arrays():
            column[:] = array(column.typecode, map(column.__getitem__, order))
    return whole
