"""What reads a script's command line, and what it takes, as far as the script's tree shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from msgspec import Struct

# ---- a script as a tree: its nodes by their types, what they stand in, and what they say

T = TypeVar("T", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef
# A name, and the function in which it means one thing; None: the module.
Scoped = tuple[ast.AST | None, str]
# What stands in one of these is not always done.
_PERHAPS = (
    *(ast.If, ast.Try, ast.For, ast.While, ast.IfExp, ast.BoolOp, ast.Lambda, ast.Match),
    getattr(ast, "TryStar", ast.Try),
)


class Nodes:
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
        self._left = self._first_ways_out()

    def of(self, kind: type[T]) -> list[T]:
        return self._by_type.get(kind, [])

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what a node stands in, the innermost first."""
        while node in self._above:
            node = self._above[node]
            yield node

    def function_around(self, node: ast.AST) -> Function | None:
        """Return the innermost function around a node; None: the module itself."""
        return next((each for each in self.around(node) if isinstance(each, Function)), None)

    def name_given(self, value: ast.expr) -> str:
        """Return the plain name that a value is assigned to; "" for any other use of it."""
        above = self._above[value]
        targets: list[ast.expr] = []
        if isinstance(above, ast.Assign) and above.value is value:
            targets = above.targets
        elif isinstance(above, ast.AnnAssign) and above.value is value:
            targets = [above.target]
        return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""

    def scoped(self, name: str, where: ast.AST) -> Scoped:
        """Return a name as it is in the function around a node, or in the module."""
        return self.function_around(where), name

    def is_one_of(self, names: Collection[Scoped], node: ast.expr) -> bool:
        """Return whether an expression is one of some names, where it means the same."""
        scopes = (None, *self.around(node))
        return isinstance(node, ast.Name) and any((scope, node.id) in names for scope in scopes)

    def _first_ways_out(self) -> dict[ast.AST | None, int]:
        """Return the line in which each function, or the module, may first be left as a success."""
        ways: list[ast.stmt | ast.expr] = [*self.of(ast.Return)]
        for call in self.of(ast.Call):
            code = call.args[0] if call.args else ast.Constant(0)
            if called(call) in ("exit", "_exit") and constant(code) == 0:
                ways.append(call)
        first: dict[ast.AST | None, int] = {}
        for way in sorted(ways, key=lambda way: -way.lineno):
            if not any(map(_asks_words, self.around(way))):
                first[self.function_around(way)] = way.end_lineno or way.lineno
        return first

    def is_made(self, call: ast.expr, seen: Collection[str] = ()) -> bool:
        """Return whether a call is made whenever the script is run, as far as can be seen.

        What depends on whether the first word is a file counts as made.
        """
        if self._left.get(self.function_around(call), call.lineno) < call.lineno:
            return False
        for node in self.around(call):
            if isinstance(node, _PERHAPS) and not (is_main_guard(node) or _asks_words(node)):
                return False
            if isinstance(node, ast.With) and "suppress(" in ast.unparse(node.items[0]):
                return False
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                above = self._above[node]
                is_init = node.name == "__init__" and isinstance(above, ast.ClassDef)
                name = above.name if is_init and isinstance(above, ast.ClassDef) else node.name
                calls = [each for each in self.of(ast.Call) if called(each) == name]
                more = (*seen, name)
                return name not in seen and any(self.is_made(each, more) for each in calls)
        return True

    def is_called(self, function: ast.expr) -> bool:
        above = self._above[function]
        return isinstance(above, ast.Call) and above.func is function


def _asks_words(node: ast.AST) -> bool:
    """Return whether a node asks for a first word that is no option, as ``sys.argv[1]``."""
    test = ast.unparse(node.test) if isinstance(node, ast.If) else ""
    return "argv" in test and "'-" not in test


