"""Build typed, frozen values from YAML trees, and report all problems with their places.

The types of ``spec.job`` define what is legal; this module names no field. An unquoted scalar may
be a number, a boolean or text, as the field requires. A quoted scalar is text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import msgspec.inspect as mi
from msgspec import structs

from hpcrun.errors import Problem
from hpcrun.spec.yaml12 import Node, is_null, join_path, parse_core_value, parse_plain_value
from hpcrun.structs import decodable

T = TypeVar("T")

# The result of a conversion that appended a problem.
_REFUSED: Any = object()
_NUL_MESSAGE = "holds a NUL character, which no process can receive"
_BOOLEANS = {
    **dict.fromkeys(("yes", "y", "on", "true"), "true"),
    **dict.fromkeys(("no", "n", "off", "false"), "false"),
}

_KIND_NAMES = {
    mi.ListType: "a list, as in [a, b]",
    mi.DictType: "keys, as in {KEY: VALUE}",
    mi.StructType: "keys, as in {KEY: VALUE}",
    mi.IntType: "a whole number",
    mi.FloatType: "a number",
    mi.BoolType: "true or false",
    mi.StrType: "text",
}


def build_struct(cls: type[T], tree: Node, problems: list[Problem]) -> T:
    """Build a ``cls`` from a tree and append all problems to ``problems``.

    A key with a null counts as missing. Fields with problems have their defaults in the result.
    """
    of = describe_struct(cast(Any, cls))
    value: T = _Conversion(of, problems).struct(of, tree, "")
    return value


@cache
def describe_struct(cls: type) -> mi.StructType:
    """Describe the fields of a Struct and their types, recursively."""
    described = mi.type_info(decodable(cls))
    if not isinstance(described, mi.StructType):
        raise TypeError(f"{cls} is not a Struct")
    return described


def unwrap(of: mi.Type) -> tuple[mi.Type, list[str]]:
    """Return a type without metadata and None, and its descriptions, the field's first.

    The pattern of text may be in the metadata; see LineInUnion.
    """
    descriptions: list[str] = []
    while True:
        if isinstance(of, mi.Metadata):
            schema = of.extra_json_schema or {}
            descriptions += [schema.get("description", "")]
            of = of.type
            if isinstance(of, mi.StrType) and "pattern" in schema:
                of = structs.replace(of, pattern=schema["pattern"])
            continue
        members = _union_members(of)
        if len(members) != 1:
            return of, descriptions
        of = members[0]


def _union_members(of: mi.Type) -> list[mi.Type]:
    if not isinstance(of, mi.UnionType):
        return []
    return [member for member in of.types if not isinstance(member, mi.NoneType)]


def accepts_none(of: mi.Type) -> bool:
    """Return True if None is a value of a type."""
    return isinstance(of, mi.UnionType) and any(isinstance(x, mi.NoneType) for x in of.types)


def child_type(of: mi.Type, key: str) -> mi.Type | None:
    """Return the type of the value under a key; None if the type has no such key.

    >>> from hpcrun.spec.job import JobSpec
    >>> job = describe_struct(JobSpec)
    >>> unwrap(child_type(job, "snapshot"))[0], child_type(job, "shots")
    (BoolType(), None)
    """
    of, _ = unwrap(of)
    if isinstance(of, mi.StructType):
        return next((field.type for field in of.fields if field.encode_name == key), None)
    if isinstance(of, mi.DictType):
        return of.value_type
    return of if isinstance(of, mi.AnyType) else None


_SAME_ON_ALL_NODES = (
    "Slurm allocates the same number of GPUs on each node of a job; where nodes differ, use the "
    "number that all of them have, and more nodes"
)


# Keys of the allocation that a role does not have, with the place of those of the whole job.
_KEYS_OF_ALLOCATION = {key: f"slurm.{key}" for key in ("constraint", "qos", "reservation")}


def explain_unknown_key(root: mi.StructType, section: mi.StructType, key: str) -> str:
    """Write the message for an unknown key, with the key that the user may have meant.

    >>> from hpcrun.spec.job import JobSpec
    >>> explain_unknown_key(describe_struct(JobSpec), describe_struct(JobSpec), "scrpt")
    'unknown key; did you mean script?'
    """
    legal = [field.encode_name for field in section.fields]
    word = key.lower().replace("-", "_")
    names = {path: path.rpartition(".")[2] for path in _iterate_paths(root)}
    elsewhere = [path for path, name in names.items() if name == word]
    if section.cls.__name__ == "Role":
        of_job = [path for path in elsewhere if path.startswith("resources.")]
        for path in [*filter(None, [_KEYS_OF_ALLOCATION.get(word)]), *of_job]:
            return (
                f"set {path} for the whole job, or below {path.partition('.')[0]} of this role, "
                "which then has nodes of another kind (docs/roles.md)"
            )
    far = [
        path
        for path, name in names.items()
        if name.startswith(f"{word}_") or _find_close_words(word, [name], 0.8)
    ]
    for meant in ([word] if word in legal else elsewhere, _find_close_words(word, legal), far):
        if meant:
            return f"unknown key; did you mean {' or '.join(meant)}?"
    return f"unknown key; expected one of {', '.join(legal)}"


def explain_missing_map(of: mi.StructType, node: Node) -> str:
    """Write the message for a scalar in place of a map, with the key that it probably belongs to.

    >>> from hpcrun.spec.job import Container
    >>> explain_missing_map(describe_struct(Container), Node("a.sif", "f", plain=True))
    'expected keys, as in {image: a.sif}; got a.sif'
    """
    needed = [field.encode_name for field in of.fields if field.required]
    if len(needed) == 1 and isinstance(node.value, str) and not is_null(node):
        return f"expected keys, as in {{{needed[0]}: {format_node(node)}}}; got {format_node(node)}"
    return f"expected {_KIND_NAMES[mi.StructType]}; got {format_node(node)}"


def explain_scalar_path(of: mi.Type, path: str) -> str:
    """Write the message for a path that continues below a list or a scalar."""
    if isinstance(of, mi.ListType):
        return f"{path} is a list, given as a whole, as in {path}=[a, b]"
    first = (_union_members(of) or [of])[0]
    return f"{path} is {_KIND_NAMES.get(type(unwrap(first)[0]), 'text')}; it has no keys"


def _iterate_paths(section: mi.StructType, path: str = "") -> Iterator[str]:
    for field in section.fields:
        inner, _ = unwrap(field.type)
        yield join_path(path, field.encode_name)
        if isinstance(inner, mi.StructType):
            yield from _iterate_paths(inner, join_path(path, field.encode_name))


def _find_close_words(word: str, legal: Iterable[str], cutoff: float = 0.6) -> list[str]:
    import difflib  # imported here because only mistakes need it

    return difflib.get_close_matches(word, list(legal), 1, cutoff)


class _Conversion:
    """Converts a tree to values. A method that appends a problem returns _REFUSED.

    Attributes:
        root: The type of the whole tree, whose keys messages may suggest.
    """

    def __init__(self, root: mi.StructType, problems: list[Problem]) -> None:
        self.root = root
        self.problems = problems

    def value(self, declared: mi.Type, node: Node, path: str) -> Any:
        of, descriptions = unwrap(declared)
        if isinstance(of, mi.UnionType):
            # In unions with a boolean, unquoted true and false are booleans.
            is_bool = isinstance(parse_plain_value(node), bool)
            members = {type(unwrap(one)[0]): one for one in _union_members(of)}
            if (number := members.get(mi.IntType)) is not None:  # a number, or a range of them
                is_range = isinstance(node.value, str) and re.fullmatch("[0-9]+-[0-9]+", node.text)
                return self.value(members[mi.StrType] if is_range else number, node, path)
            if isinstance(node.value, list) and mi.ListType in members:
                return self.value(members[mi.ListType], node, path)
            if isinstance(node.value, dict) and mi.DictType in members:
                return self.value(members[mi.DictType], node, path)
            if not is_bool and (word := members.get(mi.LiteralType)) is not None:
                return self.literal(cast(Any, word), node, path, ("true", "false"))
            kind = mi.BoolType if is_bool and mi.BoolType in members else mi.StrType
            return self.value(members[kind], node, path)
        if isinstance(of, mi.StructType) and is_null(node):
            # A user-defined key without a value, as in ``partitions: {gpu: }``, is empty.
            node = structs.replace(node, value={})
        if isinstance(of, mi.StrType):
            return self.text(of, descriptions[-1] if of.pattern else "text", node, path)
        convert: Mapping[type, Callable[[Any, Node, str], Any]] = {
            mi.AnyType: self.free,
            mi.StructType: self.struct,
            mi.DictType: self.dict,
            mi.ListType: self.list,
            mi.LiteralType: self.literal,
            mi.IntType: self.integer,
            mi.FloatType: self.number,
            mi.BoolType: self.boolean,
        }
        return convert[type(of)](of, node, path)

    def refuse(self, node: Node, path: str, message: str) -> Any:
        self.problems.append(node.problem(path, message))
        return _REFUSED

    def refuse_kind(self, of: mi.Type, node: Node, path: str) -> Any:
        message = f"expected {_KIND_NAMES[type(of)]}; got {format_node(node)}"
        if path == "resources.gpus_per_node" and not isinstance(node.value, str):
            message += f"; {_SAME_ON_ALL_NODES}"
        return self.refuse(node, path, message)

    def struct(self, of: mi.StructType, node: Node, path: str) -> Any:
        if not isinstance(node.value, dict):
            return self.refuse(node, path, explain_missing_map(of, node))
        fields = {field.encode_name: field for field in of.fields}
        given: dict[str, Any] = {}
        for key, inner in node.entries.items():
            if key not in fields:
                self.refuse(inner, join_path(path, key), explain_unknown_key(self.root, of, key))
            elif not is_null(inner):
                value = self.value(fields[key].type, inner, join_path(path, key))
                if value is not _REFUSED:
                    given[fields[key].name] = value
        missing = {f.encode_name: f for f in of.fields if f.required and f.name not in given}
        for name, field in missing.items():
            if name not in node.entries or is_null(node.entries[name]):
                about = unwrap(field.type)[1]
                message = f"is missing: {about[0]}" if about else "is missing"
                self.refuse(node, join_path(path, name), message)
        return _REFUSED if missing else of.cls(**given)

    def dict(self, of: mi.DictType, node: Node, path: str) -> Any:
        if not isinstance(node.value, dict):
            return self.refuse_kind(of, node, path)
        result = {}
        for key, inner in node.entries.items():
            text = structs.replace(inner, value=key, plain=False)
            legal = self.value(of.key_type, text, join_path(path, key))
            is_none = is_null(inner) and bool(inner.text) and accepts_none(of.value_type)
            value = None if is_none else self.value(of.value_type, inner, join_path(path, key))
            if legal is not _REFUSED and value is not _REFUSED:
                result[key] = value
        return result

    def list(self, of: mi.ListType, node: Node, path: str) -> Any:
        if not isinstance(node.value, list):
            return self.refuse_kind(of, node, path)
        if len(node.items) < (of.min_length or 0):
            return self.refuse(node, path, "must not be empty")
        items = [self.value(of.item_type, n, join_path(path, i)) for i, n in enumerate(node.items)]
        return [item for item in items if item is not _REFUSED]

    def text(self, of: mi.StrType, wanted: str, node: Node, path: str) -> Any:
        if not isinstance(node.value, str):
            hint = "; text that holds ': ' needs quotes" if isinstance(node.value, dict) else ""
            if [inner.value for inner in node.entries.values()] == [""]:  # {run_dir}, unquoted
                hint = f'; write "{{{next(iter(node.entries))}}}" with quotes'
            return self.refuse(node, path, f"expected text, got {format_node(node)}{hint}")
        if is_null(node) and not node.text and of.pattern is not None:
            message = f"has no value: write {wanted}, or leave the key out"
            return self.refuse(node, path, message)
        if is_null(node):
            hint = f'; write "{node.text}" for that text' if node.text else ""
            if of.pattern is None:
                hint += f'{"," if hint else "; write"} "" for empty text'
            return self.refuse(node, path, f"expected {wanted}, got {format_node(node)}{hint}")
        if "\0" in node.text:
            return self.refuse(node, path, _NUL_MESSAGE)
        if of.pattern is not None and not re.fullmatch(of.pattern, node.text):
            return self.refuse(node, path, f"expected {wanted}; got {format_node(node)}")
        return node.text

    def literal(
        self, of: mi.LiteralType, node: Node, path: str, booleans: Sequence[str] = ()
    ) -> Any:
        """Convert a node to one of several words; ``booleans`` are also legal."""
        words = [str(value) for value in of.values]
        if node.text in words:
            return node.text
        legal = [*booleans, *words]
        word = _BOOLEANS.get(node.text.lower()) if booleans else None
        meant = [word] if word else _find_close_words(node.text.lower(), legal)
        hint = f"; did you mean {meant[0]}?" if meant else ""
        message = f"expected one of {', '.join(legal)}; got {format_node(node)}{hint}"
        return self.refuse(node, path, message)

    def integer(self, of: mi.IntType, node: Node, path: str) -> Any:
        """Convert a node to an integer in any spelling: 8, 0x8, 8.0 and 8e0 are equal."""
        try:
            number = parse_core_value(node.text)
        except ValueError as error:
            return self.refuse(node, path, f"{format_node(node)}: {error}")
        if not (type(number) is int or (type(number) is float and number.is_integer())):
            return self.refuse_kind(of, node, path)
        message = ""
        if not node.plain:
            message = (
                f"expected a whole number, got the text {format_node(node)}; write it without "
                "quotes"
            )
        elif (of.ge is not None and number < of.ge) or (of.le is not None and number > of.le):
            bounds = f"from {of.ge} to {of.le}" if of.le is not None else f"at least {of.ge}"
            message = f"must be {bounds}; got {format_node(node)}"
        elif abs(number) >= 1 << 63:
            message = f"{format_node(node)}: a whole number that does not fit into 64 bits"
        return self.refuse(node, path, message) if message else int(number)

    def number(self, of: mi.FloatType, node: Node, path: str) -> Any:
        """Convert a node to a finite number in any spelling: 1, 1.0 and 1e0 are equal."""
        number = parse_plain_value(node)
        if type(number) not in (int, float) or not math.isfinite(number):
            return self.refuse_kind(of, node, path)
        if of.ge is not None and number < of.ge:
            message = f"must be at least {of.ge:g}; got {format_node(node)}"
            return self.refuse(node, path, message)
        return float(number)

    def boolean(self, of: mi.BoolType, node: Node, path: str) -> Any:
        value = parse_plain_value(node)
        if isinstance(value, bool):
            return value
        word = _BOOLEANS.get(node.text.lower())
        hint = f"; did you mean {word}?" if word else ""
        return self.refuse(node, path, f"expected true or false; got {format_node(node)}{hint}")

    def free(self, of: mi.Type, node: Node, path: str) -> Any:
        """Convert a node of any kind, with the types of the core schema."""
        if isinstance(node.value, dict):
            for key, inner in node.entries.items():
                if "\0" in key:
                    self.refuse(inner, join_path(path, key), "holds a NUL character")
            values = {
                k: self.free(of, inner, join_path(path, k)) for k, inner in node.entries.items()
            }
            return {key: value for key, value in values.items() if value is not _REFUSED}
        if isinstance(node.value, list):
            items = [
                self.free(of, item, join_path(path, index)) for index, item in enumerate(node.items)
            ]
            return [item for item in items if item is not _REFUSED]
        if "\0" in node.text:
            return self.refuse(node, path, _NUL_MESSAGE)
        try:
            return parse_core_value(node.text) if node.plain else node.text
        except ValueError as error:
            return self.refuse(node, path, f"{format_node(node)}: {error}")


def format_node(node: Node) -> str:
    """Format a value for a message, as the user wrote it, on one short line.

    >>> format_node(Node("1e-4", "f", plain=True)), format_node(Node("8", "f"))
    ('1e-4', '"8"')
    """
    if not isinstance(node.value, str):
        return "a map" if isinstance(node.value, dict) else "a list"
    if node.text == "" and node.plain:
        return "nothing"
    text = node.text if len(node.text) <= 60 else f"{node.text[:60]}..."
    return text if node.plain and text.isprintable() else json.dumps(text, ensure_ascii=False)
