"""Read the numbers that programs state at their start: parameters, planned steps, batch, ranks."""

from __future__ import annotations

import re
from decimal import Decimal

from hpcrun.patterns import pattern_of

_COUNT = (
    r"(?P<{0}>\d{{1,3}}(?:,\d{{3}})+|\d{{1,3}}(?:_\d{{3}})+"
    r"|\d+(?:\.\d+)?(?:e\+?\d{{1,2}}|(?: ?[KMBT]| [mbtr]+illion)\b)?)"
    # A number that continues in another notation, a product or a range is left out.
    r"(?![\w%']|[.,]\d| \d| ?[-+*/^x×] ?\d| (?:hundred|thousand|[mbtr]+illion|mio|mln|bn|mrd)\b)"
)


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
    >>> read_stated_numbers("Number of parameters: 1.3e+09\\nTotal optimization steps = 10_000")
    {'parameters': '1,300,000,000', 'planned steps': '10,000'}
    >>> read_stated_numbers("Total params: 12 345 678\\nglobal batch size: 8 x 4")
    {}
    """
    found: dict[str, set[str]] = {}
    for match in _FACT.finditer(text):
        if match.lastgroup:
            found.setdefault(match.lastgroup, set()).add(_format_number(match[match.lastgroup]))
    return {
        name: values.pop()
        for key, name in _NAMES.items()
        if len(values := found.get(key, set())) == 1
    }


def _format_number(text: str) -> str:
    """Write a number with separators of thousands, unless it has a fraction or a unit."""
    if not re.fullmatch(r"[\d_]+|.*e\+?\d+", text, re.IGNORECASE):
        return text
    number = Decimal(text)
    return f"{int(number):,}" if number == int(number) else f"{number.normalize():f}"
