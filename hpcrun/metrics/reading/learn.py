"""Learn: how lines of one shape are read without reading them again.

Lines of a log differ mostly in their digits. A template is learned from one line by experiment: the
reader of lines is asked again with one number changed at a time, and its answers tell which number
is the step, which feeds which metric with which factor, and which number means nothing. From then
on a regular expression takes the numbers out of lines of this shape. What the experiment cannot
explain (a number that is put together from two, as in "1:02:03") is not learned: such a shape is
read line by line. So a template is meant to be just as right as the reader of lines:
``tests/metrics/test_template.py`` holds it to that with lines of real logs whose numbers and blanks
are changed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from operator import itemgetter

from msgspec import Struct

from hpcrun.metrics.reading.template import (
    Role,
    Slot,
    Template,
    are_same,
    layout_of,
    outputs_of,
)
from hpcrun.metrics.row import Mark, Row, Table

ReadLine = Callable[[str], tuple[str, Row | Mark | Table] | None]

# A step beyond this is no step; int() of so many digits costs nothing.
_INTEGER = rb"[0-9]{1,15}"
# Numbers as they were printed, with a point or an exponent or without: those of another form have
# another shape. An exponent of three digits may be more than a float holds: such a line is read by
# itself.
_WHOLE, _DECIMAL = rb"[-+]?[0-9]+", rb"[-+]?[0-9]+\.[0-9]*"
_EXPONENT = rb"[eE][-+]?[0-9]{1,2}"

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
# How a step, an epoch or a total may be printed: others are whole, too, but it takes work to see.
_COUNTER = re.compile(rb"[0-9]{1,15}|[0-9]{1,15}\.[0-9]*|[0-9]{1,3}(,[0-9]{3})+")
# The drawing of a progress bar: blanks, #, and block characters, whose first byte is 0xe2.
_DRAWING = re.compile(rb"\|[ #\xe2\x80-\xbf]*\|")
_DRAWN = rb"\|[ #\xe2\x80-\xbf]*\|"

# Another number of the same form: 0 stays no leading digit where there was none.
_OTHER = bytes.maketrans(b"0123456789", b"3475869152")
_OTHER_LATER = bytes.maketrans(b"0123456789", b"9081726354")


def is_noise(line: bytes, read: ReadLine) -> bool:
    """Tell whether lines of this shape, none of which says anything, would with other numbers."""
    other = _Line(line, _tokens(line, None, merge=True), read)
    numbers = range(len(other.tokens))
    return all(
        read(other.with_others(numbers, others)[0].decode("utf-8", "replace")) is None
        for others in (_OTHER, _OTHER_LATER)
    )


class _Token(Struct, frozen=True):
    start: int
    end: int
    thousands: bool


class _Line(Struct, frozen=True):
    """A line with the numbers that may change."""

    text: bytes
    tokens: list[_Token]
    read: ReadLine

    def with_others(self, changed: Sequence[int], others: bytes) -> tuple[bytes, list[bytes]]:
        """Change some numbers; return the line, and the numbers as they stand in it."""
        text, numbers = bytearray(self.text), []
        for index in changed:
            token = self.tokens[index]
            number = _another(self.text[token.start : token.end], others)
            text[token.start : token.end] = number
            numbers.append(number)
        return bytes(text), numbers

    def padded(self) -> bytes:
        """Put a blank more where blanks stand beside a number, as wider columns would."""
        text = self.text
        for token in sorted(self.tokens, key=lambda token: -token.start):
            if text[token.end : token.end + 1] == b" ":
                text = text[: token.end] + b" " + text[token.end :]
            if text[: token.start].endswith(b" "):
                text = text[: token.start] + b" " + text[token.start :]
        return text

    def answer(self, text: bytes) -> tuple[str, Row] | None:
        """Ask the reader of lines; None where the line is no row."""
        found = self.read(text.decode("utf-8", "replace"))
        if found is None or not isinstance(found[1], Row):
            return None
        return found[0], found[1]


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


def learn(line: bytes, read: ReadLine, time_span: tuple[int, int] | None) -> Template | None:
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


def _tokens(line: bytes, time_span: tuple[int, int] | None, *, merge: bool) -> list[_Token]:
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


def _learn(line: _Line, time_span: tuple[int, int] | None) -> Template | None:
    answered = line.answer(line.text)
    if answered is None:
        return None
    form, row = answered
    base, layout = outputs_of(row), layout_of(form, row)
    slots: dict[int, list[tuple[Role, float, bool]]] = {}
    keys: set[int] = set()
    fed: set[Role] = set()
    for index in range(len(line.tokens)):
        text, (number,) = line.with_others([index], _OTHER)
        changed = line.answer(text)
        if changed is None or changed[0] != form:
            return None
        if layout_of(*changed) != layout:
            if outputs_of(changed[1]) != base:
                return None
            keys.add(index)
            continue
        found = _explain(line, index, number, base, outputs_of(changed[1]))
        if found is None or fed & {role for role, _, _ in found}:
            return None
        if found:
            slots[index] = found
            fed |= {role for role, _, _ in found}
    if not _predicts(line, slots, keys, answered):
        return None
    is_padded = line.answer(line.padded()) == answered
    return _build(line, slots, keys, time_span, answered, is_padded=is_padded)


def _explain(
    line: _Line, index: int, number: bytes, base: dict[Role, float], changed: dict[Role, float]
) -> list[tuple[Role, float, bool]] | None:
    """Say what a number feeds, as (role, factor, inverse); None if that cannot be explained."""
    if base.keys() != changed.keys():
        return None
    token = line.tokens[index]
    printed = line.text[token.start : token.end]
    before, after = _number(printed), _number(number)
    found: list[tuple[Role, float, bool]] = []
    for role, value in changed.items():
        if value == base[role] or (math.isnan(value) and math.isnan(base[role])):
            continue
        if not isinstance(role, int) and not _COUNTER.fullmatch(printed):
            return None
        for factor, inverse in ((_meant(value, after), False), (_meant(value, 1 / after), True)):
            if _apply(before, factor, inverse) == base[role] and (
                _apply(after, factor, inverse) == value
            ):
                found.append((role, factor, inverse))
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


def _apply(number: float, factor: float, inverse: bool) -> float:
    if inverse:
        return factor / number if number else math.inf
    return number * factor


def _predicts(
    line: _Line,
    slots: dict[int, list[tuple[Role, float, bool]]],
    keys: set[int],
    answered: tuple[str, Row],
) -> bool:
    """Change every number at once and see whether the reader says what the slots foretell."""
    indices = [index for index in range(len(line.tokens)) if index not in keys]
    text, numbers = line.with_others(indices, _OTHER_LATER)
    told = line.answer(text)
    if told is None or layout_of(*told) != layout_of(*answered):
        return False
    foretold = outputs_of(answered[1])
    for index, number in zip(indices, numbers, strict=True):
        for role, factor, inverse in slots.get(index, ()):
            foretold[role] = _apply(_number(number), factor, inverse)
    return are_same(outputs_of(told[1]), foretold)


def _build(
    line: _Line,
    slots: dict[int, list[tuple[Role, float, bool]]],
    keys: set[int],
    time_span: tuple[int, int] | None,
    answered: tuple[str, Row],
    *,
    is_padded: bool,
) -> Template:
    """Write the regular expression: numbers as groups where they matter, all else as it stands.

    ``is_padded``: beside numbers there may be more blanks or fewer.
    """
    pieces: list[tuple[int, int, bytes]] = []
    groups: list[Slot] = []
    key_groups: list[int] = []
    order = sorted(range(len(line.tokens)), key=lambda index: line.tokens[index].start)
    time_group, group = None, 0
    for index in order:
        token = line.tokens[index]
        if time_span and time_group is None and token.start >= time_span[0]:
            time_group, group = group, group + 1
        form = _form(line.text[token.start : token.end], token, slots.get(index, []))
        if index not in slots and index not in keys:
            pieces.append((token.start, token.end, form))
            continue
        pieces.append((token.start, token.end, b"(" + form + b")"))
        if index in keys:
            key_groups.append(group)
        for role, factor, inverse in slots.get(index, ()):
            groups.append(Slot(role, group, factor, inverse, token.thousands))
        group += 1
    if time_span:
        if time_group is None:
            time_group = group
        stamp = re.sub(rb"[0-9]", rb"[0-9]", re.escape(line.text[slice(*time_span)]))
        pieces.append((*time_span, b"(" + stamp + b")"))
    pattern = _join(line.text, sorted(pieces), time_span, is_padded=is_padded)
    return Template(
        pattern=re.compile(pattern),
        line_pattern=re.compile(pattern + rb"(?=[\n\r\0])"),
        slots=tuple(groups),
        keys=itemgetter(*key_groups) if key_groups else None,
        time=time_group,
        format=answered[0],
        row=answered[1],
    )


def _form(text: bytes, token: _Token, roles: list[tuple[Role, float, bool]]) -> bytes:
    """Return the expression for the numbers that may stand in a place."""
    if token.thousands:
        return rb"[0-9]{1,3}(?:,[0-9]{3})+" + (rb"\.[0-9]+" if b"." in text else b"")
    is_place = any(not isinstance(role, int) for role, _, _ in roles)
    if text.isdigit() and (is_place or not roles):
        return _INTEGER
    if any(role in ("step", "total") for role, _, _ in roles):
        return _INTEGER + rb"\.0*"
    form = _DECIMAL if b"." in text else _WHOLE
    return form + _EXPONENT if b"e" in text.lower() else form


def _join(
    line: bytes,
    pieces: list[tuple[int, int, bytes]],
    time_span: tuple[int, int] | None,
    *,
    is_padded: bool,
) -> bytes:
    pattern, place, begins = b"", 0, False
    for start, end, form in pieces:
        is_number = (start, end) != time_span
        pads = (is_padded and begins, is_padded and is_number)
        pattern += _literal(line[place:start], *pads) + form
        place, begins = end, is_number
    return pattern + _literal(line[place:], is_padded and begins, False)


def _literal(text: bytes, begins_padded: bool, ends_padded: bool) -> bytes:
    """Return the expression for what stands between two numbers; a bar may be drawn otherwise."""
    if not text.strip(b" "):
        return b" +" if text and (begins_padded or ends_padded) else re.escape(text)
    head = b" +" if begins_padded and text.startswith(b" ") else b""
    tail = b" +" if ends_padded and text.endswith(b" ") else b""
    if head:
        text = text.lstrip(b" ")
    if tail:
        text = text.rstrip(b" ")
    return head + _DRAWN.join(re.escape(part) for part in _DRAWING.split(text)) + tail
