"""The YAML 1.2 grammar, the core schema and the limits of the reader."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrun.errors import Problem, SpecError
from hpcrun.spec.yaml12 import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    parse_core_value,
    parse_document,
    parse_value,
)

INFINITY = math.inf


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # null
        ("", None),
        ("~", None),
        ("null", None),
        ("Null", None),
        ("NULL", None),
        ("nULL", "nULL"),
        ("none", "none"),
        # booleans, and words that were booleans in YAML 1.1
        ("true", True),
        ("True", True),
        ("TRUE", True),
        ("false", False),
        ("tRUE", "tRUE"),
        *((word, word) for word in ("yes", "no", "on", "off", "y", "n", "Yes", "NO", "Off")),
        # integers
        ("0", 0),
        ("-7", -7),
        ("+7", 7),
        ("012345", 12345),
        ("08", 8),
        ("0o17", 15),
        ("0x1F", 31),
        ("0xff", 255),
        ("0O17", "0O17"),
        ("-0x1F", "-0x1F"),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
        ("0" * 5000 + "1", 1),
        # floating point
        ("1e-4", 0.0001),
        ("5e7", 5e7),
        ("1E5", 1e5),
        ("1.e5", 1e5),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.5e+3", -500.0),
        ("1.10", 1.1),
        (".", "."),
        (".e5", ".e5"),
        ("e5", "e5"),
        (".inf", INFINITY),
        ("+.INF", INFINITY),
        ("-.Inf", -INFINITY),
        ("inf", "inf"),
        ("nan", "nan"),
        ("-.nan", "-.nan"),
        # text
        ("24:00:00", "24:00:00"),
        ("190:20:30", "190:20:30"),
        ("2026-11-20", "2026-11-20"),
        ("=", "="),
        ("1e5x", "1e5x"),
        ("\u0661", "\u0661"),
    ],
)
def test_core_schema_resolves_scalars(text: str, value: object) -> None:
    result = parse_core_value(text)
    assert result == value
    assert type(result) is type(value)


def test_core_schema_resolves_nan() -> None:
    assert all(math.isnan(parse_core_value(text)) for text in (".nan", ".NaN", ".NAN"))


@pytest.mark.parametrize("text", ["2" * 20, "-9223372036854775809", "9" * 9999, "0x" + "f" * 17])
def test_huge_integers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        parse_core_value(text)


@pytest.mark.parametrize("text", ["1e400", "-1e999", "9" * 400 + ".0"])
def test_floats_beyond_the_range_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a double"):
        parse_core_value(text)


def wrong(text: str) -> list[str]:
    """Return all problems of a file, the fatal one last."""
    problems: list[Problem] = []
    try:
        parse_document(text, "f.yaml", problems)
    except SpecError as error:
        problems += error.problems
    return [str(problem) for problem in problems]


@pytest.mark.parametrize("text", ["", "\n\n", "# only this\n", "---\n", "~", "\ufeff", "--- \n..."])
def test_empty_document_is_an_empty_map(text: str) -> None:
    assert parse_document(text, "f", []).entries == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "f.yaml:1: column 1: expected keys, as in KEY: VALUE, got a list"),
        ("train.py", "f.yaml:1: column 1: expected keys, as in KEY: VALUE, got text"),
        (
            "a: 1\n---\nb: 2",
            "f.yaml:2: column 1: a second document starts here; one file holds one",
        ),
        ("\ta: 1", "f.yaml:1: column 1: a tab; YAML indents with blanks"),
        ("a:\n\tb: 1", "f.yaml:2: column 1: a tab; YAML indents with blanks"),
        ("a:\n  b: 1\n\tc: 1", "f.yaml:3: column 1: a tab; YAML indents with blanks"),
        ("a: x\0y", "f.yaml:1: column 5: a NUL character, which no process can receive"),
        ("a: 1\r\nb: \udcff", "f.yaml:2: column 4: byte 0xff is not UTF-8"),
        ("a: \ud83d", "f.yaml:1: column 4: half of a surrogate pair, U+D83D"),
        (
            "a: 1\n\nb: \x07",
            "f.yaml:3: column 4: unprintable character U+0007; "
            'in double quotes it is written "\\x07"',
        ),
        (
            "a: x\u2028y",
            "f.yaml:1: column 5: unprintable character U+2028; "
            'in double quotes it is written "\\u2028"',
        ),
        ("? [a]\n: 1", "f.yaml:1: column 3: a key must be text, got a list"),
        ("a: 1\n{b: 2}: 1", "f.yaml:2: column 1: a key must be text, got a map"),
        ("1: x", 'f.yaml:1: column 1: a key must be text; write "1" with quotes'),
        ("a: {true: x}", 'f.yaml:1: a: column 5: a key must be text; write "true" with quotes'),
        ("?\n: x", 'f.yaml:1: column 2: a key must be text; write "" with quotes'),
        (
            "a: &x {b: 1}\nc:\n  <<: *x",
            "f.yaml:3: c: column 3: merge keys (<<) are not supported: use extends: NAME",
        ),
        (
            "a: !!python/object:os.system x",
            "f.yaml:1: a: column 4: the tag !!python/object:os.system is not supported; "
            "write the value without it",
        ),
        (
            "a: [!mine x]",
            "f.yaml:1: a[0]: column 5: the tag !mine is not supported; write the value without it",
        ),
        (
            'a: !!int "3"',
            "f.yaml:1: a: column 4: the tag !!int is not supported; write the value without it",
        ),
        ("a: *b", "f.yaml:1: column 4: no anchor (&) of this name before this alias (*)"),
        ("a: &b [*b]", "f.yaml:1: column 4: an alias (*) is inside the value that it repeats"),
        ("a: &b 1\nc: &b 2", "f.yaml:2: column 4: an anchor (&) of this name already exists above"),
        ("a: {x: 1, x: 2}\nb: 1\nb: 2", "f.yaml:1: a.x: key given twice; first on line 1"),
        ("a: @x", "f.yaml:1: column 4: text that starts with @ needs quotes"),
        (
            "a: b: c",
            "f.yaml:1: column 5: a ': ' that starts no key here; "
            "indent keys alike, and quote text that holds ': '",
        ),
        (
            "a: {run_dir}/x",
            "f.yaml:1: column 13: expected a key here; indent keys alike, and quote text that "
            "starts with { [ \" or '; text that starts with {run_dir} needs quotes",
        ),
        (
            "a: [x,\n  y\nb: 1\n",
            "f.yaml:3: column 2: expected , or ] here, in a list that [ opened; "
            "it starts on line 1",
        ),
        (
            "b: 1\na: 'x\n",
            "f.yaml:3: column 1: the file ends inside a quoted text; it starts on line 2",
        ),
        ("a:\n b: 1\nxyz\n", "f.yaml:4: column 1: a line without a key; expected KEY: VALUE"),
    ],
)
def test_syntax_error_is_one_clear_problem(text: str, message: str) -> None:
    assert wrong(text)[0] == message


def test_duplicate_keys_are_all_reported_with_both_lines() -> None:
    assert wrong("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\na: 2\n'a': 3") == [
        "f.yaml:5: b.c: key given twice; first on line 3",
        "f.yaml:6: a: key given twice; first on line 1",
        "f.yaml:7: a: key given twice; first on line 1",
    ]


def test_scalars_keep_their_text_and_style() -> None:
    tree = parse_document(
        "a: 012345\nb: '1'\nc: !!str 1\nd: ! '1'\ne: |\n  x\n  y\nf: 1 # no\n", "f", []
    )
    found = {key: (node.value, node.plain) for key, node in tree.entries.items()}
    assert found == {
        "a": ("012345", True),
        "b": ("1", False),
        "c": ("1", False),
        "d": ("1", False),
        "e": ("x\ny\n", False),
        "f": ("1", True),
    }


def test_aliases_repeat_their_value() -> None:
    tree = parse_document("a: &x [1, {b: 2}]\nc: *x\n", "f", [])
    assert tree.entries["a"].value == tree.entries["c"].value
    assert tree.entries["c"].line == 2


def test_values_without_a_file_are_read_like_values_of_a_key() -> None:
    node = parse_value("[--lr, 1e-4]", "--set", "args", [])
    assert [(item.value, item.plain) for item in node.items] == [
        ("--lr", True),
        ("1e-4", True),
    ]
    assert node.line is None
    text = parse_value("--- x", "--set", "args", [])
    assert text.value == "--- x"


def test_value_cannot_contain_a_second_key() -> None:
    with pytest.raises(SpecError, match=r"^--set: name: "):
        parse_value("'x'\nscript: evil.py", "--set", "name", [])
    # Without quotes all of it is the text.
    node = parse_value("x\nscript: evil.py", "--set", "name", [])
    assert node.value == "x\nscript: evil.py"


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 100))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "f.yaml:13: column 6: more than 20000 values, aliases counted as written out"),
        (CHAIN, "f.yaml:63: column 6: nested deeper than 64 levels"),
        ("a: " + "[" * 900_000, "f.yaml:1: column 66: nested deeper than 64 levels"),
        ("- " * 400_000, "f.yaml:1: column 127: nested deeper than 64 levels"),
        ("{a: " * 200_000, "f.yaml:1: column 253: nested deeper than 64 levels"),
        (
            "a: [" + "x," * 30_000 + "]",
            "f.yaml:1: column 4: more than 20000 values, aliases counted as written out",
        ),
        ("x" * (MAX_CHARACTERS + 1), "f.yaml: more than 1000000 characters"),
    ],
)
def test_yaml_bombs_are_refused_quickly(text: str, message: str) -> None:
    started = time.process_time()
    assert wrong(text) == [message]
    assert time.process_time() - started < 10  # expanded, each would take minutes or all memory


def test_deepest_allowed_nesting_is_read() -> None:
    # The top-level map and the innermost scalar count as levels, too.
    inside = MAX_DEPTH - 2
    assert wrong("a: " + "[" * inside + "x" + "]" * inside) == []


YAMLISH = st.text(
    st.sampled_from([*"ab01 \n\t\r:-?[]{}&*!|>'\"%@`#,~<.\\x", "\ufeff", "\0", "\ud800", "é"]),
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(YAMLISH | st.text(max_size=40))
def test_random_text_is_read_or_refused(text: str) -> None:
    for name in ("document", "value"):
        try:
            if name == "document":
                parse_document(text, "f", [])
            else:
                parse_value(text, "--set", "a", [])
        except SpecError as error:
            assert len(error.problems) == 1


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=False) | st.integers(-(2**63), 2**64 - 1))
def test_numbers_are_read_back(number: float) -> None:
    text = repr(number).replace("inf", ".inf")
    assert parse_core_value(text) == number
    assert type(parse_core_value(text)) is type(number)
