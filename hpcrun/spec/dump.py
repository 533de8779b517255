"""Write jobs and values as YAML that yaml12 reads back unchanged, and edit single values of a text.

An edit parses the text only to locate the value and splices in the change. Comments, order, quotes
and flow or block style around it are preserved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import yaml
from msgspec import NODEFAULT, Struct

from hpcrun.errors import Problem, SpecError
from hpcrun.spec.job import JobSpec
from hpcrun.spec.yaml12 import MAX_DEPTH, join_path

# Text that every YAML parser reads as text without quotes.
_PLAIN_TEXT = r"-{0,2}[A-Za-z_/$~](?:[A-Za-z0-9_/.+@%$-]| (?=[A-Za-z0-9_/]))*"
_RESERVED_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "~"}


class _Dumper(yaml.SafeDumper):
    """Quotes all text that YAML 1.1 or 1.2 could read as another type."""

    quotes_all = False

    def ignore_aliases(self, data: Any) -> bool:
        """Write repeated values in full instead of as aliases."""
        return True

    def text(self, data: str) -> yaml.Node:
        """Write text plain, as a literal block, or in double quotes."""
        lines = data.removesuffix("\n").split("\n")
        is_block = all(x and x == x.strip() and x.isascii() and x.isprintable() for x in lines)
        is_plain = re.fullmatch(_PLAIN_TEXT, data) and data.lower() not in _RESERVED_WORDS
        style = None if is_plain else "|" if is_block and len(lines) > 1 else '"'
        style = '"' if self.quotes_all else style
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    def struct(self, data: Struct) -> yaml.Node:
        """Write the fields of a Struct that differ from their defaults."""
        kind = type(data)
        # Required fields get a value that equals no other, so that they are always written.
        required = kind.__struct_fields__[: -len(kind.__struct_defaults__) or None]
        default = kind(**dict.fromkeys(required, NODEFAULT))
        names = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
        values = [(key, getattr(data, name), getattr(default, name)) for key, name in names]
        return self.represent_dict({key: value for key, value, usual in values if value != usual})


_Dumper.add_multi_representer(Struct, _Dumper.struct)
_Dumper.add_representer(str, _Dumper.text)


class _Quoter(_Dumper):
    """Quotes all text, so that messages show where a value begins and ends."""

    quotes_all = True


def _dump(value: object, dumper: type[_Dumper] = _Dumper, *, flow: bool = False) -> str:
    text: str = yaml.dump(
        value,
        Dumper=dumper,
        default_flow_style=flow,
        sort_keys=False,
        allow_unicode=True,
        width=float("inf"),
    )
    return text


def dump_job(spec: JobSpec) -> str:
    """Write a job as a self-contained file from which load_job reads an equal job.

    >>> print(dump_job(JobSpec(script="a.py", args=["--lr", "1e-4"])), end="")
    script: a.py
    args:
    - --lr
    - "1e-4"
    """
    return _dump(spec)


def format_flow(value: object, *, quoted: bool = False) -> str:
    """Write a value of built-in types on one line; ``quoted`` quotes all text.

    >>> print(format_flow({"a100": 4, "time": "1:00:00", "b": [True, "no", "~", "$TMPDIR"]}))
    {a100: 4, time: "1:00:00", b: [true, "no", "~", $TMPDIR]}
    """
    # Within a list, a scalar is not followed by a document end marker.
    return _dump([value], _Quoter if quoted else _Dumper, flow=True).strip()[1:-1]


def format_comment(text: str) -> str:
    r"""Write text as one comment line, with unprintable characters replaced.

    >>> format_comment("--lr\u2028script: other.py\n")
    '# --lr?script: other.py?'
    """
    return "# " + "".join(char if char.isprintable() else "?" for char in text)


def dump_value(value: object, source: str, path: str = "") -> str:
    r"""Write a value of a Python program on one line, as in a job file.

    Raises:
        SpecError: If a job cannot contain the value.

    >>> print(dump_value({"a": [1, 2.5, True, None], "b c": "yes\t"}, "job"))
    {"a": [1, 2.5, true, null], "b c": "yes\t"}
    """
    return format_flow(_to_builtin(value, source, path, 0), quoted=True)


def _to_builtin(value: Any, source: str, path: str, depth: int) -> Any:
    """Convert a value to built-in types.

    Raises:
        SpecError: If a job cannot contain the value.
    """
    if depth > MAX_DEPTH:
        raise _build_error(source, path[:60], f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        result = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                raise _build_error(
                    source, join_path(path, str(key)), f"a key must be text; got {key!r}"
                )
            _check_text(key, source, path)
            result[key] = _to_builtin(inner, source, join_path(path, key), depth + 1)
        return result
    if isinstance(value, (list, tuple)):
        return [_to_builtin(x, source, join_path(path, i), depth + 1) for i, x in enumerate(value)]
    if hasattr(value, "__fspath__"):
        value = value.__fspath__()
    if isinstance(value, str):
        return _check_text(value, source, path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):  # includes numpy's integers
        return int(value)
    if isinstance(value, Real):
        return float(value)
    kind = type(value).__name__
    fix = "; a set has no order: give a list" if isinstance(value, (set, frozenset)) else ""
    raise _build_error(source, path, f"a {kind} cannot be part of a job{fix}")


def _check_text(text: str, source: str, path: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise _build_error(source, path, f"{text!a}: not UTF-8")
    return str(text)


def _build_error(source: str, path: str, message: str) -> SpecError:
    return SpecError([Problem(path, message, source)])


# ---- Editing single values -----------------------------------------------------------------------


_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Path = Sequence[str]


class CannotEdit(Exception):
    """The text cannot be edited value by value."""


def set_value(text: str, path: Path, value: Any) -> str:
    """Set the value under a path of keys, and create missing parents.

    >>> set_value("a: {b: 1}  # why\\n", ["a", "b"], 2), set_value(
    ...     "a:\\n  b: 1 # x\\n", ["a", "c"], "d")
    ('a: {b: 2}  # why\\n', 'a:\\n  b: 1 # x\\n  c: d\\n')
    """
    node, depth = _follow_path(text, path)
    if node is None:
        ended = text if not text or text.endswith("\n") else f"{text}\n"
        return ended + "\n".join(_format_block_entry(path[0], _nest(path[1:], value), 0)) + "\n"
    is_empty = isinstance(node, yaml.ScalarNode) and not node.style and node.value == ""
    if depth == len(path) or is_empty:
        return _replace_value(text, node, _nest(path[depth:], value))
    if not isinstance(node, yaml.MappingNode):
        raise CannotEdit(f"{'.'.join(path[:depth])}: not a map")
    return _insert_entry(text, node, path[depth], _nest(path[depth + 1 :], value))


def remove_value(text: str, path: Path) -> str:
    """Remove an entry with the comment on its line.

    >>> remove_value("a: {b: 1, c: 2}\\n", ["a", "b"]), remove_value(
    ...     "a:\\n  b: 1 # x\\n  c: 2\\n", ["a", "b"])
    ('a: {c: 2}\\n', 'a:\\n  c: 2\\n')
    """
    parent, index = _find_entry(text, path)
    key, value = parent.value[index]
    if parent.flow_style:
        if index + 1 < len(parent.value):
            return (
                text[: key.start_mark.index] + text[parent.value[index + 1][0].start_mark.index :]
            )
        start = parent.value[index - 1][1].end_mark.index if index else key.start_mark.index
        return text[:start] + text[value.end_mark.index :]
    if len(parent.value) == 1:
        raise CannotEdit(f"{'.'.join(path)}: nothing else is there")
    start, end = _find_entry_lines(text, key, value)
    return text[:start] + text[end:]


def comment_out_value(text: str, path: Path, why: str) -> str:
    """Comment out an entry's lines below a line with the reason; remove it in flow style."""
    parent, index = _find_entry(text, path)
    if parent.flow_style or len(parent.value) == 1:
        return remove_value(text, path)
    start, end = _find_entry_lines(text, *parent.value[index])
    lines = text[start:end].splitlines(keepends=True)
    indent = re.match(" *", lines[0])
    pad = indent[0] if indent else ""
    newline = "\r\n" if lines[0].endswith("\r\n") else "\n"
    shown = [f"{pad}# {line.removeprefix(pad)}" if line.strip() else line for line in lines]
    return text[:start] + f"{pad}# {why}{newline}" + "".join(shown) + text[end:]


