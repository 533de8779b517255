"""Parse an sbatch script: its directives, commands, assignments and variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct, field

from hpcrun.lint.directives import COMPONENT, Directive, parse_directives
from hpcrun.lint.shell import Parsed, bash_parser
from hpcrun.text import is_whole_number

# In a word that only bash knows at run time, these characters enclose the name of the variable.
# They cannot occur in a script, and tree-sitter treats them as characters of a word.
OPEN, CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")
# Inside a mark, characters with a meaning for the shell are replaced.
_ENCODED = {code: chr(0xE100 + code) for code in range(128) if not re.match(r"\w", chr(code))}
_DECODED = {ord(new): chr(old) for old, new in _ENCODED.items()}
# Statements whose assignments may or may not happen.
_BRANCHES = {
    *(
        "if_statement",
        "for_statement",
        "while_statement",
        "case_statement",
        "c_style_for_statement",
    ),
    *("function_definition", "subshell", "command_substitution", "process_substitution"),
}
# Assignments in arithmetic: ``n += 1``, ``n++`` and ``--n``, but not ``n == 1``.
_ARITHMETIC = re.compile(
    r"(?<![\w$])([A-Za-z_]\w*)\s*(?:\[[^]]*\]\s*)?(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))"
    r"|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)
_QUOTED = ("string", "raw_string", "ansi_c_string")
_READING = {"read", "mapfile", "readarray", "getopts"}
# Files that set up an environment, and no variables of the script.
_ENVIRONMENT_FILE = re.compile(
    r"(^|/)activate$|\.(bashrc|bash_profile|profile|zshrc)$|/etc/|conda\.sh$|/init/(ba)?sh$"
)
_SUMS = re.compile(r"[0-9+*/()% -]+")


def mark(text: str) -> str:
    """Return the mark for an unknown variable or command, as a single word."""
    text = re.sub(f"[{OPEN}{CLOSE}]", "", text)
    return OPEN + text.translate(_ENCODED) + CLOSE


def unknown_parts(text: str) -> list[str]:
    """Return the variables and commands of which a text contains marks.

    >>> unknown_parts(f"--x={mark('A')}-{mark('$(date +%s)')}")
    ['A', '$(date +%s)']
    """
    return [one.translate(_DECODED) for one in _MARK.findall(text)]


def show(text: str) -> str:
    """Return a text as a shell would show it: with ``$NAME`` for unknown variables.

    >>> show(f"a-{mark('N')}-{mark('$(date)')}")
    'a-$N-$(date)'
    """

    def plain(found: re.Match[str]) -> str:
        name = found[1].translate(_DECODED)
        return f"${name}" if re.fullmatch(r"\w+", name) else name

    return _MARK.sub(plain, text)


class Word(Struct, frozen=True):
    """A word of a command after expansion of constant variables.

    Attributes:
        text: The value. Unknown variables are marked, see ``OPEN``; ``$`` is a literal dollar sign.
        start: The first byte of the word in the script from which it stems.
        end: The byte after its last one.
        quoted: The word is quoted, so that bash does not split it.
    """

    text: str
    start: int
    end: int
    quoted: bool = False

    @property
    def constant(self) -> bool:
        """True if the value does not depend on the job."""
        return OPEN not in self.text

    @property
    def unknown(self) -> list[str]:
        """The variables and commands of which the value is unknown."""
        return unknown_parts(self.text)


class Command(Struct):
    """A simple command.

    Attributes:
        words: Its name and arguments.
        prefix: The assignments before the name, e.g. ``A=1 command``.
        pipes_into: The names of the commands that read its output, in order.
        background: True for ``command &``.
        branch: The command is in a branch, a loop or a function.
        substituted: The command is in ``$(...)``.
        guarded: A failure is handled: ``command || ...``, or the condition of an ``if``.
        redirects: Targets of redirections, e.g. ``>log``.
    """

    words: list[Word]
    start: int
    end: int
    prefix: list[Assignment] = []
    pipes_into: list[str] = []
    background: bool = False
    branch: bool = False
    substituted: bool = False
    guarded: bool = False
    function: bool = False
    redirects: list[str] = []
    depends: str = ""

    @property
    def name(self) -> str:
        """The name of the command."""
        return self.words[0].text if self.words else ""

    @property
    def args(self) -> list[str]:
        """The arguments."""
        return [word.text for word in self.words[1:]]


class Assignment(Struct):
    """An assignment to a variable, or to an array.

    Attributes:
        value: The expanded value.
        items: The elements of an array; None for other variables.
        branch: The assignment is in a branch, a loop or a function.
    """

    name: str
    value: Word
    start: int
    end: int
    exported: bool = False
    branch: bool = False
    prefix: bool = False
    items: list[Word] | None = None


class Use(Struct, frozen=True):
    """A place where the script expands a variable.

    Attributes:
        default: The expansion has a default or a test, as ``${X:-1}``.
    """

    name: str
    start: int
    end: int
    default: bool = False
    substituted: bool = False


class Origin(Struct, frozen=True):
    """The file and the line from which a line of a script with inserted files stems."""

    file: str
    line: int


class Script(Struct):
    """A parsed sbatch script.

    Attributes:
        directives: The options in effect: those above the first command. Of a heterogeneous job,
            those of the first component.
        data: The bytes that are parsed; characters may have been inserted, see ``inserted``.
        inserted: The positions of characters in ``data`` that the text does not have.
        exported: The values of exported variables at the end, as far as they are known.
        commands: All commands in their order.
        wrappers: The words of the command to which a function passes its arguments, ``"$@"``.
        origins: Where each line stems from; empty if they are those of one file.
    """

    text: str
    name: str
    data: bytes
    inserted: list[int] = []
    directives: list[Directive] = []
    late: list[Directive] = []
    commands: list[Command] = []
    assignments: list[Assignment] = []
    uses: list[Use] = []
    functions: set[str] = set()
    wrappers: dict[str, list[str]] = {}
    exported: dict[str, str] = {}
    tree: Any = None
    cache: dict[str, Any] = field(default_factory=dict)
    origins: Sequence[Origin] = ()

    def option(self, name: str) -> Directive | None:
        """Return the directive in effect for an option of sbatch: the last one."""
        found = [one for one in self.directives if one.option == name]
        return found[-1] if found else None

    def value(self, name: str) -> str:
        """Return the value of an option, or ""."""
        one = self.option(name)
        return one.value if one is not None else ""

    def number(self, name: str) -> int | None:
        """Return the value of an option if it is a whole number."""
        value = self.value(name)
        return int(value) if is_whole_number(value) else None

    def has(self, name: str) -> bool:
        """Return True if the script sets an option of sbatch."""
        return self.option(name) is not None

    def line_of(self, start: int) -> int:
        """Return the number of the line of a byte."""
        return self.data.count(b"\n", 0, start) + 1

    def describe_line(self, start: int, place: int) -> str:
        """Return "line N" for a byte, and its file if that is not the file of another place."""
        line = self.line_of(start)
        if not self.origins:
            return f"line {line}"
        origin, other = self.origins[line - 1], self.origins[self.line_of(place) - 1]
        file = "" if origin.file == other.file else f" of {origin.file}"
        return f"line {origin.line}{file}"

    def column_of(self, start: int) -> int:
        """Return the number of the column of a byte, in characters."""
        begin = self.data.rfind(b"\n", 0, start) + 1
        braces = sum(begin <= at < start for at in self.inserted)
        return len(self.data[begin:start].decode("utf-8", "replace")) + 1 - braces

    def text_position(self, start: int) -> int:
        """Return the position in the text of a byte of ``data``."""
        return start - sum(at < start for at in self.inserted)

    def last_assignment(self, name: str) -> Assignment | None:
        """Return the last assignment to a variable."""
        found = [one for one in self.assignments if one.name == name]
        return found[-1] if found else None

    def exports(self, name: str) -> bool:
        """Return True if the script assigns a variable."""
        return any(one.name == name for one in self.assignments)

    def uses_of(self, name: str) -> list[Use]:
        """Return the expansions of a variable."""
        return [one for one in self.uses if one.name == name]

    @property
    def shebang(self) -> str:
        """The first line."""
        return self.text.split("\n", 1)[0]

    @property
    def is_shell(self) -> bool:
        """False for a script in another language, e.g. Python or csh: only its directives count."""
        interpreter = self.shebang.removeprefix("#!").strip()
        return not self.text.startswith("#!") or bool(
            re.match(r"(\S*/)?(env\s+(-\S+\s+)*)?(\S*/)?(ba|da|k|z)?sh\b", interpreter)
        )

    @property
    def is_login_shell(self) -> bool:
        """True if bash reads the profile, e.g. ``#!/bin/bash -l``."""
        return bool(re.search(r"\s(-\w*l|--login)\b", self.shebang))


