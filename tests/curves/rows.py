"""Concise construction of log rows, and their curve."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, structs

from hpcrun.curves.curve import Curve, Series, build_series
from hpcrun.curves.derive import derive_curve
from hpcrun.curves.report.thin import thin_series
from hpcrun.curves.row import Frame, Mark, RowLayout
from hpcrun.curves.scope import decide_scope
from hpcrun.curves.store import Store


class Line(Struct, frozen=True):
    """A line of a log: one row, or a mark. ``attempt`` and ``file`` say in which log it stands."""

    values: tuple[tuple[str, float], ...] = ()
    step: int | None = None
    epoch: float | None = None
    attempt: int = 0
    file: int = 0
    split: str = "train"
    rank: int | None = None
    bar: str | None = None
    total: int | None = None
    form: str = "key=value"
    time: float | None = None
    mark: Mark | None = None


def at(attempt: int, step: int | None, value: float, *, name: str = "loss", **more: Any) -> Line:
    """Return a line with one value."""
    split = "eval" if name.startswith("eval") else "train"
    return Line(((name, value),), step, attempt=attempt, **{"split": split, **more})


def pieces_of(lines: Sequence[Line], first: int = 0) -> list[Frame | Mark]:
    """Gather lines in frames as the Reader does; line ``i`` begins at byte ``10 * (first + i)``."""
    done: list[Frame | Mark] = []
    open_frames: dict[object, Frame] = {}
    for index, line in enumerate(lines, first):
        if line.mark is not None:
            done += open_frames.values()
            open_frames = {}
            done.append(structs.replace(line.mark, offset=10 * index))
            continue
        names = tuple(name for name, _ in line.values)
        layout = RowLayout(
            line.form,
            decide_scope([], line.split, dict(line.values))[0],
            line.rank,
            line.bar,
            names,
        )
        has = (line.step is None, line.epoch is None, line.time is None, line.total)
        frame = open_frames.get((layout, has))
        if frame is None:
            frame = open_frames[(layout, has)] = Frame(
                layout,
                array("q"),
                None if line.step is None else array("q"),
                None if line.epoch is None else array("d"),
                None if line.time is None else array("d"),
                tuple(array("d") for _ in names),
                line.total,
            )
        frame.offsets.append(10 * index)
        for column, value in (
            (frame.steps, line.step),
            (frame.epochs, line.epoch),
            (frame.times, line.time),
        ):
            if column is not None:
                column.append(value)  # type: ignore[arg-type]
        for numbers, (_, value) in zip(frame.columns, line.values, strict=True):
            numbers.append(value)
    return done + list(open_frames.values())


def build(
    lines: Iterable[Line],
    attempts: Iterable[int] = (),
    *,
    cuts: Iterable[int] = (),
    limit: int | None = None,
) -> Curve:
    """Build the curve of lines; ``cuts`` are the indices at which a new piece begins."""
    store = Store()
    logs: dict[tuple[int, int], list[Line]] = {(attempt, 0): [] for attempt in attempts}
    for line in lines:
        logs.setdefault((line.attempt, line.file), []).append(line)
    for (attempt, file), log in sorted(logs.items()):
        store.begin(attempt, file)
        ends = sorted({*(cut for cut in cuts if 0 < cut < len(log)), len(log)})
        start = 0
        for end in ends:
            store.add(pieces_of(log[start:end], start))
            start = end
    return derive_curve(store, thin_to(limit))


def thin_to(limit: int | None) -> Callable[..., Series]:
    """Return what makes series of at most so many points; None for all."""
    return build_series if limit is None else partial(thin_series, most=limit)


def both(curve: Curve, name: str) -> tuple[list[int | None], list[float]]:
    """Return steps and values of a metric."""
    return curve.steps(name), curve.values(name)
