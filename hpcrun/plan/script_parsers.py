"""Static models of a script's command-line parser, built from the script's syntax tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

# ---- Syntax trees ------------------------------------------------------------------------------

T = TypeVar("T", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef
# A name with the function that defines its scope; None is the module.
Scoped = tuple[ast.AST | None, str]
# Code inside one of these nodes may be skipped.
_CONDITIONAL = (
    *(ast.If, ast.Try, ast.For, ast.While, ast.IfExp, ast.BoolOp, ast.Lambda, ast.Match),
    getattr(ast, "TryStar", ast.Try),
)


class NodeIndex:
    """An index of a syntax tree's nodes by type and by parent, built in one walk."""

    def __init__(self, tree: ast.Module, *, is_imported: bool = False) -> None:
        """Index a tree; functions of an imported module count as called."""
        self._is_imported = is_imported
        self._by_type: dict[type[ast.AST], list[Any]] = {}
        self._parents: dict[ast.AST, ast.AST] = {}
        found: list[ast.AST] = [tree]
        for node in found:
            self._by_type.setdefault(type(node), []).append(node)
            inside = list(ast.iter_child_nodes(node))
            self._parents |= dict.fromkeys(inside, node)
            found += inside
        self._first_exits = self._find_first_exits()

    def of_type(self, kind: type[T]) -> list[T]:
        """Return all nodes of a type."""
        return self._by_type.get(kind, [])

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes that contain a node, innermost first."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def enclosing_function(self, node: ast.AST) -> Function | None:
        """Return the innermost function that contains a node; None for module level."""
        return next((each for each in self.ancestors(node) if isinstance(each, Function)), None)

    def assigned_name(self, value: ast.expr) -> str:
        """Return the variable that a value is assigned to; "" for any other use."""
        above = self._parents[value]
        targets: list[ast.expr] = []
        if isinstance(above, ast.Assign) and above.value is value:
            targets = above.targets
        elif isinstance(above, ast.AnnAssign) and above.value is value:
            targets = [above.target]
        return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""

    def scoped_name(self, name: str, where: ast.AST) -> Scoped:
        """Return a name in the scope of a node."""
        return self.enclosing_function(where), name

    def refers_to_any(self, names: Collection[Scoped], node: ast.expr) -> bool:
        """Return True if an expression is one of some names in the scope that defines it."""
        scopes = (None, *self.ancestors(node))
        return isinstance(node, ast.Name) and any((scope, node.id) in names for scope in scopes)

    def _find_first_exits(self) -> dict[ast.AST | None, int]:
        """Return the first line of each scope at which it may return or exit successfully."""
        ways: list[ast.stmt | ast.expr] = [*self.of_type(ast.Return)]
        for call in self.of_type(ast.Call):
            code = call.args[0] if call.args else ast.Constant(0)
            if callee_name(call) in ("exit", "_exit") and constant_value(code) == 0:
                ways.append(call)
        first: dict[ast.AST | None, int] = {}
        for way in sorted(ways, key=lambda way: -way.lineno):
            if not any(map(_tests_first_argument, self.ancestors(way))):
                first[self.enclosing_function(way)] = way.end_lineno or way.lineno
        return first

    def always_runs(self, call: ast.expr, seen: Collection[str] = ()) -> bool:
        """Return True if every run of the script executes a call, as far as static analysis tells.

        A branch that depends on the first argument being a file name counts as executed.
        """
        if self._first_exits.get(self.enclosing_function(call), call.lineno) < call.lineno:
            return False
        for node in self.ancestors(call):
            if self._is_imported and is_main_guard(node):
                return False
            if isinstance(node, _CONDITIONAL) and not (
                is_main_guard(node) or _tests_first_argument(node)
            ):
                return False
            if isinstance(node, ast.With) and "suppress(" in ast.unparse(node.items[0]):
                return False
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                above = self._parents[node]
                is_init = node.name == "__init__" and isinstance(above, ast.ClassDef)
                name = above.name if is_init and isinstance(above, ast.ClassDef) else node.name
                calls = [each for each in self.of_type(ast.Call) if callee_name(each) == name]
                more = (*seen, name)
                if self._is_imported and not calls:
                    return True
                return name not in seen and any(self.always_runs(each, more) for each in calls)
        return True

    def is_callee(self, function: ast.expr) -> bool:
        """Return True if an expression is called."""
        above = self._parents[function]
        return isinstance(above, ast.Call) and above.func is function


def _tests_first_argument(node: ast.AST) -> bool:
    """Return True if a node tests whether ``sys.argv[1]`` is a positional argument."""
    test = ast.unparse(node.test) if isinstance(node, ast.If) else ""
    return "argv" in test and "'-" not in test


