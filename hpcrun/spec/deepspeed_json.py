"""Parse a DeepSpeed JSON with hjson, as DeepSpeed does, and record the line of each key."""

from __future__ import annotations

import math
import re
from typing import Any

from msgspec import Struct

from hpcrun.errors import Problem, SpecError
from hpcrun.text import is_whole_number

Path = tuple[str, ...]

MAX_DEPTH = 100
_TOO_DEEP = f"more than {MAX_DEPTH} maps and lists in one another"
_UNEXPECTED_END = "the file ends inside a map, a list, a text or a comment"
_OPEN_QUOTE = "text in quotes is never closed on its line"
# Beginnings of hjson's messages, each with its replacement; {near} is the text at the error.
_MESSAGES = {
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
    """A parsed map, with the line of each key by path."""

    value: dict[str, Any]
    lines: dict[Path, int]


def parse_hjson(text: str, source: str) -> Document:
    """Parse a file that contains one map.

    Raises:
        SpecError: For a syntax error or a duplicate key, with its line.

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
    """The keys and values of a map in file order, including duplicate keys."""


class _Reader:
    """Finds the line of each key by a search that starts at the previous key."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        self.source = source
        # The searched text has no comments, whose words are not keys.
        self.bare = _QUOTED_OR_COMMENT.sub(
            lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), self.text
        )
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []

    def read(self) -> Document:
        import hjson  # imported here because few jobs have a DeepSpeed JSON

        try:
            found = hjson.loads(
                self.text, object_pairs_hook=_Pairs, parse_float=self.number, parse_int=self.number
            )
        except hjson.HjsonDecodeError as error:
            raise self.broken(error.pos, error.msg) from None
        except IndexError:  # the file ends in a comment or a ''' text
            raise self.error(len(self.text), _UNEXPECTED_END) from None
        except RecursionError:
            raise self.error(0, _TOO_DEEP) from None
        if not isinstance(
            found, (_Pairs, dict)
        ):  # hjson returns a dict for a file of comments only
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
        """Build the error for a position at which hjson fails."""
        if message.startswith("Invalid control"):
            return self.error(at - 1, _OPEN_QUOTE)  # hjson reports the position after the line end
        if at >= len(self.text.rstrip()):
            return self.error(at, _UNEXPECTED_END)
        near = repr(self.text[at : at + 20].split("\n")[0])
        plain = next(
            (_MESSAGES[start] for start in _MESSAGES if message.startswith(start)), message
        )
        return self.error(at, plain.replace("{near}", near))

    def number(self, text: str) -> int | float:
        if is_whole_number(text.lstrip("-")):
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
            self.at = start + len(value)  # a value may contain text that looks like a key
        return value
