"""Gathers the rows that a reader finds in frames, one for each layout."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from typing import TypeVar

from hpcrun.metrics.reading.template import Template, explains, layout_of
from hpcrun.metrics.row import Frame, Layout, Row

# All stamps of a template have one form: so what holds for the first holds for all.
_ENDS_IN_SECONDS = re.compile(rb"[T _-]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?$")
_MOST_MINUTES = 1 << 16

T = TypeVar("T", int, float)
ReadTime = Callable[[str], float | None]


class Shape:
    """A template and the lines that have matched it since the last frames were made.

    ``seen`` is how often lines of this shape were read to learn it, ``needles`` what such a line
    can be found by.
    """

    def __init__(self, template: Template, seen: int, needles: Sequence[bytes]) -> None:
        self.template = template
        self.seen = seen
        self.needles = needles
        self.match = template.pattern.fullmatch
        self.match_line = template.line_pattern.match
        # Matches in the block at hand.
        self.found: list[re.Match[bytes]] = []
        # The shape that followed last time: tried first on the line after this one.
        self.next = self
        # What the template's keys spell -> what such a line says; None: it is read for itself.
        self.rows: dict[object, Row | None] = {}


class Gatherer:
    """Collects rows, from templates and one by one, and makes frames of them."""

    def __init__(self, read_time: ReadTime) -> None:
        self._read_time = read_time
        self._shapes: list[Shape] = []
        # Layout, which of the places its lines have, total of its bar -> pieces of its frame.
        self._parts: dict[tuple[Layout, bool, bool, bool, int | None], list[Frame]] = {}
        # Up to the minute -> its seconds; a log has few minutes beside its lines.
        self._minutes: dict[bytes, float] = {}

    def add_shape(self, shape: Shape) -> None:
        """Take a shape in, whose lines will be among the frames."""
        self._shapes.append(shape)

    def drop_shapes(self) -> None:
        """Forget all shapes; their lines must have been made frames."""
        self._shapes.clear()

    def add(self, offset: int, form: str, row: Row, stamp: bytes | None) -> None:
        """Add one row; ``stamp`` is the time stamp of its line."""
        moment = None if stamp is None else self._read_time(stamp.decode("utf-8", "replace"))
        self._put(
            Frame(
                layout_of(form, row),
                array("q", [offset]),
                None if row.step is None else array("q", [row.step]),
                None if row.epoch is None else array("d", [row.epoch]),
                None if moment is None else array("d", [moment]),
                tuple(array("d", [value]) for _, value in row.values),
                row.total,
            )
        )

    def frames(self, base: int, read: Callable[[int], Row | None]) -> list[Frame]:
        """Make frames of all that was added, ordered by their first line.

        ``base`` is the offset of the block in which shapes found their lines; ``read(offset)``
        reads a line of it by itself: one whose keys (a rank) are new to its shape.
        """
        for shape in self._shapes:
            if shape.found:
                self._take(shape, base, read)
        made = [_merge(parts) for parts in self._parts.values()]
        self._parts.clear()
        made.sort(key=lambda frame: frame.offsets[0])
        return made

    def _put(self, frame: Frame) -> None:
        has = (frame.steps is not None, frame.epochs is not None, frame.times is not None)
        # Bars are told apart by their totals.
        total = None if frame.layout.bar is None else frame.total
        self._parts.setdefault((frame.layout, *has, total), []).append(frame)

    def _take(self, shape: Shape, base: int, read: Callable[[int], Row | None]) -> None:
        template = shape.template
        offsets = [base + found.start() for found in shape.found]
        groups = [found.groups() for found in shape.found]
        shape.found = []
        if template.keys is None:
            self._put_all(template, template.row, offsets, groups)
            return
        by_key: dict[object, list[int]] = {}
        for index, texts in enumerate(groups):
            by_key.setdefault(template.keys(texts), []).append(index)
        for key, indices in by_key.items():
            if key not in shape.rows:
                row = read(offsets[indices[0]])
                explained = row is not None and explains(template, groups[indices[0]], row)
                shape.rows[key] = row if explained else None
            row = shape.rows[key]
            if row is not None:
                mine = [groups[index] for index in indices]
                self._put_all(template, row, [offsets[index] for index in indices], mine)
                continue
            for index in indices:
                if row := read(offsets[index]):
                    stamp = None if template.time is None else groups[index][template.time]
                    self.add(offsets[index], template.format, row, stamp)

    def _put_all(
        self, template: Template, row: Row, offsets: list[int], groups: list[tuple[bytes, ...]]
    ) -> None:
        columns = list(zip(*groups, strict=True))
        if row.bar is not None and len(parts := _by_total(template, columns)) > 1:
            for indices in parts:
                mine = [groups[index] for index in indices]
                self._put_all(template, row, [offsets[index] for index in indices], mine)
            return
        count = len(offsets)
        steps = None if row.step is None else array("q", [row.step]) * count
        epochs = None if row.epoch is None else array("d", [row.epoch]) * count
        values = [array("d", [value]) for _, value in row.values]
        total, filled = row.total, set()
        for slot in template.slots:
            numbers = slot.convert(columns[slot.group])
            if slot.role == "step":
                steps = array("q", [*map(int, numbers)])
            elif slot.role == "epoch":
                epochs = array("d", numbers)
            elif slot.role == "total":
                total = int(max(numbers))
            else:
                values[slot.role] = array("d", numbers)
                filled.add(slot.role)
        for index, value in enumerate(values):
            if index not in filled:
                values[index] = value * count
        known = None if template.time is None else self._times(columns[template.time])
        times = None if known is None else array("d", known)
        layout = layout_of(template.format, row)
        self._put(Frame(layout, array("q", offsets), steps, epochs, times, tuple(values), total))

    def _times(self, stamps: Sequence[bytes]) -> list[float] | None:
        """Return the seconds of time stamps of one form, None if they tell no time."""
        if not _ENDS_IN_SECONDS.search(stamps[0]):
            return self._slow_times(stamps)
        tail = len(stamps[0]) - stamps[0].rfind(b":") - 1
        texts = b"\n".join(stamps).replace(b",", b".").split(b"\n")
        minutes = self._minutes
        if len(minutes) > _MOST_MINUTES:
            minutes.clear()
        try:
            for text in {text[:-tail] for text in texts} - minutes.keys():
                told = self._read_time((text + b"00").decode())
                if told is None:
                    return self._slow_times(stamps)
                minutes[text] = told
            return [minutes[text[:-tail]] + float(text[-tail:]) for text in texts]
        except ValueError:
            return self._slow_times(stamps)

    def _slow_times(self, stamps: Sequence[bytes]) -> list[float] | None:
        """The same for stamps that do not end in seconds."""
        times = [self._read_time(stamp.decode("utf-8", "replace")) for stamp in stamps]
        known = [time for time in times if time is not None]
        return known if len(known) == len(times) else None


def _by_total(template: Template, columns: Sequence[tuple[bytes, ...]]) -> list[list[int]]:
    """Part the lines of a bar by the total that they name."""
    parts: dict[bytes, list[int]] = {}
    for slot in template.slots:
        if slot.role == "total" and len(set(columns[slot.group])) > 1:
            for index, total in enumerate(columns[slot.group]):
                parts.setdefault(total, []).append(index)
    return list(parts.values())


def _merge(parts: list[Frame]) -> Frame:
    """Join the pieces of one frame, in the order of their lines."""
    first = parts[0]
    if len(parts) == 1:
        return first
    totals = [part.total for part in parts if part.total is not None]
    order: list[int] = []
    if any(one.offsets[-1] > other.offsets[0] for one, other in pairwise(parts)):
        offsets = [*chain.from_iterable(part.offsets for part in parts)]
        order = sorted(range(len(offsets)), key=offsets.__getitem__)

    def join(columns: Iterable[array[T] | None]) -> array[T]:
        given = [column for column in columns if column is not None]
        joined = given[0][:]
        for column in given[1:]:
            joined += column
        return array(joined.typecode, [joined[index] for index in order]) if order else joined

    return Frame(
        first.layout,
        join(part.offsets for part in parts),
        None if first.steps is None else join(part.steps for part in parts),
        None if first.epochs is None else join(part.epochs for part in parts),
        None if first.times is None else join(part.times for part in parts),
        tuple(join(columns) for columns in zip(*(part.columns for part in parts), strict=True)),
        max(totals, default=None),
    )