def parse_script(
    text: str,
    name: str = "script",
    *,
    variables: Mapping[str, str] | None = None,
    arguments: Sequence[str] | None = None,
    keeps_expansions: bool = False,
) -> Script:
    """Parse a script.

    Args:
        variables: Values of variables at the start of the script.
        arguments: The arguments of the script, if they are known.
        keeps_expansions: A mark for an unknown expansion has its whole text, as in
            ``${NAME:-default}``, not only the name.

    >>> script = parse_script("#!/bin/bash\\n#SBATCH -N 2\\nN=4\\nsrun torchrun --nproc $N t.py\\n")
    >>> script.number("nodes"), script.commands[0].args
    (2, ['torchrun', '--nproc', '4', 't.py'])
    """
    data = text.encode("utf-8", "surrogateescape")
    script = Script(text=text, name=name, data=data)
    if script.is_shell:
        script.data, script.inserted, script.tree = _parse_bash(data)
        data = script.data
    script.directives, script.late = parse_directives(data)
    if component := COMPONENT.search(data):
        first = component.start()
        script.directives = [one for one in script.directives if one.start < first]
    if not script.is_shell:
        return script
    reader = _Reader(script, keeps_expansions=keeps_expansions)
    reader.known |= variables or {}
    if arguments is not None:
        reader.set_arguments(arguments)
    reader.read(script.tree.root_node)
    names = {one.name for one in script.assignments if one.exported and not one.prefix}
    script.exported = {
        name: value for name in names if (value := reader.known.get(name)) is not None
    }
    return script


