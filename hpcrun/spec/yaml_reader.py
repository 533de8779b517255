"""YAML text to the tree of yaml12, by PyYAML's C parser, and nothing else of PyYAML's.

Input may be hostile: size, nesting and what aliases expand to are bounded.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from hpcrun.errors import Problem, SpecError
from hpcrun.spec.yaml12 import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_VALUES,
    Entry,
    List,
    Map,
    Node,
    Place,
    Scalar,
    core_value,
    depth_of,
    join,
)

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# What YAML calls printable, less the three line breaks that YAML 1.2 took out of the grammar and
# the parser still breaks lines at.
_NOT_ALLOWED = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_CORE = "tag:yaml.org,2002:"
_PLAINER = {
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
_UNCLOSED = {
    "found unexpected end of stream": "the file ends inside a quoted text",
    "did not find expected ',' or ']'": "expected , or ] here, in a list that [ opened",
    "did not find expected ',' or '}'": "expected , or } here, in a map that { opened",
}


def error_at(source: str, line: int, column: int, message: str) -> SpecError:
    """Make the error of one place in a text; line and column from 1."""
    return SpecError([Problem(source, line, "", f"column {column}: {message}")])


def compose(
    text: str, source: str, problems: list[Problem], path: str = "", *, lines: bool = True
) -> Node:
    """Read a text's one document; ``lines``: its places have lines. Raises SpecError.

    What leaves the rest readable goes to ``problems``.
    """
    if len(text) > MAX_CHARACTERS:
        raise SpecError([Problem(source, None, "", f"more than {MAX_CHARACTERS} characters")])
    text = text.removeprefix("\ufeff")
    if bad := _NOT_ALLOWED.search(text):
        before = re.split(r"\r\n|\r|\n", text[: bad.start()])
        raise error_at(source, len(before), len(before[-1]) + 1, _not_allowed(bad.group()))
    loader = _Loader(text)
    try:
        return _Composer(loader, source, problems, path, lines).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if mark is None:
            raise SpecError([Problem(source, None, "", f"not YAML: {error}")]) from None
        raise _syntax_error(text, source, mark.line, mark.column, error) from None
    except yaml.YAMLError as error:
        raise SpecError([Problem(source, None, "", f"not YAML: {error}")]) from None
    finally:
        loader.dispose()


def _not_allowed(char: str) -> str:
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
    """Say the parser's problem in the user's words."""
    written = re.split(r"\r\n|\r|\n", text)
    here = written[line] if line < len(written) else ""
    problem = error.problem or "not YAML"
    message = _PLAINER.get(problem) or _UNCLOSED.get(problem, problem)
    if error.context_mark is not None and problem in _UNCLOSED:
        message += f"; it starts on line {error.context_mark.line + 1}"
    if problem == "found character that cannot start any token":
        char = here[column : column + 1]
        message = f"text that starts with {char} needs quotes"
        if char == "\t":
            message = "a tab; YAML indents with blanks"
    elif "\t" in re.match(r"[ \t]*", here).group():  # type: ignore[union-attr]
        message = "a tab; YAML indents with blanks"
    elif braces := re.search(r"(?<![\"'\w{])\{\w+\}", here):
        message += f"; text that starts with {braces.group()} needs quotes"
    return error_at(source, line + 1, column + 1, message)


class _Composer:
    """One pass over the parser's events; holds the anchors and what has been counted."""

    def __init__(
        self, loader: Any, source: str, problems: list[Problem], path: str, lines: bool
    ) -> None:
        self.loader = loader
        self.source = source
        self.problems = problems
        self.path = path
        self.lines = lines
        self.count = 0
        self.anchors: dict[str, tuple[Node, int, int] | None] = {}

    def document(self) -> Node:
        """Read the one document of the text; none is a null."""
        self.loader.get_event()
        event = self.loader.get_event()
        if isinstance(event, yaml.StreamEndEvent):
            return Scalar("", True, self.place(event))
        node = self.node(self.loader.get_event(), self.path, 1)
        self.loader.get_event()
        event = self.loader.get_event()
        if not isinstance(event, yaml.StreamEndEvent):
            raise self.error(event, "a second document starts here; one file holds one")
        return node

    def place(self, event: Any) -> Place:
        return Place(self.source, event.start_mark.line + 1 if self.lines else None)

    def error(self, event: Any, message: str) -> SpecError:
        mark = event.start_mark
        return error_at(self.source, mark.line + 1, mark.column + 1, message)

    def note(self, event: Any, path: str, message: str) -> None:
        place = self.place(event)
        if self.lines:
            message = f"column {event.start_mark.column + 1}: {message}"
        self.problems.append(Problem(place.source, place.line, path, message))

    def node(self, event: Any, path: str, depth: int) -> Node:
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event, depth)
        self.grow(event, 1, depth)
        before = self.count
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        self.check_tag(event, path)
        node: Node
        if isinstance(event, yaml.ScalarEvent):
            plain = not event.style and event.tag is None
            node = Scalar(event.value, plain, self.place(event))
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self.list(event, path, depth)
        else:
            node = self.map(event, path, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = (node, self.count - before + 1, depth_of(node))
        return node

    def grow(self, event: Any, values: int, depth: int) -> None:
        self.count += values
        if self.count > MAX_VALUES:
            raise self.error(
                event, f"more than {MAX_VALUES} values, aliases counted as written out"
            )
        if depth > MAX_DEPTH:
            raise self.error(event, f"nested deeper than {MAX_DEPTH} levels")

    def alias(self, event: Any, depth: int) -> Node:
        if event.anchor not in self.anchors:
            raise self.error(event, f"*{event.anchor}: no &{event.anchor} stands before it")
        target = self.anchors[event.anchor]
        if target is None:
            raise self.error(event, f"*{event.anchor} stands inside its own &{event.anchor}")
        node, values, height = target
        self.grow(event, values, depth + height - 1)
        return node

    def check_tag(self, event: Any, path: str) -> None:
        kind = {yaml.ScalarEvent: "str", yaml.SequenceStartEvent: "seq"}.get(type(event), "map")
        if event.tag in (None, "!", f"{_CORE}{kind}"):
            return
        tag = event.tag[:60]
        shown = f"!!{tag.removeprefix(_CORE)}" if tag.startswith(_CORE) else tag
        self.note(event, path, f"the tag {shown} is not supported; write the value without it")

    def list(self, event: Any, path: str, depth: int) -> List:
        items: list[Node] = []
        while not isinstance(item := self.loader.get_event(), yaml.SequenceEndEvent):
            items.append(self.node(item, join(path, len(items)), depth + 1))
        return List(items, self.place(event))

    def map(self, event: Any, path: str, depth: int) -> Map:
        entries: dict[str, Entry] = {}
        while not isinstance(key_event := self.loader.get_event(), yaml.MappingEndEvent):
            key = self.node(key_event, path, depth + 1)
            name = self.key_text(key_event, key, path)
            # The root of a value without a file is the stand-in key that carries it.
            inner = path if name is None or (depth == 1 and not self.lines) else join(path, name)
            value = self.node(self.loader.get_event(), inner, depth + 1)
            if name is None:
                continue
            if name in entries:
                here, first = self.place(key_event), entries[name].place.line
                self.problems.append(
                    Problem(here.source, here.line, inner, f"key given twice; {_first(first)}")
                )
                continue
            entries[name] = Entry(value, self.place(key_event))
        return Map(entries, self.place(event))

    def key_text(self, event: Any, key: Node, path: str) -> str | None:
        """Give the key's text; None, with a problem, where it has none."""
        if not isinstance(key, Scalar):
            found = "a list" if isinstance(key, List) else "a map"
            self.note(event, path, f"a key must be text, got {found}")
            return None
        if not key.plain:
            return key.text
        if key.text == "<<":
            self.note(event, path, "merge keys (<<) are not supported; a job can say extends: NAME")
            return None
        try:
            value = core_value(key.text)
        except ValueError:
            value = 0
        if isinstance(value, str):
            return key.text
        self.note(event, path, f'a key must be text; write "{key.text}" with quotes')
        return None


def _first(line: int | None) -> str:
    return f"first on line {line}" if line else "once is enough"
