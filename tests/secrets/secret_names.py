"""Tokens and variables of other programs that are secrets."""

from __future__ import annotations

from tests.secrets.secret_values import HEX, MIXED

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
