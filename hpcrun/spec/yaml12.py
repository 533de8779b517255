"""YAML text to a tree that keeps every scalar's own text and line; YAML 1.2 core types on demand.

PyYAML's types are YAML 1.1's, where ``no`` is a boolean, ``24:00:00`` is 86400 and ``1e-4`` is
text: only its C parser is used, by yaml_reader, which is imported when there is YAML to read.
"""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import Struct

from hpcrun.errors import Problem, SpecError

MAX_CHARACTERS = 1_000_000
MAX_VALUES = 20_000
MAX_DEPTH = 64

_NULLS = {"", "~", "null", "Null", "NULL"}
_BOOLEANS = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# As text: re compiles and keeps them at their first use, which most calls of hpcrun never come to.
_DECIMAL = r"[-+]?[0-9]+"
_OCTAL = r"0o[0-7]+"
_HEXADECIMAL = r"0x[0-9a-fA-F]+"
_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
_INFINITY = r"([-+]?)\.(inf|Inf|INF)"
_NANS = {".nan", ".NaN", ".NAN"}

_PLAIN_KEY = r'[^\s".=\[\]]+'


class Place(Struct, frozen=True):
    """Where something stands: the file, or ``--set``; the line from 1, if lines say anything."""

    source: str
    line: int | None = None


class Scalar(Struct, frozen=True):
    """A text as written; ``plain`` if without quotes, so that it may mean a number or nothing."""

    text: str
    plain: bool
    place: Place


class List(Struct, frozen=True):
    """A sequence."""

    items: list[Node]
    place: Place


class Map(Struct, frozen=True):
    """A mapping with text keys, in the order of the file."""

    entries: dict[str, Entry]
    place: Place


class Entry(Struct, frozen=True):
    """A value under a key; the place is the key's."""

    value: Node
    place: Place


Node = Scalar | List | Map


def is_null(node: Node) -> bool:
    """Tell whether a node says nothing: empty, ``~`` or ``null``, without quotes."""
    return isinstance(node, Scalar) and node.plain and node.text in _NULLS


def core_value(text: str) -> Any:
    """Give an unquoted scalar its YAML 1.2 core-schema value (YAML 1.2.2, section 10.3.2).

    Raises ValueError for a number that neither 64 bits nor a double can hold.

    >>> [core_value(word) for word in ("true", "no", "~", "0o17", "0x1F", "1e-4", "24:00:00")]
    [True, 'no', None, 15, 31, 0.0001, '24:00:00']
    """
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text in _NANS:
        return float("nan")
    for pattern, base in ((_DECIMAL, 10), (_OCTAL, 8), (_HEXADECIMAL, 16)):
        if re.fullmatch(pattern, text):
            digits = text.lstrip("+-0ox") or "0"
            # int() itself refuses some thousands of digits, with other words.
            number = int(digits, base) if len(digits) <= 64 else 1 << 64
            number = -number if text.startswith("-") else number
            if not -(1 << 63) <= number < 1 << 64:
                raise ValueError("a whole number that does not fit into 64 bits")
            return number
    if match := re.fullmatch(_INFINITY, text):
        return float(f"{match.group(1)}inf")
    if re.fullmatch(_FLOAT, text):
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ValueError("a number that does not fit into a double")
        return value
    return text


def join(path: str, key: str | int) -> str:
    """Extend a dotted path; keys that would read as something else are quoted.

    >>> join("resources", "nodes"), join("args", 2), join("env", "a.b")
    ('resources.nodes', 'args[2]', 'env."a.b"')
    """
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not (re.fullmatch(_PLAIN_KEY, key) and key.isprintable()):
        key = json.dumps(key, ensure_ascii=False)
    return f"{path}.{key}" if path else key


def parse_document(text: str, source: str, problems: list[Problem]) -> Map:
    """Read a file of keys; an empty one has none.

    Appends to ``problems`` what leaves the rest readable (a key twice, a merge key). Raises
    SpecError for the first thing that is not YAML, or not a map.

    >>> parse_document("a: 1\\nb: {c: x}\\n", "f.yaml", []).entries["b"].place.line
    2
    """
    from hpcrun.spec.yaml_reader import compose, error_at

    node = compose(text, source, problems)
    if is_null(node):
        return Map({}, node.place)
    if not isinstance(node, Map):
        found = "a list" if isinstance(node, List) else "text"
        raise error_at(source, 1, 1, f"expected keys, as in KEY: VALUE, got {found}")
    return node


def parse_value(text: str, source: str, path: str, problems: list[Problem]) -> Node:
    """Read what stands behind ``KEY:`` in a file, for values given without a file.

    Raises SpecError like ``parse_document``; places have no lines.

    >>> parse_value("1e-4", "--set", "lr", []).text
    '1e-4'
    """
    from hpcrun.spec.yaml_reader import compose

    prefix = "_: "
    try:
        node = compose(prefix + text, source, problems, path, lines=False)
    except SpecError as error:
        problem = error.problems[0]
        message = re.sub(r"^column \d+: ", "", problem.message)
        raise SpecError([Problem(source, None, path, message)]) from None
    if not isinstance(node, Map) or len(node.entries) != 1:
        raise SpecError([Problem(source, None, path, "more than one value")])
    return node.entries["_"].value


def depth_of(node: Node) -> int:
    """Count the levels of a tree; a scalar is one."""
    if isinstance(node, List):
        return 1 + max(map(depth_of, node.items), default=0)
    if isinstance(node, Map):
        return 1 + max((depth_of(entry.value) for entry in node.entries.values()), default=0)
    return 1
