"""Load jobs and cluster profiles from files and ``--set``, and report all problems at once."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from functools import reduce

import msgspec.inspect as mi
from msgspec import Struct, structs

from hpcrun.errors import InputError, Problem, SpecError
from hpcrun.spec import rules
from hpcrun.spec.check import (
    build_struct,
    child_type,
    describe_struct,
    explain_scalar_path,
    explain_unknown_key,
    format_node,
    unwrap,
)
from hpcrun.spec.job import Cluster, JobSpec, UserConfig
from hpcrun.spec.yaml12 import (
    MAX_DEPTH,
    Node,
    count_levels,
    is_null,
    join_path,
    parse_document,
    parse_value,
)

SOURCE = "--set"

_SEGMENT = r'(?:"[^"]+"|[^".=\[\]\s]+)'
_ASSIGNMENT = re.compile(rf"\s*({_SEGMENT}(?:\.{_SEGMENT})*)\s*=(.*)", re.DOTALL)

MAX_CHAIN = 16
# Within args, the arguments of the extended job.
BASE_ARGS = "{args}"
# Lists of arguments that can also be written as a map of options, or as in a shell.
ARGUMENT_KEYS = ("args", "launcher_args")

# Returns the text of the job with a name, and the name of its file for messages.
Resolve = Callable[[str], tuple[str, str]]


def load_job(text: str, *, source: str, resolve: Resolve, overrides: Sequence[str] = ()) -> JobSpec:
    """Load a job: the files that it extends, then the job itself, then ``--set``.

    Args:
        text: The job file.
        source: The name of the file for messages.
        resolve: Finds the file of an extended job.
        overrides: The KEY=VALUE of each ``--set``.

    Raises:
        SpecError: With all problems.

    >>> def nothing(name): raise InputError("none")
    >>> load_job("script: a.py", source="j.yaml", resolve=nothing, overrides=["name=x"]).name
    'x'
    """
    problems: list[Problem] = []
    return _build_job(_read_layers(text, source, resolve, problems), source, overrides, problems)


def command_job(overrides: Sequence[str] = ()) -> JobSpec:
    """Build the job of a bare command, which has no GPUs unless ``--set`` requests them.

    Raises:
        SpecError: With all problems of ``--set``.

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
    layer = expand_arguments(_build_layer(overrides, tree, problems), problems)
    rules.check_one_program(layer, problems)
    tree = _merge_job(tree, layer)
    spec = rules.infer_framework(build_struct(JobSpec, tree, problems))
    rules.check_names(tree, problems, job=True)
    rules.check_log_patterns(tree, problems)
    rules.check_nodes(spec, tree, problems)
    rules.check_sweep(spec, tree, problems)
    rules.check_deepspeed(spec, tree, problems)
    rules.check_no_deepspeed(spec, [layer, *layers], problems)
    rules.check_notify(spec.notify, tree, problems)
    rules.check_roles(spec, tree, problems)
    _raise_problems(problems)
    return spec


def _parse_document(text: str, source: str, problems: list[Problem]) -> Node:
    """Parse a document; return an empty one, and add the problems, if it is invalid."""
    try:
        return parse_document(text, source, problems)
    except SpecError as error:
        problems.extend(error.problems)
        return Node({}, source, 1)


def load_user_config(text: str, *, source: str) -> UserConfig:
    """Load a user's settings for all jobs.

    Raises:
        SpecError: With all problems.

    >>> load_user_config("notify: {on: [failed]}", source="config.yaml").notify.on
    ['failed']
    """
    problems: list[Problem] = []
    tree = _parse_document(text, source, problems)
    config = build_struct(UserConfig, tree, problems)
    rules.check_notify(config.notify, tree, problems)
    _raise_problems(problems)
    return config


def load_cluster(text: str, *, source: str) -> Cluster:
    """Load a cluster profile.

    Raises:
        SpecError: With all problems.

    >>> load_cluster("account: 012345", source="hpcrun.yaml").account
    '012345'
    """
    problems: list[Problem] = []
    tree = _parse_document(text, source, problems)
    cluster = build_struct(Cluster, tree, problems)
    rules.check_names(tree, problems, job=False)
    rules.check_notify(cluster.notify, tree, problems)
    _raise_problems(problems)
    return cluster


def expand_arguments(layer: Node, problems: list[Problem]) -> Node:
    """Return a layer whose arguments are lists: a map of options and a shell string become one.

    >>> text = "args: {lr: 1e-4, amp: true, sizes: [1, 2]}"
    >>> layer = expand_arguments(parse_document(text, "j.yaml", []), [])
    >>> [item.text for item in layer.entries["args"].items]
    ['--lr', '1e-4', '--amp', '--sizes', '1', '2']
    """
    entries = dict(layer.entries)
    for key in ARGUMENT_KEYS:
        node = entries.get(key)
        if node is None or is_null(node) or isinstance(node.value, list):
            continue
        try:
            if isinstance(node.value, dict):
                items = [
                    item
                    for name, value in node.entries.items()
                    for item in _expand_option(key, name, value, problems)
                ]
            else:
                words = shlex.split(node.text)
                items = [structs.replace(node, value=word, plain=False) for word in words]
        except ValueError as error:
            message = f"{error}: quote as in a shell, or write a list, as in [--lr, 1e-4]"
            problems.append(node.problem(key, message))
            items = []
        entries[key] = structs.replace(node, value=items, plain=False)
    roles = entries.get("roles")
    if roles is not None and roles.entries:
        expanded = {
            name: expand_arguments(role, problems) if isinstance(role.value, dict) else role
            for name, role in roles.entries.items()
        }
        entries["roles"] = structs.replace(roles, value=expanded)
    return structs.replace(layer, value=entries)


