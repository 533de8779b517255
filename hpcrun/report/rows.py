"""Rows of tables in a terminal: a row for each run, marked and coloured as its line in the plot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from hpcrun.report.plot import Look, line_mark, line_sgr
from hpcrun.report.text import cells, cut, pad, shorten


def run_rows(names: Sequence[str], facts: Sequence[Mapping[str, str]], look: Look) -> list[str]:
    """Return a row for each run, as many tables below each other as the width asks for.

    ``facts``: each run's texts by their headings; "-" stands for one that it lacks.
    """
    headings = list(dict.fromkeys(heading for each in facts for heading in each))
    marks = [line_mark(index, look, several=True) for index in range(len(names))]
    sizes = {
        heading: widest([heading, *(each.get(heading, "-") for each in facts)])
        for heading in headings
    }
    # In a very narrow window the names give way: a number that is cut off is another number.
    room = look.width - 4 - max(sizes.values(), default=0)
    sources = distinct(names, max(4, min(max(12, look.width // 3), room)), look)
    name_width = min(widest(sources), max(1, look.width - 2))
    rows: list[str] = []
    while headings:
        chosen: list[str] = []
        used = 2 + name_width
        while headings and (not chosen or used + 2 + sizes[headings[0]] <= look.width):
            used += 2 + sizes[headings[0]]
            chosen.append(headings.pop(0))
        head = " " * (2 + name_width) + "".join(f"  {name:>{sizes[name]}}" for name in chosen)
        rows += [""] if rows else []
        rows.append(dim(head[: look.width], look))
        for index, (source, each) in enumerate(zip(sources, facts, strict=True)):
            values = "".join(f"  {each.get(name, '-'):>{sizes[name]}}" for name in chosen)
            text = f" {pad(source, name_width)}{values}"
            text = cut(text, look.width - 1).rstrip()
            rows.append(paint(marks[index], line_sgr(index), look) + text)
    return rows


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


def widest(texts: Iterable[str]) -> int:
    """Count the columns of the widest text, 0 without any."""
    return max(map(cells, texts), default=0)


def dim(text: str, look: Look) -> str:
    """Print a text faintly, where there are colours."""
    return paint(text, "2", look)


def paint(text: str, sgr: str, look: Look) -> str:
    """Print a text with parameters of ECMA-48's SGR, where there are colours."""
    return f"\x1b[{sgr}m{text}\x1b[0m" if look.colour and sgr and text else text
