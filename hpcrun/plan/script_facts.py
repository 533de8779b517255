"""What a training script takes, as far as its text shows: options, variables, modules.

The script is read as a tree, and never run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from typing import Any, TypeVar

from msgspec import Struct

_VARIABLE = r"\bHPCRUN_[A-Z_]*"
T = TypeVar("T", bound=ast.AST)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
# A name, and the function in which it means one thing; None: the module.
_Scoped = tuple[ast.AST | None, str]

# What reads a command line decides how far its options can be known.
_ARGPARSE = "argparse"
# Of these not all options can be seen: fire and tyro make them of a function, hydra of files.
OPEN_PARSERS = ("click", "absl", "hydra", "fire", "typer", "tyro")
_DATACLASSES = {"HfArgumentParser": "transformers", "TrlParser": "transformers"}
# argparse.REMAINDER and PARSER: an argument takes the rest of the command line.
_REST = ("...", "A...")
# Keywords of ArgumentParser that leave its options as add_argument() defines them.
_PLAIN_KEYWORDS = frozenset(
    {"prog", "description", "epilog", "formatter_class", "usage", "add_help", "argument_default"}
    | {"suggest_on_error", "color"}
)
# Methods of a parser and of its groups that change nothing in what it takes.
_HARMLESS = frozenset(
    {"add_argument", "add_argument_group", "add_mutually_exclusive_group", "parse_args", "error"}
    | {"set_defaults", "get_default", "print_help", "print_usage", "format_help", "exit"}
    | {"format_usage", "description", "epilog", "usage"}
)
# Keywords for a batch size, or for the steps over which gradients are accumulated.
BATCH_KEYWORDS = frozenset(
    {"per_device_train_batch_size", "batch_size", "train_batch_size", "micro_batch_size"}
)
STEPS_KEYWORDS = frozenset({"gradient_accumulation_steps", "accumulate_grad_batches"})
_PRECISIONS = ("mixed_precision", "precision", "bf16", "fp16")
_TRAINERS = ("Trainer", "Accelerator")
# What decides how the Trainer's ranks join, where a script says it itself.
_WATCHED = frozenset({"deepspeed", "deepspeed_plugin", "ddp_backend", "use_cpu"})
# What DeepSpeed adds to a parser (deepspeed/__init__.py, add_config_arguments).
_DEEPSPEED_OPTIONS = ("--deepspeed", "--deepspeed_config", "--deepscale", "--deepscale_config")


class Option(Struct, frozen=True):
    """An option of a script: its spellings; ``required``: argparse stops without it.

    ``default`` is a text, ``number`` a whole number that the script gives as default; "" and None
    where it is anything else, or not known. ``choices`` are those written out in the script.
    """

    names: list[str]
    required: bool = False
    default: str = ""
    number: int | None = None
    choices: list[str] = []


class ScriptFacts(Struct, frozen=True, kw_only=True):
    """What was read off a script.

    ``parser`` is what reads its command line ("" where nothing that is known does). ``plain``: it
    is argparse, and ``options`` are all that it takes. ``variables`` are the environment variables
    that its text names, ``imports`` the modules that it imports anywhere. ``numbers`` are those
    that its calls get for a batch (BATCH_KEYWORDS, STEPS_KEYWORDS), written out; ``precisions`` are
    keywords by which they set a number format themselves. ``positionals``:
    arguments without a dash that argparse stops without. ``trainers``: which Trainer or
    Accelerator it makes. ``is_program``: it does something when it is run. ``gives``: which of
    deepspeed, deepspeed_plugin, ddp_backend and use_cpu it gives a value of its own.
    """

    parser: str = ""
    plain: bool = False
    abbreviates: bool = True
    options: list[Option] = []
    variables: list[str] = []
    imports: list[str] = []
    numbers: list[tuple[str, int]] = []
    precisions: list[str] = []
    positionals: list[str] = []
    trainers: list[str] = []
    names_local_rank: bool = False
    is_program: bool = False
    gives: list[str] = []


def read_script(tree: ast.Module) -> ScriptFacts:
    """Read a script's facts off its tree.

    >>> text = "import argparse; p = argparse.ArgumentParser(); p.add_argument('--lr')"
    >>> facts = read_script(ast.parse(text + "; p.parse_args()"))
    >>> facts.parser, facts.plain, facts.options[0].names
    ('argparse', True, ['--lr'])
    """
    nodes = _Nodes(tree)
    imports = list(_imports(nodes))
    calls = nodes.of(ast.Call)
    parser = _parser(calls, imports)
    texts = [node.value for node in nodes.of(ast.Constant) if isinstance(node.value, str)]
    numbers = [
        (keyword.arg, _constant(keyword.value))
        for call in calls
        for keyword in call.keywords
        if keyword.arg and keyword.arg in BATCH_KEYWORDS | STEPS_KEYWORDS
        if type(_constant(keyword.value)) is int
    ]
    reading = _Argparse(nodes) if parser == _ARGPARSE else None
    return ScriptFacts(
        parser=parser,
        plain=reading is not None and reading.plain,
        abbreviates=reading is None or reading.abbreviates,
        options=reading.options if reading else list(_options_elsewhere(calls, parser)),
        # Names in the text that look like variables, whether they are read or not.
        variables=sorted({name for text in texts for name in re.findall(_VARIABLE, text)}),
        imports=list(dict.fromkeys(imports)),
        numbers=list(dict.fromkeys(numbers)),
        precisions=[
            keyword.arg
            for call in calls
            for keyword in call.keywords
            if keyword.arg in _PRECISIONS
            if not isinstance(keyword.value, ast.Constant) or keyword.value.value
        ],
        positionals=reading.positionals if reading else [],
        trainers=[name for name in map(called, calls) if name.endswith(_TRAINERS)],
        names_local_rank="LOCAL_RANK" in texts,
        gives=sorted(_WATCHED & set(_given_names(nodes))),
        is_program=any(
            _is_main_guard(node)
            or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
            for node in tree.body
        ),
    )


class _Nodes:
    """The nodes of a tree by their types, and what each stands in: one walk serves all."""

    def __init__(self, tree: ast.Module) -> None:
        self._by_type: dict[type[ast.AST], list[Any]] = {}
        self._above: dict[ast.AST, ast.AST] = {}
        found: list[ast.AST] = [tree]
        for node in found:
            self._by_type.setdefault(type(node), []).append(node)
            inside = list(ast.iter_child_nodes(node))
            self._above |= dict.fromkeys(inside, node)
            found += inside

    def of(self, kind: type[T]) -> list[T]:
        return self._by_type.get(kind, [])

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what a node stands in, the innermost first."""
        while node in self._above:
            node = self._above[node]
            yield node

    def function_around(self, node: ast.AST) -> _Function | None:
        """Return the innermost function around a node; None: the module itself."""
        return next((each for each in self.around(node) if isinstance(each, _Function)), None)

    def name_given(self, value: ast.expr) -> str:
        """Return the plain name that a value is assigned to; "" for any other use of it."""
        above = self._above[value]
        targets: list[ast.expr] = []
        if isinstance(above, ast.Assign) and above.value is value:
            targets = above.targets
        elif isinstance(above, ast.AnnAssign) and above.value is value:
            targets = [above.target]
        return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""

    def scoped(self, name: str, where: ast.AST) -> _Scoped:
        """Return a name as it is in the function around a node, or in the module."""
        return self.function_around(where), name

    def is_one_of(self, names: Collection[_Scoped], node: ast.expr) -> bool:
        """Return whether an expression is one of some names, where it means the same."""
        scopes = (None, *self.around(node))
        return isinstance(node, ast.Name) and any((scope, node.id) in names for scope in scopes)

    def is_called(self, function: ast.expr) -> bool:
        """Return whether an expression is what a call calls."""
        above = self._above[function]
        return isinstance(above, ast.Call) and above.func is function


