"""Sample: one number that a log says was measured; samples: many of them, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from hpcrun.metrics.row import Frame, Placed


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


class Samples:
    """The samples of a run, line by line as each log has them; columns of one length.

    >>> from hpcrun.metrics.row import Layout
    >>> samples = Samples()
    >>> layout = Layout("json", "train", None, None, ("loss", "lr"))
    >>> samples.add(0, [Frame(layout, [0, 40], [1, 2], None, None, ([2.5, 2.0], [0.1, 0.2]))])
    >>> len(samples), samples.columns()["name"], samples.columns()["value"]
    (4, ['loss', 'lr', 'loss', 'lr'], [2.5, 0.1, 2.0, 0.2])
    >>> next(iter(samples))
    Sample(attempt=0, offset=0, epoch=None, step=1, split='train', name='loss', value=2.5)
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._frames: list[tuple[int, Frame]] = []
        self._count = 0

    def add(self, attempt: int, pieces: Sequence[Frame | Placed]) -> None:
        """Keep the samples of a piece of a log."""
        frames = [piece for piece in pieces if isinstance(piece, Frame)]
        self._frames += [(attempt, frame) for frame in frames]
        self._count += sum(len(frame) * len(frame.columns) for frame in frames)

    def __len__(self) -> int:
        """Count the samples."""
        return self._count

    def __iter__(self) -> Iterator[Sample]:
        """Go through the samples one by one."""
        for attempt, frame in self._frames:
            layout = frame.layout
            for row, offset in enumerate(frame.offsets):
                epoch = None if frame.epochs is None else frame.epochs[row]
                step = None if frame.steps is None else frame.steps[row]
                for name, column in zip(layout.names, frame.columns, strict=True):
                    yield Sample(attempt, offset, epoch, step, layout.split, name, column[row])

    def columns(self) -> dict[str, list[Any]]:
        """Return the samples as columns, one for each field of ``Sample``."""
        fields = zip(*(astuple(sample) for sample in self), strict=True)
        columns = [list(field) for field in fields] or [[] for _ in Sample.__struct_fields__]
        return dict(zip(Sample.__struct_fields__, columns, strict=True))
