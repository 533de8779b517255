"""What a training script takes, as far as its text shows: options, variables, modules.

Pure: the script is read as a tree, and never run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from msgspec import Struct, field

# What reads a command line; the word tells how far its options can be known.
_ARGPARSE, _OTHERS = "argparse", ("click", "absl", "hydra", "fire", "typer", "tyro")
_DATACLASSES = {"HfArgumentParser": "transformers", "TrlParser": "transformers"}
# Keywords of ArgumentParser that leave its options as add_argument() says them.
_PLAIN_KEYWORDS = frozenset(
    {"prog", "description", "epilog", "formatter_class", "usage", "add_help", "argument_default"}
    | {"conflict_handler", "exit_on_error", "suggest_on_error", "color"}
)
# Methods of a parser and of its groups that change nothing in what it takes.
_HARMLESS = frozenset(
    {"add_argument", "add_argument_group", "add_mutually_exclusive_group", "parse_args", "error"}
    | {"set_defaults", "get_default", "print_help", "print_usage", "format_help", "exit"}
    | {"format_usage", "description", "epilog", "usage"}
)
# What DeepSpeed adds to a parser (deepspeed/__init__.py, add_config_arguments).
_DEEPSPEED_OPTIONS = ("--deepspeed", "--deepspeed_config", "--deepscale", "--deepscale_config")


class Option(Struct, frozen=True):
    """An option of a script: its spellings; ``required``: argparse stops without it."""

    names: list[str]
    required: bool = False


class ScriptFacts(Struct, frozen=True, kw_only=True):
    """What was read off a script.

    ``parser`` is what reads its command line ("" where nothing that is known does). ``plain``: it
    is argparse, and ``options`` are all that it takes. ``variables`` are the environment variables
    that its text names, ``imports`` the modules that it imports anywhere.
    """

    parser: str = ""
    plain: bool = False
    abbreviates: bool = True
    options: list[Option] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)


def read_script(tree: ast.Module) -> ScriptFacts:
    """Read a script's facts off its tree.

    >>> text = "import argparse; p = argparse.ArgumentParser(); p.add_argument('--lr')"
    >>> facts = read_script(ast.parse(text + "; p.parse_args()"))
    >>> facts.parser, facts.plain, facts.options[0].names
    ('argparse', True, ['--lr'])
    """
    nodes = list(ast.walk(tree))
    imports = list(_imports(nodes))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    parser = _parser(calls, imports)
    reading = _Argparse(nodes, calls) if parser == _ARGPARSE else None
    return ScriptFacts(
        parser=parser,
        plain=reading is not None and reading.plain,
        abbreviates=reading is None or reading.abbreviates,
        options=reading.options if reading else list(_options_elsewhere(calls, parser)),
        variables=sorted(set(_variables(nodes))),
        imports=list(dict.fromkeys(imports)),
    )


def _imports(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            yield start
            # A name may be a module of the package.
            dot = "" if start.endswith(".") else "."
            yield from (f"{start}{dot}{alias.name}" for alias in node.names if alias.name != "*")


def _variables(nodes: list[ast.AST]) -> Iterator[str]:
    """Names in the text that look like variables; which of them are read is not asked."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 999:
            yield from re.findall(r"\bHPCRUN_[A-Z_]*", node.value)