def called(call: ast.Call) -> str:
    """Name what is called, by its last part: ``argparse.ArgumentParser`` is ArgumentParser."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def constant(node: ast.expr | None) -> Any:
    """Return the value of a constant; None for all else."""
    return node.value if isinstance(node, ast.Constant) else None


def text_of(node: ast.expr | None) -> str:
    """Return the text that an expression is, also as Path("..."); "" for all else."""
    if isinstance(node, ast.Call) and called(node) == "Path" and len(node.args) == 1:
        node = node.args[0]
    value = constant(node)
    return value if isinstance(value, str) else ""


def help_text(node: ast.expr | None) -> str:
    """Return the text of a help, of which only parts may be written out."""
    if node is None:
        return ""
    parts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return " ".join(part for part in parts if isinstance(part, str))


def is_main_guard(node: ast.AST) -> bool:
    """Return whether a node is ``if __name__ == "__main__":``."""
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)


# ---- what reads its command line

# What reads a command line decides how far its options can be known.
ARGPARSE = "argparse"
DATACLASSES = {"HfArgumentParser": "transformers", "TrlParser": "transformers"}
_HYDRA_SWITCHES = (
    ["--help", "-h"], ["--hydra-help"], ["--version"], ["--resolve"], ["--run", "-r"],
    ["--multirun", "-m"], ["--shell-completion", "-sc"],
)  # fmt: skip
_HYDRA_OPTIONS = (
    ["--package", "-p"], ["--config-path", "-cp"], ["--config-name", "-cn"],
    ["--config-dir", "-cd"], ["--experimental-rerun"],
)  # fmt: skip
_HYDRA_INFO = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
_PARSE_DATACLASSES = ("parse_args_into_dataclasses", "parse_args_and_config")
# argparse.REMAINDER and PARSER: an argument takes the rest of the command line.
_REST = ("...", "A...")
_READS = ("parse_args", "parse_known_args")
_SWITCHES = ("store_true", "store_false", "store_const", "append_const", "count", "version", "help")
# Keywords of ArgumentParser that leave its options as add_argument() defines them.
_PLAIN_KEYWORDS = frozenset(
    {"prog", "description", "epilog", "formatter_class", "usage", "add_help", "argument_default"}
    | {"suggest_on_error", "color"}
)
# Methods of a parser and of its groups that change nothing in what it takes.
_HARMLESS = frozenset(
    {"add_argument", "add_argument_group", "add_mutually_exclusive_group", "error"}
    | {"parse_args", "parse_known_args"}
    | {"set_defaults", "get_default", "print_help", "print_usage", "format_help", "exit"}
    | {"format_usage", "description", "epilog", "usage"}
)


class Option(Struct, frozen=True):
    """An option of a script, or an argument without a dash: its spellings.

    ``required``: argparse stops without it. ``default`` is a text, ``number`` a whole number that
    the script gives as default; "" and None where it is anything else, or not known. ``choices``
    are those written out in the script; [] where one is not. ``type`` is str, int or float, "?"
    where it is not known what the script makes of a value. ``nargs`` is argparse's; 0: a switch.
    ``help`` is the text that describes it to users.
    """

    names: list[str]
    required: bool = False
    default: str = ""
    number: int | None = None
    choices: list[str] = []
    type: str = "str"
    nargs: int | str | None = None
    help: str = ""


class Parser:
    """What a parser takes; see ScriptFacts."""

    def __init__(self) -> None:
        self.options: list[Option] = []
        self.positionals: list[Option] = []
        self.abbreviates = self.certain = self.plain = True


class _Argparse(Parser):
    """The options that a script gives argparse; ``plain``: these are all."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__()
        calls = nodes.of(ast.Call)
        self._nodes = nodes
        made = [call for call in calls if called(call) == "ArgumentParser"]
        self._expect(len(made) == 1 and _is_argparses(nodes, made[0].func))
        self._expect(not _hydra_mains(nodes))  # which reads the command line too
        self._expect(not any(called(call) == "exec" for call in calls))  # of text with more options
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
                self.options += [
                    Option(["--deepscale", "--deepspeed"], nargs=0),
                    Option(["--deepscale_config", "--deepspeed_config"]),
                ]
            elif name in _READS:
                is_known = [_is_command_line(a) or nodes.is_one_of(handed_on, a) for a in call.args]
                self._expect(not call.keywords and all(is_known))
                self.plain = self.plain and name == "parse_args"
        # What it refuses may be caught, and it may never be asked.
        self._expect(any(called(call) in _READS and nodes.is_made(call) for call in calls))
        names = [name for option in self.options for name in option.names]
        self._expect(len(set(names)) == len(names))  # else which of the two counts?
        self._follow_names(made)

    def _expect(self, certain: bool) -> None:
        self.certain = self.certain and certain
        self.plain = self.plain and certain

    def _read_option(self, call: ast.Call) -> None:
        # Who keeps what it returns may change it: action.choices = list(MODELS).
        self._expect(isinstance(next(self._nodes.around(call)), ast.Expr))
        names = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        known = [name for name in names if isinstance(name, str)]
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        self._expect(len(known) == len(call.args) and None not in keywords)
        # What is not written out may be argparse.REMAINDER.
        given = keywords.get("nargs")
        nargs = constant(given)
        self._expect(isinstance(given, ast.Constant | None) and nargs not in _REST)
        flags = [name for name in known if name.startswith("-")]
        default, action = keywords.get("default"), keywords.get("action")
        number, doing = constant(default), constant(action)
        if action is not None and ast.unparse(action).endswith("BooleanOptionalAction"):
            flags += [f"--no-{name[2:]}" for name in known if name.startswith("--")]
            nargs = 0
        elif doing in _SWITCHES:
            nargs = 0
        else:  # an action of the script's own may take any number of values
            self._expect(action is None or doing in ("store", "append", "extend"))
        is_needed = bool(known) and not flags and nargs not in ("?", "*", 0)
        required = constant(keywords.get("required")) is True or is_needed
        option = Option(
            names=flags or known,
            required=required and self._nodes.is_made(call) and not self._is_late(call),
            default=text_of(default),
            number=number if type(number) is int else None,
            choices=_choices(keywords.get("choices")),
            type=_type(keywords.get("type")),
            nargs=nargs,
            help=help_text(keywords.get("help")),
        )
        if flags:
            self.options.append(option)
        elif known:
            self._expect(self._nodes.is_made(call) and not self._is_late(call))
            self.positionals.append(option)

    def _is_late(self, call: ast.Call) -> bool:
        """Return whether the command line was read before, where this option is added."""
        here = self._nodes.function_around(call)
        reads = (each for each in self._nodes.of(ast.Call) if called(each) in _READS)
        lines = [each.lineno for each in reads if self._nodes.function_around(each) is here]
        return bool(lines) and max(lines) < call.lineno

    def _follow_names(self, made: list[ast.Call]) -> None:
        """Expect that nothing else happens to a parser, or to the arguments that it reads."""
        nodes = self._nodes
        owners, makers = _owners(nodes, made)
        # As in `args = make_parser(); args = args.parse_args()`: from there it is no parser.
        ends = {
            nodes.scoped(nodes.name_given(call), call): call.lineno
            for call in nodes.of(ast.Call)
            if called(call) in _READS
        }
        for attribute in nodes.of(ast.Attribute):
            self._expect(attribute.attr not in ("add_subparsers", "required"))
            is_set = isinstance(attribute.ctx, ast.Store)
            self._expect(not (is_set and attribute.attr in ("error", "exit", *_READS)))
            if attribute.attr == "add_argument":
                self._expect(nodes.is_called(attribute) or bool(nodes.name_given(attribute)))
            elif attribute.attr == "argv":
                calls = (node for node in nodes.around(attribute) if isinstance(node, ast.Call))
                self._expect(any(called(call) in _READS for call in calls))
        for start in nodes.of(ast.ImportFrom):
            self._expect("argv" not in [alias.name for alias in start.names])
        # As in mock.patch.object(sys, "argv", [...]).
        self._expect("argv" not in map(constant, nodes.of(ast.Constant)))
        for name in nodes.of(ast.Name):
            if name.lineno > ends.get(nodes.scoped(name.id, name), name.lineno):
                continue
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