def _imports(nodes: _Nodes) -> Iterator[str]:
    for plain in nodes.of(ast.Import):
        yield from (alias.name for alias in plain.names)
    for node in nodes.of(ast.ImportFrom):
        start = "." * node.level + (node.module or "")
        yield start
        # A name may be a module of the package.
        dot = "" if start.endswith(".") else "."
        yield from (f"{start}{dot}{alias.name}" for alias in node.names if alias.name != "*")


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
    return next((name for name in OPEN_PARSERS if name in modules), "")


def _options_elsewhere(calls: list[ast.Call], parser: str) -> Iterator[Option]:
    """Yield options of other readers of command lines; never known to be all."""
    for call in calls:
        words = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        texts = [word for word in words if isinstance(word, str)]
        if parser == "click" and called(call) == "option":
            names = [part for word in texts for part in word.split("/")]
            default = _text({word.arg: word.value for word in call.keywords}.get("default"))
            yield Option([name for name in names if name.startswith("-")], default=default)
        elif parser == "absl" and called(call).startswith("DEFINE_") and texts:
            yield Option([f"--{texts[0]}"])
    if parser == "transformers":
        yield Option(["--per_device_train_batch_size"])
        yield Option(["--gradient_accumulation_steps"])


def _given_names(nodes: _Nodes) -> Iterator[str]:
    """Yield names of keywords, and of a dataclass' fields, that get a value other than None.

    One that is handed on from the arguments (``deepspeed=args.deepspeed``) is the command line's.
    """
    for call in nodes.of(ast.Call):
        if called(call) == "DeepSpeedPlugin":
            yield "deepspeed_plugin"
        yield from (word.arg for word in call.keywords if word.arg and _is_own(word.value))
    for field in nodes.of(ast.AnnAssign):
        value = field.value
        if isinstance(value, ast.Call) and called(value) == "field":
            value = {word.arg: word.value for word in value.keywords}.get("default")
        if isinstance(field.target, ast.Name) and value is not None and _is_own(value):
            yield field.target.id