# ---- Locating values ---------------------------------------------------------------------------


def _follow_path(text: str, path: Path) -> tuple[yaml.Node | None, int]:
    """Follow a path as far as it exists; return the last node and the number of keys followed."""
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise CannotEdit(str(error)) from error
    for depth, key in enumerate(path):
        index = _find_entry_index(node, key)
        if node is None or index is None:
            return node, depth
        node = node.value[index][1]
    return node, len(path)


def _find_entry_index(node: yaml.Node | None, key: str) -> int | None:
    entries = node.value if isinstance(node, yaml.MappingNode) else []
    return next((index for index, (name, _) in enumerate(entries) if name.value == key), None)


def _find_entry(text: str, path: Path) -> tuple[yaml.MappingNode, int]:
    parent, depth = _follow_path(text, path[:-1])
    index = _find_entry_index(parent, path[-1])
    if depth < len(path) - 1 or index is None or not isinstance(parent, yaml.MappingNode):
        raise CannotEdit(f"{'.'.join(path)}: not there")
    return parent, index


def _find_end(node: yaml.Node) -> int:
    """Return the end of a node's text; a block collection ends with its last value."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        key, value = node.value[-1]
        return max(int(key.end_mark.index) + 1, _find_end(value))
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _find_end(node.value[-1])
    return int(node.end_mark.index)


def _find_entry_lines(text: str, key: yaml.Node, value: yaml.Node) -> tuple[int, int]:
    """Return the span of the lines of an entry of a block map.

    Raises:
        CannotEdit: If another entry shares a line.
    """
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    if text[start : key.start_mark.index].strip():
        raise CannotEdit("other text precedes the key")
    tail = max(_find_end(value), key.end_mark.index)
    return start, _find_next_line(text, tail)


def _find_next_line(text: str, index: int) -> int:
    """Return the start of the line after the character before ``index``."""
    found = text.find("\n", max(index - 1, 0))
    return len(text) if found < 0 else found + 1


def _nest(path: Path, value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


# ---- Splicing ----------------------------------------------------------------------------------


def _replace_value(text: str, node: yaml.Node, value: Any) -> str:
    start, end = node.start_mark.index, _find_end(node)
    before = " " if start and text[start - 1] == ":" else ""
    return text[:start] + before + format_flow(value) + text[end:]


def _insert_entry(text: str, parent: yaml.MappingNode, key: str, value: Any) -> str:
    if parent.flow_style:
        entry = f"{format_flow(key)}: {format_flow(value)}"
        if not parent.value:
            return f"{text[: parent.start_mark.index]}{{{entry}}}{text[parent.end_mark.index :]}"
        at = parent.value[-1][1].end_mark.index
        return f"{text[:at]}, {entry}{text[at:]}"
    first = parent.value[0][0].start_mark
    last_key, last_value = parent.value[-1]
    at = _find_next_line(text, max(_find_end(last_value), last_key.end_mark.index + 1))
    newline = "\r\n" if "\r\n" in text else "\n"
    start = "" if at == 0 or text[at - 1] == "\n" else newline
    lines = _format_block_entry(key, value, first.column)
    return text[:at] + start + "".join(f"{line}{newline}" for line in lines) + text[at:]


def _format_block_entry(key: str, value: Any, indent: int) -> list[str]:
    pad = " " * indent
    if isinstance(value, Mapping) and value and len(format_flow(value)) > 40:
        inner = [
            line
            for name, below in value.items()
            for line in _format_block_entry(name, below, indent + 2)
        ]
        return [f"{pad}{format_flow(key)}:", *inner]
    return [f"{pad}{format_flow(key)}: {format_flow(value)}"]