def callee_name(call: ast.Call) -> str:
    """Return the last part of a callee's name: ArgumentParser of ``argparse.ArgumentParser``."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def constant_value(node: ast.expr | None) -> Any:
    """Return the value of a constant; None for any other expression."""
    return node.value if isinstance(node, ast.Constant) else None


def string_value(node: ast.expr | None) -> str:
    """Return the value of a string literal or of Path("..."); "" for any other expression."""
    if isinstance(node, ast.Call) and callee_name(node) == "Path" and len(node.args) == 1:
        node = node.args[0]
    value = constant_value(node)
    return value if isinstance(value, str) else ""


def help_text(node: ast.expr | None) -> str:
    """Return the literal parts of a help text."""
    if node is None:
        return ""
    parts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return " ".join(part for part in parts if isinstance(part, str))


def is_main_guard(node: ast.AST) -> bool:
    """Return True for ``if __name__ == "__main__":``."""
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)


# ---- Parsers -----------------------------------------------------------------------------------

# The parser library determines how much of a script's options static analysis can find.
ARGPARSE = "argparse"
DATACLASS_PARSERS = {"HfArgumentParser": "transformers", "TrlParser": "transformers"}
_HYDRA_SWITCHES = (
    ["--help", "-h"],
    ["--hydra-help"],
    ["--version"],
    ["--resolve"],
    ["--run", "-r"],
    ["--multirun", "-m"],
    ["--shell-completion", "-sc"],
)
_HYDRA_OPTIONS = (
    ["--package", "-p"],
    ["--config-path", "-cp"],
    ["--config-name", "-cn"],
    ["--config-dir", "-cd"],
    ["--experimental-rerun"],
)
_HYDRA_INFO = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
_PARSE_DATACLASSES = ("parse_args_into_dataclasses", "parse_args_and_config")
# argparse.REMAINDER and argparse.PARSER: the argument consumes the rest of the command line.
_REMAINDER = ("...", "A...")
_GROUPS = ("add_argument_group", "add_mutually_exclusive_group")
_PARSE_CALLS = ("parse_args", "parse_known_args")
_SWITCH_ACTIONS = (
    "store_true",
    "store_false",
    "store_const",
    "append_const",
    "count",
    "version",
    "help",
)
# Keywords of ArgumentParser that do not change how its options are parsed.
_NEUTRAL_KEYWORDS = frozenset(
    {"prog", "description", "epilog", "formatter_class", "usage", "add_help", "argument_default"}
    | {"suggest_on_error", "color"}
)
# Methods of a parser and of its groups that do not change its options beyond add_argument().
_NEUTRAL_METHODS = frozenset(
    {"add_argument", "add_argument_group", "add_mutually_exclusive_group", "error"}
    | {"parse_args", "parse_known_args"}
    | {"set_defaults", "get_default", "print_help", "print_usage", "format_help", "exit"}
    | {"format_usage", "description", "epilog", "usage"}
)


class ParserOption(Struct, frozen=True):
    """An option or a positional argument of a script.

    Attributes:
        names: All spellings.
        required: True if argparse fails without it.
        default: The default if it is a string; else "".
        number: The default if it is an integer; else None.
        choices: The legal values; [] unless all are literals.
        type: str, int or float; "?" if the conversion is unknown.
        nargs: As in argparse; 0 for a switch.
        help: The help text.
        command: The subcommand that has it; "" for the program itself.
        repeats: It may be given several times, and all values count.
    """

    names: list[str]
    required: bool = False
    default: str = ""
    number: int | None = None
    choices: list[str] = []
    type: str = "str"
    nargs: int | str | None = None
    help: str = ""
    command: str = ""
    repeats: bool = False


class ParserModel:
    """The options of a parser; ScriptFacts describes the attributes."""

    def __init__(self) -> None:
        self.options: list[ParserOption] = []
        self.positionals: list[ParserOption] = []
        self.commands: list[str] = []
        self.parses = False
        self.abbreviates = self.is_certain = self.is_complete = True


class _ArgparseModel(ParserModel):
    """The options that a script defines with argparse."""

    def __init__(self, nodes: NodeIndex) -> None:
        super().__init__()
        calls = nodes.of_type(ast.Call)
        self._nodes = nodes
        made = [call for call in calls if callee_name(call) == "ArgumentParser"]
        self._require(len(made) == 1 and _is_argparse_class(nodes, made[0].func))
        self._require(not _find_hydra_mains(nodes))  # Hydra reads the command line too
        self._require(
            not any(callee_name(call) == "exec" for call in calls)
        )  # the text may define more options
        for keyword in (keyword for call in made for keyword in call.keywords):
            if keyword.arg == "allow_abbrev" and isinstance(keyword.value, ast.Constant):
                self.abbreviates = bool(keyword.value.value)
            else:
                self._require(keyword.arg in _NEUTRAL_KEYWORDS)
        self._aliases = {
            nodes.scoped_name(nodes.assigned_name(value), value)
            for value in nodes.of_type(ast.Attribute)
            if value.attr == "add_argument" and nodes.assigned_name(value)
        }
        self._commands = self._find_commands(calls)
        self.commands = list(dict.fromkeys(self._commands.values()))
        argv_names = _find_argv_parameters(nodes)
        for call in calls:
            name = callee_name(call)
            if name == "add_argument" or nodes.refers_to_any(self._aliases, call.func):
                self._read_option(call)
            elif name == "add_config_arguments":
                self.options += [
                    ParserOption(["--deepscale", "--deepspeed"], nargs=0),
                    ParserOption(["--deepscale_config", "--deepspeed_config"]),
                ]
            elif name in _PARSE_CALLS:
                is_known = [
                    _is_command_line(a) or nodes.refers_to_any(argv_names, a) for a in call.args
                ]
                self._require(not call.keywords and all(is_known))
                self.is_complete = self.is_complete and name == "parse_args"
        # The call may be conditional, and its SystemExit may be caught.
        self._require(
            any(callee_name(call) in _PARSE_CALLS and nodes.always_runs(call) for call in calls)
        )
        self.parses = any(nodes.always_runs(call) for call in made)
        names = [name for option in self.options for name in option.names]
        self._require(len(set(names)) == len(names))  # of two equal names, either may win
        self._check_uses(made)

    def _find_commands(self, calls: Sequence[ast.Call]) -> dict[Scoped, str]:
        """Return the variables of the parsers of subcommands and of their groups."""
        nodes = self._nodes
        above = {
            nodes.scoped_name(nodes.assigned_name(call), call)
            for call in calls
            if callee_name(call) == "add_subparsers" and nodes.assigned_name(call)
        }
        found: dict[Scoped, str] = {}
        for call in calls:
            name, owner = nodes.assigned_name(call), call.func
            if not (name and isinstance(owner, ast.Attribute)):
                continue
            if callee_name(call) == "add_parser" and nodes.refers_to_any(above, owner.value):
                command = string_value(next(iter(call.args), None))
                if command:
                    found[nodes.scoped_name(name, call)] = command
            elif callee_name(call) in _GROUPS and (command := self._command_of(owner, found)):
                found[nodes.scoped_name(name, call)] = command
        return found

    def _command_of(self, function: ast.expr, commands: Mapping[Scoped, str]) -> str:
        """Return the subcommand whose parser has a method; "" for the program's own parser."""
        if not isinstance(function, ast.Attribute):
            return ""
        owner = function.value
        one = (name for key, name in commands.items() if self._nodes.refers_to_any([key], owner))
        return next(one, "")

    def _require(self, condition: bool) -> None:
        """Mark the model as uncertain and incomplete unless a condition holds."""
        self.is_certain = self.is_certain and condition
        self.is_complete = self.is_complete and condition

    def _read_option(self, call: ast.Call) -> None:
        """Add the option that an add_argument() call defines."""
        # A script that keeps the returned action may change it: action.choices = list(MODELS).
        self._require(isinstance(next(self._nodes.ancestors(call)), ast.Expr))
        names = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        known = [name for name in names if isinstance(name, str)]
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        self._require(len(known) == len(call.args) and None not in keywords)
        # An expression that is not a literal may be argparse.REMAINDER.
        given = keywords.get("nargs")
        nargs = constant_value(given)
        if given is not None and ast.unparse(given).endswith("REMAINDER"):
            nargs = _REMAINDER[0]
        self._require(isinstance(given, ast.Constant | None) and nargs not in _REMAINDER)
        flags = [name for name in known if name.startswith("-")]
        default, action = keywords.get("default"), keywords.get("action")
        number, doing = constant_value(default), constant_value(action)
        if action is not None and ast.unparse(action).endswith("BooleanOptionalAction"):
            flags += [f"--no-{name[2:]}" for name in known if name.startswith("--")]
            nargs = 0
        elif doing in _SWITCH_ACTIONS:
            nargs = 0
        else:  # a custom action may consume any number of values
            self._require(action is None or doing in ("store", "append", "extend"))
        is_needed = bool(known) and not flags and nargs not in ("?", "*", 0, *_REMAINDER)
        required = constant_value(keywords.get("required")) is True or is_needed
        option = ParserOption(
            names=flags or known,
            required=required
            and self._nodes.always_runs(call)
            and not self._is_added_after_parsing(call),
            default=string_value(default),
            number=number if type(number) is int else None,
            choices=_literal_choices(keywords.get("choices")),
            type=_type_name(keywords.get("type")),
            nargs=nargs,
            help=help_text(keywords.get("help")),
            command=self._command_of(call.func, self._commands),
            repeats=action is not None and doing not in ("store", *_SWITCH_ACTIONS),
        )
        if flags:
            self.options.append(option)
        elif known:
            self._require(self._nodes.always_runs(call) and not self._is_added_after_parsing(call))
            self.positionals.append(option)

    def _is_added_after_parsing(self, call: ast.Call) -> bool:
        """Return True if the command line is parsed before this option is added."""
        here = self._nodes.enclosing_function(call)
        reads = (
            each for each in self._nodes.of_type(ast.Call) if callee_name(each) in _PARSE_CALLS
        )
        lines = [each.lineno for each in reads if self._nodes.enclosing_function(each) is here]
        return bool(lines) and max(lines) < call.lineno

    def _check_uses(self, made: list[ast.Call]) -> None:
        """Require that nothing else modifies the parser or the arguments that it parses."""
        nodes = self._nodes
        owners, makers = _find_parser_names(nodes, made)
        # In `args = make_parser(); args = args.parse_args()` the name stops being the parser.
        ends = {
            nodes.scoped_name(nodes.assigned_name(call), call): call.lineno
            for call in nodes.of_type(ast.Call)
            if callee_name(call) in _PARSE_CALLS
        }
        for attribute in nodes.of_type(ast.Attribute):
            self._require(attribute.attr not in ("add_subparsers", "required"))
            is_set = isinstance(attribute.ctx, ast.Store)
            self._require(not (is_set and attribute.attr in ("error", "exit", *_PARSE_CALLS)))
            if attribute.attr == "add_argument":
                self._require(nodes.is_callee(attribute) or bool(nodes.assigned_name(attribute)))
            elif attribute.attr == "argv":
                calls = (node for node in nodes.ancestors(attribute) if isinstance(node, ast.Call))
                self._require(any(callee_name(call) in _PARSE_CALLS for call in calls))
        for start in nodes.of_type(ast.ImportFrom):
            self._require("argv" not in [alias.name for alias in start.names])
        # As in mock.patch.object(sys, "argv", [...]).
        self._require("argv" not in map(constant_value, nodes.of_type(ast.Constant)))
        for name in nodes.of_type(ast.Name):
            if name.lineno > ends.get(nodes.scoped_name(name.id, name), name.lineno):
                continue
            if isinstance(name.ctx, ast.Load) and nodes.refers_to_any(owners, name):
                above = next(nodes.ancestors(name))
                adds = isinstance(above, ast.Call) and callee_name(above) == "add_config_arguments"
                self._require(_is_neutral_use(above) or adds or isinstance(above, ast.Return))
            elif isinstance(name.ctx, ast.Load) and nodes.refers_to_any(self._aliases, name):
                self._require(nodes.is_callee(name))
        for call in nodes.of_type(ast.Call):
            if call in made or callee_name(call) in makers:
                above = next(nodes.ancestors(call))
                self._require(_is_neutral_use(above) or bool(nodes.assigned_name(call)))