def _is_own(value: ast.expr) -> bool:
    handed_on = isinstance(value, ast.Attribute | ast.Subscript)
    return not handed_on and ast.unparse(value) not in ("None", "False", "''")


class _Argparse:
    """The options that a script gives argparse; ``plain``: these are all."""

    def __init__(self, nodes: _Nodes) -> None:
        calls = nodes.of(ast.Call)
        self.options: list[Option] = []
        self.positionals: list[str] = []
        self.abbreviates = True
        self.plain = True
        self._nodes = nodes
        made = [call for call in calls if called(call) == "ArgumentParser"]
        self._expect(len(made) == 1)
        for keyword in (keyword for call in made for keyword in call.keywords):
            if keyword.arg == "allow_abbrev" and isinstance(keyword.value, ast.Constant):
                self.abbreviates = bool(keyword.value.value)
            else:
                self._expect(keyword.arg in _PLAIN_KEYWORDS)
        self._aliases = {
            nodes.scoped(nodes.name_given(value), value)
            for value in nodes.of(ast.Attribute)
            if value.attr == "add_argument" and nodes.name_given(value)
        }
        handed_on = _handed_on(nodes)
        for call in calls:
            name = called(call)
            if name == "add_argument" or nodes.is_one_of(self._aliases, call.func):
                self._read_option(call)
            elif name == "add_config_arguments":
                self.options += [Option([option]) for option in _DEEPSPEED_OPTIONS]
            elif name == "parse_args":
                is_known = [_is_command_line(a) or nodes.is_one_of(handed_on, a) for a in call.args]
                self._expect(not call.keywords and all(is_known))
                self._expect(not self._may_not_count(call))  # what it refuses may be caught
        self._expect(any(called(call) == "parse_args" for call in calls))
        self._follow_names(made)

    def _expect(self, plain: bool) -> None:
        self.plain = self.plain and plain

    def _read_option(self, call: ast.Call) -> None:
        names = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        known = [name for name in names if isinstance(name, str)]
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        self._expect(len(known) == len(call.args) and None not in keywords)
        # What is not written out may be argparse.REMAINDER.
        nargs = keywords.get("nargs")
        self._expect(isinstance(nargs, ast.Constant | None) and _constant(nargs) not in _REST)
        flags = [name for name in known if name.startswith("-")]
        if not flags:
            if known and _constant(nargs) not in ("?", "*", 0):
                self.positionals.append(known[0].upper())
            return
        action = keywords.get("action")
        if action is not None and ast.unparse(action).endswith("BooleanOptionalAction"):
            flags += [f"--no-{name[2:]}" for name in known if name.startswith("--")]
        needs = _constant(keywords.get("required")) is True and not self._may_not_count(call)
        default, choices = keywords.get("default"), keywords.get("choices")
        number = _constant(default)
        listed = choices.elts if isinstance(choices, (ast.List, ast.Tuple, ast.Set)) else []
        self.options.append(
            Option(
                names=flags,
                required=needs,
                default=_text(default),
                number=number if type(number) is int else None,
                choices=[str(item.value) for item in listed if isinstance(item, ast.Constant)],
            )
        )

    def _may_not_count(self, call: ast.Call) -> bool:
        """Return whether a call stands where it is not always made."""
        return any(
            isinstance(node, (ast.If, ast.Try)) and not _is_main_guard(node)
            for node in self._nodes.around(call)
        )

    def _follow_names(self, made: list[ast.Call]) -> None:
        """Expect that nothing else happens to a parser, or to the arguments that it reads."""
        nodes = self._nodes
        owners, makers = _owners(nodes, made)
        for attribute in nodes.of(ast.Attribute):
            self._expect(attribute.attr not in ("parse_known_args", "add_subparsers", "required"))
            if attribute.attr == "add_argument":
                self._expect(nodes.is_called(attribute) or bool(nodes.name_given(attribute)))
            elif attribute.attr == "argv":
                calls = (node for node in nodes.around(attribute) if isinstance(node, ast.Call))
                self._expect(any(called(call) == "parse_args" for call in calls))
        for name in nodes.of(ast.Name):
            if isinstance(name.ctx, ast.Load) and nodes.is_one_of(owners, name):
                above = next(nodes.around(name))
                adds = isinstance(above, ast.Call) and called(above) == "add_config_arguments"
                self._expect(_is_harmless(above) or adds or isinstance(above, ast.Return))
            elif isinstance(name.ctx, ast.Load) and nodes.is_one_of(self._aliases, name):
                self._expect(nodes.is_called(name))
        for call in nodes.of(ast.Call):
            if call in made or called(call) in makers:
                above = next(nodes.around(call))
                self._expect(_is_harmless(above) or bool(nodes.name_given(call)))


