"""Falls: where counters fell and what it was taken for, in one sentence each, however many."""

from __future__ import annotations


class Falls:
    """Gathers falls of one kind into one note: a log may hold hundreds of runs.

    >>> falls = Falls()
    >>> for place in ("step 300", "step 300", "step 500", "step 40"):
    ...     falls.add("the counter begins again after", place, "taken as another run")
    >>> falls.notes()
    ['the counter begins again after step 300 and at 2 other places: taken as another run']
    """

    def __init__(self) -> None:
        # What fell and what it is taken for -> the first place, and how many others there are.
        self._seen: dict[tuple[str, str], tuple[str, int]] = {}

    def add(self, what: str, place: str, meaning: str) -> None:
        """Take note of one fall."""
        first, others = self._seen.setdefault((what, meaning), (place, 0))
        self._seen[what, meaning] = (first, others + (place != first))

    def joined(self, other: Falls | None) -> Falls:
        """Return these and those of a later log."""
        both = Falls()
        both._seen = self._seen.copy()
        for kind, (place, others) in other._seen.items() if other is not None else ():
            first, before = both._seen.setdefault(kind, (place, 0))
            both._seen[kind] = (first, before + others + (place != first))
        return both

    def notes(self) -> list[str]:
        """Return a sentence for each kind."""
        return [
            f"{what} {place}{_more(others)}: {meaning}"
            for (what, meaning), (place, others) in self._seen.items()
        ]


def _more(others: int) -> str:
    if not others:
        return ""
    return f" and at {others} other place{'s' if others > 1 else ''}"
