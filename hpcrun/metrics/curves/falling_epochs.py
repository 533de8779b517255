"""Falling epochs: where a log without steps goes on from an earlier epoch.

The dictionaries of the HF Trainer say how far the epoch is, and no step. Where that falls the job
was resumed, or another run begins; which points were done again nobody can tell, so all are kept
in their order. That is said.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcrun.metrics.curves.passes import Counter, Verdict, never_falls
from hpcrun.metrics.curves.placed import Rows
from hpcrun.metrics.names import EPOCH, LOSS

# An epoch is counted in such parts, as a counter of steps would.
_PARTS = 10_000


class FallingEpochs:
    """Follows the epochs of the training losses that have no steps.

    >>> falling = FallingEpochs()
    >>> def losses(epochs):
    ...     columns = [[2.5] * len(epochs), epochs]
    ...     return Rows(("loss", "epoch"), "", None, 4, epochs, [], epochs, None, columns)
    >>> falling.take([losses([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])])
    []
    >>> falling.take([losses([0.3, 0.4, 0.5, 0.6, 0.7])])
    [(<Verdict.AGAIN: 3>, 0.7, 0.3)]
    """

    def __init__(self) -> None:
        self._counter = Counter()

    def take(self, rows: Sequence[Rows]) -> list[tuple[Verdict, float, float]]:
        """Take the rows that stand next in the log; return what each fall is, from and to where."""
        fallen: list[tuple[Verdict, float, float]] = []
        for each in rows:
            if not each.level or LOSS not in each.names or EPOCH not in each.names:
                continue
            counter = self._counter
            epochs = each.columns[each.names.index(EPOCH)]
            parts = [round(epoch * _PARTS) for epoch in epochs if 0 <= epoch < 1e9]
            if never_falls(parts):
                parts = [*dict.fromkeys(parts)]
            for part in parts:
                verdict = counter.take(part, None)
                begun, end = counter.fallen_to, counter.fallen_from
                if verdict in (Verdict.AGAIN, Verdict.ANOTHER_RUN) and begun and end:
                    fallen.append((verdict, end.step / _PARTS, begun.step / _PARTS))
        return fallen
