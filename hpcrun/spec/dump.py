"""JobSpec to YAML: what is not a default, in block style, for people and for load_job.

Pure.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml
from msgspec import NODEFAULT, Struct

from hpcrun.spec.check import shape
from hpcrun.spec.job import JobSpec

_STR, _SEQ, _MAP = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))

# Text that every YAML reader takes for text: a letter first, and nothing that has a meaning.
_PLAIN = re.compile(r"-{0,2}[A-Za-z_/](?:[A-Za-z0-9_/.+@%-]| (?=[A-Za-z0-9_/]))*")
_OLD_BOOLEANS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """The emitter alone: it guesses no types, so that styles are decided here."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012


def dump_job(spec: JobSpec) -> str:
    """Write a job so that load_job reads an equal one; its source needs nothing else.

    ``spec`` is one that load_job can give: NUL characters, say, can be written but not read.

    >>> print(dump_job(JobSpec(script="a.py", args=["--lr", "1e-4"])), end="")
    script: a.py
    args:
    - --lr
    - "1e-4"
    """
    node = _struct(spec)
    text: str = yaml.serialize(node, Dumper=_Dumper, allow_unicode=True, width=1 << 30)
    return text


def _struct(value: Struct) -> yaml.Node:
    pairs = []
    for field in shape(type(value)).fields:
        given = getattr(value, field.name)
        default = field.default
        if field.default_factory is not NODEFAULT:
            default = field.default_factory()
        if given != default:
            pairs.append((_text(field.encode_name), _node(given)))
    return _map(pairs)


def _node(value: Any) -> yaml.Node:
    if isinstance(value, Struct):
        return _struct(value)
    if isinstance(value, dict):
        return _map([(_text(key), _node(inner)) for key, inner in value.items()])
    if isinstance(value, (list, tuple)):
        items = [_node(item) for item in value]
        return yaml.SequenceNode(_SEQ, items, flow_style=not items)
    if isinstance(value, str):
        return _text(value)
    return yaml.ScalarNode(_STR, _core_text(value), style=None)


def _core_text(value: Any) -> str:
    """Spell a value as the core schema reads it back."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else f"{'-' if value < 0 else ''}.inf"
    if isinstance(value, (int, float)):
        return repr(value)
    raise TypeError(f"no YAML for {type(value).__name__}")


def _map(pairs: list[tuple[yaml.Node, yaml.Node]]) -> yaml.Node:
    return yaml.MappingNode(_MAP, pairs, flow_style=not pairs)


def _text(value: str) -> yaml.Node:
    lines = value.removesuffix("\n").split("\n")
    style: str | None = '"'
    if _PLAIN.fullmatch(value) and value.lower() not in _OLD_BOOLEANS:
        style = None
    elif len(lines) > 1 and all(_plain_line(line) for line in lines):
        style = "|"
    return yaml.ScalarNode(_STR, value, style=style)


def _plain_line(line: str) -> bool:
    return bool(line) and line == line.strip() and line.isascii() and line.isprintable()