def _is_argparses(nodes: Nodes, function: ast.expr) -> bool:
    """Return whether a parser's class is argparse's own, and not one that is called like it."""
    if isinstance(function, ast.Attribute):
        names = [alias for plain in nodes.of(ast.Import) for alias in plain.names]
        name = ast.unparse(function.value)
        return {each.name for each in names if name in (each.asname, each.name)} == {ARGPARSE}
    classes = [node.name for node in nodes.of(ast.ClassDef)]
    sources = [
        node.module
        for node in nodes.of(ast.ImportFrom)
        if "ArgumentParser" in [alias.asname or alias.name for alias in node.names]
    ]
    return sources == [ARGPARSE] and "ArgumentParser" not in classes


def _type(node: ast.expr | None) -> str:
    """Return str, int or float; "?" for a function that may take any text."""
    name = "str" if node is None else ast.unparse(node)
    return name if name in ("str", "int", "float") else "?"


def _choices(node: ast.expr | None) -> list[str]:
    """Return choices that are all written out; [] for others."""
    listed = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else []
    known = [str(item.value) for item in listed if isinstance(item, ast.Constant)]
    return known if len(known) == len(listed) else []


def _owners(nodes: Nodes, made: list[ast.Call]) -> tuple[set[Scoped], set[str]]:
    """Find names of the parser and of its groups, and of the functions that return them."""
    groups = ("add_argument_group", "add_mutually_exclusive_group")
    owners: set[Scoped] = set()
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