def _parse_bash(data: bytes) -> tuple[bytes, list[int], Any]:
    """Return a script with what the grammar needs, the positions of that, and the tree.

    tree-sitter-bash 0.25 splits an unquoted ``$A/$B/c`` into the words ``$A/$`` and ``B/c``; with
    ``${B}`` it does not. It also joins a line ``A=1 B=2`` with the command below it.
    """
    inserted: list[int] = []
    tree = bash_parser().parse(data)
    while names := _find_split_names(data, tree.root_node):
        for start, end in reversed(names):
            data = b"%s{%s}%s" % (data[:start], data[start:end], data[end:])
            inserted = [at + 2 if at >= end else at + 1 if at >= start else at for at in inserted]
            inserted += [start, end + 1]
        tree = bash_parser().parse(data)
    while ends := _find_joined_lines(data, tree.root_node):
        for end in reversed(ends):
            data = b"%s;%s" % (data[:end], data[end:])
            inserted = [at + 1 if at >= end else at for at in inserted]
            inserted.append(end)
        tree = bash_parser().parse(data)
    return data, sorted(inserted), tree


def _find_joined_lines(data: bytes, root: Parsed) -> list[int]:
    """Return the ends of lines ``A=1 B=2`` that the grammar joins with the command below them."""
    found: list[int] = []
    nodes = [root]
    while nodes:
        node = nodes.pop()
        nodes += node.children
        if node.type != "command":
            continue
        for before, after in pairwise(node.children):
            between = data[before.end_byte : after.start_byte]
            if before.type == "variable_assignment" and re.fullmatch(
                rb"[ \t]*(#[^\n]*)?\n\s*", between
            ):
                found.append(before.end_byte)
                break
    return sorted(found)


def _find_split_names(data: bytes, root: Parsed) -> list[tuple[int, int]]:
    """Return the places of names that the grammar has split from their dollar sign."""
    found: list[tuple[int, int]] = []
    nodes = [root]
    while nodes:
        node = nodes.pop()
        nodes += node.children
        last = node.children[-1] if node.type == "concatenation" else None
        if last is not None and last.type == "$":
            end = node.end_byte
            if name := re.match(rb"[A-Za-z_]\w*|[0-9@*#?$!-]", data[end : end + 200]):
                found.append((end, end + name.end()))
    return sorted(found)


