"""Where each attempt stands in the batch script's log, which is one for all.

Pure.
"""

from __future__ import annotations

import re

_BEGINS = re.compile(rb"^hpcrun: attempt (\d+) (?:of job \S+ )?begins on ", re.M)


def part_of(text: bytes, attempt: int) -> tuple[int, int]:
    """Return the offsets at which an attempt begins and ends in a log; -1 is the last attempt.

    Where no attempt is told of, all may be of it; one after those that are begins at the end.

    >>> part_of(b"hpcrun: attempt 0 begins on n1\\nhpcrun: attempt 1 begins on n1\\n", 0)
    (0, 31)
    """
    begins = {int(found[1]): found.start() for found in _BEGINS.finditer(text)}
    if not begins:
        return 0, len(text)
    if attempt < 0:
        attempt = max(begins)
    later = [at for number, at in begins.items() if number > attempt]
    end = min(later, default=len(text))
    return begins.get(attempt, 0 if later else end), end


def end_in(data: bytes, attempt: int) -> int | None:
    """Return where in new lines an attempt is over: a later one begins there."""
    found = (each.start() for each in _BEGINS.finditer(data) if int(each[1]) > attempt)
    return next(found, None)
