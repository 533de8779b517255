"""Text to JobSpec and Cluster: layers of files and ``--set``, all problems reported at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpcrun.errors import InputError, Problem, SpecError
from hpcrun.spec.check import convert, shape, shown
from hpcrun.spec.cluster import Cluster
from hpcrun.spec.job import JobSpec, Resources
from hpcrun.spec.overrides import SOURCE, build_layer
from hpcrun.spec.rules import (
    PROGRAMS,
    check_deepspeed,
    check_log_patterns,
    check_names,
    check_one_program,
    named_programs,
    settle_framework,
)
from hpcrun.spec.yaml12 import Entry, List, Map, Place, Scalar, is_null, parse_document

MAX_CHAIN = 16
# In args: the words of the job under this one.
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
    """Make the job of a bare command, which has no GPUs unless ``--set`` says so.

    It reads no YAML but that of ``--set``. Raises SpecError.

    >>> command_job().resources.gpus_per_node
    0
    """
    if not overrides:
        return settle_framework(JobSpec(resources=Resources(gpus_per_node=0)))
    place = Place("command", 1)
    gpus = Map({"gpus_per_node": Entry(Scalar("0", True, place), place)}, place)
    layer = Map({"resources": Entry(gpus, place)}, place)
    return _build_job([layer], "command", overrides, [])


def _build_job(
    layers: Sequence[Map], source: str, overrides: Sequence[str], problems: list[Problem]
) -> JobSpec:
    tree = Map({}, Place(source, 1))
    for layer in reversed(layers):
        check_one_program(layer, problems)
        tree = put_job_on(tree, layer)
    layer = build_layer(overrides, shape(JobSpec), tree, problems)
    check_one_program(layer, problems)
    tree = put_job_on(tree, layer)
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
    tree = put_on(tree, build_layer(overrides, shape(Cluster), tree, problems))
    cluster = convert(Cluster, tree, problems)
    check_names(tree, problems, job=False)
    _raise(problems)
    return cluster


def put_on(base: Map, over: Map) -> Map:
    """Lay one tree over another: maps merge, a null takes away, everything else replaces.

    A null over nothing stays, for the types to judge: not given, a JSON null, or a mistake.
    """
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        below = entries.get(key)
        if below is None:
            entries[key] = entry
        elif is_null(entry.value):
            del entries[key]
        elif isinstance(below.value, Map) and isinstance(entry.value, Map):
            entries[key] = Entry(put_on(below.value, entry.value), entry.place)
        else:
            entries[key] = entry
    return Map(entries, over.place)


def put_job_on(base: Map, over: Map) -> Map:
    """Lay one job over another: its program displaces the program below, and its arguments.

    Where its own ``args`` hold the word ``{args}``, those below stand in that place.
    """
    named = named_programs(over)
    taken = [key for key in named_programs(base) if key in over.entries]
    if named or taken:
        gone = {*PROGRAMS, "args"}
        base = Map({k: v for k, v in base.entries.items() if k not in gone}, base.place)
    merged = put_on(base, over)
    above, below = over.entries.get("args"), base.entries.get("args")
    if above is None or below is None:
        return merged
    if not isinstance(above.value, List) or not isinstance(below.value, List):
        return merged
    words = Entry(_around(below.value, above.value), above.place)
    return Map({**merged.entries, "args": words}, merged.place)


def _around(below: List, above: List) -> List:
    """Put the words below into the list above, once: a chain of files cannot multiply them."""
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
            text, source = _resolve(extends, resolve)
            if source in sources:
                raise InputError(f"a circle: {' -> '.join([*sources, source])}")
            if len(sources) == MAX_CHAIN:
                raise InputError(f"more than {MAX_CHAIN} files: {' -> '.join(sources)}")
        except SpecError as error:
            problems.extend(error.problems)
            return layers
        except InputError as error:
            message = "; ".join(part for part in (error.message, error.fix) if part)
            place = extends.place
            problems.append(Problem(place.source, place.line, "extends", message))
            return layers
        sources.append(source)


def _resolve(extends: Entry, resolve: Resolve) -> tuple[str, str]:
    name = extends.value
    if not isinstance(name, Scalar) or not name.text.strip() or "\0" in name.text:
        raise InputError(f"expected the name of a job; got {shown(name)}")
    return resolve(name.text)


def _raise(problems: list[Problem]) -> None:
    """Raise what there is, if any: by file, --set last, and by line within a file."""
    if not problems:
        return
    order = {problem.source: index for index, problem in reversed(list(enumerate(problems)))}
    raise SpecError(
        sorted(problems, key=lambda p: (p.source == SOURCE, order[p.source], p.line or 0))
    )