def _handed_on(nodes: Nodes) -> set[Scoped]:
    """Find names that are the command line, as argv of ``def main(argv=None)`` in ``main()``."""
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


def _is_harmless(above: ast.AST) -> bool:
    return isinstance(above, ast.Attribute) and above.attr in _HARMLESS


class _Dataclasses(Parser):
    """The options that transformers' HfArgumentParser makes of the dataclasses of a script.

    One of another module has options that are not seen (TrainingArguments, for one): then what is
    seen is certain, and not all. A lone word may name a file with all of them.
    """

    def __init__(self, nodes: Nodes) -> None:
        super().__init__()
        calls = nodes.of(ast.Call)
        self._classes = {
            node.name: node
            for node in nodes.of(ast.ClassDef)
            for each in node.decorator_list[:1]
            if ast.unparse(each).partition("(")[0].endswith("dataclass")
            if len(node.decorator_list) == 1  # another one may add fields
        }
        made = [call for call in calls if called(call) in DATACLASSES]
        reads = [call for call in calls if called(call) in _PARSE_DATACLASSES]
        self.certain = len(made) == 1 and len(made[0].args) == 1 and not made[0].keywords
        self.certain = self.certain and not _changes_words(nodes)
        self.certain = self.certain and any(
            not call.args and not call.keywords and nodes.is_made(call) for call in reads
        )
        self.plain = self.certain and len(reads) == 1
        self.plain = self.plain and not any(called(call) == "add_argument" for call in calls)
        for call in made:
            listed = call.args[0] if call.args else None
            items = listed.elts if isinstance(listed, (ast.Tuple, ast.List)) else [listed]
            for item in items:
                self._read_class(item.id if isinstance(item, ast.Name) else "")
        names = [name for option in self.options for name in option.names]
        self.certain = self.certain and len(set(names)) == len(names)
        self.plain = self.plain and self.certain
        # What every TrainingArguments has.
        if not self.plain:
            self.options.append(Option(["--per_device_train_batch_size"], type="?"))
            self.options.append(Option(["--gradient_accumulation_steps"], type="?"))

    def _read_class(self, name: str) -> None:
        node = self._classes.get(name)
        if node is None:
            self.plain = False
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
            required = called(value) == "field" and not given.keys() & {"default_factory", None}
            required = required and "default" not in given and not value.args
        if constant(given.get("init")) is False or "ClassVar" in ast.unparse(annotation):
            return
        listed = annotation.slice if isinstance(annotation, ast.Subscript) else None
        choices = _choices(listed) if "Literal[" in ast.unparse(annotation) else []
        text = re.sub(r"[\s'\"]|\bNone\||\|None\b|^(?:typing\.)?Optional\[(?=.*\]$)", "",
                      ast.unparse(annotation)).rstrip("]")  # fmt: skip
        default = given.get("default", value if not given else None)
        number = constant(default)
        metadata = given.get("metadata")
        notes = ast.unparse(metadata) if metadata is not None else ""
        has_aliases = "aliases" in notes or "aliases" in given
        self.plain = self.plain and not has_aliases
        names = [f"--{name}", *([f"--{name.replace('_', '-')}"] if "_" in name else [])]
        text = "str" if choices else text
        is_known = text in ("str", "int", "float") and "choices" not in notes
        if text == "bool":  # with a default of True there is a --no_x, too
            names += [f"--no_{name}", f"--no-{name.replace('_', '-')}"]
        self.options.append(
            Option(
                names=list(dict.fromkeys(names)),
                required=required and text != "bool" and not has_aliases,
                default=text_of(default),
                number=number if type(number) is int else None,
                choices=choices,
                type=text if is_known else "?",
                nargs=None if is_known else "?" if text == "bool" else "*",
                help=help_text(metadata) + help_text(given.get("help")),
            )
        )


