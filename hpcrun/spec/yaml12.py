"""Parse YAML to a tree that keeps the text and line of each scalar; resolve YAML 1.2 core types.

PyYAML composes the nodes, but its types are those of YAML 1.1, where ``no`` is a boolean,
``24:00:00`` is 86400 and ``1e-4`` is text. They are not used. The input may be hostile: size,
nesting and alias expansion are limited.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml
from msgspec import Struct, structs

from hpcrun.errors import Problem, SpecError

MAX_CHARACTERS = 1_000_000
MAX_VALUES = 20_000
MAX_DEPTH = 64

_NULLS = {"", "~", "null", "Null", "NULL"}
_BOOLEANS = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# Characters that YAML defines as unprintable, and the line breaks that YAML 1.2 removed from the
# grammar but the parser still accepts.
_FORBIDDEN_CHARACTERS = (
    "[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]"
)
_MESSAGES = {
    "but found another document": "a second document starts here; one file holds one",
    "found undefined alias": "no anchor (&) of this name before this alias (*)",
    "second occurrence": "an anchor (&) of this name already exists above",
    "mapping values are not allowed in this context": (
        "a ': ' that starts no key here; indent keys alike, and quote text that holds ': '"
    ),
    "found a tab character that violates indentation": "a tab; YAML indents with blanks",
    "did not find expected key": (
        "expected a key here; indent keys alike, and quote text that starts with { [ \" or '"
    ),
    "did not find expected node content": "expected a value here",
    "could not find expected ':'": "a line without a key; expected KEY: VALUE",
}
_UNCLOSED_MESSAGES = {
    "found unexpected end of stream": "the file ends inside a quoted text",
    "did not find expected ',' or ']'": "expected , or ] here, in a list that [ opened",
    "did not find expected ',' or '}'": "expected , or } here, in a map that { opened",
}


class Node(Struct, frozen=True):
    """A scalar's text, a list, or a map with text keys in file order.

    Attributes:
        source: The file or ``--set``.
        line: The line of its key, or of the item itself in a list, from 1; None for ``--set``.
        plain: True for unquoted text, which may be a number or null.
    """

    value: str | list[Node] | dict[str, Node]
    source: str
    line: int | None = None
    plain: bool = False

    @property
    def text(self) -> str:
        """The text; "" for a list or map."""
        return self.value if isinstance(self.value, str) else ""

    @property
    def items(self) -> list[Node]:
        """The items of a list; empty for other nodes."""
        return self.value if isinstance(self.value, list) else []

    @property
    def entries(self) -> dict[str, Node]:
        """The values of a map by key; empty for other nodes."""
        return self.value if isinstance(self.value, dict) else {}

    def problem(self, path: str, message: str) -> Problem:
        """Build a problem at this node."""
        return Problem(path, message, self.source, self.line)


def is_null(node: Node) -> bool:
    """Return True if a node is null: empty, ``~`` or ``null`` without quotes."""
    return node.plain and node.text in _NULLS


def parse_core_value(text: str) -> Any:
    """Return the YAML 1.2 core-schema value of an unquoted scalar (YAML 1.2.2, section 10.3.2).

    Raises:
        ValueError: If a number fits neither 64 bits nor a double.

    >>> [parse_core_value(word) for word in ("true", "no", "~", "0o17", "0x1F", "1e-4", "24:00:00")]
    [True, 'no', None, 15, 31, 0.0001, '24:00:00']
    """
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if re.fullmatch(r"\.(nan|NaN|NAN)|[-+]?\.(inf|Inf|INF)", text):
        return float(text.replace(".", ""))
    for pattern, base in ((r"[-+]?[0-9]+", 10), (r"0o[0-7]+", 8), (r"0x[0-9a-fA-F]+", 16)):
        if re.fullmatch(pattern, text):
            digits = text.lstrip("+-0ox") or "0"
            # int() rejects thousands of digits with a different message.
            number = int(digits, base) if len(digits) <= 64 else 1 << 64
            number = -number if text.startswith("-") else number
            if not -(1 << 63) <= number < 1 << 64:
                raise ValueError("a whole number that does not fit into 64 bits")
            return number
    if re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", text):
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ValueError("a number that does not fit into a double")
        return value
    return text


def parse_plain_value(node: Node) -> Any:
    """Return the core value of a plain scalar; None for other nodes and numbers out of range."""
    try:
        return parse_core_value(node.text) if node.plain else None
    except ValueError:
        return None


def join_path(path: str, key: str | int) -> str:
    """Extend a dotted path, quoting keys that would be ambiguous.

    >>> join_path("resources", "nodes"), join_path("args", 2), join_path("env", "a.b")
    ('resources.nodes', 'args[2]', 'env."a.b"')
    """
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not (re.fullmatch(r'[^\s".=\[\]]+', key) and key.isprintable()):
        key = json.dumps(key, ensure_ascii=False)
    return f"{path}.{key}" if path else key


def count_levels(node: Node) -> int:
    """Count the levels of a tree; a scalar has one."""
    return 1 + max(map(count_levels, [*node.items, *node.entries.values()]), default=0)


# ---- Reading ------------------------------------------------------------------------------------


def parse_document(text: str, source: str, problems: list[Problem]) -> Node:
    """Parse a file that contains a map; an empty file is an empty map.

    Problems that leave the rest readable, such as a duplicate key, are appended to ``problems``.

    Raises:
        SpecError: For the first syntax error, or if the file contains no map.

    >>> parse_document("a: 1\\nb: {c: x}\\n", "f.yaml", []).entries["b"].line
    2
    """
    root = _compose(text, source)
    empty = Node({}, source, 1)
    node = _TreeBuilder(source, problems).node(root, "", 1, root.start_mark) if root else empty
    if is_null(node):
        return Node({}, source, node.line)
    if not isinstance(node.value, dict):
        found = "a list" if isinstance(node.value, list) else "text"
        raise _build_error(source, 1, 1, f"expected keys, as in KEY: VALUE, got {found}")
    return node


def parse_value(text: str, source: str, path: str, problems: list[Problem]) -> Node:
    """Parse a value from the command line.

    A text that begins with a quote or a bracket has the grammar of a value in a file. Any other
    text is used literally, so that ``#``, ``&`` and line breaks are kept.

    Raises:
        SpecError: If the value is malformed.

    >>> parse_value("1e-4", "--set", "lr", []).text, parse_value("run #3", "--set", "x", []).text
    ('1e-4', 'run #3')
    """
    if _UNQUOTED.match(text) and not _SURROGATE.search(text):
        stripped = text.strip(" ")
        is_text = not text.startswith(" ") and isinstance(parse_core_text(stripped), str)
        return Node(text if is_text else stripped, source, plain=True)
    try:
        root = _compose(f"_: {text}", source)
        if not isinstance(root, yaml.MappingNode) or len(root.value) != 1:
            raise SpecError([Problem(path, "more than one value", source)])
        value = root.value[0][1]
        return _TreeBuilder(source, problems, lines=False).node(value, path, 2, value.start_mark)
    except SpecError as error:
        message = re.sub(r"^column \d+: ", "", error.problems[0].message)
        raise SpecError([Problem(path, message, source)]) from None


# Text with any other beginning has a meaning in YAML; a placeholder alone is text.
_UNQUOTED = re.compile(r"""[ ]*(?:[^\s"'\[{]|\{[A-Za-z_][A-Za-z0-9_]*\}(?!\s*$)|$)""")
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_core_text(text: str) -> object:
    """Return the core value of unquoted text, or the text itself if a number is out of range."""
    try:
        return parse_core_value(text)
    except ValueError:
        return text


def _build_error(source: str, line: int, column: int, message: str) -> SpecError:
    """Build the error for a position; line and column count from 1."""
    return SpecError([Problem("", f"column {column}: {message}", source, line)])


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Composes nodes within the limits, and gives unquoted scalars an empty tag."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = self.count = 0

    def descend_resolver(self, parent: yaml.Node | None, index: object) -> None:
        """Check the limits for each node before its children are composed."""
        self.depth += 1
        self.count += 1
        if parent is not None:
            problem = _explain_limit(self.count, self.depth)
            if problem:
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=parent.start_mark)

    def ascend_resolver(self) -> None:
        self.depth -= 1

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:
        """Return the tag of a node without an explicit tag."""
        return "" if kind is yaml.ScalarNode and implicit[0] else _TAGS[kind]


