"""Jobs and values as YAML that yaml12 reads back as they are; and single values changed in a text.

An edited text is parsed for the places of its values alone; a change is one splice. What stands
around it stays: comments, order, quotes, flow and block style.
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
from hpcrun.spec.yaml12 import MAX_DEPTH, join

# Text that every YAML reader takes for text: a letter first, and nothing that has a meaning.
_PLAIN = r"-{0,2}[A-Za-z_/$~](?:[A-Za-z0-9_/.+@%$-]| (?=[A-Za-z0-9_/]))*"
_OTHER_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "~"}


class _Dumper(yaml.SafeDumper):
    """Quotes all text that YAML 1.1 or 1.2 could take for anything else."""

    quotes_all = False

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value out wherever it stands."""
        return True

    def text(self, data: str) -> yaml.Node:
        """Write text plain, as a block of lines, or in double quotes."""
        lines = data.removesuffix("\n").split("\n")
        is_block = all(x and x == x.strip() and x.isascii() and x.isprintable() for x in lines)
        is_plain = re.fullmatch(_PLAIN, data) and data.lower() not in _OTHER_WORDS
        style = None if is_plain else "|" if is_block and len(lines) > 1 else '"'
        style = '"' if self.quotes_all else style
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    def struct(self, data: Struct) -> yaml.Node:
        kind = type(data)
        # All that can be left out has its default here; the rest equals nothing.
        required = kind.__struct_fields__[: -len(kind.__struct_defaults__) or None]
        default = kind(**dict.fromkeys(required, NODEFAULT))
        names = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
        values = [(key, getattr(data, name), getattr(default, name)) for key, name in names]
        return self.represent_dict({key: value for key, value, usual in values if value != usual})


_Dumper.add_multi_representer(Struct, _Dumper.struct)
_Dumper.add_representer(str, _Dumper.text)


class _Quoter(_Dumper):
    """Quotes all text, so that a message shows where a value begins and ends."""

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
    """Write a job so that load_job reads an equal one; its source needs nothing else.

    >>> print(dump_job(JobSpec(script="a.py", args=["--lr", "1e-4"])), end="")
    script: a.py
    args:
    - --lr
    - "1e-4"
    """
    return _dump(spec)


def flow(value: object, *, quoted: bool = False) -> str:
    """Write a value of Python's own types on one line; ``quoted``: all text is in quotes.

    >>> print(flow({"a100": 4, "time": "1:00:00", "b": [True, "no", "~", "$TMPDIR"]}))
    {a100: 4, time: "1:00:00", b: [true, "no", "~", $TMPDIR]}
    """
    # In a list, so that a value alone has no document's end behind it.
    return _dump([value], _Quoter if quoted else _Dumper, flow=True).strip()[1:-1]


def comment_line(text: str) -> str:
    r"""Write text as one comment line: no character in it can end the line.

    >>> comment_line("--lr\u2028script: other.py\n")
    '# --lr?script: other.py?'
    """
    return "# " + "".join(char if char.isprintable() else "?" for char in text)


def dump_value(value: object, source: str, path: str = "") -> str:
    r"""Write a program's own value on one line, as it stands in a job. Raises SpecError for others.

    >>> print(dump_value({"a": [1, 2.5, True, None], "b c": "yes\t"}, "job"))
    {"a": [1, 2.5, true, null], "b c": "yes\t"}
    """
    return flow(_plain(value, source, path, 0), quoted=True)


