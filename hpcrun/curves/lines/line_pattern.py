"""Learn a regular expression from one line, and extract the numbers of similar lines with it.

Lines of a log differ mostly in their digits, and ``read_line`` takes a hundred times as long as a
regular expression. So ``learn_pattern`` finds out by experiment what each number of a line means:

1. It calls ``read_line`` again with one number changed at a time. If the step of the result
   changes, that number is the step; if the value of a metric changes, it is that value, times a
   factor (``250ms`` is 0.25 s); if the names or the rank change, it decides about the layout of the
   row (a *key*); if nothing changes, it means nothing.
2. It adds and removes blanks beside numbers, to find columns that are padded.
3. It builds the expression: groups for numbers that mean something, forms of numbers for the
   others, and the text between as it is.
4. It changes all numbers at once and checks that the expression gives what ``read_line`` gives.

A line whose numbers depend on each other, such as ``1:02:03``, fails one of these checks. It is not
learned, and ``read_line`` reads all lines of that kind.
``tests/curves/test_line_pattern.py`` checks that a pattern and ``read_line`` agree on lines of real
logs with changed numbers and blanks.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import add, methodcaller
from typing import Literal

import msgspec
from msgspec import Struct, structs

from hpcrun.curves.lines.times import find_clock, read_clock
from hpcrun.curves.names import decode
from hpcrun.curves.row import Frame, Mark, Row, RowLayout, TableHead

# The role of a number on a line: part of the position in the run, or the index of a value.
Role = Literal["step", "epoch", "total"] | int
ReadLine = Callable[[str], tuple[str, Row | Mark | TableHead] | None]
Span = tuple[int, int]

# No step has more digits, and int() of fifteen digits is fast.
_INTEGER = rb"[0-9]{1,15}"
# A number matches only numbers of the same form: whole, with a decimal point, with an exponent. An
# exponent of three digits may exceed a float, so such a line is left to read_line.
_WHOLE, _DECIMAL = rb"[-+]?[0-9]{1,40}", rb"[-+]?[0-9]{1,40}\.[0-9]{0,40}"
_FRACTION = rb"[-+]?\.[0-9]{1,40}"
_EXPONENT = rb"[eE][-+]?[0-9]{1,2}"
_LINE_END = rb"(?![^\n\r\0])"
# How many layouts of one pattern are remembered.
_MAX_KEYS = 1 << 12

_SIGN = rb"(?:(?<![\w.+-])[-+])?"  # not where it may be a dash
_NUMBER = _SIGN + rb"(?:[0-9]+(?:\.[0-9]*)?|(?<![\w.])\.[0-9]+)(?:[eE][-+]?[0-9]{1,3}(?![\w.]))?"
_THOUSANDS = _SIGN + rb"(?<![\d.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])(?:\.[0-9]+)?"
_NUMBERS = re.compile(_NUMBER)
_GROUPED_NUMBERS = re.compile(_THOUSANDS + b"|" + _NUMBER)
_BLANKS = re.compile(rb" +")
# The drawing of a progress bar: blanks, #, and block characters, whose first byte is 0xe2.
_DRAWN_BAR = rb"\|[ #\xe2\x80-\xbf]*\|"
_DRAWN_BARS = re.compile(_DRAWN_BAR)
# The seconds of a time stamp have a group of their own, because many lines share the rest.
_SECONDS = re.compile(rb"(?<=[T _-][0-9]{2}:[0-9]{2}:)[0-9]{2}(?:[.,][0-9]{1,9})?$")

# Two ways to change every digit. Zero becomes a digit that is not zero, and only a zero becomes
# one, so that no number gets a leading zero that it did not have.
_OTHER_DIGITS = bytes.maketrans(b"0123456789", b"3475869152")
_MORE_OTHER_DIGITS = bytes.maketrans(b"0123456789", b"9081726354")


class NumberSlot(Struct, frozen=True):
    """A number on a line and its role.

    Attributes:
        role: The role of the number.
        group: Index of its group in the regular expression.
        factor: Factor between the printed number and the value.
        inverse: Whether the value is ``factor`` divided by the number (a rate stored as seconds).
    """

    role: Role
    group: int
    factor: float = 1.0
    inverse: bool = False

    def convert(self, texts: Sequence[bytes]) -> list[float]:
        """Return the values of printed numbers.

        >>> NumberSlot("step", 0).convert([b"7", b"12"]), NumberSlot(1, 0).convert([b"007", b"+3."])
        ([7, 12], [7.0, 3.0])
        >>> NumberSlot(0, 1, factor=0.001).convert([b"1,250.5"])
        [1.2505]
        """
        if b"," in texts[0]:
            texts = [text.replace(b",", b"") for text in texts]
        values: list[float]
        try:
            values = msgspec.json.decode(b"[" + b",".join(texts) + b"]")  # twice as fast as float()
        except msgspec.DecodeError:
            values = [*map(float, texts)]
        if self.inverse:
            return [self.factor / value if value else math.inf for value in values]
        return values if self.factor == 1.0 else [value * self.factor for value in values]


class LinePattern(Struct, eq=False):
    """A learned pattern of lines.

    Attributes:
        regex: matches a whole line, alone or within a text. The group ``time`` is the time stamp,
            up to its ``seconds`` if these have a group.
        clock: how the time stamp is printed.
        slots: the numbers that become steps, epochs and values.
        key: returns the groups on which the layout of the row depends, such as the rank of
            ``[rank3]``. None if there are none.
        format: name of the format of the lines.
        read: ``read_line``, called for the first line of each key.
        rows: key -> the row of such lines; the numbers of the slots replace its own. None where the
            slots do not explain the row; such lines are read one by one.
        matches: lines matched since ``take_matches`` was called last.
        followers: the patterns that matched after this one recently.
    """

    regex: re.Pattern[bytes]
    slots: tuple[NumberSlot, ...]
    key: Callable[[re.Match[bytes]], object] | None
    clock: str
    format: str
    read: ReadLine
    rows: dict[object, Row | None] = {}
    matches: list[re.Match[bytes]] = []
    followers: tuple[LinePattern, ...] = ()

    def take_matches(self) -> list[tuple[Row | None, list[re.Match[bytes]]]]:
        """Return the matched lines by the row that they have in common, and forget them.

        Lines under None must be read one by one.
        """
        by_key: dict[object, list[re.Match[bytes]]] = {}
        if self.key is None and self.matches:
            by_key[None] = self.matches
        elif self.key is not None:
            for line in self.matches:
                by_key.setdefault(self.key(line), []).append(line)
        self.matches = []
        if len(self.rows) > _MAX_KEYS:
            self.rows.clear()
        for key, lines in by_key.items():
            if key not in self.rows:
                _, reading = self.read(decode(lines[0].group())) or ("", None)
                self.rows[key] = None
                if isinstance(reading, Row) and self.explains(lines[0].groups(), reading):
                    self.rows[key] = reading
        return [(self.rows[key], lines) for key, lines in by_key.items()]

    def explains(self, groups: Sequence[bytes], row: Row) -> bool:
        """Return True if the slots give the numbers of a row that ``read_line`` returned."""
        found = {slot.role: slot.convert([groups[slot.group]])[0] for slot in self.slots}
        return not _differing_roles(_numbers_of(row), _numbers_of(row) | found)

    def build_frame(
        self, row: Row, offsets: Sequence[int], lines: Sequence[re.Match[bytes]]
    ) -> Frame:
        """Build the frame of lines that differ from ``row`` only in the numbers of the slots."""
        texts = [*zip(*[line.groups() for line in lines], strict=True)]
        numbers = {slot.role: slot.convert(texts[slot.group]) for slot in self.slots}
        groups = self.regex.groupindex
        times: Sequence[float | None] = ()
        if "time" in groups:
            times = [_read_stamp(text, self.clock) for text in texts[groups["time"] - 1]]
        if "seconds" in groups and None not in times:
            seconds = b" ".join(texts[groups["seconds"] - 1]).replace(b",", b".").split()
            times = [*map(add, times, map(float, seconds))]
        return build_frame(self.format, row, offsets, times, numbers, self.clock)


@lru_cache(maxsize=1 << 12)
def _read_stamp(stamp: bytes, clock: str) -> float | None:
    """Return the time of a stamp, which may lack the seconds of its minute."""
    text = stamp.decode("utf-8", "replace")
    return read_clock(text + "00" if text.endswith(":") else text, clock)


def layout_of(form: str, row: Row) -> RowLayout:
    """Return the properties that a row shares with the other rows of its frame."""
    names = tuple(name for name, _ in row.values)
    return RowLayout(form, row.scope, row.rank, row.bar, names, row.is_rounded, row.is_sure)


def build_frame(
    form: str,
    row: Row,
    offsets: Sequence[int],
    times: Sequence[float | None],
    numbers: dict[Role, list[float]] | None = None,
    clock: str = "",
) -> Frame:
    """Build the frame of lines that differ from ``row`` only in these numbers.

    All lines have the same total. If a line has no time, the frame has none.
    """
    columns = {role: [value] * len(offsets) for role, value in _numbers_of(row).items()}
    columns |= numbers or {}
    known_times = [time for time in times if time is not None]
    has_times = len(known_times) == len(offsets)
    return Frame(
        layout_of(form, row),
        array("q", offsets),
        array("q", [*map(int, columns["step"])]) if "step" in columns else None,
        array("d", columns["epoch"]) if "epoch" in columns else None,
        array("d", known_times) if has_times else None,
        tuple(array("d", columns[index]) for index in range(len(row.values))),
        int(columns["total"][0]) if "total" in columns else None,
        clock if has_times else "",
    )


def _numbers_of(row: Row) -> dict[Role, float]:
    """Return every number of a row by its role."""
    numbers: dict[Role, float] = {index: value for index, (_, value) in enumerate(row.values)}
    positions: tuple[tuple[Role, float | None], ...] = (
        ("step", row.step),
        ("epoch", row.epoch),
        ("total", row.total),
    )
    return numbers | {role: value for role, value in positions if value is not None}


def _differing_roles(before: dict[Role, float], after: dict[Role, float]) -> list[Role]:
    """Return the roles whose numbers differ; nan equals nan."""
    pairs = [(role, before.get(role), after.get(role)) for role in {**before, **after}]
    return [role for role, one, other in pairs if one != other and str(one) != str(other)]


def is_noise(line: bytes, read: ReadLine) -> bool:
    """Return True if a line that measures nothing would not do so with other numbers either."""
    spans = [found.span() for found in _GROUPED_NUMBERS.finditer(line)]
    return all(
        read(decode(_change_numbers(line, spans, digits)[0])) is None
        for digits in (_OTHER_DIGITS, _MORE_OTHER_DIGITS)
    )


def learn_pattern(line: bytes, read: ReadLine) -> LinePattern | None:
    """Learn the pattern of a line that ``read`` returns a row for; return None if that fails."""
    for numbers in (_GROUPED_NUMBERS, _NUMBERS) if b"," in line else (_NUMBERS,):
        if pattern := _Experiment(line, numbers, read).learn():
            return pattern
    return None


def _change_numbers(line: bytes, spans: Iterable[Span], digits: bytes) -> tuple[bytes, list[bytes]]:
    """Change some numbers of a line; return the new line, and the new numbers.

    Their form stays the same: their length, their exponents, and no decimals where these are zero.

    >>> _change_numbers(b"lr 10.5e-05, 0 of 794.0", [(3, 11), (13, 14), (18, 23)], _OTHER_DIGITS)
    (b'lr 43.6e-05, 3 of 128.0', [b'43.6e-05', b'3', b'128.0'])
    """
    text, numbers = bytearray(line), []
    for start, end in spans:
        mantissa, *exponent = re.split(rb"(?=[eE])", line[start:end])
        whole, point, fraction = mantissa.partition(b".")
        if fraction.strip(b"0"):
            fraction = fraction.translate(digits)
        text[start:end] = number = b"".join([whole.translate(digits), point, fraction, *exponent])
        numbers.append(number)
    return bytes(text), numbers


class _Experiment:
    """A line, the spans of its numbers, and what ``read`` returns for it."""

    def __init__(self, line: bytes, numbers: re.Pattern[bytes], read: ReadLine) -> None:
        self.line, self.read = line, read
        found_time = find_clock(line.decode("latin-1"))  # in Latin-1 every byte is a character
        self.clock = found_time[0] if found_time else ""
        self.time_span = found_time[1:] if found_time else None
        begin, end = self.time_span or (len(line), len(line))
        found = (each.span() for each in numbers.finditer(line))
        self.spans = [span for span in found if span[0] >= end or span[1] <= begin]
        self.reading = read(decode(line))

    def read_row(self, text: bytes) -> Row | None:
        """Read a variant of the line; return None if it is not a row of the same format."""
        reading = self.read(decode(text))
        if reading is None or self.reading is None or reading[0] != self.reading[0]:
            return None
        return reading[1] if isinstance(reading[1], Row) else None

    def learn(self) -> LinePattern | None:
        """Change the numbers one by one, then all at once."""
        row = self.read_row(self.line)
        if row is None:
            return None
        numbers, layout = _numbers_of(row), layout_of("", row)
        slots: dict[Role, NumberSlot] = {}
        keys: set[int] = set()
        for index, span in enumerate(self.spans):
            text, (printed,) = _change_numbers(self.line, [span], _OTHER_DIGITS)
            changed = self.read_row(text)
            if changed is None:
                return None
            changed_numbers = _numbers_of(changed)
            roles = _differing_roles(numbers, changed_numbers)
            if layout_of("", changed) != layout:
                if roles:
                    return None
                keys.add(index)
            for role in roles:
                values = [numbers.get(role), changed_numbers.get(role)]
                slot = self._find_slot(role, index, printed, values)
                if slot is None or role in slots:
                    return None
                slots[role] = slot
        free_spans = [span for index, span in enumerate(self.spans) if index not in keys]
        if "total" in slots:
            keys.add(slots["total"].group)  # a frame has a single total
        pattern = self._build_pattern(row, slots, keys)
        text, _ = _change_numbers(self.line, free_spans, _MORE_OTHER_DIGITS)
        changed, found = self.read_row(text), pattern.regex.fullmatch(text)
        if changed is None or found is None or layout_of("", changed) != layout:
            return None
        return pattern if pattern.explains(found.groups(), changed) else None

    def _find_slot(
        self, role: Role, index: int, changed: bytes, values: Sequence[float | None]
    ) -> NumberSlot | None:
        """Find the factor between a printed number and a role, given both before and after."""
        printed, value = self.line[slice(*self.spans[index])], values[1]
        if value is None:
            return None
        after = float(changed.replace(b",", b""))
        for slot in (
            NumberSlot(role, index, _round_factor(value / after)),
            NumberSlot(role, index, _round_factor(value * after), inverse=True),
        ):
            if slot.convert([printed]) + slot.convert([changed]) == values:
                return slot
        return None

    def _find_paddings(self, row: Row) -> list[Span]:
        """Find the spaces next to numbers whose count is irrelevant, as in padded columns."""
        number_ends = {position for span in self.spans for position in span}
        paddings, wider = [], self.line
        for found in reversed([*_BLANKS.finditer(self.line)]):
            start, end = found.span()
            if number_ends.isdisjoint((start, end)):
                continue
            head, blanks, tail = self.line[:start], found.group(), self.line[end:]
            others = {blanks + b" ", b" " if start else b""} - {blanks}
            if all(self.read_row(head + other + tail) == row for other in others):
                paddings.append((start, end))
                wider = wider[:start] + b" " + wider[start:]
        return paddings if self.read_row(wider) == row else []

    def _build_pattern(
        self, row: Row, slots: dict[Role, NumberSlot], keys: set[int]
    ) -> LinePattern:
        """Build the expression: groups for numbers that matter, the rest of the line as it is."""
        parts = [
            (start, end, b" {1,99}" if start else b" {0,99}")
            for start, end in self._find_paddings(row)
        ]
        for index, (start, end) in enumerate(self.spans):
            roles = [slot.role for slot in slots.values() if slot.group == index]
            form = _number_form(self.line[start:end], roles)
            matters = roles or index in keys
            parts.append((start, end, b"(?P<n%d>%s)" % (index, form) if matters else form))
        if self.time_span:
            start, end = self.time_span
            if found := _SECONDS.search(self.line[start:end]):
                end = start + found.start()
                seconds = _any_digits(found.group())
                parts.append((end, self.time_span[1], b"(?P<seconds>%s)" % seconds))
            parts.append((start, end, b"(?P<time>%s)" % _any_digits(self.line[start:end])))
        expression, position = b"", 0
        for start, end, form in sorted(parts):
            expression += _literal_form(self.line[position:start]) + form
            position = end
        regex = re.compile(expression + _literal_form(self.line[position:]) + _LINE_END)
        groups = regex.groupindex
        return LinePattern(
            regex,
            tuple(structs.replace(s, group=groups[f"n{s.group}"] - 1) for s in slots.values()),
            methodcaller("group", *(groups[f"n{key}"] for key in keys)) if keys else None,
            self.clock,
            self.reading[0] if self.reading else "",
            self.read,
            {None: row} if not keys else {},
        )


def _round_factor(quotient: float) -> float:
    """Round a factor that was computed as a quotient, which may be off in its last digit.

    >>> 0.5003 / 500.3, _round_factor(0.5003 / 500.3)
    (0.0009999999999999998, 0.001)
    """
    return float(f"{quotient:.12g}")


def _number_form(text: bytes, roles: Sequence[Role]) -> bytes:
    """Return the regular expression of the numbers that may replace this one."""
    if b"," in text:
        return rb"[0-9]{1,3}(?:,[0-9]{3}){1,6}" + (rb"\.[0-9]+" if b"." in text else b"")
    is_position = any(not isinstance(role, int) for role in roles)
    if text.isdigit() and (is_position or not roles):
        return _INTEGER
    if "step" in roles or "total" in roles:
        return _INTEGER + rb"\.0*"
    form = _FRACTION if text.lstrip(b"+-")[:1] == b"." else _DECIMAL if b"." in text else _WHOLE
    return form + _EXPONENT if b"e" in text.lower() else form


def _any_digits(text: bytes) -> bytes:
    return re.sub(rb"[0-9]", rb"[0-9]", re.escape(text))


def _literal_form(text: bytes) -> bytes:
    """Return the regular expression of text between numbers; bars in it may have any length."""
    return _DRAWN_BAR.join(re.escape(part) for part in _DRAWN_BARS.split(text))
