"""Read the numbers that programs state at their start: parameters, planned steps, batch, ranks."""

from __future__ import annotations

import re

from hpcrun.patterns import pattern_of

_COUNT = r"(?P<{0}>\d{{1,3}}(?:,\d{{3}})+|\d+(?:\.\d+)?(?: ?[KMBT](?:illion)?\b)?)"


def _stated(before: str, name: str) -> str:
    return rf"\b{before}(?: ?\([^()\n]{{1,80}}\))? ?[:=] ?{_COUNT.format(name)}"


# What the numbers are, in the order in which they are shown.
_NAMES = {
    "trainable": "trainable parameters",
    "parameters": "parameters",
    "steps": "planned steps",
    "batch": "total batch size",
    "ranks": "ranks",
}
_FACT = pattern_of(
    "|".join(
        (
            _stated(r"trainable (?:model )?param(?:eter)?s", "trainable"),
            _stated(
                r"(?<!trainable )(?:(?:all|total|model|number of|num|#) )*param(?:eter)?s",
                "parameters",
            ),
            _stated(r"total (?:optimization|training|train|update|number of) steps", "steps"),
            _stated(r"(?:total (?:train(?:ing)? )?|global[ _]|effective )batch[ _]size", "batch"),
            _stated(r"world[ _]size", "ranks"),
        )
    ),
    re.IGNORECASE,
)


def read_stated_numbers(text: str) -> dict[str, str]:
    """Return the numbers that the start of a log states, by what they are.

    A number that is stated twice with different values (of two models, say) is left out.

    >>> read_stated_numbers("Total optimization steps = 430\\nworld size: 16, world_size: 16")
    {'planned steps': '430', 'ranks': '16'}
    >>> read_stated_numbers("trainable params: 296,450 || all params: 109,780,228 || 0.27%")
    {'trainable parameters': '296,450', 'parameters': '109,780,228'}
    >>> read_stated_numbers("Total params: 58957824\\nTotal params: 12")
    {}
    """
    found: dict[str, set[str]] = {}
    for match in _FACT.finditer(text):
        if match.lastgroup:
            number = match[match.lastgroup]
            found.setdefault(match.lastgroup, set()).add(
                f"{int(number):,}" if number.isdecimal() else number
            )
    return {
        name: values.pop()
        for key, name in _NAMES.items()
        if len(values := found.get(key, set())) == 1
    }