_TAGS = {
    yaml.ScalarNode: "tag:yaml.org,2002:str",
    yaml.SequenceNode: "tag:yaml.org,2002:seq",
    yaml.MappingNode: "tag:yaml.org,2002:map",
}


def _explain_limit(count: int, depth: int) -> str:
    if count > MAX_VALUES:
        return f"more than {MAX_VALUES} values, aliases counted as written out"
    return f"nested deeper than {MAX_DEPTH} levels" if depth > MAX_DEPTH else ""


def _compose(text: str, source: str) -> yaml.Node | None:
    """Compose the only document of a text; None if it is empty.

    Raises:
        SpecError: If the text is not YAML, exceeds a limit, or contains more documents.
    """
    if len(text) > MAX_CHARACTERS:
        raise SpecError([Problem("", f"more than {MAX_CHARACTERS} characters", source)])
    text = text.removeprefix("\ufeff")
    # Nearly all text is printable, which saves compiling the pattern.
    is_plain = text.replace("\n", "").isprintable()
    if not is_plain and (bad := re.search(_FORBIDDEN_CHARACTERS, text)):
        before = re.split(r"\r\n|\r|\n", text[: bad.start()])
        raise _build_error(
            source, len(before), len(before[-1]) + 1, _explain_character(bad.group())
        )
    loader = _Loader(text)
    try:
        root: yaml.Node | None = loader.get_single_node()
        return root
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark is None:
            raise SpecError([Problem("", f"not YAML: {error}", source)]) from None
        raise _syntax_error(text, source, mark.line, mark.column, error) from None
    except yaml.YAMLError as error:
        raise SpecError([Problem("", f"not YAML: {error}", source)]) from None
    finally:
        loader.dispose()