def _is_argparse_class(nodes: NodeIndex, function: ast.expr) -> bool:
    """Return True if a parser's class is argparse's, not another class of the same name."""
    if isinstance(function, ast.Attribute):
        names = [alias for plain in nodes.of_type(ast.Import) for alias in plain.names]
        name = ast.unparse(function.value)
        return {each.name for each in names if name in (each.asname, each.name)} == {ARGPARSE}
    classes = [node.name for node in nodes.of_type(ast.ClassDef)]
    sources = [
        node.module
        for node in nodes.of_type(ast.ImportFrom)
        if "ArgumentParser" in [alias.asname or alias.name for alias in node.names]
    ]
    return sources == [ARGPARSE] and "ArgumentParser" not in classes


def _type_name(node: ast.expr | None) -> str:
    """Return str, int or float; "?" for any other conversion."""
    name = "str" if node is None else ast.unparse(node)
    return name if name in ("str", "int", "float") else "?"


def _literal_choices(node: ast.expr | None) -> list[str]:
    """Return the choices if all of them are literals; else []."""
    listed = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else []
    known = [str(item.value) for item in listed if isinstance(item, ast.Constant)]
    return known if len(known) == len(listed) else []


def _find_parser_names(nodes: NodeIndex, made: list[ast.Call]) -> tuple[set[Scoped], set[str]]:
    """Find the variables of the parser and its groups, and the functions that return them."""
    owners: set[Scoped] = set()
    makers: set[str] = set()
    for _ in range(2):  # the function that returns the parser, then the variable of its caller
        for call in nodes.of_type(ast.Call):
            name = nodes.assigned_name(call)
            if name and (
                call in made or callee_name(call) in _GROUPS or callee_name(call) in makers
            ):
                owners.add(nodes.scoped_name(name, call))
        for node in nodes.of_type(ast.Return):
            maker = nodes.enclosing_function(node)
            if node.value and maker and nodes.refers_to_any(owners, node.value):
                makers.add(maker.name)
    return owners, makers