def called(call: ast.Call) -> str:
    """Name what is called, by its last part: ``argparse.ArgumentParser`` is ArgumentParser."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _parser(calls: list[ast.Call], imports: list[str]) -> str:
    modules = {name.partition(".")[0] for name in imports}
    names = {called(call) for call in calls}
    for name, parser in _DATACLASSES.items():
        if name in names:
            return parser
    if "ArgumentParser" in names and _ARGPARSE in modules:
        return _ARGPARSE
    return next((name for name in _OTHERS if name in modules), "")


def _options_elsewhere(calls: list[ast.Call], parser: str) -> Iterator[Option]:
    """Options of other readers of command lines; never known to be all."""
    for call in calls:
        words = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        texts = [word for word in words if isinstance(word, str)]
        if parser == "click" and called(call) == "option":
            names = [part for word in texts for part in word.split("/")]
            yield Option([name for name in names if name.startswith("-")])
        elif parser == "absl" and called(call).startswith("DEFINE_") and texts:
            yield Option([f"--{texts[0]}"])
    if parser == "transformers":
        yield Option(["--per_device_train_batch_size"])
        yield Option(["--gradient_accumulation_steps"])


class _Argparse:
    """What the calls of argparse in a script say; ``plain``: they say all of it."""

    def __init__(self, nodes: list[ast.AST], calls: list[ast.Call]) -> None:
        self.options: list[Option] = []
        self.abbreviates = True
        self.plain = True
        made = [call for call in calls if called(call) == "ArgumentParser"]
        self._read_constructors(made)
        for call in calls:
            name = called(call)
            if name == "add_argument":
                self._read_option(call)
            elif name == "add_config_arguments":
                self.options += [Option([option]) for option in _DEEPSPEED_OPTIONS]
            elif name == "parse_args":
                self._expect(not call.keywords and all(map(_is_command_line, call.args)))
        self._expect(any(called(call) == "parse_args" for call in calls))
        self._follow_names(nodes, made)

    def _expect(self, plain: bool) -> None:
        self.plain = self.plain and plain

    def _read_constructors(self, made: list[ast.Call]) -> None:
        self._expect(len(made) == 1)
        for call in made:
            for keyword in call.keywords:
                if keyword.arg == "allow_abbrev" and isinstance(keyword.value, ast.Constant):
                    self.abbreviates = bool(keyword.value.value)
                else:
                    self._expect(keyword.arg in _PLAIN_KEYWORDS)

    def _read_option(self, call: ast.Call) -> None:
        names = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        known = [name for name in names if isinstance(name, str)]
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        self._expect(len(known) == len(call.args) and None not in keywords)
        self._expect(not _takes_the_rest(keywords.get("nargs")))
        flags = [name for name in known if name.startswith("-")]
        if not flags:
            return
        action = keywords.get("action")
        if action is not None and ast.unparse(action).endswith("BooleanOptionalAction"):
            flags += [f"--no-{name[2:]}" for name in known if name.startswith("--")]
        required = keywords.get("required")
        needs = isinstance(required, ast.Constant) and required.value is True
        self.options.append(Option(flags, needs))

    def _follow_names(self, nodes: list[ast.AST], made: list[ast.Call]) -> None:
        """Whatever else may happen to a parser, or to the words that it reads, is not plain."""
        owners, makers = _owners(nodes, made)
        attributes = {
            id(node.value): node.attr for node in nodes if isinstance(node, ast.Attribute)
        }
        assigned = {id(value) for value, _ in _assignments(nodes)}
        handed: set[int] = set()
        command_line: set[int] = set()
        for node in nodes:
            if isinstance(node, ast.Return) and node.value is not None:
                handed.add(id(node.value))
            elif isinstance(node, ast.Call) and called(node) == "add_config_arguments":
                handed |= {id(arg) for arg in node.args}
            elif isinstance(node, ast.Call) and called(node) == "parse_args":
                command_line |= {id(inner) for arg in node.args for inner in ast.walk(arg)}
        for node in nodes:
            if isinstance(node, ast.Attribute):
                self._expect(node.attr not in ("parse_known_args", "add_subparsers"))
                self._expect(node.attr != "argv" or id(node) in command_line)
            elif isinstance(node, ast.Name) and node.id in owners:
                known = id(node) in handed or attributes.get(id(node)) in _HARMLESS
                self._expect(known or not isinstance(node.ctx, ast.Load))
            elif isinstance(node, ast.Call) and (node in made or called(node) in makers):
                self._expect(id(node) in assigned or attributes.get(id(node)) in _HARMLESS)


def _assignments(nodes: list[ast.AST]) -> Iterator[tuple[ast.expr, str]]:
    """Values that are given a plain name, with the name."""
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign):
            target = node.target
        else:
            continue
        if isinstance(target, ast.Name) and node.value is not None:
            yield node.value, target.id


def _owners(nodes: list[ast.AST], made: list[ast.Call]) -> tuple[set[str], set[str]]:
    """Names of the parser and of its groups, and of the functions that return them."""
    groups = ("add_argument_group", "add_mutually_exclusive_group")
    owners: set[str] = set()
    makers: set[str] = set()
    for _ in range(2):  # a function that returns it, and the name that its caller gives it
        for value, name in _assignments(nodes):
            if isinstance(value, ast.Call) and (
                value in made or called(value) in groups or called(value) in makers
            ):
                owners.add(name)
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                returned = {
                    inner.value.id
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Return) and isinstance(inner.value, ast.Name)
                }
                makers |= {node.name} if returned & owners else set()
    return owners, makers


def _is_command_line(node: ast.expr) -> bool:
    """Tell whether parse_args() is handed what it takes anyway: None, or sys.argv[1:]."""
    return ast.unparse(node) in ("None", "sys.argv[1:]")


def _takes_the_rest(nargs: ast.expr | None) -> bool:
    if nargs is None:
        return False
    if isinstance(nargs, ast.Constant):
        return nargs.value in ("...", "A...")
    return True  # argparse.REMAINDER, or what is not known
