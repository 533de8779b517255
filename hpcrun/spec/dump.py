"""JobSpec to YAML: what is not a default, in block style, for people and for load_job.

Written without PyYAML, which takes longer to import than a job takes to be planned.
"""

from __future__ import annotations

import math
import re
from typing import Any

from msgspec import NODEFAULT, Struct

from hpcrun.spec.job import JobSpec

# Text that every YAML reader takes for text: a letter first, and nothing that has a meaning.
_PLAIN = r"-{0,2}[A-Za-z_/](?:[A-Za-z0-9_/.+@%-]| (?=[A-Za-z0-9_/]))*"
_OLD_BOOLEANS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_NAMED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}
# YAML allows 1024 characters in a key without a question mark before it.
_LONG_KEY = 128


def dump_job(spec: JobSpec) -> str:
    """Write a job so that load_job reads an equal one; its source needs nothing else.

    ``spec`` is one that load_job can give: NUL characters, say, can be written but not read.

    >>> print(dump_job(JobSpec(script="a.py", args=["--lr", "1e-4"])), end="")
    script: a.py
    args:
    - --lr
    - "1e-4"
    """
    said = _given(spec)
    return "".join(f"{line}\n" for line in (_map(said) if said else ["{}"]))


def _given(value: Struct) -> dict[str, Any]:
    """What of a struct is not its default."""
    kind = type(value)
    names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    default = _with_defaults(kind)
    return {
        written: getattr(value, name)
        for name, written in names
        if getattr(value, name) != getattr(default, name)
    }


def _with_defaults(kind: type[Struct]) -> Struct:
    """A value of a kind in which all that can be left out is; the rest equals nothing."""
    required = kind.__struct_fields__[: -len(kind.__struct_defaults__) or None]
    return kind(**dict.fromkeys(required, NODEFAULT))


def _map(entries: dict[str, Any]) -> list[str]:
    lines = []
    for key, value in entries.items():
        name = _scalar(key)
        below = _given(value) if isinstance(value, Struct) else value
        if len(name) > _LONG_KEY:
            lines += [f"? {name}", *_under(": ", _lines(below))]
        elif isinstance(below, dict) and below:
            lines += [f"{name}:", *(f"  {line}" for line in _map(below))]
        elif isinstance(below, (list, tuple)) and below:
            lines += [f"{name}:", *_lines(below)]
        else:
            first, *rest = _lines(below)
            lines += [f"{name}: {first}", *(f"  {line}" for line in rest)]
    return lines


def _lines(value: Any) -> list[str]:
    """A value's lines; the first one goes behind its key or dash."""
    if isinstance(value, Struct):
        value = _given(value)
    if isinstance(value, dict):
        return _map(value) if value else ["{}"]
    if isinstance(value, (list, tuple)):
        return [line for item in value for line in _under("- ", _lines(item))] or ["[]"]
    if isinstance(value, str):
        text = value.removesuffix("\n").split("\n")
        if len(text) > 1 and all(_plain_line(line) for line in text):
            return ["|" if value.endswith("\n") else "|-", *text]
    return [_scalar(value)]


def _under(mark: str, lines: list[str]) -> list[str]:
    return [mark + lines[0], *(f"  {line}" for line in lines[1:])]


def _scalar(value: Any) -> str:
    """Spell a value on one line, as the core schema reads it back."""
    if isinstance(value, str):
        if re.fullmatch(_PLAIN, value) and value.lower() not in _OLD_BOOLEANS:
            return value
        return f'"{"".join(map(_in_quotes, value))}"'
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else f"{'-' if value < 0 else ''}.inf"
    if isinstance(value, (int, float)):
        return repr(value)
    raise TypeError(f"no YAML for {type(value).__name__}")


def _in_quotes(char: str) -> str:
    code = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    if char.isprintable():
        return char
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )


def _plain_line(line: str) -> bool:
    return bool(line) and line == line.strip() and line.isascii() and line.isprintable()
