"""Pairwise testing: a few combinations that contain each pair of values of two factors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

Pair = tuple[tuple[str, str], tuple[str, str]]


def pairwise(factors: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """Yield combinations, chosen greedily, until they contain all pairs of values.

    >>> list(pairwise({"a": "12", "b": "xy"}))[:2]
    [{'a': '1', 'b': 'x'}, {'a': '1', 'b': 'y'}]
    """
    missing = dict.fromkeys(_all_pairs(factors))
    while missing:
        row = dict(next(iter(missing)))
        for name in factors:
            if name not in row:
                news = [_news(row, name, value, missing) for value in factors[name]]
                row[name] = factors[name][news.index(max(news))]
        made = {name: row[name] for name in factors}
        for pair in pairs_of(made):
            missing.pop(pair, None)
        yield made


def pairs_of(row: Mapping[str, str]) -> list[Pair]:
    """Return the pairs of values in a combination."""
    return list(itertools.combinations(row.items(), 2))


def _all_pairs(factors: Mapping[str, Sequence[str]]) -> Iterator[Pair]:
    for (one, values), (other, others) in itertools.combinations(factors.items(), 2):
        for value, second in itertools.product(values, others):
            yield (one, value), (other, second)


def _news(row: Mapping[str, str], name: str, value: str, missing: Mapping[Pair, None]) -> int:
    mine = (name, value)
    return sum((mine, old) in missing or (old, mine) in missing for old in row.items())
