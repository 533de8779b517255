"""DeepSpeed's JSON as DeepSpeed reads it, by the hjson package, with the line of each key."""

from __future__ import annotations

import math
import re
from typing import Any

from msgspec import Struct

from hpcrun.errors import Problem, SpecError

Path = tuple[str, ...]

MAX_DEPTH = 100
_TOO_DEEP = f"more than {MAX_DEPTH} maps and lists in one another"
_ENDS = "the file ends inside a map, a list, a text or a comment"
_OPEN_QUOTE = "text in quotes is never closed on its line"
# What a message of hjson's begins with -> ours; {near} is the text that it is about.
_PLAINER = {
    "Expecting ':' delimiter": "{near} where a : should follow the key",
    "Extra data": "{near} after the end",
    "Found a punctuator": "{near} where a value should stand",
    "Found ": "{near} where a key and its : should stand",
    "Invalid control character": _OPEN_QUOTE,
    "Invalid \\": "{near} is no escape",
    "Unterminated string": _OPEN_QUOTE,
}
_QUOTED_OR_COMMENT = re.compile(
    r"""("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|\#[^\n]*|//[^\n]*|/\*.*?\*/""", re.DOTALL
)


class Document(Struct, frozen=True):
    """A map as read, and the line of each key by its path."""

    value: dict[str, Any]
    lines: dict[Path, int]


def parse_hjson(text: str, source: str) -> Document:
    """Read a file that holds one map. Raises SpecError with the line; a key twice is one, too.

    A number like 5e7 is whole where it can be, as hjson has it.

    >>> parse_hjson('{"a": 5e7, # buckets\\n b: {c: some words\\n}}', "ds.json")
    Document(value={'a': 50000000, 'b': {'c': 'some words'}}, lines={('a',): 1, ('b',): 2, \
('b', 'c'): 2})
    >>> parse_hjson('{"a": 1,\\n"a": 2}', "ds.json")
    Traceback (most recent call last):
        ...
    hpcrun.errors.SpecError: ds.json:2: a: is there twice; it stands on line 1 too
    """
    import hjson  # here: few jobs bring a JSON of their own

    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    try:
        read = hjson.loads(text, object_pairs_hook=_Pairs, parse_float=_number, parse_int=_number)
    except hjson.HjsonDecodeError as error:
        raise _broken(text, source, error.pos, error.msg) from None
    except _TooBig as error:
        number = str(error)
        line = _line(text, text.find(number))
        message = f"{number[:20]} is too big a number"
        raise SpecError([Problem(source, line, "", message)]) from None
    except IndexError:  # in a comment or a ''' text
        raise _broken(text, source, len(text), "") from None
    except RecursionError:
        raise SpecError([Problem(source, None, "", _TOO_DEEP)]) from None
    if not isinstance(read, (_Pairs, dict)):  # a dict: a file of comments alone
        found = "a list" if isinstance(read, list) else "a value"
        raise SpecError([Problem(source, 1, "", f"{found}; a map of keys is needed")])
    return _Reading(text, source).document(_Pairs(read))


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of a map as they stand in the file, a key that is there twice too."""


class _TooBig(Exception):
    """A number that no double holds."""


def _number(text: str) -> int | float:
    if text.lstrip("-").isdigit() and len(text) < 1000:  # Python itself refuses longer ones
        return int(text)
    value = float(text)
    if math.isinf(value):
        raise _TooBig(text)
    return value


def _broken(text: str, source: str, at: int, message: str) -> SpecError:
    """Make the error of a place at which the text is no Hjson."""
    open_quote = message.startswith("Invalid control")
    if open_quote:
        at -= 1  # the line end itself, and not what follows it
    near = repr(text[at : at + 20].split("\n")[0])
    plain = next((_PLAINER[start] for start in _PLAINER if message.startswith(start)), message)
    if at >= len(text.rstrip()) and not open_quote:
        plain = _ENDS
    return SpecError([Problem(source, _line(text, at), "", plain.replace("{near}", near))])


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


class _Reading:
    """Finds each key's line by a search that goes on from the key before it."""

    def __init__(self, text: str, source: str) -> None:
        # A key in a comment is none.
        self.text = _QUOTED_OR_COMMENT.sub(lambda m: m[1] or re.sub(r"[^\n]", " ", m[0]), text)
        self.source = source
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []

    def document(self, pairs: _Pairs) -> Document:
        value = self.map(pairs, ())
        if self.problems:
            raise SpecError(self.problems)
        return Document(value, self.lines)

    def map(self, pairs: _Pairs, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            inner = (*path, key)
            name = re.compile(rf"""(["']?){re.escape(key)}\1\s*:""")
            if match := name.search(self.text, self.at):
                self.at = match.end()
            line = _line(self.text, self.at)
            if inner in self.lines:
                message = f"is there twice; it stands on line {self.lines[inner]} too"
                self.problems.append(Problem(self.source, line, ".".join(inner), message))
            self.lines.setdefault(inner, line)
            found[key] = self.value(value, inner)
        return found

    def value(self, value: Any, path: Path) -> Any:
        if len(path) > MAX_DEPTH:
            line = _line(self.text, self.at)
            raise SpecError([Problem(self.source, line, "", _TOO_DEEP)])
        if isinstance(value, _Pairs):
            return self.map(value, path)
        if isinstance(value, str):  # it may hold what looks like a key
            found = self.text.find(value, self.at)
            self.at = found + len(value) if found >= 0 else self.at
        if not isinstance(value, list):
            return value
        items = []
        for index, item in enumerate(value):
            inner = (*path, str(index))
            self.lines[inner] = _line(self.text, self.at)
            items.append(self.value(item, inner))
        return items
