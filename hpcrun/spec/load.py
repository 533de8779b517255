"""Text to JobSpec and Cluster: layers of files and ``--set``, all problems reported at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce

import msgspec.inspect as mi
from msgspec import Struct

from hpcrun.errors import InputError, Problem, SpecError
from hpcrun.spec.check import child_type, convert, no_keys, shape, shown, unknown_key, unwrap
from hpcrun.spec.cluster import Cluster
from hpcrun.spec.job import JobSpec
from hpcrun.spec.rules import (
    PROGRAMS,
    check_deepspeed,
    check_log_patterns,
    check_names,
    check_one_program,
    named_programs,
    settle_framework,
)
from hpcrun.spec.yaml12 import (
    MAX_DEPTH,
    Entry,
    List,
    Map,
    Node,
    Place,
    Scalar,
    depth_of,
    is_null,
    join,
    parse_document,
    parse_value,
)

SOURCE = "--set"

_PLACE = Place(SOURCE)
_SEGMENT = r'(?:"[^"]+"|[^".=\[\]\s]+)'
_ASSIGNMENT = re.compile(rf"\s*({_SEGMENT}(?:\.{_SEGMENT})*)\s*=(.*)", re.DOTALL)

MAX_CHAIN = 16
# In args: the arguments of the job that this one extends.
BASE_ARGS = "{args}"

# Finds the job that a name stands for: its text, and what to call its file in messages.
Resolve = Callable[[str], tuple[str, str]]


def load_job(text: str, *, source: str, resolve: Resolve, overrides: Sequence[str] = ()) -> JobSpec:
    """Read a job: the files that it extends, then it, then ``--set``, each over the one before.

    ``resolve`` raises InputError for a name that it does not know. Raises SpecError with every
    problem of every layer.

    >>> def nothing(name): raise InputError("none")
    >>> load_job("script: a.py", source="j.yaml", resolve=nothing, overrides=["name=x"]).name
    'x'
    """
    problems: list[Problem] = []
    return _build_job(_chain(text, source, resolve, problems), source, overrides, problems)


def command_job(overrides: Sequence[str] = ()) -> JobSpec:
    """Make the job of a bare command, which has no GPUs unless ``--set`` asks for some.

    Raises SpecError.

    >>> command_job().resources.gpus_per_node
    0
    """
    layer = parse_document("resources: {gpus_per_node: 0}", "command", [])
    return _build_job([layer], "command", overrides, [])


def _build_job(
    layers: Sequence[Map], source: str, overrides: Sequence[str], problems: list[Problem]
) -> JobSpec:
    tree = Map({}, Place(source, 1))
    for layer in reversed(layers):
        check_one_program(layer, problems)
        tree = _put_job_on(tree, layer)
    layer = _build_layer(overrides, shape(JobSpec), tree, problems)
    check_one_program(layer, problems)
    tree = _put_job_on(tree, layer)
    spec = settle_framework(convert(JobSpec, tree, problems))
    check_names(tree, problems, job=True)
    check_log_patterns(tree, problems)
    check_deepspeed(spec, tree, problems)
    _raise(problems)
    return spec


def load_cluster(text: str, *, source: str, overrides: Sequence[str] = ()) -> Cluster:
    """Read a cluster profile, then ``--set`` over it. Raises SpecError with every problem.

    >>> load_cluster("account: 012345", source="hpcrun.yaml").account
    '012345'
    """
    problems: list[Problem] = []
    tree = Map({}, Place(source, 1))
    try:
        tree = parse_document(text, source, problems)
    except SpecError as error:
        problems.extend(error.problems)
    tree = _put_on(tree, _build_layer(overrides, shape(Cluster), tree, problems))
    cluster = convert(Cluster, tree, problems)
    check_names(tree, problems, job=False)
    _raise(problems)
    return cluster


def _put_on(base: Map, over: Map) -> Map:
    """Lay one tree over another: maps merge, a null removes, everything else replaces.

    A null over nothing stays; the types decide: not given, a JSON null, or a mistake.
    """
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        below = entries.get(key)
        if below is None:
            entries[key] = entry
        elif is_null(entry.value):
            del entries[key]
        elif isinstance(below.value, Map) and isinstance(entry.value, Map):
            entries[key] = Entry(_put_on(below.value, entry.value), entry.place)
        else:
            entries[key] = entry
    return Map(entries, over.place)


def _put_job_on(base: Map, over: Map) -> Map:
    """Lay one job over another: its program displaces the program below, and its arguments.

    Where its own ``args`` hold ``{args}``, those below stand in that place.
    """
    named = named_programs(over)
    taken = [key for key in named_programs(base) if key in over.entries]
    if named or taken:
        gone = {*PROGRAMS, "args"}
        base = Map({k: v for k, v in base.entries.items() if k not in gone}, base.place)
    merged = _put_on(base, over)
    above, below = over.entries.get("args"), base.entries.get("args")
    if above is None or below is None:
        return merged
    if not isinstance(above.value, List) or not isinstance(below.value, List):
        return merged
    args = Entry(_around(below.value, above.value), above.place)
    return Map({**merged.entries, "args": args}, merged.place)


def _around(below: List, above: List) -> List:
    """Put the arguments below among those above, once: a chain of files cannot multiply them."""
    for index, item in enumerate(above.items):
        if isinstance(item, Scalar) and item.text == BASE_ARGS:
            items = [*above.items[:index], *below.items, *above.items[index + 1 :]]
            return List(items, above.place)
    return above


def _chain(text: str, source: str, resolve: Resolve, problems: list[Problem]) -> list[Map]:
    """Read the file and those that it extends, nearest first, as far as they can be read."""
    layers: list[Map] = []
    sources = [source]
    while True:
        try:
            layer = parse_document(text, source, problems)
        except SpecError as error:
            problems.extend(error.problems)
            return layers
        extends = layer.entries.get("extends")
        rest = {key: entry for key, entry in layer.entries.items() if key != "extends"}
        layers.append(Map(rest, layer.place))
        if extends is None or is_null(extends.value):
            return layers
        try:
            name = extends.value
            if not isinstance(name, Scalar) or not name.text.strip() or "\0" in name.text:
                raise InputError(f"expected the name of a job; got {shown(name)}")
            text, source = resolve(name.text)
            if source in sources:
                raise InputError(f"a circle: {' -> '.join([*sources, source])}")
            if len(sources) == MAX_CHAIN:
                raise InputError(f"more than {MAX_CHAIN} files: {' -> '.join(sources)}")
        except SpecError as error:
            problems.extend(error.problems)
            return layers
        except InputError as error:
            message = "; ".join(part for part in (error.message, error.fix) if part)
            problems.append(extends.place.problem("extends", message))
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


def _build_layer(
    overrides: Sequence[str], root: mi.StructType, below: Map, problems: list[Problem]
) -> Map:
    """Read all overrides into one tree, the later over the earlier; nulls stay in it.

    ``below`` is the tree of the files. What is wrong is appended to ``problems`` and left out.

    >>> layer = _build_layer(["name=x", "name=y"], shape(JobSpec), Map({}, Place("")), [])
    >>> layer.entries["name"].value.text
    'y'
    """
    layer = Map({}, _PLACE)
    for override in overrides:
        match = _ASSIGNMENT.fullmatch(override)
        if match is None:
            problems.append(_PLACE.problem(_cut(override), _bad_syntax(override)))
            continue
        keys = [segment.strip('"') for segment in re.findall(_SEGMENT, match.group(1))]
        path = _path(keys)
        wrong = _wrong_path(keys, root) or _scalar_between(keys, (layer, below))
        if wrong:
            problems.append(_PLACE.problem(path, wrong))
            continue
        try:
            value = parse_value(match.group(2), SOURCE, path, problems)
        except SpecError as error:
            problems.extend(error.problems)
            continue
        if len(keys) + depth_of(value) > MAX_DEPTH:
            message = f"nested deeper than {MAX_DEPTH} levels"
            problems.append(_PLACE.problem(_cut(path), message))
            continue
        layer = _put(layer, keys, value)
    return layer


def _path(keys: Sequence[str]) -> str:
    return reduce(join, keys, "")


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