def _explain_character(char: str) -> str:
    code = ord(char)
    if code == 0:
        return "a NUL character, which no process can receive"
    if 0xDC80 <= code <= 0xDCFF:
        return f"byte 0x{code - 0xDC00:02x} is not UTF-8"
    if 0xD800 <= code <= 0xDFFF:
        return f"half of a surrogate pair, U+{code:04X}"
    escape = f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    return f'unprintable character U+{code:04X}; in double quotes it is written "{escape}"'


def _syntax_error(
    text: str, source: str, line: int, column: int, error: yaml.MarkedYAMLError
) -> SpecError:
    """Build a readable error from a parser error."""
    written = re.split(r"\r\n|\r|\n", text)
    here = written[line] if line < len(written) else ""
    problem = error.problem or "not YAML"
    message = _MESSAGES.get(problem) or _UNCLOSED_MESSAGES.get(problem, problem)
    if error.context_mark is not None and problem in _UNCLOSED_MESSAGES:
        message += f"; it starts on line {error.context_mark.line + 1}"
    if not isinstance(error, (yaml.scanner.ScannerError, yaml.parser.ParserError)):
        return _build_error(source, line + 1, column + 1, message)
    if problem == "found character that cannot start any token":
        char = here[column : column + 1]
        message = f"text that starts with {char} needs quotes"
        if char == "\t":
            message = "a tab; YAML indents with blanks"
    elif "\t" in re.match(r"[ \t]*", here).group():  # type: ignore[union-attr]
        message = "a tab; YAML indents with blanks"
    elif braces := re.search(r"(?<![\"'\w{])\{\w+\}", here):
        message += f"; text that starts with {braces.group()} needs quotes"
    return _build_error(source, line + 1, column + 1, message)


