"""Read the bytes of one log file, in pieces of any size, into frames of rows.

A line ends at a line feed, a carriage return (progress bars) or a NUL (the hole that a truncated
file leaves). The sizes of the pieces do not matter: the same bytes give the same rows. Time is
linear in the bytes; memory is bounded by one block and one line. Lines of more than
``LONGEST_LINE_BYTES`` are ignored.

Reading every line with ``read_line`` would take 300 times as long as a plain loop over the file.
Three things make it about as fast as that loop:

1. *Search before reading.* Only lines that contain a word of ``line.NEEDLES`` are examined, or all
   lines below the head of a table. The search jumps from one needle to the next, so the lines
   between cost almost nothing.
2. *Learn line patterns.* Lines of a log differ mostly in their digits. When a second line of a kind
   appears, ``line_pattern.learn_pattern`` derives a regular expression that extracts the numbers of
   further lines of that kind. Lines that measure nothing, whatever their numbers, are remembered as
   noise. Both are forgotten where a table begins or ends, because other lines matter there.
3. *Expect the usual order.* Lines come in the same order again and again, so the patterns that
   followed the last time are tried before anything else.

Beyond ``FULL_SEARCH_BYTES``, most blocks are searched only for the needles that found metric lines
of this log so far, and for ``line.ALWAYS_SEARCHED``. Every ``COMMON_SEARCH_INTERVAL``-th block is
searched for ``line.COMMON_NEEDLES`` too. A kind of line that first appears late in a very long log
and shares no needle with earlier metric lines may therefore be missed in part.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from hpcrun.curves.lines.document import LARGEST_DOCUMENT_BYTES, may_be_document, read_document
from hpcrun.curves.lines.formats import LineFormat
from hpcrun.curves.lines.formats.known import FORMATS
from hpcrun.curves.lines.line import (
    ALWAYS_SEARCHED,
    COMMON_NEEDLES,
    NEEDLES,
    read_line,
    split_records,
)
from hpcrun.curves.lines.line_pattern import LinePattern, build_frame, is_noise, learn_pattern
from hpcrun.curves.lines.prefixes import strip_prefixes
from hpcrun.curves.lines.times import (
    ELAPSED,
    find_clock,
    is_log_stamp,
    read_clock,
    read_total_time,
    states_end,
)
from hpcrun.curves.names import decode
from hpcrun.curves.row import Frame, Mark, Row, TableHead

LONGEST_LINE_BYTES = 1 << 16
BLOCK_BYTES = 1 << 18
FULL_SEARCH_BYTES = 1 << 22
COMMON_SEARCH_INTERVAL = 16

# Removed from a line to get the key of its patterns: digits, the blanks that pad them, and the
# block characters of progress bars, whose bytes are not ASCII.
_VARYING_BYTES = b" 0123456789#" + bytes(range(0x80, 0x100))
_MAX_PATTERNS = 1 << 14
# Learning a pattern reads the line about twice for each of its numbers. That pays off at the second
# line of a kind; if lines have many numbers, only after one line for every four of them.
_NUMBERS_PER_AWAITED_LINE = 4
# A line that cannot be learned is tried again after twice as many lines, three times in all.
_LEARNING_TRIALS = 3
# A table ends when this many consecutive lines were none of its rows.
_TABLE_ENDS_AFTER_LINES = 200
# A last line without a line end is compared with at least this many similar lines, and with those
# in this many bytes before it.
_MIN_SIMILAR_LINES = 8
_SIMILAR_LINES_BYTES = 1 << 13
_NUMBER = re.compile(rb"[0-9]+")
_DECIMALS = re.compile(rb"\.[0-9]+\Z")
_LINE_ENDS = re.compile(rb"[ \t]*[\n\r\0]+")
_NAME_AT_END = re.compile(
    rb"[\s,;|-]{0,9}(?<![\w./])(?:[^\W\d][\w./]{0,60} ){0,3}[^\W\d][\w./]{0,60} ?[:=]?\s{0,9}\Z"
)
_EVERY_LINE = (b"\n",)
# In a shorter text, all needles are searched for.
_MIN_SELECTED_BYTES = 1 << 12
# Time stamps of lines without measurements are searched for in the first bytes of a log, and in
# this many lines at its start and end.
_HEAD_BYTES, _MAX_STAMPED_LINES = 1 << 20, 400
_MAY_BE_TIME = re.compile(rb"\d\d:\d\d|1[4-9]\d{8}")
# A single bytes.translate folds case and turns every line end into a line feed, keeping offsets.
_FOLDED_BYTES = bytes(0x0A if i in (0x00, 0x0D) else i for i in range(256)).lower()


class LogReader:
    """Turns the bytes of one log file into frames of rows, and marks.

    Attributes:
        offset: position in the file of the next byte to feed.
        lines_read: number of lines up to the first that measures something.
        has_rows: True once a line measured something.
        table: the head of the table whose rows are being read, or None.

    >>> reader = LogReader()
    >>> [(*f.offsets, *f.steps, *f.columns[0]) for f in reader.feed(b"step=1 loss=2.5\\nstep=2 lo")]
    [(0, 1, 2.5)]
    >>> [(*f.offsets, *f.columns[0]) for f in reader.feed(b"ss=2.25\\n")]
    [(16, 2.25)]
    """

    def __init__(self, offset: int = 0, formats: Sequence[LineFormat] = FORMATS) -> None:
        """Start at byte ``offset`` of the file, where a line must begin."""
        self.offset = offset
        self.lines_read = 0
        self.has_rows = False
        self.table: TableHead | None = None
        self._formats = formats
        self._lines_since_table_row = 0
        # The upper line of a table head that may have two, and the offset right below it.
        self._upper_head, self._below_upper_head = TableHead("head", ()), -1
        # The incomplete last line; if it is too long, only its last bytes.
        self._incomplete_line = b""
        # Text before the incomplete line, to find out whether that line is cut off.
        self._text_before = b""
        # Clocks of which a time stamp was found at the start of the log.
        self._clocks_begun: set[str] = set()
        # Offset in the file of the text being read.
        self._text_offset = offset
        # Needles that found metric lines of this log.
        self._needles = set(ALWAYS_SEARCHED)
        # Learned patterns by the line without its varying bytes. Noise retains the positions of its
        # numbers, because "step:" being noise does not imply that "step: 5" is.
        self._patterns: dict[bytes, list[LinePattern]] = {}
        self._noise: set[bytes] = set()
        self._times_seen: Counter[bytes] = Counter()
        self._last_pattern: LinePattern | None = None
        self._frames: list[Frame] = []
        self._marks: list[Mark] = []

    def feed(self, data: bytes) -> list[Frame | Mark]:
        """Return the rows of the lines that ``data`` completes; an incomplete last line is kept.

        Marks come first, then frames in the order of their first lines.
        """
        start = 0
        if self.offset < _HEAD_BYTES and not self._clocks_begun:
            self._marks += self._find_first_stamps(data)
        while start < len(data):
            # Blocks start at multiples of their size, so that the pieces do not matter.
            stop = start + BLOCK_BYTES - self.offset % BLOCK_BYTES
            self._read_block(data[start:stop])
            start = stop
        return self._collect_pieces()

    def finish(self) -> list[Frame | Mark]:
        """Return the rows of a last line without a line end, at the end of the file.

        A killed job may leave a number that is cut off. So the last word and its name are ignored,
        unless the line ends with a bracket, or its decimals are as many as in all similar lines.

        >>> reader = LogReader()
        >>> reader.feed(b"step=7 loss=2.5 lr=0.0001"), [f.layout.names for f in reader.finish()]
        ([], [('loss',)])
        """
        if self._incomplete_line and not self.has_rows:
            self.lines_read += 1
        line = self._incomplete_line.rstrip()
        if not (line.endswith((b"}", b"]", b")", b"|")) or self._is_complete(line)):
            separators = b";" if self.table and self.table.kind == "semicolons" else b" \t,;|"
            line = line[: max(line.rfind(separator) for separator in separators) + 1]
            line = _NAME_AT_END.sub(b"", line)
        self._text_offset = self.offset - len(self._incomplete_line)
        if len(self._incomplete_line) <= LONGEST_LINE_BYTES:
            self._examine_line(line, 0, len(line))
        self._read_matched_lines()
        self._marks += self._read_end()
        self._incomplete_line = b""
        return self._collect_pieces()

    def _find_first_stamps(self, data: bytes) -> Iterator[Mark]:
        """Yield the first time stamp of each clock at the start of a log."""
        start = 0
        for found in islice(_MAY_BE_TIME.finditer(data), _MAX_STAMPED_LINES):
            if found.start() < start:
                continue
            begin = max(data.rfind(end, 0, found.start()) for end in (b"\n", b"\r", b"\0")) + 1
            start = (data.find(b"\n", found.start()) + 1) or len(data)
            yield from self._read_stamp(data[begin:start], self.offset + begin, self._clocks_begun)

    def _read_end(self) -> Iterator[Mark]:
        """Yield the last time stamps of a log, its stated times, and whether it is over."""
        text = self._text_before + self._incomplete_line
        offset, seen = self.offset - len(text), set[str]()
        lines = [*re.finditer(rb"[^\n\r\0]+", text)]
        for found in reversed(lines[-_MAX_STAMPED_LINES:]):
            if len(found.group()) < LONGEST_LINE_BYTES:
                yield from self._read_stamp(found.group(), offset + found.start(), seen)
                message = strip_prefixes(decode(found.group())).text.strip()
                seconds, ends = read_total_time(message), states_end(message)
                if ends or seconds is not None:
                    yield Mark(ends=True, seconds=seconds, offset=offset + found.start())

    def _read_stamp(self, line: bytes, offset: int, seen: set[str]) -> Iterator[Mark]:
        """Yield the time stamp of a line, unless there was one of the same clock."""
        text = decode(line)
        clock, time = _read_time(text)
        if time is not None and clock not in (*seen, ELAPSED) and is_log_stamp(text):
            seen.add(clock)
            yield Mark(time=time, clock=clock, offset=offset)

    def _is_complete(self, line: bytes) -> bool:
        """Return True if a line ends in a number with as many decimals as all similar lines."""
        form = _NUMBER.sub(b"", line)
        lines = [line, *_LINE_ENDS.split(self._text_before)[1:]]
        similar = [each for each in lines if _NUMBER.sub(b"", each) == form]
        decimals = [each.rpartition(b".")[2] for each in similar]
        enough = len(similar) > _MIN_SIMILAR_LINES and all(map(_DECIMALS.search, similar))
        return enough and len({*map(len, decimals)}) == 1 < len({*decimals[1:]})

    def read(self, chunks: Iterable[bytes]) -> Iterator[list[Frame | Mark]]:
        """Read a whole log in chunks; it may be a single JSON document.

        Offsets of rows in a document are positions in its list.

        >>> state = [b'{"log_history": [{"loss": 2.5,', b' "step": 10}]}']
        >>> [[*frame.steps] for pieces in LogReader().read(state) for frame in pieces]
        [[10]]
        """
        chunks, begun, size = iter(chunks), [], 0
        for chunk in chunks if not self.offset else ():
            begun.append(chunk)
            size += len(chunk)
            if size > LARGEST_DOCUMENT_BYTES or not may_be_document(b"".join(begun[:2])):
                break
        else:
            rows = read_document(b"".join(begun).decode("utf-8", "replace"))
            for position, row in enumerate(rows or ()):
                self._frames.append(build_frame("json document", row, [position], ()))
            if rows:
                yield self._collect_pieces()
                return
        yield from map(self.feed, chain(begun, chunks))
        yield self.finish()

    def _read_block(self, block: bytes) -> None:
        """Read the lines that end in a block, or in a part of one; keep an incomplete last line."""
        folded = fold_block(block)
        first, end = folded.find(b"\n") + 1, folded.rfind(b"\n") + 1
        if not self.has_rows:
            self.lines_read += block.count(b"\n")
        if first:
            incomplete = self._incomplete_line
            line = incomplete + block[:first]
            self._read_lines(line, fold_block(line), 0, len(line), self.offset - len(incomplete))
            self._read_lines(block, folded, first, end, self.offset)
            before = (
                self._text_before + incomplete + block[max(0, end - _SIMILAR_LINES_BYTES) : end]
            )
            self._text_before = before[-_SIMILAR_LINES_BYTES:]
            self._incomplete_line = b""
        self.offset += len(block)
        self._incomplete_line = (self._incomplete_line + block[end:])[-LONGEST_LINE_BYTES - 1 :]

    def _read_lines(self, text: bytes, folded: bytes, start: int, end: int, offset: int) -> None:
        """Read the lines of ``text[start:end]``; the text begins at ``offset`` of the file."""
        self._text_offset = offset
        while start < end:
            start = self._scan_lines(text, folded, start, end)
        self._read_matched_lines()

    def _scan_lines(self, text: bytes, folded: bytes, start: int, end: int) -> int:
        """Match or read the lines that may measure something.

        Returns where to continue: ``end``, or behind a line at which a table began or ended.
        """
        find, rfind, known_patterns = folded.find, folded.rfind, self._patterns
        last = self._last_pattern
        next_places = dict.fromkeys(self._needles_at(self.offset, folded), -1)
        # Whether the line before was directly above: only then the next one is tried at once.
        follows = True
        while start < end:
            followers = () if last is None else last.followers
            begin, line = start, None
            for pattern in followers if follows else ():
                if line := pattern.regex.match(text, begin):
                    break
            else:
                nearest = end
                for needle, place in next_places.items():
                    if place < start:
                        place = find(needle, start, end)
                        next_places[needle] = place = end if place < 0 else place
                    if place < nearest:
                        nearest = place
                if nearest == end:
                    break
                begin = rfind(b"\n", start, nearest) + 1 or start
                for pattern in followers if begin > start or not follows else ():
                    if line := pattern.regex.match(text, begin):
                        break
            follows = begin == start
            if line is not None:
                pattern.matches.append(line)
                last, stop = pattern, line.end()
                self._lines_since_table_row = 0
            else:
                stop = find(b"\n", begin)
                if matched := self._examine_line(text, begin, stop):
                    if last is not None:
                        last.followers = (matched, *last.followers[:1])
                    last = matched
            start = stop + 1
            if self._patterns is not known_patterns:
                return start
        self._last_pattern = last
        return end

    def _needles_at(self, offset: int, folded: bytes) -> Collection[bytes]:
        """Return the needles to search for in a block, which contains this byte of the file."""
        if self.table is not None or self._formats is not FORMATS:
            return _EVERY_LINE
        if offset < FULL_SEARCH_BYTES:
            return select_needles(folded) if len(folded) > _MIN_SELECTED_BYTES else NEEDLES
        if offset // BLOCK_BYTES % COMMON_SEARCH_INTERVAL == 0:
            return self._needles | COMMON_NEEDLES
        return self._needles

    def _examine_line(self, text: bytes, begin: int, end: int) -> LinePattern | None:
        """Match a line with the patterns of its kind; read it if none matches, and learn from it.

        Returns the pattern that matched, if any.
        """
        if not begin < end <= begin + LONGEST_LINE_BYTES:
            return None
        line = text[begin:end]
        key = line.translate(None, _VARYING_BYTES)
        for pattern in self._patterns.get(key, ()):
            if found := pattern.regex.match(text, begin, end):
                pattern.matches.append(found)
                self._lines_since_table_row = 0
                return pattern
        numberless = _NUMBER.sub(b"0", line)
        if numberless in self._noise:
            self._count_line_without_row()
            return None
        records = split_records(line)
        if len(records) > 1:
            for record in records:
                self._examine_line(text, begin, begin + len(record))
                begin += len(record)
            return None
        reading = self._read_record(line, self._text_offset + begin)
        if len(self._times_seen) >= _MAX_PATTERNS:
            self._times_seen.clear()
        if len(self._patterns) + len(self._noise) >= _MAX_PATTERNS:
            self._forget_patterns()
        if reading is None:
            self._times_seen[numberless] += 1
            if self._times_seen[numberless] > 1 and is_noise(line, self._read_text):
                self._noise.add(numberless)
        elif isinstance(reading, Row):
            self._times_seen[key] += 1
            awaited = max(2, numberless.count(b"0") // _NUMBERS_PER_AWAITED_LINE)
            is_due = self._times_seen[key] in [awaited << n for n in range(_LEARNING_TRIALS)]
            if is_due and (learned := learn_pattern(line, self._read_text)):
                self._patterns.setdefault(key, []).append(learned)
        return None

    def _read_text(self, text: str) -> tuple[str, Row | Mark | TableHead] | None:
        return read_line(text, self.table, self._formats)

    def _read_record(self, line: bytes, offset: int) -> Row | Mark | TableHead | None:
        """Read a single line with ``read_line`` and store its result."""
        text = decode(line)
        upper_head = self._upper_head if offset <= self._below_upper_head else None
        form, reading = read_line(text, self.table or upper_head, self._formats) or ("", None)
        if reading is None:
            self._count_line_without_row()
        elif isinstance(reading, Row):
            self.has_rows, self._lines_since_table_row = True, 0
            clock, time = _read_time(text)
            self._frames.append(build_frame(form, reading, [offset], [time], clock=clock))
            self._note_needle(line)
        elif isinstance(reading, Mark):
            self._marks.append(structs.replace(reading, offset=offset))
        elif not reading.columns:
            self._upper_head = reading
            self._below_upper_head = offset + len(line) + len(b"\r\n")
        elif reading != self.table:
            self._switch_table(reading)
        return reading

    def _note_needle(self, line: bytes) -> None:
        """Search the rest of the log for a needle that finds lines like this one."""
        folded = fold_block(line)
        needles = [needle for needle in NEEDLES if needle in folded]
        if needles and self._needles.isdisjoint(needles):
            self._needles.add(needles[0])

    def _count_line_without_row(self) -> None:
        self._lines_since_table_row += 1
        if self.table is not None and self._lines_since_table_row >= _TABLE_ENDS_AFTER_LINES:
            self._switch_table(None)

    def _switch_table(self, table: TableHead | None) -> None:
        """Begin a table, or end the open one."""
        self._forget_patterns()
        self.table, self._lines_since_table_row = table, 0

    def _forget_patterns(self) -> None:
        self._read_matched_lines()
        self._patterns, self._last_pattern = {}, None
        self._noise.clear()
        self._times_seen.clear()

    def _read_matched_lines(self) -> None:
        """Build frames of the lines that patterns have matched since the last call."""
        for pattern in chain.from_iterable(self._patterns.values()):
            if pattern.matches:
                self._note_needle(pattern.matches[0].group())
            for row, lines in pattern.take_matches():
                offsets = [self._text_offset + line.start() for line in lines]
                if row is not None:
                    self._frames.append(pattern.build_frame(row, offsets, lines))
                    continue
                for line, offset in zip(lines, offsets, strict=True):
                    self._read_record(line.group(), offset)

    def _collect_pieces(self) -> list[Frame | Mark]:
        """Return everything read since the last call, with one frame for each kind."""
        kinds: dict[object, list[Frame]] = {}
        for frame in self._frames:
            kinds.setdefault(frame.kind, []).append(frame)
        frames = sorted(map(_join_frames, kinds.values()), key=lambda frame: frame.offsets[0])
        pieces: list[Frame | Mark] = [*self._marks, *frames]
        self._frames, self._marks = [], []
        return pieces


def _read_time(text: str) -> tuple[str, float | None]:
    """Return the clock of a line and its time; "" and None if it has none."""
    clock, start, end = find_clock(text) or ("", 0, 0)
    return clock, read_clock(text[start:end], clock) if clock else None


def select_needles(folded: bytes) -> list[bytes]:
    """Return the needles that may occur in a block: most blocks contain few of all needles.

    Two pairs of bytes stand for each needle, and one pass over the block compares all of them, so
    that some needles are returned that do not occur.

    >>> {b"loss", b"step"} <= {*select_needles(b"step 5: the loss is 2.5")}
    True
    """
    codes = np.frombuffer(folded + b"\n\n\n", np.uint8)
    pairs = codes[:-1].astype(np.uint16) << 8 | codes[1:]
    begins = np.flatnonzero(_FIRST_PAIRS[pairs[:-2]])
    found = _FIRST_PAIRS[pairs[begins]] & _SECOND_PAIRS[pairs[begins + 2]]
    groups = int(np.bitwise_or.reduce(found, initial=0))
    return [needle for n, needle in enumerate(NEEDLES) if groups >> n % _NEEDLE_GROUPS & 1]


def _code_needles() -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return for each pair of bytes the groups of the needles that begin with it, or continue.

    For a needle of two or three bytes, any bytes may follow.
    """
    first, second = np.zeros(1 << 16, np.uint64), np.zeros(1 << 16, np.uint64)
    for number, needle in enumerate(NEEDLES):
        group = np.uint64(1 << number % _NEEDLE_GROUPS)
        first[needle[0] << 8 | needle[1]] |= group
        if len(needle) > 3:
            second[needle[2] << 8 | needle[3]] |= group
        elif len(needle) == 3:
            second[needle[2] << 8 : (needle[2] + 1) << 8] |= group
        else:
            second |= group
    return first, second


_NEEDLE_GROUPS = 64
_FIRST_PAIRS, _SECOND_PAIRS = _code_needles()


def fold_block(block: bytes) -> bytes:
    """Fold case and line ends; every byte keeps its place."""
    if b"\r" in block or b"\0" in block:
        return block.translate(_FOLDED_BYTES)
    return block.lower()


def _join_frames(frames: Sequence[Frame]) -> Frame:
    """Join frames of one kind, their rows in the order of their lines."""
    joined, *others = frames
    for frame in others:
        for column, more in zip(joined.arrays(), frame.arrays(), strict=True):
            column += more
    if others:
        order = sorted(range(len(joined)), key=joined.offsets.__getitem__)
        for column in joined.arrays():
            column[:] = array(column.typecode, map(column.__getitem__, order))
    return joined
