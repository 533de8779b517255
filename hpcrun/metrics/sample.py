"""Sample: one number that a log says was measured.

Pure.
"""

from __future__ import annotations

from msgspec import Struct


class Sample(Struct, frozen=True, array_like=True, gc=False):
    """One measurement, as it stands in the log; views such as "one value per step" are derived.

    ``offset`` is the byte at which the line begins in its log file. ``step`` and ``epoch`` are
    what the same line says, or None. ``name`` is canonical where ``hpcrun.metrics.names`` knows
    the spelling, else as the log has it. ``value`` may be nan or infinite.
    """

    attempt: int
    offset: int
    epoch: float | None
    step: int | None
    split: str
    name: str
    value: float