def _find_argv_parameters(nodes: NodeIndex) -> set[Scoped]:
    """Find parameters that always receive the command line, such as argv in ``main(argv=None)``."""
    takers = {
        function.name: function.args.args[0]
        for function in nodes.of_type(ast.FunctionDef)
        if len(function.args.args) == 1
        and [ast.unparse(default) for default in function.args.defaults] == ["None"]
    }
    while True:
        names = {nodes.scoped_name(parameter.arg, parameter) for parameter in takers.values()}
        wrong = {
            callee_name(call)
            for call in nodes.of_type(ast.Call)
            for word in (*call.args, *(keyword.value for keyword in call.keywords))
            if not (_is_command_line(word) or nodes.refers_to_any(names, word))
        }
        for name in nodes.of_type(ast.Name):
            function = nodes.enclosing_function(name)
            if isinstance(name.ctx, ast.Store) and function and nodes.refers_to_any(names, name):
                wrong.add(function.name)
        if not wrong & takers.keys():
            return names
        takers = {name: taker for name, taker in takers.items() if name not in wrong}


def _is_command_line(node: ast.expr) -> bool:
    """Return True for None and sys.argv[1:], which parse_args() treats alike."""
    return ast.unparse(node) in ("None", "sys.argv[1:]")


def _is_neutral_use(above: ast.AST) -> bool:
    """Return True if the parent of a parser's name is a method in _NEUTRAL_METHODS."""
    return isinstance(above, ast.Attribute) and above.attr in _NEUTRAL_METHODS