class _Reader:
    """Reads a syntax tree in the order in which bash runs it."""

    def __init__(self, script: Script, *, keeps_expansions: bool = False) -> None:
        self.script = script
        self.keeps_expansions = keeps_expansions
        # The value of each variable; None after assignments of which only one happens.
        self.known: dict[str, str | None] = {}
        self.arrays: dict[str, list[Word] | None] = {}
        self.unknown_arrays: set[str] = set()
        # Variables with attributes, of which bash changes the values: declare -i.
        self.attributed: set[str] = set()
        # The variables that each function assigns, and the commands that it runs.
        self.effects: dict[str, tuple[set[str], set[str]]] = {}

    def set_arguments(self, arguments: Sequence[str]) -> None:
        """Set ``$1``, ``$@`` and so on; a missing argument is empty, as for bash."""
        self.known |= {str(index): "" for index in range(1, 10)}
        self.known |= {str(index): text for index, text in enumerate(arguments, 1)}
        self.known |= {"#": str(len(arguments)), "*": " ".join(arguments)}
        self.known["@"] = " ".join(arguments)
        self.arrays["@"] = [Word(text, 0, 0, True) for text in arguments]

    def read(self, root: Parsed) -> None:
        self.statements(root, branch=False, function=False)

    def text(self, node: Parsed) -> str:
        return self.script.data[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")

    def statements(self, node: Parsed, **place: Any) -> None:
        children = node.children
        for index, child in enumerate(children):
            follows = children[index + 1].type if index + 1 < len(children) else ""
            self.statement(child, background=follows == "&", **place)

    def statement(
        self,
        node: Parsed,
        *,
        background: bool = False,
        branch: bool = False,
        function: bool = False,
        substituted: bool = False,
        guarded: bool = False,
        pipes_into: Sequence[str] = (),
        redirects: Sequence[str] = (),
        depends: str = "",
    ) -> None:
        place: dict[str, Any] = {
            "branch": branch,
            "function": function,
            "substituted": substituted,
        }
        kind = node.type
        if kind == "command":
            self.command(
                node,
                background=background,
                guarded=guarded,
                pipes_into=list(pipes_into),
                redirects=list(redirects),
                depends=depends,
                **place,
            )
        elif kind == "variable_assignment":
            self.assignment(node, exported=False, **place)
        elif kind == "variable_assignments":
            for child in node.children:
                self.assignment(child, exported=False, **place)
        elif kind in ("declaration_command", "unset_command"):
            if kind == "unset_command":
                for child in node.children[1:]:
                    self.forget(self.text(child))
            flags = [self.text(one) for one in node.children[1:] if one.type == "word"]
            exported = self.text(node.children[0]) == "export" or any(
                re.match(r"-\w*x", flag) for flag in flags
            )
            is_declare = self.text(node.children[0]) in ("declare", "typeset", "local")
            computes = is_declare and any(re.match(r"-\w*[ilunc]", flag) for flag in flags)
            for child in node.children[1:]:
                if computes and child.type in ("variable_assignment", "variable_name"):
                    name = re.match(r"\w*", self.text(child))
                    self.attributed |= {name[0]} if name else set()
                if child.type == "variable_assignment":
                    self.assignment(child, exported=exported, **place)
                elif computes and child.type == "variable_name":
                    start, end = node.start_byte, node.end_byte
                    self.assign_unknown(self.text(child), start, end, branch)
                else:
                    self.expand_inside(child, substituted)
        elif kind == "redirected_statement":
            targets = [self.redirect(one, substituted) for one in node.children[1:]]
            body = node.children[0]
            bare = body.type in ("file_redirect", "herestring_redirect", "heredoc_redirect")
            self.statement(
                body,
                background=background,
                guarded=guarded,
                pipes_into=pipes_into,
                redirects=[*redirects, *(one for one in targets if one)],
                depends=depends,
                **place,
            )
            if bare:
                self.redirect(body, substituted)
        elif kind == "pipeline":
            parts = [one for one in node.children if one.is_named]
            names = [self.first_name(one) for one in parts]
            for index, part in enumerate(parts):
                self.statement(
                    part,
                    background=background,
                    guarded=guarded,
                    pipes_into=[*names[index + 1 :], *pipes_into],
                    depends=depends,
                    **place,
                )
        elif kind == "list":
            first, last = node.children[0], node.children[-1]
            operator = self.text(node.children[1])
            self.statement(
                first,
                guarded=guarded or operator == "||",
                background=background,
                pipes_into=pipes_into,
                depends=depends,
                **place,
            )
            self.statement(
                last,
                guarded=guarded,
                background=background,
                pipes_into=pipes_into,
                depends=operator,
                **{**place, "branch": branch or operator == "||" or self.may_skip(first, last)},
            )
        elif kind == "function_definition":
            word = node.child_by_field_name("name")
            if word is not None:
                self.script.functions.add(self.text(word))
            first, before = len(self.script.commands), len(self.script.assignments)
            self.statements(node, branch=True, function=True, substituted=substituted)
            if word is not None:
                inside = self.script.assignments[before:]
                assigned = {one.name for one in inside if not one.prefix}
                calls = {one.name for one in self.script.commands[first:]}
                self.effects[self.text(word)] = assigned, calls
            passing = [
                [each.text for each in one.words]
                for one in self.script.commands[first:]
                if any(each.text == mark("@") for each in one.words[1:])
            ]
            if word is not None and len(passing) == 1:
                self.script.wrappers[self.text(word)] = passing[0]
        elif kind in ("command_substitution", "process_substitution"):
            self.statements(node, branch=True, function=function, substituted=True)
        elif kind in _BRANCHES or kind in ("elif_clause", "else_clause", "case_item"):
            in_loop = kind in ("for_statement", "c_style_for_statement")
            if in_loop:
                variable = node.child_by_field_name("variable")
                if variable is not None:
                    self.known[self.text(variable)] = None
            if kind == "c_style_for_statement":
                self.assign_by_arithmetic(node, True)
            seen_body = kind not in ("if_statement", "elif_clause", "while_statement")
            children = node.children
            for index, child in enumerate(children):
                follows = children[index + 1].type if index + 1 < len(children) else ""
                if child.type in ("then", "do", "do_group"):
                    seen_body = True
                self.statement(
                    child,
                    background=follows == "&",
                    branch=True,
                    function=function,
                    substituted=substituted,
                    guarded=guarded or not seen_body,
                    pipes_into=pipes_into,
                )
        elif kind == "negated_command":
            for child in node.children:
                self.statement(child, guarded=True, **place)
        elif kind == "compound_statement" and node.children[0].type == "((":
            self.assign_by_arithmetic(node, branch)
            self.expand_inside(node, substituted)
        elif kind in ("compound_statement", "do_group", "program", "ERROR"):
            children = node.children
            for index, child in enumerate(children):
                follows = children[index + 1].type if index + 1 < len(children) else ""
                self.statement(
                    child,
                    background=background or follows == "&",
                    pipes_into=pipes_into,
                    guarded=guarded,
                    depends=depends,
                    **place,
                )
        elif node.is_named and kind != "comment":
            self.expand_inside(node, substituted)

    def may_skip(self, first: Parsed, last: Parsed) -> bool:
        """Return True if ``first && last`` is a branch: after a test, or of an assignment."""
        if first.type == "list":
            return self.may_skip(first.children[-1], last) or self.may_skip(first.children[0], last)
        name = self.first_name(first)
        if first.type in ("test_command", "negated_command", "compound_statement"):
            return True
        if name in ("[", "test", "grep", "command", "which", "type", "true", "false"):
            return True
        is_setup = name in ("cd", "source", ".", "module", "ml", "conda", "export", "set", "")
        return last.type in ("variable_assignment", "declaration_command") and not is_setup

    def first_name(self, node: Parsed) -> str:
        while node.type in ("redirected_statement", "pipeline", "list"):
            node = node.children[0]
        if node.type == "command":
            name = node.child_by_field_name("name")
            return self.text(name) if name is not None else ""
        return ""

    def redirect(self, node: Parsed, substituted: bool) -> str:
        if node.type == "heredoc_redirect":
            for child in node.children:
                if child.type == "pipeline":
                    self.statement(child, substituted=substituted)
                elif child.type in ("file_redirect", "heredoc_body"):
                    self.expand_inside(child, substituted)
            return ""
        self.expand_inside(node, substituted)
        target = node.child_by_field_name("destination")
        return self.text(node) if target is not None else ""

    def command(self, node: Parsed, **place: Any) -> None:
        words: list[Word] = []
        prefix: list[Assignment] = []
        redirects: list[str] = place.pop("redirects")
        substituted = place["substituted"]
        is_called = any(child.type == "command_name" for child in node.children)
        for child in node.children:
            if child.type == "variable_assignment" and not is_called:
                self.assignment(child, exported=False, **place)
            elif child.type == "variable_assignment":
                prefix.append(self.assign_value(child, exported=True, branch=place["branch"]))
            elif child.type in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
                redirects.append(self.redirect(child, substituted))
            elif child.type == "command_name":
                words += self.split(child.children[0], substituted)
            elif child.is_named and child.type != "comment":
                words += self.split(child, substituted)
        for one in prefix:
            one.prefix = True
            self.script.assignments.append(one)
        command = Command(
            words=words,
            start=node.start_byte,
            end=node.end_byte,
            prefix=prefix,
            redirects=[one for one in redirects if one],
            **place,
        )
        self.script.commands.append(command)
        if not substituted and not place["function"]:
            self.change_arguments(command)
        if not substituted:
            self.change_variables(command, node)

    def change_variables(self, command: Command, node: Parsed) -> None:
        """Follow commands that assign to variables; their values are not known afterwards."""
        if command.name == "let":
            self.assign_by_arithmetic(node, command.branch)
        elif command.name in _READING or command.args[:1] == ["-v"]:
            for word in command.words[1:]:
                if re.fullmatch(r"[A-Za-z_]\w*", word.text):
                    self.assign_unknown(word.text, word.start, word.end, command.branch)
        elif command.name in self.effects:
            for name in sorted(self.list_effects(command.name)):
                self.assign_unknown(name, command.start, command.end, command.branch)
        elif command.name == "eval":
            for name in re.findall(r"(?<![\w$])([A-Za-z_]\w*)\+?=", " ".join(command.args)):
                self.forget(name)
        elif command.name in ("source", ".") and self.keeps_expansions:
            if _ENVIRONMENT_FILE.search("".join(command.args[:1])):
                return
            for name in {one.name for one in self.script.assignments}:
                self.forget(name)

    def list_effects(self, function: str) -> set[str]:
        """Return the variables that a function assigns, also through others that it calls."""
        found: set[str] = set()
        seen, todo = {function}, [function]
        while todo:
            assigned, calls = self.effects[todo.pop()]
            found |= assigned
            new = (calls & self.effects.keys()) - seen
            seen |= new
            todo += sorted(new)
        return found

    def assign_by_arithmetic(self, node: Parsed, branch: bool) -> None:
        for found in _ARITHMETIC.finditer(self.text(node)):
            self.assign_unknown(found[1] or found[2], node.start_byte, node.end_byte, branch)

    def assign_unknown(self, name: str, start: int, end: int, branch: bool) -> None:
        """Record an assignment of a value that only bash knows."""
        value = Word(mark(name), start, end)
        self.script.assignments.append(Assignment(name, value, start, end, branch=branch))
        self.forget(name)

    def forget(self, name: str) -> None:
        """Treat the value of a variable as unknown from here on."""
        self.known[name] = None
        if name in self.arrays:
            self.arrays[name] = None

    def change_arguments(self, command: Command) -> None:
        """Follow ``set -- A B`` and ``shift``, which change the positional parameters."""
        args = command.args
        sets = command.name == "set" and args and (args[0] == "--" or args[0][:1] not in ("-", "+"))
        if not sets and command.name != "shift":
            return
        before = self.arrays.get("@")
        after: list[str] | None = None
        if sets:
            words = command.words[2 if args[0] == "--" else 1 :]
            after = [one.text for one in words] if all(one.constant for one in words) else None
        elif before is not None and (not args or is_whole_number(args[0])):
            after = [one.text for one in before[int(args[0]) if args else 1 :]]
        if after is None or command.branch:
            self.arrays["@"] = None
            self.known |= dict.fromkeys((*map(str, range(1, 10)), "#", "*", "@"))
        else:
            self.set_arguments(after)

    def assignment(self, node: Parsed, **place: Any) -> None:
        one = self.assign_value(node, exported=place["exported"], branch=place["branch"])
        self.script.assignments.append(one)
        if "[" in self.text(node).split("=", 1)[0]:
            self.forget(one.name)
            return
        operator = any(child.type == "+=" for child in node.children)
        if one.items is not None:
            before = self.arrays.get(one.name)
            if (
                place["branch"]
                or (operator and before is None)
                or one.name in self.unknown_arrays  # an expansion of several words
            ):
                self.arrays[one.name] = None
            else:
                self.arrays[one.name] = [*(before or []), *one.items] if operator else one.items
            self.known[one.name] = one.items[0].text if one.items and not place["branch"] else None
        elif operator and (before_text := self.known.get(one.name)) is not None:
            self.known[one.name] = None if place["branch"] else before_text + one.value.text
        elif (
            place["branch"]
            or operator
            or one.name in self.attributed
            or self.is_computed(one.value.text)
        ):
            self.known[one.name] = None
        else:
            self.known[one.name] = one.value.text

    def is_computed(self, value: str) -> bool:
        """Return True for a single word with an unknown part, which may differ each time.

        Where expansions are kept, such a variable stays a variable. Several words may be a command.
        """
        # The result of an expansion is not subject to the expansion of braces and tildes.
        if self.keeps_expansions and re.search(r"(^|:)~|\{[^}]*(,|\.\.)[^}]*\}", value):
            return True
        has_parts = OPEN in value or "RANDOM" in value
        return self.keeps_expansions and has_parts and not re.search(r"\s", _MARK.sub("", value))

    def assign_value(self, node: Parsed, *, exported: bool, branch: bool) -> Assignment:
        name = node.child_by_field_name("name")
        value = node.child_by_field_name("value")
        label = self.text(name) if name is not None else ""
        items: list[Word] | None = None
        word = Word("", node.end_byte, node.end_byte)
        if value is not None and value.type == "array":
            items = []
            for child in value.children:
                if child.is_named and child.type != "comment":
                    items += self.split(child, False)
            if self.keeps_expansions and any(not one.quoted and not one.constant for one in items):
                self.unknown_arrays.add(label.split("[", 1)[0])
            word = Word(" ".join(one.text for one in items), value.start_byte, value.end_byte)
        elif value is not None:
            word = self.word(value, False)
            home = self.known.get("HOME") if self.keeps_expansions else None
            if home and value.type in ("word", "concatenation") and re.match("~(/|$)", word.text):
                word = Word(home + word.text[1:], word.start, word.end)
        return Assignment(
            name=label.split("[", 1)[0],
            value=word,
            start=node.start_byte,
            end=node.end_byte,
            exported=exported,
            branch=branch,
            items=items,
        )

    # ---- words

    def split(self, node: Parsed, substituted: bool) -> list[Word]:
        """Return the words that a word becomes: unquoted variables are split at blanks."""
        if node.type == "expansion" or node.type == "string":
            inner = self.array_items(node)
            if inner is not None:
                self.expand_inside(node, substituted)
                return [Word(one.text, node.start_byte, node.end_byte, True) for one in inner]
        word = self.word(node, substituted)
        if node.type in ("simple_expansion", "expansion") and not word.quoted:
            parts = word.text.split()
            return [Word(part, word.start, word.end) for part in parts]
        if (
            node.type == "concatenation"
            and re.search(r"\s", word.text)
            and all(child.type not in ("string", "raw_string") for child in node.children)
        ):
            return [Word(part, word.start, word.end) for part in word.text.split()]
        return [word]

    def array_items(self, node: Parsed) -> list[Word] | None:
        """Return the elements of ``"${NAME[@]}"`` if they are known."""
        text = self.text(node)
        if text in ('"$@"', '"${@}"'):
            return self.arrays.get("@")
        found = re.fullmatch(r'"?\$\{(\w+)\[[@*]\]\}"?', text)
        return self.arrays.get(found[1]) if found else None

    def word(self, node: Parsed, substituted: bool) -> Word:
        text = self.value(node, substituted)
        return Word(text, node.start_byte, node.end_byte, self.is_quoted(node))

    def is_quoted(self, node: Parsed) -> bool:
        """Return True for a word of which quotes enclose all that bash expands."""
        if node.type != "concatenation":
            return node.type in _QUOTED
        return any(child.type in _QUOTED for child in node.children) and all(
            child.type in _QUOTED or re.fullmatch(r"[^*?\[{~$`]*", self.text(child))
            for child in node.children
        )

    def value(self, node: Parsed, substituted: bool) -> str:
        """Return the value of a word, with marks for what is unknown."""
        kind = node.type
        if kind == "raw_string":
            return self.text(node)[1:-1]
        if kind == "ansi_c_string":
            return _decode_ansi_c(self.text(node)[2:-1])
        if kind in ("string", "translated_string", "concatenation", "heredoc_body"):
            parts: list[str] = []
            at = node.start_byte + (1 if kind == "string" else 0)
            end = node.end_byte - (1 if kind == "string" else 0)
            for child in node.children:
                if child.type == '"':
                    continue
                if kind == "string" and child.start_byte > at:  # blanks that the grammar skips
                    parts.append(self._between(at, child.start_byte))
                if child.type == "string_content":
                    parts.append(_unescape_quoted(self.text(child)))
                elif child.is_named:
                    part = self.value(child, substituted)
                    parts.append(self.keep_blanks(node, child, part))
                else:
                    parts.append(self.text(child))
                at = child.end_byte
            if kind == "string" and at < end:
                parts.append(self._between(at, end))
            return "".join(parts)
        if kind == "simple_expansion":
            # In strings the grammar counts blanks before the dollar sign to the expansion.
            blanks, name = self.text(node).split("$", 1)
            self.use(name, node, default=False, substituted=substituted)
            return _unescape_quoted(blanks) + self.lookup(name)
        if kind == "expansion":
            return self.expansion(node, substituted)
        if kind == "arithmetic_expansion":
            return self.arithmetic(node, substituted)
        if kind in ("command_substitution", "process_substitution"):
            self.statements(node, branch=True, function=False, substituted=True)
            text = self.text(node)
            # In strings the grammar counts blanks and line ends before it to the substitution.
            start = len(text) - len(re.sub(r"^(\\\n|\s)+", "", text))
            return _unescape_quoted(text[:start]) + mark(text[start:].strip())
        if kind in ("word", "number", "test_operator", "extglob_pattern", "regex"):
            return re.sub(r"\\(?:\n|(.))", lambda found: found[1] or "", self.text(node))
        if kind == "command_name":
            return self.value(node.children[0], substituted)
        self.expand_inside(node, substituted)
        return self.text(node)

    def keep_blanks(self, node: Parsed, child: Parsed, value: str) -> str:
        """Return a part of a word; a variable at whose blanks bash splits the word stays one.

        So does a string beside parts that are not quoted.
        """
        if not self.keeps_expansions or node.type != "concatenation":
            return value
        if child.type == "string" and OPEN in value and not self.is_quoted(node):
            return mark(self.text(child))
        is_expansion = child.type in ("simple_expansion", "expansion")
        is_split = is_expansion and re.search(r"\s", value)
        if not is_split or re.fullmatch(r"[^\"'{]*", re.sub(r"\$\{", "", self.text(node))):
            return value
        name = re.fullmatch(r"\$\{?(\w+)\}?", self.text(child))
        return mark(name[1] if name else self.text(child))

    def _between(self, start: int, end: int) -> str:
        return _unescape_quoted(self.script.data[start:end].decode("utf-8", "surrogateescape"))

    def lookup(self, name: str) -> str:
        value = self.known.get(name)
        return mark(name) if value is None else value

    def expansion(self, node: Parsed, substituted: bool) -> str:
        """Return the value of ``${...}``."""
        text = self.text(node)
        plain = re.fullmatch(r"\$\{(\w+)\}", text)
        if plain:
            self.use(plain[1], node, default=False, substituted=substituted)
            return self.lookup(plain[1])
        found = re.match(r"\$\{[!#]?(\w+)", text)
        name = found[1] if found else ""
        default = bool(re.match(r"\$\{!?\w+(\[[^]]*\])?:?[-+?=]", text))
        if name:
            self.use(name, node, default=default, substituted=substituted)
        self.expand_inside(node, substituted, skip_name=name)
        if re.match(r"\$\{\w+:?=", text):
            self.assign_unknown(name, node.start_byte, node.end_byte, True)
        elif default and self.known.get(name) and not re.match(r"\$\{!?\w+(\[[^]]*\])?:?\+", text):
            return str(self.known[name])
        if not self.keeps_expansions:
            return mark(name or text)
        return self.constant_expansion(text, name) or mark(text)

    def constant_expansion(self, text: str, name: str) -> str:
        """Return the value of an element of a known array, of its length, or of a default."""
        array = self.arrays.get(name)
        if array is not None and re.fullmatch(r"\$\{#\w+\[[@*]\]\}", text):
            return str(len(array))
        element = re.fullmatch(r"\$\{\w+\[(.+)\]\}", text)
        if element and array is not None:
            index = self.compute(element[1])
            is_inside = index is not None and is_whole_number(index) and int(index) < len(array)
            return array[int(index or 0)].text if is_inside else ""
        alternative = re.fullmatch(r"\$\{\w+:-([\w./:,=+@%-]+)\}", text)
        if alternative and self.known.get(name, None) == "":
            return alternative[1]
        return ""

    def compute(self, text: str) -> str | None:
        """Return the value of an arithmetic expression of known variables; None if unknown."""
        if inner := re.fullmatch(r"\$\(\((.*)\)\)", text.strip()):
            text = inner[1]

        def length(found: re.Match[str]) -> str:
            array = self.arrays.get(found[1])
            return found[0] if array is None else str(len(array))

        def number(found: re.Match[str]) -> str:
            value = self.known.get(found[1])
            is_octal = bool(value) and str(value).startswith("0") and value != "0"
            return value if value and is_whole_number(value) and not is_octal else found[0]

        text = re.sub(r"\$\{#(\w+)\[[@*]\]\}", length, text)
        sums = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", number, text)
        result = compute_sum(sums)
        return None if result is None else str(result)

    def arithmetic(self, node: Parsed, substituted: bool) -> str:
        """Return the value of ``$((...))``."""
        text = self.text(node)
        inner = text[3:-2] if text.startswith("$((") else text[2:-1]
        self.expand_inside(node, substituted)
        for found in re.finditer(r"(?<![\w$\{])([A-Za-z_]\w*)", inner):
            self.use(found[1], node, default=False, substituted=substituted)
        if _ARITHMETIC.search(inner):
            self.assign_by_arithmetic(node, True)
            return mark(text)
        result = self.compute(inner)
        return mark(text) if result is None else result

    def expand_inside(self, node: Parsed, substituted: bool, *, skip_name: str = "") -> None:
        """Record the variables and commands inside a node."""
        for child in node.children:
            if child.type == "simple_expansion":
                name = self.text(child).split("$", 1)[1]
                self.use(name, child, default=False, substituted=substituted)
            elif child.type == "expansion":
                self.expansion(child, substituted)
            elif child.type == "arithmetic_expansion":
                self.arithmetic(child, substituted)
            elif child.type == "command_substitution":
                self.statements(child, branch=True, function=False, substituted=True)
            elif child.type == "command":
                self.statement(child, branch=True, substituted=substituted, guarded=True)
            else:
                self.expand_inside(child, substituted)

    def use(self, name: str, node: Parsed, *, default: bool, substituted: bool) -> None:
        tested = _is_tested(node, self.text)
        self.script.uses.append(
            Use(name, node.start_byte, node.end_byte, default or tested, substituted)
        )


def _is_tested(node: Parsed, text: Any) -> bool:
    """Return True for an expansion inside ``[ -z ... ]`` or ``[[ -n ... ]]``."""
    for _ in range(4):
        node = node.parent
        if node is None:
            return False
        if node.type in ("unary_expression", "test_command", "binary_expression"):
            return bool(node.type != "binary_expression" or node.parent.type == "test_command")
    return False


_ANSI_C = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b"}


def _decode_ansi_c(text: str) -> str:
    r"""Return the value of ``$'...'``.

    >>> _decode_ansi_c(r"a\tb\x41\'")
    "a\tbA'"
    """

    def one(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] == "x":
            return chr(int(code[1:], 16))
        if code[0] in "01234567":
            return chr(int(code, 8) & 255)
        return _ANSI_C.get(code, code)

    return re.sub(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|[abefnrtv\\'\"?])", one, text)


def _unescape_quoted(text: str) -> str:
    """Return the content of a double-quoted string without bash's escapes."""
    return re.sub(r'\\(?:\n|([$`"\\]))', lambda found: found[1] or "", text)


def compute_sum(text: str) -> int | None:
    """Return the value of a sum of integers, or None.

    >>> compute_sum("2 * (3 + 1)"), compute_sum("1 / 0"), compute_sum("2 +")
    (8, None, None)
    """
    if not _SUMS.fullmatch(text):
        return None
    tokens = re.findall(r"\d+|[-+*/%()]", text)
    position = 0

    def peek() -> str:
        return tokens[position] if position < len(tokens) else ""

    def take() -> str:
        nonlocal position
        position += 1
        return tokens[position - 1] if position <= len(tokens) else ""

    def atom() -> int:
        token = take()
        if token == "(":
            value = add()
            if take() != ")":
                raise ValueError(text)
            return value
        if token == "-":
            return -atom()
        return int(token, 10)

    def multiply() -> int:
        value = atom()
        while peek() in ("*", "/", "%") and peek():
            operator, right = take(), atom()
            if operator == "*":
                value *= right
            elif operator == "/":
                value = int(value / right)
            else:
                value %= right
        return value

    def add() -> int:
        value = multiply()
        while peek() in ("+", "-") and peek():
            value = value + multiply() if take() == "+" else value - multiply()
        return value

    try:
        result = add()
    except (ValueError, ZeroDivisionError):
        return None
    return result if position == len(tokens) else None


def iterate_lines(data: bytes) -> Iterator[tuple[int, str]]:
    """Yield the first byte of each line and its text without the line end."""
    start = 0
    for line in data.split(b"\n"):
        yield start, line.decode("utf-8", "surrogateescape")
        start += len(line) + 1
