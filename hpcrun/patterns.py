"""Regular expressions that are compiled when they are first used.

There are a hundred for the lines of logs alone, of which one log needs a few: to compile them all
takes half as long as a listing of runs may take.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class _Pattern:
    """Stands for a pattern; what is used of it once becomes its own."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copies and pickles asks for is no pattern's
            raise AttributeError(name)
        found = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, found)
        return found


def pattern_of(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Make a pattern; what is wrong with it shows when it is first used.

    >>> pattern_of("[0-9]+").search("step 7")[0]
    '7'
    """
    return cast("re.Pattern[AnyStr]", _Pattern(text, flags))