class _DataclassesModel(ParserModel):
    """The options that transformers' HfArgumentParser derives from a script's dataclasses.

    A dataclass of another module, such as TrainingArguments, makes the model incomplete. A single
    argument may name a file with all values.
    """

    def __init__(self, nodes: NodeIndex) -> None:
        super().__init__()
        calls = nodes.of_type(ast.Call)
        self._classes = {
            node.name: node
            for node in nodes.of_type(ast.ClassDef)
            for each in node.decorator_list[:1]
            if ast.unparse(each).partition("(")[0].endswith("dataclass")
            if len(node.decorator_list) == 1  # another decorator may add fields
        }
        self._enums = {node.name: _enum_values(node) for node in nodes.of_type(ast.ClassDef)}
        made = [call for call in calls if callee_name(call) in DATACLASS_PARSERS]
        self.parses = bool(made)
        reads = [call for call in calls if callee_name(call) in _PARSE_DATACLASSES]
        self.is_certain = len(made) == 1 and len(made[0].args) == 1 and not made[0].keywords
        self.is_certain = self.is_certain and not _modifies_argv(nodes)
        self.is_certain = self.is_certain and any(
            not call.args and not call.keywords and nodes.always_runs(call) for call in reads
        )
        self.is_complete = self.is_certain and len(reads) == 1
        self.is_complete = self.is_complete and not any(
            callee_name(call) == "add_argument" for call in calls
        )
        for call in made:
            listed = call.args[0] if call.args else None
            items = listed.elts if isinstance(listed, (ast.Tuple, ast.List)) else [listed]
            for item in items:
                self._read_class(item.id if isinstance(item, ast.Name) else "")
        names = [name for option in self.options for name in option.names]
        self.is_certain = self.is_certain and len(set(names)) == len(names)
        self.is_complete = self.is_complete and self.is_certain
        # Every TrainingArguments has these options.
        if not self.is_complete:
            self.options += _TRAINING_ARGUMENTS

    def _read_class(self, name: str) -> None:
        node = self._classes.get(name)
        if node is None:
            self.is_complete = False
            return
        for base in node.bases:
            self._read_class(ast.unparse(base))
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                self._read_field(field.target.id, field.annotation, field.value)

    def _read_field(self, name: str, annotation: ast.expr, value: ast.expr | None) -> None:
        given: dict[str | None, ast.expr] = {}
        required = value is None
        if isinstance(value, ast.Call):
            given = {keyword.arg: keyword.value for keyword in value.keywords}
            required = callee_name(value) == "field" and not given.keys() & {
                "default_factory",
                None,
            }
            required = required and "default" not in given and not value.args
        if constant_value(given.get("init")) is False or "ClassVar" in ast.unparse(annotation):
            return
        listed = annotation.slice if isinstance(annotation, ast.Subscript) else None
        choices = _literal_choices(listed) if "Literal[" in ast.unparse(annotation) else []
        text = re.sub(
            r"[\s'\"]|\bNone\||\|None\b|^(?:typing\.)?Optional\[(?=.*\]$)",
            "",
            ast.unparse(annotation),
        ).rstrip("]")
        default = given.get("default", value if not given else None)
        number = constant_value(default)
        metadata = given.get("metadata")
        notes = ast.unparse(metadata) if metadata is not None else ""
        if isinstance(metadata, ast.Dict):
            pairs = zip(metadata.keys, metadata.values, strict=True)
            listed = next((one for key, one in pairs if constant_value(key) == "choices"), None)
            choices = choices or _literal_choices(listed)
        has_aliases = "aliases" in notes or "aliases" in given
        self.is_complete = self.is_complete and not has_aliases
        names = [f"--{name}", *([f"--{name.replace('_', '-')}"] if "_" in name else [])]
        choices = choices or self._enums.get(text, [])
        text = "str" if choices and text not in ("int", "float") else text
        is_known = text in ("str", "int", "float") and ("choices" not in notes or bool(choices))
        if text == "bool":  # with the default True there is also --no_x
            names += [f"--no_{name}", f"--no-{name.replace('_', '-')}"]
        self.options.append(
            ParserOption(
                names=list(dict.fromkeys(names)),
                required=required and text != "bool" and not has_aliases,
                default=string_value(default),
                number=number if type(number) is int else None,
                choices=choices,
                type=text if is_known else "?",
                nargs=None if is_known else "?" if text == "bool" else "*",
                help=help_text(metadata) + help_text(given.get("help")),
            )
        )


def _enum_values(node: ast.ClassDef) -> list[str]:
    """Return the values of an enumeration if all are text; else []."""
    if not any(ast.unparse(base).endswith("Enum") for base in node.bases):
        return []
    values = [string_value(each.value) for each in node.body if isinstance(each, ast.Assign)]
    return values if all(values) else []


# Options of every TrainingArguments whose types are the same in all versions of transformers.
_TRAINING_ARGUMENTS = [
    *(
        ParserOption([f"--{name.replace('_', '-')}", f"--{name}"], type="int")
        for name in (
            *("per_device_train_batch_size", "gradient_accumulation_steps"),
            *("per_device_eval_batch_size", "max_steps", "save_total_limit"),
            "dataloader_num_workers",
        )
    ),
    ParserOption(["--seed"], type="int"),
    *(
        ParserOption([f"--{name.replace('_', '-')}", f"--{name}"], type="float")
        for name in (
            *("learning_rate", "weight_decay", "max_grad_norm", "num_train_epochs"),
            *("adam_beta1", "adam_beta2", "adam_epsilon", "warmup_ratio", "logging_steps"),
        )
    ),
    *(
        ParserOption(
            [f"--{name.replace('_', '-')}", f"--{name}"], choices=["no", "steps", "epoch", "best"]
        )
        for name in ("save_strategy", "logging_strategy")
    ),
]