class _TreeBuilder:
    """Builds the tree from composed nodes, and counts the values that aliases repeat."""

    def __init__(self, source: str, problems: list[Problem], *, lines: bool = True) -> None:
        self.source = source
        self.problems = problems
        self.lines = lines
        self.count = 0
        # The tree and number of values of each node; None while it is being built.
        self.made: dict[int, tuple[Node, int] | None] = {}

    def node(self, node: yaml.Node, path: str, depth: int, mark: yaml.Mark) -> Node:
        if id(node) in self.made:
            return self.alias(node, depth, mark)
        self.made[id(node)] = None
        self.count += 1
        before = self.count
        self.check_tag(node, path)
        value: str | list[Node] | dict[str, Node]
        if isinstance(node, yaml.SequenceNode):
            value = [
                self.node(item, join_path(path, index), depth + 1, node.start_mark)
                for index, item in enumerate(node.value)
            ]
        elif isinstance(node, yaml.MappingNode):
            value = self.map(node, path, depth)
        else:
            value = node.value
        plain = isinstance(node, yaml.ScalarNode) and node.tag == "" and not node.style
        made = Node(value, self.source, self.line(node), plain)
        self.made[id(node)] = (made, self.count - before + 1)
        return made

    def alias(self, node: yaml.Node, depth: int, mark: yaml.Mark) -> Node:
        """Return the tree of an anchor.

        Raises:
            SpecError: If the alias exceeds the limits or is recursive.
        """
        target = self.made[id(node)]
        problem = "an alias (*) is inside the value that it repeats"
        if target is not None:
            made, values = target
            self.count += values
            problem = _explain_limit(self.count, depth + count_levels(made) - 1)
            if not problem:
                return made
        raise _build_error(self.source, mark.line + 1, mark.column + 1, problem)

    def map(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key = self.node(key_node, path, depth + 1, node.start_mark)
            name = self.key_text(key_node, key, path)
            inner = path if name is None else join_path(path, name)
            value = self.node(value_node, inner, depth + 1, key_node.start_mark)
            if name in entries:
                line = entries[name].line
                first = f"first on line {line}" if line else "once is enough"
                self.problems.append(key.problem(inner, f"key given twice; {first}"))
            elif name is not None:
                entries[name] = structs.replace(value, line=key.line)
        return entries

    def key_text(self, node: yaml.Node, key: Node, path: str) -> str | None:
        """Return a key's text; append a problem and return None if it is no text."""
        if not isinstance(key.value, str):
            kind = "a list" if isinstance(key.value, list) else "a map"
            problem = f"a key must be text, got {kind}"
        elif key.plain and key.text == "<<":
            problem = "merge keys (<<) are not supported: use extends: NAME"
        elif key.plain and not isinstance(parse_plain_value(key), str):
            problem = f'a key must be text; write "{key.text}" with quotes'
        else:
            return key.text
        self.note(node, path, problem)
        return None

    def check_tag(self, node: yaml.Node, path: str) -> None:
        if node.tag in ("", _TAGS[type(node)]):
            return
        tag = node.tag[:60]
        core = "tag:yaml.org,2002:"
        shown = f"!!{tag.removeprefix(core)}" if tag.startswith(core) else tag
        self.note(node, path, f"the tag {shown} is not supported; write the value without it")

    def line(self, node: yaml.Node) -> int | None:
        return node.start_mark.line + 1 if self.lines else None

    def note(self, node: yaml.Node, path: str, message: str) -> None:
        if self.lines:
            message = f"column {node.start_mark.column + 1}: {message}"
        self.problems.append(Problem(path, message, self.source, self.line(node)))
