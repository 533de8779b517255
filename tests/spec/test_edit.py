"""Editing single values of a YAML file without changing any other character."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrun.spec.dump import CannotEdit, comment_out_value, format_flow, remove_value, set_value

TEXT = """\
# mine: é ü
name: hot   # its name
partitions:
  # the good one
  gpu:
    nodes: 20  # twenty
    max_time: "2-0"

  old: {nodes: 3, gpus_per_node: 2}   # soon gone
# below
account: x
"""


def test_put_replaces_a_value_and_keeps_its_comment() -> None:
    made = set_value(TEXT, ["partitions", "gpu", "nodes"], 21)
    assert made == TEXT.replace("nodes: 20  # twenty", "nodes: 21  # twenty")
    made = set_value(TEXT, ["partitions", "old", "nodes"], 4)
    assert made == TEXT.replace("{nodes: 3,", "{nodes: 4,")


def test_put_adds_a_key_next_to_its_siblings() -> None:
    made = set_value(TEXT, ["partitions", "gpu", "max_nodes"], 8)
    assert made == TEXT.replace('"2-0"\n', '"2-0"\n    max_nodes: 8\n')
    made = set_value(TEXT, ["partitions", "old", "max_nodes"], 8)
    assert made == TEXT.replace("gpus_per_node: 2}", "gpus_per_node: 2, max_nodes: 8}")
    made = set_value(TEXT, ["partitions", "new"], {"nodes": 1})
    assert made == TEXT.replace("# soon gone\n", "# soon gone\n  new: {nodes: 1}\n")
    assert set_value(TEXT, ["read_on"], "2026-11-21") == TEXT + 'read_on: "2026-11-21"\n'


def test_drop_removes_and_comment_out_comments_an_entry() -> None:
    assert remove_value(TEXT, ["partitions", "gpu", "nodes"]) == TEXT.replace(
        "    nodes: 20  # twenty\n", ""
    )
    assert remove_value(TEXT, ["partitions", "old", "nodes"]) == TEXT.replace("nodes: 3, ", "")
    assert remove_value(TEXT, ["partitions", "old", "gpus_per_node"]) == TEXT.replace(
        ", gpus_per_node: 2", ""
    )
    made = comment_out_value(TEXT, ["partitions", "gpu"], "gone:")
    assert '  # gone:\n  # gpu:\n  #   nodes: 20  # twenty\n  #   max_time: "2-0"\n' in made
    assert yaml.safe_load(made)["partitions"] == {"old": {"nodes": 3, "gpus_per_node": 2}}


@pytest.mark.parametrize(
    ("text", "path", "value", "made"),
    [
        ("", ["a", "b"], 1, "a: {b: 1}\n"),
        ("# only words\n", ["a"], 1, "# only words\na: 1\n"),
        ("a:\nb: 2\n", ["a"], {"c": 1}, "a: {c: 1}\nb: 2\n"),
        ("a:  # nothing\nb: 2\n", ["a", "c"], 1, "a: {c: 1}  # nothing\nb: 2\n"),
        ("a: {}", ["a", "c"], 1, "a: {c: 1}"),
        ("a: 1", ["b"], 2, "a: 1\nb: 2\n"),
        ("a: 1\r\nb: 2\r\n", ["a"], 3, "a: 3\r\nb: 2\r\n"),
        ("a:\r\n  x: 1\r\nb: 2\r\n", ["a", "z"], 3, "a:\r\n  x: 1\r\n  z: 3\r\nb: 2\r\n"),
        ("{a: 1}\n", ["b"], 2, "{a: 1, b: 2}\n"),
        ("a: {x: 1, # why\n  y: 2}\n", ["a", "z"], 3, "a: {x: 1, # why\n  y: 2, z: 3}\n"),
    ],
)
def test_put_handles_unusual_documents(text: str, path: list[str], value: Any, made: str) -> None:
    assert set_value(text, path, value) == made
    assert yaml.safe_load(made) is not None


@pytest.mark.parametrize("text", ["[1, 2]\n", "- a\n", "a: [1]\n", "a: [", "x\n", "a: *b\n"])
def test_put_refuses_documents_that_are_not_maps(text: str) -> None:
    with pytest.raises(CannotEdit):
        set_value(text, ["a", "b"], 1)


NAMES = st.text("abé \"'#:{}[],&*!|>%@`-?1\\", min_size=1, max_size=6)
VALUES = st.one_of(st.integers(0, 9), st.booleans(), NAMES)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=3), max_size=3), st.data())
def test_put_values_are_read_back(tree: dict[str, Any], data: st.DataObject) -> None:
    flow = data.draw(st.sampled_from([True, False, None]))
    text = yaml.safe_dump(tree, default_flow_style=flow, allow_unicode=True, width=10_000)
    path = data.draw(st.lists(NAMES, min_size=2, max_size=2))
    if data.draw(st.booleans()) and tree:
        path[0] = data.draw(st.sampled_from(sorted(tree)))
    value = data.draw(VALUES)
    tree.setdefault(path[0], {})[path[1]] = value
    try:
        made = set_value(text, path, value)
    except CannotEdit:
        return
    assert yaml.safe_load(made) == tree


@pytest.mark.slow
@given(st.text(max_size=20))
def test_flow_preserves_text(text: str) -> None:
    try:
        read = yaml.safe_load(f"a: {format_flow(text)}")
    except yaml.reader.ReaderError:
        return  # no YAML has such characters
    assert read == {"a": text}