def _modifies_argv(nodes: NodeIndex) -> bool:
    """Return True if the script may modify sys.argv."""
    words = [each for each in nodes.of_type(ast.Attribute) if each.attr == "argv"]
    above = [next(nodes.ancestors(each)) for each in words]
    return (
        any(not isinstance(each.ctx, ast.Load) for each in words)
        or any(isinstance(each, (ast.Attribute, ast.Assign)) for each in above)
        or any(isinstance(x, ast.Subscript) and not isinstance(x.ctx, ast.Load) for x in above)
    )


class _HydraModel(ParserModel):
    """The options of Hydra's parser (hydra/_internal/utils.py, get_args_parser, 1.1 to 1.3)."""

    def __init__(self, nodes: NodeIndex) -> None:
        super().__init__()
        mains = _find_hydra_mains(nodes)
        calls = nodes.of_type(ast.Call)
        self.is_certain = self.is_complete = (
            any(callee_name(call) in mains and nodes.always_runs(call) for call in calls)
            and not any(each.attr == "argv" for each in nodes.of_type(ast.Attribute))
            and not any(
                callee_name(call) in ("ArgumentParser", *DATACLASS_PARSERS) for call in calls
            )
        )
        if not mains:  # a script may use Hydra only to build objects; its parser is unknown then
            return
        self.positionals = [ParserOption(["overrides"], nargs="*")]
        self.options = [
            *(ParserOption(names, nargs=0) for names in _HYDRA_SWITCHES),
            *(ParserOption(names) for names in _HYDRA_OPTIONS),
            ParserOption(["--cfg", "-c"], choices=["job", "hydra", "all"]),
            ParserOption(["--info", "-i"], choices=_HYDRA_INFO, nargs="?"),
        ]


def _find_hydra_mains(nodes: NodeIndex) -> list[str]:
    """Return the names of the functions decorated with @hydra.main()."""
    functions = nodes.of_type(ast.FunctionDef)
    texts = [(one.name, ast.unparse(each)) for one in functions for each in one.decorator_list]
    return [name for name, text in texts if text.startswith("hydra.main(")]


def find_hydra_config(nodes: NodeIndex) -> tuple[str, str] | None:
    """Return the folder and name in @hydra.main(config_path="conf", config_name="config")."""
    names = [*nodes.of_type(ast.Name), *nodes.of_type(ast.alias)]
    if any("ConfigStore" in ast.unparse(each) for each in names):
        return None  # a part of the configuration is in Python
    made = [
        each
        for function in nodes.of_type(ast.FunctionDef)
        for each in function.decorator_list
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "hydra.main"
    ]
    if len(made) != 1:
        return None
    given: dict[str | None, Any] = dict(zip(("config_path", "config_name"), made[0].args))  # noqa: B905
    given |= {word.arg: word.value for word in made[0].keywords}
    path, name = (constant_value(given.get(key)) for key in ("config_path", "config_name"))
    if not isinstance(path, str) or not isinstance(name, str) or ":" in path:
        return None
    return path, name


class _ClickModel(ParserModel):
    """The options and arguments of click's commands, which are decorators of functions."""

    def __init__(self, nodes: NodeIndex) -> None:
        super().__init__()
        functions = nodes.of_type(ast.FunctionDef)
        commands: list[ast.FunctionDef] = []
        known = True
        for function in functions:
            made = [each for each in map(_decorator_call, function.decorator_list) if each]
            names = [callee_name(call) for call in made]
            if not {"command", "group"} & set(names):
                for decorator in made:  # the command's own decorator may be of another library
                    self._read(decorator, "")
                continue
            call = made[names.index("command" if "command" in names else "group")]
            owner = ast.unparse(call.func).rpartition(".")[0]
            is_part = "command" in names and owner not in ("click", "")
            command = _command_name(call, function) if is_part else ""
            self.commands += [command] if command else []
            commands.append(function)
            known = known and set(names) <= _CLICK_DECORATORS
            known = known and not any(word.arg == "context_settings" for word in call.keywords)
            for decorator in made:
                self._read(decorator, command)
        calls = nodes.of_type(ast.Call)
        entry = [c for c in calls if commands and callee_name(c) in {f.name for f in commands}]
        self.parses = bool(commands)
        # The call may catch SystemExit, or pass arguments of its own.
        self.is_certain = len(commands) == 1 and known
        self.is_certain = self.is_certain and any(
            not call.args and not call.keywords and nodes.always_runs(call) for call in entry
        )
        self.is_complete = self.is_certain
        self.abbreviates = False

    def _read(self, call: ast.Call, command: str) -> None:
        kind = callee_name(call)
        if kind == "version_option":
            self.options.append(ParserOption(["--version"], nargs=0, command=command))
        if kind not in ("option", "argument"):
            return
        words = [text for text in map(string_value, call.args) if text]
        given = {word.arg: word.value for word in call.keywords}
        default = given.get("default")
        number = constant_value(default)
        if kind == "argument":
            is_optional = constant_value(given.get("required")) is False or default is not None
            takes_any = "nargs" in given and ast.unparse(given["nargs"]) == "-1"
            needed = bool(words) and not is_optional and not takes_any
            self.positionals.append(
                ParserOption(words[:1] or ["argument"], required=needed, nargs="*", command=command)
            )
            return
        names = [part.strip() for word in words for part in word.split("/")]
        names = [name for name in names if name.startswith("-")]
        is_switch = any("/" in word for word in words) or (
            constant_value(given.get("is_flag")) is True or given.get("flag_value") is not None
        )
        is_switch = is_switch or constant_value(given.get("count")) is True
        is_prompt = given.get("prompt") is not None
        required = constant_value(given.get("required")) is True and default is None
        self.options.append(
            ParserOption(
                names,
                required=required and not is_prompt and "envvar" not in given,
                default=string_value(default),
                number=number if type(number) is int else None,
                nargs=0 if is_switch else None,
                help=help_text(given.get("help")),
                command=command,
                repeats=constant_value(given.get("multiple", ast.Constant(False))) is not False,
            )
        )


