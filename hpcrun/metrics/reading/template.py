"""Template: what one shape of lines is, and what a line of it says.

How a template is learned, and why it can be trusted, is in ``learn``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from hpcrun.metrics.row import Layout, Row

Role = Literal["step", "epoch", "total"] | int


class Slot(Struct, frozen=True):
    """A number of the line that becomes ``role``: a place, or the value of that index.

    The number as printed times ``factor`` is the value; its reciprocal times ``factor`` where
    ``inverse`` (a rate, in seconds).
    """

    role: Role
    group: int
    factor: float = 1.0
    inverse: bool = False
    thousands: bool = False

    def convert(self, texts: Sequence[bytes]) -> list[float]:
        """Return the values that the texts of this slot spell; raises ValueError for no number."""
        if self.thousands:
            texts = [text.replace(b",", b"") for text in texts]
        values = list(map(float, texts))
        if self.inverse:
            return [self.factor / value if value else math.inf for value in values]
        return values if self.factor == 1.0 else [value * self.factor for value in values]


class Template(Struct, frozen=True):
    """One shape of lines: ``pattern`` fits one alone, ``line_pattern`` one among others.

    ``slots`` take values out of the groups, ``keys`` are the groups on which the layout depends
    (the rank of ``[rank3]``), ``time`` is the group of the time stamp. ``row`` is what the line it
    was learned from says: what no slot feeds is as there.
    """

    pattern: re.Pattern[bytes]
    line_pattern: re.Pattern[bytes]
    slots: tuple[Slot, ...]
    keys: Callable[[tuple[bytes, ...]], object] | None
    time: int | None
    format: str
    row: Row


def layout_of(form: str, row: Row) -> Layout:
    """Say what a row has in common with others of its kind."""
    return Layout(form, row.split, row.rank, row.bar, tuple(name for name, _ in row.values))


def explains(template: Template, groups: Sequence[bytes], row: Row) -> bool:
    """Tell whether the slots give what the reader of lines says of a line with these groups."""
    told = outputs_of(row)
    foretold = outputs_of(template.row) | {
        slot.role: slot.convert([groups[slot.group]])[0] for slot in template.slots
    }
    return are_same(told, foretold)


def outputs_of(row: Row) -> dict[Role, float]:
    """Every number of a row by its role."""
    outputs: dict[Role, float] = {index: value for index, (_, value) in enumerate(row.values)}
    places: tuple[tuple[Role, float | None], ...] = (
        ("step", row.step),
        ("epoch", row.epoch),
        ("total", row.total),
    )
    return outputs | {role: value for role, value in places if value is not None}


def are_same(told: dict[Role, float], foretold: dict[Role, float]) -> bool:
    """Compare two rows' numbers; nan equals nan."""
    return told.keys() == foretold.keys() and all(
        told[role] == value or (math.isnan(value) and math.isnan(told[role]))
        for role, value in foretold.items()
    )
