"""Finds the lines of a block that may be metric lines.

A block is folded: lower case, each line end a line feed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Span = tuple[int, int]

# One pass of bytes.translate folds case and makes every line end a line feed, keeping offsets.
_FOLD = bytes(0x0A if i in (0x00, 0x0D) else i for i in range(256)).lower()


def fold(block: bytes) -> bytes:
    """Fold case and line ends; every byte keeps its place."""
    if b"\r" in block or b"\0" in block:
        return block.translate(_FOLD)
    return block.lower()


def lines_with(folded: bytes, start: int, end: int, needles: Iterable[bytes]) -> list[Span]:
    """Return begin and end of each line in ``folded[start:end]`` that holds one of the needles.

    ``start`` begins a line, ``end`` lies behind a line feed. Jumping from needle to needle never
    looks at what stands between: this is what makes noise cheap.

    >>> lines_with(b"a\\nstep=3 loss=2\\nno\\nloss: 2\\nloss: 3", 0, 27, [b"loss", b"step"])
    [(2, 15), (19, 26)]
    """
    found: list[list[Span]] = [list(_lines_with(folded, start, end, needle)) for needle in needles]
    found = [spans for spans in found if spans]
    if len(found) == 1:
        return found[0]
    return sorted({span for spans in found for span in spans})


def _lines_with(folded: bytes, start: int, end: int, needle: bytes) -> Iterator[Span]:
    find, rfind = folded.find, folded.rfind
    place = find(needle, start, end)
    while place >= 0:
        begin = rfind(b"\n", start, place) + 1 or start
        start = find(b"\n", place, end)
        yield begin, start
        place = find(needle, start, end)


def all_lines(folded: bytes, start: int, end: int) -> list[Span]:
    """Return begin and end of each line that is not empty.

    >>> all_lines(b"a\\n\\nbc\\nd", 0, 6)
    [(0, 1), (3, 5)]
    """
    spans = []
    while start < end:
        stop = folded.index(b"\n", start, end)
        if stop > start:
            spans.append((start, stop))
        start = stop + 1
    return spans
