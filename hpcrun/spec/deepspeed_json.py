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
# How a message of hjson's begins -> ours; {near} is the text that it is about.
_PLAINER = {
    "Expecting ':' delimiter": "{near} where a : should follow the key",
    "Extra data": "{near} after the end",
    "Found a punctuator": "{near} where a value is expected",
    "Found ": "{near} where a key and its : are expected",
    "Invalid \\": "{near} is not a valid escape",
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

    >>> parse_hjson('{"a": 5e7, # buckets\\n b: {c: some words\\n}}', "ds.json")
    Document(value={'a': 50000000, 'b': {'c': 'some words'}}, lines={('a',): 1, ('b',): 2, \
('b', 'c'): 2})
    >>> parse_hjson('{"a": 1,\\n"a": 2}', "ds.json")
    Traceback (most recent call last):
        ...
    hpcrun.errors.SpecError: ds.json:2: a: appears twice, also on line 1
    """
    return _Reader(text, source).read()


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of a map as they stand in the file, a key that is there twice too."""


class _Reader:
    """Finds each key's line by a search that resumes from the key before it."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        self.source = source
        # What is searched: a key in a comment is none.
        self.bare = _QUOTED_OR_COMMENT.sub(
            lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), self.text
        )
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []

    def read(self) -> Document:
        import hjson  # here: few jobs bring a JSON of their own

        try:
            found = hjson.loads(
                self.text, object_pairs_hook=_Pairs, parse_float=self.number, parse_int=self.number
            )
        except hjson.HjsonDecodeError as error:
            raise self.broken(error.pos, error.msg) from None
        except IndexError:  # in a comment or a ''' text
            raise self.error(len(self.text), _ENDS) from None
        except RecursionError:
            raise self.error(0, _TOO_DEEP) from None
        if not isinstance(found, (_Pairs, dict)):  # a dict: a file of comments alone
            kind = "a list" if isinstance(found, list) else "a value"
            raise self.error(0, f"{kind}; a map of keys is needed")
        value = self.map(_Pairs(found), ())
        if self.problems:
            raise SpecError(self.problems)
        return Document(value, self.lines)

    def line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1

    def error(self, at: int, message: str) -> SpecError:
        return SpecError([Problem("", message, self.source, self.line(at))])

    def broken(self, at: int, message: str) -> SpecError:
        """Make the error of a place at which hjson cannot read on."""
        if message.startswith("Invalid control"):
            return self.error(at - 1, _OPEN_QUOTE)  # the line end itself, not what follows it
        if at >= len(self.text.rstrip()):
            return self.error(at, _ENDS)
        near = repr(self.text[at : at + 20].split("\n")[0])
        plain = next((_PLAINER[start] for start in _PLAINER if message.startswith(start)), message)
        return self.error(at, plain.replace("{near}", near))

    def number(self, text: str) -> int | float:
        if text.lstrip("-").isdigit() and len(text) < 1000:  # Python itself refuses longer ones
            return int(text)
        value = float(text)
        if math.isinf(value):
            raise self.error(self.text.find(text), f"{text[:20]} is too big a number")
        return value

    def map(self, pairs: _Pairs, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            inner = (*path, key)
            if match := re.compile(rf"""(["']?){re.escape(key)}\1\s*:""").search(
                self.bare, self.at
            ):
                self.at = match.end()
            line = self.line(self.at)
            if inner in self.lines:
                message = f"appears twice, also on line {self.lines[inner]}"
                self.problems.append(Problem(".".join(inner), message, self.source, line))
            self.lines.setdefault(inner, line)
            found[key] = self.value(value, inner)
        return found

    def value(self, value: Any, path: Path) -> Any:
        if len(path) > MAX_DEPTH:
            raise self.error(self.at, _TOO_DEEP)
        if isinstance(value, _Pairs):
            return self.map(value, path)
        if isinstance(value, list):
            items = []
            for index, item in enumerate(value):
                inner = (*path, str(index))
                self.lines[inner] = self.line(self.at)
                items.append(self.value(item, inner))
            return items
        if isinstance(value, str) and (start := self.bare.find(value, self.at)) >= 0:
            self.at = start + len(value)  # it may hold what looks like a key
        return value
