"""Repeats: whether several processes print the same steps, without a word of who they are."""

from __future__ import annotations

from itertools import pairwise

from hpcrun.metrics.curves.passes import rises
from hpcrun.metrics.curves.placed import Rows
from hpcrun.metrics.names import LOSS


class Repeats:
    """Counts rows of one layout whose step is that of the row before, with another value.

    >>> repeats = Repeats()
    >>> columns = [[3.0, 3.1, 2.5, 2.6]]
    >>> repeats.take(Rows(("loss",), "", None, 0, range(4), [1, 1, 2, 2], None, None, columns))
    >>> repeats.rows, repeats.repeats
    (4, 2)
    """

    def __init__(self) -> None:
        """Begin without rows."""
        self.rows = self.repeats = 0
        self._last: tuple[int, float] | None = None

    def take(self, rows: Rows) -> None:
        """Count the rows that stand next in the log."""
        values = rows.columns[rows.names.index(LOSS) if LOSS in rows.names else 0]
        self.rows += len(rows.steps)
        first = (rows.steps[0], values[0])
        if self._last is not None and self._last[0] == first[0]:
            self.repeats += self._last[1] != first[1]
        self._last = (rows.steps[-1], values[-1])
        if not rises(rows.steps):
            pairs = pairwise(zip(rows.steps, values, strict=True))
            self.repeats += sum(one[0] == two[0] and one[1] != two[1] for one, two in pairs)