def _expand_option(key: str, name: str, value: Node, problems: list[Problem]) -> list[Node]:
    """Return the words of one option of a map: its name with dashes, and its values."""
    path = join_path(key, name)
    option = name if name.startswith("-") else f"--{name}"
    word = structs.replace(value, value=option, plain=False)
    is_false = value.plain and value.text in ("false", "False", "FALSE")
    if is_false or is_null(value):
        problems.append(
            value.problem(
                path,
                f"a switch is on, {name}: true, or left out; if the script has an option that "
                f"takes the word, write it in quotes, as in {name}: '{value.text or 'none'}'",
            )
        )
        return []
    if value.plain and value.text in ("true", "True", "TRUE"):
        return [word]
    if any(not isinstance(item.value, str) for item in value.items) or value.entries:
        problems.append(value.problem(path, "expected a value, or a list of values"))
        return []
    return [word, *(value.items if isinstance(value.value, list) else [value])]


def _merge_layer(base: Node, over: Node, *, keep_nulls: bool = False, in_env: bool = False) -> Node:
    """Merge a tree over another: maps merge, a null removes, other values replace.

    A null over a missing key is kept, and its field's type decides the meaning. ``keep_nulls``
    keeps all nulls. In ``env`` an explicit null is kept because it unsets a variable.
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
    """Merge a job over another; its program replaces the other's program and arguments.

    The first ``{args}`` in its ``args`` is replaced by the arguments below. Only the first, so that
    a chain of files cannot multiply them.
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
    """Read the file and the files that it extends, nearest first, as far as they are readable."""
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
        layers.append(expand_arguments(structs.replace(layer, value=rest), problems))
        if extends is None or is_null(extends):
            return layers
        try:
            if not extends.text.strip() or "\0" in extends.text:
                raise InputError(f"expected the name of a job; got {format_node(extends)}")
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


def _raise_problems(problems: list[Problem]) -> None:
    """Raise all problems, if any, sorted by file, with --set last, and by line."""
    if not problems:
        return
    order = {problem.source: index for index, problem in reversed(list(enumerate(problems)))}
    raise SpecError(
        sorted(problems, key=lambda p: (p.source == SOURCE, order[p.source], p.line or 0))
    )


# ---- Values given without a file ----------------------------------------------------------------


def _build_layer(overrides: Sequence[str], below: Node, problems: list[Problem]) -> Node:
    """Read all overrides into one tree, later ones over earlier ones, and keep nulls.

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
            problems.append(layer.problem(_truncate(override), message))
            continue
        keys = [segment.strip('"') for segment in re.findall(_SEGMENT, match.group(1))]
        path = reduce(join_path, keys, "")
        wrong = _explain_wrong_path(keys) or _explain_scalar_parent(keys, (layer, below))
        if wrong:
            problems.append(layer.problem(path, wrong))
            continue
        try:
            value = parse_value(match.group(2), SOURCE, path, problems)
        except SpecError as error:
            problems.extend(error.problems)
            continue
        if len(keys) + count_levels(value) > MAX_DEPTH:
            message = f"nested deeper than {MAX_DEPTH} levels"
            problems.append(layer.problem(_truncate(path), message))
            continue
        for key in reversed(keys):
            value = Node({key: value}, SOURCE)
        layer = _merge_layer(layer, value, keep_nulls=True)
    return layer


def _truncate(text: str) -> str:
    return text if len(text) <= 60 and text.isprintable() else f"{text[:60]!a}..."


def _explain_wrong_path(keys: Sequence[str]) -> str | None:
    if keys[0] == "extends":
        return "only a file can extend a job; --set gives values"
    root = describe_struct(JobSpec)
    of: mi.Type = root
    path = ""
    for key in keys:
        above, _ = unwrap(of)
        child = child_type(above, key)
        if child is None:
            if isinstance(above, mi.StructType):
                return explain_unknown_key(root, above, key)
            return explain_scalar_path(above, path)
        of, path = child, join_path(path, key)
    return None


def _explain_scalar_parent(keys: Sequence[str], trees: Sequence[Node]) -> str | None:
    """Write the message for a path that would turn a scalar into a map; None if there is none."""
    for node in trees:
        for depth, key in enumerate(keys[:-1], 1):
            inner = node.entries.get(key)
            if inner is None or is_null(inner):
                break
            node = inner
            if not isinstance(node.value, dict):
                place = f"{node.source}:{node.line}".removesuffix(":None")
                path = reduce(join_path, keys[:depth], "")
                return f"{path} is {format_node(node)} ({place}); set {path} as a whole"
    return None


# ---- Problems found after loading ---------------------------------------------------------------


class Origin(Struct, frozen=True):
    """The source of a job for messages: usually its file, and the changes of --set."""

    name: str = ""
    overrides: tuple[str, ...] = ()

    def add_source(self, problem: Problem) -> None:
        """Add the source to a problem, and the --set that it refers to.

        >>> problem = Problem("precision", "no")
        >>> Origin("x.yaml", ("precision=bf16",)).add_source(problem)
        >>> print(problem)
        --set: precision: no
        """
        for override in self.overrides:
            key, _, value = override.partition("=")
            key = key.strip()
            if not problem.source and re.match(rf"{re.escape(key)}(?![^.\[])", problem.path):
                problem.source = SOURCE
            elif problem.source != SOURCE and _mentions(problem.message, key, value.strip()):
                problem.message += f" ({SOURCE} {key})"
        problem.source = problem.source or self.name


def _mentions(message: str, key: str, value: str) -> bool:
    """Return True if a message mentions a key; a key without a dot also needs its value."""
    parts = [key] if "." in key else [key, value]
    named = all(re.search(rf"(?<![\w.]){re.escape(part)}(?![\w.])", message) for part in parts)
    return named and f"({SOURCE} {key})" not in message
