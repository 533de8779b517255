"""Python values to YAML: a program's own dicts, as load_job reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from hpcrun.errors import InputError, Problem, SpecError
from hpcrun.spec.yaml12 import MAX_DEPTH, join


def yaml_of(value: Any, source: str, path: str = "", depth: int = 0) -> str:
    r"""Write a value on one line, so that nothing in its texts has a meaning in YAML.

    Mappings, lists, tuples, texts, numbers, booleans, None, and paths as their text. Raises
    SpecError naming the place (``source``, ``path``) of anything else.

    >>> print(yaml_of({"a": [1, 2.5, True, None], "b c": "yes\t"}, "job"))
    {"a": [1, 2.5, true, null], "b c": "yes\U00000009"}
    """
    if depth > MAX_DEPTH:
        raise _problem(source, path[:60], f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        pairs = []
        for key, inner in value.items():
            if not isinstance(key, str):
                raise _problem(source, join(path, str(key)), f"a key must be text; got {key!r}")
            text = yaml_of(inner, source, join(path, key), depth + 1)
            pairs.append(f"{_quoted(key, source, path)}: {text}")
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        items = enumerate(value)
        return f"[{', '.join(yaml_of(x, source, join(path, i), depth + 1) for i, x in items)}]"
    if hasattr(value, "__fspath__"):
        value = value.__fspath__()
    if isinstance(value, str):
        return _quoted(value, source, path)
    number = _number(value)
    if number is None:
        kind = type(value).__name__
        fix = "; a set has no order: give a list" if isinstance(value, (set, frozenset)) else ""
        raise _problem(source, path, f"a {kind} can not stand in a job{fix}")
    return number


def _number(value: Any) -> str | None:
    """Spell what is no text as YAML's core schema reads it back; None for what is not in it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Integral):  # numpy's are too
        return str(int(value))
    if not isinstance(value, Real):
        return None
    number = float(value)
    if math.isnan(number):
        return ".nan"
    return repr(number) if math.isfinite(number) else f"{'-' if number < 0 else ''}.inf"


def _quoted(text: str, source: str, path: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise _problem(source, path, f"{text!a}: not UTF-8")

    def one(char: str) -> str:
        is_plain = char.isascii() and char.isprintable() and char not in '\\"'
        return char if is_plain else f"\\U{ord(char):08x}"

    return f'"{"".join(map(one, text))}"'


def _problem(source: str, path: str, message: str) -> InputError:
    return SpecError([Problem(source, None, path, message)])
