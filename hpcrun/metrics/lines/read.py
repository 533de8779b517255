"""Reader: the bytes of one log file, in whatever pieces they come, to frames of rows.

A line ends at a line feed, a carriage return (progress bars) or a NUL (the hole that a truncated
file leaves). The pieces do not matter: the same bytes give the same rows. Time is linear in the
bytes; memory is bounded by one block and one line. A line of more than ``LONGEST_LINE`` bytes is no
metric line and is passed over.

Speed comes from looking at few lines, and from reading few of these. A line is looked at if it
holds one of ``line.NEEDLES``, or stands below the head of a table. It is read by ``line.read_line``
if its *shape* (the line without its digits) is new; a shape that comes again is learned, as a
template or as noise. Lines come in the same order again and again: so the shape that followed last
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
from collections.abc import Callable, Collection, Sequence

from hpcrun.metrics.lines.learn import Template, explains, is_noise, layout_of, learn
from hpcrun.metrics.lines.line import (
    ALWAYS,
    COMMON,
    FORMATS,
    LARGEST_DOCUMENT,
    NEEDLES,
    Format,
    find_time,
    read_document,
    read_line,
    read_time,
    records,
)
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
_LINE = re.compile(rb"[^\n\r\0]*")
# One pass of bytes.translate folds case and makes every line end a line feed, keeping offsets.
_FOLD = bytes(0x0A if i in (0x00, 0x0D) else i for i in range(256)).lower()
_LINE_FEED = 0x0A
_EVERY_LINE = (b"\n",)

_ENDS_IN_SECONDS = re.compile(rb"[T _-]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?$")
_MOST_STAMPS = 1 << 16
_MOST_KEYS = 1 << 12

ReadTime = Callable[[str], float | None]


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
        self._scans = 0
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
            start = self._scan(folded, start, end, self._needles_for(base + start))
        self._pieces += self._gathered.frames(self._base, self._read_again)

    def _needles_for(self, offset: int) -> Collection[bytes]:
        """What to look for in the block in which a line begins."""
        if self._table is not None or self._formats is not FORMATS:
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

        That is ``end``, or behind a line that changed the table. Jumping from needle to needle
        never looks at what stands between: this is what makes noise cheap. A line whose shape was
        found by a needle in this scan needs no search: whatever fits the shape has that needle.
        """
        self._scans += 1
        scan, block, last, table = self._scans, self._block, self._last, self._table
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
                    found = shape.match(block, begin)
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
                if table is not None:
                    self._strangers = 0
                last = known
            elif self._table is not table:
                return start
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
            if found := known.match(self._block, start):
                known.found.append(found)
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
            self._gathered.shapes.append(shape)

    def _make_room(self) -> None:
        if len(self._silent) >= _MOST_SHAPES:
            self._silent.clear()
        if len(self._shapes) + len(self._noise) >= _MOST_SHAPES:
            self._forget_shapes()

    def _forget_shapes(self) -> None:
        self._pieces += self._gathered.frames(self._base, self._read_again)
        self._gathered.shapes.clear()
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
        """Read a line of the block at hand again; nothing is kept of it."""
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


def read_document_frames(data: bytes) -> list[Frame] | None:
    """Read a whole file that is one JSON document; None if it is none that logs anything.

    The offsets are the places in its list.
    """
    rows = read_document(data.decode("utf-8", "replace")) if len(data) <= LARGEST_DOCUMENT else None
    if rows is None:
        return None
    gathered = Gatherer(lambda _: None)
    for index, row in enumerate(rows):
        gathered.add(index, "json document", row, None)
    return gathered.frames(0, lambda _: None)


def _needles_in(line: bytes) -> list[bytes]:
    folded = fold(line)
    return [needle for needle in NEEDLES if needle in folded]


def fold(block: bytes) -> bytes:
    """Fold case and line ends; every byte keeps its place."""
    if b"\r" in block or b"\0" in block:
        return block.translate(_FOLD)
    return block.lower()


def _stamp_span(line: bytes) -> tuple[int, int] | None:
    """Where the time stamp of a line stands, in bytes."""
    return find_time(line[:200].decode("latin-1"))


class Shape:
    """A template and the lines that have matched it since the last frames were made.

    ``seen`` is how often lines of this shape were read to learn it, ``needles`` what such a line
    can be found by.
    """

    def __init__(self, template: Template, seen: int, needles: Sequence[bytes]) -> None:
        self.template = template
        self.seen = seen
        self.needles = needles
        self.match = template.pattern.match
        # Matches in the block at hand, and the scan in which such a line was found by a needle.
        self.found: list[re.Match[bytes]] = []
        self.scan = 0
        # The shapes that followed last: tried first on the line after this one.
        self.followers: tuple[Shape, ...] = (self,)
        # What the template's keys spell -> what such a line says; None: it is read for itself.
        self.rows: dict[object, Row | None] = {}


