"""Learn: how lines of one shape are read without reading them again.

Lines of a log differ mostly in their digits. A template is learned from one line by experiment: the
reader of lines is asked again with one number changed at a time, and its answers tell which number
is the step, which feeds which metric with which factor, and which number means nothing; and with
more blanks or fewer beside a number, as padded columns have them. From then on a regular expression
takes the numbers out of lines of this shape. What the experiment cannot explain (a number that is
put together from two, as in "1:02:03") is not learned: such a shape is read line by line. So a
template is meant to be just as right as the reader of lines: ``tests/metrics/test_template.py``
holds it to that with lines of real logs whose numbers and blanks are changed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Literal

from msgspec import Struct, structs

from hpcrun.metrics.row import Layout, Mark, Row, Table

Role = Literal["step", "epoch", "total"] | int
ReadLine = Callable[[str], tuple[str, Row | Mark | Table] | None]
Span = tuple[int, int]

# A step beyond this is no step; int() of fifteen digits costs nothing.
_INTEGER = rb"[0-9]{1,15}"
# Numbers as they were printed, with a point or an exponent or without: those of another form have
# another shape. An exponent of three digits may be more than a float holds: such a line is read by
# itself.
_WHOLE, _DECIMAL = rb"[-+]?[0-9]{1,40}", rb"[-+]?[0-9]{1,40}\.[0-9]{0,40}"
_EXPONENT = rb"[eE][-+]?[0-9]{1,2}"
_LINE_END = rb"(?![^\n\r\0])"

_TOKEN = re.compile(
    rb"""
    (?: (?<![\w.+-]) [-+] )?                     # a sign, where none can be a dash
    (?P<number>
        (?P<thousands> (?<![\d.,]) [0-9]{1,3} (?: ,[0-9]{3} )+ (?![0-9,]) (?: \.[0-9]+ )? )
      | [0-9]+ (?: \.[0-9]* )? (?: [eE][-+]?[0-9]{1,3} (?![\w.]) )?
    )
    """,
    re.VERBOSE,
)
_BLANKS = re.compile(rb" +")
# How a step, an epoch or a total may be printed: others are whole, too, but it takes work to see.
_COUNTER = re.compile(rb"[0-9]{1,15}|[0-9]{1,15}\.[0-9]*|[0-9]{1,3}(,[0-9]{3})+")
# The drawing of a progress bar: blanks, #, and block characters, whose first byte is 0xe2.
_DRAWN = rb"\|[ #\xe2\x80-\xbf]*\|"
_DRAWING = re.compile(_DRAWN)

# Another number of the same form: 0 stays no leading digit where there was none.
_OTHER = bytes.maketrans(b"0123456789", b"3475869152")
_OTHER_LATER = bytes.maketrans(b"0123456789", b"9081726354")


class Slot(Struct, frozen=True):
    """A number of the line that becomes ``role``: a place, or the value of that index.

    The number as printed times ``factor`` is the value; its reciprocal times ``factor`` where
    ``inverse`` (a rate, in seconds).
    """

    role: Role
    factor: float = 1.0
    inverse: bool = False
    thousands: bool = False
    group: int = -1

    def apply(self, number: float) -> float:
        """Return the value that one number makes."""
        if self.inverse:
            return self.factor / number if number else math.inf
        return number * self.factor

    def convert(self, texts: Sequence[bytes]) -> list[float]:
        """Return the values that the texts of this slot spell; raises ValueError for no number."""
        if self.thousands:
            texts = [text.replace(b",", b"") for text in texts]
        values = list(map(float, texts))
        if self.inverse:
            return [self.factor / value if value else math.inf for value in values]
        return values if self.factor == 1.0 else [value * self.factor for value in values]


class Template(Struct, frozen=True):
    """One shape of lines: ``pattern`` fits a whole line, alone or among others.

    ``slots`` take values out of the groups, ``keys`` are the groups on which the layout depends
    or the frame (the rank of ``[rank3]``, the total of a bar), ``time`` is that of the time
    stamp. ``row`` is what the line it was learned from says: what no slot feeds is as there.
    """

    pattern: re.Pattern[bytes]
    slots: tuple[Slot, ...]
    keys: Callable[[tuple[bytes, ...]], object] | None
    time: int | None
    format: str
    row: Row


def layout_of(form: str, row: Row) -> Layout:
    """Say what a row has in common with others of its kind."""
    names = tuple(name for name, _ in row.values)
    return Layout(
        form, row.split, row.rank, row.bar, names, row.is_rounded, row.is_mean, row.is_sure
    )


def explains(template: Template, groups: Sequence[bytes], row: Row) -> bool:
    """Tell whether the slots give what the reader of lines says of a line with these groups."""
    expected = _outputs_of(template.row) | {
        slot.role: slot.convert([groups[slot.group]])[0] for slot in template.slots
    }
    return _are_same(_outputs_of(row), expected)


def _outputs_of(row: Row) -> dict[Role, float]:
    """Every number of a row by its role."""
    outputs: dict[Role, float] = {index: value for index, (_, value) in enumerate(row.values)}
    places: tuple[tuple[Role, float | None], ...] = (
        ("step", row.step),
        ("epoch", row.epoch),
        ("total", row.total),
    )
    return outputs | {role: value for role, value in places if value is not None}


def _are_same(reread: dict[Role, float], expected: dict[Role, float]) -> bool:
    """Compare two rows' numbers; nan equals nan."""
    return reread.keys() == expected.keys() and all(
        reread[role] == value or (math.isnan(value) and math.isnan(reread[role]))
        for role, value in expected.items()
    )