_CLICK_DECORATORS = frozenset(
    {"command", "group", "option", "argument", "version_option", "pass_context", "help_option"}
)


def _decorator_call(node: ast.expr) -> ast.Call | None:
    """Return a decorator as a call: @app.command is like @app.command()."""
    if isinstance(node, ast.Attribute):
        return ast.Call(func=node, args=[], keywords=[])
    return node if isinstance(node, ast.Call) else None


def _command_name(call: ast.Call, function: ast.FunctionDef) -> str:
    """Return the name of a command of click or typer."""
    given = {word.arg: word.value for word in call.keywords}
    name = string_value(next(iter(call.args), None)) or string_value(given.get("name"))
    return name or function.name.replace("_", "-")


class _TyperModel(ParserModel):
    """The options that typer derives from the parameters of functions."""

    def __init__(self, nodes: NodeIndex) -> None:
        super().__init__()
        self.is_certain = self.is_complete = self.abbreviates = False
        run = {
            ast.unparse(call.args[0])
            for call in nodes.of_type(ast.Call)
            if callee_name(call) == "run" and call.args and isinstance(call.args[0], ast.Name)
        }
        commands: list[tuple[ast.FunctionDef, str]] = []
        for function in nodes.of_type(ast.FunctionDef):
            made = [each for each in map(_decorator_call, function.decorator_list) if each]
            call = next((each for each in made if callee_name(each) == "command"), None)
            if call is not None:
                commands.append((function, _command_name(call, function)))
            elif function.name in run:
                commands.append((function, ""))
        self.parses = bool(commands)
        is_group = len(commands) > 1
        self.commands = [name for _, name in commands if name] if is_group else []
        for function, name in commands:
            for parameter, default in _with_defaults(function.args):
                self._read(parameter, default, name if is_group else "")

    def _read(self, parameter: ast.arg, default: ast.expr | None, command: str) -> None:
        note = parameter.annotation
        declared = default if _is_typer_info(default) else None
        if isinstance(note, ast.Subscript) and ast.unparse(note.value).endswith("Annotated"):
            parts = note.slice.elts if isinstance(note.slice, ast.Tuple) else []
            declared = next((each for each in parts if _is_typer_info(each)), declared)
            note = parts[0] if parts else None
        kind = ast.unparse(note) if note is not None else "str"
        kind = re.sub(r"^(?:typing\.)?Optional\[(.*)\]$|\s*\|\s*None$", r"\1", kind)
        if kind.endswith("Context"):
            return
        words: list[str] = []
        value: ast.expr | None = default
        if isinstance(declared, ast.Call):
            words = [text for text in map(string_value, declared.args) if text]
            if declared is default:  # typer.Option(default, ...)
                value = next(iter(declared.args), None)
                given = {word.arg: word.value for word in declared.keywords}
                value = given.get("default", value)
                words = [word for word in words if word.startswith("-")]
        required = value is None or constant_value(value) is Ellipsis
        is_option = (
            callee_name(declared) == "Option" if isinstance(declared, ast.Call) else (not required)
        )
        number = constant_value(value)
        if not is_option:
            self.positionals.append(
                ParserOption([parameter.arg], required=required, nargs="*", command=command)
            )
            return
        name = f"--{parameter.arg.replace('_', '-')}"
        names = [part.strip() for word in words for part in word.split("/") if part] or [name]
        if kind == "bool" and not words:
            names.append(f"--no-{name[2:]}")
        self.options.append(
            ParserOption(
                names,
                required=required,
                default=string_value(value),
                number=number if type(number) is int else None,
                type=kind if kind in ("str", "int", "float") else "?",
                nargs=0 if kind == "bool" else None,
                command=command,
                repeats=kind not in ("str", "int", "float", "bool"),
            )
        )


