"""``--set key.path=value``: one more layer, in the grammar of the file."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec.inspect as mi

from hpcrun.errors import Problem, SpecError
from hpcrun.spec.check import child_type, no_keys, shown, unknown_key, unwrap
from hpcrun.spec.yaml12 import (
    MAX_DEPTH,
    Entry,
    Map,
    Node,
    Place,
    depth_of,
    is_null,
    join,
    parse_value,
)

SOURCE = "--set"

_PLACE = Place(SOURCE)
_SEGMENT = r'(?:"[^"]+"|[^".=\[\]\s]+)'
_ASSIGNMENT = re.compile(rf"\s*({_SEGMENT}(?:\.{_SEGMENT})*)\s*=(.*)", re.DOTALL)


def build_layer(
    overrides: Sequence[str], root: mi.StructType, below: Map, problems: list[Problem]
) -> Map:
    """Read all overrides into one tree, the later over the earlier; nulls stay in it.

    ``below`` is what the files say. What is wrong is appended to ``problems`` and left out.

    >>> from hpcrun.spec.check import shape
    >>> from hpcrun.spec.job import JobSpec
    >>> layer = build_layer(["name=x", "name=y"], shape(JobSpec), Map({}, Place("")), [])
    >>> layer.entries["name"].value.text
    'y'
    """
    layer = Map({}, _PLACE)
    for override in overrides:
        match = _ASSIGNMENT.fullmatch(override)
        if match is None:
            problems.append(Problem(SOURCE, None, _cut(override), _bad_syntax(override)))
            continue
        keys = [segment.strip('"') for segment in re.findall(_SEGMENT, match.group(1))]
        path = _path(keys)
        wrong = _wrong_path(keys, root) or _scalar_between(keys, (layer, below))
        if wrong:
            problems.append(Problem(SOURCE, None, path, wrong))
            continue
        try:
            value = parse_value(match.group(2), SOURCE, path, problems)
        except SpecError as error:
            problems.extend(error.problems)
            continue
        if len(keys) + depth_of(value) > MAX_DEPTH:
            message = f"nested deeper than {MAX_DEPTH} levels"
            problems.append(Problem(SOURCE, None, _cut(path), message))
            continue
        layer = _put(layer, keys, value)
    return layer


def _path(keys: Sequence[str]) -> str:
    path = ""
    for key in keys:
        path = join(path, key)
    return path


def _cut(text: str) -> str:
    return text if len(text) <= 60 and text.isprintable() else f"{text[:60]!a}..."


def _bad_syntax(override: str) -> str:
    if re.match(r"[^=\"]*\[[^=]*=", override):
        return "a list is given as a whole, as in args=[a, b]"
    return "expected KEY=VALUE, as in resources.nodes=2"


def _wrong_path(keys: Sequence[str], root: mi.StructType) -> str | None:
    if keys[0] == "extends":
        return "only a file can extend a job; --set gives values"
    of: mi.Type = root
    for depth, key in enumerate(keys):
        above, (of, _) = keys[:depth], unwrap(of)
        child = child_type(of, key)
        if child is None and isinstance(of, mi.StructType):
            return unknown_key(root, of, key)
        if child is None:
            return no_keys(of, _path(above))
        of = child
    return None


def _scalar_between(keys: Sequence[str], trees: Sequence[Map]) -> str | None:
    """Refuse to turn a value into a map behind the user's back."""
    for tree in trees:
        node: Node = tree
        for depth, key in enumerate(keys[:-1], 1):
            entry = node.entries.get(key) if isinstance(node, Map) else None
            if entry is None or is_null(entry.value):
                break
            node = entry.value
            if not isinstance(node, Map):
                place = f"{entry.place.source}:{entry.place.line}".removesuffix(":None")
                path = _path(keys[:depth])
                return f"{path} is {shown(node)} ({place}); set {path} as a whole"
    return None


def _put(tree: Map, keys: Sequence[str], value: Node) -> Map:
    head, rest = keys[0], keys[1:]
    old = tree.entries[head].value if head in tree.entries else None
    if rest:
        value = _put(old if isinstance(old, Map) else Map({}, _PLACE), rest, value)
    elif isinstance(old, Map) and isinstance(value, Map):
        for key, entry in value.entries.items():
            old = _put(old, [key], entry.value)
        value = old
    return Map({**tree.entries, head: Entry(value, _PLACE)}, _PLACE)
