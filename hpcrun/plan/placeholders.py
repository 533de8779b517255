"""Placeholders: how hpcrun's decisions reach the user's script."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping

from hpcrun.errors import Problem

# What there is not in every run: where else.
_ONLY_WITH = {
    "accelerate_config": "launcher: accelerate",
    "after_checkpoint_dir": "--after RUN, one run of hpcrun's",
    "deepspeed_config": "a deepspeed: block",
    "zero_stage": "a deepspeed: block",
}
# ${HPCRUN_LOCAL_DIR} is no placeholder: bash fills it, on each node.
_TOKEN = re.compile(r"\$\{HPCRUN_LOCAL_DIR\}|\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}|[{}]")


def fill(text: str, values: Mapping[str, str], path: str, problems: list[Problem]) -> str:
    """Fill ``{name}`` in a job file's text; ``{{`` and ``}}`` are braces.

    Anything else with a brace is added to ``problems``: a typo must not reach the script.

    >>> fill("--out={run_dir}/{{x}}", {"run_dir": "/r"}, "args[0]", [])
    '--out=/r/{x}'
    >>> found = []
    >>> _ = fill("{precison}", {"precision": "bf16"}, "args[1]", found)
    >>> print(found[0])
    args[1]: {precison}: no such placeholder; did you mean {precision}?
    """

    def one(match: re.Match[str]) -> str:
        token, name = match.group(0), match.group(1)
        if token in ("{{", "}}"):
            return token[0]
        if token.startswith("$"):
            return token
        if name is None:
            problems.append(
                Problem(
                    "", None, path, f"a lone {token} in {text!r}; write {token * 2} for a brace"
                )
            )
            return token
        if name in _ONLY_WITH and name not in values:
            message = f"{{{name}}}: there is one only with {_ONLY_WITH[name]}"
            problems.append(Problem("", None, path, message))
            return token
        if name not in values:
            close = difflib.get_close_matches(name, values, 1)
            hint = (
                f"did you mean {{{close[0]}}}?"
                if close
                else "there are " + " ".join(f"{{{known}}}" for known in sorted(values))
            )
            problems.append(Problem("", None, path, f"{{{name}}}: no such placeholder; {hint}"))
            return token
        return values[name]

    return _TOKEN.sub(one, text)


def fill_known(text: str, values: Mapping[str, str]) -> str:
    """Fill the known ``{name}`` in a word from the command line and leave all else as typed.

    >>> fill_known('{"batch": {micro_batch_per_gpu}}', {"micro_batch_per_gpu": "4"})
    '{"batch": 4}'
    """
    return re.sub(
        r"\{([A-Za-z_][A-Za-z0-9_]*)\}",
        lambda match: values.get(match.group(1), match.group(0)),
        text,
    )


def double_braces(text: str, keep: Collection[str]) -> str:
    """Write a word of the command line as a job file has it: fill() gives what fill_known() gives.

    >>> double_braces('{"nodes": {nodes}}', {"nodes"})
    '{{"nodes": {nodes}}}'
    """
    return re.sub(
        r"\{([A-Za-z_][A-Za-z0-9_]*)\}|[{}]",
        lambda match: match[0] if match[1] in keep else re.sub(r"[{}]", r"\g<0>\g<0>", match[0]),
        text,
    )
