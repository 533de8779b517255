"""Rows of tables in a terminal: a row for each run, marked and coloured as its line in the plot."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hpcrun.report.plot import line_mark, line_sgr
from hpcrun.views.table import DIM, Column, Look, Table, cells, cut, paint, shorten, widest


def run_rows(names: Sequence[str], facts: Sequence[Mapping[str, str]], look: Look) -> list[str]:
    """Return a row for each run, as many tables below each other as the width asks for.

    ``facts``: each run's texts by their headings; "-" stands for one that it lacks.
    """
    headings = list(dict.fromkeys(heading for each in facts for heading in each))
    sizes = [widest([name, *(each.get(name, "-") for each in facts)]) for name in headings]
    # In a very narrow window the names give way: a number that is cut off is another number.
    room = look.width - 4 - max(sizes, default=0)
    sources = [
        f"{run_mark(number, look)} {source}"
        for number, source in enumerate(
            distinct(names, max(4, min(max(12, look.width // 3), room)), look)
        )
    ]
    rows: list[str] = []
    begin = 0
    while begin < len(headings):
        used, end = widest(sources) + 2 + sizes[begin], begin + 1
        while end < len(headings) and used + 2 + sizes[end] <= look.width:
            used, end = used + 2 + sizes[end], end + 1
        chosen, begin = headings[begin:end], end
        columns = [Column(), *(Column(heading, right=True) for heading in chosen)]
        texts = [
            [source, *(each.get(heading, "-") for heading in chosen)]
            for source, each in zip(sources, facts, strict=True)
        ]
        rows += ["", *Table(columns, texts, look, head=DIM).lines()]
    return rows[1:]


def run_mark(number: int, look: Look) -> str:
    """Return what stands for a run beside its name in a table."""
    return paint(line_mark(number, look, several=True), line_sgr(number), look)


def distinct(names: Sequence[str], width: int, look: Look) -> list[str]:
    """Cut names to a width: what all begin or end with goes first, folder by folder, then words.

    >>> distinct(["exp/run-a/train.log", "exp/run-b/train.log"], 12, Look(80, 24))
    ['run-a', 'run-b']
    >>> distinct(["1_megatron-deepspeed.log", "2_megatron-deepspeed.log"], 12, Look(80, 24))
    ['1', '2']
    """
    for separator in ("(/)", r"([\W_]+)"):
        if widest(names) > width and len(set(names)) > 1:
            names = _without_common(names, separator)
    ends = [shorten(name, width, ascii_only=look.ascii_only) for name in names]
    if len(set(ends)) == len(set(names)):
        return ends
    mark = ".." if look.ascii_only else "…"
    return [name if cells(name) <= width else cut(name, width - len(mark)) + mark for name in names]


def _without_common(names: Sequence[str], separator: str) -> list[str]:
    """Take away the words that all names begin or end with; one stays of each."""
    parts = [re.split(separator, name) for name in names]
    while all(len(each) > 2 for each in parts) and len({tuple(each[:2]) for each in parts}) == 1:
        parts = [each[2:] for each in parts]
    while all(len(each) > 2 for each in parts) and len({tuple(each[-2:]) for each in parts}) == 1:
        parts = [each[:-2] for each in parts]
    return ["".join(each) for each in parts]