def _plain(value: Any, source: str, path: str, depth: int) -> Any:
    """Return a value as one of Python's own types. Raises SpecError."""
    if depth > MAX_DEPTH:
        raise _problem(source, path[:60], f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        result = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                raise _problem(source, join(path, str(key)), f"a key must be text; got {key!r}")
            _check_text(key, source, path)
            result[key] = _plain(inner, source, join(path, key), depth + 1)
        return result
    if isinstance(value, (list, tuple)):
        return [_plain(x, source, join(path, i), depth + 1) for i, x in enumerate(value)]
    if hasattr(value, "__fspath__"):
        value = value.__fspath__()
    if isinstance(value, str):
        return _check_text(value, source, path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):  # numpy's are too
        return int(value)
    if isinstance(value, Real):
        return float(value)
    kind = type(value).__name__
    fix = "; a set has no order: give a list" if isinstance(value, (set, frozenset)) else ""
    raise _problem(source, path, f"a {kind} cannot be part of a job{fix}")


def _check_text(text: str, source: str, path: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise _problem(source, path, f"{text!a}: not UTF-8")
    return str(text)


def _problem(source: str, path: str, message: str) -> SpecError:
    return SpecError([Problem(path, message, source)])


# ---- single values changed -----------------------------------------------------------------------


_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Path = Sequence[str]


class CannotEdit(Exception):
    """The text is written in a way that cannot be changed value by value."""


def put(text: str, path: Path, value: Any) -> str:
    """Set the value under a path of keys; its parents must be there, or be put too.

    >>> put("a: {b: 1}  # why\\n", ["a", "b"], 2), put("a:\\n  b: 1 # x\\n", ["a", "c"], "d")
    ('a: {b: 2}  # why\\n', 'a:\\n  b: 1 # x\\n  c: d\\n')
    """
    node, depth = _descend(text, path)
    if node is None:
        ended = text if not text or text.endswith("\n") else f"{text}\n"
        return ended + "\n".join(_block_entry(path[0], _nested(path[1:], value), 0)) + "\n"
    is_empty = isinstance(node, yaml.ScalarNode) and not node.style and node.value == ""
    if depth == len(path) or is_empty:
        return _replace(text, node, _nested(path[depth:], value))
    if not isinstance(node, yaml.MappingNode):
        raise CannotEdit(f"{'.'.join(path[:depth])}: not a map")
    return _insert(text, node, path[depth], _nested(path[depth + 1 :], value))


def drop(text: str, path: Path) -> str:
    """Take an entry out, with the comment behind it.

    >>> drop("a: {b: 1, c: 2}\\n", ["a", "b"]), drop("a:\\n  b: 1 # x\\n  c: 2\\n", ["a", "b"])
    ('a: {c: 2}\\n', 'a:\\n  c: 2\\n')
    """
    parent, index = _find(text, path)
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
    start, end = _lines(text, key, value)
    return text[:start] + text[end:]


def comment_out(text: str, path: Path, why: str) -> str:
    """Make a comment of an entry's lines, under a line that says why; in flow style drop it."""
    parent, index = _find(text, path)
    if parent.flow_style or len(parent.value) == 1:
        return drop(text, path)
    start, end = _lines(text, *parent.value[index])
    lines = text[start:end].splitlines(keepends=True)
    indent = re.match(" *", lines[0])
    pad = indent[0] if indent else ""
    newline = "\r\n" if lines[0].endswith("\r\n") else "\n"
    shown = [f"{pad}# {line.removeprefix(pad)}" if line.strip() else line for line in lines]
    return text[:start] + f"{pad}# {why}{newline}" + "".join(shown) + text[end:]


# ---- places ------------------------------------------------------------------------------------


def _descend(text: str, path: Path) -> tuple[yaml.Node | None, int]:
    """Follow a path as far as it is there: the node that it leads to, and how many keys it took."""
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise CannotEdit(str(error)) from error
    for depth, key in enumerate(path):
        index = _index(node, key)
        if node is None or index is None:
            return node, depth
        node = node.value[index][1]
    return node, len(path)


def _index(node: yaml.Node | None, key: str) -> int | None:
    entries = node.value if isinstance(node, yaml.MappingNode) else []
    return next((index for index, (name, _) in enumerate(entries) if name.value == key), None)


def _find(text: str, path: Path) -> tuple[yaml.MappingNode, int]:
    parent, depth = _descend(text, path[:-1])
    index = _index(parent, path[-1])
    if depth < len(path) - 1 or index is None or not isinstance(parent, yaml.MappingNode):
        raise CannotEdit(f"{'.'.join(path)}: not there")
    return parent, index


def _tail(node: yaml.Node) -> int:
    """Where a node's text ends; that of a block collection ends with its last value's."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        key, value = node.value[-1]
        return max(int(key.end_mark.index) + 1, _tail(value))
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return _tail(node.value[-1])
    return int(node.end_mark.index)


def _lines(text: str, key: yaml.Node, value: yaml.Node) -> tuple[int, int]:
    """The whole lines of an entry of a block map. Raises CannotEdit where others share them."""
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    if text[start : key.start_mark.index].strip():
        raise CannotEdit("other text precedes the key")
    tail = max(_tail(value), key.end_mark.index)
    return start, _line_end(text, tail)


def _line_end(text: str, index: int) -> int:
    """The start of the line after the one that has the character before ``index``."""
    found = text.find("\n", max(index - 1, 0))
    return len(text) if found < 0 else found + 1


def _nested(path: Path, value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


# ---- splices -----------------------------------------------------------------------------------


def _replace(text: str, node: yaml.Node, value: Any) -> str:
    start, end = node.start_mark.index, _tail(node)
    before = " " if start and text[start - 1] == ":" else ""
    return text[:start] + before + flow(value) + text[end:]


def _insert(text: str, parent: yaml.MappingNode, key: str, value: Any) -> str:
    if parent.flow_style:
        entry = f"{flow(key)}: {flow(value)}"
        if not parent.value:
            return f"{text[: parent.start_mark.index]}{{{entry}}}{text[parent.end_mark.index :]}"
        at = parent.value[-1][1].end_mark.index
        return f"{text[:at]}, {entry}{text[at:]}"
    first = parent.value[0][0].start_mark
    last_key, last_value = parent.value[-1]
    at = _line_end(text, max(_tail(last_value), last_key.end_mark.index + 1))
    newline = "\r\n" if "\r\n" in text else "\n"
    start = "" if at == 0 or text[at - 1] == "\n" else newline
    lines = _block_entry(key, value, first.column)
    return text[:at] + start + "".join(f"{line}{newline}" for line in lines) + text[at:]


def _block_entry(key: str, value: Any, indent: int) -> list[str]:
    pad = " " * indent
    if isinstance(value, Mapping) and value and len(flow(value)) > 40:
        inner = [
            line for name, below in value.items() for line in _block_entry(name, below, indent + 2)
        ]
        return [f"{pad}{flow(key)}:", *inner]
    return [f"{pad}{flow(key)}: {flow(value)}"]
