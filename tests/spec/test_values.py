"""Jobs given as Python dicts: every value is preserved, or refused with its path."""

from __future__ import annotations

import math
from collections import OrderedDict
from fractions import Fraction
from numbers import Integral
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrun.errors import SpecError
from hpcrun.spec.dump import dump_value
from tests.spec.hostile_text import HOSTILE
from tests.spec.reading import problems, read

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXT.filter(lambda key: key.strip() == key != ""), inner, max_size=4)
    ),
    max_leaves=12,
)


def config(value: object) -> Any:
    """Return a value after a round trip through a free-form field."""
    job = {"framework": "deepspeed", "deepspeed": {"config": {"mine": value}}}
    spec = read(dump_value(job, "job"))
    assert spec.deepspeed is not None
    return spec.deepspeed.config["mine"]


@pytest.mark.slow
@given(VALUES.filter(lambda value: value is not None))
@settings(max_examples=40, deadline=None)
def test_any_value_is_preserved(value: object) -> None:
    back = config(value)
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_remain_texts(text: str) -> None:
    spec = read(dump_value({"args": [text], "env": {"A": text}, "script": "a.py"}, "job"))
    assert (spec.args, spec.env) == ([text], {"A": text})
    assert read("script: a.py", f"args={dump_value([text], 'set')}").args == [text]


@Integral.register
class Whole:
    def __init__(self, value: int) -> None:
        self.value = value

    def __int__(self) -> int:
        return self.value


def test_similar_types_are_converted() -> None:
    # Numbers like those of numpy: not of a built-in type, but registered as numbers.
    made = config(
        OrderedDict(path=Path("/a b"), pair=(1, 2), count=Whole(3), rate=Fraction(1, 2), n=math.nan)
    )
    assert math.isnan(made.pop("n"))
    assert made == {"path": "/a b", "pair": [1, 2], "count": 3, "rate": 0.5}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"resources": {"gpus_per_node": {4}}}, "job: resources.gpus_per_node: a set cannot"),
        ({"env": {"A": b"x"}}, "job: env.A: a bytes cannot be part of a job"),
        ({"args": ["a", object()]}, "job: args[1]: a object cannot be part of a job"),
        ({"env": {1: "x"}}, "job: env.1: a key must be text; got 1"),
        ({"name": "\udcff"}, "job: name: '\\udcff': not UTF-8"),
    ],
)
def test_unsupported_values_are_refused(value: object, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        dump_value(value, "job")
    assert str(caught.value).startswith(message)


def test_circular_value_is_refused() -> None:
    circle: dict[str, object] = {}
    circle["a"] = circle
    with pytest.raises(SpecError, match="nested deeper"):
        dump_value(circle, "job")


def test_nul_character_is_refused() -> None:
    assert problems(dump_value({"name": "a\0b"}, "job"))


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("{lr: 1e-4}", ["--lr", "1e-4"]),
        ("\n  lr: 1e-4\n  amp: true\n  name: a b", ["--lr", "1e-4", "--amp", "--name", "a b"]),
        ("{sizes: [64, 32], -o: x.pt}", ["--sizes", "64", "32", "-o", "x.pt"]),
        ("{shuffle: 'false', seed: 0x10}", ["--shuffle", "false", "--seed", "0x10"]),
        ('{bs: "{micro_batch_per_gpu}"}', ["--bs", "{micro_batch_per_gpu}"]),
        ("--lr 1e-4 --name 'a b' lr=3", ["--lr", "1e-4", "--name", "a b", "lr=3"]),
        ("3", ["3"]),
        ('""', []),
    ],
)
@pytest.mark.parametrize("key", ["args", "launcher_args"])
def test_arguments_may_be_a_map_or_a_shell_string(key: str, text: str, args: list[str]) -> None:
    assert getattr(read(f"script: a.py\n{key}: {text}"), key) == args
    if "\n" not in text:
        assert getattr(read("script: a.py", f"{key}={text}"), key) == args


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{amp: false}", "args.amp: a switch is on, amp: true, or left out"),
        ("{amp: }", "args.amp: a switch is on, amp: true, or left out"),
        ("{optimizer: {lr: 1}}", "args.optimizer: expected a value, or a list of values"),
        ('"--name \'a"', "args: No closing quotation: quote as in a shell"),
    ],
)
def test_unclear_arguments_are_refused(text: str, message: str) -> None:
    (problem,) = problems(f"script: a.py\nargs: {text}")
    assert message in problem


def test_map_of_arguments_replaces_and_extends_those_of_the_base() -> None:
    files = {"base": "script: a.py\nargs: {lr: 1, amp: true}"}
    assert read("extends: base\nargs: {lr: 2}", files=files).args == ["--lr", "2"]
    added = read('extends: base\nargs: "{args} --seed 3"', files=files).args
    assert added == ["--lr", "1", "--amp", "--seed", "3"]
