"""Learn: how lines of one shape are read without reading them again.

Lines of a log differ mostly in their digits. A shape is learned from one line by experiment: the
reader of lines is asked again with one number changed at a time, and its answers show which number
is the step, which feeds which metric with which factor, and which number means nothing; and with
more blanks or fewer beside a number, as padded columns have them. From then on a regular expression
takes the numbers out of lines of this shape. What the experiment cannot explain (a number that is
put together from two, as in "1:02:03") is not learned: such a line is read by itself. So a learned
shape is meant to be just as right as the reader of lines: ``tests/curves/test_learn.py`` holds it
to that with lines of real logs whose numbers and blanks are changed.
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

from hpcrun.curves.lines.prefixes import find_time, read_time
from hpcrun.curves.names import decode
from hpcrun.curves.row import Frame, Layout, Mark, Row, Table

Role = Literal["step", "epoch", "total"] | int
ReadLine = Callable[[str], tuple[str, Row | Mark | Table] | None]
Span = tuple[int, int]

# A step beyond this is no step; int() of fifteen digits costs nothing.
_INTEGER = rb"[0-9]{1,15}"
# Numbers as they were printed, with a point or an exponent or without: those of another form have
# another shape. An exponent of three digits may be more than a float holds: such a line is read by
# itself.
_WHOLE, _DECIMAL = rb"[-+]?[0-9]{1,40}", rb"[-+]?[0-9]{1,40}\.[0-9]{0,40}"
_FRACTION = rb"[-+]?\.[0-9]{1,40}"
_EXPONENT = rb"[eE][-+]?[0-9]{1,2}"
# How many keys of a shape are remembered.
_MOST_KEYS = 1 << 12
_LINE_END = rb"(?![^\n\r\0])"

_SIGN = rb"(?:(?<![\w.+-])[-+])?"  # where none can be a dash
_NUMBER = _SIGN + rb"(?:[0-9]+(?:\.[0-9]*)?|(?<![\w.])\.[0-9]+)(?:[eE][-+]?[0-9]{1,3}(?![\w.]))?"
_THOUSANDS = _SIGN + rb"(?<![\d.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])(?:\.[0-9]+)?"
_NUMBERS = re.compile(_NUMBER)
_GROUPED_NUMBERS = re.compile(_THOUSANDS + b"|" + _NUMBER)
_BLANKS = re.compile(rb" +")
# The drawing of a progress bar: blanks, #, and block characters, whose first byte is 0xe2.
_DRAWN = rb"\|[ #\xe2\x80-\xbf]*\|"
_DRAWING = re.compile(_DRAWN)
# Many lines share a time stamp up to its seconds.
_SECONDS = re.compile(rb"(?<=[T _-][0-9]{2}:[0-9]{2}:)[0-9]{2}(?:[.,][0-9]{1,9})?$")

# Another number of the same form: 0 stays no leading digit where there was none.
_OTHER = bytes.maketrans(b"0123456789", b"3475869152")
_OTHER_LATER = bytes.maketrans(b"0123456789", b"9081726354")


class Slot(Struct, frozen=True):
    """A number of the line that becomes ``role``: a place, or the value of that index.

    The number as printed times ``factor`` is the value; its reciprocal times ``factor`` where
    ``inverse`` (a rate, in seconds). ``group`` is where the pattern has it.
    """

    role: Role
    group: int
    factor: float = 1.0
    inverse: bool = False

    def convert(self, texts: Sequence[bytes]) -> list[float]:
        """Return the values that the texts of this slot spell.

        >>> Slot("step", 0).convert([b"7", b"12"]), Slot("step", 0).convert([b"007", b"+3."])
        ([7, 12], [7.0, 3.0])
        >>> Slot(0, 1, factor=0.001).convert([b"1,250.5"])
        [1.2505]
        """
        if b"," in texts[0]:
            texts = [text.replace(b",", b"") for text in texts]
        values: list[float]
        try:
            values = msgspec.json.decode(b"[" + b",".join(texts) + b"]")  # in half the time
        except msgspec.DecodeError:
            values = [*map(float, texts)]
        if self.inverse:
            return [self.factor / value if value else math.inf for value in values]
        return values if self.factor == 1.0 else [value * self.factor for value in values]


class Shape(Struct, eq=False):
    """One shape of lines: ``pattern`` fits a whole line, alone or among others.

    ``slots`` take values out of the groups; ``key`` picks those on which the layout depends or the
    frame (the rank of ``[rank3]``, a total). The group ``time`` is the time stamp, up to its
    ``seconds`` where those have their own group.
    ``read`` reads the first line of each key: what no slot feeds is as there.

    The reader keeps here what it ``found`` in the block at hand, and the shapes of the lines that
    followed last.
    """

    pattern: re.Pattern[bytes]
    slots: tuple[Slot, ...]
    key: Callable[[re.Match[bytes]], object] | None
    format: str
    read: ReadLine
    rows: dict[object, Row | None] = {}
    found: list[re.Match[bytes]] = []
    followers: tuple[Shape, ...] = ()

    def take(self) -> list[tuple[Row | None, list[re.Match[bytes]]]]:
        """Part what was found by what the lines say but for their slots, and forget it.

        None for lines that are to be read by themselves.
        """
        by_key: dict[object, list[re.Match[bytes]]] = {}
        if self.key is None and self.found:
            by_key[None] = self.found
        elif self.key is not None:
            for found in self.found:
                by_key.setdefault(self.key(found), []).append(found)
        self.found = []
        if len(self.rows) > _MOST_KEYS:
            self.rows.clear()
        for key, lines in by_key.items():
            if key not in self.rows:
                _, answer = self.read(decode(lines[0].group())) or ("", None)
                self.rows[key] = None
                if isinstance(answer, Row) and self.explains(lines[0].groups(), answer):
                    self.rows[key] = answer
        return [(self.rows[key], lines) for key, lines in by_key.items()]

    def explains(self, groups: Sequence[bytes], row: Row) -> bool:
        """Whether the slots give what the reader of lines says of a line with these groups."""
        found = {slot.role: slot.convert([groups[slot.group]])[0] for slot in self.slots}
        return not _differences(_outputs_of(row), _outputs_of(row) | found)

    def frame(self, row: Row, offsets: Sequence[int], lines: Sequence[re.Match[bytes]]) -> Frame:
        """Make the frame of lines that say what ``row`` says but for their own numbers."""
        texts = [*zip(*[found.groups() for found in lines], strict=True)]
        numbers = {slot.role: slot.convert(texts[slot.group]) for slot in self.slots}
        groups = self.pattern.groupindex
        times: Sequence[float | None] = ()
        if "time" in groups:
            times = [*map(_moment, texts[groups["time"] - 1])]
        if "seconds" in groups and None not in times:
            seconds = b" ".join(texts[groups["seconds"] - 1]).replace(b",", b".").split()
            times = [*map(add, times, map(float, seconds))]
        return frame_of(self.format, row, offsets, times, numbers)


@lru_cache(maxsize=1 << 12)
def _moment(stamp: bytes) -> float | None:
    """Return the time of a stamp, which may lack the seconds of its minute."""
    text = stamp.decode("utf-8", "replace")
    return read_time(text + "00" if text.endswith(":") else text)


def layout_of(form: str, row: Row) -> Layout:
    """Say what a row has in common with others of its kind."""
    names = tuple(name for name, _ in row.values)
    return Layout(
        form, row.split, row.rank, row.bar, names, row.is_rounded, row.is_mean, row.is_sure
    )


def frame_of(
    form: str,
    row: Row,
    offsets: Sequence[int],
    times: Sequence[float | None],
    numbers: dict[Role, list[float]] | None = None,
) -> Frame:
    """Make the frame of lines that say what ``row`` says but for these numbers; all of one total.

    Unless each line has a time, there are none.
    """
    columns = {role: [value] * len(offsets) for role, value in _outputs_of(row).items()}
    columns |= numbers or {}
    known_times = [time for time in times if time is not None]
    return Frame(
        layout_of(form, row),
        array("q", offsets),
        array("q", [*map(int, columns["step"])]) if "step" in columns else None,
        array("d", columns["epoch"]) if "epoch" in columns else None,
        array("d", known_times) if len(known_times) == len(offsets) else None,
        tuple(array("d", columns[index]) for index in range(len(row.values))),
        int(columns["total"][0]) if "total" in columns else None,
    )


def _outputs_of(row: Row) -> dict[Role, float]:
    """Every number of a row by its role."""
    outputs: dict[Role, float] = {index: value for index, (_, value) in enumerate(row.values)}
    places: tuple[tuple[Role, float | None], ...] = (
        ("step", row.step),
        ("epoch", row.epoch),
        ("total", row.total),
    )
    return outputs | {role: value for role, value in places if value is not None}


def _differences(before: dict[Role, float], after: dict[Role, float]) -> list[Role]:
    """List the roles whose numbers differ; nan equals nan."""
    pairs = [(role, before.get(role), after.get(role)) for role in {**before, **after}]
    return [role for role, one, other in pairs if one != other and str(one) != str(other)]


def is_noise(line: bytes, read: ReadLine) -> bool:
    """Return whether lines of this shape, none of which says anything, would with other numbers."""
    spans = [found.span() for found in _GROUPED_NUMBERS.finditer(line)]
    return all(
        read(decode(_with_others(line, spans, others)[0])) is None
        for others in (_OTHER, _OTHER_LATER)
    )


def learn(line: bytes, read: ReadLine) -> Shape | None:
    """Learn the shape of a line that ``read`` takes for a row; None if it cannot be learned."""
    for numbers in (_GROUPED_NUMBERS, _NUMBERS) if b"," in line else (_NUMBERS,):
        if shape := _Experiment(line, numbers, read).learn():
            return shape
    return None


def _with_others(line: bytes, spans: Iterable[Span], others: bytes) -> tuple[bytes, list[bytes]]:
    """Change some numbers of a line; return it, and the numbers as they stand in it.

    The others are of the same form: as long, exponents kept, whole if they are whole.

    >>> _with_others(b"lr 10.5e-05, 0 of 794.0", [(3, 11), (13, 14), (18, 23)], _OTHER)
    (b'lr 43.6e-05, 3 of 128.0', [b'43.6e-05', b'3', b'128.0'])
    """
    text, numbers = bytearray(line), []
    for start, end in spans:
        mantissa, *exponent = re.split(rb"(?=[eE])", line[start:end])
        whole, point, fraction = mantissa.partition(b".")
        if fraction.strip(b"0"):
            fraction = fraction.translate(others)
        text[start:end] = number = b"".join([whole.translate(others), point, fraction, *exponent])
        numbers.append(number)
    return bytes(text), numbers


class _Experiment:
    """A line, the numbers in it that may change, and what ``read`` says of it."""

    def __init__(self, line: bytes, numbers: re.Pattern[bytes], read: ReadLine) -> None:
        self.line, self.read = line, read
        self.time_span = find_time(line.decode("latin-1"))  # in which each byte has a place
        begin, end = self.time_span or (len(line), len(line))
        found = (each.span() for each in numbers.finditer(line))
        self.spans = [span for span in found if span[0] >= end or span[1] <= begin]
        self.answer = read(decode(line))

    def ask(self, text: bytes) -> Row | None:
        """Read a line like this one; None where it is no row of the same form."""
        answer = self.read(decode(text))
        if answer is None or self.answer is None or answer[0] != self.answer[0]:
            return None
        return answer[1] if isinstance(answer[1], Row) else None

    def learn(self) -> Shape | None:
        """Change the numbers one by one, then all at once."""
        row = self.ask(self.line)
        if row is None:
            return None
        base, layout = _outputs_of(row), layout_of("", row)
        slots: dict[Role, Slot] = {}
        keys: set[int] = set()
        for index, span in enumerate(self.spans):
            text, (number,) = _with_others(self.line, [span], _OTHER)
            changed = self.ask(text)
            if changed is None:
                return None
            outputs = _outputs_of(changed)
            differences = _differences(base, outputs)
            if layout_of("", changed) != layout:
                if differences:
                    return None
                keys.add(index)
            for role in differences:
                slot = self._slot(role, index, number, [base.get(role), outputs.get(role)])
                if slot is None or role in slots:
                    return None
                slots[role] = slot
        others = [span for index, span in enumerate(self.spans) if index not in keys]
        if "total" in slots:
            keys.add(slots["total"].group)  # frames have one total
        shape = self._shape(row, slots, keys)
        text, _ = _with_others(self.line, others, _OTHER_LATER)
        reread, found = self.ask(text), shape.pattern.fullmatch(text)
        if reread is None or found is None or layout_of("", reread) != layout:
            return None
        return shape if shape.explains(found.groups(), reread) else None

    def _slot(
        self, role: Role, index: int, number: bytes, values: Sequence[float | None]
    ) -> Slot | None:
        """Say how a number feeds a role that has these values, before and after its change."""
        printed, value = self.line[slice(*self.spans[index])], values[1]
        if value is None:
            return None
        after = float(number.replace(b",", b""))
        for slot in (
            Slot(role, index, _meant(value / after)),
            Slot(role, index, _meant(value * after), inverse=True),
        ):
            if slot.convert([printed]) + slot.convert([number]) == values:
                return slot
        return None

    def _paddings(self, row: Row) -> list[Span]:
        """Find the blanks beside numbers that may be more or fewer, as in padded columns."""
        beside = {place for span in self.spans for place in span}
        free, wider = [], self.line
        for found in reversed([*_BLANKS.finditer(self.line)]):
            start, end = found.span()
            if beside.isdisjoint((start, end)):
                continue
            head, blanks, tail = self.line[:start], found.group(), self.line[end:]
            others = {blanks + b" ", b" " if start else b""} - {blanks}
            if all(self.ask(head + other + tail) == row for other in others):
                free.append((start, end))
                wider = wider[:start] + b" " + wider[start:]
        return free if self.ask(wider) == row else []

    def _shape(self, row: Row, slots: dict[Role, Slot], keys: set[int]) -> Shape:
        """Write the regular expression: numbers as groups where they matter, all else as it is."""
        pieces = [
            (start, end, b" {1,99}" if start else b" {0,99}") for start, end in self._paddings(row)
        ]
        for index, (start, end) in enumerate(self.spans):
            roles = [slot.role for slot in slots.values() if slot.group == index]
            form = _form(self.line[start:end], roles)
            matters = roles or index in keys
            pieces.append((start, end, b"(?P<n%d>%s)" % (index, form) if matters else form))
        if self.time_span:
            start, end = self.time_span
            if found := _SECONDS.search(self.line[start:end]):
                end = start + found.start()
                seconds = _any_digits(found.group())
                pieces.append((end, self.time_span[1], b"(?P<seconds>%s)" % seconds))
            pieces.append((start, end, b"(?P<time>%s)" % _any_digits(self.line[start:end])))
        expression, place = b"", 0
        for start, end, form in sorted(pieces):
            expression += _literal(self.line[place:start]) + form
            place = end
        pattern = re.compile(expression + _literal(self.line[place:]) + _LINE_END)
        groups = pattern.groupindex
        return Shape(
            pattern,
            tuple(structs.replace(s, group=groups[f"n{s.group}"] - 1) for s in slots.values()),
            methodcaller("group", *(groups[f"n{key}"] for key in keys)) if keys else None,
            self.answer[0] if self.answer else "",
            self.read,
            {None: row} if not keys else {},
        )


def _meant(quotient: float) -> float:
    """Return the quotient that was meant: computed ones are off in the last digit.

    >>> 0.5003 / 500.3, _meant(0.5003 / 500.3)
    (0.0009999999999999998, 0.001)
    """
    return float(f"{quotient:.12g}")


def _form(text: bytes, roles: Sequence[Role]) -> bytes:
    """Return the expression for the numbers that may stand in a place."""
    if b"," in text:
        return rb"[0-9]{1,3}(?:,[0-9]{3}){1,6}" + (rb"\.[0-9]+" if b"." in text else b"")
    is_place = any(not isinstance(role, int) for role in roles)
    if text.isdigit() and (is_place or not roles):
        return _INTEGER
    if "step" in roles or "total" in roles:
        return _INTEGER + rb"\.0*"
    form = _FRACTION if text.lstrip(b"+-")[:1] == b"." else _DECIMAL if b"." in text else _WHOLE
    return form + _EXPONENT if b"e" in text.lower() else form


def _any_digits(text: bytes) -> bytes:
    return re.sub(rb"[0-9]", rb"[0-9]", re.escape(text))


def _literal(text: bytes) -> bytes:
    """Return the expression for what stands between two numbers; a bar may be drawn otherwise."""
    return _DRAWN.join(re.escape(part) for part in _DRAWING.split(text))
