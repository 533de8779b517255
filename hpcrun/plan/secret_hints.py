"""Notes on values in a job file that look like secrets: they would stand in the run's files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hpcrun.secrets.mask import has_secret

# What a setup command sets.
_SETS = re.compile(r"\b([A-Z][A-Z0-9_]*)=(?:\"([^\"]*)\"|'([^']*)'|(\S*))")
_IN_FILES = "is written to the run's files as it is"


def looks_secret(name: str, value: str) -> bool:
    """Return whether a variable's value is a secret, by its name and its form.

    >>> looks_secret("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    True
    >>> looks_secret("TOKENIZERS_PARALLELISM", "false"), looks_secret("HF_TOKEN", "/run/token")
    (False, False)
    """
    # Of a sentence, as in WANDB_NOTES, the first word is no value of the name.
    is_sentence = re.search(r"\s", value) is not None
    return has_secret(value if is_sentence else f"{name}={value}")


def secret_notes(
    env: Mapping[str, str],
    args: Sequence[str],
    commands: Sequence[str],
    profile: Mapping[str, str],
) -> list[str]:
    """Note secrets in a job's env, arguments and setup commands, and in the profile's env.

    A value is never shown.
    """
    notes = [_note(f"env.{name}", name) for name, value in env.items() if looks_secret(name, value)]
    notes += [
        _note(f"the profile's env.{name}", name)
        for name, value in profile.items()
        if name not in env and looks_secret(name, value)
    ]
    for line in commands:
        pairs = [(m[1], m[2] or m[3] or m[4] or "") for m in _SETS.finditer(line)]
        names = [name for name, value in pairs if looks_secret(name, value)]
        notes += [_note("setup.commands", name) for name in names]
        if not names and has_secret(line):
            notes.append(
                f"setup.commands: one looks like it has a secret, and {_IN_FILES}: let it read a "
                "variable that secrets: names"
            )
    if has_secret(" ".join(args)):
        notes.append(
            "args: one looks like a secret; all users of the node can read it in the list of "
            "processes, and it is written to the run's files: let the script read a variable that "
            "secrets: names"
        )
    return notes


def _note(where: str, name: str) -> str:
    return (
        f"{where}: looks like a secret, and {_IN_FILES}; "
        f"secrets: [{name}] takes it from your shell instead, unrecorded"
    )
