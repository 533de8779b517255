"""Log masking and submission warnings recognize the same secret formats.

That a report leaves them out: tests/actions/test_run_facts.py.
"""

from __future__ import annotations

import re

import pytest

from hpcrun.plan.script_notes import secret_notes
from hpcrun.secrets.kinds import TOKEN
from hpcrun.secrets.mask import Masker
from tests.secrets.secret_names import TOKENS, VARIABLES

HARMLESS = [
    ("HF_TOKEN", "/home/me/.cache/huggingface/token"),
    ("API_KEY", "$API_KEY"),
    ("OPENAI_API_KEY", "dummy"),
    ("SORT_KEY", "validation_loss"),
    ("PAD_TOKEN", "reserved_1"),
    ("MONKEY", "banana1"),
    ("MAX_TOKENS", "4096"),
    ("USE_AUTH", "True"),
    ("WANDB_NOTES", "the token: more data"),
]


def users(name: str, value: str) -> set[bool]:
    """Return whether a log masks a value and whether a submission warns of it, in all positions."""
    line = f"{name}={value}".encode()
    return {
        Masker().mask(line) != line,
        bool(secret_notes({name: value}, [], [], {})),
        bool(secret_notes({}, [], [f"export {name}='{value}'"], {})),
        bool(secret_notes({}, [], [], {name: value})),
    }


@pytest.mark.parametrize(("issuer", "token", "look_alike"), TOKENS)
def test_token_is_masked_and_warned_about(issuer: str, token: str, look_alike: str) -> None:
    assert TOKEN.fullmatch(token.encode())
    assert users("ANY", token) == {True}
    assert len(secret_notes({}, ["--any", token], [], {})) == 1
    assert not TOKEN.search(look_alike.encode())
    assert users("ANY", look_alike) == {False}
    assert secret_notes({}, ["--any", look_alike], [], {}) == []


def test_every_token_issuer_has_a_look_alike() -> None:
    issuers = re.findall(r"# (.+)", TOKEN.pattern.decode())
    assert {issuer for issuer, _, _ in TOKENS} == set(issuers)


@pytest.mark.parametrize(("name", "value"), VARIABLES)
def test_secret_variable_is_masked_and_warned_about(name: str, value: str) -> None:
    assert users(name, value) == {True}


@pytest.mark.parametrize(("name", "value"), HARMLESS)
def test_harmless_variable_is_neither_masked_nor_warned_about(name: str, value: str) -> None:
    assert users(name, value) == {False}