class _Token(Struct, frozen=True):
    """A number of the line."""

    start: int
    end: int
    thousands: bool


class _Line(Struct, frozen=True):
    """A line with the numbers that may change, and what ``read`` says of it."""

    text: bytes
    tokens: list[_Token]
    read: ReadLine

    def answer(self, text: bytes) -> tuple[str, Row] | None:
        """Ask the reader of lines; None where the line is no row."""
        found = self.read(text.decode("utf-8", "replace"))
        if found is None or not isinstance(found[1], Row):
            return None
        return found[0], found[1]

    def with_others(self, changed: Sequence[int], others: bytes) -> tuple[bytes, list[bytes]]:
        """Change some numbers; return the line, and the numbers as they stand in it."""
        text, numbers = bytearray(self.text), []
        for index in changed:
            token = self.tokens[index]
            number = _another(self.text[token.start : token.end], others)
            text[token.start : token.end] = number
            numbers.append(number)
        return bytes(text), numbers

    def paddings(self, answered: tuple[str, Row]) -> list[Span]:
        """Find the blanks beside numbers that may be more or fewer, as in padded columns."""
        beside = {token.start for token in self.tokens} | {token.end for token in self.tokens}
        gaps = [
            found.span()
            for found in _BLANKS.finditer(self.text)
            if not beside.isdisjoint(found.span())
        ]
        free = []
        for start, end in gaps:
            head, blanks, tail = self.text[:start], self.text[start:end], self.text[end:]
            others = {blanks + b" ", b" " if start else b""} - {blanks}
            if all(self.answer(head + other + tail) == answered for other in others):
                free.append((start, end))
        wider = self.text
        for start, _ in reversed(free):
            wider = wider[:start] + b" " + wider[start:]
        return free if self.answer(wider) == answered else []


def _tokens(line: bytes, time_span: Span | None, *, merge: bool) -> list[_Token]:
    """Find the numbers of a line; ``merge``: those with commas of thousands are one."""
    begin, end = time_span or (len(line), len(line))
    tokens = []
    for found in _TOKEN.finditer(line):
        if found.start() < end and found.end() > begin:
            continue
        if found["thousands"] and not merge:
            place = found.start()
            for digits in re.finditer(rb"[0-9]+", found.group()):
                tokens.append(_Token(place + digits.start(), place + digits.end(), False))
        else:
            tokens.append(_Token(found.start(), found.end(), bool(found["thousands"])))
    return tokens


def _another(number: bytes, others: bytes) -> bytes:
    """Return another number of the same form: as long, exponent kept, whole if it is whole.

    >>> [_another(number, _OTHER) for number in (b"10.5e-05", b"0.25", b"0", b"794.0")]
    [b'43.6e-05', b'3.76', b'3', b'128.0']
    """
    mantissa, mark, exponent = number.partition(b"e")
    if not mark:
        mantissa, mark, exponent = number.partition(b"E")
    whole, point, fraction = mantissa.partition(b".")
    if fraction.strip(b"0"):
        fraction = fraction.translate(others)
    return whole.translate(others) + point + fraction + mark + exponent


def is_noise(line: bytes, read: ReadLine) -> bool:
    """Tell whether lines of this shape, none of which says anything, would with other numbers."""
    other = _Line(line, _tokens(line, None, merge=True), read)
    numbers = range(len(other.tokens))
    return all(
        read(other.with_others(numbers, others)[0].decode("utf-8", "replace")) is None
        for others in (_OTHER, _OTHER_LATER)
    )


def learn(line: bytes, read: ReadLine, time_span: Span | None) -> Template | None:
    """Learn the shape of a line that ``read`` takes for a row; None if it cannot be learned.

    ``time_span``: where its time stamp stands, in bytes.
    """
    for merge in (True, False):
        learned = _learn(_Line(line, _tokens(line, time_span, merge=merge), read), time_span)
        if learned is not None:
            return learned
        if b"," not in line:
            break
    return None


