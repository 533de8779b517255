"""Text to JobSpec and Cluster: layers of files and ``--set``, all problems reported at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce

import msgspec.inspect as mi
from msgspec import Struct, structs

from hpcrun.errors import InputError, Problem, SpecError
from hpcrun.spec import rules
from hpcrun.spec.check import (
    child_type,
    convert,
    explain_scalar_path,
    shape,
    shown,
    unknown_key,
    unwrap,
)
from hpcrun.spec.job import Cluster, JobSpec
from hpcrun.spec.yaml12 import (
    MAX_DEPTH,
    Node,
    depth_of,
    is_null,
    join,
    parse_document,
    parse_value,
)

SOURCE = "--set"

_SEGMENT = r'(?:"[^"]+"|[^".=\[\]\s]+)'
_ASSIGNMENT = re.compile(rf"\s*({_SEGMENT}(?:\.{_SEGMENT})*)\s*=(.*)", re.DOTALL)

MAX_CHAIN = 16
# In args: the arguments of the job that this one extends.
BASE_ARGS = "{args}"

# Finds the job that a name stands for: its text, and what to call its file in messages.
Resolve = Callable[[str], tuple[str, str]]


def load_job(text: str, *, source: str, resolve: Resolve, overrides: Sequence[str] = ()) -> JobSpec:
    """Read a job: the files that it extends, then it, then ``--set``. Raises SpecError.

    >>> def nothing(name): raise InputError("none")
    >>> load_job("script: a.py", source="j.yaml", resolve=nothing, overrides=["name=x"]).name
    'x'
    """
    problems: list[Problem] = []
    return _build_job(_read_layers(text, source, resolve, problems), source, overrides, problems)


def command_job(overrides: Sequence[str] = ()) -> JobSpec:
    """Make the job of a bare command, without GPUs unless ``--set`` has some. Raises SpecError.

    >>> command_job().resources.gpus_per_node
    0
    """
    layer = parse_document("resources: {gpus_per_node: 0}", "command", [])
    return _build_job([layer], "command", overrides, [])


def _build_job(
    layers: Sequence[Node], source: str, overrides: Sequence[str], problems: list[Problem]
) -> JobSpec:
    tree = Node({}, source, 1)
    for layer in reversed(layers):
        rules.check_one_program(layer, problems)
        tree = _merge_job(tree, layer)
    layer = _build_layer(overrides, tree, problems)
    rules.check_one_program(layer, problems)
    tree = _merge_job(tree, layer)
    spec = rules.infer_framework(convert(JobSpec, tree, problems))
    rules.check_names(tree, problems, job=True)
    rules.check_log_patterns(tree, problems)
    rules.check_nodes(spec, tree, problems)
    rules.check_deepspeed(spec, tree, problems)
    rules.check_no_deepspeed(spec, [layer, *layers], problems)
    _raise(problems)
    return spec


def load_cluster(text: str, *, source: str) -> Cluster:
    """Read a cluster profile. Raises SpecError with every problem.

    >>> load_cluster("account: 012345", source="hpcrun.yaml").account
    '012345'
    """
    problems: list[Problem] = []
    tree = Node({}, source, 1)
    try:
        tree = parse_document(text, source, problems)
    except SpecError as error:
        problems.extend(error.problems)
    cluster = convert(Cluster, tree, problems)
    rules.check_names(tree, problems, job=False)
    _raise(problems)
    return cluster


def _merge_layer(base: Node, over: Node, *, keep_nulls: bool = False, in_env: bool = False) -> Node:
    """Lay one tree over another: maps merge, a null removes, everything else replaces.

    A null over nothing stays, as all do with ``keep_nulls``; the types decide what it means. In
    ``env`` a written null stays too: it unsets a variable.
    """
    entries = dict(base.entries)
    for key, above in over.entries.items():
        below = entries.get(key)
        unsets = in_env and bool(above.value)
        if below is not None and is_null(above) and not (keep_nulls or unsets):
            del entries[key]
        elif below is not None and isinstance(below.value, dict) and isinstance(above.value, dict):
            entries[key] = _merge_layer(below, above, keep_nulls=keep_nulls, in_env=key == "env")
        else:
            entries[key] = above
    return structs.replace(over, value=entries)


def _merge_job(base: Node, over: Node) -> Node:
    """Lay one job over another: its program displaces the program below, and its arguments.

    ``{args}`` in its own ``args`` stands for those below, once: a chain of files cannot multiply
    them.
    """
    named = rules.list_programs(over)
    taken = [key for key in rules.list_programs(base) if key in over.entries]
    if named or taken:
        gone = {*rules.PROGRAMS, "args"}
        base = structs.replace(base, value={k: v for k, v in base.entries.items() if k not in gone})
    merged = _merge_layer(base, over)
    above, below = over.entries.get("args"), base.entries.get("args")
    if above is None or below is None or not isinstance(below.value, list):
        return merged
    at = next((i for i, item in enumerate(above.items) if item.text == BASE_ARGS), None)
    if at is None:
        return merged
    args = [*above.items[:at], *below.items, *above.items[at + 1 :]]
    entries = {**merged.entries, "args": structs.replace(above, value=args)}
    return structs.replace(merged, value=entries)


def _read_layers(text: str, source: str, resolve: Resolve, problems: list[Problem]) -> list[Node]:
    """Read the file and those that it extends, nearest first, as far as they can be read."""
    layers: list[Node] = []
    sources = [source]
    while True:
        try:
            layer = parse_document(text, source, problems)
        except SpecError as error:
            problems.extend(error.problems)
            return layers
        extends = layer.entries.get("extends")
        rest = {key: node for key, node in layer.entries.items() if key != "extends"}
        layers.append(structs.replace(layer, value=rest))
        if extends is None or is_null(extends):
            return layers
        try:
            if not extends.text.strip() or "\0" in extends.text:
                raise InputError(f"expected the name of a job; got {shown(extends)}")
            text, source = resolve(extends.text)
            if source in sources:
                raise InputError(f"a circle: {' -> '.join([*sources, source])}")
            if len(sources) == MAX_CHAIN:
                raise InputError(f"more than {MAX_CHAIN} files: {' -> '.join(sources)}")
        except SpecError as error:
            problems.extend(error.problems)
            return layers
        except InputError as error:
            message = "; ".join(part for part in (error.message, error.fix) if part)
            problems.append(extends.problem("extends", message))
            return layers
        sources.append(source)


def _raise(problems: list[Problem]) -> None:
    """Raise the problems, if any: by file, --set last, and by line within a file."""
    if not problems:
        return
    order = {problem.source: index for index, problem in reversed(list(enumerate(problems)))}
    raise SpecError(
        sorted(problems, key=lambda p: (p.source == SOURCE, order[p.source], p.line or 0))
    )


# ---- Values given without a file ----------------------------------------------------------------


def _build_layer(overrides: Sequence[str], below: Node, problems: list[Problem]) -> Node:
    """Read all overrides into one tree, the later over the earlier; nulls stay in it.

    >>> layer = _build_layer(["name=x", "name=y"], Node({}, ""), [])
    >>> layer.entries["name"].text
    'y'
    """
    layer = Node({}, SOURCE)
    for override in overrides:
        match = _ASSIGNMENT.fullmatch(override)
        if match is None:
            message = "expected KEY=VALUE, as in resources.nodes=2"
            if re.match(r"[^=\"]*\[[^=]*=", override):
                message = "a list is given as a whole, as in args=[a, b]"
            problems.append(layer.problem(_cut(override), message))
            continue
        keys = [segment.strip('"') for segment in re.findall(_SEGMENT, match.group(1))]
        path = reduce(join, keys, "")
        wrong = _explain_wrong_path(keys) or _explain_scalar_between(keys, (layer, below))
        if wrong:
            problems.append(layer.problem(path, wrong))
            continue
        try:
            value = parse_value(match.group(2), SOURCE, path, problems)
        except SpecError as error:
            problems.extend(error.problems)
            continue
        if len(keys) + depth_of(value) > MAX_DEPTH:
            message = f"nested deeper than {MAX_DEPTH} levels"
            problems.append(layer.problem(_cut(path), message))
            continue
        for key in reversed(keys):
            value = Node({key: value}, SOURCE)
        layer = _merge_layer(layer, value, keep_nulls=True)
    return layer


def _cut(text: str) -> str:
    return text if len(text) <= 60 and text.isprintable() else f"{text[:60]!a}..."


def _explain_wrong_path(keys: Sequence[str]) -> str | None:
    if keys[0] == "extends":
        return "only a file can extend a job; --set gives values"
    root = shape(JobSpec)
    of: mi.Type = root
    path = ""
    for key in keys:
        above, _ = unwrap(of)
        child = child_type(above, key)
        if child is None:
            if isinstance(above, mi.StructType):
                return unknown_key(root, above, key)
            return explain_scalar_path(above, path)
        of, path = child, join(path, key)
    return None


def _explain_scalar_between(keys: Sequence[str], trees: Sequence[Node]) -> str | None:
    """Refuse to turn a value into a map behind the user's back."""
    for node in trees:
        for depth, key in enumerate(keys[:-1], 1):
            inner = node.entries.get(key)
            if inner is None or is_null(inner):
                break
            node = inner
            if not isinstance(node.value, dict):
                place = f"{node.source}:{node.line}".removesuffix(":None")
                path = reduce(join, keys[:depth], "")
                return f"{path} is {shown(node)} ({place}); set {path} as a whole"
    return None


# ---- Problems that are found later --------------------------------------------------------------


class Origin(Struct, frozen=True):
    """What a job is called in messages, its file as a rule, and how --set changed it."""

    name: str = ""
    overrides: tuple[str, ...] = ()

    def blame(self, problem: Problem) -> None:
        """Add to a problem where it is, and that it is about a value of --set.

        >>> problem = Problem("precision", "no")
        >>> Origin("x.yaml", ("precision=bf16",)).blame(problem)
        >>> print(problem)
        --set: precision: no
        """
        for override in self.overrides:
            key, _, value = override.partition("=")
            key = key.strip()
            if not problem.source and re.match(rf"{re.escape(key)}(?![^.\[])", problem.path):
                problem.source = SOURCE
            elif problem.source != SOURCE and _is_about(problem.message, key, value.strip()):
                problem.message += f" ({SOURCE} {key})"
        problem.source = problem.source or self.name


def _is_about(message: str, key: str, value: str) -> bool:
    """Return whether a message is about a key; one without a dot may be a word like others."""
    parts = [key] if "." in key else [key, value]
    named = all(re.search(rf"(?<![\w.]){re.escape(part)}(?![\w.])", message) for part in parts)
    return named and f"({SOURCE} {key})" not in message
