"""Where each attempt stands in the batch script's log, which is one for all."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Without ^, which would be tried at each byte of a long log: so the first word is looked for.
_BEGINS = re.compile(rb"hpcrun: attempt (\d+) (?:of job \S+ )?begins on ")


def part_of(text: bytes | memoryview, attempt: int) -> tuple[int, int]:
    """Return the offsets at which an attempt begins and ends in a log; -1 is the last attempt.

    Where no attempt is told of, all may be of it; one after those that are begins at the end.

    >>> part_of(b"hpcrun: attempt 0 begins on n1\\nhpcrun: attempt 1 begins on n1\\n", 0)
    (0, 31)
    """
    begins = dict(_begins(text))
    if not begins:
        return 0, len(text)
    if attempt < 0:
        attempt = max(begins)
    later = [at for number, at in begins.items() if number > attempt]
    end = min(later, default=len(text))
    return begins.get(attempt, 0 if later else end), end


def end_in(data: bytes, attempt: int) -> int | None:
    """Return where in new lines an attempt is over: a later one begins there."""
    return next((at for number, at in _begins(data) if number > attempt), None)


def _begins(text: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Give the attempts of which a line says that they begin, and its offset."""
    for found in _BEGINS.finditer(text):
        at = found.start()
        if at == 0 or text[at - 1] == ord("\n"):
            yield int(bytes(found[1])), at
