"""Values in a job file that look like secrets: they would stand in the run's files as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# Beginnings that services give to their tokens: Hugging Face, OpenAI and Anthropic, GitHub, GitLab,
# Slack, AWS, Google, Weights & Biases.
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{15,}|xox[a-z]-[\w-]{10,}|AKIA[A-Z0-9]{16}(?![A-Z0-9])"
    r"|AIza[\w-]{30,}|wandb_v1_\w{20,})"
)
_SECRET_NAME = re.compile(
    r"(?:^|_)(API_?KEY|ACCESS_KEY|SECRET_KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$"
)
# What a setup command sets, or a service's login is given.
_EXPORT = re.compile(r"\b([A-Z][A-Z0-9_]*)=(?:\"([^\"]*)\"|'([^']*)'|(\S*))")


def looks_secret(name: str, value: str) -> bool:
    """Tell whether a variable's value is a secret, by its name and its form.

    >>> looks_secret("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    True
    >>> looks_secret("TOKENIZERS_PARALLELISM", "false"), looks_secret("HF_TOKEN", "/run/token")
    (False, False)
    """
    if _TOKEN.search(value):
        return True
    # A path, a placeholder, a variable and a sentence are no keys.
    plain = re.fullmatch(r"[A-Za-z0-9_.+=~!@#%^&*-]{12,}", value)
    return plain is not None and _SECRET_NAME.search(name) is not None


def secret_notes(
    env: Mapping[str, str],
    words: Sequence[str],
    commands: Sequence[str],
    profile: Mapping[str, str],
) -> list[str]:
    """Tell of secrets in a job's env, words and setup commands, and in the profile's env.

    A value is never shown.
    """
    notes = []
    for name, value in env.items():
        if looks_secret(name, value):
            notes.append(_note(f"env.{name}", name))
    for name, value in profile.items():
        if name not in env and looks_secret(name, value):
            notes.append(_note(f"the profile's env.{name}", name))
    for line in commands:
        for match in _EXPORT.finditer(line):
            if looks_secret(match[1], match[2] or match[3] or match[4] or ""):
                notes.append(_note("setup.commands", match[1]))
    if any(_TOKEN.search(word) for word in words):
        notes.append(
            "args: one looks like a secret; all on the node can read it in the list of processes, "
            "and it is written to the run's files: let the script read a variable that secrets: "
            "names"
        )
    return notes


def _note(where: str, name: str) -> str:
    return (
        f"{where}: looks like a secret, and is written to the run's files as it is; "
        f"secrets: [{name}] takes it from your shell instead, unrecorded"
    )