def _learn(line: _Line, time_span: Span | None) -> Template | None:
    answered = line.answer(line.text)
    if answered is None:
        return None
    form, row = answered
    base, layout = _outputs_of(row), layout_of(form, row)
    feeds: dict[int, list[Slot]] = {}
    keys: set[int] = set()
    fed: set[Role] = set()
    for index in range(len(line.tokens)):
        text, (number,) = line.with_others([index], _OTHER)
        changed = line.answer(text)
        if changed is None or changed[0] != form:
            return None
        if layout_of(*changed) != layout:
            if _outputs_of(changed[1]) != base:
                return None
            keys.add(index)
            continue
        found = _explain(line, index, number, base, _outputs_of(changed[1]))
        if found is None or fed & {feed.role for feed in found}:
            return None
        if found:
            feeds[index] = found
            fed |= {feed.role for feed in found}
    # Every number at once: does the reader say what the feeds foretell?
    indices = [index for index in range(len(line.tokens)) if index not in keys]
    text, numbers = line.with_others(indices, _OTHER_LATER)
    reread = line.answer(text)
    if reread is None or layout_of(*reread) != layout:
        return None
    for index, number in zip(indices, numbers, strict=True):
        base |= {feed.role: feed.apply(_number(number)) for feed in feeds.get(index, ())}
    if not _are_same(_outputs_of(reread[1]), base):
        return None
    if row.bar is not None or row.epoch is not None:  # their totals tell them apart
        keys |= {index for index in feeds if any(feed.role == "total" for feed in feeds[index])}
    return _build(line, feeds, keys, time_span, answered)


def _explain(
    line: _Line, index: int, number: bytes, base: dict[Role, float], changed: dict[Role, float]
) -> list[Slot] | None:
    """Say what a number feeds; None if that cannot be explained."""
    if base.keys() != changed.keys():
        return None
    token = line.tokens[index]
    printed = line.text[token.start : token.end]
    before, after = _number(printed), _number(number)
    found: list[Slot] = []
    for role, value in changed.items():
        if value == base[role] or (math.isnan(value) and math.isnan(base[role])):
            continue
        if not isinstance(role, int) and not _COUNTER.fullmatch(printed):
            return None
        for feed in (
            Slot(role, _meant(value, after), False, token.thousands),
            Slot(role, _meant(value, 1 / after), True, token.thousands),
        ):
            if feed.apply(before) == base[role] and feed.apply(after) == value:
                found.append(feed)
                break
        else:
            return None
    return found


def _number(text: bytes) -> float:
    return float(text.replace(b",", b""))


def _meant(value: float, number: float) -> float:
    """Return the quotient that was meant: computed ones are off in the last digit.

    >>> 0.5003 / 500.3, _meant(0.5003, 500.3)
    (0.0009999999999999998, 0.001)
    """
    return float(f"{value / number:.12g}")


def _build(
    line: _Line,
    feeds: dict[int, list[Slot]],
    keys: set[int],
    time_span: Span | None,
    answered: tuple[str, Row],
) -> Template:
    """Write the regular expression: numbers as groups where they matter, all else as it stands."""
    pieces = [
        (start, end, b" {1,99}" if start else b" {0,99}") for start, end in line.paddings(answered)
    ]
    groups = sorted(
        [(line.tokens[index].start, index) for index in feeds.keys() | keys]
        + ([(time_span[0], -1)] if time_span else [])
    )
    group_of = {index: group for group, (_, index) in enumerate(groups)}
    if time_span:
        stamp = re.sub(rb"[0-9]", rb"[0-9]", re.escape(line.text[slice(*time_span)]))
        pieces.append((*time_span, b"(" + stamp + b")"))
    slots: list[Slot] = []
    for index, token in enumerate(line.tokens):
        form = _form(line.text[token.start : token.end], token, feeds.get(index, []))
        is_group = index in group_of
        pieces.append((token.start, token.end, b"(" + form + b")" if is_group else form))
        slots += [structs.replace(feed, group=group_of[index]) for feed in feeds.get(index, ())]
    pattern, place = b"", 0
    for start, end, form in sorted(pieces):
        pattern += _literal(line.text[place:start]) + form
        place = end
    pattern += _literal(line.text[place:]) + _LINE_END
    key_groups = sorted(group_of[index] for index in keys)
    return Template(
        pattern=re.compile(pattern),
        slots=tuple(slots),
        keys=itemgetter(*key_groups) if keys else None,
        time=group_of[-1] if time_span else None,
        format=answered[0],
        row=answered[1],
    )


def _form(text: bytes, token: _Token, feeds: Sequence[Slot]) -> bytes:
    """Return the expression for the numbers that may stand in a place."""
    if token.thousands:
        return rb"[0-9]{1,3}(?:,[0-9]{3}){1,6}" + (rb"\.[0-9]+" if b"." in text else b"")
    is_place = any(not isinstance(feed.role, int) for feed in feeds)
    if text.isdigit() and (is_place or not feeds):
        return _INTEGER
    if any(feed.role in ("step", "total") for feed in feeds):
        return _INTEGER + rb"\.0*"
    form = _DECIMAL if b"." in text else _WHOLE
    return form + _EXPONENT if b"e" in text.lower() else form


def _literal(text: bytes) -> bytes:
    """Return the expression for what stands between two numbers; a bar may be drawn otherwise."""
    return _DRAWN.join(re.escape(part) for part in _DRAWING.split(text))
