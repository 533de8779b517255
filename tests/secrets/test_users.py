"""Log masking and submission warnings recognize the same secret formats.

That a report leaves them out: tests/actions/test_run_facts.py.
"""

from __future__ import annotations

import re

import pytest

from hpcrun.plan.script_notes import secret_notes
from hpcrun.secrets.kinds import TOKEN
from hpcrun.secrets.mask import Masker
from tests.secrets.test_mask import HEX, MIXED

# Issuer, a token in its format, and a look-alike.
TOKENS = [
    ("Hugging Face", f"hf_{MIXED[:34]}", "hf_transfer"),
    ("OpenAI, Anthropic", f"sk-proj-{MIXED}_{MIXED}", "sk-learn-based-classifier-v2"),
    ("OpenAI, Anthropic", f"sk-ant-api03-{MIXED}", "risk-assessment-of-a-Long-name-4"),
    ("GitHub", f"ghp_{MIXED}", "ghp_runner"),
    ("GitHub", f"github_pat_11ABCDEFG0{MIXED}", "github_pat_file"),
    ("GitLab", "glpat-abcdefghij0123456789", "glpat-file"),
    ("AWS", "AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLEX"),
    ("AWS", "ASIAIOSFODNN7EXAMPLE", "ASIAN_FACES_2024_SUBSET"),
    ("Google", "AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY", "AIzaSyD-9tSrke72"),
    ("Slack", f"xoxb-123456789012-{MIXED[:24]}", "xoxb-channel"),
    ("a JSON Web Token", f"eyJhbGciOiJI.eyJzdWIiOiIx.{MIXED}", "eyJhbGciOiJI"),
    ("Weights & Biases", f"wandb_v1_{MIXED}", "wandb_v1_run"),
    ("NVIDIA", f"nvapi-{MIXED}{MIXED}", "nvapi-client"),
]
# A variable and its value.
VARIABLES = [
    ("WANDB_API_KEY", HEX),
    ("MY_APIKEY", "abcd1234"),
    ("DB_PASSWORD", "hunter2"),
    ("NPM_AUTH", "dXNlcjpw4ss"),
    ("SERVICE_CREDENTIALS", "me:pw4711"),
    ("HTTPS_PROXY", "http://me:sesame@proxy:80"),
    ("SOME_TOKEN_FILE_TOKEN", MIXED),
]
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
