"""JSON as DeepSpeed reads it with the hjson package, with line numbers and errors."""

from __future__ import annotations

import json
from typing import Any

import hjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcrun.errors import SpecError
from hpcrun.spec.deepspeed_json import parse_hjson

TOKENS = [
    *"{}[]:,ab \n/-",
    *("'x y'", "1", "-2.5", "5e7", "1e12", "true", "null", "# c\n", "// c\n", "/* c */"),
    *('"\\u00e9\\n"', "'''\n  t\n  u\n  '''", "w o", "01", "nan", '"\\ud83d\\ude00"', "false,"),
    *("1e999", "\r\n", "\t", '"open', "'\\''", '"\\x"'),
]


def ours(text: str) -> Any:
    try:
        return parse_hjson(text, "ds.json").value
    except SpecError:
        return "refused"


def theirs(text: str) -> Any:

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key twice")  # as in DeepSpeed
        return dict(pairs)

    try:
        value = hjson.loads(text, object_pairs_hook=once)
    except (ValueError, OverflowError, IndexError, RecursionError):
        return "refused"
    return value if isinstance(value, dict) else "refused"


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=12).map("".join), st.booleans())
@example("1, /* c */ ", True)
@example('{"a": {"b": [1, 2,, ]}', False)
@example("", False)
def test_parse_hjson_agrees_with_hjson(text: str, wrapped: bool) -> None:
    text = f'{{"k": {text}}}' if wrapped else text
    expected = theirs(text)
    got = ours(text)
    assert got == expected and repr(got) == repr(expected), text


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.slow
@settings(deadline=None)
@given(st.dictionaries(st.text(), PLAIN, max_size=4), st.sampled_from([None, 2]))
def test_parse_hjson_reads_plain_json(value: dict[str, Any], indent: int | None) -> None:
    assert ours(json.dumps(value, indent=indent)) == value


def test_parse_hjson_records_lines_of_keys() -> None:
    document = parse_hjson('{ // mine\n "a": {\n\n  "b": [1,\n 2]},\n "c": 1\n}', "ds.json")
    assert document.value == {"a": {"b": [1, 2]}, "c": 1}
    assert document.lines[("a", "b")] == 4
    assert document.lines[("a", "b", "1")] == 4  # elements of a list have the line of its key
    assert document.lines[("c",)] == 6


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1,\n "b": 2,\n "a": 3}', "ds.json:3: a: appears twice, also on line 1"),
        ('{"z": {"a": 1,\n"a": 1}}', "ds.json:2: z.a: appears twice, also on line 1"),
        ('{"a": {\n', "ds.json:2: the file ends inside a map, a list, a text or a comment"),
        ('{\n"a": [1, ', "ds.json:2: the file ends inside a map, a list, a text or a comment"),
        ('{\n"a": "x\n}', "ds.json:2: text in quotes is never closed on its line"),
        ('{\n"a" 1}', "ds.json:2: '1}' where a : should follow the key"),
        ("[1]", "ds.json:1: a list; a map of keys is needed"),
        ("{}\n}", "ds.json:2: '}' after the end"),
        ('{"a": }', "ds.json:1: '}' where a value is expected"),
        ("/* x", "ds.json:1: the file ends inside a map, a list, a text or a comment"),
        ('{"a": "\\x"}', "ds.json:1: 'x\"}' is not a valid escape"),
        ("{\na b: 1}", "ds.json:2: ' b: 1}' where a key and its : are expected"),
        ('{"a": 1e999}', "ds.json:1: 1e999 is too big a number"),
    ],
)
def test_parse_hjson_errors_have_line_numbers(text: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_hjson(text, "ds.json")
    assert str(caught.value) == expected


def test_keys_in_comments_and_texts_are_ignored() -> None:
    text = '{\n// "b": 1,\n/* "b": 2,\n*/ # b: 3\n"a": "b: http://x",\n"b": 4, c: a b: 1\n"d": 1}'
    document = parse_hjson(text, "ds.json")
    assert list(document.lines.items()) == [(("a",), 5), (("b",), 6), (("c",), 6), (("d",), 7)]


def test_byte_order_mark_is_ignored() -> None:
    assert ours('\ufeff{"a": 1}') == {"a": 1}


def test_duplicate_keys_are_reported_together() -> None:
    with pytest.raises(SpecError) as caught:
        parse_hjson('{"a": 1, "a": 2,\n"b": 1,\n"b": 2}', "ds.json")
    assert len(caught.value.problems) == 2


def test_excessive_nesting_is_refused() -> None:
    for opening in ("[", '{"a":'):
        with pytest.raises(SpecError, match="in one another"):
            parse_hjson('{"a": ' + opening * 5000, "ds.json")