def _is_harmless(above: ast.AST) -> bool:
    return isinstance(above, ast.Attribute) and above.attr in _HARMLESS


def _constant(node: ast.expr | None) -> Any:
    """Return the value of a constant; None for all else."""
    return node.value if isinstance(node, ast.Constant) else None


def _text(node: ast.expr | None) -> str:
    """Return the text that an expression is, also as Path("..."); "" for all else."""
    if isinstance(node, ast.Call) and called(node) == "Path" and len(node.args) == 1:
        node = node.args[0]
    value = _constant(node)
    return value if isinstance(value, str) else ""


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)


def _owners(nodes: _Nodes, made: list[ast.Call]) -> tuple[set[_Scoped], set[str]]:
    """Find names of the parser and of its groups, and of the functions that return them."""
    groups = ("add_argument_group", "add_mutually_exclusive_group")
    owners: set[_Scoped] = set()
    makers: set[str] = set()
    for _ in range(2):  # a function that returns it, and the name that its caller gives it
        for call in nodes.of(ast.Call):
            name = nodes.name_given(call)
            if name and (call in made or called(call) in groups or called(call) in makers):
                owners.add(nodes.scoped(name, call))
        for node in nodes.of(ast.Return):
            maker = nodes.function_around(node)
            if node.value and maker and nodes.is_one_of(owners, node.value):
                makers.add(maker.name)
    return owners, makers


def _handed_on(nodes: _Nodes) -> set[_Scoped]:
    """Find names that are the command line: parameters that nobody here gives anything else.

    As in ``def main(argv=None): args = parser.parse_args(argv)``, called by ``main()``.
    """
    takers = {
        function.name: function.args.args[0]
        for function in nodes.of(ast.FunctionDef)
        if len(function.args.args) == 1
        and [ast.unparse(default) for default in function.args.defaults] == ["None"]
    }
    while True:
        names = {nodes.scoped(parameter.arg, parameter) for parameter in takers.values()}
        wrong = {
            called(call)
            for call in nodes.of(ast.Call)
            for word in (*call.args, *(keyword.value for keyword in call.keywords))
            if not (_is_command_line(word) or nodes.is_one_of(names, word))
        }
        for name in nodes.of(ast.Name):
            function = nodes.function_around(name)
            if isinstance(name.ctx, ast.Store) and function and nodes.is_one_of(names, name):
                wrong.add(function.name)
        if not wrong & takers.keys():
            return names
        takers = {name: taker for name, taker in takers.items() if name not in wrong}


def _is_command_line(node: ast.expr) -> bool:
    """Return whether parse_args() is given what it takes anyway: None, or sys.argv[1:]."""
    return ast.unparse(node) in ("None", "sys.argv[1:]")