def _changes_words(nodes: Nodes) -> bool:
    """Return whether sys.argv is more than looked at."""
    words = [each for each in nodes.of(ast.Attribute) if each.attr == "argv"]
    above = [next(nodes.around(each)) for each in words]
    return (
        any(not isinstance(each.ctx, ast.Load) for each in words)
        or any(isinstance(each, (ast.Attribute, ast.Assign)) for each in above)
        or any(isinstance(x, ast.Subscript) and not isinstance(x.ctx, ast.Load) for x in above)
    )


class _Hydra(Parser):
    """What Hydra's own argparse takes (hydra/_internal/utils.py, get_args_parser, 1.1 to 1.3)."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__()
        mains = _hydra_mains(nodes)
        calls = nodes.of(ast.Call)
        self.certain = self.plain = (
            any(called(call) in mains and nodes.is_made(call) for call in calls)
            and not any(each.attr == "argv" for each in nodes.of(ast.Attribute))
            and not any(called(call) in ("ArgumentParser", *DATACLASSES) for call in calls)
        )
        if not mains:  # it only builds objects by Hydra, say; what reads its words is not known
            return
        self.positionals = [Option(["overrides"], nargs="*")]
        self.options = [
            *(Option(names, nargs=0) for names in _HYDRA_SWITCHES),
            *(Option(names) for names in _HYDRA_OPTIONS),
            Option(["--cfg", "-c"], choices=["job", "hydra", "all"]),
            Option(["--info", "-i"], choices=_HYDRA_INFO, nargs="?"),
        ]


def _hydra_mains(nodes: Nodes) -> list[str]:
    """Name the functions that Hydra calls with what it read."""
    functions = nodes.of(ast.FunctionDef)
    texts = [(one.name, ast.unparse(each)) for one in functions for each in one.decorator_list]
    return [name for name, text in texts if text.startswith("hydra.main(")]


READERS: Mapping[str, Callable[[Nodes], Parser]] = {
    ARGPARSE: _Argparse,
    "transformers": _Dataclasses,
    "hydra": _Hydra,
}
