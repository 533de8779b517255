"""JSON as DeepSpeed reads it (Hjson: comments, commas and quotes that may be missing), with lines.

DeepSpeed loads its configuration with the hjson package, so a file with comments is a legal one.
This reads the same grammar, and remembers on which line each key stands.
"""

from __future__ import annotations

import math
import re
from typing import Any

from msgspec import Struct

from hpcrun.errors import Problem, SpecError

Path = tuple[str, ...]

MAX_DEPTH = 100
_SPACE = re.compile(r"(?:[ \t\n\r]+|#[^\n\r]*|//[^\n\r]*|/\*.*?\*/)*", re.DOTALL)
_KEY = re.compile(r"[^\s{}\[\],:]+(?=[ \t\n\r]*:)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
# A word ends at the end of the line; a number, true, false and null end at these as well.
_LITERAL_END = re.compile(r"[,}\]#]|//|/\*|$", re.MULTILINE)
_QUOTED = {q: re.compile(rf"{q}((?:[^{q}\\\x00-\x1f]|\\.)*){q}") for q in ('"', "'")}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"} | {c: c for c in "\"'\\/"}
_WORDS = {"true": True, "false": False, "null": None}


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
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines: dict[Path, int] = {}
    problems: list[Problem] = []
    try:
        start = _skip(text, 0)
        if text[start : start + 1] == "[":
            raise _Broken(start, "a list; a map of keys is needed")
        braces = text[start : start + 1] == "{"
        value, end = _map(text, start + braces, braces, (), lines, problems, source)
        end = _skip(text, end)
        if end < len(text):
            raise _Broken(end, f"{_near(text, end)} after the end")
    except _Broken as broken:
        problems.append(Problem(source, _line(text, broken.at), "", broken.message))
        raise SpecError(problems) from None
    if problems:
        raise SpecError(problems)
    return Document(value, lines)


class _Broken(Exception):
    """The text is no Hjson from here on."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at = at
        self.message = message


def _map(
    text: str,
    at: int,
    braces: bool,
    path: Path,
    lines: dict[Path, int],
    problems: list[Problem],
    source: str,
) -> tuple[dict[str, Any], int]:
    """Read keys and values up to the closing brace, or to the end of a file without braces."""
    found: dict[str, Any] = {}
    opened = at
    at = _skip(text, at)
    while True:
        if at >= len(text):
            if braces:
                raise _Broken(opened, "{ is never closed")
            return found, at
        if braces and text[at] == "}":
            return found, at + 1
        here = at
        key, at = _key(text, at)
        inner = (*path, key)
        if len(inner) > MAX_DEPTH:
            raise _Broken(here, f"more than {MAX_DEPTH} maps and lists in one another")
        if inner in lines:
            message = f"is there twice; it stands on line {lines[inner]} too"
            problems.append(Problem(source, _line(text, here), ".".join(inner), message))
        else:
            lines[inner] = _line(text, here)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise _Broken(at, f"{_near(text, at)} where a : should follow {key!r}")
        found[key], at = _value(text, _skip(text, at + 1), inner, lines, problems, source)
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)


def _key(text: str, at: int) -> tuple[str, int]:
    if text[at] in _QUOTED:
        return _quoted(text, at)
    match = _KEY.match(text, at)
    if match is None:
        raise _Broken(at, f"{_near(text, at)} where a key and its : should stand")
    return match[0], match.end()


def _value(
    text: str, at: int, path: Path, lines: dict[Path, int], problems: list[Problem], source: str
) -> tuple[Any, int]:
    opening = text[at : at + 1]
    if opening == "{":
        return _map(text, at + 1, True, path, lines, problems, source)
    if opening == "[":
        return _list(text, at, path, lines, problems, source)
    if text.startswith("'''", at):
        return _multiline(text, at)
    if opening in _QUOTED:
        return _quoted(text, at)
    return _word(text, at)


def _list(
    text: str, at: int, path: Path, lines: dict[Path, int], problems: list[Problem], source: str
) -> tuple[list[Any], int]:
    found: list[Any] = []
    opened = at
    at = _skip(text, at + 1)
    while text[at : at + 1] != "]":
        if at >= len(text):
            raise _Broken(opened, "[ is never closed")
        inner = (*path, str(len(found)))
        if len(inner) > MAX_DEPTH:
            raise _Broken(at, f"more than {MAX_DEPTH} maps and lists in one another")
        lines[inner] = _line(text, at)
        value, at = _value(text, at, inner, lines, problems, source)
        found.append(value)
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
    return found, at + 1


def _quoted(text: str, at: int) -> tuple[str, int]:
    match = _QUOTED[text[at]].match(text, at)
    if match is None:
        raise _Broken(at, f"{text[at]} is never closed on its line")

    def one(escape: re.Match[str]) -> str:
        char = escape[1]
        if len(char) == 5:
            return chr(int(char[1:], 16))
        if char not in _ESCAPED:
            raise _Broken(match.start(1) + escape.start(), f"{escape[0]} is no escape")
        return _ESCAPED[char]

    plain = _ESCAPE.sub(one, match[1])
    # Two halves of a character outside the basic plane, as JSON escapes it.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), match.end()


def _multiline(text: str, at: int) -> tuple[str, int]:
    """Read a '''...''' text: its lines without the indent of the quotes."""
    end = text.find("'''", at + 3)
    if end < 0:
        raise _Broken(at, "''' is never closed")
    indent = at - (text.rfind("\n", 0, at) + 1)
    body = text[at + 3 : end].lstrip(" \t")
    body = re.sub(rf"\n[ \t]{{0,{indent}}}", "\n", body).removeprefix("\n")
    return body.removesuffix("\n"), end + 3


def _word(text: str, at: int) -> tuple[Any, int]:
    """Read a number, true, false or null, or words without quotes up to the end of the line."""
    if at >= len(text) or text[at] in "}],:":
        raise _Broken(min(at, len(text)), f"{_near(text, at)} where a value should stand")
    line_end = text.find("\n", at)
    line_end = len(text) if line_end < 0 else line_end
    for stop in _LITERAL_END.finditer(text, at, line_end):
        word = text[at : stop.start()].strip()
        if word in _WORDS:
            return _WORDS[word], stop.start()
        number = _NUMBER.fullmatch(word)
        if number:
            return _number(number, at), stop.start()
    return text[at:line_end].strip(), line_end


def _number(match: re.Match[str], at: int) -> int | float:
    if not match[1] and not match[2] and len(match[0]) < 1000:
        return int(match[0])
    value = float(match[0])
    if math.isinf(value):
        raise _Broken(at, f"{match[0][:20]} is too big a number")
    # hjson's own limit.
    return int(value) if value.is_integer() and abs(value) < 1e10 else value


def _skip(text: str, at: int) -> int:
    """Pass over white space and comments."""
    match = _SPACE.match(text, at)
    end = match.end() if match else at
    if text.startswith("/*", end):
        raise _Broken(end, "/* is never closed")
    return end


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _near(text: str, at: int) -> str:
    return repr(text[at : at + 20].split("\n")[0]) if at < len(text) else "the end of the file"
