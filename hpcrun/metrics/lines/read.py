"""Reader: the bytes of one log file, in whatever pieces they come, to frames of rows.

A line ends at a line feed, a carriage return (progress bars) or a NUL (the hole that a truncated
file leaves). The pieces do not matter: the same bytes give the same rows. Time is linear in the
bytes; memory is bounded by one block and one line. A line of more than ``LONGEST_LINE`` bytes is no
metric line and is passed over.

Speed comes from looking at few lines, and from reading few of these. A line is looked at if it
holds one of ``line.NEEDLES``, or stands below the head of a table. It is read by ``line.read_line``
if its *shape* (the line without its digits) is new; a shape that comes again is learned, as a
pattern or as noise. Lines come in the same order again and again: so the shape that followed last
time is tried first. Beyond ``THOROUGH`` bytes only every ``SAMPLED``-th block is searched for the
commonest needles (``line.COMMON``), the others for those by which metric lines of this log were
found, ``line.ALWAYS`` among them: a form that begins late in a very long log, without the word loss
and without anything that its other metric lines have, may be missed in part.

A log may be read in ranges of ``RANGE`` bytes, each from ``Reader.move`` on, side by side: unless a
table is open at the end of one, the same rows are found.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, repeat

from hpcrun.metrics.lines.learn import Shape, frame_of, is_noise, learn
from hpcrun.metrics.lines.line import (
    ALWAYS,
    COMMON,
    FORMATS,
    LARGEST_DOCUMENT,
    NEEDLES,
    Format,
    may_be_document,
    read_document,
    read_line,
    records,
)
from hpcrun.metrics.lines.prefixes import read_time
from hpcrun.metrics.names import decode
from hpcrun.metrics.row import Frame, Mark, Placed, Row, Table

LONGEST_LINE = 1 << 16
BLOCK = 1 << 20
RANGE = 1 << 23
THOROUGH = RANGE
SAMPLED = 16

# What is taken out of a line to leave its shape: digits and the blanks that pad them, and the
# blocks that bars are drawn with.
_DIGITS = b" 0123456789#" + bytes(range(0x80, 0x100))
# How many shapes are remembered; how often one is tried that could not be learned.
_MOST_SHAPES = 1 << 14
_TRIES = 4
# A table is over when that many lines on end were none of its rows.
_PATIENCE = 200
_NUMBER = re.compile(rb"[0-9]+")
# One pass of bytes.translate folds case and makes every line end a line feed, keeping offsets.
_FOLD = bytes(0x0A if i in (0x00, 0x0D) else i for i in range(256)).lower()
_LINE_FEED = 0x0A
_EVERY_LINE = (b"\n",)

_MOST_KEYS = 1 << 12


class Reader:
    """Reads one log file.

    ``formats`` are the forms of lines that it knows, a job's own among them. ``lines_read`` counts
    the lines up to the first that measures something (``has_rows``: it was found); ``offset`` is
    where the line begins that is read next; ``table`` is open, whose rows say nothing without it.

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
        # What was read of the line at ``offset``, nothing once it is too long; and its length.
        self._rest, self._length = b"", 0
        self.has_rows = False
        self._formats = formats
        # What lines were found by: in the thorough part; and in this range besides.
        self._needles = set(ALWAYS)
        self._range, self._range_needles = -1, self._needles
        self.table: Table | None = None
        self._misses = 0
        # The block at hand and the offset of its first byte.
        self._block, self._base = b"", offset
        # Shape -> what reads its lines. Shapes that say nothing keep the places of their numbers:
        # "step: 5" is no noise because "step:" is.
        self._shapes: dict[bytes, Shape] = {}
        self._noise: set[bytes] = set()
        # How often a line of a shape was read by itself: an experiment is worth it from the second.
        self._seen: Counter[bytes] = Counter()
        self._last: Shape | None = None
        self._scans = 0
        # Every shape learned since the last table; lines of theirs wait to become frames.
        self._learned: list[Shape] = []
        # What rows have in common -> their frames.
        self._frames: dict[object, list[Frame]] = {}
        self._pieces: list[Frame | Placed] = []

    def move(self, offset: int) -> None:
        """Go on at byte ``offset`` of the file, where a line begins."""
        self.offset, self._rest, self._length = offset, b"", 0

    def feed(self, data: bytes) -> list[Frame | Placed]:
        """Return the rows of the lines that ``data`` completes; a cut-off last line is kept.

        Frames come in the order of their first line; a mark stands behind all before it.
        """
        start = 0
        while start < len(data):
            # Blocks lie at whole multiples in the file, so that the pieces do not matter.
            stop = start + BLOCK - (self.offset + self._length) % BLOCK
            self._read_piece(data[start:stop])
            start = stop
        return self._take_pieces()

    def finish(self) -> list[Frame | Placed]:
        """Return the rows of a last line that no line end completes; nothing comes after it.

        Its last word may be cut in the middle of a number, as a killed job leaves it, so only
        what stands before that word counts; a line that ends in a bracket shows that it is whole.

        >>> reader = Reader()
        >>> reader.feed(b"step=7 loss=2.5 lr=0.0001"), [f.layout.names for f in reader.finish()]
        ([], [('loss',)])
        """
        if self._length and not self.has_rows:
            self.lines_read += 1
        line = self._rest.rstrip()
        if not line.endswith((b"}", b"]", b")", b"|")):
            line = line[: max(line.rfind(mark) for mark in b" \t,;|") + 1]
        self._block, self._base = line, self.offset
        self._look_up(0, len(line))
        self.move(self.offset + self._length)
        return self._take_pieces()

    def read(self, chunks: Iterable[bytes]) -> Iterator[list[Frame | Placed]]:
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
                self._add(place, "json document", row, "")
            if rows:
                yield self._take_pieces()
                return
        yield from map(self.feed, chain(begun, chunks))
        yield self.finish()

    def _read_piece(self, piece: bytes) -> None:
        """Read the lines that end in what comes next; what begins behind them is kept."""
        folded = fold(piece)
        first, end = folded.find(b"\n") + 1, folded.rfind(b"\n") + 1
        if not self.has_rows:
            self.lines_read += piece.count(b"\n")
        if first:
            self._keep(piece[: first - 1])
            line = self._rest + b"\n"
            self._read_whole_lines(line, fold(line), 0, len(line), self.offset)
            base = self.offset + self._length + 1 - first
            self._read_whole_lines(piece, folded, first, end, base)
            self.move(base + end)
        self._keep(piece[end:])

    def _keep(self, piece: bytes) -> None:
        self._length += len(piece)
        self._rest = self._rest + piece if self._length <= LONGEST_LINE else b""

    def _read_whole_lines(
        self, block: bytes, folded: bytes, start: int, end: int, base: int
    ) -> None:
        """Read the lines of a block from ``start`` to ``end``, where lines begin and end."""
        self._block, self._base = block, base
        while start < end:
            start = self._scan(folded, start, end, self._needles_for(base + start))
        self._flush()

    def _needles_for(self, offset: int) -> Collection[bytes]:
        """What to look for in the block in which a line begins."""
        if self.table is not None or self._formats is not FORMATS:
            return _EVERY_LINE
        if offset < THOROUGH:
            return NEEDLES
        if offset // RANGE != self._range:
            self._range, self._range_needles = offset // RANGE, set(self._needles)
        if offset // BLOCK % SAMPLED == 0:
            return self._range_needles | COMMON
        return self._range_needles

    def _scan(self, folded: bytes, start: int, end: int, needles: Collection[bytes]) -> int:
        """Read each line that holds a needle; return where to go on.

        That is ``end``, or behind a line at which all shapes were forgotten. Jumping from needle to
        needle never looks at what stands between: this is what makes noise cheap. A line whose
        shape was found by a needle in this scan needs no search: whatever fits it has that needle.
        """
        self._scans += 1
        scan, block, last, shapes = self._scans, self._block, self._last, self._shapes
        find, rfind = folded.find, folded.rfind
        sought, places = [*needles], [-1] * len(needles)
        follows = False  # whether the last line that was read stood right behind the one before it
        while start < end:
            if folded[start] == _LINE_FEED:
                start += 1
                continue
            begin = start
            if not follows:
                nearest = end
                for index, place in enumerate(places):
                    if place < start:
                        place = find(sought[index], start, end)
                        places[index] = place = end if place < 0 else place
                    if place < nearest:
                        nearest = place
                if nearest == end:
                    break
                begin = rfind(b"\n", start, nearest) + 1 or start
            known: Shape | None = None
            for shape in () if last is None else last.followers:
                if shape.scan == scan or not follows:
                    found = shape.pattern.match(block, begin)
                    if found is not None:
                        shape.found.append(found)
                        known, stop = shape, found.end()
                        break
            else:
                if follows:
                    follows = False
                    continue
                stop = find(b"\n", nearest, end)
                known = self._look_up(begin, stop)
                if known is not None and last is not None:
                    last.followers = (known, last.followers[0])
            follows, start = begin == start, stop + 1
            if known is not None:
                if known.scan != scan:
                    known.scan = scan
                    self._note_needles(known.needles)
                self._misses = 0
                last = known
            elif self._shapes is not shapes:
                return start
        self._last = last
        return end

    def _look_up(self, start: int, stop: int) -> Shape | None:
        """Read a line or a record by its shape; return it, None if it was read otherwise."""
        if stop - start > LONGEST_LINE:
            return None
        line = self._block[start:stop]
        key = line.translate(None, _DIGITS)
        shape = self._shapes.get(key)
        if shape is not None and (found := shape.pattern.match(self._block, start, stop)):
            shape.found.append(found)
            return shape
        numberless = _NUMBER.sub(b"0", line)
        if numberless in self._noise:
            self._miss()
            return None
        parts = records(line)
        if len(parts) > 1:
            for part in parts:
                stop = start + len(part)
                if shape := self._look_up(start, stop):
                    self._note_needles(shape.needles)
                    self._misses = 0
                start = stop
            return None
        answer = self._read_line(line, self._base + start)
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
            if 1 < self._seen[key] <= _TRIES and (shape := learn(line, self._ask)):
                shape.needles, shape.followers = _needles_in(line), (shape,)
                self._shapes[key] = shape
                self._learned.append(shape)
        return None

    def _forget_shapes(self) -> None:
        self._flush()
        self._learned.clear()
        self._shapes = {}
        self._noise.clear()
        self._seen.clear()
        self._last = None

    def _ask(self, text: str) -> tuple[str, Row | Mark | Table] | None:
        return read_line(text, self.table, self._formats)

    def _read_line(self, line: bytes, offset: int) -> Row | Mark | Table | None:
        """Read a line of one record by itself, and put down what it says."""
        text = decode(line)
        form, answer = self._ask(text) or ("", None)
        if answer is None:
            self._miss()
        elif isinstance(answer, Row):
            self.has_rows, self._misses = True, 0
            self._add(offset, form, answer, text)
            self._note_needles(_needles_in(line))
        elif isinstance(answer, Mark):
            self._flush()
            self._pieces.append(Placed(offset, answer))
        elif answer != self.table:
            self._open(answer)
        return answer

    def _open(self, table: Table | None) -> None:
        """Begin a table, or end it; shapes mean something else then."""
        self._forget_shapes()
        self.table, self._misses = table, 0

    def _miss(self) -> None:
        """Count a line that is no row: a table is over some time."""
        if self.table is not None:
            self._misses += 1
            if self._misses >= _PATIENCE:
                self._open(None)

    def _note_needles(self, needles: Sequence[bytes]) -> None:
        """See to it that lines like one that holds these needles are found in this range."""
        if needles and self._range_needles.isdisjoint(needles):
            self._range_needles.add(needles[0])

    def _take_pieces(self) -> list[Frame | Placed]:
        self._flush()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _flush(self) -> None:
        """Make frames of all that was read, ordered by their first line."""
        for shape in self._learned:
            if shape.found:
                self._take(shape)
        frames = [*map(_joined, self._frames.values())]
        frames.sort(key=lambda frame: frame.offsets[0])
        self._pieces += frames
        self._frames = {}

    def _take(self, shape: Shape) -> None:
        """Make frames of the lines that a shape has matched."""
        lines, shape.found = shape.found, []
        groups = [found.groups() for found in lines]
        by_key: dict[object, list[int]] = {}
        keys = map(shape.keys, groups) if shape.keys else repeat(None, len(groups))
        for index, key in enumerate(keys):
            by_key.setdefault(key, []).append(index)
        if len(shape.rows) > _MOST_KEYS:
            shape.rows.clear()
        for key, indices in by_key.items():
            first = indices[0]
            if key not in shape.rows:
                _, answer = self._ask(decode(lines[first].group())) or ("", None)
                shape.rows[key] = None
                if isinstance(answer, Row) and shape.explains(groups[first], answer):
                    shape.rows[key] = answer
            row = shape.rows[key]
            offsets = [self._base + lines[index].start() for index in indices]
            if row is not None:
                self._put(shape.frame(row, offsets, [groups[index] for index in indices]))
                continue
            for index, offset in zip(indices, offsets, strict=True):
                self._read_line(lines[index].group(), offset)

    def _add(self, offset: int, form: str, row: Row, text: str) -> None:
        """Put down what one line says."""
        moment = read_time(text)
        self._put(frame_of(form, row, [offset], None if moment is None else [moment], {}))

    def _put(self, frame: Frame) -> None:
        """Add rows to those of their kind: of bars, and beside epochs, those of one total."""
        has = (frame.steps is not None, frame.epochs is not None, frame.times is not None)
        by_total = frame.layout.bar is not None or frame.epochs is not None
        key = (frame.layout, has, frame.total if by_total else None)
        self._frames.setdefault(key, []).append(frame)


def fold(block: bytes) -> bytes:
    """Fold case and line ends; every byte keeps its place."""
    if b"\r" in block or b"\0" in block:
        return block.translate(_FOLD)
    return block.lower()


def _needles_in(line: bytes) -> list[bytes]:
    folded = fold(line)
    return [needle for needle in NEEDLES if needle in folded]


def _joined(frames: Sequence[Frame]) -> Frame:
    """Join frames of one kind, their rows in the order of their lines."""
    whole, *rest = frames
    for frame in rest:
        for column, more in zip(whole.arrays(), frame.arrays(), strict=True):
            column += more
        if frame.total is not None:
            whole.total = max(whole.total or 0, frame.total)
    if rest:
        order = sorted(range(len(whole)), key=whole.offsets.__getitem__)
        for column in whole.arrays():
            column[:] = array(column.typecode, map(column.__getitem__, order))
    return whole
