"""Jobs and values as YAML that the reader of yaml12 reads back as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
        """Write what of a struct is not its default."""
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

    ``spec`` is one that load_job can give: NUL characters, say, can be written but not read.

    >>> print(dump_job(JobSpec(script="a.py", args=["--lr", "1e-4"])), end="")
    script: a.py
    args:
    - --lr
    - "1e-4"
    """
    return _dump(spec)


def flow(value: object, *, quoted: bool = False) -> str:
    """Write a value of Python's own types on one line, so that every reader reads it back.

    ``quoted``: all text is in quotes, not only what could be something else.

    >>> print(flow({"a100": 4, "time": "1:00:00", "b": [True, "no", "~", "$TMPDIR"]}))
    {a100: 4, time: "1:00:00", b: [true, "no", "~", $TMPDIR]}
    """
    # In a list, so that a value alone has no document's end behind it.
    return _dump([value], _Quoter if quoted else _Dumper, flow=True).strip()[1:-1]


def yaml_of(value: object, source: str, path: str = "") -> str:
    r"""Write a program's own value on one line, as it stands in a job.

    Mappings, lists, tuples, texts, numbers, booleans, None, and paths as their text. Raises
    SpecError naming the place (``source``, ``path``) of anything else.

    >>> print(yaml_of({"a": [1, 2.5, True, None], "b c": "yes\t"}, "job"))
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
    raise _problem(source, path, f"a {kind} cannot stand in a job{fix}")


def _check_text(text: str, source: str, path: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise _problem(source, path, f"{text!a}: not UTF-8")
    return str(text)


def _problem(source: str, path: str, message: str) -> SpecError:
    return SpecError([Problem(path, message, source)])