class Gatherer:
    """Collects rows, from templates and one by one, and makes frames of them."""

    def __init__(self, read_time: ReadTime) -> None:
        self._read_time = read_time
        # Shapes whose lines will be among the frames.
        self.shapes: list[Shape] = []
        # What rows have in common -> their frame; and those whose rows are not in order.
        self._frames: dict[object, Frame] = {}
        self._unordered: set[object] = set()
        # A time stamp, and one up to the minute -> its seconds: lines share them.
        self._seconds: dict[bytes, float] = {}
        self._minutes: dict[bytes, float] = {}

    def add(self, offset: int, form: str, row: Row, stamp: bytes | None) -> None:
        """Add one row; ``stamp`` is the time stamp of its line."""
        moment = None if stamp is None else self._read_time(stamp.decode("utf-8", "replace"))
        self._put(
            Frame(
                layout_of(form, row),
                array("q", [offset]),
                None if row.step is None else array("q", [row.step]),
                None if row.epoch is None else array("d", [row.epoch]),
                None if moment is None else array("d", [moment]),
                tuple(array("d", [value]) for _, value in row.values),
                row.total,
            )
        )

    def frames(self, base: int, read: Callable[[int], Row | None]) -> list[Frame]:
        """Make frames of all that was added, ordered by their first line.

        ``base`` is the offset of the block in which shapes found their lines; ``read(offset)``
        reads a line of it by itself: one whose keys (a rank) are new to its shape.
        """
        for shape in self.shapes:
            if shape.found:
                self._take(shape, base, read)
        for key in self._unordered:
            _in_order(self._frames[key])
        made = [*self._frames.values()]
        self._frames, self._unordered = {}, set()
        made.sort(key=lambda frame: frame.offsets[0])
        return made

    def _put(self, frame: Frame) -> None:
        """Add rows to those of their kind: of bars, and beside epochs, those of one total."""
        has = (frame.steps is not None, frame.epochs is not None, frame.times is not None)
        by_total = frame.layout.bar is not None or frame.epochs is not None
        key = (frame.layout, has, frame.total if by_total else None)
        before = self._frames.setdefault(key, frame)
        if before is frame:
            return
        if before.offsets[-1] > frame.offsets[0]:
            self._unordered.add(key)
        for column, more in zip(before.arrays(), frame.arrays(), strict=True):
            column += more
        if frame.total is not None:
            before.total = max(before.total or 0, frame.total)

    def _take(self, shape: Shape, base: int, read: Callable[[int], Row | None]) -> None:
        template = shape.template
        offsets = [base + found.start() for found in shape.found]
        groups = [found.groups() for found in shape.found]
        shape.found = []
        if template.keys is None:
            self._put_all(template, template.row, offsets, groups)
            return
        by_key: dict[object, list[int]] = {}
        for index, key in enumerate(map(template.keys, groups)):
            by_key.setdefault(key, []).append(index)
        if len(shape.rows) > _MOST_KEYS:
            shape.rows.clear()
        for key, indices in by_key.items():
            if key not in shape.rows:
                row = read(offsets[indices[0]])
                explained = row is not None and explains(template, groups[indices[0]], row)
                shape.rows[key] = row if explained else None
            row = shape.rows[key]
            if row is not None:
                mine = [groups[index] for index in indices]
                self._put_all(template, row, [offsets[index] for index in indices], mine)
                continue
            for index in indices:
                if row := read(offsets[index]):
                    stamp = None if template.time is None else groups[index][template.time]
                    self.add(offsets[index], template.format, row, stamp)

    def _put_all(
        self, template: Template, row: Row, offsets: list[int], groups: list[tuple[bytes, ...]]
    ) -> None:
        """Put down what lines of one template and one key say."""
        texts = list(zip(*groups, strict=True))
        count = len(offsets)
        steps = None if row.step is None else array("q", [row.step]) * count
        epochs = None if row.epoch is None else array("d", [row.epoch]) * count
        columns = [array("d", [value]) * count for _, value in row.values]
        total = row.total
        for slot in template.slots:
            numbers = slot.convert(texts[slot.group])
            if slot.role == "step":
                steps = array("q", [*map(int, numbers)])
            elif slot.role == "epoch":
                epochs = array("d", numbers)
            elif slot.role == "total":
                total = int(max(numbers))
            else:
                columns[slot.role] = array("d", numbers)
        known = None if template.time is None else self._times(texts[template.time])
        times = None if known is None else array("d", known)
        layout = layout_of(template.format, row)
        self._put(Frame(layout, array("q", offsets), steps, epochs, times, tuple(columns), total))

    def _times(self, stamps: Sequence[bytes]) -> list[float] | None:
        """Return the seconds of time stamps of one form, None if they tell no time."""
        # What holds for the first holds for all.
        ends_in_seconds = _ENDS_IN_SECONDS.search(stamps[0]) is not None
        tail = len(stamps[0]) - stamps[0].rfind(b":") - 1 if ends_in_seconds else 0
        minutes = self._minutes
        if len(minutes) > _MOST_STAMPS:
            minutes.clear()
        seconds = self._seconds
        if len(seconds) > _MOST_STAMPS:
            seconds.clear()
        for stamp in set(stamps).difference(seconds):
            minute = stamp[:-tail] if tail else stamp
            begun = minutes.get(minute)
            if begun is None:
                text = minute + b"00" if tail else minute
                begun = self._read_time(text.decode("utf-8", "replace"))
                if begun is None:
                    return None
                minutes[minute] = begun
            seconds[stamp] = begun + float(stamp[-tail:].replace(b",", b".")) if tail else begun
        return [*map(seconds.__getitem__, stamps)]


def _in_order(frame: Frame) -> None:
    """Bring the rows of a frame in the order of their lines."""
    order = sorted(range(len(frame)), key=frame.offsets.__getitem__)
    for column in frame.arrays():
        column[:] = array(column.typecode, [column[index] for index in order])