def _is_typer_info(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and callee_name(node) in ("Option", "Argument")


class _FireModel(ParserModel):
    """The options that fire derives from a function, a class or a dictionary of functions.

    Fire guesses the type of each value, and accepts ``-`` for ``_`` in names.
    """

    def __init__(self, nodes: NodeIndex) -> None:
        super().__init__()
        self.is_certain = self.is_complete = self.abbreviates = False
        tree = nodes.of_type(ast.Module)[0]
        functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
        classes = {one.name: one for one in tree.body if isinstance(one, ast.ClassDef)}
        calls = [call for call in nodes.of_type(ast.Call) if callee_name(call) == "Fire"]
        self.parses = bool(calls)
        if len(calls) != 1:
            return
        given = {keyword.arg: keyword.value for keyword in calls[0].keywords}
        component = next(iter(calls[0].args), given.get("component"))
        name = component.id if isinstance(component, ast.Name) else ""
        if isinstance(component, ast.Dict):
            for key, value in zip(component.keys, component.values, strict=True):
                function = functions.get(value.id) if isinstance(value, ast.Name) else None
                self._add_command(string_value(key), function)
        elif component is None:  # every name of the module is a command
            for function in functions.values():
                self._add_command(function.name, function)
        elif name in functions:
            self._read(functions[name], "")
        elif name in classes:
            for method in classes[name].body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    self._read(method, "")
                elif isinstance(method, ast.FunctionDef):
                    self._add_command(method.name, method)

    def _add_command(self, name: str, function: ast.FunctionDef | None) -> None:
        if name and not name.startswith("_"):
            self.commands.append(name)
            if function is not None:
                self._read(function, name)

    def _read(self, function: ast.FunctionDef, command: str) -> None:
        for parameter, default in _with_defaults(function.args):
            if parameter.arg in ("self", "cls"):
                continue
            number = constant_value(default)
            self.options.append(
                ParserOption(
                    [f"--{parameter.arg.replace('_', '-')}", f"--{parameter.arg}"],
                    required=default is None,
                    default=string_value(default),
                    number=number if type(number) is int else None,
                    type="?",
                    nargs="?" if isinstance(number, bool) else None,
                    command=command,
                )
            )


class _TyroModel(ParserModel):
    """The options that tyro derives from a dataclass or a function of the script."""

    def __init__(self, nodes: NodeIndex) -> None:
        super().__init__()
        self.is_certain = self.is_complete = self.abbreviates = False
        self._classes = {node.name: node for node in nodes.of_type(ast.ClassDef)}
        functions = {node.name: node for node in nodes.of_type(ast.FunctionDef)}
        calls = [
            call
            for call in nodes.of_type(ast.Call)
            if callee_name(call) == "cli" and call.args and isinstance(call.args[0], ast.Name)
        ]
        self.parses = bool(calls)
        for call in calls[:1]:
            name = call.args[0].id if isinstance(call.args[0], ast.Name) else ""
            if name in functions:
                for parameter, default in _with_defaults(functions[name].args):
                    self._read(parameter.arg, parameter.annotation, default, "")
            self._read_class(name, "", ())

    def _read_class(self, name: str, prefix: str, seen: tuple[str, ...]) -> None:
        node = self._classes.get(name)
        if node is None or name in seen:
            return
        for base in node.bases:
            self._read_class(ast.unparse(base), prefix, (*seen, name))
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                value = field.value
                if isinstance(value, ast.Call) and callee_name(value) == "field":
                    given = {keyword.arg: keyword.value for keyword in value.keywords}
                    # The value of a factory is unknown, but there is one.
                    value = given.get("default", given.get("default_factory"))
                self._read(field.target.id, field.annotation, value, prefix, (*seen, name))

    def _read(
        self,
        name: str,
        annotation: ast.expr | None,
        value: ast.expr | None,
        prefix: str,
        seen: tuple[str, ...] = (),
    ) -> None:
        text = ast.unparse(annotation) if annotation is not None else "str"
        if re.search(r"\b(ClassVar|Suppress|Fixed|Positional|arg\(|subcommand\()", text):
            return  # no option, or one with another name
        text = re.sub(r"^(?:typing\.)?Optional\[(.*)\]$|\s*\|\s*None$", r"\1", text)
        if text in self._classes and not _enum_values(self._classes[text]):
            self._read_class(text, f"{prefix}{name}.", seen)
            return
        number, full = constant_value(value), f"{prefix}{name}"
        names = [f"--{full}", f"--{full.replace('_', '-')}"]
        if text == "bool":
            head, _, last = full.replace("_", "-").rpartition(".")
            names.append(f"--{head}{'.' if head else ''}no-{last}")
        choices = (
            _literal_choices(annotation.slice)
            if text.startswith("Literal[") and isinstance(annotation, ast.Subscript)
            else []
        )
        self.options.append(
            ParserOption(
                list(dict.fromkeys(names)),
                required=value is None and text != "bool",
                default=string_value(value),
                number=number if type(number) is int else None,
                choices=choices,
                type=text if text in ("str", "int", "float") and number is not None else "?",
                nargs=0 if text == "bool" else None,
            )
        )


def _with_defaults(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """Yield a function's parameters with their defaults."""
    plain = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    yield from zip(plain, [*missing, *arguments.defaults], strict=True)
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)


PARSER_MODELS: Mapping[str, Callable[[NodeIndex], ParserModel]] = {
    ARGPARSE: _ArgparseModel,
    "transformers": _DataclassesModel,
    "hydra": _HydraModel,
    "click": _ClickModel,
    "typer": _TyperModel,
    "fire": _FireModel,
    "tyro": _TyroModel,
}
